//! A GPT: tokens to the logits of the tokens that follow.
//!
//! ```text
//! tokens [n, t] ─ wte (+ wpe) ─ x ─┬─ ln_1 ─ attention ─ + ─┬─ ln_2 ─ mlp ─ + ─ … ─ ln_f ─ wteᵀ ─ logits [n, t, vocabulary]
//!                                  └────────────────────────┘└──────────────┘        (the tied head)
//!                                   one of `layers` blocks, named h.0, h.1, …
//! ```
//!
//! Names and initial weights are those of Karpathy's nanoGPT, dropout where nanoGPT has it. Sources: Radford and others, "Language Models are
//! Unsupervised Multitask Learners" (2019); rotary positions: Su and others, "RoFormer" (2021), with the halves as in GPT-NeoX.

use c10d::{Error, Result, from_caller};
use tch::nn::{Init, LayerNorm, Linear, LinearConfig, Module, ModuleT, Path, layer_norm, linear};
use tch::{Device, Kind, Tensor, no_grad};

use super::RunUnit;
use crate::nn::raise;
use crate::rng::KeyedRng;

/// Keeps the draws of [`Gpt::generate`] apart from other streams of the same seed.
const GENERATE: u64 = u64::from_be_bytes(*b"generate");

/// How the model knows the places of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Positions {
    /// A learned vector for each place, added to the token's.
    #[default]
    Learned,
    /// Queries and keys are rotated by angles that grow with the place: their products depend on the distance alone.
    Rotary,
}

/// The sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptConfig {
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The longest sequence.
    pub context: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The attention heads of a block.
    pub heads: usize,
    /// The numbers for each token; a multiple of `heads`.
    pub width: usize,
    /// How it knows the places of tokens.
    pub positions: Positions,
    /// The part of the numbers that training drops, from 0 to below 1: of the tokens' vectors, of the attention's weights, and of what each
    /// block adds.
    pub dropout: f64,
}

/// The model. Its variables are `wte.weight`, `wpe.weight` with learned positions, those of the blocks `h.N`, and `ln_f`.
#[derive(Debug)]
pub struct Gpt {
    config: GptConfig,
    wte: Tensor,
    wpe: Option<Tensor>,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
}

#[derive(Debug)]
struct Block {
    config: GptConfig,
    ln_1: LayerNorm,
    c_attn: Linear,
    attn_proj: Linear,
    ln_2: LayerNorm,
    c_fc: Linear,
    mlp_proj: Linear,
}

/// How [`Gpt::generate`] chooses among the tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits: below 1 the likely tokens become likelier, at 0 the likeliest is chosen.
    pub temperature: f64,
    /// The key of the draws: the same seed, model and prompt give the same text.
    pub seed: u64,
}

impl Gpt {
    /// Draws the weights: 0.02 times normal numbers, divided by √(2 · layers) where a block adds to its input; biases are 0.
    ///
    /// Errors: `BadArgument` for a size of 0, a width that the heads do not divide, rotary positions with heads of an odd size, and a dropout
    /// outside 0 to 1.
    pub fn new(vs: &Path<'_>, config: GptConfig) -> Result<Self> {
        let GptConfig { vocabulary, context, layers, heads, width, positions, dropout } = config;
        let refused = |why: String| Err(Error::bad_argument("the GPT", why));
        if [vocabulary, context, layers, heads, width].contains(&0) {
            return refused(format!("a size is 0: {config:?}"));
        }
        if !width.is_multiple_of(heads) {
            return refused(format!("{heads} heads do not divide a width of {width}: choose a multiple"));
        }
        if positions == Positions::Rotary && !(width / heads).is_multiple_of(2) {
            return refused(format!("rotary positions need heads of an even size, not of {width} / {heads}"));
        }
        if !(0.0..1.0).contains(&dropout) {
            return refused(format!("a dropout of {dropout}: choose a part from 0 to below 1"));
        }
        let table = |path: Path<'_>, rows: usize| path.var("weight", &[rows as i64, width as i64], normal(0.02));
        Ok(Gpt {
            config,
            wte: table(vs / "wte", vocabulary),
            wpe: (positions == Positions::Learned).then(|| table(vs / "wpe", context)),
            blocks: (0..layers).map(|number| Block::new(&(vs / "h" / number), config)).collect(),
            ln_f: layer_norm(vs / "ln_f", vec![width as i64], Default::default()),
        })
    }

    /// The sizes.
    pub fn config(&self) -> &GptConfig {
        &self.config
    }

    /// The logits of tokens, `Int64 [n, t]`: `[n, t, vocabulary]`, each row for the token that follows. Nothing is dropped.
    ///
    /// Errors: `BadArgument` for another shape or kind, more tokens than the context, and, on the CPU, a token outside the vocabulary. It
    /// names the caller's line.
    #[track_caller]
    pub fn try_forward(&self, tokens: &Tensor) -> Result<Tensor> {
        from_caller(self.check(tokens))?;
        Ok(self.forward_units(tokens, false, &whole))
    }

    /// The units for [`FullyShard`](crate::parallel::FullyShard): one for each block, and the first for the rest.
    pub fn units(&self) -> Vec<String> {
        std::iter::once(String::new()).chain((0..self.config.layers).map(|number| format!("h.{number}"))).collect()
    }

    /// The forward pass, in which `run` runs the layers of each [unit](Self::units): its name, its inputs and its layers. The call for the
    /// rest encloses all others.
    ///
    /// ```no_run
    /// # use lockstep::{models::gpt::Gpt, nn::raise, parallel::FullyShard};
    /// # fn forward(gpt: &Gpt, sharded: &FullyShard, tokens: &tch::Tensor) -> tch::Tensor {
    /// gpt.forward_units(tokens, true, &|unit, inputs, layers| sharded.forward(unit, inputs, layers).unwrap_or_else(|error| raise(error)))
    /// # }
    /// ```
    ///
    /// It checks nothing that [`try_forward`](Self::try_forward) refuses.
    pub fn forward_units(&self, tokens: &Tensor, train: bool, run: &RunUnit<'_>) -> Tensor {
        run("", tokens, &|tokens| {
            let mut x = Tensor::embedding(&self.wte, tokens, -1, false, false);
            if let Some(wpe) = &self.wpe {
                x = x.g_add(&wpe.narrow(0, 0, tokens.size()[1]));
            }
            x = x.dropout(self.config.dropout, train);
            for (number, block) in self.blocks.iter().enumerate() {
                x = run(&format!("h.{number}"), &x, &|x| block.forward(x, train));
            }
            self.ln_f.forward(&x).linear::<Tensor>(&self.wte, None)
        })
    }

    /// Continues a text: the prompt's tokens and `count` more. If the text is longer than the context, the model sees its
    /// end.
    ///
    /// Errors: `BadArgument` for an empty prompt, a token outside the vocabulary, and a temperature that is negative or not finite.
    pub fn generate(&self, prompt: &[u32], count: usize, sampling: Sampling) -> Result<Vec<u32>> {
        let temperature = sampling.temperature;
        if prompt.is_empty() || !(temperature.is_finite() && temperature >= 0.0) {
            let why = format!(
                "a prompt of {} tokens and a temperature of {temperature}: give 1 token or more, and 0 or more",
                prompt.len()
            );
            return Err(Error::bad_argument("the GPT", why));
        }
        let mut tokens = prompt.to_vec();
        for place in 0..count {
            let seen = &tokens[tokens.len().saturating_sub(self.config.context)..];
            let seen = Tensor::from_slice(&seen.iter().map(|&token| i64::from(token)).collect::<Vec<_>>());
            let seen = seen.unsqueeze(0);
            self.check(&seen)?;
            let seen = seen.to_device(self.wte.device());
            let logits = no_grad(|| self.forward_units(&seen, false, &whole));
            tokens.push(sampling.choose(&logits.select(1, -1), place as u64)?);
        }
        Ok(tokens)
    }

    fn check(&self, tokens: &Tensor) -> Result<()> {
        let (size, GptConfig { context, vocabulary, .. }) = (tokens.size(), self.config);
        let refused = |why: String| {
            let tokens = format!("tokens of shape {size:?} and kind {:?}", tokens.kind());
            Err(Error::bad_argument("the GPT", format!("{tokens}: {why}")))
        };
        if size.len() != 2 || tokens.kind() != Kind::Int64 {
            return refused("it takes Int64 of shape [sequences, tokens]".to_owned());
        }
        if size[1] > context as i64 {
            return refused(format!(
                "a sequence has at most {context} tokens, the context; cut it, or make the context longer"
            ));
        }
        // On a GPU this check would wait for everything that is computed there.
        if tokens.device() == Device::Cpu && tokens.numel() > 0 {
            let (least, most) = (tokens.min().int64_value(&[]), tokens.max().int64_value(&[]));
            if least < 0 || most >= vocabulary as i64 {
                let token = if least < 0 { least } else { most };
                return refused(format!("token {token} is outside the vocabulary of {vocabulary}"));
            }
        }
        Ok(())
    }
}

impl Sampling {
    /// Chooses the token at this place of a text, by its logits `[…, vocabulary]` for one token.
    pub fn choose(self, logits: &Tensor, place: u64) -> Result<u32> {
        let logits = logits.flatten(0, -1).to_kind(Kind::Double);
        if self.temperature == 0.0 {
            return Ok(logits.argmax(-1, false).int64_value(&[]) as u32);
        }
        let chances = (logits / self.temperature).softmax(-1, Kind::Double).to_device(Device::Cpu);
        let chances: Vec<f64> =
            chances.try_into().map_err(|error| Error::of_torch("read the next token's chances", &error))?;
        Ok(drawn(&chances, KeyedRng::new(&[self.seed, GENERATE, place]).next_u64()))
    }
}

impl ModuleT for Gpt {
    /// # Panics
    /// Panics when [`Gpt::try_forward`] fails; inside
    /// [`DistributedDataParallel::forward`](crate::DistributedDataParallel::forward) the failure is that call's error instead.
    #[track_caller]
    fn forward_t(&self, tokens: &Tensor, train: bool) -> Tensor {
        match self.check(tokens) {
            Ok(()) => self.forward_units(tokens, train, &whole),
            Err(error) => raise(error),
        }
    }
}

/// Runs a unit's layers as they are.
fn whole(_unit: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
    layers(inputs)
}

impl Block {
    fn new(vs: &Path<'_>, config: GptConfig) -> Self {
        let (width, layers) = (config.width as i64, config.layers as f64);
        let norm = |name: &str| layer_norm(vs / name, vec![width], Default::default());
        let layer = |part: &str, name: &str, inputs, outputs, deviation| {
            let options = LinearConfig { ws_init: normal(deviation), bs_init: Some(Init::Const(0.0)), bias: true };
            linear(vs / part / name, inputs, outputs, options)
        };
        let adds = 0.02 / (2.0 * layers).sqrt();
        Block {
            config,
            ln_1: norm("ln_1"),
            c_attn: layer("attn", "c_attn", width, 3 * width, 0.02),
            attn_proj: layer("attn", "c_proj", width, width, adds),
            ln_2: norm("ln_2"),
            c_fc: layer("mlp", "c_fc", width, 4 * width, 0.02),
            mlp_proj: layer("mlp", "c_proj", 4 * width, width, adds),
        }
    }

    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let dropout = self.config.dropout;
        let x = x + self.attention(&self.ln_1.forward(x), train).dropout(dropout, train);
        let inner = self.c_fc.forward(&self.ln_2.forward(&x)).gelu("none");
        x + self.mlp_proj.forward(&inner).dropout(dropout, train)
    }

    /// Each token's mean of the values so far, weighted by how well its query fits their keys.
    fn attention(&self, x: &Tensor, train: bool) -> Tensor {
        let (size, heads) = (x.size(), self.config.heads as i64);
        let divided = |part: &Tensor| part.view([size[0], size[1], heads, size[2] / heads]).transpose(1, 2);
        let [mut query, mut key, value] =
            [0, 1, 2].map(|part| divided(&self.c_attn.forward(x).narrow(-1, part * size[2], size[2])));
        if self.config.positions == Positions::Rotary {
            [query, key] = [rotated(&query), rotated(&key)];
        }
        let (dropout, mask) = (if train { self.config.dropout } else { 0.0 }, None::<&Tensor>);
        let mixed = Tensor::scaled_dot_product_attention(&query, &key, &value, mask, dropout, true, None, false);
        self.attn_proj.forward(&mixed.transpose(1, 2).reshape(&size))
    }
}

/// `[n, heads, t, size]`: at place p, the numbers i and i + size/2 are rotated as a point of the plane, by p · 10000^(−2i/size).
fn rotated(x: &Tensor) -> Tensor {
    let size = x.size();
    let (places, half) = (size[2], size[3] / 2);
    let range = |end: i64| Tensor::arange(end, (Kind::Double, x.device()));
    let speeds = (range(half) * (-2.0 * 10_000f64.ln() / size[3] as f64)).exp();
    let angles = range(places).unsqueeze(-1) * speeds;
    let (cos, sin) = (angles.cos().to_kind(x.kind()), angles.sin().to_kind(x.kind()));
    let (first, second) = (x.narrow(-1, 0, half), x.narrow(-1, half, half));
    Tensor::cat(&[&first * &cos - &second * &sin, &second * &cos + &first * &sin], -1)
}

fn normal(stdev: f64) -> Init {
    Init::Randn { mean: 0.0, stdev }
}

/// The token in whose part of the unit interval the random bits fall.
fn drawn(chances: &[f64], bits: u64) -> u32 {
    let point = (bits >> 11) as f64 / (1u64 << 53) as f64;
    let mut sum = 0.0;
    let passed = chances.iter().take_while(|chance| {
        sum += **chance;
        sum <= point
    });
    // A sum that is rounded may end below the point.
    passed.count().min(chances.len() - 1) as u32
}

#[cfg(test)]
mod tests {
    use tch::nn::VarStore;

    use super::*;

    const SMALL: GptConfig = GptConfig {
        vocabulary: 11,
        context: 8,
        layers: 2,
        heads: 2,
        width: 8,
        positions: Positions::Rotary,
        dropout: 0.0,
    };

    fn gpt(config: GptConfig) -> (VarStore, Gpt) {
        tch::manual_seed(1);
        let vs = VarStore::new(Device::Cpu);
        let gpt = Gpt::new(&vs.root(), config).unwrap();
        (vs, gpt)
    }

    #[test]
    fn no_logits_depend_on_later_tokens() {
        for positions in [Positions::Learned, Positions::Rotary] {
            let (_vs, gpt) = gpt(GptConfig { positions, ..SMALL });
            let tokens = |last: i64| Tensor::from_slice(&[1, 2, 3, last]).unsqueeze(0);
            let [some, others] = [4, 5].map(|last| gpt.try_forward(&tokens(last)).unwrap());
            assert_eq!(some.narrow(1, 0, 3), others.narrow(1, 0, 3));
            assert_ne!(some.narrow(1, 3, 1), others.narrow(1, 3, 1));
        }
    }

    #[test]
    fn names_the_shape_and_what_fits() {
        let (_vs, gpt) = gpt(SMALL);
        let message = |tokens: Tensor| gpt.try_forward(&tokens).unwrap_err().to_string();
        let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Int64, Device::Cpu));
        assert!(
            message(zeros(&[3]))
                .contains("tokens of shape [3] and kind Int64: it takes Int64 of shape [sequences, tokens]")
        );
        assert!(message(zeros(&[1, 9])).contains("at most 8 tokens"));
        assert!(message(zeros(&[3])).contains(&format!("(called at {}:", file!())), "{}", message(zeros(&[3])));
        assert!(message(zeros(&[1, 2]) + 11).contains("token 11 is outside the vocabulary of 11"));
        for config in
            [GptConfig { heads: 3, ..SMALL }, GptConfig { layers: 0, ..SMALL }, GptConfig { heads: 8, ..SMALL }]
        {
            assert!(Gpt::new(&VarStore::new(Device::Cpu).root(), config).is_err(), "{config:?}");
        }
    }

    #[test]
    fn draws_tokens_by_their_chances_with_the_same_text_for_the_same_seed() {
        let (_vs, gpt) = gpt(SMALL);
        let text = |temperature, seed| gpt.generate(&[1, 2], 20, Sampling { temperature, seed }).unwrap();
        assert_eq!(text(1.0, 3), text(1.0, 3));
        assert_ne!(text(1.0, 3), text(1.0, 4));
        assert_eq!(text(0.0, 3), text(0.0, 4));
        // A temperature near 0 is the likeliest token.
        assert_eq!(text(1e-9, 5), text(0.0, 0));
        assert!(
            text(1.0, 3)[..2] == [1, 2] && text(1.0, 3).len() == 22 && text(1.0, 3).iter().all(|token| *token < 11)
        );
        for (prompt, temperature) in [(&[][..], 1.0), (&[1], -1.0), (&[1], f64::NAN), (&[11], 1.0)] {
            assert!(gpt.generate(prompt, 1, Sampling { temperature, seed: 0 }).is_err());
        }
        let mut counts = [0; 3];
        (0..30_000).for_each(|at| counts[drawn(&[0.2, 0.3, 0.5], KeyedRng::new(&[at]).next_u64()) as usize] += 1);
        for (count, expected) in counts.into_iter().zip([6_000, 9_000, 15_000]) {
            assert!(i32::abs_diff(count, expected) < 500, "{counts:?}");
        }
        assert_eq!((drawn(&[0.0, 1.0], 0), drawn(&[0.5, 0.4], u64::MAX)), (1, 1));
    }
}

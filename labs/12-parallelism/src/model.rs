//! A transformer on characters: whole, with a part of each layer, of each sequence or of the experts on each rank, or some of its blocks.
//!
//! Source: Vaswani and others, "Attention Is All You Need" (2017), with the normalization before each part, as in GPT-2.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use c10d::{OwnThread, ProcessGroup};
use lockstep::loss::CrossEntropy;
use lockstep::nn::raise;
use lockstep::parallel::context::zigzag;
use lockstep::parallel::{
    ColumnParallelLinear, MixtureOfExperts, Routed, RowParallelLinear, VocabParallelEmbedding, ring_attention,
    vocab_parallel_cross_entropy,
};
use tch::nn::{Linear, Module, Path};
use tch::{Kind, Tensor};

use crate::network::{CONTEXT, VOCABULARY};
use crate::network::{Divided, Network, Run};

/// Numbers for each character.
const FEATURES: i64 = 48;
/// Attention heads: 12 can be divided by 2, 3 and 4.
const HEADS: i64 = 12;
const INNER: i64 = 4 * FEATURES;
/// Each as wide as the two layers in whose place they are.
const EXPERTS: i64 = 12;
/// An expert takes no more than this times its equal share of the tokens.
const CAPACITY: f64 = 2.0;
/// What the balancing loss of a block counts in the loss.
const BALANCE: f64 = 0.01;

/// The whole model's initial weights, by name.
pub(crate) type Weights = BTreeMap<String, Tensor>;

/// Draws the weights of the whole model, with experts or without; the same on every rank.
pub(crate) fn draw(blocks: i64, experts: bool, seed: u64, kind: Kind) -> Weights {
    tch::manual_seed(seed as i64);
    let mut weights = Weights::new();
    let mut add = |name: String, size: &[i64], deviation: f64| {
        // Drawn in double precision, so that both precisions begin with nearly the same weights.
        let drawn = Tensor::randn(size, (Kind::Double, tch::Device::Cpu)) * deviation;
        weights.insert(name, drawn.to_kind(kind));
    };
    add("embedding".into(), &[VOCABULARY, FEATURES], 0.1);
    add("embedding.positions".into(), &[CONTEXT, FEATURES], 0.1);
    add("head".into(), &[VOCABULARY, FEATURES], 0.1);
    for block in 0..blocks {
        let attention = [("qkv", &[3 * FEATURES, FEATURES][..]), ("out", &[FEATURES, FEATURES])];
        let layers: &[(&str, &[i64])] = match experts {
            false => &[("fc1", &[INNER, FEATURES]), ("fc2", &[FEATURES, INNER])],
            true => &[
                ("router", &[EXPERTS, FEATURES]),
                ("experts.fc1", &[EXPERTS, INNER, FEATURES]),
                ("experts.fc2", &[EXPERTS, FEATURES, INNER]),
            ],
        };
        for (layer, size) in attention.iter().chain(layers) {
            add(format!("{block}.{layer}"), size, 0.1);
        }
    }
    weights
}

/// What this rank computes of the model.
pub(crate) struct Transformer {
    embedding: Option<(Box<dyn Module>, Tensor)>,
    // Shared with the graph, which computes a block again if the activations are not kept.
    blocks: Vec<Arc<Mutex<Block>>>,
    head: Option<Box<dyn Module>>,
    recompute: bool,
    tensor: Option<Rc<ProcessGroup>>,
    context: Option<Rc<ProcessGroup>>,
}

// ANCHOR: layers
/// Makes layers: whole, or this rank's part of each.
pub(crate) struct Layers<'a> {
    pub(crate) vs: Path<'a>,
    pub(crate) weights: &'a Weights,
    pub(crate) divided: Divided<'a>,
}

impl<'a> Layers<'a> {
    fn tensor(&self) -> Option<&'a Rc<ProcessGroup>> {
        if let Divided::Layers(group) = self.divided { Some(group) } else { None }
    }

    fn context(&self) -> Option<&'a Rc<ProcessGroup>> {
        if let Divided::Sequences(group) = self.divided { Some(group) } else { None }
    }

    /// A layer whose outputs are divided.
    fn column(&self, name: &str) -> Result<Box<dyn Module>> {
        let (vs, weight, bias) = self.linear(name);
        Ok(match self.tensor() {
            Some(group) => Box::new(ColumnParallelLinear::new(&vs, weight, Some(&bias), group)?),
            None => Box::new(whole(&vs, weight, &bias)),
        })
    }

    /// A layer whose inputs are divided.
    fn row(&self, name: &str) -> Result<Box<dyn Module>> {
        let (vs, weight, bias) = self.linear(name);
        Ok(match self.tensor() {
            Some(group) => Box::new(RowParallelLinear::new(&vs, weight, Some(&bias), group)?),
            None => Box::new(whole(&vs, weight, &bias)),
        })
    }

    /// A layer's variables, its weight and a bias of zeros.
    fn linear(&self, name: &str) -> (Path<'_>, &Tensor, Tensor) {
        let weight = &self.weights[name];
        let bias = Tensor::zeros([weight.size()[0]], (weight.kind(), weight.device()));
        (name.split('.').fold(self.vs.clone(), |path, part| path / part), weight, bias)
    }

    fn embedding(&self) -> Result<Box<dyn Module>> {
        let (vs, weight) = (&self.vs / "embedding", &self.weights["embedding"]);
        Ok(match self.tensor() {
            Some(group) => Box::new(VocabParallelEmbedding::new(&vs, weight, group)?),
            None => {
                let weight = vs.var_copy("weight", weight);
                Box::new(tch::nn::func(move |indices| Tensor::embedding(&weight, indices, -1, false, false)))
            }
        })
    }
}
// ANCHOR_END: layers

fn whole(vs: &Path<'_>, weight: &Tensor, bias: &Tensor) -> Linear {
    Linear { ws: vs.var_copy("weight", weight), bs: Some(vs.var_copy("bias", bias)) }
}

impl Transformer {
    /// The blocks `which`, of `all`; the embedding belongs to the first block, the head to the last.
    pub(crate) fn new(layers: &Layers<'_>, which: Range<i64>, all: i64, recompute: bool) -> Result<Self> {
        let embedding = match which.start {
            0 => {
                let positions = &layers.weights["embedding.positions"];
                Some((layers.embedding()?, (&layers.vs / "embedding").var_copy("positions", positions)))
            }
            _ => None,
        };
        let head = if which.end == all { Some(layers.column("head")?) } else { None };
        let blocks = which.map(|number| Ok(Arc::new(Mutex::new(Block::new(layers, number)?))));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(Transformer {
            embedding,
            blocks,
            head,
            recompute,
            tensor: layers.tensor().cloned(),
            context: layers.context().cloned(),
        })
    }

    /// Shape of what a stage receives for `n` sequences.
    pub(crate) fn activations(n: i64) -> Vec<i64> {
        vec![n, CONTEXT, FEATURES]
    }
}

impl Network for Transformer {
    // ANCHOR: units
    /// Characters `[n, CONTEXT]` to activations `[n, CONTEXT, FEATURES]`, and these to logits `[n, CONTEXT, VOCABULARY]`: the part of
    /// that way which this rank has. With a part of each layer, the logits are those of a part of the vocabulary.
    fn forward(&self, inputs: &Tensor, run: &dyn Run) -> Tensor {
        let start = match &self.embedding {
            Some((embedding, positions)) => {
                run.unit("embedding", inputs, &|x| embedding.forward(x) + self.own(positions))
            }
            None => inputs.shallow_clone(),
        };
        let end = self.blocks.iter().enumerate().fold(start, |x, (number, block)| {
            let (name, block) = (number.to_string(), Arc::clone(block));
            match self.recompute {
                true => run.unit_again(&name, &x, Box::new(move |x| locked(&block, x))),
                false => run.unit(&name, &x, &|x| locked(&block, x)),
            }
        });
        match &self.head {
            Some(head) => run.unit("head", &end, &|x| head.forward(&normalized(x))),
            None => end,
        }
    }
    // ANCHOR_END: units

    /// With experts, also the balancing loss of each block.
    fn loss(&self, logits: &Tensor, targets: &Tensor) -> Tensor {
        let (logits, targets) = (logits.flatten(0, 1), targets.flatten(0, 1));
        let loss = match &self.tensor {
            Some(group) => vocab_parallel_cross_entropy(group, &logits, &targets).unwrap_or_else(|error| raise(error)),
            None => CrossEntropy::default().loss(&logits, &targets),
        };
        let routed =
            self.blocks.iter().filter_map(|block| lock(block).routed.as_ref().map(|routed| &routed.balance * BALANCE));
        routed.fold(loss, |loss, balance| loss + balance)
    }

    fn dropped(&self) -> Option<i64> {
        self.blocks.iter().map(|block| lock(block).routed.as_ref().map(|routed| routed.dropped)).sum()
    }

    fn units(&self) -> Vec<String> {
        let blocks = (0..self.blocks.len()).map(|number| number.to_string());
        ["embedding".to_owned()].into_iter().chain(blocks).chain(["head".to_owned()]).collect()
    }
}

impl Transformer {
    /// This rank's positions of the table.
    fn own(&self, positions: &Tensor) -> Tensor {
        match &self.context {
            Some(group) => zigzag(group, positions, 0).unwrap_or_else(|error| raise(error)),
            None => positions.shallow_clone(),
        }
    }
}

fn lock(block: &Mutex<Block>) -> MutexGuard<'_, Block> {
    block.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locked(block: &Mutex<Block>, x: &Tensor) -> Tensor {
    lock(block).forward(x)
}

/// Layer normalization without parameters.
fn normalized(x: &Tensor) -> Tensor {
    x.layer_norm([FEATURES], None::<Tensor>, None::<Tensor>, 1e-5, false)
}

// ANCHOR: block
/// Attention, then two layers or experts. Of each pair of layers, the first divides its outputs and the second its inputs.
struct Block {
    qkv: Box<dyn Module>,
    out: Box<dyn Module>,
    context: Option<OwnThread<Rc<ProcessGroup>>>,
    inner: Inner,
    /// What the experts made of the last inputs.
    routed: Option<Routed>,
}

enum Inner {
    Layers(Box<dyn Module>, Box<dyn Module>),
    Experts(MixtureOfExperts),
}

impl Block {
    fn new(layers: &Layers<'_>, number: i64) -> Result<Self> {
        let name = |layer| format!("{number}.{layer}");
        let inner = match layers.divided {
            Divided::Experts(group) => {
                let weights = ["router", "experts.fc1", "experts.fc2"].map(|layer| &layers.weights[&name(layer)]);
                Inner::Experts(MixtureOfExperts::new(&(&layers.vs / number), weights, CAPACITY, group)?)
            }
            _ => Inner::Layers(layers.column(&name("fc1"))?, layers.row(&name("fc2"))?),
        };
        Ok(Block {
            qkv: layers.column(&name("qkv"))?,
            out: layers.row(&name("out"))?,
            context: layers.context().map(|group| OwnThread::new(Rc::clone(group))),
            inner,
            routed: None,
        })
    }

    fn forward(&mut self, x: &Tensor) -> Tensor {
        let x = x + self.out.forward(&self.attention(&self.qkv.forward(&normalized(x))));
        let inputs = normalized(&x);
        match &self.inner {
            Inner::Layers(fc1, fc2) => x + fc2.forward(&fc1.forward(&inputs).gelu("none")),
            Inner::Experts(experts) => {
                let tokens = inputs.flatten(0, 1);
                let routed = experts.try_forward(&tokens).unwrap_or_else(|error| raise(error));
                let x = x + routed.output.view_as(&inputs);
                self.routed = Some(routed);
                x
            }
        }
    }

    /// Queries, keys and values of this rank's heads and positions, `[n, t, heads · 3 · d]`, to what each character attends to,
    /// `[n, t, heads · d]`. The numbers of a head stand next to each other, so that to divide the layer's outputs divides the heads.
    fn attention(&self, qkv: &Tensor) -> Tensor {
        const WIDTH: i64 = FEATURES / HEADS;
        let (n, t) = (qkv.size()[0], qkv.size()[1]);
        let by_head = qkv.view([n, t, -1, 3, WIDTH]).permute([3, 0, 2, 1, 4]);
        let (queries, keys, values) = (by_head.get(0), by_head.get(1), by_head.get(2));
        let attended = match &self.context {
            Some(group) => group.get().and_then(|group| ring_attention(group, &queries, &keys, &values)),
            None => Ok(attention(&queries, &keys, &values)),
        };
        attended.unwrap_or_else(|error| raise(error)).transpose(1, 2).reshape([n, t, -1])
    }
}

/// Causal attention, `[n, heads, t, d]`.
fn attention(queries: &Tensor, keys: &Tensor, values: &Tensor) -> Tensor {
    let (t, width) = (queries.size()[2], queries.size()[3]);
    let scores = queries.matmul(&keys.transpose(-2, -1)) / (width as f64).sqrt();
    let later = Tensor::ones([t, t], (Kind::Bool, queries.device())).triu(1);
    scores.masked_fill(&later, f64::NEG_INFINITY).softmax(-1, None::<Kind>).matmul(values)
}
// ANCHOR_END: block

//! A small GPT for the program. Attention over divided sequences is yours, and so is the way of tokens to experts. You do not change this file.

use std::cell::RefCell;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep::parallel::context::zigzag_positions;
use tch::nn::Path;
use tch::{Device, Kind, Tensor};

use crate::experts::experts;
use crate::mixture::Mixture;
use crate::ring::Ring;
use crate::ring_attention::ring_attention;

pub(crate) const LAYERS: i64 = 2;
pub(crate) const WIDTH: i64 = 48;
const HEADS: i64 = 2;
const EXPERTS: i64 = 12;
/// An expert takes so many times its equal share of the tokens.
const CAPACITY: f64 = 1.5;
/// What the balancing loss of a layer counts.
const BALANCE: f64 = 0.01;

/// The model, in double precision.
pub(crate) struct Gpt {
    group: &'static ProcessGroup,
    wte: Tensor,
    wpe: Tensor,
    blocks: Vec<Block>,
    /// The balancing losses and the dropped tokens of the layers in the last pass.
    routed: RefCell<Vec<(Tensor, usize)>>,
}

struct Block {
    qkv: Tensor,
    out: Tensor,
    inner: Inner,
}

enum Inner {
    Layers(Tensor, Tensor),
    Experts(Tensor, Vec<Tensor>),
}

impl Gpt {
    /// Draws the whole model, with experts or without, the same on all ranks, of which each keeps what it has.
    pub(crate) fn new(
        vs: &Path<'_>,
        vocabulary: i64,
        window: i64,
        experts: bool,
        group: &'static ProcessGroup,
    ) -> Self {
        let drawn = |size: &[i64], scale: f64| Tensor::randn(size, (Kind::Double, Device::Cpu)) * scale;
        let layer = |vs: &Path<'_>, name: &str, outs: i64, ins: i64| {
            vs.var_copy(name, &drawn(&[outs, ins], (ins as f64).powf(-0.5)))
        };
        let block = |number: i64| {
            let vs = vs / "h" / number;
            let inner = if experts {
                let all: Vec<Tensor> =
                    (0..EXPERTS).map(|_| drawn(&[WIDTH, WIDTH], (WIDTH as f64).powf(-0.5))).collect();
                let each = EXPERTS as usize / group.size().get();
                let own = group.rank().get() * each..(group.rank().get() + 1) * each;
                let experts = own.map(|expert| (&vs / "experts").var_copy(&expert.to_string(), &all[expert]));
                Inner::Experts(layer(&vs, "router", EXPERTS, WIDTH), experts.collect())
            } else {
                Inner::Layers(layer(&vs, "fc1", 4 * WIDTH, WIDTH), layer(&vs, "fc2", WIDTH, 4 * WIDTH))
            };
            Block { qkv: layer(&vs, "qkv", 3 * WIDTH, WIDTH), out: layer(&vs, "out", WIDTH, WIDTH), inner }
        };
        Gpt {
            group,
            wte: vs.var_copy("wte", &drawn(&[vocabulary, WIDTH], 0.1)),
            wpe: vs.var_copy("wpe", &drawn(&[window, WIDTH], 0.1)),
            blocks: (0..LAYERS).map(block).collect(),
            routed: RefCell::new(Vec::new()),
        }
    }

    /// Tokens `[n, t]`, or if they are divided those of this rank's positions, to logits `[n, t, vocabulary]`; and what the balancing losses
    /// count, if there are experts.
    pub(crate) fn forward(&self, tokens: &Tensor, divided: bool) -> Result<(Tensor, Option<Tensor>)> {
        let length = tokens.size()[1];
        let places = match divided {
            true => zigzag_positions(self.group, length * self.group.size().get() as i64)?,
            false => Tensor::arange(length, (Kind::Int64, Device::Cpu)),
        };
        self.routed.borrow_mut().clear();
        let mut x = Tensor::embedding(&self.wte, tokens, -1, false, false) + self.wpe.index_select(0, &places);
        for block in &self.blocks {
            x = &x + self.attention(block, &normalized(&x), divided)?;
            x = &x + self.inner(&block.inner, &normalized(&x))?;
        }
        let balance =
            self.routed.borrow().iter().map(|(balance, _)| balance * BALANCE).reduce(|one, other| one + other);
        Ok((normalized(&x).matmul(&self.wte.tr()), balance))
    }

    /// How many tokens of all ranks found no place in the last pass. Without experts, none.
    pub(crate) fn dropped(&self) -> Result<Option<i64>> {
        let routed = self.routed.borrow();
        let mut all = Tensor::from(routed.iter().map(|(_, dropped)| *dropped as i64).sum::<i64>());
        self.group.all_reduce(&mut all, ReduceOp::Sum)?;
        Ok((!routed.is_empty()).then(|| all.int64_value(&[])))
    }

    fn attention(&self, block: &Block, x: &Tensor, divided: bool) -> Result<Tensor> {
        let size = x.size();
        let by_head =
            x.matmul(&block.qkv.tr()).view([size[0], size[1], 3, HEADS, WIDTH / HEADS]).permute([2, 0, 3, 1, 4]);
        let [queries, keys, values] = [0, 1, 2].map(|part| by_head.get(part));
        let attended = if divided {
            let ring = Ring::new(self.group);
            let one = |n: i64, head: i64| {
                let of = |x: &Tensor| x.get(n).get(head);
                ring_attention(&ring, &of(&queries), &of(&keys), &of(&values))
            };
            let all = (0..size[0]).flat_map(|n| (0..HEADS).map(move |head| (n, head)));
            let all = all.map(|(n, head)| one(n, head)).collect::<Result<Vec<_>>>()?;
            Tensor::stack(&all, 0).view([size[0], HEADS, size[1], WIDTH / HEADS])
        } else {
            Tensor::scaled_dot_product_attention(&queries, &keys, &values, None::<Tensor>, 0.0, true, None, false)
        };
        Ok(attended.transpose(1, 2).reshape(&size).matmul(&block.out.tr()))
    }

    fn inner(&self, inner: &Inner, x: &Tensor) -> Result<Tensor> {
        match inner {
            Inner::Layers(fc1, fc2) => Ok(x.matmul(&fc1.tr()).gelu("none").matmul(&fc2.tr())),
            Inner::Experts(router, weights) => {
                let tokens = x.flatten(0, 1);
                let all = (tokens.size()[0] * self.group.size().get() as i64) as f64;
                let limit = (CAPACITY * all / EXPERTS as f64).ceil() as usize;
                let own = weights.iter().map(Tensor::shallow_clone).collect();
                let routed = experts(&Mixture::new(self.group, router.shallow_clone(), own, limit), &tokens)?;
                self.routed.borrow_mut().push((routed.balance, routed.dropped));
                Ok(routed.output.gelu("none").view_as(x))
            }
        }
    }
}

/// Layer normalization without parameters.
fn normalized(x: &Tensor) -> Tensor {
    x.layer_norm([WIDTH], None::<Tensor>, None::<Tensor>, 1e-5, false)
}

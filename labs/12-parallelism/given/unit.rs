//! A layer whose weight is divided over the ranks: gathered when it is needed, freed afterwards. You do not change this file.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp, Storage};
use tch::Tensor;

/// A layer y = x Wᵀ, with a square weight W of which each rank keeps an equal part of the rows.
pub struct Unit<'a> {
    group: &'a ProcessGroup,
    /// `[features / ranks, features]`
    part: Tensor,
    whole: RefCell<Option<Tensor>>,
    seen: Rc<Seen>,
}

impl<'a> Unit<'a> {
    /// Keeps this rank's rows of `whole`.
    pub(crate) fn new(whole: &Tensor, group: &'a ProcessGroup, seen: &Rc<Seen>) -> Self {
        let (ranks, rank) = (group.size().get() as i64, group.rank().get() as i64);
        let rows = whole.size()[0] / ranks;
        let part = whole.narrow(0, rank * rows, rows).copy();
        Unit { group, part, whole: RefCell::default(), seen: Rc::clone(seen) }
    }

    /// Gathers the weight from all ranks. A collective: all ranks gather the same units in the same order.
    pub fn gather(&self) -> Result<()> {
        let features = self.part.size()[1];
        let mut whole = self.part.new_empty([features, features], (self.part.kind(), self.part.device()));
        self.group.all_gather_into_tensor(&mut whole, &self.part)?;
        self.seen.gathers.set(self.seen.gathers.get() + 1);
        self.seen.note(&self.seen.weights, &whole);
        *self.whole.borrow_mut() = Some(whole);
        Ok(())
    }

    /// Frees the weight. What was its memory becomes NaN, so that one can see who reads it later.
    pub fn free(&self) {
        if let Some(mut whole) = self.whole.take() {
            self.seen.frees.set(self.seen.frees.get() + 1);
            let _nan = whole.fill_(f64::NAN);
        }
    }

    /// The outputs y `[n, features]`, from the inputs `x` of the same shape.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.matmul(&self.weight().tr())
    }

    /// The gradient of the inputs, from that of the outputs.
    pub fn input_gradient(&self, of_outputs: &Tensor) -> Tensor {
        of_outputs.matmul(&self.weight())
    }

    /// The gradient of the whole weight, from the inputs and the gradient of the outputs.
    pub fn weight_gradient(&self, x: &Tensor, of_outputs: &Tensor) -> Tensor {
        let gradient = of_outputs.tr().matmul(x).contiguous();
        self.seen.note(&self.seen.gradients, &gradient);
        gradient
    }

    /// This rank's rows of the mean of all ranks' gradients of the whole weight. A collective.
    pub fn reduce(&self, of_weight: Tensor) -> Result<Tensor> {
        let mut rows = self.part.empty_like();
        self.group.reduce_scatter_tensor(&mut rows, &of_weight, ReduceOp::Sum)?;
        self.seen.reduces.set(self.seen.reduces.get() + 1);
        Ok(rows / self.group.size().get() as f64)
    }

    /// The whole weight; NaN while it is freed.
    fn weight(&self) -> Tensor {
        let features = self.part.size()[1];
        let nan = || self.part.new_full([1, 1], f64::NAN, (self.part.kind(), self.part.device()));
        self.whole.borrow().as_ref().map_or_else(|| nan().expand([features, features], false), Tensor::shallow_clone)
    }
}

/// What happened on this rank.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) gathers: Cell<u64>,
    pub(crate) frees: Cell<u64>,
    pub(crate) reduces: Cell<u64>,
    weights: Alive,
    gradients: Alive,
}

/// Memory that may still be there, and the most bytes of it at once.
#[derive(Default)]
struct Alive(RefCell<Vec<Storage>>, Cell<u64>);

impl Seen {
    fn note(&self, kind: &Alive, tensor: &Tensor) {
        kind.0.borrow_mut().extend(Storage::of(tensor));
        for Alive(memory, most) in [&self.weights, &self.gradients] {
            let mut memory = memory.borrow_mut();
            memory.retain(|memory| memory.bytes() > 0);
            most.set(most.get().max(memory.iter().map(Storage::bytes).sum()));
        }
    }

    /// The most bytes of whole weights, and of whole gradients, at once.
    pub(crate) fn most(&self) -> [u64; 2] {
        [self.weights.1.get(), self.gradients.1.get()]
    }
}

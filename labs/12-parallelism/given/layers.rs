//! Layers for tasks `column_row` and `free_units`: a weight too large for one rank, and a layer whose weight is divided over the ranks:
//! gathered when it is needed, freed afterwards. You do not change this file.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp, Storage};
use tch::Tensor;

/// A layer's weight `[outputs, inputs]`; a rank takes a part.
pub struct Weight {
    whole: Tensor,
    taken: Cell<i64>,
}

impl Weight {
    pub(crate) fn new(whole: Tensor) -> Self {
        Weight { whole, taken: Cell::new(0) }
    }

    pub fn size(&self) -> Vec<i64> {
        self.whole.size()
    }

    /// Takes `count` rows: some of the layer's outputs.
    pub fn rows(&self, from: i64, count: i64) -> Tensor {
        self.take(0, from, count)
    }

    /// Takes `count` columns: some of the layer's inputs.
    pub fn columns(&self, from: i64, count: i64) -> Tensor {
        self.take(1, from, count)
    }

    fn take(&self, dim: i64, from: i64, count: i64) -> Tensor {
        let part = self.whole.narrow(dim, from, count).contiguous();
        self.taken.set(self.taken.get() + part.numel() as i64);
        part
    }

    /// How many numbers the rank has taken.
    pub(crate) fn taken(&self) -> i64 {
        self.taken.get()
    }
}

/// A layer y = x Wᵀ, with a square weight W: each rank keeps an equal part of its rows.
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
        if self.whole.replace(Some(whole)).is_none() {
            self.seen.whole.set(self.seen.whole.get() + 1);
        }
        self.seen.note();
        Ok(())
    }

    /// Frees the weight. Its memory becomes NaN, so that a later read shows.
    pub fn free(&self) {
        if let Some(mut whole) = self.whole.take() {
            self.seen.frees.set(self.seen.frees.get() + 1);
            self.seen.whole.set(self.seen.whole.get() - 1);
            let _nan = whole.fill_(f64::NAN);
        }
    }

    /// The outputs y `[n, features]`, from the inputs `x` of the same shape.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.matmul(&self.weight(0).tr())
    }

    /// The gradient of the inputs, from the gradient of the outputs.
    pub fn input_gradient(&self, of_outputs: &Tensor) -> Tensor {
        of_outputs.matmul(&self.weight(1))
    }

    /// The gradient of the whole weight, from the inputs and the gradient of the outputs.
    pub fn weight_gradient(&self, x: &Tensor, of_outputs: &Tensor) -> Tensor {
        let gradient = of_outputs.tr().matmul(x).contiguous();
        self.seen.gradients.borrow_mut().extend(Storage::of(&gradient));
        self.seen.note();
        gradient
    }

    /// This rank's rows of the mean of all ranks' gradients of the whole weight. A collective.
    pub fn reduce(&self, of_weight: Tensor) -> Result<Tensor> {
        // Gloo's threads may hold it for a moment longer.
        let reduced = Storage::of(&of_weight).map(|memory| memory.id());
        self.seen.gradients.borrow_mut().retain(|memory| Some(memory.id()) != reduced);
        let mut rows = self.part.empty_like();
        self.group.reduce_scatter_tensor(&mut rows, &of_weight, ReduceOp::Sum)?;
        self.seen.reduces.set(self.seen.reduces.get() + 1);
        Ok(rows / self.group.size().get() as f64)
    }

    /// The whole weight, for this pass; NaN while it is freed.
    fn weight(&self, pass: usize) -> Tensor {
        if self.whole.borrow().is_none() {
            let mut freed = self.seen.freed.get();
            freed[pass] = true;
            self.seen.freed.set(freed);
        }
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
    /// Whether a freed weight was read in the forward pass, and in the backward pass.
    pub(crate) freed: Cell<[bool; 2]>,
    /// Weights that are whole now.
    whole: Cell<u64>,
    /// Gradients of whole weights that were not reduced, and may still be in memory.
    gradients: RefCell<Vec<Storage>>,
    /// The most whole weights, and the most such gradients, at once.
    pub(crate) most: Cell<[u64; 2]>,
}

impl Seen {
    fn note(&self) {
        let mut gradients = self.gradients.borrow_mut();
        gradients.retain(|memory| memory.bytes() > 0);
        let most = self.most.get();
        self.most.set([most[0].max(self.whole.get()), most[1].max(gradients.len() as u64)]);
    }
}

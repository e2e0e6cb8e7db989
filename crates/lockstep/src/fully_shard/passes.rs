//! The forward and backward passes over all units: when each is gathered, freed and reduced.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::rc::{Rc, Weak};

use c10d::{Error, OwnThread, Pack, Result, Storage, Unpack};
use tch::{Tensor, no_grad};

use super::unit::{FullyShardOptions, Reducing, ShardBytes, Unit};
use crate::ddp::Restore;

/// All units, with what the passes have done so far.
#[derive(Debug)]
pub(super) struct Passes {
    units: Vec<Unit>,
    options: FullyShardOptions,
    /// The units in the order of this pass's forward calls.
    order: RefCell<Vec<usize>>,
    /// The order of the pass before.
    order_before: RefCell<Vec<usize>>,
    /// The last unit whose gradients are being reduced: one at a time, while the next computes its own.
    reducing: RefCell<Option<(usize, Reducing)>>,
    sync: Cell<bool>,
    is_backward: Cell<bool>,
    most_whole: Cell<u64>,
}

impl Passes {
    /// Asks autograd for the gradient of each parameter.
    pub(super) fn new(units: Vec<Unit>, options: &FullyShardOptions) -> Result<Rc<Self>> {
        let passes = Rc::new(Passes {
            units,
            options: *options,
            order: RefCell::default(),
            order_before: RefCell::default(),
            reducing: RefCell::default(),
            sync: Cell::new(true),
            is_backward: Cell::new(false),
            most_whole: Cell::default(),
        });
        for (at, unit) in passes.units.iter().enumerate() {
            for (index, param) in unit.flat().params().iter().enumerate() {
                // The model's tensors may outlive this.
                let passes: Weak<Self> = Rc::downgrade(&passes);
                let then = move || passes.upgrade().map_or(Ok(()), |passes| passes.gradient_is_there(at, index));
                c10d::on_gradient(&param.variable(), then)?;
            }
        }
        Ok(passes)
    }

    pub(super) fn units(&self) -> &[Unit] {
        &self.units
    }

    pub(super) fn find(&self, name: &str) -> Result<usize> {
        self.units.iter().position(|unit| unit.name() == name).ok_or_else(|| {
            let known: Vec<_> = self.units.iter().map(|unit| format!("{:?}", unit.name())).collect();
            Error::bad_argument(
                "forward of a unit",
                format!("there is no unit {name:?}; there are {}", known.join(", ")),
            )
        })
    }

    /// Runs `body` with the unit's parameters.
    pub(super) fn forward(
        self: &Rc<Self>,
        at: usize,
        inputs: &Tensor,
        body: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let unit = &self.units[at];
        let whole = unit.expose()?;
        self.prefetch_forward(at)?;
        self.note_bytes();
        let inputs = if inputs.is_floating_point() { inputs.to_kind(unit.compute()) } else { inputs.shallow_clone() };
        let output = c10d::with_saved_tensors(self.pack(at, &whole), || body(&inputs))?;
        unit.conceal()?;
        drop(whole);
        // What is computed again in the backward pass is needed at once, and freed when its gradients are there.
        let is_needed = self.is_backward.get() || !self.options.reshard_after_forward;
        if !is_needed || !c10d::grad_enabled() {
            unit.reshard()?;
        }
        output
    }

    /// The same, and again in the backward pass.
    pub(super) fn forward_checkpointed(
        self: &Rc<Self>,
        at: usize,
        inputs: &Tensor,
        body: impl Fn(&Tensor) -> Result<Tensor> + 'static,
    ) -> Result<Tensor> {
        // Here, since nothing is recorded inside.
        self.units[at].start_gather()?;
        self.prefetch_forward(at)?;
        let own = OwnThread::new((Rc::clone(self), body));
        c10d::checkpoint(inputs, move |inputs| {
            let run = || {
                let (passes, body) = own.get()?;
                passes.forward(at, inputs, body)
            };
            // `checkpoint` turns the panic into an error again.
            run().unwrap_or_else(|error: Error| resume_unwind(Box::new(error)))
        })
    }

    /// Starts the next unit's all-gather, if the pass goes as the one before.
    fn prefetch_forward(&self, at: usize) -> Result<()> {
        // Units that are computed again in the backward pass have no fixed order.
        if !c10d::grad_enabled() || self.is_backward.get() {
            return Ok(());
        }
        let (mut order, before) = (self.order.borrow_mut(), self.order_before.borrow());
        let position = order.len();
        order.push(at);
        match before.get(position..) {
            Some([here, next, ..]) if *here == at && self.options.prefetch => self.units[*next].start_gather(),
            _ => Ok(()),
        }
    }

    /// Instead of a tensor that lies in the unit's whole vector, keeps its position there.
    fn pack(self: &Rc<Self>, at: usize, whole: &Tensor) -> Pack {
        let memory = Storage::of(whole).map(|memory| memory.id());
        let (begin, kind, passes) = (whole.data_ptr() as usize, whole.kind(), Rc::clone(self));
        Rc::new(move |saved: &Tensor| {
            if memory.is_none() || Storage::of(saved).map(|memory| memory.id()) != memory || saved.kind() != kind {
                return None;
            }
            let (size, stride) = (saved.size(), saved.stride());
            let offset = ((saved.data_ptr() as usize - begin) / kind.elt_size_in_bytes()) as i64;
            let passes = Rc::clone(&passes);
            let unpack = move || {
                let whole = passes.whole_for_backward(at)?;
                let again = no_grad(|| whole.f_as_strided(&*size, &*stride, offset));
                again.map_err(|error| Error::of_torch("find a saved parameter again", &error))
            };
            Some(Box::new(unpack) as Unpack)
        })
    }

    /// The unit's parameters in the backward pass; starts the all-gather of the unit before it.
    fn whole_for_backward(&self, at: usize) -> Result<Tensor> {
        let unit = &self.units[at];
        let was_there = unit.is_gathered();
        let whole = unit.whole()?;
        if self.options.prefetch {
            let order = self.order.borrow();
            let here = order.iter().rposition(|unit| *unit == at).unwrap_or(0);
            if let Some(before) = order[..here].iter().rev().find(|unit| **unit != at) {
                self.units[*before].start_gather()?;
            }
        }
        if !was_there {
            self.note_bytes();
        }
        Ok(whole)
    }

    fn gradient_is_there(&self, at: usize, param: usize) -> Result<()> {
        if self.units[at].take_gradient(param)? {
            self.note_bytes();
            self.complete(at)?;
        }
        Ok(())
    }

    /// Frees a unit that has its gradients, and starts to reduce them.
    fn complete(&self, at: usize) -> Result<()> {
        let unit = &self.units[at];
        unit.reshard()?;
        if !unit.end_pass() || !self.sync.get() {
            return Ok(());
        }
        let started = unit.start_reduce()?;
        let before = self.reducing.replace(started.map(|reducing| (at, reducing)));
        self.finish_reduce(before)
    }

    fn finish_reduce(&self, reducing: Option<(usize, Reducing)>) -> Result<()> {
        reducing.map_or(Ok(()), |(at, reducing)| self.units[at].finish_reduce(reducing))
    }

    pub(super) fn backward(&self, loss: &Tensor) -> Result<()> {
        self.note_bytes();
        self.is_backward.set(true);
        let done = c10d::backward(loss).and_then(|()| self.end_pass());
        self.is_backward.set(false);
        self.order_before.replace(self.order.take());
        done
    }

    /// Reduces what is left: units in which some parameters got no gradient.
    fn end_pass(&self) -> Result<()> {
        for at in (0..self.units.len()).rev() {
            self.complete(at)?;
        }
        let last = self.reducing.take();
        self.finish_reduce(last)
    }

    pub(super) fn without_sync<T>(&self, body: impl FnOnce() -> T) -> T {
        let _restore = Restore::after(&self.sync, false);
        body()
    }

    pub(super) fn bytes(&self) -> ShardBytes {
        let mut now = ShardBytes::default();
        self.units.iter().for_each(|unit| now.add(unit));
        ShardBytes { most_whole: self.most_whole.get().max(now.gathered + now.unreduced), ..now }
    }

    /// Notes the bytes that are whole at this moment, if they are the most so far.
    fn note_bytes(&self) {
        self.most_whole.set(self.bytes().most_whole);
    }
}

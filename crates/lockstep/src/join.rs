//! Uneven inputs: a rank that has run out of batches takes part in the collectives of the others.
//!
//! Without it the first rank without a batch leaves, and all others wait for it in the next all-reduce.

use c10d::{Error, Rank, Result};
use tch::Tensor;

use crate::ddp::{DistributedDataParallel, JoinOptions, Joining, Restore};
use crate::object_collectives::all_gather_number;

/// What a rank does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
enum Step {
    /// It has run out of inputs.
    Joined = 0,
    /// A pass inside `no_sync`.
    Local = 1,
    /// A pass whose gradients are reduced.
    Reduced = 2,
    /// A pass without gradients.
    NoGrad = 3,
}

impl<M> DistributedDataParallel<M> {
    /// Runs a training loop in which the ranks may have different numbers of batches; `torch.distributed.algorithms.Join`.
    ///
    /// A rank whose `body` has returned takes part in the steps of the others, with gradients of 0, until the last `body` has
    /// returned. It takes no optimizer steps meanwhile. In the end, all ranks have the parameters and buffers of the last rank that
    /// had inputs (the highest one, if several had); optimizers' states stay as they are. Each step costs one more gather, of one
    /// number.
    ///
    /// Between two steps of the loop, nothing but this model may communicate: no logging of means, no `SyncBatchNorm2d`.
    ///
    /// ```no_run
    /// # fn train<M: tch::nn::ModuleT>(model: &lockstep::DistributedDataParallel<M>, batches: Vec<tch::Tensor>) -> anyhow::Result<()> {
    /// model.join(&Default::default(), || {
    ///     for batch in &batches { // of any number
    ///         model.backward(&model.forward(batch)?.mean(tch::Kind::Float))?;
    ///     }
    ///     anyhow::Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// Errors: `BadArgument` with `find_unused_parameters` or `static_graph`, and on all ranks if one runs out of inputs and
    /// `throw_on_early_termination` is set.
    pub fn join<T, E: From<Error>>(&self, options: &JoinOptions, body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let refuse = |why: &str| Err(E::from(Error::bad_argument("join", why)));
        if self.options.find_unused_parameters || self.options.static_graph {
            return refuse("it does not work with find_unused_parameters or static_graph");
        }
        if self.tree.is_some() {
            return refuse("virtual ranks have the same number of batches each: it does not work with them");
        }
        if self.joining.get().is_some() {
            return refuse("this model is in a join already");
        }
        let active = self.group().size().get();
        self.joining.set(Some(Joining { options: *options, active }));
        let _left = Left(self);
        self.reducer.note_join();
        let result = body()?;
        self.go_along()?;
        Ok(result)
    }

    /// Tells the others in a join that this rank takes a step; returns the rank that has buffers for all.
    pub(crate) fn announce_step(&self) -> Result<Rank> {
        if self.joining.get().is_none() {
            return Ok(Rank::ZERO);
        }
        let step = match (c10d::grad_enabled(), self.reduces()) {
            (false, _) => Step::NoGrad,
            (true, false) => Step::Local,
            (true, true) => Step::Reduced,
        };
        let steps = self.announce(step)?;
        Ok(last_active(&steps).unwrap_or(Rank::ZERO))
    }

    /// The loss as backward takes it.
    pub(crate) fn weighted(&self, loss: &Tensor) -> Tensor {
        match self.joining.get() {
            Some(Joining { options, active }) if !options.divide_by_initial_world_size => {
                loss * (self.group().size().get() as f64 / active as f64)
            }
            _ => loss.shallow_clone(),
        }
    }

    /// Takes part in the steps of the others until none is left.
    fn go_along(&self) -> Result<()> {
        let mut last = None;
        loop {
            let steps = self.announce(Step::Joined)?;
            let Some(source) = last_active(&steps) else { break };
            last = Some(source);
            let reduced = steps.contains(&Step::Reduced);
            let _restore = Restore::after(&self.reduce_gradients, reduced);
            if steps.contains(&Step::NoGrad) {
                let _ = tch::no_grad(|| self.pass(source, |_| self.zero_loss()))?;
                continue;
            }
            let loss = self.pass(source, |_| self.zero_loss())?;
            if reduced {
                self.clear_grads()?; // backward would add to those of this rank's last step
                self.reducer.backward(&loss)?;
            }
        }
        // Ranks that took the last step themselves have seen none after it. If all did, any rank's state is the last.
        let seen = all_gather_number(self.group(), last.map_or(-1, |last| last.get() as i64))?;
        let last = seen.into_iter().max().and_then(|last| usize::try_from(last).ok());
        self.sync_states(Rank::new(last.unwrap_or(self.group().size().get() - 1)))
    }

    /// Gathers what all ranks do.
    fn announce(&self, step: Step) -> Result<Vec<Step>> {
        let steps = all_gather_number(self.group(), step as i64)?;
        let steps: Vec<Step> = steps
            .into_iter()
            .map(|step| match step {
                1 => Step::Local,
                2 => Step::Reduced,
                3 => Step::NoGrad,
                _ => Step::Joined,
            })
            .collect();
        let active = steps.iter().filter(|step| **step != Step::Joined).count();
        if let Some(joining) = self.joining.get() {
            self.joining.set(Some(Joining { active, ..joining }));
            let first = steps.iter().position(|step| *step == Step::Joined).filter(|_| active > 0);
            if let Some(first) = first.filter(|_| joining.options.throw_on_early_termination) {
                let detail =
                    format!("rank {first} has run out of inputs, and others have not: give all ranks the same number");
                return Err(Error::bad_argument("join", detail));
            }
        }
        Ok(steps)
    }
}

/// The highest rank that has inputs.
fn last_active(steps: &[Step]) -> Option<Rank> {
    steps.iter().rposition(|step| *step != Step::Joined).map(Rank::new)
}

/// Ends a join, also by an error or a panic.
struct Left<'a, M>(&'a DistributedDataParallel<M>);

impl<M> Drop for Left<'_, M> {
    fn drop(&mut self) {
        self.0.joining.set(None);
    }
}

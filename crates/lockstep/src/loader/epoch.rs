//! One pass over the data, as an iterator.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;
use std::sync::Arc;

use super::plan::Plan;
use super::workers::Workers;
use crate::data::Batch;

/// The batches of an epoch in order, each a `Result`.
///
/// An error or a panic of the data set is returned at its step's position, after all batches before it. It names the step and
/// the samples, and is the last item. Dropping the iterator early joins its workers, which takes as long as their current
/// batches.
pub struct Epoch {
    plan: Arc<Plan>,
    ahead: Range<usize>,
    /// `None` if the caller's thread does the loading.
    workers: Option<Workers>,
    /// An error at the start; then it is the only item.
    fault: Option<anyhow::Error>,
}

impl Epoch {
    pub(super) fn start(plan: Plan, first_step: usize, workers: usize, prefetch: usize) -> Self {
        let mut epoch = Epoch { ahead: first_step..plan.steps, plan: Arc::new(plan), workers: None, fault: None };
        if let Err(fault) = epoch.prepare(workers, prefetch) {
            epoch.fault = Some(fault);
        }
        epoch
    }

    fn prepare(&mut self, workers: usize, prefetch: usize) -> anyhow::Result<()> {
        self.plan.check(self.ahead.start)?;
        if workers > 0 {
            self.workers = Some(Workers::start(&self.plan, self.ahead.clone(), workers, prefetch)?);
        }
        Ok(())
    }

    fn load(&mut self, step: usize) -> anyhow::Result<Batch> {
        match &mut self.workers {
            Some(workers) => workers.take(step),
            None => self.plan.load(step),
        }
    }

    fn finish(&mut self) {
        self.ahead = 0..0;
        self.workers = None;
    }
}

impl Iterator for Epoch {
    type Item = anyhow::Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let _loading = c10d::pace::loading();
        let item = match self.fault.take() {
            Some(fault) => Err(fault),
            None => {
                let step = self.ahead.next()?;
                self.load(step)
            }
        };
        if item.is_err() || self.ahead.is_empty() {
            self.finish();
        }
        Some(item)
    }

    /// At most the remaining steps; fewer when one of them fails.
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.ahead.len().max(usize::from(self.fault.is_some()))))
    }
}

impl FusedIterator for Epoch {}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("epoch", &self.plan.epoch).field("ahead", &self.ahead).finish_non_exhaustive()
    }
}

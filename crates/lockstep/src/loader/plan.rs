//! The plan of one epoch: the samples of each step, and the loading of a step with its errors and panics caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use anyhow::{Context, anyhow, ensure};

use crate::data::{Batch, Dataset};
use crate::error_file::panic_text;

/// How many indices an error message lists before it gives only a count.
const LISTED: usize = 8;

/// An epoch's order, cut into steps; shared by the workers.
pub(super) struct Plan {
    pub(super) dataset: Arc<dyn Dataset>,
    /// The number of indices that the sampler announced.
    pub(super) promised: usize,
    pub(super) indices: Vec<usize>,
    pub(super) epoch: u64,
    pub(super) batch_size: usize,
    /// The number of the step that takes the first of `indices`.
    pub(super) first: usize,
    /// The number after the last step's.
    pub(super) steps: usize,
    pub(super) memory: Memory,
}

/// The memory that batches come in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// The channels of the inputs are last.
    pub(super) channels_last: bool,
    /// It is page-locked.
    pub(super) pinned: bool,
}

impl Plan {
    /// Rejects an invalid order from the sampler or a snapshot, before any thread starts.
    pub(super) fn check(&self, first_step: usize) -> anyhow::Result<()> {
        ensure!(
            self.indices.len() == self.promised,
            "the sampler gave {} indices for epoch {} where its length says {}: make `indices` and `len` agree",
            self.indices.len(),
            self.epoch,
            self.promised
        );
        ensure!(
            first_step <= self.steps,
            "cannot start at step {first_step} of epoch {}, which has {}: was the position taken with another batch \
             size, world size or data set?",
            self.epoch,
            self.steps
        );
        Ok(())
    }

    /// Loads a step from `first` to below `steps`. An error or panic of the data set becomes an error that names the step and
    /// the samples.
    pub(super) fn load(&self, step: usize) -> anyhow::Result<Batch> {
        let indices = self.samples(step);
        self.load_samples(indices)
            .with_context(|| format!("failed to load step {step} of epoch {} (samples {})", self.epoch, list(indices)))
    }

    fn samples(&self, step: usize) -> &[usize] {
        let start = (step - self.first) * self.batch_size;
        let end = self.indices.len().min(start + self.batch_size);
        &self.indices[start..end]
    }

    fn load_samples(&self, indices: &[usize]) -> anyhow::Result<Batch> {
        let samples = self.dataset.len();
        if let Some(index) = indices.iter().find(|&&index| index >= samples) {
            return Err(anyhow!(
                "sample {index} is outside the data set of {samples}: was the sampler made for another?"
            ));
        }
        let batch =
            catch_unwind(AssertUnwindSafe(|| self.dataset.batch(self.epoch, indices))).unwrap_or_else(|panic| {
                Err(anyhow!("the data set panicked: {}", panic_text(&*panic).unwrap_or("no message")))
            })?;
        check_size(&batch, indices.len(), self.dataset.leaves_out())?;
        let batch = if self.memory.channels_last { batch.channels_last()? } else { batch };
        Ok(if self.memory.pinned { batch.pinned()? } else { batch })
    }
}

/// Rejects a batch with a wrong number of samples: it would silently train on wrong pairs. A set that may leave out broken
/// samples declares that, and may return fewer.
fn check_size(batch: &Batch, asked: usize, may_lack: bool) -> anyhow::Result<()> {
    let (inputs, targets) = (batch.inputs.size(), batch.targets.size());
    let given = if may_lack { batch.len().min(asked) } else { asked };
    let fits = |size: &[i64]| size.first() == Some(&(given as i64));
    ensure!(
        fits(&inputs) && fits(&targets),
        "the data set answered inputs of shape {inputs:?} and targets of shape {targets:?} where dimension 0 of both \
         must be {asked}"
    );
    Ok(())
}

fn list(indices: &[usize]) -> String {
    let shown: Vec<String> = indices.iter().take(LISTED).map(usize::to_string).collect();
    let more = indices.len() - shown.len();
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

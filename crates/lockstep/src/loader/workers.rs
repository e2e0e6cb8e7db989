//! The threads that load ahead, and the reordering of their batches.
//!
//! Steps are handed out as permits: a worker loads only a step that it was given, and a new step is given only when a batch is
//! taken. So the number of permits bounds the batches in memory, and sending to a queue never blocks. Any free worker takes the
//! next step; a slow batch delays the order, not the other workers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{io, thread};

use anyhow::{Context, anyhow, ensure};
use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::data::{Batch, Dataset};
use crate::error_file::panic_text;

type Loaded = (usize, anyhow::Result<Batch>);

/// The threads of one epoch; dropping this joins them.
pub(super) struct Workers {
    /// `None` only while dropping.
    lines: Option<Queues>,
    /// The steps that have not been handed out yet.
    unassigned: Range<usize>,
    /// Batches that arrived before their turn.
    early: BTreeMap<usize, anyhow::Result<Batch>>,
    threads: Vec<JoinHandle<()>>,
}

/// The caller's ends of the two queues.
struct Queues {
    steps: Sender<usize>,
    loaded: Receiver<Loaded>,
}

impl Workers {
    /// Starts `count` threads (at most one per step), each of which may be `prefetch` batches ahead.
    pub(super) fn start(
        plan: &Arc<EpochPlan>,
        steps: Range<usize>,
        count: usize,
        prefetch: usize,
    ) -> anyhow::Result<Self> {
        let count = count.min(steps.len());
        let (give, take) = unbounded();
        let (bring, loaded) = unbounded();
        let lines = Some(Queues { steps: give, loaded });
        let mut workers = Workers { lines, unassigned: steps, early: BTreeMap::new(), threads: Vec::new() };
        for number in 0..count {
            let thread = spawn(number, Arc::clone(plan), take.clone(), bring.clone());
            workers.threads.push(thread.with_context(|| format!("failed to start loader worker {number} of {count}"))?);
        }
        (0..count.saturating_mul(prefetch)).take_while(|_| workers.assign()).for_each(drop);
        Ok(workers)
    }

    /// Waits for `step`, which must follow the step of the last call, and hands out one more step.
    pub(super) fn take(&mut self, step: usize) -> anyhow::Result<Batch> {
        let loaded = loop {
            if let Some(loaded) = self.early.remove(&step) {
                break loaded;
            }
            let (ahead, loaded) =
                self.receive().ok_or_else(|| anyhow!("all loader workers ended before step {step}"))?;
            self.early.insert(ahead, loaded);
        };
        self.assign();
        loaded
    }

    fn receive(&self) -> Option<Loaded> {
        self.lines.as_ref()?.loaded.recv().ok()
    }

    /// Hands out one step; returns false when none is left.
    fn assign(&mut self) -> bool {
        match (&self.lines, self.unassigned.next()) {
            (Some(lines), Some(step)) => lines.steps.send(step).is_ok(),
            _ => false,
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.lines = None; // a worker ends at its next send, or at once if it waits for a step
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // `work` cannot panic: the plan catches what the data set throws
        }
    }
}

fn spawn(
    number: usize,
    plan: Arc<EpochPlan>,
    steps: Receiver<usize>,
    loaded: Sender<Loaded>,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(format!("loader-{number}")).spawn(move || {
        // It cannot fail on a CPU; with more threads a worker is only slower.
        let _ = c10d::use_one_thread_here();
        work(&plan, &steps, &loaded);
    })
}

fn work(plan: &EpochPlan, steps: &Receiver<usize>, loaded: &Sender<Loaded>) {
    for step in steps {
        if loaded.send((step, plan.load(step))).is_err() {
            return;
        }
    }
}

/// How many indices an error message lists before it gives only a count.
const LISTED: usize = 8;

/// An epoch's order, cut into steps; shared by the workers.
pub(super) struct EpochPlan {
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
    pub(super) memory: BatchMemory,
}

/// The memory that batches come in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchMemory {
    /// The channels of the inputs are last.
    pub(super) channels_last: bool,
    /// It is page-locked.
    pub(super) pinned: bool,
}

impl EpochPlan {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tch::Tensor;

    use super::*;
    use crate::data::Dataset;

    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl Dataset for Counted {
        fn len(&self) -> usize {
            10
        }

        fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
            self.0.fetch_add(1, Ordering::SeqCst);
            let numbers = Tensor::from_slice(&vec![0i64; indices.len()]);
            Ok(Batch { inputs: numbers.shallow_clone(), targets: numbers })
        }
    }

    #[test]
    fn stops_at_the_first_batch_that_is_not_taken() {
        let dataset = Arc::new(Counted::default());
        let (give, steps) = unbounded();
        (0..10).for_each(|step| give.send(step).unwrap());
        let (bring, loaded) = unbounded();
        drop((give, loaded));
        work(&plan(&dataset), &steps, &bring);
        assert_eq!(dataset.0.load(Ordering::SeqCst), 1, "the nine other steps were still queued");
    }

    #[test]
    fn starts_no_more_threads_than_there_are_steps() {
        let plan = Arc::new(plan(&Arc::default()));
        assert_eq!(Workers::start(&plan, 7..10, 8, 2).unwrap().threads.len(), 3);
        assert_eq!(Workers::start(&plan, 0..0, 8, 2).unwrap().threads.len(), 0);
    }

    fn plan(dataset: &Arc<Counted>) -> EpochPlan {
        let dataset: Arc<dyn Dataset> = Arc::clone(dataset) as _;
        EpochPlan {
            dataset,
            promised: 10,
            indices: (0..10).collect(),
            epoch: 0,
            batch_size: 1,
            first: 0,
            steps: 10,
            memory: BatchMemory::default(),
        }
    }
}

//! Snapshots: a simple format of their files, for task `newest`; a job that can be killed, for task `next_step`; and a job that is stopped
//! and started again on other numbers of ranks, for task `reshard`. You do not change this file.
//!
//! A snapshot file has a line with checksum and length, then the bytes. The "model" of both jobs is the list of the steps that it was
//! trained with, which shows what a snapshot restores.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::data::rng::KeyedRng;
use serde::{Deserialize, Serialize};
use tch::Tensor;

/// Returns the position (epoch and step) of a snapshot from its file name `snapshot-EPOCH-STEP`, or `None` if the name has
/// another form.
pub fn position(path: &Path) -> Option<(u64, u64)> {
    let (epoch, step) = path.file_name()?.to_str()?.strip_prefix("snapshot-")?.split_once('-')?;
    Some((epoch.parse().ok()?, step.parse().ok()?))
}

/// Reads a snapshot and checks it.
///
/// # Errors
/// When it cannot be read, is torn, or is damaged.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let end = bytes.iter().position(|byte| *byte == b'\n').context("the snapshot is torn: it has no head")?;
    let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 1..]);
    let (checksum, length) = head.split_once(' ').context("this is not a snapshot")?;
    ensure!(body.len() == length.parse::<usize>()?, "the snapshot is torn: it has {} bytes of {length}", body.len());
    ensure!(format!("{:08x}", crc32fast::hash(body)) == checksum, "the snapshot is damaged: its checksum is wrong");
    Ok(body.to_vec())
}

/// Epoch and step, both from 0.
pub type Position = (u64, u64);

/// The process was killed.
#[derive(Debug)]
pub struct Killed;

/// The job's state in memory, which a kill erases, and on disk.
pub struct KillableJob {
    /// The number of epochs.
    pub epochs: u64,
    /// The number of steps per epoch.
    pub steps: u64,
    /// The number of steps between two snapshots.
    pub save_every: u64,
    model: Vec<Position>,
    snapshot: Option<(Vec<Position>, Position)>,
    until_kill: Option<u64>,
    /// The length of the model when the process before was killed.
    killed_at: usize,
    repeated: Vec<u64>,
    saves: u64,
}

impl KillableJob {
    /// A job that has not started.
    pub fn new(epochs: u64, steps: u64, save_every: u64) -> Self {
        KillableJob {
            epochs,
            steps,
            save_every,
            model: Vec::new(),
            snapshot: None,
            until_kill: None,
            killed_at: 0,
            repeated: Vec::new(),
            saves: 0,
        }
    }

    /// Loads the model of the last snapshot and returns the position that was saved with it. Returns `None` on the first start.
    pub fn load(&mut self) -> Option<Position> {
        let (model, position) = self.snapshot.clone()?;
        self.model = model;
        Some(position)
    }

    /// Trains the model with one step's samples.
    ///
    /// # Errors
    /// When the process is killed before the step.
    pub fn train(&mut self, epoch: u64, step: u64) -> Result<(), Killed> {
        if self.until_kill == Some(0) {
            return Err(Killed);
        }
        self.until_kill = self.until_kill.map(|left| left - 1);
        if let Some(lost) = self.killed_at.checked_sub(self.model.len()) {
            self.repeated.extend((lost > 0).then_some(lost as u64));
            self.killed_at = 0;
        }
        self.model.push((epoch, step));
        Ok(())
    }

    /// Saves a snapshot of the current model, together with a position.
    pub fn save(&mut self, epoch: u64, step: u64) {
        self.saves += 1;
        self.snapshot = Some((self.model.clone(), (epoch, step)));
    }

    /// Starts a new process, which is killed after `until_kill` steps, or never.
    pub fn start(&mut self, until_kill: Option<u64>) {
        self.killed_at = self.killed_at.max(self.model.len());
        (self.model, self.until_kill) = (Vec::new(), until_kill);
    }

    /// How many steps were trained again, for each process that had to.
    pub fn repeated(&self) -> &[u64] {
        &self.repeated
    }

    /// How often a snapshot was saved, in all processes.
    pub fn saves(&self) -> u64 {
        self.saves
    }

    /// The steps that the model was trained with, in order.
    pub fn model(&self) -> &[Position] {
        &self.model
    }
}

/// A step of one rank: its epoch and its samples.
pub type Step = (u64, Vec<usize>);

/// What does not change from start to start.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Settings {
    /// Passes over the data.
    pub epochs: u64,
    /// The samples of the data set.
    pub samples: usize,
    /// The samples in a step of one rank. The last step of an epoch may have fewer.
    pub batch_size: usize,
    seed: u64,
}

/// A snapshot: the numbers that were saved, and the model, which is the list of the steps that it was trained with.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The numbers that the answer has saved.
    pub numbers: Option<Vec<u64>>,
    /// The steps of this rank since the start.
    #[serde(skip)]
    pub steps: usize,
}

/// One start of the job on this rank.
pub struct Run {
    pub settings: Settings,
    pub rank: usize,
    /// The number of ranks of this start. It was another one before, perhaps, and may be another one next time.
    pub ranks: usize,
    group: &'static ProcessGroup,
    until_stop: Option<usize>,
    snapshot: Snapshot,
    trained: Vec<Step>,
}

impl Run {
    /// A start with the numbers of the last snapshot, which is stopped after this number of steps.
    pub fn new(
        settings: Settings,
        group: &'static ProcessGroup,
        numbers: Option<Vec<u64>>,
        until_stop: Option<usize>,
    ) -> Self {
        let (rank, ranks) = (group.rank().get(), group.size().get());
        let snapshot = Snapshot { numbers, steps: 0 };
        Run { settings, rank, ranks, group, until_stop, snapshot, trained: Vec::new() }
    }

    /// The numbers that were saved last, before this start. `None` on the first one.
    pub fn snapshot(&self) -> Option<Vec<u64>> {
        self.snapshot.numbers.clone()
    }

    /// The order of all samples in an epoch: the same on all ranks and in all starts.
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        let mut random = KeyedRng::new(&[self.settings.seed, epoch]);
        let mut order: Vec<usize> = (0..self.settings.samples).collect();
        (1..order.len()).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        order
    }

    /// Trains the model with these samples of this rank. All ranks take a step together.
    ///
    /// # Errors
    /// When the job is stopped before the step.
    pub fn train(&mut self, epoch: u64, samples: &[usize]) -> Result<()> {
        if self.until_stop == Some(self.trained.len()) {
            bail!("the job is stopped");
        }
        self.group.all_reduce(&mut Tensor::from(samples.len() as i64), ReduceOp::Sum)?;
        self.trained.push((epoch, samples.to_vec()));
        Ok(())
    }

    /// Saves the model as it is now, with numbers of your choice. All ranks call this; rank 0's numbers are kept.
    pub fn save(&mut self, numbers: &[u64]) {
        self.snapshot = Snapshot { numbers: Some(numbers.to_vec()), steps: self.trained.len() };
    }

    /// The last snapshot, and the steps in its model; all steps if the start was not stopped.
    pub fn end(mut self) -> (Snapshot, Vec<Step>) {
        if self.was_stopped() {
            self.trained.truncate(self.snapshot.steps);
        }
        (self.snapshot, self.trained)
    }

    /// Returns true if this start was stopped.
    pub fn was_stopped(&self) -> bool {
        self.until_stop.is_some_and(|until| self.trained.len() >= until)
    }
}

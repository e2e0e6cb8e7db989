//! A simulated training job that can be killed, for task `next_step`. You do not change this file.
//!
//! Its "model" is the list of the steps that it was trained with, which shows what a snapshot restores.

/// Epoch and step, both from 0.
pub type Position = (u64, u64);

/// The process was killed.
#[derive(Debug)]
pub struct Killed;

/// The job's state in memory, which a kill erases, and on disk.
pub struct Job {
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

impl Job {
    /// A job that has not started.
    pub fn new(epochs: u64, steps: u64, save_every: u64) -> Self {
        Job {
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

//! A training job that is killed now and then, for task `next_step`. There is nothing to change here.
//!
//! Its "model" is the list of the steps that it was trained with, which shows what a snapshot brings back.

/// Epoch and step, both from 0.
pub type Position = (u64, u64);

/// The process was killed: it does nothing more.
#[derive(Debug)]
pub struct Killed;

/// What the job keeps in memory, which a kill empties, and on disk.
pub struct Job {
    /// Epochs of the run.
    pub epochs: u64,
    /// Steps of an epoch.
    pub steps: u64,
    /// A snapshot is taken after every so many steps of an epoch.
    pub save_every: u64,
    model: Vec<Position>,
    snapshot: Option<(Vec<Position>, Position)>,
    until_kill: Option<u64>,
}

impl Job {
    /// A job that has not begun.
    pub fn new(epochs: u64, steps: u64, save_every: u64) -> Self {
        Job { epochs, steps, save_every, model: Vec::new(), snapshot: None, until_kill: None }
    }

    /// Brings back the model of the last snapshot, and the position that was saved with it. None on the first start.
    pub fn load(&mut self) -> Option<Position> {
        let (model, position) = self.snapshot.clone()?;
        self.model = model;
        Some(position)
    }

    /// Trains the model with one step's samples.
    ///
    /// # Errors
    /// When the process is killed before the step is done.
    pub fn train(&mut self, epoch: u64, step: u64) -> Result<(), Killed> {
        if self.until_kill == Some(0) {
            return Err(Killed);
        }
        self.until_kill = self.until_kill.map(|left| left - 1);
        self.model.push((epoch, step));
        Ok(())
    }

    /// Takes a snapshot: the model as it is now, and a position beside it.
    pub fn save(&mut self, epoch: u64, step: u64) {
        self.snapshot = Some((self.model.clone(), (epoch, step)));
    }

    /// A new process, which will be killed after so many steps, or not at all.
    pub fn start(&mut self, until_kill: Option<u64>) {
        (self.model, self.until_kill) = (Vec::new(), until_kill);
    }

    /// The steps that the model was trained with, in order.
    pub fn model(&self) -> &[Position] {
        &self.model
    }
}

//! A simulated training job with two files that can be killed, for task `two_files`. You do not change this file.

/// The best model so far.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    /// The epoch after which it was found.
    pub epoch: u64,
    /// Its accuracy, from 0 to 1.
    pub accuracy: f64,
}

/// The state that a run resumes from, in addition to the weights.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// The first epoch that the model has not been trained with.
    pub next_epoch: u64,
    /// The best model so far.
    pub best: Option<Best>,
}

/// The process was killed.
#[derive(Debug)]
pub struct Killed;

/// The job. It knows the accuracy of each epoch in advance.
pub struct TwoFileJob {
    /// The number of epochs.
    pub epochs: u64,
    accuracies: Vec<f64>,
    /// The epoch whose model is in memory.
    model: u64,
    snapshot: Option<Snapshot>,
    /// The epoch whose model is in the best model's file.
    best_file: Option<u64>,
    until_kill: Option<u64>,
    trained: u64,
    /// In this process.
    has_trained: bool,
    saved_untrained: bool,
}

impl TwoFileJob {
    /// A job that has not started. Its epochs end with these accuracies.
    pub fn new(accuracies: Vec<f64>) -> Self {
        let epochs = accuracies.len() as u64;
        TwoFileJob {
            epochs,
            accuracies,
            model: 0,
            snapshot: None,
            best_file: None,
            until_kill: None,
            trained: 0,
            has_trained: false,
            saved_untrained: false,
        }
    }

    /// Loads the snapshot. Returns `None` on the first start.
    pub fn load_snapshot(&self) -> Option<Snapshot> {
        self.snapshot
    }

    /// Trains an epoch and returns the validation accuracy after it, over all ranks.
    ///
    /// # Errors
    /// When the process is killed before this call.
    pub fn train_and_validate(&mut self, epoch: u64) -> Result<f64, Killed> {
        self.act()?;
        (self.model, self.trained, self.has_trained) = (epoch, self.trained + 1, true);
        Ok(self.accuracies[epoch as usize])
    }

    /// Writes the current model to the best model's file.
    ///
    /// # Errors
    /// When the process is killed before this call.
    pub fn save_best_model(&mut self) -> Result<(), Killed> {
        self.act()?;
        self.saved_untrained |= !self.has_trained;
        self.best_file = Some(self.model);
        Ok(())
    }

    /// Writes the snapshot.
    ///
    /// # Errors
    /// When the process is killed before this call.
    pub fn save_snapshot(&mut self, snapshot: Snapshot) -> Result<(), Killed> {
        self.act()?;
        self.snapshot = Some(snapshot);
        Ok(())
    }

    /// Starts a new process, which is killed after `until_kill` of the three calls above, or never.
    pub fn start(&mut self, until_kill: Option<u64>) {
        (self.until_kill, self.has_trained) = (until_kill, false);
    }

    /// The epoch in the best model's file, the best epoch in the snapshot, the total number of trained epochs, and whether a process has
    /// written a model before it had trained one.
    pub fn end(&self) -> (Option<u64>, Option<u64>, u64, bool) {
        let said = self.snapshot.and_then(|snapshot| snapshot.best);
        (self.best_file, said.map(|best| best.epoch), self.trained, self.saved_untrained)
    }

    fn act(&mut self) -> Result<(), Killed> {
        if self.until_kill == Some(0) {
            return Err(Killed);
        }
        self.until_kill = self.until_kill.map(|left| left - 1);
        Ok(())
    }
}

//! Keeps the best model of a run, by validation accuracy or loss, in its own file, which is correct after a kill at any moment.
//!
//! Two files record which model is the best: the model's own ([`checkpoint`], with a [`Best`] in its metadata), and each
//! snapshot, which records the best model at the time it was taken. They are written one after the other, so a kill can come
//! between them. Then the snapshot counts: the run repeats the epochs after it, and finds the better model again.
//!
//! | written, in this order | a kill right afterwards leaves |
//! |---|---|
//! | the new model to a temporary file | the previous model in its place |
//! | the previous model is renamed to `.before` | no model in its place, but the previous one next to it |
//! | the new model is renamed into its place | a model that is newer than the snapshot, and the previous one next to it |
//! | the snapshot, which names it as the best | a model and a snapshot that agree |
//!
//! [`BestModel::resume`] picks the file that the snapshot names and puts it back in its place. So a resumed run ends with the
//! same best model, to the bit, as an uninterrupted one.
//!
//! Leaves out what a run needs to continue ([`crate::snapshot`]): a run that continued from its best model would repeat all
//! epochs since then.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use c10d::ProcessGroup;
use serde::{Deserialize, Serialize};
use tch::nn::VarStore;

use crate::metrics::Evaluation;
use crate::snapshot::{OnSaveError, Variables};
use crate::{Rank, Reporter, checkpoint, object_collectives, snapshot};

/// The metadata key of the [`Best`], as JSON.
const KEY: &str = "lockstep.best";

/// A description of the best model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The epoch after which it was found, from 0.
    pub epoch: u64,
    /// Its validation accuracy, from 0 to 1; 0 where there is none.
    pub accuracy: f64,
    /// Its mean validation loss; `None` if it was not finite, since JSON cannot represent that.
    pub loss: Option<f64>,
    /// How many samples it was validated on.
    pub samples: u64,
}

/// Owns the best model's file. Every rank has one and makes the same calls; only rank 0 writes the file.
///
/// ```no_run
/// # use lockstep::{BestModel, Reporter, metrics::Evaluation};
/// # fn epoch(
/// #     vs: &tch::nn::VarStore, group: &c10d::ProcessGroup, all: &Evaluation, report: &Reporter,
/// # ) -> anyhow::Result<()> {
/// let mut best = BestModel::new("best_model.safetensors", Default::default(), report);
/// best.resume(None, group)?; // or what the snapshot says
/// best.offer(0, all, vs, group)?;
/// // Save a snapshot now, and best.best() with it.
/// best.finish(vs, group)?;
/// # Ok(()) }
/// ```
pub struct BestModel {
    path: PathBuf,
    on_error: OnSaveError,
    report: Reporter,
    by_loss: bool,
    best: Option<Best>,
    /// True if the model that the snapshot names is gone, and no better one has been found since.
    lost: bool,
}

impl BestModel {
    /// A best model in the file `path`, which must end in `.safetensors`.
    pub fn new(path: impl AsRef<Path>, on_error: OnSaveError, report: &Reporter) -> Self {
        let path = path.as_ref().to_owned();
        BestModel { path, on_error, report: report.clone(), by_loss: false, best: None, lost: false }
    }

    /// The best is the model with the lowest loss, instead of that with the highest accuracy.
    #[must_use]
    pub fn by_loss(self) -> Self {
        BestModel { by_loss: true, ..self }
    }

    /// The model's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The best model so far, if there is one.
    pub fn best(&self) -> Option<Best> {
        self.best
    }

    /// Returns true before `epoch` if none of the `patience` epochs before it has brought a better model: for early stopping. It
    /// depends on the best model only, which a snapshot names, so a resumed run stops where an uninterrupted one does.
    pub fn has_waited(&self, epoch: u64, patience: u64) -> bool {
        self.best.is_some_and(|best| epoch > best.epoch + patience)
    }

    /// Continues with the best model that a snapshot names, or with no model: from then on the file, if it is used, holds that
    /// model. A collective.
    ///
    /// If rank 0's node does not have the file, for example after a requeue in another order, the node that has it sends it. If
    /// no node has it, rank 0 prints a warning, and the best of the remaining epochs is kept.
    ///
    /// Fails on every rank when no model can be saved under this name, when the file cannot be put back in its place, or when a
    /// broadcast fails.
    pub fn resume(&mut self, saved: Option<Best>, group: &ProcessGroup) -> anyhow::Result<()> {
        let mine = match self.report.rank().is_zero() {
            true => self.find(saved).map_err(|error| format!("{error:#}")),
            false => Ok(self.report.is_first_of_node() && saved.is_some_and(|best| self.file_of(best).is_some())),
        };
        let have: Vec<bool> = object_collectives::all_gather_object(group, &mine)?
            .into_iter()
            .collect::<Result<_, String>>()
            .map_err(anyhow::Error::msg)?;
        self.best = match (saved, have.iter().position(|has| *has)) {
            (None, _) => None,
            (Some(best), None) => {
                self.report.warn_once(self.words_of_loss(best));
                self.lost = true;
                None
            }
            (Some(best), Some(0)) => Some(best),
            (Some(best), Some(rank)) => Some(self.fetch(best, Rank::new(rank), group)?),
        };
        Ok(())
    }

    /// Sends the file of rank `from` to rank 0.
    fn fetch(&self, best: Best, from: Rank, group: &ProcessGroup) -> anyhow::Result<Best> {
        let read = |path: PathBuf| fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()));
        let sends = (group.rank() == from).then(|| self.file_of(best).ok_or("it is gone".to_owned()).and_then(read));
        let length = sends.as_ref().map(|bytes| bytes.as_ref().map(Vec::len).map_err(Clone::clone));
        let length = object_collectives::broadcast_object_from(group, from, length.as_ref())?;
        let length = length.map_err(|why| anyhow::anyhow!("rank {from} cannot send the best model: {why}"))?;
        let bytes = sends.and_then(Result::ok).unwrap_or_else(|| vec![0; length]);
        let bytes = object_collectives::broadcast_bytes_from(group, from, bytes)?;
        let put = || checkpoint::put(&self.path, &bytes).map_err(|error| format!("{error:#}"));
        let done = self.report.rank().is_zero().then(put);
        object_collectives::broadcast_object::<Result<(), String>>(group, done.as_ref())?
            .map_err(anyhow::Error::msg)?;
        self.report.say_once(format!("The best model so far came from rank {from} to {}", self.path.display()));
        Ok(best)
    }

    /// Keeps the model if it is better than the best so far; among equals the first is kept. Returns true if it was kept. The file
    /// has whole variables, also of a fully sharded model. A collective; all ranks must pass the same `all`.
    ///
    /// With [`OnSaveError::Stop`], fails on every rank when the model cannot be saved. Otherwise rank 0 prints a warning, and the
    /// previous best model is kept.
    pub fn offer<'a>(
        &mut self,
        epoch: u64,
        all: &Evaluation,
        variables: impl Into<Variables<'a>>,
        group: &ProcessGroup,
    ) -> anyhow::Result<bool> {
        let accuracy = if all.accuracy().is_nan() { 0.0 } else { all.accuracy() };
        let (samples, loss) = (all.samples(), Some(all.loss()).filter(|loss| loss.is_finite()));
        let finite = |loss: Option<f64>| loss.unwrap_or(f64::INFINITY);
        let is_better = |best: Best| match self.by_loss {
            true => finite(loss) < finite(best.loss),
            false => accuracy > best.accuracy,
        };
        if !self.best.is_none_or(is_better) {
            return Ok(false);
        }
        let new = Best { epoch, accuracy, loss, samples };
        let rank0 = self.report.rank().is_zero();
        let saved = variables.into().whole(|vs| if rank0 { self.save(new, vs) } else { Ok(()) })?;
        let saved = checkpoint::save_for_all(group, &self.report, self.on_error, || saved)?;
        if saved {
            self.best = Some(new);
        }
        Ok(saved)
    }

    /// Loads the best model on all ranks, from the file that rank 0 has, and returns its description. Returns `None` and changes
    /// nothing if no model was kept. Removes the previous model's file, so the last snapshot must be on disk. A collective.
    ///
    /// Fails on every rank when the file is gone or is not the saved one, or when it was gone at the resume and no model was kept
    /// since.
    pub fn finish<'a>(self, variables: impl Into<Variables<'a>>, group: &ProcessGroup) -> anyhow::Result<Option<Best>> {
        let Some(best) = self.best else {
            anyhow::ensure!(
                !self.lost,
                "the best model is lost, and no epoch was left to find another: put {} back, or train for more epochs",
                self.path.display()
            );
            return Ok(None);
        };
        let taken = self.report.rank().is_zero().then(|| self.take(best).map_err(|error| format!("{error:#}")));
        let length = taken.as_ref().map(|bytes| bytes.as_ref().map(Vec::len).map_err(Clone::clone));
        let length = object_collectives::broadcast_object::<Result<usize, String>>(group, length.as_ref())?
            .map_err(anyhow::Error::msg)?;
        let bytes = taken.and_then(Result::ok).unwrap_or_else(|| vec![0; length]);
        let bytes = object_collectives::broadcast_bytes_from(group, Rank::ZERO, bytes)?;
        variables.into().load(&self.path, checkpoint::tensors(&bytes)?)?;
        if self.report.rank().is_zero() {
            // The file does not exist if the first model was the best.
            let _ = fs::remove_file(self.backup());
        }
        Ok(Some(best))
    }

    /// Rank 0's part of [`finish`](Self::finish): the file's bytes.
    fn take(&self, best: Best) -> anyhow::Result<Vec<u8>> {
        let path = self.path.display();
        anyhow::ensure!(is_of(&self.path, best), "{path} is not the best model any more: was it moved or replaced?");
        Ok(snapshot::read_whole(&self.path)?)
    }

    /// Rank 0's part of [`resume`](Self::resume): returns true if the file is in its place or no file is needed.
    fn find(&self, saved: Option<Best>) -> anyhow::Result<bool> {
        for file in [&self.path, &self.backup()] {
            checkpoint::check_name(file)
                .with_context(|| format!("cannot keep the best model in {}", file.display()))?;
        }
        checkpoint::sweep(&self.path);
        let file = saved.and_then(|best| self.file_of(best));
        if file.as_ref().is_some_and(|file| *file != self.path) {
            fs::rename(self.backup(), &self.path)?;
        }
        Ok(file.is_some() || saved.is_none())
    }

    /// The file on this node that holds the model `best`.
    fn file_of(&self, best: Best) -> Option<PathBuf> {
        [self.path.clone(), self.backup()].into_iter().find(|path| is_of(path, best))
    }

    fn words_of_loss(&self, Best { epoch, accuracy, .. }: Best) -> String {
        format!(
            "the best model so far, of epoch {epoch} with accuracy {accuracy:.4}, is not in {} any more, or damaged there; the best of \
             the epochs from here on is kept",
            self.path.display()
        )
    }

    fn save(&self, new: Best, vs: &VarStore) -> anyhow::Result<()> {
        if let Some(best) = self.best {
            let loss = |best: Best| best.loss.unwrap_or(f64::INFINITY);
            self.report.println(match self.by_loss {
                true => format!("Prev best val loss: {:.4} > Cur val loss: {:.4}", loss(best), loss(new)),
                false => format!("Prev best val acc: {:.4} < Cur val acc: {:.4}", best.accuracy, new.accuracy),
            });
        }
        self.report.println("Saving the new best model...");
        let note = serde_json::to_string(&new)?;
        // Back up only models that this run wrote.
        let before = self.best.map(|_| self.backup());
        checkpoint::save_with_note(vs, &self.path, (KEY, &note), before.as_deref())?;
        self.report.println("Finished saving model");
        Ok(())
    }

    /// The name of the previous best model.
    fn backup(&self) -> PathBuf {
        self.path.with_extension("before.safetensors")
    }
}

/// Returns true if the file at `path` holds the model that `best` describes.
fn is_of(path: &Path, best: Best) -> bool {
    let note = checkpoint::note(path, KEY).ok().flatten();
    note.and_then(|text| serde_json::from_str::<Best>(&text).ok()) == Some(best)
}

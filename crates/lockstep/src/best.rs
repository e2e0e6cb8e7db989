//! The best model of a run, by validation accuracy, in a file of its own that is right after a kill at any moment.
//!
//! Two files say what was best: the model's own ([`checkpoint`], with a [`Best`] in its metadata), and each snapshot, which
//! says which best model there was when it was taken. They are written one after the other, so a kill can come between, and then
//! the snapshot counts: the epochs after it are done again, and with them the finding of a better model.
//!
//! | written, in this order | a kill right after leaves |
//! |---|---|
//! | the new model to a temporary file | the model before, in its place |
//! | the model before is renamed, `.before` | no model in place, and the one before beside it |
//! | the new model takes the place | a model that is newer than the snapshot, and the one before beside it |
//! | the snapshot, which says that it is the best | model and snapshot that agree |
//!
//! [`BestModel::resume`] takes the file that the snapshot speaks of, and puts it back into its place. So a resumed run ends with the
//! best model of one that was not killed, to the bit.
//!
//! Leaves out what a run needs to go on ([`crate::snapshot`]): a run that went on from its best model would do all epochs since
//! again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use c10d::ProcessGroup;
use serde::{Deserialize, Serialize};
use tch::nn::VarStore;

use crate::metrics::Evaluation;
use crate::snapshot::OnSaveError;
use crate::{Rank, Reporter, agree, checkpoint, ddp};

/// Where the metadata have a [`Best`], as JSON.
const KEY: &str = "lockstep.best";

/// What is known of the best model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The epoch after which it was found, from 0.
    pub epoch: u64,
    /// Its validation accuracy, from 0 to 1.
    pub accuracy: f64,
    /// Its mean validation loss; none if that was not finite, which JSON cannot write.
    pub loss: Option<f64>,
    /// How many samples it was validated on.
    pub samples: u64,
}

/// The keeper of the best model's file. Every rank has one and makes the same calls; rank 0 alone writes the file.
///
/// ```no_run
/// # use lockstep::{BestModel, Reporter, metrics::Evaluation};
/// # fn epoch(
/// #     vs: &mut tch::nn::VarStore, group: &c10d::ProcessGroup, all: &Evaluation, report: &Reporter,
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
    best: Option<Best>,
}

impl BestModel {
    /// For a model in the file `path`, which ends in `.safetensors`.
    pub fn new(path: impl AsRef<Path>, on_error: OnSaveError, report: &Reporter) -> Self {
        BestModel { path: path.as_ref().to_owned(), on_error, report: report.clone(), best: None }
    }

    /// Where the model is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The best model so far; none before the first.
    pub fn best(&self) -> Option<Best> {
        self.best
    }

    /// Goes on with the best model that a snapshot speaks of, or with none: from then on the file, if it is used, is that one.
    /// A collective.
    ///
    /// Where rank 0's node has no such file, after a requeue in another order, the node that has it sends it. Where none has, there
    /// is a warning, and the best of the epochs that come is kept.
    ///
    /// # Errors
    /// On every rank when the name is none that a model can be saved under, or the file that is wanted cannot be put back into its
    /// place, and those of a broadcast.
    pub fn resume(&mut self, saved: Option<Best>, group: &ProcessGroup) -> anyhow::Result<()> {
        let mine = match self.report.rank().is_zero() {
            true => self.find(saved).map_err(|error| format!("{error:#}")),
            false => Ok(self.report.is_first_of_node() && saved.is_some_and(|best| self.file_of(best).is_some())),
        };
        let have: Vec<bool> =
            agree::all_words(group, &mine)?.into_iter().collect::<Result<_, String>>().map_err(anyhow::Error::msg)?;
        self.best = match (saved, have.iter().position(|has| *has)) {
            (None, _) => None,
            (Some(best), None) => {
                self.report.warn_once(self.lost(best));
                None
            }
            (Some(best), Some(0)) => Some(best),
            (Some(best), Some(rank)) => Some(self.fetch(best, Rank::new(rank), group)?),
        };
        Ok(())
    }

    /// Has the rank `from` send its file to rank 0.
    fn fetch(&self, best: Best, from: Rank, group: &ProcessGroup) -> anyhow::Result<Best> {
        let read = |path: PathBuf| fs::read(&path).map_err(|error| format!("cannot read {}: {error}", path.display()));
        let sends = (group.rank() == from).then(|| self.file_of(best).ok_or("it is gone".to_owned()).and_then(read));
        let length = sends.as_ref().map(|bytes| bytes.as_ref().map(Vec::len).map_err(Clone::clone));
        let length = agree::words_of(group, from, length.as_ref())?;
        let length = length.map_err(|why| anyhow::anyhow!("rank {from} cannot send the best model: {why}"))?;
        let bytes = sends.and_then(Result::ok).unwrap_or_else(|| vec![0; length]);
        let bytes = agree::bytes_of(group, from, bytes)?;
        let put = || checkpoint::put(&self.path, &bytes).map_err(|error| format!("{error:#}"));
        let done = self.report.rank().is_zero().then(put);
        agree::words::<Result<(), String>>(group, done.as_ref())?.map_err(anyhow::Error::msg)?;
        self.report.say_once(format!("The best model so far came from rank {from} to {}", self.path.display()));
        Ok(best)
    }

    /// Keeps the model in `vs` if it is better than the best so far; of equal ones the first stays. Says whether it was kept.
    /// A collective, for which all ranks have the same `all`.
    ///
    /// # Errors
    /// With [`OnSaveError::Stop`], on every rank, when it cannot be saved; else that is warned of, and the best one so far stays.
    pub fn offer(&mut self, epoch: u64, all: &Evaluation, vs: &VarStore, group: &ProcessGroup) -> anyhow::Result<bool> {
        let (accuracy, samples) = (all.accuracy(), all.samples());
        if self.best.is_some_and(|best| accuracy <= best.accuracy) {
            return Ok(false);
        }
        let loss = Some(all.loss()).filter(|loss| loss.is_finite());
        let new = Best { epoch, accuracy, loss, samples };
        let saved = checkpoint::save_for_all(group, &self.report, self.on_error, || self.save(new, vs))?;
        if saved {
            self.best = Some(new);
        }
        Ok(saved)
    }

    /// Sets `vs` to the best model on all ranks, from the file that rank 0 has, and says what is known of it. None if no model was
    /// kept; `vs` is then left. The model before it is removed, so the last snapshot must be on disk. A collective.
    ///
    /// # Errors
    /// On every rank when the file is gone, or another than was saved.
    pub fn finish(self, vs: &mut VarStore, group: &ProcessGroup) -> anyhow::Result<Option<Best>> {
        let Some(best) = self.best else { return Ok(None) };
        let taken = self.report.rank().is_zero().then(|| self.take(best, vs).map_err(|error| format!("{error:#}")));
        agree::words::<Result<(), String>>(group, taken.as_ref())?.map_err(anyhow::Error::msg)?;
        ddp::broadcast_states(vs, group)?;
        Ok(Some(best))
    }

    /// Rank 0's part of the end.
    fn take(&self, best: Best, vs: &mut VarStore) -> anyhow::Result<()> {
        let path = self.path.display();
        anyhow::ensure!(is_of(&self.path, best), "{path} is not the best model any more: was it moved or replaced?");
        checkpoint::load(vs, &self.path)?;
        // There is none if the first was the best.
        let _ = fs::remove_file(self.before());
        Ok(())
    }

    /// Rank 0's part of a resume: whether the file is in its place, or none is wanted.
    fn find(&self, saved: Option<Best>) -> anyhow::Result<bool> {
        let path = self.path.display();
        checkpoint::check_name(&self.path).with_context(|| format!("cannot keep the best model in {path}"))?;
        checkpoint::sweep(&self.path);
        let file = saved.and_then(|best| self.file_of(best));
        if file.as_ref().is_some_and(|file| *file != self.path) {
            fs::rename(self.before(), &self.path)?;
        }
        Ok(file.is_some() || saved.is_none())
    }

    /// The file of this node that is the model `best`.
    fn file_of(&self, best: Best) -> Option<PathBuf> {
        [self.path.clone(), self.before()].into_iter().find(|path| is_of(path, best))
    }

    fn lost(&self, Best { epoch, accuracy, .. }: Best) -> String {
        format!(
            "the best model so far, of epoch {epoch} with accuracy {accuracy:.4}, is not in {} any more; the best of the epochs \
             from here on is kept",
            self.path.display()
        )
    }

    fn save(&self, new: Best, vs: &VarStore) -> anyhow::Result<()> {
        if let Some(best) = self.best {
            self.report.println(format!("Prev best val acc: {:.4} < Cur val acc: {:.4}", best.accuracy, new.accuracy));
        }
        self.report.println("Saving the new best model...");
        let note = serde_json::to_string(&new)?;
        // A file of another run is none that a resume would want back.
        let before = self.best.map(|_| self.before());
        checkpoint::save_with_note(vs, &self.path, (KEY, &note), before.as_deref())?;
        self.report.println("Finished saving model");
        Ok(())
    }

    /// The name of the model that was the best until the last one.
    fn before(&self) -> PathBuf {
        self.path.with_extension("before.safetensors")
    }
}

/// Whether the file at `path` is the model of which `best` is known.
fn is_of(path: &Path, best: Best) -> bool {
    let note = checkpoint::note(path, KEY).ok().flatten();
    note.and_then(|text| serde_json::from_str::<Best>(&text).ok()) == Some(best)
}

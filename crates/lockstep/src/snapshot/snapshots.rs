//! A run's snapshots: resuming from the newest good one, and saving new ones while training goes on.

use std::any::Any;
use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::iter;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use c10d::ProcessGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;
use tch::nn::VarStore;

use super::decision::Decision;
use super::error::{BadSnapshot, SnapshotError, Unfit};
use super::extra;
use super::file::{self, Meta, Run, Snapshot};
use super::fit::{self, Here};
use super::folder::{self, Good, Search};
use super::lock::{self, Claim};
use super::options::{OnSaveError, SnapshotOptions};
use super::writer::Job;
use crate::events::Event;
use crate::loader::Position;
use crate::optim::{Optimizer, State};
use crate::{Reporter, agree, progress};

/// The snapshots of a run. Every rank has one and makes the same calls; rank 0 alone touches the folder.
///
/// ```no_run
/// # use lockstep::{Reporter, loader::{DataLoader, Position}, snapshot::{Run, Snapshots}};
/// # fn train(
/// #     vs: &tch::nn::VarStore, mut optimizer: lockstep::optim::Sgd, loader: DataLoader, group: &c10d::ProcessGroup,
/// #     report: &Reporter,
/// # ) -> anyhow::Result<()> {
/// let run = Run { seed: 0, samples: 4096, data: 0, batch_size: 32 };
/// let mut snapshots = Snapshots::new("snapshots", run, Default::default(), report);
/// let start = snapshots.resume(vs, &mut optimizer, group)?;
/// for epoch in start.epoch..10 {
///     for batch in loader.epoch_at(start.within(epoch)) {
///         let batch = batch?; // and a step with it
///     }
///     snapshots.save(Position::start_of(epoch + 1), vs, &optimizer)?;
/// }
/// snapshots.finish()?;
/// # Ok(()) }
/// ```
pub struct Snapshots {
    folder: PathBuf,
    run: Run,
    options: SnapshotOptions,
    report: Reporter,
    pending: Option<Pending>,
    /// Rank 0's claim to the folder, once it has asked: a lock, or none where locks are not to be had.
    claim: Option<Option<File>>,
    /// Files that are torn or damaged.
    bad: BTreeSet<PathBuf>,
    /// Files of others, that another version may read, or that may be readable later.
    foreign: BTreeSet<PathBuf>,
}

struct Pending {
    path: PathBuf,
    thread: JoinHandle<Result<(), SnapshotError>>,
}

impl Snapshots {
    /// For snapshots in `folder`, which the first save makes. Temporary files of a writer that was killed are removed.
    pub fn new(folder: impl AsRef<Path>, run: Run, options: SnapshotOptions, report: &Reporter) -> Self {
        let folder = folder.as_ref().to_owned();
        report.snapshots_are_in(&folder);
        if report.rank().is_zero() {
            folder::sweep(&folder);
        }
        let (report, bad, foreign) = (report.clone(), BTreeSet::new(), BTreeSet::new());
        Snapshots { folder, run, options, report, pending: None, claim: None, bad, foreign }
    }

    /// Sets `vs` and `optimizer` to the newest good snapshot and says where training goes on; without any, leaves them and says
    /// the start. A collective: rank 0 reads, and all ranks get the same bytes. Why a newer file was skipped is warned of.
    ///
    /// As in PyTorch the saved options of the optimizer (its learning rate among them) replace those that it was built with.
    /// A state that was saved beside them ([`save_with`](Self::save_with)) is not looked at.
    ///
    /// # Errors
    /// On every rank when the newest good snapshot is of another model or optimizer, stands inside an epoch of another seed or
    /// data set, or has another schema, and when another job that is still running has the folder, or there are snapshots and
    /// [`SnapshotOptions::resume`] is off; nothing is changed then.
    pub fn resume(
        &mut self,
        vs: &VarStore,
        optimizer: &mut impl Optimizer,
        group: &ProcessGroup,
    ) -> Result<Position, SnapshotError> {
        self.resume_reading(vs, optimizer, group, &|_| Ok(())).map(|(position, _)| position)
    }

    /// As [`resume`](Self::resume), and gives back the state that was saved beside model and optimizer; `None` where training
    /// starts anew, and where the snapshot is of [`save`](Self::save).
    ///
    /// # Errors
    /// As [`resume`](Self::resume), and on every rank when the saved state is of another shape than `E`: when it lacks a field, or
    /// has one that an `E` would lose.
    pub fn resume_with<E: Serialize + DeserializeOwned>(
        &mut self,
        vs: &VarStore,
        optimizer: &mut impl Optimizer,
        group: &ProcessGroup,
    ) -> Result<(Position, Option<E>), SnapshotError> {
        let read = |saved: Option<&str>| saved.map(extra::decode).transpose();
        self.resume_reading(vs, optimizer, group, &read).map(|(position, extra)| (position, extra.flatten()))
    }

    /// Both kinds of resume; `read` makes of the saved state what they give back, before anything is changed.
    fn resume_reading<T>(
        &mut self,
        vs: &VarStore,
        optimizer: &mut impl Optimizer,
        group: &ProcessGroup,
        read: Read<'_, T>,
    ) -> Result<(Position, Option<T>), SnapshotError> {
        let rank0 = self.report.rank().is_zero();
        let found = if rank0 { Some(self.read(vs, optimizer, read)) } else { None };
        let mine = found.as_ref().map(|found| match found {
            Ok(Some((good, _))) => Decision::Resume(good.path.display().to_string(), good.bytes.len()),
            Ok(None) => Decision::Anew,
            Err(error) => Decision::Refuse(with_causes(error)),
        });
        let decision = agree::words(group, mine.as_ref())?;
        let found = found.transpose()?.flatten();
        match decision {
            Decision::Anew => Ok((Position::default(), None)),
            Decision::Refuse(why) => Err(SnapshotError::RefusedByRank0(why)),
            Decision::Resume(path, length) => {
                let (bytes, taken_over) = found.map(|(good, extra)| (good.bytes, (good.meta, extra))).unzip();
                let path = PathBuf::from(path);
                let bytes = agree::bytes(group, bytes.unwrap_or_else(|| vec![0; length]))?;
                let (meta, extra) = taken_over.map_or_else(|| take_over(&path, &bytes, vs, optimizer, read), Ok)?;
                self.tell(meta.position, &path);
                Ok((meta.position, Some(extra)))
            }
        }
    }

    /// Copies everything that the step at `position` reads, and has it written: on rank 0; the others have nothing to do.
    ///
    /// In the background there is one copy in memory at most: a second save first waits until the one before is on disk. (A
    /// copy of the optimizer's state is made on the way and dropped before this returns.)
    ///
    /// # Errors
    /// With [`OnSaveError::Stop`], why this save, or the one before in the background, failed.
    pub fn save(&mut self, position: Position, vs: &VarStore, optimizer: &impl Optimizer) -> Result<(), SnapshotError> {
        self.save_all(position, vs, optimizer, || Ok(None))
    }

    /// As [`save`](Self::save), with whatever else the run must remember: a scheduler's state, the best accuracy so far.
    /// [`resume_with`](Self::resume_with) gives it back.
    ///
    /// It is kept as JSON, which has all bits of finite floats and no others: a type may keep an infinite one as `None`, or as
    /// [`PlateauState`](crate::optim::schedule::PlateauState) does.
    ///
    /// ```no_run
    /// # use lockstep::{loader::Position, optim::schedule::{PlateauState, ReduceLrOnPlateau}, snapshot::Snapshots};
    /// # fn train(
    /// #     mut snapshots: Snapshots, vs: &tch::nn::VarStore, mut optimizer: lockstep::optim::Sgd, group: &c10d::ProcessGroup,
    /// #     mut schedule: ReduceLrOnPlateau,
    /// # ) -> anyhow::Result<()> {
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct SoFar {
    ///     schedule: PlateauState,
    ///     best_accuracy: Option<f64>,
    /// }
    ///
    /// let (start, so_far) = snapshots.resume_with::<SoFar>(vs, &mut optimizer, group)?;
    /// let best_accuracy = so_far.as_ref().and_then(|so_far| so_far.best_accuracy);
    /// if let Some(SoFar { schedule: state, .. }) = so_far {
    ///     schedule.load_state(state)?;
    /// }
    /// // an epoch, which may find a better one
    /// let so_far = SoFar { schedule: schedule.state(), best_accuracy };
    /// snapshots.save_with(Position::start_of(start.epoch + 1), vs, &optimizer, &so_far)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`save`](Self::save), and always when `extra` cannot be read back from what would be written.
    pub fn save_with<E: Serialize + DeserializeOwned>(
        &mut self,
        position: Position,
        vs: &VarStore,
        optimizer: &impl Optimizer,
        extra: &E,
    ) -> Result<(), SnapshotError> {
        self.save_all(position, vs, optimizer, || extra::encode(extra).map(Some))
    }

    fn save_all(
        &mut self,
        position: Position,
        vs: &VarStore,
        optimizer: &impl Optimizer,
        extra: impl FnOnce() -> Result<Option<String>, SnapshotError>,
    ) -> Result<(), SnapshotError> {
        if !self.report.rank().is_zero() {
            return Ok(());
        }
        let extra = extra()?;
        self.claim()?;
        self.settle()?;
        let job = self.job(position, vs, optimizer, extra.as_deref())?;
        let (path, stop, report) = (job.path(), self.options.on_error == OnSaveError::Stop, self.report.clone());
        let write = {
            let path = path.clone();
            move || judge(job.run(), path, stop, &report)
        };
        if !self.options.background {
            return write();
        }
        let spawned = std::thread::Builder::new().name("snapshot".into()).spawn(write);
        match spawned {
            Ok(thread) => self.pending = Some(Pending { path, thread }),
            Err(source) => judge(Err(source), path, stop, &self.report)?,
        }
        Ok(())
    }

    /// Waits until the last snapshot is on disk.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        self.settle()
    }

    fn settle(&mut self) -> Result<(), SnapshotError> {
        let Some(Pending { path, thread }) = self.pending.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|panic| Err(SnapshotError::Panic { path, message: message(&*panic) }))
    }

    fn job(
        &self,
        position: Position,
        vs: &VarStore,
        optimizer: &impl Optimizer,
        extra: Option<&str>,
    ) -> Result<Job, SnapshotError> {
        let state = optimizer.state_dict();
        let meta = Meta {
            position,
            run: self.run,
            world_size: self.report.world_size().get(),
            threads: tch::get_num_threads(),
            optimizer: state.meta().clone(),
        };
        let (folder, keep, report) = (self.folder.clone(), self.options.keep.get(), self.report.clone());
        let bytes = file::encode(&meta, extra, tensors(vs, state))?;
        Ok(Job { folder, position, bytes, keep, bad: self.bad.clone(), foreign: self.foreign.clone(), report })
    }

    /// Rank 0's part of a resume: finds the newest good snapshot and takes it over.
    fn read<T>(
        &mut self,
        vs: &VarStore,
        optimizer: &mut impl Optimizer,
        read: Read<'_, T>,
    ) -> Result<Option<(Good, T)>, SnapshotError> {
        self.claim()?;
        let listed = |source| SnapshotError::List { folder: self.folder.clone(), source };
        if !self.options.resume
            && let Some(newest) = folder::list(&self.folder).map_err(listed)?.first()
        {
            return Err(SnapshotError::NotAsked { folder: self.folder.clone(), epoch: newest.epoch });
        }
        let Search { good, skipped } = folder::search(&self.folder).map_err(listed)?;
        let other_schema = self.skip(skipped);
        let Some(good) = good else { return other_schema.map_or(Ok(None), Err) };
        let here = Here { run: self.run, world_size: self.report.world_size().get(), threads: tch::get_num_threads() };
        let unfit = |why| SnapshotError::Unfit { path: good.path.clone(), why };
        let notes = fit::check_run(&good.meta, &here).map_err(unfit)?;
        let built_with = optimizer.group_lrs();
        let (_, extra) = take_over(&good.path, &good.bytes, vs, optimizer, read)?;
        let rates = fit::replaced_rates(&built_with, &optimizer.group_lrs());
        let rates = rates.into_iter().filter(|_| !self.options.sets_rates);
        notes.into_iter().chain(rates).for_each(|note| self.report.warn(note));
        Ok(Some((good, extra)))
    }

    /// Makes sure that no other job saves into the folder for as long as this lives.
    fn claim(&mut self) -> Result<(), SnapshotError> {
        if self.claim.is_some() {
            return Ok(());
        }
        let say = |waited: Duration, limit: Duration| {
            self.report.warn(format!(
                "rank 0 has waited {} s for the lock on the folder of snapshots {} and waits up to {} s: another job holds it, or \
                 the file server has not noticed yet that the holder's node is gone",
                waited.as_secs(),
                self.folder.display(),
                limit.as_secs()
            ));
        };
        self.claim = Some(match lock::claim(&self.folder, self.options.lock_wait, say) {
            Claim::Held(file) => Some(file),
            Claim::Taken(waited) => return Err(SnapshotError::Taken { folder: self.folder.clone(), waited }),
            Claim::Unknown(error) => {
                let folder = self.folder.display();
                let told = format!(
                    "cannot lock the folder of snapshots {folder}: {error}; see to it that no other job uses it"
                );
                self.report.warn(told);
                None
            }
        });
        Ok(())
    }

    /// Warns of each file that was skipped; the error if there is nothing else to resume from.
    fn skip(&mut self, skipped: Vec<(PathBuf, BadSnapshot)>) -> Option<SnapshotError> {
        let mut other_schema = None;
        for (path, bad) in skipped {
            self.report.warn(format!("skipped the snapshot {}: {bad}", path.display()));
            match bad {
                BadSnapshot::Schema { .. } => {
                    self.foreign.insert(path.clone());
                    other_schema.get_or_insert(SnapshotError::Unfit { path, why: Unfit::Schema(bad) });
                }
                BadSnapshot::Torn { .. } | BadSnapshot::Damaged { .. } => drop(self.bad.insert(path)),
                BadSnapshot::Unreadable(_) | BadSnapshot::NotOurs(_) => drop(self.foreign.insert(path)),
            }
        }
        other_schema
    }

    fn tell(&self, position: Position, path: &Path) {
        let Position { epoch, step, .. } = position;
        if self.report.rank().is_zero() {
            let line = progress::resumed_line(epoch);
            self.report.println(if position.is_start() { line } else { format!("{line}, step {step}") });
        }
        self.report.emit(&Event::Resume { epoch, step: step as u64, path: path.display().to_string() });
    }
}

impl Drop for Snapshots {
    /// A run that ends by an error still leaves its last snapshot.
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            self.report.warn(format!("{:#}", anyhow::Error::from(error)));
        }
    }
}

/// A failed save as the run wants it: an error, or a warning.
fn judge(written: std::io::Result<()>, path: PathBuf, stop: bool, report: &Reporter) -> Result<(), SnapshotError> {
    let Err(source) = written else { return Ok(()) };
    let error = SnapshotError::Save { path, source };
    if stop {
        return Err(error);
    }
    report.warn(format!("{:#}; training goes on", anyhow::Error::from(error)));
    Ok(())
}

/// Makes something of a snapshot's own state, if it has one.
type Read<'a, T> = &'a dyn Fn(Option<&str>) -> Result<T, Unfit>;

/// Sets model and optimizer to what the file at `path` holds, or leaves both.
fn take_over<T>(
    path: &Path,
    bytes: &[u8],
    vs: &VarStore,
    optimizer: &mut impl Optimizer,
    read: Read<'_, T>,
) -> Result<(Meta, T), SnapshotError> {
    let unfit = |why| SnapshotError::Unfit { path: path.to_owned(), why };
    let snapshot = Snapshot::decode(bytes).map_err(|bad| unfit(Unfit::Schema(bad)))?;
    let extra = read(snapshot.extra.as_deref()).map_err(unfit)?;
    let variables = vs.variables();
    fit::check_model(&snapshot.model, &variables).map_err(unfit)?;
    let state = State::new(snapshot.meta.optimizer.clone(), snapshot.optimizer);
    optimizer.load_state_dict(state).map_err(|error| unfit(error.into()))?;
    for (name, saved) in snapshot.model {
        // Every name is there: the check saw to it.
        let Some(mut variable) = variables.get(&name).map(Tensor::shallow_clone) else { continue };
        tch::no_grad(|| variable.f_copy_(&saved)).map_err(|source| SnapshotError::Tensor { name, source })?;
    }
    Ok((snapshot.meta, extra))
}

/// All tensors with their names in the file: those of wide elements first, so that each begins at a multiple of its width.
fn tensors(vs: &VarStore, state: State) -> Vec<(String, Tensor)> {
    let model = vs.variables().into_iter().map(|(name, tensor)| (format!("model.{name}"), tensor));
    let optimizer = state.tensors().into_iter().map(|(name, tensor)| (format!("optimizer.{name}"), tensor));
    let mut all: Vec<(String, Tensor)> = model.chain(optimizer).collect();
    all.sort_by_cached_key(|(name, tensor)| (std::cmp::Reverse(tensor.kind().elt_size_in_bytes()), name.clone()));
    all
}

/// The error and what it came of, in one line: the other ranks get a text.
fn with_causes(error: &SnapshotError) -> String {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

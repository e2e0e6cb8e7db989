//! A run's snapshots: saves new ones while training continues. [`super::resume`] loads them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use c10d::ProcessGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;
use tch::nn::VarStore;

use super::contents::{self, Contents, Memory};
use super::error::SnapshotError;
use super::folder;
use super::lock::{self, Claim, TakenOver};
use super::meta::{self, Attempt, Meta, Run};
use super::requests::{Request, Requests};
use super::sharded::Variables;
use super::writer::{OnSaveError, SaveJob, SnapshotOptions, handle_failure};
use crate::Reporter;
use crate::error_file::panic_text;
use crate::loader::Position;
use crate::optim::{Optimizer, State};

/// The snapshots of a run. Every rank has one and makes the same calls; only rank 0 writes, and the first rank of each node
/// reads.
///
/// ```no_run
/// # use lockstep::{Reporter, loader::{DataLoader, Position}, snapshot::{Run, Save, Snapshots}};
/// # fn train(
/// #     vs: &tch::nn::VarStore, mut optimizer: lockstep::optim::Sgd, loader: DataLoader, group: &c10d::ProcessGroup,
/// #     report: &Reporter,
/// # ) -> anyhow::Result<()> {
/// let run = Run { seed: 0, samples: 4096, data: 0, batch_size: 32 };
/// let mut snapshots = Snapshots::new("snapshots", run, Default::default(), report);
/// let start = snapshots.resume(vs, &mut optimizer, group)?;
/// for epoch in start.epoch..10 {
///     let from = start.within(epoch);
///     for (step, batch) in (from.step..).zip(loader.epoch_at(from)) {
///         let batch = batch?; // and a step with it
///         let next = loader.after(from, step);
///         if !next.is_start() {
///             snapshots.save_if(next.step % 100 == 0, Save::new(next, vs, &optimizer), group)?;
///         }
///     }
///     snapshots.save_if(true, Save::new(Position::start_of(epoch + 1), vs, &optimizer), group)?;
/// }
/// snapshots.finish()?;
/// # Ok(()) }
/// ```
pub struct Snapshots {
    pub(super) folder: PathBuf,
    pub(super) run: Run,
    pub(super) options: SnapshotOptions,
    pub(super) report: Reporter,
    /// The job's names, which are written to each snapshot: this rank's, and after a resume those of all ranks.
    pub(super) jobs: BTreeSet<String>,
    /// How this run is placed, once it has looked for a snapshot: see [`Meta`].
    pub(super) nodes: Vec<usize>,
    pub(super) backend: String,
    pub(super) built_with: Vec<f64>,
    /// Which start of the scheduler's job this is.
    attempt: Option<Attempt>,
    pending: Option<Pending>,
    /// Rank 0's claim to the folder, once made: a lock, or nothing if there are no locks.
    claim: Option<Option<File>>,
    /// Since a resume.
    pub(super) requests: Option<Requests>,
    /// Files that are torn or damaged.
    pub(super) bad: BTreeSet<PathBuf>,
    /// Files of others, which another version may read, or which may become readable later.
    pub(super) foreign: BTreeSet<PathBuf>,
}

/// What a snapshot has: all that the step at `position` needs, and the program's own state if it is given.
pub struct Save<'a> {
    pub(super) position: Position,
    pub(super) variables: Variables<'a>,
    pub(super) optimizer: &'a dyn Optimizer,
    extra: Option<Box<dyn Fn() -> Result<String, SnapshotError> + 'a>>,
}

impl<'a> Save<'a> {
    /// Training will continue at `position` with these variables, `&vs` or `(&vs, &model)` of a fully sharded model, and this optimizer.
    pub fn new(position: Position, variables: impl Into<Variables<'a>>, optimizer: &'a dyn Optimizer) -> Self {
        Save { position, variables: variables.into(), optimizer, extra: None }
    }

    /// Adds the program's own state: a scheduler's state, the best accuracy so far, how many epochs brought nothing better.
    /// [`Snapshots::resume_with`] returns it. Rank 0's is saved.
    ///
    /// It is stored as JSON, which preserves finite floats exactly and supports no others: a type may store an infinite one as
    /// `None`, or as [`PlateauState`](crate::optim::schedule::PlateauState) does.
    ///
    /// ```no_run
    /// # use lockstep::{loader::Position, optim::schedule::{PlateauState, ReduceLrOnPlateau}, snapshot::{Save, Snapshots}};
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
    /// let save = Save::new(Position::start_of(start.epoch + 1), vs, &optimizer).with(&so_far);
    /// snapshots.save_if(true, save, group)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with<E: Serialize + DeserializeOwned>(self, extra: &'a E) -> Self {
        Save { extra: Some(Box::new(move || meta::encode_state(extra))), ..self }
    }

    pub(super) fn extra(&self) -> Result<Option<String>, SnapshotError> {
        self.extra.as_ref().map(|encoded| encoded()).transpose()
    }
}

struct Pending {
    path: PathBuf,
    thread: JoinHandle<Result<(), SnapshotError>>,
}

impl Snapshots {
    /// For snapshots in `folder`, which the first save creates. Removes temporary files of a killed writer.
    pub fn new(folder: impl AsRef<Path>, run: Run, options: SnapshotOptions, report: &Reporter) -> Self {
        let folder = folder.as_ref().to_owned();
        report.snapshots_are_in(&folder);
        if report.is_first_of_node() {
            folder::sweep(&folder);
        }
        let (report, jobs) = (report.clone(), report.job().map(str::to_owned).into_iter().collect());
        let (bad, foreign) = (BTreeSet::new(), BTreeSet::new());
        let attempt = Attempt::here();
        Snapshots {
            folder,
            run,
            options,
            report,
            jobs,
            nodes: Vec::new(),
            backend: String::new(),
            built_with: Vec::new(),
            attempt,
            pending: None,
            claim: None,
            requests: None,
            bad,
            foreign,
        }
    }

    /// Writes everything that the step at `position` needs, or copies it and lets a thread write it, on rank 0. The other ranks
    /// send what they have of a divided optimizer's state; a fully sharded model's ranks each write a part. All ranks call this.
    ///
    /// In the background there is at most one copy in memory: a second save first waits until the previous one is on disk. If
    /// training waits, there is none.
    ///
    /// Errors: with [`OnSaveError::Stop`], why this save, or the previous one in the background, failed; those of gathering.
    pub fn save(&mut self, save: Save<'_>) -> Result<(), SnapshotError> {
        if let Some(model) = save.variables.sharded {
            return self.save_sharded(&save, model);
        }
        save.optimizer.gather_state()?;
        if !self.report.rank().is_zero() {
            return Ok(());
        }
        let extra = save.extra()?;
        self.claim()?;
        self.wait_for_writer()?;
        let state = save.optimizer.shared_state()?;
        let memory = if self.options.background { Memory::Copied } else { Memory::Shared };
        let meta = self.meta(save.position, &state);
        let contents = Contents::new(&meta, extra.as_deref(), &tensors(save.variables.vs, &state), memory)?;
        let job = self.job_of(save.position, contents);
        let (path, stop, report) = (job.path(), self.options.on_error == OnSaveError::Stop, self.report.clone());
        let write = {
            let path = path.clone();
            move || handle_failure(job.run(), path, stop, &report)
        };
        if !self.options.background {
            return write();
        }
        let spawned = std::thread::Builder::new().name("snapshot".into()).spawn(write);
        match spawned {
            Ok(thread) => self.pending = Some(Pending { path, thread }),
            Err(source) => handle_failure(Err(source), path, stop, &self.report)?,
        }
        Ok(())
    }

    /// Saves if a snapshot is `due`, or if a signal to any rank has asked for one since a
    /// [`resume`](Self::resume): SIGUSR1 for a snapshot, SIGUSR2 for a snapshot and the end. A collective: all ranks call it after
    /// the same steps, and exchange something in each step between two calls, as DDP does. All ranks act on a signal in the same
    /// call, one step after it arrived.
    pub fn save_if(&mut self, due: bool, save: Save<'_>, group: &ProcessGroup) -> Result<(), SnapshotError> {
        let agree = |requests: &mut Requests| requests.agree(group).map_err(SnapshotError::Agreement);
        let request = self.requests.as_mut().map_or(Ok(None), agree)?;
        let position = save.position;
        if due || request.is_some() {
            self.save(save)?;
        }
        let Position { epoch, step, .. } = position;
        match request {
            None => Ok(()),
            Some(Request::Save) => {
                self.report.say_once(format!("A signal asked for a snapshot: epoch {epoch}, step {step}"));
                Ok(())
            }
            Some(Request::SaveAndEnd) => {
                self.wait_for_writer()?;
                // Rank 0 may host the store, so no rank ends before all have left it.
                group.barrier().map_err(SnapshotError::Agreement)?;
                self.report.say_once(format!("A signal asked for a snapshot and the end: epoch {epoch}, step {step}"));
                Err(SnapshotError::Ended { position })
            }
        }
    }

    /// Waits until the last snapshot is on disk.
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        self.wait_for_writer()
    }

    pub(super) fn wait_for_writer(&mut self) -> Result<(), SnapshotError> {
        let Some(Pending { path, thread }) = self.pending.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|panic| {
            let message = panic_text(&*panic).unwrap_or("no message").to_owned();
            Err(SnapshotError::Panic { path, message })
        })
    }

    pub(super) fn meta(&self, position: Position, state: &State) -> Meta {
        Meta {
            position,
            run: self.run,
            world_size: self.report.world_size().get(),
            threads: tch::get_num_threads(),
            nodes: self.nodes.clone(),
            backend: self.backend.clone(),
            virtual_ranks: self.options.virtual_ranks,
            instructions: c10d::cpu_capability().to_owned(),
            built_with: self.built_with.clone(),
            optimizer: state.meta().clone(),
            jobs: self.jobs.iter().cloned().collect(),
            attempt: self.attempt.clone(),
            sharded: None,
        }
    }

    pub(super) fn job_of(&self, position: Position, contents: Contents) -> SaveJob {
        let (folder, keep, report) = (self.folder.clone(), self.options.keep.get(), self.report.clone());
        let (bad, foreign, attempt) = (self.bad.clone(), self.foreign.clone(), self.attempt.clone());
        SaveJob { folder, position, contents, keep, bad, foreign, attempt, report, parts: 0 }
    }

    /// Ensures that no other job saves into the folder while this exists.
    ///
    /// A former attempt of the same job may still hold the folder's lock, on a node that the scheduler does not reach: then this
    /// attempt goes on without the lock, and the check of attempts in [`super::lock`] keeps the former from saving.
    pub(super) fn claim(&mut self) -> Result<(), SnapshotError> {
        match &self.claim {
            Some(Some(_)) => {}
            // Free as soon as the former attempt is gone.
            Some(None) => self.claim = Some(lock::try_claim(&self.folder)),
            None => self.claim = Some(self.first_claim()?),
        }
        Ok(())
    }

    /// Returns true if a former attempt of this job has saved in the folder.
    fn follows(&self) -> Result<bool, SnapshotError> {
        let Some(own) = &self.attempt else { return Ok(false) };
        let latest = own.check(&self.folder).map_err(|TakenOver { own, later }| SnapshotError::TakenOver {
            folder: self.folder.clone(),
            own,
            later,
        })?;
        Ok(latest.is_some_and(|latest| latest < own.number))
    }

    fn first_claim(&self) -> Result<Option<File>, SnapshotError> {
        let follows = self.follows()?;
        let limit = if follows { Some(Duration::ZERO) } else { self.options.lock_wait };
        let say = |waited: Duration, limit: Duration| {
            self.report.warn(format!(
                "rank 0 has waited {} s for the lock on the folder of snapshots {} and waits up to {} s: another job holds it, or \
                 the file server has not noticed yet that the holder's node is gone",
                waited.as_secs(),
                self.folder.display(),
                limit.as_secs()
            ));
        };
        Ok(match lock::claim(&self.folder, limit, say) {
            Claim::Held(file) => Some(file),
            Claim::Taken(_) if follows => {
                self.report.warn(format!(
                    "this attempt of the job takes the folder of snapshots {} over: a former attempt still holds its lock, and will end \
                     at its next save",
                    self.folder.display()
                ));
                None
            }
            Claim::Taken(waited) => return Err(SnapshotError::Taken { folder: self.folder.clone(), waited }),
            Claim::Unknown(error) => {
                let folder = self.folder.display();
                let text = format!(
                    "cannot lock the folder of snapshots {folder}: {error}; make sure that no other job uses it"
                );
                self.report.warn(text);
                None
            }
        })
    }
}

impl Drop for Snapshots {
    /// A run that ends with an error still writes its last snapshot.
    fn drop(&mut self) {
        if let Err(error) = self.wait_for_writer() {
            self.report.warn(format!("{:#}", anyhow::Error::from(error)));
        }
    }
}

/// All tensors with their names in the file, in its order.
fn tensors(vs: &VarStore, state: &State) -> Vec<(String, Tensor)> {
    let model = vs.variables().into_iter().map(|(name, tensor)| (format!("model.{name}"), tensor));
    let optimizer = state.tensors().into_iter().map(|(name, tensor)| (format!("optimizer.{name}"), tensor));
    let mut all: Vec<(String, Tensor)> = model.chain(optimizer).collect();
    contents::sort(&mut all);
    all
}

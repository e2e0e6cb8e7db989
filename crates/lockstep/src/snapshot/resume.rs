//! Resuming: all ranks exchange their nodes' surveys, one snapshot is chosen, and the rank that has it sends it to all.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{io, iter};

use c10d::{ProcessGroup, Rank};
use lockstep_paths::{self as output, Unwritable};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::choice::{self, Candidate, Choice, Survey};
use super::contents::Contents;
use super::error::{BadSnapshot, SnapshotError, Unfit};
use super::file::{self, Owner};
use super::fit::{self, ThisRun};
use super::folder::{self, Good};
use super::meta::{self, Meta};
use super::requests::Requests;
use super::sharded::{Target, Variables};
use super::snapshots::Snapshots;
use crate::events::Event;
use crate::loader::Position;
use crate::optim::{Optimizer, State};
use crate::{object_collectives, progress};

impl Snapshots {
    /// Loads the newest good snapshot into `variables` and `optimizer` and returns where training continues; without one, leaves them
    /// unchanged and returns the start. A collective: the first rank of each node lists its folder, the newest snapshot of all
    /// nodes is read where it is, and all ranks get the same bytes. A warning explains why a newer file was skipped, or that
    /// the snapshot comes from a node other than rank 0's.
    ///
    /// As in PyTorch, the saved options of the optimizer (including its learning rate) replace those given to its constructor.
    /// A saved state of the program ([`Save::with`](super::Save::with)) is ignored.
    ///
    /// From now on this rank handles SIGUSR1 and SIGUSR2, so the program saves with [`save_if`](Self::save_if).
    ///
    /// Errors: on every rank: the newest good snapshot belongs to another model or optimizer, its position is inside an epoch of another
    /// seed or data set; nothing can be saved in the folder, a file that is not this program's snapshot is in the way of a later one, or
    /// another running job holds the folder; nodes have snapshots of different runs, and none of them is this one; or there are snapshots,
    /// but none of this job, and [`SnapshotOptions::resume`](super::SnapshotOptions::resume) is off. Nothing is changed then.
    pub fn resume<'a>(
        &mut self,
        variables: impl Into<Variables<'a>>,
        optimizer: &mut dyn Optimizer,
        group: &ProcessGroup,
    ) -> Result<Position, SnapshotError> {
        let target = &mut Target { variables: variables.into(), optimizer };
        self.resume_reading(target, group, &|_| Ok(())).map(|(position, _)| position)
    }

    /// As [`resume`](Self::resume), and also returns the saved state of the program; `None` if training starts from the
    /// beginning, or if [`save`](Self::save) wrote the snapshot.
    pub fn resume_with<'a, E: Serialize + DeserializeOwned>(
        &mut self,
        variables: impl Into<Variables<'a>>,
        optimizer: &mut dyn Optimizer,
        group: &ProcessGroup,
    ) -> Result<(Position, Option<E>), SnapshotError> {
        let read = |saved: Option<&str>| saved.map(meta::decode_state).transpose();
        let target = &mut Target { variables: variables.into(), optimizer };
        self.resume_reading(target, group, &read).map(|(position, extra)| (position, extra.flatten()))
    }

    /// Both kinds of resume; `read` converts the saved state to their result, before anything is changed.
    fn resume_reading<T>(
        &mut self,
        target: &mut Target<'_>,
        group: &ProcessGroup,
        read: Read<'_, T>,
    ) -> Result<(Position, Option<T>), SnapshotError> {
        let surveys = self.surveys(group)?;
        self.nodes = choice::ranks_on_nodes(&surveys);
        self.backend = group.backend().name().to_owned();
        self.built_with = target.rates();
        let in_the_way = |start| choice::in_the_way(&surveys, start).map_or(Ok(()), Err);
        for candidate in self.choose(&surveys)? {
            // Before anything is changed.
            in_the_way((candidate.sighting.epoch, candidate.sighting.step))?;
            if let Some((position, path, extra)) = self.try_one(&candidate, target, group, read)? {
                choice::note(&candidate, &surveys).into_iter().for_each(|note| self.report.warn_once(note));
                self.report_resume(position, &path);
                return Ok((position, Some(extra)));
            }
        }
        in_the_way((0, 0))?;
        choice::none_anywhere(&surveys).into_iter().for_each(|message| self.report.say_once(message));
        Ok((Position::default(), None))
    }

    /// The surveys of all nodes. If one node refuses, every rank learns why.
    fn surveys(&mut self, group: &ProcessGroup) -> Result<Vec<Survey>, SnapshotError> {
        let claimed =
            if self.report.rank().is_zero() { self.check_folder().and_then(|()| self.claim()) } else { Ok(()) };
        let refusal = claimed.as_ref().err().map(with_causes);
        let job = self.report.job().map(str::to_owned);
        let mut survey =
            Survey { refusal, ..Survey::take(&self.folder, job, self.options.resume, self.report.is_first_of_node()) };
        if self.report.rank().is_zero() {
            // All ranks share the folder of a sharded snapshot.
            survey.foreign = folder::foreign(&self.folder, true);
        }
        let surveys = object_collectives::all_gather_object(group, &survey)?;
        claimed?;
        self.jobs = choice::jobs(&surveys);
        if let Some(zero) = surveys.first() {
            self.requests = Some(Requests::listen(&zero.attempt).map_err(SnapshotError::Signals)?);
        }
        for (rank, Survey { host, folder, unreadable, refusal, .. }) in surveys.iter().enumerate() {
            if let Some(why) = refusal {
                return Err(SnapshotError::Refused { rank: Rank::new(rank), why: why.clone() });
            }
            if let Some(why) = unreadable {
                let why = format!("cannot look for snapshots in {folder} on {host}: {why}");
                return Err(SnapshotError::Refused { rank: Rank::new(rank), why });
            }
        }
        Ok(surveys)
    }

    /// Ensures that something can be saved, as far as one can tell before. If the disk of a job that goes on has become read-only, it
    /// still can be read: that is a warning.
    fn check_folder(&self) -> Result<(), SnapshotError> {
        let forbidden = |source| Unwritable::Forbidden { path: self.folder.clone(), source };
        let Err(why) = output::check_folder(&self.folder).and_then(|()| folder::make(&self.folder).map_err(forbidden))
        else {
            return Ok(());
        };
        if folder::list(&self.folder).is_ok_and(|found| !found.is_empty()) {
            self.report.warn(format!("training goes on from {}, without new snapshots: {why}", self.folder.display()));
            return Ok(());
        }
        Err(SnapshotError::Folder { folder: self.folder.clone(), why })
    }

    /// The snapshots to try, in this order.
    fn choose(&self, surveys: &[Survey]) -> Result<Vec<Candidate>, SnapshotError> {
        match choice::choose(surveys, surveys.first().is_some_and(|zero| zero.resume)) {
            Choice::Try(order) => Ok(order),
            Choice::NotAsked(newest) => {
                let (epoch, Survey { host, folder, .. }) = (newest.sighting.epoch, &surveys[newest.rank]);
                let host = (newest.rank != 0).then(|| host.clone());
                Err(SnapshotError::NotAsked { folder: folder.into(), host, epoch })
            }
            Choice::Disagree(newest, other) => {
                let [newest, other] = choice::sides(&newest, &other, surveys);
                Err(SnapshotError::DifferentRuns { newest, other })
            }
        }
    }

    /// The rank that has the snapshot reads it, and all ranks load it, or none does; `None` if it is bad.
    fn try_one<T>(
        &mut self,
        candidate: &Candidate,
        target: &mut Target<'_>,
        group: &ProcessGroup,
        read: Read<'_, T>,
    ) -> Result<Option<(Position, PathBuf, T)>, SnapshotError> {
        let reader = Rank::new(candidate.rank);
        let found = (group.rank() == reader).then(|| self.read(candidate, target, read));
        let decision = object_collectives::broadcast_object_from(group, reader, found.as_ref().map(decide).as_ref())?;
        let found = found.transpose()?;
        let refused = |why| SnapshotError::Refused { rank: reader, why };
        match decision {
            Decision::Refuse(why) => Err(refused(why)),
            Decision::Next => Ok(None),
            Decision::Resume(path, length) => {
                let (contents, taken_over) =
                    found.flatten().map(|(good, extra)| (good.contents, (good.meta, extra))).unzip();
                let path = PathBuf::from(path);
                let contents = share(&path, contents, length, group, reader)?;
                let (meta, extra) = taken_over.map_or_else(|| take_over(&path, &contents, target, read), Ok)?;
                if !self.options.sets_rates && !meta.built_with.is_empty() {
                    self.built_with.clone_from(&meta.built_with); // its rates go on
                }
                Ok(Some((meta.position, path, extra)))
            }
        }
    }

    /// The reader's part: reads and checks the file, and loads it; `None` if it is bad.
    fn read<T>(
        &mut self,
        candidate: &Candidate,
        target: &mut Target<'_>,
        read: Read<'_, T>,
    ) -> Result<Option<(Good, T)>, SnapshotError> {
        let at = Position { epoch: candidate.sighting.epoch, step: candidate.sighting.step, samples: 0 };
        let path = folder::path_of(&self.folder, at);
        let good = match folder::read(&path) {
            Ok(good) => good,
            Err(bad) => {
                self.skip(path, &bad);
                return Ok(None);
            }
        };
        let (world_size, threads) = (self.report.world_size().get(), tch::get_num_threads());
        let (nodes, backend) = (self.nodes.clone(), self.backend.clone());
        let (virtual_ranks, instructions) = (self.options.virtual_ranks, c10d::cpu_capability());
        let here = ThisRun { run: self.run, world_size, threads, nodes, backend, virtual_ranks, instructions };
        let unfit = |why| SnapshotError::Unfit { path: good.path.clone(), why };
        let notes = fit::check_run(&good.meta, &here).map_err(unfit)?;
        let (_, extra) = take_over(&good.path, &good.contents, target, read)?;
        let rates = fit::other_rates(&good.meta, &self.built_with, &target.rates(), self.options.sets_rates);
        notes.into_iter().chain(rates).for_each(|note| self.report.warn(note));
        Ok(Some((good, extra)))
    }

    /// Warns about a skipped file.
    fn skip(&mut self, path: PathBuf, bad: &BadSnapshot) {
        self.report.warn(format!("skipped the snapshot {}: {bad}", path.display()));
        // An index is as bad as its part, which may be readable again later.
        let may_come_back = match bad {
            BadSnapshot::Part { why, .. } => {
                matches!(&**why, BadSnapshot::Unreadable(error) if error.kind() != io::ErrorKind::NotFound)
            }
            BadSnapshot::Unreadable(_) => true,
            _ => file::owner(&path) != Owner::Ours,
        };
        if may_come_back {
            self.foreign.insert(path)
        } else {
            self.bad.insert(path)
        };
    }

    fn report_resume(&self, position: Position, path: &Path) {
        let Position { epoch, step, .. } = position;
        if self.report.rank().is_zero() {
            let line = progress::resumed_line(epoch);
            self.report.println(if position.is_start() { line } else { format!("{line}, step {step}") });
        }
        self.report.emit(&Event::Resume { epoch, step: step as u64, path: path.display().to_string() });
    }
}

/// The reader's decision, which is sent to every rank, followed by the contents of the snapshot.
#[derive(Debug, Serialize, Deserialize)]
enum Decision {
    /// All ranks load this file (shown path, length of its header in bytes); its header and its tensors follow.
    Resume(String, usize),
    /// The file is bad: try the next.
    Next,
    /// No rank trains.
    Refuse(String),
}

fn decide<T>(found: &Result<Option<(Good, T)>, SnapshotError>) -> Decision {
    match found {
        Ok(Some((good, _))) => Decision::Resume(good.path.display().to_string(), good.contents.header().len()),
        Ok(None) => Decision::Next,
        Err(error) => Decision::Refuse(with_causes(error)),
    }
}

/// Converts the program's own state in a snapshot, if it has one.
type Read<'a, T> = &'a dyn Fn(Option<&str>) -> Result<T, Unfit>;

/// Sends the contents of the file at `path`, which the rank `reader` has, to all ranks: the header of `length` bytes, and then each
/// tensor.
fn share(
    path: &Path,
    mine: Option<Contents>,
    length: usize,
    group: &ProcessGroup,
    reader: Rank,
) -> Result<Contents, SnapshotError> {
    let bad = |bad| SnapshotError::Unfit { path: path.to_owned(), why: Unfit::Schema(bad) };
    let reads = mine.is_some();
    let header = mine.as_ref().map_or_else(|| vec![0; length], |mine| mine.header().to_vec());
    let header = object_collectives::broadcast_bytes_from(group, reader, header)?;
    let mut contents = mine.map_or_else(|| Contents::to_receive(header), Ok).map_err(bad)?;
    for tensor in contents.tensors_mut() {
        object_collectives::broadcast_tensor_of_bytes_from(group, reader, tensor)?;
    }
    if !reads {
        contents.check().map_err(bad)?;
    }
    Ok(contents)
}

/// Loads the contents of the file at `path`, or leaves the target unchanged.
fn take_over<T>(
    path: &Path,
    contents: &Contents,
    target: &mut Target<'_>,
    read: Read<'_, T>,
) -> Result<(Meta, T), SnapshotError> {
    let unfit = |why| SnapshotError::Unfit { path: path.to_owned(), why };
    let snapshot = contents.snapshot().map_err(|bad| unfit(Unfit::Schema(bad)))?;
    let extra = read(snapshot.extra.as_deref()).map_err(unfit)?;
    let state = State::new(snapshot.meta.optimizer.clone(), snapshot.optimizer);
    target.load(path, snapshot.model, state)?;
    Ok((snapshot.meta, extra))
}

/// The error and its causes in one line: the other ranks receive text.
pub(super) fn with_causes(error: &SnapshotError) -> String {
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"))
}

//! Errors of a snapshot: the file itself, its fit to this run, or saving it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use c10d::Rank;
use lockstep_paths::Unwritable;
use safetensors::Dtype;
use tch::TchError;

use crate::loader::Position;
use crate::object_collectives::ObjectError;
use crate::optim::OptimError;

/// How many names a message lists before it gives only a count.
const LISTED: usize = 6;

/// Why saving or resuming failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A good snapshot that this run cannot continue from.
    #[error("cannot resume from {}: {why}; name another folder to start over", path.display())]
    Unfit { path: PathBuf, why: Unfit },
    /// The optimizer's state cannot be taken.
    #[error("cannot save the optimizer's state")]
    Optimizer(#[from] OptimError),
    /// The rank that was to read the snapshots refused.
    #[error("rank {rank} refused to resume: {why}")]
    Refused { rank: Rank, why: String },
    /// Nodes have snapshots of different runs, none belongs to this job, and the newest is not on rank 0's node.
    #[error(
        "the nodes hold snapshots of different runs: {newest}, and {other}; remove the unwanted ones, or name another folder to start over"
    )]
    DifferentRuns {
        /// The node with the newest, and its run.
        newest: String,
        /// The node with another run's snapshot.
        other: String,
    },
    /// Nothing can be saved in the folder, and training has not begun.
    #[error("cannot save snapshots in {}: {why}; name another folder", folder.display())]
    Folder { folder: PathBuf, why: Unwritable },
    /// A file that is not a snapshot of this program has the name of one that the run will save.
    #[error(
        "{}{} is in the way of a snapshot of this name, which could not be saved: {what}; move it away, or name another folder",
        path.display(), host.as_ref().map_or_else(String::new, |host| format!(" on {host}"))
    )]
    InTheWay {
        path: PathBuf,
        /// The node that has it, if it is not rank 0's.
        host: Option<String>,
        /// What the file is.
        what: String,
    },
    /// Another running job holds the folder.
    #[error(
        "another job is saving its snapshots in {}, and still was after {:.1} s; wait until it has ended, end it (`lsof +D {}` \
         names its process), or name another folder", folder.display(), waited.as_secs_f64(), folder.display()
    )]
    Taken {
        folder: PathBuf,
        /// How long this job has waited for the lock.
        waited: Duration,
    },
    /// A later attempt of this job saves in the folder.
    #[error(
        "attempt {later} of this job has saved its snapshots in {}, and this is attempt {own}: the scheduler has started the job again, \
         perhaps because it does not reach this node; end this process", folder.display()
    )]
    TakenOver {
        folder: PathBuf,
        /// The number of this attempt, from 0.
        own: u32,
        /// The number of the later one.
        later: u32,
    },
    /// There are snapshots, but none belongs to this job, and the run may not resume from others.
    #[error(
        "{}{} holds snapshots of a run, the newest of epoch {epoch}; pass --resume to go on from it, or name another folder to start over",
        folder.display(), host.as_ref().map_or_else(String::new, |host| format!(" on {host}"))
    )]
    NotAsked {
        folder: PathBuf,
        /// The node that has it, if it is not rank 0's.
        host: Option<String>,
        /// Where training would continue from the newest.
        epoch: u64,
    },
    /// No failure: a signal asked for a snapshot and the end, and all ranks have come to it. [`crate::exit::main`] exits with
    /// [`Code::Saved`](crate::exit::Code::Saved).
    #[error("ended after a snapshot at epoch {}, step {}, as a signal asked", position.epoch, position.step)]
    Ended { position: Position },
    /// This rank cannot listen to the signals that ask for snapshots.
    #[error("cannot listen to SIGUSR1 and SIGUSR2, which ask for snapshots")]
    Signals(#[source] io::Error),
    /// The ranks could not agree on when to save.
    #[error("failed to agree with the other ranks on a snapshot that a signal asked for")]
    Agreement(#[source] c10d::Error),
    /// Writing failed; the existing snapshots are unchanged.
    #[error("failed to save the snapshot {}; those that were there still are", path.display())]
    Save { path: PathBuf, source: io::Error },
    /// A rank could not write its part, or rank 0 the index.
    #[error("rank {rank} failed to save its part of the snapshot: {why}")]
    Part { rank: Rank, why: String },
    /// The writer thread panicked: a bug.
    #[error("the thread that writes the snapshot {} panicked: {message}", path.display())]
    Panic { path: PathBuf, message: String },
    /// The ranks could not agree on what to resume from.
    #[error("failed to share a snapshot with all ranks")]
    Group(#[from] ObjectError),
    /// libtorch could not copy a tensor.
    #[error("failed to copy the tensor {name}")]
    Tensor { name: String, source: TchError },
    /// The program's own state cannot be written in a form that can be read back.
    #[error("cannot save the run's own state, a {type_name}: {why}")]
    State { type_name: &'static str, why: String },
    /// The format does not support this kind of tensor.
    #[error("cannot save the tensor {name}: safetensors has no dtype {kind:?}")]
    Kind { name: String, kind: tch::Kind },
}

/// Why a file is not a good snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadSnapshot {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is truncated, as after a power failure.
    #[error("it is torn: {has} bytes where its header says {wants}")]
    Torn {
        /// The file's actual length in bytes.
        has: u64,
        /// The length in bytes according to its header.
        wants: u64,
    },
    /// The file's checksum does not match.
    #[error("it is damaged: its checksum is {found} where {written} was written")]
    Damaged {
        /// The checksum of the bytes, in hexadecimal digits.
        found: String,
        /// The checksum in the header.
        written: String,
    },
    /// It was not written by this module, or its header is damaged.
    #[error("it is not a snapshot, or its header is damaged: {0}")]
    NotOurs(String),
    /// It is an index, and a file that it lists is bad.
    #[error("its part {file} is bad: {why}")]
    Part {
        /// The file, in the same folder.
        file: String,
        why: Box<BadSnapshot>,
    },
    /// It is complete, but in another version of the format.
    #[error("it has schema {found:?}, and this program reads {here}; use the program that wrote it, or another folder")]
    Schema {
        /// The version in the header.
        found: String,
        /// The supported [version](super::SCHEMA).
        here: u32,
    },
}

/// Why a good snapshot does not fit this run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The model has other variables.
    #[error("it is of another model: {}", differences(missing, unexpected, different))]
    Model {
        /// Variables of this model that the snapshot lacks.
        missing: Vec<String>,
        /// Variables of the snapshot that this model lacks.
        unexpected: Vec<String>,
        /// Variables of other shape or dtype.
        different: Vec<Difference>,
    },
    /// The optimizer is different, or has other parameters.
    #[error("{0}")]
    Optimizer(#[from] OptimError),
    /// Its position is inside an epoch whose order cannot be repeated.
    #[error(
        "it stands inside an epoch, whose order depends on the seed and the data set: {what} was {saved} there and is \
         {here} here"
    )]
    Run { what: &'static str, saved: String, here: String },
    /// Its position is outside the data set: a bug of its writer.
    #[error("its position is after {} steps and {} samples of an epoch of {samples} samples", position.step, position.samples)]
    Position { position: Position, samples: usize },
    /// The program's own state has another shape.
    #[error("the run's own state in it is {saved}, which does not fit this program's {type_name}: {why}")]
    State { saved: String, type_name: &'static str, why: String },
    /// There are snapshots, but all good ones are in another version of the format.
    #[error("{0}")]
    Schema(BadSnapshot),
}

/// A variable that both sides have, with another shape or dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Dtype and shape in the snapshot.
    pub saved: (Dtype, Vec<usize>),
    /// Dtype and shape in this run.
    pub here: (Dtype, Vec<usize>),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { name, saved, here } = self;
        write!(f, "{name} is {:?} {:?} there and {:?} {:?} here", saved.0, saved.1, here.0, here.1)
    }
}

fn differences(missing: &[String], unexpected: &[String], different: &[Difference]) -> String {
    let different: Vec<String> = different.iter().map(ToString::to_string).collect();
    let parts = [("it lacks", missing), ("only it has", unexpected), ("", &different)];
    let text = parts.iter().filter(|(_, names)| !names.is_empty());
    text.map(|(label, names)| format!("{label} {}", listed(names)).trim().to_owned()).collect::<Vec<_>>().join("; ")
}

/// The first few names, and the number of others.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > LISTED { format!("{shown} and {} more", names.len() - LISTED) } else { shown }
}

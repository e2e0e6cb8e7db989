//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};

use c10d::{GroupOptions, Rank};
use lockstep::broadcast_object;
use lockstep_exercise::{Task, numbers};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::disk::{Failure, fail, notes};
use crate::ranks::{Pass, Ranks, Sums, Training, of_kind};
use crate::snapshots::{KillableJob, Killed, Run, Settings, Snapshot, Step};

/// Inputs: epochs, steps per epoch, steps between snapshots, and for each run the steps until the kill. Results: the steps in the
/// model, how many were trained again after a kill, and how often a snapshot was saved.
pub fn next_step(answer: fn(&mut KillableJob) -> Result<(), Killed>) -> Task {
    Task::new("next_step", move |(epochs, steps, save_every, kills): (u64, u64, u64, Vec<u64>)| {
        let mut job = KillableJob::new(epochs, steps, save_every);
        for kill in kills.into_iter().map(Some).chain([None]) {
            job.start(kill);
            if answer(&mut job).is_ok() {
                break;
            }
        }
        Ok((job.model().to_vec(), job.repeated().to_vec(), job.saves()))
    })
}

/// A function of the step and the weights.
type Gradient<'a> = &'a dyn Fn(u64, &[f64]) -> Vec<f64>;
/// Weights and a snapshot.
type Trained = anyhow::Result<(Vec<f64>, String)>;

/// Inputs: initial weights, targets of two samples, the snapshot to continue from, and the step at which this run is stopped. Results:
/// the weights, the snapshot, the steps that were computed, and the weights at the first of them.
pub fn state(answer: fn(Gradient<'_>, Vec<f64>, Option<&str>, u64) -> Trained) -> Task {
    type Start = (Vec<f64>, [Vec<f64>; 2], Option<String>, u64);
    Task::new("state", move |(initial, targets, snapshot, until): Start| {
        let (steps, first) = (RefCell::new(Vec::new()), RefCell::new(None));
        let gradient = |step: u64, weights: &[f64]| {
            steps.borrow_mut().push(step);
            first.borrow_mut().get_or_insert_with(|| weights.to_vec());
            weights.iter().zip(&targets[step as usize % 2]).map(|(weight, target)| weight - target).collect()
        };
        let (weights, saved) = answer(&gradient, initial, snapshot.as_deref(), until)?;
        Ok((weights, saved, steps.take(), first.take()))
    })
}

/// Inputs: seed, samples, epochs.
pub fn order(answer: fn(u64, usize, Range<u64>) -> Vec<Vec<usize>>) -> Task {
    Task::new("order", move |(seed, samples, epochs): (u64, usize, Range<u64>)| Ok(answer(seed, samples, epochs)))
}

/// Inputs: the file, its length, the byte that fills it, the size of any file at which the kernel kills this process (SIGXFSZ), and how
/// the disk fails. Results: the error, which only a failing disk allows, and the operations.
pub fn whole(answer: fn(&Path, &[u8]) -> std::io::Result<()>) -> Task {
    type Save = (PathBuf, usize, u8, Option<u64>, Option<Failure>);
    Task::new("whole", move |(path, length, byte, kill, failure): Save| {
        if kill.is_some() {
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
            setrlimit(Resource::Fsize, Rlimit { current: kill, maximum: kill })?;
        }
        fail(failure);
        let saved = answer(&path, &vec![byte; length]);
        fail(None);
        let error = saved.as_ref().err().map(ToString::to_string);
        if failure.is_none() {
            saved?;
        }
        Ok((error, notes()))
    })
}

/// Inputs: the folder, and in which state it is. Results: the snapshot, or the error if the folder cannot be read.
pub fn newest(answer: fn(&Path) -> std::io::Result<Option<PathBuf>>) -> Task {
    Task::new("newest", move |(folder, access): (PathBuf, Access)| {
        if matches!(access, Access::Readable) {
            return Ok(Ok(answer(&folder)?));
        }
        let _full = if matches!(access, Access::NoMoreFiles) { Some(NoMoreFiles::begin()?) } else { None };
        Ok(answer(&folder).map_err(|error| error.to_string()))
    })
}

/// In which state an answer to `newest` finds the folder.
#[derive(Deserialize)]
enum Access {
    Readable,
    NoMoreFiles,
    /// A file has its name.
    NotAFolder,
}

/// As long as this lives, the process can open no file or folder: too many are open.
struct NoMoreFiles(Rlimit);

impl NoMoreFiles {
    fn begin() -> std::io::Result<Self> {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: before.maximum })?;
        Ok(NoMoreFiles(before))
    }
}

impl Drop for NoMoreFiles {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Nofile, self.0); // the limit that was there is allowed
    }
}

/// A job and its starts: the number of ranks, and the steps until the stop.
#[derive(Deserialize)]
struct Starts {
    #[serde(flatten)]
    settings: Settings,
    starts: Vec<(usize, Option<usize>)>,
}

/// This rank's steps and the snapshot's numbers for each start, and each epoch's order.
#[derive(Default, Serialize)]
struct Done {
    starts: Vec<Vec<Step>>,
    snapshots: Vec<Option<Vec<u64>>>,
    orders: Vec<Vec<usize>>,
}

/// Inputs: the settings, and the starts, each on the first ranks. Results: what was done in each.
pub fn reshard(answer: fn(&mut Run) -> anyhow::Result<()>) -> Task {
    Task::in_group("reshard", move |group, Starts { settings, starts }: Starts| {
        let (mut last, mut done) = (Snapshot::default(), Done::default());
        for (ranks, until_stop) in starts {
            let members: Vec<Rank> = (0..ranks).map(Rank::new).collect();
            let part = group.new_group(&members, &GroupOptions::default())?;
            let mut steps = Vec::new();
            if let Some(part) = part {
                // As the job's group, it lives until the process ends: others may wait for this rank, and must not lose it as a peer.
                let part = Box::leak(Box::new(part));
                let mut run = Run::new(settings, part, last.numbers.clone(), until_stop);
                let ended = answer(&mut run);
                if !run.was_stopped() {
                    ended?;
                }
                done.orders = (0..settings.epochs).map(|epoch| run.order(epoch)).collect();
                (last, steps) = run.end();
            }
            last = broadcast_object(group, group.rank().is_zero().then_some(&last))?;
            done.starts.push(steps);
            done.snapshots.push(last.numbers.clone());
        }
        Ok(done)
    })
}

/// A training, the epochs and steps that it takes, and its passes.
#[derive(Deserialize)]
struct Steps {
    #[serde(flatten)]
    training: Training,
    steps_of: Vec<(u64, usize)>,
}

/// The passes of each step by rank, and each epoch's order.
#[derive(Serialize)]
struct Passes {
    steps: Vec<Vec<Vec<Pass>>>,
    orders: Vec<Vec<usize>>,
}

/// Inputs: the training, and the steps that it takes on all its ranks, as pairs of an epoch and a step. Results: what each rank trained.
pub fn virtual_ranks(answer: fn(&mut Training, u64, usize)) -> Task {
    Task::new("virtual_ranks", move |Steps { training, steps_of }: Steps| {
        let of_rank = |rank: usize, (epoch, step): (u64, usize)| {
            let mut training = training.on_rank(rank);
            answer(&mut training, epoch, step);
            training.take()
        };
        let of_step = |step: &(u64, usize)| (0..training.ranks).map(|rank| of_rank(rank, *step)).collect();
        let orders = steps_of.iter().map(|(epoch, _)| training.order(*epoch)).collect();
        Ok(Passes { steps: steps_of.iter().map(of_step).collect(), orders })
    })
}

/// The gradients of all virtual ranks, and in which order each rank receives the sums of the ranks.
#[derive(Deserialize)]
struct Gradients {
    single: bool,
    gradients: Vec<Vec<f64>>,
    arrivals: Vec<Vec<usize>>,
}

/// A sum, and how many sums were sent for it.
#[derive(Serialize)]
struct Summed {
    numbers: Vec<f64>,
    kind: String,
    sent: usize,
}

/// Inputs: the gradients. Results: the sum and its kind, by the name of Python's type.
pub fn tree_sum(answer: fn(&Ranks<'_>, Sums) -> anyhow::Result<Tensor>) -> Task {
    Task::in_group("tree_sum", move |group, Gradients { single, gradients, arrivals }: Gradients| {
        let ranks = Ranks::new(group, gradients.len(), arrivals[group.rank().get()].clone());
        let own = ranks.part.clone().map(|v| (v..v + 1, of_kind(&gradients[v], single))).collect();
        let sum = ranks.finish(answer(&ranks, own))?;
        let kind = match sum.kind() {
            Kind::Float => "float32".to_owned(),
            Kind::Double => "float64".to_owned(),
            other => format!("{other:?}"),
        };
        Ok(Summed { numbers: numbers(&sum)?, kind, sent: ranks.sent() })
    })
}

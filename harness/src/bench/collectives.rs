//! `lockstep bench collectives`: every collective over Gloo, by size and number of ranks, as nccl-tests reports it: time, algorithm and
//! bus bandwidth, and results that were checked. The α–β model is fitted through the times.
//!
//! The harness links no libtorch. The ranks are a program of their own (`crates/bench-ranks`), started by `lockstep run`, and its twin in
//! Python; both under our launcher, so that only the collectives differ.

use std::cell::RefCell;
use std::ffi::OsString;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use lockstep_cost::Collective;
use lockstep_process::Signals;
use serde::{Deserialize, Serialize};

use super::frame::Frame;
use super::job::Job;
use super::launcher::{Launcher, Shape};
use super::machine::rank_labels;
use super::peer::Python;
use super::results::Unit;
use super::rounds::{Case, Contestant, Plan, Quantity};
use crate::exit::Code;
use crate::lab_run::program_beside;
use crate::report::{HostInfo, count};

/// The ranks' program, next to this one.
const PROGRAM: &str = "lockstep-bench-ranks";
/// The same in Python.
const TWIN: &str = include_str!("twins/collectives.py");
/// The least size in bytes, one element, and the factor from a size to the next.
const LEAST: u64 = 4;
const FACTOR: u64 = 4;

/// Measures collectives over Gloo as nccl-tests does, and fits the α–β model
#[derive(Args)]
pub(crate) struct Options {
    /// Collectives: a list
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all_reduce,broadcast,reduce,all_gather,gather,scatter,reduce_scatter,all_to_all,barrier",
        value_parser = PossibleValuesParser::new(Collective::ALL.map(Collective::name)), hide_possible_values = true)]
    operations: Vec<String>,
    /// Ranks: a list; each is a process of one thread on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// The largest size in bytes; the others are 4 B, 16 B, 64 B, … up to it
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u64).range(4..=1 << 28))]
    max_bytes: u64,
    #[command(flatten)]
    frame: Frame,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.frame.patience());
        self.frame.exec("collectives", |signals| {
            let (programs, not_measured) = programs(&self.frame)?;
            let mut plan = Plan { cases: vec![], not_measured };
            for &ranks in &self.ranks {
                let ranks = usize::from(ranks);
                let jobs: Vec<_> =
                    programs.iter().map(|side| Rc::new(Ranks::new(side, ranks, patience, signals))).collect();
                let operations = self.operations.iter().filter_map(|name| Collective::named(name));
                plan.cases.extend(operations.map(|operation| {
                    let sizes = sizes(operation, self.max_bytes, ranks);
                    Case {
                        name: format!("{}, {}", operation.name(), count(ranks, "rank")),
                        quantities: sizes.iter().map(|bytes| quantity(operation, *bytes, ranks)).collect(),
                        labels: rank_labels(ranks, cores),
                        sides: jobs.iter().map(|job| side(Rc::clone(job), operation, &sizes)).collect(),
                    }
                }));
            }
            Ok(plan)
        })
    }
}

/// A side's name and its ranks' program.
type Program = (&'static str, Vec<OsString>);

fn programs(frame: &Frame) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    let own = ("lockstep", vec![program_beside(PROGRAM)?.into()]);
    let theirs = |python: Python| Ok(("python", vec![python.program.into(), "-c".into(), TWIN.into()]));
    frame.sides("Python's collectives", own, theirs)
}

/// The sizes of a collective, each once, in ascending order.
fn sizes(operation: Collective, most: u64, ranks: usize) -> Vec<u64> {
    let asked = std::iter::successors(Some(LEAST), |bytes| Some(bytes * FACTOR)).take_while(|bytes| *bytes <= most);
    let mut sizes: Vec<u64> = asked.map(|bytes| operation.size(bytes, ranks)).collect();
    sizes.dedup();
    sizes
}

fn quantity(operation: Collective, bytes: u64, ranks: usize) -> Quantity {
    let name = if bytes == 0 { "no bytes".to_owned() } else { Unit::Bytes.show(bytes as f64) };
    Quantity { name, unit: Unit::Seconds, moved: (bytes > 0).then(|| (bytes, operation.bus_factor(ranks))) }
}

/// What the ranks are asked, and what they answer: see `crates/bench-ranks`.
#[derive(Serialize)]
struct Order<'a> {
    operation: &'static str,
    bytes: &'a [u64],
}

#[derive(Deserialize)]
struct Answer {
    seconds: Vec<f64>,
    wrong: Vec<u64>,
}

/// The ranks of one side, which live through all rounds and serve all operations.
struct Ranks<'a> {
    name: &'static str,
    program: Vec<OsString>,
    shape: Shape,
    patience: Duration,
    signals: &'a Signals,
    job: RefCell<Option<Job<'a>>>,
}

impl<'a> Ranks<'a> {
    fn new((name, program): &Program, ranks: usize, patience: Duration, signals: &'a Signals) -> Self {
        let shape = Shape { ranks, agents: 1 };
        Ranks { name, program: program.clone(), shape, patience, signals, job: RefCell::new(None) }
    }

    /// Seconds for each size; all results were right.
    fn measure(&self, operation: Collective, sizes: &[u64]) -> anyhow::Result<Vec<f64>> {
        let mut running = self.job.borrow_mut();
        let job = match &mut *running {
            Some(job) => job,
            none => none.insert(self.start()?),
        };
        let order = Order { operation: operation.name(), bytes: sizes };
        let line = job.ask(&serde_json::to_string(&order)?)?;
        let answer: Answer = serde_json::from_str(&line).with_context(|| format!("rank 0 answered {line:?}"))?;
        answer.checked(sizes)
    }

    fn start(&self) -> anyhow::Result<Job<'a>> {
        let mut job = Job::start(&Launcher::own(), &self.program, self.shape, 0, self.patience, self.signals)?;
        job.until_up(0)?;
        Ok(job)
    }
}

impl Answer {
    /// The seconds, if all is there and right.
    fn checked(self, sizes: &[u64]) -> anyhow::Result<Vec<f64>> {
        ensure!(self.seconds.len() == sizes.len() && self.wrong.len() == sizes.len(), "rank 0 left sizes out");
        let wrong = self.wrong.iter().zip(sizes).find(|(wrong, _)| **wrong > 0);
        ensure!(
            wrong.is_none(),
            "wrong results: {} elements of {} bytes",
            wrong.map_or(0, |wrong| *wrong.0),
            wrong.map_or(0, |wrong| *wrong.1)
        );
        Ok(self.seconds)
    }
}

fn side<'a>(ranks: Rc<Ranks<'a>>, operation: Collective, sizes: &[u64]) -> Contestant<'a> {
    let sizes = sizes.to_vec();
    Contestant { name: ranks.name, turn: Box::new(move || ranks.measure(operation, &sizes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_four_and_none_is_there_twice() {
        assert_eq!(sizes(Collective::AllReduce, 64, 3), [4, 16, 64]);
        assert_eq!(sizes(Collective::AllGather, 64, 3), [12, 24, 72]);
        assert_eq!(sizes(Collective::AllGather, 16, 8), [32]);
        assert_eq!(sizes(Collective::Barrier, 1 << 20, 2), [0]);
    }

    #[test]
    fn wrong_results_are_no_results() {
        let answer = |wrong: &[u64]| Answer { seconds: vec![1e-3, 2e-3], wrong: wrong.into() };
        assert_eq!(answer(&[0, 0]).checked(&[4, 16]).unwrap(), [1e-3, 2e-3]);
        let error = answer(&[0, 3]).checked(&[4, 16]).unwrap_err().to_string();
        assert_eq!(error, "wrong results: 3 elements of 16 bytes");
        assert!(answer(&[0]).checked(&[4, 16]).is_err());
    }
}

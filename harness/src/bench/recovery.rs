//! `lockstep bench recovery`: a worker of a running job is killed; how long until the others are stopped, and until all run again.

use std::time::Duration;

use clap::Args;
use lockstep_process::Signals;

use super::frame::Frame;
use super::job::Job;
use super::launch::launchers;
use super::launcher::{Launcher, Shape, idle_rank};
use super::machine::rank_labels;
use super::results::Unit;
use super::rounds::{Case, Contestant, Plan, Quantity};
use crate::exit::Code;
use crate::report::HostInfo;

fn quantities() -> Vec<Quantity> {
    vec![Quantity::new("all ranks up again", Unit::Seconds), Quantity::new("survivors stopped", Unit::Seconds)]
}

/// Kills a rank of a running job, and shows how long it takes until all ranks run again
#[derive(Args)]
pub(crate) struct Options {
    /// Ranks of a job: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 8], value_parser = clap::value_parser!(u16).range(2..=4096))]
    ranks: Vec<u16>,
    #[command(flatten)]
    frame: Frame,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let cores = HostInfo::here().cores;
        let (kills, patience) = (self.frame.all_rounds(), self.frame.patience());
        self.frame.exec("recovery", |signals| {
            let (launchers, not_measured) = launchers(&self.frame)?;
            let case = |ranks: &u16| {
                let shape = Shape { ranks: usize::from(*ranks), agents: 1 };
                let sides = launchers.iter().map(|launcher| side(launcher.clone(), shape, kills, patience, signals));
                Case {
                    name: shape.to_string(),
                    quantities: quantities(),
                    labels: rank_labels(shape.ranks, cores),
                    sides: sides.collect(),
                }
            };
            Ok(Plan { cases: self.ranks.iter().map(case).collect(), not_measured })
        })
    }
}

/// One job lives through all rounds; in each turn, its last rank is killed.
fn side<'a>(
    launcher: Launcher,
    shape: Shape,
    kills: usize,
    patience: Duration,
    signals: &'a Signals,
) -> Contestant<'a> {
    let name = launcher.name;
    let mut running: Option<Job<'a>> = None;
    let turn = move || {
        let job = match &mut running {
            Some(job) => job,
            none => none.insert(Job::start(&launcher, &idle_rank(), shape, kills, patience, signals)?),
        };
        job.until_up(0)?;
        let before = job.restart();
        let killed = job.kill(shape.ranks - 1)?;
        job.until_gone(before)?;
        let stopped = killed.elapsed();
        job.until_up(before + 1)?;
        Ok(vec![killed.elapsed().as_secs_f64(), stopped.as_secs_f64()])
    };
    Contestant { name, turn: Box::new(turn) }
}

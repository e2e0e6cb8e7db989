//! `lockstep measure launch`: how long a launcher takes to start a job of ranks that do nothing, and to end it; and what its agents
//! take in memory meanwhile.

use std::time::Instant;

use clap::Args;
use lockstep_process::Signals;

use crate::connection::Mark;
use crate::exit::{Code, Refused};
use crate::job::BenchJob;
use crate::launcher::{Launcher, Shape, idle_rank};
use crate::machine::rank_labels;
use crate::report::HostInfo;
use crate::results::Unit;
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// A turn starts a job and ends it when all ranks are there. So `no-op job` is the time in which a launcher starts
/// and ends a job whose ranks do nothing, without the time for reading the agents' memory.
fn launch_quantities() -> Vec<Quantity> {
    vec![
        Quantity::new("no-op job", Unit::Seconds),
        Quantity::new("all ranks up", Unit::Seconds),
        Quantity::new("memory of an agent", Unit::Bytes),
    ]
}

/// Start and end jobs whose ranks only connect to the job's store; show times and the agents' memory
#[derive(Args)]
pub(crate) struct LaunchOptions {
    /// Ranks of a job: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 8], value_parser = clap::value_parser!(u16).range(1..=4096))]
    ranks: Vec<u16>,
    /// Agents that share the ranks evenly: a list; all on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u16).range(1..=256))]
    agents: Vec<u16>,
    #[command(flatten)]
    common: CommonOptions,
}

impl LaunchOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let shapes = shapes(&self.ranks, &self.agents)?;
        let patience = self.common.patience();
        let cores = HostInfo::here().cores;
        self.common.exec("launch", |signals| {
            let (launchers, not_measured) = launchers(&self.common)?;
            let case = |shape: Shape| BenchCase {
                name: shape.to_string(),
                quantities: launch_quantities(),
                labels: rank_labels(shape.ranks, cores),
                sides: launchers.iter().map(|launcher| side(launcher.clone(), shape, patience, signals)).collect(),
            };
            Ok(Plan { cases: shapes.iter().copied().map(case).collect(), not_measured })
        })
    }
}

/// Ours and the peers that were asked for; and which of those are missing.
pub(crate) fn launchers(common: &CommonOptions) -> anyhow::Result<(Vec<Launcher>, Vec<String>)> {
    common.sides("torchrun", vec![Launcher::own()], |python| Ok(vec![Launcher::torchrun(&python)]))
}

/// Every number of agents with every number of ranks.
fn shapes(ranks: &[u16], agents: &[u16]) -> Result<Vec<Shape>, Refused> {
    let all = agents.iter().flat_map(|agents| ranks.iter().map(|ranks| (usize::from(*ranks), usize::from(*agents))));
    all.map(|(ranks, agents)| Shape::of(ranks, agents)).collect()
}

fn side<'a>(launcher: Launcher, shape: Shape, patience: std::time::Duration, signals: &'a Signals) -> CaseSide<'a> {
    let name = launcher.name;
    let turn = move || {
        let begun = Instant::now();
        let mut job = BenchJob::new(&launcher, &idle_rank(), shape, 0, patience, signals)?.started()?;
        job.until_up(Mark::START)?;
        let up = begun.elapsed();
        let memory = job.memory();
        let ending = Instant::now();
        job.finish()?;
        Ok(vec![(up + ending.elapsed()).as_secs_f64(), up.as_secs_f64(), memory])
    };
    CaseSide { name, turn: Box::new(turn) }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn combines_ranks_and_agents_and_refuses_what_does_not_divide() {
        let shape = |ranks, agents| Shape { ranks, agents };
        let found = shapes(&[2, 8], &[1, 2]).unwrap();
        assert_eq!(found, [shape(2, 1), shape(8, 1), shape(2, 2), shape(8, 2)]);
        let error = shapes(&[2], &[16]).unwrap_err().to_string();
        assert_eq!(error, "16 agents cannot share 2 ranks evenly: choose multiples for --ranks");
    }
}

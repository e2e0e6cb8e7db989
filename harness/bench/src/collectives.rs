//! `lockstep bench collectives`: every collective over Gloo, shared memory or NCCL, by size and number of ranks, as nccl-tests reports
//! it: time, algorithm and bus bandwidth, and results that were checked. The α–β model is fitted through the times.

use std::rc::Rc;

use anyhow::ensure;
use clap::Args;
use clap::builder::PossibleValuesParser;
use lockstep_cost::Collective;
use lockstep_rank_messages::bench::{CollectiveAnswer, CollectiveOrder, Order};

use crate::exit::Code;
use crate::machine::rank_labels;
use crate::ranks::{DeviceAndBackends, Program, Ranks};
use crate::report::{HostInfo, count};
use crate::results::Unit;
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// The least size in bytes, one element, and the factor from a size to the next.
const LEAST: u64 = 4;
const FACTOR: u64 = 4;

/// Measure collectives as nccl-tests does, and fit the α–β model
#[derive(Args)]
pub(crate) struct CollectivesOptions {
    /// Collectives: a list
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "all_reduce,all_reduce_bucket,broadcast,reduce,all_gather,gather,scatter,reduce_scatter,all_to_all,send_recv,barrier",
        value_parser = PossibleValuesParser::new(Collective::ALL.map(Collective::name)), hide_possible_values = true)]
    operations: Vec<String>,
    /// Ranks: a list; each is a process of one thread on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [2, 4], value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: Vec<u16>,
    /// The largest size in bytes; the others are 4 B, 16 B, 64 B, … up to it
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u64).range(4..=1 << 28))]
    max_bytes: u64,
    #[command(flatten)]
    on: DeviceAndBackends,
    #[command(flatten)]
    common: CommonOptions,
}

impl CollectivesOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (cores, patience) = (HostInfo::here().cores, self.common.patience());
        self.common.exec("collectives", |signals| {
            let (programs, not_measured) = programs(&self.on, &self.common)?;
            let mut plan = Plan { cases: vec![], not_measured };
            for &ranks in &self.ranks {
                let ranks = usize::from(ranks);
                let jobs = Ranks::of_each(&programs, ranks, patience, signals);
                let operations = self.operations.iter().filter_map(|name| Collective::named(name));
                plan.cases.extend(operations.map(|operation| {
                    let sizes = sizes(operation, self.max_bytes, ranks);
                    BenchCase {
                        name: format!("{}, {}{}", operation.name(), count(ranks, "rank"), self.on.suffix()),
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

fn programs(on: &DeviceAndBackends, common: &CommonOptions) -> anyhow::Result<(Vec<Program>, Vec<String>)> {
    on.sides(common, "Python's collectives", |python| Ok(vec![Program::in_python("python", &python, &[])]))
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
    Quantity { moved: (bytes > 0).then(|| (bytes, operation.bus_factor(ranks))), ..Quantity::new(&name, Unit::Seconds) }
}

/// The seconds, if all is there and right.
fn checked(answer: CollectiveAnswer, sizes: &[u64]) -> anyhow::Result<Vec<f64>> {
    ensure!(answer.seconds.len() == sizes.len() && answer.wrong.len() == sizes.len(), "rank 0 left sizes out");
    let wrong = answer.wrong.iter().zip(sizes).find(|(wrong, _)| **wrong > 0);
    ensure!(
        wrong.is_none(),
        "wrong results: {} elements of {} bytes",
        wrong.map_or(0, |wrong| *wrong.0),
        wrong.map_or(0, |wrong| *wrong.1)
    );
    Ok(answer.seconds)
}

fn side<'a>(ranks: Rc<Ranks<'a>>, operation: Collective, sizes: &[u64]) -> CaseSide<'a> {
    let (name, sizes) = (ranks.name, sizes.to_vec());
    let order = Order::Collective(CollectiveOrder { operation: operation.name().to_owned(), bytes: sizes.clone() });
    let turn = move || checked(ranks.ask(&order)?, &sizes);
    CaseSide { name, turn: Box::new(turn) }
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
        let answer = |wrong: &[u64]| CollectiveAnswer { seconds: vec![1e-3, 2e-3], wrong: wrong.into() };
        assert_eq!(checked(answer(&[0, 0]), &[4, 16]).unwrap(), [1e-3, 2e-3]);
        let error = checked(answer(&[0, 3]), &[4, 16]).unwrap_err().to_string();
        assert_eq!(error, "wrong results: 3 elements of 16 bytes");
        assert!(checked(answer(&[0]), &[4, 16]).is_err());
    }
}

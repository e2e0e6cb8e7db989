//! `lockstep bench elastic`: small trainings with virtual ranks, on several numbers of ranks and over each transport; a table shows where they
//! end with the same bits.
//!
//! Each number of ranks has a job, which takes one training after the other. A last column has a training that goes from number to number
//! between two steps, by snapshots. The first row is a control: without virtual ranks the bits do differ, so the comparison can see it.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use lockstep_paths::temporary_folder;
use lockstep_process::Signals;
use lockstep_rank_messages::bench::{
    ElasticAnswer, ElasticModel, ElasticOrder, ElasticTraining, Float, Order, Updates,
};

use crate::exit::{Code, Refused};
use crate::ranks::{Backend, Program, Ranks};
use crate::report::{HostInfo, Screen, Table, count, numbers_table, wrapped};

/// Train with virtual ranks on several numbers of ranks, over each transport, and show where the weights have the same bits
#[derive(Args)]
pub(crate) struct ElasticOptions {
    /// Numbers of virtual ranks: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [4, 6], value_parser = clap::value_parser!(u16).range(1..=64))]
    virtual_ranks: Vec<u16>,
    /// Numbers of ranks: a list; each rank is a process of one thread on this machine
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [1, 2, 3, 4], value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: Vec<u16>,
    /// Time limit of each wait for the ranks, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

/// What carries the gradients.
#[derive(Clone, Copy)]
struct Transport {
    title: &'static str,
    backend: Backend,
    /// Simulated hosts.
    hosts: usize,
    /// The name of what the ranks then choose.
    chosen: &'static str,
}

const TRANSPORTS: [Transport; 3] = [
    Transport { title: "over shared memory", backend: Backend::Shm, hosts: 1, chosen: "shm" },
    Transport { title: "over Gloo", backend: Backend::Gloo, hosts: 1, chosen: "gloo" },
    Transport {
        title: "over two levels: two simulated hosts, shared memory on each, Gloo between them",
        backend: Backend::Auto,
        hosts: 2,
        chosen: "shm+gloo",
    },
];

impl Transport {
    /// Two levels need a host with several ranks, next to another.
    fn takes(self, ranks: usize) -> bool {
        ranks > self.hosts || self.hosts == 1
    }
}

/// A training, by what it shows.
fn trainings() -> Vec<(&'static str, ElasticTraining)> {
    use ElasticModel::{Gpt, Mlp, Resnet};
    let of = ElasticTraining::of;
    vec![
        ("MLP, dropout, SGD with momentum", of(Mlp)),
        ("ResNet-18, batch norm, mirrored", of(Resnet)),
        ("GPT, dropout, AdamW", ElasticTraining { updates: Updates::AdamW, ..of(Gpt) }),
        ("MLP, AdamW, divided states", ElasticTraining { updates: Updates::Zero, ..of(Mlp) }),
        ("GPT, 2 micro-batches", ElasticTraining { micro_batches: 2, ..of(Gpt) }),
        ("MLP, clipped gradients", ElasticTraining { clip: Some(0.5), ..of(Mlp) }),
        ("MLP, float16, scaled loss", ElasticTraining { float: Float::Float16, ..of(Mlp) }),
        ("GPT, bfloat16", ElasticTraining { float: Float::Bfloat16, ..of(Gpt) }),
    ]
}

/// What a training ended with: the hash of its weights, and all losses.
type Bits = (u64, Vec<u64>);

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    training: &'static str,
    virtual_ranks: Option<usize>,
    /// Whether each number of ranks has the expected bits, and last, with virtual ranks, one that changes.
    equal: Vec<bool>,
}

impl Row {
    /// A training without virtual ranks has other bits on another number of ranks; the first is what the others are compared with.
    fn is_as_promised(&self) -> bool {
        match self.virtual_ranks {
            Some(_) => self.equal.iter().all(|equal| *equal),
            None => !self.equal.iter().skip(1).any(|equal| *equal),
        }
    }

    fn cells(&self, columns: usize) -> Vec<String> {
        let count = self.virtual_ranks.map_or_else(|| "–".to_owned(), |count| count.to_string());
        let words = self.equal.iter().map(|equal| if *equal { "yes" } else { "no" }.to_owned());
        let cells = [self.training.to_owned(), count].into_iter().chain(words).chain(std::iter::repeat("–".to_owned()));
        cells.take(columns).collect()
    }
}

impl ElasticOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let ranks: Vec<usize> = self.ranks.iter().copied().map(usize::from).collect();
        let counts: Vec<usize> = self.virtual_ranks.iter().copied().map(usize::from).collect();
        check(&ranks, &counts)?;
        let (screen, begun) = (Screen::new(false), Instant::now());
        let signals = Signals::listen().context("cannot listen for signals")?;
        let folder = tempfile::tempdir_in(temporary_folder()).context("cannot make a folder for snapshots")?;
        screen.line(HostInfo::here().summary());
        let mut rows = vec![(
            "control: MLP, plain DDP",
            ElasticTraining { virtual_ranks: None, ..ElasticTraining::of(ElasticModel::Mlp) },
        )];
        for (name, training) in trainings() {
            rows.extend(counts.iter().map(|count| (name, ElasticTraining { virtual_ranks: Some(*count), ..training })));
        }
        // Of each row, what its first run ended with, over whatever transport.
        let mut expected: Vec<Option<Bits>> = vec![None; rows.len()];
        // One for each change of the number of ranks, and one more.
        let (mut as_promised, steps) = (true, schedule(&ranks).len() + 1);
        for transport in TRANSPORTS {
            let ranks: Vec<usize> = ranks.iter().copied().filter(|ranks| transport.takes(*ranks)).collect();
            if ranks.is_empty() {
                screen.line(format!("\n{}\nnot for so few ranks", transport.title));
                continue;
            }
            let jobs = Jobs::new(transport, &ranks, Duration::from_secs(self.timeout), &signals)?;
            let mut table = Vec::new();
            for (at, ((name, training), expected)) in rows.iter().zip(&mut expected).enumerate() {
                let runs = jobs.train(training, &folder.path().join(format!("{}-{at}", transport.chosen)), steps)?;
                let is_expected = |bits: Bits| *expected.get_or_insert_with(|| bits.clone()) == bits;
                let equal = runs.into_iter().map(is_expected).collect();
                table.push(Row { training: name, virtual_ranks: training.virtual_ranks, equal });
            }
            as_promised &= table.iter().all(Row::is_as_promised);
            let table = shown(transport.title, &ranks, &table);
            screen.line(format!("\n{}\n{}", table.title, numbers_table(&table, screen.style())));
        }
        let words = format!(
            "V virtual ranks on W ranks: equal bits of all weights, buffers, losses and the evaluation after {}, compared with {} over shared \
             memory; in the last column W changes between two steps; {:.0} s",
            count(steps, "step"),
            count(ranks[0], "rank"),
            begun.elapsed().as_secs_f64()
        );
        screen.line(wrapped(&words, screen.style().width));
        if !as_promised {
            screen.line(
                "A training with virtual ranks has other bits somewhere, or the control has not: see the tables.",
            );
        }
        Ok(if as_promised { Code::Success } else { Code::Failure })
    }
}

/// # Errors
/// More ranks than virtual ones.
fn check(ranks: &[usize], counts: &[usize]) -> Result<(), Refused> {
    let (most, fewest) = (ranks.iter().max().copied().unwrap_or(0), counts.iter().min().copied().unwrap_or(0));
    if most > fewest {
        let why = format!(
            "{most} ranks cannot share {fewest} virtual ranks: some would have nothing to do; leave out one of the two numbers"
        );
        return Err(Refused(why));
    }
    Ok(())
}

/// What a training goes through, of items by number of ranks: from the last to the first, and back to the last.
fn schedule<T: Clone>(ranks: &[T]) -> Vec<T> {
    ranks.iter().rev().chain(ranks.last().filter(|_| ranks.len() > 1)).cloned().collect()
}

/// The jobs over one transport, each with its number of ranks.
struct Jobs<'a> {
    transport: Transport,
    jobs: Vec<(usize, Rc<Ranks<'a>>)>,
}

impl<'a> Jobs<'a> {
    fn new(transport: Transport, ranks: &[usize], patience: Duration, signals: &'a Signals) -> anyhow::Result<Self> {
        let program = Program::on_hosts(transport.backend, transport.hosts)?;
        let job = |ranks: &usize| (*ranks, Ranks::new(&program, *ranks, patience, signals));
        Ok(Jobs { transport, jobs: ranks.iter().map(job).collect() })
    }

    /// What the training ends with after `steps` on each number of ranks, and last, with virtual ranks, with a number that changes.
    fn train(&self, training: &ElasticTraining, folder: &Path, steps: usize) -> anyhow::Result<Vec<Bits>> {
        let run = |(ranks, job): &(usize, Rc<Ranks<'a>>)| {
            let answer = self.ask(job, training, &folder.join(ranks.to_string()), steps)?;
            Ok((answer.bits, answer.losses))
        };
        let mut runs: Vec<Bits> = self.jobs.iter().map(run).collect::<anyhow::Result<_>>()?;
        if training.virtual_ranks.is_some() {
            let (mut losses, mut bits, schedule) = (Vec::new(), 0, schedule(&self.jobs));
            for (done, (_, job)) in (1..).zip(&schedule) {
                let until = if done == schedule.len() { steps } else { done };
                let answer = self.ask(job, training, &folder.join("changing"), until)?;
                losses.extend(answer.losses);
                bits = answer.bits;
            }
            runs.push((bits, losses));
        }
        Ok(runs)
    }

    fn ask(
        &self,
        job: &Ranks<'a>,
        training: &ElasticTraining,
        folder: &Path,
        until: usize,
    ) -> anyhow::Result<ElasticAnswer> {
        let order = ElasticOrder { training: *training, folder: folder.to_owned(), until: u32::try_from(until)? };
        let answer: ElasticAnswer = job.ask(&Order::Elastic(order))?;
        let Transport { title, chosen, .. } = self.transport;
        ensure!(answer.backend == chosen, "ranks should exchange gradients {title}, and chose {}", answer.backend);
        Ok(answer)
    }
}

fn shown(title: &str, ranks: &[usize], rows: &[Row]) -> Table {
    let numbers: Vec<String> = schedule(ranks).iter().map(ToString::to_string).collect();
    let headings = ["training".to_owned(), "V".to_owned()].into_iter();
    let headings = headings.chain(ranks.iter().map(|ranks| format!("W={ranks}")));
    let headings: Vec<String> = headings.chain([format!("W={}", numbers.join(","))]).collect();
    let rows = rows.iter().map(|row| row.cells(headings.len())).collect();
    Table { title: title.to_owned(), headings, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_ranks_promise_equal_bits_and_plain_ddp_other_ones() {
        let row = |virtual_ranks, equal: &[bool]| Row { training: "x", virtual_ranks, equal: equal.to_vec() };
        assert!(row(Some(4), &[true, true, true]).is_as_promised());
        assert!(!row(Some(4), &[true, true, false]).is_as_promised());
        assert!(row(None, &[true, false]).is_as_promised());
        assert!(!row(None, &[true, true]).is_as_promised());
        assert_eq!(row(Some(4), &[true, false, true]).cells(5), ["x", "4", "yes", "no", "yes"]);
        assert_eq!(row(None, &[true, false]).cells(5), ["x", "–", "yes", "no", "–"]);
    }

    #[test]
    fn a_training_goes_down_and_up_again() {
        assert_eq!(schedule(&[1, 2, 3, 4]), [4, 3, 2, 1, 4]);
        assert_eq!(schedule(&[2]), [2]);
    }

    #[test]
    fn refuses_more_ranks_than_virtual_ones() {
        assert!(check(&[1, 4], &[4, 6]).is_ok());
        let error = check(&[1, 5], &[4, 6]).unwrap_err().to_string();
        assert!(error.starts_with("5 ranks cannot share 4 virtual ranks"), "{error}");
    }

    #[test]
    fn two_levels_need_a_host_of_two_ranks() {
        let [memory, _, levels] = TRANSPORTS;
        assert!(memory.takes(1) && !levels.takes(2) && levels.takes(3));
    }
}

//! Grades `slow_ranks`: counters of runs with each cause, on several ranks. Most are drawn; the last three are those that real runs of the
//! lab have printed.

use anyhow::Context;
use lockstep_grading::{Claim, Inputs, Runner, table};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize)]
struct Counters {
    steps: u64,
    buckets: u64,
    calls: u64,
    data_ms: f64,
    compute_ms: f64,
    exchange_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Cause {
    Logging,
    Loader,
    Straggler,
}

/// The cause, and the rank.
type Found = (Cause, Option<usize>);

/// A run, in times of a step's usual computing.
struct Kind {
    cause: Cause,
    /// What the rank to blame takes longer for a step, from and to.
    longer: (f64, f64),
    /// What a step's exchange takes without waiting for a rank, from and to.
    exchange: (f64, f64),
}

/// A rank so slow that all others together wait for longer than all compute, as if the network were to blame.
const FAR: (f64, f64) = (3.0, 4.0);
/// A rank that still spends most of its time with computing, whatever it is to blame for.
const NEAR: (f64, f64) = (0.4, 0.7);
const FAST: (f64, f64) = (0.1, 0.2);
/// An exchange with more calls is longer than computing.
const LOGS: (f64, f64) = (1.2, 1.6);
/// On a slow network it is longer still, by any measure, with no more calls.
const SLOW: (f64, f64) = (4.0, 5.0);

const RUNS: [Kind; 6] = [
    Kind { cause: Cause::Straggler, longer: FAR, exchange: FAST },
    Kind { cause: Cause::Loader, longer: FAR, exchange: FAST },
    Kind { cause: Cause::Logging, longer: (0.0, 0.0), exchange: LOGS },
    Kind { cause: Cause::Loader, longer: NEAR, exchange: FAST },
    Kind { cause: Cause::Straggler, longer: NEAR, exchange: SLOW },
    Kind { cause: Cause::Straggler, longer: FAR, exchange: FAST },
];

/// What the lab has printed on four ranks, the last of them slow: `scripts/record.py` runs it with each of its flags.
const RECORDED: [(Cause, &str); 3] = [
    (Cause::Logging, include_str!("../../../../book/src/recorded/lab-11-log.txt")),
    (Cause::Loader, include_str!("../../../../book/src/recorded/lab-11-loader.txt")),
    (Cause::Straggler, include_str!("../../../../book/src/recorded/lab-11-straggler.txt")),
];

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut cases = Vec::new();
    for kind in RUNS {
        let ranks = random.below(4..7);
        let rank = (kind.cause != Cause::Logging).then(|| random.below(0..ranks));
        cases.push((draw(&mut random, ranks, &kind, rank), kind, rank));
    }
    for (cause, text) in RECORDED {
        let mut counters = recorded(text).context("a recording of the lab has no counters of its ranks")?;
        let ranks = counters.len();
        let first = random.below(0..ranks);
        counters.rotate_left(first); // any rank may be the slow one
        let rank = (cause != Cause::Logging).then_some(ranks - 1 - first);
        cases.push((counters, Kind { cause, longer: FAR, exchange: FAST }, rank));
    }
    let inputs: Vec<&Vec<Counters>> = cases.iter().map(|(counters, ..)| counters).collect();
    let outputs = runner.call::<_, Found>(1, &inputs)?;
    cases
        .iter()
        .enumerate()
        .try_for_each(|(number, (counters, kind, rank))| check(counters, kind, *rank, *outputs.of(0, number)))
}

/// All ranks take as long for a step: those that have less to do wait.
fn draw(random: &mut Inputs, ranks: usize, kind: &Kind, blamed: Option<usize>) -> Vec<Counters> {
    let steps = 10 * random.below(10..60) as u64;
    let buckets = random.below(2..6) as u64;
    let a_step = random.below(20..60) as f64;
    let mut part = |(from, to): (f64, f64)| from + (to - from) * random.below(0..1001) as f64 / 1000.0;
    let own: Vec<(f64, f64)> = (0..ranks)
        .map(|rank| {
            let longer = if blamed == Some(rank) { part(kind.longer) } else { 0.0 };
            let of = |cause: Cause| if kind.cause == cause { longer } else { 0.0 };
            let (data, compute) = (part((0.02, 0.08)), part((0.95, 1.05)));
            (a_step * (data + of(Cause::Loader)), a_step * (compute + of(Cause::Straggler)))
        })
        .collect();
    let longest = own.iter().map(|(data, compute)| data + compute).fold(0.0, f64::max);
    let more_calls = if kind.cause == Cause::Logging { 2 } else { 0 };
    let exchange = a_step * part(kind.exchange);
    let counters = own.into_iter().map(|(data, compute)| Counters {
        steps,
        buckets,
        calls: steps * (buckets + more_calls),
        data_ms: steps as f64 * data,
        compute_ms: steps as f64 * compute,
        exchange_ms: steps as f64 * (exchange + longest - data - compute),
    });
    counters.collect()
}

/// The counters of all ranks in what the lab has printed.
fn recorded(text: &str) -> Option<Vec<Counters>> {
    let (_, steps) = text.split_once("counted over ")?;
    let steps: u64 = steps.split(' ').next()?.parse().ok()?;
    let of = |rank: usize| {
        let (_, line) = text.split_once(&format!("[rank {rank}] a step: "))?;
        let numbers = line.lines().next()?.split(' ').filter_map(|word| word.parse().ok());
        let [buckets, calls, data, compute, exchange] = *numbers.collect::<Vec<f64>>() else { return None };
        let all = |a_step: f64| steps as f64 * a_step;
        Some(Counters {
            steps,
            buckets: buckets as u64,
            calls: all(calls) as u64,
            data_ms: all(data),
            compute_ms: all(compute),
            exchange_ms: all(exchange),
        })
    };
    let ranks: Vec<Counters> = (0..).map_while(of).collect();
    (ranks.len() > 1).then_some(ranks)
}

fn check(counters: &[Counters], kind: &Kind, rank: Option<usize>, found: Found) -> anyhow::Result<()> {
    let right = (kind.cause, rank);
    let exchange = |rank: usize| counters.get(rank).map_or(0.0, |of| of.exchange_ms);
    let longest = (0..counters.len()).max_by(|a, b| exchange(*a).total_cmp(&exchange(*b)));
    let own = |of: &Counters| of.data_ms + of.compute_ms;
    let usual = counters.iter().map(own).fold(f64::INFINITY, f64::min);
    let Counters { steps, buckets, calls, .. } = &counters[0];
    let calls = format!("{calls} calls in {steps} steps of {buckets} buckets");
    // The right answer stays with the learner, unless it follows from the reason.
    Claim::that(found == right, "another cause or rank", described(found))
        .given(listed(counters))
        .diagnose_if(
            right.0 == Cause::Logging && found.0 != Cause::Logging,
            format!("{calls}, on every rank: more than gradients is exchanged in each step, and all ranks stop for it"),
        )
        .diagnose_if(
            right.0 == Cause::Logging,
            "every rank makes the same calls, so the cause is the program, not a single rank",
        )
        .diagnose_if(
            found.0 == Cause::Logging && kind.exchange == SLOW,
            format!(
                "{calls} are no more than gradients need, so nothing else is exchanged: the exchange is long on all ranks because the \
                 network is slow"
            ),
        )
        .diagnose_if(
            found.0 == Cause::Logging,
            format!(
                "{calls} are no more than gradients need, so nothing else is exchanged: where the exchange is long, ranks wait in it for a \
                 slow one"
            ),
        )
        .diagnose_if(
            found.1.is_none(),
            "only a program that exchanges too much makes all ranks slow: with a slow loader or a straggler, name the rank",
        )
        .diagnose_if(
            found.1.is_some_and(|rank| rank >= counters.len()),
            format!("there is no such rank: the run has {} ranks, numbered from 0", counters.len()),
        )
        .diagnose_if(
            found.1 == longest,
            "this rank waits for longest in the exchange, because it comes there first: the rank that all wait for hardly waits itself",
        )
        .diagnose_if(
            found.1 == right.1 && right.0 == Cause::Loader,
            "the rank is right, but it does not compute for longer than others: it waits for data",
        )
        .diagnose_if(
            found.1 == right.1,
            "the rank is right, but its data comes as fast as that of others: it computes for longer",
        )
        .or_fail(format!(
            "this rank takes {:.0} ms for its data and its computing together, and the fastest rank {usual:.0} ms: another rank takes much \
             longer, and it is the one that waits least",
            found.1.and_then(|rank| counters.get(rank)).map_or(0.0, own)
        ))
}

fn described((cause, rank): Found) -> String {
    let rank = rank.map_or_else(|| "no rank".to_owned(), |rank| format!("rank {rank}"));
    format!("{cause:?}, {rank}")
}

fn listed(counters: &[Counters]) -> String {
    let row = |(rank, of): (usize, &Counters)| {
        let [data, compute, exchange] = [of.data_ms, of.compute_ms, of.exchange_ms].map(|ms| format!("{ms:.0}"));
        [rank.to_string(), of.steps.to_string(), of.buckets.to_string(), of.calls.to_string(), data, compute, exchange]
    };
    let rows: Vec<_> = counters.iter().enumerate().map(row).collect();
    table(["rank", "steps", "buckets", "calls", "data_ms", "compute_ms", "exchange_ms"], &rows)
}

//! Grades `bus_bandwidth`: all collectives, on 4 to 16 ranks.

use lockstep_grading::{Claim, Runner};
use serde::{Deserialize, Serialize};

/// Relative: only the order of operations differs.
const TOLERANCE: f64 = 1e-6;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Measured {
    collective: Collective,
    ranks: usize,
    count: u64,
    element: u64,
    seconds: f64,
}

#[derive(Deserialize)]
struct Bandwidth {
    algorithm: Option<f64>,
    bus: Option<f64>,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let collectives = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Broadcast];
    let cases: Vec<Measured> = collectives
        .into_iter()
        .map(|collective| {
            let count = 1 << random.below(20..26);
            let (ranks, element) = (random.below(4..17), 1 << random.below(1..4));
            Measured { collective, ranks, count, element, seconds: random.below(50..5000) as f64 * 1e-5 }
        })
        .collect();
    let outputs = runner.call::<_, Bandwidth>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number)))
}

fn check(case: &Measured, found: &Bandwidth) -> anyhow::Result<()> {
    let Measured { collective, ranks, count, element, seconds } = *case;
    let (n, one) = (ranks as f64, (count * element) as f64);
    let of_all = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
    let size = if of_all { n * one } else { one };
    let factor = match collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::Broadcast => 1.0,
        _ => (n - 1.0) / n,
    };
    let found = (found.algorithm.unwrap_or(f64::NAN), found.bus.unwrap_or(f64::NAN));
    let near = |found: f64, right: f64| (found / right - 1.0).abs() <= TOLERANCE;
    let is = |size: f64, factor: f64, unit: f64| {
        near(found.0, size / seconds / unit) && near(found.1, factor * size / seconds / unit)
    };
    let shown = |(algorithm, bus): (f64, f64)| format!("algorithm {algorithm:.3} GB/s, bus {bus:.3} GB/s");
    let right = size / seconds / 1e9;
    Claim::that(is(size, factor, 1e9), shown((right, right * factor)), shown(found))
        .given(format!("{collective:?} of {count} elements of {element} bytes in each rank's call, {ranks} ranks, {seconds:.5} s"))
        .diagnose_if(
            is(size, factor, f64::from(1 << 30)),
            "these are GiB, of 2³⁰ bytes: bandwidths of links are given in GB, of 10⁹ bytes",
        )
        .diagnose_if(
            is(n * one, factor, 1e9) && !of_all,
            "that is n times one rank's buffer: nccl-tests counts what all ranks have together for all-gather and reduce-scatter only",
        )
        .diagnose_if(
            is(one, factor, 1e9) && of_all,
            "the size is what all ranks have together, n times the count of one rank's call: all-gather counts what is sent, \
             reduce-scatter what is received",
        )
        .diagnose_if(
            is(size / element as f64, factor, 1e9),
            "these are elements a second: a bandwidth counts bytes, and `element` is how many each of the `count` elements has",
        )
        .diagnose_if(
            is(size, 1.0, 1e9),
            "both are the same: in an all-reduce over a ring each link carries 2 (n - 1) / n of the size, and bus bandwidth counts what a \
             link carries",
        )
        .diagnose_if(
            is(size, 2.0 * (n - 1.0) / n, 1e9),
            "that is the factor of all-reduce, which is a reduce-scatter and an all-gather: this operation is half of it, or a broadcast",
        )
        .diagnose_if(
            collective == Collective::Broadcast && is(size, (n - 1.0) / n, 1e9),
            "in a broadcast the root's whole buffer crosses a link, however many ranks there are: the factor is 1",
        )
        .diagnose_if(
            of_all && is(size, n - 1.0, 1e9),
            "the n parts were counted twice: the size is that of all parts together, and a link carries n - 1 of the n",
        )
        .or_fail("algorithm bandwidth is size divided by time; the factor of bus bandwidth is the part of the size that crosses a link")
}

//! Grades `bus_bandwidth`: all collectives, on 4 to 16 ranks.

use lockstep_grading::{Claim, Runner, causes};
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
    // Elements of all sizes, and other numbers of ranks each time: what suits one case by chance fails in another.
    let (ranks, element) = (random.below(0..13), random.below(0..3));
    let cases: Vec<Measured> = collectives
        .into_iter()
        .enumerate()
        .map(|(number, collective)| {
            let count = 1 << random.below(20..26);
            let (ranks, element) = (4 + (ranks + 3 * number) % 13, 2 << ((element + number) % 3));
            Measured { collective, ranks, count, element, seconds: random.below(50..5000) as f64 * 1e-5 }
        })
        .collect();
    let outputs = runner.call::<_, Bandwidth>(1, &cases)?;
    let number = |number: Option<f64>| number.unwrap_or(f64::NAN);
    let found =
        (0..cases.len()).map(|case| outputs.of(0, case)).map(|found| (number(found.algorithm), number(found.bus)));
    let all: Vec<(Measured, Found)> = cases.into_iter().zip(found).collect();
    all.iter().try_for_each(|(case, found)| check(case, *found, &all))
}

/// Algorithm bandwidth and bus bandwidth.
type Found = (f64, f64);
/// What a mistake makes of a line of the benchmark, and its name.
type Mistake = (fn(&Measured) -> Found, &'static str);

impl Measured {
    fn bytes(&self) -> f64 {
        (self.count * self.element) as f64
    }

    fn is_of_all(&self) -> bool {
        matches!(self.collective, Collective::ReduceScatter | Collective::AllGather)
    }

    /// Gigabytes a second.
    fn algorithm(&self) -> f64 {
        let size = if self.is_of_all() { self.ranks as f64 * self.bytes() } else { self.bytes() };
        size / self.seconds / 1e9
    }

    fn factor(&self) -> f64 {
        let n = self.ranks as f64;
        match self.collective {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::Broadcast => 1.0,
            _ => (n - 1.0) / n,
        }
    }

    /// The right bandwidths, with another factor.
    fn with(&self, factor: f64) -> Found {
        (self.algorithm(), self.algorithm() * factor)
    }

    /// The right bandwidths, times a number.
    fn times(&self, by: f64) -> Found {
        (self.algorithm() * by, self.algorithm() * self.factor() * by)
    }
}

const MISTAKES: [Mistake; 18] = [
    (
        |of| of.times(1e9 / f64::from(1 << 30)),
        "these are GiB, of 2³⁰ bytes: bandwidths of links are given in GB, of 10⁹ bytes",
    ),
    (|of| of.times(1e9), "these are bytes a second: divide by 10⁹"),
    (|of| of.times(8.0), "these are bits: a gigabyte has 10⁹ bytes"),
    (
        |of| of.times(if of.is_of_all() { 1.0 } else { of.ranks as f64 }),
        "that is n times one rank's buffer: nccl-tests counts what all ranks have together for all-gather and reduce-scatter only",
    ),
    (
        |of| of.times(if of.is_of_all() { 1.0 / of.ranks as f64 } else { 1.0 }),
        "the size is what all ranks have together, n times the count of one rank's call: all-gather counts what is sent, \
         reduce-scatter what is received",
    ),
    (
        |of| of.times(if of.collective == Collective::ReduceScatter { 1.0 / of.ranks as f64 } else { 1.0 }),
        "`count` is what each rank receives of a reduce-scatter: its size is that of all ranks together, as for all-gather",
    ),
    (
        |of| of.times(if of.collective == Collective::AllGather { 1.0 / of.ranks as f64 } else { 1.0 }),
        "`count` is what each rank sends in an all-gather: its size is that of all ranks together, as for reduce-scatter",
    ),
    (
        |of| of.times(1.0 / of.element as f64),
        "these are elements a second: a bandwidth counts bytes, and `element` is how many each of the `count` elements has",
    ),
    (
        |of| of.with(1.0),
        "both are the same: in an all-reduce over a ring each link carries 2 (n - 1) / n of the size, and bus bandwidth counts what a \
         link carries",
    ),
    (
        |of| (of.algorithm() * of.factor(), of.algorithm() * of.factor()),
        "both are bus bandwidths: algorithm bandwidth is the size divided by the time, without the factor",
    ),
    (|of| (of.algorithm() * of.factor(), of.algorithm()), "the two bandwidths are swapped: `bus` has the factor"),
    (
        |of| of.with(2.0 * (of.ranks as f64 - 1.0) / of.ranks as f64),
        "that is the factor of all-reduce, which is a reduce-scatter and an all-gather: this operation is half of it, or a broadcast",
    ),
    (
        |of| of.with(if of.collective == Collective::AllReduce { of.factor() / 2.0 } else { of.factor() }),
        "an all-reduce is a reduce-scatter and an all-gather: each link carries (n - 1) / n of the size twice",
    ),
    (
        |of| of.with(if of.collective == Collective::Broadcast { 1.0 - 1.0 / of.ranks as f64 } else { of.factor() }),
        "in a broadcast the root's whole buffer crosses a link, however many ranks there are: the factor is 1",
    ),
    (
        |of| of.with(if of.is_of_all() { of.factor() * of.ranks as f64 } else { of.factor() }),
        "the n parts were counted twice: the size is that of all parts together, and a link carries n - 1 of the n",
    ),
    (
        |of| of.with(if of.collective == Collective::Broadcast { 1.0 } else { of.factor() * of.ranks as f64 }),
        "the factor is not divided by n: of the n parts that the size has, a link carries n - 1",
    ),
    (|of| of.with(1.0 / of.factor()), "divided by the factor: a link carries that part of the size, so multiply"),
    (
        |of| of.with(of.factor().floor()),
        "the factor is a whole number: a division of integers drops the remainder. Convert `ranks` before you divide",
    ),
];

fn near(found: f64, right: f64) -> bool {
    (found - right).abs() <= TOLERANCE * right.abs()
}

/// `all` are all lines and what was found for them.
fn check(case: &Measured, found: Found, all: &[(Measured, Found)]) -> anyhow::Result<()> {
    let Measured { collective, ranks, count, element, seconds } = *case;
    let are = |one: Found, other: Found| near(one.0, other.0) && near(one.1, other.1);
    let right = case.with(case.factor());
    let shown = |(algorithm, bus): Found| format!("algorithm {algorithm:.3} GB/s, bus {bus:.3} GB/s");
    let claim = Claim::that(are(found, right), shown(right), shown(found)).given(format!(
        "{collective:?} of {count} elements of {element} bytes in each rank's call, {ranks} ranks, {seconds:.5} s"
    ));
    let causes = causes(&MISTAKES, |mistake| all.iter().all(|(of, found)| are(*found, mistake(of))));
    let factor = |(algorithm, bus): Found| bus / algorithm;
    claim
        .causes(&causes)
        .diagnose_if(
            near(found.0, right.0),
            format!(
                "algorithm bandwidth is right, and the factor of bus bandwidth is not: {:.3} in place of {:.3}. It is the part of the size that \
                 crosses a link",
                factor(found),
                case.factor()
            ),
        )
        .diagnose_if(
            near(factor(found), case.factor()),
            format!(
                "the factor of bus bandwidth is right, and algorithm bandwidth is {:.3} times what it should be: it is the size divided by the \
                 time",
                found.0 / right.0
            ),
        )
        .or_fail("algorithm bandwidth is size divided by time; the factor of bus bandwidth is the part of the size that crosses a link")
}

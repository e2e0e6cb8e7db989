//! What a rank's steps cost: time by part, and the calls and bytes that it has passed to its group.
//!
//! Calls and bytes are counted where the group passes them on to Gloo, so nothing is left out and nothing is estimated.

use std::time::{Duration, Instant};

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp, Traffic};
use lockstep::measure::{Repeats, Series, Sizes, Spread, Table, time};
use tch::{Device, Kind, Tensor};

/// Steps at the start whose times do not count: the first ones open connections and touch memory.
const WARM_UP: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Waiting for the loader.
    Data,
    Forward,
    /// With the exchange that DDP does meanwhile, and the wait for its end.
    Backward,
    /// A compressed exchange after the backward pass.
    Exchange,
    Optimizer,
}

const PARTS: [(Part, &str); 5] = [
    (Part::Data, "data"),
    (Part::Forward, "forward"),
    (Part::Backward, "backward"),
    (Part::Exchange, "exchange"),
    (Part::Optimizer, "optimizer"),
];

pub(crate) struct Costs<'a> {
    group: &'a ProcessGroup,
    steps: u64,
    samples: usize,
    parts: [Duration; PARTS.len()],
    /// Of each step that counts.
    whole: Vec<Duration>,
    traffic: Traffic,
    /// The start of the present step.
    begun: (Instant, Traffic),
}

impl<'a> Costs<'a> {
    pub(crate) fn new(group: &'a ProcessGroup) -> Self {
        let begun = (Instant::now(), Traffic::default());
        let (parts, whole, traffic) = Default::default();
        Costs { group, steps: 0, samples: 0, parts, whole, traffic, begun }
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    pub(crate) fn begin_step(&mut self) {
        self.begun = (Instant::now(), self.group.traffic().unwrap_or_default());
    }

    /// Ends a step of this many samples.
    pub(crate) fn end_step(&mut self, samples: usize) {
        let (begun, before) = self.begun;
        let step = self.group.traffic().unwrap_or_default() - before;
        self.traffic.calls += step.calls;
        self.traffic.bytes += step.bytes;
        self.steps += 1;
        if self.steps <= WARM_UP {
            self.parts = Default::default();
        } else {
            self.whole.push(begun.elapsed());
            self.samples += samples;
        }
    }

    /// Runs a part of a step and adds its time.
    pub(crate) fn time<T>(&mut self, part: Part, run: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = run();
        if let Device::Cuda(index) = self.group.device() {
            tch::Cuda::synchronize(index as i64);
        }
        self.parts[part as usize] += begun.elapsed();
        result
    }

    /// Milliseconds of a part in a step.
    fn of(&self, part: Part) -> f64 {
        self.a_step(self.parts[part as usize])
    }

    /// The number of steps whose times count.
    fn timed(&self) -> u64 {
        self.steps.saturating_sub(WARM_UP)
    }

    fn a_step(&self, time: Duration) -> f64 {
        1e3 * time.as_secs_f64() / self.timed().max(1) as f64
    }

    /// Rank 0's table. `alone` has the costs of the same passes without an exchange.
    pub(crate) fn table(&self, alone: &Costs<'_>) -> String {
        if self.timed() == 0 {
            let steps = self.steps;
            return format!("too few steps to time: {steps}, and the first {WARM_UP} do not count\n{}", self.sent());
        }
        let step = self.a_step(self.whole.iter().sum());
        let mut table = Table::new(["a step of rank 0", "ms", "share"]);
        let mut row = |name: &str, time: f64| {
            table.row([name.to_owned(), format!("{time:.3}"), format!("{:.0} %", 100.0 * time / step)]);
        };
        for (part, name) in PARTS {
            row(name, self.of(part));
        }
        row("all", step);
        row("exposed exchange", self.exposed_exchange(alone));
        format!("{table}\n{}\n{}", self.sent(), self.speed())
    }

    /// A step of this rank, as task 2 counts it.
    pub(crate) fn counters(&self, alone: &Costs<'_>, buckets: usize) -> String {
        let calls = self.calls_and_bytes().map_or("uncounted".to_owned(), |(calls, _)| calls.to_string());
        let counted = format!("a step: {buckets} buckets, {calls} calls");
        if self.timed() == 0 {
            return counted;
        }
        let (data, exchange) = (self.of(Part::Data), self.exposed_exchange(alone));
        let all: f64 = PARTS.iter().map(|(part, _)| self.of(*part)).sum();
        let compute = all - data - exchange;
        format!("{counted}, data {data:.2} ms, compute {compute:.2} ms, exchange {exchange:.2} ms")
    }

    /// What computation does not hide of a step's exchange: what the backward pass takes longer for it, and what follows that pass.
    fn exposed_exchange(&self, alone: &Costs<'_>) -> f64 {
        (self.of(Part::Backward) - alone.of(Part::Backward)).max(0.0) + self.of(Part::Exchange)
    }

    /// Calls and bytes of a step, unless the group is on NCCL.
    fn calls_and_bytes(&self) -> Option<(f64, f64)> {
        let a_step = |number: u64| number as f64 / self.steps.max(1) as f64;
        self.group.traffic().map(|_| (a_step(self.traffic.calls), a_step(self.traffic.bytes)))
    }

    fn sent(&self) -> String {
        match self.calls_and_bytes() {
            Some((calls, bytes)) => {
                format!("{calls} calls and {bytes} bytes a step, counted over {} steps", self.steps)
            }
            None => "calls and bytes are counted on Gloo only".into(),
        }
    }

    fn speed(&self) -> String {
        let ranks = self.group.size().get();
        let seconds: Vec<f64> = self.whole.iter().map(Duration::as_secs_f64).collect();
        let rate = (self.samples * ranks) as f64 / seconds.iter().sum::<f64>();
        let median = Spread::of(&seconds).map_or(f64::NAN, |spread| 1e3 * spread.median);
        format!("{rate:.0} samples a second over {ranks} ranks; the median step takes {median:.3} ms")
    }
}

/// Above this size a median of fewer times is as good, since each is long.
const LONG: u64 = 1 << 20;
/// Times of a size above.
const TIMED: usize = 5;

/// What the links cost: times all-reduces of several sizes on all ranks; returns a table and the fitted line.
pub(crate) fn links(group: &ProcessGroup, sizes: &Sizes) -> Result<String> {
    let mut series = Series::new("all_reduce");
    for bytes in sizes.iter() {
        let mut tensor = Tensor::f_zeros([bytes as i64 / 4], (Kind::Float, group.device()))?;
        let usual = Repeats::for_bytes(bytes);
        let repeats = Repeats { timed: if bytes > LONG { TIMED } else { usual.timed }, ..usual };
        series.push(bytes, time(group, &repeats, || Ok(group.all_reduce(&mut tensor, ReduceOp::Sum)?))?);
    }
    Ok(format!("{}\n{}", series.table(), series.fit_line()))
}

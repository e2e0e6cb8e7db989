//! Grades `speed`: the times of 2, 3 and 4 ranks, whose steps differ in their tokens and in which rank is the slowest.

use lockstep_grading::{Claim, Inputs, Runner, causes, table};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Serialize)]
struct Sizes {
    parameters: u64,
    layers: u64,
    width: u64,
    context: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct StepTimes {
    tokens: u64,
    data: f64,
    compute: f64,
    exchange: f64,
}

/// `None` is NaN.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Speed {
    tokens: Option<f64>,
    utilization: Option<f64>,
    waiting: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct Case {
    sizes: Sizes,
    peak: f64,
    ranks: Vec<Vec<StepTimes>>,
}

const STEPS: usize = 4;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let cases: Vec<Case> = (2..5).map(|ranks| draw(&mut random, ranks)).collect();
    let outputs = runner.call::<_, Speed>(1, &cases)?;
    QUANTITIES.iter().try_for_each(|quantity| {
        let found = |number| (quantity.of)(outputs.of(0, number)).unwrap_or(f64::NAN);
        check(quantity, &cases, &(0..cases.len()).map(found).collect::<Vec<_>>())
    })
}

/// In each step another rank is the slowest, and the first step takes longer than all others.
fn draw(random: &mut Inputs, ranks: usize) -> Case {
    let mut part =
        |from: f64, to: f64| (1e4 * (from + (to - from) * random.below(0..1001) as f64 / 1000.0)).round() / 1e4;
    let lengths: Vec<f64> = (0..STEPS).map(|step| part(0.6, 0.9) + 0.3 * step as f64).collect();
    let of_rank = |rank: usize| {
        let steps = lengths.iter().enumerate().map(|(step, length)| {
            let is_slowest = step % ranks == rank;
            let seconds = length + if is_slowest { part(0.05, 0.1) } else { part(-0.1, 0.0) };
            let exchange = if is_slowest { part(0.02, 0.05) } else { part(0.2, 0.4) };
            let data = part(0.01, 0.05);
            StepTimes {
                tokens: (1000.0 * part(0.9, 1.1) * length) as u64,
                data: data + if step == 0 { 3.0 } else { 0.0 },
                compute: seconds - data - exchange,
                exchange,
            }
        });
        steps.collect()
    };
    // The context is no simple multiple of the width, which could be taken for it.
    let sizes = Sizes { parameters: 40_000, layers: 4, width: 64, context: [96, 160, 208][ranks - 2] };
    let ranks = (0..ranks).map(of_rank).collect();
    Case { sizes, peak: 2e9, ranks }
}

/// The seconds of a rank's step.
fn took(step: &StepTimes) -> f64 {
    step.data + step.compute + step.exchange
}

fn near(expected: f64, observed: f64) -> bool {
    (expected - observed).abs() <= 1e-6 * expected.abs()
}

impl Case {
    /// The case without each rank's first step.
    fn warm(&self) -> Self {
        Case { ranks: self.ranks.iter().map(|steps| steps[1..].to_vec()).collect(), ..self.clone() }
    }

    /// The case with this rank alone.
    fn alone(&self, rank: usize) -> Self {
        Case { ranks: vec![self.ranks[rank].clone()], ..self.clone() }
    }

    /// The cases with each step alone.
    fn by_step(&self) -> impl Iterator<Item = Self> {
        (0..self.ranks[0].len())
            .map(|number| Case { ranks: self.ranks.iter().map(|steps| vec![steps[number]]).collect(), ..self.clone() })
    }

    fn count(&self) -> f64 {
        self.ranks.len() as f64
    }

    /// The sum over all steps of all ranks.
    fn sum(&self, of: fn(&StepTimes) -> f64) -> f64 {
        self.ranks.iter().flatten().map(of).sum()
    }

    fn tokens(&self) -> f64 {
        self.sum(|step| step.tokens as f64)
    }

    /// The sum over the steps of the longest time that a rank takes.
    fn longest(&self, took: fn(&StepTimes) -> f64) -> f64 {
        let slowest = |number: usize| self.ranks.iter().map(|steps| took(&steps[number])).fold(0.0, f64::max);
        (0..self.ranks[0].len()).map(slowest).sum()
    }

    fn seconds(&self) -> f64 {
        self.longest(took)
    }

    fn rate(&self) -> f64 {
        self.tokens() / self.seconds()
    }

    /// The operations for a token in the layers' weights, and in attention.
    fn operations(&self) -> [f64; 2] {
        let Sizes { parameters, layers, width, context } = self.sizes;
        [6 * parameters, 12 * layers * width * context].map(|operations| operations as f64)
    }

    /// The part of the peak of `peaks` ranks, with so many times each kind of operations.
    fn part_of_peak(&self, [dense, attention]: [f64; 2], peaks: f64) -> f64 {
        let [weights, scores] = self.operations();
        self.rate() * (dense * weights + attention * scores) / (peaks * self.peak)
    }

    fn waiting(&self) -> f64 {
        1.0 - self.part(|step| step.compute)
    }

    /// The part of all ranks' time that this takes.
    fn part(&self, of: fn(&StepTimes) -> f64) -> f64 {
        self.sum(of) / self.seconds() / self.count()
    }

    /// The same, of the time in which ranks do not wait for others' steps to end.
    fn part_of_own(&self, of: fn(&StepTimes) -> f64) -> f64 {
        self.sum(of) / self.sum(took)
    }

    fn waiting_of(&self, rank: usize) -> f64 {
        1.0 - self.alone(rank).sum(|step| step.compute) / self.seconds()
    }
}

/// What a mistake makes of a case, and of the case without the first steps.
type Mistake = fn(&Case, &Case) -> f64;

/// One of the numbers that are asked for.
struct Quantity {
    of: fn(&Speed) -> Option<f64>,
    words: fn(f64) -> String,
    /// Of a case without the first steps.
    right: fn(&Case) -> f64,
    mistakes: &'static [(Mistake, &'static str)],
    otherwise: &'static str,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        of: |found| found.tokens,
        words: |tokens| format!("{tokens:.2} tokens a second"),
        right: Case::rate,
        mistakes: &[
            (|all, _| all.rate(), "the first step counts, too: leave it out"),
            (|all, _| all.alone(0).rate(), RATE_OF_ONE),
            (|_, warm| warm.alone(0).rate(), RATE_OF_ONE),
            (
                |_, warm| warm.alone(0).tokens() / warm.seconds(),
                "these are the tokens of one rank: the ranks train with different tokens, so count those of all",
            ),
            (
                |_, warm| warm.tokens() / warm.sum(took),
                "the seconds of all ranks are added up, but the ranks work at the same time",
            ),
            (
                |_, warm| {
                    let slowest = (0..warm.ranks.len()).map(|rank| warm.alone(rank).sum(took)).fold(0.0, f64::max);
                    warm.tokens() / slowest
                },
                "this is the time of the rank that is the slowest over all steps: in each step another one may be the slowest, and all wait \
                 for it",
            ),
            (
                |_, warm| warm.tokens() / warm.alone(0).sum(took),
                "this is the time of one rank: a step ends when the slowest has ended it, which may be another one in each step",
            ),
            (
                |_, warm| (0..warm.ranks.len()).map(|rank| warm.alone(rank).rate()).sum(),
                "the ranks' own rates are added up, which leaves out the time in which a rank waits for slower ones: divide all tokens by \
                 the seconds of all steps",
            ),
            (
                |_, warm| warm.by_step().map(|step| step.rate()).sum::<f64>() / (STEPS - 1) as f64,
                "this is the mean of the steps' rates, in which a short step weighs as much as a long one: divide all tokens by all seconds",
            ),
            (
                |all, warm| all.tokens() / warm.seconds(),
                "the first step's tokens count, and its time does not: leave both out",
            ),
            (
                |_, warm| warm.rate() / warm.count(),
                "this is the rate of one rank on average: those of all together are asked for",
            ),
            (
                |_, warm| warm.tokens() / warm.sum(took) * warm.count(),
                "this is the mean of the ranks' times: a step ends when the slowest has ended it",
            ),
            (|_, warm| warm.tokens() / warm.longest(|step| step.compute + step.exchange), PART_OF_STEP),
            (|_, warm| warm.tokens() / warm.longest(|step| step.data + step.compute), PART_OF_STEP),
            (
                |_, warm| warm.tokens() / warm.longest(|step| step.compute),
                "only computing counts as time: waiting for data and for other ranks takes time, too",
            ),
        ],
        otherwise: "divide the tokens of all ranks by the seconds of all steps, in each of which the slowest rank counts",
    },
    Quantity {
        of: |found| found.utilization,
        words: |part| format!("a utilization of {part:.5}"),
        right: |warm| warm.part_of_peak([1.0, 1.0], warm.count()),
        mistakes: &[
            (
                |_, warm| warm.part_of_peak([1.0, 1.0], 1.0),
                "the tokens are those of all ranks, and the peak is that of one",
            ),
            (|_, warm| warm.part_of_peak([1.0, 0.0], warm.count()), NO_ATTENTION),
            (|_, warm| warm.part_of_peak([1.0, 0.0], 1.0), NO_ATTENTION),
            (
                |_, warm| warm.part_of_peak([1.0, 0.5], warm.count()),
                "attention counts whole, as if no token were masked",
            ),
            (
                |_, warm| warm.part_of_peak([0.0, 1.0], warm.count()),
                "the parameters are missing: 6 operations of each for each token",
            ),
            (|_, warm| warm.part_of_peak([1.0 / 3.0, 1.0 / 3.0], warm.count()), FORWARD),
            (|_, warm| warm.part_of_peak([1.0 / 3.0, 1.0], warm.count()), FORWARD),
            (
                |_, warm| warm.part_of_peak([2.0 / 3.0, 2.0 / 3.0], warm.count()),
                "this is the backward pass without the forward pass",
            ),
            (
                |_, warm| warm.part_of_peak([100.0, 100.0], warm.count()),
                "this is the utilization in percent: 1 means the peak",
            ),
        ],
        otherwise: "multiply the tokens of a second by the operations of a token, and divide by the peak of all ranks",
    },
    Quantity {
        of: |found| found.waiting,
        words: |part| format!("{part:.5} of the time"),
        right: Case::waiting,
        mistakes: &[
            (|_, warm| 1.0 - warm.waiting(), "this is the part in which ranks compute"),
            (|_, warm| 100.0 * warm.waiting(), "this is a part in percent: 1 means all of the time"),
            (
                |_, warm| warm.count() * warm.waiting(),
                "the waiting of all ranks is added up: the mean of the ranks is asked for",
            ),
            (|_, warm| warm.part_of_own(|step| step.exchange), NO_DATA),
            (|_, warm| warm.part(|step| step.exchange), NO_DATA),
            (|_, warm| warm.part_of_own(|step| step.data), NO_EXCHANGE),
            (|_, warm| warm.part(|step| step.data), NO_EXCHANGE),
            (|_, warm| warm.part_of_own(|step| step.data + step.exchange), NO_SLOWEST),
            (|_, warm| warm.part(|step| step.data + step.exchange), NO_SLOWEST),
            (|_, warm| warm.waiting_of(0), "this is one rank's: the mean of all is asked for"),
            (
                |_, warm| (0..warm.ranks.len()).map(|rank| warm.waiting_of(rank)).fold(0.0, f64::max),
                "this is one rank's: the mean of all is asked for",
            ),
        ],
        otherwise: "whatever is not computing is waiting, until the slowest rank has ended the step",
    },
];

const RATE_OF_ONE: &str =
    "this is the rate of one rank by itself: the ranks train with different tokens, so count those of all";
const PART_OF_STEP: &str = "a part of a step's time is missing: add up its data, its computing and its exchange";
const NO_ATTENTION: &str = "attention is missing: 12 · layers · width · context operations for each token";
const FORWARD: &str = "this is the forward pass: the backward pass takes twice as many operations";
const NO_DATA: &str = "waiting for data is missing";
const NO_EXCHANGE: &str = "waiting in the exchange is missing";
const NO_SLOWEST: &str = "a rank that ends its step early waits for the slowest one, and that is missing";

/// `found` is what the answer returned for each case.
fn check(quantity: &Quantity, cases: &[Case], found: &[f64]) -> anyhow::Result<()> {
    let causes = causes(quantity.mistakes, |wrong| {
        cases.iter().zip(found).all(|(case, found)| near(wrong(case, &case.warm()), *found))
    });
    cases.iter().zip(found).try_for_each(|(case, found)| {
        let right = (quantity.right)(&case.warm());
        Claim::that(near(right, *found), (quantity.words)(right), (quantity.words)(*found))
            .given(given(case))
            .causes(&causes)
            .or_fail(quantity.otherwise)
    })
}

/// All steps, as a table, in seconds.
fn given(case: &Case) -> String {
    let Sizes { parameters, layers, width, context } = case.sizes;
    let row = |rank: usize, step: usize| {
        let StepTimes { tokens, data, compute, exchange } = case.ranks[rank][step];
        let [data, compute, exchange] = [data, compute, exchange].map(|seconds| format!("{seconds:.2}"));
        [step.to_string(), rank.to_string(), tokens.to_string(), data, compute, exchange]
    };
    let rows: Vec<[String; 6]> = (0..STEPS)
        .flat_map(|step| (0..case.ranks.len()).map(move |rank| (rank, step)))
        .map(|(rank, step)| row(rank, step))
        .collect();
    format!(
        "{parameters} parameters, {layers} layers, width {width}, context {context}, peak {:.1e} operations a second\n{}",
        case.peak,
        table(["step", "rank", "tokens", "data", "compute", "exchange"], &rows)
    )
}

//! Grades `speed`: the times of 2, 3 and 4 ranks, whose steps differ in their tokens and in which rank is the slowest.

use lockstep_grading::{Claim, Inputs, Runner, table};
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
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, *outputs.of(0, number)))
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

/// All steps of the ranks from this one on.
fn from(ranks: &[Vec<StepTimes>], first: usize) -> Vec<Vec<StepTimes>> {
    ranks.iter().map(|steps| steps[first..].to_vec()).collect()
}

fn tokens_of(steps: &[StepTimes]) -> f64 {
    steps.iter().map(|step| step.tokens as f64).sum()
}

fn seconds_of(steps: &[StepTimes]) -> f64 {
    steps.iter().map(took).sum()
}

/// The sum over the steps of the longest time that a rank takes.
fn longest(ranks: &[Vec<StepTimes>], took: fn(&StepTimes) -> f64) -> f64 {
    let slowest = |number: usize| ranks.iter().map(|steps| took(&steps[number])).fold(0.0, f64::max);
    (0..ranks[0].len()).map(slowest).sum()
}

fn together(ranks: &[Vec<StepTimes>]) -> f64 {
    longest(ranks, took)
}

fn all_tokens(ranks: &[Vec<StepTimes>]) -> f64 {
    ranks.iter().map(|steps| tokens_of(steps)).sum()
}

fn near(expected: f64, observed: f64) -> bool {
    (expected - observed).abs() <= 1e-6 * expected.abs()
}

fn check(case: &Case, found: Speed) -> anyhow::Result<()> {
    let given = given(case);
    let [tokens, utilization, waiting] =
        [found.tokens, found.utilization, found.waiting].map(|number| number.unwrap_or(f64::NAN));
    check_tokens(case, &given, tokens)?;
    check_utilization(case, &given, tokens, utilization)?;
    check_waiting(case, &given, waiting)
}

fn check_tokens(case: &Case, given: &str, found: f64) -> anyhow::Result<()> {
    let ranks = from(&case.ranks, 1);
    let (all, seconds) = (all_tokens(&ranks), together(&ranks));
    let right = all / seconds;
    let is = |tokens: f64, seconds: f64| near(tokens / seconds, found);
    let each =
        |first: usize, has: &dyn Fn(&[StepTimes]) -> bool| from(&case.ranks, first).iter().any(|steps| has(steps));
    let rates = (0..ranks[0].len()).map(|number| {
        let step: Vec<Vec<StepTimes>> = ranks.iter().map(|steps| vec![steps[number]]).collect();
        all_tokens(&step) / together(&step)
    });
    Claim::that(near(right, found), format!("{right:.2} tokens a second"), format!("{found:.2}"))
        .given(given)
        .diagnose_if(is(all_tokens(&case.ranks), together(&case.ranks)), "the first step counts, too: leave it out")
        .diagnose_if(
            [0, 1].into_iter().any(|first| each(first, &|steps| is(tokens_of(steps), seconds_of(steps)))),
            "this is the rate of one rank by itself: the ranks train with different tokens, so count those of all",
        )
        .diagnose_if(
            each(1, &|steps| is(tokens_of(steps), seconds)),
            "these are the tokens of one rank: the ranks train with different tokens, so count those of all",
        )
        .diagnose_if(
            is(all, ranks.iter().map(|steps| seconds_of(steps)).sum()),
            "the seconds of all ranks are added up, but the ranks work at the same time",
        )
        .diagnose_if(
            is(all, ranks.iter().map(|steps| seconds_of(steps)).fold(0.0, f64::max)),
            "this is the time of the rank that is the slowest over all steps: in each step another one may be the slowest, and all wait for it",
        )
        .diagnose_if(
            each(1, &|steps| is(all, seconds_of(steps))),
            "this is the time of one rank: a step ends when the slowest has ended it, which may be another one in each step",
        )
        .diagnose_if(
            near(ranks.iter().map(|steps| tokens_of(steps) / seconds_of(steps)).sum(), found),
            "the ranks' own rates are added up, which leaves out the time in which a rank waits for slower ones: divide all tokens by the \
             seconds of all steps",
        )
        .diagnose_if(
            near(rates.sum::<f64>() / (STEPS - 1) as f64, found),
            "this is the mean of the steps' rates, in which a short step weighs as much as a long one: divide all tokens by all seconds",
        )
        .diagnose_if(is(all_tokens(&case.ranks), seconds), "the first step's tokens count, and its time does not: leave both out")
        .diagnose_if(is(all / ranks.len() as f64, seconds), "this is the rate of one rank on average: those of all together are asked for")
        .diagnose_if(
            is(all, ranks.iter().map(|steps| seconds_of(steps)).sum::<f64>() / ranks.len() as f64),
            "this is the mean of the ranks' times: a step ends when the slowest has ended it",
        )
        .diagnose_if(
            is(all, longest(&ranks, |step| step.compute + step.exchange)) || is(all, longest(&ranks, |step| step.data + step.compute)),
            "a part of a step's time is missing: add up its data, its computing and its exchange",
        )
        .diagnose_if(
            is(all, longest(&ranks, |step| step.compute)),
            "only computing counts as time: waiting for data and for other ranks takes time, too",
        )
        .or_fail("divide the tokens of all ranks by the seconds of all steps, in each of which the slowest rank counts")
}

fn check_utilization(case: &Case, given: &str, tokens: f64, found: f64) -> anyhow::Result<()> {
    let Sizes { parameters, layers, width, context } = case.sizes;
    let dense = 6.0 * parameters as f64;
    let attention = (12 * layers * width * context) as f64;
    let peaks = case.ranks.len() as f64 * case.peak;
    let right = tokens * (dense + attention) / peaks;
    let is = |operations: f64, peak: f64| near(tokens * operations / peak, found);
    Claim::that(near(right, found), format!("a utilization of {right:.5}"), format!("{:.5}", found))
        .given(given)
        .diagnose_if(is(dense + attention, case.peak), "the tokens are those of all ranks, and the peak is that of one")
        .diagnose_if(
            is(dense, peaks) || is(dense, case.peak),
            "attention is missing: 12 · layers · width · context operations for each token",
        )
        .diagnose_if(is(dense + attention / 2.0, peaks), "attention counts whole, as if no token were masked")
        .diagnose_if(is(attention, peaks), "the parameters are missing: 6 operations of each for each token")
        .diagnose_if(
            is((dense + attention) / 3.0, peaks) || is(dense / 3.0 + attention, peaks),
            "this is the forward pass: the backward pass takes twice as many operations",
        )
        .diagnose_if(is(2.0 / 3.0 * (dense + attention), peaks), "this is the backward pass without the forward pass")
        .diagnose_if(near(100.0 * right, found), "this is the utilization in percent: 1 means the peak")
        .or_fail("multiply the tokens of a second by the operations of a token, and divide by the peak of all ranks")
}

fn check_waiting(case: &Case, given: &str, found: f64) -> anyhow::Result<()> {
    let ranks = from(&case.ranks, 1);
    let (count, seconds) = (ranks.len() as f64, together(&ranks));
    let sum = |of: fn(&StepTimes) -> f64| ranks.iter().flatten().map(of).sum::<f64>();
    let right = 1.0 - sum(|step| step.compute) / seconds / count;
    let own = sum(took);
    let worst = |steps: &Vec<StepTimes>| 1.0 - steps.iter().map(|step| step.compute).sum::<f64>() / seconds;
    Claim::that(near(right, found), format!("{right:.5} of the time"), format!("{found:.5}"))
        .given(given)
        .diagnose_if(near(1.0 - right, found), "this is the part in which ranks compute")
        .diagnose_if(near(100.0 * right, found), "this is a part in percent: 1 means all of the time")
        .diagnose_if(
            near(count * right, found),
            "the waiting of all ranks is added up: the mean of the ranks is asked for",
        )
        .diagnose_if(
            near(sum(|step| step.exchange) / own, found) || near(sum(|step| step.exchange) / seconds / count, found),
            "waiting for data is missing",
        )
        .diagnose_if(
            near(sum(|step| step.data) / own, found) || near(sum(|step| step.data) / seconds / count, found),
            "waiting in the exchange is missing",
        )
        .diagnose_if(
            near(sum(|step| step.data + step.exchange) / seconds / count, found)
                || near(1.0 - sum(|step| step.compute) / own, found),
            "a rank that ends its step early waits for the slowest one, and that is missing",
        )
        .diagnose_if(
            ranks.iter().any(|steps| near(worst(steps), found)),
            "this is one rank's: the mean of all is asked for",
        )
        .or_fail("whatever is not computing is waiting, until the slowest rank has ended the step")
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

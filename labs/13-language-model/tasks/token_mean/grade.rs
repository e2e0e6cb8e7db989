//! Grades `token_mean`: micro-batches with different numbers of tokens, on 2 and on 3 ranks; in the last case a rank has no token with a target.

use lockstep_grading::{Claim, Inputs, Numbers, Runner, Verdict, close, explain};
use serde::{Deserialize, Serialize};

const TOKENS: usize = 4;
const IGNORED: i64 = -100;
const TOLERANCE: f64 = 1e-9;

#[derive(Clone, Debug, Serialize)]
struct Batch {
    inputs: Vec<[f64; 3]>,
    targets: Vec<i64>,
}

#[derive(Clone, Debug, Serialize)]
struct Case {
    weights: Vec<[f64; 3]>,
    /// Of each rank.
    ranks: Vec<Vec<Batch>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Done {
    /// `None` is NaN.
    mean: Option<f64>,
    gradient: Numbers,
    exchanges: u64,
    calls: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The tokens with a target of each micro-batch of each rank.
    for counts in [&[&[5, 1, 3][..], &[2, 4, 1]][..], &[&[3, 6], &[1, 2, 5, 1], &[4]], &[&[4, 2], &[0, 0]]] {
        let case = draw(&mut random, counts);
        let outputs = runner.call::<_, Done>(counts.len(), &[&case]).map_err(|error| {
            explain(error, |finding| match finding.verdict {
                Verdict::Hang if finding.ranks_wait() => Some(
                    "a rank waits for others that do not make the same exchange. A rank may have more micro-batches than another, or none with \
                     a target: all exchange numbers and gradients as often, and in the same order"
                        .into(),
                ),
                Verdict::Crash if finding.diagnosis.contains("mismatch between collectives") => Some(
                    "the ranks make different exchanges at the same time: gradients on one, a number on another. A rank may have more \
                     micro-batches than another, so exchange outside of what is done for each of them, in the same order on all"
                        .into(),
                ),
                _ => None,
            })
        })?;
        let found: Vec<&Done> = outputs.all(0).collect();
        check(&case, &found)?;
    }
    Ok(())
}

fn draw(random: &mut Inputs, counts: &[&[usize]]) -> Case {
    let number = |random: &mut Inputs| (random.below(0..2001) as f64 - 1000.0) / 500.0;
    let three = |random: &mut Inputs| [0; 3].map(|_| number(random));
    let mut batch = |tokens: usize| {
        // Padding at the end.
        let all = tokens + random.below(1..3);
        let inputs = (0..all).map(|_| three(random)).collect();
        let targets = (0..all).map(|at| if at < tokens { random.below(0..TOKENS) as i64 } else { IGNORED }).collect();
        Batch { inputs, targets }
    };
    let ranks = counts.iter().map(|rank| rank.iter().map(|tokens| batch(*tokens)).collect()).collect();
    Case { weights: (0..TOKENS).map(|_| three(random)).collect(), ranks }
}

impl Batch {
    fn tokens(&self) -> f64 {
        self.targets.iter().filter(|target| **target != IGNORED).count() as f64
    }
}

impl Case {
    /// The sum of the losses of a micro-batch's tokens, and its gradient.
    fn losses(&self, batch: &Batch) -> (f64, Vec<f64>) {
        let (mut sum, mut gradient) = (0.0, vec![0.0; 3 * TOKENS]);
        for (input, target) in batch.inputs.iter().zip(&batch.targets).filter(|(_, target)| **target != IGNORED) {
            let logit = |row: &[f64; 3]| row.iter().zip(input).map(|(weight, input)| weight * input).sum::<f64>();
            let logits: Vec<f64> = self.weights.iter().map(logit).collect();
            let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
            sum += all.ln() - logits[*target as usize];
            for (token, logit) in logits.iter().enumerate() {
                let error = logit.exp() / all - f64::from(token == *target as usize);
                (0..3).for_each(|at| gradient[3 * token + at] += error * input[at]);
            }
        }
        (sum, gradient)
    }

    /// The sum over ranks and micro-batches of losses and gradients, each times a weight.
    fn weighted(&self, weight: impl Fn(&[Batch], usize) -> f64) -> (f64, Vec<f64>) {
        let (mut sum, mut gradient) = (0.0, vec![0.0; 3 * TOKENS]);
        for rank in &self.ranks {
            for (number, batch) in rank.iter().enumerate() {
                let (losses, of_batch) = self.losses(batch);
                let weight = weight(rank, number);
                sum += weight * losses;
                gradient.iter_mut().zip(of_batch).for_each(|(all, one)| *all += weight * one);
            }
        }
        (sum, gradient)
    }

    fn described(&self) -> String {
        let rank = |(number, batches): (usize, &Vec<Batch>)| {
            let counts: Vec<String> =
                batches.iter().map(|batch| format!("{} of {}", batch.tokens(), batch.targets.len())).collect();
            format!("rank {number}: {}", counts.join(", "))
        };
        let ranks: Vec<String> = self.ranks.iter().enumerate().map(rank).collect();
        format!("tokens with a target of all tokens, for each micro-batch\n{}", ranks.join("\n"))
    }
}

fn own(rank: &[Batch]) -> f64 {
    rank.iter().map(Batch::tokens).sum()
}

fn check(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    let ranks = found.len() as f64;
    let all: f64 = case.ranks.iter().map(|rank| own(rank)).sum();
    let padded: usize = case.ranks.iter().flatten().map(|batch| batch.targets.len()).sum();
    let (mean, gradient) = case.weighted(|_, _| 1.0 / all);
    let of_weights = |weight: &dyn Fn(&[Batch], usize) -> f64| case.weighted(weight).1;
    let scaled = |by: f64| gradient.iter().map(|number| by * number).collect::<Vec<f64>>();
    for (rank, done) in found.iter().enumerate() {
        let is = |expected: &[f64]| close(expected, &done.gradient, TOLERANCE);
        let by = |weight: &dyn Fn(&[Batch], usize) -> f64| is(&of_weights(weight));
        let mine =
            case.weighted(|batches, _| if std::ptr::eq(batches, &*case.ranks[rank]) { ranks / all } else { 0.0 }).1;
        let first_exchanged = case
            .weighted(|batches, number| match number {
                0 => 1.0 / all,
                _ if std::ptr::eq(batches, &*case.ranks[rank]) => ranks / all,
                _ => 0.0,
            })
            .1;
        let micro = case.ranks.iter().map(Vec::len).sum::<usize>() as f64;
        // Otherwise this is a mean of the ranks' means, too.
        let by_rank_differs = case.ranks.iter().any(|batches| batches.len() != case.ranks[0].len());
        let mean_of = |rank: &[Batch], number: usize| 1.0 / rank[number].tokens().max(1.0);
        Claim::close(&gradient, &done.gradient, TOLERANCE)
            .on_rank(rank)
            .given(case.described())
            .diagnose_if(done.gradient.is_empty(), "there are no gradients: run the backward passes")
            .diagnose_if(
                done.gradient.iter().any(|number| number.is_nan()),
                "the gradients are NaN: a micro-batch, or all of a rank, may have no token with a target, and 0 / 0 is NaN",
            )
            .cause_if(is(&mine), "the gradients are those of this rank alone: the last backward pass runs outside `no_sync`")
            .cause_if(
                by(&|rank, number| mean_of(rank, number) / rank.len() as f64 / ranks),
                "a mean of means: a token of a short micro-batch weighs more than one of a long one. Divide each sum by the tokens of all ranks",
            )
            .cause_if(
                by(&|rank, number| mean_of(rank, number) / ranks),
                "the means of the micro-batches are added up: divide each sum by the tokens of all ranks instead",
            )
            .cause_if(
                by(&|rank, _| 1.0 / own(rank).max(1.0) / ranks),
                "a mean of the ranks' means: a token of a rank with few of them weighs more. Divide each sum by the tokens of all ranks",
            )
            .cause_if(is(&scaled(all / ranks)), "the sums are not divided by the number of tokens")
            .cause_if(
                is(&scaled(1.0 / ranks)),
                "too small by a factor of the number of ranks: the exchange already takes the ranks' mean, so multiply by their number",
            )
            .cause_if(
                ranks != 2.0 && is(&scaled(2.0)),
                "twice as large, on more than two ranks: does a backward pass run twice?",
            )
            .diagnose_if(is(&scaled(ranks)), format!("too large by a factor of {ranks}, the number of ranks"))
            .cause_if(
                by(&|rank, number| mean_of(rank, number) / micro) && by_rank_differs,
                "a mean over all micro-batches of all ranks: a token of a short one weighs more than one of a long one. Divide each sum by \
                 the tokens of all ranks",
            )
            .cause_if(is(&first_exchanged), "only the first pass has exchanged its gradient, and those after it stay on this rank: run the \
                last one outside of `no_sync`, which exchanges the sum")
            .cause_if(
                by(&|_, number| if number > 0 { 1.0 / all } else { 0.0 }),
                "the first micro-batch of each rank is not in the gradients",
            )
            .cause_if(
                by(&|rank, number| if number + 1 < rank.len() { 1.0 / all } else { 0.0 }),
                "the last micro-batch of each rank is not in the gradients",
            )
            .cause_if(is(&scaled(-1.0)), "the gradients have the other sign")
            .cause_if(
                is(&scaled(all / padded as f64)),
                "divided by all tokens: those without a target do not count",
            )
            .cause_if(
                by(&|rank, number| if number + 1 == rank.len() { 1.0 / all } else { 0.0 }),
                "only the last micro-batch of each rank is in the gradients",
            )
            .or_fail("the gradient of the mean is the sum of all tokens' gradients on all ranks, divided by the number of all tokens")?;
    }
    for (rank, done) in found.iter().enumerate() {
        let own = own(&case.ranks[rank]).max(1.0);
        let observed = done.mean.unwrap_or(f64::NAN);
        let (sums, _) = case.weighted(|batches, _| if std::ptr::eq(batches, &*case.ranks[rank]) { 1.0 } else { 0.0 });
        let (of_ranks, _) = case.weighted(|rank, _| 1.0 / self::own(rank).max(1.0) / ranks);
        let is = |expected: f64| close(&[expected], &[observed], TOLERANCE);
        Claim::close(&[mean], &[observed], TOLERANCE)
            .on_rank(rank)
            .given(case.described())
            .cause_if(is(sums / own), "the loss is the mean of this rank's tokens: that of all ranks is asked for")
            .cause_if(
                is(of_ranks),
                "the loss is the mean of the ranks' means: a token of a rank with few of them weighs more",
            )
            .cause_if(is(mean * all), "the loss is a sum: divide it by the number of all tokens")
            .cause_if(is(sums / all), "this rank's part of the mean: add the parts up over the ranks")
            .cause_if(is(mean / ranks), "the loss is too small by a factor of the number of ranks")
            .cause_if(is(mean * ranks), "the loss is too large by a factor of the number of ranks")
            .diagnose_if(observed.is_nan(), "the loss is NaN: a rank may have no token with a target")
            .or_fail("the loss is the sum of the losses of all tokens on all ranks, divided by their number")?;
        Claim::that(done.exchanges == 1, "one exchange of gradients", done.exchanges.to_string())
            .on_rank(rank)
            .given(case.described())
            .or_fail("gradients are exchanged in each pass: run all backward passes but the last inside `no_sync`")?;
        Claim::that(done.calls <= 4, "at most four operations of the group", done.calls.to_string())
            .on_rank(rank)
            .given(case.described())
            .or_fail(
                "the gradients, the number of tokens and the loss are exchanged once in a step, not in each pass",
            )?;
    }
    Ok(())
}

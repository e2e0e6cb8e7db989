//! Grades `experts`: with too few places, a rank that sends nothing, an expert that gets nothing, and on one rank. The experts of tokens are
//! chosen here: a token is made to point to its expert.

use lockstep_grading::{Claim, Inputs, Numbers, Runner, Verdict, close, explain, table};
use serde::{Deserialize, Serialize};

const WIDTH: usize = 6;
const TOLERANCE: f64 = 1e-9;
/// What the balancing loss counts, so that a mistake shows in the gradients.
const BALANCE: f64 = 3.0;

type Row = [f64; WIDTH];

#[derive(Clone, Debug, Serialize)]
struct Case {
    /// Of each rank.
    tokens: Vec<Vec<Row>>,
    /// The gradient of the output.
    pull: Vec<Vec<Row>>,
    router: Vec<Row>,
    experts: Vec<[Row; WIDTH]>,
    limit: usize,
    balance: f64,
    /// The expert to which each token points.
    #[serde(skip)]
    chosen: Vec<Vec<usize>>,
}

/// Of a rank, row by row.
#[derive(Clone, Debug, Deserialize)]
struct Done {
    output: Numbers,
    dropped: usize,
    /// `None` is NaN.
    balance: Option<f64>,
    tokens: Numbers,
    router: Numbers,
    experts: Vec<Numbers>,
    used: Used,
}

#[derive(Clone, Debug, Deserialize)]
struct Used {
    computed: Vec<usize>,
    exchanges: u64,
    sent: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The limit, the number of experts, and the experts of each rank's tokens.
    for (limit, experts, chosen) in [
        (3, 4, &[&[0, 1, 0, 2, 0, 0][..], &[0, 0, 1, 3, 2, 1]][..]),
        (2, 3, &[&[1, 1, 1, 0], &[1, 0, 0, 2], &[1, 0, 1, 0]]),
        (9, 2, &[&[0, 0, 0], &[0, 0, 0]]),
        (2, 3, &[&[0, 0, 0, 1, 2, 0]]),
        (2, 4, &[&[3, 1], &[3, 2], &[0, 3], &[1, 1]]),
        (4, 4, &[&[0, 1, 2, 3, 0], &[1, 0, 3, 2, 0]]),
    ] {
        let case = draw(&mut random, limit, experts, chosen);
        let outputs = runner.call::<_, Done>(chosen.len(), &[&case]).map_err(|error| {
            explain(error, |finding| match finding.verdict {
                Verdict::Hang => Some(
                    "the ranks do not make the same calls: a rank whose tokens find no place takes part in both exchanges, with no rows, \
                     and so does one whose experts get none; and in the backward pass, for which their results must belong to its output"
                        .into(),
                ),
                Verdict::Crash if finding.diagnosis.contains("mismatch between collectives") => Some(
                    "a rank sends another number of rows than is expected of it: both follow from the numbers of tokens that all ranks have for \
                     each expert"
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

fn draw(random: &mut Inputs, limit: usize, experts: usize, chosen: &[&[usize]]) -> Case {
    let mut row = |scale: f64| [0; WIDTH].map(|_| scale * (random.below(0..2001) as f64 - 1000.0) / 1000.0);
    let pointing = |mut row: Row, expert: usize, by: f64| {
        row[expert] += by;
        row
    };
    let router: Vec<Row> = (0..experts).map(|expert| pointing(row(0.1), expert, 2.0)).collect();
    let tokens = chosen.iter().map(|of| of.iter().map(|expert| pointing(row(0.3), *expert, 1.5)).collect());
    let tokens: Vec<Vec<Row>> = tokens.collect();
    let pull = chosen.iter().map(|of| of.iter().map(|_| row(1.0)).collect()).collect();
    let experts = (0..experts).map(|_| [(); WIDTH].map(|()| row(1.0))).collect();
    let chosen: Vec<Vec<usize>> = chosen.iter().map(|of| of.to_vec()).collect();
    Case { tokens, pull, router, experts, limit, balance: BALANCE, chosen }
}

fn dot(one: &Row, other: &Row) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Which of a rank's tokens have a place.
type Placed = Vec<Vec<bool>>;

/// Outputs and gradients.
struct Passed {
    output: Vec<Vec<Row>>,
    balance: Vec<f64>,
    tokens: Vec<Vec<Row>>,
    /// Of all ranks.
    router: Vec<Row>,
    experts: Vec<[Row; WIDTH]>,
}

impl Case {
    fn total(&self) -> usize {
        self.chosen.iter().map(Vec::len).sum()
    }

    fn probabilities(&self, token: &Row) -> Vec<f64> {
        let exp: Vec<f64> = self.router.iter().map(|of| dot(of, token).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.into_iter().map(|exp| exp / sum).collect()
    }

    fn through(&self, expert: usize, token: &Row) -> Row {
        std::array::from_fn(|at| dot(&self.experts[expert][at], token))
    }

    /// Tokens have their places by this order of ranks and, within each, of tokens.
    fn placed(&self, limit: impl Fn(usize) -> usize, each: bool, order: impl Fn(&mut Vec<(usize, usize)>)) -> Placed {
        let mut all: Vec<(usize, usize)> = (0..self.chosen.len())
            .flat_map(|rank| (0..self.chosen[rank].len()).map(move |token| (rank, token)))
            .collect();
        order(&mut all);
        let mut placed: Placed = self.chosen.iter().map(|of| vec![false; of.len()]).collect();
        let mut taken = vec![vec![0; self.router.len()]; self.chosen.len()];
        for (rank, token) in all {
            let expert = self.chosen[rank][token];
            let counter = &mut taken[if each { rank } else { 0 }][expert];
            placed[rank][token] = *counter < limit(rank);
            *counter += usize::from(placed[rank][token]);
        }
        placed
    }

    fn right(&self) -> Placed {
        self.placed(|_| self.limit, false, |_| ())
    }

    /// Each token's output: with its probability or without, and of those without a place zeros or the token.
    fn output(&self, placed: &Placed, weighted: bool, passes: bool) -> Vec<Vec<Row>> {
        let of = |rank: usize, token: usize| {
            let (row, expert) = (&self.tokens[rank][token], self.chosen[rank][token]);
            let weight = if weighted { self.probabilities(row)[expert] } else { 1.0 };
            match placed[rank][token] {
                true => self.through(expert, row).map(|number| weight * number),
                false => row.map(|number| if passes { number } else { 0.0 }),
            }
        };
        (0..self.chosen.len()).map(|rank| (0..self.chosen[rank].len()).map(|token| of(rank, token)).collect()).collect()
    }

    /// Outputs if what arrives is taken for sorted by expert; `returned` if it is not, but its results are returned so.
    fn crossed(&self, placed: &Placed, returned: bool) -> Vec<Vec<Row>> {
        let mut output: Vec<Vec<Row>> = self.chosen.iter().map(|of| vec![[0.0; WIDTH]; of.len()]).collect();
        let each = self.router.len() / self.chosen.len();
        for owner in 0..self.chosen.len() {
            let all =
                (0..self.chosen.len()).flat_map(|rank| (0..self.chosen[rank].len()).map(move |token| (rank, token)));
            let mut arrived: Vec<(usize, usize)> = all
                .filter(|(rank, token)| placed[*rank][*token] && self.chosen[*rank][*token] / each == owner)
                .collect();
            arrived.sort_by_key(|(rank, token)| (*rank, self.chosen[*rank][*token], *token));
            let mut sorted = arrived.clone();
            sorted.sort_by_key(|(rank, token)| (self.chosen[*rank][*token], *rank, *token));
            for ((rank, token), (other, of)) in arrived.into_iter().zip(sorted) {
                let (row, expert) = (&self.tokens[rank][token], self.chosen[other][of]);
                let passed = self.through(expert, if returned { &self.tokens[other][of] } else { row });
                let weight = self.probabilities(row)[self.chosen[rank][token]];
                output[rank][token] = passed.map(|number| weight * number);
            }
        }
        output
    }

    /// The part of the tokens that chose each expert.
    fn shares<'a>(&self, chosen: impl Iterator<Item = &'a usize>) -> Vec<f64> {
        let mut counts = vec![0.0; self.router.len()];
        let mut all = 0.0;
        chosen.for_each(|expert| (counts[*expert], all) = (counts[*expert] + 1.0, all + 1.0));
        counts.into_iter().map(|count| if all > 0.0 { count / all } else { 0.0 }).collect()
    }

    fn balance(&self, rank: usize, shares: &[f64]) -> f64 {
        let rows = &self.tokens[rank];
        let sum: f64 =
            rows.iter().map(|row| self.probabilities(row).iter().zip(shares).map(|(p, f)| p * f).sum::<f64>()).sum();
        self.router.len() as f64 * sum / rows.len() as f64
    }

    fn passed(&self, placed: &Placed) -> Passed {
        let shares = self.shares(self.chosen.iter().flatten());
        let ranks = 0..self.chosen.len();
        let mut tokens: Vec<Vec<Row>> = self.chosen.iter().map(|of| vec![[0.0; WIDTH]; of.len()]).collect();
        let mut router = vec![[0.0; WIDTH]; self.router.len()];
        let mut experts = vec![[[0.0; WIDTH]; WIDTH]; self.router.len()];
        for (rank, token) in ranks.clone().flat_map(|rank| (0..self.chosen[rank].len()).map(move |token| (rank, token)))
        {
            let (row, pull, expert) = (&self.tokens[rank][token], &self.pull[rank][token], self.chosen[rank][token]);
            let probabilities = self.probabilities(row);
            let scale = self.balance * self.router.len() as f64 / self.chosen[rank].len() as f64;
            let mut of_probabilities: Vec<f64> = shares.iter().map(|share| scale * share).collect();
            if placed[rank][token] {
                let (weight, passed) = (probabilities[expert], self.through(expert, row));
                of_probabilities[expert] += dot(pull, &passed);
                for at in 0..WIDTH {
                    for from in 0..WIDTH {
                        experts[expert][at][from] += weight * pull[at] * row[from];
                        tokens[rank][token][from] += weight * pull[at] * self.experts[expert][at][from];
                    }
                }
            }
            let mean: f64 = probabilities.iter().zip(&of_probabilities).map(|(p, of)| p * of).sum();
            for number in 0..self.router.len() {
                let of_score = probabilities[number] * (of_probabilities[number] - mean);
                for from in 0..WIDTH {
                    router[number][from] += of_score * row[from];
                    tokens[rank][token][from] += of_score * self.router[number][from];
                }
            }
        }
        let balance = ranks.map(|rank| self.balance(rank, &shares)).collect();
        Passed { output: self.output(placed, true, false), balance, tokens, router, experts }
    }

    fn described(&self) -> String {
        let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let each = self.router.len() / self.chosen.len();
        let row = |(rank, of): (usize, &Vec<usize>)| {
            [rank.to_string(), list(&(rank * each..(rank + 1) * each).collect::<Vec<_>>()), list(of)]
        };
        let rows: Vec<[String; 3]> = self.chosen.iter().enumerate().map(row).collect();
        format!(
            "an expert takes {}\n{}",
            self.limit,
            table(["rank", "experts", "most probable ones of its tokens"], &rows)
        )
    }
}

fn flat(rows: &[Row]) -> Vec<f64> {
    rows.concat()
}

fn check(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    let ranks = found.len();
    let (placed, tokens) = (case.right(), case.total());
    let right = case.passed(&placed);
    let is =
        |other: &[Vec<Row>]| found.iter().zip(other).all(|(done, rows)| close(&flat(rows), &done.output, TOLERANCE));
    let places = |placed: &Placed| is(&case.output(placed, true, false));
    let backwards = |all: &mut Vec<(usize, usize)>| all.reverse();
    let ranks_backwards = |all: &mut Vec<(usize, usize)>| all.sort_by_key(|(rank, token)| (usize::MAX - rank, *token));
    let by_probability = |all: &mut Vec<(usize, usize)>| {
        let of = |(rank, token): &(usize, usize)| {
            case.probabilities(&case.tokens[*rank][*token])[case.chosen[*rank][*token]]
        };
        all.sort_by(|one, other| of(other).total_cmp(&of(one)));
    };
    // In the order in which they were sent.
    let by_expert: Vec<Vec<Row>> = (right.output.iter().zip(&case.chosen).zip(&placed))
        .map(|((rows, chosen), placed)| {
            let mut order: Vec<usize> = (0..rows.len()).collect();
            order.sort_by_key(|token| (!placed[*token], chosen[*token]));
            order.into_iter().map(|token| rows[token]).collect()
        })
        .collect();
    for (rank, done) in found.iter().enumerate() {
        Claim::close(&flat(&right.output[rank]), &done.output, TOLERANCE)
            .on_rank(rank)
            .given(case.described())
            .diagnose_if(
                done.output.len() != WIDTH * case.chosen[rank].len(),
                format!("the output has {} numbers instead of {}: a row for each token", done.output.len(), WIDTH * case.chosen[rank].len()),
            )
            .diagnose_if(
                places(&case.placed(|_| tokens, false, |_| ())),
                "no token is dropped: an expert takes a limited number",
            )
            .diagnose_if(
                places(&case.placed(|_| case.limit, true, |_| ())),
                "each rank fills the experts up to the limit: it is one for all ranks together",
            )
            .diagnose_if(
                places(&case.placed(|_| case.limit / ranks, true, |_| ()))
                    || places(&case.placed(|_| case.limit.div_ceil(ranks), true, |_| ())),
                "each rank has an equal part of an expert's places: a rank may fill them all, if it comes first",
            )
            .diagnose_if(
                places(&case.placed(|_| case.limit, false, backwards)) || places(&case.placed(|_| case.limit, false, ranks_backwards)),
                "later tokens take the places: those of lower ranks come first, and of a rank the earlier ones",
            )
            .diagnose_if(
                places(&case.placed(|_| case.limit, false, by_probability)),
                "the most probable tokens take the places: here those of lower ranks come first, and of a rank the earlier ones",
            )
            .diagnose_if(
                is(&case.output(&placed, false, false)),
                "the outputs are not multiplied with the probability: the router would learn nothing from them",
            )
            .diagnose_if(
                is(&case.output(&placed, true, true)),
                "tokens without a place return themselves: their output is zeros, and the sum around the layer passes them on",
            )
            .diagnose_if(
                is(&case.crossed(&placed, true)) || is(&case.crossed(&placed, false)),
                "outputs of other tokens, or of other experts: what arrives is in the order of the ranks, and of each rank in the order of the \
                 experts; results go back in this order",
            )
            .diagnose_if(
                [case.limit.saturating_sub(1), case.limit + 1].iter().any(|limit| places(&case.placed(|_| *limit, false, |_| ()))),
                "an expert takes one token less or more than its limit",
            )
            .diagnose_if(is(&by_expert), "the outputs are in the order in which tokens were sent: put each where its token is")
            .or_fail("a token's output is that of its most probable expert, times the probability")?;
    }
    for (rank, done) in found.iter().enumerate() {
        let lost = |placed: &[bool]| placed.iter().filter(|placed| !**placed).count();
        let all: usize = placed.iter().map(|of| lost(of)).sum();
        Claim::equal(&lost(&placed[rank]), &done.dropped)
            .on_rank(rank)
            .given(case.described())
            .diagnose_if(
                done.dropped == all,
                "these are the dropped tokens of all ranks: those of this rank are asked for",
            )
            .or_fail("a token is dropped if its expert has no place left for it")?;
        let observed = done.balance.unwrap_or(f64::NAN);
        let of = |shares: Vec<f64>| close(&[case.balance(rank, &shares)], &[observed], TOLERANCE);
        let chosen = || case.chosen.iter().flatten();
        let kept = chosen().zip(placed.iter().flatten()).filter_map(|(expert, placed)| placed.then_some(expert));
        let hard: f64 = case.shares(chosen()).iter().map(|share| share * share).sum();
        let experts = case.router.len() as f64;
        Claim::close(&[right.balance[rank]], &[observed], TOLERANCE)
            .on_rank(rank)
            .given(case.described())
            .diagnose_if(
                close(&[right.balance[rank] / experts], &[observed], TOLERANCE),
                "the sum is not multiplied with the number of experts: so the loss would depend on it",
            )
            .diagnose_if(of(case.shares(case.chosen[rank].iter())), "the parts are those of this rank's tokens: all ranks' count")
            .diagnose_if(of(case.shares(kept)), "the parts are those of tokens with a place: all that chose the expert count")
            .diagnose_if(
                close(&[experts * hard], &[observed], TOLERANCE),
                "the parts are multiplied with themselves: one of the two is the mean probability, by which the router learns",
            )
            .or_fail("the number of experts times the sum of fₑ · Pₑ")?;
    }
    let router: Vec<f64> = (0..WIDTH * case.router.len())
        .map(|at| found.iter().map(|done| done.router.get(at).copied().unwrap_or(f64::NAN)).sum())
        .collect();
    for (rank, done) in found.iter().enumerate() {
        Claim::close(&flat(&right.tokens[rank]), &done.tokens, TOLERANCE)
            .on_rank(rank)
            .given(format!("the gradient of the tokens\n{}", case.described()))
            .or_fail(
                "the outputs are right, and their gradient is not: what is sent, its result and the probabilities belong to the graph",
            )?;
        Claim::close(&flat(&right.router), &router, TOLERANCE)
            .given(format!("the gradient of the router, added up over the ranks\n{}", case.described()))
            .or_fail(
                "the router learns from the probabilities in the output and from the mean ones in the balancing loss",
            )?;
        let each = done.experts.len();
        for (number, gradient) in done.experts.iter().enumerate() {
            let expert = rank * each + number;
            let whole = right.experts[expert].concat();
            // None is as good as zeros, if no token has passed it.
            if gradient.is_empty() && whole.iter().all(|number| *number == 0.0) {
                continue;
            }
            Claim::close(&whole, gradient, TOLERANCE)
                .on_rank(rank)
                .given(format!("the gradient of expert {expert}\n{}", case.described()))
                .or_fail("an expert learns from all tokens that have passed it, of whichever rank")?;
            Claim::that(
                done.used.computed[number] <= case.limit,
                format!("at most {} tokens", case.limit),
                format!("{} tokens", done.used.computed[number]),
            )
            .on_rank(rank)
            .given(case.described())
            .or_fail(format!("expert {expert} computes more tokens than it takes: the others need not be sent"))?;
        }
        let sent = placed[rank].iter().filter(|placed| **placed).count();
        let received: usize = (0..ranks)
            .flat_map(|of| placed[of].iter().zip(&case.chosen[of]))
            .filter(|(placed, expert)| **placed && **expert / each == rank)
            .count();
        Claim::that(done.used.exchanges <= 2, "two exchanges of tokens", done.used.exchanges.to_string())
            .on_rank(rank)
            .given(case.described())
            .or_fail("one exchange brings all tokens to their experts, and one brings them back")?;
        Claim::that(
            done.used.sent <= sent + received,
            format!("{} rows, there and back", sent + received),
            format!("{} rows", done.used.sent),
        )
        .on_rank(rank)
        .given(case.described())
        .or_fail("rows are sent that are no tokens with a place: an exchange takes another number for each rank")?;
    }
    Ok(())
}

//! Grades `experts`: with too few places, a rank that sends nothing, an expert that gets nothing, and on one rank. The experts of tokens are
//! chosen here: a token is made to point to its expert.

use lockstep_grading::{Claim, Inputs, Numbers, Runner, Verdict, close, counted, explain};
use serde::Deserialize;

use super::routing::{Case, Flow, Passed, Placed, Row, WIDTH};

const TOLERANCE: f64 = 1e-9;
/// What the balancing loss counts, so that a mistake shows in the gradients.
const BALANCE: f64 = 3.0;

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
                Verdict::Hang if finding.ranks_wait() => Some(
                    "a rank waits for others that do not make the same call. Also a rank without a row to send or to receive takes part in \
                     both exchanges, and in the backward pass, for which the results must belong to its output"
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

/// Later tokens first; later ranks' tokens first.
fn backwards(case: &Case) -> [Placed; 2] {
    [
        case.placed(|_| case.limit, false, |all| all.reverse()),
        case.placed(|_| case.limit, false, |all| all.sort_by_key(|(rank, token)| (usize::MAX - rank, *token))),
    ]
}

/// The most probable tokens first.
fn by_probability(case: &Case) -> Placed {
    case.placed(
        |_| case.limit,
        false,
        |all| {
            let of = |(rank, token): &(usize, usize)| {
                case.probabilities(&case.tokens[*rank][*token])[case.chosen[*rank][*token]]
            };
            all.sort_by(|one, other| of(other).total_cmp(&of(one)));
        },
    )
}

/// A case in which the most probable tokens are neither the first nor the last ones, if tokens are dropped.
fn draw(random: &mut Inputs, limit: usize, experts: usize, chosen: &[&[usize]]) -> Case {
    loop {
        let case = drawn(random, limit, experts, chosen);
        let (right, probable) = (case.right(), by_probability(&case));
        let drops = right.iter().flatten().any(|placed| !placed);
        if !drops || probable != right && !backwards(&case).contains(&probable) {
            return case;
        }
    }
}

fn drawn(random: &mut Inputs, limit: usize, experts: usize, chosen: &[&[usize]]) -> Case {
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

fn flat(rows: &[Row]) -> Vec<f64> {
    rows.concat()
}

fn check(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    let placed = case.right();
    let checked = Checked { case, found, right: case.passed(&placed), placed };
    let ranks = 0..found.len();
    ranks.clone().try_for_each(|rank| checked.check_output(rank))?;
    for rank in ranks.clone() {
        checked.check_dropped(rank)?;
        checked.check_balance(rank)?;
    }
    for rank in ranks {
        checked.check_gradients(rank)?;
        checked.check_experts(rank)?;
        checked.check_exchanges(rank)?;
    }
    Ok(())
}

/// What all ranks have, and what is right.
struct Checked<'a> {
    case: &'a Case,
    found: &'a [&'a Done],
    placed: Placed,
    right: Passed,
}

impl Checked<'_> {
    /// Returns true if all ranks have these outputs.
    fn are(&self, other: &[Vec<Row>]) -> bool {
        self.found.iter().zip(other).all(|(done, rows)| close(&flat(rows), &done.output, TOLERANCE))
    }

    /// Each rank's outputs in the order in which its tokens were sent.
    fn by_expert(&self) -> Vec<Vec<Row>> {
        (self.right.output.iter().zip(&self.case.chosen).zip(&self.placed))
            .map(|((rows, chosen), placed)| {
                let mut order: Vec<usize> = (0..rows.len()).collect();
                order.sort_by_key(|token| (!placed[*token], chosen[*token]));
                order.into_iter().map(|token| rows[token]).collect()
            })
            .collect()
    }

    fn check_output(&self, rank: usize) -> anyhow::Result<()> {
        let Checked { case, found, placed, right } = self;
        let (done, ranks, tokens) = (found[rank], found.len(), case.total());
        let is = |other: &[Vec<Row>]| self.are(other);
        let places = |placed: &Placed| is(&case.output(placed, 1, false));
        Claim::close(&flat(&right.output[rank]), &done.output, TOLERANCE)
            .on_rank(rank)
            .given(case.described())
            .diagnose_if(
                done.output.len() != WIDTH * case.chosen[rank].len(),
                format!("the output has {} numbers instead of {}: a row for each token", done.output.len(), WIDTH * case.chosen[rank].len()),
            )
            .cause_if(
                places(&case.placed(|_| tokens, false, |_| ())),
                "no token is dropped: an expert takes a limited number",
            )
            .cause_if(
                places(&case.placed(|_| case.limit, true, |_| ())),
                "each rank fills the experts up to the limit: it is one for all ranks together",
            )
            .cause_if(
                places(&case.placed(|_| case.limit / ranks, true, |_| ()))
                    || places(&case.placed(|_| case.limit.div_ceil(ranks), true, |_| ())),
                "each rank has an equal part of an expert's places: a rank may fill them all, if it comes first",
            )
            .cause_if(
                backwards(case).iter().any(places),
                "later tokens take the places: those of lower ranks come first, and of a rank the earlier ones",
            )
            .cause_if(
                places(&by_probability(case)),
                "the most probable tokens take the places: here those of lower ranks come first, and of a rank the earlier ones",
            )
            .cause_if(
                is(&case.output(placed, 0, false)),
                "the outputs are not multiplied by the probability, so the router would learn nothing from them",
            )
            .cause_if(
                is(&case.output(placed, 1, true)),
                "tokens without a place return themselves: their output is zeros, and the sum around the layer passes them on",
            )
            .cause_if(
                is(&case.crossed(placed, true)) || is(&case.crossed(placed, false)),
                "outputs of other tokens, or of other experts: what arrives is in the order of the ranks, and of each rank in the order of the \
                 experts; results go back in this order",
            )
            .cause_if(
                [case.limit.saturating_sub(1), case.limit + 1].iter().any(|limit| places(&case.placed(|_| *limit, false, |_| ()))),
                "an expert takes one token less or more than its limit",
            )
            .cause_if(is(&self.by_expert()), "the outputs are in the order in which tokens were sent: put each where its token is")
            .cause_if(
                is(&case.output(placed, 2, false)),
                "the outputs are multiplied by the probability twice",
            )
            .or_fail("a token's output is that of its most probable expert, times the probability")
    }

    fn check_dropped(&self, rank: usize) -> anyhow::Result<()> {
        let Checked { case, found, placed, .. } = self;
        let done = found[rank];
        let lost = |placed: &[bool]| placed.iter().filter(|placed| !**placed).count();
        let all: usize = placed.iter().map(|of| lost(of)).sum();
        Claim::equal(&lost(&placed[rank]), &done.dropped)
            .on_rank(rank)
            .given(case.described())
            .cause_if(
                found.iter().all(|done| done.dropped == all),
                "these are the dropped tokens of all ranks: those of this rank are asked for",
            )
            .cause_if(
                found.iter().zip(placed).all(|(done, placed)| done.dropped == placed.len() - lost(placed)),
                "these are the tokens with a place: those without one are asked for",
            )
            .or_fail("a token is dropped if its expert has no place left for it")
    }

    fn check_balance(&self, rank: usize) -> anyhow::Result<()> {
        let Checked { case, found, placed, right } = self;
        let done = found[rank];
        let observed = done.balance.unwrap_or(f64::NAN);
        let of = |shares: Vec<f64>| close(&[case.balance(rank, &shares)], &[observed], TOLERANCE);
        let chosen = || case.chosen.iter().flatten();
        let kept = chosen().zip(placed.iter().flatten()).filter_map(|(expert, placed)| placed.then_some(expert));
        let hard: f64 = case.shares(chosen()).iter().map(|share| share * share).sum();
        let (experts, tokens) = (case.router.len() as f64, case.total());
        Claim::close(&[right.balance[rank]], &[observed], TOLERANCE)
            .on_rank(rank)
            .given(case.described())
            .cause_if(
                close(&[right.balance[rank] / experts], &[observed], TOLERANCE),
                "the sum is not multiplied by the number of experts, so the loss depends on it",
            )
            .cause_if(of(case.shares(case.chosen[rank].iter())), "the parts are those of this rank's tokens: all ranks' count")
            .cause_if(of(case.shares(kept)), "the parts are those of tokens with a place: all that chose the expert count")
            .cause_if(
                close(&[experts * hard], &[observed], TOLERANCE),
                "the parts are multiplied by themselves: one of the two is the mean probability, by which the router learns",
            )
            .cause_if(
                close(&[right.balance[rank] * case.chosen[rank].len() as f64], &[observed], TOLERANCE),
                "the probabilities are added up: Pₑ is their mean over this rank's tokens",
            )
            .cause_if(
                close(&[right.balance[rank] * tokens as f64], &[observed], TOLERANCE),
                "fₑ is a number of tokens: divide it by that of all ranks' tokens",
            )
            .cause_if(
                close(&[right.balance.iter().sum::<f64>() / found.len() as f64], &[observed], TOLERANCE),
                "Pₑ is the mean over all ranks' tokens: that over this rank's is asked for",
            )
            .or_fail("the number of experts times the sum of fₑ · Pₑ")
    }

    fn check_gradients(&self, rank: usize) -> anyhow::Result<()> {
        let Checked { case, found, right, .. } = self;
        let done = found[rank];
        let router: Vec<f64> = (0..WIDTH * case.router.len())
            .map(|at| found.iter().map(|done| done.router.get(at).copied().unwrap_or(f64::NAN)).sum())
            .collect();
        // What is missing in the gradients of all ranks.
        let is = |without: Flow| {
            let other = case.passed_without(&self.placed, Some(without));
            let tokens =
                found.iter().zip(&other.tokens).all(|(done, rows)| close(&flat(rows), &done.tokens, TOLERANCE));
            tokens && close(&flat(&other.router), &router, TOLERANCE)
        };
        let caused = |claim: Claim| {
            claim
                .cause_if(
                    is(Flow::Experts),
                    "no gradient comes back from the experts to the tokens: the rows that are sent, and what comes back, belong to the graph",
                )
                .cause_if(
                    is(Flow::Probability),
                    "the probability by which an output is multiplied is a number without a gradient: the router learns from it, too",
                )
                .cause_if(is(Flow::Balance), "the balancing loss has no gradient: Pₑ belongs to the graph")
        };
        caused(Claim::close(&flat(&right.tokens[rank]), &done.tokens, TOLERANCE))
            .on_rank(rank)
            .given(format!("the gradient of the tokens\n{}", case.described()))
            .or_fail("the outputs are right, and the gradient of the tokens is not")?;
        caused(Claim::close(&flat(&right.router), &router, TOLERANCE))
            .given(format!("the gradient of the router, added up over the ranks\n{}", case.described()))
            .or_fail(
                "the router learns from the probabilities in the output and from the mean ones in the balancing loss",
            )
    }

    fn check_experts(&self, rank: usize) -> anyhow::Result<()> {
        let Checked { case, found, right, .. } = self;
        let done = found[rank];
        for (number, gradient) in done.experts.iter().enumerate() {
            let expert = rank * done.experts.len() + number;
            let whole = right.experts[expert].concat();
            // None is as good as zeros, if no token has passed it.
            let is_idle = gradient.is_empty() && whole.iter().all(|number| *number == 0.0);
            Claim::close(&whole, if is_idle { &whole } else { gradient }, TOLERANCE)
                .on_rank(rank)
                .given(format!("the gradient of expert {expert}\n{}", case.described()))
                .or_fail("an expert learns from all tokens that have passed through it, from all ranks")?;
            Claim::that(
                done.used.computed[number] <= case.limit,
                format!("at most {}", counted(case.limit, "token")),
                counted(done.used.computed[number], "token"),
            )
            .on_rank(rank)
            .given(case.described())
            .or_fail(format!("expert {expert} computes more tokens than it takes: do not send the others"))?;
        }
        Ok(())
    }

    fn check_exchanges(&self, rank: usize) -> anyhow::Result<()> {
        let Checked { case, found, placed, .. } = self;
        let (done, ranks) = (found[rank], found.len());
        let each = done.experts.len();
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
            format!("{}, there and back", counted(sent + received, "row")),
            counted(done.used.sent, "row"),
        )
        .on_rank(rank)
        .given(case.described())
        .or_fail("more rows are sent than tokens have a place: an exchange takes a number of rows for each rank, and these may differ")
    }
}

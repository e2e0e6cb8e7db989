//! Grades `ring_attention`: on 1 to 4 ranks, with single scores that dominate the others, and with scores whose exponentials overflow.

use std::ops::Range;

use lockstep_grading::{Claim, Inputs, Numbers, Runner, close, counted, explain};
use serde::{Deserialize, Serialize};

const WIDTH: usize = 4;
const TOLERANCE: f64 = 1e-9;

type Row = [f64; WIDTH];

#[derive(Clone, Debug, Serialize)]
struct Case {
    queries: Vec<Row>,
    keys: Vec<Row>,
    values: Vec<Row>,
    /// The gradient of the result.
    pull: Vec<Row>,
}

/// Of a rank, row by row.
#[derive(Clone, Debug, Deserialize)]
struct Done {
    output: Numbers,
    queries: Numbers,
    keys: Numbers,
    values: Numbers,
    shifts: u64,
    pairs: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for (ranks, chunk, scale) in [(3, 2, 2.0), (2, 2, 1.0), (4, 1, 1.0), (1, 3, 1.0), (2, 3, 30.0)] {
        let case = draw(&mut random, 2 * ranks * chunk, scale);
        let outputs = runner.call::<_, Done>(ranks, &[&case]).map_err(|error| {
            explain(error, |finding| {
                finding.ranks_wait().then(|| {
                    "a rank waits for one that does not send: each rank sends p − 1 times, and uses a part of each block, since the gradient \
                     of what it got goes back in the backward pass"
                        .into()
                })
            })
        })?;
        let found: Vec<&Done> = outputs.all(0).collect();
        check_output(&case, &found)?;
        check_gradients(&case, &found)?;
        check_work(&case, &found)?;
    }
    Ok(())
}

fn draw(random: &mut Inputs, length: usize, scale: f64) -> Case {
    let mut rows = |scale: f64| {
        let number = |random: &mut Inputs| scale * (random.below(0..2001) as f64 - 1000.0) / 500.0;
        (0..length).map(|_| [0; WIDTH].map(|_| number(random))).collect::<Vec<Row>>()
    };
    Case { queries: rows(scale), keys: rows(scale), values: rows(1.0), pull: rows(1.0) }
}

/// Whether a query, at the first position, sees a key, at the second.
type Sees<'a> = &'a dyn Fn(usize, usize) -> bool;

/// Result, and the gradients of queries, keys and values; of all positions.
type Attended = [Vec<Row>; 4];

fn dot(one: &Row, other: &Row) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

fn add(to: &mut Row, by: f64, row: &Row) {
    to.iter_mut().zip(row).for_each(|(to, number)| *to += by * number);
}

impl Case {
    fn length(&self) -> usize {
        self.queries.len()
    }

    fn attended(&self, sees: Sees<'_>) -> Attended {
        self.attended_with(sees, &|_, _| true, &|_, key| key)
    }

    /// With gradients of these pairs only, and for each pair the value at this position.
    fn attended_with(&self, sees: Sees<'_>, back: Sees<'_>, value: &dyn Fn(usize, usize) -> usize) -> Attended {
        let mut all = [(); 4].map(|()| vec![[0.0; WIDTH]; self.length()]);
        let [output, of_queries, of_keys, of_values] = &mut all;
        let scale = 1.0 / (WIDTH as f64).sqrt();
        for query in 0..self.length() {
            let seen: Vec<usize> = (0..self.length()).filter(|key| sees(query, *key)).collect();
            let scores: Vec<f64> = seen.iter().map(|key| scale * dot(&self.queries[query], &self.keys[*key])).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp() / sum).collect();
            for (key, weight) in seen.iter().zip(&weights) {
                add(&mut output[query], *weight, &self.values[value(query, *key)]);
            }
            let pulled = dot(&self.pull[query], &output[query]);
            for (key, weight) in seen.iter().zip(&weights).filter(|(key, _)| back(query, **key)) {
                add(&mut of_values[*key], *weight, &self.pull[query]);
                let of_score = scale * weight * (dot(&self.pull[query], &self.values[*key]) - pulled);
                add(&mut of_queries[query], of_score, &self.keys[*key]);
                add(&mut of_keys[*key], of_score, &self.queries[query]);
            }
        }
        all
    }

    /// Parts of the keys are attended to by themselves, and their outputs added up with the weight that so many parts have.
    fn parted(&self, parts: &[Sees<'_>], weight: fn(usize) -> f64) -> Vec<Row> {
        let outputs: Vec<Vec<Row>> = parts.iter().map(|sees| self.attended(sees)[0].clone()).collect();
        let mut sum = vec![[0.0; WIDTH]; self.length()];
        for (query, row) in sum.iter_mut().enumerate() {
            let counts = parts.iter().filter(|sees| (0..self.length()).any(|key| sees(query, key))).count();
            outputs.iter().for_each(|output| add(row, weight(counts), &output[query]));
        }
        sum
    }

    /// Blocks are merged in the order of the ring, with a mistake.
    fn merged(&self, ranks: usize, mistake: Merge) -> Vec<Row> {
        let length = self.length();
        let scale = 1.0 / (WIDTH as f64).sqrt();
        let of_query = |query: usize| {
            let own = owner(query, ranks, length);
            let mut all: Option<(Row, f64)> = None;
            for of in (0..ranks).map(|step| (own + ranks - step) % ranks) {
                let seen: Vec<usize> = (0..=query).filter(|key| owner(*key, ranks, length) == of).collect();
                if seen.is_empty() {
                    continue;
                }
                let scores: Vec<f64> =
                    seen.iter().map(|key| scale * dot(&self.queries[query], &self.keys[*key])).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let log_sum = largest + scores.iter().map(|score| (score - largest).exp()).sum::<f64>().ln();
                let mut output = [0.0; WIDTH];
                seen.iter()
                    .zip(&scores)
                    .for_each(|(key, score)| add(&mut output, (score - log_sum).exp(), &self.values[*key]));
                all = Some(match all {
                    None => (output, log_sum),
                    Some((before, sum)) => {
                        let (most, least) = if sum > log_sum { (sum, log_sum) } else { (log_sum, sum) };
                        let both = most + (least - most).exp().ln_1p();
                        let mut weights = [(sum - both).exp(), (log_sum - both).exp()];
                        if mistake == Merge::SwapsShares {
                            weights.reverse();
                        }
                        let mut merged = [0.0; WIDTH];
                        add(&mut merged, weights[0], &before);
                        add(&mut merged, weights[1], &output);
                        (merged, if mistake == Merge::KeepsSum { sum } else { both })
                    }
                });
            }
            all.map_or([0.0; WIDTH], |(output, _)| output)
        };
        (0..length).map(of_query).collect()
    }

    fn described(&self, ranks: usize) -> String {
        let chunks = |rank: usize| format!("rank {rank}: chunks {rank} and {}", 2 * ranks - 1 - rank);
        let rows: Vec<String> = (0..ranks).map(chunks).collect();
        format!("{} positions in {} chunks\n{}", self.length(), 2 * ranks, rows.join("\n"))
    }
}

/// A mistake in merging what is seen of two blocks.
#[derive(Clone, Copy, PartialEq)]
enum Merge {
    /// The logarithm of the sum does not change after the own block.
    KeepsSum,
    /// Each part has the share of the other.
    SwapsShares,
}

/// The positions of a rank.
fn positions(rank: usize, ranks: usize, length: usize) -> impl Iterator<Item = usize> + Clone {
    let chunk = length / (2 * ranks);
    let of = |number: usize| -> Range<usize> { number * chunk..(number + 1) * chunk };
    of(rank).chain(of(2 * ranks - 1 - rank))
}

/// The rank of a position.
fn owner(position: usize, ranks: usize, length: usize) -> usize {
    let number = position / (length / (2 * ranks));
    number.min(2 * ranks - 1 - number)
}

/// The numbers of the positions of a rank.
fn rows_of(rank: usize, ranks: usize, all: &[Row]) -> Vec<f64> {
    positions(rank, ranks, all.len()).flat_map(|at| all[at]).collect()
}

fn check_output(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    let (ranks, length) = (found.len(), case.length());
    let owner = |position: usize| owner(position, ranks, length);
    let sees = |query: usize, key: usize| key <= query;
    let right = case.attended(&sees);
    // The value of the query's rank that has the place of the key on its rank.
    let at = |rank: usize, place: usize| positions(rank, ranks, length).nth(place).unwrap_or_default();
    let beside = |query: usize, key: usize| {
        let place = positions(owner(key), ranks, length).position(|position| position == key);
        at(owner(query), place.unwrap_or_default())
    };
    // What a mistake would give, on all ranks.
    let all_are = |other: &[Row]| {
        found.iter().enumerate().all(|(rank, done)| close(&rows_of(rank, ranks, other), &done.output, TOLERANCE))
    };
    let is = |other: Sees<'_>| all_are(&case.attended(other)[0]);
    let by_rank: Vec<Box<dyn Fn(usize, usize) -> bool>> = (0..ranks)
        .map(|of| Box::new(move |query: usize, key: usize| key <= query && owner(key) == of) as Box<_>)
        .collect();
    let parts: Vec<Sees<'_>> = by_rank.iter().map(|sees| &**sees).collect();
    let late = |position: usize| 2 * position >= length;
    // What is seen of the own block is right; of others, by whether their rank is lower.
    let is_of = |sees: &dyn Fn(usize, usize, bool) -> bool| {
        let sees = |query: usize, key: usize| match owner(key) == owner(query) {
            true => key <= query,
            false => sees(query, key, owner(key) < owner(query)),
        };
        ranks > 1 && is(&sees)
    };
    let mine_of = |rank: usize, all: &[Row]| rows_of(rank, ranks, all);
    for (rank, done) in found.iter().enumerate() {
        let mine = |all: &[Row]| mine_of(rank, all);
        Claim::close(&mine(&right[0]), &done.output, TOLERANCE)
            .on_rank(rank)
            .given(case.described(ranks))
            .diagnose_if(
                done.output.len() != mine(&right[0]).len(),
                format!("the result has {} numbers instead of {}: a row for each query", done.output.len(), mine(&right[0]).len()),
            )
            .diagnose_if(
                done.output.iter().any(|number| !number.is_finite()),
                "infinite or not a number: the exponential of a large score overflows. Subtract the larger logarithm before you take \
                 exponentials, as `logaddexp` does",
            )
            .cause_if(
                ranks > 1 && is(&|query, key| key <= query && owner(key) == owner(query)),
                "the queries see the keys of their own rank only: send keys and values round the ring",
            )
            .cause_if(
                ranks > 1 && is(&|query, key| key <= query || owner(key) == owner(query)),
                "the queries see later keys of their own block: it needs the causal mask",
            )
            .cause_if(is(&|_, _| true), "the queries see later keys, too: the mask is causal")
            .cause_if(
                is(&|query, key| if owner(key) == owner(query) { key <= query } else { owner(key) < owner(query) }),
                "blocks of lower ranks are taken for earlier ones, and those of higher ranks for later ones, although each rank has an \
                 early and a late chunk",
            )
            .cause_if(
                is(&|query, key| owner(key) == owner(query) && key <= query || owner(key) != owner(query)),
                "the queries see all keys of other ranks: of each block, some come later",
            )
            .cause_if(
                all_are(&case.attended_with(&sees, &|_, _| false, &beside)[0]),
                "the keys of other ranks are paired with this rank's values: both go round the ring",
            )
            .cause_if(all_are(&case.parted(&parts, |_| 1.0)), "the outputs of the blocks are added up: each counts by its part of the sum of exponentials")
            .cause_if(
                all_are(&case.parted(&parts, |blocks| 1.0 / blocks as f64)),
                "the outputs of the blocks are averaged: a block counts by its part of the sum of exponentials",
            )
            .cause_if(
                ranks > 1 && is(&|query, key| key <= query && (owner(key) == owner(query) || late(query))),
                "the early chunk sees its own rank's keys only: the early chunks of lower ranks come before it",
            )
            .cause_if(
                ranks > 2 && is(&|query, key| key <= query && owner(key) != (owner(query) + 1) % ranks),
                "a block is missing: with p ranks, p − 1 others have keys",
            )
            .cause_if(
                is_of(&|query, key, lower| if lower { late(key) } else { late(query) }),
                "the queries see the late half of the blocks of lower ranks: it comes after them, and the early half before",
            )
            .cause_if(
                is_of(&|_, key, lower| lower && !late(key)),
                "nothing is seen of the blocks of higher ranks, both chunks of which come before the late queries",
            )
            .cause_if(
                is_of(&|query, key, lower| if lower { !late(key) } else { late(query) && !late(key) }),
                "only the early half of the blocks of higher ranks is seen: their late half comes before the late queries, too",
            )
            .cause_if(
                is_of(&|query, key, lower| if lower { !late(key) } else { late(query) && late(key) }),
                "only the late half of the blocks of higher ranks is seen: their early half comes before the late queries, too",
            )
            .cause_if(
                is_of(&|query, key, lower| if lower { !late(key) || late(query) } else { late(query) }),
                "the late queries see whole blocks of lower ranks, whose late half comes after them",
            )
            .cause_if(
                ranks > 1 && is(&|query, key| {
                    let lower = owner(key) < owner(query) && owner(key) > 0;
                    if owner(key) == owner(query) { key <= query } else if lower { !late(key) } else { late(query) }
                }),
                "the block of rank 0 is taken for that of a higher rank: check the last step in which a block of a lower one arrives",
            )
            .cause_if(
                ranks > 2 && is(&|query, key| {
                    let taken_for = (2 * owner(query) + ranks - owner(key)) % ranks;
                    match owner(key) == owner(query) {
                        true => key <= query,
                        false if taken_for < owner(query) => !late(key),
                        false => late(query),
                    }
                }),
                "the blocks are taken for those of other ranks: after `step` steps there is the block of rank − step, not of rank + step",
            )
            .cause_if(
                ranks > 1 && found.iter().enumerate().all(|(rank, done)| {
                    let mut rows = mine_of(rank, &right[0]);
                    let half = rows.len() / 2;
                    rows.rotate_left(half);
                    close(&rows, &done.output, TOLERANCE)
                }),
                "the late rows come first: the result has the rows of the queries, in their order",
            )
            .cause_if(
                all_are(&case.merged(ranks, Merge::KeepsSum)),
                "the logarithm of the sum stays that of the own block: after a merge it is that of both parts together",
            )
            .cause_if(
                all_are(&case.merged(ranks, Merge::SwapsShares)),
                "each part counts by the other's share of the sum: exp(a − c) belongs to the part with the logarithm a",
            )
            .or_fail("each query sees all keys of its own and of earlier positions, and the weights of all of them add up to 1")?;
    }
    Ok(())
}

fn check_gradients(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    let (ranks, length) = (found.len(), case.length());
    let sees = |query: usize, key: usize| key <= query;
    let right = case.attended(&sees);
    let owns_both = |query: usize, key: usize| owner(query, ranks, length) == owner(key, ranks, length);
    let of_own = case.attended_with(&sees, &owns_both, &|_, key| key);
    for (rank, done) in found.iter().enumerate() {
        let mine = |all: &[Row]| rows_of(rank, ranks, all);
        for (name, gradient, right) in [
            ("queries", &done.queries, &right[1]),
            ("keys", &done.keys, &right[2]),
            ("values", &done.values, &right[3]),
        ] {
            Claim::close(&mine(right), gradient, TOLERANCE)
                .on_rank(rank)
                .given(format!("the gradient of the {name}\n{}", case.described(ranks)))
                .diagnose_if(gradient.is_empty(), format!("the {name} have no gradient: the result does not depend on them for autograd"))
                .diagnose_if(
                    name != "queries" && [&of_own[2], &of_own[3]].into_iter().any(|own| close(&mine(own), gradient, TOLERANCE)),
                    "no gradients come back from other ranks: the tensor that is sent must belong to the graph",
                )
                .or_fail(format!(
                    "the result is right, and the gradient of the {name} is not: it follows if all that you compute from them, and each \
                     merge, belongs to the graph"
                ))?;
        }
    }
    Ok(())
}

fn check_work(case: &Case, found: &[&Done]) -> anyhow::Result<()> {
    // The causal pairs of the own block, whole; and half of the pairs of each other one.
    let ranks = found.len();
    let block = (case.length() / ranks).pow(2);
    let fair = block + (ranks - 1) * block / 2;
    for (rank, done) in found.iter().enumerate() {
        Claim::that(done.pairs <= fair, format!("at most {fair} pairs"), counted(done.pairs, "pair"))
            .on_rank(rank)
            .given(case.described(ranks))
            .or_fail(
                "pairs are computed that the mask then hides: of each block that arrives, only half of the pairs count, and its rank says \
                 which half",
            )?;
        let least = ranks as u64 - 1;
        Claim::that(
            done.shifts <= 2 * least,
            format!("at most {}, p − 1 for keys and values each", 2 * least),
            done.shifts.to_string(),
        )
        .on_rank(rank)
        .given(format!("calls of to_next on {}", counted(ranks, "rank")))
        .or_fail("after p − 1 steps a block has been on every rank: do not send it once more")?;
    }
    Ok(())
}

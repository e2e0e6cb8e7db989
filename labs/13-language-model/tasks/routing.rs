//! A mixture of experts token by token: what a right answer to `experts` gives, and what mistakes give.

use lockstep_grading::table;
use serde::Serialize;

pub(crate) const WIDTH: usize = 6;

pub(crate) type Row = [f64; WIDTH];

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    /// Of each rank.
    pub(crate) tokens: Vec<Vec<Row>>,
    /// The gradient of the output.
    pub(crate) pull: Vec<Vec<Row>>,
    pub(crate) router: Vec<Row>,
    pub(crate) experts: Vec<[Row; WIDTH]>,
    pub(crate) limit: usize,
    pub(crate) balance: f64,
    /// The expert to which each token points.
    #[serde(skip)]
    pub(crate) chosen: Vec<Vec<usize>>,
}

fn dot(one: &Row, other: &Row) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Which of a rank's tokens have a place.
pub(crate) type Placed = Vec<Vec<bool>>;

/// By which gradients flow back.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Flow {
    /// From an output through its expert to the token.
    Experts,
    /// From an output to the probability that it is multiplied by.
    Probability,
    /// From the balancing loss.
    Balance,
}

/// Outputs and gradients.
pub(crate) struct Passed {
    pub(crate) output: Vec<Vec<Row>>,
    pub(crate) balance: Vec<f64>,
    pub(crate) tokens: Vec<Vec<Row>>,
    /// Of all ranks.
    pub(crate) router: Vec<Row>,
    pub(crate) experts: Vec<[Row; WIDTH]>,
}

impl Case {
    pub(crate) fn total(&self) -> usize {
        self.chosen.iter().map(Vec::len).sum()
    }

    pub(crate) fn probabilities(&self, token: &Row) -> Vec<f64> {
        let exp: Vec<f64> = self.router.iter().map(|of| dot(of, token).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.into_iter().map(|exp| exp / sum).collect()
    }

    fn through(&self, expert: usize, token: &Row) -> Row {
        std::array::from_fn(|at| dot(&self.experts[expert][at], token))
    }

    /// Tokens have their places by this order of ranks and, within each, of tokens.
    pub(crate) fn placed(
        &self,
        limit: impl Fn(usize) -> usize,
        each: bool,
        order: impl Fn(&mut Vec<(usize, usize)>),
    ) -> Placed {
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

    pub(crate) fn right(&self) -> Placed {
        self.placed(|_| self.limit, false, |_| ())
    }

    /// Each token's output, times its probability so many times; of those without a place zeros or the token.
    pub(crate) fn output(&self, placed: &Placed, weighted: i32, passes: bool) -> Vec<Vec<Row>> {
        let of = |rank: usize, token: usize| {
            let (row, expert) = (&self.tokens[rank][token], self.chosen[rank][token]);
            let weight = self.probabilities(row)[expert].powi(weighted);
            match placed[rank][token] {
                true => self.through(expert, row).map(|number| weight * number),
                false => row.map(|number| if passes { number } else { 0.0 }),
            }
        };
        (0..self.chosen.len()).map(|rank| (0..self.chosen[rank].len()).map(|token| of(rank, token)).collect()).collect()
    }

    /// Outputs if what arrives is taken for sorted by expert; `returned` if it is not, but its results are returned so.
    pub(crate) fn crossed(&self, placed: &Placed, returned: bool) -> Vec<Vec<Row>> {
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
    pub(crate) fn shares<'a>(&self, chosen: impl Iterator<Item = &'a usize>) -> Vec<f64> {
        let mut counts = vec![0.0; self.router.len()];
        let mut all = 0.0;
        chosen.for_each(|expert| (counts[*expert], all) = (counts[*expert] + 1.0, all + 1.0));
        counts.into_iter().map(|count| if all > 0.0 { count / all } else { 0.0 }).collect()
    }

    pub(crate) fn balance(&self, rank: usize, shares: &[f64]) -> f64 {
        let rows = &self.tokens[rank];
        let sum: f64 =
            rows.iter().map(|row| self.probabilities(row).iter().zip(shares).map(|(p, f)| p * f).sum::<f64>()).sum();
        self.router.len() as f64 * sum / rows.len() as f64
    }

    pub(crate) fn passed(&self, placed: &Placed) -> Passed {
        self.passed_without(placed, None)
    }

    /// With a part of the gradients missing.
    pub(crate) fn passed_without(&self, placed: &Placed, without: Option<Flow>) -> Passed {
        let flows = |flow: Flow| f64::from(without != Some(flow));
        let shares = self.shares(self.chosen.iter().flatten());
        let ranks = 0..self.chosen.len();
        let mut tokens: Vec<Vec<Row>> = self.chosen.iter().map(|of| vec![[0.0; WIDTH]; of.len()]).collect();
        let mut router = vec![[0.0; WIDTH]; self.router.len()];
        let mut experts = vec![[[0.0; WIDTH]; WIDTH]; self.router.len()];
        for (rank, token) in ranks.clone().flat_map(|rank| (0..self.chosen[rank].len()).map(move |token| (rank, token)))
        {
            let (row, pull, expert) = (&self.tokens[rank][token], &self.pull[rank][token], self.chosen[rank][token]);
            let probabilities = self.probabilities(row);
            let scale = flows(Flow::Balance) * self.balance * self.router.len() as f64 / self.chosen[rank].len() as f64;
            let mut of_probabilities: Vec<f64> = shares.iter().map(|share| scale * share).collect();
            if placed[rank][token] {
                let (weight, passed) = (probabilities[expert], self.through(expert, row));
                of_probabilities[expert] += flows(Flow::Probability) * dot(pull, &passed);
                for at in 0..WIDTH {
                    for from in 0..WIDTH {
                        experts[expert][at][from] += weight * pull[at] * row[from];
                        tokens[rank][token][from] +=
                            flows(Flow::Experts) * weight * pull[at] * self.experts[expert][at][from];
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
        Passed { output: self.output(placed, 1, false), balance, tokens, router, experts }
    }

    pub(crate) fn described(&self) -> String {
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

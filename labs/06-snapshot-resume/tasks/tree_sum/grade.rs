//! Grades `tree_sum`: the same gradients on 3, 4 and 1 ranks, in single and in double precision, and how many sums each rank sends.
//!
//! Gradients are drawn until each mistake gives other bits than the tree and than each other mistake.

use std::ops::Range;

use lockstep_grading::runner::Inputs;
use lockstep_grading::{Claim, Numbers, Runner, Verdict, causes, counted, given};
use serde::{Deserialize, Serialize};

/// One rank last: what is wrong on several says more.
const RANKS: [usize; 3] = [3, 4, 1];
/// Numbers of virtual ranks, and whether their gradients are in single precision.
const CASES: [(usize, bool); 3] = [(6, true), (8, false), (5, true)];
/// The numbers of a gradient.
const LENGTH: usize = 12;
/// The first draw nearly always does.
const DRAWS: usize = 1000;

/// The gradients of all virtual ranks, and the order in which each rank receives what the ranks have sent.
#[derive(Clone, Serialize)]
struct Gradients {
    single: bool,
    gradients: Vec<Vec<f64>>,
    arrivals: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct Summed {
    numbers: Numbers,
    kind: String,
    /// How many sums the rank has sent.
    sent: usize,
}

/// Adds up one number of each virtual rank, on one of the ranks.
struct Adder<'a> {
    single: bool,
    rank: usize,
    arrivals: &'a [usize],
}

impl Adder<'_> {
    fn add(&self, one: f64, other: f64) -> f64 {
        self.rounded(one + other)
    }

    /// In the gradients' precision. A sum of two single ones that is rounded to double first is rounded alike: double has more than twice the
    /// digits (Figueroa, "When is double rounding innocuous?", 1995).
    fn rounded(&self, number: f64) -> f64 {
        if self.single { f64::from(number as f32) } else { number }
    }

    /// One after the other.
    fn in_order(&self, numbers: impl IntoIterator<Item = f64>) -> f64 {
        numbers.into_iter().reduce(|sum, next| self.add(sum, next)).unwrap_or(0.0)
    }

    /// Along a tree whose first halves have so many of a node's leaves.
    fn along(&self, leaves: &[f64], first_half: fn(usize) -> usize) -> f64 {
        if let [one] = leaves {
            return *one;
        }
        let (left, right) = leaves.split_at(first_half(leaves.len()));
        self.add(self.along(left, first_half), self.along(right, first_half))
    }

    fn tree(&self, leaves: &[f64]) -> f64 {
        self.along(leaves, |leaves| leaves / 2)
    }

    /// The same in double precision, rounded once.
    fn in_double(&self, sum: impl FnOnce(&Adder<'_>) -> f64) -> f64 {
        self.rounded(sum(&Adder { single: false, ..*self }))
    }

    /// The tree, with sums that are rounded before a rank sends them. Additions before that, and after it, are in double precision where this is
    /// true.
    fn sent(&self, leaves: &[f64], node: Range<usize>, [before, after]: [bool; 2]) -> f64 {
        let (all, ranks) = (leaves.len(), self.arrivals.len());
        let adder = |double: bool| Adder { single: self.single && !double, ..*self };
        if (0..ranks).any(|rank| rank * all / ranks <= node.start && node.end <= (rank + 1) * all / ranks) {
            return self.rounded(adder(before).tree(&leaves[node]));
        }
        let middle = usize::midpoint(node.start, node.end);
        let half = |half| self.sent(leaves, half, [before, after]);
        adder(after).add(half(node.start..middle), half(middle..node.end))
    }

    /// The ranks' sums, each added up in order or along a tree of its own.
    fn by_rank(&self, leaves: &[f64], trees: bool) -> Vec<f64> {
        let (all, ranks) = (leaves.len(), self.arrivals.len());
        let part = |rank: usize| &leaves[rank * all / ranks..(rank + 1) * all / ranks];
        let sum = |part: &[f64]| if trees { self.tree(part) } else { self.in_order(part.iter().copied()) };
        (0..ranks).map(|rank| sum(part(rank))).collect()
    }

    /// Its own first, then the others in their order.
    fn own_first(&self, by_rank: &[f64]) -> f64 {
        let others = by_rank.iter().enumerate().filter(|(rank, _)| *rank != self.rank).map(|(_, sum)| *sum);
        self.in_order([by_rank[self.rank]].into_iter().chain(others))
    }

    fn as_they_arrive(&self, by_rank: &[f64]) -> f64 {
        self.in_order(self.arrivals.iter().map(|rank| by_rank[*rank]))
    }

    /// Kahan, "Further remarks on reducing truncation errors" (1965).
    fn kahan(&self, leaves: &[f64]) -> f64 {
        let (mut sum, mut lost) = (0.0, 0.0);
        for leaf in leaves {
            let next = self.add(*leaf, -lost);
            let grown = self.add(sum, next);
            lost = self.add(self.add(grown, -sum), -next);
            sum = grown;
        }
        sum
    }

    /// Neighbours in pairs, and again the sums of these.
    fn pairs(&self, leaves: &[f64]) -> f64 {
        let mut sums = leaves.to_vec();
        while sums.len() > 1 {
            sums = sums.chunks(2).map(|pair| self.in_order(pair.iter().copied())).collect();
        }
        sums[0]
    }
}

/// What a mistake gives for one number of the gradients.
type Mistake = fn(&Adder<'_>, &[f64]) -> f64;

const OF_RANKS: &str = "the ranks' sums were added in the order of the ranks: which virtual ranks come together then depends on how many ranks there \
                        are. Add along the tree over the virtual ranks";
const OWN_FIRST: &str = "each rank has begun with its own sum and then added those of the others: another order on each rank, so that even their \
                         sums differ in the last bits";
const ARRIVED: &str =
    "the ranks' sums were added as they arrived: the order is another one on each rank, and in each run";
const OVER_RANKS: &str = "this is the sum along a tree over the ranks: with another number of ranks it is another tree. The leaves are the virtual ranks";
const IN_DOUBLE: &str = "the sum was added up in double precision and rounded once. That is more exact, and has other bits: all additions are in the \
                         precision of the gradients, as on a rank that adds before it sends";
const SENT: &str = "additions were made in double precision, and the sums rounded where they are sent and at the end. That is more exact, and has other bits: \
                    all additions are in the precision of the gradients";

const OWN: &str = "this is the sum over the rank's own virtual ranks: those of the others are not in it";

const CAUSES: [(Mistake, &str); 20] = [
    (|adder, leaves| adder.by_rank(leaves, false)[adder.rank], OWN),
    (|adder, leaves| adder.by_rank(leaves, true)[adder.rank], OWN),
    (
        |adder, leaves| adder.in_order(leaves.iter().copied()),
        "all gradients were added one after the other. That is one order, too, but no rank could add up its own before it sends them, unless \
         it has the first ones: add along the tree",
    ),
    (
        |adder, leaves| adder.in_order(leaves.iter().rev().copied()),
        "all gradients were added one after the other, from the last one on: add along the tree",
    ),
    (|adder, leaves| adder.in_order(adder.by_rank(leaves, false)), OF_RANKS),
    (|adder, leaves| adder.in_order(adder.by_rank(leaves, true)), OF_RANKS),
    (|adder, leaves| adder.own_first(&adder.by_rank(leaves, false)), OWN_FIRST),
    (|adder, leaves| adder.own_first(&adder.by_rank(leaves, true)), OWN_FIRST),
    (|adder, leaves| adder.as_they_arrive(&adder.by_rank(leaves, false)), ARRIVED),
    (|adder, leaves| adder.as_they_arrive(&adder.by_rank(leaves, true)), ARRIVED),
    (|adder, leaves| adder.tree(&adder.by_rank(leaves, false)), OVER_RANKS),
    (|adder, leaves| adder.tree(&adder.by_rank(leaves, true)), OVER_RANKS),
    (
        |adder, leaves| adder.kahan(leaves),
        "this is Kahan's sum, which makes the error of each addition good in the next one. It is more exact, and no longer a sum of sums: a \
         rank cannot add up its part before it sends it. The same bits need the same additions, not better ones",
    ),
    (|adder, leaves| adder.in_double(|double| double.tree(leaves)), IN_DOUBLE),
    (|adder, leaves| adder.in_double(|double| double.in_order(leaves.iter().copied())), IN_DOUBLE),
    (|adder, leaves| adder.rounded(adder.sent(leaves, 0..leaves.len(), [true, true])), SENT),
    (|adder, leaves| adder.rounded(adder.sent(leaves, 0..leaves.len(), [true, false])), SENT),
    (|adder, leaves| adder.rounded(adder.sent(leaves, 0..leaves.len(), [false, true])), SENT),
    (
        |adder, leaves| adder.along(leaves, |leaves| leaves.div_ceil(2)),
        "of a node with an odd number of virtual ranks, the first half was the longer one: `halves` makes the second one longer",
    ),
    (
        |adder, leaves| adder.pairs(leaves),
        "neighbours were added in pairs, and their sums again in pairs: that is the tree only for a power of two. Its nodes are halved from the \
         root down",
    ),
];

/// The sum of each number.
fn sums(case: &Gradients, rank: usize, mistake: impl Fn(&Adder<'_>, &[f64]) -> f64) -> Vec<f64> {
    let adder = Adder { single: case.single, rank, arrivals: &case.arrivals[rank] };
    let of = |place: usize| case.gradients.iter().map(|gradient| gradient[place]).collect::<Vec<_>>();
    (0..LENGTH).map(|place| mistake(&adder, &of(place))).collect()
}

fn expected(case: &Gradients) -> Vec<f64> {
    sums(case, 0, |adder, leaves| adder.tree(leaves))
}

fn ranks_of(case: &Gradients) -> usize {
    case.arrivals.len()
}

/// The cases of all numbers of ranks, which have the same gradients.
fn draw(random: &mut Inputs) -> Vec<Gradients> {
    let mut cases = Vec::new();
    for (virtual_ranks, single) in CASES {
        let mut number = || {
            let magnitude = f64::powi(2.0, random.below(0..7) as i32 - 3);
            // As many digits as the precision has, so that nearly every addition rounds.
            let digits = random.seed() >> 11;
            let number = (digits as f64 / f64::powi(2.0, 52) - 1.0) * magnitude;
            if single { f64::from(number as f32) } else { number }
        };
        let gradients: Vec<Vec<f64>> = (0..virtual_ranks).map(|_| (0..LENGTH).map(|_| number()).collect()).collect();
        for ranks in RANKS {
            let arrivals = (0..ranks).map(|_| shuffled(random, ranks)).collect();
            cases.push(Gradients { single, gradients: gradients.clone(), arrivals });
        }
    }
    cases
}

fn shuffled(random: &mut Inputs, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    (1..count).rev().for_each(|place| order.swap(place, random.below(0..place + 1)));
    order
}

/// Returns true if each mistake has other bits than the tree in single precision, and than each mistake that has another diagnosis, and if
/// ranks disagree, in the first case, by those mistakes that depend on the rank.
fn tells_apart(cases: &[Gradients]) -> bool {
    let each = |case: &Gradients| (0..ranks_of(case)).collect::<Vec<_>>();
    let given: Vec<Vec<Vec<f64>>> = CAUSES
        .iter()
        .map(|(mistake, _)| {
            cases.iter().flat_map(|case| each(case).into_iter().map(move |rank| sums(case, rank, mistake))).collect()
        })
        .collect();
    let single: Vec<bool> = cases.iter().flat_map(|case| vec![case.single; ranks_of(case)]).collect();
    let right: Vec<Vec<f64>> = cases.iter().flat_map(|case| vec![expected(case); ranks_of(case)]).collect();
    let wrong = |of: &Vec<Vec<f64>>| (0..right.len()).any(|at| single[at] && of[at] != right[at]);
    let disagree =
        |mistake: &Mistake| (1..RANKS[0]).any(|rank| sums(&cases[0], rank, mistake) != sums(&cases[0], 0, mistake));
    let mut by_rank = CAUSES.iter().filter(|(_, cause)| [OWN, OWN_FIRST, ARRIVED].contains(cause));
    given.iter().all(wrong)
        && by_rank.all(|(mistake, _)| disagree(mistake))
        && (0..CAUSES.len())
            .all(|one| (0..one).all(|other| CAUSES[one].1 == CAUSES[other].1 || given[one] != given[other]))
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let drawn = std::iter::repeat_with(|| draw(&mut random)).take(DRAWS).find(|cases| tells_apart(cases));
    let cases = drawn.ok_or_else(|| anyhow::anyhow!("no gradients were drawn that tell the mistakes apart"))?;
    let mut results = Vec::new();
    for ranks in RANKS {
        let of: Vec<Gradients> = cases.iter().filter(|case| ranks_of(case) == ranks).cloned().collect();
        let outputs =
            runner.call::<_, Summed>(ranks, &of).map_err(|error| given(error, |case| described(&of[case])))?;
        for (number, case) in of.into_iter().enumerate() {
            let summed = outputs.all(number).map(|of| (of.numbers.to_vec(), of.kind.clone(), of.sent)).collect();
            results.push((case, summed));
        }
    }
    let all_are = |mistake: &Mistake| {
        let is = |(case, summed): &(Gradients, Vec<Of>)| {
            summed.iter().enumerate().all(|(rank, (numbers, ..))| *numbers == sums(case, rank, mistake))
        };
        results.iter().all(is)
    };
    let causes = causes(&CAUSES, all_are);
    let alone = results.iter().filter(|(case, _)| ranks_of(case) == 1);
    let right_alone = alone.into_iter().all(|(case, summed)| summed[0].0 == expected(case));
    results.iter().try_for_each(|(case, summed)| check(case, summed, &causes, right_alone))?;
    results.iter().try_for_each(|(case, summed)| check_sent(case, summed))
}

/// The numbers of a rank, their kind, and how many sums it has sent.
type Of = (Vec<f64>, String, usize);

fn described(case: &Gradients) -> String {
    let (ranks, count) = (ranks_of(case), case.gradients.len());
    format!("{count} virtual ranks on {}, gradients of {LENGTH} numbers ({})", counted(ranks, "rank"), kind(case))
}

fn kind(case: &Gradients) -> &'static str {
    if case.single { "float32" } else { "float64" }
}

fn check(case: &Gradients, summed: &[Of], causes: &[&str], right_alone: bool) -> anyhow::Result<()> {
    let right = expected(case);
    let count = case.gradients.len() as f64;
    for (rank, (numbers, of_kind, _)) in summed.iter().enumerate() {
        let near = |factor: f64| {
            numbers.len() == right.len()
                && numbers
                    .iter()
                    .zip(&right)
                    .all(|(seen, right)| (factor * seen - right).abs() <= 1e-5 * right.abs().max(1.0))
        };
        let wrong_kind = of_kind != kind(case);
        // Numbers of another kind are never the same bits.
        let claim = if wrong_kind {
            Claim::that(false, format!("numbers of kind {}", kind(case)), format!("numbers of kind {of_kind}"))
        } else {
            Claim::equal(&right[..], &numbers[..])
        };
        claim
            .on_rank(rank)
            .given(described(case))
            .verdict(if summed.iter().all(|of| of.0 == *numbers) { Verdict::WrongValue } else { Verdict::RanksDisagree })
            .diagnose_if(
                wrong_kind,
                format!("the gradients are {}, and so must their sum be: all additions are in the gradients' own precision", kind(case)),
            )
            .causes(causes)
            .diagnose_if(near(count), "this is the mean over the virtual ranks: the sum is asked for")
            .diagnose_if(
                near(1.0) && right_alone,
                format!(
                    "on one rank all bits are right, and on {} the last ones differ: the numbers were added in another order or precision, \
                     and (a + b) + c need not be a + (b + c). Only halves of one node may be added, whoever has them",
                    counted(ranks_of(case), "rank")
                ),
            )
            .diagnose_if(
                near(1.0),
                "only the last bits differ: the numbers were added in another order or precision, and (a + b) + c need not be a + (b + c). Only the \
                 two halves of a node may be added",
            )
            .or_fail("this is not the sum over all virtual ranks")?;
    }
    Ok(())
}

/// A rank sends one sum for each of the largest nodes within its part.
fn check_sent(case: &Gradients, summed: &[Of]) -> anyhow::Result<()> {
    let (count, ranks) = (case.gradients.len(), ranks_of(case));
    for (rank, (.., sent)) in summed.iter().enumerate() {
        let (begin, end) = (rank * count / ranks, (rank + 1) * count / ranks);
        let most = largest(0, count, begin, end);
        Claim::that(*sent <= most, format!("{} sent", counted(most, "sum")), format!("{} sent", counted(*sent, "sum")))
            .on_rank(rank)
            .given(format!("{}, of which this rank has {}", described(case), counted(end - begin, "virtual rank")))
            .diagnose_if(
                *sent == end - begin,
                "the sum is right, but each gradient was sent by itself: a rank adds up the halves that it has both, before it sends anything",
            )
            .or_fail("the sum is right, but a rank has sent more sums than the largest nodes within its part")?;
    }
    Ok(())
}

/// The number of the largest nodes within `begin..end`, below the node `from..to`.
fn largest(from: usize, to: usize, begin: usize, end: usize) -> usize {
    if begin <= from && to <= end {
        return 1;
    }
    let middle = usize::midpoint(from, to);
    let apart = to <= begin || end <= from;
    if apart { 0 } else { largest(from, middle, begin, end) + largest(middle, to, begin, end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_in_the_orders_of_the_mistakes() {
        // Of three numbers, the small ones are lost if they meet the large one one by one.
        let adder = Adder { single: true, rank: 1, arrivals: &[2, 0, 1] };
        let leaves = [16_777_216.0, 1.0, 1.0];
        assert_eq!(adder.in_order(leaves), 16_777_216.0);
        assert_eq!(adder.tree(&leaves), 16_777_218.0);
        assert_eq!(adder.along(&leaves, |leaves| leaves.div_ceil(2)), 16_777_216.0);
        assert_eq!(adder.kahan(&leaves), 16_777_218.0);
        assert_eq!(adder.own_first(&leaves), 16_777_216.0);
        assert_eq!(adder.as_they_arrive(&leaves), 16_777_216.0);
        assert_eq!(adder.own_first(&[1.0, 1.0, 16_777_216.0]), 16_777_218.0);
        assert_eq!(adder.in_double(|double| double.in_order(leaves)), 16_777_218.0);
    }

    #[test]
    fn a_rank_has_few_large_nodes() {
        let of = |count: usize, ranks: usize| -> Vec<usize> {
            (0..ranks).map(|rank| largest(0, count, rank * count / ranks, (rank + 1) * count / ranks)).collect()
        };
        assert_eq!(of(6, 3), [2, 2, 1]);
        assert_eq!(of(8, 3), [1, 2, 2]);
        assert_eq!(of(8, 4), [1; 4]);
        assert_eq!(of(5, 1), [1]);
    }
}

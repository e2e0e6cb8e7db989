//! Grades `virtual_ranks`: all steps of two epochs on 1 to 6 ranks, and again with another seed and in another process.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Runner, causes, counted, joined};
use serde::{Deserialize, Serialize};

const VIRTUAL: usize = 6;
const STEPS: usize = 3;
const EPOCHS: u64 = 2;
/// First as many ranks as virtual ones, with which all others are compared. 6 is no multiple of the last two.
const RANKS: [usize; 6] = [VIRTUAL, 1, 2, 3, 4, 5];

#[derive(Clone, Serialize)]
struct TrainingCase {
    virtual_ranks: usize,
    batch_size: usize,
    seed: u64,
    steps: usize,
    ranks: usize,
    /// Epochs and steps.
    steps_of: Vec<(u64, usize)>,
}

#[derive(Deserialize)]
struct Pass {
    virtual_rank: usize,
    samples: Vec<usize>,
    random: [u64; 2],
}

#[derive(Deserialize)]
struct Passes {
    /// By step and rank.
    steps: Vec<Vec<Vec<Pass>>>,
    /// The order of each step's epoch.
    orders: Vec<Vec<usize>>,
}

/// Where a virtual rank is trained, and what there is.
struct Place<'a> {
    case: &'a TrainingCase,
    order: &'a [usize],
    first_order: &'a [usize],
    step: usize,
    rank: usize,
    /// Which one of the rank's virtual ranks it is, of how many.
    nth: usize,
    own: usize,
    virtual_rank: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (batch_size, seed) = (random.below(2..5), random.below(1..1000) as u64);
    let all: Vec<(u64, usize)> = (0..EPOCHS).flat_map(|epoch| (0..STEPS).map(move |step| (epoch, step))).collect();
    let case = |ranks: usize| TrainingCase {
        virtual_ranks: VIRTUAL,
        batch_size,
        seed,
        steps: STEPS,
        ranks,
        steps_of: all.clone(),
    };
    let other_seed = TrainingCase { seed: seed + 1, ..case(VIRTUAL) };
    let cases: Vec<TrainingCase> = RANKS.map(case).into_iter().chain([other_seed]).collect();
    let outputs = runner.call::<_, Passes>(1, &cases)?;
    // As after a restart, on another number of ranks.
    let resumed = TrainingCase { steps_of: all[STEPS + 1..].to_vec(), ..case(4) };
    let again = runner.call::<_, Passes>(1, std::slice::from_ref(&resumed))?;

    let runs: Vec<(&TrainingCase, &Passes)> =
        cases.iter().enumerate().map(|(number, case)| (case, outputs.of(0, number))).collect();
    // As without virtual ranks.
    let plain = runs.iter().all(|(_, passes)| {
        let mut ranks = passes.steps.iter().flat_map(|by_rank| by_rank.iter().enumerate());
        ranks.all(|(rank, own)| own.len() == 1 && own[0].virtual_rank == rank)
    });
    let resumed = (&resumed, again.of(0, 0));
    runs.iter().chain([&resumed]).try_for_each(|(case, passes)| check_parts(case, passes, plain))?;
    check_samples(&runs)?;
    let numbers = numbers(runs[0].0, runs[0].1);
    check_apart(runs[0].0, &numbers)?;
    for (case, passes) in runs[1..RANKS.len()].iter().copied().chain([resumed]) {
        check_same(case, passes, &numbers)?;
    }
    let (other, passes) = runs[RANKS.len()];
    let others = self::numbers(other, passes);
    let same = numbers.iter().find(|(key, random)| others.get(*key) == Some(*random));
    Claim::that(
        same.is_none(),
        format!("other random numbers with seed {} than with seed {seed}", other.seed),
        same.map(|(key, random)| format!("{random:?} with both, in {}", named(*key))).unwrap_or_default(),
    )
    .given(given(other))
    .or_fail("the random numbers do not depend on the seed: two runs with different seeds draw the same")
}

fn given(case: &TrainingCase) -> String {
    format!(
        "{VIRTUAL} virtual ranks on {}, batches of {}, {STEPS} steps in an epoch, seed {}",
        counted(case.ranks, "rank"),
        case.batch_size,
        case.seed
    )
}

/// Each virtual rank is trained once in a step, and a rank's virtual ranks are neighbours, nearly as many as any other's.
fn check_parts(case: &TrainingCase, passes: &Passes, plain: bool) -> anyhow::Result<()> {
    for ((epoch, step), by_rank) in case.steps_of.iter().zip(&passes.steps) {
        let mut parts: Vec<Vec<usize>> =
            by_rank.iter().map(|own| own.iter().map(|pass| pass.virtual_rank).collect()).collect();
        let claim = |holds: bool, expected: &str, parts: &[Vec<usize>]| {
            let seen: Vec<String> =
                parts.iter().enumerate().map(|(rank, part)| format!("rank {rank}: {part:?}")).collect();
            Claim::that(holds, expected, seen.join("; ")).given(format!("{}; epoch {epoch}, step {step}", given(case)))
        };
        let mut all = parts.concat();
        all.sort_unstable();
        let missing: Vec<usize> = (0..VIRTUAL).filter(|v| !all.contains(v)).collect();
        let twice = all.windows(2).find(|pair| pair[0] == pair[1]).map_or(VIRTUAL, |pair| pair[0]);
        claim(all.iter().copied().eq(0..VIRTUAL), "each of the virtual ranks 0 to 5 once", &parts)
            .diagnose_if(
                plain,
                format!(
                    "each rank trains one batch, so a step on {} has {} of {VIRTUAL} batches, and the gradient depends on the number of ranks: \
                     each rank trains all virtual ranks of its part, one after the other",
                    counted(case.ranks, "rank"),
                    case.ranks
                ),
            )
            .diagnose_if(
                all.last().is_some_and(|last| *last >= VIRTUAL),
                format!("a part goes on past the last virtual rank, {}: their numbers begin at 0", VIRTUAL - 1),
            )
            .diagnose_if(
                twice < VIRTUAL,
                format!("virtual rank {twice} is trained more than once in the step, so its gradient counts more than once"),
            )
            .diagnose_if(
                !missing.is_empty(),
                format!(
                    "virtual rank {} of the step is trained on no rank: the parts together must have all of them, also if their number is no \
                     multiple of the number of ranks",
                    joined(&missing, " and ")
                ),
            )
            .or_fail("in a step, each virtual rank must be trained once, on one of the ranks")?;
        // Their order within a rank does not matter.
        parts.iter_mut().for_each(|part| part.sort_unstable());
        claim(parts.concat().into_iter().eq(0..VIRTUAL), "neighbouring virtual ranks on each rank, rank 0 the first ones", &parts)
            .diagnose_if(
                parts.iter().enumerate().all(|(rank, part)| part.iter().all(|v| v % case.ranks == rank)),
                "virtual ranks are dealt in turns. Then hardly any two neighbours are on one rank, which can add nothing up before it sends its sums: \
                 give each rank neighbours",
            )
            .or_fail("the virtual ranks of a rank must be neighbours, which it can add up before it sends a sum")?;
        let sizes = || parts.iter().map(Vec::len);
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        claim(most - least <= 1, "no rank with two virtual ranks more than another", &parts)
            .diagnose_if(
                least == 0,
                "a rank has nothing to do while others train several virtual ranks: rank r of W has those from r V / W to (r + 1) V / W, rounded \
                 down",
            )
            .or_fail(
                "a step takes as long as the rank with the most virtual ranks, and others wait for it: rank r of W has those from r V / W to \
                 (r + 1) V / W, rounded down",
            )?;
    }
    Ok(())
}

/// The samples that a mistake takes.
type Mistake = fn(&Place<'_>) -> Vec<usize>;

impl Place<'_> {
    /// A batch from a place of the order on, of every so many samples.
    fn batch(&self, order: &[usize], first: usize, every: usize) -> Vec<usize> {
        order[first.min(order.len())..].iter().copied().step_by(every).take(self.case.batch_size).collect()
    }

    fn right(&self) -> Vec<usize> {
        self.batch(self.order, self.virtual_rank + self.step * self.case.batch_size * VIRTUAL, VIRTUAL)
    }
}

const OF_RANK: &str = "these are the samples of the real rank, one of the ranks that there are now: the sampler needs the number of the virtual rank, \
                       and how many virtual ranks there are";

const CAUSES: [(Mistake, &str); 6] = [
    (|of| of.batch(of.order, of.rank + of.step * of.case.batch_size * of.case.ranks, of.case.ranks), OF_RANK),
    (
        |of| {
            let batches = of.step * of.own + of.nth;
            of.batch(of.order, of.rank + batches * of.case.batch_size * of.case.ranks, of.case.ranks)
        },
        OF_RANK,
    ),
    (
        |of| of.batch(of.order, (of.step * VIRTUAL + of.virtual_rank) * of.case.batch_size, 1),
        "each virtual rank takes neighbours of the order in a step: `DistributedSampler` deals the samples one by one, so that virtual rank v \
         takes every so many from v on",
    ),
    (
        |of| of.batch(of.order, (of.virtual_rank * STEPS + of.step) * of.case.batch_size, 1),
        "each virtual rank has a block of the epoch's order: `DistributedSampler` deals the samples one by one, so that virtual rank v takes \
         every so many from v on",
    ),
    (
        |of| of.batch(of.first_order, of.virtual_rank + of.step * of.case.batch_size * VIRTUAL, VIRTUAL),
        "each epoch has the order of epoch 0",
    ),
    (|of| of.batch(of.order, of.virtual_rank, VIRTUAL), "each step has the batch of step 0"),
];

fn check_samples(runs: &[(&TrainingCase, &Passes)]) -> anyhow::Result<()> {
    let mut all: Vec<(Place<'_>, &[usize], u64)> = Vec::new();
    for (case, passes) in runs {
        for (((epoch, step), by_rank), order) in case.steps_of.iter().zip(&passes.steps).zip(&passes.orders) {
            for (rank, own) in by_rank.iter().enumerate() {
                all.extend(own.iter().enumerate().map(|(nth, pass)| {
                    let (own, virtual_rank, first_order) = (own.len(), pass.virtual_rank, &passes.orders[0][..]);
                    let place = Place { case, order, first_order, step: *step, rank, nth, own, virtual_rank };
                    (place, &pass.samples[..], *epoch)
                }));
            }
        }
    }
    let causes = causes(&CAUSES, |mistake| all.iter().all(|(place, samples, _)| mistake(place) == *samples));
    let on_each = |of: &Place<'_>, epoch: u64| {
        let same = |(place, _, in_epoch): &&(Place<'_>, &[usize], u64)| {
            place.case.ranks == VIRTUAL
                && place.case.seed == of.case.seed
                && (*in_epoch, place.step, place.virtual_rank) == (epoch, of.step, of.virtual_rank)
        };
        all.iter().find(same).map(|(_, samples, _)| *samples)
    };
    for (place, samples, epoch) in &all {
        let Place { step, virtual_rank, rank, case, .. } = place;
        let first = on_each(place, *epoch);
        Claim::equal(&place.right()[..], *samples)
            .given(format!("{}; {}, on rank {rank}", given(case), named((*epoch, *step, *virtual_rank))))
            .causes(&causes)
            .diagnose_if(
                first.is_some_and(|first| first != *samples),
                format!("on {VIRTUAL} ranks this virtual rank trains other samples: they must not depend on the number of ranks"),
            )
            .or_fail("these are not the samples of the virtual rank: those at the places v, v + V, v + 2 V, … of the epoch's order")?;
    }
    Ok(())
}

/// An epoch, a step and a virtual rank.
type Key = (u64, usize, usize);

fn named((epoch, step, virtual_rank): Key) -> String {
    format!("epoch {epoch}, step {step}, virtual rank {virtual_rank}")
}

fn numbers(case: &TrainingCase, passes: &Passes) -> BTreeMap<Key, [u64; 2]> {
    let steps = case.steps_of.iter().zip(&passes.steps);
    let passes = steps.flat_map(|((epoch, step), by_rank)| {
        by_rank.iter().flatten().map(move |pass| ((*epoch, *step, pass.virtual_rank), pass.random))
    });
    passes.collect()
}

/// No two keys have the same numbers.
fn check_apart(case: &TrainingCase, numbers: &BTreeMap<Key, [u64; 2]>) -> anyhow::Result<()> {
    let keys: Vec<Key> = numbers.keys().copied().collect();
    let mut pairs = keys.iter().enumerate().flat_map(|(at, later)| keys[..at].iter().map(move |key| (*key, *later)));
    let same = pairs.find(|(key, later)| numbers[key] == numbers[later]);
    // Whether the numbers stay the same if only this part of the key changes, wherever.
    let without = |change: fn(Key) -> Key| keys.iter().all(|key| numbers[key] == numbers[&change(*key)]);
    let alike = "in two passes dropout then drops the same units";
    Claim::that(
        same.is_none(),
        "other random numbers for each epoch, step and virtual rank",
        same.map(|(key, later)| format!("{:?} in {} and in {}", numbers[&key], named(key), named(later))).unwrap_or_default(),
    )
    .given(given(case))
    .diagnose_if(
        without(|(epoch, step, _)| (epoch, step, 0)),
        format!("all virtual ranks of a step draw the same random numbers, and {alike}: they must depend on the virtual rank"),
    )
    .diagnose_if(
        without(|(_, step, v)| (0, step, v)),
        format!("each epoch draws the same random numbers, and {alike}: they must depend on the epoch, too"),
    )
    .diagnose_if(
        without(|(epoch, _, v)| (epoch, 0, v)),
        format!("each step of an epoch draws the same random numbers, and {alike}: they must depend on the step, too"),
    )
    .or_fail(format!(
        "different passes draw the same random numbers, and {alike}: a sum of epoch, step and virtual rank, for instance, is the same for \
         many of them. Keep the numbers apart in the key"
    ))
}

/// The numbers are those with as many ranks as virtual ones.
fn check_same(case: &TrainingCase, passes: &Passes, numbers: &BTreeMap<Key, [u64; 2]>) -> anyhow::Result<()> {
    let own = self::numbers(case, passes);
    let Some((key, drawn)) = own.iter().find(|(key, drawn)| **drawn != numbers[*key]) else { return Ok(()) };
    let ranks = || passes.steps.iter().flatten();
    let by_rank = ranks().any(|own| own.len() > 1)
        && ranks().all(|own| own.windows(2).all(|pair| pair[0].random == pair[1].random));
    Claim::that(
        false,
        format!("{:?}, as on {VIRTUAL} ranks", numbers[key]),
        format!("{drawn:?} on {}", counted(case.ranks, "rank")),
    )
    .given(format!("{}; {}", given(case), named(*key)))
    .diagnose_if(
        by_rank,
        "all virtual ranks of one rank draw the same random numbers: they depend on the rank, and must depend on the virtual rank in its place",
    )
    .or_fail(
        "a virtual rank draws other random numbers on another number of ranks: they must depend on the seed, the epoch, the step and the virtual rank \
         alone, and not on the rank or on what it has drawn before",
    )
}

//! Grades `reshard`: jobs that are stopped and started again on other numbers of ranks must visit each sample once an epoch.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep_grading::{Claim, Finding, Runner, Verdict, counted, explain, joined};
use serde::{Deserialize, Serialize};

/// The processes; a start uses the first ones.
const RANKS: usize = 3;
const EPOCHS: u64 = 2;
const DIVIDE: &str =
    "what is left of an epoch must be divided among the ranks of this start, not among those that saved";
const TOGETHER: &str = "a rank with a longer share has one more step. Cut what is left into steps of all ranks, and each step into the \
                        ranks' batches: in the last step of an epoch a rank may have fewer samples than others, or none";

/// The number of ranks of a start, and after how many steps it is stopped.
type Start = (usize, Option<usize>);

#[derive(Serialize)]
struct ReshardCase {
    epochs: u64,
    samples: usize,
    batch_size: usize,
    seed: u64,
    starts: Vec<Start>,
}

impl ReshardCase {
    fn given(&self) -> String {
        let one = |(ranks, stop): &Start| match stop {
            Some(stop) => format!("{}, stopped after {}", counted(*ranks, "rank"), counted(*stop, "step")),
            None => format!("{} to the end", counted(*ranks, "rank")),
        };
        let starts: Vec<String> = self.starts.iter().map(one).collect();
        let ReshardCase { samples, batch_size, .. } = *self;
        format!(
            "{EPOCHS} epochs of {samples} samples, batches of {batch_size} on each rank; {}",
            starts.join("; then ")
        )
    }
}

/// What a rank did in a start: epochs and samples of its steps that are in the model.
type Steps = Vec<(u64, Vec<usize>)>;

#[derive(Deserialize)]
struct Done {
    /// Each start; nothing where this rank had no part in it.
    starts: Vec<Steps>,
    /// The numbers in the snapshot after each start.
    snapshots: Vec<Option<Vec<u64>>>,
    /// The order of all samples in each epoch.
    orders: Vec<Vec<usize>>,
}

pub(crate) fn grade(runner: &mut Runner) -> Result<()> {
    let mut random = runner.random();
    let mut seed = || random.below(1..1000) as u64;
    let seeds: [u64; 5] = std::array::from_fn(|_| seed());
    let batch = random.below(2..5);
    let case = |which: usize, samples: usize, starts: Vec<Start>| ReshardCase {
        epochs: EPOCHS,
        samples,
        batch_size: batch,
        seed: seeds[which],
        starts,
    };
    let (first, second) = (random.below(2..4), random.below(1..3));
    // Enough for the mistakes to begin within the epoch, and no whole number of batches.
    let rest = first * batch + random.below(1..batch);
    // Three ranks take an epoch of these in whole steps, and two the rest of it after 6 batches: no rank is without samples in a step.
    let even = 12 * batch;
    let cases = [
        case(0, (2 * first + 3 * second) * batch + rest, vec![(2, Some(first)), (3, Some(second)), (1, None)]),
        case(1, even, vec![(3, Some((even / 3).div_ceil(batch) + 2)), (2, None)]),
        case(2, even, vec![(2, Some((even / 2).div_ceil(batch))), (3, Some(0)), (3, None)]),
    ];
    try_all(runner, &cases, DIVIDE)?;
    // Three ranks share a rest of 6 batches and a sample or two: one of them has a sample more, and would have a step more. Nor can they
    // divide the whole epoch, so that who fills it up is seen.
    let more = if (8 * batch + 1).is_multiple_of(RANKS) { 2 } else { 1 };
    let uneven = [case(3, 8 * batch + more, vec![(2, Some(1)), (3, None)])];
    try_all(runner, &uneven, TOGETHER)?;
    // Stopped right after the last step of an epoch, in which not all batches were whole.
    let samples = 8 * batch + more;
    let ended = [case(4, samples, vec![(2, Some(samples.div_ceil(2 * batch))), (3, None)])];
    try_all(runner, &ended, TOGETHER)
        .map_err(|error| explain(error, |finding| (finding.verdict == Verdict::Crash).then(|| beyond(finding))))
}

fn beyond(finding: &Finding) -> String {
    format!(
        "the answer cannot resume from the snapshot after the last step of an epoch: does it name a position beyond the end, because a \
         whole step is added where the last one had fewer samples? ({})",
        finding.diagnosis
    )
}

fn try_all(runner: &mut Runner, cases: &[ReshardCase], apart: &'static str) -> Result<()> {
    let outputs = runner.call::<_, Done>(RANKS, cases).map_err(|error| {
        lockstep_grading::given(explain(error, |finding| why(finding, apart)), |input| cases[input].given())
    })?;
    cases.iter().enumerate().try_for_each(|(number, case)| {
        let ranks: Vec<&Done> = outputs.all(number).collect();
        ReshardJob { case, ranks, apart }.check()
    })
}

struct ReshardJob<'a> {
    case: &'a ReshardCase,
    ranks: Vec<&'a Done>,
    /// Why ranks are in different steps.
    apart: &'static str,
}

impl ReshardJob<'_> {
    /// The samples of an epoch that a start has taken, on all ranks.
    fn taken(&self, start: usize, epoch: u64) -> Vec<usize> {
        let of_rank = |done: &&Done| -> Vec<usize> {
            done.starts[start].iter().filter(|(of, _)| *of == epoch).flat_map(|(_, samples)| samples.clone()).collect()
        };
        self.ranks.iter().flat_map(of_rank).collect()
    }

    fn check(&self) -> Result<()> {
        (0..self.case.starts.len()).try_for_each(|start| self.check_together(start))?;
        (0..EPOCHS).try_for_each(|epoch| self.check_epoch(epoch))?;
        (0..EPOCHS).try_for_each(|epoch| self.check_batches(epoch))
    }

    /// In a step, all ranks of a start are in the same epoch.
    fn check_together(&self, start: usize) -> Result<()> {
        let ranks = &self.ranks[..self.case.starts[start].0];
        let epochs = |done: &&Done| -> Vec<u64> { done.starts[start].iter().map(|(epoch, _)| *epoch).collect() };
        let epochs: Vec<Vec<u64>> = ranks.iter().map(epochs).collect();
        Claim::that(
            epochs.windows(2).all(|pair| pair[0] == pair[1]),
            "all ranks in the same epoch in each step",
            format!("epochs of the steps, by rank: {epochs:?}"),
        )
        .given(self.case.given())
        .verdict(Verdict::RanksDisagree)
        .or_fail(format!("some ranks are in the next epoch while others have samples left: {}", self.apart))
    }

    fn check_epoch(&self, epoch: u64) -> Result<()> {
        let mut counts: BTreeMap<usize, usize> = (0..self.case.samples).map(|sample| (sample, 0)).collect();
        for start in 0..self.case.starts.len() {
            self.taken(start, epoch).into_iter().for_each(|sample| *counts.entry(sample).or_default() += 1);
        }
        let twice = counts.values().filter(|count| **count > 1).count();
        let never = counts.values().filter(|count| **count == 0).count();
        let claim = Claim::that(
            twice == 0 && never == 0,
            format!("each of {} samples once in epoch {epoch}", self.case.samples),
            format!("{} twice or more, {never} not at all", counted(twice, "sample")),
        )
        .given(self.case.given());
        let claim = match self.why(epoch) {
            Some(diagnosis) => claim.diagnose_if(true, diagnosis),
            None => claim,
        };
        claim.or_fail(
            "an epoch that is resumed on another number of ranks must visit the samples that are left, each once",
        )
    }

    /// A rank's batch has `batch_size` samples as long as the epoch has enough of them.
    fn check_batches(&self, epoch: u64) -> Result<()> {
        let (batch, mut left) = (self.case.batch_size, self.case.samples);
        for (start, (ranks, _)) in self.case.starts.iter().enumerate() {
            let of_rank = |done: &&Done| -> Vec<usize> {
                done.starts[start].iter().filter(|(of, _)| *of == epoch).map(|(_, samples)| samples.len()).collect()
            };
            let sizes: Vec<Vec<usize>> = self.ranks[..*ranks].iter().map(of_rank).collect();
            for step in 0..sizes[0].len() {
                let of_step: Vec<usize> = sizes.iter().map(|of_rank| of_rank[step]).collect();
                let sum: usize = of_step.iter().sum();
                let right = sum == left.min(batch * ranks) && of_step.iter().all(|size| *size <= batch);
                Claim::that(
                    right,
                    format!("{}, at most {batch} on a rank", counted(left.min(batch * ranks), "sample")),
                    format!("samples of the ranks in step {step} of epoch {epoch}: {of_step:?}"),
                )
                .given(self.case.given())
                .diagnose_if(
                    of_step.iter().any(|size| *size > batch),
                    format!("a rank's batch has more than `batch_size` = {batch} samples: divide the step among the ranks"),
                )
                .or_fail(format!(
                    "each sample is visited once, but in steps of another size: `batch_size` counts the samples of one rank, so a step of \
                     {ranks} ranks has {} as long as so many are left",
                    batch * ranks
                ))?;
                left -= sum;
            }
        }
        Ok(())
    }

    /// What happened where a start went on with this epoch.
    fn why(&self, epoch: u64) -> Option<String> {
        let order = &self.ranks[0].orders[epoch as usize];
        let place = |sample: &usize| order.iter().position(|of| of == sample);
        let (mut before, mut steps, mut of_rank) = (0, 0, 0);
        for (start, (ranks, _)) in self.case.starts.iter().enumerate() {
            let own = self.taken(start, epoch);
            let begin = own.iter().filter_map(place).min();
            let went_on = start > 0 && (before > 0 || self.ended_before(start, epoch));
            if went_on {
                if let Some(why) = self.continued(start, epoch, &own, begin, [before, steps, of_rank]) {
                    return Some(why);
                }
            } else if before == 0 && begin.is_some_and(|begin| begin > 0) {
                return Some(format!(
                    "epoch {epoch} does not begin with the first sample of its order: only the resumed epoch begins in the middle"
                ));
            }
            let mut places: Vec<usize> = own.iter().filter_map(place).collect();
            places.sort_unstable();
            if !places.is_empty() && !places.iter().copied().eq(before..before + places.len()) {
                return Some(if places.last().is_some_and(|last| last - before >= places.len()) {
                    format!(
                        "what {ranks} ranks have taken of epoch {epoch} is not the next part of its order, so one number cannot say what \
                         is left: in each step the ranks must take consecutive samples of the order, one each"
                    )
                } else {
                    format!("{ranks} ranks visit some samples of epoch {epoch} twice")
                });
            }
            before += own.len();
            let own_steps = self.ranks[0].starts[start].iter().filter(|(of, _)| *of == epoch);
            own_steps.for_each(|(_, samples)| (steps, of_rank) = (steps + 1, of_rank + samples.len()));
        }
        let left = order.len().saturating_sub(before);
        if before == 0 {
            return Some(format!(
                "the ranks took none of the samples of epoch {epoch}: set the number of samples taken back to 0 when an epoch begins"
            ));
        }
        (left > 0).then(|| {
            format!(
                "the last {left} samples of epoch {epoch} are left out: the last step of an epoch may have fewer samples than \
                 `batch_size`"
            )
        })
    }

    /// What is wrong with the samples with which a start continued this epoch, of which the starts before it had taken so many, in so many
    /// steps, and one rank so many.
    fn continued(
        &self,
        start: usize,
        epoch: u64,
        own: &[usize],
        begin: Option<usize>,
        [before, steps, of_rank]: [usize; 3],
    ) -> Option<String> {
        let (order, ranks) = (&self.ranks[0].orders[epoch as usize], self.case.starts[start].0);
        let numbers = self.ranks[0].snapshots[start - 1].clone().unwrap_or_default();
        let saved = format!("the snapshot holds the numbers {}", joined(&numbers, " and "));
        // How many of them the last start has taken.
        let of_start = self.taken(start - 1, epoch).len();
        Some(match begin {
            None if before >= order.len() => return None,
            None => format!(
                "the ranks did not take what was left of epoch {epoch}, {}: a snapshot in the middle of an epoch must say how \
                 much of it is done ({saved})",
                counted(order.len() - before, "sample")
            ),
            Some(begin) if begin == before => return None,
            Some(0) if before >= order.len() => format!(
                "epoch {epoch} begins again, though all of its samples were already trained ({saved}): what is saved after the last \
                 step of an epoch must lead to the next one"
            ),
            Some(0) if self.pads(own, &order[before..]) => format!(
                "samples from the beginning of epoch {epoch} fill up its last step, as with `DistributedSampler`, and are \
                 trained twice: here a rank may have fewer samples than others in the last step, or none"
            ),
            Some(0) => {
                format!("epoch {epoch} begins again, though {before} of its samples were already trained ({saved})")
            }
            Some(begin) if begin == of_start && numbers.contains(&(of_start as u64)) && of_start < before => format!(
                "the snapshot counts only the samples of the last start, {of_start}: add those of epoch {epoch} that were trained \
                 before it, here {}",
                before - of_start
            ),
            Some(begin) if begin == steps * self.case.batch_size * ranks && begin != of_rank => format!(
                "the snapshot counts steps, and the number of samples in a step depends on the number of ranks: {steps} steps \
                 had taken {before} samples, and {ranks} ranks continue with sample {begin} of the order. Count the samples that \
                 all ranks together have taken"
            ),
            Some(begin) if begin == of_rank && begin != steps * self.case.batch_size * ranks => format!(
                "the snapshot counts the samples of one rank, {of_rank}: count those that all ranks together have taken of epoch \
                 {epoch}, here {before}"
            ),
            Some(begin) => format!(
                "epoch {epoch} continues with sample {begin} of its order, and {before} were trained before ({saved}): what does that \
                 number count, and is it right after each stop, on each number of ranks?"
            ),
        })
    }

    /// Returns true if these are the samples that were left, and some more, fewer than a step has.
    fn pads(&self, own: &[usize], left: &[usize]) -> bool {
        left.iter().all(|sample| own.contains(sample)) && own.len() < left.len() + RANKS * self.case.batch_size
    }

    /// Returns true if an earlier start has ended in this epoch.
    fn ended_before(&self, start: usize, epoch: u64) -> bool {
        (0..start).any(|earlier| !self.taken(earlier, epoch).is_empty())
    }
}

fn why(finding: &Finding, apart: &str) -> Option<String> {
    finding
        .ranks_wait()
        .then(|| format!("some ranks have a step left when the others have none, and wait for them: {apart}"))
}

//! Grades `distributed`: the ranks' groups, samples, weights at each step, losses and checkpoint, against one process.

use anyhow::Result;
use lockstep_grading::{CallOptions, Claim, Finding, Numbers, Runner, Verdict, close, explain};
use serde::{Deserialize, Serialize};

const INPUTS: usize = 3;
const EPOCHS: usize = 3;
/// Weights and losses in single precision.
const TOLERANCE: f64 = 1e-4;
/// As in the data of `given/job.rs`: the first input of sample `i` is `i / NAMES`.
const NAMES: f64 = 64.0;

#[derive(Serialize)]
struct Settings {
    epochs: usize,
    batch_size: usize,
    lr: f64,
    seed: u64,
    inputs: Vec<Vec<f64>>,
    targets: Vec<f64>,
}

#[derive(Deserialize)]
struct Seen {
    passes: Vec<Pass>,
    reports: Vec<(u64, Option<f64>)>,
    saves: usize,
    loaded: Vec<Numbers>,
}

#[derive(Deserialize)]
struct Pass {
    weights: Numbers,
    samples: Vec<usize>,
}

/// The sizes of the groups that a rank has joined, and what it has done.
type Done = (Vec<usize>, Seen);

pub(crate) fn grade(runner: &mut Runner) -> Result<()> {
    let mut random = runner.random();
    for ranks in [3, 2] {
        let batch_of_a_rank = random.below(4..7);
        // The last batch of an epoch is smaller, and all ranks have the same share of it.
        let samples = ranks * (3 * batch_of_a_rank + random.below(1..batch_of_a_rank));
        let inputs: Vec<Vec<f64>> = (0..samples)
            .map(|index| {
                [vec![index as f64 / NAMES], random.numbers(INPUTS - 1).iter().map(|x| x / 4.0).collect()].concat()
            })
            .collect();
        let targets = random.numbers(samples);
        let (batch_size, lr, seed) = (ranks * batch_of_a_rank, 0.05, random.below(1..1000) as u64);
        let job = Settings { epochs: EPOCHS, batch_size, lr, seed, inputs, targets };
        let env = vec![("LOCKSTEP_EVENTS".to_owned(), "events".to_owned())];
        let outputs = runner
            .call_with::<_, Done>(&CallOptions { ranks, env, folder: None }, &[&job])
            .map_err(|error| explain(error, why))?;
        let run = Run { done: outputs.all(0).collect(), job: &job };
        run.check()?;
        if ranks == 2 {
            other_seed(runner, &run)?;
        }
    }
    Ok(())
}

/// Checks that another seed gives another order.
fn other_seed(runner: &mut Runner, run: &Run<'_>) -> Result<()> {
    let seed = run.job.seed + 1;
    let other = Settings { seed, inputs: run.job.inputs.clone(), targets: run.job.targets.clone(), ..*run.job };
    let options = CallOptions { ranks: run.ranks(), ..CallOptions::default() };
    let outputs = runner.call_with::<_, Done>(&options, &[&other]).map_err(|error| explain(error, why))?;
    // All epochs: two orders may begin with the same few samples by chance.
    let (one, another) = (Run::batches(&run.done[0].1), Run::batches(&outputs.of(0, 0).1));
    let begins = another.first().copied().unwrap_or_default();
    Claim::that(one != another, "another order with another seed", format!("rank 0 begins with {begins:?} both times"))
        .given(format!("seeds {} and {seed}", run.job.seed))
        .or_fail(
            "the order is the same with another seed: the sampler has its own seed, which is 0 if it is not set. Set it to `settings.seed`",
        )
}

/// What all ranks have done.
struct Run<'a> {
    job: &'a Settings,
    done: Vec<&'a Done>,
}

impl Run<'_> {
    fn check(&self) -> Result<()> {
        self.check_groups()?;
        self.check_samples()?;
        let reference = self.reference();
        self.check_weights(&reference)?;
        self.check_losses(&reference.losses)?;
        self.check_checkpoint(&reference)
    }

    fn ranks(&self) -> usize {
        self.done.len()
    }

    fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.done.iter().map(|(_, seen)| seen)
    }

    fn given(&self) -> String {
        let Settings { batch_size, lr, targets, .. } = self.job;
        format!(
            "{} ranks, {} samples, {EPOCHS} epochs, batch size {batch_size}, learning rate {lr}",
            self.ranks(),
            targets.len()
        )
    }

    fn check_groups(&self) -> Result<()> {
        let sizes: Vec<&[usize]> = self.done.iter().map(|(groups, _)| &groups[..]).collect();
        let each_in_one = sizes.iter().all(|sizes| sizes.contains(&self.ranks()));
        Claim::that(
            each_in_one,
            format!("each rank in a group of {}", self.ranks()),
            format!("groups by rank: {sizes:?}"),
        )
        .given(self.given())
        .diagnose_if(
            sizes.iter().all(|sizes| sizes.is_empty()),
            "the ranks do not join a process group, so each trains its own model: call init_process_group(env, …) before anything that \
             communicates",
        )
        .or_fail("not all ranks join the process group")
    }

    /// The samples of each pass of a rank.
    fn batches(seen: &Seen) -> Vec<&[usize]> {
        seen.passes.iter().map(|pass| &pass.samples[..]).collect()
    }

    fn check_samples(&self) -> Result<()> {
        let (all, ranks) = (self.job.targets.len(), self.ranks());
        let visited: Vec<Vec<usize>> = self.seen().map(|seen| Self::batches(seen).concat()).collect();
        let share = all / ranks;
        let of_epoch = |epoch: usize| -> Vec<usize> {
            let mut together: Vec<usize> =
                visited.iter().flat_map(|visited| visited.iter().skip(epoch * share).take(share).copied()).collect();
            together.sort_unstable();
            together
        };
        let each_once = (0..EPOCHS).all(|epoch| of_epoch(epoch).into_iter().eq(0..all));
        let counts: Vec<usize> = visited.iter().map(|visited| visited.len() / EPOCHS).collect();
        let right_length = visited.iter().all(|visited| visited.len() == share * EPOCHS);
        let everything = visited.iter().all(|visited| visited.len() == all * EPOCHS);
        Claim::that(
            each_once && right_length,
            format!("all ranks together visit each of {all} samples once an epoch: {share} on each rank"),
            format!("samples an epoch by rank: {counts:?}; first of them: {:?}", heads(&visited)),
        )
        .given(self.given())
        .diagnose_if(
            everything,
            "each rank visits all samples, so the work is not shared: RandomSampler knows only one process. DistributedSampler gives each \
             rank its part",
        )
        .diagnose_if(
            right_length && visited.windows(2).all(|pair| pair[0] == pair[1]),
            "all ranks visit the same samples, and no rank visits the rest: give the sampler the rank of its own process, env.rank",
        )
        .diagnose_if(
            right_length,
            "some samples are visited by several ranks and others by none: the ranks must take different parts of one order. All shuffle \
             with the same seed, and each gives the sampler its own rank",
        )
        .or_fail("the ranks do not visit each sample once an epoch")?;
        self.check_orders(&visited, share)?;
        self.check_steps()
    }

    fn check_orders(&self, visited: &[Vec<usize>], share: usize) -> Result<()> {
        let epochs: Vec<&[usize]> = visited[0].chunks(share).collect();
        let differ = epochs.windows(2).all(|pair| pair[0] != pair[1]);
        Claim::that(differ, "another order in each epoch", format!("rank 0 in two epochs: {:?}", &epochs[0][..share.min(6)]))
            .given(self.given())
            .or_fail(
                "each epoch has the same order: the sampler does not know the epoch. In Python, sampler.set_epoch(epoch) sets it; here, \
                 loader.epoch(epoch) does",
            )
    }

    fn check_steps(&self) -> Result<()> {
        let batch = self.job.batch_size / self.ranks();
        let share = self.job.targets.len() / self.ranks();
        let expected: Vec<usize> =
            (0..EPOCHS).flat_map(|_| (0..share).step_by(batch).map(move |begin| batch.min(share - begin))).collect();
        for (rank, seen) in self.seen().enumerate() {
            let sizes: Vec<usize> = Self::batches(seen).iter().map(|batch| batch.len()).collect();
            Claim::equal(&expected, &sizes)
                .on_rank(rank)
                .given(format!("{}; samples of the rank in each step", self.given()))
                .diagnose_if(
                    sizes.first() == Some(&self.job.batch_size),
                    "each rank takes `batch_size` samples in a step, so a step has too many and there are too few steps: `batch_size` \
                     counts the samples of all ranks together",
                )
                .or_fail("these are not the steps of one process with this batch size")?;
        }
        Ok(())
    }

    /// One process that takes the samples of all ranks in each step, with this factor on the learning rate.
    fn trained(&self, begin: &[f64], batches: &[Vec<usize>], factor: f64) -> Trained {
        let (mut weights, mut trained) = (begin.to_vec(), Trained::default());
        for batch in batches {
            trained.before.push(weights.clone());
            let (loss, gradient) = self.loss(&weights, batch);
            trained.losses.push(loss);
            weights.iter_mut().zip(&gradient).for_each(|(weight, slope)| *weight -= self.job.lr * factor * slope);
        }
        trained.before.push(weights);
        trained
    }

    /// The mean squared error of some samples, and its gradient.
    fn loss(&self, weights: &[f64], batch: &[usize]) -> (f64, Vec<f64>) {
        let (mut loss, mut gradient) = (0.0, vec![0.0; weights.len()]);
        for &sample in batch {
            let row: Vec<f64> = self.job.inputs[sample].iter().copied().chain([1.0]).collect();
            let error = row.iter().zip(weights).map(|(x, weight)| x * weight).sum::<f64>() - self.job.targets[sample];
            loss += error * error / batch.len() as f64;
            gradient.iter_mut().zip(&row).for_each(|(slope, x)| *slope += 2.0 * error * x / batch.len() as f64);
        }
        (loss, gradient)
    }

    /// The samples of all ranks in each step.
    fn steps(&self) -> Vec<Vec<usize>> {
        let steps = self.done[0].1.passes.len();
        (0..steps).map(|step| self.seen().flat_map(|seen| seen.passes[step].samples.clone()).collect()).collect()
    }

    fn reference(&self) -> Trained {
        self.trained(&self.done[0].1.passes[0].weights, &self.steps(), 1.0)
    }

    fn check_weights(&self, reference: &Trained) -> Result<()> {
        let ranks = self.ranks() as f64;
        let follows = |seen: &Seen, trained: &Trained| {
            seen.passes.iter().zip(&trained.before).all(|(pass, before)| close(before, &pass.weights, TOLERANCE))
        };
        let all_follow = |factor: f64| {
            let other = self.trained(&self.done[0].1.passes[0].weights, &self.steps(), factor);
            self.seen().all(|seen| follows(seen, &other))
        };
        for (rank, seen) in self.seen().enumerate() {
            let Some(step) = (0..seen.passes.len())
                .find(|step| !close(&reference.before[*step], &seen.passes[*step].weights, TOLERANCE))
            else {
                continue;
            };
            let own: Vec<Vec<usize>> = Self::batches(seen).iter().map(|batch| batch.to_vec()).collect();
            let alone = follows(seen, &self.trained(&seen.passes[0].weights, &own, 1.0));
            Claim::close(&reference.before[step], &seen.passes[step].weights, TOLERANCE)
                .on_rank(rank)
                .given(format!("{}; weights and bias after {step} steps, expected are those of one process", self.given()))
                .verdict(if alone { Verdict::RanksDisagree } else { Verdict::WrongValue })
                .diagnose_if(
                    alone,
                    "the rank steps by its own gradient, so each rank trains its own model on its part of the data. Wrap the network \
                     in DistributedDataParallel, and call forward and backward of the wrapped model: only those average gradients",
                )
                .cause_if(
                    all_follow(ranks),
                    "each step is as many times too long as there are ranks: the learning rate is multiplied by their number, or gradients \
                     are added up. DDP averages, and `batch_size` counts all ranks, so leave the rate as it is",
                )
                .cause_if(
                    all_follow(1.0 / ranks),
                    "each step is as many times too short as there are ranks: something is divided by their number, although DDP has \
                     already averaged",
                )
                .or_fail("the weights are not those of one process that takes the same samples in each step")?;
        }
        Ok(())
    }

    fn check_losses(&self, of_steps: &[f64]) -> Result<()> {
        let reports: Vec<usize> = self.seen().map(|seen| seen.reports.len()).collect();
        let reporting = reports.iter().filter(|count| **count > 0).count();
        let expected = self.mean_losses(of_steps, &self.steps());
        Claim::that(reporting == 1, "one rank reports", format!("reports by rank: {reports:?}"))
            .given(self.given())
            .diagnose_if(reporting == 0, "no rank reports the losses")
            .or_fail("several ranks report, so each line is printed several times: let rank 0 alone report")?;
        let Some((rank, seen)) = self.seen().enumerate().find(|(_, seen)| !seen.reports.is_empty()) else {
            return Ok(());
        };
        let observed: Vec<f64> = seen.reports.iter().map(|(_, loss)| loss.unwrap_or(f64::NAN)).collect();
        let own: Vec<Vec<usize>> = Self::batches(seen).iter().map(|batch| batch.to_vec()).collect();
        let own_losses: Vec<f64> = seen.passes.iter().map(|pass| self.loss(&pass.weights, &pass.samples).0).collect();
        let is = |other: &[f64]| close(other, &observed, TOLERANCE);
        let times = |factor: f64| -> Vec<f64> { expected.iter().map(|loss| loss * factor).collect() };
        let ranks = self.ranks() as f64;
        let steps = of_steps.len() / EPOCHS;
        let plain: Vec<f64> = of_steps.chunks(steps).map(|epoch| epoch.iter().sum::<f64>() / steps as f64).collect();
        Claim::close(&expected, &observed, TOLERANCE)
            .on_rank(rank)
            .given(format!("{}; the mean loss of each epoch", self.given()))
            .cause_if(
                is(&self.mean_losses(&own_losses, &own)),
                "this is the loss of one rank's samples, reported as that of all: add up the sums and the counts of all ranks, then divide",
            )
            .cause_if(is(&times(ranks)), "the losses of all ranks are added up and not divided by their number")
            .cause_if(is(&times(1.0 / ranks)), "the loss is divided by the number of ranks twice")
            .cause_if(
                is(&plain),
                "each step counts the same, although the last one of an epoch has fewer samples: weight a batch's mean by its number of \
                 samples",
            )
            .or_fail("this is not the mean loss over all samples of the epoch")
    }

    /// The mean over the samples of each epoch, from the means of steps.
    fn mean_losses(&self, losses: &[f64], batches: &[Vec<usize>]) -> Vec<f64> {
        let steps = losses.len() / EPOCHS;
        let mean = |(losses, batches): (&[f64], &[Vec<usize>])| {
            let sum: f64 = losses.iter().zip(batches).map(|(loss, batch)| loss * batch.len() as f64).sum();
            sum / batches.iter().map(Vec::len).sum::<usize>() as f64
        };
        losses.chunks(steps).zip(batches.chunks(steps)).map(mean).collect()
    }

    fn check_checkpoint(&self, reference: &Trained) -> Result<()> {
        let saves: Vec<usize> = self.seen().map(|seen| seen.saves).collect();
        let saving = saves.iter().filter(|count| **count > 0).count();
        Claim::that(saving == 1, "one rank saves", format!("saves by rank: {saves:?}"))
            .given(self.given())
            .diagnose_if(
                saving == self.ranks(),
                "every rank saves, and all write to the same file at the same time: their weights are equal, so one rank is enough",
            )
            .diagnose_if(saving == 0, "no rank saves: use `job.save`")
            .or_fail("several ranks save, and all write to the same file at the same time")?;
        let last = reference.before.last().map_or(&[][..], Vec::as_slice);
        for (rank, seen) in self.seen().enumerate() {
            Claim::that(
                seen.loaded.last().is_some_and(|loaded| close(last, loaded, TOLERANCE)),
                format!("{last:?}"),
                format!("{:?}", seen.loaded.last()),
            )
            .on_rank(rank)
            .given(format!("{}; the weights that the rank has read from the checkpoint", self.given()))
            .diagnose_if(seen.loaded.is_empty(), "this rank does not read the checkpoint")
            .or_fail("these are not the weights after the last step")?;
        }
        Ok(())
    }
}

/// The weights before each step and after the last, and each step's loss.
#[derive(Default)]
struct Trained {
    before: Vec<Vec<f64>>,
    losses: Vec<f64>,
}

/// The first samples of each rank.
fn heads(visited: &[Vec<usize>]) -> Vec<&[usize]> {
    visited.iter().map(|visited| &visited[..visited.len().min(4)]).collect()
}

const NOT_ALL: &str = "not all ranks make the same calls: some ranks skip a collective, or call it at another point. Is one inside `if \
     env.rank.is_zero()`?";

fn why(finding: &Finding) -> Option<String> {
    let rank = finding.rank.unwrap_or(0);
    match finding.verdict {
        Verdict::Crash if finding.diagnosis.contains("no checkpoint yet") => Some(format!(
            "rank {rank} reads the checkpoint before it is written: it does not wait for the rank that saves. A barrier stops only the \
             ranks that call it, so every rank must call it, after the save"
        )),
        Verdict::Crash => {
            let met = finding.diagnosis.split_once("Detected mismatch between collectives. ").map(|(_, calls)| calls);
            let alone = || finding.diagnosis.split_once(" lost a peer")?.0.rsplit(": ").next();
            met.or_else(alone).map(|calls| format!("{NOT_ALL} ({calls})"))
        }
        Verdict::Hang if finding.ranks_wait() => Some(NOT_ALL.to_owned()),
        _ => None,
    }
}

//! Grades `mean_loss`: two batches with mistakes and a short one without, so the weights of the batches matter.

use lockstep_grading::runner::Inputs;
use lockstep_grading::{Claim, Numbers, Runner, close};

/// The scores are single precision.
const TOLERANCE: f64 = 1e-4;
const CLASSES: usize = 3;

/// Scores and target.
type Sample = (Vec<f64>, usize);

/// A batch's length and its means.
struct Means {
    length: f64,
    loss: f64,
    accuracy: f64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // A batch of one sample would hide a second division by the length.
    let (length, short) = (random.below(6..12), random.below(2..4));
    let epoch = [mixed(&mut random, length), mixed(&mut random, length), all_right(&mut random, short)];
    let one = [mixed(&mut random, length)];
    let outputs = runner.call::<_, Numbers>(1, &[&epoch[..], &one[..]])?;
    let both: [(&[Vec<Sample>], &Numbers); 2] = [(&epoch, outputs.of(0, 0)), (&one, outputs.of(0, 1))];
    both.iter().try_for_each(|(epoch, observed)| check(epoch, observed, &both))
}

/// Samples with distinct scores and random targets. The first sample is classified wrongly.
fn mixed(random: &mut Inputs, length: usize) -> Vec<Sample> {
    let sample = |number: usize| {
        let mut scores = random.numbers(CLASSES);
        // Smaller than the steps between random scores, so that no two scores are equal.
        scores.iter_mut().enumerate().for_each(|(class, score)| *score += class as f64 / 32.0);
        let best = best(&scores);
        let target = if number == 0 { (best + 1) % CLASSES } else { random.below(0..CLASSES) };
        (scores, target)
    };
    (0..length).map(sample).collect()
}

fn all_right(random: &mut Inputs, length: usize) -> Vec<Sample> {
    let sample = |_| {
        let target = random.below(0..CLASSES);
        ((0..CLASSES).map(|class| if class == target { 4.0 } else { -4.0 }).collect(), target)
    };
    (0..length).map(sample).collect()
}

fn best(scores: &[f64]) -> usize {
    (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0)
}

fn means(batch: &[Sample]) -> Means {
    let entropy =
        |(scores, target): &Sample| scores.iter().map(|score| score.exp()).sum::<f64>().ln() - scores[*target];
    let right = batch.iter().filter(|(scores, target)| best(scores) == *target).count();
    let length = batch.len() as f64;
    Means { length, loss: batch.iter().map(entropy).sum::<f64>() / length, accuracy: right as f64 / length }
}

fn check(epoch: &[Vec<Sample>], observed: &Numbers, both: &[(&[Vec<Sample>], &Numbers)]) -> anyhow::Result<()> {
    let batches: Vec<Means> = epoch.iter().map(|batch| means(batch)).collect();
    let lengths: Vec<usize> = epoch.iter().map(Vec::len).collect();
    for (which, name) in ["loss", "accuracy"].into_iter().enumerate() {
        let mean = |of: &Means| [of.loss, of.accuracy][which];
        let each: Vec<f64> = batches.iter().map(mean).collect();
        let samples = |all: &[Means]| all.iter().map(|of| of.length).sum::<f64>();
        let sum = |all: &[Means]| all.iter().map(mean).sum::<f64>();
        let weighted = |all: &[Means]| all.iter().map(|of| mean(of) * of.length).sum::<f64>();
        // Whether both epochs have what this mistake gives.
        let both_are = |mistake: &dyn Fn(&[Means]) -> f64| {
            both.iter().all(|(epoch, observed)| {
                let batches: Vec<Means> = epoch.iter().map(|batch| means(batch)).collect();
                close(&[mistake(&batches)], &observed[which..=which], TOLERANCE)
            })
        };
        Claim::close(&[weighted(&batches) / samples(&batches)], &observed[which..=which], TOLERANCE)
            .given(format!("the {name} of batches of {lengths:?} samples, whose means are {each:.4?}"))
            .cause_if(
                both_are(&|all| all.iter().map(|of| mean(of) / of.length).sum::<f64>() / all.len() as f64)
                    || both_are(&|all| sum(all) / samples(all)),
                format!(
                    "divided by the number of samples twice: the {name} of a batch is a mean already, so the result \
                     shrinks as batches grow"
                ),
            )
            .cause_if(
                both_are(&|all| sum(all) / all.len() as f64),
                format!(
                    "this is the mean of the batches' means, in which a sample of the short last batch counts more than any other: add up \
                     {name} times length, and divide by the number of samples, once"
                ),
            )
            .cause_if(
                both_are(&|all| weighted(all) / (all.len() as f64 * all[0].length)),
                "the sum was divided as if each batch were as long as the first: the last one is shorter. Add up the lengths, too",
            )
            .cause_if(both_are(&weighted), "summed over all samples, but never divided by their number")
            .cause_if(both_are(&sum), "the means of the batches are added up, and never divided")
            .or_fail(format!("the result is not the mean {name} of the samples"))?;
    }
    Ok(())
}

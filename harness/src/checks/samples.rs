//! Checks that every sample of the data set is taken once per epoch, and that only the sampler's padding is taken twice.

use super::{Doubt, Finding, counted, grouped};
use crate::lab_run::{Epoch, Evidence, Trace};

/// Merges the ranks' samples into one order, as PyTorch's `DistributedSampler` distributed them, and compares each epoch with
/// the size of the data set.
///
/// With `n` samples on `w` ranks the sampler distributes `w · ⌈n / w⌉`: a permutation of all samples, followed by its beginning
/// as padding (torch/utils/data/distributed.py).
pub(crate) fn each_sample_once(runs: &[(&str, &Evidence)]) -> Finding {
    let results = runs.iter().map(|(name, run)| match evidence_for(run) {
        Ok(shown) => Ok(format!("{name}: {shown}")),
        Err(contradiction) => Err(Doubt::Failed(format!("{name}: {contradiction}"))),
    });
    let result = results.collect::<Result<Vec<_>, _>>().map(|shown| shown.join("; "));
    Finding::of("Every sample is seen once an epoch".into(), result)
}

fn evidence_for(run: &Evidence) -> Result<String, String> {
    let trace = Trace::of(run)?;
    for (number, epoch) in trace.epochs.iter().enumerate() {
        check(epoch, run.plan.sizes.train as usize).map_err(|flaw| format!("in epoch {number} {flaw}"))?;
    }
    let (epochs, ranks) = (counted(trace.epochs.len(), "epoch"), counted(run.plan.ranks, "rank"));
    let shown = format!("{epochs} × {} samples on {ranks}", grouped(run.plan.sizes.train));
    Ok(match padding(run.plan.sizes.train, run.plan.ranks) {
        0 => format!("{shown}, none twice"),
        1 => format!("{shown}; 1 repeat an epoch is the sampler's padding"),
        repeats => format!("{shown}; {repeats} repeats an epoch are the sampler's padding"),
    })
}

/// The number of samples per epoch that are taken twice so that all ranks have the same number.
pub(super) fn padding(samples: u64, ranks: usize) -> u64 {
    let ranks = ranks as u64;
    samples.div_ceil(ranks) * ranks - samples
}

fn check(epoch: &Epoch, samples: usize) -> Result<(), String> {
    let each = samples.div_ceil(epoch.shares.len());
    if let Some(rank) = epoch.shares.iter().position(|share| share.len() != each) {
        let taken = epoch.shares[rank].len();
        return Err(format!("rank {rank} took {}, its share is {each}", counted(taken, "sample")));
    }
    // Rank r took every w-th position, starting at r.
    let dealt: Vec<u64> = (0..each).flat_map(|place| epoch.shares.iter().map(move |share| share[place])).collect();
    let (order, repeats) = dealt.split_at(samples);
    check_permutation(order)?;
    match order.iter().cycle().zip(repeats).position(|(first, repeat)| first != repeat) {
        Some(place) => {
            let due = order[place % samples];
            Err(format!("sample {} was taken twice, the padding should repeat sample {due}", repeats[place]))
        }
        None => Ok(()),
    }
}

fn check_permutation(order: &[u64]) -> Result<(), String> {
    let mut seen = vec![false; order.len()];
    for sample in order {
        match seen.get_mut(*sample as usize) {
            None => return Err(format!("sample {sample} was taken, the data set has {}", order.len())),
            Some(true) => return Err(twice(order, *sample, &seen)),
            Some(seen) => *seen = true,
        }
    }
    Ok(())
}

fn twice(order: &[u64], sample: u64, seen: &[bool]) -> String {
    let taken = |sample: &usize| seen[*sample] || order.contains(&(*sample as u64));
    let missing = (0..order.len()).find(|sample| !taken(sample));
    let instead = missing.map_or(String::new(), |missing| format!(" and sample {missing} never"));
    format!("sample {sample} was taken twice{instead}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Verdict;
    use crate::lab_run::testing::Run;

    fn result_of(run: &Run) -> (Verdict, String) {
        let finding = each_sample_once(&[("A", &run.evidence())]);
        (finding.verdict, finding.evidence)
    }

    fn failure(ranks: usize, samples: u64, falsify: impl FnOnce(&mut Run)) -> String {
        let mut run = Run::of(ranks, 4, 2, samples);
        falsify(&mut run);
        let (verdict, evidence) = result_of(&run);
        assert_eq!(verdict, Verdict::Failed, "{evidence}");
        evidence
    }

    #[test]
    fn passes_a_set_that_divides_evenly() {
        assert_eq!(
            result_of(&Run::of(2, 4, 2, 20)),
            (Verdict::Passed, "A: 2 epochs × 20 samples on 2 ranks, none twice".into())
        );
    }

    #[test]
    fn passes_and_explains_the_padding_of_one_that_does_not() {
        let (verdict, evidence) = result_of(&Run::of(2, 4, 1, 21));
        assert_eq!(verdict, Verdict::Passed);
        assert_eq!(evidence, "A: 1 epoch × 21 samples on 2 ranks; 1 repeat an epoch is the sampler's padding");
        let (verdict, evidence) = result_of(&Run::of(4, 4, 1, 21));
        assert_eq!(verdict, Verdict::Passed);
        assert!(evidence.ends_with("on 4 ranks; 3 repeats an epoch are the sampler's padding"), "{evidence}");
    }

    #[test]
    fn passes_more_ranks_than_samples() {
        assert_eq!(result_of(&Run::of(4, 4, 1, 1)).0, Verdict::Passed);
    }

    #[test]
    fn describes_every_run() {
        let (a, b) = (Run::of(2, 4, 1, 8).evidence(), Run::of(1, 8, 1, 8).evidence());
        let finding = each_sample_once(&[("A", &a), ("B", &b)]);
        assert!(
            finding.evidence.contains("A: 1 epoch × 8 samples on 2 ranks") && finding.evidence.contains("; B: 1 epoch")
        );
        let mut bad = Run::of(1, 8, 1, 8);
        bad.shares[0][0][0] = bad.shares[0][0][1];
        let finding = each_sample_once(&[("A", &a), ("B", &bad.evidence())]);
        assert!(finding.evidence.starts_with("B: in epoch 0 sample "), "{}", finding.evidence);
    }

    #[test]
    fn fails_when_a_sample_is_taken_twice_in_place_of_another() {
        // The order of epoch 1 is 7 (i + 1) mod 20: rank 0 begins with 7, rank 1's fourth is 16.
        let message = failure(2, 20, |run| run.shares[1][1][3] = run.shares[1][0][0]);
        assert_eq!(message, "A: in epoch 1 sample 7 was taken twice and sample 16 never");
    }

    #[test]
    fn fails_when_a_sample_is_left_out() {
        let message = failure(2, 20, |run| run.shares[0][0].truncate(9));
        assert_eq!(message, "A: in epoch 0 rank 0 took 9 samples, its share is 10");
    }

    #[test]
    fn fails_when_the_last_of_all_samples_is_left_out_by_every_rank() {
        let mut run = Run::of(2, 4, 1, 20);
        run.sizes(22);
        assert_eq!(result_of(&run).0, Verdict::Failed);
    }

    #[test]
    fn fails_when_a_sample_is_outside_the_set() {
        let message = failure(2, 20, |run| run.shares[0][0][5] = 20);
        assert!(message.ends_with("sample 20 was taken, the data set has 20"), "{message}");
    }

    #[test]
    fn fails_when_the_padding_repeats_another_sample_than_the_first() {
        let message = failure(2, 21, |run| run.shares[0][1][10] = run.shares[0][1][4]);
        assert!(message.contains("the padding should repeat sample 0"), "{message}");
    }

    #[test]
    fn fails_when_the_steps_took_fewer_samples_than_are_listed() {
        let message = failure(2, 20, |run| run.losses[0][1].truncate(2));
        assert!(message.contains("rank 1's event file has 2 steps in epoch 0 of 2 announced"), "{message}");
    }

    #[test]
    fn fails_when_the_events_of_a_rank_are_missing() {
        let mut run = Run::of(2, 4, 1, 20).evidence();
        run.logs.as_mut().unwrap().remove(&1);
        let finding = each_sample_once(&[("A", &run)]);
        assert_eq!((finding.verdict, &*finding.evidence), (Verdict::Failed, "A: rank 1 left no event file"));
    }
}

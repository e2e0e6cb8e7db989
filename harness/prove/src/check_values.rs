//! Checks of exact values: each sample is taken once an epoch, and each rank holds what messages and collectives promise.
//!
//! The values of labs 04 and 05 are computed here from the initial values in their READMEs, without libtorch: integers, added up in a loop.

use serde_json::{Value, json};

use crate::evidence::{Evidence, Results};
use crate::report::{Finding, Unproven, counted, grouped};
use crate::trace::{Epoch, Trace};

/// Merges the ranks' samples into one order, as PyTorch's `DistributedSampler` distributed them, and compares each epoch with
/// the size of the data set.
///
/// With `n` samples on `w` ranks the sampler distributes `w · ⌈n / w⌉`: a permutation of all samples, followed by its beginning
/// as padding (torch/utils/data/distributed.py).
pub(crate) fn each_sample_once(runs: &[(&str, &Evidence)]) -> Finding {
    let results = runs.iter().map(|(name, run)| match taken_once(run) {
        Ok(shown) => Ok(format!("{name}: {shown}")),
        Err(contradiction) => Err(Unproven::Failed(format!("{name}: {contradiction}"))),
    });
    let result = results.collect::<Result<Vec<_>, _>>().map(|shown| shown.join("; "));
    Finding::of("Every sample is seen once an epoch".into(), result)
}

fn taken_once(run: &Evidence) -> Result<String, String> {
    let trace = Trace::of(run)?;
    for (number, epoch) in trace.epochs.iter().enumerate() {
        check_epoch(epoch, run.plan.sizes.train as usize).map_err(|flaw| format!("in epoch {number} {flaw}"))?;
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
pub(crate) fn padding(samples: u64, ranks: usize) -> u64 {
    let ranks = ranks as u64;
    samples.div_ceil(ranks) * ranks - samples
}

fn check_epoch(epoch: &Epoch, samples: usize) -> Result<(), String> {
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

/// A rank's expected value after a part; `None` if it is unspecified.
type Due = fn(rank: usize, ranks: usize) -> Option<Value>;

/// Lab 04's parts.
const MESSAGES: &[(&str, Due)] = &[
    ("send-recv", |rank, _| Some(json!([u8::from(rank < 2)]))),
    ("isend-irecv", |rank, _| Some(json!([u8::from(rank < 2)]))),
    ("ring", |rank, ranks| Some(visited(if rank == 0 { ranks } else { rank + 1 }))),
    ("deadlock-found", |_, ranks| Some(json!(circles(ranks)))),
    ("deadlock", |rank, ranks| Some(json!([(rank + ranks - 1) % ranks]))),
];

/// Lab 05's parts.
const COLLECTIVES: &[(&str, Due)] = &[
    ("broadcast", |_, _| Some(json!(start(0, 4)))),
    ("scatter", |rank, ranks| Some(json!([start(0, ranks)[rank]]))),
    ("gather", |rank, ranks| Some(if rank == 0 { json!(all(2, ranks)) } else { json!([]) })),
    ("reduce", |rank, ranks| (rank == 0).then(|| json!(sum(0..ranks, 4)))),
    ("all_reduce", |_, ranks| Some(json!(sum(0..ranks, 4)))),
    ("all_gather", |_, ranks| Some(json!(all(2, ranks)))),
    ("reduce_scatter", |rank, ranks| Some(json!([sum(0..ranks, ranks)[rank]]))),
    ("all_to_all", |rank, ranks| Some(json!(all(ranks, ranks).iter().map(|of| of[rank]).collect::<Vec<_>>()))),
    ("barrier", |_, ranks| Some(json!([ranks]))),
    ("ops", |_, ranks| Some(json!(ops(ranks)))),
    ("groups", |rank, ranks| Some(json!(sum((rank % 2..ranks).step_by(2), 4)))),
    ("group_broadcast", |rank, _| Some(json!(start(rank.min(1), 4)))),
    ("ring", |_, ranks| Some(json!(sum(0..ranks, ranks)))),
    ("doubling", |_, ranks| Some(json!(sum(0..ranks, 4)))),
];

/// Compares the results of ranks 0, 1, … after lab 04 with the messages sent.
pub(crate) fn messages_arrive(runs: &[(&str, &[Result<Results, String>])]) -> Finding {
    Finding::of("Each rank holds what was sent to it".into(), held(MESSAGES, runs))
}

/// The same for lab 05 and the definitions of the collectives.
pub(crate) fn collectives_hold(runs: &[(&str, &[Result<Results, String>])]) -> Finding {
    Finding::of("Each rank holds what the collectives promise".into(), held(COLLECTIVES, runs))
}

fn held(lessons: &[(&str, Due)], runs: &[(&str, &[Result<Results, String>])]) -> Result<String, Unproven> {
    let mut counts = Vec::new();
    for (name, ranks) in runs {
        for (rank, results) in ranks.iter().enumerate() {
            let results = results.as_ref().map_err(|flaw| format!("{name}: {flaw}"))?;
            check_results(lessons, results, rank, ranks.len()).map_err(|flaw| format!("{name}: {flaw}"))?;
        }
        counts.push(format!(
            "{name}: {} on each of {}",
            counted(lessons.len(), "lesson"),
            counted(ranks.len(), "rank")
        ));
    }
    Ok(counts.join("; "))
}

fn check_results(lessons: &[(&str, Due)], results: &Results, rank: usize, ranks: usize) -> Result<(), String> {
    for (lesson, due) in lessons {
        let value = results.get(*lesson).ok_or_else(|| format!("rank {rank} has no result of {lesson}"))?;
        let Some(due) = due(rank, ranks) else { continue };
        if !equal(value, &due) {
            return Err(format!("after {lesson} rank {rank} holds {value}, expected {due}"));
        }
    }
    Ok(())
}

/// Compares as numbers: 3 and 3.0 are equal.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        _ => one.as_f64().is_some() && one.as_f64() == other.as_f64(),
    }
}

/// The token after this many visits: the sum of the ranks, and their number.
fn visited(visits: usize) -> Value {
    json!([(0..visits).sum::<usize>(), visits])
}

/// The cycle of waiting ranks in lab 04, from the rank that rank 0 waits for back to rank 0: descending if all receive first,
/// then ascending if all send first, with short messages and with long ones.
fn circles(ranks: usize) -> [Vec<usize>; 3] {
    let forwards: Vec<usize> = (1..ranks).chain([0]).collect();
    [(0..ranks).rev().collect(), forwards.clone(), forwards]
}

/// The initial values of rank r in lab 05: 10r + 1, 10r + 2, ….
fn start(rank: usize, length: usize) -> Vec<usize> {
    (1..=length).map(|place| 10 * rank + place).collect()
}

fn all(length: usize, ranks: usize) -> Vec<Vec<usize>> {
    (0..ranks).map(|rank| start(rank, length)).collect()
}

fn sum(ranks: impl Iterator<Item = usize>, length: usize) -> Vec<usize> {
    let tensors = ranks.map(|rank| start(rank, length));
    tensors.fold(vec![0; length], |sum, tensor| sum.iter().zip(tensor).map(|(sum, value)| sum + value).collect())
}

/// Sum, product, minimum and maximum of (1 + r mod 2, 1 + r mod 3): the product over 64 ranks fits into 8 bytes.
fn ops(ranks: usize) -> [Vec<usize>; 4] {
    let fold = |with: fn(usize, usize) -> usize| {
        let place = |modulus| (0..ranks).map(|rank| 1 + rank % modulus).reduce(with).unwrap_or_default();
        [2, 3].map(place).to_vec()
    };
    [fold(|one, other| one + other), fold(|one, other| one * other), fold(usize::min), fold(usize::max)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;
    use crate::testing::Run;

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

    /// By rank.
    type Left = Vec<Result<Results, String>>;

    /// The results of ranks that did everything right.
    fn truth(lessons: &[(&str, Due)], ranks: usize) -> Left {
        let of = |rank| {
            let values = lessons.iter().map(|(name, due)| ((*name).to_owned(), due(rank, ranks).unwrap_or(json!([9]))));
            Ok(values.collect())
        };
        (0..ranks).map(of).collect()
    }

    #[test]
    fn computes_the_values_of_the_readme() {
        let due = |lesson: &str, rank| {
            let (_, due) = COLLECTIVES.iter().find(|(name, _)| *name == lesson).unwrap();
            due(rank, 3).unwrap().to_string()
        };
        assert_eq!(due("scatter", 2), "[3]");
        assert_eq!(due("all_reduce", 0), "[33,36,39,42]");
        assert_eq!(due("gather", 0), "[[1,2],[11,12],[21,22]]");
        assert_eq!(due("reduce_scatter", 1), "[36]");
        assert_eq!(due("all_to_all", 1), "[2,12,22]");
        assert_eq!(due("ops", 0), "[[4,6],[2,6],[1,1],[2,3]]");
        assert_eq!((due("groups", 2), due("groups", 1)), ("[22,24,26,28]".into(), "[11,12,13,14]".into()));
        assert_eq!(circles(3), [[2, 1, 0], [1, 2, 0], [1, 2, 0]]);
        let (_, ring) = MESSAGES[2];
        assert_eq!(
            (ring(0, 3), ring(2, 3), ring(1, 3)),
            (Some(json!([3, 3])), Some(json!([3, 3])), Some(json!([1, 2])))
        );
    }

    #[test]
    fn passes_expected_values_in_any_number_format() {
        let mut ranks = truth(MESSAGES, 2);
        ranks[0].as_mut().unwrap().insert("ring".into(), json!([1.0, 2.0]));
        assert_eq!(messages_arrive(&[("A", &ranks)]).verdict, Verdict::Passed);
        let finding = collectives_hold(&[("A", &truth(COLLECTIVES, 4)), ("B", &truth(COLLECTIVES, 1))]);
        assert_eq!(finding.evidence, "A: 14 lessons on each of 4 ranks; B: 14 lessons on each of 1 rank");
    }

    #[test]
    fn computes_the_values_of_64_ranks_the_maximum_of_threads() {
        let (messages, collectives) = (truth(MESSAGES, 64), truth(COLLECTIVES, 64));
        assert_eq!(messages_arrive(&[("A", &messages)]).verdict, Verdict::Passed);
        assert_eq!(collectives_hold(&[("A", &collectives)]).verdict, Verdict::Passed);
        assert_eq!(ops(64)[1], [1 << 32, 6_usize.pow(21)]);
    }

    #[test]
    fn fails_a_run_of_lab_04_that_found_no_deadlock() {
        let mut ranks = truth(MESSAGES, 2);
        ranks[1].as_mut().unwrap().insert("deadlock-found".into(), json!([[1, 0], [], [1, 0]]));
        let finding = messages_arrive(&[("A", &ranks)]);
        assert_eq!(finding.verdict, Verdict::Failed);
        assert_eq!(
            finding.evidence,
            "A: after deadlock-found rank 1 holds [[1,0],[],[1,0]], expected [[1,0],[1,0],[1,0]]"
        );
    }

    #[test]
    fn fails_a_wrong_a_missing_and_an_unreadable_result() {
        let evidence_of = |falsify: &dyn Fn(&mut Left)| {
            let mut ranks = truth(COLLECTIVES, 2);
            falsify(&mut ranks);
            let finding = collectives_hold(&[("A", &ranks)]);
            assert_eq!(finding.verdict, Verdict::Failed);
            finding.evidence
        };
        let wrong =
            evidence_of(&|ranks| drop(ranks[1].as_mut().unwrap().insert("all_reduce".into(), json!([12, 14, 16]))));
        assert_eq!(wrong, "A: after all_reduce rank 1 holds [12,14,16], expected [12,14,16,18]");
        assert!(
            evidence_of(&|ranks| drop(ranks[0].as_mut().unwrap().remove("ops")))
                .ends_with("rank 0 has no result of ops")
        );
        assert_eq!(evidence_of(&|ranks| ranks[1] = Err("cannot read".into())), "A: cannot read");
    }
}

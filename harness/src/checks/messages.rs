//! Checks each rank's values after the labs on messages and collectives, computed independently from the initial values in the
//! labs' READMEs. Uses no libtorch: only integers, added up in a loop.

use serde_json::{Value, json};

use super::{Doubt, Finding, counted};
use crate::lab_run::Results;

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
    Finding::of("Each rank holds what was sent to it".into(), evidence_for(MESSAGES, runs))
}

/// The same for lab 05 and the definitions of the collectives.
pub(crate) fn collectives_hold(runs: &[(&str, &[Result<Results, String>])]) -> Finding {
    Finding::of("Each rank holds what the collectives promise".into(), evidence_for(COLLECTIVES, runs))
}

fn evidence_for(lessons: &[(&str, Due)], runs: &[(&str, &[Result<Results, String>])]) -> Result<String, Doubt> {
    let mut counts = Vec::new();
    for (name, ranks) in runs {
        for (rank, results) in ranks.iter().enumerate() {
            let results = results.as_ref().map_err(|flaw| format!("{name}: {flaw}"))?;
            check(lessons, results, rank, ranks.len()).map_err(|flaw| format!("{name}: {flaw}"))?;
        }
        counts.push(format!(
            "{name}: {} on each of {}",
            counted(lessons.len(), "lesson"),
            counted(ranks.len(), "rank")
        ));
    }
    Ok(counts.join("; "))
}

fn check(lessons: &[(&str, Due)], results: &Results, rank: usize, ranks: usize) -> Result<(), String> {
    for (lesson, due) in lessons {
        let held = results.get(*lesson).ok_or_else(|| format!("rank {rank} has no result of {lesson}"))?;
        let Some(due) = due(rank, ranks) else { continue };
        if !equal(held, &due) {
            return Err(format!("after {lesson} rank {rank} holds {held}, {due} is due"));
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
            "A: after deadlock-found rank 1 holds [[1,0],[],[1,0]], [[1,0],[1,0],[1,0]] is due"
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
        assert_eq!(wrong, "A: after all_reduce rank 1 holds [12,14,16], [12,14,16,18] is due");
        assert!(
            evidence_of(&|ranks| drop(ranks[0].as_mut().unwrap().remove("ops")))
                .ends_with("rank 0 has no result of ops")
        );
        assert_eq!(evidence_of(&|ranks| ranks[1] = Err("cannot read".into())), "A: cannot read");
    }
}

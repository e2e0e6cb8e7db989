//! Grades `prefetch`: the results, and whether receiving and computing overlapped.

use lockstep_grading::{CallOptions, Claim, Numbers, Runner};
use serde::Deserialize;

use super::waits;

/// What rank 1 did with the batches. Empty on rank 0.
#[derive(Deserialize)]
struct Prefetched {
    results: Numbers,
    /// For each batch, whether it changed during the computation.
    changed: Vec<bool>,
    /// For each batch, whether the next one was sent while a receive was in progress during the computation.
    overlapped: Vec<bool>,
    /// For each batch, how many had arrived when the computation began.
    arrived: Vec<usize>,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let length = random.below(3..9);
    // The sums of the batches differ, and no sum is 0.
    let batch = |number: usize| random.numbers(length).iter().map(|value| 10.0 * (number + 1) as f64 + value).collect();
    let batches: Vec<Vec<f64>> = (0..4).map(batch).collect();
    // When ranks compare their messages, a receive writes its buffer only in `wait`, which would hide the bug that is graded here.
    let env = vec![("LOCKSTEP_COMPARE_CALLS".into(), "0".into())];
    let options = CallOptions { ranks: 2, env, ..CallOptions::default() };
    let outputs = runner.call_with::<_, Prefetched>(&options, &[&batches]).map_err(waits::explain_hang)?;
    let seen = outputs.of(1, 0);
    let sums: Vec<f64> = batches.iter().map(|batch| batch.iter().sum()).collect();
    let changed = seen.changed.iter().position(|changed| *changed);
    let shifted = sums[1..].iter().chain(sums.last()).eq(&seen.results[..]);
    let given = || format!("{} batches of {length} numbers: {batches:?}", batches.len());
    Claim::that(
        changed.is_none() && sums[..] == seen.results[..],
        format!("sums of {sums:?}, and batches that stay as they are while `compute` works on them"),
        format!(
            "sums of {:?}{}",
            seen.results,
            changed.map_or(String::new(), |number| format!(", and batch {number} changed while `compute` worked on it"))
        ),
    )
    .on_rank(1)
    .given(given())
    .diagnose_if(
        seen.results.len() != batches.len(),
        format!("`compute` processed {} of {} batches", seen.results.len(), batches.len()),
    )
    .diagnose_if(
        changed.is_some() && shifted,
        "while `compute` worked on a batch, it turned into the next one: the receive in progress writes into the memory that \
         `compute` reads. The type prevents reads of the tensor that was passed to `irecv`, but not reads through another \
         handle to its memory",
    )
    .diagnose_if(
        changed.is_some() || seen.results.first() == Some(&0.0),
        "the buffer of a receive in progress was read: a batch is complete when `wait` returns it, not before",
    )
    .or_fail("`compute` must process each batch once, in the order of arrival")?;
    let last = batches.len() - 1;
    let alone = (0..last).find(|number| seen.overlapped.get(*number) != Some(&true));
    Claim::that(
        alone.is_none(),
        "the next batch arrives while `compute` works on a batch",
        format!("batch {} did not arrive while `compute` worked on batch {}", alone.unwrap_or(0) + 1, alone.unwrap_or(0)),
    )
    .on_rank(1)
    .given(given())
    .diagnose_if(
        seen.arrived.first() == Some(&batches.len()),
        "the sums are right, but all batches were received before the first was computed on: while `compute` works nothing is in progress, \
         and the memory must hold all of them",
    )
    .or_fail(
        "the sums are right, but receiving and computing no longer overlap: start to receive the next batch into other memory \
         before you compute on this one",
    )
}

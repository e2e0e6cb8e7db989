//! Task `prefetch`: what was computed on, and what was under way meanwhile.

use lockstep_grading::{Claim, Numbers, Setting, Stage};
use serde::Deserialize;

use super::waits;

/// What rank 1 made of the batches; empty on rank 0.
#[derive(Deserialize)]
struct Prefetched {
    results: Numbers,
    /// For each batch, whether it became another one while it was computed on.
    changed: Vec<bool>,
    /// For each batch, whether the one after it came meanwhile.
    overlapped: Vec<bool>,
}

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let length = random.below(3..9);
    // Sums differ from batch to batch, and none is 0.
    let batch = |number: usize| random.numbers(length).iter().map(|value| 10.0 * (number + 1) as f64 + value).collect();
    let batches: Vec<Vec<f64>> = (0..4).map(batch).collect();
    // Where ranks compare their messages, a receive writes its buffer no earlier than in `wait`, and hides what is graded here.
    let env = vec![("LOCKSTEP_COMPARE_CALLS".into(), "0".into())];
    let setting = Setting { ranks: 2, env, ..Setting::default() };
    let outputs = stage.call_with::<_, Prefetched>(&setting, &[&batches]).map_err(waits::told)?;
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
    .knows(
        seen.results.len() != batches.len(),
        format!("of {} batches, {} were computed on", batches.len(), seen.results.len()),
    )
    .knows(
        changed.is_some() && shifted,
        "while `compute` worked on a batch it turned into the next one: the receive that is under way writes into the very \
         memory that is computed on. What the type keeps from being read is the tensor that `irecv` was given, not another \
         name for its memory",
    )
    .knows(
        changed.is_some() || seen.results.first() == Some(&0.0),
        "the buffer of a receive that is under way was read: a batch is there when `wait` gives it back, not before",
    )
    .otherwise("each batch is computed on once, in the order in which they come")?;
    let last = batches.len() - 1;
    let alone = (0..last).find(|number| seen.overlapped.get(*number) != Some(&true));
    Claim::that(
        alone.is_none(),
        "while `compute` works on a batch, the next one comes",
        format!("batch {} did not come while `compute` worked on batch {}", alone.unwrap_or(0) + 1, alone.unwrap_or(0)),
    )
    .on_rank(1)
    .given(given())
    .otherwise(
        "the sums are right, but receiving and computing no longer overlap: start to receive the next batch before you compute \
         on this one, into other memory",
    )
}

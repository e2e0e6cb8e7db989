//! Grades `prefetch`: the results, and whether receiving and computing overlapped.

use lockstep_grading::{CallOptions, Claim, Finding, Numbers, Runner, Verdict, counted, explain, rows};
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
    /// For each batch, how many had arrived when the computation began, and how many receives were in progress then.
    arrived: Vec<usize>,
    coming: Vec<usize>,
    started: usize,
}

/// How often a batch may come late.
const TRIES: usize = 3;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let length = random.below(3..9);
    // The sums of the batches differ, and no sum is 0.
    let batch = |number: usize| random.numbers(length).iter().map(|value| 10.0 * (number + 1) as f64 + value).collect();
    let batches: Vec<Vec<f64>> = (0..4).map(batch).collect();
    // When ranks compare their messages, a receive writes its buffer only in `wait`, which would hide the bug that is graded here.
    let env = vec![("LOCKSTEP_COMPARE_CALLS".into(), "0".into())];
    let options = CallOptions { ranks: 2, env, ..CallOptions::default() };
    // Two calls: a receive that the first one leaves behind would take a message of the second.
    for batches in [&batches[..], &batches[..1]] {
        let given = format!("{} of {length} numbers\n{}", counted(batches.len(), "batch"), rows("batch", batches));
        let mut call = || {
            runner.call_with::<_, Prefetched>(&options, &[batches]).map_err(|error| {
                // The course's rank 0 sends each batch once.
                let error = explain(waits::explain_hang(error), |finding| nothing_comes(finding, batches.len()));
                lockstep_grading::given(error, |_| given.clone())
            })
        };
        let mut outputs = call()?;
        // On a busy machine a batch may come late that is sent at once, but not each time.
        for _ in 1..TRIES {
            if is_late(batches.len(), outputs.of(1, 0)) {
                outputs = call()?;
            }
        }
        let seen = outputs.of(1, 0);
        check_sums(&given, batches, seen)?;
        check_computed(&given, batches.len(), seen)?;
        check_overlap(&given, batches.len(), seen)?;
        check_receives(&given, batches.len(), seen)?;
        check_memory(&given, seen)?;
    }
    Ok(())
}

/// Returns true if the next batch did not come although its receive, and no other, was in progress.
fn is_late(batches: usize, seen: &Prefetched) -> bool {
    let waits = |number: usize| seen.arrived.get(number) == Some(&(number + 1)) && seen.coming.get(number) == Some(&1);
    (0..batches - 1).any(|number| waits(number) && seen.overlapped.get(number) != Some(&true))
}

/// Explains a receive for which rank 0 has nothing left.
fn nothing_comes(finding: &Finding, batches: usize) -> Option<String> {
    let at = |rank: usize, what: &str| finding.table.get(rank).is_some_and(|line| line.contains(what));
    let receives = ["waits in recv", "waits in irecv"].into_iter().any(|what| at(1, what));
    (finding.verdict == Verdict::Hang && receives && at(0, "has finished")).then(|| {
        format!(
            "rank 0 has sent {}, each of which a receive has taken, and rank 1 waits for one more. Start one receive for each batch: before \
             `compute` works on the last one, do not start another, and drop none without `wait`, with its batch",
            match batches {
                1 => "the only batch".to_owned(),
                more => format!("all {more} batches"),
            }
        )
    })
}

/// `compute` was called once for each batch.
fn check_computed(given: &str, batches: usize, seen: &Prefetched) -> anyhow::Result<()> {
    let calls = seen.changed.len();
    Claim::that(calls == batches, format!("{} of `compute`", counted(batches, "call")), counted(calls, "call"))
        .on_rank(1)
        .given(given)
        .or_fail("the sums are right, but `compute` was not called once for each batch: its results are what is asked")
}

fn check_sums(given: &str, batches: &[Vec<f64>], seen: &Prefetched) -> anyhow::Result<()> {
    let sums: Vec<f64> = batches.iter().map(|batch| batch.iter().sum()).collect();
    let early = |number: usize| seen.changed.len() == batches.len() && seen.arrived[number] <= number;
    let changed = seen.changed.iter().enumerate().position(|(number, changed)| *changed || early(number));
    let late = |(place, sum): (usize, &f64)| sum.is_nan() || sums.get(place + 1) == Some(sum);
    let read_late = changed.is_none()
        && seen.results.split_last().is_some_and(|(last, others)| {
            !others.is_empty() && others.iter().enumerate().all(late) && Some(last) == sums.last()
        });
    let shifted = sums.len() > 1 && sums[1..].iter().chain(sums.last()).eq(&seen.results[..]);
    Claim::that(
        changed.is_none() && sums[..] == seen.results[..],
        format!("sums of {sums:?}, and batches that stay as they are while `compute` works on them"),
        format!(
            "sums of {:?}{}",
            seen.results,
            changed.map_or(String::new(), |number| format!(", and batch {number} was incomplete or changed while `compute` worked on it"))
        ),
    )
    .on_rank(1)
    .given(given)
    .diagnose_if(
        seen.results.len() != batches.len(),
        format!("`compute` processed {} of {}", seen.results.len(), counted(batches.len(), "batch")),
    )
    .diagnose_if(
        changed.is_some() && shifted,
        "while `compute` worked on a batch, it turned into the next one: the receive in progress writes into the memory that `compute` \
         reads. The compiler forbids reads of the tensor that was passed to `irecv`, but not reads of another handle to its memory",
    )
    .diagnose_if(
        read_late,
        "only the last batch is right: the others were read, or copied, after the next receive into the same memory was started. From then \
         on the memory belongs to that receive, even before its message comes: copy before you start it",
    )
    .diagnose_if(
        changed.is_some() || seen.results.iter().all(|sum| sum.is_nan()) || seen.results.first() == Some(&0.0),
        "the buffer of a receive in progress was read: a batch is complete when `wait` returns it, not before",
    )
    .or_fail("`compute` must process each batch once, in the order of arrival")
}

fn check_overlap(given: &str, batches: usize, seen: &Prefetched) -> anyhow::Result<()> {
    let alone = (0..batches - 1).find(|number| seen.overlapped.get(*number) != Some(&true));
    Claim::that(
        alone.is_none(),
        "the next batch arrives while `compute` works on a batch",
        format!("batch {} did not arrive while `compute` worked on batch {}", alone.unwrap_or(0) + 1, alone.unwrap_or(0)),
    )
    .on_rank(1)
    .given(given)
    .diagnose_if(
        seen.arrived.first() == Some(&batches),
        "the sums are right, but all batches were received before `compute` began: nothing is in progress while it works, and all batches \
         must fit into memory",
    )
    .diagnose_if(
        seen.arrived.first().is_some_and(|arrived| *arrived > 1),
        "the sums are right, but the answer waited for the next batch before `compute` worked on this one, so nothing is in progress while \
         it works: start the receive before `compute`, and wait for it after",
    )
    .or_fail(
        "the sums are right, but receiving and computing no longer overlap: start to receive the next batch into other memory \
         before you compute on this one",
    )
}

fn check_receives(given: &str, batches: usize, seen: &Prefetched) -> anyhow::Result<()> {
    Claim::that(seen.started <= batches, counted(batches, "receive"), counted(seen.started, "receive"))
        .on_rank(1)
        .given(given)
        .or_fail(
            "the sums are right, but there is one receive more than batches: it takes whatever rank 0 sends next, and a wait for it may never \
             end. Before `compute` works on the last batch, do not start another receive",
        )
}

fn check_memory(given: &str, seen: &Prefetched) -> anyhow::Result<()> {
    let most = seen.coming.iter().copied().max().unwrap_or(0);
    let (one, observed) = (counted(1, "receive"), counted(most, "receive"));
    Claim::that(most <= 1, format!("{one} in progress while `compute` works"), format!("{observed} in progress"))
        .on_rank(1)
        .given(given)
        .or_fail(
            "the sums are right, but a receive needs the memory of a batch, and more than one is in progress while `compute` works: start only \
             that of the next batch",
        )
}

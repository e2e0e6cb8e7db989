//! Grades `exchange`: pieces of a row and the numbers next to their borders, on 3 and 2 ranks.

use lockstep_grading::{Claim, Numbers, Runner, close, rows};

use super::waits;

/// An operation, and whether its end was waited for.
type Called = (String, bool);

/// The row, the calls, and for each how many earlier ones had been waited for.
type Exchanged = (Numbers, Vec<Called>, Vec<usize>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // With 2 ranks, each rank is both neighbours of the other.
    for ranks in [3, 2] {
        let mut piece = |rank: usize| -> Vec<f64> {
            let length = random.below(2..7);
            // The numbers rise, so no two of them are equal.
            let value = |(place, noise): (usize, f64)| 100.0 * rank as f64 + 10.0 * place as f64 + noise;
            random.numbers(length).into_iter().enumerate().map(value).collect()
        };
        let given: Vec<Vec<f64>> = (0..ranks).map(&mut piece).collect();
        let outputs = runner.call::<_, Exchanged>(ranks, &[&given]).map_err(|error| {
            lockstep_grading::given(waits::explain_hang(error), |_| {
                format!("the pieces of {ranks} ranks\n{}", rows("rank", &given))
            })
        })?;
        for (rank, (observed, ..)) in outputs.all(0).enumerate() {
            check(rank, &given, observed)?;
        }
        for (rank, (_, calls, waited_before)) in outputs.all(0).enumerate() {
            check_waits(rank, calls)?;
            check_messages(rank, calls, waited_before)?;
        }
    }
    Ok(())
}

fn check(rank: usize, given: &[Vec<f64>], observed: &[f64]) -> anyhow::Result<()> {
    let ranks = given.len();
    let (own, previous, next) = (&given[rank], &given[(rank + ranks - 1) % ranks], &given[(rank + 1) % ranks]);
    let around = |before: f64, after: f64| [&[before], &own[..], &[after]].concat();
    let (first, last) = (|of: &[f64]| of[0], |of: &[f64]| of[of.len() - 1]);
    let expected = around(last(previous), first(next));
    let near = |wrong: &[f64]| close(wrong, observed, 0.0);
    Claim::equal(&expected[..], observed)
        .on_rank(rank)
        .given(format!("the pieces of {ranks} ranks\n{}", rows("rank", given)))
        .diagnose_if(observed.len() != own.len() + 2, "the result must be the rank's piece with one number before it and one after it")
        .diagnose_if(
            ranks == 2 && near(&around(first(next), last(previous))),
            "the two messages from the other rank are swapped. With two ranks, both neighbours are the same rank. Two of its messages \
             with the same tag match in the order in which they were started",
        )
        .diagnose_if(
            near(&around(first(next), last(previous))),
            "the number from the next rank comes first, and the number from the previous rank comes last: swap them",
        )
        .diagnose_if(
            near(&around(first(previous), last(next))),
            "these are the neighbours' numbers from their far ends: the next rank needs the last number of this piece, the \
             previous rank its first",
        )
        .diagnose_if(
            near(&around(first(own), last(own))) || near(&around(last(own), first(own))),
            "the numbers at the ends are this rank's own: nothing was received",
        )
        .diagnose_if(
            near(&around(0.0, 0.0)) || observed.first().is_some_and(|number| number.is_nan()),
            "the numbers at the ends are those from before the receive: use the tensors that `wait` returns",
        )
        .or_fail("the first number must be the last one of the previous rank's piece, the last number the first one of the next rank's")
}

/// Checks that each message was waited for.
fn check_waits(rank: usize, calls: &[Called]) -> anyhow::Result<()> {
    let dropped: Vec<&str> = calls.iter().filter(|(_, waited)| !waited).map(|(call, _)| &**call).collect();
    Claim::that(dropped.is_empty(), "a wait for each message", format!("no wait for {}", dropped.join(", ")))
        .on_rank(rank)
        .given(format!("the calls: {}", calls.iter().map(|(call, _)| &**call).collect::<Vec<_>>().join(", ")))
        .or_fail(
            "the numbers are right, but a message that was started is dropped without `wait`: it may never leave, and its receiver waits \
             forever. Only `wait` shows that it has left",
        )
}

/// Checks that the numbers came as messages, and that no message is sent after one was waited for.
fn check_messages(rank: usize, calls: &[Called], waited_before: &[usize]) -> anyhow::Result<()> {
    let is = |call: &str, names: &[&str]| names.contains(&call.split([' ', '(']).next().unwrap_or(""));
    let collective = calls.iter().any(|(call, _)| !is(call, &["isend", "irecv", "send", "recv", "barrier"]));
    let blocks = calls.iter().any(|(call, _)| is(call, &["send"]));
    // A receive after another blocks no rank if both sends are in progress; and a barrier before them is not a wait for a message.
    let barriers =
        |before: usize| calls[..before].iter().filter(|(call, waited)| *waited && is(call, &["barrier"])).count();
    let mut sends =
        calls.iter().zip(waited_before).enumerate().filter(|(_, ((call, _), _))| is(call, &["isend", "send"]));
    let waits = sends.any(|(number, (_, waited))| *waited > barriers(number));
    let shown: Vec<&str> = calls.iter().map(|(call, _)| &**call).collect();
    Claim::that(!collective && !blocks && !waits, "two isends and two irecvs, and then four waits", shown.join(", "))
        .on_rank(rank)
        .given("the calls")
        .diagnose_if(
            collective,
            "the numbers are right, but a collective brings the borders of all ranks to all: a rank waits for ranks that are not its \
             neighbours, and needs little of what it gets. Send two messages and receive two",
        )
        .diagnose_if(
            blocks,
            "the numbers are right, but a `send` that blocks holds up the other three messages, so the ranks take turns: start all four \
             with `isend` and `irecv`",
        )
        .or_fail(
            "the numbers are right, but the rank waited for one message before it sent the other, so one direction waits for the other: \
             start all four, then wait for all",
        )
}

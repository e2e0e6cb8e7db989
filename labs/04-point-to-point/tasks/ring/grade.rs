//! Grades `ring`: every rank must end with the tensors of all ranks, on 3, 4 and 1 ranks.

use lockstep_grading::{Claim, Numbers, Runner, counted, rows};

use super::waits;

/// An operation, and whether its end was waited for.
type Called = (String, bool);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [3, 4, 1] {
        let length = random.below(2..6);
        // Numbers of different ranks are never equal, and no number is 0.
        let of_rank =
            |rank: usize| random.numbers(length).iter().map(|value| 10.0 * (rank + 1) as f64 + value).collect();
        let given: Vec<Vec<f64>> = (0..ranks).map(of_rank).collect();
        let outputs = runner
            .call::<_, (Vec<Numbers>, Vec<Called>)>(ranks, &[&given])
            .map_err(|error| lockstep_grading::given(waits::explain_hang(error), |_| described(&given)))?;
        let owners: Vec<Vec<Option<usize>>> = outputs.all(0).map(|(all, _)| owners(&given, all)).collect();
        for (rank, (observed, calls)) in outputs.all(0).enumerate() {
            check(rank, &given, &owners, observed, calls)?;
        }
        for (rank, (_, calls)) in outputs.all(0).enumerate() {
            check_calls(rank, ranks, calls)?;
        }
    }
    Ok(())
}

fn described(given: &[Vec<f64>]) -> String {
    format!("the tensors of {}\n{}", counted(given.len(), "rank"), rows("rank", given))
}

/// The rank whose tensor is at each position.
fn owners(given: &[Vec<f64>], observed: &[Numbers]) -> Vec<Option<usize>> {
    observed.iter().map(|numbers| given.iter().position(|own| own[..] == numbers[..])).collect()
}

fn check(
    rank: usize,
    given: &[Vec<f64>],
    owners: &[Vec<Option<usize>>],
    observed: &[Numbers],
    calls: &[Called],
) -> anyhow::Result<()> {
    let (ranks, places) = (given.len(), &owners[rank]);
    let expected: Vec<Numbers> = given.iter().cloned().map(Numbers).collect();
    let of = |place: usize| (place + ranks) % ranks;
    // The rank whose tensor came in step s, if the positions were filled in the intended order.
    let in_step = |step: usize| places.get(of(rank + ranks - step)).copied().flatten();
    let only_from_previous = ranks > 2 && (1..ranks).all(|step| in_step(step) == Some(of(rank + ranks - 1)));
    // What arrived last, in every place but the rank's own, although all came from the previous rank.
    let only_last = (1..ranks).all(|step| in_step(step) == Some(of(rank + 1)))
        && !calls.iter().any(|(call, _)| call.ends_with(&format!("from rank {}", of(rank + 1))));
    let lost =
        (0..ranks).find(|of| owners.iter().enumerate().all(|(at, places)| at == *of || !places.contains(&Some(*of))));
    let mut all: Vec<usize> = places.iter().copied().flatten().collect();
    all.sort_unstable();
    let misplaced = all.iter().copied().eq(0..ranks);
    let unfilled = observed.iter().position(|numbers| numbers.iter().all(|value| *value == 0.0));
    Claim::equal(&expected[..], observed)
        .on_rank(rank)
        .given(described(given))
        .diagnose_if(observed.len() != ranks, format!("there are {} but {}", counted(ranks, "rank"), counted(observed.len(), "tensor")))
        .diagnose_if(
            misplaced,
            "all tensors are here, but not at the positions of their owners: the tensor that arrives in step s belongs to the rank s \
             places before this one",
        )
        .diagnose_if(
            only_from_previous,
            "every step brought the previous rank's own tensor again: from the second step on, a rank sends what it received in \
             the previous step",
        )
        .diagnose_if(
            ranks > 2 && only_last,
            "all places but the rank's own hold the tensor that arrived last: they share one tensor, into which every step receives. Each \
             place needs a tensor of its own",
        )
        .diagnose_if(
            unfilled.is_some() && calls.iter().filter(|(call, _)| call.starts_with("recv")).count() >= ranks - 1,
            format!(
                "place {} is empty, although size - 1 tensors came: they were put into other places. The one that arrives in step s \
                 belongs to the rank s places before this one",
                unfilled.unwrap_or(0)
            ),
        )
        .diagnose_if(
            unfilled.is_some(),
            format!("place {} never received anything: the ring takes size - 1 steps", unfilled.unwrap_or(0)),
        )
        .diagnose_if(
            lost.is_some() && ranks > 1,
            format!(
                "rank {}'s tensor did not reach any other rank: something else was sent in its place, as where a receive overwrites it before \
                 it is sent",
                lost.unwrap_or(0)
            ),
        )
        .or_fail("place r must hold rank r's tensor, on every rank")
}

/// Checks that the tensors came around the ring: blocking messages, to the next rank and from the previous one, `size - 1` of each.
fn check_calls(rank: usize, ranks: usize, calls: &[Called]) -> anyhow::Result<()> {
    let steps = ranks - 1;
    let count = |of: &str| calls.iter().filter(|(call, _)| call.split(' ').next() == Some(of)).count();
    let right = |call: &str, to: &str| call.ends_with(&format!(" {to}"));
    let (next, previous) =
        (format!("to rank {}", (rank + 1) % ranks), format!("from rank {}", (rank + ranks - 1) % ranks));
    let elsewhere = calls.iter().find(|(call, _)| !right(call, &next) && !right(call, &previous));
    let blocking = count("send") + count("recv") == calls.len();
    let shown: Vec<&str> = calls.iter().map(|(call, _)| &**call).collect();
    Claim::that(
        blocking && elsewhere.is_none() && (count("send"), count("recv")) == (steps, steps),
        format!("{} {next}, {} {previous}", counted(steps, "send"), counted(steps, "recv")),
        shown.join(", "),
    )
    .on_rank(rank)
    .given(format!("the calls with {}", counted(ranks, "rank")))
    .diagnose_if(
        !blocking,
        "the tensors are right, but came by other calls than `send` and `recv`: this task is about the order in which blocking messages \
         pass around a ring",
    )
    .diagnose_if(
        elsewhere.is_some(),
        format!(
            "the tensors are right, but this rank exchanges messages with another rank than its neighbour in that direction ({}): send to \
             the next rank only, and receive from the previous one only",
            elsewhere.map_or("", |(call, _)| call)
        ),
    )
    .or_fail("the tensors are right, but size - 1 steps are enough: in each a rank sends one tensor and receives one")
}

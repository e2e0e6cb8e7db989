//! Grades `share_id`: pairs of communicators of three ranks. One rank asks for its ids when the others have theirs, for the second one first.

use lockstep_grading::{Claim, Finding, Runner, Verdict, causes, explain, given};

use super::device;

const RANKS: usize = 3;

/// The rank that is late; the numbers of the communicators and of their ranks.
type Case = (usize, Vec<(usize, Vec<f32>)>);
/// The ids, and the sums if all ranks have the same ids.
type Joined = (Vec<Vec<u8>>, Vec<f32>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut of_ranks = || (0..RANKS).map(|_| random.below(1..100) as f32).collect::<Vec<_>>();
    // Whichever rank makes the ids, in one of the two another one is late.
    let cases: Vec<Case> = [2, 1]
        .into_iter()
        .map(|late| (late, [0, 1].map(|number| (4 - 2 * late + number, of_ranks())).into()))
        .collect();
    let outputs = device::call::<_, Joined>(runner, RANKS, &cases)
        .map_err(|error| given(explained(error), |case| described(cases[case].0, &cases[case].1)))?;
    let all: Vec<Vec<&Joined>> = (0..cases.len()).map(|case| outputs.all(case).collect()).collect();
    let all_are = |wrong: GivesIds| cases.iter().zip(&all).all(|((late, _), found)| wrong(*late, found));
    let causes = causes(&MISTAKES, |wrong| all_are(*wrong));
    for ((late, comms), found) in cases.iter().zip(&all) {
        check(*late, comms, found, &causes)?;
    }
    // Whoever makes the ids is rank 0 mostly. Then the others cannot have them before it, and must wait.
    let (late, comms): Case = (0, [0, 1].map(|number| (4 + number, of_ranks())).into());
    let outputs = device::call::<_, Joined>(runner, RANKS, &[(late, &comms)]);
    let outputs = outputs.map_err(|error| given(explain(explained(error), by_a_look), |_| described(late, &comms)))?;
    check(late, &comms, &outputs.all(0).collect::<Vec<_>>(), &[])
}

/// Whether a mistake gives all ranks' ids if this rank is late.
type GivesIds = fn(usize, &[&Joined]) -> bool;

const MISTAKES: [(GivesIds, &str); 2] = [
    (
        |late, found| {
            let others = if late == 0 { 1 } else { 0 };
            (0..RANKS).all(|rank| match rank == late {
                true => found[late].0.iter().eq(found[others].0.iter().rev()),
                false => found[rank].0 == found[others].0,
            })
        },
        "the rank that is late has both ids, each as that of the other communicator: it asks for them in another order, so a key that counts \
         calls is another communicator's. `number` says whose id is asked for",
    ),
    (
        |_, found| {
            let same = |one: &[u8], other: &[u8]| one == other || one == cut(other) || cut(one) == other;
            let pairs = (0..RANKS).flat_map(|rank| found[0].0.iter().zip(&found[rank].0));
            pairs.into_iter().all(|(one, other)| same(one, other))
        },
        AS_TEXT,
    ),
];

fn check(late: usize, comms: &[(usize, Vec<f32>)], found: &[&Joined], causes: &[&str]) -> anyhow::Result<()> {
    let ids = |rank: usize| &found[rank].0;
    let of_another = |one: usize| (0..RANKS).any(|other| ids(one)[0] == ids(other)[1]);
    let given = described(late, comms);
    Claim::that((0..RANKS).all(|rank| ids(rank) == ids(0)), "the same ids on all ranks", format!("checksums of the ids: {}", listed(found)))
        .given(&*given)
        .verdict(Verdict::RanksDisagree)
        .causes(causes)
        .diagnose_if(
            (0..RANKS).any(of_another),
            "a rank has the id of another communicator: each communicator needs its own key in the store, by its `number`, or a rank can find \
             the older or the newer id",
        )
        .or_fail(
            "the ranks have different ids, and each would wait in ncclCommInitRank for others that never come. One rank makes the id, and \
             every rank, including this one, joins with the id in the store",
        )?;
    let expected: Vec<f32> = comms.iter().map(|(_, of_ranks)| of_ranks.iter().sum()).collect();
    for (rank, (_, sums)) in found.iter().enumerate() {
        Claim::equal(&expected[..], &sums[..])
            .on_rank(rank)
            .given(format!("{given}; the ranks' numbers: {comms:?}"))
            .or_fail("the ranks have joined, but not the same communicator")?;
    }
    Ok(())
}

fn described(late: usize, comms: &[(usize, Vec<f32>)]) -> String {
    let numbers: Vec<usize> = comms.iter().map(|(number, _)| *number).collect();
    format!("communicators {numbers:?}; rank {late} asks when the others have both ids, for the last one first")
}

const AS_TEXT: &str = "an id did not arrive as it was made. All of its 128 bytes count, and they have any value, also zero and what is no valid \
    text: set and get them as bytes";

/// The bytes up to the first zero, and then zeros.
fn cut(id: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = id.iter().copied().take_while(|byte| *byte != 0).collect();
    bytes.resize(id.len(), 0);
    bytes
}

/// A checksum of each id: ids may differ in any byte.
fn listed(found: &[&Joined]) -> String {
    let id = |id: &Vec<u8>| format!("{:08x}", crc32fast::hash(id));
    let rank = |(rank, (ids, _)): (usize, &&Joined)| {
        format!("rank {rank}: {}", ids.iter().map(id).collect::<Vec<_>>().join(", "))
    };
    found.iter().enumerate().map(rank).collect::<Vec<_>>().join("; ")
}

/// Rank 0 is late, and another rank did not wait for it.
fn by_a_look(finding: &Finding) -> Option<String> {
    (finding.verdict == Verdict::Crash).then(|| {
        format!(
            "this went well while the rank that makes the id came first, and now it is the last: the others must wait for the id, however late \
             it comes, and a sleep may be too short. `get` waits in the store until the key is there ({})",
            finding.diagnosis
        )
    })
}

fn explained(error: anyhow::Error) -> anyhow::Error {
    explain(error, |finding| {
        let says = |words: &str| finding.diagnosis.contains(words);
        match finding.verdict {
            Verdict::Hang if finding.ranks_wait() => Some(
                "a rank waits for something that never comes: a key that no rank sets, or that was deleted before all ranks had read it, or \
                 a rank that asks for another id first. The rank that makes an id sets its key and returns, and all others get the same key"
                    .into(),
            ),
            Verdict::Crash if says("has been used") => Some(
                "the second communicator was joined with the id of the first: an id is valid for one communicator, so each needs its own \
                 key in the store"
                    .into(),
            ),
            // The course's answer and the simulated device say it in these words.
            Verdict::Crash
                if ["not of this process", "not a unique id", "no unique id", "is not there"]
                    .iter()
                    .any(|words| says(words)) =>
            {
                Some(AS_TEXT.into())
            }
            _ => None,
        }
    })
}

//! Grades `share_id`: two communicators of three ranks, one after the other.

use lockstep_grading::{Claim, Runner, Verdict, explain};

use super::device;

const RANKS: usize = 3;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut of_ranks = || (0..RANKS).map(|_| random.below(1..100) as f32).collect();
    let numbers: Vec<Vec<f32>> = vec![of_ranks(), of_ranks()];
    let outputs = runner.call_with::<_, Vec<f32>>(&device::simulated(RANKS), &[&numbers]).map_err(explained)?;
    let expected: Vec<f32> = numbers.iter().map(|of_ranks| of_ranks.iter().sum()).collect();
    for (rank, found) in outputs.all(0).enumerate() {
        Claim::equal(&expected[..], &found[..])
            .on_rank(rank)
            .given(format!("the ranks' numbers in two communicators: {numbers:?}"))
            .or_fail("the ranks have joined, but not the same communicator")?;
    }
    Ok(())
}

fn explained(error: anyhow::Error) -> anyhow::Error {
    explain(error, |finding| {
        match finding.verdict {
        Verdict::Hang => Some(
            "ranks wait in ncclCommInitRank for others that never come: they have joined with other ids. One rank makes the id, and \
             every rank, that one too, joins with what is in the store"
                .into(),
        ),
        Verdict::Crash if finding.diagnosis.contains("has been used") => Some(
            "the second communicator was joined with the id of the first: an id is good for one communicator, so each needs a key of its \
             own in the store"
                .into(),
        ),
        Verdict::Crash if ["not of this process", "no unique id", "is not there"].iter().any(|words| finding.diagnosis.contains(words)) => Some(
            "the id arrived in part: it is 128 bytes of any value, zeros among them, so it cannot travel as a text that a zero ends".into(),
        ),
        _ => None,
    }
    })
}

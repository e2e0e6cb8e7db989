//! Grades `ring`: rings of 3 and of 4 ranks.

use lockstep_grading::{Claim, Runner, Verdict, counted, explain};

use super::device;

/// The elements, and the number of collectives.
type Received = (Vec<f32>, u64);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [3, 4] {
        // Elements of different ranks are never equal, and none is 0.
        let of_rank =
            |rank: usize| -> Vec<f32> { (0..4).map(|_| (100 * (rank + 1) + random.below(0..100)) as f32).collect() };
        let elements: Vec<Vec<f32>> = (0..ranks).map(of_rank).collect();
        let outputs = device::call::<_, Received>(runner, ranks, &[&elements]).map_err(explained)?;
        for (rank, found) in outputs.all(0).enumerate() {
            check(rank, &elements, &found.0)?;
        }
        for (rank, (_, collectives)) in outputs.all(0).enumerate() {
            Claim::that(*collectives == 0, "a send and a receive", counted(*collectives, "collective"))
                .on_rank(rank)
                .given(format!("{ranks} ranks"))
                .or_fail(
                    "the elements are right, but a collective has sent them to every rank, and only one needs them: a ring sends each \
                     element once",
                )?;
        }
    }
    Ok(())
}

fn explained(error: anyhow::Error) -> anyhow::Error {
    explain(error, |finding| {
        (finding.verdict == Verdict::Hang).then(|| {
            "every rank's send waits for a receive that comes after the next rank's own send: a cycle. A communicator runs its calls in \
             order, even on different streams. Calls within one group are one operation, and do not wait for each other"
                .into()
        })
    })
}

fn check(rank: usize, elements: &[Vec<f32>], found: &[f32]) -> anyhow::Result<()> {
    let ranks = elements.len();
    let of = |owner: usize| found == &elements[owner % ranks][..];
    Claim::equal(&elements[(rank + ranks - 1) % ranks][..], found)
        .on_rank(rank)
        .given(format!("the elements of {ranks} ranks: {elements:?}"))
        .diagnose_if(of(rank), "these are the rank's own elements: the peer of both calls was the rank itself")
        .diagnose_if(of(rank + 1), "these are the next rank's elements: the ring goes in the other direction")
        .diagnose_if(found.iter().all(|element| *element == 0.0), "nothing has arrived: was the receive issued?")
        .or_fail("these are not the previous rank's elements")
}

//! Task `ring`: every rank has the tensors of all, on 3, 4 and 1 ranks.

use lockstep_grading::{Claim, Numbers, Stage};

use super::waits;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    for ranks in [3, 4, 1] {
        let length = random.below(2..6);
        // Numbers of different ranks are never the same, and none is 0.
        let of_rank =
            |rank: usize| random.numbers(length).iter().map(|value| 10.0 * (rank + 1) as f64 + value).collect();
        let given: Vec<Vec<f64>> = (0..ranks).map(of_rank).collect();
        let outputs = stage.call::<_, Vec<Numbers>>(ranks, &[&given]).map_err(waits::told)?;
        let owners: Vec<Vec<Option<usize>>> = outputs.all(0).map(|all| owners(&given, all)).collect();
        for (rank, observed) in outputs.all(0).enumerate() {
            judge(rank, &given, &owners, observed)?;
        }
    }
    Ok(())
}

/// Whose tensor lies in each place.
fn owners(given: &[Vec<f64>], observed: &[Numbers]) -> Vec<Option<usize>> {
    observed.iter().map(|numbers| given.iter().position(|own| own[..] == numbers[..])).collect()
}

fn judge(rank: usize, given: &[Vec<f64>], owners: &[Vec<Option<usize>>], observed: &[Numbers]) -> anyhow::Result<()> {
    let (ranks, places) = (given.len(), &owners[rank]);
    let expected: Vec<Numbers> = given.iter().cloned().map(Numbers).collect();
    let of = |place: usize| (place + ranks) % ranks;
    // Whose tensor came in step s, if places were filled as they are meant to be.
    let in_step = |step: usize| places.get(of(rank + ranks - step)).copied().flatten();
    let only_from_previous = ranks > 2 && (1..ranks).all(|step| in_step(step) == Some(of(rank + ranks - 1)));
    let lost =
        (0..ranks).find(|of| owners.iter().enumerate().all(|(at, places)| at == *of || !places.contains(&Some(*of))));
    let mut all: Vec<usize> = places.iter().copied().flatten().collect();
    all.sort_unstable();
    let misplaced = all.iter().copied().eq(0..ranks);
    let unfilled = observed.iter().position(|numbers| numbers.iter().all(|value| *value == 0.0));
    Claim::equal(&expected[..], observed)
        .on_rank(rank)
        .given(format!("the tensors of {ranks} ranks: {given:?}"))
        .knows(observed.len() != ranks, format!("there are {ranks} ranks, and {} tensors", observed.len()))
        .knows(
            misplaced,
            "all tensors are here, but not in their owners' places: what comes in step s set out on the rank that is s places \
             before this one",
        )
        .knows(
            only_from_previous,
            "every step brought the previous rank's own tensor again: from the second step on, a rank sends what it got in \
             the step before",
        )
        .knows(
            unfilled.is_some(),
            format!("nothing was ever received into place {}: it takes size - 1 steps", unfilled.unwrap_or(0)),
        )
        .knows(
            lost.is_some() && ranks > 1,
            format!(
                "rank {}'s tensor has reached nobody: it was received into before it was sent on, so something else was sent \
                 in its place",
                lost.unwrap_or(0)
            ),
        )
        .otherwise("place r holds rank r's tensor, on every rank")
}

//! Grades `unequal_nodes`: all processes of equal and of unequal nodes, and places that do not exist.

use lockstep_grading::{Claim, Finding, Runner, Verdict, counted, explain};

/// Workers of the nodes, node, local rank, samples.
type Input = (Vec<usize>, usize, usize, usize);
/// Rank, world size, positions.
type Placement = (usize, usize, Vec<usize>);
type Found = Result<Placement, String>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (few, many) = (random.below(1..3), random.below(3..6));
    // Samples that no world size of these divides, so some are taken twice.
    let layouts = [vec![many, few, few + 1], vec![few, many], vec![2, 2], vec![1, many, 1]];
    let layouts: Vec<(Vec<usize>, usize)> = layouts
        .into_iter()
        .map(|workers| {
            let world: usize = workers.iter().sum();
            let samples = world * random.below(2..5) + 1;
            (workers, samples)
        })
        // So few that a later rank passes them all twice.
        .chain([(vec![1, many, 1], 2)])
        .collect();
    let inputs: Vec<Input> = layouts.iter().flat_map(|(workers, samples)| places(workers, *samples)).collect();
    let outputs = runner.call::<_, Found>(1, &inputs)?;
    let mut case = 0;
    for (workers, samples) in &layouts {
        let found: Vec<&Found> =
            places(workers, *samples).iter().enumerate().map(|(at, _)| outputs.of(0, case + at)).collect();
        check(workers, *samples, &found)?;
        case += found.len();
    }
    let absent: [Input; 2] = [(vec![few, many], 2, 0, 9), (vec![few, many], 0, few, 9)];
    let outputs = runner.call::<_, Found>(1, &absent).map_err(|error| explain(error, why))?;
    for (at, (workers, node, local, _)) in absent.iter().enumerate() {
        let found = outputs.of(0, at);
        Claim::that(found.is_err(), "an error", format!("{found:?}"))
            .given(format!("nodes of {workers:?} workers; node {node}, local rank {local}"))
            .or_fail("there is no such process: it would take the rank of another, or one outside the world")?;
    }
    Ok(())
}

/// All processes, in the order of their ranks.
fn places(workers: &[usize], samples: usize) -> Vec<Input> {
    let of_node = |(node, here): (usize, &usize)| {
        let workers = workers.to_vec();
        (0..*here).map(move |local| (workers.clone(), node, local, samples)).collect::<Vec<_>>()
    };
    workers.iter().enumerate().flat_map(of_node).collect()
}

fn expected(rank: usize, world: usize, samples: usize) -> Placement {
    (rank, world, (0..samples.div_ceil(world)).map(|step| (rank + step * world) % samples).collect())
}

fn check(workers: &[usize], samples: usize, found: &[&Found]) -> anyhow::Result<()> {
    let world = found.len();
    let ranks: Vec<Option<usize>> = found.iter().map(|one| one.as_ref().ok().map(|place| place.0)).collect();
    let twice = (0..world).find(|rank| ranks.iter().filter(|one| **one == Some(*rank)).count() > 1);
    let absent = (0..world).find(|rank| !ranks.contains(&Some(*rank)));
    let lengths: Vec<usize> = found.iter().filter_map(|one| one.as_ref().ok().map(|place| place.2.len())).collect();
    let unequal = lengths.iter().any(|length| *length != lengths[0]);
    let neighbours =
        |place: &Placement| place.2.len() > 1 && place.2.windows(2).all(|pair| pair[1] == (pair[0] + 1) % samples);
    for (rank, ((_, node, local, _), one)) in places(workers, samples).into_iter().zip(found).enumerate() {
        let right = expected(rank, world, samples);
        let claim = Claim::equal(&Ok::<_, String>(right.clone()), *one).given(format!(
            "nodes of {workers:?} workers, {}; node {node}, local rank {local}",
            counted(samples, "sample")
        ));
        let Ok(place) = one else { return claim.or_fail("an error, although there is such a process") };
        claim
            .diagnose_if(
                place.1 != world,
                "the world size is not the number of all workers: the other nodes may have different numbers of workers",
            )
            .diagnose_if(
                place.0 != rank && twice.is_some(),
                format!(
                    "two processes have rank {}: a node's first rank is the number of workers before it, not a multiple of its own",
                    twice.unwrap_or_default()
                ),
            )
            .diagnose_if(
                place.0 != rank && absent.is_some(),
                format!(
                    "no process has rank {}, which the others wait for: a node's first rank is the number of workers before it, not a \
                     multiple of the largest node's",
                    absent.unwrap_or_default()
                ),
            )
            .diagnose_if(
                place.0 != rank,
                "the ranks of a node are not consecutive: launchers number them consecutively, so the other nodes' launchers would disagree",
            )
            .diagnose_if(
                unequal && place.2.iter().enumerate().all(|(step, at)| *at == rank + step * world),
                "the ranks have different numbers of samples: one has a step more than the others, and would wait for them forever in it",
            )
            .diagnose_if(
                place.2.len() < right.2.len() && right.2.starts_with(&place.2),
                "the last samples, too few for all ranks, are dropped: fill up with the first samples, so that each sample is used in each \
                 epoch",
            )
            .diagnose_if(
                neighbours(place) && place.2[0] == rank * place.2.len() % samples,
                "each rank has a block of consecutive samples: a rank's positions are a world size apart",
            )
            .diagnose_if(
                place.2.iter().any(|at| *at >= samples),
                "there is no such sample: the last step is filled up with the first samples, over and over where there are more ranks \
                 than samples",
            )
            .diagnose_if(
                place.2.len() == right.2.len()
                    && place.2.iter().zip(&right.2).enumerate().all(|(step, (at, right))| rank + step * world >= samples || at == right),
                "the last step is filled up with other samples than the first ones: every rank continues at the beginning of the order",
            )
            .diagnose_if(
                place.0 == rank,
                "the samples were shared by node: a node with fewer workers gives each of them more. The share depends on the rank, not \
                 on the node",
            )
            .or_fail("not the place of this process")?;
    }
    Ok(())
}

fn why(finding: &Finding) -> Option<String> {
    (finding.verdict == Verdict::Crash).then(|| {
        format!(
            "a node or a worker that does not exist is an error to return, with the number in it ({})",
            finding.diagnosis
        )
    })
}

//! Grades `unequal_nodes`: all processes of equal and of unequal nodes, and places that do not exist.

use lockstep_grading::{Claim, Finding, Runner, Verdict, causes, counted, explain};

/// Workers of the nodes, node, local rank, samples.
type Input = (Vec<usize>, usize, usize, usize);
/// Rank, world size, positions.
type Placement = (usize, usize, Vec<usize>);
type Found = Result<Placement, String>;
type PlaceOf = fn(&Input) -> Placement;

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
    let gives_it = |wrong: &PlaceOf| {
        inputs.iter().enumerate().all(|(number, input)| outputs.of(0, number).as_ref() == Ok(&wrong(input)))
    };
    let causes = causes(&MISTAKES, gives_it);
    let mut case = 0;
    for (workers, samples) in &layouts {
        let found: Vec<&Found> =
            places(workers, *samples).iter().enumerate().map(|(at, _)| outputs.of(0, case + at)).collect();
        check(workers, *samples, &found, &causes)?;
        case += found.len();
    }
    let absent: [Input; 2] = [(vec![few, many], 2, 0, 9), (vec![few, many], 0, few, 9)];
    let outputs = runner.call::<_, Found>(1, &absent).map_err(|error| explain(error, why))?;
    for (at, (workers, node, local, _)) in absent.iter().enumerate() {
        let found = outputs.of(0, at);
        Claim::that(found.is_err(), "an error", words(found))
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

/// The place of a process whose node has the ranks from `first` on.
fn from(first: usize, (workers, _, local, samples): &Input) -> Placement {
    expected(first + local, workers.iter().sum(), *samples)
}

fn right(input: &Input) -> Placement {
    from(input.0[..input.1].iter().sum(), input)
}

/// Mistakes, and the places that they give.
const MISTAKES: [(PlaceOf, &str); 5] = [
    (
        |input| from(input.1 * input.0[input.1], input),
        "a node's first rank is the number of workers before it, not a multiple of its own: two processes have the same rank",
    ),
    (
        |input| from(input.1 * input.0.iter().max().copied().unwrap_or(0), input),
        "a node's first rank is the number of workers before it, not a multiple of the largest node's: the others wait for ranks that no \
         process has",
    ),
    (
        |input| {
            let (rank, world, positions) = right(input);
            let each = positions.len();
            (rank, world, (rank * each..(rank + 1) * each).map(|at| at % input.3).collect())
        },
        "each rank has a block of consecutive samples: a rank's positions are a world size apart",
    ),
    (
        |input| {
            let (rank, world, positions) = right(input);
            (rank, world, (0..positions.len()).map(|step| (rank + step * world).min(input.3 - 1)).collect())
        },
        "the last step is filled up with the last sample: every rank continues at the beginning of the order",
    ),
    (
        |input| {
            let ((workers, node, local, samples), (rank, world, _)) = (input, right(input));
            let of_node = samples.div_ceil(workers.len());
            let steps = of_node.div_ceil(workers[*node]);
            let position = |step: usize| (node * of_node + local + step * workers[*node]) % samples;
            (rank, world, (0..steps).map(position).collect())
        },
        "the samples were shared by node: a node with fewer workers gives each of them more. The share depends on the rank, not on the node",
    ),
];

fn check(workers: &[usize], samples: usize, found: &[&Found], causes: &[&str]) -> anyhow::Result<()> {
    let world = found.len();
    let placed: Vec<&Placement> = found.iter().filter_map(|one| one.as_ref().ok()).collect();
    let number_of = |rank: usize| placed.iter().filter(|place| place.0 == rank).count();
    let twice = (0..world).find(|rank| number_of(*rank) > 1);
    let absent = (0..world).find(|rank| number_of(*rank) == 0);
    let unequal = placed.iter().any(|place| place.2.len() != placed[0].2.len());
    let unused = (0..samples).find(|at| !placed.iter().any(|place| place.2.contains(at)));
    for (rank, (input, one)) in places(workers, samples).iter().zip(found).enumerate() {
        let right = right(input);
        let claim = Claim::that(one.as_ref() == Ok(&right), words(&Ok(right.clone())), words(one)).given(format!(
            "nodes of {workers:?} workers, {}; node {}, local rank {}",
            counted(samples, "sample"),
            input.1,
            input.2
        ));
        let Ok(place) = one else { return claim.or_fail("an error, although there is such a process") };
        let is_other_rank = place.0 != rank;
        claim
            .causes(causes)
            .diagnose_if(
                place.1 != world,
                "the world size is not the number of all workers: the other nodes may have different numbers of workers",
            )
            .diagnose_if(
                is_other_rank && twice.is_some(),
                format!(
                    "two processes have rank {}: a node's first rank is the number of workers on the nodes before it",
                    twice.unwrap_or_default()
                ),
            )
            .diagnose_if(
                is_other_rank && absent.is_some(),
                format!(
                    "no process has rank {}, which the others wait for: a node's first rank is the number of workers on the nodes before it",
                    absent.unwrap_or_default()
                ),
            )
            .diagnose_if(
                is_other_rank,
                "each rank is there once, and this process has another one than its launcher gives it: the first node has the first ranks, and \
                 a node's are consecutive",
            )
            .diagnose_if(
                unequal,
                "the ranks have different numbers of samples: one that has a step more than the others would wait for them forever in it",
            )
            .diagnose_if(
                place.2.len() < right.2.len(),
                format!(
                    "a rank has {} instead of {}: fill up the last step with the first samples, so that each sample is used in each epoch",
                    counted(place.2.len(), "sample"),
                    right.2.len()
                ),
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
                unused.is_some(),
                format!("no rank has sample {}: each sample is used in each epoch", unused.unwrap_or_default()),
            )
            .or_fail("a rank's positions begin with its own number and are a world size apart")?;
    }
    Ok(())
}

fn words(found: &Found) -> String {
    match found {
        Ok((rank, world, positions)) => format!("rank {rank} of {world}, positions {positions:?}"),
        Err(error) => format!("the error \"{error}\""),
    }
}

fn why(finding: &Finding) -> Option<String> {
    (finding.verdict == Verdict::Crash).then(|| {
        format!(
            "a node or a worker that does not exist is an error to return, with the number in it ({})",
            finding.diagnosis
        )
    })
}

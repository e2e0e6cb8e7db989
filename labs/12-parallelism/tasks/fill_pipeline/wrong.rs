//! Answers to `fill_pipeline`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep::parallel::Action::{self, Backward, Forward};

type Filled = (Vec<Vec<Action>>, f64);

fn bubble(stages: usize, micro_batches: usize) -> f64 {
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
}

/// Takes turns after this many forward passes of each stage.
fn after(stages: usize, micro_batches: usize, warm_up: impl Fn(usize) -> usize) -> Vec<Vec<Action>> {
    let stage = |stage| {
        let warm_up = warm_up(stage).min(micro_batches);
        let mut actions: Vec<_> = (0..warm_up).map(Forward).collect();
        for turn in 0..micro_batches {
            actions.extend((warm_up + turn < micro_batches).then(|| Forward(warm_up + turn)));
            actions.push(Backward(turn));
        }
        actions
    };
    (0..stages).map(stage).collect()
}

/// The given table: all forward, then all backward.
pub fn gpipe(stages: usize, micro_batches: usize) -> Result<Filled> {
    let actions: Vec<_> = (0..micro_batches).map(Forward).chain((0..micro_batches).rev().map(Backward)).collect();
    Ok((vec![actions; stages], bubble(stages, micro_batches)))
}

/// Takes turns from the beginning.
pub fn no_warm_up(stages: usize, micro_batches: usize) -> Result<Filled> {
    Ok((after(stages, micro_batches, |_| 0), bubble(stages, micro_batches)))
}

/// All stages begin as the first does.
pub fn same_warm_up(stages: usize, micro_batches: usize) -> Result<Filled> {
    Ok((after(stages, micro_batches, |_| stages - 1), bubble(stages, micro_batches)))
}

/// One forward pass more than needed.
pub fn one_too_many(stages: usize, micro_batches: usize) -> Result<Filled> {
    Ok((after(stages, micro_batches, |stage| stages - stage), bubble(stages, micro_batches)))
}

/// The last stage takes the micro-batches in another order.
pub fn reversed_last(stages: usize, micro_batches: usize) -> Result<Filled> {
    let mut table = after(stages, micro_batches, |stage| stages - 1 - stage);
    table[stages - 1] = (0..micro_batches).rev().flat_map(|turn| [Forward(turn), Backward(turn)]).collect();
    Ok((table, bubble(stages, micro_batches)))
}

/// Divides by the time of work alone.
pub fn of_the_work(stages: usize, micro_batches: usize) -> Result<Filled> {
    Ok((after(stages, micro_batches, |stage| stages - 1 - stage), (stages - 1) as f64 / micro_batches as f64))
}

/// Begins with a forward pass for each later stage, whether there are as many micro-batches or not.
pub fn as_many_as_stages(stages: usize, micro_batches: usize) -> Result<Filled> {
    let stage = |stage| {
        let warm_up = stages - 1 - stage;
        let mut actions: Vec<_> = (0..warm_up).map(Forward).collect();
        (0..micro_batches - warm_up).for_each(|turn| actions.extend([Forward(warm_up + turn), Backward(turn)]));
        actions.extend((micro_batches - warm_up..micro_batches).map(Backward));
        actions
    };
    Ok(((0..stages).map(stage).collect(), bubble(stages, micro_batches)))
}

/// Goes back before it goes forward, and so begins with one forward pass less.
pub fn one_too_few(stages: usize, micro_batches: usize) -> Result<Filled> {
    Ok((after(stages, micro_batches, |stage| (stages - 1 - stage).saturating_sub(1)), bubble(stages, micro_batches)))
}

/// Begins with micro-batches that do not exist.
pub fn more_than_there_are(stages: usize, micro_batches: usize) -> Result<Filled> {
    let mut table = after(stages, micro_batches, |stage| stages - 1 - stage);
    for (stage, actions) in table.iter_mut().enumerate() {
        let more = (micro_batches..stages - 1 - stage).map(Forward);
        actions.splice(micro_batches.min(actions.len())..micro_batches.min(actions.len()), more);
    }
    Ok((table, bubble(stages, micro_batches)))
}

/// Right: counts the bubble, in turns of all stages.
pub fn counts(stages: usize, micro_batches: usize) -> Result<Filled> {
    let table = after(stages, micro_batches, |stage| stages - 1 - stage);
    let turns = 2 * (micro_batches + stages - 1);
    let work: usize = table.iter().map(Vec::len).sum();
    Ok((table, (stages * turns - work) as f64 / (stages * turns) as f64))
}

/// Right: fills the table turn by turn, with a backward pass wherever there can be one.
pub fn greedy(stages: usize, micro_batches: usize) -> Result<Filled> {
    let mut table: Vec<Vec<Action>> = vec![Vec::new(); stages];
    while table.iter().any(|actions| actions.len() < 2 * micro_batches) {
        let before = table.clone();
        for (stage, actions) in table.iter_mut().enumerate() {
            let done = |of: fn(usize) -> Action, stage: usize| {
                (0..micro_batches).filter(|turn| before[stage].contains(&of(*turn))).count()
            };
            let (forward, backward) = (done(Forward, stage), done(Backward, stage));
            let gradient = if stage + 1 == stages { forward } else { done(Backward, stage + 1) };
            let arrived = if stage == 0 { micro_batches } else { done(Forward, stage - 1) };
            if backward < gradient {
                actions.push(Backward(backward));
            } else if forward < arrived && forward - backward < stages - stage {
                actions.push(Forward(forward));
            }
        }
    }
    Ok((table, bubble(stages, micro_batches)))
}

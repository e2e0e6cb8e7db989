//! Answers to `fill_pipeline`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep::parallel::Action::{self, Backward, Forward};
use lockstep_answers::edit;

type Filled = (Vec<Vec<Action>>, f64);

fn bubble(stages: usize, micro_batches: usize) -> f64 {
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
}

/// The given table: all forward, then all backward.
pub fn gpipe(stages: usize, micro_batches: usize) -> Result<Filled> {
    let actions: Vec<_> = (0..micro_batches).map(Forward).chain((0..micro_batches).rev().map(Backward)).collect();
    Ok((vec![actions; stages], bubble(stages, micro_batches)))
}

/// Takes turns from the beginning.
#[edit((stages - 1 - stage).min(micro_batches) => 0)]
pub fn no_warm_up() {}

/// All stages begin as the first does.
#[edit(stages - 1 - stage => stages - 1)]
pub fn same_warm_up() {}

/// One forward pass more than needed.
#[edit(stages - 1 - stage => stages - stage)]
pub fn one_too_many() {}

/// The last stage takes the micro-batches in another order.
#[edit(let bubble =>
    let backwards = (0..micro_batches).rev().flat_map(|turn| [Action::Forward(turn), Action::Backward(turn)]);
    table[stages - 1] = backwards.collect();
    let bubble
)]
pub fn reversed_last() {}

/// Divides by the time of work alone.
#[edit((micro_batches + stages - 1) as f64 => micro_batches as f64)]
pub fn of_the_work() {}

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
#[edit((stages - 1 - stage) => (stages - 1 - stage).saturating_sub(1))]
pub fn one_too_few() {}

/// Begins with micro-batches that do not exist.
pub fn more_than_there_are(stages: usize, micro_batches: usize) -> Result<Filled> {
    let (mut table, bubble) = crate::fill_pipeline::fill_pipeline(stages, micro_batches)?;
    for (stage, actions) in table.iter_mut().enumerate() {
        let more = (micro_batches..stages - 1 - stage).map(Forward);
        actions.splice(micro_batches.min(actions.len())..micro_batches.min(actions.len()), more);
    }
    Ok((table, bubble))
}

/// Right: counts the bubble, in turns of all stages.
#[edit(let bubble = (stages - 1) as f64 / (micro_batches + stages - 1) as f64 =>
    let turns = 2 * (micro_batches + stages - 1);
    let work: usize = table.iter().map(Vec::len).sum();
    let bubble = (stages * turns - work) as f64 / (stages * turns) as f64
)]
pub fn counts() {}

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

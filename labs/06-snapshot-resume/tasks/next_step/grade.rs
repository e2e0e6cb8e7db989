//! Grades `next_step`: a job that is killed at several moments must train its model with every step once.

use lockstep_grading::{Claim, Runner, counted, joined};

/// Epoch and step.
type Position = (u64, u64);

/// Epochs, steps per epoch, steps between snapshots, and after how many steps each run is killed.
type Case = (u64, u64, u64, Vec<u64>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (epochs, steps) = (3, 2 * random.below(2..5) as u64);
    let within = random.below(3..steps as usize) as u64;
    let uneven: Vec<u64> = (0..3).map(|_| random.below(0..2 * steps as usize) as u64).collect();
    let cases: Vec<Case> = vec![
        (epochs, steps, 2, vec![]),
        (epochs, steps, 2, vec![steps + within]),
        (epochs, steps, steps, vec![steps]),
        (epochs, steps, steps, vec![2 * steps + 1, 0]),
        (epochs, steps, 3, uneven),
        // Not killed, but started again after the last step.
        (epochs, steps, 1, vec![epochs * steps + 1]),
    ];
    let outputs = runner.call::<_, (Vec<Position>, Vec<u64>, u64)>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(case, given)| check(given, &outputs.of(0, case).0))?;
    cases.iter().enumerate().try_for_each(|(case, given)| check_repeated(given, &outputs.of(0, case).1))?;
    cases.iter().enumerate().try_for_each(|(case, given)| check_saves(given, outputs.of(0, case)))
}

/// A save takes time: one is due after every `save_every` steps. An answer that counts the steps of each epoch may save once more in each
/// run.
fn check_saves(case: &Case, (model, repeated, saves): &(Vec<Position>, Vec<u64>, u64)) -> anyhow::Result<()> {
    let (_, _, save_every, kills) = case;
    let trained = model.len() as u64 + repeated.iter().sum::<u64>();
    let most = trained / save_every + kills.len() as u64 + 1;
    Claim::that(*saves <= most, format!("at most {}", counted(most, "snapshot")), format!("{} in {trained} steps", counted(*saves, "snapshot")))
        .given(given(case))
        .or_fail(format!(
            "the model is right, but snapshots are saved more often than after every {save_every} steps, and training waits for each: do not \
             save after each step, nor in addition at the end of each epoch"
        ))
}

/// Only the steps since the last snapshot are lost in a kill.
fn check_repeated(case: &Case, repeated: &[u64]) -> anyhow::Result<()> {
    let (_, steps, save_every, _) = case;
    // An answer that counts the steps of each epoch saves a little later after its end.
    let most = save_every - 1 + steps % save_every;
    let found = repeated.iter().copied().max().unwrap_or_default();
    Claim::that(
        found <= most,
        format!("at most {} trained again after a kill", counted(most, "step")),
        format!("steps trained again after each kill: {}", joined(repeated, ", ")),
    )
    .given(given(case))
    .or_fail(format!(
        "the model is right, but {found} steps were trained again after a kill: save after every {save_every} steps, in the \
         middle of an epoch, too, and continue from it"
    ))
}

fn given((epochs, steps, save_every, kills): &Case) -> String {
    let ends: Vec<String> = kills
        .iter()
        .map(|kill| match kill {
            kill if *kill > epochs * steps => "restarted after its end".to_owned(),
            kill => format!("killed after {kill} steps"),
        })
        .collect();
    format!("{epochs} epochs of {steps} steps, a snapshot every {save_every}; {}", ends.join(", then "))
}

fn check(case: &Case, observed: &[Position]) -> anyhow::Result<()> {
    let (epochs, steps, ..) = case;
    let expected: Vec<Position> = (0..*epochs).flat_map(|epoch| (0..*steps).map(move |step| (epoch, step))).collect();
    let count = |position: &Position| observed.iter().filter(|one| *one == position).count();
    let twice = expected.iter().find(|position| count(position) > 1);
    let missing = expected.iter().find(|position| count(position) == 0);
    let whole_epoch = (0..*epochs).find(|epoch| (0..*steps).all(|step| count(&(*epoch, step)) > 1));
    let claim = Claim::that(expected == observed, steps_of(&expected), steps_of(observed)).given(given(case));
    let claim = match (whole_epoch, twice, missing) {
        (Some(epoch), ..) => claim.diagnose_if(
            true,
            format!("the snapshot names the last epoch, not the next one: the model was trained with epoch {epoch} twice"),
        ),
        (None, Some((epoch, step)), _) => claim.diagnose_if(
            true,
            format!(
                "the snapshot names the last step, not the next one, so the model was trained with step {step} of epoch {epoch} twice"
            ),
        ),
        (None, None, Some((epoch, 0))) if observed.len() + 1 == expected.len() => claim.diagnose_if(
            true,
            format!(
                "only step 0 of epoch {epoch} was skipped: the saved position means the last step in one case, and the next step in another, \
                 such as the end of an epoch. Let it always mean the next step"
            ),
        ),
        (None, None, Some((epoch, 0))) => claim.diagnose_if(
            true,
            format!(
                "epoch {epoch} does not begin with its step 0: only the resumed epoch begins at the step that the snapshot names"
            ),
        ),
        (None, None, Some((epoch, step))) => claim.diagnose_if(
            true,
            format!(
                "step {step} of epoch {epoch} was skipped: save the next step, or add one after loading, but not both"
            ),
        ),
        (None, None, None) => claim,
    };
    claim.or_fail("the steps are in the wrong order")
}

/// The steps of each epoch, for the learner.
fn steps_of(positions: &[Position]) -> String {
    let of_epoch = |chunk: &[Position]| {
        let steps: Vec<String> = chunk.iter().map(|(_, step)| step.to_string()).collect();
        format!("epoch {}: {}", chunk[0].0, steps.join(" "))
    };
    positions.chunk_by(|one, next| one.0 == next.0).map(of_epoch).collect::<Vec<_>>().join("; ")
}

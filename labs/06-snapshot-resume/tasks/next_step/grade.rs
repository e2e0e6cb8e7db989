//! Grades `next_step`: a job that is killed at several moments must train its model with every step once.

use lockstep_grading::{Claim, Runner, causes, counted, joined};

/// Epoch and step.
type Position = (u64, u64);

/// Epochs, steps per epoch, steps between snapshots, and after how many steps each run is killed.
type Case = (u64, u64, u64, Vec<u64>);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Even, and no multiple of 3.
    let (epochs, steps) = (3, [4, 8, 10][random.below(0..3)]);
    let within = random.below(3..steps as usize) as u64;
    let uneven: Vec<u64> = (0..3).map(|_| random.below(0..2 * steps as usize) as u64).collect();
    let cases: Vec<Case> = vec![
        (epochs, steps, 2, vec![]),
        (epochs, steps, 2, vec![steps + within]),
        (epochs, steps, steps, vec![steps]),
        (epochs, steps, steps, vec![2 * steps + 1, 0]),
        (epochs, steps, 3, uneven),
        // A snapshot at the end of the epoch, which is not due, would be the last one.
        (epochs, steps, 3, vec![steps + 1]),
        // So many epochs that one snapshot more in each is not taken for one after a kill.
        (9, steps, 3, vec![]),
        // Not killed, but started again after the last step.
        (epochs, steps, 1, vec![epochs * steps + 1]),
    ];
    let outputs = runner.call::<_, (Vec<Position>, Vec<u64>, u64)>(1, &cases)?;
    // The end of an epoch has two names, which are both right if a run can begin with them.
    let ends_so = |mistake: &Mistake| {
        [false, true].into_iter().any(|turns| {
            cases.iter().enumerate().all(|(case, given)| outputs.of(0, case).0 == mistake.simulated(given, turns))
        })
    };
    let causes = causes(&MISTAKES, ends_so);
    cases.iter().enumerate().try_for_each(|(case, given)| check(given, &outputs.of(0, case).0, &causes))?;
    cases.iter().enumerate().try_for_each(|(case, given)| check_repeated(given, &outputs.of(0, case).1))?;
    cases.iter().enumerate().try_for_each(|(case, given)| check_saves(given, outputs.of(0, case)))
}

/// What an answer saves after a step, and where it begins after a restart.
struct Mistake {
    /// The position that is saved after this one.
    saves: fn(Position) -> Position,
    /// The first position of a run that finds this one in the snapshot, and of one that finds none.
    begins: fn(Position) -> Position,
    starts: Position,
    /// What is saved in place of a position behind the last step of an epoch.
    turns_to: fn(Position) -> Position,
    /// All epochs begin with the step at which the first one does.
    in_all_epochs: bool,
    /// What is saved after an epoch, if anything; and whether it is saved then only.
    after_epoch: Option<fn(u64) -> Position>,
    only_then: bool,
}

const NEXT: fn(Position) -> Position = |(epoch, step)| (epoch, step + 1);
const SAME: fn(Position) -> Position = |position| position;
const RIGHT: Mistake = Mistake {
    saves: NEXT,
    begins: SAME,
    starts: (0, 0),
    turns_to: |(epoch, _)| (epoch + 1, 0),
    in_all_epochs: false,
    after_epoch: None,
    only_then: false,
};
const KEEPS_STEP: &str = "the snapshot after the last step of an epoch names the next epoch, but still a step of the old one: the next epoch begins \
                          with its step 0";

/// The mistakes that can be told apart by the steps of the model, with their diagnoses.
const MISTAKES: [(Mistake, &str); 10] = [
    (
        Mistake { saves: SAME, ..RIGHT },
        "the snapshot names the last step, not the next one, so the model was trained with that step twice",
    ),
    (
        Mistake { begins: NEXT, ..RIGHT },
        "a step was skipped after each restart: save the next step, or add one after loading, but not both",
    ),
    (
        Mistake { in_all_epochs: true, ..RIGHT },
        "all epochs after a restart begin with the step that the snapshot names: only the resumed epoch does, and the others with step 0",
    ),
    (
        Mistake { begins: |(epoch, _)| (epoch, 0), ..RIGHT },
        "the epoch of the snapshot begins again with its step 0, although the loaded model has seen its first steps: begin with the step that \
         the snapshot names",
    ),
    (
        Mistake { after_epoch: Some(|epoch| (epoch, 0)), only_then: true, ..RIGHT },
        "the snapshot names the last epoch, not the next one: the model was trained with that epoch twice",
    ),
    (
        Mistake { saves: SAME, begins: NEXT, after_epoch: Some(|epoch| (epoch + 1, 0)), ..RIGHT },
        "the saved position means the last step in one case, and the next step in another, at the end of an epoch, whose next step 0 is then \
         skipped. Let it always mean the next step",
    ),
    (Mistake { turns_to: |(epoch, step)| (epoch + 1, step), ..RIGHT }, KEEPS_STEP),
    (Mistake { turns_to: |(epoch, step)| (epoch + 1, step - 1), ..RIGHT }, KEEPS_STEP),
    (
        Mistake { turns_to: |(epoch, _)| (epoch + 1, 1), ..RIGHT },
        "the snapshot after the last step of an epoch names step 1 of the next one: its first step is step 0",
    ),
    (
        Mistake { saves: SAME, begins: NEXT, starts: (0, 1), ..RIGHT },
        "a run without a snapshot begins with step 1: the step after the saved one is right where there is a snapshot, and the first start begins \
         with step 0",
    ),
];

impl Mistake {
    /// The steps of the model at the end of the job. `turns`: the position after an epoch is one of the next.
    fn simulated(&self, (epochs, steps, save_every, kills): &Case, turns: bool) -> Vec<Position> {
        let mut snapshot: Option<(Vec<Position>, Position)> = None;
        for kill in kills.iter().copied().map(Some).chain([None]) {
            let (mut model, begin) = match &snapshot {
                Some((model, saved)) => (model.clone(), (self.begins)(*saved)),
                None => (Vec::new(), self.starts),
            };
            let mut left = kill.unwrap_or(u64::MAX);
            let mut train = |position: Position, model: &mut Vec<Position>| {
                model.push(position);
                left = left.checked_sub(1)?;
                Some(())
            };
            let run = (begin.0..*epochs).try_for_each(|epoch| {
                let first = if epoch == begin.0 || self.in_all_epochs { begin.1 } else { 0 };
                for step in first..*steps {
                    train((epoch, step), &mut model)?;
                    if !self.only_then && (step + 1) % save_every == 0 {
                        let next = (self.saves)((epoch, step));
                        snapshot =
                            Some((model.clone(), if turns && next.1 == *steps { (self.turns_to)(next) } else { next }));
                    }
                }
                if let Some(position) = self.after_epoch {
                    snapshot = Some((model.clone(), position(epoch)));
                }
                Some(())
            });
            if run.is_some() {
                return model;
            }
        }
        Vec::new()
    }
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
    let job = format!("{epochs} epochs of {steps} steps, a snapshot every {save_every}");
    if ends.is_empty() { format!("{job}; not killed") } else { format!("{job}; {}", ends.join(", then ")) }
}

fn check(case: &Case, observed: &[Position], causes: &[&str]) -> anyhow::Result<()> {
    let (epochs, steps, _, kills) = case;
    let expected: Vec<Position> = (0..*epochs).flat_map(|epoch| (0..*steps).map(move |step| (epoch, step))).collect();
    let count = |position: &&Position| observed.iter().filter(|one| one == position).count();
    let named = |(epoch, step): &Position| format!("step {step} of epoch {epoch}");
    let claim = Claim::that(expected == observed, steps_of(&expected), steps_of(observed)).given(given(case));
    let twice = expected.iter().find(|position| count(position) > 1);
    let missing = expected.iter().find(|position| count(position) == 0);
    let beyond = observed.iter().find(|position| !expected.contains(position));
    let what = [
        twice.map(|position| format!("the model was trained with {} more than once", named(position))),
        missing.map(|position| format!("the model was never trained with {}", named(position))),
        beyond.map(|position| format!("there is no {}", named(position))),
    ];
    let what: Vec<String> = what.into_iter().flatten().collect();
    claim.causes(causes).or_fail(if what.is_empty() {
        "the steps are in the wrong order".to_owned()
    } else if expected.starts_with(observed) {
        let missing = missing.map(named).unwrap_or_default();
        format!(
            "the steps from {missing} on are missing: a run ended before the last one, or a kill passed for its end"
        )
    } else if kills.is_empty() {
        format!("{}, in a run that was never stopped: it takes each step of each epoch once", what.join(", and "))
    } else {
        format!(
            "{}: which step does the position in the snapshot mean, where it is saved and where a run begins with it?",
            what.join(", and ")
        )
    })
}

/// The steps of each epoch, for the learner.
fn steps_of(positions: &[Position]) -> String {
    let of_epoch = |chunk: &[Position]| {
        let steps: Vec<String> = chunk.iter().map(|(_, step)| step.to_string()).collect();
        format!("epoch {}: {}", chunk[0].0, steps.join(" "))
    };
    positions.chunk_by(|one, next| one.0 == next.0).map(of_epoch).collect::<Vec<_>>().join("; ")
}

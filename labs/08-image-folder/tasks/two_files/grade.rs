//! Grades `two_files`: a job that is killed once at every possible moment, and twice at some.

use lockstep_grading::{Claim, Runner, causes, counted, given, joined};

/// The accuracy of each epoch, and after how many calls each run is killed.
type Case = (Vec<f64>, Vec<u64>);
/// The epoch in the best model's file, the best epoch in the snapshot, the number of trained epochs, and whether a process has written a
/// model before it had trained one.
type Ended = (Option<u64>, Option<u64>, u64, bool);

/// What differs from a right answer.
#[derive(Clone, Copy, Default)]
struct Mistake {
    /// The snapshot is written before the model.
    snapshot_first: bool,
    /// A start does not read the best epoch so far.
    forgets: bool,
    /// The snapshot holds the best epoch from before the one that is done.
    one_behind: bool,
}

const LOST: &str = "the best model is lost: the snapshot that continues after it was written first, the kill came before the model was \
                    written, and the epoch is not trained again. Write the model first: then a kill only repeats the epoch";
const FORGOTTEN: &str = "a worse model has replaced the best one after a restart, where the first model counts as the best: save the best \
                         accuracy so far in a snapshot that is written after the model, and read it from there";
const BEHIND: &str = "the snapshot does not know of the model that was just written: it holds the best epoch from before. After a restart a worse \
                      model is then compared with that one, and replaces the best: update `best` before the snapshot is written";

/// Each mistake with its diagnosis.
const MISTAKES: [(Mistake, &str); 5] = [
    (Mistake { snapshot_first: true, forgets: false, one_behind: false }, LOST),
    (Mistake { snapshot_first: false, forgets: true, one_behind: false }, FORGOTTEN),
    (Mistake { snapshot_first: false, forgets: false, one_behind: true }, BEHIND),
    (
        Mistake { snapshot_first: true, forgets: true, one_behind: true },
        "two mistakes: a kill between the two files loses the best model, since the snapshot is written first; and after a restart the first \
         model counts as the best. Write the model first, then the snapshot with the best accuracy so far, and read that from it",
    ),
    (
        Mistake { snapshot_first: true, forgets: false, one_behind: true },
        "the snapshot is written first, so it does not know of a model of the same epoch, and a kill between the two loses that model: \
         write the model, update `best`, and then write the snapshot",
    ),
];

/// How the job ends with an answer that makes this mistake.
fn simulated((accuracies, kills): &Case, mistake: Mistake) -> Ended {
    let at = |epoch: u64| accuracies[epoch as usize];
    let (mut snapshot, mut file, mut trained): ((u64, Option<u64>), Option<u64>, u64) = ((0, None), None, 0);
    for kill in kills.iter().copied().map(Some).chain([None]) {
        let mut left = kill;
        let mut act = || {
            let alive = left != Some(0);
            left = left.map(|left| left.saturating_sub(1));
            alive.then_some(())
        };
        let mut run = || {
            let (start, mut best) = snapshot;
            best = best.filter(|_| !mistake.forgets);
            for epoch in start..accuracies.len() as u64 {
                act()?;
                trained += 1;
                let before = best;
                let better = best.is_none_or(|best| at(epoch) > at(best));
                best = if better { Some(epoch) } else { best };
                let saved = (epoch + 1, if mistake.one_behind { before } else { best });
                if mistake.snapshot_first {
                    act()?;
                    snapshot = saved;
                }
                if better {
                    act()?;
                    file = Some(epoch);
                }
                if !mistake.snapshot_first {
                    act()?;
                    snapshot = saved;
                }
            }
            Some(())
        };
        if run().is_some() {
            break;
        }
    }
    (file, snapshot.1, trained, false)
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Some epochs after the best one are better than those before it.
    let mut run = |base: &[usize]| -> Vec<f64> {
        base.iter().map(|accuracy| (accuracy * 10 + random.below(0..9)) as f64 / 100.0).collect()
    };
    // The first epoch is the best one.
    let first = run(&[8, 5, 7, 4]);
    let runs = [run(&[5, 7, 6, 4]), run(&[3, 5, 8, 6, 7, 4])];
    let mut cases: Vec<Case> = runs.iter().map(|run| (run.clone(), vec![])).collect();
    // The last epoch equals the best one.
    cases.push(([&runs[0][..], &runs[0][1..2]].concat(), vec![]));
    for run in &runs {
        cases.extend((0..3 * run.len() as u64).map(|kill| (run.clone(), vec![kill])));
    }
    cases.extend((0..8).map(|_| (runs[1].clone(), vec![random.below(1..9) as u64, random.below(1..5) as u64])));
    cases.push((first.clone(), vec![]));
    cases.extend((0..12).map(|kill| (first.clone(), vec![kill])));
    cases.push((vec![0.0; 3], vec![]));
    let outputs = runner.call::<_, Ended>(1, &cases).map_err(|error| given(error, |input| text(&cases[input])))?;
    let ends_so = |mistake: Mistake| {
        cases.iter().enumerate().all(|(number, case)| *outputs.of(0, number) == simulated(case, mistake))
    };
    let causes = causes(&MISTAKES, |mistake| ends_so(*mistake));
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number), &causes))
}

/// The accuracies, and when the job is killed.
fn text((accuracies, kills): &Case) -> String {
    let listed: Vec<String> =
        accuracies.iter().enumerate().map(|(epoch, accuracy)| format!("{epoch}: {accuracy:.2}")).collect();
    let killed = match &kills[..] {
        [] => "not killed".to_owned(),
        kills => {
            let again = if kills.len() > 1 { ", each time counted from the start" } else { "" };
            let kills: Vec<String> = kills.iter().map(|calls| counted(*calls, "call")).collect();
            let kills = joined(&kills, " and after ");
            format!("killed after {kills} of `train_and_validate`, `save_best_model` or `save_snapshot`{again}")
        }
    };
    format!("accuracies by epoch {}; {killed}", listed.join(", "))
}

fn check(case: &Case, &(file, said, trained, untrained): &Ended, causes: &[&str]) -> anyhow::Result<()> {
    let (accuracies, kills) = case;
    let at = |epoch: u64| accuracies.get(epoch as usize).copied().unwrap_or(f64::NAN);
    let best = (0..accuracies.len() as u64).fold(0, |best, epoch| if at(epoch) > at(best) { epoch } else { best });
    let given = text(case);
    let model = |epoch: Option<u64>| epoch.map_or("no model".into(), |epoch| format!("that of epoch {epoch}"));
    let expected = format!("the best model is that of epoch {best}");
    let equal = |epoch: Option<u64>| epoch.is_some_and(|epoch| at(epoch) == at(best));
    let epochs = accuracies.len();
    Claim::that(trained as usize >= epochs, format!("each of {epochs} epochs is trained"), format!("{trained} epochs are trained"))
        .given(&given)
        .or_fail(
            "an epoch is never trained: a start must begin with the snapshot's `next_epoch`, or with epoch 0, and a snapshot must not name an \
             epoch as done before it is",
        )?;
    let claim = Claim::that(file == Some(best), &expected, model(file)).given(&given);
    let killed = !kills.is_empty();
    claim
        .causes(causes)
        .diagnose_if(
            untrained,
            "after a restart a model was written before an epoch was trained: the model in memory is then not the best one, which is in its \
             file already",
        )
        .diagnose_if(
            !killed && equal(file),
            "of two equal epochs, the later one is kept: keep the first, as in task 4. Do not write a model that is not better",
        )
        .diagnose_if(
            !killed && file.is_some_and(|file| file > best),
            "a worse model has replaced the best one, without a restart: write the best model only after an epoch that is better than the \
             best one before",
        )
        .diagnose_if(
            !killed && best == 0 && file.is_none(),
            "the first epoch's model is the best one, and was never written: the first model is the best so far, even with an accuracy of 0",
        )
        .diagnose_if(
            file.is_some_and(|file| file > best),
            format!(
                "a worse model has replaced that of epoch {best} after a restart: what does the start compare it with, and does the snapshot \
                 hold that at each moment of a kill?"
            ),
        )
        .diagnose_if(
            killed,
            format!(
                "without a kill the file is right, and after this one it lacks the model of epoch {best}: follow the calls up to the kill, and \
                 what the next start reads"
            ),
        )
        .or_fail("the file does not contain the best model")?;
    Claim::that(said == Some(best), format!("epoch {best} as the best one in the snapshot"), model(said))
        .given(&given)
        .diagnose_if(
            said.is_some_and(|said| said != best),
            "the file is right, but the snapshot names another epoch as the best one: `Best` holds the epoch of the model in the file",
        )
        .or_fail("the snapshot does not name the best model so far: a run that resumes from it would accept a worse one")?;
    let most = accuracies.len() + kills.len();
    Claim::that(trained as usize <= most, format!("at most {most} trained epochs"), format!("{trained}"))
        .given(&given)
        .or_fail(
            "a resumed run repeats more than the interrupted epoch: the best model is not the last one, so write a snapshot after every \
             epoch. Its `next_epoch` is the epoch after it, and a restart begins there",
        )
}

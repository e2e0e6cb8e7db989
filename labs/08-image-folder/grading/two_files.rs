//! Task `two_files`: a job that is killed at every moment once, and at some twice.

use lockstep_grading::{Claim, Stage};

/// The accuracy of each epoch, and after how many calls each start is killed.
type Case = (Vec<f64>, Vec<u64>);
/// The epoch in the best model's file, the one that the snapshot names, and how many epochs were trained.
type End = (Option<u64>, Option<u64>, u64);

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    // After the best epoch come some that are better than those before it.
    let mut run = |base: &[usize]| -> Vec<f64> {
        base.iter().map(|accuracy| (accuracy * 10 + random.below(0..9)) as f64 / 100.0).collect()
    };
    let runs = [run(&[5, 7, 6, 4]), run(&[3, 5, 8, 6, 7, 4])];
    let mut cases: Vec<Case> = runs.iter().map(|run| (run.clone(), vec![])).collect();
    for run in &runs {
        cases.extend((0..3 * run.len() as u64).map(|kill| (run.clone(), vec![kill])));
    }
    cases.extend((0..8).map(|_| (runs[1].clone(), vec![random.below(1..9) as u64, random.below(1..5) as u64])));
    let outputs = stage.call::<_, End>(1, &cases)?;
    cases.iter().enumerate().try_for_each(|(number, case)| judge(case, outputs.of(0, number)))
}

fn judge((accuracies, kills): &Case, &(file, said, trained): &End) -> anyhow::Result<()> {
    let at = |epoch: u64| accuracies.get(epoch as usize).copied().unwrap_or(f64::NAN);
    let best = (0..accuracies.len() as u64).fold(0, |best, epoch| if at(epoch) > at(best) { epoch } else { best });
    let ends = match &kills[..] {
        [] => "not killed".into(),
        kills => format!("killed after {kills:?} calls of `train_and_validate`, `save_best_model` and `save_snapshot`"),
    };
    let given = format!("epochs of accuracies {accuracies:?}, {ends}");
    let told = |epoch: Option<u64>| epoch.map_or("no model".into(), |epoch| format!("that of epoch {epoch}"));
    let expected = format!("the best model is that of epoch {best}");
    Claim::that(file == Some(best), &expected, told(file))
        .given(&given)
        .knows(
            file.is_some_and(|file| file > best),
            "a worse model has replaced the best one after a restart: the best accuracy so far is not in the snapshot, or is not read \
             from it, and whatever comes first is taken for the best",
        )
        .knows(
            file.is_none_or(|file| file < best) && !kills.is_empty(),
            format!(
                "the best model is lost: the snapshot that goes on after epoch {best} was written first, a kill came before the model was, \
                 and nobody trains that epoch again. Write the model first: a kill then has the epoch done again"
            ),
        )
        .otherwise("not the best model is in the file")?;
    Claim::that(said == Some(best), format!("the snapshot says that epoch {best} is the best"), told(said))
        .given(&given)
        .otherwise("the snapshot does not say which model is the best at its time: a run that goes on from it would take a worse one for better")?;
    let most = accuracies.len() + kills.len();
    Claim::that(trained as usize <= most, format!("at most {most} epochs are trained"), format!("{trained}"))
        .given(&given)
        .otherwise(
            "more is trained again than the epoch that a kill has broken off: the best model is not the last, so a snapshot must be written after \
             every epoch",
        )
}

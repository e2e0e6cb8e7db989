//! Grades `checkpoints`: numbers of epochs that are multiples of the interval, and others.

use lockstep_grading::{Claim, Finding, Runner, Verdict, causes, explain, given};

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (every, times) = (random.below(3..6) as u64, random.below(2..5) as u64);
    // With one epoch more than the last interval has, counting from the end gives the multiples of the interval.
    let rest = 2 + random.below(0..every as usize - 2) as u64;
    let cases = [(every * times + rest, every), (every * times, every), (every - 1, every), (times, 1), (0, every)];
    let outputs = runner
        .call::<_, Vec<u64>>(1, &cases)
        .map_err(|error| explain(error, |finding| why(finding, &cases)))
        .map_err(|error| given(error, |case| format!("{} epochs, save every {}", cases[case].0, cases[case].1)))?;
    let all_are = |mistake: &dyn Fn(u64, u64) -> Vec<u64>| {
        cases.iter().enumerate().all(|(case, &(total, every))| *outputs.of(0, case) == mistake(total, every))
    };
    let causes = causes(&CAUSES, |mistake| all_are(mistake));
    for (case, &(total, every)) in cases.iter().enumerate() {
        check(total, every, outputs.of(0, case), &causes)?;
    }
    Ok(())
}

/// The epochs that a mistake gives for a number of epochs and an interval.
type Mistake = fn(u64, u64) -> Vec<u64>;

const CAUSES: [(Mistake, &str); 4] = [
    (
        |total, every| (0..total).filter(|epoch| epoch % every == 0).collect(),
        "epochs count from 0, so the first checkpoint comes after one epoch, and the epochs after the last checkpoint are lost: count the \
         epochs that are done, and save after the last one, too",
    ),
    (
        |total, every| (0..total).filter(|epoch| (epoch + 1).is_multiple_of(every)).collect(),
        "the last epochs do not complete an interval, and are lost when the run ends: save after the last epoch, too",
    ),
    (
        |total, every| (1..=total).filter(|done| done.is_multiple_of(every) || *done == total).collect(),
        "these are counts of finished epochs; the epochs themselves are numbered from 0",
    ),
    (
        |total, every| {
            let mut back: Vec<u64> = (0..total).rev().step_by(every as usize).collect();
            back.reverse();
            back
        },
        "the intervals are counted back from the last epoch, so the saved epochs depend on the length of the run: count from the beginning, \
         and save the last epoch, too",
    ),
];

fn why(finding: &Finding, cases: &[(u64, u64)]) -> Option<String> {
    let no_epochs = finding.input.is_some_and(|case| cases[case].0 == 0);
    let below_zero = finding.diagnosis.contains("attempt to subtract with overflow");
    (finding.verdict == Verdict::Crash && no_epochs && below_zero).then(|| {
        "`total_epochs - 1` is below 0 in a run of 0 epochs, and a u64 cannot be: such a run does not have a last epoch".to_owned()
    })
}

fn check(total: u64, every: u64, observed: &Vec<u64>, causes: &[&str]) -> anyhow::Result<()> {
    let after = |epoch: &u64| (epoch + 1).is_multiple_of(every);
    let right: Vec<u64> = (0..total).filter(|epoch| after(epoch) || epoch + 1 == total).collect();
    let beyond = observed.iter().find(|epoch| **epoch >= total);
    let mut in_order = observed.clone();
    in_order.sort_unstable();
    let starts_early = total > 0 && every > 1 && observed.first() == Some(&0) && right.first() != Some(&0);
    let claim = Claim::equal(&right, observed).given(format!(
        "{total} epochs, save every {every}; the epochs, numbered from 0, after which a checkpoint is saved"
    ));
    claim
        .causes(causes)
        .diagnose_if(
            starts_early,
            "epochs count from 0, so the first checkpoint comes after one epoch: count those that are done",
        )
        .diagnose_if(
            observed.windows(2).any(|pair| pair[0] == pair[1]),
            "an epoch is saved twice: here the last epoch also completes an interval",
        )
        .diagnose_if(in_order == right, "the epochs are right, but not in order: the run saves the earliest first")
        .diagnose_if(total == 0, "a run of 0 epochs has nothing to save")
        .diagnose_if(
            beyond.is_some(),
            format!(
                "there is no epoch {}: they are numbered from 0, so the last is {}",
                beyond.unwrap_or(&0),
                total.max(1) - 1
            ),
        )
        .or_fail("save a checkpoint after every interval and after the last epoch")
}

//! A class that is made up, to show the page before there is one, and to rehearse. Everything is a function of the minutes that the class has
//! lasted: nothing is kept.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use lockstep_grading::seat::{Attempts, Seat, SeatFinding};
use lockstep_grading::{Language, Verdict};

use crate::route::Planned;

/// The class begins with this share of the route behind it.
const BEGINS: f64 = 0.3;
/// Minutes of the class that pass in one minute.
const SPEED: f64 = 20.0;
/// One of this many seats goes away, and is silent.
const GOES: u64 = 12;
const NAMES: [&str; 20] = [
    "ada", "ben", "chen", "dina", "emil", "fatima", "goran", "hana", "ines", "jonas", "kofi", "lucia", "mei", "noor",
    "olga", "pavel", "quinn", "rosa", "sami", "tomas",
];
/// What the graders of a few tasks say of wrong answers; for other tasks the last ones.
const FINDINGS: &[(&str, &[(Verdict, &str)])] = &[
    (
        "batches",
        &[(
            Verdict::WrongValue,
            "a batch goes beyond the last sample, 103: the last batch has only the remaining samples",
        )],
    ),
    (
        "shard",
        &[
            (
                Verdict::WrongValue,
                "each rank takes a block of neighbours: let it take the samples whose number is its rank plus a multiple of the world size",
            ),
            (
                Verdict::WrongValue,
                "some ranks have one sample more than others, and would wait for them forever in a collective: fill the shorter shares",
            ),
        ],
    ),
    (
        "average",
        &[
            (
                Verdict::WrongValue,
                "summed, not averaged: divide by the number of ranks, or the step becomes too large by that factor",
            ),
            (Verdict::WrongValue, "never reduced: this is the rank's own gradient, so the ranks' models drift apart"),
            (
                Verdict::NotCompiled,
                "error[E0308]: mismatched types: expected `Tensor`, found `Result<Tensor, c10d::Error>`",
            ),
        ],
    ),
    (
        "line",
        &[
            (
                Verdict::RanksDisagree,
                "each rank has fitted its own line to its share: average the gradients over the ranks before each step",
            ),
            (
                Verdict::WrongValue,
                "the gradients are added up over the ranks, not averaged: as if the learning rate were multiplied by the world size",
            ),
        ],
    ),
    (
        "environment",
        &[(
            Verdict::WrongValue,
            "RANK is not set, and a value is guessed: without a launcher, every process would then train alone on all of the data",
        )],
    ),
    (
        "distributed",
        &[(
            Verdict::WrongValue,
            "all ranks visit the same samples, and no rank visits the rest: give the sampler the rank of its own process",
        )],
    ),
    (
        "ring",
        &[(
            Verdict::Hang,
            "rank 0 waits in send for rank 1, which waits in send for rank 0: a cycle in which no rank can continue",
        )],
    ),
    ("state", &[(Verdict::WrongValue, "only the weights were saved: after a stop, the velocity starts at zero")]),
    (
        "whole",
        &[(
            Verdict::WrongValue,
            "the only copy is opened for writing, which empties it: a kill in the middle leaves only a torn file",
        )],
    ),
    (
        "",
        &[
            (Verdict::WrongValue, "rank 1 has another result than rank 0"),
            (Verdict::Hang, "rank 2 has ended without the call in which the others wait"),
            (Verdict::Crash, "an index is out of bounds: the length is 3 but the index is 3"),
        ],
    ),
];

/// The seats, `elapsed` seconds after the page was opened, with times as if they had been written until `now`.
pub(super) fn seats(count: usize, plan: &[Planned], elapsed: f64, now: u64) -> Vec<Seat> {
    let whole: u32 = plan.iter().map(|planned| planned.minutes).sum();
    let minutes = f64::from(whole) * BEGINS + elapsed / 60.0 * SPEED;
    (0..count).map(|index| seat(index, plan, minutes, now)).collect()
}

fn seat(index: usize, plan: &[Planned], minutes: f64, now: u64) -> Seat {
    let draw = |what: &str| share(&(index, what));
    // Some work faster than planned, and some for twice as long.
    let pace = 0.5 + 1.2 * draw("pace");
    let lasts = if (index as u64 + 1).is_multiple_of(GOES) { minutes.min(60.0) } else { minutes };
    let at = |minute: f64| now.saturating_sub(((minutes - minute).max(0.0) * 60.0) as u64);
    let in_python = draw("language") < 0.35;
    let mut tasks: BTreeMap<String, BTreeMap<String, Attempts>> = BTreeMap::new();
    let mut begins = 5.0 * draw("late");
    let since = at(begins);
    for planned in plan {
        let (lab, task) = (planned.lab.number(), &*planned.task.name);
        let takes = f64::from(planned.minutes) * pace * (0.5 + draw(task));
        // Reading comes first; then they try.
        let (tries, ends) = (begins + 0.4 * takes, begins + takes);
        if lasts < tries {
            break;
        }
        let has_passed = lasts >= ends;
        let count = 1 + (share(&(index, task, "count")) * 5.0) as u32;
        // An attempt every few minutes.
        let last = if has_passed { ends } else { tries + ((lasts - tries) / 4.0).floor() * 4.0 };
        let attempts = Attempts {
            first: at(tries),
            last: at(last),
            count,
            passed: has_passed.then(|| at(ends)),
            finding: (!has_passed).then(|| finding(task, share(&(index, task, "finding")))),
            language: Some(if in_python && !planned.lab.python.is_empty() { Language::Python } else { Language::Rust }),
        };
        tasks.entry(lab.into()).or_default().insert(task.into(), attempts);
        begins = ends;
        if !has_passed {
            break;
        }
    }
    let round = index / NAMES.len();
    let name = format!(
        "{}{}@demo",
        NAMES[index % NAMES.len()],
        if round == 0 { String::new() } else { format!("{}", round + 1) }
    );
    Seat { name, since, written: now, tasks }
}

fn finding(task: &str, draw: f64) -> SeatFinding {
    let of = |name: &str| FINDINGS.iter().find(|(task, _)| *task == name).map(|(_, findings)| *findings);
    let findings = of(task).or(of("")).unwrap_or_default();
    let (verdict, diagnosis) = findings[(draw * findings.len() as f64) as usize];
    SeatFinding { verdict, diagnosis: diagnosis.into() }
}

/// A number from 0 to 1 that depends on this alone.
fn share(what: &impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::super::view::View;
    use super::*;
    use crate::route::Route;

    #[test]
    fn a_made_up_class_moves_on_and_shows_what_a_real_one_shows() {
        let plan = Route::find("day").unwrap().plan().unwrap();
        let now = 1_800_000_000;
        let view = |elapsed| View::new(plan.clone(), seats(20, &plan, elapsed, now), now);
        let done = |view: &View| view.rows.iter().map(|row| row.done()).sum::<usize>();
        let (first, later) = (view(0.0), view(300.0));
        assert_eq!(first.rows.len(), 20);
        assert!(done(&first) > 20 && done(&later) > done(&first), "{} {}", done(&first), done(&later));
        assert!(!first.met.is_empty() && !first.stuck().is_empty());
        assert!(later.rows.iter().any(|row| row.is_silent()), "nobody has gone");
        let languages: std::collections::BTreeSet<_> =
            first.rows.iter().filter_map(|row| row.language.clone()).collect();
        assert_eq!(languages.into_iter().collect::<Vec<_>>(), ["Rust", "Rust, Python"]);
        for seat in seats(40, &plan, 0.0, now) {
            assert!(seat.name.ends_with("@demo") && seat.since <= now);
        }
    }

    #[test]
    fn findings_are_of_tasks_that_exist() {
        let tasks: Vec<String> =
            Route::find("whole").unwrap().plan().unwrap().into_iter().map(|planned| planned.task.name).collect();
        for (name, findings) in FINDINGS {
            assert!(name.is_empty() || tasks.iter().any(|task| task == name), "{name}");
            assert!(!findings.is_empty());
        }
    }
}

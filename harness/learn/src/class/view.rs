//! What the files of a class's seats say together: who is where and since when, what most have met, how long tasks take.
//!
//! Times are by the clock of the folder's file system. A seat works on a task from when it passed the one before, or from when it joined the class.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use lockstep_grading::seat::{Attempts, Seat, SeatFinding};
use lockstep_grading::{Language, Verdict};
use regex::Regex;

use crate::route::Planned;

/// A seat that was silent for longer, in seconds, is not counted among those that are stuck: it may have gone.
pub(super) const SILENT: u64 = 45 * 60;
/// The upper ends of a histogram's bars, as multiples of the plan's minutes; the last bar has what took longer.
pub(super) const BARS: [f64; 4] = [0.5, 1.0, 1.5, 2.0];

/// How far a seat is with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Passed,
    /// It was graded, and was not right.
    Tried,
    Open,
}

/// Where a seat is.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    /// The signs of the route's tasks, in order.
    pub(super) marks: Vec<Mark>,
    /// The task that it works on, by its place on the route; none if all have passed.
    pub(super) at: Option<usize>,
    /// For how many seconds it has worked on it.
    pub(super) since: u64,
    /// How many seconds ago it was last heard of.
    pub(super) heard: u64,
    /// How often the task was graded.
    pub(super) tries: u32,
    /// What the last grading found. Nothing for an answer that has not been begun.
    pub(super) finding: Option<(Verdict, String)>,
    /// What its answers are written in, if that is known.
    pub(super) language: Option<String>,
}

impl Row {
    pub(super) fn is_silent(&self) -> bool {
        self.heard >= SILENT
    }
}

/// A diagnosis that seats have just met, at the task where they are.
#[derive(Debug, PartialEq)]
pub(super) struct Met {
    pub(super) at: usize,
    pub(super) verdict: Verdict,
    /// One seat's text: those of others differ in their numbers.
    pub(super) diagnosis: String,
    pub(super) seats: usize,
}

/// How long a task took those who passed it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TaskTimes {
    pub(super) passed: usize,
    pub(super) working: usize,
    /// Minutes of each seat that passed it in the class, in ascending order.
    pub(super) minutes: Vec<f64>,
    /// How many seats took up to each multiple of the plan in [`BARS`], and how many longer.
    pub(super) bars: [usize; BARS.len() + 1],
}

pub(super) struct View {
    pub(super) plan: Vec<Planned>,
    /// By name.
    pub(super) rows: Vec<Row>,
    /// What most have met comes first.
    pub(super) met: Vec<Met>,
    /// The times of the route's tasks, in order.
    pub(super) times: Vec<TaskTimes>,
}

impl View {
    pub(super) fn new(plan: Vec<Planned>, mut seats: Vec<Seat>, now: u64) -> Self {
        seats.sort_by(|a, b| a.name.cmp(&b.name));
        let rows: Vec<Row> = seats.iter().map(|seat| row(&plan, seat, now)).collect();
        let times = plan.iter().enumerate().map(|(index, planned)| times(index, planned, &seats, &rows)).collect();
        View { met: met(&rows), times, rows, plan }
    }

    /// Returns true if some answers are in Python, so that a seat's language is worth a column.
    pub(super) fn has_python(&self) -> bool {
        let python = Language::Python.name();
        self.rows.iter().any(|row| row.language.as_ref().is_some_and(|languages| languages.contains(python)))
    }

    /// The seats that have worked on their task for longer than planned, the longest first.
    pub(super) fn stuck(&self) -> Vec<(usize, &Row)> {
        let over = |row: &Row| row.at.is_some_and(|at| row.since > 60 * u64::from(self.plan[at].minutes));
        let mut stuck: Vec<_> =
            self.rows.iter().enumerate().filter(|(_, row)| !row.is_silent() && row.tries > 0 && over(row)).collect();
        stuck.sort_by_key(|(_, row)| std::cmp::Reverse(row.since));
        stuck
    }
}

impl Row {
    pub(super) fn done(&self) -> usize {
        self.marks.iter().filter(|mark| **mark == Mark::Passed).count()
    }
}

pub(super) fn attempts<'a>(seat: &'a Seat, planned: &Planned) -> Option<&'a Attempts> {
    seat.tasks.get(planned.lab.number())?.get(&planned.task.name)
}

fn row(plan: &[Planned], seat: &Seat, now: u64) -> Row {
    let tried: Vec<_> = plan.iter().map(|planned| attempts(seat, planned)).collect();
    let marks: Vec<Mark> = tried.iter().map(|attempts| attempts.map_or(Mark::Open, mark)).collect();
    // The open task that was graded last, else the first one after what has passed.
    let last = |index: &usize| tried[*index].map_or(0, |attempts| attempts.last);
    let tried_last = (0..plan.len()).filter(|index| marks[*index] == Mark::Tried).max_by_key(last);
    let after = marks.iter().rposition(|mark| *mark == Mark::Passed).map_or(0, |passed| passed + 1);
    let next = (after..plan.len()).chain(0..after).find(|index| marks[*index] != Mark::Passed);
    let at = tried_last.or(next);
    let all = || seat.tasks.values().flat_map(BTreeMap::values);
    let passed = all().filter_map(|attempts| attempts.passed).max().unwrap_or_default();
    let heard = all().map(|attempts| attempts.last).max().unwrap_or_default().max(seat.since);
    let here = at.and_then(|at| tried[at]);
    let mut languages: Vec<Language> = all().filter_map(|attempts| attempts.language).collect();
    languages.sort_unstable();
    languages.dedup();
    let finding = here.and_then(|attempts| attempts.finding.as_ref()).filter(|finding| !not_started(finding));
    Row {
        name: seat.name.clone(),
        at,
        since: now.saturating_sub(passed.max(seat.since)),
        heard: now.saturating_sub(heard),
        tries: here.map_or(0, |attempts| attempts.count),
        finding: finding.map(|finding| (finding.verdict, finding.diagnosis.clone())),
        language: (!languages.is_empty()).then(|| languages.iter().map(|of| of.name()).collect::<Vec<_>>().join(", ")),
        marks,
    }
}

fn not_started(finding: &SeatFinding) -> bool {
    finding.verdict == Verdict::NotStarted
}

/// How far a seat is with a task that it has graded.
pub(super) fn mark(attempts: &Attempts) -> Mark {
    match attempts {
        Attempts { passed: Some(_), .. } => Mark::Passed,
        Attempts { finding: Some(finding), .. } if not_started(finding) => Mark::Open,
        _ => Mark::Tried,
    }
}

/// What seats have met at their tasks. Texts that differ in their numbers only are the same diagnosis.
fn met(rows: &[Row]) -> Vec<Met> {
    let mut found: BTreeMap<(usize, String), Met> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_silent()) {
        if let (Some(at), Some((verdict, diagnosis))) = (row.at, &row.finding) {
            let met = Met { at, verdict: *verdict, diagnosis: diagnosis.clone(), seats: 0 };
            found.entry((at, without_numbers(diagnosis))).or_insert(met).seats += 1;
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by_key(|met| std::cmp::Reverse(met.seats));
    found
}

/// The text with a sign in place of each number.
pub(crate) fn without_numbers(text: &str) -> String {
    static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"-?\d[\d.,]*(e-?\d+)?").expect("a valid pattern"));
    NUMBER.replace_all(text, "#").into_owned()
}

fn times(index: usize, planned: &Planned, seats: &[Seat], rows: &[Row]) -> TaskTimes {
    let mut minutes: Vec<f64> = seats.iter().filter_map(|seat| minutes(seat, planned)).collect();
    minutes.sort_by(f64::total_cmp);
    let mut bars = [0; BARS.len() + 1];
    for minutes in &minutes {
        let share = minutes / f64::from(planned.minutes.max(1));
        bars[BARS.iter().position(|end| share <= *end).unwrap_or(BARS.len())] += 1;
    }
    let count = |of: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
    TaskTimes {
        passed: count(&|row| row.marks[index] == Mark::Passed),
        working: count(&|row| row.at == Some(index) && !row.is_silent()),
        minutes,
        bars,
    }
}

/// How long the task took this seat, from when it passed the one before. Nothing for what had passed before the class.
fn minutes(seat: &Seat, planned: &Planned) -> Option<f64> {
    let attempts = attempts(seat, planned).filter(|attempts| attempts.count > 0)?;
    let passed = attempts.passed.filter(|passed| *passed >= seat.since)?;
    let all = seat.tasks.values().flat_map(BTreeMap::values);
    let before = all.filter_map(|attempts| attempts.passed).filter(|at| *at < passed).max();
    let begun = before.unwrap_or_default().max(seat.since).min(attempts.first);
    Some(passed.saturating_sub(begun) as f64 / 60.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Tasks of lab 02, each planned with ten minutes.
    pub(crate) fn plan() -> Vec<Planned> {
        let lab = crate::labs::find("02").unwrap();
        let tasks = lab.tasks().unwrap().tasks;
        tasks.into_iter().map(|task| Planned { lab, task, minutes: 10 }).collect()
    }

    /// A seat that joined at 1,000: for each task of the plan when it was graded, and when it passed, or the diagnosis.
    pub(crate) fn seat(name: &str, tried: &[(u64, Result<u64, &str>)]) -> Seat {
        let mut seat = Seat { name: name.into(), since: 1_000, ..Seat::default() };
        for (planned, (last, ended)) in plan().iter().zip(tried) {
            let finding = ended.err().map(|text| SeatFinding { verdict: Verdict::WrongValue, diagnosis: text.into() });
            let attempts =
                Attempts { first: *last, last: *last, count: 2, passed: ended.ok(), finding, ..Attempts::default() };
            seat.tasks.entry("02".into()).or_default().insert(planned.task.name.clone(), attempts);
        }
        seat
    }

    #[test]
    fn a_seat_is_at_the_task_that_it_graded_last_or_at_the_next() {
        let cases = [
            (seat("new", &[]), Some(0), 1_000),
            (seat("next", &[(1_600, Ok(1_600))]), Some(1), 400),
            (seat("tries", &[(1_600, Ok(1_600)), (1_900, Err("a sum"))]), Some(1), 400),
            (seat("back", &[(1_990, Err("off by one")), (1_600, Ok(1_600))]), Some(0), 400),
        ];
        for (seat, at, since) in cases {
            let row = row(&plan(), &seat, 2_000);
            assert_eq!((row.at, row.since), (at, since), "{}", seat.name);
        }
        let all = vec![(1_500, Ok(1_500)); plan().len()];
        assert_eq!(row(&plan(), &seat("done", &all), 2_000).at, None);
    }

    #[test]
    fn diagnoses_that_differ_in_numbers_count_together() {
        let seats = ["rank 1 of 3 has -0.25 too much", "rank 2 of 4 has 1.5 too much", "not a share"]
            .map(|text| seat(text, &[(1_900, Err(text))]));
        let view = View::new(plan(), seats.into(), 2_000);
        let counts: Vec<_> = view.met.iter().map(|met| (met.at, met.seats)).collect();
        assert_eq!(counts, [(0, 2), (0, 1)]);
    }

    #[test]
    fn the_plans_minutes_divide_who_is_stuck_from_who_is_not() {
        let slow = seat("slow", &[(1_900, Err("a"))]);
        let slower = Seat { since: 500, ..seat("slower", &[(1_900, Err("a"))]) };
        let quick = Seat { since: 1_500, ..seat("quick", &[(1_900, Err("a"))]) };
        let gone = Seat { since: 500, ..seat("gone", &[(600, Err("a"))]) };
        let now = 2_000 + SILENT - 1_000;
        let view = |now| View::new(plan(), vec![slow.clone(), slower.clone(), quick.clone(), gone.clone()], now);
        let names = |view: &View| view.stuck().iter().map(|(_, row)| row.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&view(2_000)), ["gone", "slower", "slow"]);
        assert_eq!(names(&view(600 + SILENT)), ["slower", "slow", "quick"]);
        assert_eq!(names(&view(now + SILENT)), [""; 0]);
    }

    #[test]
    fn minutes_count_from_the_task_before_and_fall_into_bars_of_the_plan() {
        let seats = [240, 600, 660, 1_000, 4_000]
            .map(|took| seat("s", &[(1_001, Ok(1_000 + took)), (1_001, Ok(1_000 + took + 300))]));
        let view = View::new(plan(), seats.into(), 9_000);
        assert_eq!(view.times[0].minutes, [4.0, 10.0, 11.0, 1_000.0 / 60.0, 4_000.0 / 60.0]);
        assert_eq!(view.times[0].bars, [1, 1, 1, 1, 1]);
        assert_eq!(view.times[0].passed, 5);
        let before = Attempts { first: 10, last: 10, passed: Some(10), ..Attempts::default() };
        let mut early = seat("early", &[]);
        early.tasks.entry("02".into()).or_default().insert(plan()[0].task.name.clone(), before);
        assert_eq!(minutes(&early, &plan()[0]), None);
    }

    #[test]
    fn an_answer_that_is_not_begun_is_open() {
        let mut seat = seat("ada", &[(1_060, Err("the answer is still a `todo!()`"))]);
        for attempts in seat.tasks.values_mut().flat_map(BTreeMap::values_mut) {
            attempts.finding.as_mut().unwrap().verdict = Verdict::NotStarted;
        }
        let view = View::new(plan(), vec![seat], 1_120);
        assert!(view.rows[0].marks.iter().all(|mark| *mark == Mark::Open) && view.rows[0].finding.is_none());
    }
}

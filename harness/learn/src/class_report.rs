//! The tables of a report on a class: learners by tasks, and a row for each task. `lockstep class` makes them from the seats' files, and
//! `lockstep grade --class` from what it has graded.

use std::collections::BTreeMap;

use lockstep_grading::{Lab, Language};

use crate::class::{in_short, without_numbers};
use crate::report::{Table, Verdict};

/// How far a learner is with a task.
#[derive(Clone, Debug)]
pub(crate) struct TaskOutcome {
    pub(crate) learner: String,
    /// As [`task_name`] has it.
    pub(crate) task: String,
    pub(crate) verdict: Verdict,
    /// What the answer is written in, if that is known.
    pub(crate) language: Option<Language>,
    /// What is wrong with the answer.
    pub(crate) diagnosis: Option<String>,
}

/// What the tables call a task.
pub(crate) fn task_name(lab: &Lab, task: &str) -> String {
    format!("{} {task}", lab.number())
}

/// The tables, with a column or a row for each of `tasks`, in this order. An outcome that is missing is open; of a task that a learner has answered
/// in both languages, the better one counts.
pub(crate) fn tables(tasks: &[String], learners: &[String], outcomes: &[TaskOutcome]) -> Vec<Table> {
    if tasks.is_empty() || learners.is_empty() {
        return Vec::new();
    }
    let mut by_name = Outcomes::new();
    for outcome in outcomes {
        let kept = by_name.entry((&*outcome.learner, &*outcome.task)).or_insert(outcome);
        if place(outcome) < place(kept) {
            *kept = outcome;
        }
    }
    let has_python = outcomes.iter().any(|outcome| outcome.language == Some(Language::Python));
    vec![by_learner(tasks, learners, &by_name, has_python), by_task(tasks, learners, &by_name, has_python)]
}

/// The better an outcome is, the less.
fn place(outcome: &TaskOutcome) -> Option<usize> {
    Verdict::ALL.iter().position(|verdict| *verdict == outcome.verdict)
}

type Outcomes<'a> = BTreeMap<(&'a str, &'a str), &'a TaskOutcome>;

fn by_learner(tasks: &[String], learners: &[String], outcomes: &Outcomes<'_>, has_python: bool) -> Table {
    let cell = |learner: &String, task: &String| match outcomes.get(&(&**learner, &**task)) {
        Some(TaskOutcome { verdict, language: Some(Language::Python), .. }) => format!("{} py", verdict.symbol()),
        Some(outcome) => outcome.verdict.symbol().to_owned(),
        None => Verdict::Open.symbol().to_owned(),
    };
    let row = |learner: &String| {
        let passed = tasks.iter().filter(|task| verdict(outcomes, learner, task) == Verdict::Passed).count();
        let cells = tasks.iter().map(|task| cell(learner, task));
        [learner.clone(), format!("{passed} of {}", tasks.len())].into_iter().chain(cells).collect()
    };
    let python = if has_python { "; py: in Python" } else { "" };
    Table {
        title: format!("Learners and tasks: ✓ passed, ✗ not right, · not started{python}"),
        headings: ["learner".to_owned(), "passed".to_owned()].into_iter().chain(tasks.iter().cloned()).collect(),
        rows: learners.iter().map(row).collect(),
    }
}

fn by_task(tasks: &[String], learners: &[String], outcomes: &Outcomes<'_>, has_python: bool) -> Table {
    let is_undecided = |task: &String| learners.iter().any(|of| verdict(outcomes, of, task) == Verdict::NotVerified);
    let mut columns = vec![("passed", Verdict::Passed), ("not right", Verdict::Failed), ("not started", Verdict::Open)];
    columns.extend(tasks.iter().any(is_undecided).then_some(("not graded", Verdict::NotVerified)));
    let row = |task: &String| {
        let count = |of: Verdict| learners.iter().filter(|learner| verdict(outcomes, learner, task) == of).count();
        let mut cells = vec![task.clone()];
        cells.extend(columns.iter().map(|(_, verdict)| count(*verdict).to_string()));
        let of_task = || learners.iter().filter_map(|learner| outcomes.get(&(&**learner, &**task)));
        let in_python = of_task().filter(|outcome| outcome.language == Some(Language::Python)).count();
        cells.extend(has_python.then(|| in_python.to_string()));
        cells.push(most_often(of_task().filter_map(|outcome| outcome.diagnosis.as_deref())));
        cells
    };
    let mut headings = vec!["task".to_owned()];
    headings.extend(columns.iter().map(|(name, _)| (*name).to_owned()));
    headings.extend(has_python.then(|| "in Python".into()));
    headings.push("most often wrong".into());
    Table { title: "Tasks".into(), headings, rows: tasks.iter().map(row).collect() }
}

fn verdict(outcomes: &Outcomes<'_>, learner: &str, task: &str) -> Verdict {
    outcomes.get(&(learner, task)).map_or(Verdict::Open, |outcome| outcome.verdict)
}

/// The diagnosis that most have, and how many; texts that differ in their numbers are the same.
fn most_often<'a>(diagnoses: impl Iterator<Item = &'a str>) -> String {
    let mut found: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    for diagnosis in diagnoses {
        found.entry(without_numbers(diagnosis)).or_insert((0, diagnosis)).0 += 1;
    }
    let most = found.into_values().max_by_key(|(count, _)| *count);
    most.map_or_else(String::new, |(count, diagnosis)| {
        let diagnosis = in_short(diagnosis);
        if count == 1 { diagnosis.to_owned() } else { format!("{diagnosis} ({count} times)") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(learner: &str, task: &str, verdict: Verdict, python: bool, diagnosis: Option<&str>) -> TaskOutcome {
        let language = Some(if python { Language::Python } else { Language::Rust });
        TaskOutcome {
            learner: learner.into(),
            task: task.into(),
            verdict,
            language,
            diagnosis: diagnosis.map(str::to_owned),
        }
    }

    #[test]
    fn each_learner_has_a_row_and_each_task_and_what_is_open_is_not_wrong() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (tasks, learners) = (names(&["02 shard", "02 average"]), names(&["ann", "bob", "eve"]));
        let outcomes = [
            outcome("ann", "02 shard", Verdict::Passed, true, None),
            outcome("ann", "02 average", Verdict::Failed, true, Some("summed on rank 1: divide")),
            outcome("bob", "02 shard", Verdict::Open, false, None),
            outcome("bob", "02 shard", Verdict::Passed, true, None),
            outcome("bob", "02 shard", Verdict::Failed, false, Some("blocks")),
            outcome("bob", "02 average", Verdict::Failed, false, Some("summed on rank 0: divide")),
        ];
        let [matrix, by_task] = &tables(&tasks, &learners, &outcomes)[..] else { panic!() };
        assert_eq!(matrix.headings, ["learner", "passed", "02 shard", "02 average"]);
        assert_eq!(matrix.rows[0], ["ann", "1 of 2", "✓ py", "✗ py"]);
        assert_eq!(matrix.rows[1], ["bob", "1 of 2", "✓ py", "✗"]);
        assert_eq!(matrix.rows[2], ["eve", "0 of 2", "·", "·"]);
        assert_eq!(by_task.headings, ["task", "passed", "not right", "not started", "in Python", "most often wrong"]);
        assert_eq!(by_task.rows[0], ["02 shard", "2", "0", "1", "2", ""]);
        assert_eq!(by_task.rows[1], ["02 average", "0", "2", "1", "1", "summed on rank 1 (2 times)"]);
    }

    #[test]
    fn what_could_not_be_graded_has_a_column_where_it_occurs() {
        let (tasks, learners) = (["02 shard".to_owned()], ["ann".to_owned()]);
        let undecided = [outcome("ann", "02 shard", Verdict::NotVerified, false, None)];
        let [matrix, by_task] = &tables(&tasks, &learners, &undecided)[..] else { panic!() };
        assert_eq!((&*matrix.rows[0][2], &*by_task.headings[4], &*by_task.rows[0][4]), ("?", "not graded", "1"));
        assert!(tables(&tasks, &[], &[]).is_empty());
    }
}

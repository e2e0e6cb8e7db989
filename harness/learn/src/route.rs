//! The routes through the course (`labs/routes.toml`), and how far a learner is on one. The book's first page shows the same file.
//!
//! Which pages were read is unknown, so only the tasks that have passed count.

use std::ops::Range;
use std::path::Path;

use comfy_table::LineStyle;
use lockstep_grading::exercise::Task;
use lockstep_grading::labs::LABS;
use lockstep_grading::progress::Progress;
use lockstep_grading::{Lab, Language, Workplace, checksums};
use serde::Deserialize;

use crate::exit::Refused;
use crate::report::{Screen, whole_words};

const ROUTES: &str = include_str!("../../../labs/routes.toml");
/// Stands for all tasks of a lab.
const ALL: &str = "all";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Routes {
    route: Vec<Route>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    name: String,
    about: String,
    step: Vec<Step>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Step {
    Page(PageStep),
    Pause(Pause),
}

/// A break, by its name.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    pause: String,
    minutes: u32,
}

/// A page to read, and the tasks that follow.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageStep {
    page: String,
    /// The last heading to read; none for the whole page.
    until: Option<String>,
    minutes: u32,
    run: Option<String>,
    #[serde(default)]
    tasks: Vec<String>,
}

/// A task of the route, and the minutes that the route plans for it, and for what is read and for breaks before.
#[derive(Clone)]
pub(super) struct Planned {
    pub(super) lab: Lab,
    pub(super) task: Task,
    pub(super) minutes: u32,
}

enum Stop {
    Page(PageStep),
    Pause(Pause),
    Task(Lab, Task),
}

impl Route {
    /// The route of this name.
    pub(super) fn find(name: &str) -> anyhow::Result<Self> {
        let routes = toml::from_str::<Routes>(ROUTES)?.route;
        let names = routes.iter().map(|route| &*route.name).collect::<Vec<_>>().join(", ");
        let found = routes.into_iter().find(|route| route.name == name);
        found.ok_or_else(|| Refused(format!("there is no route {name:?}: there are {names}")).into())
    }

    /// The names of all routes.
    pub(super) fn names() -> anyhow::Result<Vec<String>> {
        Ok(toml::from_str::<Routes>(ROUTES)?.route.into_iter().map(|route| route.name).collect())
    }

    /// The tasks of the route, each with the minutes for it and for the pages and breaks before it.
    pub(super) fn plan(&self) -> anyhow::Result<Vec<Planned>> {
        let (mut plan, mut read) = (Vec::new(), 0);
        for stop in self.stops()? {
            match stop {
                Stop::Page(PageStep { minutes, .. }) | Stop::Pause(Pause { minutes, .. }) => read += minutes,
                Stop::Task(lab, task) => {
                    let minutes = std::mem::take(&mut read) + task.minutes;
                    plan.push(Planned { lab, task, minutes });
                }
            }
        }
        Ok(plan)
    }

    /// Prints all stops of the route, and which come next.
    pub(super) fn show(&self, root: &Path, progress: &Progress, screen: &Screen) -> anyhow::Result<()> {
        let stops = self.stops()?;
        let style = screen.style();
        let mut table = style.table(&["minutes", "what", "how far"]);
        table.load_style(style.table_style().row_separator(LineStyle::none()));
        for stop in &stops {
            table.add_row([stop.minutes().to_string(), stop.what(), stop.how_far(root, progress)]);
        }
        let done: Vec<Option<bool>> =
            stops.iter().map(|stop| stop.passed(progress).filter(|_| stop.is_here(root))).collect();
        screen.line(format!("{}: {}", self.name, self.about));
        screen.line(whole_words(table, style));
        let (passed, all) = (done.iter().flatten().filter(|passed| **passed).count(), done.iter().flatten().count());
        screen.line(format!("{passed} of {all} tasks are done"));
        let next: Vec<&Stop> = stops[next(&done)].iter().filter(|stop| stop.is_here(root)).collect();
        if next.is_empty() {
            screen.line("this was the last stop of the route");
        } else {
            screen.line(format!("next, about {} minutes:", next.iter().map(|stop| stop.minutes()).sum::<u32>()));
        }
        let runs = !Workplace::at(root).is_folder();
        next.iter().flat_map(|stop| stop.orders(runs)).for_each(|order| screen.line(format!("  {order}")));
        Ok(())
    }

    fn stops(&self) -> anyhow::Result<Vec<Stop>> {
        let mut stops = Vec::new();
        for step in &self.step {
            let step = match step {
                Step::Page(step) => step,
                Step::Pause(pause) => {
                    stops.push(Stop::Pause(pause.clone()));
                    continue;
                }
            };
            stops.push(Stop::Page(step.clone()));
            for lab in LABS {
                let tasks = lab.tasks()?;
                if tasks.chapter != step.page {
                    continue;
                }
                for name in step.tasks.iter().filter(|name| *name != ALL) {
                    stops.push(Stop::Task(*lab, tasks.find(name)?.clone()));
                }
                if step.tasks.iter().any(|name| name == ALL) {
                    stops.extend(tasks.tasks.into_iter().map(|task| Stop::Task(*lab, task)));
                }
            }
        }
        Ok(stops)
    }
}

impl Stop {
    fn minutes(&self) -> u32 {
        match self {
            Stop::Page(step) => step.minutes,
            Stop::Pause(pause) => pause.minutes,
            Stop::Task(_, task) => task.minutes,
        }
    }

    fn what(&self) -> String {
        match self {
            Stop::Page(PageStep { page, until: Some(heading), .. }) => {
                format!("{}, to the end of \"{heading}\"", Workplace::chapter(page))
            }
            Stop::Page(step) => Workplace::chapter(&step.page),
            Stop::Pause(pause) => pause.pause.clone(),
            Stop::Task(lab, task) => format!("task {} {}: {}", lab.number(), task.name, task.title),
        }
    }

    /// For a task, whether it has passed.
    fn passed(&self, progress: &Progress) -> Option<bool> {
        match self {
            Stop::Page(_) | Stop::Pause(_) => None,
            Stop::Task(lab, task) => Some(progress.of(lab.number(), &task.name).is_some()),
        }
    }

    /// Whether the learner can do it.
    fn is_here(&self, root: &Path) -> bool {
        match self {
            Stop::Page(_) | Stop::Pause(_) => true,
            Stop::Task(lab, task) => is_here(root, lab, task),
        }
    }

    fn how_far(&self, root: &Path, progress: &Progress) -> String {
        match self {
            Stop::Page(_) | Stop::Pause(_) => String::new(),
            Stop::Task(lab, task) => match progress.of(lab.number(), &task.name) {
                Some(passed) => format!("✓ {}", passed.at),
                None => begun(root, lab, task).into(),
            },
        }
    }

    /// What to do at this stop, one line each. What a page has the learner run needs a checkout.
    fn orders(&self, runs: bool) -> Vec<String> {
        match self {
            Stop::Page(step) => {
                let run = step.run.iter().filter(|_| runs).map(|command| format!("run   {command}"));
                std::iter::once(format!("read  {}", self.what())).chain(run).collect()
            }
            Stop::Pause(pause) => vec![format!("rest  {}, {} minutes", pause.pause, pause.minutes)],
            Stop::Task(lab, task) => vec![format!("do    lockstep grade {} {}", lab.number(), task.name)],
        }
    }
}

/// The stops that come next: the first open task, and the pages before it; after the last task, the pages that are left. `done`
/// has nothing for a page, and for a task whether it has passed.
fn next(done: &[Option<bool>]) -> Range<usize> {
    let open = done.iter().position(|passed| *passed == Some(false));
    let end = open.map_or(done.len(), |open| open + 1);
    let before = &done[..open.unwrap_or(done.len())];
    before.iter().rposition(Option::is_some).map_or(0, |last| last + 1)..end
}

/// Whether the learner has the task: a folder without a checkout has those in Python alone.
fn is_here(root: &Path, lab: &Lab, task: &Task) -> bool {
    let language = Language::of(root, false);
    language == Language::Rust || lab.learners(root, language).join(task.file_in(language)).exists()
}

/// How far a task is that has not passed.
pub(crate) fn begun(root: &Path, lab: &Lab, task: &Task) -> &'static str {
    let language = Language::of(root, false);
    if !is_here(root, lab, task) {
        "in a checkout"
    } else if checksums::untouched(&lab.learners(root, language), &task.file_in(language)) {
        "not started"
    } else {
        "begun"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_of_a_route_exists() {
        for route in toml::from_str::<Routes>(ROUTES).unwrap().route {
            let tasks = route.stops().unwrap().iter().filter(|stop| matches!(stop, Stop::Task(..))).count();
            let named = route.step.iter().map(|step| match step {
                Step::Page(step) => step.tasks.len(),
                Step::Pause(_) => 0,
            });
            assert!(tasks >= named.sum(), "{}", route.name);
        }
    }

    #[test]
    fn the_whole_route_has_every_task() {
        let stops = Route::find("whole").unwrap().stops().unwrap();
        let there = stops.iter().filter(|stop| matches!(stop, Stop::Task(..))).count();
        let tasks: usize = LABS.iter().map(|lab| lab.tasks().unwrap().tasks.len()).sum();
        assert_eq!(there, tasks);
    }

    #[test]
    fn a_days_six_hours_and_its_breaks_are_planned() {
        for (name, work, breaks) in [("morning", 120, 0), ("half-day", 220, 20), ("day", 360, 75)] {
            let route = Route::find(name).unwrap();
            let stops = route.stops().unwrap();
            let minutes = |pause| -> u32 {
                stops.iter().filter(|stop| matches!(stop, Stop::Pause(_)) == pause).map(Stop::minutes).sum()
            };
            assert_eq!((minutes(false), minutes(true)), (work, breaks), "{name}");
            let planned: u32 = route.plan().unwrap().iter().map(|planned| planned.minutes).sum();
            let after: u32 = stops
                .iter()
                .rev()
                .map_while(|stop| stop.passed(&Progress::default()).is_none().then(|| stop.minutes()))
                .sum();
            assert_eq!(planned + after, work + breaks, "{name}");
        }
    }

    #[test]
    fn the_first_open_task_comes_next_with_the_pages_before_it() {
        let (page, open, passed) = (None, Some(false), Some(true));
        assert_eq!(next(&[page, page, open, page, open]), 0..3);
        assert_eq!(next(&[page, passed, page, open]), 2..4);
        assert_eq!(next(&[page, passed, open]), 2..3);
        assert_eq!(next(&[page, open, page, passed, page]), 0..2);
        assert_eq!(next(&[page, passed, page]), 2..3);
        assert!(next(&[page, passed]).is_empty());
    }
}

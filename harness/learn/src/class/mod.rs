//! `lockstep class`: how far the seats of a class are, from the files that they write into a shared folder: at the terminal, as a report,
//! or on a page that follows them.

mod demo;
mod page;
mod view;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use clap::Args;
use comfy_table::LineStyle;
use lockstep_contract::foreign;
use lockstep_grading::seat::{Attempts, Seat, now};

use crate::class_report::{self, TaskOutcome, task_name};
use crate::exit::{Code, Refused};
use crate::live_page::{self, Asked, Site};
use crate::report::{Finding, Form, Report, ReportCase, Screen, Target, Verdict, count, whole_words};
use crate::route::{Planned, Route};

use page::{Frame, Names};
pub(crate) use view::without_numbers;
use view::{Mark, View};

/// No seat has joined before, in seconds since 1970: November 2023.
const EARLIEST: u64 = 1_700_000_000;
/// Where the page is served, if no address is given.
const ADDRESS: &str = "127.0.0.1:8460";
/// More seats than this are not a class.
const MOST_SEATS: usize = 1_000;
/// More made-up seats show nothing more.
const MOST_DEMO: u16 = 200;

/// Show how far the seats of a class are: those that grade with LOCKSTEP_CLASS=DIR
#[derive(Args)]
pub struct ClassOptions {
    /// The folder that all seats share
    #[arg(value_name = "DIR", required_unless_present = "demo")]
    folder: Option<PathBuf>,
    /// Show N made-up seats instead, which do the route twenty times as fast
    #[arg(long, value_name = "N", conflicts_with = "folder", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_DEMO)))]
    demo: Option<u16>,
    /// The heading of the page and of the reports [default: the folder]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Show a page that follows the seats, until Ctrl-C; only this machine reaches it unless an address says otherwise
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = ADDRESS)]
    #[arg(value_parser = |text: &str| live_page::address(text, ADDRESS))]
    serve: Option<String>,
    /// The route whose tasks are shown, with its minutes: morning, half-day, day or whole
    #[arg(long, default_value = "whole")]
    route: String,
    /// Call the seats by numbers, not by their names
    #[arg(long)]
    hide_names: bool,
    /// Where a report on all seats goes, with --serve at the end: a .csv, .json, .xml (JUnit), .html or .txt file; may be repeated
    #[arg(long = "report", value_name = "FILE")]
    reports: Vec<Target>,
}

impl ClassOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let route = Route::find(&self.route)?;
        let source = match (self.folder, self.demo) {
            (Some(folder), _) => Source::Folder(ClassFolder(folder)),
            (None, seats) => {
                Source::Demo { seats: seats.unwrap_or_default().into(), plan: route.plan()?, since: Instant::now() }
            }
        };
        let read = source.read().map_err(Refused)?;
        let screen = Screen::new(self.reports.iter().any(Target::is_stdout));
        let started = SystemTime::now();
        let title = source.title(self.title.as_deref());
        let read = match self.serve {
            None => {
                if source.is_demo() {
                    screen.line(DEMO);
                }
                show(&read, &View::new(route.plan()?, read.seats.clone(), now()), self.hide_names, &screen);
                Arc::new(read)
            }
            Some(address) => {
                let seen = " sees the names; --hide-names hides them";
                let to_all = if self.hide_names || source.is_demo() { "" } else { seen };
                let (route, hide_names, title) = (self.route, self.hide_names, title.clone());
                live_page::serve(
                    &address,
                    ClassSite { source, title, route, hide_names },
                    Arc::new(read),
                    to_all,
                    &screen,
                )?
            }
        };
        let report = class_report(&title, &read.seats, &route.plan()?, self.hide_names, started);
        self.reports.iter().try_for_each(|target| report.write(target))?;
        Ok(Code::Success)
    }
}

/// What is said wherever made-up seats are shown.
const DEMO: &str = "A demo: these seats are made up.";

/// Where the seats come from.
enum Source {
    Folder(ClassFolder),
    /// Made-up seats, which follow this plan.
    Demo {
        seats: usize,
        plan: Vec<Planned>,
        since: Instant,
    },
}

impl Source {
    /// Reads all seats.
    ///
    /// # Errors
    /// Why the folder cannot be read, with its name.
    fn read(&self) -> Result<ReadClass, String> {
        match self {
            Source::Folder(folder) => {
                folder.read().map_err(|why| format!("cannot read the class in {}: {why}", foreign::path(&folder.0)))
            }
            Source::Demo { seats, plan, since } => {
                let seats = demo::seats(*seats, plan, since.elapsed().as_secs_f64(), now());
                Ok(ReadClass { seats, broken: Vec::new() })
            }
        }
    }

    fn is_demo(&self) -> bool {
        matches!(self, Source::Demo { .. })
    }

    /// What participants have to export, as they can copy it wherever they are; none for a demo.
    fn folder(&self) -> Option<String> {
        let Source::Folder(ClassFolder(folder)) = self else { return None };
        Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).display().to_string())
    }

    fn title(&self, chosen: Option<&str>) -> String {
        match (chosen, self.folder()) {
            (Some(title), None) => format!("{} (a demo)", foreign::one_line(title)),
            (Some(title), Some(_)) => foreign::one_line(title),
            (None, Some(folder)) => format!("Class in {}", foreign::one_line(&folder)),
            (None, None) => "Demo class".into(),
        }
    }
}

/// The folder with a file for each seat.
#[derive(Clone)]
struct ClassFolder(PathBuf);

/// What the folder holds.
#[derive(Clone, Default)]
struct ReadClass {
    seats: Vec<Seat>,
    /// Files that are not a seat's, and why.
    broken: Vec<(String, String)>,
}

impl ClassFolder {
    /// Reads all seats.
    ///
    /// Errors: why the folder cannot be read. A file that cannot is part of the result.
    fn read(&self) -> Result<ReadClass, String> {
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            if is_a_seats(&path) {
                files.push(path);
            }
        }
        files.sort();
        let mut read = ReadClass::default();
        for file in files.iter().take(MOST_SEATS) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let seat = Seat::read(file).map(|seat| match written(file) {
                Some(at) => seat.by_clock_of_folder(at),
                None => seat,
            });
            match seat {
                Ok(seat) if seat.since >= EARLIEST => read.seats.push(seat),
                Ok(_) => read.broken.push((name, "it joined before there was this course".into())),
                Err(error) => read.broken.push((name, format!("{error:#}"))),
            }
        }
        if files.len() > MOST_SEATS {
            read.broken.push((
                count(files.len() - MOST_SEATS, "more file"),
                format!("a class has at most {MOST_SEATS} seats"),
            ));
        }
        Ok(read)
    }
}

/// What `--serve` shows.
struct ClassSite {
    source: Source,
    title: String,
    route: String,
    hide_names: bool,
}

impl Site for ClassSite {
    type Content = ReadClass;
    const SUBJECT: &'static str = "the class is";

    fn read(&self, _last: &Arc<ReadClass>) -> Result<Arc<ReadClass>, String> {
        self.source.read().map(Arc::new)
    }

    fn answer(&self, asked: &Asked<'_, ReadClass>) -> anyhow::Result<(&'static str, String)> {
        let route = asked.pairs.get("route").map_or(&*self.route, |route| route);
        let hidden = asked.pairs.get("names").is_some_and(|names| *names == "hidden");
        match asked.path.rsplit_once('.') {
            None if asked.path == "/" => self.page(asked, route, hidden),
            Some(("/report", ending)) => self.report(&asked.content, route, hidden, ending),
            _ => Err(Refused("the class is at /".into()).into()),
        }
    }
}

impl ClassSite {
    fn page(&self, asked: &Asked<'_, ReadClass>, route: &str, hidden: bool) -> anyhow::Result<(&'static str, String)> {
        let plan = Route::find(route)?.plan()?;
        let names = match (self.hide_names, hidden) {
            (true, _) => Names::AlwaysHidden,
            (false, true) => Names::Hidden,
            (false, false) => Names::Shown,
        };
        let folder = self.source.folder();
        let frame = Frame {
            title: &self.title,
            folder: folder.as_deref(),
            wall: asked.pairs.contains_key("wall"),
            route,
            routes: &Route::names()?,
            names,
            broken: &asked.content.broken,
            trouble: asked.trouble.as_ref(),
        };
        let view = View::new(plan, asked.content.seats.clone(), now());
        Ok(("text/html; charset=utf-8", page::render(&frame, &view)))
    }

    fn report(
        &self,
        class: &ReadClass,
        route: &str,
        hidden: bool,
        ending: &str,
    ) -> anyhow::Result<(&'static str, String)> {
        let plan = Route::find(route)?.plan()?;
        let (form, kind) = match ending {
            "html" => (Form::Html, "text/html; charset=utf-8"),
            "csv" => (Form::Csv, "text/csv; charset=utf-8"),
            "json" => (Form::Json, "application/json"),
            "xml" => (Form::Junit, "application/xml"),
            _ => return Err(Refused("a report is .html, .csv, .json or .xml".into()).into()),
        };
        let report = class_report(&self.title, &class.seats, &plan, self.hide_names || hidden, SystemTime::now());
        Ok((kind, report.render(form)?))
    }
}

/// When a file was last written, in seconds since 1970, by the clock of its file system.
fn written(file: &Path) -> Option<u64> {
    let time = fs::metadata(file).ok()?.modified().ok()?;
    Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}

/// Returns true for `NAME.json`. A hidden file is one that is being written.
fn is_a_seats(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".json") && !name.starts_with('.')
}

fn seat_name(seat: &str, index: usize, hidden: bool) -> String {
    if hidden { format!("seat {}", index + 1) } else { foreign::one_line(seat) }
}

/// A damaged file's name, which has its seat's name in it.
fn file_name(file: &str, index: usize, hidden: bool) -> String {
    if hidden { format!("file {}", index + 1) } else { foreign::one_line(file) }
}

/// A table for the terminal.
fn show(read: &ReadClass, view: &View, hidden: bool, screen: &Screen) {
    let style = screen.style();
    let with_language = view.has_python();
    let mut headings = vec!["seat", "in", "done", "at", "for", "graded", "found"];
    headings.retain(|heading| with_language || *heading != "in");
    let mut table = style.table(&headings);
    table.load_style(style.table_style().row_separator(LineStyle::none()));
    for (index, row) in view.rows.iter().enumerate() {
        let done = format!("{} of {}", row.done(), view.plan.len());
        let at = row
            .at
            .map_or("finished".into(), |at| format!("{} {}", view.plan[at].lab.number(), view.plan[at].task.name));
        let found = row.finding.as_ref().map_or("", |(verdict, _)| verdict.words());
        let (since, tries) = match row.at {
            Some(_) => (live_page::span(row.since), page::times_word(row.tries)),
            None => Default::default(),
        };
        let mut cells = vec![seat_name(&row.name, index, hidden)];
        cells.extend(with_language.then(|| row.language.clone().unwrap_or_default()));
        cells.extend([done, at, since, tries, found.into()]);
        table.add_row(cells);
    }
    if view.rows.is_empty() {
        screen.line("no seat has reported yet");
    } else {
        screen.line(whole_words(table, style));
    }
    let met = view.met.iter().map(|met| {
        let (task, diagnosis) = (&view.plan[met.at], foreign::one_line(in_short(&met.diagnosis)));
        let who = format!("{} at {} {}", count(met.seats, "seat"), task.lab.number(), task.task.name);
        (who, format!("{}: {diagnosis}", met.verdict.words()))
    });
    let met: Vec<_> = met.collect();
    screen.listing(&met.iter().map(|(who, what)| (&**who, &**what)).collect::<Vec<_>>());
    for (index, (file, why)) in read.broken.iter().enumerate() {
        let file = file_name(file, index, hidden);
        screen.line(format!("not a seat's file: {file}: {}", foreign::one_line(why)));
    }
}

/// What is wrong, without the explanation that follows; of a compiler's error the whole line, which begins with its kind.
pub(crate) fn in_short(diagnosis: &str) -> &str {
    if diagnosis.starts_with("error") {
        return diagnosis;
    }
    let end = [": ", "; ", ". "].iter().filter_map(|end| diagnosis.find(end)).min();
    &diagnosis[..end.unwrap_or(diagnosis.len())]
}

/// Tables of all, and a case for each lab that a seat has graded, with all of the lab's tasks on the route.
fn class_report(title: &str, seats: &[Seat], plan: &[Planned], hidden: bool, started: SystemTime) -> Report {
    let mut seats: Vec<&Seat> = seats.iter().collect();
    seats.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<String> =
        seats.iter().enumerate().map(|(index, seat)| seat_name(&seat.name, index, hidden)).collect();
    let (mut cases, mut outcomes) = (Vec::new(), Vec::new());
    for (seat, name) in seats.iter().zip(&names) {
        let mut labs: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
        for planned in plan.iter().filter(|planned| seat.tasks.contains_key(planned.lab.number())) {
            let attempts = view::attempts(seat, planned);
            let finding = finding(planned, attempts);
            let found = attempts.and_then(|attempts| attempts.finding.as_ref());
            outcomes.push(TaskOutcome {
                learner: name.clone(),
                task: task_name(&planned.lab, &planned.task.name),
                verdict: finding.verdict,
                language: attempts.and_then(|attempts| attempts.language),
                diagnosis: found.filter(|_| finding.verdict == Verdict::Failed).map(|found| found.diagnosis.clone()),
            });
            labs.entry(planned.lab.number()).or_default().push(finding);
        }
        for (lab, findings) in labs {
            let done = findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
            cases.push(ReportCase {
                name: format!("{name}/{lab}"),
                shows: format!("{done} of {} tasks of lab {lab} are done", findings.len()),
                findings,
                ..ReportCase::default()
            });
        }
    }
    let took = started.elapsed().unwrap_or_default();
    let tasks: Vec<String> = plan.iter().map(|planned| task_name(&planned.lab, &planned.task.name)).collect();
    let title = format!("Lockstep class: {title}: {}", count(seats.len(), "seat"));
    let mut report = Report::here(&title, started, took, cases);
    report.tables = class_report::tables(&tasks, &names, &outcomes);
    report
}

fn finding(planned: &Planned, attempts: Option<&Attempts>) -> Finding {
    let claim = format!("{}: {}", planned.task.name, planned.task.title);
    let Some(attempts) = attempts.filter(|attempts| view::mark(attempts) != Mark::Open) else {
        return Finding { claim, verdict: Verdict::Open, evidence: "not started".into() };
    };
    let language = attempts.language.map(|language| format!(", in {}", language.name())).unwrap_or_default();
    let graded = format!("graded {}{language}", page::times_word(attempts.count));
    let (verdict, evidence) = match (&attempts.passed, &attempts.finding) {
        (Some(_), _) if attempts.count == 0 => (Verdict::Passed, "before the class".into()),
        (Some(_), _) => (Verdict::Passed, graded),
        (None, Some(found)) => (Verdict::Failed, format!("{graded}; {}: {}", found.verdict.words(), found.diagnosis)),
        (None, None) => (Verdict::Failed, graded),
    };
    Finding { claim, verdict, evidence }
}

#[cfg(test)]
mod tests {
    use super::view::tests::{plan, seat};
    use super::*;

    #[test]
    fn reads_seats_and_names_what_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let joined = |name: &str, since: u64| serde_json::to_string(&Seat { since, ..seat(name, &[]) }).unwrap();
        write("ann.json", &joined("ann", now()));
        write("old.json", &joined("old", 1));
        write("torn.json", "{\"name\":\"bo");
        write(".lockstep-x.json", "being written");
        write("notes.txt", "not a seat's");
        let ahead = Seat { written: now() + 3_600, since: now() + 3_000, ..seat("bea", &[]) };
        write("bea.json", &serde_json::to_string(&ahead).unwrap());
        let read = ClassFolder(folder.path().into()).read().unwrap();
        assert_eq!(read.seats.len(), 2);
        assert!(read.seats[1].since <= now() - 600, "{:?}", read.seats[1]);
        let broken: Vec<_> = read.broken.iter().map(|(file, why)| (&**file, why.split(' ').next().unwrap())).collect();
        assert_eq!(broken, [("old.json", "it"), ("torn.json", "torn")]);
        assert!(ClassFolder(folder.path().join("gone")).read().is_err());
    }

    #[test]
    fn a_diagnosis_ends_before_its_explanation_and_a_compilers_error_does_not() {
        assert_eq!(in_short("summed, not averaged: divide by the number of ranks"), "summed, not averaged");
        assert_eq!(in_short("a sum"), "a sum");
        assert_eq!(in_short("error[E0308]: mismatched types"), "error[E0308]: mismatched types");
    }

    #[test]
    fn the_report_has_a_case_for_each_lab_that_a_seat_has_graded() {
        let seats = [seat("bob", &[(1_600, Ok(1_600)), (1_900, Err("a sum"))]), seat("ann", &[])];
        let report = class_report("Day 2", &seats, &plan(), false, SystemTime::now());
        let [case] = &report.cases[..] else { panic!("{:?}", report.cases) };
        assert_eq!((&*case.name, case.verdict()), ("bob/02", Verdict::Failed));
        assert_eq!(case.shows, format!("1 of {} tasks of lab 02 are done", plan().len()));
        assert!(case.findings[1].evidence.contains("graded 2 times; wrong value: a sum"));
        assert_eq!((case.findings[2].verdict, &*case.findings[2].evidence), (Verdict::Open, "not started"));
        assert_eq!(report.title, "Lockstep class: Day 2: 2 seats");
        assert_eq!(report.tables[0].rows[1][..4], ["bob", "1 of 6", "✓", "✗"]);
        let hidden = class_report("Day 2", &seats, &plan(), true, SystemTime::now());
        assert_eq!((&*hidden.cases[0].name, &*hidden.tables[0].rows[1][0]), ("seat 2/02", "seat 2"));
    }
}

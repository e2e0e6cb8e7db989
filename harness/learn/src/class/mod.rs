//! `lockstep class`: how far the seats of a class are, from the files that they write into a shared folder: at the terminal, as a report,
//! or on a page that follows them.

mod page;
mod view;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use comfy_table::LineStyle;
use lockstep_contract::foreign;
use lockstep_grading::seat::{Attempts, Seat, now};

use crate::exit::{Code, Refused};
use crate::report::{Finding, Form, Report, ReportCase, Screen, Target, Verdict, count, whole_words};
use crate::route::{Planned, Route};
use crate::serve::{self, Asked, Site};

use page::{Frame, Names};
use view::View;

/// No seat has joined before, in seconds since 1970: November 2023.
const EARLIEST: u64 = 1_700_000_000;
/// Where the page is served, if no address is given.
const ADDRESS: &str = "127.0.0.1:8460";
/// More seats than this are not a class.
const MOST_SEATS: usize = 1_000;

/// Show how far the seats of a class are: those that grade with LOCKSTEP_CLASS=DIR
#[derive(Args)]
pub struct ClassOptions {
    /// The folder that all seats share
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Show a page that follows the seats, until Ctrl-C; only this machine reaches it unless an address says otherwise
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = ADDRESS)]
    #[arg(value_parser = |text: &str| serve::address(text, ADDRESS))]
    serve: Option<String>,
    /// The route whose tasks are shown, with its minutes: morning, day or whole
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
        let class = ClassFolder(self.folder);
        let read = class
            .read()
            .map_err(|why| Refused(format!("cannot read the class in {}: {why}", foreign::path(&class.0))))?;
        let screen = Screen::new(self.reports.iter().any(Target::is_stdout));
        let started = SystemTime::now();
        let read = match self.serve {
            None => {
                show(&read, &View::new(route.plan()?, read.seats.clone(), now()), self.hide_names, &screen);
                Arc::new(read)
            }
            Some(address) => {
                // Participants copy it, wherever they are.
                let folder = std::path::absolute(&class.0).unwrap_or_else(|_| class.0.clone()).display().to_string();
                let seen = " sees the names; --hide-names hides them";
                let to_all = if self.hide_names { "" } else { seen };
                let site = ClassSite { class, folder, route: self.route, hide_names: self.hide_names };
                serve::serve(&address, site, Arc::new(read), to_all, &screen)?
            }
        };
        let report = class_report(&read.seats, &route.plan()?, self.hide_names, started);
        self.reports.iter().try_for_each(|target| report.write(target))?;
        Ok(Code::Success)
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
    class: ClassFolder,
    folder: String,
    route: String,
    hide_names: bool,
}

impl Site for ClassSite {
    type Content = ReadClass;
    const SUBJECT: &'static str = "the class is";

    fn read(&self, _last: &Arc<ReadClass>) -> Result<Arc<ReadClass>, String> {
        self.class.read().map(Arc::new)
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
        let frame = Frame {
            folder: &self.folder,
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
        let report = class_report(&class.seats, &plan, self.hide_names || hidden, SystemTime::now());
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
    let mut table = style.table(&["seat", "done", "at", "for", "graded", "last finding"]);
    table.load_style(style.table_style().row_separator(LineStyle::none()));
    for (index, row) in view.rows.iter().enumerate() {
        let done = format!("{} of {}", row.done(), view.plan.len());
        let at = row
            .at
            .map_or("finished".into(), |at| format!("{} {}", view.plan[at].lab.number(), view.plan[at].task.name));
        let found = row
            .finding
            .as_ref()
            .map(|(verdict, diagnosis)| format!("{}: {}", verdict.words(), in_short(*verdict, diagnosis)))
            .unwrap_or_default();
        let (since, tries) = match row.at {
            Some(_) => (serve::span(row.since), row.tries.to_string()),
            None => Default::default(),
        };
        table.add_row([seat_name(&row.name, index, hidden), done, at, since, tries, foreign::one_line(&found)]);
    }
    if view.rows.is_empty() {
        screen.line("no seat has reported yet");
    } else {
        screen.line(whole_words(table, style));
    }
    for (index, (file, why)) in read.broken.iter().enumerate() {
        let file = file_name(file, index, hidden);
        screen.line(format!("not a seat's file: {file}: {}", foreign::one_line(why)));
    }
}

/// What is wrong, without the explanation that follows; of a compiler's error the whole line, which begins with its kind.
fn in_short(verdict: lockstep_grading::Verdict, diagnosis: &str) -> &str {
    if verdict == lockstep_grading::Verdict::NotCompiled {
        return diagnosis;
    }
    let end = [": ", "; ", ". "].iter().filter_map(|end| diagnosis.find(end)).min();
    &diagnosis[..end.unwrap_or(diagnosis.len())]
}

/// A case for each lab that a seat has graded.
fn class_report(seats: &[Seat], plan: &[Planned], hidden: bool, started: SystemTime) -> Report {
    let mut seats: Vec<&Seat> = seats.iter().collect();
    seats.sort_by(|a, b| a.name.cmp(&b.name));
    let mut cases = Vec::new();
    for (index, seat) in seats.iter().enumerate() {
        let mut labs: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
        for planned in plan {
            let tasks = seat.tasks.get(planned.lab.number());
            if let Some(attempts) = tasks.and_then(|tasks| tasks.get(&planned.task.name)) {
                labs.entry(planned.lab.number()).or_default().push(finding(planned, attempts));
            }
        }
        for (lab, findings) in labs {
            let done = findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
            let of = plan.iter().filter(|planned| planned.lab.number() == lab).count();
            cases.push(ReportCase {
                name: format!("{}/{lab}", seat_name(&seat.name, index, hidden)),
                shows: format!("{done} of {of} tasks of lab {lab} are done"),
                findings,
                ..ReportCase::default()
            });
        }
    }
    let took = started.elapsed().unwrap_or_default();
    Report::here(&format!("Lockstep class: {}", count(seats.len(), "seat")), started, took, cases)
}

fn finding(planned: &Planned, attempts: &Attempts) -> Finding {
    let graded = page::times_word(attempts.count);
    let (verdict, evidence) = match (&attempts.passed, &attempts.finding) {
        (Some(_), _) if attempts.count == 0 => (Verdict::Passed, "before the class".into()),
        (Some(_), _) => (Verdict::Passed, format!("graded {graded}")),
        (None, Some(found)) => {
            (Verdict::Failed, format!("graded {graded}; {}: {}", found.verdict.words(), found.diagnosis))
        }
        (None, None) => (Verdict::Failed, format!("graded {graded}")),
    };
    Finding { claim: format!("{}: {}", planned.task.name, planned.task.title), verdict, evidence }
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
        use lockstep_grading::Verdict::{NotCompiled, WrongValue};
        assert_eq!(in_short(WrongValue, "summed, not averaged: divide by the number of ranks"), "summed, not averaged");
        assert_eq!(in_short(WrongValue, "a sum"), "a sum");
        assert_eq!(in_short(NotCompiled, "error[E0308]: mismatched types"), "error[E0308]: mismatched types");
    }

    #[test]
    fn the_report_has_a_case_for_each_lab_that_a_seat_has_graded() {
        let seats = [seat("bob", &[(1_600, Ok(1_600)), (1_900, Err("a sum"))]), seat("ann", &[])];
        let report = class_report(&seats, &plan(), false, SystemTime::now());
        let [case] = &report.cases[..] else { panic!("{:?}", report.cases) };
        assert_eq!((&*case.name, case.verdict()), ("bob/02", Verdict::Failed));
        assert_eq!(case.shows, format!("1 of {} tasks of lab 02 are done", plan().len()));
        assert!(case.findings[1].evidence.contains("graded 2 times; wrong value: a sum"));
        assert_eq!(class_report(&seats, &plan(), true, SystemTime::now()).cases[0].name, "seat 2/02");
    }
}

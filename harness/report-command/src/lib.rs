//! `lockstep report`: the curves of a run from its event files, as a page, as a page that follows the run, or as numbers.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

mod page;
mod series;

use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use clap::ValueHint;
use comfy_table::LineStyle;
use lockstep_contract::foreign;
use lockstep_launch::exit;
use lockstep_live_page as live_page;
use lockstep_report as report;
use serde::Serialize;

use crate::exit::{Code, Refused};
use crate::live_page::{Asked, Site};
use crate::report::formats::cell;
use crate::report::formatting::seconds;
use crate::report::history::{History, RunEvents};
use crate::report::{Form, Screen, Target, Timeline, whole_words};

use page::{View, range, short, summary};
use series::{Curves, Quantity, Row, State};

/// Where the page is served, if no address is given: not where `lockstep class` is.
const ADDRESS: &str = "127.0.0.1:8461";
/// The page, if no other place is given.
const PAGE: &str = "report.html";
/// Notes are printed up to this many.
const MOST_NOTES: usize = 10;

/// Draw the curves of a run from its event files (LOCKSTEP_EVENTS=DIR): loss, learning rate, samples a second, by rank and attempt
#[derive(Args)]
#[command(
    after_help = "The exit code is 0 whatever became of the run, and 2 if DIR cannot be read or has no event files."
)]
pub struct ReportOptions {
    /// The folder that LOCKSTEP_EVENTS named in the run
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: PathBuf,
    /// Show a page that follows the run, until Ctrl-C; only this machine reaches it unless an address says otherwise
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = ADDRESS)]
    #[arg(value_parser = |text: &str| live_page::address(text, ADDRESS))]
    serve: Option<String>,
    /// Where the curves go, with --serve at the end: .html for the page, .csv or .json for all numbers, - for JSON on stdout; may be
    /// repeated [default: report.html in DIR, without --serve]
    #[arg(short, long = "output", alias = "report", value_name = "FILE")]
    #[arg(value_parser = |name: &str| Target::parse(name, FORMS))]
    outputs: Vec<Target>,
}

/// The forms of curves: the page, and all numbers.
const FORMS: &[Form] = &[Form::Html, Form::Csv, Form::Json];

impl ReportOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let folder = RunFolder(self.folder);
        let read = folder
            .read()
            .map_err(|why| Refused(format!("cannot read the event files in {}: {why}", foreign::path(&folder.0))))?;
        if read.is_empty() && self.serve.is_none() {
            return Err(Refused(folder.is_empty()).into());
        }
        let screen = Screen::new(self.outputs.iter().any(Target::is_stdout));
        let (read, outputs) = match self.serve {
            Some(address) => (live_page::serve(&address, folder.clone(), Arc::new(read), "", &screen)?, self.outputs),
            None if self.outputs.is_empty() => {
                let give = |why| Refused(format!("{why}; give another place for the page: -o FILE.html"));
                let page = Target::file(folder.0.join(PAGE), Form::Html).map_err(give)?;
                (Arc::new(read), vec![page])
            }
            None => (Arc::new(read), self.outputs),
        };
        if !read.is_empty() {
            show(&read, &screen);
        }
        for target in &outputs {
            target.save("the curves", &read.render(target.form, &folder.0)?)?;
            if let Some(path) = target.path() {
                screen.line(format_args!("written: {}", foreign::path(path)));
            }
        }
        Ok(Code::Success)
    }
}

/// A folder of event files.
#[derive(Clone)]
struct RunFolder(PathBuf);

/// What the files say.
struct ReadRun {
    curves: Curves,
    timeline: Timeline,
    /// By which a file that has grown is told: the size and the time of each.
    signature: BTreeMap<PathBuf, (u64, Option<SystemTime>)>,
    /// The page that follows the run, which many browsers ask for.
    page: String,
}

impl RunFolder {
    /// Errors: why the folder cannot be read. What is wrong with a file is part of the result.
    fn read(&self) -> Result<ReadRun, String> {
        let signature = self.signature()?;
        let events = RunEvents::read(&self.0);
        let mut history = History::of(&events);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut curves = Curves::of(&history, now.as_secs_f64());
        history.goes_on = curves.state == State::Running;
        let mut timeline = Timeline::with(&events, &history);
        // They come first on the page, not below the picture.
        curves.notes.splice(0..0, mem::take(&mut timeline.notes));
        let mut read = ReadRun { curves, timeline, signature, page: String::new() };
        read.page = read.page(&self.0, true, None);
        Ok(read)
    }

    fn signature(&self) -> Result<BTreeMap<PathBuf, (u64, Option<SystemTime>)>, String> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.0).map_err(|error| error.to_string())? {
            let path = entry.map_err(|error| error.to_string())?.path();
            if path.extension().is_some_and(|ending| ending == "jsonl")
                && let Ok(about) = fs::metadata(&path)
            {
                files.insert(path, (about.len(), about.modified().ok()));
            }
        }
        Ok(files)
    }

    /// Says that there are no event files, and where they may be.
    fn is_empty(&self) -> String {
        let inner = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| RunFolder(entry.path()));
        let mut inner: Vec<PathBuf> = inner.filter(|folder| folder.has_events()).map(|folder| folder.0).collect();
        inner.sort();
        let where_else = match &inner[..] {
            [] => "start the run with LOCKSTEP_EVENTS=DIR in its environment, a new folder for each run".to_owned(),
            [one] => format!("there are some in {}", foreign::path(one)),
            [first, .., last] => format!(
                "there are some in {} folders, from {} to {}",
                inner.len(),
                foreign::path(first),
                foreign::path(last)
            ),
        };
        format!("there are no event files (rank-0.jsonl, ...) in {}: {where_else}", foreign::path(&self.0))
    }

    fn has_events(&self) -> bool {
        let is_event_file = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".jsonl") && (name.starts_with("rank-") || name.starts_with("agent-"))
        };
        self.signature().is_ok_and(|files| files.keys().any(|path| is_event_file(path)))
    }
}

impl Site for RunFolder {
    type Content = ReadRun;
    const SUBJECT: &'static str = "the curves are";

    fn read(&self, last: &Arc<ReadRun>) -> Result<Arc<ReadRun>, String> {
        // A run that ended without a word is no longer running after a while.
        let unchanged = last.signature == self.signature()? && last.curves.state != State::Running;
        if unchanged { Ok(Arc::clone(last)) } else { self.read().map(Arc::new) }
    }

    fn answer(&self, asked: &Asked<'_, ReadRun>) -> anyhow::Result<(&'static str, String)> {
        let run = &asked.content;
        Ok(match asked.path {
            "/" if asked.trouble.is_none() => ("text/html; charset=utf-8", run.page.clone()),
            "/" => ("text/html; charset=utf-8", run.page(&self.0, true, asked.trouble.as_ref())),
            "/curves.csv" => ("text/csv; charset=utf-8", run.render(Form::Csv, &self.0)?),
            "/curves.json" => ("application/json", run.render(Form::Json, &self.0)?),
            _ => {
                return Err(Refused("the curves are at /, their numbers at /curves.csv and /curves.json".into()).into());
            }
        })
    }
}

/// The version of the JSON form: it increases when a field changes its meaning or is removed.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Root<'a> {
    schema: &'static str,
    version: u32,
    /// The time of the first event, in seconds since the Unix epoch.
    began: f64,
    notes: &'a [String],
    rows: Vec<Row<'a>>,
}

impl ReadRun {
    fn is_empty(&self) -> bool {
        self.curves.attempts.is_empty() && self.curves.notes.is_empty() && self.timeline.nodes.is_empty()
    }

    fn page(&self, folder: &Path, live: bool, trouble: Option<&(String, std::time::Duration)>) -> String {
        let folder = folder.display().to_string();
        page::render(&View { folder: &folder, curves: &self.curves, timeline: &self.timeline, live }, trouble)
    }

    fn render(&self, form: Form, folder: &Path) -> anyhow::Result<String> {
        let curves = &self.curves;
        Ok(match form {
            Form::Html => self.page(folder, false, None),
            Form::Json => {
                let (schema, version) = ("lockstep-curves", VERSION);
                let root = Root { schema, version, began: curves.began, notes: &curves.notes, rows: curves.rows() };
                serde_json::to_string(&root)? + "\n"
            }
            Form::Csv => {
                let mut rows = csv::Writer::from_writer(Vec::new());
                for mut row in curves.rows() {
                    let detail = cell(row.detail);
                    row.detail = &detail;
                    rows.serialize(row)?;
                }
                String::from_utf8(rows.into_inner()?)?
            }
            Form::Junit | Form::Svg | Form::Text => anyhow::bail!("curves are a page or numbers"),
        })
    }
}

/// A table of the attempts, and what makes the curves incomplete.
fn show(read: &ReadRun, screen: &Screen) {
    let (curves, style) = (&read.curves, screen.style());
    let headings = ["attempt", "ranks", "steps", "again", "took", "loss", "samples/s", "how it ended"];
    let mut table = style.table(&headings);
    table.load_style(style.table_style().row_separator(LineStyle::none()));
    let newest = curves.attempts.len().saturating_sub(1);
    let maybe = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), short);
    for attempt in &curves.attempts {
        table.add_row([
            attempt.number.to_string(),
            attempt.size.to_string(),
            attempt.extent().map_or_else(|| "–".to_owned(), range),
            attempt.repeated.map_or_else(|| "–".to_owned(), |(from, to)| (to - from + 1).to_string()),
            seconds(attempt.ended - attempt.began),
            maybe(attempt.last(Quantity::Loss)),
            maybe(attempt.last(Quantity::Speed)),
            foreign::one_line(&attempt.end((attempt.number == newest).then_some(curves.state))),
        ]);
    }
    if !curves.attempts.is_empty() {
        screen.line(whole_words(table, style));
        screen.line(summary(curves));
    }
    for note in curves.notes.iter().take(MOST_NOTES) {
        screen.line(format_args!("note: {}", foreign::escaped(note)));
    }
    if curves.notes.len() > MOST_NOTES {
        screen.line(format_args!("note: the page has {} more notes", curves.notes.len() - MOST_NOTES));
    }
}

//! One worker's end as the rules see it: the error that it printed or recorded, the signal, and searches in its words.

use std::ops::Range;

use lockstep_contract::foreign::quotation;
use lockstep_contract::rules::Finding;

use super::output::{self, Exception, Kind, Traceback};
use super::rules::WorkerFinding;
use super::{Evidence, FileSystem};
use crate::report::{Failure, Reason};

/// A worker that was stopped failed by itself if at most this many lines follow its error: it may have hung on its way out.
const AFTER: usize = 3;
/// The same for an exception.
const AFTER_EXCEPTION: usize = 10;
/// What the worker printed before its end is looked for in this many last lines.
const BEFORE: usize = 100;
/// Python's exit code if it cannot write what it has held back of its output (`Py_FinalizeEx`).
const NOT_FLUSHED: i32 = 120;
/// Where PyTorch writes an error file: what goes wrong there is not the error.
const RECORDER: &str = "torch/distributed/elastic/multiprocessing/errors";

/// An error, and what was raised while it was handled.
type Found = (Error, Option<Error>);

/// A worker's end.
pub struct WorkerEnd<'a> {
    pub(super) failure: &'a Failure,
    pub(super) evidence: &'a Evidence,
    /// The error that ended it, if it left one.
    pub(super) error: Option<Error>,
    /// What was raised while that error was handled.
    pub(super) later: Option<Error>,
    /// What it had printed or recorded before something else ended it.
    pub(super) past: Option<String>,
    /// An error that may have ended it: other output follows, which Python may have held back.
    pub(super) doubt: Option<Error>,
    /// What the message at the end of its output is.
    pub(super) words: Words,
    /// Its output: of standard error, unless nothing there is a message.
    lines: Vec<String>,
    /// The message at the end of its output.
    last: Range<usize>,
}

/// What the message at the end of the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// The program's last words.
    Last,
    /// An exception that the program printed, but that did not end it.
    Exception,
    /// Nothing that explains the end.
    None,
}

/// An error with its causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Error {
    pub(super) form: Form,
    /// Where it was read.
    pub(super) source: &'static str,
    /// Each exception or error: the outermost first, the original one last. With its place, if known.
    pub(super) chain: Vec<(String, Option<String>)>,
    /// The exceptions of an exception group, if it has several.
    pub(super) members: Vec<(String, Option<String>)>,
}

/// The form of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Python,
    Panic,
    Terminate,
    Chain,
}

impl<'a> WorkerEnd<'a> {
    pub(super) fn new(failure: &'a Failure, evidence: &'a Evidence) -> Self {
        let death = &failure.death;
        let plain = |lines: &[String]| lines.iter().map(|line| output::plain(line)).collect::<Vec<_>>();
        let read = |lines: Vec<String>| {
            let tracebacks = output::tracebacks(&lines, false);
            let last = output::last_message(&lines, &tracebacks);
            (lines, tracebacks, last)
        };
        let (mut lines, mut tracebacks, mut last) = read(plain(&death.tail));
        if last.is_none() && !death.stdout.is_empty() {
            (lines, tracebacks, last) = read(plain(&death.stdout));
        }
        let last = last.unwrap_or(lines.len()..lines.len());
        let words = Words::Last;
        let mut worker =
            WorkerEnd { failure, evidence, error: None, later: None, past: None, doubt: None, words, lines, last };
        let printed = worker.printed(&tracebacks);
        match recorded(failure) {
            Some(recorded) if worker.fits(&recorded, printed.as_ref(), &tracebacks) => worker.set(Some(recorded)),
            Some((error, _)) => {
                worker.set(printed);
                worker.past = Some(format!("its error file has \"{}\"", error.text()));
            }
            None => worker.set(printed),
        }
        if worker.error.is_none() {
            worker.look_back(&tracebacks);
        }
        worker
    }

    fn set(&mut self, found: Option<Found>) {
        (self.error, self.later) = found.map_or((None, None), |(error, later)| (Some(error), later));
    }

    /// The same worker if this error ended it.
    pub(super) fn with(&self, error: Error) -> Self {
        let (lines, last, error) = (self.lines.clone(), self.last.clone(), Some(error));
        WorkerEnd { error, later: None, past: None, doubt: None, lines, last, ..*self }
    }

    /// The same worker if its words explain nothing. An exception's first line is left.
    pub(super) fn without_words(&self) -> Self {
        let (error, lines, past) = (None, self.lines.clone(), self.past.clone());
        let last = self.last.start..self.last.end.min(self.last.start + 1);
        WorkerEnd { error, later: None, past, doubt: None, words: Words::None, lines, last, ..*self }
    }

    /// The signal that ended the worker, or a child of it if the exit code says so in the way of a shell. The agent's own
    /// signal to a worker that it stopped does not count.
    pub(super) fn signal(&self) -> Option<i32> {
        match self.failure.death.exitcode {
            _ if self.failure.death.stopped => None,
            code @ ..0 => Some(-code),
            code @ 129..=159 => Some(code - 128),
            _ => None,
        }
    }

    /// The signal came from outside, so that what the worker had printed does not explain its end.
    pub(super) fn ended_from_outside(&self) -> bool {
        // HUP, INT, QUIT, KILL, USR1, USR2, PIPE, ALRM, TERM, XCPU, XFSZ (signal(7)).
        self.signal().is_some_and(|signal| [1, 2, 3, 9, 10, 12, 13, 14, 15, 24, 25].contains(&signal))
    }

    /// The first line with one of these marks, ignoring case, among what the worker left as its error, otherwise in the
    /// message at the end of its output. Of an exception group, all exceptions must have one.
    pub(super) fn line(&self, marks: &[&str]) -> Option<&str> {
        if let Some(error) = &self.error {
            let of = |(text, _): &'_ (String, Option<String>)| text.lines().any(|line| has(line, marks));
            if !error.members.is_empty() && !error.members.iter().all(of) {
                return None;
            }
            let mut lines = error.members.iter().chain(error.chain.iter().rev()).flat_map(|(text, _)| text.lines());
            return lines.find(|line| has(line, marks));
        }
        // Of the signals by which a program ends itself, only abort() has a message before it.
        if self.words == Words::None || self.signal().is_some_and(|signal| signal != 6) || self.failure.death.stopped {
            return None;
        }
        self.lines[self.last.clone()].iter().map(String::as_str).find(|line| has(line, marks))
    }

    /// Like [`Self::line`], the last one in all of its last lines, however it ended. Only for words that nothing but an end leaves.
    pub(super) fn line_anywhere(&self, marks: &[&str]) -> Option<&str> {
        self.lines.iter().map(String::as_str).rfind(|line| has(line, marks) && !output::is_survived(line))
    }

    /// The last line of the message at the end of its output.
    pub(super) fn last_line(&self) -> Option<&str> {
        self.lines[self.last.clone()].last().map(String::as_str)
    }

    /// This cause, if there is a line with one of these marks.
    pub(super) fn words(&self, marks: &[&str], cause: impl Into<String>) -> Option<WorkerFinding> {
        self.line(marks).map(|line| self.found(cause, line))
    }

    /// This cause, known from a line.
    pub(super) fn found(&self, cause: impl Into<String>, line: &str) -> WorkerFinding {
        // An exception without a place of its own was raised within the call that the next one has.
        let place = self.error.as_ref().and_then(|error| {
            let mut all = error.members.iter().chain(error.chain.iter().rev());
            let has_line = |(text, _): &(String, Option<String>)| text.lines().any(|one| one == line);
            let own = all.find(|one| has_line(one))?.1.as_deref();
            own.or_else(|| all.find_map(|(_, place)| place.as_deref()))
        });
        let place = place.map(|place| format!(" at {place}")).unwrap_or_default();
        Finding::new(cause, format!("{}, \"{}\"{place}", self.source(), quotation(line)))
    }

    /// Where its words come from.
    pub(super) fn source(&self) -> &'static str {
        self.error.as_ref().map_or("its last lines", |error| error.source)
    }

    /// The file system that has this path.
    pub(super) fn file_system(&self, path: &str) -> Option<&FileSystem> {
        self.evidence.file_systems.iter().find(|system| system.path.as_os_str() == path)
    }

    /// The line of the kernel's log about this worker's process, with this mark.
    pub(super) fn kernel(&self, mark: &str) -> Option<&str> {
        let pid = self.failure.death.pid;
        let (bracketed, plain) = (format!("[{pid}]"), format!("process {pid} "));
        let lines = self.evidence.kernel_log.iter().map(String::as_str);
        lines.into_iter().find(|line| line.contains(mark) && (line.contains(&bracketed) || line.contains(&plain)))
    }
}

impl WorkerEnd<'_> {
    /// The error that ended the worker according to its output: it is the last thing there, and the way in which the worker ended fits.
    fn printed(&self, tracebacks: &[Traceback]) -> Option<Found> {
        let death = &self.failure.death;
        let python = || {
            if death.exitcode == NOT_FLUSHED {
                let last = tracebacks.last()?;
                let at_exit = last
                    .survived
                    .as_ref()
                    .is_some_and(|label| label.contains("<stdout>") || label.contains("<stderr>"));
                return at_exit.then(|| (0, of_chain(&last.chain, "its traceback")));
            }
            let last = tracebacks.iter().rev().find(|traceback| traceback.survived.is_none())?;
            let after = self.lines.len() - last.end;
            let fits = match self.signal() {
                _ if death.stopped => after <= AFTER_EXCEPTION,
                // The interpreter may abort on its way out.
                Some(signal) => signal == 6 && self.only_noise_after(last, tracebacks),
                None => death.exitcode == 1 && self.only_noise_after(last, tracebacks),
            };
            fits.then(|| (after, of_chain(&last.chain, "its traceback")))
        };
        let native = || {
            let error = output::native_error(&self.lines)?;
            let rest = &self.lines[self.lines.len() - error.after..];
            let aborted = self.signal() == Some(6);
            let fits = match error.kind {
                _ if death.stopped => error.after <= AFTER,
                Kind::Panic => death.exitcode == 101 || aborted && output::only_noise(rest),
                Kind::Terminate => aborted && output::is_rest_of_message(rest),
                Kind::Chain => death.exitcode > 0 && self.signal().is_none() && output::only_noise(rest),
            };
            fits.then(|| (error.after, (of_native(error), None)))
        };
        [python(), native()].into_iter().flatten().min_by_key(|(after, _)| *after).map(|(_, found)| found)
    }

    /// Nothing follows this traceback but noise, and tracebacks of what goes wrong on the way out.
    fn only_noise_after(&self, traceback: &Traceback, all: &[Traceback]) -> bool {
        let mut from = traceback.end;
        for other in all.iter().filter(|other| other.begin >= traceback.end) {
            let Some(lines) = other.survived_lines(&self.lines).filter(|lines| lines.start >= from) else {
                return false;
            };
            if !output::only_noise(&self.lines[from..lines.start]) {
                return false;
            }
            from = lines.end;
        }
        output::only_noise(&self.lines[from..])
    }

    /// The error file is of this death: the worker ended as such an error ends it, and printed no other one at its end.
    fn fits(&self, (error, later): &Found, printed: Option<&Found>, tracebacks: &[Traceback]) -> bool {
        let death = &self.failure.death;
        if death.stopped {
            return true;
        }
        let texts = |error: &Error| error.chain.iter().map(|(text, _)| first_line(text).to_owned()).collect::<Vec<_>>();
        let known = [Some(error), later.as_ref()].into_iter().flatten().flat_map(texts).collect::<Vec<_>>();
        let same = |found: &Found| {
            let shown = [Some(&found.0), found.1.as_ref()].into_iter().flatten().flat_map(texts);
            shown.into_iter().any(|text| known.iter().any(|known| known.contains(&text) || text.contains(known)))
        };
        if let Some(found) = printed.filter(|(error, _)| error.form == Form::Python) {
            return same(found);
        }
        let last = tracebacks.iter().rev().find(|traceback| traceback.survived.is_none());
        let last = last.filter(|last| self.only_noise_after(last, tracebacks));
        if last.is_some_and(|last| same(&of_chain(&last.chain, ""))) && self.signal().is_none() {
            return true;
        }
        match (error.form, self.signal()) {
            (Form::Panic, Some(signal)) => signal == 6,
            (Form::Panic, None) => death.exitcode == 101,
            (_, Some(signal)) => signal == 6,
            // Another message at the end is about another error.
            (Form::Python, None) => death.exitcode == 1 && !self.last_line().is_some_and(output::is_error),
            _ => true,
        }
    }

    /// What the worker printed before its end, if nothing shows that an error ended it.
    fn look_back(&mut self, tracebacks: &[Traceback]) {
        let death = &self.failure.death;
        let last = tracebacks.iter().rev().find(|traceback| traceback.survived.is_none());
        if let Some(last) = last.filter(|last| (last.begin..last.end).contains(&self.last.start)) {
            let (error, _) = of_chain(&last.chain, "");
            let (text, place) = &error.chain[0];
            let begin = (last.begin..last.end).rev().find(|at| self.lines[*at] == first_line(text));
            self.last = begin.unwrap_or(self.last.start)..last.end;
            self.words = Words::Exception;
            self.past = self.past.take().or(place.as_ref().map(|place| format!("its traceback leads to {place}")));
            return;
        }
        // Python writes out what it has held back of standard output before it prints a traceback; PyTorch's and rich's hooks do not.
        let doubtful = |last: &&Traceback| {
            let hook = death
                .tail
                .get(last.begin)
                .is_some_and(|line| line.starts_with("[rank") || line.starts_with(['╭', '+']));
            let at_top = last.chain.last().is_some_and(Exception::reached_the_top);
            death.together && death.exitcode == 1 && at_top && hook && !self.last_line().is_some_and(output::is_error)
        };
        self.doubt = last.filter(doubtful).map(|last| of_chain(&last.chain, "its traceback").0);
        let quoted = |line: &str| format!("before it, the program printed \"{}\"", quotation(line));
        let exception = tracebacks.last().map(|last| {
            let (error, _) = of_chain(&last.chain, "");
            quoted(&error.text())
        });
        let end = self.last.start;
        let warning = || {
            self.lines[..end]
                .iter()
                .rev()
                .chain(&self.lines[self.last.end..])
                .take(BEFORE)
                .find(|line| !line.starts_with(' ') && output::is_telling(line))
        };
        if self.past.is_none() && self.doubt.is_none() {
            self.past = exception.or_else(|| warning().map(|line| quoted(line)));
        }
    }
}

impl Error {
    /// In one line: the outermost error with its place, then the original one, or those of a group.
    pub(super) fn text(&self) -> String {
        let one = |(text, place): &(String, Option<String>)| {
            let place = place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
            format!("{}{place}", quotation(first_line(text)))
        };
        let members = self.members.iter().map(one).collect::<Vec<_>>().join(" and ");
        match (self.form, self.chain.as_slice()) {
            (Form::Python, [outer, ..]) if !members.is_empty() => format!("{}, caused by {members}", one(outer)),
            (Form::Python, [outer, .., original]) => format!("{}, caused by {}", one(outer), one(original)),
            (_, chain) => chain.iter().map(one).collect::<Vec<_>>().join(": "),
        }
    }

    /// The original exception's first line.
    pub(super) fn original(&self) -> &str {
        self.chain.last().map(|(text, _)| first_line(text)).unwrap_or_default()
    }
}

/// The error in the worker's error file.
fn recorded(failure: &Failure) -> Option<Found> {
    let Reason::Recorded { traceback, content, .. } = &failure.reason else { return None };
    let source = "its error file";
    let lines: Vec<String> = traceback.lines().map(output::plain).collect();
    if let Some(last) = output::tracebacks(&lines, true).last() {
        return Some(of_chain(&last.chain, source));
    }
    let info = &content["message"]["extraInfo"]["lockstep"];
    let line = info["source_line"].as_str().map_or_else(String::new, |line| format!(", `{line}`"));
    let place = info["location"].as_str().map(|place| format!("{place}{line}"));
    let form = if info["panic"] == true { Form::Panic } else { Form::Chain };
    let text = info["text"].as_str().unwrap_or(traceback).to_owned();
    Some((Error { form, source, chain: vec![(text, place)], members: vec![] }, None))
}

/// The first exceptions of a chain, and what was raised while they were handled.
fn of_chain(chain: &[Exception], source: &'static str) -> Found {
    let place = |one: &Exception| one.own_frame().map(ToString::to_string);
    let one = |exception: &Exception| (exception.text.clone(), place(exception));
    let of = |part: &[Exception]| {
        let mut chain: Vec<_> = part.iter().rev().map(one).collect();
        let mut members = part.first().map_or_else(Vec::new, |first| first.members.iter().map(one).collect());
        if members.len() == 1 {
            chain.append(&mut members);
        }
        Error { form: Form::Python, source, chain, members }
    };
    let handled = chain.iter().skip(1).position(|one| one.while_handled).map_or(chain.len(), |at| at + 1);
    let (first, rest) = chain.split_at(handled);
    // Of several handlers in a row, the last one's exception ended the program.
    let begin = rest.iter().rposition(|one| one.while_handled).unwrap_or(0);
    let recorder = |one: &Exception| {
        let own = one.own_frame();
        one.frames.iter().rev().take_while(|frame| own != Some(*frame)).any(|frame| frame.file.contains(RECORDER))
    };
    let rest = Some(&rest[begin..]).filter(|rest| rest.last().is_some_and(|last| !recorder(last)));
    (of(first), rest.map(of))
}

fn of_native(error: output::NativeError) -> Error {
    let (form, source) = match error.kind {
        Kind::Panic => (Form::Panic, "its panic message"),
        Kind::Terminate => (Form::Terminate, "the C++ runtime's last words"),
        Kind::Chain => (Form::Chain, "its last lines"),
    };
    let place = error.place;
    let chain = error.texts.into_iter().map(|text| (text, place.clone())).collect();
    Error { form, source, chain, members: vec![] }
}

fn has(line: &str, marks: &[&str]) -> bool {
    let lower = line.to_lowercase();
    marks.iter().any(|mark| lower.contains(mark))
}

/// The first line that is not blank.
pub(super) fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

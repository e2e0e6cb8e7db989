//! One worker's end as the rules see it: the error that it printed or recorded, the signal, and searches in its words.

use lockstep_contract::foreign::quotation;
use lockstep_contract::rules::Finding;

use super::output::{self, Exception, Kind};
use super::rules::WorkerFinding;
use super::{Evidence, FileSystem};
use crate::report::{Failure, Reason};

/// Known words count in this many last lines if the worker left no error that can be read as one.
const LAST: usize = 20;
/// An error without a clear end counts only if at most this many lines follow.
const AFTER: usize = 3;
/// The same for an exception of a worker that was stopped. Messages of several lines are longer than most output after
/// an exception that was caught.
const AFTER_EXCEPTION: usize = 10;

/// A worker's end.
pub struct WorkerEnd<'a> {
    pub(super) failure: &'a Failure,
    pub(super) evidence: &'a Evidence,
    /// Its error, if it left one.
    pub(super) error: Option<Error>,
}

/// An error with its causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Error {
    pub(super) form: Form,
    /// Where it was read.
    pub(super) source: &'static str,
    /// Each exception or error: the outermost first, the original one last. With its place, if known.
    pub(super) chain: Vec<(String, Option<String>)>,
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
        let error = recorded(failure).or_else(|| printed(failure));
        WorkerEnd { failure, evidence, error }
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
    fn ended_from_outside(&self) -> bool {
        // HUP, INT, QUIT, KILL, USR1, USR2, PIPE, ALRM, TERM, XCPU, XFSZ (signal(7)).
        self.failure.death.exitcode < 0
            && [1, 2, 3, 9, 10, 12, 13, 14, 15, 24, 25].contains(&-self.failure.death.exitcode)
    }

    /// The first line with one of these marks, ignoring case, among what the worker left as its error, otherwise in its
    /// last lines.
    pub(super) fn line(&self, marks: &[&str]) -> Option<&str> {
        if let Some(error) = &self.error {
            let mut lines = error.chain.iter().rev().flat_map(|(text, _)| text.lines());
            return lines.find(|line| has(line, marks));
        }
        if self.ended_from_outside() {
            return None;
        }
        let tail = &self.failure.death.tail;
        let last = if self.failure.death.exitcode < 0 { &tail[..] } else { &tail[tail.len().saturating_sub(LAST)..] };
        last.iter().map(String::as_str).find(|line| has(line, marks))
    }

    /// Like [`Self::line`], in all of its last lines, however it ended.
    pub(super) fn line_anywhere(&self, marks: &[&str]) -> Option<&str> {
        self.failure.death.tail.iter().map(String::as_str).find(|line| has(line, marks))
    }

    /// This cause, if there is a line with one of these marks.
    pub(super) fn words(&self, marks: &[&str], cause: impl Into<String>) -> Option<WorkerFinding> {
        self.line(marks).map(|line| self.found(cause, line))
    }

    /// This cause, known from a line.
    pub(super) fn found(&self, cause: impl Into<String>, line: &str) -> WorkerFinding {
        let place =
            self.error.as_ref().and_then(|error| error.chain.iter().rev().find_map(|(_, place)| place.as_deref()));
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

impl Error {
    /// In one line: the outermost error with its place, then the original one.
    pub(super) fn text(&self) -> String {
        let one = |(text, place): &(String, Option<String>)| {
            let place = place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
            format!("{}{place}", quotation(first_line(text)))
        };
        match (self.form, self.chain.as_slice()) {
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
fn recorded(failure: &Failure) -> Option<Error> {
    let Reason::Recorded { traceback, content, .. } = &failure.reason else { return None };
    let source = "its error file";
    let lines: Vec<&str> = traceback.lines().collect();
    if let Some((chain, _)) = output::python_error(&lines) {
        return Some(Error { form: Form::Python, source, chain: outermost_first(chain) });
    }
    let info = &content["message"]["extraInfo"]["lockstep"];
    let line = info["source_line"].as_str().map_or_else(String::new, |line| format!(", `{line}`"));
    let place = info["location"].as_str().map(|place| format!("{place}{line}"));
    let form = if info["panic"] == true { Form::Panic } else { Form::Chain };
    let text = info["text"].as_str().unwrap_or(traceback).to_owned();
    Some(Error { form, source, chain: vec![(text, place)] })
}

/// The error at the end of the worker's output.
fn printed(failure: &Failure) -> Option<Error> {
    let death = &failure.death;
    let lines: Vec<&str> = death.tail.iter().map(|line| without_rank(line)).collect();
    let python = || {
        // If a signal ended the worker, the traceback does not explain it, unless the interpreter aborted on its way out.
        let left =
            |after: &usize| death.exitcode == -6 && lines[lines.len() - after..].iter().all(|line| is_way_out(line));
        let (chain, after) =
            output::python_error(&lines).filter(|(_, after)| death.exitcode > 0 || death.stopped || left(after))?;
        let error = Error { form: Form::Python, source: "its traceback", chain: outermost_first(chain) };
        (!death.stopped || after <= AFTER_EXCEPTION).then_some((after, error))
    };
    let native = || {
        let error = output::native_error(&lines)?;
        let fits = match error.kind {
            Kind::Panic => death.stopped || death.exitcode == 101 || death.exitcode == -6,
            Kind::Terminate => death.stopped || death.exitcode == -6,
            // Nothing but its causes follows.
            Kind::Chain => error.after <= AFTER && (death.exitcode > 0 || death.stopped),
        };
        (fits && (!death.stopped || error.after <= AFTER)).then(|| (error.after, of_native(error)))
    };
    [python(), native()].into_iter().flatten().min_by_key(|(after, _)| *after).map(|(_, error)| error)
}

/// What the C++ runtime prints when a thread of PyTorch outlives the interpreter after an exception.
fn is_way_out(line: &str) -> bool {
    line.trim().is_empty() || line.trim() == "terminate called without an active exception"
}

/// PyTorch begins the lines of a traceback with `[rank1]: ` (`init_process_group` of torch/distributed/distributed_c10d.py).
fn without_rank(line: &str) -> &str {
    let rest = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    rest.filter(|(rank, _)| rank.bytes().all(|byte| byte.is_ascii_digit())).map_or(line, |(_, text)| text)
}

fn of_native(error: output::NativeError) -> Error {
    let (form, source) = match error.kind {
        Kind::Panic => (Form::Panic, "its panic message"),
        Kind::Terminate => (Form::Terminate, "the C++ runtime's last words"),
        Kind::Chain => (Form::Chain, "its last lines"),
    };
    let place = error.place;
    let chain = error.texts.into_iter().map(|text| (text, place.clone())).collect();
    Error { form, source, chain }
}

fn outermost_first(chain: Vec<Exception>) -> Vec<(String, Option<String>)> {
    let place = |one: &Exception| one.own_frame().map(ToString::to_string);
    chain.into_iter().rev().map(|one| (one.text.clone(), place(&one))).collect()
}

fn has(line: &str, marks: &[&str]) -> bool {
    let lower = line.to_lowercase();
    marks.iter().any(|mark| lower.contains(mark))
}

/// The first line that is not blank.
pub(super) fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

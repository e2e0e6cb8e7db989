//! One worker's failure, and the contents of its error file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockstep_contract::error_file::{self, ErrorFileError};
use lockstep_contract::foreign::lines;
use serde_json::Value;

use crate::config::signal_name;

/// torch's advice if a worker left no error file (torch/distributed/elastic/multiprocessing/errors/__init__.py).
const NO_TRACE: &str = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
/// Tolerance between a worker's clock and the agent's: Python truncates its timestamps to whole seconds.
const SLACK: Duration = Duration::from_secs(1);

/// A worker's end, as the agent observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Its global rank.
    pub rank: usize,
    /// Its rank on this node.
    pub local_rank: usize,
    /// Its process id.
    pub pid: u32,
    /// Its exit code, or minus the number of the signal that ended it.
    pub exitcode: i32,
    /// When it was started.
    pub started: SystemTime,
    /// When the kernel reported its end.
    pub at: SystemTime,
    /// True if the agent had asked it to stop before.
    pub stopped: bool,
    /// Why its program could not be started; `None` if it ran.
    pub not_started: Option<String>,
    /// The file for its error.
    pub error_file: Option<PathBuf>,
    /// The last lines of its standard error; of its standard output if there are none.
    pub tail: Vec<String>,
    /// The last lines of its standard output, if `tail` does not have them.
    pub stdout: Vec<String>,
    /// `tail` has both streams, which went to one device.
    pub together: bool,
    /// The file into which it wrote its standard error itself.
    pub log: Option<PathBuf>,
    /// True if it printed to a terminal that it had inherited, so that its last lines are not known.
    pub unread: bool,
}

/// A worker's end, with the error that it recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The end itself.
    pub death: Death,
    /// The host where it happened.
    pub host: String,
    /// What is known about the reason.
    pub reason: Reason,
}

/// What is known about the reason.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The worker recorded an error.
    Recorded {
        /// The stack trace, otherwise the message; truncated if huge.
        traceback: String,
        /// The period in which it happened; `None` if the file has no time, or an impossible one.
        when: Option<(SystemTime, SystemTime)>,
        /// The file's contents.
        content: Value,
    },
    /// The error file cannot be read: why, with its first characters.
    Unreadable(String),
    /// There is no error file: a description of the exit.
    Nothing(String),
}

impl Failure {
    /// Adds what is known about a death from the error file. The worker writes that file, so it may contain anything.
    pub fn of(death: Death, host: &str) -> Self {
        let reason = match death.error_file.as_deref().map(|path| read(path, &death)) {
            Some(Ok(Some(reason))) => reason,
            Some(Err(error)) => Reason::Unreadable(fit(&chain(&error))),
            Some(Ok(None)) | None => Reason::Nothing(end(&death)),
        };
        Failure { death, host: host.to_owned(), reason }
    }

    /// torch's `traceback`: the recorded error, or how the worker ended.
    pub fn traceback(&self) -> String {
        match &self.reason {
            Reason::Recorded { traceback, .. } => traceback.clone(),
            Reason::Unreadable(why) => format!("{} ({why})", end(&self.death)),
            Reason::Nothing(end) => end.clone(),
        }
    }

    /// The error file, if the worker left one.
    pub fn error_file(&self) -> Option<&Path> {
        match &self.reason {
            Reason::Nothing(_) => None,
            _ => self.death.error_file.as_deref(),
        }
    }

    /// When it happened: the time in the error file, as in torch, otherwise the time of the worker's death.
    pub fn time(&self) -> SystemTime {
        self.span().0
    }

    /// The period in which it may have happened.
    pub(super) fn span(&self) -> (SystemTime, SystemTime) {
        match &self.reason {
            Reason::Recorded { when: Some(when), .. } => *when,
            _ => (self.death.at, self.death.at),
        }
    }
}

/// A short description: `exit code 3`, `SIGKILL`, `signal 40`.
pub(crate) fn describe_exit(exitcode: i32) -> String {
    match exitcode {
        0.. => format!("exit code {exitcode}"),
        _ => signal_name(-exitcode).map_or_else(|| format!("signal {}", -exitcode), str::to_owned),
    }
}

/// torch's text for an end without an error file.
fn end(death: &Death) -> String {
    if let Some(why) = &death.not_started {
        return fit(&format!("the program could not be started: {why}"));
    }
    if death.exitcode >= 0 {
        return NO_TRACE.to_owned();
    }
    let signal = -death.exitcode;
    format!("Signal {signal} ({}) received by PID {}", signal_name(signal).unwrap_or("<N/A>"), death.pid)
}

fn read(path: &Path, death: &Death) -> Result<Option<Reason>, ErrorFileError> {
    let fail = |source| ErrorFileError::Read { path: path.to_owned(), source };
    let bytes = match fs::metadata(path) {
        // Opening a named pipe would wait for its writer.
        Ok(about) if !about.is_file() => return Err(fail(io::Error::other("it is not a regular file"))),
        Ok(_) => fs::File::open(path).and_then(error_file::read_bounded).map_err(fail)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let Some(recorded) = error_file::parse(&bytes)? else { return Ok(None) };
    let content: Value = serde_json::from_slice(&bytes).unwrap_or_default(); // parsed above
    let info = &content["message"]["extraInfo"];
    let traceback = fit(info["py_callstack"].as_str().unwrap_or(&recorded.message));
    let when = when(recorded.unix_nanos, &content).filter(|when| plausible(*when, death));
    Ok(Some(Reason::Recorded { traceback, when, content }))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |reason, cause| format!("{reason}: {cause}"))
}

/// Our own writers are exact to the nanosecond, Python's to the second.
fn when(unix_nanos: Option<u64>, content: &Value) -> Option<(SystemTime, SystemTime)> {
    let at = |since| SystemTime::UNIX_EPOCH.checked_add(since);
    if let Some(exact) = unix_nanos {
        return at(Duration::from_nanos(exact)).map(|exact| (exact, exact));
    }
    let places = [&content["message"]["extraInfo"]["timestamp"], &content["timestamp"]];
    let second = places.into_iter().find_map(|place| match place {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_u64().or_else(|| other.as_f64().filter(|second| *second >= 0.0).map(|second| second as u64)),
    });
    let second = Duration::from_secs(second?);
    Some((at(second)?, at(second.checked_add(SLACK)?)?))
}

/// A worker's error happens during its lifetime.
fn plausible((from, to): (SystemTime, SystemTime), death: &Death) -> bool {
    let earliest = death.started.checked_sub(SLACK).unwrap_or(death.started);
    earliest <= from && from <= death.at && earliest <= to
}

/// The index of the failure that came first, among failures in the kernel's order of deaths; `None` if no worker failed on
/// its own.
///
/// The kernel reports deaths in order, so the first worker that died on its own is the root cause. An error file can
/// prove otherwise: a worker that raised an error first may die last, because Python takes time to exit, or may hang
/// until the agent stops it. The file counts only if the whole period in which its error may have happened is before
/// the first death, and before the error of the first worker to die. (torch takes the smallest timestamp, in whole
/// seconds, where a death without a file counts as *now*: so it blames the wrong rank if two fail within a second.)
pub(crate) fn first_failure(deaths: &[Failure]) -> Option<usize> {
    let first = deaths.iter().position(|failure| !failure.death.stopped)?;
    Some(earliest(deaths, first).0)
}

/// The first death, unless another error is proven to be older.
fn earliest(deaths: &[Failure], first: usize) -> (usize, &Failure) {
    let (begun, _) = deaths[first].span();
    // The time of a death is when the agent learned of it: of deaths, only the order counts, also where the clock was set back meanwhile.
    let recorded = |failure: &Failure| matches!(failure.reason, Reason::Recorded { when: Some(_), .. });
    let older = deaths.iter().enumerate().filter(|(_, failure)| recorded(failure) && failure.span().1 < begun);
    older.min_by_key(|(_, failure)| failure.span().1).unwrap_or((first, &deaths[first]))
}

/// Longer texts lose their middle; in bytes. The start of a Python traceback shows where it happened, the end what
/// happened.
const LONGEST: usize = 16 * 1024;
/// The part at the start that is kept.
const HEAD: usize = 4 * 1024;

/// Removes the middle of `text` if it is huge, and escapes control characters except for newlines and tabs.
pub(super) fn fit(text: &str) -> String {
    let text = text.trim_end();
    if text.len() <= LONGEST {
        return lines(text);
    }
    let head = &text[..text.floor_char_boundary(HEAD)];
    let tail = &text[text.ceil_char_boundary(text.len() - (LONGEST - HEAD))..];
    let cut = text.len() - head.len() - tail.len();
    format!("{}\n… ({cut} bytes left out) …\n{}", lines(head), lines(tail))
}

/// Indents all lines except for the first by two spaces, as in torch's report.
pub(super) fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The given number of milliseconds after a whole second.
    pub(crate) fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_763_635_200) + Duration::from_millis(millis)
    }

    /// A worker that ran from second 0 and died after the given number of milliseconds.
    pub(crate) fn death(rank: usize, exitcode: i32, millis: u64) -> Death {
        Death {
            rank,
            local_rank: rank,
            pid: 100 + rank as u32,
            exitcode,
            started: at(0),
            at: at(millis),
            stopped: false,
            not_started: None,
            error_file: None,
            tail: vec![],
            stdout: vec![],
            together: false,
            log: None,
            unread: false,
        }
    }

    /// The same with an error file of this content.
    pub(crate) fn with_file(dir: &tempfile::TempDir, death: Death, content: impl AsRef<[u8]>) -> Failure {
        let path = dir.path().join(format!("{}.json", death.rank));
        fs::write(&path, content).unwrap();
        Failure::of(Death { error_file: Some(path), ..death }, "node0")
    }

    fn reason(content: &[u8]) -> Failure {
        with_file(&tempfile::tempdir().unwrap(), death(0, 1, 3_500), content)
    }

    #[test]
    fn describes_an_end_without_a_file_in_torchs_words() {
        let reason = |exitcode| Failure::of(death(0, exitcode, 0), "node0").traceback();
        assert_eq!(reason(-9), "Signal 9 (SIGKILL) received by PID 100");
        assert_eq!(reason(-40), "Signal 40 (<N/A>) received by PID 100");
        assert_eq!(reason(3), NO_TRACE);
        let never = Death { not_started: Some("/x is a folder".into()), ..death(0, 127, 0) };
        assert_eq!(Failure::of(never, "node0").traceback(), "the program could not be started: /x is a folder");
        assert_eq!([3, -15, -40].map(describe_exit), ["exit code 3", "SIGTERM", "signal 40"]);
    }

    #[test]
    fn reads_what_python_recorded() {
        let long = br#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback: x\nValueError: no\n", "timestamp": "1763635203"}}}"#;
        let failure = reason(long);
        assert_eq!(failure.traceback(), "Traceback: x\nValueError: no");
        assert_eq!(failure.span(), (at(3_000), at(4_000)), "the whole second");
        let short = reason(br#"{"message": "out of memory", "timestamp": 1763635202}"#);
        assert_eq!((short.traceback().as_str(), short.time()), ("out of memory", at(2_000)));
        assert!(short.error_file().is_some());
    }

    #[test]
    fn reads_what_this_project_recorded_to_the_nanosecond() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("error.json");
        let before = SystemTime::now();
        error_file::record(&path, &anyhow::anyhow!("disk full")).unwrap();
        let life = Death { started: before, at: SystemTime::now(), error_file: Some(path), ..death(0, 1, 0) };
        let failure = Failure::of(life, "node0");
        assert!(failure.traceback().starts_with("disk full"), "{}", failure.traceback());
        let (from, to) = failure.span();
        assert!(from == to && before <= from && from <= failure.death.at);
    }

    #[test]
    fn ignores_a_time_outside_the_workers_lifetime() {
        for second in ["0", "1763635100", "1763635300", "-5", "18446744073709551615", "1e300"] {
            let failure = reason(format!(r#"{{"message": "x", "timestamp": {second}}}"#).as_bytes());
            assert_eq!(failure.span(), (at(3_500), at(3_500)), "{second}");
        }
        assert_eq!(reason(br#"{"message": "x"}"#).time(), at(3_500));
    }

    #[test]
    fn reports_a_file_that_cannot_be_read_with_its_head() {
        let failure = reason(b"{\"message\": {\"mess");
        let text = failure.traceback();
        assert!(
            text.starts_with("To enable traceback see: ") && text.contains("it begins with \"{\\\"message"),
            "{text}"
        );
        let text = reason(b"\xff\xfe\x1b[2J").traceback();
        assert!(text.contains("not in torchrun's format") && !text.contains('\x1b'), "{text}");
        let folder = tempfile::tempdir().unwrap();
        let text =
            Failure::of(Death { error_file: Some(folder.path().into()), ..death(0, -9, 0) }, "node0").traceback();
        assert!(text.starts_with("Signal 9 (SIGKILL) received by PID 100 (cannot read the error file"), "{text}");
    }

    #[test]
    fn an_absent_or_empty_file_gives_no_reason() {
        let dir = tempfile::tempdir().unwrap();
        let absent = Death { error_file: Some(dir.path().join("none.json")), ..death(0, -9, 0) };
        assert_eq!(Failure::of(absent, "node0").error_file(), None);
        assert_eq!(reason(b"").reason, Reason::Nothing(NO_TRACE.into()));
    }

    #[test]
    fn truncates_a_huge_traceback() {
        let text = "x".repeat(1 << 20);
        let failure = reason(format!(r#"{{"message": "{text}"}}"#).as_bytes());
        assert!(failure.traceback().len() < 20_000);
    }

    #[test]
    fn keeps_the_beginning_and_the_end_of_a_huge_text() {
        let huge = format!("first\n{}\nlast", "é".repeat(100_000));
        let fitted = fit(&huge);
        assert!(fitted.starts_with("first\né") && fitted.ends_with("é\nlast"), "{}", &fitted[..40]);
        assert!(fitted.len() < LONGEST + 100, "{}", fitted.len());
        assert!(fitted.contains(" bytes left out) …"));
        assert_eq!(fit("short\n\n"), "short");
    }

    #[test]
    fn escapes_terminal_control_sequences() {
        assert_eq!(fit("a\x1b[31mb\0\tc\r\nd\u{9b}e"), "a\\u{1b}[31mb\\u{0}\tc\nd\\u{9b}e");
    }
}

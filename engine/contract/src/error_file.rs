//! The error file: a failing worker writes its error there for the process that started it, in torchrun's JSON.
//!
//! `lockstep::spawn` and `lockstep run` both read this file. The format is the one of
//! `torch/distributed/elastic/multiprocessing/errors/error_handler.py`:
//! `{"message": {"message": "Type: text", "extraInfo": {"py_callstack": …, "timestamp": "<seconds>"}}}`, or the short
//! `{"message": "text", "timestamp": <seconds>}`. We add `extraInfo.lockstep` with facts that torch's format has no
//! field for: whether it was a panic, where it happened, with the line of the source, and the time in nanoseconds. This module does not decide what
//! a failure means for a job.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Read};
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::foreign;
use crate::panic_place::{self, PanicPlace};

/// Texts are truncated to this many bytes, so that no error can fill a disk.
const LONGEST_TEXT: usize = 64 * 1024;
/// [`record`] never writes a file larger than this many bytes. A larger file is not read whole.
const LARGEST_FILE: u64 = 4 * 1024 * 1024;

/// The contents of an error file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The error in one line: an error's chain, or a panic's message. From Python, `Type: text`.
    pub message: String,
    /// Whether a panic or an error ended the worker.
    pub kind: Kind,
    /// The stack trace, if one was captured (`RUST_BACKTRACE=1`, or a Python worker).
    pub trace: Option<String>,
    /// Nanoseconds since the Unix epoch; `None` if the writer keeps whole seconds only.
    pub unix_nanos: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The worker returned an error, or a Python worker raised an exception.
    Error,
    /// The worker panicked, at `file:line:column` if known.
    Panic(Option<String>),
}

/// Why an error file could not be read or parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorFileError {
    /// The file could not be read.
    #[error("cannot read the error file {}", foreign::path(path))]
    Read { path: PathBuf, source: io::Error },
    /// The file is not torchrun's JSON. Its writer may have been killed halfway.
    #[error("the error file is not in torchrun's format ({reason}); it begins with {head:?}")]
    Malformed {
        reason: String,
        /// The first 80 characters.
        head: String,
    },
}

/// Extra facts, under `extraInfo.lockstep`.
#[derive(Serialize, Deserialize)]
struct Extra {
    panic: bool,
    text: String,
    location: Option<String>,
    #[serde(default)]
    source_line: Option<String>,
    trace: Option<String>,
    unix_nanos: u64,
}

/// Records `error` at `path`, replacing any earlier contents.
///
/// # Errors
/// When the file cannot be written.
pub fn record(path: &Path, error: &anyhow::Error) -> io::Result<()> {
    let unix_nanos = unix_nanos(); // before the backtrace: resolving its symbols takes long
    let (text, trace) = (clip(format!("{error:#}")), trace(error.backtrace()).map(clip));
    write(path, Extra { panic: false, text, location: None, source_line: None, trace, unix_nanos })
}

/// The calls of a backtrace, if one was asked for.
fn trace(backtrace: &Backtrace) -> Option<String> {
    (backtrace.status() == BacktraceStatus::Captured).then(|| panic_place::short(&backtrace.to_string()))
}

/// The error and its causes, each on a line, as programs print it to stderr: the launcher reads it there if no file was written.
pub fn printed(error: &anyhow::Error) -> String {
    let causes = error.chain().skip(1).map(|cause| format!("\n  caused by: {cause}"));
    foreign::lines(&format!("error: {error}{}", causes.collect::<String>()))
}

/// Records a failure that is only a text at `path`, replacing any earlier contents.
///
/// # Errors
/// When the file cannot be written.
pub fn record_text(path: &Path, text: &str) -> io::Result<()> {
    let text = clip(text.to_owned());
    write(path, Extra { panic: false, text, location: None, source_line: None, trace: None, unix_nanos: unix_nanos() })
}

/// Installs a hook for panics of the *calling thread*: it records them at `path`, if there is one, before the stack unwinds, and prints
/// a panic inside libtorch or the runtime at the [line of the user's code](panic_place) that called them.
///
/// With `quiet`, a recorded panic is not printed too, because the launcher prints it. Panics of other threads go to the
/// previous hook.
pub fn report_panics(path: Option<PathBuf>, quiet: bool) {
    let thread = thread::current().id();
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if thread::current().id() != thread {
            return previous(info);
        }
        let unix_nanos = unix_nanos(); // before the backtrace
        let place = panic_place::of(info);
        let recorded = path.as_ref().is_some_and(|path| record_panic(path, info, place.as_ref(), unix_nanos).is_ok());
        if recorded && quiet {
            return;
        }
        match place.filter(|place| place.within.is_some()) {
            Some(place) => eprintln!("{}", place.text(info, &trace(&Backtrace::capture()).unwrap_or_default())),
            None => previous(info),
        }
    }));
}

/// Reads the file at `path`; `None` if it is absent or empty.
///
/// # Errors
/// [`ErrorFileError`] if it cannot be read or is not in torchrun's format.
pub fn read(path: &Path) -> Result<Option<Recorded>, ErrorFileError> {
    let fail = |source| ErrorFileError::Read { path: path.to_owned(), source };
    match fs::File::open(path) {
        Ok(file) => parse(&read_bounded(file).map_err(fail)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(error)),
    }
}

/// Reads at most 4 MiB from `reader`, the largest size of an error file.
///
/// # Errors
/// The errors of `reader`.
pub fn read_bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(LARGEST_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Parses either of torch's two formats; `None` for an empty file.
///
/// # Errors
/// [`ErrorFileError::Malformed`].
pub fn parse(bytes: &[u8]) -> Result<Option<Recorded>, ErrorFileError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let malformed = |reason: String| ErrorFileError::Malformed { reason, head: head(bytes) };
    let file: Value = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    match &file["message"] {
        Value::String(text) => Ok(Some(Recorded::foreign(text, None))),
        Value::Object(outer) => {
            let text = outer.get("message").and_then(Value::as_str);
            let text = text.ok_or_else(|| malformed("message.message is not a string".to_owned()))?;
            let info = outer.get("extraInfo").unwrap_or(&Value::Null);
            Ok(Some(Recorded::ours(info).unwrap_or_else(|| Recorded::foreign(text, info["py_callstack"].as_str()))))
        }
        _ => Err(malformed("no field `message`".to_owned())),
    }
}

impl Recorded {
    fn foreign(text: &str, trace: Option<&str>) -> Self {
        Recorded { message: text.to_owned(), kind: Kind::Error, trace: trace.map(str::to_owned), unix_nanos: None }
    }

    fn ours(info: &Value) -> Option<Self> {
        let extra = Extra::deserialize(info.get("lockstep")?).ok()?;
        let kind = if extra.panic { Kind::Panic(extra.location) } else { Kind::Error };
        Some(Recorded { message: extra.text, kind, trace: extra.trace, unix_nanos: Some(extra.unix_nanos) })
    }
}

/// The message of a panic, which is a `&str` or a `String` if `panic!` made it.
#[must_use]
pub fn panic_text(payload: &dyn Any) -> Option<&str> {
    payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

/// A message of libtorch without the C++ frames that follow it. In a panic the message may be in its debug form.
#[must_use]
pub fn without_frames(text: &str) -> &str {
    let begins = ["\nException raised from", "\\nException raised from"];
    let end = begins.iter().filter_map(|begin| text.find(begin)).min().unwrap_or(text.len());
    &text[..end]
}

fn record_panic(path: &Path, info: &PanicHookInfo<'_>, place: Option<&PanicPlace>, unix_nanos: u64) -> io::Result<()> {
    let text = panic_text(info.payload()).unwrap_or("a panic whose payload is not a string");
    let extra = Extra {
        panic: true,
        text: clip(panic_place::message(text)),
        location: place.map(|place| place.place.clone()),
        source_line: place.and_then(|place| place.source_line.clone()).map(clip),
        trace: trace(&Backtrace::capture()).map(clip),
        unix_nanos,
    };
    write(path, extra)
}

/// A single plain write. The path may be `/proc/self/fd/N`, where a temporary file cannot be renamed into place.
fn write(path: &Path, extra: Extra) -> io::Result<()> {
    let kind = if extra.panic { "panic" } else { "Error" };
    let callstack = [Some(extra.text.as_str()), extra.location.as_deref(), extra.trace.as_deref()];
    let file = json!({"message": {
        "message": format!("{kind}: {}", extra.text),
        "extraInfo": {
            "py_callstack": callstack.into_iter().flatten().collect::<Vec<_>>().join("\n"),
            "timestamp": (extra.unix_nanos / 1_000_000_000).to_string(),
            "lockstep": extra,
        },
    }});
    fs::write(path, file.to_string())
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn clip(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        text.push_str(" … (cut)");
    }
    text
}

fn head(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn written(error: &anyhow::Error) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("error.json");
        record(&path, error).unwrap();
        fs::read(path).unwrap()
    }

    #[test]
    fn reads_back_the_chain_of_an_error() {
        let error = Err::<(), _>(anyhow::anyhow!("disk full")).context("cannot save step 3").unwrap_err();
        let recorded = parse(&written(&error)).unwrap().unwrap();
        assert_eq!(recorded.message, "cannot save step 3: disk full");
        assert_eq!(recorded.kind, Kind::Error);
        assert!(recorded.unix_nanos.unwrap() > 1_600_000_000_000_000_000);
    }

    #[test]
    fn prints_a_chain_with_one_cause_per_line() {
        let error = Err::<(), _>(io::Error::other("disk full")).context("cannot save").context("run A failed");
        assert_eq!(
            printed(&error.unwrap_err()),
            "error: run A failed\n  caused by: cannot save\n  caused by: disk full"
        );
    }

    #[test]
    fn prints_no_character_that_acts_on_a_terminal() {
        let error = anyhow::anyhow!("cannot read \x1b[2J").context("a\nb");
        assert_eq!(printed(&error), "error: a\nb\n  caused by: cannot read \\u{1b}[2J");
    }

    #[test]
    fn writes_the_fields_that_torchruns_agent_reads() {
        let file: Value = serde_json::from_slice(&written(&anyhow::anyhow!("boom"))).unwrap();
        let message = &file["message"];
        assert_eq!(message["message"], "Error: boom");
        assert!(message["extraInfo"]["py_callstack"].as_str().unwrap().starts_with("boom"));
        // torch converts it with int(): whole seconds, as a string.
        message["extraInfo"]["timestamp"].as_str().unwrap().parse::<u64>().unwrap();
    }

    #[test]
    fn reads_both_forms_that_torch_writes() {
        // Recorded from torch 2.11's ErrorHandler.record_exception, with a shortened callstack.
        let long = br#"{"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback: x", "timestamp": "1763635200"}}}"#;
        let recorded = parse(long).unwrap().unwrap();
        assert_eq!((recorded.message.as_str(), recorded.trace.as_deref()), ("ValueError: no", Some("Traceback: x")));
        let short = br#"{"message": "out of memory", "timestamp": 1763635200}"#;
        assert_eq!(parse(short).unwrap().unwrap().message, "out of memory");
    }

    #[test]
    fn reports_a_file_cut_at_any_byte_with_its_head() {
        let whole = written(&anyhow::anyhow!("boom"));
        for end in 1..whole.len() {
            let error = parse(&whole[..end]).unwrap_err();
            assert!(matches!(error, ErrorFileError::Malformed { .. }), "cut at {end}: {error}");
        }
        assert_eq!(parse(b"").unwrap(), None);
    }

    #[test]
    fn reports_json_of_another_shape() {
        for bytes in [&b"[]"[..], b"{}", b"3", br#"{"message": 3}"#, br#"{"message": {"text": "x"}}"#] {
            let error = parse(bytes).unwrap_err().to_string();
            assert!(error.contains("torchrun's format"), "{error}");
        }
    }

    #[test]
    fn says_nothing_of_a_file_that_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("none.json")).unwrap(), None);
    }

    #[test]
    fn cuts_a_text_that_would_fill_the_disk() {
        let recorded = parse(&written(&anyhow::anyhow!("é".repeat(LONGEST_TEXT)))).unwrap().unwrap();
        assert!(recorded.message.len() < LONGEST_TEXT + 20);
        assert!(recorded.message.ends_with("(cut)"));
    }
}

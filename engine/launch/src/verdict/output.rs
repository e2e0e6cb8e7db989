//! Reads errors in a worker's output: a Python traceback, a Rust panic, a C++ exception that nobody caught, and the error chain of
//! a Rust `main`. Also tells what ends a program from what it prints and survives.
//!
//! The format of tracebacks is that of CPython's `traceback.py` from 3.8 to 3.14, of rich and of loguru. Frames of installed packages
//! and of the standard library are not the user's own.

use std::ops::Range;

/// Separates an exception from the one that it caused.
const CAUSED: &str = "The above exception was the direct cause of the following exception:";
/// Separates an exception from one that was raised while it was handled.
const WHILE_HANDLED: &str = "During handling of the above exception, another exception occurred:";
const HEADER: &str = "Traceback (most recent call last)";
/// Begin the line before a traceback that does not end the program.
const SURVIVED: [&str; 9] = [
    "Exception ignored",
    "Exception in thread",
    "Exception in callback",
    "Error in atexit",
    "--- Logging error ---",
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "future: <",
    "handle: <",
];
/// Before the traceback of another process, in an exception's message (torch.multiprocessing.spawn).
const IN_MESSAGE: &str = "-- Process ";
/// A message of more lines than this continues with other output.
const LONGEST_MESSAGE: usize = 40;
/// The same for lines that do not look like a part of a message.
const FEW: usize = 10;
/// Parts of the paths of code that the user did not write.
const INSTALLED: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "];
/// Exceptions whose message has one line.
const ONE_LINE: [&str; 12] = [
    "KeyError",
    "IndexError",
    "ZeroDivisionError",
    "StopIteration",
    "RecursionError",
    "ModuleNotFoundError",
    "NameError",
    "UnboundLocalError",
    "AttributeError",
    "UnicodeDecodeError",
    "FileNotFoundError",
    "PermissionError",
];
/// Begin further lines of messages of PyTorch, CUDA and NCCL.
const CONTINUED: [&str; 11] = [
    "CUDA kernel errors might",
    "Search for `cuda",
    "For debugging consider",
    "Compile with `TORCH_USE",
    "Device-side assertion",
    "Last error:",
    "nccl",
    "Check the documentation of torch",
    "Exception raised from ",
    "frame #",
    "Original Traceback",
];
/// Begin lines that follow an error on the way out, and explain nothing.
const NOISE: [&str; 20] = [
    "[W",
    "[E",
    "[rank",
    "wandb: ",
    "terminate called without an active exception",
    "Aborted",
    "srun: ",
    "slurmstepd: ",
    "Set the environment variable HYDRA_FULL_ERROR",
    "note: run with `RUST_BACKTRACE",
    "stack backtrace:",
    "For more information, try",
    "For more information about",
    "Usage: ",
    "tip: ",
    "sys:1: ",
    "Fatal Python error: Aborted",
    "Thread 0x",
    "Current thread 0x",
    "Extension modules: ",
];
/// Words of a message about something that the program survived, in lowercase.
const SURVIVAL: [&str; 30] = [
    "warning",
    " warn ",
    "warn:",
    "[warn",
    "ignored",
    "ignoring",
    "retry",
    "retries",
    "trying again",
    "going on",
    "goes on",
    "carrying on",
    "continuing",
    "proceeding",
    "skipped",
    "skipping",
    "falling back",
    "fallback",
    "deprecated",
    "disabling",
    "disabled",
    "recovered",
    "non-fatal",
    "starting from scratch",
    "halving",
    "reducing",
    "defaulting",
    "nccl info",
    "reconnect",
    "restarting",
];
/// Words that say the same in a line that does not say that something failed.
const WEAK: [&str; 5] = ["using ", "instead", "without", "will be", "default"];

/// An exception of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Exception {
    /// `Type: message`, which may have several lines.
    pub(super) text: String,
    /// From the outermost call to the innermost.
    pub(super) frames: Vec<Frame>,
    /// The exceptions of an exception group.
    pub(super) members: Vec<Exception>,
    /// It was raised while the exception before it was handled.
    pub(super) while_handled: bool,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) file: String,
    pub(super) line: String,
    /// Not known for a syntax error.
    pub(super) function: Option<String>,
}

/// A chain of exceptions as it was printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Traceback {
    /// The oldest exception first.
    pub(super) chain: Vec<Exception>,
    /// The index of its first line.
    pub(super) begin: usize,
    /// The index after its last line.
    pub(super) end: usize,
    /// The line before it, if that line says that the program goes on, or that it is ending already.
    pub(super) survived: Option<String>,
}

impl Exception {
    /// The innermost frame in the user's own code.
    pub(super) fn own_frame(&self) -> Option<&Frame> {
        self.frames.iter().rev().find(|frame| !INSTALLED.iter().any(|part| frame.file.contains(part)))
    }

    /// It came up to the program's outermost call, as far as its frames show.
    pub(super) fn reached_the_top(&self) -> bool {
        let outermost = |frame: &Frame| {
            let module = frame.function.as_deref().is_none_or(|name| name == "<module>");
            module || frame.file.starts_with("<frozen ") || frame.file.ends_with("/runpy.py")
        };
        self.frames.first().is_none_or(outermost)
    }
}

impl Traceback {
    /// Its lines with its label, if the program goes on after it.
    pub(super) fn survived_lines<L: AsRef<str>>(&self, lines: &[L]) -> Option<Range<usize>> {
        let label = self.survived.as_deref()?;
        let is = |line: &L, start: &str| line.as_ref().trim().starts_with(start);
        let mut begin = lines[..self.begin].iter().rposition(|line| is(line, label))?;
        let before = ["Task exception", "Future exception", "Exception in callback"];
        begin -= usize::from(begin > 0 && before.iter().any(|start| is(&lines[begin - 1], start)));
        // logging adds where it was called.
        let arguments = lines[self.end..].iter().position(|line| is(line, "Arguments: "));
        let more = arguments.filter(|_| label.starts_with("--- Logging")).map_or(0, |at| at + 1);
        Some(begin..self.end + more)
    }
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        match self.function.as_deref() {
            Some("<module>") | None => Ok(()),
            Some(function) => write!(f, " in {function}"),
        }
    }
}

/// The chains of exceptions in these lines. `whole`: nothing but a chain is there, as in an error file.
pub(super) fn tracebacks<L: AsRef<str>>(lines: &[L], whole: bool) -> Vec<Traceback> {
    let mut found: Vec<Traceback> = vec![];
    let mut at = 0;
    while at < lines.len() {
        let Some((exception, end)) = one_exception(lines, at, whole) else {
            at += 1;
            continue;
        };
        let last_before = |end: usize| lines[..end].iter().rposition(|line| !is_blank(line.as_ref().trim()));
        let separator = last_before(at).unwrap_or_default();
        let before = lines[separator].as_ref().trim();
        let nested = before.starts_with(IN_MESSAGE) || lines[at].as_ref().contains("Original Traceback");
        let linked = at > 0 && (before == CAUSED || before == WHILE_HANDLED);
        let older = last_before(separator).filter(|_| linked);
        // An exception that was never raised in Python has one line.
        let is_bare =
            |older: usize| found.last().is_none_or(|last| last.end <= older) && is_exception(lines[older].as_ref());
        if let Some(older) = older.filter(|older| is_bare(*older)) {
            let chain = vec![Exception { text: lines[older].as_ref().trim_end().to_owned(), ..Exception::default() }];
            found.push(Traceback { chain, begin: older, end: older + 1, survived: None });
        }
        match found.last_mut() {
            Some(last) if older.is_some_and(|older| older < last.end) => {
                last.chain.push(Exception { while_handled: before == WHILE_HANDLED, ..exception });
                last.end = end;
            }
            Some(last) if nested => {
                last.chain.insert(0, exception);
                last.end = end;
            }
            _ => {
                let survived = SURVIVED.iter().any(|start| before.starts_with(start));
                let survived = (survived && !whole).then(|| before.to_owned());
                found.push(Traceback { chain: vec![exception], begin: at, end, survived });
            }
        }
        at = end;
    }
    found
}

/// Nothing, or the quotation marks around the traceback of another process.
fn is_blank(line: &str) -> bool {
    line.is_empty() || line == "\"\"\""
}

/// The exception whose first line is at this index, and the index after its last line.
fn one_exception<L: AsRef<str>>(lines: &[L], begin: usize, whole: bool) -> Option<(Exception, usize)> {
    let line = |at: usize| lines.get(at).map(|line: &L| line.as_ref());
    let first = line(begin)?.trim_end();
    let (mut frames, mut at) = (Vec::new(), begin);
    if first.contains("Exception Group Traceback") {
        return group(lines, begin);
    } else if first.ends_with(&format!("{HEADER}:")) {
        at += 1;
    } else if first.contains(HEADER) && first.starts_with(['╭', '+', '┌']) {
        at += 1;
        while let Some(inside) = line(at).filter(|line| line.starts_with(['│', '|'])) {
            frames.extend(boxed_frame(inside));
            at += 1;
        }
        at += usize::from(line(at).is_some_and(|line| line.starts_with(['╰', '+', '└'])));
    } else if frame(first).is_none_or(|frame| frame.function.is_some()) {
        // A syntax error of the script itself has no header.
        return None;
    }
    while let Some(body) = line(at).filter(|line| line.is_empty() || line.starts_with([' ', '|', '│', '>'])) {
        frames.extend(frame(body));
        at += 1;
    }
    if !is_exception(line(at)?) {
        return None;
    }
    let mut exception = Exception { frames, ..Exception::default() };
    let end = message_end(lines, at, whole, exception.reached_the_top());
    let text: Vec<&str> = lines[at..end].iter().map(AsRef::as_ref).collect();
    exception.text = text.join("\n").trim_end().to_owned();
    Some((exception, end))
}

/// An exception group, whose lines have a margin: `  | `, and `  +-+---- 1 ----` before each exception in it.
fn group<L: AsRef<str>>(lines: &[L], begin: usize) -> Option<(Exception, usize)> {
    let (mut all, mut frames, mut end) = (Vec::<Exception>::new(), Vec::new(), begin);
    for (at, line) in lines.iter().enumerate().skip(begin) {
        let trimmed = line.as_ref().trim_start();
        let Some(content) = trimmed.strip_prefix(['|', '+']) else {
            // Until 3.12 only a message's first line has the margin.
            let continues = lines[at..].iter().take(FEW).any(|line| line.as_ref().trim_start().starts_with("+---"));
            if continues && !trimmed.is_empty() && !trimmed.contains(HEADER) {
                continue;
            }
            break;
        };
        end = at + 1;
        let content = content.strip_prefix(' ').unwrap_or(content);
        if let Some(frame) = frame(content) {
            frames.push(frame);
        } else if content.contains(HEADER) || content.starts_with(['-', '+']) {
            frames.clear();
        } else if is_exception(content) {
            let text = content.to_owned();
            all.push(Exception { text, frames: std::mem::take(&mut frames), ..Exception::default() });
        }
    }
    let mut all = all.into_iter();
    let outer = all.next()?;
    let is_group = |one: &Exception| one.text.contains(" sub-exception");
    Some((Exception { members: all.filter(|one| !is_group(one)).collect(), ..outer }, end))
}

/// The index after the last line of a message, which begins here. Nothing marks its end, so what follows may be other output.
fn message_end<L: AsRef<str>>(lines: &[L], begin: usize, whole: bool, at_top: bool) -> usize {
    let first = lines[begin].as_ref();
    let name = first.split_once(": ").map_or(first, |(name, _)| name);
    let simple = name.rsplit('.').next().unwrap_or_default();
    let one_line =
        name.len() == first.len() && !first.ends_with(':') || ONE_LINE.contains(&simple) || first.contains("[Errno ");
    if one_line && !whole {
        return begin + 1;
    }
    let stops = |line: &str| {
        line.contains(HEADER)
            || line == CAUSED
            || line == WHILE_HANDLED
            || line.starts_with(IN_MESSAGE)
            || SURVIVED.iter().any(|start| line.starts_with(start))
            || !whole && !is_part(line) && (is_noise(line) && !line.is_empty() || is_other(line))
    };
    let mut open = first.trim_end().ends_with(':');
    let (mut end, mut sure, mut plain, mut at) = (begin + 1, begin + 1, 0, begin + 1);
    while let Some(line) = lines.get(at).map(AsRef::as_ref).filter(|line| !stops(line)) {
        at += 1;
        if line.trim().is_empty() {
            continue;
        }
        end = at;
        plain += usize::from(!open && !is_part(line));
        if plain == 0 {
            sure = at;
        }
        open |= line.starts_with("Last error:");
    }
    let last = lines[end - 1].as_ref();
    let survived = || {
        let goes_on = !only_noise(&lines[at..]) && !lines[at..].iter().any(|line| line.as_ref().contains(HEADER));
        !at_top || plain > FEW || goes_on || is_error(last)
    };
    let too_long = end - begin > LONGEST_MESSAGE && !open;
    if !whole && plain > 0 && (too_long || survived()) { sure } else { end }
}

/// `Type: message` or `Type`, where the type may be in a module.
fn is_exception(line: &str) -> bool {
    let line = line.trim_end();
    let name = line.split_once(": ").map_or(line.trim_end_matches(':'), |(name, _)| name);
    let is_name =
        |part: &str| part.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '<') && !part.contains(' ');
    !name.is_empty() && name.split('.').all(is_name)
}

/// `  File "train.py", line 12, in main`.
fn frame(line: &str) -> Option<Frame> {
    let rest = line.trim_start_matches([' ', '|', '│', '>']).strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let (number, function) = rest.split_once(", in ").map_or((rest, None), |(number, name)| (number, Some(name)));
    made_frame(file, number, function)
}

/// `│ /x/train.py:12 in main      │`.
fn boxed_frame(line: &str) -> Option<Frame> {
    let (place, function) = line.trim_matches(['│', '|', ' ']).rsplit_once(" in ")?;
    let (file, number) = place.rsplit_once(':')?;
    (!file.contains(' ')).then(|| made_frame(file, number, Some(function)))?
}

fn made_frame(file: &str, number: &str, function: Option<&str>) -> Option<Frame> {
    let (number, function) = (number.trim(), function.map(|name| name.trim().to_owned()));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Frame { file: file.into(), line: number.into(), function })
}

// ---- what explains nothing

/// A line without colours (Python 3.13 colours tracebacks), and without the rank that PyTorch puts before each
/// line of a traceback: `[rank1]: ` (`init_process_group` of torch/distributed/distributed_c10d.py).
pub(super) fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut parts = line.split("\u{1b}[");
    text += parts.next().unwrap_or_default();
    for part in parts {
        match part.split_once('m').filter(|(codes, _)| codes.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'))
        {
            Some((_, rest)) => text += rest,
            // Not a colour.
            None => text.extend(["\u{1b}[", part]),
        }
    }
    let rest = text.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    let ranked = rest.filter(|(rank, _)| rank.bytes().all(|byte| byte.is_ascii_digit()));
    ranked.map(|(_, text)| text.to_owned()).unwrap_or(text)
}

/// It explains nothing: a blank line, a progress bar, logs of libraries on the way out.
fn is_noise(line: &str) -> bool {
    let line = line.trim();
    line.is_empty()
        || NOISE.iter().any(|start| line.starts_with(start))
        || line.contains("%|")
        || line.contains("NCCL INFO")
        || line.contains("resource_tracker: ")
}

/// Nothing but noise, with the indented lines that belong to it.
pub(super) fn only_noise<L: AsRef<str>>(lines: &[L]) -> bool {
    let mut lines = lines.iter().map(AsRef::as_ref).skip_while(|line| line.trim().is_empty());
    lines.next().is_none_or(is_noise) && lines.all(|line| is_noise(line) || line.starts_with([' ', '\t']))
}

/// Nothing but what may follow the first line of the C++ runtime's last words.
pub(super) fn is_rest_of_message<L: AsRef<str>>(lines: &[L]) -> bool {
    lines.iter().map(AsRef::as_ref).all(|line| is_noise(line) || is_part(line))
}

/// It belongs to a message that began before.
fn is_part(line: &str) -> bool {
    line.starts_with([' ', '\t']) || CONTINUED.iter().any(|start| line.starts_with(start))
}

/// A line of C++ libraries' logs that is not an error: `2026-11-22 10:00:00.1: W x.cc:7] …`, `W1122 10:00:00 7 x.cc:7] …`.
fn is_log(line: &str) -> bool {
    let level = |word: &str| {
        let digits = word.strip_prefix(['W', 'I']);
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()) && matches!(digits.len(), 0 | 4))
    };
    line.contains("] ") && line.split(' ').take(3).any(level)
}

/// It is worth quoting as what the program printed before its end: a warning, a failure.
pub(super) fn is_telling(line: &str) -> bool {
    let lower = line.to_lowercase();
    is_error(line) || SURVIVAL.iter().chain(&["error", "fail", "exception"]).any(|word| lower.contains(word))
}

/// It is about something that the program survived, according to its own words.
pub(super) fn is_survived(line: &str) -> bool {
    let lower = line.to_lowercase();
    // The names of files say nothing.
    let words: Vec<&str> = lower.split_whitespace().filter(|word| !word.contains('/')).collect();
    let words = words.join(" ");
    let has = |marks: &[&str]| marks.iter().any(|mark| words.contains(mark));
    let failed = ["cannot", "can't", "could not", "must", "not supported", "failed", "error: "];
    is_log(line) || lower.contains("warning: ") || has(&SURVIVAL) || has(&WEAK) && !has(&failed)
}

/// A message of its own that something failed: `error: …`, `CRITICAL …`.
pub(super) fn is_error(line: &str) -> bool {
    let lower = line.to_lowercase();
    let marks = ["error: ", "error]", "error |", "fatal", "critical", "giving up", "abort"];
    !is_survived(line) && (lower.starts_with("error") || marks.iter().any(|mark| lower.contains(mark)))
}

/// Output of a program that goes on: a log's line, a step's numbers, a warning.
fn is_other(line: &str) -> bool {
    let levels = [" INFO", "INFO:", "INFO ", "DEBUG", " ERROR ", "ERROR:", "WARN"];
    let lower = line.to_lowercase();
    let counts = ["epoch", "step", "iter", "batch", "loss"].iter().any(|word| {
        lower.split_once(word).is_some_and(|(_, rest)| {
            rest.trim_start_matches([' ', ':', '=', '[']).starts_with(|c: char| c.is_ascii_digit())
        })
    });
    counts || levels.iter().any(|level| line.contains(level)) || is_survived(line)
}

/// The lines with which this output ends, if they are a message: the last line that is neither noise nor survived, with the lines before
/// it that belong to it.
pub(super) fn last_message<L: AsRef<str>>(lines: &[L], tracebacks: &[Traceback]) -> Option<Range<usize>> {
    let survived: Vec<Range<usize>> = tracebacks.iter().filter_map(|one| one.survived_lines(lines)).collect();
    let line = |at: usize| if survived.iter().any(|lines| lines.contains(&at)) { "" } else { lines[at].as_ref() };
    // An indented line belongs to the one before.
    let owner = |at: usize| (0..=at).rev().find(|at| !line(*at).starts_with([' ', '\t'])).unwrap_or(at);
    let speaks = |at: &usize| !is_noise(line(*at)) && !is_noise(line(owner(*at))) && !is_survived(line(owner(*at)));
    let last = (0..lines.len()).rev().find(|at| speaks(at) && !is_survived(line(*at)))?;
    let mut begin = owner(last);
    let belongs = |at: usize| {
        let (one, before) = (line(at), line(at - 1));
        let continued = is_part(one) && !one.starts_with("nccl") || before.starts_with("Last error:");
        continued && !is_noise(before) && !is_survived(before)
    };
    while begin > 0 && belongs(begin) {
        begin -= 1;
    }
    Some(begin..last + 1)
}

// ---- programs that are not Python

/// The error that ended such a program, as it printed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NativeError {
    /// The way in which it ended.
    pub(super) kind: Kind,
    /// The message; for a chain, the outermost error first.
    pub(super) texts: Vec<String>,
    /// `file:line:column`, if it says so.
    pub(super) place: Option<String>,
    /// The number of lines that follow.
    pub(super) after: usize,
}

/// The way in which it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A Rust panic.
    Panic,
    /// A C++ exception that nobody caught.
    Terminate,
    /// `error: …` with its causes.
    Chain,
}

/// The last error in these lines.
pub(super) fn native_error<L: AsRef<str>>(lines: &[L]) -> Option<NativeError> {
    (0..lines.len()).rev().find_map(|at| {
        let (line, rest) = (lines[at].as_ref(), &lines[at + 1..]);
        panic(line, rest).or_else(|| terminate(line, rest)).or_else(|| chain(line, rest))
    })
}

/// `thread 'main' (7) panicked at src/main.rs:3:5:` and the message in the next line; before Rust 1.73
/// `thread 'main' panicked at 'message', src/main.rs:3:5`.
fn panic<L: AsRef<str>>(line: &str, rest: &[L]) -> Option<NativeError> {
    let (thread, said) = line.split_once(" panicked at ")?;
    thread.trim_start().strip_prefix("thread '")?;
    let (text, place, used) = match said.strip_suffix(':') {
        Some(place) => (rest.first().map_or("", AsRef::as_ref), place, 1),
        None => {
            let (text, place) = said.rsplit_once(", ")?;
            (text.trim_matches('\''), place, 0)
        }
    };
    let (texts, place) = (vec![text.to_owned()], Some(place.to_owned()));
    Some(NativeError { kind: Kind::Panic, texts, place, after: rest.len().saturating_sub(used) })
}

/// `terminate called after throwing an instance of 'std::runtime_error'` and `  what():  message`; libc++ has one line.
fn terminate<L: AsRef<str>>(line: &str, rest: &[L]) -> Option<NativeError> {
    let made = |text: String, used: usize| {
        Some(NativeError {
            kind: Kind::Terminate,
            texts: vec![text],
            place: None,
            after: rest.len().saturating_sub(used),
        })
    };
    if let Some((_, text)) = line.split_once("terminating due to uncaught exception of type ") {
        return made(text.to_owned(), 0);
    }
    let (_, class) = line.split_once("terminate called after throwing an instance of '")?;
    let class = class.split('\'').next().unwrap_or_default();
    let what = rest.first().and_then(|line| line.as_ref().trim_start().strip_prefix("what():"));
    made(what.map_or_else(|| class.to_owned(), |what| format!("{class}: {}", what.trim())), 1)
}

/// `error: a` with lines `  caused by: b`, or anyhow's `Error: a` with `Caused by:` and indented lines.
fn chain<L: AsRef<str>>(line: &str, rest: &[L]) -> Option<NativeError> {
    let text =
        line.strip_prefix("error: ").or_else(|| line.strip_prefix("Error: ")).filter(|text| !is_survived(text))?;
    let mut texts = vec![text.to_owned()];
    let mut used = 0;
    for line in rest.iter().map(AsRef::as_ref) {
        let trimmed = line.trim();
        match trimmed.strip_prefix("caused by: ") {
            Some(cause) => texts.push(cause.to_owned()),
            None if trimmed.is_empty() || trimmed == "Caused by:" => {}
            None if line.starts_with("    ") => texts.push(without_number(trimmed).to_owned()),
            None => break,
        }
        used += 1;
    }
    Some(NativeError { kind: Kind::Chain, texts, place: None, after: rest.len() - used })
}

/// anyhow numbers several causes: `0: text`.
fn without_number(text: &str) -> &str {
    match text.split_once(": ") {
        Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(text: &str) -> Vec<Exception> {
        all(text).pop().map(|last| last.chain).unwrap_or_default()
    }

    fn all(text: &str) -> Vec<Traceback> {
        tracebacks(&text.lines().map(plain).collect::<Vec<_>>(), false)
    }

    const CHAINED: &str = r#"epoch 3
Traceback (most recent call last):
  File "/home/ada/data.py", line 7, in open_shard
    return open(path)
           ^^^^^^^^^^
  File "/usr/lib/python3.11/pathlib.py", line 1044, in open
    return io.open(self)
FileNotFoundError: [Errno 2] No such file or directory: '/data/7.tar'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/ada/train.py", line 30, in <module>
    main()
  File "/opt/env/lib/python3.11/site-packages/torch/utils.py", line 5, in call
    f()
RuntimeError: cannot load
the shard
[W1122 10:00:00 socket.cpp:1] closing
"#;

    #[test]
    fn reads_a_chain_from_its_cause_to_its_end() {
        let chain = chain(CHAINED);
        let texts: Vec<&str> = chain.iter().map(|exception| exception.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "FileNotFoundError: [Errno 2] No such file or directory: '/data/7.tar'",
                "RuntimeError: cannot load\nthe shard"
            ]
        );
        let frames: Vec<String> = chain.iter().map(|one| one.own_frame().unwrap().to_string()).collect();
        assert_eq!(frames, ["/home/ada/data.py:7 in open_shard", "/home/ada/train.py:30"]);
    }

    #[test]
    fn keeps_several_tracebacks_apart() {
        let first = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'a'\ngoing on\n\n";
        let second = "Traceback (most recent call last):\n  File \"b.py\", line 2, in <module>\nx.y.OddError\n";
        let found = all(&format!("{first}{second}[W1] noise\n"));
        let seen: Vec<_> = found.iter().map(|one| (one.chain[0].text.as_str(), one.begin, one.end)).collect();
        assert_eq!(seen, [("KeyError: 'a'", 0, 3), ("x.y.OddError", 5, 8)]);
        let ignored = all(&format!("{second}Exception ignored in: <function f>\n{first}"));
        assert!(
            ignored[0].survived.is_none()
                && ignored[1].survived.as_deref() == Some("Exception ignored in: <function f>")
        );
    }

    /// Each exception with its own place, and `+` before one that was raised while the one before it was handled.
    fn shown(text: &str) -> Vec<String> {
        let one = |it: &Exception| {
            let place = it.own_frame().map(|frame| format!(" @ {frame}")).unwrap_or_default();
            format!("{}{}{place}", if it.while_handled { "+ " } else { "" }, it.text.lines().next().unwrap())
        };
        chain(text).iter().flat_map(|it| std::iter::once(one(it)).chain(it.members.iter().map(one))).collect()
    }

    #[test]
    fn reads_the_formats_of_python_rich_and_loguru() {
        let coloured = "Traceback (most recent call last):\n  File \u{1b}[35m\"/x/c.py\"\u{1b}[0m, line \u{1b}[35m3\u{1b}[0m, in \u{1b}[35m<module>\u{1b}[0m\n    \u{1b}[31mf\u{1b}[0m\u{1b}[1;31m()\u{1b}[0m\n    \u{1b}[31m~\u{1b}[0m\u{1b}[1;31m^^\u{1b}[0m\n\u{1b}[1;35mRuntimeError\u{1b}[0m: \u{1b}[35mboom\u{1b}[0m\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"/x/c.py\", line 5, in <module>\nOSError: [Errno 2] No: 'm'\n";
        let rich = "╭──── Traceback (most recent call last) ────╮\n│ /x/r.py:9 in <module>                     │\n│                                           │\n│ ❱ 9 f(1)                                  │\n╰───────────────────────────────────────────╯\nValueError: boom here\n";
        let ascii = "+---- Traceback (most recent call last) ----+\n| /x/r.py:9 in f                            |\n|   9 f(1)                                  |\n+-------------------------------------------+\nValueError: boom here\n";
        let loguru = "2026-11-22 10:00:00.1 | ERROR    | __main__:<module>:6 - An error has been caught\nTraceback (most recent call last):\n\n> File \"/x/l.py\", line 6, in <module>\n    main()\n    └ <function main at 0x7f>\n\n  File \"/x/l.py\", line 3, in f\n    return 1/x\n             └ 0\n\nZeroDivisionError: division by zero\n";
        let group = "  + Exception Group Traceback (most recent call last):\n  |   File \"/x/g.py\", line 7, in <module>\n  |     g()\n  | ExceptionGroup: many (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"/x/g.py\", line 1, in f\n    |     raise ValueError(\"a\\nsecond\")\n    | ValueError: a\nsecond\n    +---------------- 2 ----------------\n    | ExceptionGroup: inner (1 sub-exception)\n    +-+---------------- 1 ----------------\n      | OSError: [Errno 28] No space left on device\n      +------------------------------------\n";
        let loader = "Traceback (most recent call last):\n  File \"/x/d.py\", line 9, in <module>\n    next(it)\nValueError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"/x/d.py\", line 3, in load\nValueError: no\n\n";
        let spawn = "Traceback (most recent call last):\n  File \"/x/s.py\", line 5, in <module>\ntorch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the following error:\nTraceback (most recent call last):\n  File \"/x/s.py\", line 3, in f\nValueError: no\n";
        let pool = "multiprocessing.pool.RemoteTraceback: \n\"\"\"\nTraceback (most recent call last):\n  File \"/x/p.py\", line 3, in f\nValueError: no\n\"\"\"\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File \"/x/p.py\", line 8, in <module>\nValueError: no\n";
        let bar = " 10%|#    | 1/10 [00:00<00:01]Traceback (most recent call last):\n  File \"/x/b.py\", line 8, in <module>\nValueError: no\n";
        for (text, expected) in [
            (coloured, &["RuntimeError: boom @ /x/c.py:3", "+ OSError: [Errno 2] No: 'm' @ /x/c.py:5"][..]),
            (rich, &["ValueError: boom here @ /x/r.py:9"]),
            (ascii, &["ValueError: boom here @ /x/r.py:9 in f"]),
            (loguru, &["ZeroDivisionError: division by zero @ /x/l.py:3 in f"]),
            (
                group,
                &[
                    "ExceptionGroup: many (2 sub-exceptions) @ /x/g.py:7",
                    "ValueError: a @ /x/g.py:1 in f",
                    "OSError: [Errno 28] No space left on device",
                ],
            ),
            (
                loader,
                &[
                    "ValueError: no @ /x/d.py:3 in load",
                    "ValueError: Caught ValueError in DataLoader worker process 0. @ /x/d.py:9",
                ],
            ),
            (
                spawn,
                &["ValueError: no @ /x/s.py:3 in f", "torch.multiprocessing.spawn.ProcessRaisedException: @ /x/s.py:5"],
            ),
            (pool, &["ValueError: no @ /x/p.py:3 in f", "ValueError: no @ /x/p.py:8"]),
            (bar, &["ValueError: no @ /x/b.py:8"]),
        ] {
            assert_eq!(shown(text), expected, "{text}");
            for (end, _) in text.char_indices() {
                chain(&text[..end]);
            }
        }
    }

    #[test]
    fn a_message_ends_where_other_output_begins() {
        let after = |first: &str, function: &str, rest: &str| {
            let text =
                format!("Traceback (most recent call last):\n  File \"a.py\", line 1, in {function}\n{first}\n{rest}");
            chain(&text)[0].text.clone()
        };
        for rest in [
            "second line",
            "\nsecond paragraph",
            "\tindented",
            "CUDA kernel errors might be asynchronously reported\nCompile with `TORCH_USE_CUDA_DSA`",
            "ncclSystemError: x\nLast error:\nError while creating shared memory segment",
        ] {
            assert_eq!(after("RuntimeError: x", "<module>", rest), format!("RuntimeError: x\n{rest}"));
        }
        for (first, function, rest) in [
            ("FileNotFoundError: [Errno 2] No such file: 'a'", "<module>", "second line"),
            ("KeyboardInterrupt", "<module>", "second line"),
            ("RuntimeError: x", "train", "second line"),
            ("RuntimeError: x", "<module>", "second line\nepoch 3: loss 0.25"),
            ("RuntimeError: x", "<module>", "second line\nconfig error: no data"),
            ("RuntimeError: x", "<module>", "going on without it"),
        ] {
            assert_eq!(after(first, function, rest), first, "{rest}");
        }
    }

    #[test]
    fn the_last_message_is_what_the_program_did_not_survive() {
        let last = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            last_message(&lines, &tracebacks(&lines, false)).map(|range| lines[range].join("|"))
        };
        let end = |text: &str| last(text).unwrap_or_default();
        assert_eq!(end("working\nWARNING: No module named 'apex'; using the plain optimizer"), "working");
        assert_eq!(end("no data\n 10%|#    | 1/10\nwandb: synced\n"), "no data");
        assert_eq!(
            end("ncclInvalidUsage: x\nLast error:\nDuplicate GPU"),
            "ncclInvalidUsage: x|Last error:|Duplicate GPU"
        );
        assert_eq!(end("a.py:3: UserWarning: slow\n  warnings.warn(x)\nno data"), "no data");
        assert_eq!(last("ERROR: ld.so: object 'x' from LD_PRELOAD cannot be preloaded (no): ignored."), None);
        assert_eq!(end("cannot continue: using this needs a GPU"), "cannot continue: using this needs a GPU");
    }

    #[test]
    fn reads_a_syntax_error_without_a_header() {
        let chain =
            chain("  File \"/x/train.py\", line 3\n    print(\n         ^\nSyntaxError: '(' was never closed\n");
        assert_eq!(chain[0].text, "SyntaxError: '(' was never closed");
        assert_eq!(chain[0].own_frame().unwrap().to_string(), "/x/train.py:3");
    }

    #[test]
    fn finds_none_in_other_texts_and_survives_any_cut() {
        for text in ["", "step 3\nloss 4", "Traceback (most recent call last):\n  File", "error: no such file\n"] {
            assert_eq!(chain(text), [], "{text}");
        }
        for (end, _) in CHAINED.char_indices() {
            chain(&CHAINED[..end]);
        }
    }

    fn error(text: &str) -> Option<NativeError> {
        native_error(&text.lines().collect::<Vec<_>>())
    }

    #[test]
    fn reads_a_panic_with_its_place() {
        let new = "step 1\n\nthread 'main' (91) panicked at src/main.rs:3:5:\nindex out of bounds\nnote: run with\n";
        let old = "thread 'loader' panicked at 'index out of bounds', src/main.rs:3:5\nnote: run with\n";
        for text in [new, old] {
            let found = error(text).unwrap();
            assert_eq!((found.kind, found.texts[0].as_str(), found.after), (Kind::Panic, "index out of bounds", 1));
            assert_eq!(found.place.as_deref(), Some("src/main.rs:3:5"));
        }
    }

    #[test]
    fn reads_a_cxx_exception() {
        let text = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no file\n";
        let found = error(text).unwrap();
        assert_eq!((found.kind, found.texts), (Kind::Terminate, vec!["std::runtime_error: no file".to_owned()]));
        let bare = error("terminate called after throwing an instance of 'int'\n").unwrap();
        assert_eq!(bare.texts, ["int"]);
        let other = error("libc++abi: terminating due to uncaught exception of type E: no\n").unwrap();
        assert_eq!(other.texts, ["E: no"]);
    }

    #[test]
    fn reads_error_chains_of_both_forms() {
        let ours = error("error: part failed\n  caused by: a\n  caused by: b\n").unwrap();
        assert_eq!((ours.kind, ours.texts), (Kind::Chain, ["part failed", "a", "b"].map(str::to_owned).to_vec()));
        let anyhow = error("Error: part failed\n\nCaused by:\n    0: a\n    1: b\nmore\n").unwrap();
        assert_eq!(anyhow.texts, ["part failed", "a", "b"]);
        assert_eq!(anyhow.after, 1);
    }

    #[test]
    fn finds_none_in_other_texts() {
        assert_eq!(error("step 3\nno error: here\n"), None);
        assert_eq!(error(""), None);
    }
}

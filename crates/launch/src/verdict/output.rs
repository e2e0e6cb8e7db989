//! Reads errors in a worker's output: a Python traceback, a Rust panic, a C++ exception that nobody caught, and the error chain of
//! a Rust `main`.
//!
//! The format of tracebacks is that of CPython's `traceback.py`. Frames of installed packages and of the standard library are not the
//! user's own.

/// Separates an exception from the one that it caused.
const SEPARATORS: [&str; 2] = [
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
];
const HEADER: &str = "Traceback (most recent call last):";
/// Lines of other output that may follow the last exception.
const OTHER_OUTPUT: [&str; 6] = ["[W", "[E", "[rank", "WARNING", "Exception ignored in", "Fatal Python error"];
/// A message of more lines than this continues with other output.
const LONGEST_MESSAGE: usize = 40;
/// Parts of the paths of code that the user did not write.
const INSTALLED: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "];

/// An exception of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Exception {
    /// `Type: message`, which may have several lines.
    pub(super) text: String,
    /// From the outermost call to the innermost.
    pub(super) frames: Vec<Frame>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) file: String,
    pub(super) line: String,
    /// Not known for a syntax error.
    pub(super) function: Option<String>,
}

impl Exception {
    /// The innermost frame in the user's own code.
    pub(super) fn own_frame(&self) -> Option<&Frame> {
        self.frames.iter().rev().find(|frame| !INSTALLED.iter().any(|part| frame.file.contains(part)))
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

/// The last chain of exceptions in these lines, the oldest first, and the number of lines that follow its last exception's
/// first line. They may be the rest of a message or other output.
pub(super) fn python_error<L: AsRef<str>>(lines: &[L]) -> Option<(Vec<Exception>, usize)> {
    let mut found: Option<(Vec<Exception>, usize)> = None;
    let mut at = 0;
    while at < lines.len() {
        let Some((exception, end)) = one_exception(lines, at) else {
            at += 1;
            continue;
        };
        let before = lines[..at].iter().rev().map(|line| line.as_ref().trim()).find(|line| !line.is_empty());
        let continues = before.is_some_and(|line| SEPARATORS.contains(&line));
        let mut chain = found.take().filter(|_| continues).map(|(chain, _)| chain).unwrap_or_default();
        chain.push(exception);
        let length = chain.last().map_or(0, |last| last.text.lines().count());
        found = Some((chain, lines.len() + length.saturating_sub(1) - end));
        at = end;
    }
    found
}

/// The exception whose first line is at this index, and the index after its last line.
fn one_exception<L: AsRef<str>>(lines: &[L], begin: usize) -> Option<(Exception, usize)> {
    let first = lines[begin].as_ref();
    let headed = first.trim_start_matches([' ', '+', '|']) == HEADER && !first.contains("Exception Group");
    // A syntax error of the script itself has no header.
    if !headed && (frame(first).is_none() || frame(first)?.function.is_some()) {
        return None;
    }
    let mut frames = Vec::new();
    let mut at = begin + usize::from(headed);
    while at < lines.len() && (lines[at].as_ref().starts_with([' ', '|']) || lines[at].as_ref().is_empty()) {
        frames.extend(frame(lines[at].as_ref()));
        at += 1;
    }
    let text_begin = at;
    if !is_exception(lines.get(at)?.as_ref()) {
        return None;
    }
    at += 1;
    while at < lines.len() && at - text_begin < LONGEST_MESSAGE && continues(lines[at].as_ref()) {
        at += 1;
    }
    let text: Vec<&str> = lines[text_begin..at].iter().map(AsRef::as_ref).collect();
    Some((Exception { text: text.join("\n").trim_end().to_owned(), frames }, at))
}

fn continues(line: &str) -> bool {
    line != HEADER && !SEPARATORS.contains(&line) && !OTHER_OUTPUT.iter().any(|start| line.starts_with(start))
}

/// `Type: message` or `Type`, where the type may be in a module.
fn is_exception(line: &str) -> bool {
    let name = line.split_once(": ").map_or(line.trim_end_matches(':'), |(name, _)| name);
    let is_name = |part: &str| part.starts_with(|c: char| c.is_alphabetic() || c == '_') && !part.contains(' ');
    !name.is_empty() && name.split('.').all(is_name)
}

/// `  File "train.py", line 12, in main`.
fn frame(line: &str) -> Option<Frame> {
    let rest = line.trim_start_matches([' ', '|']).strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let (number, function) = rest.split_once(", in ").map_or((rest, None), |(number, name)| (number, Some(name)));
    let number = number.trim();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Frame { file: file.into(), line: number.into(), function: function.map(str::to_owned) })
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
    let text = line.strip_prefix("error: ").or_else(|| line.strip_prefix("Error: "))?;
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
        python_error(&text.lines().collect::<Vec<_>>()).map(|(chain, _)| chain).unwrap_or_default()
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
    fn keeps_the_last_of_several_tracebacks() {
        let first = "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'a'\ngoing on\n\n";
        let second = "Traceback (most recent call last):\n  File \"b.py\", line 2, in g\nx.y.OddError\n";
        let lines: Vec<String> = format!("{first}{second}").lines().map(str::to_owned).collect();
        let (chain, after) = python_error(&lines).unwrap();
        assert_eq!((chain.len(), chain[0].text.as_str(), after), (1, "x.y.OddError", 0));
        let lines: Vec<String> = format!("{second}[W1] noise\n[W1] more\n").lines().map(str::to_owned).collect();
        assert_eq!(python_error(&lines).unwrap().1, 2);
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

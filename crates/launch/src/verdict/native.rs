//! Reads the errors of programs that are not Python: a Rust panic, a C++ exception that nobody caught, and the error
//! chain of a Rust `main`.

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
pub(super) fn parse<L: AsRef<str>>(lines: &[L]) -> Option<NativeError> {
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

    fn error(text: &str) -> Option<NativeError> {
        parse(&text.lines().collect::<Vec<_>>())
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

//! Reads a Python traceback: the chain of exceptions, and the frame of the user's own code in each.
//!
//! The format is that of CPython's `traceback.py`. Frames of installed packages and of the standard library are not
//! the user's own.

/// Separates an exception from the one that it caused.
const SEPARATORS: [&str; 2] = [
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
];
const HEADER: &str = "Traceback (most recent call last):";
/// Lines of other output that may follow the last exception.
const OTHER_OUTPUT: [&str; 6] = ["[W", "[E", "[rank", "WARNING", "Exception ignored in", "Fatal Python error"];
/// A message of more lines than this continues with other output.
const LONGEST: usize = 40;
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
pub(super) fn parse<L: AsRef<str>>(lines: &[L]) -> Option<(Vec<Exception>, usize)> {
    let mut found: Option<(Vec<Exception>, usize)> = None;
    let mut at = 0;
    while at < lines.len() {
        let Some((exception, end)) = one(lines, at) else {
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
fn one<L: AsRef<str>>(lines: &[L], begin: usize) -> Option<(Exception, usize)> {
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
    while at < lines.len() && at - text_begin < LONGEST && continues(lines[at].as_ref()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(text: &str) -> Vec<Exception> {
        parse(&text.lines().collect::<Vec<_>>()).map(|(chain, _)| chain).unwrap_or_default()
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
        let (chain, after) = parse(&lines).unwrap();
        assert_eq!((chain.len(), chain[0].text.as_str(), after), (1, "x.y.OddError", 0));
        let lines: Vec<String> = format!("{second}[W1] noise\n[W1] more\n").lines().map(str::to_owned).collect();
        assert_eq!(parse(&lines).unwrap().1, 2);
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
}

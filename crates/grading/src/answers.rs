//! The answers to a task that the course keeps in addition to its own: wrong ones, and unusual right ones.
//!
//! They are the public functions of one file, which this module reads as text: the grader and the macros of `lockstep-answers`, which
//! compile this file as well, must list the same. The comment of a right one begins with "Right:". In Python they are all functions of
//! the file, without `_` at the beginning.

/// The names of a task's answers, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Wrong answers that people really give.
    pub wrong: Vec<String>,
    /// Right answers that look different from the course's answer.
    pub right: Vec<String>,
}

impl Answers {
    /// Reads the names from a source file of Rust.
    pub fn read(source: &str) -> Self {
        Self::read_with(source, "pub fn ", "/// Right:")
    }

    /// Reads the names from a source file of Python.
    #[allow(dead_code)] // by the macro
    pub fn read_python(source: &str) -> Self {
        let Answers { mut wrong, mut right } = Self::read_with(source, "def ", "# Right:");
        wrong.retain(|name| !name.starts_with('_'));
        right.retain(|name| !name.starts_with('_'));
        Answers { wrong, right }
    }

    /// `function` begins a function's line, `mark` a right one's comment.
    fn read_with(source: &str, function: &str, mark: &str) -> Self {
        let mut answers = Answers::default();
        let mut is_right = false;
        for line in source.lines() {
            if let Some(rest) = line.strip_prefix(function) {
                let name = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
                if is_right { answers.right.push(name) } else { answers.wrong.push(name) }
            }
            // An item's comments and attributes stand directly above it. An attribute may have several lines.
            let is_item = line.is_empty() || ["fn ", function].iter().any(|begin| line.starts_with(begin));
            is_right = line.starts_with(mark) || is_right && !is_item;
        }
        answers
    }

    /// All names, of wrong answers first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.wrong.iter().chain(&self.right).map(String::as_str)
    }
}

/// What stands after the sign of a comment: the begin and the end of the answer, and a line for the learner.
const MARKERS: [&str; 3] = [" <answer>", " </answer>", "~"];

/// The markers in a language whose comments begin with this.
pub(crate) fn markers(comment: &str) -> [String; 3] {
    MARKERS.map(|marker| format!("{comment}{marker}"))
}

/// Converts an answer's text to the learner's text.
///
/// In an answer's file, `// <answer>` and `// </answer>` enclose the part that the learner writes. Lines in it that begin with
/// `//~` go into the learner's file; all other lines are the answer.
///
/// ```text
/// pub fn twice(n: i64) -> i64 {          pub fn twice(n: i64) -> i64 {
///     // <answer>                  →         // Twice as much.
///     //~ // Twice as much.                  todo!("twice as much")
///     //~ todo!("twice as much")         }
///     2 * n
///     // </answer>
/// }
/// ```
pub(crate) fn skeleton(answer: &str, comment: &str) -> Result<String, String> {
    let [begin, end, learners] = &markers(comment);
    let (mut text, mut inside, mut instead) = (String::new(), None, 0);
    for (number, line) in (1..).zip(answer.lines()) {
        match (line.trim(), inside) {
            (marker, None) if marker == begin => (inside, instead) = (Some(number), 0),
            (marker, Some(begin)) if marker == end => {
                if instead == 0 {
                    return Err(format!(
                        "the answer that begins in line {begin} has no line that begins with {learners}"
                    ));
                }
                inside = None;
            }
            (marker, _) if marker == begin || marker == end => {
                return Err(format!("line {number}: {marker} without its counterpart"));
            }
            (trimmed, Some(_)) => {
                if let Some(kept) = trimmed.strip_prefix(&**learners) {
                    let indent = &line[..line.len() - line.trim_start().len()];
                    // The first space after the marker belongs to it. Further ones are indentation.
                    let kept = format!("{indent}{}", kept.strip_prefix(' ').unwrap_or(kept));
                    text.push_str(kept.trim_end());
                    text.push('\n');
                    instead += 1;
                }
            }
            (_, None) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    match inside {
        Some(begin) => Err(format!("the answer that begins in line {begin} has no end")),
        None => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_right_answers_from_wrong_ones_by_their_comments() {
        let answers = Answers::read(
            "//! Answers to `shard`.\n\n/// Right: skips.\n/// In turns.\n#[edit(n => {\n    n\n})]\npub fn skips<T>(n: T) {\n}\n\n\
             /// Gives blocks.\npub fn blocks(n: usize) {}\n\n/// Right: as a helper.\nfn helper() {}\npub fn bare() {}\n",
        );
        assert_eq!(answers.right, ["skips"]);
        assert_eq!(answers.wrong, ["blocks", "bare"]);
        assert!(answers.all().eq(["blocks", "bare", "skips"]));
        let answers = Answers::read_python(
            "# Right: in turns.\n@edit(\n    \"a\",\n)\ndef skips(): ...\n\n\n# Gives blocks.\ndef blocks(n: int) -> int:\n    def inner(): ...\n\n\n\
             def _helper(): ...\n",
        );
        assert_eq!((&answers.right[..], &answers.wrong[..]), (&["skips".to_owned()][..], &["blocks".to_owned()][..]));
    }

    #[test]
    fn keeps_files_without_markers() {
        assert_eq!(skeleton("//! Words.\n", "//").unwrap(), "//! Words.\n");
    }

    #[test]
    fn rejects_unpaired_markers_and_answers_without_lines_for_the_learner() {
        for text in [
            "// <answer>\n//~ x\n",
            "// </answer>\n",
            "// <answer>\n//~ x\n// <answer>\n",
            "// <answer>\n1\n// </answer>\n",
        ] {
            assert!(skeleton(text, "//").is_err(), "{text}");
        }
    }
}

//! The answers to a task that the course keeps in addition to its own: wrong ones, and unusual right ones.
//!
//! They are the public functions of one file, which this module reads as text: the grader and the macros of `lockstep-answers`, which
//! compile this file as well, must list the same. The comment of a right one begins with "Right:".

/// The names of a task's answers, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Wrong answers that people really give.
    pub wrong: Vec<String>,
    /// Right answers that look different from the course's answer.
    pub right: Vec<String>,
}

impl Answers {
    /// Reads the names from a source file.
    pub fn read(source: &str) -> Self {
        let mut answers = Answers::default();
        let mut is_right = false;
        for line in source.lines() {
            if let Some(function) = line.strip_prefix("pub fn ") {
                let name = function.split(['(', '<']).next().unwrap_or_default().to_owned();
                if is_right { answers.right.push(name) } else { answers.wrong.push(name) }
            }
            // An item's comments and attributes stand directly above it. An attribute may have several lines.
            let is_item = line.is_empty() || line.starts_with("fn ") || line.starts_with("pub fn ");
            is_right = line.starts_with("/// Right:") || is_right && !is_item;
        }
        answers
    }

    /// All names, those of wrong answers first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.wrong.iter().chain(&self.right).map(String::as_str)
    }
}

pub(crate) const BEGIN: &str = "// <answer>";
pub(crate) const END: &str = "// </answer>";
pub(crate) const LEARNERS: &str = "//~";

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
///
/// # Errors
/// When markers do not pair, or when a marked part has no line for the learner.
pub(crate) fn skeleton(answer: &str) -> Result<String, String> {
    let (mut text, mut inside, mut instead) = (String::new(), None, 0);
    for (number, line) in (1..).zip(answer.lines()) {
        match (line.trim(), inside) {
            (BEGIN, None) => (inside, instead) = (Some(number), 0),
            (END, Some(begin)) => {
                if instead == 0 {
                    return Err(format!(
                        "the answer that begins in line {begin} has no line that begins with {LEARNERS}"
                    ));
                }
                inside = None;
            }
            (marker @ (BEGIN | END), _) => return Err(format!("line {number}: {marker} without its counterpart")),
            (trimmed, Some(_)) => {
                if let Some(kept) = trimmed.strip_prefix(LEARNERS) {
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
    }

    #[test]
    fn keeps_files_without_markers() {
        assert_eq!(skeleton("//! Words.\n").unwrap(), "//! Words.\n");
    }

    #[test]
    fn rejects_unpaired_markers_and_answers_without_lines_for_the_learner() {
        for text in [
            "// <answer>\n//~ x\n",
            "// </answer>\n",
            "// <answer>\n//~ x\n// <answer>\n",
            "// <answer>\n1\n// </answer>\n",
        ] {
            assert!(skeleton(text).is_err(), "{text}");
        }
    }
}

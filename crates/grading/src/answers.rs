//! The answers to a task that the course keeps in addition to its own: wrong ones, and unusual right ones.
//!
//! They are the public functions of one file, which this module reads as text: the grader and the macro of `lockstep-answers`, which
//! compiles this file as well, must list the same. The comment of a right one begins with "Right:". In Python they are all functions of
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
            // An item's comments and attributes stand directly above it.
            is_right = line.starts_with(mark) || is_right && line.starts_with(['/', '#', '@', ' ', ')']);
        }
        answers
    }

    /// All names, of wrong answers first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.wrong.iter().chain(&self.right).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_right_answers_from_wrong_ones_by_their_comments() {
        let answers = Answers::read(
            "//! Answers to `shard`.\n\n/// Right: skips.\n/// In turns.\n#[rustfmt::skip]\npub fn skips<T>(n: T) {\n}\n\n\
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
}

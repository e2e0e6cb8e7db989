//! Generates the learner's files from the course's answers.
//!
//! In an answer's file, `// <answer>` and `// </answer>` enclose the part that the learner writes. Lines in it that begin with
//! `//~` go into the learner's file; all other lines are the answer.
//!
//! ```text
//! pub fn twice(n: i64) -> i64 {          pub fn twice(n: i64) -> i64 {
//!     // <answer>                  →         // Twice as much.
//!     //~ // Twice as much.                  todo!("twice as much")
//!     //~ todo!("twice as much")         }
//!     2 * n
//!     // </answer>
//! }
//! ```

use anyhow::{bail, ensure};

const BEGIN: &str = "// <answer>";
const END: &str = "// </answer>";
const LEARNERS: &str = "//~";

/// Converts an answer's text to the learner's text.
///
/// # Errors
/// When markers do not pair, or when a marked part has no line for the learner.
pub fn skeleton(answer: &str) -> anyhow::Result<String> {
    let (mut text, mut inside, mut instead) = (String::new(), None, 0);
    for (number, line) in (1..).zip(answer.lines()) {
        match (line.trim(), inside) {
            (BEGIN, None) => (inside, instead) = (Some(number), 0),
            (END, Some(begin)) => {
                ensure!(instead > 0, "the answer that begins in line {begin} has no line that begins with {LEARNERS}");
                inside = None;
            }
            (marker @ (BEGIN | END), _) => bail!("line {number}: {marker} without its counterpart"),
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
        Some(begin) => bail!("the answer that begins in line {begin} has no end"),
        None => Ok(text),
    }
}

/// The answer without the lines for the learner.
pub fn answer(text: &str) -> String {
    let own = |line: &&str| {
        let line = line.trim();
        line != BEGIN && line != END && !line.starts_with(LEARNERS)
    };
    text.lines().filter(own).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWICE: &str = "fn twice(n: i64) -> i64 {\n    // <answer>\n    //~ // Twice.\n    //~ if true {\n    //~     todo!(\"twice\")\n    //~ }\n    2 * n\n    // </answer>\n}\n";

    #[test]
    fn replaces_the_answer_by_the_lines_for_the_learner() {
        let left = "fn twice(n: i64) -> i64 {\n    // Twice.\n    if true {\n        todo!(\"twice\")\n    }\n}\n";
        assert_eq!(skeleton(TWICE).unwrap(), left);
        assert_eq!(answer(TWICE), "fn twice(n: i64) -> i64 {\n    2 * n\n}\n");
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

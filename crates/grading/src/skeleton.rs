//! The learner's files, made of the course's answers.
//!
//! In an answer's file the part that is the learner's to write stands between `// <answer>` and `// </answer>`. Lines in it that
//! begin with `//~` are what the learner finds there instead; the others are the answer.
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
const INSTEAD: &str = "//~";

/// The learner's text for an answer's.
///
/// # Errors
/// When marks do not pair, or a marked part leaves the learner nothing.
pub fn skeleton(answer: &str) -> anyhow::Result<String> {
    let (mut text, mut inside, mut instead) = (String::new(), None, 0);
    for (number, line) in (1..).zip(answer.lines()) {
        match (line.trim(), inside) {
            (BEGIN, None) => (inside, instead) = (Some(number), 0),
            (END, Some(begin)) => {
                ensure!(instead > 0, "the answer that begins in line {begin} has no line that begins with {INSTEAD}");
                inside = None;
            }
            (mark @ (BEGIN | END), _) => bail!("line {number}: {mark} without its other half"),
            (trimmed, Some(_)) => {
                if let Some(kept) = trimmed.strip_prefix(INSTEAD) {
                    let indent = &line[..line.len() - line.trim_start().len()];
                    // One space behind the mark is its own; further ones are indentation.
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

/// The answer alone, without what the learner finds instead.
pub fn answer(text: &str) -> String {
    let own = |line: &&str| {
        let line = line.trim();
        line != BEGIN && line != END && !line.starts_with(INSTEAD)
    };
    text.lines().filter(own).flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWICE: &str = "fn twice(n: i64) -> i64 {\n    // <answer>\n    //~ // Twice.\n    //~ if true {\n    //~     todo!(\"twice\")\n    //~ }\n    2 * n\n    // </answer>\n}\n";

    #[test]
    fn leaves_the_learner_what_is_meant_for_him() {
        let left = "fn twice(n: i64) -> i64 {\n    // Twice.\n    if true {\n        todo!(\"twice\")\n    }\n}\n";
        assert_eq!(skeleton(TWICE).unwrap(), left);
        assert_eq!(answer(TWICE), "fn twice(n: i64) -> i64 {\n    2 * n\n}\n");
    }

    #[test]
    fn keeps_files_without_a_mark() {
        assert_eq!(skeleton("//! Words.\n").unwrap(), "//! Words.\n");
    }

    #[test]
    fn refuses_marks_that_do_not_pair_and_answers_with_nothing_instead() {
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

//! Prepares foreign texts of several lines for the report: limits their size and escapes control characters.

use lockstep_contract::foreign::lines;

/// Longer texts lose their middle; in bytes. The start of a Python traceback shows where it happened, the end what
/// happened.
const LONGEST: usize = 16 * 1024;
/// The part at the start that is kept.
const HEAD: usize = 4 * 1024;

/// Removes the middle of `text` if it is huge, and escapes control characters except for newlines and tabs.
pub(super) fn fit(text: &str) -> String {
    let text = text.trim_end();
    if text.len() <= LONGEST {
        return lines(text);
    }
    let head = &text[..text.floor_char_boundary(HEAD)];
    let tail = &text[text.ceil_char_boundary(text.len() - (LONGEST - HEAD))..];
    let cut = text.len() - head.len() - tail.len();
    format!("{}\n… ({cut} bytes left out) …\n{}", lines(head), lines(tail))
}

/// Indents all lines except for the first by two spaces, as in torch's report.
pub(super) fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_beginning_and_the_end_of_a_huge_text() {
        let huge = format!("first\n{}\nlast", "é".repeat(100_000));
        let fitted = fit(&huge);
        assert!(fitted.starts_with("first\né") && fitted.ends_with("é\nlast"), "{}", &fitted[..40]);
        assert!(fitted.len() < LONGEST + 100, "{}", fitted.len());
        assert!(fitted.contains(" bytes left out) …"));
        assert_eq!(fit("short\n\n"), "short");
    }

    #[test]
    fn escapes_terminal_control_sequences() {
        assert_eq!(fit("a\x1b[31mb\0\tc\r\nd\u{9b}e"), "a\\u{1b}[31mb\\u{0}\tc\nd\\u{9b}e");
    }
}

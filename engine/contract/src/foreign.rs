//! Text that others wrote, within lines of our own: command lines, names, files' names, messages of libraries, error files.
//!
//! Such text may have several lines where one is expected, and characters that control a terminal. Code that prints it
//! passes it through one of these functions first. None of them changes a text that it has returned before.

use std::path::Path;

/// The longest quotation, in characters.
const QUOTATION: usize = 240;
/// The longest line, in characters.
const LINE: usize = 2000;

/// A quotation in a message of this program: the first 240 characters of `text`, in one line.
pub fn quotation(text: &str) -> String {
    shortened(text, QUOTATION)
}

/// A reason or a cause in one line: the first 2000 characters of `text`.
pub fn one_line(text: &str) -> String {
    shortened(text, LINE)
}

/// A line that we composed of other texts, as one line, not truncated.
pub fn escaped(text: &str) -> String {
    escape(text, |_| false)
}

/// A text that may have several lines, not truncated.
pub fn lines(text: &str) -> String {
    escape(&text.replace("\r\n", "\n"), |c| matches!(c, '\n' | '\t'))
}

/// A file's name, not truncated.
pub fn path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

fn shortened(text: &str, longest: usize) -> String {
    let mut text = escaped(text.trim());
    // The mark of an earlier cut does not count.
    if let Some((at, _)) = text.char_indices().nth(longest).filter(|(at, _)| text[*at..] != *"…") {
        text.truncate(at);
        text.push('…');
    }
    text
}

fn escape(text: &str, kept: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if kept(c) => out.push(c),
            '\t' => out.push(' '),
            c if c.is_control() || acts(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Characters that end a line in some programs, or change the direction of the text.
fn acts(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_one_line_of_several_and_lets_no_character_act() {
        let hostile = " a\nb\r\n\x1b[31mc\td\u{9b}\u{202e}é\u{2028}f\n";
        let expected = r"a\nb\r\n\u{1b}[31mc d\u{9b}\u{202e}é\u{2028}f";
        assert_eq!([quotation(hostile), one_line(hostile), escaped(hostile.trim())], [expected; 3]);
        assert_eq!(lines("a\r\nb\tc\rd\x1b"), "a\nb\tc\\rd\\u{1b}");
        assert_eq!(path(Path::new("/data/a\nb")), r"/data/a\nb");
    }

    #[test]
    fn shortens_at_a_character_and_only_once() {
        let long = "é\n".repeat(LINE);
        for (short, longest) in [(quotation(&long), QUOTATION), (one_line(&long), LINE)] {
            assert_eq!(short.chars().count(), longest + 1);
            assert!(short.ends_with('…'), "{short}");
        }
        let whole = "x".repeat(QUOTATION);
        assert_eq!(quotation(&whole), whole);
        for make in [quotation, one_line, escaped, lines] {
            assert_eq!(make(&make(&long)), make(&long));
        }
    }
}

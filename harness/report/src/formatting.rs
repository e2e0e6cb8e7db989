//! The format of times, counts and foreign text, the same in all forms of a report; and text broken into lines.

use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
pub use lockstep_contract::counted as count;
use lockstep_contract::foreign;
use lockstep_launch::command::quoted;
use quick_junit::XmlString;

/// Lines below a heading are indented by this.
pub(crate) const INDENT: &str = "  ";
/// A longer word may be broken.
pub const LONGEST: usize = 24;

/// `0.8 ms`, `350 ms`, `9.3 s`, `4 min 10 s`, `2 h 05 min`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.0095 => format!("{:.1} ms", s.max(0.0) * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 59.95 => format!("{s:.1} s"),
        s if s < 3599.5 => format!("{:.0} min {:02.0} s", (s.round() / 60.0).floor(), s.round() % 60.0),
        s => format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

/// `seconds`, or a dash for something that never happened.
pub fn maybe(time: Option<f64>) -> String {
    time.map_or_else(|| "–".into(), seconds)
}

/// An integer with thousands separators: `105,866`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 rank`, `2 ranks`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count as u64), if count == 1 { "" } else { "s" })
}

/// `2026-02-03 04:05:06 UTC`.
pub fn instant(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// RFC 3339, in UTC, with milliseconds.
pub fn rfc3339(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Removes colours and control characters except newlines: a program's output must not affect the reader's terminal.
pub fn plain(text: &str) -> String {
    // The library removes tabs as control characters.
    let text = XmlString::new(text.replace('\t', "    ")).into_string();
    text.chars().filter(|c| *c == '\n' || !(c.is_control() || acts(*c))).collect()
}

/// The same as one line, whatever the text has in it.
pub(crate) fn plain_line(text: &str) -> String {
    foreign::escaped(&plain(text))
}

/// Characters that XML does not allow, or that change the text's direction.
fn acts(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// This process's command line, quoted for a shell where necessary.
pub fn command_line() -> String {
    let words = std::env::args_os().enumerate().map(|(index, word)| {
        let word = if index == 0 { Path::new(&word).file_name().unwrap_or(&word) } else { &word };
        quoted(&word.to_string_lossy())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Names, each with its description next to it, or below it if there is too little room; broken at spaces where a width is given.
pub fn listing(entries: &[(&str, &str)], width: Option<u16>) -> String {
    let names = entries.iter().map(|(name, _)| length(name)).max().unwrap_or(0);
    let width = width.map_or(usize::MAX, usize::from);
    let beside = width.saturating_sub(names + INDENT.len());
    let entry = |(name, what): &(&str, &str)| match beside {
        LONGEST.. => {
            let lines = wrapped(what, u16::try_from(beside).unwrap_or(u16::MAX));
            format!("{name:names$}{INDENT}{}", lines.replace('\n', &format!("\n{:names$}{INDENT}", "")))
        }
        _ => {
            let lines = wrapped(what, u16::try_from(width.saturating_sub(INDENT.len())).unwrap_or(u16::MAX));
            format!("{name}\n{INDENT}{}", lines.replace('\n', &format!("\n{INDENT}")))
        }
    };
    entries.iter().map(entry).collect::<Vec<_>>().join("\n")
}

/// Breaks a text at spaces into lines of at most `width` characters; a longer word has a line of its own.
pub fn wrapped(text: &str, width: u16) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| length(line) + 1 + length(word) <= usize::from(width)) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

pub fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn writes_durations_in_the_unit_that_fits() {
        let written = [-1.0, 0.0008, 0.0099, 0.35, 0.9999, 9.31, 59.99, 119.7, 250.0, 7500.0].map(seconds);
        let expected = [
            "0.0 ms",
            "0.8 ms",
            "10 ms",
            "350 ms",
            "1.0 s",
            "9.3 s",
            "1 min 00 s",
            "2 min 00 s",
            "4 min 10 s",
            "2 h 05 min",
        ];
        assert_eq!(written, expected);
        assert_eq!(maybe(None), "–");
    }

    #[test]
    fn writes_instants_in_utc() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_091_506_250);
        assert_eq!(instant(time), "2026-02-03 04:05:06 UTC");
        assert_eq!(rfc3339(time), "2026-02-03T04:05:06.250Z");
    }

    #[test]
    fn takes_colours_and_control_characters_away() {
        assert_eq!(plain("\x1b[31mred\x1b[0m\0 and\tblue\r\n\x07end\u{9b}\u{202e}\u{fffe}é"), "red and    blue\nendé");
    }

    #[test]
    fn writes_numbers_with_commas() {
        let texts = [0, 999, 1000, 105_866, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "105,866", "1,234,567"]);
    }

    #[test]
    fn wraps_at_spaces() {
        assert_eq!(wrapped("one two three", 8), "one two\nthree");
        assert_eq!(wrapped("a-long-word b", 4), "a-long-word\nb");
        assert_eq!(wrapped("", 4), "");
    }
}

//! The output for people, on stdout, or on stderr when stdout is reserved for a program; the style of tables there; and the format of
//! times, counts and foreign text, which all forms of a report share.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::presets::{ASCII_HORIZONTAL_ONLY, UTF8_HORIZONTAL_ONLY};
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, TableStyle};
use lockstep_contract::foreign;
use lockstep_launch::command::quoted;
use quick_junit::XmlString;

use crate::report::fit::listing;
use crate::report::model::{Case, Report, Verdict};
use crate::report::recovery::Recovery;

/// Widths of text, in columns: without a terminal, and the minimum and maximum on one.
const WIDTH: (u16, u16, u16) = (88, 60, 100);

/// A destination for lines and tables that people read.
pub(crate) struct Screen {
    /// Stdout is reserved for a program.
    stdout_is_taken: bool,
    is_terminal: bool,
    look: Look,
}

/// The capabilities of this destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// In columns.
    pub(crate) width: u16,
    /// Whether to use colours.
    pub(crate) coloured: bool,
    /// Whether characters beyond ASCII are displayed correctly.
    pub(crate) unicode: bool,
}

impl Screen {
    /// Stderr if `stdout_is_taken`. Coloured on a terminal, unless `NO_COLOR` is set (no-color.org).
    pub(crate) fn new(stdout_is_taken: bool) -> Self {
        let terminal = if stdout_is_taken { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let (plain, least, most) = WIDTH;
        let mut table = Table::new();
        if stdout_is_taken {
            table.use_stderr();
        }
        let look = Look {
            // A terminal that mpirun makes has no size.
            width: table.width().filter(|width| *width > 0).map_or(plain, |width| width.clamp(least, most)),
            coloured: terminal && !refuses_colour(std::env::var_os("NO_COLOR")),
            unicode: speaks_unicode(["LC_ALL", "LC_CTYPE", "LANG"].map(std::env::var_os)),
        };
        Screen { stdout_is_taken, is_terminal: terminal, look }
    }

    /// The capabilities of this destination.
    pub(crate) fn look(&self) -> Look {
        self.look
    }

    /// Prints names, each with what it is. A program that reads them finds each on one line.
    pub(crate) fn listing(&self, entries: &[(&str, &str)]) {
        self.line(listing(entries, self.is_terminal.then_some(self.look.width)));
    }

    /// Prints a line. A reader that exits early must not stop the command, so errors are ignored.
    pub(crate) fn line(&self, text: impl std::fmt::Display) {
        let _ = if self.stdout_is_taken { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
    }
}

impl Look {
    /// The style of a text file.
    pub(crate) const FILE: Look = Look { width: WIDTH.2, coloured: false, unicode: true };

    /// The style of tables.
    pub(crate) fn style(self) -> TableStyle {
        if self.unicode { UTF8_HORIZONTAL_ONLY } else { ASCII_HORIZONTAL_ONLY }
    }

    /// An empty table that fits the width.
    pub(crate) fn table(self, headings: &[&str]) -> Table {
        let mut table = Table::new();
        table
            .load_style(self.style())
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(self.width)
            .set_header(headings);
        // The colours below are applied only where requested.
        if self.coloured {
            table.enforce_styling()
        } else {
            table.force_no_tty()
        };
        table
    }

    /// A verdict's word, coloured if requested.
    pub(crate) fn verdict(self, verdict: Verdict) -> Cell {
        let cell = Cell::new(verdict);
        if !self.coloured {
            return cell;
        }
        match verdict {
            Verdict::Passed => cell.fg(Color::Green),
            Verdict::Failed => cell.fg(Color::Red).add_attribute(Attribute::Bold),
            Verdict::NotVerified => cell.fg(Color::Yellow),
        }
    }
}

/// no-color.org: any value except an empty one.
fn refuses_colour(no_color: Option<OsString>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

/// Decided by the first variable that is set, in the order of locale(7). If none is, as in most containers, UTF-8 is assumed.
fn speaks_unicode(locale: [Option<OsString>; 3]) -> bool {
    let chosen = locale.into_iter().flatten().find(|value| !value.is_empty());
    chosen.is_none_or(|value| {
        let value = value.to_string_lossy().to_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// `0.8 ms`, `350 ms`, `9.3 s`, `4 min 10 s`, `2 h 05 min`.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.0095 => format!("{:.1} ms", s.max(0.0) * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 59.95 => format!("{s:.1} s"),
        s if s < 3599.5 => format!("{:.0} min {:02.0} s", (s.round() / 60.0).floor(), s.round() % 60.0),
        s => format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

/// `seconds`, or a dash for something that never happened.
pub(crate) fn maybe(time: Option<f64>) -> String {
    time.map_or_else(|| "–".into(), seconds)
}

/// An integer with thousands separators: `105,866`.
pub(crate) fn grouped(number: u64) -> String {
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
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count as u64), if count == 1 { "" } else { "s" })
}

/// `1 rank`, `8 ranks`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `2026-02-03 04:05:06 UTC`.
pub(crate) fn instant(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// RFC 3339, in UTC, with milliseconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Removes colours and control characters except newlines: a program's output must not affect the reader's terminal.
pub(crate) fn plain(text: &str) -> String {
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
pub(crate) fn command_line() -> String {
    let words = std::env::args_os().enumerate().map(|(index, word)| {
        let word = if index == 0 { Path::new(&word).file_name().unwrap_or(&word) } else { &word };
        quoted(&word.to_string_lossy())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The number of each verdict: `4 passed, 1 FAILED`; verdicts that do not occur are left out.
pub(crate) fn counts(verdicts: &[Verdict]) -> String {
    let count = |verdict: &Verdict| verdicts.iter().filter(|other| *other == verdict).count();
    let occurring = Verdict::ALL.iter().map(|verdict| (count(verdict), verdict)).filter(|(count, _)| *count > 0);
    occurring.map(|(count, verdict)| format!("{count} {verdict}")).collect::<Vec<_>>().join(", ")
}

/// `2 passed, 1 FAILED in 14.9 s`: of the cases, or of the claims of the only case.
pub(crate) fn summary(report: &Report) -> String {
    let verdicts: Vec<_> = match report.cases.as_slice() {
        [one] => one.findings.iter().map(|finding| finding.verdict).collect(),
        cases => cases.iter().map(Case::verdict).collect(),
    };
    let text = if verdicts.is_empty() { "nothing was tried".into() } else { counts(&verdicts) };
    format!("{text} in {}", seconds(report.took.as_secs_f64()))
}

/// The number of failures of ranks and nodes in a case; a dash if they were not counted.
pub(crate) fn failures(case: &Case) -> String {
    case.timeline.as_ref().map_or_else(|| "–".into(), |timeline| timeline.recoveries.len().to_string())
}

/// The headings and rows of a table of [`Recovery`] values.
pub(crate) fn costs(recoveries: &[Recovery]) -> ([&'static str; 6], Vec<[String; 6]>) {
    let headings = ["at", "what failed", "steps lost", "known after", "restarted after", "training after"];
    let row = |recovery: &Recovery| {
        [
            seconds(recovery.at),
            plain_line(&recovery.cause),
            recovery.steps_lost.map_or_else(|| "–".into(), |steps| steps.to_string()),
            maybe(recovery.time_to_detect),
            maybe(recovery.time_to_restart),
            maybe(recovery.time_to_next_step),
        ]
    };
    (headings, recoveries.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn heeds_no_color_with_any_value() {
        assert_eq!(
            [None, Some(""), Some("0")].map(|value| refuses_colour(value.map(Into::into))),
            [false, false, true]
        );
    }

    #[test]
    fn writes_ascii_where_the_locale_asks_for_it() {
        let speaks = |values: [&str; 3]| speaks_unicode(values.map(|value| Some(value.into())));
        assert!(speaks(["", "", ""]) && speaks_unicode([None, None, None]));
        assert!(speaks(["de_DE.UTF-8", "C", "C"]) && speaks(["", "C.utf8", ""]) && !speaks(["C", "", "de_DE.UTF-8"]));
        assert!(!speaks(["", "", "POSIX"]));
    }

    #[test]
    fn colours_the_word_and_keeps_it() {
        let shown = |coloured| {
            let look = Look { coloured, ..Look::FILE };
            let mut table = look.table(&["verdict"]);
            table.add_row([look.verdict(Verdict::Failed)]);
            table.to_string()
        };
        assert!(shown(false).contains(" FAILED ") && !shown(false).contains('\x1b'));
        assert!(shown(true).contains("FAILED") && shown(true).contains("\x1b["));
    }

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
    fn counts_only_the_verdicts_that_occur() {
        use Verdict::{Failed, NotVerified, Passed};
        assert_eq!(counts(&[Passed, Failed, Passed]), "2 passed, 1 FAILED");
        assert_eq!(counts(&[NotVerified]), "1 not verified here");
        assert_eq!(counts(&[]), "");
    }

    #[test]
    fn writes_numbers_with_commas() {
        let texts = [0, 999, 1000, 105_866, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "105,866", "1,234,567"]);
    }
}

//! The output for people, on stdout, or on stderr when stdout is reserved for a program; the style of tables there; and lines that several
//! forms of a report share.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use comfy_table::presets::{ASCII_HORIZONTAL_ONLY, UTF8_HORIZONTAL_ONLY};
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, TableStyle};
use lockstep_contract::columns;

use crate::formatting::{listing, maybe, plain_line, seconds};
use crate::model::{Report, ReportCase, Verdict};
use crate::recovery::Recovery;

/// Widths of text, in columns: without a terminal and without COLUMNS, and the minimum and maximum on a terminal.
const WIDTH: (u16, u16, u16) = (88, 60, 100);

/// A destination for lines and tables that people read.
pub struct Screen {
    /// Stdout is reserved for a program.
    stdout_is_taken: bool,
    is_terminal: bool,
    style: TextStyle,
}

/// The capabilities of this destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    /// In columns.
    pub width: u16,
    /// Whether to use colours.
    pub coloured: bool,
    /// Whether characters beyond ASCII are displayed correctly.
    pub unicode: bool,
}

impl Screen {
    /// Stderr if `stdout_is_taken`. Coloured on a terminal, unless `NO_COLOR` is set (no-color.org).
    pub fn new(stdout_is_taken: bool) -> Self {
        let terminal = if stdout_is_taken { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let (plain, least, most) = WIDTH;
        let mut table = Table::new();
        if stdout_is_taken {
            table.use_stderr();
        }
        let style = TextStyle {
            width: columns(table.width().map(usize::from), plain.into(), (least.into(), most.into())) as u16,
            coloured: terminal && !refuses_colour(std::env::var_os("NO_COLOR")),
            unicode: speaks_unicode(["LC_ALL", "LC_CTYPE", "LANG"].map(std::env::var_os)),
        };
        Screen { stdout_is_taken, is_terminal: terminal, style }
    }

    /// The capabilities of this destination.
    pub fn style(&self) -> TextStyle {
        self.style
    }

    /// Prints names with their descriptions. For a program that reads them, each is on one line.
    pub fn listing(&self, entries: &[(&str, &str)]) {
        if !entries.is_empty() {
            self.line(listing(entries, self.is_terminal.then_some(self.style.width)));
        }
    }

    /// Prints a line. A reader that exits early must not stop the command, so errors are ignored.
    pub fn line(&self, text: impl std::fmt::Display) {
        let _ = if self.stdout_is_taken { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
    }
}

impl TextStyle {
    pub const FILE: TextStyle = TextStyle { width: WIDTH.2, coloured: false, unicode: true };

    /// The style of tables.
    pub fn table_style(self) -> TableStyle {
        if self.unicode { UTF8_HORIZONTAL_ONLY } else { ASCII_HORIZONTAL_ONLY }
    }

    /// An empty table that fits the width.
    pub fn table(self, headings: &[&str]) -> Table {
        let mut table = Table::new();
        table
            .load_style(self.table_style())
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
    pub fn verdict(self, verdict: Verdict) -> Cell {
        let cell = Cell::new(verdict);
        if !self.coloured {
            return cell;
        }
        match verdict {
            Verdict::Passed => cell.fg(Color::Green),
            Verdict::Failed => cell.fg(Color::Red).add_attribute(Attribute::Bold),
            Verdict::NotVerified => cell.fg(Color::Yellow),
            Verdict::Open => cell,
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

/// The number of each verdict: `4 passed, 1 FAILED`; verdicts that do not occur are left out.
pub fn counts(verdicts: &[Verdict]) -> String {
    let count = |verdict: &Verdict| verdicts.iter().filter(|other| *other == verdict).count();
    let occurring = Verdict::ALL.iter().map(|verdict| (count(verdict), verdict)).filter(|(count, _)| *count > 0);
    occurring.map(|(count, verdict)| format!("{count} {verdict}")).collect::<Vec<_>>().join(", ")
}

/// `2 passed, 1 FAILED in 14.9 s`: of the cases, or of the claims of the only case.
pub fn summary(report: &Report) -> String {
    let verdicts: Vec<_> = match report.cases.as_slice() {
        [one] => one.findings.iter().map(|finding| finding.verdict).collect(),
        cases => cases.iter().map(ReportCase::verdict).collect(),
    };
    let text = if verdicts.is_empty() { "nothing was tried".into() } else { counts(&verdicts) };
    format!("{text} in {}", seconds(report.took.as_secs_f64()))
}

/// The number of failures of ranks and nodes in a case; a dash if they were not counted.
pub fn failures(case: &ReportCase) -> String {
    case.timeline.as_ref().map_or_else(|| "–".into(), |timeline| timeline.recoveries.len().to_string())
}

/// The headings and rows of a table of [`Recovery`] values.
pub fn costs(recoveries: &[Recovery]) -> ([&'static str; 6], Vec<[String; 6]>) {
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
            let style = TextStyle { coloured, ..TextStyle::FILE };
            let mut table = style.table(&["verdict"]);
            table.add_row([style.verdict(Verdict::Failed)]);
            table.to_string()
        };
        assert!(shown(false).contains(" FAILED ") && !shown(false).contains('\x1b'));
        assert!(shown(true).contains("FAILED") && shown(true).contains("\x1b["));
    }

    #[test]
    fn counts_only_the_verdicts_that_occur() {
        use Verdict::{Failed, NotVerified, Passed};
        assert_eq!(counts(&[Passed, Failed, Passed]), "2 passed, 1 FAILED");
        assert_eq!(counts(&[NotVerified]), "1 not verified here");
        assert_eq!(counts(&[]), "");
    }
}

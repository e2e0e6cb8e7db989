//! Where prose goes: stdout, or stderr when stdout is kept for a program.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::Stdio;

use anyhow::Context;
use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};

use crate::proofs::Verdict;

/// Widths of a table, in columns: without a terminal, and the least and most on one.
const WIDTH: (u16, u16, u16) = (88, 60, 100);

/// A place for lines and tables that people read.
pub(crate) struct Screen {
    /// Stdout is a program's.
    stdout_is_taken: bool,
    coloured: bool,
}

impl Screen {
    /// Stderr if `stdout_is_taken`. Coloured on a terminal, unless `NO_COLOR` is set (no-color.org).
    pub(crate) fn new(stdout_is_taken: bool) -> Self {
        let terminal = if stdout_is_taken { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        Screen { stdout_is_taken, coloured: terminal && !refuses_colour(std::env::var_os("NO_COLOR")) }
    }

    /// Whether stdout is kept for a program.
    pub(crate) fn stdout_is_taken(&self) -> bool {
        self.stdout_is_taken
    }

    /// Prints a line. A reader that went away must not stop the tour, so errors are not looked at.
    pub(crate) fn line(&self, text: impl std::fmt::Display) {
        let _ = if self.stdout_is_taken { writeln!(io::stderr(), "{text}") } else { writeln!(io::stdout(), "{text}") };
    }

    /// The same place for the stdout of a program that is started.
    pub(crate) fn for_child(&self) -> anyhow::Result<Stdio> {
        if !self.stdout_is_taken {
            return Ok(Stdio::inherit());
        }
        let stderr = io::stderr().as_fd().try_clone_to_owned().context("cannot pass stderr on")?;
        Ok(stderr.into())
    }

    /// An empty table that fits.
    pub(crate) fn table(&self, headings: &[&str]) -> Table {
        let mut table = Table::new();
        if self.stdout_is_taken {
            table.use_stderr();
        }
        let (plain, least, most) = WIDTH;
        let width = table.width().map_or(plain, |width| width.clamp(least, most));
        table
            .load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY)
            .set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width).set_header(headings);
        // The colours below are asked for only where they are wanted.
        if self.coloured {
            table.enforce_styling()
        } else {
            table.force_no_tty()
        };
        table
    }

    /// A verdict's word, coloured where that is wanted.
    pub(crate) fn verdict(&self, verdict: Verdict) -> Cell {
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

/// no-color.org: any value but none and the empty one.
fn refuses_colour(no_color: Option<OsString>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
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
    fn colours_the_word_and_keeps_it() {
        let shown = |coloured| {
            let screen = Screen { stdout_is_taken: false, coloured };
            let mut table = screen.table(&["verdict"]);
            table.add_row([screen.verdict(Verdict::Failed)]);
            table.to_string()
        };
        assert!(shown(false).contains(" FAILED ") && !shown(false).contains('\x1b'));
        assert!(shown(true).contains("FAILED") && shown(true).contains("\x1b["));
    }
}

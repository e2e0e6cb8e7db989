//! The reports of the commands: one value, written as a table, CSV, JSON, JUnit XML or one HTML page.
//!
//! - [`Report`] and its [`ReportCase`]s: what ran, on which [`HostInfo`], and what it showed.
//! - [`Finding`]: a claim with its verdict.
//! - [`History`]: what every rank did, from the event files; [`Timeline`]: the same, to be drawn; [`Recovery`]: what each failure cost.
//!
//! The commands decide what is claimed, and from which evidence.

mod fit;
pub(crate) mod formats;
pub(crate) mod formatting;
pub(crate) mod history;
pub(crate) mod html;
mod model;
pub(crate) mod picture;
pub(crate) mod recovery;
pub(crate) mod screen;
mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod timeline;
mod timeline_events;
mod write;

pub(crate) use fit::{numbers as numbers_table, whole_words};
pub(crate) use formatting::{command_line, count, counted, grouped, listing, rfc3339, wrapped};
pub(crate) use model::{Finding, HostInfo, Report, ReportCase, Table, Unproven, Verdict, overall};
pub(crate) use screen::{Screen, Stdout, TextStyle, counts};
pub(crate) use table::{draw as picture, findings as findings_table};
pub(crate) use timeline::Timeline;
pub(crate) use write::{Form, Format, Target, save};

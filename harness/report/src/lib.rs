//! The reports of the commands: one value, written as a table, CSV, JSON, JUnit XML or one HTML page.
//!
//! - [`Report`] and its [`ReportCase`]s: what ran, on which [`HostInfo`], and what it showed.
//! - [`Finding`]: a claim with its verdict.
//! - [`History`]: what every rank did, from the event files; [`Timeline`]: the same, to be drawn; [`Recovery`]: what each failure cost.
//!
//! The commands decide what is claimed, and from which evidence. [`testing`] makes up runs for their tests.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `Screen` prints

mod fit;
pub mod formats;
pub mod formatting;
pub mod history;
pub mod html;
mod model;
pub mod picture;
pub mod recovery;
pub mod screen;
mod table;
pub mod testing;
pub mod timeline;
mod timeline_events;
mod write;

pub use fit::{numbers as numbers_table, whole_words};
pub use formatting::{command_line, count, counted, grouped, listing, rfc3339, wrapped};
pub use lockstep_contract::Stdout;
pub use model::{Finding, HostInfo, Report, ReportCase, Table, Unproven, Verdict, overall};
pub use screen::{Screen, TextStyle, counts};
pub use table::{draw as picture, findings as findings_table};
pub use timeline::Timeline;
pub use write::{Form, Target, save};

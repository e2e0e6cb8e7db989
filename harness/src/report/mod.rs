//! The reports of the commands: one value, written as a table, CSV, JSON, JUnit XML or one HTML page.
//!
//! - [`Report`] and its [`Case`]s: what ran, on which [`HostInfo`], and what it showed.
//! - [`Finding`]: a claim with its verdict.
//! - [`Timeline`]: the history of every rank, from the event files.
//!
//! The commands decide what is claimed, and from which evidence.

mod ascii_timeline;
mod csv;
mod finding;
mod fit;
mod formatting;
mod host_info;
pub(crate) mod html;
mod json;
mod junit;
mod level;
mod model;
mod screen;
mod table;
#[cfg(test)]
mod testing;
mod timeline;
mod write;

pub(crate) use ascii_timeline::draw as picture;
pub(crate) use finding::{Doubt, Finding, Verdict, overall};
pub(crate) use fit::{listing, numbers as numbers_table, whole_words, wrapped};
pub(crate) use formatting::{command_line, count, counts, rfc3339};
pub(crate) use host_info::HostInfo;
pub(crate) use level::Level;
pub(crate) use model::{Case, Report, Table};
pub(crate) use screen::{Look, Screen};
pub(crate) use table::findings as findings_table;
pub(crate) use timeline::Timeline;
pub(crate) use write::{Format, Target, save};

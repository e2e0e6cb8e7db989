//! Runs jobs with or without faults, collects what they leave, and compares that with what is expected.
//!
//! - [`scenario`]: the file format; [`library`]: the scenarios that come with the command.
//! - [`job_run`]: one run with its faults; [`suite_runner`]: a series of them, each compared with an undisturbed run.
//! - [`expectations`]: whether what was seen of a run is what was expected. Pure.
//! - [`case`] and [`report()`]: a run as a case of a report, and the report as a whole.

mod case;
pub(crate) mod expectations;
pub(crate) mod job_run;
pub(crate) mod library;
mod report;
pub(crate) mod scenario;
mod suite_runner;

pub(crate) use case::{case, figures};
pub(crate) use job_run::{Launcher, Observed};
pub(crate) use report::{finish, job_runner, report};
pub(crate) use suite_runner::{Played, SuiteRunner};

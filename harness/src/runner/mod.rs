//! Runs jobs with or without faults, collects their files, and compares them with the expectations.
//!
//! - [`scenario`]: the file format; [`library`]: the built-in scenarios.
//! - [`job_run`]: one run with its faults; [`suite_runner`]: a series of them, each compared with an undisturbed run.
//! - [`expectations`]: whether the observations of a run meet its expectations. Pure.
//! - [`case`] and [`report()`]: a run as a case of a report, and the report as a whole.

mod case;
mod command;
pub(crate) mod expectations;
pub(crate) mod job_run;
pub(crate) mod library;
mod memory;
pub(crate) mod scenario;
mod suite_runner;

pub(crate) use case::{case, figures};
pub(crate) use command::{SeriesOptions, finish, job_runner, report};
pub(crate) use job_run::{Launcher, Observed};
pub(crate) use suite_runner::{ScenarioOutcome, SuiteRunner};

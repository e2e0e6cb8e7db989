//! One run of a scenario: starts, watches and ends agents, injects faults, and collects what it observes in an
//! [`Observed`].
//!
//! [`expectations`](super::expectations) checks it. [`fault_schedule`] decides when a fault is injected, [`launch`]
//! writes the command lines, [`folder`] has the paths, [`places`] makes networks and disks. No process of a run is left
//! when [`JobRunner::run`] returns, even with an error; [`processes`] and [`ports`] search for leaks.

mod fault_schedule;
mod folder;
mod job_runner;
mod launch;
mod nodes;
mod observed;
mod output;
mod places;
mod processes;

pub(crate) use folder::RunFolder;
pub(crate) use job_runner::{JobRunner, NoRun};
pub(crate) use launch::{LAB, Launcher};
pub(crate) use observed::Observed;

//! Runs labs, with faults or without, and proves what they promise from the files that they leave.
//!
//! - Commands: [`verify`] (the labs' promises, with the runs of [`verify_labs`]), [`inject`] (faults, with [`soak`] and [`soak_nodes`] for
//!   random ones), [`tour`] (one fault, shown in detail; without a checkout of [`python_lab`]), [`same`] (two files of
//!   weights).
//! - What to run: [`scenario`]s with their [`fault`]s, those of the [`library`], read from files by [`scenario_file`].
//! - One run: the [`job_runner`] starts the agents ([`launch`], [`nodes`]), injects faults when they are due ([`fault_schedule`]), and
//!   searches for what is left ([`processes`]). A run may have a network or a disk of its own ([`isolation`]).
//! - Many runs: a [`suite`] compares each with an undisturbed run ([`expectations`]).
//! - What is proved: [`evidence`] and [`trace`] read a run's files. `check_learning`, `check_same` and `check_values` are pure functions
//!   from them to findings.

mod check_learning;
mod check_same;
mod check_values;
pub(crate) mod evidence;
mod expectations;
mod fault;
mod fault_schedule;
#[cfg(feature = "whole")]
pub(crate) mod inject;
mod isolation;
mod job_runner;
mod launch;
mod library;
mod nodes;
mod processes;
#[cfg(feature = "whole")]
mod python_lab;
#[cfg(feature = "whole")]
pub(crate) mod same;
mod scenario;
mod scenario_file;
#[cfg(feature = "whole")]
mod soak;
#[cfg(feature = "whole")]
mod soak_nodes;
pub(crate) mod suite;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tour;
pub(crate) mod trace;
#[cfg(feature = "whole")]
pub(crate) mod verify;
#[cfg(feature = "whole")]
mod verify_labs;

//! Runs labs, with faults or without, and proves what they promise from the files that they leave.
//!
//! - Commands: [`verify`] (the labs' promises, with the runs of [`verify_labs`]), [`inject`] (faults, with [`soak`], [`soak_nodes`] and
//!   [`soak_elastic`] for random ones), [`tour`] (one fault, shown in detail; without a checkout of [`python_lab`]; [`tour_elastic`]), [`same`] (two files of
//!   weights).
//! - What to run: [`scenario`]s with their [`fault`]s, those of the [`library`], read from files by [`scenario_file`].
//! - One run: the [`job_runner`] starts the agents ([`launch`], [`nodes`]), injects faults when they are due ([`fault_schedule`]), and
//!   searches for what is left ([`processes`]). A run may have a network or a disk of its own ([`isolation`]).
//! - Many runs: a [`suite`] compares each with an undisturbed run ([`expectations`]).
//! - What is proved: [`evidence`] and [`trace`] read a run's files. `check_learning`, `check_same` and `check_values` are pure functions
//!   from them to findings.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints
#![cfg_attr(not(feature = "whole"), allow(dead_code, unused_imports))] // what the tour leaves out uses it

mod check_learning;
mod check_same;
mod check_values;
mod evidence;
mod expectations;
mod fault;
mod fault_schedule;
#[cfg(feature = "whole")]
pub mod inject;
mod isolation;
mod job_runner;
mod launch;
mod library;
mod nodes;
mod processes;
#[cfg(feature = "whole")]
mod python_lab;
#[cfg(feature = "whole")]
pub mod same;
mod scenario;
mod scenario_file;
#[cfg(feature = "whole")]
mod soak;
#[cfg(feature = "whole")]
mod soak_elastic;
#[cfg(feature = "whole")]
mod soak_nodes;
mod suite;
#[cfg(test)]
mod testing;
pub mod tour;
mod tour_elastic;
mod trace;
#[cfg(feature = "whole")]
pub mod verify;
#[cfg(feature = "whole")]
mod verify_labs;

use lockstep_checkout as checkout;
use lockstep_launch::exit;
use lockstep_report as report;

//! `lockstep run`: real agents, real workers, real signals.
//!
//! Workers are shell and Python scripts. Every test has its own folder and loopback addresses, and ends all processes
//! that it started ([`site::Site`]).
//!
//! These tests, those of usage and those of verdicts start the `lockstep` command, so `harness/tests/it/main.rs` compiles them.

mod ends;
mod failures;
mod meeting;
pub(crate) mod nodes;
mod output;
mod programs;
pub(crate) mod site;
mod stops;
pub(crate) mod torch;

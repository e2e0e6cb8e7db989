//! `lockstep run`: real agents, real workers, real signals.
//!
//! Workers are shell and Python scripts. Every test has its own folder and loopback addresses, and ends all processes
//! that it started ([`site::Site`]).

mod elastic;
mod ends;
mod environment;
mod failures;
mod many;
mod meeting;
mod netns;
pub(crate) mod nodes;
mod output;
mod programs;
mod saves;
mod shells;
pub(crate) mod site;
mod stops;
mod strangers;
pub(crate) mod torch;

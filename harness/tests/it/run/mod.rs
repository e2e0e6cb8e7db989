//! `lockstep run`: real agents, real workers, real signals.
//!
//! Workers are shell and Python scripts. Every test has a folder and loopback addresses of its own, and ends all that it
//! started ([`site::Site`]).

mod elastic;
mod ends;
mod environment;
mod failures;
mod many;
mod meeting;
mod netns;
mod nodes;
mod output;
mod programs;
pub(crate) mod site;
mod strangers;
mod torch;

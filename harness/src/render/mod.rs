//! `lockstep render`: writes a batch script for a site, or checks one that somebody wrote.
//!
//! - [`profile`]: what a site is like; [`job`]: what one job wants of it.
//! - [`slurm`], [`pbs`], [`hosts`]: scripts, one module for each way to get nodes. [`agent`] is what they share that do not use srun:
//!   a second script that runs on each node. [`pieces`] is what all share.
//! - [`check`]: the mistakes of scripts that others wrote.

mod agent;
mod check;
mod hosts;
mod job;
mod options;
mod pages;
mod pbs;
mod pieces;
pub(crate) mod profile;
mod slurm;

pub(crate) use options::Options;
pub(crate) use pages::{mistakes_page, profile_page};

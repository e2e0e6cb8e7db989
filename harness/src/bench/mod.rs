//! `lockstep bench`: measures, next to a peer where one is at hand, and compares results.
//!
//! - [`frame`] leads from a plan to results: the machine first, [`rounds`] in turns, files after each round ([`export`]), tables last
//!   ([`shown`]).
//! - [`statistics`] decides what a difference shows; [`machine`] what makes it doubtful. Both are pure.
//! - [`launch`] and [`recovery`] measure launchers, with jobs ([`job`]) of ranks that do nothing ([`rank`]).
//! - [`compare`] reads two files of results.
//!
//! A time alone says little, since machines differ from each other and from minute to minute. So a bench quotes ratios.

mod compare;
mod export;
mod frame;
mod job;
mod launch;
mod machine;
mod page;
mod peer;
mod picture;
mod rank;
mod recovery;
mod results;
mod rounds;
mod shown;
mod statistics;

use clap::{Args, Subcommand};

use crate::exit::Code;

pub(crate) use rank::{RANK, Rank};

/// Measures in turns with a peer, and compares results
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Launch(launch::Options),
    Recovery(recovery::Options),
    Compare(compare::Options),
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Launch(options) => options.exec(),
            Command::Recovery(options) => options.exec(),
            Command::Compare(options) => options.exec(),
        }
    }
}

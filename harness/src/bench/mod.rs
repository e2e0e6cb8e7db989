//! `lockstep bench`: measures, next to a peer where one is at hand, and compares results.
//!
//! - [`frame`] leads from a plan to results: the machine first, [`rounds`] in turns, files after each round ([`export`]), tables last
//!   ([`shown`]).
//! - [`statistics`] decides what a difference shows; [`machine`] what makes it doubtful. Both are pure.
//! - [`launch`] and [`recovery`] measure launchers ([`launcher`]), with jobs ([`job`]) of ranks that do nothing ([`rank`]).
//! - [`store`] measures stores, each a process ([`server`]).
//! - [`collectives`] measures collectives, [`ddp`] training steps, [`parallel`] those of divided models, [`snapshot`] and [`loader`] what
//!   their names say, all in [`ranks`] that link libtorch; [`model`] fits the α–β model.
//! - [`scaling`] measures steps by number of ranks, over the [`nodes`] of a Slurm job too, and [`speed_up`] fits what scales.
//! - [`trace`] shows when each part of a step happened.
//! - [`predict`] measures nothing: it computes a step on a cluster, or each of the [`layouts`] of one.
//! - [`compare`] reads two files of results.
//!
//! A time alone says little, since machines differ from each other and from minute to minute. So a bench quotes ratios.

mod collectives;
mod compare;
mod connection;
mod ddp;
mod drawing;
mod job;
mod launch;
mod launcher;
mod machine;
mod nodes;
mod page;
mod parallel;
mod predict;
mod ranks;
mod results;
mod rounds;
mod scaling;
mod shown;
mod speed_up;
mod statistics;
mod storage;
mod store;
mod trace;

use clap::{Args, Subcommand};

use crate::exit::Code;

pub(crate) use connection::{RANK, Rank};
pub(crate) use store::{STORE, Serve};

/// Measure in turns with a peer, compare results, show a step's timeline, and predict a step on a cluster
#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Launch(launch::LaunchOptions),
    Recovery(launch::RecoveryOptions),
    Store(store::StoreOptions),
    Collectives(collectives::CollectivesOptions),
    Ddp(ddp::DdpOptions),
    Parallel(parallel::ParallelOptions),
    Scaling(scaling::ScalingOptions),
    Snapshot(storage::SnapshotOptions),
    Loader(storage::LoaderOptions),
    Trace(trace::TraceOptions),
    Predict(predict::PredictOptions),
    Compare(compare::CompareOptions),
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Command::Launch(options) => options.exec(),
            Command::Recovery(options) => options.exec(),
            Command::Store(options) => options.exec(),
            Command::Collectives(options) => options.exec(),
            Command::Ddp(options) => options.exec(),
            Command::Parallel(options) => options.exec(),
            Command::Scaling(options) => options.exec(),
            Command::Snapshot(options) => options.exec(),
            Command::Loader(options) => options.exec(),
            Command::Trace(options) => options.exec(),
            Command::Predict(options) => options.exec(),
            Command::Compare(options) => options.exec(),
        }
    }
}

//! `lockstep bench` measures training, next to a peer, and compares results. `lockstep measure` measures Lockstep itself, for maintainers.
//!
//! - [`rounds`] runs a bench: the machine first, rounds in turns, files after each round ([`results`]), tables last ([`shown`], and [`page`]
//!   with pictures).
//! - [`statistics`] decides what a difference shows; [`machine`] what makes it doubtful. Both are pure.
//! - [`collectives`] measures collectives, [`ddp`] training steps, [`parallel`] those of divided models, all in [`ranks`] that link libtorch.
//!   A [`connection`] leads to each rank.
//! - [`scaling`] measures steps by number of ranks, over the [`nodes`] of a Slurm job too, and [`speed_up`] fits what scales.
//! - [`trace`] shows when each part of a step happened. [`predict`] measures nothing: it computes a step on a cluster. [`elastic`] compares the
//!   bits of trainings with virtual ranks.
//! - [`compare`] reads two files of results.
//! - For maintainers, and for the figures of `book/src/measuring.md` and `engine/README.md`, whose pairs with torchrun and torchvision criterion
//!   cannot run: [`launch`] measures launchers ([`launcher`]) with jobs ([`job`]) of ranks that do nothing, [`recovery`] how jobs go on after a
//!   loss, [`store`] the stores, and [`storage`] snapshots and the loader of pictures.
//!
//! A time alone says little, since machines differ from each other and from minute to minute. So a bench quotes ratios.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

mod collectives;
mod compare;
mod connection;
mod ddp;
mod elastic;
mod job;
mod launch;
mod launcher;
mod layouts;
mod machine;
mod nodes;
mod page;
mod parallel;
mod predict;
mod ranks;
mod recovery;
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
use lockstep_checkout as checkout;
use lockstep_launch::exit;
use lockstep_report as report;

use crate::exit::Code;

pub use connection::{RANK, Rank};
pub use store::{STORE, Serve};

/// Measure in turns with a peer, compare results, show a step's timeline, and predict a step on a cluster
#[derive(Args)]
pub struct BenchOptions {
    #[command(subcommand)]
    command: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Collectives(collectives::CollectivesOptions),
    Ddp(ddp::DdpOptions),
    Elastic(elastic::ElasticOptions),
    Parallel(parallel::ParallelOptions),
    Scaling(scaling::ScalingOptions),
    Trace(trace::TraceOptions),
    Predict(predict::PredictOptions),
    Compare(compare::CompareOptions),
}

impl BenchOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Bench::Collectives(options) => options.exec(),
            Bench::Ddp(options) => options.exec(),
            Bench::Elastic(options) => options.exec(),
            Bench::Parallel(options) => options.exec(),
            Bench::Scaling(options) => options.exec(),
            Bench::Trace(options) => options.exec(),
            Bench::Predict(options) => options.exec(),
            Bench::Compare(options) => options.exec(),
        }
    }
}

/// Measure Lockstep itself: launcher, recovery, store, snapshots and the loader of pictures
///
/// The figures of the book's page "Measuring" and of engine/README.md come from here: pairs with torchrun, libtorch's store and torchvision.
#[derive(Args)]
pub struct MeasureOptions {
    #[command(subcommand)]
    command: Measure,
}

#[derive(Subcommand)]
enum Measure {
    Launch(launch::LaunchOptions),
    Recovery(recovery::RecoveryOptions),
    Store(store::StoreOptions),
    Snapshot(storage::SnapshotOptions),
    Loader(storage::LoaderOptions),
}

impl MeasureOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        match self.command {
            Measure::Launch(options) => options.exec(),
            Measure::Recovery(options) => options.exec(),
            Measure::Store(options) => options.exec(),
            Measure::Snapshot(options) => options.exec(),
            Measure::Loader(options) => options.exec(),
        }
    }
}

//! Lab 10: NCCL by hand. Devices, streams, events and communicators without a process group on top.
//!
//! Runs under `lockstep run` or torchrun with one process a GPU, or alone with one process for all GPUs. Without a GPU,
//! `LOCKSTEP_GPU=simulated` takes the course's simulated device.

mod bandwidth;
mod devices;
mod hang;
mod job;
mod order;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use job::Job;
use lockstep::{LaunchEnv, exit};
use lockstep_gpu::{Comm, Gpu, Kind, Reduction, SIMULATED_COUNT, Stream, group};

/// NCCL by hand: devices, streams, events, communicators, and what happens when they do not fit together
#[derive(Parser)]
struct Args {
    /// The largest message of the bandwidth table, in bytes
    #[arg(long, default_value_t = 1 << 20)]
    max_bytes: usize,
    /// The calls of which the table shows the mean
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// The milliseconds after which the watchdog aborts an operation
    #[arg(long, default_value_t = 500)]
    patience: u64,
    /// Take the simulated device, whatever LOCKSTEP_GPU says, with a GPU for each rank of the node
    #[arg(long)]
    simulated: bool,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        let env = LaunchEnv::from_env_or_alone()?;
        let kind = if args.simulated { lockstep_gpu::simulate(devices(&env))? } else { lockstep_gpu::open()? };
        if env.world_size.get() == 1 { alone(kind) } else { with_ranks(&Job::new(&env, kind)?, &args) }
    })
}

/// Of the simulated device: at least the four that it has without `--simulated`.
fn devices(env: &LaunchEnv) -> usize {
    const LEAST: usize = 4;
    let set = std::env::var(SIMULATED_COUNT).ok().and_then(|text| text.trim().parse().ok());
    set.unwrap_or_else(|| env.local_world_size.get().max(LEAST))
}

// ANCHOR: alone
/// One process for all devices: each call of a collective is made for all of them, in one group.
fn alone(kind: Kind) -> Result<()> {
    let gpus = (0..Gpu::count()?).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
    devices::show(kind, &gpus)?;
    let streams = gpus.iter().map(Gpu::stream).collect::<Result<Vec<Stream>, _>>()?;
    let buffers = streams.iter().enumerate().map(|(rank, stream)| stream.upload(&[rank as f32]));
    let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let comms = Comm::all(&gpus)?;
    let each = || comms.iter().zip(&buffers).zip(&streams);
    group(|| each().try_for_each(|((comm, buffer), stream)| comm.all_reduce(buffer, Reduction::Sum, stream)))?;
    for ((comm, buffer), stream) in each() {
        println!(
            "rank {} on device {}: the sum of all ranks is {}",
            comm.rank(),
            comm.gpu().ordinal(),
            stream.download(buffer)?[0]
        );
    }
    Ok(())
}
// ANCHOR_END: alone

// ANCHOR: ranks
/// One process a device.
fn with_ranks(job: &Job, args: &Args) -> Result<()> {
    if job.rank == 0 {
        let gpus = (0..Gpu::count()?).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
        devices::show(job.kind, &gpus)?;
    }
    let comm = job.comm("all")?;
    order::show(job, &comm)?;
    halves(job, &comm)?;
    bandwidth::show(job, &comm, args.max_bytes, args.repeats)?;
    hang::show(job, comm, Duration::from_millis(args.patience))
}
// ANCHOR_END: ranks

// ANCHOR: split
/// Communicators of the even and of the odd ranks.
fn halves(job: &Job, comm: &Comm) -> Result<()> {
    let parity = job.rank % 2;
    let Some(half) = comm.split(Some(parity as u32), job.rank)? else { return Ok(()) };
    let stream = job.gpu.stream()?;
    let buffer = stream.upload(&[job.rank as f32])?;
    half.all_reduce(&buffer, Reduction::Sum, &stream)?;
    let sum = stream.download(&buffer)?[0];
    println!("rank {} is rank {} of {} with its parity; the sum of these is {sum}", job.rank, half.rank(), half.size());
    Ok(())
}
// ANCHOR_END: split

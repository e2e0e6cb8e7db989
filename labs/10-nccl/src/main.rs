//! Lab 10: NCCL by hand. Devices, streams, events and communicators without a process group on top.
//!
//! Runs under `lockstep run` or torchrun with one process a GPU, or alone with one process for all GPUs. Without a GPU,
//! `LOCKSTEP_GPU=simulated` takes the course's simulated device.

mod parts;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use c10d::{Store, TcpStoreOptions};
use clap::Parser;
use lockstep::{LaunchEnv, exit};
use lockstep_gpu::{Comm, Gpu, Kind, Reduction, SIMULATED_COUNT, Stream, UniqueId, group};

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
        if env.world_size.get() == 1 { alone(kind) } else { with_ranks(&GpuRank::new(&env, kind)?, &args) }
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
    parts::devices(kind, &gpus)?;
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
fn with_ranks(job: &GpuRank, args: &Args) -> Result<()> {
    if job.rank == 0 {
        let gpus = (0..Gpu::count()?).map(Gpu::open).collect::<Result<Vec<_>, _>>()?;
        parts::devices(job.kind, &gpus)?;
    }
    let comm = job.comm("all")?;
    parts::order(job, &comm)?;
    halves(job, &comm)?;
    parts::bandwidth(job, &comm, args.max_bytes, args.repeats)?;
    parts::hang(job, comm, Duration::from_millis(args.patience))
}
// ANCHOR_END: ranks

// ANCHOR: split
/// Communicators of the even and of the odd ranks.
fn halves(job: &GpuRank, comm: &Comm) -> Result<()> {
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

/// How long the store waits for a key, and for the ranks.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct GpuRank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) kind: Kind,
    pub(crate) gpu: Gpu,
    restarts: u32,
    store: Store,
}

impl GpuRank {
    /// One device for each rank of the node, by local rank.
    pub(crate) fn new(env: &LaunchEnv, kind: Kind) -> Result<Self> {
        let (there, ranks) = (Gpu::count()?, env.local_world_size.get());
        if ranks > there {
            bail!(
                "{ranks} ranks on this node but {there} {kind}s: start --nproc-per-node={there}, NCCL refuses two ranks on one device"
            );
        }
        let hosts = env.rank.is_zero() && !env.agent_store;
        let wait_for = Some(env.world_size.get());
        let options = TcpStoreOptions { host_server: hosts, wait_for, timeout: TIMEOUT, multi_tenant: hosts };
        let store = Store::tcp(&env.master_addr, env.master_port, &options)?;
        let gpu = Gpu::open(env.local_rank.get())?;
        let (rank, size, restarts) = (env.rank.get(), env.world_size.get(), env.restart_count);
        Ok(GpuRank { rank, size, kind, gpu, restarts, store })
    }

    // ANCHOR: comm
    /// A communicator of all ranks. The store carries the unique id; a restarted job needs its own keys.
    pub(crate) fn comm(&self, name: &str) -> Result<Comm> {
        let key = format!("nccl/{}/{name}", self.restarts);
        if self.rank == 0 {
            self.store.set(&key, UniqueId::new()?.bytes())?;
        }
        let id = UniqueId::from_bytes(&self.store.get(&key)?).with_context(|| format!("{key} is not a unique id"))?;
        Ok(Comm::join(&self.gpu, &id, self.rank, self.size)?)
    }
    // ANCHOR_END: comm

    /// Prints a line on rank 0.
    pub(crate) fn say(&self, line: impl std::fmt::Display) {
        if self.rank == 0 {
            println!("{line}");
        }
    }
}

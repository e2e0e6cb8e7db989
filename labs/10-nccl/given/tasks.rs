//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use c10d::{Store, TcpStoreOptions};
use lockstep::LaunchEnv;
use lockstep_exercise::{Task, mark_sleep, timed};
use lockstep_gpu::{Buffer, Call, Comm, Event, Gpu, Issued, Reduction, Stream, UniqueId};
use serde::Serialize;

use crate::bus_bandwidth::{Bandwidth, Measured};
use crate::pass::{Pass, Side};
use crate::place::Machine;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ended {
    Done,
    Aborted,
}

/// Adds up the ranks' numbers, and waits for the result.
fn sum(job: &GpuRank, comm: &Comm, number: f32) -> Result<f32> {
    let stream = job.gpu.stream()?;
    let buffer = stream.upload(&[number])?;
    comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
    Ok(stream.download(&buffer)?[0])
}

/// How long the rank that is late waits for others, which may wait for it.
const LATE: Duration = Duration::from_secs(2);
/// How long it waits for others that sleep, as a rank does that guesses how long the id takes.
const SLEEP: Duration = Duration::from_secs(60);

/// Inputs: the rank that asks for its ids when the others have theirs, the last one first, and each communicator's number with the numbers of its ranks.
/// Results: the ids and, if all ranks have the same, the sums.
pub fn share_id(answer: fn(&Store, usize, usize) -> Result<UniqueId>) -> Task {
    Task::new("share_id", move |(late, comms): (usize, Vec<(usize, Vec<f32>)>)| {
        let job = GpuRank::from_env()?;
        let key = |what: &str, rank: usize| format!("share_id/{}/{what}/{rank}", comms[0].0);
        let sleeps = |rank: usize| PathBuf::from(format!("share_id-{}-rank-{rank}-sleeps", comms[0].0));
        job.store.set(&key("here", job.rank), b"1")?;
        (0..job.size).try_for_each(|rank| job.store.get(&key("here", rank)).map(drop))?;
        if job.rank == late {
            let others: Vec<String> = (0..job.size).filter(|rank| *rank != late).map(|rank| key("has", rank)).collect();
            let _ = job.store.wait(&others.iter().map(String::as_str).collect::<Vec<_>>(), LATE);
            let begun = Instant::now();
            while begun.elapsed() < SLEEP && (0..job.size).any(|rank| sleeps(rank).exists()) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let mut order: Vec<usize> = (0..comms.len()).collect();
        if job.rank == late {
            order.reverse();
        }
        let asked: BTreeMap<usize, UniqueId> = mark_sleep(&sleeps(job.rank), || {
            order.into_iter().map(|at| Ok((at, answer(&job.store, job.rank, comms[at].0)?))).collect::<Result<_>>()
        })?;
        let ids: Vec<UniqueId> = asked.into_values().collect();
        let bytes: Vec<Vec<u8>> = ids.iter().map(|id| id.bytes().to_vec()).collect();
        job.store.set(&key("has", job.rank), bytes.concat())?;
        for rank in 0..job.size {
            if job.store.get(&key("has", rank))? != bytes.concat() {
                return Ok((bytes, Vec::new()));
            }
        }
        let sums = ids.iter().zip(&comms).map(|(id, (_, of_rank))| {
            let comm = Comm::join(&job.gpu, id, job.rank, job.size)?;
            let found = sum(&job, &comm, of_rank[job.rank])?;
            Ok((found, comm))
        });
        // No communicator ends before the last is there.
        let sums: Vec<(f32, Comm)> = sums.collect::<Result<_>>()?;
        Ok((bytes, sums.into_iter().map(|(sum, _)| sum).collect::<Vec<_>>()))
    })
}

/// Inputs: each rank's elements. Results: the elements that it has received, and the number of collectives. What a rank has issued is in a
/// file, also if its stream never ends.
pub fn ring(answer: fn(&Comm, &Buffer, &Buffer, &Stream) -> Result<()>) -> Task {
    Task::new("ring", move |elements: Vec<Vec<f32>>| {
        let job = GpuRank::from_env()?;
        let stream = job.gpu.stream()?;
        let own = stream.upload(&elements[job.rank])?;
        let incoming = stream.upload(&vec![0.0; elements[job.rank].len()])?;
        let comm = job.comm("ring")?;
        answer(&comm, &own, &incoming, &stream)?;
        let issued = comm.issued();
        let line = |issued: &Issued| match issued.call {
            Call::Collective => format!("{} collective 0\n", issued.operation),
            Call::Send { to } => format!("{} send {to}\n", issued.operation),
            Call::Receive { from } => format!("{} receive {from}\n", issued.operation),
        };
        std::fs::write(format!("ring-{}", job.rank), issued.iter().map(line).collect::<String>())?;
        let collectives = issued.iter().filter(|issued| issued.call == Call::Collective).count();
        Ok((stream.download(&incoming)?, collectives))
    })
}

/// A gradient before the backward pass, and what that adds.
type Layer = (f32, f32);

/// Inputs: each rank's layers, and which stream is ahead. Results: what the pass has seen.
pub fn overlap(answer: fn(&Pass) -> Result<()>) -> Task {
    Task::new("overlap", move |(layers, communication_first): (Vec<Vec<Layer>>, bool)| {
        let job = GpuRank::from_env()?;
        let first = if communication_first { Side::Communication } else { Side::Compute };
        let pass = Pass::new(&job, &format!("overlap {first:?}"), &layers[job.rank])?;
        answer(&pass)?;
        pass.end(first)
    })
}

/// Set in a process that is rank 1 until it ends.
const LOST: &str = "LOCKSTEP_EXERCISE_LOST";

/// Inputs: what rank 1 does, and the patience in milliseconds. Results: how it ended, the buffer, whether the communicator still works, a
/// sum over one that is made afterwards, and milliseconds until the answer returned.
pub fn finish(answer: fn(&Comm, &Event, Duration) -> Result<Ended>) -> Task {
    Task::new("finish", move |(does, patience): (String, u64)| {
        let job = GpuRank::from_env()?;
        if does == "lost" && job.rank == 1 {
            return lose_rank_1(&job);
        }
        let stream = job.gpu.stream()?;
        let buffer = stream.upload(&[1.0])?;
        let comm = job.comm(&does)?;
        sum(&job, &comm, 1.0)?;
        if job.rank == 1 && does == "late" {
            std::thread::sleep(Duration::from_millis(500));
        }
        if job.rank == 1 && does == "another" {
            comm.broadcast(&buffer, 0, &stream)?;
        } else {
            comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
        }
        job.store.set("issued", b"1")?;
        let done = stream.record()?;
        let patience = Duration::from_millis(patience);
        let (ended, took) = timed(patience, || answer(&comm, &done, patience));
        let (ended, waited) = (ended?, [took.clock, took.own].map(|time| time.as_millis() as u64));
        // Hangs if nothing has ended the operation.
        stream.synchronize()?;
        let found = stream.download(&buffer)?[0];
        if does == "lost" {
            return Ok((ended, found, false, 0.0, waited));
        }
        let works = comm.check().is_ok();
        let again = job.comm(&format!("after {does}"))?;
        Ok((ended, found, works, sum(&job, &again, 1.0)?, waited))
    })
}

/// Starts a process as rank 1, which ends when rank 0 waits for it.
fn lose_rank_1(job: &GpuRank) -> Result<(Ended, f32, bool, f32, [u64; 2])> {
    if std::env::var_os(LOST).is_some() {
        let comm = job.comm("lost")?;
        sum(job, &comm, 1.0)?;
        job.store.get("issued")?;
        // The answer must not find the error at its first look.
        std::thread::sleep(Duration::from_millis(300));
        std::process::exit(0);
    }
    let ended = std::process::Command::new(std::env::current_exe()?).env(LOST, "").status()?;
    anyhow::ensure!(ended.success(), "the process of rank 1 ended with {ended}");
    Ok((Ended::Aborted, 0.0, false, 0.0, [0; 2]))
}

/// Inputs: a measured collective. Results: its bandwidths.
pub fn bus_bandwidth(answer: fn(&Measured) -> Bandwidth) -> Task {
    Task::new("bus_bandwidth", move |measured: Measured| Ok(answer(&measured)))
}

/// Inputs: a machine. Results: the GPU of each rank.
pub fn place(answer: fn(&Machine) -> Vec<usize>) -> Task {
    Task::new("place", move |machine: Machine| Ok(answer(&machine)))
}

/// How long the store waits for a key.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A rank with its device and the job's store: what it has before your functions are called.
pub struct GpuRank {
    pub rank: usize,
    pub size: usize,
    pub store: Store,
    pub gpu: Gpu,
}

impl GpuRank {
    pub fn from_env() -> Result<Self> {
        let env = LaunchEnv::from_env()?;
        let options = TcpStoreOptions { timeout: TIMEOUT, ..TcpStoreOptions::default() };
        let store = Store::tcp(&env.master_addr, env.master_port, &options)?;
        let gpu = Gpu::open(env.local_rank.get())?;
        Ok(GpuRank { rank: env.rank.get(), size: env.world_size.get(), store, gpu })
    }

    /// A communicator of all ranks. Each needs its own name.
    pub fn comm(&self, name: &str) -> Result<Comm> {
        let key = format!("job/{name}");
        if self.rank == 0 {
            self.store.set(&key, UniqueId::new()?.bytes())?;
        }
        let id = UniqueId::from_bytes(&self.store.get(&key)?);
        let id = id.ok_or_else(|| anyhow::anyhow!("{key} is not a unique id"))?;
        Ok(Comm::join(&self.gpu, &id, self.rank, self.size)?)
    }
}

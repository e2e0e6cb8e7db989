//! What the lab shows: the devices, streams and events, the bandwidth of an all-reduce, and a hang that a watchdog ends.

use std::time::{Duration, Instant};

use anyhow::Result;
use lockstep_gpu::{Comm, Event, Gpu, Kind, Reduction};

use crate::GpuRank;

/// Prints the devices and the ways between them:
/// what `nvidia-smi` and `nvidia-smi topo -m` print. A way in brackets has no peer access.
pub(crate) fn devices(kind: Kind, gpus: &[Gpu]) -> Result<()> {
    println!("{} {kind}s", gpus.len());
    for gpu in gpus {
        let (free, total) = gpu.memory()?;
        println!(
            "device {}: {} at {}, {} of {} MiB free",
            gpu.ordinal(),
            gpu.name(),
            gpu.bus_id(),
            free >> 20,
            total >> 20
        );
    }
    for one in gpus {
        let ways = gpus.iter().map(|other| {
            if one.ordinal() == other.ordinal() {
                return Ok("X".to_owned());
            }
            let peer = one.peer(other)?;
            let tier = peer.tier.map_or("?".to_owned(), |tier| tier.to_string());
            Ok(if peer.access { tier } else { format!("({tier})") })
        });
        let ways = ways.collect::<Result<Vec<_>>>()?;
        let row: String = ways.iter().map(|way| format!("{way:>7}")).collect();
        println!("device {}:{row}", one.ordinal());
    }
    Ok(())
}

const ELEMENTS: usize = 1 << 16;

/// A kernel and a collective on two streams: with the event between them, and without. Sums a buffer that a kernel sets to rank + 1 right before.
pub(crate) fn order(job: &GpuRank, comm: &Comm) -> Result<()> {
    let expected = (job.size * (job.size + 1) / 2) as f32;
    for with_event in [true, false] {
        let found = sum(job, comm, with_event)?;
        let what = if with_event { "with an event" } else { "without an event" };
        let verdict = if found == expected { "right" } else { "wrong" };
        job.say(format_args!("{what}: the sum is {found}, {verdict} (the kernels wrote {expected} together)"));
    }
    Ok(())
}

// ANCHOR: order
fn sum(job: &GpuRank, comm: &Comm, with_event: bool) -> Result<f32> {
    let (compute, communication) = (job.gpu.stream()?, job.gpu.stream()?);
    let buffer = compute.upload(&vec![0.0; ELEMENTS])?;
    compute.fill(&buffer, (job.rank + 1) as f32)?;
    if with_event {
        let written = compute.record()?;
        communication.wait(&written)?;
    }
    comm.all_reduce(&buffer, Reduction::Sum, &communication)?;
    let found = communication.download(&buffer)?[0];
    // The kernel may come only now; nothing else uses the buffer.
    compute.synchronize()?;
    Ok(found)
}
// ANCHOR_END: order

const SMALLEST: usize = 4 << 10;

// ANCHOR: bandwidth
/// The time of an all-reduce by its size, with the bandwidths of nccl-tests.
pub(crate) fn bandwidth(job: &GpuRank, comm: &Comm, max_bytes: usize, repeats: usize) -> Result<()> {
    let stream = job.gpu.stream()?;
    job.say(format_args!(
        "{:>10} {:>10} {:>11} {:>10}   all-reduce on {}s",
        "bytes", "µs", "algbw GB/s", "busbw GB/s", job.kind
    ));
    let sizes = std::iter::successors(Some(SMALLEST), |bytes| Some(bytes * 4)).take_while(|bytes| *bytes <= max_bytes);
    for bytes in sizes {
        let buffer = stream.upload(&vec![1.0; bytes / size_of::<f32>()])?;
        // The first call makes connections.
        comm.all_reduce(&buffer, Reduction::Max, &stream)?;
        stream.synchronize()?;
        let begun = Instant::now();
        for _ in 0..repeats {
            comm.all_reduce(&buffer, Reduction::Max, &stream)?;
        }
        stream.synchronize()?;
        let seconds = begun.elapsed().as_secs_f64() / repeats.max(1) as f64;
        let algorithm = bytes as f64 / seconds / 1e9;
        let bus = algorithm * 2.0 * (job.size - 1) as f64 / job.size as f64;
        job.say(format_args!("{bytes:>10} {:>10.1} {algorithm:>11.3} {bus:>10.3}", seconds * 1e6));
    }
    Ok(())
}
// ANCHOR_END: bandwidth

// ANCHOR: hang
/// The last rank calls another operation than the others. No rank gets an error; each waits for what never comes.
pub(crate) fn hang(job: &GpuRank, comm: Comm, patience: Duration) -> Result<()> {
    let stream = job.gpu.stream()?;
    let buffer = stream.upload(&[1.0])?;
    // In the first use of an algorithm NCCL connects, and the call itself waits for the other ranks.
    comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
    comm.broadcast(&buffer, 0, &stream)?;
    stream.synchronize()?;
    if job.rank + 1 == job.size {
        comm.broadcast(&buffer, 0, &stream)?;
    } else {
        comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
    }
    let ended = watch(&comm, &stream.record()?, patience)?;
    println!("rank {}: the operation was {}", job.rank, if ended { "done" } else { "aborted" });
    drop(comm);
    // The device is well, and so are the ranks: they meet again with another id.
    let comm = job.comm("after the hang")?;
    stream.fill(&buffer, 1.0)?;
    comm.all_reduce(&buffer, Reduction::Sum, &stream)?;
    let sum = stream.download(&buffer)?[0];
    job.say(format_args!("a new communicator: the sum over {} ranks is {sum}", job.size));
    Ok(())
}

/// Returns true if the event was reached, false if the communicator had to be aborted.
fn watch(comm: &Comm, done: &Event, patience: Duration) -> Result<bool> {
    let begun = Instant::now();
    while !done.is_done()? {
        // For errors that NCCL reports, such as a rank whose process has ended, there is nothing to wait for.
        if comm.check().is_err() || begun.elapsed() >= patience {
            comm.abort()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}
// ANCHOR_END: hang

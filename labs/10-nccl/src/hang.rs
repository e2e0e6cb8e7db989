//! A hang, and the watchdog that ends it.

use std::time::{Duration, Instant};

use anyhow::Result;
use lockstep_gpu::{Comm, Event, Reduction};

use crate::job::Job;

// ANCHOR: hang
/// The last rank calls another operation than the others. No rank gets an error; each waits for what never comes.
pub(crate) fn show(job: &Job, comm: Comm, patience: Duration) -> Result<()> {
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
        // Errors that NCCL knows of, such as a rank whose process has ended, need no patience.
        if comm.check().is_err() || begun.elapsed() >= patience {
            comm.abort()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}
// ANCHOR_END: hang

//! The time of an all-reduce by its size, with the bandwidths of nccl-tests.

use std::time::Instant;

use anyhow::Result;
use lockstep_gpu::{Comm, Reduction};

use crate::job::Job;

const SMALLEST: usize = 4 << 10;

// ANCHOR: bandwidth
pub(crate) fn show(job: &Job, comm: &Comm, max_bytes: usize, repeats: usize) -> Result<()> {
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

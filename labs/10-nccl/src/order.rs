//! A kernel and a collective on two streams: with the event between them, and without.

use anyhow::Result;
use lockstep_gpu::{Comm, Reduction};

use crate::job::Job;

const ELEMENTS: usize = 1 << 16;

/// Sums a buffer that a kernel sets to rank + 1 right before.
pub(crate) fn show(job: &Job, comm: &Comm) -> Result<()> {
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
fn sum(job: &Job, comm: &Comm, with_event: bool) -> Result<f32> {
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

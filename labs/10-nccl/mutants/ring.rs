//! Answers to `ring`: wrong ones, and an unusual right one.

use anyhow::Result;
use lockstep_gpu::{Buffer, Comm, Stream, group};

fn neighbours(comm: &Comm) -> (usize, usize) {
    let (rank, size) = (comm.rank(), comm.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

/// Sends, then receives.
pub fn ungrouped(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (next, previous) = neighbours(comm);
    comm.send(own, next, stream)?;
    comm.recv(incoming, previous, stream)?;
    Ok(())
}

/// Goes around the other way.
pub fn backwards(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (next, previous) = neighbours(comm);
    group(|| {
        comm.send(own, previous, stream)?;
        comm.recv(incoming, next, stream)
    })?;
    Ok(())
}

/// Talks to itself.
pub fn itself(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    group(|| {
        comm.send(own, comm.rank(), stream)?;
        comm.recv(incoming, comm.rank(), stream)
    })?;
    Ok(())
}

/// Right: without a group, but every second rank receives first.
pub fn turns(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (next, previous) = neighbours(comm);
    if comm.rank() % 2 == 0 {
        comm.send(own, next, stream)?;
        comm.recv(incoming, previous, stream)?;
    } else {
        comm.recv(incoming, previous, stream)?;
        comm.send(own, next, stream)?;
    }
    Ok(())
}

//! Answers to `ring`: wrong ones, and an unusual right one.

use anyhow::Result;
use lockstep_answers::edit;
use lockstep_gpu::{Buffer, Comm, Stream, group};

fn neighbours(comm: &Comm) -> (usize, usize) {
    let (rank, size) = (comm.rank(), comm.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

/// The given program: sends, then receives.
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

/// Receives on its own stream.
pub fn second_stream(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (next, previous) = neighbours(comm);
    let other = comm.gpu().stream()?;
    comm.send(own, next, stream)?;
    comm.recv(incoming, previous, &other)?;
    Ok(())
}

/// Lets each rank in turn send its elements to all.
pub fn broadcasts(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (_, previous) = neighbours(comm);
    for root in 0..comm.size() {
        let unused = stream.upload(&vec![0.0; own.len()])?;
        let buffer = match root {
            root if root == comm.rank() => own,
            root if root == previous => incoming,
            _ => &unused,
        };
        comm.broadcast(buffer, root, stream)?;
    }
    Ok(())
}

/// Receives, then sends.
pub fn receives_first(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (next, previous) = neighbours(comm);
    comm.recv(incoming, previous, stream)?;
    comm.send(own, next, stream)?;
    Ok(())
}

/// Sends to the next rank, and receives from it.
#[edit((rank + size - 1) % size => (rank + 1) % size)]
pub fn one_peer() {}

/// Only sends.
#[edit(comm.recv(incoming, (rank + size - 1) % size, stream) => Ok(()))]
pub fn no_receive() {}

/// Waits for the send before it receives.
pub fn host_waits(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (next, previous) = neighbours(comm);
    comm.send(own, next, stream)?;
    stream.synchronize()?;
    comm.recv(incoming, previous, stream)?;
    Ok(())
}

/// Receives into the buffer that is sent.
pub fn into_own(comm: &Comm, own: &Buffer, _: &Buffer, stream: &Stream) -> Result<()> {
    crate::ring::ring(comm, own, own, stream)
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

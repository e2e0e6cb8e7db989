//! Answers to `ring`: wrong ones, and an unusual right one.

use anyhow::Result;
use lockstep_answers::{edit, given};
use lockstep_gpu::{Buffer, Comm, Stream, group};

fn neighbours(comm: &Comm) -> (usize, usize) {
    let (rank, size) = (comm.rank(), comm.size());
    ((rank + 1) % size, (rank + size - 1) % size)
}

/// The given program: sends, then receives.
#[given]
pub fn ungrouped() {}

/// Goes around the other way.
#[edit(comm.send(own, (rank + 1) % size, stream) => comm.send(own, (rank + size - 1) % size, stream))]
#[edit(comm.recv(incoming, (rank + size - 1) % size, stream) => comm.recv(incoming, (rank + 1) % size, stream))]
pub fn backwards() {}

/// Talks to itself.
#[edit((rank + 1) % size => rank)]
#[edit((rank + size - 1) % size => rank)]
pub fn itself() {}

/// Receives on its own stream.
#[given]
#[edit(comm.send => let other = comm.gpu().stream()?; comm.send)]
#[edit(comm.recv(incoming, (rank + size - 1) % size, stream) => comm.recv(incoming, (rank + size - 1) % size, &other))]
pub fn second_stream() {}

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
#[given]
#[edit(comm.recv => stream.synchronize()?; comm.recv)]
pub fn host_waits() {}

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

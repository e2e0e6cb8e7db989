//! Task 2: a ring that does not wait for itself.
//!
//! Each rank sends its elements to the next rank and receives the previous rank's. A send ends when its receive has begun, and work
//! on a stream runs in order.

use anyhow::Result;
use lockstep_gpu::{Buffer, Comm, Stream, group};

/// Sends `own` to rank + 1 and receives from rank - 1 into `incoming`; the last rank's next is rank 0.
pub fn ring(comm: &Comm, own: &Buffer, incoming: &Buffer, stream: &Stream) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    // <answer>
    //~ // This program hangs. Why?
    //~ comm.send(own, (rank + 1) % size, stream)?;
    //~ comm.recv(incoming, (rank + size - 1) % size, stream)?;
    group(|| {
        comm.send(own, (rank + 1) % size, stream)?;
        comm.recv(incoming, (rank + size - 1) % size, stream)
    })?;
    // </answer>
    Ok(())
}

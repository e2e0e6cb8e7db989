//! Operations of one communicator that a stream runs together.

use std::sync::Arc;

use super::comm::{Comm, Unanswered};
use super::wire::{Call, Kind};
use crate::codes::{Cuda, Nccl};
use crate::world;

/// One call: a collective, a send or a receive.
pub(super) struct Part {
    pub(super) kind: Kind,
    pub(super) send: u64,
    pub(super) recv: u64,
    /// Elements, as the function counts them.
    pub(super) count: u64,
    /// Bytes of an element.
    pub(super) size: u64,
    pub(super) dtype: u32,
    pub(super) op: u32,
    pub(super) other: u32,
}

/// What was issued between the begin and the end of a group; mostly one part.
pub(crate) struct Exchange {
    pub(super) comm: Arc<Comm>,
    pub(super) parts: Vec<Part>,
}

impl Part {
    /// The bytes that the rank sends.
    fn sends(&self, comm: &Comm) -> u64 {
        let bytes = self.count * self.size;
        match self.kind {
            Kind::Recv => 0,
            Kind::Broadcast if comm.rank != self.other => 0,
            Kind::ReduceScatter => bytes * u64::from(comm.size),
            _ => bytes,
        }
    }
}

impl Exchange {
    /// Reads what is sent when the stream comes here, and writes what comes back. An aborted operation leaves memory as it was, and ends
    /// without an error; one that is not answered before the device's deadline fails.
    pub(crate) fn run(self, device: usize) -> Result<(), Cuda> {
        let Exchange { comm, parts } = self;
        let read = |part: &Part| {
            let bytes = part.sends(&comm);
            let data = if bytes == 0 { Vec::new() } else { world::lock().read(device, part.send, bytes)? };
            let Part { kind, dtype, op, other, count, .. } = *part;
            Ok(Call { number: 0, kind, dtype, op, other, count, data })
        };
        let failed = |error: Cuda| {
            comm.fail(Nccl::UNHANDLED_CUDA_ERROR);
            error
        };
        let calls = parts.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let answers = match comm.ask(calls) {
            Ok(answers) => answers,
            Err(Unanswered::Aborted) => return Ok(()),
            Err(Unanswered::Late) => return Err(failed(world::too_late("an operation of a communicator"))),
        };
        let mut world = world::lock();
        let write = |(part, data): (&Part, Vec<u8>)| {
            if data.is_empty() { Ok(()) } else { world.write(device, part.recv, &data) }
        };
        parts.iter().zip(answers).try_for_each(write).map_err(failed)
    }
}

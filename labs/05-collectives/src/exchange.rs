//! The parts of both algorithms: exchange two messages at the same time, and combine two tensors.

use anyhow::{Result, ensure};
use c10d::{ProcessGroup, ReduceOp, Work};
use lockstep::Rank;
use tch::Tensor;

/// The tag of all messages.
pub(crate) const TAG: u16 = 0;

// ANCHOR: exchange
/// Sends `outgoing` and receives into `incoming`, which it returns. It starts both messages before it waits for either: if all
/// ranks began with a blocking send, none would reach its receive.
///
/// If two ranks send to each other, the lower one starts with its send. Gloo accepts any order, but NCCL executes the messages
/// between two GPUs in the order in which they were started.
pub(crate) fn exchange(
    group: &ProcessGroup,
    outgoing: &Tensor,
    to: Rank,
    incoming: Tensor,
    from: Rank,
) -> Result<Tensor> {
    let (sending, receiving) = if group.rank() < to {
        let sending = Message::send(group, outgoing, to)?;
        (sending, Message::receive(group, incoming, from)?)
    } else {
        let receiving = Message::receive(group, incoming, from)?;
        (Message::send(group, outgoing, to)?, receiving)
    };
    let incoming = receiving.wait()?;
    sending.wait().map(drop)?;
    Ok(incoming)
}
// ANCHOR_END: exchange

/// A message in progress. A message without elements is not sent, since both sides know its length.
enum Message {
    Empty(Tensor),
    UnderWay(Work<Tensor>),
}

impl Message {
    fn send(group: &ProcessGroup, tensor: &Tensor, to: Rank) -> Result<Self> {
        let tensor = tensor.shallow_clone();
        Ok(if tensor.numel() == 0 { Message::Empty(tensor) } else { Message::UnderWay(group.isend(tensor, to, TAG)?) })
    }

    fn receive(group: &ProcessGroup, tensor: Tensor, from: Rank) -> Result<Self> {
        Ok(if tensor.numel() == 0 {
            Message::Empty(tensor)
        } else {
            Message::UnderWay(group.irecv(tensor, from, TAG)?)
        })
    }

    fn wait(self) -> Result<Tensor> {
        match self {
            Message::Empty(tensor) => Ok(tensor),
            Message::UnderWay(work) => Ok(work.wait()?),
        }
    }
}

// ANCHOR: combine
/// Combines `other` into `held`, element by element, by sum, product and so on.
///
/// # Errors
/// For [`ReduceOp::Avg`]: the mean of two means is not the mean of all values.
pub(crate) fn combine(held: &mut Tensor, other: &Tensor, op: ReduceOp) -> Result<()> {
    match op {
        ReduceOp::Sum => _ = held.g_add_(other),
        ReduceOp::Product => _ = held.g_mul_(other),
        ReduceOp::Min => held.copy_(&held.minimum(other)),
        ReduceOp::Max => held.copy_(&held.maximum(other)),
        ReduceOp::BitAnd => _ = held.bitwise_and_tensor_(other),
        ReduceOp::BitOr => _ = held.bitwise_or_tensor_(other),
        ReduceOp::BitXor => _ = held.bitwise_xor_tensor_(other),
        ReduceOp::Avg => refuse_avg(op)?,
    }
    Ok(())
}
// ANCHOR_END: combine

/// Rejects averages: the mean of two means is not the mean of all values.
pub(crate) fn refuse_avg(op: ReduceOp) -> Result<()> {
    ensure!(op != ReduceOp::Avg, "cannot reduce with Avg step by step: reduce with Sum, and divide by the world size");
    Ok(())
}

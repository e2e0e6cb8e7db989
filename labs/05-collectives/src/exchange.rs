//! What both algorithms are made of: one message each way at the same time, and two tensors becoming one.

use anyhow::{Result, ensure};
use c10d::{ProcessGroup, ReduceOp, Work};
use lockstep::Rank;
use tch::Tensor;

/// One kind of message, so one tag.
pub(crate) const TAG: u16 = 0;

// ANCHOR: exchange
/// Sends `outgoing` and receives into `incoming`, which is given back filled. Both messages are under way before either is
/// waited for: were all ranks to begin with a blocking send, none would come to its receive.
///
/// Of two ranks that write to each other, the lower one starts with its send. Gloo does not mind; NCCL carries out what two GPUs
/// have for each other in the order in which it was started.
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

/// A message under way, or one of no elements, which both sides know of and spare themselves.
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
/// Makes `held` the sum, product, … of itself and `other`, element by element.
///
/// # Errors
/// For [`ReduceOp::Avg`], which is nothing that two values have: the mean of two means is not the mean of all.
pub(crate) fn combine(held: &mut Tensor, other: &Tensor, op: ReduceOp) -> Result<()> {
    match op {
        ReduceOp::Sum => _ = held.g_add_(other),
        ReduceOp::Product => _ = held.g_mul_(other),
        ReduceOp::Min => held.copy_(&held.minimum(other)),
        ReduceOp::Max => held.copy_(&held.maximum(other)),
        ReduceOp::Avg => refuse_avg(op)?,
    }
    Ok(())
}
// ANCHOR_END: combine

/// The mean of two means is not the mean of all.
pub(crate) fn refuse_avg(op: ReduceOp) -> Result<()> {
    ensure!(op != ReduceOp::Avg, "cannot reduce with Avg step by step: reduce with Sum, and divide by the world size");
    Ok(())
}

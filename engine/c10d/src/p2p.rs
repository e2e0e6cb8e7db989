//! Point-to-point messages, one or several at once.

use std::ptr::{self, NonNull};

use tch::Tensor;

use crate::error::{Error, Result};
use crate::lifetime::InUse;
use crate::recording::Message;
use crate::tensors::{Guard, Purpose, describe};
use crate::work::{Call, Pending, Receiving, Way, Work};
use crate::{Backend, ProcessGroup, Rank, ffi};

/// A message of [`ProcessGroup::batch_isend_irecv`]; `torch.distributed.P2POp`.
#[derive(Debug)]
pub enum P2pOp {
    /// As [`ProcessGroup::isend`].
    Send {
        /// The tensor to send.
        tensor: Tensor,
        /// The receiving rank.
        to: Rank,
        /// Distinguishes messages between the same two ranks.
        tag: u16,
    },
    /// As [`ProcessGroup::irecv`].
    Recv {
        /// The tensor to fill.
        tensor: Tensor,
        /// The sending rank.
        from: Rank,
        /// As in `Send`.
        tag: u16,
    },
}

/// Point-to-point messages. Messages are matched by peer and tag; both sides must use the same shape and dtype.
///
/// If ranks compare calls ([`GroupOptions::compare_calls`](crate::GroupOptions)), a receiver whose call does not match gets
/// an error from its wait. The sender does not, because its part ends when its bytes are on their way: its call succeeds
/// unless the message is longer than the receiver's tensor. In that case Gloo closes the connection: the receiver gets an
/// error, at its timeout at the latest, and a sender that is still writing gets
/// [`ErrorKind::PeerGone`](crate::ErrorKind::PeerGone) or a timeout. The receiver sends no reply, because then each sender
/// would have to wait for the receiver's *wait*: two ranks that send to each other before they wait for their receives,
/// which is legal, would deadlock.
///
/// Without the comparison a receiver only notices messages that are too long, at its timeout at the latest; a shorter
/// message fills the start of its tensor.
///
/// # Errors
/// `BadArgument` for a peer outside the group, this rank itself, or a tensor that cannot be sent, before anything is sent. From the
/// blocking form, or from the wait: `Timeout` if the peer does not make the matching call, `PeerGone` if it has died, `Mismatch` as
/// described above, `Aborted` if this rank has aborted the group.
impl ProcessGroup {
    /// Sends, and returns when the buffer may be reused. With Gloo that is when the peer receives, even for short messages:
    /// Gloo asks the peer first and does not buffer. With shared memory it is at once, unless 32 messages to the peer, or 64
    /// MiB to all peers, have not been received yet.
    ///
    /// If the peer receives with another shape or dtype, only the peer gets an error: this call succeeds, unless the
    /// message is longer than the peer's tensor and the connection closes before the end.
    pub fn send(&self, tensor: &Tensor, to: Rank, tag: u16) -> Result<()> {
        self.start_send("send", tensor, to, tag)?.wait(None)
    }

    /// Receives into `tensor`.
    pub fn recv(&self, tensor: &mut Tensor, from: Rank, tag: u16) -> Result<()> {
        self.start_recv("recv", tensor, Some(from), tag)?.wait(None)
    }

    /// As [`ProcessGroup::isend`]; desync reports and errors add what the message is for.
    pub fn isend_for(&self, purpose: &str, tensor: Tensor, to: Rank, tag: u16) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_send(&format!("isend ({purpose})"), &tensor, to, tag)?, tensor))
    }

    /// As [`ProcessGroup::recv`]; desync reports and errors add what the message is for.
    pub fn recv_for(&self, purpose: &str, tensor: &mut Tensor, from: Rank, tag: u16) -> Result<()> {
        self.start_recv(&format!("recv ({purpose})"), tensor, Some(from), tag)?.wait(None)
    }

    /// Receives from the first rank that sends with this tag, and returns that rank.
    ///
    /// ```no_run
    /// # fn show(group: &c10d::ProcessGroup, mut loss: tch::Tensor) -> c10d::Result<()> {
    /// for _ in 1..group.size().get() {
    ///     let rank = group.recv_any(&mut loss, 0)?; // whichever is done first
    ///     println!("rank {rank}: {loss}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn recv_any(&self, tensor: &mut Tensor, tag: u16) -> Result<Rank> {
        self.start_recv("recv_any", tensor, None, tag)?.wait_with_source()
    }

    /// Starts to send. [`Work::wait`] returns the tensor.
    pub fn isend(&self, tensor: Tensor, to: Rank, tag: u16) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_send("isend", &tensor, to, tag)?, tensor))
    }

    /// Starts to receive. [`Work::wait`] returns the filled tensor.
    pub fn irecv(&self, tensor: Tensor, from: Rank, tag: u16) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_recv("irecv", &tensor, Some(from), tag)?, tensor))
    }

    /// As [`ProcessGroup::irecv`], from the first rank that sends; [`Receiving::wait`] returns that rank.
    pub fn irecv_any(&self, tensor: Tensor, tag: u16) -> Result<Receiving> {
        Ok(Receiving::new(self.start_recv("irecv_any", &tensor, None, tag)?, tensor))
    }

    /// Starts all these messages in this order, and returns their works in the same order. Wait for all of them: two ranks
    /// that exchange messages this way cannot deadlock, whatever the order of their lists.
    ///
    /// # Errors
    /// As [`isend`](Self::isend) and [`irecv`](Self::irecv); messages that have been started by then are dropped. NCCL starts all
    /// or none. If a batch is the first operation of an NCCL group, all its ranks must take part in it.
    pub fn batch_isend_irecv(&self, messages: Vec<P2pOp>) -> Result<Vec<Work<Tensor>>> {
        let is_nccl = |message: &P2pOp| {
            let (P2pOp::Send { tensor, .. } | P2pOp::Recv { tensor, .. }) = message;
            tensor.defined() && self.backends().of(tensor.device()).is_some_and(Backend::is_nccl)
        };
        if messages.iter().any(is_nccl) {
            if !messages.iter().all(is_nccl) {
                let detail = "one batch has tensors in host memory and on a GPU: make a batch of each";
                return Err(Error::bad_argument("batch_isend_irecv", detail).at_rank(self.rank()));
            }
            let pending = self.start_batch(&messages)?;
            let tensors = messages.into_iter().map(|message| match message {
                P2pOp::Send { tensor, .. } | P2pOp::Recv { tensor, .. } => tensor,
            });
            return Ok(pending.into_iter().zip(tensors).map(|(pending, tensor)| Work::new(pending, tensor)).collect());
        }
        let start = |message| match message {
            P2pOp::Send { tensor, to, tag } => self.isend(tensor, to, tag),
            P2pOp::Recv { tensor, from, tag } => self.irecv(tensor, from, tag),
        };
        messages.into_iter().map(start).collect()
    }

    fn start_send(&self, name: &str, tensor: &Tensor, to: Rank, tag: u16) -> Result<Pending> {
        let (call, memory) = self.begin(name, tensor, Way::To, Some(to), tag)?;
        let (group, tensor) = (self.as_ptr(), tensor.as_ptr());
        // SAFETY: the group is alive as long as self; libtorch takes its own reference to the tensor.
        Pending::start(call, memory, |out| unsafe { ffi::lc_send(group, tensor, to.get() as i32, i32::from(tag), out) })
            .map(|pending| pending.within(self.message_timeout()))
    }

    fn start_recv(&self, name: &str, tensor: &Tensor, from: Option<Rank>, tag: u16) -> Result<Pending> {
        let (call, memory) = self.begin(name, tensor, Way::From, from, tag)?;
        let (group, tensor) = (self.as_ptr(), tensor.as_ptr());
        let peer = from.map_or(-1, |rank| rank.get() as i32);
        // SAFETY: the group is alive as long as self; libtorch takes its own reference to the tensor.
        Pending::start(call, memory, |out| unsafe { ffi::lc_recv(group, tensor, peer, i32::from(tag), out) })
            .map(|pending| pending.within(self.message_timeout()))
    }

    /// Starts messages that are sent and received together. Calls nothing if there are none.
    fn start_batch(&self, messages: &[P2pOp]) -> Result<Vec<Pending>> {
        let (mut begun, mut raw) = (Vec::new(), Vec::new());
        for message in messages {
            let (name, tensor, way, peer, tag) = match message {
                P2pOp::Send { tensor, to, tag } => ("isend", tensor, Way::To, *to, *tag),
                P2pOp::Recv { tensor, from, tag } => ("irecv", tensor, Way::From, *from, *tag),
            };
            begun.push(self.begin(name, tensor, way, Some(peer), tag)?);
            let (tensor, peer, tag) = (tensor.as_ptr(), peer.get() as i32, i32::from(tag));
            raw.push(ffi::Message { tensor, peer, tag, sends: way == Way::To });
        }
        if raw.is_empty() {
            return Ok(vec![]);
        }
        let mut works = vec![ptr::null_mut(); raw.len()];
        // SAFETY: the group is alive as long as self; both lists have the given length, and libtorch takes its own references to
        // the tensors.
        let status = unsafe { ffi::lc_batch(self.as_ptr(), raw.as_ptr(), raw.len(), works.as_mut_ptr()) };
        let started = status.check();
        let handle = |work| {
            let none = || ffi::Exception { kind: ffi::Kind::Other, message: "the shim returned no object".into() };
            started.clone().and_then(|()| NonNull::new(work).ok_or_else(none))
        };
        begun
            .into_iter()
            .zip(works)
            .map(|((call, memory), work)| Pending::started(call, memory, handle(work)))
            .collect()
    }

    /// Refuses calls that would wait forever, because the peer is outside the group or this rank itself, and tensors
    /// that cannot be sent. While calls are recorded, the memory of a receive is NaN from here on.
    fn begin(&self, name: &str, tensor: &Tensor, way: Way, peer: Option<Rank>, tag: u16) -> Result<(Call, InUse)> {
        if let Some(peer) = peer {
            self.check_member(name, peer)?;
            if peer == self.rank() {
                let detail = format!("rank {peer} cannot exchange messages with itself");
                return Err(Error::bad_argument(name, detail).at_rank(self.rank()));
            }
        }
        let mut guard = Guard::new(name, self, Purpose::Message);
        if way == Way::To { guard.reads("the tensor", tensor) } else { guard.writes("the tensor", tensor) }?;
        let operation = format!("{name} {} tag {tag}", describe(tensor));
        let backend = guard.backend();
        let (memory, passed) = guard.claim(&operation)?;
        if way == Way::From && self.is_recording() && tensor.is_floating_point() {
            // Memory that cannot be filled stays as it is.
            let _ = tensor.detach().f_fill_(f64::NAN);
        }
        let message = Message { way, peer, tag };
        Ok((Call::message(self.inner(), operation, message, passed).on(backend), memory))
    }
}

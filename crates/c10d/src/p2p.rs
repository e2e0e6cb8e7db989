//! Point-to-point messages. A message is matched by peer and tag; shapes and dtypes must agree on both sides.
//!
//! Where ranks compare calls ([`GroupOptions::compare_calls`](crate::GroupOptions)), the receiver finds out when they do not, in its
//! wait. The sender does not: its part is over when its bytes are on their way, so its call succeeds, unless the message is longer
//! than the receiver's tensor: then Gloo ends the connection, the receiver has its error at its deadline at the latest, and the sender
//! gets [`Fault::PeerGone`](crate::Fault::PeerGone) or a timeout if it is still writing. To have the receiver answer would make each sender wait for the receiver's *wait*, and two ranks that send to
//! each other before they wait for what they receive, which is legal, would wait for ever.
//!
//! Without the comparison a receiver notices only messages that are too long, at its deadline at the latest; a shorter one fills the
//! front of its tensor.

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi;
use crate::in_use::InUse;
use crate::tensors::{Guard, Traffic, describe};
use crate::work::{Call, Pending, Receiving, Way, Work};
use crate::{ProcessGroup, Rank};

impl ProcessGroup {
    /// Sends, and returns when the buffer may be used again. With Gloo that is when the peer receives, however short the message: it
    /// is asked first, and nothing is kept for it.
    ///
    /// That the peer receives another shape or dtype is the peer's error alone: this call succeeds, unless the message is longer than
    /// what the peer expects and its connection is closed before the end.
    pub fn send(&self, tensor: &Tensor, to: Rank, tag: u16) -> Result<()> {
        self.start_send("send", tensor, to, tag)?.wait(None)
    }

    /// Receives into `tensor`.
    pub fn recv(&self, tensor: &mut Tensor, from: Rank, tag: u16) -> Result<()> {
        self.start_recv("recv", tensor, Some(from), tag)?.wait(None)
    }

    /// Receives from whoever sends first with this tag, and says who it was.
    pub fn recv_any(&self, tensor: &mut Tensor, tag: u16) -> Result<Rank> {
        self.start_recv("recv_any", tensor, None, tag)?.wait_with_source()
    }

    /// Starts to send. The tensor comes back from [`Work::wait`].
    pub fn isend(&self, tensor: Tensor, to: Rank, tag: u16) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_send("isend", &tensor, to, tag)?, tensor))
    }

    /// Starts to receive. The tensor, filled, comes back from [`Work::wait`].
    pub fn irecv(&self, tensor: Tensor, from: Rank, tag: u16) -> Result<Work<Tensor>> {
        Ok(Work::new(self.start_recv("irecv", &tensor, Some(from), tag)?, tensor))
    }

    /// As [`ProcessGroup::irecv`], from whoever sends first: [`Receiving::wait`] says who.
    pub fn irecv_any(&self, tensor: Tensor, tag: u16) -> Result<Receiving> {
        Ok(Receiving::new(self.start_recv("irecv_any", &tensor, None, tag)?, tensor))
    }

    fn start_send(&self, name: &str, tensor: &Tensor, to: Rank, tag: u16) -> Result<Pending> {
        let (call, memory) = self.begin(name, tensor, Way::To, Some(to), tag)?;
        let (group, tensor) = (self.as_ptr(), tensor.as_ptr());
        // SAFETY: the group is alive as long as self; libtorch takes its own reference to the tensor.
        Pending::start(call, memory, |out| unsafe { ffi::lc_send(group, tensor, to.get() as i32, i32::from(tag), out) })
    }

    fn start_recv(&self, name: &str, tensor: &Tensor, from: Option<Rank>, tag: u16) -> Result<Pending> {
        let (call, memory) = self.begin(name, tensor, Way::From, from, tag)?;
        let (group, tensor) = (self.as_ptr(), tensor.as_ptr());
        let peer = from.map_or(-1, |rank| rank.get() as i32);
        // SAFETY: the group is alive as long as self; libtorch takes its own reference to the tensor.
        Pending::start(call, memory, |out| unsafe { ffi::lc_recv(group, tensor, peer, i32::from(tag), out) })
    }

    /// Refuses what would wait for ever, a peer outside the group or this rank itself, and tensors that cannot be sent.
    fn begin(&self, name: &str, tensor: &Tensor, way: Way, peer: Option<Rank>, tag: u16) -> Result<(Call, InUse)> {
        if let Some(peer) = peer {
            self.check_member(name, peer)?;
            if peer == self.rank() {
                let detail = format!("rank {peer} cannot exchange messages with itself");
                return Err(Error::bad_argument(name, detail).at_rank(self.rank()));
            }
        }
        let mut guard = Guard::new(name, self, Traffic::Message);
        if way == Way::To { guard.reads("the tensor", tensor) } else { guard.writes("the tensor", tensor) }?;
        let operation = format!("{name} {} tag {tag}", describe(tensor));
        let memory = guard.claim(&operation)?;
        Ok((Call::message(self.inner(), operation, way, peer), memory))
    }
}

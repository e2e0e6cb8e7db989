//! A ring of ranks, for `ring_all_reduce`. You do not change this file.

use std::cell::Cell;

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

/// The tag of messages with the length of the next chunk.
const LENGTHS: u16 = 0;
/// The tag of messages with chunks.
const CHUNKS: u16 = 1;

/// A rank in a ring. It can send to the next rank and receive from the previous one.
pub struct Ring<'a> {
    group: &'a ProcessGroup,
    sent: Cell<usize>,
}

impl<'a> Ring<'a> {
    /// The ring of all ranks of a group.
    pub fn new(group: &'a ProcessGroup) -> Self {
        Ring { group, sent: Cell::new(0) }
    }

    pub fn rank(&self) -> usize {
        self.group.rank().get()
    }

    pub fn size(&self) -> usize {
        self.group.size().get()
    }

    /// Sends `chunk` to the next rank and returns the one that the previous rank sends in the same step. In a ring of one rank,
    /// the rank sends to itself.
    pub fn exchange(&self, chunk: &Tensor) -> Result<Tensor> {
        self.sent.set(self.sent.get() + chunk.numel());
        if self.size() == 1 {
            return Ok(chunk.copy());
        }
        let length = Tensor::from_slice(&[chunk.numel() as i64]);
        let length = self.swap(Some(length), Some(Tensor::zeros([1], (Kind::Int64, chunk.device()))), LENGTHS)?;
        let length = length.map_or(0, |length| length.int64_value(&[0]));
        let arrives = Tensor::zeros([length], (chunk.kind(), chunk.device()));
        // Empty chunks are not sent. Both sides know the length.
        let some = |tensor: &Tensor| (tensor.numel() > 0).then(|| tensor.shallow_clone());
        let arrived = self.swap(some(&chunk.contiguous()), some(&arrives), CHUNKS)?;
        Ok(arrived.unwrap_or(arrives))
    }

    /// The number of elements that this rank has sent.
    pub fn sent(&self) -> usize {
        self.sent.get()
    }

    fn swap(&self, leaves: Option<Tensor>, arrives: Option<Tensor>, tag: u16) -> Result<Option<Tensor>> {
        let next = Rank::new((self.rank() + 1) % self.size());
        let previous = Rank::new((self.rank() + self.size() - 1) % self.size());
        let sending = leaves.map(|tensor| self.group.isend(tensor, next, tag)).transpose()?;
        let receiving = arrives.map(|tensor| self.group.irecv(tensor, previous, tag)).transpose()?;
        let arrived = receiving.map(|work| work.wait()).transpose()?;
        sending.map(|work| work.wait()).transpose()?;
        Ok(arrived)
    }
}

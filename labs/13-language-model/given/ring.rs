//! A ring of ranks that divide a sequence, for task `ring_attention`. You do not change this file.

use std::cell::Cell;

use anyhow::{Result, ensure};
use c10d::ProcessGroup;
use lockstep::parallel::context::to_next;
use tch::{Kind, Tensor};

/// The ranks, in a ring.
pub struct Ring<'a> {
    group: &'a ProcessGroup,
    shifts: Cell<u64>,
    pairs: Cell<i64>,
}

impl<'a> Ring<'a> {
    pub(crate) fn new(group: &'a ProcessGroup) -> Self {
        Ring { group, shifts: Cell::new(0), pairs: Cell::new(0) }
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.group.rank().get()
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.group.size().get()
    }

    /// Sends a tensor to the next rank of the ring, and returns the tensor of the rank before. In the backward pass gradients go the other way,
    /// so each rank must use what it gets, or others wait for it.
    pub fn to_next(&self, tensor: &Tensor) -> Result<Tensor> {
        self.shifts.set(self.shifts.get() + 1);
        Ok(to_next(self.group, tensor)?)
    }

    /// Attention of these queries to these keys and no others, and for each query the logarithm of the sum of its scores' exponentials: by
    /// this sum the weights are divided. Queries `[q, d]`, keys and values `[k, d]`, results `[q, d]` and `[q, 1]`. If `causal`, the first
    /// query sees the first key only, the second two, and so on, and there must be as many.
    ///
    /// # Errors
    /// With `causal`, if there are not as many queries as keys.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, causal: bool) -> Result<(Tensor, Tensor)> {
        let (q, k) = (queries.size()[0], keys.size()[0]);
        ensure!(!causal || q == k, "attend: {q} queries and {k} keys, of which a causal mask needs as many");
        self.pairs.set(self.pairs.get() + q * k);
        let mut scores = queries.matmul(&keys.tr()) / (queries.size()[1] as f64).sqrt();
        if causal {
            scores =
                scores.masked_fill(&Tensor::ones([q, k], (Kind::Bool, scores.device())).triu(1), f64::NEG_INFINITY);
        }
        let log_sum = scores.logsumexp([-1].as_slice(), true);
        Ok(((scores - &log_sum).exp().matmul(values), log_sum))
    }

    /// How often this rank has sent, and how many pairs of a query and a key it has computed.
    pub(crate) fn end(&self) -> (u64, i64) {
        (self.shifts.get(), self.pairs.get())
    }
}

//! A layer of experts that ranks divide, for task `experts`. You do not change this file.

use std::cell::RefCell;
use std::ops::Range;

use anyhow::{Result, ensure};
use c10d::{ProcessGroup, Splits, all_to_all_single};
use serde::Serialize;
use tch::{Kind, Tensor};

/// The router, which all ranks have, and the experts: each rank has as many as another.
pub struct Mixture<'a> {
    group: &'a ProcessGroup,
    router: Tensor,
    weights: Vec<Tensor>,
    limit: usize,
    used: RefCell<Used>,
}

/// What a rank has done.
#[derive(Clone, Serialize)]
pub(crate) struct Used {
    /// Rows that each of its experts has computed.
    computed: Vec<i64>,
    exchanges: u64,
    /// Rows that it has sent.
    sent: i64,
}

/// What has become of a rank's tokens.
pub struct Routed {
    /// `[tokens, width]`, in the order of the tokens.
    pub output: Tensor,
    /// How many of this rank's tokens found no place.
    pub dropped: usize,
    /// The balancing loss, a scalar.
    pub balance: Tensor,
}

impl<'a> Mixture<'a> {
    /// `router` `[experts, width]`, and this rank's experts `[width, width]`.
    pub(crate) fn new(group: &'a ProcessGroup, router: Tensor, weights: Vec<Tensor>, limit: usize) -> Self {
        let used = RefCell::new(Used { computed: vec![0; weights.len()], exchanges: 0, sent: 0 });
        Mixture { group, router, weights, limit, used }
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.group.rank().get()
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.group.size().get()
    }

    /// The number of experts on all ranks.
    pub fn experts(&self) -> usize {
        self.router.size()[0] as usize
    }

    /// The experts of this rank: rank 0 has the first ones, rank 1 the next, and so on.
    pub fn own(&self) -> Range<usize> {
        let each = self.weights.len();
        self.rank() * each..(self.rank() + 1) * each
    }

    /// How many tokens of all ranks together an expert takes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The router's probabilities of each expert for each token, `[tokens, experts]`.
    pub fn probabilities(&self, tokens: &Tensor) -> Tensor {
        tokens.matmul(&self.router.tr()).softmax(-1, Kind::Double)
    }

    /// Passes tokens `[n, width]` through an expert, which must be one of this rank's; `n` may be 0.
    ///
    /// # Errors
    /// If the expert is on another rank.
    pub fn expert(&self, number: usize, tokens: &Tensor) -> Result<Tensor> {
        let own = self.own();
        ensure!(own.contains(&number), "expert {number} is not on rank {}, which has {own:?}", self.rank());
        self.used.borrow_mut().computed[number - own.start] += tokens.size()[0];
        Ok(tokens.matmul(&self.weights[number - own.start].tr()))
    }

    /// The numbers that all ranks pass, each as many; in the order of the ranks. One small message.
    pub fn all_numbers(&self, own: &[i64]) -> Result<Vec<Vec<i64>>> {
        let own = Tensor::from_slice(own);
        let mut all: Vec<Tensor> = (0..self.ranks()).map(|_| own.zeros_like()).collect();
        self.group.all_gather(&mut all, &own)?;
        Ok(all.into_iter().map(Vec::try_from).collect::<Result<_, _>>()?)
    }

    /// Sends the first `to[0]` rows to rank 0, the next `to[1]` to rank 1, and so on; returns `from[0]` rows of rank 0, then `from[1]` of
    /// rank 1, and so on. In the backward pass the gradient of each row goes back, so each rank must use what it gets, also if that is no row:
    /// otherwise others wait for it.
    ///
    /// # Errors
    /// If `to` does not add up to the rows, or a rank sends another number than is expected; those of the exchange.
    pub fn exchange(&self, rows: &Tensor, to: &[i64], from: &[i64]) -> Result<Tensor> {
        let mut used = self.used.borrow_mut();
        (used.exchanges, used.sent) = (used.exchanges + 1, used.sent + rows.size()[0]);
        let splits = Splits::Sizes { input: to.to_vec(), output: from.to_vec() };
        Ok(all_to_all_single(self.group, rows, &splits)?)
    }

    /// What this rank has done, and the gradients of the router and of its experts.
    pub(crate) fn end(&self) -> (Used, Vec<Tensor>) {
        let gradients = [&self.router].into_iter().chain(&self.weights).map(Tensor::grad);
        (self.used.borrow().clone(), gradients.collect())
    }
}

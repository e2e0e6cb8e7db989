//! Gradients that are compressed before they are averaged: bfloat16, and PowerSGD.
//!
//! PyTorch has both as communication hooks in Python; libtorch's own reducer has only fp16 ([`c10d::CommHook`]). Here they run after
//! the backward pass, on all gradients together, so nothing overlaps with them. Make the passes of a step in
//! [`no_sync`](crate::DistributedDataParallel::no_sync), then call [`CompressedAverage::average`].

use std::rc::Rc;

use c10d::{Error, ProcessGroup, ReduceOp, Result};
use tch::nn::VarStore;
use tch::{Kind, Tensor, no_grad};

use crate::optim::named_parameters;
use crate::rng::KeyedRng;

/// How gradients are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Half the bytes: the range of a float with 8 bits of mantissa (`bf16_compress_hook` in PyTorch).
    Bf16,
    /// Two matrices of n × `rank` and m × `rank` instead of one of n × m. What they leave out is added to the next step's
    /// gradient.
    ///
    /// T. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019, algorithms 1 and 2;
    /// `torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py`, which makes 1000 steps without compression first.
    PowerSgd {
        /// The rank of the approximation, at least 1.
        rank: i64,
    },
}

/// Averages the gradients of a model over a group, compressed.
#[derive(Debug)]
pub struct CompressedAverage {
    group: Rc<ProcessGroup>,
    /// Parameters whose gradients are sent whole.
    whole: Vec<Tensor>,
    /// The kind of numbers that are sent for them; the gradients' own if `None`.
    sent_as: Option<Kind>,
    matrices: Vec<Matrix>,
}

/// A matrix whose gradient is sent as two thin ones, and what PowerSGD remembers of it.
#[derive(Debug)]
struct Matrix {
    /// `[n, …]`.
    parameter: Tensor,
    /// `[m, rank]`: the right matrix of the last step, with which the next power iteration begins.
    right: Tensor,
    /// `[n, m]`: what this rank's gradients have lost so far.
    lost: Tensor,
}

impl CompressedAverage {
    /// For all trainable parameters of `vs`. `seed` must be equal on all ranks.
    ///
    /// Errors: `BadArgument` for matrices of a rank below 1.
    pub fn new(group: Rc<ProcessGroup>, vs: &VarStore, how: Compression, seed: u64) -> Result<Self> {
        let parameters = named_parameters(vs).into_iter().map(|(_, parameter)| parameter);
        let Compression::PowerSgd { rank } = how else {
            let (whole, sent_as) = (parameters.collect(), Some(Kind::BFloat16));
            return Ok(CompressedAverage { group, whole, sent_as, matrices: vec![] });
        };
        if rank < 1 {
            let detail = format!("PowerSGD needs matrices of rank 1 at least, not {rank}");
            return Err(Error::bad_argument("gradient compression", detail));
        }
        let (large, whole): (Vec<Tensor>, Vec<Tensor>) = parameters.partition(|parameter| is_worth_it(parameter, rank));
        let matrix = |(number, parameter)| Matrix::new(parameter, rank, [seed, number as u64]);
        let matrices = large.into_iter().enumerate().map(matrix).collect();
        Ok(CompressedAverage { group, whole, sent_as: None, matrices })
    }

    /// Replaces each gradient by its mean over all ranks, as the compression approximates it. A collective: one all-reduce, and a
    /// second one with PowerSGD.
    pub fn average(&mut self) -> Result<()> {
        no_grad(|| {
            let whole = self.whole.iter().map(gradient).collect::<Result<Vec<_>>>()?;
            // With what earlier steps have lost.
            let due = |matrix: &Matrix| Ok(gradient(&matrix.parameter)?.view_as(&matrix.lost) + &matrix.lost);
            let due = self.matrices.iter().map(due).collect::<Result<Vec<Tensor>>>()?;
            let lefts = due.iter().zip(&self.matrices).map(|(due, matrix)| due.matmul(&matrix.right));
            let mut means = self.mean(whole.iter().map(Tensor::shallow_clone).chain(lefts).collect())?;
            let lefts: Vec<Tensor> = means.split_off(whole.len()).iter().map(orthonormal).collect();
            for (mut gradient, mean) in whole.into_iter().zip(means) {
                gradient.copy_(&mean);
            }
            if self.matrices.is_empty() {
                return Ok(());
            }
            let rights = due.iter().zip(&lefts).map(|(due, left)| due.tr().matmul(left));
            let rights = self.mean(rights.collect())?;
            for ((matrix, due), (left, right)) in self.matrices.iter_mut().zip(due).zip(lefts.iter().zip(rights)) {
                let mean = left.matmul(&right.tr());
                let mut gradient = matrix.parameter.grad();
                gradient.copy_(&mean.view_as(&gradient));
                (matrix.lost, matrix.right) = (due - mean, right);
            }
            Ok(())
        })
    }

    /// The means of these tensors over all ranks, in one all-reduce.
    fn mean(&self, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let Some(first) = tensors.first() else { return Ok(tensors) };
        let kind = first.kind();
        let flat: Vec<Tensor> = tensors.iter().map(|tensor| tensor.reshape([-1])).collect();
        // Divided first, so that the sum has the size of a gradient, whatever the number of ranks.
        let mut sum = (Tensor::cat(&flat, 0) / self.group.size().get() as f64).to_kind(self.sent_as.unwrap_or(kind));
        self.group.all_reduce(&mut sum, ReduceOp::Sum)?;
        let lengths: Vec<i64> = flat.iter().map(|tensor| tensor.size()[0]).collect();
        let parts = sum.to_kind(kind).split_with_sizes(lengths, 0);
        Ok(parts.iter().zip(&tensors).map(|(part, tensor)| part.view_as(tensor)).collect())
    }
}

impl Matrix {
    /// `key` is that of the first right matrix.
    fn new(parameter: Tensor, rank: i64, key: [u64; 2]) -> Self {
        let (n, m) = sides(&parameter);
        let lost = Tensor::zeros([n, m], (parameter.kind(), parameter.device()));
        let mut random = KeyedRng::new(&key);
        let numbers: Vec<f32> = (0..m * rank).map(|_| random.between(-1.0, 1.0)).collect();
        let right = Tensor::from_slice(&numbers).to_kind(parameter.kind()).to_device(parameter.device());
        Matrix { parameter, right: right.view([m, rank]), lost }
    }
}

/// The rows and columns of a parameter as a matrix; (0, 0) if it has none.
fn sides(parameter: &Tensor) -> (i64, i64) {
    match parameter.size()[..] {
        [n, _, ..] if n > 0 => (n, parameter.numel() as i64 / n),
        _ => (0, 0),
    }
}

fn gradient(parameter: &Tensor) -> Result<Tensor> {
    let gradient = parameter.grad();
    if gradient.defined() {
        return Ok(gradient);
    }
    let detail = format!("a parameter of shape {:?} has no gradient: call backward before", parameter.size());
    Err(Error::bad_argument("gradient compression", detail))
}

/// Returns true if two thin matrices have fewer numbers than the matrix.
fn is_worth_it(parameter: &Tensor, rank: i64) -> bool {
    let (n, m) = sides(parameter);
    (n + m) * rank < n * m
}

/// Orthonormal columns that span those of `matrix`. All ranks have the same, so they get the same.
fn orthonormal(matrix: &Tensor) -> Tensor {
    Tensor::linalg_qr(matrix, "reduced").0
}

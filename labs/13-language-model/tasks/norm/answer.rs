//! Task 3: the norm of gradients that lie on several ranks.
//!
//! Some parameters are the same on all of two to four ranks, and so are their gradients. Of others each rank has a part, as with tensor parallelism
//! or full sharding, or has only the gradients of its own pipeline stage. A rank may have none.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

/// A gradient on this rank.
pub struct Gradient {
    /// The numbers, `Double`, of any shape.
    pub values: Tensor,
    /// False if all ranks have the same numbers, true if each has others.
    pub divided: bool,
}

/// Clips as `torch.nn.utils.clip_grad_norm_` does on one rank that has all gradients: if the norm of all numbers together is above `max_norm`,
/// each is multiplied by `max_norm / norm`, in place. Returns the norm from before, on each rank. Takes one operation of the group.
pub fn norm(group: &ProcessGroup, gradients: &mut [Gradient], max_norm: f64) -> Result<f64> {
    // <answer>
    //~ // This is right if there is one rank.
    //~ let squares: f64 =
    //~     gradients.iter().map(|gradient| gradient.values.square().sum(Kind::Double).double_value(&[])).sum();
    //~ let norm = squares.sqrt();
    //~ if norm > max_norm {
    //~     gradients.iter_mut().for_each(|gradient| gradient.values *= max_norm / norm);
    //~ }
    //~ Ok(norm)
    let squares = |divided: bool| -> f64 {
        let some = gradients.iter().filter(|gradient| gradient.divided == divided);
        some.map(|gradient| gradient.values.square().sum(Kind::Double).double_value(&[])).sum()
    };
    // Each number counts once: the parts are added over the ranks, what all have is not.
    let mut parts = Tensor::from_slice(&[squares(true)]);
    group.all_reduce(&mut parts, ReduceOp::Sum)?;
    let norm = (squares(false) + parts.double_value(&[0])).sqrt();
    if norm > max_norm {
        gradients.iter_mut().for_each(|gradient| gradient.values *= max_norm / norm);
    }
    Ok(norm)
    // </answer>
}

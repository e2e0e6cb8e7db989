//! Task 3: where does the memory go?
//!
//! Predict what a rank holds and sends in each scheme. The grader then runs a real step in each of them, on real ranks, and counts.

use serde::{Deserialize, Serialize};

/// Blocks of two layers without biases, x + relu(x W₁ᵀ) W₂ᵀ, in single precision (4 bytes for each number). The first block's inputs are
/// those of an embedding, which also needs their gradient.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Model {
    /// Blocks; a multiple of the number of ranks.
    pub blocks: u64,
    /// Inputs and outputs of a block, f. W₁ is `[4 f, f]`, W₂ is `[f, 4 f]`.
    pub features: u64,
    /// Rows of a step's batch, of all ranks together.
    pub rows: u64,
}

/// How the training is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// A whole model on each rank; gradients are averaged.
    Ddp,
    /// As `Ddp`, but a rank has the optimizer's states of its share of the parameters, updates these, and sends them to the others.
    Zero,
    /// Each rank has an equal part of each block's weights, and computes the whole model with its rows: a block is gathered before its
    /// forward pass, freed after it, gathered again before its backward pass, and its gradients are reduced.
    Sharded,
    /// Each rank has a part of each layer: column, then row.
    Tensor,
    /// Each rank has some of the blocks; rank 0 the first ones. The batch is divided into micro-batches.
    Pipeline,
}

/// What one rank holds after a step of Adam, and what it passes to its group in a step: an all-reduce or a broadcast of n bytes counts n on
/// each rank, a message n on its sender; an all-gather counts the part that the rank contributes, and a reduce-scatter its whole input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Of parameters.
    pub parameters: u64,
    /// Of gradients.
    pub gradients: u64,
    /// Of the optimizer's states.
    pub states: u64,
    /// Passed to the group in a step.
    pub sent: u64,
}

/// What rank `rank` of `ranks` holds, and passes to its group in a step.
pub fn predict_bytes(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let Model { blocks, features, rows } = *model;
    // <answer>
    //~ todo!("count the numbers of a block and of its outputs; a number has 4 bytes")
    let all = blocks * 8 * features * features * 4;
    let activations = rows * features * 4;
    match scheme {
        Scheme::Ddp => Bytes { parameters: all, gradients: all, states: 2 * all, sent: all },
        // Gradients are averaged, then each parameter is broadcast by its owner.
        Scheme::Zero => Bytes { parameters: all, gradients: all, states: 2 * all / ranks, sent: 2 * all },
        // Each block is gathered twice, where a rank contributes its part, and reduced once, where it contributes all gradients.
        Scheme::Sharded => {
            let part = all / ranks;
            Bytes { parameters: part, gradients: part, states: 2 * part, sent: 2 * part + all }
        }
        // For each block the sum of its outputs, and the sum of the gradients of its inputs.
        Scheme::Tensor => {
            let part = all / ranks;
            Bytes { parameters: part, gradients: part, states: 2 * part, sent: 2 * blocks * activations }
        }
        // Activations to the next stage, gradients to the one before.
        Scheme::Pipeline => {
            let (part, neighbours) = (all / ranks, u64::from(rank > 0) + u64::from(rank + 1 < ranks));
            Bytes { parameters: part, gradients: part, states: 2 * part, sent: neighbours * activations }
        }
    }
    // </answer>
}

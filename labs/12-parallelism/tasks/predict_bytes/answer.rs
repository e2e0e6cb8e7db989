//! Task 3: where does the memory go?
//!
//! Predict what a rank holds and sends in each scheme. The grader then runs a real step in each of them, on real ranks, and counts.

use crate::division::{Bytes, Model, Scheme};

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
        // Each block is gathered twice, to which a rank gives its part, and reduced once, to which it gives all gradients.
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

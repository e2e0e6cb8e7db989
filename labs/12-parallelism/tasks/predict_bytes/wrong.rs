//! Answers to `predict_bytes`: wrong ones, and an unusual right one.

use lockstep_answers::edit;

use crate::predict_bytes::{Bytes, Model, Scheme, predict_bytes};

/// One number of state for each parameter.
pub fn one_state(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = predict_bytes(model, scheme, ranks, rank);
    Bytes { states: bytes.states / 2, ..bytes }
}

/// ZeRO divides gradients and parameters, too.
#[edit(parameters: all, gradients: all, states: 2 * all / ranks => parameters: all / ranks, gradients: all / ranks, states: 2 * all / ranks)]
pub fn zero_divides_all() {}

/// Nobody sends the updated parameters.
#[edit(sent: 2 * all => sent: all)]
pub fn zero_sends_gradients() {}

/// Forgets the backward pass.
#[edit(2 * blocks * activations => blocks * activations)]
pub fn forward_only() {}

/// Counts what a ring carries.
#[edit(states: 2 * all, sent: all => states: 2 * all, sent: 2 * (ranks - 1) * all / ranks)]
pub fn of_the_ring() {}

/// Every stage has two neighbours.
#[edit(neighbours * activations => 2 * activations)]
pub fn two_neighbours() {}

/// Four exchanges a block, as a transformer has.
#[edit(2 * blocks * activations => 4 * blocks * activations)]
pub fn of_a_transformer() {}

/// Exchanges what lies between the two layers.
#[edit(2 * blocks * activations => 8 * blocks * activations)]
pub fn between_layers() {}

/// Every stage has one neighbour, as on two ranks.
#[edit(neighbours * activations => activations)]
pub fn one_neighbour() {}

/// ZeRO divides gradients, too, its second stage.
#[edit(gradients: all, states: 2 * all / ranks => gradients: all / ranks, states: 2 * all / ranks)]
pub fn second_stage() {}

/// Numbers in place of bytes.
#[edit(features * features * 4 => features * features)]
#[edit(rows * features * 4 => rows * features)]
pub fn numbers() {}

/// One weight a block.
#[edit(blocks * 8 => blocks * 4)]
pub fn one_weight() {}

/// Takes both weights for square ones.
#[edit(blocks * 8 * features => blocks * 2 * features)]
pub fn square_weights() {}

/// Counts numbers of 2 bytes.
#[edit(features * features * 4 => features * features * 2)]
#[edit(rows * features * 4 => rows * features * 2)]
pub fn half_precision() {}

/// ZeRO's states are whole.
#[edit(gradients: all, states: 2 * all / ranks => gradients: all, states: 2 * all)]
pub fn whole_states() {}

/// A third copy of the states, and no gradients: mistakes of no known kind.
#[edit(Bytes { parameters: all, gradients: all, states: 2 * all, sent: all } => Bytes { parameters: all, gradients: 0, states: 3 * all, sent: all })]
pub fn third_state() {}

/// Keeps whole gradients in fully sharded training.
#[edit(gradients: part, states: 2 * part, sent: 2 * part + all => gradients: all, states: 2 * part, sent: 2 * part + all)]
pub fn whole_gradients() {}

/// Gathers a block once.
#[edit(2 * part + all => part + all)]
pub fn gathered_once() {}

/// Counts what an all-gather gives.
#[edit(2 * part + all => 3 * all)]
pub fn gathered_whole() {}

/// Sends gradients only, as DDP does.
#[edit(2 * part + all => all)]
pub fn sent_as_ddp() {}

/// Counts only the broadcasts of its own parameters.
#[edit(sent: 2 * all => sent: all + all / ranks)]
pub fn own_broadcasts() {}

/// Forgets that the first inputs need a gradient.
#[edit(2 * blocks * activations => 2 * blocks * activations - activations)]
pub fn no_embedding() {}

/// Divides the batch, too.
#[edit(2 * blocks * activations => 2 * blocks * activations / ranks)]
pub fn own_rows() {}

/// Takes an output for as large as a weight's side in both directions.
pub fn square_output(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    predict_bytes(&Model { rows: model.features, ..*model }, scheme, ranks, rank)
}

/// Right: adds up what every layer has and every exchange sends.
pub fn adds_up(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let Model { blocks, features, rows } = *model;
    let layers = (0..blocks).flat_map(|_| [4 * features * features; 2]);
    let parameters: u64 = layers.map(|numbers| numbers * 4).sum();
    let held = |divided: bool| if divided { parameters / ranks } else { parameters };
    let whole = matches!(scheme, Scheme::Ddp | Scheme::Zero);
    let output = rows * features * 4;
    let sent = match scheme {
        Scheme::Ddp => parameters,
        Scheme::Zero => parameters + parameters,
        // A block's parts, forward and backward, and its gradients.
        Scheme::Sharded => (0..blocks).map(|_| (2 * held(true) + parameters) / blocks).sum(),
        Scheme::Tensor => (0..blocks).map(|_| output + output).sum(),
        Scheme::Pipeline => {
            [rank + 1 < ranks, rank > 0].iter().filter(|has_neighbour| **has_neighbour).map(|_| output).sum()
        }
    };
    Bytes { parameters: held(!whole), gradients: held(!whole), states: 2 * held(scheme != Scheme::Ddp), sent }
}

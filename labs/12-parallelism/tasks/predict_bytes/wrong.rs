//! Answers to `predict_bytes`: wrong ones, and an unusual right one.

use lockstep_answers::edit;

use crate::predict_bytes::{Bytes, Model, Scheme};

fn right(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let all = model.blocks * 8 * model.features * model.features * 4;
    let activations = model.rows * model.features * 4;
    let part = all / ranks;
    let neighbours = u64::from(rank > 0) + u64::from(rank + 1 < ranks);
    match scheme {
        Scheme::Ddp => Bytes { parameters: all, gradients: all, states: 2 * all, sent: all },
        Scheme::Zero => Bytes { parameters: all, gradients: all, states: 2 * part, sent: 2 * all },
        Scheme::Sharded => Bytes { parameters: part, gradients: part, states: 2 * part, sent: 2 * part + all },
        Scheme::Tensor => {
            Bytes { parameters: part, gradients: part, states: 2 * part, sent: 2 * model.blocks * activations }
        }
        Scheme::Pipeline => {
            Bytes { parameters: part, gradients: part, states: 2 * part, sent: neighbours * activations }
        }
    }
}

/// One number of state for each parameter.
pub fn one_state(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    Bytes { states: bytes.states / 2, ..bytes }
}

/// ZeRO divides gradients and parameters, too.
pub fn zero_divides_all(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    match scheme {
        Scheme::Zero => Bytes { parameters: bytes.parameters / ranks, gradients: bytes.gradients / ranks, ..bytes },
        _ => bytes,
    }
}

/// Nobody sends the updated parameters.
pub fn zero_sends_gradients(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Zero { Bytes { sent: bytes.sent / 2, ..bytes } } else { bytes }
}

/// Forgets the backward pass.
pub fn forward_only(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Tensor { Bytes { sent: bytes.sent / 2, ..bytes } } else { bytes }
}

/// Counts what a ring carries.
pub fn of_the_ring(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Ddp { Bytes { sent: 2 * (ranks - 1) * bytes.sent / ranks, ..bytes } } else { bytes }
}

/// Every stage has two neighbours.
pub fn two_neighbours(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    let both = 2 * model.rows * model.features * 4;
    if scheme == Scheme::Pipeline { Bytes { sent: both, ..bytes } } else { bytes }
}

/// Four exchanges a block, as a transformer has.
pub fn of_a_transformer(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Tensor { Bytes { sent: 2 * bytes.sent, ..bytes } } else { bytes }
}

/// Exchanges what lies between the two layers.
pub fn between_layers(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Tensor { Bytes { sent: 4 * bytes.sent, ..bytes } } else { bytes }
}

/// Every stage has one neighbour, as on two ranks.
pub fn one_neighbour(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Pipeline { Bytes { sent: model.rows * model.features * 4, ..bytes } } else { bytes }
}

/// ZeRO divides gradients, too, its second stage.
pub fn second_stage(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Zero { Bytes { gradients: bytes.gradients / ranks, ..bytes } } else { bytes }
}

/// Numbers in place of bytes.
pub fn numbers(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let Bytes { parameters, gradients, states, sent } = right(model, scheme, ranks, rank);
    Bytes { parameters: parameters / 4, gradients: gradients / 4, states: states / 4, sent: sent / 4 }
}

/// One weight a block.
pub fn one_weight(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let Bytes { parameters, gradients, states, sent } = right(model, scheme, ranks, rank);
    let sent = if matches!(scheme, Scheme::Tensor | Scheme::Pipeline) { sent } else { sent / 2 };
    Bytes { parameters: parameters / 2, gradients: gradients / 2, states: states / 2, sent }
}

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

fn of_sharded(model: &Model, scheme: Scheme, ranks: u64, rank: u64, wrong: impl Fn(u64, Bytes) -> Bytes) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Sharded { wrong(bytes.parameters * ranks, bytes) } else { bytes }
}

/// Keeps whole gradients in fully sharded training.
pub fn whole_gradients(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    of_sharded(model, scheme, ranks, rank, |all, bytes| Bytes { gradients: all, ..bytes })
}

/// Gathers a block once.
pub fn gathered_once(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    of_sharded(model, scheme, ranks, rank, |all, bytes| Bytes { sent: all / ranks + all, ..bytes })
}

/// Counts what an all-gather gives.
pub fn gathered_whole(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    of_sharded(model, scheme, ranks, rank, |all, bytes| Bytes { sent: 3 * all, ..bytes })
}

/// Sends gradients only, as DDP does.
pub fn sent_as_ddp(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    of_sharded(model, scheme, ranks, rank, |all, bytes| Bytes { sent: all, ..bytes })
}

/// Counts only the broadcasts of its own parameters.
pub fn own_broadcasts(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Zero { Bytes { sent: bytes.parameters + bytes.parameters / ranks, ..bytes } } else { bytes }
}

/// Forgets that the first inputs need a gradient.
pub fn no_embedding(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Tensor { Bytes { sent: bytes.sent - model.rows * model.features * 4, ..bytes } } else { bytes }
}

/// Divides the batch, too.
pub fn own_rows(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let bytes = right(model, scheme, ranks, rank);
    if scheme == Scheme::Tensor { Bytes { sent: bytes.sent / ranks, ..bytes } } else { bytes }
}

/// Takes an output for as large as a weight's side in both directions.
pub fn square_output(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    crate::predict_bytes::predict_bytes(&Model { rows: model.features, ..*model }, scheme, ranks, rank)
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

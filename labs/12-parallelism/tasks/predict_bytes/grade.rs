//! Grades `predict_bytes`: what was predicted against what the same ranks then counted, in each scheme, on 2 and 3 ranks.

use lockstep_grading::{Claim, Runner, causes, joined};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize)]
struct Model {
    blocks: u64,
    features: u64,
    rows: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Scheme {
    Ddp,
    Zero,
    Sharded,
    Tensor,
    Pipeline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Bytes {
    parameters: u64,
    gradients: u64,
    states: u64,
    sent: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [3, 2] {
        // No two of these are equal, nor is a rank's part of the blocks one block, so that none can be taken for another.
        let blocks = (ranks * 2) as u64;
        let features = (ranks * [3, 5][random.below(0..2)]) as u64;
        // Fewer than the numbers of a weight, so that the schemes differ.
        let rows = (ranks * [4, 8][random.below(0..2)]) as u64;
        let model = Model { blocks, features, rows };
        let schemes = [Scheme::Ddp, Scheme::Zero, Scheme::Sharded, Scheme::Tensor, Scheme::Pipeline];
        let cases = schemes.map(|scheme| (model, scheme));
        let outputs = runner.call::<_, (Bytes, Bytes)>(ranks, &cases)?;
        for (number, (model, scheme)) in cases.into_iter().enumerate() {
            for (rank, (predicted, counted)) in outputs.all(number).enumerate() {
                let all: Vec<(Scheme, Bytes, Bytes)> = cases
                    .iter()
                    .enumerate()
                    .map(|(case, (_, of))| (*of, outputs.of(rank, case).0, outputs.of(rank, case).1))
                    .collect();
                check(model, scheme, (ranks, rank), *predicted, *counted, &all)?;
            }
        }
    }
    Ok(())
}

/// `all` are what this rank has predicted and counted in each scheme.
fn check(
    model: Model,
    scheme: Scheme,
    (ranks, rank): (usize, usize),
    predicted: Bytes,
    counted: Bytes,
    all_schemes: &[(Scheme, Bytes, Bytes)],
) -> anyhow::Result<()> {
    let Model { blocks, features, rows } = model;
    let fields = [
        ("parameters", predicted.parameters == counted.parameters),
        ("gradients", predicted.gradients == counted.gradients),
        ("states", predicted.states == counted.states),
        ("sent", predicted.sent == counted.sent),
    ];
    let names = |right: bool| {
        let some: Vec<&str> = fields.iter().filter(|(_, is)| *is == right).map(|(name, _)| *name).collect();
        if some.is_empty() { "none".to_owned() } else { joined(&some, ", ") }
    };
    // All that has to do with weights is so many times smaller; or all, so that activations are, too.
    let smaller = |by: u64, activations: bool| {
        all_schemes.iter().all(|(scheme, predicted, counted)| {
            let sends_activations = matches!(scheme, Scheme::Tensor | Scheme::Pipeline);
            let sent = if sends_activations && !activations { counted.sent } else { counted.sent / by };
            let (parameters, gradients, states) =
                (counted.parameters / by, counted.gradients / by, counted.states / by);
            *predicted == Bytes { parameters, gradients, states, sent }
        })
    };
    let ranks = ranks as u64;
    let all = weights(blocks, features);
    Claim::that(predicted == counted, format!("counted: {counted:?}"), format!("predicted: {predicted:?}"))
        .on_rank(rank)
        .given(format!("{scheme:?} on {ranks} ranks, {blocks} blocks of {features} features, {rows} rows"))
        .cause_if(
            smaller(4, true),
            "these are counts of numbers, not bytes: in single precision each number has 4",
        )
        .cause_if(smaller(4, false), "a block's weights have 4 f² numbers each: W₁ is `[4 f, f]`, and W₂ `[f, 4 f]`")
        .cause_if(smaller(2, true), "these are numbers of 2 bytes: in single precision each has 4")
        .cause_if(smaller(2, false), "a block has two weights, W₁ and W₂, each of 4 f² numbers")
        .cause_if(
            predicted == Bytes { states: counted.states / 2, ..counted },
            "Adam keeps two numbers for each parameter: the means of its gradients and of their squares",
        )
        .cause_if(
            scheme == Scheme::Zero
                && (predicted.parameters == all / ranks || predicted.gradients == all / ranks),
            "this optimizer divides its states only, ZeRO's first stage: parameters and gradients stay whole on each rank",
        )
        .cause_if(
            scheme == Scheme::Sharded && (predicted.parameters == all || predicted.gradients == all),
            "a rank holds only its part of the gradients, as of parameters and states: a block is whole while it is computed, not after a \
             step",
        )
        .causes(&causes(&of_a_scheme(model, ranks, counted), |(of, wrong)| scheme == *of && predicted == *wrong))
        .or_fail(format!("right: {}; not what was counted: {}", names(true), names(false)))
}

/// What mistakes in one scheme give where this was counted.
fn of_a_scheme(
    Model { blocks, features, rows }: Model,
    ranks: u64,
    counted: Bytes,
) -> [((Scheme, Bytes), &'static str); 14] {
    let all = weights(blocks, features);
    [
        (
            (Scheme::Zero, Bytes { sent: counted.sent / 2, ..counted }),
            "the gradients are averaged, and then the other ranks need the parameters that a rank has updated",
        ),
        (
            (Scheme::Sharded, Bytes { sent: all / ranks + all, ..counted }),
            "a block is freed after its forward pass, and so it is gathered twice: the backward pass needs its weights, too",
        ),
        (
            (Scheme::Sharded, Bytes { sent: 3 * all, ..counted }),
            "an all-gather counts what a rank contributes, its part of the weights, although it receives the whole",
        ),
        (
            (Scheme::Sharded, Bytes { sent: all, ..counted }),
            "each of a block's two all-gathers counts this rank's part of the weights, and the reduce-scatter counts all gradients of the \
             block, which a rank contributes",
        ),
        (
            (Scheme::Tensor, Bytes { sent: counted.sent / 2, ..counted }),
            "a block has one all-reduce forward, of its outputs, and one backward, of the gradient of its inputs",
        ),
        (
            (Scheme::Ddp, Bytes { sent: 2 * (ranks - 1) * counted.sent / ranks, ..counted }),
            "this is what a ring sends for it; an all-reduce of n bytes counts n here, whatever the algorithm",
        ),
        (
            (Scheme::Pipeline, Bytes { sent: 2 * rows * features * 4, ..counted }),
            "the last stage sends no activations, and the first no gradient: each has one neighbour",
        ),
        (
            (Scheme::Tensor, Bytes { sent: 2 * counted.sent, ..counted }),
            "a block here is one pair of layers, with one all-reduce forward and one backward: four are those of a transformer's block, \
             which has two such pairs",
        ),
        (
            (Scheme::Tensor, Bytes { sent: 4 * counted.sent, ..counted }),
            "a block exchanges its outputs, which have as many features as its inputs. What lies between its two layers has four times as \
             many, and a rank needs only its own part of that",
        ),
        (
            (Scheme::Pipeline, Bytes { sent: rows * features * 4, ..counted }),
            "a stage in the middle has two neighbours: it sends activations to the one after it and a gradient to the one before it",
        ),
        (
            (Scheme::Zero, Bytes { sent: all + all / ranks, ..counted }),
            "a broadcast of n bytes counts n on each rank, also on those that receive: all ranks take part in all broadcasts",
        ),
        (
            (Scheme::Tensor, Bytes { sent: counted.sent - rows * features * 4, ..counted }),
            "the first block's inputs come from an embedding, which needs their gradient: that block's backward pass ends with an \
             all-reduce, too",
        ),
        (
            (Scheme::Tensor, Bytes { sent: counted.sent / ranks, ..counted }),
            "the layers are divided, not the batch: each rank has all rows, and the all-reduces have the outputs of all rows",
        ),
        (
            (Scheme::Zero, Bytes { states: 2 * all, ..counted }),
            "this optimizer divides its states: a rank has those of its share of the parameters",
        ),
    ]
}

/// The bytes of all weights.
fn weights(blocks: u64, features: u64) -> u64 {
    blocks * 8 * features * features * 4
}

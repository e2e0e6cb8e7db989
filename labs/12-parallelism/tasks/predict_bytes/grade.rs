//! Grades `predict_bytes`: what was predicted against what the same ranks then counted, in each scheme, on 2 and 3 ranks.

use lockstep_grading::{Claim, Runner};
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
                check(model, scheme, (ranks, rank), *predicted, *counted)?;
            }
        }
    }
    Ok(())
}

fn check(
    model: Model,
    scheme: Scheme,
    (ranks, rank): (usize, usize),
    predicted: Bytes,
    counted: Bytes,
) -> anyhow::Result<()> {
    let Model { blocks, features, rows } = model;
    let is = |scheme_is: Scheme, wrong: Bytes| scheme == scheme_is && predicted == wrong;
    let ranks = ranks as u64;
    let all = blocks * 8 * features * features * 4;
    Claim::that(predicted == counted, format!("counted: {counted:?}"), format!("predicted: {predicted:?}"))
        .on_rank(rank)
        .given(format!("{scheme:?} on {ranks} ranks, {blocks} blocks of {features} features, {rows} rows"))
        .diagnose_if(
            predicted.parameters * 4 == counted.parameters,
            "these are counts of numbers, not bytes: in single precision each number has 4",
        )
        .diagnose_if(
            predicted.parameters * 2 == counted.parameters,
            "a block has two weights, W₁ and W₂, each of 4 f² numbers",
        )
        .diagnose_if(
            predicted == Bytes { states: counted.states / 2, ..counted },
            "Adam keeps two numbers for each parameter: the means of its gradients and of their squares",
        )
        .diagnose_if(
            scheme == Scheme::Zero
                && (predicted.parameters < counted.parameters || predicted.gradients < counted.gradients),
            "this optimizer divides its states only, ZeRO's first stage: parameters and gradients stay whole on each rank",
        )
        .diagnose_if(
            is(Scheme::Zero, Bytes { sent: counted.sent / 2, ..counted }),
            "the gradients are averaged, and then the other ranks need the parameters that a rank has updated",
        )
        .diagnose_if(
            scheme == Scheme::Sharded
                && (predicted.parameters > counted.parameters || predicted.gradients > counted.gradients),
            "a rank holds only its part of the gradients, as of parameters and states: a block is whole while it is computed, not after a \
             step",
        )
        .diagnose_if(
            is(Scheme::Sharded, Bytes { sent: all / ranks + all, ..counted }),
            "a block is freed after its forward pass, and so it is gathered twice: the backward pass needs its weights, too",
        )
        .diagnose_if(
            is(Scheme::Sharded, Bytes { sent: 3 * all, ..counted }),
            "an all-gather counts what a rank contributes, its part of the weights, although it receives the whole",
        )
        .diagnose_if(
            is(Scheme::Sharded, Bytes { sent: all, ..counted }),
            "each of a block's two all-gathers counts this rank's part of the weights, and the reduce-scatter counts all gradients of the \
             block, which a rank contributes",
        )
        .diagnose_if(
            is(Scheme::Tensor, Bytes { sent: counted.sent / 2, ..counted }),
            "a block has one all-reduce forward, of its outputs, and one backward, of the gradient of its inputs",
        )
        .diagnose_if(
            is(Scheme::Ddp, Bytes { sent: 2 * (ranks - 1) * counted.sent / ranks, ..counted }),
            "this is what a ring sends for it; an all-reduce of n bytes counts n here, whatever the algorithm",
        )
        .diagnose_if(
            is(Scheme::Pipeline, Bytes { sent: 2 * rows * features * 4, ..counted }),
            "the last stage sends no activations, and the first no gradient: each has one neighbour",
        )
        .diagnose_if(
            is(Scheme::Tensor, Bytes { sent: 2 * counted.sent, ..counted }),
            "a block here is one pair of layers, with one all-reduce forward and one backward: four are those of a transformer's block, \
             which has two such pairs",
        )
        .diagnose_if(
            is(Scheme::Tensor, Bytes { sent: 4 * counted.sent, ..counted }),
            "a block exchanges its outputs, which have as many features as its inputs. What lies between its two layers has four times as \
             many, and a rank needs only its own part of that",
        )
        .diagnose_if(
            is(Scheme::Pipeline, Bytes { sent: rows * features * 4, ..counted }),
            "a stage in the middle has two neighbours: it sends activations to the one after it and a gradient to the one before it",
        )
        .diagnose_if(
            is(Scheme::Zero, Bytes { sent: all + all / ranks, ..counted }),
            "a broadcast of n bytes counts n on each rank, also on those that receive: all ranks take part in all broadcasts",
        )
        .diagnose_if(
            is(Scheme::Tensor, Bytes { sent: counted.sent - rows * features * 4, ..counted }),
            "the first block's inputs come from an embedding, which needs their gradient: that block's backward pass ends with an \
             all-reduce, too",
        )
        .diagnose_if(
            is(Scheme::Tensor, Bytes { sent: counted.sent / ranks, ..counted }),
            "the layers are divided, not the batch: each rank has all rows, and the all-reduces have the outputs of all rows",
        )
        .or_fail("the prediction is not what was counted")
}

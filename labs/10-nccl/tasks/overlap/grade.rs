//! Grades `overlap`: two passes of three layers on two ranks, one with each stream ahead of the other.

use lockstep_grading::{Claim, Runner};
use serde::Deserialize;

use super::device;

const RANKS: usize = 2;
const LAYERS: usize = 3;

/// A gradient before the backward pass, and what that adds.
type Layer = (f32, f32);

#[derive(Deserialize)]
struct Seen {
    weights: Vec<f32>,
    unready: Vec<usize>,
    unaveraged: Vec<usize>,
    exposed: bool,
    late: Vec<usize>,
    waits: u64,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Rank 1's are larger, so that no mean is a rank's own; halves of whole numbers are exact.
    let mut number = |rank: usize| (random.below(1..40) + 100 * rank) as f32;
    let layers: Vec<Vec<Layer>> =
        (0..RANKS).map(|rank| (0..LAYERS).map(|_| (number(rank), number(rank))).collect()).collect();
    let cases = [true, false].map(|communication_first| (&layers, communication_first));
    let outputs = device::call::<_, Seen>(runner, RANKS, &cases)?;
    for case in 0..cases.len() {
        for (rank, seen) in outputs.all(case).enumerate() {
            check(rank, &layers, seen)?;
        }
    }
    for case in 0..cases.len() {
        for (rank, seen) in outputs.all(case).enumerate() {
            check_overlap(rank, seen)?;
        }
    }
    Ok(())
}

fn check(rank: usize, layers: &[Vec<Layer>], seen: &Seen) -> anyhow::Result<()> {
    let mean = |layer: usize| layers.iter().map(|rank| rank[layer].0 + rank[layer].1).sum::<f32>() / RANKS as f32;
    let expected: Vec<f32> = (0..LAYERS).map(mean).collect();
    let is_right = expected == seen.weights;
    let observed = format!("{:?}{}", seen.weights, if is_right { ", by chance" } else { "" });
    Claim::that(
        is_right && seen.unready.is_empty() && seen.unaveraged.is_empty(),
        format!("{expected:?}"),
        observed,
    )
    .on_rank(rank)
    .given(format!("gradients of {LAYERS} layers on {RANKS} ranks, before the backward pass and what it adds: {layers:?}"))
    .diagnose_if(
        !seen.unready.is_empty(),
        "an all-reduce can average what is in the buffer before the backward pass has added to it: the communication stream has to wait \
         for an event that was recorded after that kernel",
    )
    .diagnose_if(
        seen.unaveraged.len() == LAYERS,
        "the optimizer's step can come before the all-reduce, with the rank's own gradients. The compute stream has to wait for an event in \
         the communication stream",
    )
    .diagnose_if(
        !seen.unaveraged.is_empty(),
        "some layers can have the rank's own gradient: their all-reduce comes after the event that the compute stream waits for. An event \
         comes after the work that was in the stream when it was recorded, so record it after the last all-reduce, or one for each layer",
    )
    .or_fail("these are not the averaged gradients")
}

fn check_overlap(rank: usize, seen: &Seen) -> anyhow::Result<()> {
    Claim::that(seen.waits == 0, "the host never waits", format!("its waits: {}", seen.waits))
        .on_rank(rank)
        .or_fail(
            "the weights are right, but the host waited for the device, and could not give it more work meanwhile: let one stream wait for \
             an event of the other, so that the host continues",
        )?;
    Claim::that(!seen.exposed, "no backward pass waits for an all-reduce", "one does").on_rank(rank).or_fail(
        "the weights are right, but a layer's backward pass waits for an all-reduce of the layer before: nothing overlaps. Only the \
         optimizer's step needs the averages",
    )?;
    let late = || format!("those of the layers {:?} do, too", seen.late);
    Claim::that(seen.late.is_empty(), "only the last layer's all-reduce waits for the last backward pass", late())
        .on_rank(rank)
        .or_fail(
            "the weights are right, but gradients that were ready before wait for the last backward pass, so the all-reduces overlap with \
             nothing: let each wait for an event after the backward pass of its own layer",
        )
}

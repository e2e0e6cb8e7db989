//! Answers to `overlap`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::{edit, given};

use crate::pass::{Pass, Side};

fn optimizer(pass: &Pass) -> Result<()> {
    pass.layers().try_for_each(|layer| pass.optimizer(layer))
}

/// The given program: orders nothing.
#[given]
pub fn no_event() {}

/// Lets the optimizer begin before the averages are there.
#[edit(let averaged = pass.record(Side::Communication)?; pass.wait(Side::Compute, &averaged)?; => )]
pub fn only_first() {}

/// Lets the all-reduces begin before the gradients are there.
#[edit(let gradient = pass.record(Side::Compute)?; pass.wait(Side::Communication, &gradient)?; => )]
pub fn only_second() {}

/// Records before the kernel that is to be waited for.
#[edit(pass.backward(layer)?; let gradient = pass.record(Side::Compute)?; => let gradient = pass.record(Side::Compute)?; pass.backward(layer)?;)]
pub fn too_early() {}

/// Lets the host wait.
#[edit(let gradient = pass.record(Side::Compute)?; pass.wait(Side::Communication, &gradient)?; => pass.synchronize(Side::Compute)?;)]
#[edit(let averaged = pass.record(Side::Communication)?; pass.wait(Side::Compute, &averaged)?; => pass.synchronize(Side::Communication)?;)]
pub fn host_waits() {}

/// Lets each backward pass wait for the all-reduce before it.
#[edit(let averaged = pass.record(Side::Communication)?; pass.wait(Side::Compute, &averaged)?; => )]
#[edit(pass.all_reduce(layer)?; => pass.all_reduce(layer)?; let averaged = pass.record(Side::Communication)?; pass.wait(Side::Compute, &averaged)?;)]
pub fn in_turns() {}

/// Lets all all-reduces wait for the last backward pass.
#[edit(let gradient = pass.record(Side::Compute)?; pass.wait(Side::Communication, &gradient)?; pass.all_reduce(layer)?; => )]
#[edit(let averaged =>
    let gradients = pass.record(Side::Compute)?;
    pass.wait(Side::Communication, &gradients)?;
    for layer in pass.layers() {
        pass.all_reduce(layer)?;
    }
    let averaged
)]
pub fn after_all() {}

/// Makes the optimizer wait for an event before the last all-reduce.
pub fn before_the_last(pass: &Pass) -> Result<()> {
    let mut reduced = pass.record(Side::Communication)?;
    for layer in pass.layers() {
        pass.backward(layer)?;
        pass.wait(Side::Communication, &pass.record(Side::Compute)?)?;
        reduced = pass.record(Side::Communication)?;
        pass.all_reduce(layer)?;
    }
    pass.wait(Side::Compute, &reduced)?;
    pass.layers().try_for_each(|layer| pass.optimizer(layer))
}

/// Right: gives all kernels to the device first, and then the all-reduces: each waits for its own layer.
pub fn kernels_first(pass: &Pass) -> Result<()> {
    let mut gradients = Vec::new();
    for layer in pass.layers() {
        pass.backward(layer)?;
        gradients.push(pass.record(Side::Compute)?);
    }
    for (layer, gradient) in gradients.iter().enumerate() {
        pass.wait(Side::Communication, gradient)?;
        pass.all_reduce(layer)?;
    }
    let averaged = pass.record(Side::Communication)?;
    pass.wait(Side::Compute, &averaged)?;
    optimizer(pass)
}

/// Right: the optimizer's step of each layer waits for that layer only.
pub fn layer_by_layer(pass: &Pass) -> Result<()> {
    let mut averaged = Vec::new();
    for layer in pass.layers() {
        pass.backward(layer)?;
        let gradient = pass.record(Side::Compute)?;
        pass.wait(Side::Communication, &gradient)?;
        pass.all_reduce(layer)?;
        averaged.push(pass.record(Side::Communication)?);
    }
    for (layer, place) in averaged.iter().enumerate() {
        pass.wait(Side::Compute, place)?;
        pass.optimizer(layer)?;
    }
    Ok(())
}

/// Right: all-reduces one layer behind the backward pass, as DDP fills buckets.
pub fn one_behind(pass: &Pass) -> Result<()> {
    let mut ready = None;
    for layer in pass.layers() {
        pass.backward(layer)?;
        let gradient = pass.record(Side::Compute)?;
        if let Some((before, place)) = ready.replace((layer, gradient)) {
            pass.wait(Side::Communication, &place)?;
            pass.all_reduce(before)?;
        }
    }
    if let Some((last, place)) = ready {
        pass.wait(Side::Communication, &place)?;
        pass.all_reduce(last)?;
    }
    let averaged = pass.record(Side::Communication)?;
    pass.wait(Side::Compute, &averaged)?;
    optimizer(pass)
}

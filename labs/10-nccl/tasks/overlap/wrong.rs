//! Answers to `overlap`: wrong ones, and unusual right ones.

use anyhow::Result;

use crate::pass::{Pass, Side};

fn optimizer(pass: &Pass) -> Result<()> {
    pass.layers().try_for_each(|layer| pass.optimizer(layer))
}

/// The given program: orders nothing.
pub fn no_event(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        pass.backward(layer)?;
        pass.all_reduce(layer)?;
    }
    optimizer(pass)
}

/// Lets the optimizer begin before the averages are there.
pub fn only_first(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        pass.backward(layer)?;
        let gradient = pass.record(Side::Compute)?;
        pass.wait(Side::Communication, &gradient)?;
        pass.all_reduce(layer)?;
    }
    optimizer(pass)
}

/// Lets the all-reduces begin before the gradients are there.
pub fn only_second(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        pass.backward(layer)?;
        pass.all_reduce(layer)?;
    }
    let averaged = pass.record(Side::Communication)?;
    pass.wait(Side::Compute, &averaged)?;
    optimizer(pass)
}

/// Records before the kernel that is to be waited for.
pub fn too_early(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        let gradient = pass.record(Side::Compute)?;
        pass.backward(layer)?;
        pass.wait(Side::Communication, &gradient)?;
        pass.all_reduce(layer)?;
    }
    let averaged = pass.record(Side::Communication)?;
    pass.wait(Side::Compute, &averaged)?;
    optimizer(pass)
}

/// Lets the host wait.
pub fn host_waits(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        pass.backward(layer)?;
        pass.synchronize(Side::Compute)?;
        pass.all_reduce(layer)?;
    }
    pass.synchronize(Side::Communication)?;
    optimizer(pass)
}

/// Lets each backward pass wait for the all-reduce before it.
pub fn in_turns(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        pass.backward(layer)?;
        let gradient = pass.record(Side::Compute)?;
        pass.wait(Side::Communication, &gradient)?;
        pass.all_reduce(layer)?;
        let averaged = pass.record(Side::Communication)?;
        pass.wait(Side::Compute, &averaged)?;
    }
    optimizer(pass)
}

/// Lets all all-reduces wait for the last backward pass.
pub fn after_all(pass: &Pass) -> Result<()> {
    for layer in pass.layers() {
        pass.backward(layer)?;
    }
    let gradients = pass.record(Side::Compute)?;
    pass.wait(Side::Communication, &gradients)?;
    for layer in pass.layers() {
        pass.all_reduce(layer)?;
    }
    let averaged = pass.record(Side::Communication)?;
    pass.wait(Side::Compute, &averaged)?;
    optimizer(pass)
}

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

/// Right: gives all kernels to the device first, and then the all-reduces, of which each waits for its own layer.
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

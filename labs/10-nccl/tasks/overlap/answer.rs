//! Task 3: the events in the right places.
//!
//! The gradient of a layer is averaged over all ranks while the backward pass of the next layers runs. The order within each of the two
//! streams is right. What is missing is the order between them.

use anyhow::Result;

use crate::pass::{Pass, Side};

/// Backward pass, all-reduce and optimizer's step of all layers. The host never waits, backward passes do not wait for all-reduces, and
/// only the all-reduce of the last layer waits for the last backward pass.
pub fn overlap(pass: &Pass) -> Result<()> {
    // <answer>
    //~ // Nothing orders the two streams. Which events have to be recorded, and which stream waits for them?
    //~ for layer in pass.layers() {
    //~     pass.backward(layer)?;
    //~     pass.all_reduce(layer)?;
    //~ }
    //~ for layer in pass.layers() {
    //~     pass.optimizer(layer)?;
    //~ }
    for layer in pass.layers() {
        pass.backward(layer)?;
        let gradient = pass.record(Side::Compute)?;
        pass.wait(Side::Communication, &gradient)?;
        pass.all_reduce(layer)?;
    }
    let averaged = pass.record(Side::Communication)?;
    pass.wait(Side::Compute, &averaged)?;
    for layer in pass.layers() {
        pass.optimizer(layer)?;
    }
    // </answer>
    Ok(())
}

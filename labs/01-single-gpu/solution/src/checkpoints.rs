//! Task 3: when to save. Spot the bug.
//!
//! A checkpoint after every `save_every` epochs, and one after the last epoch, however many there are: what the training has
//! cost must be in the file that it leaves.

/// The epochs after which a run saves its weights, in order; the first epoch is 0.
pub fn checkpoints(total_epochs: u64, save_every: u64) -> Vec<u64> {
    let mut saved = Vec::new();
    for epoch in 0..total_epochs {
        // Here the epoch is trained.
        // <answer>
        //~ if epoch % save_every == 0 {
        let done = epoch + 1;
        if done % save_every == 0 || done == total_epochs {
            // </answer>
            saved.push(epoch);
        }
    }
    saved
}

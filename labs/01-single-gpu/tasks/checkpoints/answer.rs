//! Task 3: when to save. Spot the bug.
//!
//! A run saves a checkpoint after every `save_every` epochs and one after the last epoch. The file that remains at the end must
//! contain all of the training.

/// Returns the epochs after which a run saves its weights, in order, each once. The first epoch is 0; a run may have none.
/// `save_every` is at least 1.
pub fn checkpoints(total_epochs: u64, save_every: u64) -> Vec<u64> {
    let mut saved = Vec::new();
    for epoch in 0..total_epochs {
        // A real program trains the epoch here.
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

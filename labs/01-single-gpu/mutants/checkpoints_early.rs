//! Counts the epochs from 0, as the tutorials do.

pub fn checkpoints(total_epochs: u64, save_every: u64) -> Vec<u64> {
    (0..total_epochs).filter(|epoch| epoch % save_every == 0).collect()
}

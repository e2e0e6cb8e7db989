//! Forgets the last epoch.

pub fn checkpoints(total_epochs: u64, save_every: u64) -> Vec<u64> {
    (0..total_epochs).filter(|epoch| (epoch + 1) % save_every == 0).collect()
}

//! Answers to `checkpoints`: wrong ones, and an unusual right one.

use lockstep_answers::{edit, given};

/// The given program: counts the epochs from 0, as the tutorials do.
#[given]
pub fn early() {}

/// Forgets the last epoch.
pub fn not_last(total_epochs: u64, save_every: u64) -> Vec<u64> {
    (0..total_epochs).filter(|epoch| (epoch + 1) % save_every == 0).collect()
}

/// Saves again at the end, even if it has just saved.
#[edit(|| done == total_epochs { saved.push(epoch); } => { saved.push(epoch); } if done == total_epochs { saved.push(epoch); })]
pub fn twice() {}

/// Takes for granted that there is a last epoch.
pub fn no_epoch(total_epochs: u64, save_every: u64) -> Vec<u64> {
    let last = total_epochs - 1;
    (0..total_epochs).filter(|epoch| (epoch + 1) % save_every == 0 || *epoch == last).collect()
}

/// Saves epoch 0 of a run without epochs.
pub fn zero_epochs(total_epochs: u64, save_every: u64) -> Vec<u64> {
    let last = total_epochs.saturating_sub(1);
    let mut saved: Vec<u64> = (0..total_epochs).filter(|epoch| (epoch + 1) % save_every == 0).collect();
    if saved.last() != Some(&last) {
        saved.push(last);
    }
    saved
}

/// Counts the intervals from the end.
pub fn from_the_end(total_epochs: u64, save_every: u64) -> Vec<u64> {
    // Counted from the end, so that the last one is always among them.
    let mut saved: Vec<u64> = (0..total_epochs).rev().step_by(save_every as usize).collect();
    saved.reverse();
    saved
}

/// Counts to the number of epochs, too.
pub fn one_more(total_epochs: u64, save_every: u64) -> Vec<u64> {
    (0..=total_epochs).filter(|epoch| epoch % save_every == save_every - 1 || *epoch == total_epochs).collect()
}

/// Returns numbers of finished epochs.
pub fn finished(total_epochs: u64, save_every: u64) -> Vec<u64> {
    (1..=total_epochs).filter(|done| done % save_every == 0 || *done == total_epochs).collect()
}

/// Has the last epoch first.
pub fn last_first(total_epochs: u64, save_every: u64) -> Vec<u64> {
    let mut saved: Vec<u64> = (0..total_epochs).filter(|epoch| (epoch + 1) % save_every == 0).collect();
    if total_epochs % save_every != 0 {
        saved.insert(0, total_epochs - 1);
    }
    saved
}

/// Saves early, and after the last epoch.
pub fn early_and_last(total_epochs: u64, save_every: u64) -> Vec<u64> {
    (0..total_epochs).filter(|epoch| epoch % save_every == 0 || epoch + 1 == total_epochs).collect()
}

/// Right: steps from one multiple to the next.
pub fn steps(total_epochs: u64, save_every: u64) -> Vec<u64> {
    let mut saved: Vec<u64> = (save_every..=total_epochs).step_by(save_every as usize).map(|done| done - 1).collect();
    saved.extend((total_epochs % save_every > 0).then(|| total_epochs - 1));
    saved
}

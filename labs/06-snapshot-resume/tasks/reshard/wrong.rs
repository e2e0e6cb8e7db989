//! Answers to `reshard`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::{edit, given};

use crate::snapshots::Run;

fn saved(run: &Run) -> (u64, usize) {
    run.snapshot().map_or((0, 0), |numbers| (numbers[0], numbers[1] as usize))
}

/// What is left of an epoch's order on this rank.
fn share(run: &Run, epoch: u64, taken: usize) -> Vec<usize> {
    run.order(epoch).into_iter().skip(taken + run.rank).step_by(run.ranks).collect()
}

/// The given program: counts steps.
#[given]
pub fn steps() {}

/// Counts the samples of one rank.
pub fn own_samples(run: &mut Run) -> Result<()> {
    let (first, done) = saved(run);
    for epoch in first..run.settings.epochs {
        let mut taken = if epoch == first { done } else { 0 };
        for batch in share(run, epoch, taken).chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            taken += batch.len();
            run.save(&[epoch, taken as u64]);
        }
    }
    Ok(())
}

/// Saves the epoch only.
pub fn epoch_again(run: &mut Run) -> Result<()> {
    let (first, _) = saved(run);
    for epoch in first..run.settings.epochs {
        for batch in share(run, epoch, 0).chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            run.save(&[epoch, 0]);
        }
    }
    Ok(())
}

/// Goes on with the next epoch.
pub fn next_epoch(run: &mut Run) -> Result<()> {
    let first = run.snapshot().map_or(0, |numbers| numbers[0]);
    for epoch in first..run.settings.epochs {
        for batch in share(run, epoch, 0).chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            run.save(&[epoch + 1]);
        }
    }
    Ok(())
}

/// Saves steps and the number of ranks, but after the first resume it adds steps of another size.
pub fn steps_and_ranks(run: &mut Run) -> Result<()> {
    let numbers = run.snapshot().unwrap_or(vec![0, 0, 1]);
    let (first, done, before) = (numbers[0], numbers[1] as usize, numbers[2] as usize);
    for epoch in first..run.settings.epochs {
        let done = if epoch == first { done } else { 0 };
        let share = share(run, epoch, done * before * run.settings.batch_size);
        for (step, batch) in share.chunks(run.settings.batch_size).enumerate() {
            run.train(epoch, batch)?;
            run.save(&[epoch, (done + step + 1) as u64, run.ranks as u64]);
        }
    }
    Ok(())
}

/// Begins each later epoch where the resumed one began.
pub fn every_epoch(run: &mut Run) -> Result<()> {
    let (first, done) = saved(run);
    for epoch in first..run.settings.epochs {
        let mut taken = done;
        for batch in share(run, epoch, taken).chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            taken += batch.len() * run.ranks;
            run.save(&[epoch, taken as u64]);
        }
    }
    Ok(())
}

/// Gives each rank a block of what is left.
pub fn blocks(run: &mut Run) -> Result<()> {
    let (first, done) = saved(run);
    for epoch in first..run.settings.epochs {
        let mut taken = if epoch == first { done } else { 0 };
        let left = run.order(epoch).split_off(taken.min(run.settings.samples));
        let length = left.len().div_ceil(run.ranks).max(1);
        let share = left.chunks(length).nth(run.rank).unwrap_or(&[]).to_vec();
        for batch in share.chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            taken += batch.len() * run.ranks;
            run.save(&[epoch, taken as u64]);
        }
    }
    Ok(())
}

/// Leaves out an incomplete last batch.
pub fn full_batches(run: &mut Run) -> Result<()> {
    let (first, done) = saved(run);
    for epoch in first..run.settings.epochs {
        let mut taken = if epoch == first { done } else { 0 };
        for batch in share(run, epoch, taken).chunks_exact(run.settings.batch_size) {
            run.train(epoch, batch)?;
            taken += batch.len() * run.ranks;
            run.save(&[epoch, taken as u64]);
        }
    }
    Ok(())
}

/// Each rank continues with the share that the rank of this number had before.
pub fn old_shares(run: &mut Run) -> Result<()> {
    let numbers = run.snapshot().unwrap_or(vec![0, 0, run.ranks as u64]);
    let (first, done, ranks) = (numbers[0], numbers[1] as usize, numbers[2] as usize);
    for epoch in first..run.settings.epochs {
        let (done, ranks) = if epoch == first { (done, ranks) } else { (0, run.ranks) };
        let count = if run.rank < ranks { run.settings.samples } else { 0 };
        let share: Vec<usize> = run.order(epoch).into_iter().take(count).skip(run.rank).step_by(ranks).collect();
        for (step, batch) in share.chunks(run.settings.batch_size).enumerate().skip(done) {
            run.train(epoch, batch)?;
            run.save(&[epoch, step as u64 + 1, ranks as u64]);
        }
    }
    Ok(())
}

/// Cuts its own share of what is left into batches.
pub fn own_batches(run: &mut Run) -> Result<()> {
    let (first, done) = saved(run);
    for epoch in first..run.settings.epochs {
        let mut taken = if epoch == first { done } else { 0 };
        for batch in share(run, epoch, taken).chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            taken += batch.len() * run.ranks;
            run.save(&[epoch, taken as u64]);
        }
    }
    Ok(())
}

/// Continues counting where the previous epoch ended.
#[edit(let (first, done) => let (first, mut taken))]
#[edit(let mut taken = if epoch == first { done } else { 0 }; => )]
pub fn not_reset() {}

/// Right: takes consecutive samples, and saves the position before each step, so that an interrupted step is repeated.
pub fn before_each_step(run: &mut Run) -> Result<()> {
    let (first, done) = saved(run);
    for epoch in first..run.settings.epochs {
        let mut taken = if epoch == first { done } else { 0 };
        let left = run.order(epoch).split_off(taken);
        for step in left.chunks(run.settings.batch_size * run.ranks) {
            run.save(&[epoch, taken as u64]);
            let each = step.len().div_ceil(run.ranks);
            run.train(epoch, step.chunks(each).nth(run.rank).unwrap_or(&[]))?;
            taken += step.len();
        }
        run.save(&[epoch + 1, 0]);
    }
    Ok(())
}

/// Right: saves all samples that are taken, and shares the others. The snapshot grows.
pub fn lists(run: &mut Run) -> Result<()> {
    let numbers = run.snapshot().unwrap_or(vec![0]);
    for epoch in numbers[0]..run.settings.epochs {
        let mut taken: Vec<u64> = if epoch == numbers[0] { numbers[1..].to_vec() } else { Vec::new() };
        let order = run.order(epoch);
        let left: Vec<usize> = order.into_iter().filter(|sample| !taken.contains(&(*sample as u64))).collect();
        let (size, ranks) = (run.settings.batch_size, run.ranks);
        for step in left.chunks(size * ranks) {
            let own: Vec<usize> = step.iter().copied().skip(run.rank).step_by(ranks).collect();
            run.train(epoch, &own)?;
            taken.extend(step.iter().map(|sample| *sample as u64));
            run.save(&[vec![epoch], taken.clone()].concat());
        }
    }
    Ok(())
}

/// Fills the last step with samples from the beginning, as DistributedSampler does.
pub fn pads(run: &mut Run) -> Result<()> {
    let (first, done) = run.snapshot().map_or((0, 0), |numbers| (numbers[0], numbers[1] as usize));
    for epoch in first..run.settings.epochs {
        let mut taken = if epoch == first { done } else { 0 };
        let mut order = run.order(epoch);
        let rest = order.len() - taken;
        // As `DistributedSampler` does: samples from the beginning fill the last step, so that all ranks take it.
        let missing = rest.next_multiple_of(run.ranks) - rest;
        order.extend_from_within(..missing);
        let share: Vec<usize> = order[taken..].iter().copied().skip(run.rank).step_by(run.ranks).collect();
        for batch in share.chunks(run.settings.batch_size) {
            run.train(epoch, batch)?;
            taken += batch.len() * run.ranks;
            run.save(&[epoch, taken.min(run.settings.samples) as u64]);
        }
    }
    Ok(())
}

/// Lets a rank leave when nothing is left for it in the last step.
#[edit(let batch: Vec<usize> = step.iter().copied().skip(run.rank).step_by(run.ranks).collect(); =>
    let Some(batch) = step.chunks(run.settings.batch_size).nth(run.rank) else { break };
)]
pub fn leaves_early() {}

/// Divides `batch_size` among the ranks, as if it counted the samples of all of them.
#[edit(run.settings.batch_size * run.ranks => run.settings.batch_size)]
pub fn shared_batch() {}

/// Adds a whole step also where the last one had fewer samples: the position lies beyond the end of the epoch.
#[edit(taken += step.len() => taken += run.settings.batch_size * run.ranks)]
pub fn unclamped() {}

/// Right: the same, but what lies beyond the end is left out.
#[edit(let left = run.order(epoch).split_off(taken) => let left: Vec<usize> = run.order(epoch).into_iter().skip(taken).collect())]
#[edit(step.len() => run.settings.batch_size * run.ranks)]
pub fn clamped_on_loading() {}

/// After the last step of an epoch, saves its beginning.
#[edit(run.save(&[epoch, taken as u64]) => run.save(&[epoch, (taken % run.settings.samples) as u64]))]
pub fn end_is_begin() {}

/// Counts the samples of this start only.
#[edit(let mut taken = if epoch == first { done } else { 0 }; => let before = if epoch == first { done } else { 0 };)]
#[edit(split_off(taken); => split_off(before); let mut taken = 0;)]
pub fn of_this_start() {}

//! Answers to `virtual_ranks`: wrong ones, and unusual right ones.

use lockstep::data::rng::KeyedRng;
use lockstep_answers::{edit, given};

use crate::ranks::Training;

/// The given program: each rank trains one batch, its own.
#[given]
pub fn plain() {}

/// Has the rank in the key.
#[edit(v as u64 => run.rank as u64)]
pub fn by_rank() {}

/// Draws from one generator for all virtual ranks of the rank.
#[edit(for v in part => let mut random = KeyedRng::new(&[run.seed, epoch, step as u64, run.rank as u64]); for v in part)]
#[edit(&mut KeyedRng::new(&[run.seed, epoch, step as u64, v as u64]) => &mut random)]
pub fn one_generator() {}

/// Counts the virtual ranks within the rank.
#[edit(v as u64 => (v - run.rank * count / run.ranks) as u64)]
pub fn by_place() {}

/// Leaves the epoch out of the key.
#[edit(run.seed, epoch, => run.seed,)]
pub fn no_epoch() {}

/// Leaves the step out of the key.
#[edit(epoch, step as u64, => epoch,)]
pub fn no_step() {}

/// Leaves the virtual rank out of the key.
#[edit(step as u64, v as u64 => step as u64)]
pub fn no_rank() {}

/// Leaves the seed out of the key.
#[edit(run.seed, epoch, => epoch,)]
pub fn no_seed() {}

/// Adds the numbers up: the next virtual rank has the numbers of the next step.
#[edit(run.seed, epoch, step as u64, v as u64 => run.seed + epoch + step as u64 + v as u64)]
pub fn added() {}

/// Has the share of the rank, and gives each of its virtual ranks the same batch of it.
#[edit(skip(v).step_by(count) => skip(run.rank).step_by(run.ranks))]
pub fn share_of_rank() {}

/// Has the share of the rank, of which each virtual rank takes the next batch.
pub fn batches_of_rank(run: &mut Training, epoch: u64, step: usize) {
    let count = run.virtual_ranks;
    let part = run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks;
    let share: Vec<usize> = run.order(epoch).into_iter().skip(run.rank).step_by(run.ranks).collect();
    for (nth, v) in part.clone().enumerate() {
        let batch = (step * part.len() + nth) * run.batch_size;
        let samples: Vec<usize> = share.iter().copied().skip(batch).take(run.batch_size).collect();
        run.train(v, &samples, &mut KeyedRng::new(&[run.seed, epoch, step as u64, v as u64]));
    }
}

/// Cuts a step into blocks of neighbours.
#[edit(.skip(v).step_by(count); => ;)]
#[edit(step * run.batch_size => (step * count + v) * run.batch_size)]
pub fn blocks_of_step() {}

/// Cuts an epoch into blocks of neighbours.
#[edit(.skip(v).step_by(count); => ;)]
#[edit(step * run.batch_size => (v * run.steps + step) * run.batch_size)]
pub fn blocks_of_epoch() {}

/// Has the order of epoch 0 in all epochs.
#[edit(run.order(epoch) => run.order(0))]
pub fn first_order() {}

/// Has the first batch in all steps.
#[edit(share.skip(step * run.batch_size).take => share.take)]
pub fn first_batch() {}

/// Deals the virtual ranks in turns.
#[edit(run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks => (run.rank..count).step_by(run.ranks))]
pub fn in_turns() {}

/// Rounds the parts down: the last virtual ranks are left out.
#[edit(run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks => run.rank * (count / run.ranks)..(run.rank + 1) * (count / run.ranks))]
pub fn rounds_down() {}

/// Rounds the parts up: the last ranks have fewer, or none.
#[edit(run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks =>
    (run.rank * count.div_ceil(run.ranks)).min(count)..((run.rank + 1) * count.div_ceil(run.ranks)).min(count)
)]
pub fn rounds_up() {}

/// Rounds the parts up, and goes on past the last virtual rank.
#[edit(run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks => run.rank * count.div_ceil(run.ranks)..(run.rank + 1) * count.div_ceil(run.ranks))]
pub fn past_the_last() {}

/// Leaves what remains to the last rank.
#[edit((run.rank + 1) * count / run.ranks => if run.rank + 1 == run.ranks { count } else { (run.rank + 1) * (count / run.ranks) })]
#[edit(run.rank * count / run.ranks => run.rank * (count / run.ranks))]
pub fn rest_to_the_last() {}

/// Trains all virtual ranks on each rank.
#[edit(run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks => 0..count)]
pub fn all_on_each() {}

/// Right: the first ranks have one more, as with `tensor_split`.
#[edit(run.rank * count / run.ranks..(run.rank + 1) * count / run.ranks => {
    let (each, more) = (count / run.ranks, count % run.ranks);
    let begin = run.rank * each + run.rank.min(more);
    begin..begin + each + usize::from(run.rank < more)
})]
pub fn first_have_more() {}

/// Right: another key, and the last virtual rank first.
#[edit(for v in part => for v in part.rev())]
#[edit(run.seed, epoch, step as u64, v as u64 => v as u64, run.seed, epoch * run.steps as u64 + step as u64)]
pub fn other_key() {}

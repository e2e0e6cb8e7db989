//! Wrong answers to `shard`.

use lockstep_answers::edit;

/// Gives each rank a block of neighbours.
#[edit((rank..each * world_size).step_by(world_size) => (rank * each..(rank + 1) * each))]
pub fn blocks() {}

/// Gives some ranks one sample fewer than others.
#[edit(each * world_size => samples)]
pub fn short() {}

/// Goes around once at most.
#[edit(place % samples => if place < samples { place } else { place - samples })]
pub fn once_around() {}

/// Pads with the rank's own first sample, which need not exist.
pub fn pads_with_own(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let own: Vec<usize> = (rank..samples).step_by(world_size).collect();
    (0..samples.div_ceil(world_size)).map(|turn| own.get(turn).copied().unwrap_or_else(|| own[0])).collect()
}

/// Rounds up where nothing is left to round.
#[edit(samples.div_ceil(world_size) => samples / world_size + 1)]
pub fn one_more() {}

/// Fills each short share from sample 0 on.
#[edit(place % samples => if place < samples { place } else { 0 })]
pub fn each_from_zero() {}

/// Takes a block of neighbours, the last of which is shorter.
#[edit((rank..each * world_size).step_by(world_size).map(|place| place % samples) => (0..samples).skip(rank * each).take(each))]
pub fn short_blocks() {}

/// Fills up with the last sample.
#[edit(place % samples => place.min(samples - 1))]
pub fn repeats_the_last() {}

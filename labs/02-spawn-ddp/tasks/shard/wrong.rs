//! Wrong answers to `shard`.

use lockstep_answers::edit;

/// Gives each rank a block of neighbours.
pub fn blocks(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (rank * each..(rank + 1) * each).map(|place| place % samples).collect()
}

/// Gives some ranks one sample fewer than others.
pub fn short(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    (rank..samples).step_by(world_size).collect()
}

/// Goes around once at most.
pub fn once_around(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let around = |place: usize| if place < samples { place } else { place - samples };
    (0..samples.div_ceil(world_size)).map(|turn| around(turn * world_size + rank)).collect()
}

/// Pads with the rank's own first sample, which need not exist.
pub fn pads_with_own(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let own: Vec<usize> = (rank..samples).step_by(world_size).collect();
    (0..samples.div_ceil(world_size)).map(|turn| own.get(turn).copied().unwrap_or_else(|| own[0])).collect()
}

/// Rounds up where nothing is left to round.
pub fn one_more(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples / world_size + 1;
    (0..each).map(|step| (rank + step * world_size) % samples).collect()
}

/// Fills each short share from sample 0 on.
pub fn each_from_zero(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    let mut own: Vec<usize> = (rank..samples).step_by(world_size).collect();
    let missing = each - own.len();
    own.extend(0..missing);
    own
}

/// Takes a block of neighbours, the last of which is shorter.
pub fn short_blocks(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (0..samples).skip(rank * each).take(each).collect()
}

/// Fills up with the last sample.
#[edit(place % samples => place.min(samples - 1))]
pub fn repeats_the_last() {}

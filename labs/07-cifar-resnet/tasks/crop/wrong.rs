//! Answers to `crop`: wrong ones, and unusual right ones.

use std::cell::RefCell;

use lockstep::data::rng::KeyedRng;
use lockstep_answers::edit;

use crate::crop::{Key, Row};

/// Draws from the process's own generator, as torchvision's transforms do.
#[edit((random.below(2 * padding + 1), random.below(2 * padding + 1)) => RANDOM.with_borrow_mut(|random| (random.below(2 * padding + 1), random.below(2 * padding + 1))))]
pub fn process() {}

thread_local! {
    static RANDOM: RefCell<KeyedRng> = RefCell::new(KeyedRng::new(&[0]));
}

/// Leaves the epoch out of the key.
#[edit(, key.epoch => )]
pub fn same_each_epoch() {}

/// Leaves the seed out of the key.
#[edit(key.seed, => )]
pub fn seedless() {}

/// Leaves the picture out of the key.
#[edit(, key.index => )]
pub fn all_alike() {}

/// Draws the second number without the picture's.
#[edit((random.below(2 * padding + 1), random.below(2 * padding + 1)) => (random.below(2 * padding + 1), KeyedRng::new(&[key.seed, key.epoch]).below(2 * padding + 1)))]
pub fn half_keyed() {}

/// Never begins in the border.
#[edit((random.below(2 * padding + 1), random.below(2 * padding + 1)) => (padding + random.below(padding + 1), padding + random.below(padding + 1)))]
pub fn never_before() {}

/// Never draws the last place.
#[edit((random.below(2 * padding + 1), random.below(2 * padding + 1)) => (random.below(2 * padding), random.below(2 * padding)))]
pub fn one_short() {}

/// Draws one number for both directions.
#[edit((random.below(2 * padding + 1), random.below(2 * padding + 1)) => { let both = random.below(2 * padding + 1); (both, both) })]
pub fn diagonal() {}

/// Repeats the edge instead of padding with black.
#[edit(((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?) =>
    ((y + top).saturating_sub(padding).min(picture.len() - 1), (x + left).saturating_sub(padding).min(picture[0].len() - 1))
)]
pub fn clamped() {}

/// Adds the parts of the key up, so a picture is cropped like its neighbour in the next epoch.
#[edit([key.seed, key.epoch, key.index] => [key.seed + key.epoch + key.index])]
pub fn adds_up() {}

/// Adds the epoch to the seed: a run with the next seed repeats the crops an epoch later.
#[edit(key.seed, key.epoch => key.seed + key.epoch)]
pub fn one_stream_a_run() {}

/// Reserves two digits for the picture, which has more.
#[edit([key.seed, key.epoch, key.index] => [key.seed * 10_000 + key.epoch * 100 + key.index])]
pub fn in_digits() {}

/// Joins the parts with an exclusive or.
#[edit([key.seed, key.epoch, key.index] => [key.seed ^ key.epoch ^ key.index])]
pub fn exclusive_or() {}

/// Right: creates the padded picture and cuts the window out of it.
pub fn pads_first(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.index, key.epoch, key.seed]);
    let (height, width) = (picture.len(), picture[0].len());
    let mut padded = vec![vec![0; width + 2 * padding]; height + 2 * padding];
    for (y, row) in picture.iter().enumerate() {
        padded[y + padding][padding..padding + width].copy_from_slice(row);
    }
    let place = random.below((2 * padding + 1) * (2 * padding + 1));
    let (top, left) = (place / (2 * padding + 1), place % (2 * padding + 1));
    padded[top..top + height].iter().map(|row| row[left..left + width].to_vec()).collect()
}

/// Right: one number for all three parts, which no other key has.
#[edit([key.seed, key.epoch, key.index] => [key.index << 40 | key.epoch << 20 | key.seed])]
pub fn packed() {}

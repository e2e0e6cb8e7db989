//! Answers to `crop`: wrong ones, and unusual right ones.

use std::cell::RefCell;

use lockstep::data::rng::KeyedRng;
use lockstep_answers::edit;

use crate::crop::{Key, Row};

/// Draws from the process's own generator, as torchvision's transforms do.
pub fn process(picture: &[Vec<u8>], padding: usize, _: Key) -> Vec<Vec<u8>> {
    let (top, left) = RANDOM.with_borrow_mut(|random| (random.below(2 * padding + 1), random.below(2 * padding + 1)));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

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
pub fn half_keyed(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let top = KeyedRng::new(&[key.seed, key.epoch, key.index]).below(2 * padding + 1);
    let left = KeyedRng::new(&[key.seed, key.epoch]).below(2 * padding + 1);
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Never begins in the border.
pub fn never_before(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed, key.epoch, key.index]);
    let (down, right) = (random.below(padding + 1), random.below(padding + 1));
    let pixel = |y: usize, x: usize| picture.get(y + down)?.get(x + right).copied();
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Never draws the last place.
pub fn one_short(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed, key.epoch, key.index]);
    let (top, left) = (random.below(2 * padding), random.below(2 * padding));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Draws one number for both directions.
pub fn diagonal(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed, key.epoch, key.index]);
    let (top, left) = {
        let both = random.below(2 * padding + 1);
        (both, both)
    };
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Repeats the edge instead of padding with black.
pub fn clamped(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed, key.epoch, key.index]);
    let (top, left) = (random.below(2 * padding + 1), random.below(2 * padding + 1));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).saturating_sub(padding), (x + left).saturating_sub(padding));
        let y = y.min(picture.len() - 1);
        Some(picture[y][x.min(picture[y].len() - 1)])
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Adds the parts of the key up, so a picture is cropped like its neighbour in the next epoch.
pub fn adds_up(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed + key.epoch + key.index]);
    let (top, left) = (random.below(2 * padding + 1), random.below(2 * padding + 1));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Adds the epoch to the seed: a run with the next seed repeats the crops an epoch later.
#[edit(key.seed, key.epoch => key.seed + key.epoch)]
pub fn one_stream_a_run() {}

/// Reserves two digits for the picture, which has more.
pub fn in_digits(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed * 10_000 + key.epoch * 100 + key.index]);
    let (top, left) = (random.below(2 * padding + 1), random.below(2 * padding + 1));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

/// Joins the parts with an exclusive or.
pub fn exclusive_or(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed ^ key.epoch ^ key.index]);
    let (top, left) = (random.below(2 * padding + 1), random.below(2 * padding + 1));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

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
pub fn packed(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.index << 40 | key.epoch << 20 | key.seed]);
    let (top, left) = (random.below(2 * padding + 1), random.below(2 * padding + 1));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

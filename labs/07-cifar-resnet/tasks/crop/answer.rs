//! Task 1: a crop that does not depend on the rank.
//!
//! A picture is padded with black (0) on all four sides, and a window of the picture's size is cut out at a random place. Every
//! place has the same probability. The place must depend only on the key: on two ranks or four, in any order, and after a
//! resume, a picture is cropped in the same way in one epoch. Keys that differ in any part draw independently of each other.

use lockstep::data::rng::KeyedRng;

/// Everything that a random choice may depend on.
#[derive(Clone, Copy)]
pub struct Key {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The number of the picture in the data set.
    pub index: u64,
}

/// The pixels of one row of a picture, from 0 (black) to 255.
pub type Row = Vec<u8>;

/// Pads the picture with `padding` black pixels on each side and cuts out a random window of the picture's size.
pub fn crop(picture: &[Row], padding: usize, key: Key) -> Vec<Row> {
    // <answer>
    //~ // `KeyedRng::new(&[1, 2, 3])` is a generator with these numbers as its seed; its `below(n)` draws from 0 to n - 1.
    //~ todo!("crop the picture")
    let mut random = KeyedRng::new(&[key.seed, key.epoch, key.index]);
    let (top, left) = (random.below(2 * padding + 1), random.below(2 * padding + 1));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
    // </answer>
}

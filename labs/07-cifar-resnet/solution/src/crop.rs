//! Task 1: a crop that does not depend on the rank.
//!
//! A picture is padded with black (0) on all four sides, and a window of its own size is cut out at a random place, every place
//! with the same chance. So nothing is lost but what leaves the window. Which place is drawn must depend on the key alone: on two
//! ranks or four, in whatever order, and after a resume, a picture is cropped alike in one epoch.

use lockstep::data::rng::KeyedRng;

/// What a random choice may depend on.
#[derive(Clone, Copy)]
pub struct Key {
    /// The run's.
    pub seed: u64,
    /// From 0.
    pub epoch: u64,
    /// The number of the picture in the data set.
    pub index: u64,
}

/// The pixels of one line of a picture, from 0, black, to 255.
pub type Row = Vec<u8>;

/// Cuts a window of the picture's own size out of the picture with `padding` black pixels around it.
pub fn crop(picture: &[Row], padding: usize, key: Key) -> Vec<Row> {
    // <answer>
    //~ // `KeyedRng::new(&[1, 2, 3])` is a generator that starts from these numbers; its `below(n)` draws from 0 to n - 1.
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

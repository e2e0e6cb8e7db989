//! The last place is never drawn.

use lockstep::data::rng::KeyedRng;

use crate::crop::Key;

pub fn crop(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
    let mut random = KeyedRng::new(&[key.seed, key.epoch, key.index]);
    let (top, left) = (random.below(2 * padding), random.below(2 * padding));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

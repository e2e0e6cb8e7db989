//! The edge is repeated, where black is wanted.

use lockstep::data::rng::KeyedRng;

use crate::crop::Key;

pub fn crop(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
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

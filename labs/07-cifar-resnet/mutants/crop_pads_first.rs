//! Right: makes the padded picture, and cuts.

use lockstep::data::rng::KeyedRng;

use crate::crop::Key;

pub fn crop(picture: &[Vec<u8>], padding: usize, key: Key) -> Vec<Vec<u8>> {
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

//! Draws from the process's own generator, as torchvision's transforms do.

use std::cell::RefCell;

use lockstep::data::rng::KeyedRng;

use crate::crop::Key;

thread_local! {
    static RANDOM: RefCell<KeyedRng> = RefCell::new(KeyedRng::new(&[0]));
}

pub fn crop(picture: &[Vec<u8>], padding: usize, _: Key) -> Vec<Vec<u8>> {
    let (top, left) = RANDOM.with_borrow_mut(|random| (random.below(2 * padding + 1), random.below(2 * padding + 1)));
    let pixel = |y: usize, x: usize| {
        let (y, x) = ((y + top).checked_sub(padding)?, (x + left).checked_sub(padding)?);
        picture.get(y)?.get(x).copied()
    };
    let row = |y: usize| (0..picture[y].len()).map(|x| pixel(y, x).unwrap_or(0)).collect();
    (0..picture.len()).map(row).collect()
}

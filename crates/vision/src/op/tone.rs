//! Operations that map each value through a table: Pillow's `ImageOps`.

use image::RgbImage;

/// The new value for each value of a channel.
type Table = [u8; 256];

fn identity() -> Table {
    std::array::from_fn(|value| value as u8)
}

/// Maps red, green and blue through one table each.
fn map_each(mut picture: RgbImage, [reds, greens, blues]: &[Table; 3]) -> RgbImage {
    for [red, green, blue] in picture.as_chunks_mut::<3>().0 {
        (*red, *green, *blue) = (reds[usize::from(*red)], greens[usize::from(*green)], blues[usize::from(*blue)]);
    }
    picture
}

/// Maps all channels through one table.
pub(super) fn map(mut picture: RgbImage, table: &Table) -> RgbImage {
    picture.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
    picture
}

pub(super) fn posterize(mut picture: RgbImage, bits: u8) -> RgbImage {
    let mask = 0xFF_u8.checked_shl(8_u32.saturating_sub(bits.into())).unwrap_or(0);
    picture.iter_mut().for_each(|value| *value &= mask);
    picture
}

pub(super) fn solarize(mut picture: RgbImage, threshold: f64) -> RgbImage {
    // The smallest integer that is not below it; from 256 on there is none.
    let first = threshold.ceil() as u16;
    if let Ok(first) = u8::try_from(first) {
        picture.iter_mut().for_each(|value| *value = if *value < first { *value } else { !*value });
    }
    picture
}

pub(super) fn invert(mut picture: RgbImage) -> RgbImage {
    picture.iter_mut().for_each(|value| *value = !*value);
    picture
}

pub(super) fn auto_contrast(picture: RgbImage) -> RgbImage {
    let tables = histograms(&picture).map(|counts| stretched(&counts));
    map_each(picture, &tables)
}

pub(super) fn equalize(picture: RgbImage) -> RgbImage {
    let tables = histograms(&picture).map(|counts| equalized(&counts));
    map_each(picture, &tables)
}

/// Histograms by channel.
fn histograms(picture: &RgbImage) -> [[u64; 256]; 3] {
    // Neighbours often have the same value: with one counter, each would wait for the one before.
    let mut counts = [[[0_u32; 256]; 3]; 2];
    let (pairs, last) = picture.as_raw().as_chunks::<3>().0.as_chunks::<2>();
    for pair in pairs {
        add(pair[0], &mut counts[0]);
        add(pair[1], &mut counts[1]);
    }
    last.iter().for_each(|pixel| add(*pixel, &mut counts[0]));
    std::array::from_fn(|channel| {
        std::array::from_fn(|value| counts.iter().map(|counts| u64::from(counts[channel][value])).sum())
    })
}

fn add([red, green, blue]: [u8; 3], [reds, greens, blues]: &mut [[u32; 256]; 3]) {
    reds[usize::from(red)] += 1;
    greens[usize::from(green)] += 1;
    blues[usize::from(blue)] += 1;
}

/// Maps the darkest value to 0 and the lightest to 255.
fn stretched(counts: &[u64; 256]) -> Table {
    let darkest = counts.iter().position(|count| *count > 0).unwrap_or(0);
    let lightest = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
    if lightest <= darkest {
        return identity();
    }
    let scale = 255.0 / (lightest - darkest) as f64;
    let offset = -(darkest as f64) * scale;
    // Rounds towards 0 and clamps, as Pillow does.
    std::array::from_fn(|value| (value as f64 * scale + offset) as u8)
}

fn equalized(counts: &[u64; 256]) -> Table {
    let last = counts.iter().rev().find(|count| **count > 0).copied().unwrap_or(0);
    let step = (counts.iter().sum::<u64>() - last) / 255;
    if step == 0 {
        return identity();
    }
    let mut below = step / 2;
    counts.map(|count| {
        let value = below / step;
        below += count;
        value.min(255) as u8
    })
}

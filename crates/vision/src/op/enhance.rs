//! Blends a picture with a degenerate one: Pillow's `ImageEnhance`, whose factor may also be above 1.

use image::RgbImage;

use super::tone;

pub(super) fn brightness(picture: RgbImage, factor: f64) -> RgbImage {
    towards_grey(picture, 0, factor)
}

pub(super) fn contrast(picture: RgbImage, factor: f64) -> RgbImage {
    let pixels = picture.as_raw().as_chunks::<3>().0;
    let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(*pixel))).sum();
    let mean = (sum as f64 / pixels.len().max(1) as f64 + 0.5) as u8;
    towards_grey(picture, mean, factor)
}

pub(super) fn color(mut picture: RgbImage, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    let width = picture.width().max(1) as usize;
    let mut greys = vec![[0; 3]; width];
    for row in picture.as_chunks_mut::<3>().0.chunks_exact_mut(width) {
        greys.iter_mut().zip(&*row).for_each(|(grey, pixel)| *grey = [luma(*pixel); 3]);
        // Works on bytes, not pixels, so that several are done at a time.
        let bytes = row.as_flattened_mut().iter_mut().zip(greys.as_flattened());
        bytes.for_each(|(value, grey)| *value = blend.of(*grey, *value));
    }
    picture
}

pub(super) fn sharpness(picture: RgbImage, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    let mut result = smoothed(&picture);
    result.iter_mut().zip(picture.iter()).for_each(|(dull, value)| *dull = blend.of(*dull, *value));
    result
}

/// Moves all values towards one value, or away from it.
fn towards_grey(picture: RgbImage, grey: u8, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    tone::map(picture, &std::array::from_fn(|value| blend.of(grey, value as u8)))
}

/// Pillow's `Image.blend` (Blend.c): single precision, truncated towards 0.
#[derive(Clone, Copy)]
struct Blend {
    factor: f32,
}

impl Blend {
    fn new(factor: f64) -> Self {
        Blend { factor: factor as f32 }
    }

    /// From `dull` at factor 0 to `value` at factor 1; the cast saturates to 0 and 255.
    fn of(self, dull: u8, value: u8) -> u8 {
        let difference = i32::from(value) - i32::from(dull);
        (f32::from(dull) + self.factor * difference as f32) as u8
    }
}

/// The luminance of a pixel, by ITU-R 601-2 in 16.16 fixed point (Convert.c).
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16) as u8
}

/// Pillow's `SMOOTH` (ImageFilter.py, Filter.c): 3 × 3 with a weight of 5 in the centre, over 13, rounded. The outermost pixels
/// stay unchanged.
fn smoothed(picture: &RgbImage) -> RgbImage {
    let (stride, height) = (picture.width() as usize * 3, picture.height() as usize);
    let mut result = picture.clone();
    if picture.width() < 3 || height < 3 {
        return result;
    }
    let lines: Vec<&[u8]> = picture.as_raw().chunks_exact(stride).collect();
    let mut columns = vec![0; stride];
    for (lines, row) in lines.windows(3).zip(result.chunks_exact_mut(stride).skip(1)) {
        for (column, ((above, middle), below)) in columns.iter_mut().zip(lines[0].iter().zip(lines[1]).zip(lines[2])) {
            *column = u16::from(*above) + u16::from(*middle) + u16::from(*below);
        }
        smooth_row(&columns, lines[1], row);
    }
    result
}

/// A row except its ends, from the sums of three rows. Uses 16 bits and no bounds checks, so that the compiler vectorises it.
fn smooth_row(columns: &[u16], middle: &[u8], row: &mut [u8]) {
    let end = row.len() - 3;
    let around = columns.iter().zip(&columns[3..]).zip(&columns[6..]);
    for (value, (((left, here), right), centre)) in row[3..end].iter_mut().zip(around.zip(&middle[3..])) {
        let sum = left.wrapping_add(*here).wrapping_add(*right).wrapping_add(u16::from(*centre) * 4);
        // sum / 13 is never halfway between two integers, so rounding is unambiguous.
        *value = (sum.wrapping_mul(2).wrapping_add(13) / 26) as u8;
    }
}

//! AutoAugment's operations: an operation with its strength, equal to Pillow's.
//!
//! Some move pixels, some blend a picture with a degenerate one, and some map values.

use std::ops::Range;

use image::RgbImage;

use crate::transform::window;

/// An operation and its strength; names and units are torchvision's. Pixels from outside the picture are black, and sampling
/// takes the nearest pixel (torchvision's defaults).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Shifts each row by this many pixels more than the row above, about the upper left corner.
    ShearX(f64),
    /// Shifts each column by this many pixels more than the column before, about the upper left corner.
    ShearY(f64),
    /// To the right, in pixels.
    TranslateX(i32),
    /// Down, in pixels.
    TranslateY(i32),
    /// Rotates about the centre, counter-clockwise, in degrees.
    Rotate(f64),
    /// 0 is black, 1 the original.
    Brightness(f64),
    /// 0 is grey, 1 the original.
    Color(f64),
    /// 0 is the mean grey, 1 the original.
    Contrast(f64),
    /// 0 is smoothed, 1 the original, more is sharper.
    Sharpness(f64),
    /// Keeps this many of each value's 8 bits.
    Posterize(u8),
    /// Inverts values from this one on.
    Solarize(f64),
    /// Stretches each channel's values to 0 to 255.
    AutoContrast,
    /// Equalizes each channel's histogram.
    Equalize,
    /// Replaces each value v by 255 − v.
    Invert,
}

impl Op {
    /// Applies the operation; the result has the same size.
    pub fn apply(self, picture: RgbImage) -> RgbImage {
        match self {
            Op::ShearX(by) => shear(&picture, by, 0.0),
            Op::ShearY(by) => shear(&picture, 0.0, by),
            Op::TranslateX(by) => translate(&picture, by, 0),
            Op::TranslateY(by) => translate(&picture, 0, by),
            Op::Rotate(degrees) => rotate(picture, degrees),
            Op::Brightness(factor) => brightness(picture, factor),
            Op::Color(factor) => color(picture, factor),
            Op::Contrast(factor) => contrast(picture, factor),
            Op::Sharpness(factor) => sharpness(picture, factor),
            Op::Posterize(bits) => posterize(picture, bits),
            Op::Solarize(threshold) => solarize(picture, threshold),
            Op::AutoContrast => auto_contrast(picture),
            Op::Equalize => equalize(picture),
            Op::Invert => invert(picture),
        }
    }
}

// Operations that move pixels: Pillow's affine transform with the nearest pixel (`affine_fixed` in Geometry.c), with matrices
// as torchvision and Pillow build them.
//
// Pillow switches from fixed point to floating point for pictures with a side of more than 32,768 pixels; this does not.

/// Maps the point (x, y) of the result to (a x + b y + c, d x + e y + f) in the picture.
type Matrix = [f64; 6];

/// One pixel in 16.16 fixed point.
const ONE: i64 = 1 << 16;

/// torchvision's `affine` with a shear of these tangents about the upper left corner.
fn shear(picture: &RgbImage, x: f64, y: f64) -> RgbImage {
    // Goes through the angle in degrees, because torchvision passes that on.
    let angle = |tangent: f64| tangent.atan().to_degrees().to_radians();
    let (sx, sy) = (angle(x), angle(y));
    // The inverse of the matrix in `_get_inverse_affine_matrix` without rotation, scale and centre.
    let cos = (-sy).cos() / sy.cos();
    let sin = (-sy).sin() / sy.cos();
    transform(picture, [1.0 - sin * sx.tan(), cos * sx.tan(), 0.0, -sin, cos, 0.0])
}

/// Moves the picture right and down, by whole pixels.
fn translate(picture: &RgbImage, x: i32, y: i32) -> RgbImage {
    window(picture, -i64::from(x), -i64::from(y), picture.width(), picture.height())
}

/// Pillow's `Image.rotate` about the centre.
fn rotate(picture: RgbImage, degrees: f64) -> RgbImage {
    let degrees = degrees.rem_euclid(360.0);
    if degrees == 0.0 {
        return picture;
    }
    let angle = -degrees.to_radians();
    let (cos, sin) = (to_15_decimals(angle.cos()), to_15_decimals(angle.sin()));
    let (x, y) = (f64::from(picture.width()) / 2.0, f64::from(picture.height()) / 2.0);
    transform(&picture, [cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y])
}

/// Python's `round(value, 15)`, which Pillow uses so that right angles are exact.
fn to_15_decimals(value: f64) -> f64 {
    format!("{value:.15}").parse().unwrap_or(value)
}

fn transform(picture: &RgbImage, [a, b, c, d, e, f]: Matrix) -> RgbImage {
    let fixed = |value: f64| (value * ONE as f64 + 0.5).floor() as i64;
    let across = [fixed(a), fixed(d)];
    let down = [fixed(b), fixed(e)];
    // Pixels are looked up at their centres.
    let start = [fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5)];
    let mut result = RgbImage::new(picture.width(), picture.height());
    let width = picture.width().max(1) as usize;
    for (row, pixels) in (0..).zip(result.as_chunks_mut::<3>().0.chunks_exact_mut(width)) {
        let at = [0, 1].map(|axis| down[axis].saturating_mul(row).saturating_add(start[axis]));
        look_up(picture, at, across, pixels);
    }
    result
}

/// Fills a row: its first pixel comes from `start`, each further one from `step` away. Pixels from outside the picture stay
/// unchanged.
fn look_up(picture: &RgbImage, start: [i64; 2], step: [i64; 2], row: &mut [[u8; 3]]) {
    let (width, height) = (i64::from(picture.width()), i64::from(picture.height()));
    let columns = inside(start[0], step[0], width * ONE, row.len());
    let lines = inside(start[1], step[1], height * ONE, row.len());
    let (first, end) = (columns.start.max(lines.start), columns.end.min(lines.end));
    if first >= end {
        return;
    }
    let source = picture.as_raw().as_chunks::<3>().0;
    let [mut x, mut y] = [0, 1].map(|axis| start[axis].wrapping_add(step[axis].wrapping_mul(first as i64)));
    let place = |x: i64, y: i64| (y >> 16).wrapping_mul(width).wrapping_add(x >> 16) as usize;
    if step == [ONE, 0] {
        let from = place(x, y);
        row[first..end].copy_from_slice(&source[from..from + (end - first)]);
        return;
    }
    for pixel in &mut row[first..end] {
        *pixel = source[place(x, y)];
        x = x.wrapping_add(step[0]);
        y = y.wrapping_add(step[1]);
    }
}

/// The range of `k` below `count` for which `start + k step` is from 0 to below `limit`.
fn inside(start: i64, step: i64, limit: i64, count: usize) -> Range<usize> {
    let (first, end) = match step {
        0 if (0..limit).contains(&start) => (0, i64::MAX),
        0 => (0, 0),
        1.. => (steps_up(start.saturating_neg(), step), steps_up(limit.saturating_sub(start), step)),
        _ => {
            let (start, step) = (start.saturating_add(1), step.saturating_neg());
            (steps_up(start.saturating_sub(limit), step), steps_up(start, step))
        }
    };
    let within = |k: i64| k.clamp(0, count as i64) as usize;
    within(first)..within(end)
}

/// The number of steps to reach `distance` or go beyond.
fn steps_up(distance: i64, step: i64) -> i64 {
    distance.div_euclid(step).saturating_add(i64::from(distance.rem_euclid(step) > 0))
}

// Blends a picture with a degenerate one: Pillow's `ImageEnhance`, whose factor may also be above 1.

fn brightness(picture: RgbImage, factor: f64) -> RgbImage {
    towards_grey(picture, 0, factor)
}

fn contrast(picture: RgbImage, factor: f64) -> RgbImage {
    let pixels = picture.as_raw().as_chunks::<3>().0;
    let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(*pixel))).sum();
    let mean = (sum as f64 / pixels.len().max(1) as f64 + 0.5) as u8;
    towards_grey(picture, mean, factor)
}

fn color(mut picture: RgbImage, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    let width = picture.width().max(1) as usize;
    let mut greys = vec![[0; 3]; width];
    for row in picture.as_chunks_mut::<3>().0.chunks_exact_mut(width) {
        greys.iter_mut().zip(&*row).for_each(|(grey, pixel)| *grey = [luma(*pixel); 3]);
        // Works on bytes, not pixels, so that several are processed at once.
        let bytes = row.as_flattened_mut().iter_mut().zip(greys.as_flattened());
        bytes.for_each(|(value, grey)| *value = blend.of(*grey, *value));
    }
    picture
}

fn sharpness(picture: RgbImage, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    let mut result = smoothed(&picture);
    result.iter_mut().zip(picture.iter()).for_each(|(dull, value)| *dull = blend.of(*dull, *value));
    result
}

/// Moves all values towards one value, or away from it.
fn towards_grey(picture: RgbImage, grey: u8, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    map(picture, &std::array::from_fn(|value| blend.of(grey, value as u8)))
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

// Operations that map each value through a table: Pillow's `ImageOps`.

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
fn map(mut picture: RgbImage, table: &Table) -> RgbImage {
    picture.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
    picture
}

fn posterize(mut picture: RgbImage, bits: u8) -> RgbImage {
    let mask = 0xFF_u8.checked_shl(8_u32.saturating_sub(bits.into())).unwrap_or(0);
    picture.iter_mut().for_each(|value| *value &= mask);
    picture
}

fn solarize(mut picture: RgbImage, threshold: f64) -> RgbImage {
    // The smallest integer that is not below it; from 256 on there is none.
    let first = threshold.ceil() as u16;
    if let Ok(first) = u8::try_from(first) {
        picture.iter_mut().for_each(|value| *value = if *value < first { *value } else { !*value });
    }
    picture
}

fn invert(mut picture: RgbImage) -> RgbImage {
    picture.iter_mut().for_each(|value| *value = !*value);
    picture
}

fn auto_contrast(picture: RgbImage) -> RgbImage {
    let tables = histograms(&picture).map(|counts| stretched(&counts));
    map_each(picture, &tables)
}

fn equalize(picture: RgbImage) -> RgbImage {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_steps_that_stay_inside() {
        for start in -12..12 {
            for step in -5..5 {
                let holds = |k: usize| (0..7).contains(&(start + step * k as i64));
                let range = inside(start, step, 7, 9);
                (0..9).for_each(|k| assert_eq!(range.contains(&k), holds(k), "{start} {step} {k}"));
            }
        }
    }
}

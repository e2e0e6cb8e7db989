//! Operations that move pixels: Pillow's affine transform with the nearest pixel (`affine_fixed` in Geometry.c), with matrices
//! as torchvision and Pillow build them.
//!
//! Pillow switches from fixed point to floating point for pictures with a side of more than 32,768 pixels; this does not.

use std::ops::Range;

use image::RgbImage;

use crate::window::window;

/// Maps the point (x, y) of the result to (a x + b y + c, d x + e y + f) in the picture.
type Matrix = [f64; 6];

/// One pixel in 16.16 fixed point.
const ONE: i64 = 1 << 16;

/// torchvision's `affine` with a shear of these tangents about the upper left corner.
pub(super) fn shear(picture: &RgbImage, x: f64, y: f64) -> RgbImage {
    // Goes through the angle in degrees, because torchvision passes that on.
    let angle = |tangent: f64| tangent.atan().to_degrees().to_radians();
    let (sx, sy) = (angle(x), angle(y));
    // The inverse of the matrix in `_get_inverse_affine_matrix` without rotation, scale and centre.
    let cos = (-sy).cos() / sy.cos();
    let sin = (-sy).sin() / sy.cos();
    transform(picture, [1.0 - sin * sx.tan(), cos * sx.tan(), 0.0, -sin, cos, 0.0])
}

/// Moves the picture right and down, by whole pixels.
pub(super) fn translate(picture: &RgbImage, x: i32, y: i32) -> RgbImage {
    window(picture, -i64::from(x), -i64::from(y), picture.width(), picture.height())
}

/// Pillow's `Image.rotate` about the centre.
pub(super) fn rotate(picture: RgbImage, degrees: f64) -> RgbImage {
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

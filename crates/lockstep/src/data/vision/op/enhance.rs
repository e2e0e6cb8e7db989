//! Operations between a picture and a duller one: Pillow's `ImageEnhance`, whose blend goes beyond the picture, too.

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
    for pixel in picture.as_chunks_mut::<3>().0 {
        let grey = luma(*pixel);
        *pixel = pixel.map(|value| blend.of(grey, value));
    }
    picture
}

pub(super) fn sharpness(picture: RgbImage, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    let mut result = smoothed(&picture);
    result.iter_mut().zip(picture.iter()).for_each(|(dull, value)| *dull = blend.of(*dull, *value));
    result
}

/// All values towards one, or away from it.
fn towards_grey(picture: RgbImage, grey: u8, factor: f64) -> RgbImage {
    let blend = Blend::new(factor);
    tone::map(picture, &std::array::from_fn(|value| blend.of(grey, value as u8)))
}

/// Pillow's `Image.blend` (Blend.c): single precision, cut off towards 0.
#[derive(Clone, Copy)]
struct Blend {
    factor: f32,
}

impl Blend {
    fn new(factor: f64) -> Self {
        Blend { factor: factor as f32 }
    }

    /// From `dull` at factor 0 to `value` at factor 1; the cast keeps what lies beyond within 0 and 255.
    fn of(self, dull: u8, value: u8) -> u8 {
        let difference = i32::from(value) - i32::from(dull);
        (f32::from(dull) + self.factor * difference as f32) as u8
    }
}

/// How light a pixel is, by ITU-R 601-2 in 16.16 fixed point (Convert.c).
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16) as u8
}

/// Pillow's `SMOOTH` (ImageFilter.py, Filter.c): 3 × 3 with a weight of 5 in the middle, over 13, rounded. The outermost
/// pixels stay as they are.
fn smoothed(picture: &RgbImage) -> RgbImage {
    let (stride, height) = (picture.width() as usize * 3, picture.height() as usize);
    let mut result = picture.clone();
    if picture.width() < 3 || height < 3 {
        return result;
    }
    let source = picture.as_raw();
    for row in 1..height - 1 {
        let line = |offset: usize| &source[(row + offset - 1) * stride..(row + offset) * stride];
        let (above, middle, below) = (line(0), line(1), line(2));
        let inner = &mut result.as_mut()[row * stride + 3..(row + 1) * stride - 3];
        for (at, value) in (3..).zip(inner) {
            let of = |line: &[u8]| u32::from(line[at - 3]) + u32::from(line[at]) + u32::from(line[at + 3]);
            let sum = of(above) + of(middle) + of(below) + 4 * u32::from(middle[at]);
            // sum / 13 is never halfway between two numbers, so that rounding has no doubt.
            *value = ((2 * sum + 13) / 26) as u8;
        }
    }
    result
}

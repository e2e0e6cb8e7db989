//! What AutoAugment does to a picture: an operation with its strength, as Pillow does it.
//!
//! - [`affine`]: where pixels come from; [`enhance`]: between a picture and a duller one; [`tone`]: value by value.

mod affine;
mod enhance;
mod tone;

use image::RgbImage;

/// An operation and its strength; names and units are torchvision's. Pixels from outside the picture are black, and the
/// nearest pixel is taken (torchvision's defaults).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Moves each row by so many pixels a row, about the upper left corner.
    ShearX(f64),
    /// Moves each column by so many pixels a column.
    ShearY(f64),
    /// To the right, in pixels.
    TranslateX(i32),
    /// Down, in pixels.
    TranslateY(i32),
    /// About the centre, counter-clockwise, in degrees.
    Rotate(f64),
    /// 0 is black, 1 the picture.
    Brightness(f64),
    /// 0 is grey, 1 the picture.
    Color(f64),
    /// 0 is the mean grey, 1 the picture.
    Contrast(f64),
    /// 0 is smoothed, 1 the picture, more is sharper.
    Sharpness(f64),
    /// Keeps so many of each value's 8 bits.
    Posterize(u8),
    /// Inverts values from this one on.
    Solarize(f64),
    /// Spreads each channel's values from 0 to 255.
    AutoContrast,
    /// Makes each channel's values equally frequent.
    Equalize,
    /// Makes each value 255 less it.
    Invert,
}

impl Op {
    /// The picture after it; of the same size.
    pub fn apply(self, picture: RgbImage) -> RgbImage {
        match self {
            Op::ShearX(by) => affine::shear(&picture, by, 0.0),
            Op::ShearY(by) => affine::shear(&picture, 0.0, by),
            Op::TranslateX(by) => affine::translate(&picture, by, 0),
            Op::TranslateY(by) => affine::translate(&picture, 0, by),
            Op::Rotate(degrees) => affine::rotate(picture, degrees),
            Op::Brightness(factor) => enhance::brightness(picture, factor),
            Op::Color(factor) => enhance::color(picture, factor),
            Op::Contrast(factor) => enhance::contrast(picture, factor),
            Op::Sharpness(factor) => enhance::sharpness(picture, factor),
            Op::Posterize(bits) => tone::posterize(picture, bits),
            Op::Solarize(threshold) => tone::solarize(picture, threshold),
            Op::AutoContrast => tone::auto_contrast(picture),
            Op::Equalize => tone::equalize(picture),
            Op::Invert => tone::invert(picture),
        }
    }
}

//! AutoAugment's operations: an operation with its strength, equal to Pillow's.
//!
//! - [`affine`]: moves pixels; [`enhance`]: blends a picture with a degenerate one; [`tone`]: maps values.

mod affine;
mod enhance;
mod tone;

use image::RgbImage;

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

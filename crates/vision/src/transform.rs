//! Transforms that crop, flip and resize, and the pipeline of several.

use std::cell::RefCell;
use std::fmt::Debug;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;
use lockstep::data::rng::KeyedRng;

/// Changes a picture. All its random choices come from `rng`. Its `Debug` text must show its settings, because
/// [`Transformed`](super::Transformed) includes that text in its fingerprint.
pub trait Transform: Debug + Send + Sync {
    fn apply(&self, picture: RgbImage, rng: &mut KeyedRng) -> RgbImage;
}

/// Transforms one after the other (`torchvision.transforms.Compose`).
///
/// ```
/// use lockstep_vision::{Pipeline, RandomCrop, RandomHorizontalFlip};
/// let train = Pipeline::new().then(RandomCrop { size: 32, padding: 4 }).then(RandomHorizontalFlip { p: 0.5 });
/// ```
#[derive(Debug, Default)]
pub struct Pipeline(Vec<Box<dyn Transform>>);

impl Pipeline {
    /// A pipeline that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn then(mut self, transform: impl Transform + 'static) -> Self {
        self.0.push(Box::new(transform));
        self
    }
}

impl Transform for Pipeline {
    fn apply(&self, picture: RgbImage, rng: &mut KeyedRng) -> RgbImage {
        self.0.iter().fold(picture, |picture, transform| transform.apply(picture, rng))
    }
}

/// A square of `size` pixels from a random position of the picture with `padding` black pixels around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomCrop {
    /// Pixels along each side of the result.
    pub size: u32,
    /// Black pixels that are added on each of the four sides first.
    pub padding: u32,
}

impl RandomCrop {
    /// The square whose upper left corner is at (`left`, `top`) of the padded picture. Anything outside the picture is black.
    pub fn at(&self, picture: &RgbImage, left: u32, top: u32) -> RgbImage {
        let within = |place: u32| i64::from(place) - i64::from(self.padding);
        window(picture, within(left), within(top), self.size, self.size)
    }
}

impl Transform for RandomCrop {
    /// # Panics
    /// Panics when the padded picture is smaller than the square.
    fn apply(&self, picture: RgbImage, rng: &mut KeyedRng) -> RgbImage {
        let (width, height) = picture.dimensions();
        let mut place = |side: u32| {
            let padded = side + 2 * self.padding;
            assert!(padded >= self.size, "cannot crop {0} x {0} pixels from a side of {padded}", self.size);
            rng.below((padded - self.size + 1) as usize) as u32
        };
        let (top, left) = (place(height), place(width));
        self.at(&picture, left, top)
    }
}

/// Swaps left and right with a probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomHorizontalFlip {
    /// From 0 to 1; torchvision's default is 0.5.
    pub p: f32,
}

impl Transform for RandomHorizontalFlip {
    fn apply(&self, mut picture: RgbImage, rng: &mut KeyedRng) -> RgbImage {
        if rng.uniform() < self.p {
            flip_horizontally(&mut picture);
        }
        picture
    }
}

fn flip_horizontally(picture: &mut RgbImage) {
    let width = picture.width().max(1) as usize;
    picture.as_chunks_mut::<3>().0.chunks_exact_mut(width).for_each(<[_]>::reverse);
}

/// The centre of a picture, with black around it if the picture is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CenterCrop {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

impl Transform for CenterCrop {
    fn apply(&self, picture: RgbImage, _: &mut KeyedRng) -> RgbImage {
        let left = before(picture.width(), self.width);
        let top = before(picture.height(), self.height);
        window(&picture, left, top, self.width, self.height)
    }
}

/// Where the middle `size` pixels of a side begin, rounded as in torchvision: half to even when cropping, less padding before
/// than after.
fn before(side: u32, size: u32) -> i64 {
    let spare = i64::from(side) - i64::from(size);
    if spare >= 0 { (spare as f64 / 2.0).round_ties_even() as i64 } else { -(-spare / 2) }
}

/// Resizes a picture to this size, whatever its shape: Pillow's `BILINEAR`, which averages over the covered area when shrinking
/// (antialiasing), within one grey level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Pixels, 1 or more.
    pub width: u32,
    /// Pixels, 1 or more.
    pub height: u32,
}

impl Resize {
    /// A square, as the tutorials' `Resize((side, side))`.
    pub fn square(side: u32) -> Self {
        Resize { width: side, height: side }
    }
}

impl Transform for Resize {
    fn apply(&self, picture: RgbImage, _: &mut KeyedRng) -> RgbImage {
        if picture.dimensions() == (self.width, self.height) {
            return picture;
        }
        thread_local! {
            // It reuses its buffers from picture to picture.
            static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
        }
        let (width, height) = picture.dimensions();
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).use_alpha(false);
        let mut resized = RgbImage::new(self.width, self.height);
        // Names the pixel type: `Resizer::resize` would be compiled for every type.
        let source = TypedImageRef::<U8x3>::from_buffer(width, height, picture.as_raw());
        let target = TypedImage::<U8x3>::from_buffer(self.width, self.height, resized.as_mut());
        // A picture has as many bytes as its pixels take, and bytes are always aligned.
        let (source, mut target) = source.ok().zip(target.ok()).expect("pictures of three bytes a pixel");
        let done = RESIZER.with_borrow_mut(|resizer| resizer.resize_typed(&source, &mut target, &options));
        done.expect("nothing of the source is cut off");
        resized
    }
}

// Turns pixels into the numbers that a network takes.

/// `ToTensor`, then `Normalize`: each channel of 0 to 255 becomes (v / 255 - mean) / std, in single precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalize {
    /// For red, green and blue, in units of 0 to 1.
    pub mean: [f32; 3],
    /// The same; never 0.
    pub std: [f32; 3],
}

impl Normalize {
    /// `ToTensor` alone: numbers from 0 to 1.
    pub const NONE: Self = Normalize { mean: [0.0; 3], std: [1.0; 3] };
    /// The tutorials' values for CIFAR-10.
    pub const CIFAR10: Self = Normalize { mean: [0.4914, 0.4822, 0.4465], std: [0.2023, 0.1994, 0.2010] };
    /// ImageNet's values, with which torchvision's pretrained networks were trained.
    pub const IMAGENET: Self = Normalize { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };

    /// Writes the picture as planes of red, green and blue, row by row: shape `[3, height, width]`.
    ///
    /// # Panics
    /// Panics when `planes` does not have three numbers for each pixel.
    pub fn write(&self, picture: &RgbImage, planes: &mut [f32]) {
        let pixels = picture.as_raw().as_chunks::<3>().0;
        assert_eq!(planes.len(), pixels.len() * 3, "three planes of {} pixels", pixels.len());
        let (red, rest) = planes.split_at_mut(pixels.len());
        let (green, blue) = rest.split_at_mut(pixels.len());
        // Divides once for each possible value, not for each pixel.
        let [reds, greens, blues] = std::array::from_fn(|channel| self.table(channel));
        for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
            let [r, g, b] = pixel.map(usize::from);
            (*red, *green, *blue) = (reds[r], greens[g], blues[b]);
        }
    }

    /// The number for each value of a channel.
    fn table(&self, channel: usize) -> [f32; 256] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        std::array::from_fn(|value| (value as f32 / 255.0 - mean) / std)
    }
}

// A window on a picture, for cropping, moving and padding.

/// The part of a picture of this width and height whose upper left corner is at (`left`, `top`); black outside the picture.
pub(super) fn window(picture: &RgbImage, left: i64, top: i64, width: u32, height: u32) -> RgbImage {
    let mut result = RgbImage::new(width, height);
    let (wide, high) = (i64::from(picture.width()), i64::from(picture.height()));
    // The overlap, in the result's columns and rows.
    let columns = inside(left, wide, width);
    let rows = inside(top, high, height);
    if columns.is_empty() {
        return result;
    }
    let bytes = columns.len() * 3;
    for row in rows {
        let from = ((top + row as i64) * wide + left + columns.start as i64) as usize * 3;
        let to = (row * width as usize + columns.start) * 3;
        result.as_mut()[to..to + bytes].copy_from_slice(&picture.as_raw()[from..from + bytes]);
    }
    result
}

/// The range of `size` positions from `start` that lies in `0..limit`, relative to `start`.
fn inside(start: i64, limit: i64, size: u32) -> std::ops::Range<usize> {
    let size = i64::from(size);
    let first = start.saturating_neg().clamp(0, size);
    let end = limit.saturating_sub(start).clamp(first, size);
    first as usize..end as usize
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    /// Red encodes the column, green the row.
    fn numbered(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([x as u8 + 1, y as u8 + 1, 0]))
    }

    #[test]
    fn crops_from_the_padded_picture() {
        let crop = RandomCrop { size: 3, padding: 1 };
        let cut = crop.at(&numbered(3, 3), 0, 2);
        assert_eq!(cut.get_pixel(0, 0).0, [0, 0, 0], "left of the picture");
        assert_eq!(cut.get_pixel(1, 0).0, [1, 2, 0]);
        assert_eq!(cut.get_pixel(2, 1).0, [2, 3, 0]);
        assert_eq!(cut.get_pixel(2, 2).0, [0, 0, 0], "below it");
    }

    #[test]
    fn crops_at_every_position_with_equal_frequency() {
        let crop = RandomCrop { size: 32, padding: 4 };
        let picture = numbered(32, 32);
        let mut counts = [[0u32; 9]; 9];
        for index in 0..8_100 {
            let cut = crop.apply(picture.clone(), &mut KeyedRng::new(&[index]));
            // Row and column 4 of the square are inside the picture for every crop.
            let [column, row, _] = cut.get_pixel(4, 4).0;
            counts[usize::from(row) - 1][usize::from(column) - 1] += 1;
        }
        assert!(counts.iter().flatten().all(|count| (55..150).contains(count)), "{counts:?}");
    }

    #[test]
    fn flips_with_the_given_probability() {
        let picture = numbered(2, 1);
        let flipped = |p: f32| {
            let flip = RandomHorizontalFlip { p };
            (0..2_000).filter(|key| flip.apply(picture.clone(), &mut KeyedRng::new(&[*key])) != picture).count()
        };
        assert_eq!((flipped(0.0), flipped(1.0)), (0, 2_000));
        assert!((900..1_100).contains(&flipped(0.5)));
    }

    #[test]
    fn applies_transforms_in_order() {
        let pipeline = Pipeline::new().then(Resize { width: 4, height: 2 }).then(RandomCrop { size: 2, padding: 0 });
        let picture = pipeline.apply(numbered(9, 9), &mut KeyedRng::new(&[1]));
        assert_eq!(picture.dimensions(), (2, 2));
    }

    #[test]
    fn writes_planes_of_normalised_numbers() {
        let picture = RgbImage::from_raw(2, 1, vec![0, 51, 255, 255, 0, 102]).unwrap();
        let mut planes = [0.0; 6];
        Normalize::NONE.write(&picture, &mut planes);
        assert_eq!(planes, [0.0, 1.0, 0.2, 0.0, 1.0, 0.4]);
        Normalize { mean: [0.5; 3], std: [0.5, 0.25, 1.0] }.write(&picture, &mut planes);
        assert_eq!(planes[..3], [-1.0, 1.0, (0.2 - 0.5) / 0.25]);
    }
}

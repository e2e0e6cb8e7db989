//! Pictures drawn on the spot in CIFAR-10's format, so that its lab runs without a download: five outlines, striped or chequered.
//!
//! Label 2 *o* + *t* is outline *o* of `distance` with texture *t* of `texture`; the classes keep CIFAR-10's names. Place, size, angle, colours,
//! background and light say nothing about the label. So a linear model on pixels hardly does better than chance, and
//! a convolutional network learns the labels (`tests/it/learning.rs`). Accuracies are not comparable with those on the real files.

use std::array;

use lockstep::data::Split;
use lockstep::data::rng::KeyedRng;
use lockstep_datasets::cifar::{PIXELS, RECORD, SIDE};

use super::Cifar10;

/// Keep the random streams of labels and pictures apart.
const LABELS: u64 = u64::from_be_bytes(*b"oblabels");
const PICTURES: u64 = u64::from_be_bytes(*b"obpixels");

/// The objects of one seed and split: an endless sequence, each a function of (seed, split, index) alone.
///
/// ```
/// use lockstep::data::Split;
/// use lockstep_vision::Objects;
/// let objects = Objects::new(42, Split::Train);
/// assert_eq!(objects.first(100).kind(99), objects.kind(99));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects {
    seed: u64,
    split: u64,
}

impl Objects {
    /// The objects of this seed; the two splits share none.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split: split as u64 }
    }

    /// The first `count` of these objects, as a data set.
    ///
    /// # Panics
    /// Panics when `count` is 0.
    pub fn first(self, count: usize) -> Cifar10 {
        let records = (0..count).flat_map(|index| {
            let mut rng = KeyedRng::new(&[self.seed, PICTURES, self.split, index as u64]);
            record(self.kind(index), &mut rng)
        });
        Cifar10::new(records.collect()).expect("one whole record or more was drawn, with labels below 10")
    }

    /// The class of object `index`. Every ten in a row (0 to 9, 10 to 19, …) contain each class once, in random order.
    pub fn kind(self, index: usize) -> u8 {
        let mut rng = KeyedRng::new(&[self.seed, LABELS, self.split, (index / 10) as u64]);
        rng.shuffled::<10>()[index % 10]
    }
}

/// The record of an object: its label, then the planes of red, green and blue.
///
/// Uses only operations that IEEE 754 rounds the same everywhere. So the pictures of a seed are the same bytes on every machine.
fn record(label: u8, rng: &mut KeyedRng) -> [u8; RECORD] {
    let mut colour = |low, high| -> [f32; 3] { array::from_fn(|_| rng.between(low, high)) };
    let (above, below, mut first, mut second) =
        (colour(20.0, 235.0), colour(20.0, 235.0), colour(10.0, 110.0), colour(150.0, 250.0));
    if rng.below(2) == 0 {
        (first, second) = (second, first);
    }
    let (radius, centre) = (rng.between(9.0, 14.0), (rng.between(12.0, 19.0), rng.between(12.0, 19.0)));
    // The tangent of half the angle gives sine and cosine without calling either; the angle is at most 11 degrees.
    let half = rng.between(-0.1, 0.1);
    let (sine, cosine) = (2.0 * half / (1.0 + half * half), (1.0 - half * half) / (1.0 + half * half));
    let (horizon, slope) = (rng.between(4.0, 28.0), rng.between(-0.4, 0.4));
    let (period, phase) = (rng.between(0.5, 0.7), (rng.uniform(), rng.uniform()));
    let (light, grain) = (rng.between(0.6, 1.1), rng.between(2.0, 12.0));

    let mut record = [label; RECORD];
    for pixel in 0..PIXELS {
        let (x, y) = ((pixel % SIDE) as f32, (pixel / SIDE) as f32);
        let (dx, dy) = ((x - centre.0) / radius, (y - centre.1) / radius);
        let (u, v) = (cosine * dx + sine * dy, cosine * dy - sine * dx);
        let behind = mix(above, below, y - horizon - slope * x);
        let paint = mix(first, second, texture(label % 2, u / period + phase.0, v / period + phase.1));
        let colours = mix(behind, paint, 0.5 - distance(label / 2, u, v) * radius);
        let noise = grain * rng.normal(); // of the whole pixel; a camera's differs little between its colours
        for (plane, colour) in colours.into_iter().enumerate() {
            record[1 + plane * PIXELS + pixel] = (light * colour + noise).clamp(0.0, 255.0) as u8;
        }
    }
    record
}

/// The colour at this part of the way between two; a part below 0 or above 1 is one of the two.
fn mix(from: [f32; 3], to: [f32; 3], part: f32) -> [f32; 3] {
    let part = part.clamp(0.0, 1.0);
    array::from_fn(|i| from[i] + (to[i] - from[i]) * part)
}

/// How far a point is from an outline of radius 1, roughly; negative inside.
fn distance(outline: u8, u: f32, v: f32) -> f32 {
    let (across, down, length) = (u.abs(), v.abs(), (u * u + v * v).sqrt());
    match outline {
        0 => length - 0.9,                                          // a disc
        1 => across.max(down) - 0.8,                                // a square
        2 => (0.87 * across - 0.5 * v - 0.5).max(v - 0.6),          // a triangle, its tip at the top
        3 => (length - 0.75).abs() - 0.25,                          // a ring
        _ => (across.max(down) - 1.0).max(across.min(down) - 0.32), // a cross
    }
}

/// The part of the second paint at a point, less than 0 and more than 1 in turn: stripes, or the fields of a chessboard, of period 1.
fn texture(kind: u8, u: f32, v: f32) -> f32 {
    let wave = |at: f32| (at - at.floor() - 0.5).abs() * 4.0 - 1.0; // from -1 to 1
    0.5 + 1.5 * if kind == 0 { wave(u) } else { wave(u) * wave(v) }
}

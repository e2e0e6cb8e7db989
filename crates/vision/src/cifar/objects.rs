//! Objects drawn on the spot in the style of CIFAR-10, so that its lab runs without a download.
//!
//! They replace the photographs in shape, classes, file format and difficulty: colour and surroundings carry some information,
//! outlines the rest, and four of the animals look much alike. Accuracies are not comparable with those on the real files.
//! `kinds` describes the objects and their surroundings; this file renders them.

use lockstep::data::Split;
use lockstep::data::rng::KeyedRng;
use lockstep_datasets::cifar::{PIXELS, RECORD, SIDE};

use super::Cifar10;
use super::kinds::{KINDS, ObjectKind, Outline, Paint, Scene, Theme, View, varied};
use crate::houses::paint::mix;

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
        let records = (0..count).flat_map(|index| self.record(index)).collect();
        Cifar10::new(records).expect("one whole record or more was drawn, with labels below 10")
    }

    /// The class of object `index`. Every ten in a row (0 to 9, 10 to 19, …) contain each class once, in random order.
    pub fn kind(self, index: usize) -> u8 {
        let mut rng = KeyedRng::new(&[self.seed, LABELS, self.split, (index / 10) as u64]);
        rng.shuffled::<10>()[index % 10]
    }

    /// Object `index` as a record of the file.
    fn record(self, index: usize) -> [u8; RECORD] {
        let kind = self.kind(index);
        let mut rng = KeyedRng::new(&[self.seed, PICTURES, self.split, index as u64]);
        record(kind, &mut rng)
    }
}

// Renders an object to pixels: its position, rotation and bend, the light, and noise.
//
// Uses only additions, multiplications, divisions and comparisons, which IEEE 754 rounds the same everywhere. So the pictures
// of a seed are the same bytes on every machine.

/// Samples per pixel along each side, for soft edges.
const FINE: usize = 2;

/// The record of an object of this kind: its label, then the planes.
fn record(kind: u8, rng: &mut KeyedRng) -> [u8; RECORD] {
    let object = &KINDS[usize::from(kind)];
    let scene = Scene::draw(Theme::pick(object.themes, rng), rng);
    let figure = Figure::draw(object, rng);
    let light = Light::draw(rng);
    let mut record = [kind; RECORD];
    for pixel in 0..PIXELS {
        let colour = average(&scene, &figure, pixel % SIDE, pixel / SIDE);
        for (plane, value) in light.fall_on(colour, rng).into_iter().enumerate() {
            record[1 + plane * PIXELS + pixel] = value;
        }
    }
    record
}

/// The mean colour of a pixel's samples.
fn average(scene: &Scene, figure: &Figure, column: usize, row: usize) -> [f32; 3] {
    let place = |pixel: usize, part: usize| pixel as f32 + (part as f32 + 0.5) / FINE as f32;
    let mut sum = [0.0; 3];
    for part in 0..FINE * FINE {
        let (x, y) = (place(column, part % FINE), place(row, part / FINE));
        let colour = figure.at(x, y).unwrap_or_else(|| scene.at(x, y));
        sum = [0, 1, 2].map(|i| sum[i] + colour[i]);
    }
    sum.map(|sum| sum / (FINE * FINE) as f32)
}

/// An object as it appears in one picture.
struct Figure {
    /// The matrix, row by row, from pixels (relative to the centre) to hundredths of the box (relative to its centre).
    matrix: [f32; 4],
    middle: (f32, f32),
    /// How much the box is bent, horizontally and vertically.
    bend: (f32, f32),
    parts: Vec<Shape>,
    /// How much lighter the top is than the bottom.
    shade: f32,
}

/// A part in its box, with its position and size varied.
struct Shape {
    outline: Edge,
    colour: [f32; 3],
}

enum Edge {
    Oval { middle: (f32, f32), radii: (f32, f32) },
    Area(Vec<(f32, f32)>),
}

impl Figure {
    fn draw(object: &ObjectKind, rng: &mut KeyedRng) -> Self {
        let view = object.views[rng.below(object.views.len())];
        let palette = Palette::draw(object, rng);
        // Pixels per hundredth: CIFAR's objects nearly fill their pictures.
        let (width, height) = (rng.between(0.2, 0.33), rng.between(0.2, 0.33));
        let mirror = if rng.below(2) == 0 { -1.0 } else { 1.0 };
        // The tangent of half the angle gives sine and cosine without calling either; the angle is at most 17 degrees.
        let half = rng.between(-0.15, 0.15);
        let (sine, cosine) = (2.0 * half / (1.0 + half * half), (1.0 - half * half) / (1.0 + half * half));
        let (across, down) = (mirror / width, 1.0 / height);
        let centre = SIDE as f32 / 2.0;
        Self {
            matrix: [cosine * across, sine * across, -sine * down, cosine * down],
            middle: (centre + rng.between(-4.0, 4.0), centre + rng.between(-4.0, 4.0)),
            bend: (rng.between(-9.0, 9.0), rng.between(-9.0, 9.0)),
            parts: shapes(view, &palette, rng),
            shade: rng.between(0.0, 0.45),
        }
    }

    /// The colour of the object at a point of the picture, or `None` where the object does not cover it.
    fn at(&self, x: f32, y: f32) -> Option<[f32; 3]> {
        let (u, v) = self.place(x - self.middle.0, y - self.middle.1);
        let part = self.parts.iter().rev().find(|part| part.outline.contains(u, v))?;
        let light = 1.0 + self.shade * (0.5 - v / 100.0);
        Some(part.colour.map(|colour| colour * light))
    }

    /// From pixels relative to the centre to the box: rotate, scale, bend.
    fn place(&self, x: f32, y: f32) -> (f32, f32) {
        let [a, b, c, d] = self.matrix;
        let (u, v) = (a * x + b * y, c * x + d * y);
        let (bent_u, bent_v) = (self.bend.0 * (v / 50.0) * (v / 50.0), self.bend.1 * (u / 50.0) * (u / 50.0));
        (50.0 + u + bent_u, 50.0 + v + bent_v)
    }
}

/// The colours of one object.
struct Palette {
    body: [f32; 3],
    trim: [f32; 3],
    dark: [f32; 3],
    light: [f32; 3],
    glass: [f32; 3],
}

impl Palette {
    fn draw(object: &ObjectKind, rng: &mut KeyedRng) -> Self {
        let usual = object.colours[rng.below(object.colours.len())];
        let body = if rng.below(5) == 0 { varied([128; 3], 110.0, rng) } else { varied(usual, 28.0, rng) };
        let other = varied([150; 3], 90.0, rng);
        Self {
            trim: mix(body.map(|part| part * 0.78), other, rng.between(0.0, 0.7)),
            body,
            dark: varied([32; 3], 24.0, rng),
            light: varied([222; 3], 30.0, rng),
            glass: varied([95, 120, 140], 45.0, rng),
        }
    }

    fn of(&self, paint: Paint) -> [f32; 3] {
        match paint {
            Paint::Body => self.body,
            Paint::Trim => self.trim,
            Paint::Dark => self.dark,
            Paint::Light => self.light,
            Paint::Glass => self.glass,
        }
    }
}

/// The parts of a view, with position and size varied from picture to picture.
fn shapes(view: View, palette: &Palette, rng: &mut KeyedRng) -> Vec<Shape> {
    let shape = |(paint, outline): &(Paint, Outline)| {
        let by = (rng.between(-2.5, 2.5), rng.between(-2.5, 2.5));
        let outline = match *outline {
            Outline::Oval(x, y, across, down) => Edge::Oval {
                middle: (f32::from(x) + by.0, f32::from(y) + by.1),
                radii: (f32::from(across) * rng.between(0.82, 1.18), f32::from(down) * rng.between(0.82, 1.18)),
            },
            Outline::Area(corners) => Edge::Area(corners.iter().map(|corner| moved(*corner, by, rng)).collect()),
        };
        Shape { outline, colour: palette.of(*paint) }
    };
    view.iter().map(shape).collect()
}

fn moved((x, y): (i8, i8), by: (f32, f32), rng: &mut KeyedRng) -> (f32, f32) {
    (f32::from(x) + by.0 + rng.between(-1.5, 1.5), f32::from(y) + by.1 + rng.between(-1.5, 1.5))
}

impl Edge {
    fn contains(&self, u: f32, v: f32) -> bool {
        match self {
            Edge::Oval { middle, radii } => {
                let (du, dv) = ((u - middle.0) / radii.0, (v - middle.1) / radii.1);
                du * du + dv * dv <= 1.0
            }
            Edge::Area(corners) => inside(corners, u, v),
        }
    }
}

/// Returns true if a ray from the point to the right crosses the outline an odd number of times.
fn inside(corners: &[(f32, f32)], u: f32, v: f32) -> bool {
    let mut odd = false;
    let mut from = corners[corners.len() - 1]; // an area has three corners at least
    for &to in corners {
        if (from.1 > v) != (to.1 > v) {
            let crossing = from.0 + (v - from.1) / (to.1 - from.1) * (to.0 - from.0);
            odd ^= u < crossing;
        }
        from = to;
    }
    odd
}

/// Light and camera: brightness, contrast, and noise.
struct Light {
    gain: f32,
    lift: f32,
    noise: f32,
}

impl Light {
    fn draw(rng: &mut KeyedRng) -> Self {
        Self { gain: rng.between(0.65, 1.15), lift: rng.between(-25.0, 25.0), noise: rng.between(3.0, 16.0) }
    }

    fn fall_on(&self, colour: [f32; 3], rng: &mut KeyedRng) -> [u8; 3] {
        let grain = self.noise * rng.normal(); // of the whole pixel; a camera's differs little between its colours
        colour.map(|part| (self.gain * part + self.lift + grain).clamp(0.0, 255.0) as u8)
    }
}

//! Photographs of houses after a storm, drawn on the spot, so that the image-folder lab runs without a download.
//!
//! They pose the difficulties of a damage classifier's photographs. For the program: files of several sizes in a folder per class. For
//! learning: sky, ground, colours, light, and the house's place and size say nothing about the grade, so that a linear model on pixels falls
//! short of a convolutional network (`tests/it/learning.rs`). Accuracies are not comparable with those on real photographs. The grades are the
//! classes of the DesignSafe classifier: C0 no damage, C2 damaged, C4 destroyed.

use std::array;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use lockstep::data::rng::KeyedRng;
use lockstep::data::{Split, write_atomically};

use crate::Pictures;

/// The grades, which are the names of the class folders: intact, damaged, destroyed.
pub const CLASSES: [&str; 3] = ["C0", "C2", "C4"];
/// The quality of the JPEG files, typical of cameras.
const QUALITY: u8 = 90;

/// Keep the random streams of labels, pictures and sizes apart.
const LABELS: u64 = u64::from_be_bytes(*b"stlabels");
const PICTURES: u64 = u64::from_be_bytes(*b"stpixels");
const SIZES: u64 = u64::from_be_bytes(*b"st-sizes");

/// The houses of one seed and split: an endless sequence, each a function of (seed, split, index) and the picture's size alone.
///
/// ```
/// use lockstep::data::Split;
/// use lockstep_vision::DrawnHouses;
/// let houses = DrawnHouses::new(42, Split::Train);
/// assert_eq!(houses.picture(7, 64, 48).dimensions(), (64, 48));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawnHouses {
    seed: u64,
    split: u64,
}

impl DrawnHouses {
    /// The houses of this seed; the two splits share none.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split: split as u64 }
    }

    /// The grade of house `index`, 0 to 2 as in [`CLASSES`]. Every three in a row (0 to 2, 3 to 5, …) contain each grade once,
    /// in random order, so that small sets are balanced.
    pub fn label(self, index: usize) -> i64 {
        self.random(LABELS, index / 3).shuffled::<3>()[index % 3].into()
    }

    /// The photograph of house `index`. Other sizes show the same house.
    pub fn picture(self, index: usize, width: u32, height: u32) -> RgbImage {
        photograph(self.label(index), width, height, &mut self.random(PICTURES, index))
    }

    /// The first `count` of these houses in photographs of one size, as a data set that draws them on demand.
    pub fn first(self, count: usize, width: u32, height: u32) -> Houses {
        Houses { drawn: self, count, size: (width, height), classes: CLASSES.map(String::from).into() }
    }

    /// Writes `train` and `validation` photographs as JPEG files to `dir/Train` and `dir/Validation`, a folder per class, each
    /// photograph in one of `sizes` (width and height). Missing folders are created; each file is written atomically.
    ///
    /// Fails when `sizes` is empty or contains a 0, when a split would be too small to have every class, when other photographs are
    /// there already, or when a folder or file cannot be written.
    pub fn write(
        dir: &Path,
        seed: u64,
        (train, validation): (usize, usize),
        sizes: &[(u32, u32)],
    ) -> anyhow::Result<()> {
        ensure!(
            !sizes.is_empty() && sizes.iter().all(|&(w, h)| w > 0 && h > 0),
            "draw photographs of the sizes {sizes:?}: give at least one, of 1 x 1 or more"
        );
        ensure!(
            train.min(validation) >= CLASSES.len(),
            "draw {train} and {validation} photographs: each split needs one of each of the {} classes at least",
            CLASSES.len()
        );
        let splits = [(Split::Train, "Train", train), (Split::Test, "Validation", validation)];
        let splits = splits.map(|(split, name, count)| {
            let houses = Self::new(seed, split);
            let class = |index| CLASSES[houses.label(index) as usize];
            let file = |index| dir.join(name).join(class(index)).join(format!("house-{index:05}.jpg"));
            (houses, dir.join(name), (0..count).map(file).collect::<Vec<PathBuf>>())
        });
        splits.iter().try_for_each(|(_, dir, files)| refuse_others(dir, files))?;
        for (houses, dir, files) in &splits {
            for folder in CLASSES.map(|class| dir.join(class)) {
                fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
            }
            for (index, file) in files.iter().enumerate() {
                let (width, height) = sizes[houses.random(SIZES, index).below(sizes.len())];
                let write = || -> anyhow::Result<()> {
                    let mut bytes = Vec::new();
                    let picture = houses.picture(index, width, height);
                    JpegEncoder::new_with_quality(&mut bytes, QUALITY).encode_image(&picture)?;
                    Ok(write_atomically(file, |out| out.write_all(&bytes))?)
                };
                write().with_context(|| format!("write the photograph {}", file.display()))?;
            }
        }
        Ok(())
    }

    fn random(self, stream: u64, index: usize) -> KeyedRng {
        KeyedRng::new(&[self.seed, stream, self.split, index as u64])
    }
}

/// Refuses a folder with files that would not be overwritten: the lab would take them for houses of this seed.
fn refuse_others(dir: &Path, files: &[PathBuf]) -> anyhow::Result<()> {
    let own: BTreeSet<&PathBuf> = files.iter().collect();
    let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    match inside(dir).flat_map(|class| inside(&class)).find(|path| !own.contains(path)) {
        Some(path) => bail!(
            "{} is already there and is not one of these {}: draw into another folder, or remove this one",
            path.display(),
            files.len()
        ),
        None => Ok(()),
    }
}

/// The first houses of a seed and split, in photographs of one size: the result of [`DrawnHouses::first`].
#[derive(Debug, Clone)]
pub struct Houses {
    drawn: DrawnHouses,
    count: usize,
    /// Width and height.
    size: (u32, u32),
    classes: Vec<String>,
}

impl Pictures for Houses {
    fn len(&self) -> usize {
        self.count
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i64 {
        self.drawn.label(index)
    }

    fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
        Ok(self.drawn.picture(index, self.size.0, self.size.1))
    }

    /// Covers everything that the pictures depend on: seed, split, count and size.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let DrawnHouses { seed, split } = self.drawn;
        let mut hasher = crc32fast::Hasher::new();
        for number in [seed, split, self.count as u64, self.size.0.into(), self.size.1.into()] {
            hasher.update(&number.to_le_bytes());
        }
        Ok(hasher.finalize())
    }
}

// The drawing. It uses only additions, multiplications, divisions, square roots and rounding, which IEEE 754 defines exactly, and
// integer hashes. So the pictures of a seed are the same bytes on every machine.

/// A point, x to the right and y downwards, in units of the picture's height from its middle.
type Point = (f32, f32);
/// Red, green and blue, 0 to 1.
type Colour = [f32; 3];

const SKIES: [Colour; 4] = [[0.42, 0.56, 0.82], [0.76, 0.60, 0.46], [0.34, 0.36, 0.38], [0.70, 0.70, 0.68]];
const GROUNDS: [Colour; 4] = [[0.33, 0.47, 0.21], [0.50, 0.54, 0.30], [0.58, 0.50, 0.38], [0.50, 0.50, 0.50]];
const LEAVES: Colour = [0.24, 0.36, 0.17];
const WOOD: Colour = [0.62, 0.47, 0.30];
const DARK: Colour = [0.09, 0.08, 0.08];
/// Beyond the edges of any picture.
const FAR: f32 = 1000.0;

/// A photograph of a house of this grade (0 intact, 1 damaged, 2 destroyed). Everything but the house is drawn alike for all grades.
fn photograph(grade: i64, width: u32, height: u32, rng: &mut KeyedRng) -> RgbImage {
    let mut canvas = Canvas::new(width, height, rng);
    let (sky, ground) = (SKIES[rng.below(4)], GROUNDS[rng.below(4)]);
    let (noise, horizon) = (canvas.noise, rng.between(-0.05, 0.25));
    canvas.fill(&tilted((0.0, 0.0), (FAR, FAR), 0.0), 0.0, |_, y| shade(sky, 1.1 + 0.4 * (y - horizon)));
    let grass = |x: f32, y: f32| shade(ground, 0.7 + 0.5 * noise.at(x * 40.0 / (1.0 + y), y * 90.0));
    canvas.fill(&tilted((0.0, horizon + FAR), (FAR, FAR), 0.0), 0.0, grass);
    for _ in 0..rng.below(3) {
        let (x, height) = (rng.between(-0.7, 0.7), rng.between(0.15, 0.4));
        canvas.fill(&tilted((x, horizon - height * 0.4), (0.012, height * 0.5), 0.0), 0.0, |_, _| shade(WOOD, 0.5));
        canvas.bush((x, horizon - height), height * 0.4);
    }
    let house = House::draw(horizon, rng);
    match grade {
        0 => house.paint(&mut canvas),
        1 => {
            house.paint(&mut canvas);
            house.paint_damage(&mut canvas, rng);
        }
        _ => house.paint_ruin(&mut canvas, rng),
    }
    for _ in 0..rng.below(4) {
        canvas.bush((rng.between(-0.7, 0.7), horizon + rng.between(0.1, 0.3)), rng.between(0.03, 0.08));
        let (at, half) = ((rng.between(-0.7, 0.7), horizon + rng.between(0.15, 0.35)), rng.between(0.01, 0.03));
        let colour = any_colour(rng);
        canvas.fill(&tilted(at, (half * 1.5, half), 0.0), 0.0, |_, _| colour); // a bin, a toy, a box
    }
    canvas.develop(rng)
}

/// A house's or a thing's colour, as light as a sky on average: a linear model sees neither.
fn any_colour(rng: &mut KeyedRng) -> Colour {
    let grey = rng.between(0.25, 0.95);
    array::from_fn(|_| grey * rng.between(0.7, 1.1))
}

/// A house in front view.
struct House {
    /// The middle of its foot.
    at: Point,
    /// Half its width, and the heights of walls and roof.
    half: f32,
    walls: f32,
    roof: f32,
    /// The top edge of its roof, as a part of the lower one.
    ridge: f32,
    windows: usize,
    wall_colour: Colour,
    roof_colour: Colour,
}

impl House {
    fn draw(horizon: f32, rng: &mut KeyedRng) -> Self {
        let size = rng.between(0.8, 1.3);
        House {
            at: (rng.between(-0.3, 0.3), horizon + rng.between(0.05, 0.2)),
            half: size * rng.between(0.3, 0.45),
            walls: size * rng.between(0.16, 0.28),
            roof: size * rng.between(0.1, 0.2),
            ridge: rng.between(0.1, 0.9),
            windows: 2 + rng.below(3),
            wall_colour: any_colour(rng),
            roof_colour: any_colour(rng),
        }
    }

    fn paint(&self, canvas: &mut Canvas) {
        let &House { at: (x, y), half, walls, roof, .. } = self;
        let (noise, eaves) = (canvas.noise, y - walls);
        let boards = |_, y: f32| shade(self.wall_colour, 0.85 + 0.3 * fraction(y * 40.0));
        canvas.fill(&tilted((x, y - walls * 0.5), (half, walls * 0.5), 0.0), 0.0, boards);
        let (low, top) = (half * 1.08, half * 1.08 * self.ridge);
        let corners = [(x - top, eaves - roof), (x + top, eaves - roof), (x + low, eaves), (x - low, eaves)];
        let tiles =
            |x: f32, y: f32| shade(self.roof_colour, 0.75 + 0.5 * noise.at((x * 50.0).floor(), (y * 70.0).floor()));
        canvas.fill(&corners, 0.0, tiles);
        for number in 0..=self.windows {
            let x = x + half * (2.0 * (number as f32 + 0.5) / (self.windows + 1) as f32 - 1.0);
            let is_door = number == self.windows / 2;
            let (up, h, colour) =
                if is_door { (0.35, 0.35, shade(self.roof_colour, 0.7)) } else { (0.58, 0.24, [0.30, 0.36, 0.42]) };
            let (middle, w, h) = ((x, y - walls * up), half * 0.6 / (self.windows + 1) as f32, walls * h);
            canvas.fill(&tilted(middle, (w, h), 0.0), 0.0, |_, _| [0.85, 0.84, 0.82]);
            canvas.fill(&tilted(middle, (w - 0.008, h - 0.008), 0.0), 0.0, |_, _| colour);
        }
    }

    /// Holes in roof and walls, and debris in front.
    fn paint_damage(&self, canvas: &mut Canvas, rng: &mut KeyedRng) {
        let &House { at: (x, y), half, walls, roof, .. } = self;
        for _ in 0..1 + rng.below(3) {
            let middle = (x + half * rng.between(-0.7, 0.7), y - walls - roof * rng.between(-0.6, 0.6));
            let inside = [DARK, shade(WOOD, 1.6)][rng.below(2)]; // open, or closed with plywood
            let rafters = |x: f32, _| if fraction(x * 30.0) < 0.3 { shade(WOOD, 0.7) } else { inside };
            canvas.fill(&octagon(middle, half * rng.between(0.15, 0.3), roof * rng.between(0.3, 0.55)), 0.03, rafters);
        }
        self.paint_pieces(canvas, 8 + rng.below(12), 0.0, rng);
    }

    /// What is left of the walls, and a heap of pieces.
    fn paint_ruin(&self, canvas: &mut Canvas, rng: &mut KeyedRng) {
        let &House { at: (x, y), half, walls, .. } = self;
        for _ in 0..2 + rng.below(4) {
            let (place, tall) = (x + half * rng.between(-0.8, 0.8), walls * rng.between(0.3, 0.8));
            let colour = shade(self.wall_colour, rng.between(0.6, 1.0));
            canvas.fill(&tilted((place, y - tall), (half * rng.between(0.1, 0.4), tall), 0.0), 0.03, |_, _| colour);
        }
        self.paint_pieces(canvas, 80 + rng.below(60), walls * rng.between(0.6, 1.6), rng);
    }

    /// Boards, sheets and pieces of roof at any angle, in a heap of this height.
    fn paint_pieces(&self, canvas: &mut Canvas, count: usize, height: f32, rng: &mut KeyedRng) {
        for _ in 0..count {
            let x = rng.between(-1.1, 1.1);
            let up = height * (1.0 - x * x).max(0.0) * rng.uniform();
            let middle = (self.at.0 + self.half * x, self.at.1 + rng.between(0.0, 0.06) - up);
            let half = (rng.between(0.012, 0.05), rng.between(0.004, 0.02));
            let colour = [self.wall_colour, self.roof_colour, WOOD, DARK][rng.below(4)];
            let (light, turn) = (rng.between(0.6, 1.6), rng.between(-0.6, 0.6));
            canvas.fill(&tilted(middle, half, turn), 0.0, |_, _| shade(colour, light));
        }
    }
}

/// An unfinished picture.
struct Canvas {
    width: usize,
    height: usize,
    /// The length of 1 in pixels, so that a scene looks the same in any size.
    unit: f32,
    pixels: Vec<Colour>,
    noise: Noise,
}

impl Canvas {
    fn new(width: u32, height: u32, rng: &mut KeyedRng) -> Self {
        let (width, height) = (width as usize, height as usize);
        let unit = (height as f32).min(width as f32 * 0.75);
        Canvas { width, height, unit, pixels: vec![DARK; width * height], noise: Noise(rng.next_u64() as u32) }
    }

    /// Paints the inside of a convex polygon (its corners clockwise) whose edge is ragged by as much as `rough`.
    fn fill(&mut self, corners: &[Point], rough: f32, colour: impl Fn(f32, f32) -> Colour) {
        let ends = corners.iter().cycle().skip(1);
        // The factors of x and y and the constant that give a point's distance from an edge, more than 0 inside.
        let edge = |(&(x, y), &(to_x, to_y)): (&Point, &Point)| {
            let (dx, dy) = (to_x - x, to_y - y);
            let length = (dx * dx + dy * dy).sqrt().max(1e-6);
            [-dy / length, dx / length, (dy * x - dx * y) / length]
        };
        let edges: Vec<[f32; 3]> = corners.iter().zip(ends).map(edge).collect();
        let (middle_x, middle_y) = ((self.width as f32 - 1.0) * 0.5, (self.height as f32 - 1.0) * 0.5);
        let reach = rough * self.unit + 0.5;
        let columns = span(corners.iter().map(|corner| corner.0 * self.unit + middle_x), reach, self.width);
        for row in span(corners.iter().map(|corner| corner.1 * self.unit + middle_y), reach, self.height) {
            for column in columns.clone() {
                let (x, y) = ((column as f32 - middle_x) / self.unit, (row as f32 - middle_y) / self.unit);
                let inside = edges.iter().fold(f32::INFINITY, |least, [a, b, c]| least.min(a * x + b * y + c));
                let ragged = if rough > 0.0 { rough * (2.0 * self.noise.at(x * 60.0, y * 60.0) - 1.0) } else { 0.0 };
                let cover = ((inside + ragged) * self.unit + 0.5).clamp(0.0, 1.0);
                if cover > 0.0 {
                    let (pixel, paint) = (&mut self.pixels[row * self.width + column], colour(x, y));
                    *pixel = array::from_fn(|c| pixel[c] + (paint[c] - pixel[c]) * cover);
                }
            }
        }
    }

    /// A bush, or the crown of a tree.
    fn bush(&mut self, middle: Point, radius: f32) {
        let noise = self.noise;
        let leaves = |x: f32, y: f32| shade(LEAVES, 0.5 + 0.8 * noise.at(x * 80.0, y * 80.0));
        self.fill(&octagon(middle, radius, radius * 0.9), radius * 0.3, leaves);
    }

    /// The daylight, the camera's contrast, and the sensor's grain.
    fn develop(&self, rng: &mut KeyedRng) -> RgbImage {
        let (light, contrast, grain) = (rng.between(0.6, 1.1), rng.between(0.75, 1.15), rng.between(0.01, 0.04));
        let bytes = self.pixels.iter().flat_map(|pixel| {
            let bright = grain * rng.normal() + 0.5; // of the whole pixel
            pixel.map(|part| (((part * light - 0.5) * contrast + bright) * 255.0).clamp(0.0, 255.0) as u8)
        });
        RgbImage::from_raw(self.width as u32, self.height as u32, bytes.collect())
            .expect("three bytes a pixel were made")
    }
}

/// The pixels along one axis within `reach` of the points, inside the picture.
fn span(places: impl Iterator<Item = f32>, reach: f32, pixels: usize) -> Range<usize> {
    let (least, most) = places.fold((f32::INFINITY, f32::NEG_INFINITY), |(l, m), p| (l.min(p), m.max(p)));
    let first = (least - reach).ceil().max(0.0) as usize;
    first..((most + reach).floor() + 1.0).clamp(0.0, pixels as f32) as usize
}

/// The corners of a rectangle with these half sides, turned clockwise by an angle that is given as the tangent of its half.
fn tilted((x, y): Point, (half, high): Point, turn: f32) -> [Point; 4] {
    let (sine, cosine) = (2.0 * turn / (1.0 + turn * turn), (1.0 - turn * turn) / (1.0 + turn * turn));
    [(-half, -high), (half, -high), (half, high), (-half, high)]
        .map(|(dx, dy)| (x + cosine * dx - sine * dy, y + sine * dx + cosine * dy))
}

/// Nearly an ellipse.
fn octagon((x, y): Point, width: f32, height: f32) -> [Point; 8] {
    const C: f32 = 0.707;
    [(1.0, 0.0), (C, C), (0.0, 1.0), (-C, C), (-1.0, 0.0), (-C, -C), (0.0, -1.0), (C, -C)]
        .map(|(dx, dy)| (x + dx * width, y + dy * height))
}

fn fraction(number: f32) -> f32 {
    number - number.floor()
}

/// A darker or lighter colour.
fn shade(colour: Colour, light: f32) -> Colour {
    colour.map(|part| part * light)
}

/// Smooth noise with one hill or valley per unit, 0 to 1.
#[derive(Clone, Copy)]
struct Noise(u32);

impl Noise {
    fn at(self, x: f32, y: f32) -> f32 {
        let (left, top) = (x.floor(), y.floor());
        let smooth = |part: f32| part * part * (3.0 - 2.0 * part);
        let (right, down) = (smooth(x - left), smooth(y - top));
        let speck = |dx, dy| self.speck((left as i32).wrapping_add(dx) as u32, (top as i32).wrapping_add(dy) as u32);
        let row = |dy| speck(0, dy) + (speck(1, dy) - speck(0, dy)) * right;
        row(0) + (row(1) - row(0)) * down
    }

    /// A number from 0 to 1 for a cell of a grid (the finishing steps of MurmurHash3).
    fn speck(self, column: u32, row: u32) -> f32 {
        let mut hash = self.0 ^ column.wrapping_mul(0x9E37_79B1) ^ row.wrapping_mul(0x85EB_CA77).rotate_left(13);
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
        ((hash ^ (hash >> 16)) >> 8) as f32 / 16_777_216.0
    }
}

//! Photographs of houses after a storm, drawn on the spot, so that the image-folder lab runs without a download.
//!
//! They pose the same kinds of difficulties as the photographs of a damage classifier. For the program: files of several sizes
//! in a folder per class. For learning: a convolutional network learns the three grades, a linear model on pixels does not,
//! since sky, light, colours, and the house's shape and position carry no information about them. Accuracies are not comparable
//! with those on real photographs. The grades are the classes of the DesignSafe classifier: C0 no damage, C2 damaged, C4
//! destroyed.
//!
//! This file composes the photograph, `house` and `damage` draw the house, `paint` renders pixels.

mod damage;
mod house;
pub(crate) mod paint;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use lockstep::data::rng::KeyedRng;
use lockstep::data::{Split, write_atomically};

use crate::Pictures;
use damage::Damage;
use house::House;
use paint::{Canvas, Colour, Point, Shape, View, clouds, mix, noise, octagon, shade};

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
        let mut rng = KeyedRng::new(&[self.seed, LABELS, self.split, (index / 3) as u64]);
        rng.shuffled::<3>()[index % 3].into()
    }

    /// The photograph of house `index`. Other sizes show the same house.
    pub fn picture(self, index: usize, width: u32, height: u32) -> RgbImage {
        let mut rng = KeyedRng::new(&[self.seed, PICTURES, self.split, index as u64]);
        photograph(self.label(index), width, height, &mut rng)
    }

    /// The first `count` of these houses in photographs of one size, as a data set that draws them on demand.
    pub fn first(self, count: usize, width: u32, height: u32) -> Houses {
        Houses::new(self, count, (width, height))
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
        let splits = splits.map(|(split, name, count)| (Self::new(seed, split), dir.join(name), count));
        splits.iter().try_for_each(|(houses, dir, count)| houses.refuse_others(dir, *count))?;
        splits.iter().try_for_each(|(houses, dir, count)| houses.write_split(dir, *count, sizes))
    }

    /// The class and the file name of a house.
    fn place(self, index: usize) -> (&'static str, String) {
        (CLASSES[self.label(index) as usize], format!("house-{index:05}.jpg"))
    }

    /// Refuses a folder with files that would not be overwritten: the lab would take them for houses of this seed.
    fn refuse_others(self, dir: &Path, count: usize) -> anyhow::Result<()> {
        let own: BTreeSet<PathBuf> =
            (0..count).map(|index| self.place(index)).map(|(class, name)| dir.join(class).join(name)).collect();
        let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let other = inside(dir).flat_map(|class| inside(&class)).find(|path| !own.contains(path));
        other.map_or(Ok(()), |path| {
            bail!(
                "{} is already there and is not one of these {count}: draw into another folder, or remove this one",
                path.display()
            )
        })
    }

    fn write_split(self, dir: &Path, count: usize, sizes: &[(u32, u32)]) -> anyhow::Result<()> {
        for class in CLASSES {
            let folder = dir.join(class);
            fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
        }
        for index in 0..count {
            let mut rng = KeyedRng::new(&[self.seed, SIZES, self.split, index as u64]);
            let (width, height) = sizes[rng.below(sizes.len())];
            let (class, name) = self.place(index);
            write_jpeg(&dir.join(class), &name, &self.picture(index, width, height))?;
        }
        Ok(())
    }
}

/// Writes a photograph to a file atomically.
fn write_jpeg(folder: &Path, name: &str, picture: &RgbImage) -> anyhow::Result<()> {
    let write = || -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        JpegEncoder::new_with_quality(&mut bytes, QUALITY).encode_image(picture)?;
        Ok(write_atomically(&folder.join(name), |out| out.write_all(&bytes))?)
    };
    write().with_context(|| format!("write the photograph {}", folder.join(name).display()))
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

impl Houses {
    fn new(drawn: DrawnHouses, count: usize, size: (u32, u32)) -> Self {
        Houses { drawn, count, size, classes: CLASSES.map(String::from).to_vec() }
    }
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
        let (width, height) = self.size;
        Ok(self.drawn.picture(index, width, height))
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

// The contents of a photograph: sky, ground, trees, the house, objects on the lawn, and the light.
//
// Everything but the house is drawn the same way for the three grades, so that it carries no information about them. `house`
// and `damage` draw the house.

/// The horizon, from the centre downwards, in heights of the picture.
const HORIZON: (f32, f32) = (0.05, 0.22);

const SKIES: [(Colour, Colour); 5] = [
    ([0.36, 0.56, 0.86], [0.75, 0.85, 0.95]), // fair
    ([0.62, 0.68, 0.76], [0.82, 0.84, 0.87]), // overcast
    ([0.38, 0.42, 0.50], [0.66, 0.69, 0.72]), // the next storm
    ([0.46, 0.54, 0.72], [0.96, 0.80, 0.62]), // evening
    ([0.80, 0.84, 0.88], [0.93, 0.93, 0.92]), // haze
];
const GROUNDS: [Colour; 5] =
    [[0.33, 0.47, 0.21], [0.46, 0.52, 0.27], [0.62, 0.55, 0.41], [0.44, 0.38, 0.30], [0.68, 0.64, 0.56]];
const LEAVES: [Colour; 4] = [[0.17, 0.30, 0.13], [0.26, 0.38, 0.16], [0.36, 0.40, 0.20], [0.14, 0.24, 0.16]];
const YARD_COLOURS: [Colour; 6] = [
    [0.16, 0.34, 0.74],
    [0.75, 0.16, 0.14],
    [0.85, 0.84, 0.80],
    [0.25, 0.26, 0.28],
    [0.88, 0.70, 0.20],
    [0.30, 0.52, 0.36],
];

/// A photograph of a house of this grade (0 intact, 1 damaged, 2 destroyed).
fn photograph(grade: i64, width: u32, height: u32, rng: &mut KeyedRng) -> RgbImage {
    let mut canvas = Canvas::new(width, height);
    let horizon = rng.between(HORIZON.0, HORIZON.1);
    backdrop(&mut canvas, horizon, rng);
    let view = View {
        at: (rng.between(-0.14, 0.14), horizon + rng.between(0.06, 0.15)),
        scale: rng.between(0.72, 1.02),
        turn: rng.between(-0.022, 0.022),
        lean: rng.between(-0.03, 0.03),
    };
    for _ in 0..rng.below(4) {
        let at = (rng.between(-0.75, 0.75), horizon + rng.between(0.0, 0.05));
        tree(&mut canvas, at, rng.between(0.25, 0.5), rng);
    }
    let house = House::draw(rng);
    match Damage::of_grade(grade, rng) {
        Damage::None => house::paint(&mut canvas, &view, &house, rng),
        Damage::Some(marks) => damage::paint_damaged(&mut canvas, &view, &house, &marks, rng),
        Damage::Ruin(ruin) => damage::paint_ruin(&mut canvas, &view, &house, ruin, rng),
    }
    foreground(&mut canvas, &view, rng);
    develop(&canvas, rng)
}

/// Sky, a distant wood, and ground.
fn backdrop(canvas: &mut Canvas, horizon: f32, rng: &mut KeyedRng) {
    let (top, low) = SKIES[rng.below(SKIES.len())];
    let (cover, cloud) = (rng.between(0.35, 0.75), rng.between(0.75, 1.0));
    let ground = GROUNDS[rng.below(GROUNDS.len())];
    let (wood, leaves) = (rng.between(-0.02, 0.14), LEAVES[rng.below(LEAVES.len())]);
    let road = if rng.below(3) == 0 { rng.between(0.36, 0.46) } else { 9.0 };
    let seed = rng.next_u64() as u32;
    canvas.backdrop(|x, y| {
        let skyline = horizon - wood * (0.4 + clouds(seed ^ 1, x * 9.0, 0.5));
        if y < skyline {
            let sky = mix(top, low, ((y + 0.5) / (horizon + 0.5)).clamp(0.0, 1.0));
            let white = ((clouds(seed, x * 2.5, y * 6.0) - cover) * 5.0).clamp(0.0, 1.0);
            mix(sky, [cloud; 3], white * 0.8)
        } else if y < horizon {
            shade(leaves, 0.7 + 0.7 * clouds(seed ^ 2, x * 30.0, y * 30.0))
        } else {
            let near = 1.0 / (0.25 + y - horizon); // far grass is finer
            let coarse = clouds(seed ^ 3, x * near * 4.0, near * 14.0);
            let fine = noise(seed ^ 4, x * near * 60.0, y * near * 90.0);
            let earth = if y > road { [0.42, 0.42, 0.43] } else { ground };
            shade(earth, 0.65 + 0.45 * coarse + 0.25 * fine)
        }
    });
}

/// A tree at a point: a trunk, and a crown of several clumps.
fn tree(canvas: &mut Canvas, at: Point, height: f32, rng: &mut KeyedRng) {
    let view = View { at, scale: height, turn: rng.between(-0.05, 0.05), lean: 0.0 };
    let seed = rng.next_u64() as u32;
    let bark = shade([0.36, 0.28, 0.22], rng.between(0.7, 1.2));
    let trunk = [(-0.035, 0.0), (-0.02, -0.75), (0.02, -0.75), (0.035, 0.0)];
    let bark_at = |x: f32, y: f32| shade(bark, 0.7 + 0.6 * noise(seed, x * 120.0, y * 12.0));
    canvas.fill(&view, &Shape { points: &trunk, rough: 0.0, seed }, bark_at);
    let leaves = LEAVES[rng.below(LEAVES.len())];
    if rng.below(6) == 0 {
        return; // bare, in any grade
    }
    for clump in 0..3 + rng.below(4) as u32 {
        let (x, y, r) = (rng.between(-0.18, 0.18), rng.between(-0.95, -0.5), rng.between(0.12, 0.24));
        let leaf =
            |px: f32, py: f32| shade(leaves, 0.45 + 0.9 * clouds(seed ^ clump, px * 14.0, py * 14.0) - (py - y) * 0.9);
        canvas.fill(&view, &Shape { points: &octagon((x, y), r, r * 0.85), rough: 0.07, seed: seed ^ clump }, leaf);
    }
}

/// The foreground for any grade: bushes, a tree, objects on the lawn.
fn foreground(canvas: &mut Canvas, view: &View, rng: &mut KeyedRng) {
    for _ in 0..rng.below(4) {
        let at = (rng.between(-0.6, 0.6), rng.between(0.0, 0.05));
        let (seed, size, leaves) = (rng.next_u64() as u32, rng.between(0.04, 0.1), LEAVES[rng.below(LEAVES.len())]);
        let leaf = |x: f32, y: f32| shade(leaves, 0.4 + 1.1 * clouds(seed, x * 40.0, y * 40.0));
        let points = octagon((at.0, at.1 - size * 0.5), size, size * 0.8);
        canvas.fill(view, &Shape { points: &points, rough: 0.03, seed }, leaf);
    }
    for _ in 0..rng.below(5) {
        yard_object(canvas, view, (rng.between(-0.75, 0.75), rng.between(0.08, 0.3)), rng);
    }
    if rng.below(5) == 0 {
        let at = (if rng.below(2) == 0 { -1.0 } else { 1.0 } * rng.between(0.4, 0.66), rng.between(0.3, 0.45));
        tree(canvas, at, rng.between(0.6, 0.8), rng);
    }
}

/// A bin, a toy, a chair, a tarpaulin over a stack of wood: a box with a side in the shade.
fn yard_object(canvas: &mut Canvas, view: &View, (x, y): Point, rng: &mut KeyedRng) {
    let (seed, colour) = (rng.next_u64() as u32, YARD_COLOURS[rng.below(YARD_COLOURS.len())]);
    let (w, h) = (rng.between(0.02, 0.09), rng.between(0.02, 0.06));
    let edge = x + w * rng.between(0.3, 0.8);
    let front = [(x, y - h), (edge, y - h), (edge, y), (x, y)];
    let side = [(edge, y - h), (x + w, y - h * 0.9), (x + w, y - h * 0.1), (edge, y)];
    let lit = |light: f32| move |px: f32, py: f32| shade(colour, light + 0.2 * noise(seed, px * 80.0, py * 80.0));
    canvas.fill(view, &Shape { points: &front, rough: 0.0, seed }, lit(0.85));
    canvas.fill(view, &Shape { points: &side, rough: 0.0, seed }, lit(0.55));
}

/// The daylight, the camera's contrast, darker corners, and the sensor's grain.
fn develop(canvas: &Canvas, rng: &mut KeyedRng) -> RgbImage {
    let (light, contrast, corners) = (rng.between(0.62, 1.12), rng.between(0.75, 1.2), rng.between(0.0, 0.5));
    let warm = rng.between(-0.07, 0.07);
    let gains = [light * (1.0 + warm), light, light * (1.0 - warm)];
    let lift = rng.between(-0.03, 0.08);
    let (together, each) = (rng.between(0.008, 0.03), rng.between(0.004, 0.014));
    canvas.photograph(rng, (together, each), |colour, x, y| {
        let dark = 1.0 - corners * (x * x + y * y);
        std::array::from_fn(|c| (colour[c] * gains[c] * dark - 0.45) * contrast + 0.45 + lift)
    })
}

//! The photographs of a seed, in memory and as files.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use lockstep::data::rng::KeyedRng;
use lockstep::data::{Split, whole};

use super::{Houses, scene};

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
/// use lockstep_vision::Storm;
/// let houses = Storm::new(42, Split::Train);
/// assert_eq!(houses.picture(7, 64, 48).dimensions(), (64, 48));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storm {
    pub(super) seed: u64,
    pub(super) split: u64,
}

impl Storm {
    /// The houses of this seed; the two splits share none.
    pub fn new(seed: u64, split: Split) -> Self {
        Self { seed, split: split as u64 }
    }

    /// The grade of house `index`, 0 to 2 as in [`CLASSES`]. Every three in a row (0 to 2, 3 to 5, …) contain each grade once,
    /// in random order, so that small sets are balanced.
    pub fn label(self, index: usize) -> i64 {
        let mut rng = KeyedRng::new(&[self.seed, LABELS, self.split, (index / 3) as u64]);
        let mut order = [0, 1, 2];
        (1..3).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
        order[index % 3]
    }

    /// The photograph of house `index`. Other sizes show the same house.
    pub fn picture(self, index: usize, width: u32, height: u32) -> RgbImage {
        let mut rng = KeyedRng::new(&[self.seed, PICTURES, self.split, index as u64]);
        scene::photograph(self.label(index), width, height, &mut rng)
    }

    /// The first `count` of these houses in photographs of one size, as a data set that draws them on demand.
    pub fn first(self, count: usize, width: u32, height: u32) -> Houses {
        Houses::new(self, count, (width, height))
    }

    /// Writes `train` and `validation` photographs as JPEG files to `dir/Train` and `dir/Validation`, a folder per class, each
    /// photograph in one of `sizes` (width and height). Missing folders are created; each file is written atomically.
    ///
    /// # Errors
    /// Fails when `sizes` is empty or contains a 0, when a split would be too small to have every class, when other photographs
    /// are there already, or when a folder or file cannot be written.
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

    /// Refuses a folder with files that would not be written over: the lab would take them for houses of this seed.
    fn refuse_others(self, dir: &Path, count: usize) -> anyhow::Result<()> {
        let own: BTreeSet<PathBuf> =
            (0..count).map(|index| self.place(index)).map(|(class, name)| dir.join(class).join(name)).collect();
        let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let other = inside(dir).flat_map(|class| inside(&class)).find(|path| !own.contains(path));
        other.map_or(Ok(()), |path| {
            bail!(
                "{} is there already, and is none of these {count}: draw into another folder, or remove this one",
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
        Ok(whole::write(&folder.join(name), |out| out.write_all(&bytes))?)
    };
    write().with_context(|| format!("write the photograph {}", folder.join(name).display()))
}

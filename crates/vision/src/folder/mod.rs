//! Photographs in a folder per class, as torchvision's `ImageFolder` reads them, with additional checks.
//!
//! `lockstep-datasets` finds the samples, `lockstep-picture-decoder` decodes a file to pixels, [`DecodedCache`] keeps these, [`Splits`] finds `Train` and
//! `Validation`. Other modules transform pictures and turn them into tensors.
//!
//! As in torchvision (`torchvision/datasets/folder.py`), the folders of the root are the classes, sorted by name. All files
//! below a class's folder whose names end in a picture's extension are its samples, sorted by path, symbolic links included.
//! The deliberate differences:
//! - names that begin with a dot are neither samples (`._photo.jpg`) nor classes (`.ipynb_checkpoints`);
//! - only `.jpg`, `.jpeg` and `.png` are read, not the six rarer formats;
//! - an unreadable file, a loop of links and a pipe are found when the folder is opened, not an hour into the training.
//!
//! EXIF's orientation is not applied, as in torchvision: a photograph that a phone took upright may lie on its side.
//!
//! [`ImageFolder::skipped`] lists what was skipped, and [`ImageFolder::skip_summary`] summarises it in a sentence.

mod cache;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep::data::DataError;
use lockstep_datasets::folder::{ImageFiles, Sample, SplitFolders, walk};

use crate::{Pictures, RgbImage};

pub use cache::DecodedCache;
pub use lockstep_datasets::folder::{Skipped, Why};
pub use lockstep_picture_decoder::{MAX_BYTES, MAX_PIXELS, decode};

/// Labelled pictures in files: one folder per class.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    samples: Vec<Sample>,
    skipped: Vec<Skipped>,
    cache: Option<Arc<DecodedCache>>,
}

impl ImageFolder {
    /// Finds the classes and their pictures in `dir`, and checks that each file exists and can be read. Decodes no picture.
    ///
    /// Fails when there is no class folder, a class has no pictures, something cannot be read, symbolic links form a loop, or the
    /// folder holds `Train` and `Validation` instead of classes (use [`Splits::open`](super::Splits::open) for those).
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        let ImageFiles { classes, samples, skipped } = walk(dir)?;
        Ok(Self { root: dir.into(), classes, samples, skipped, cache: None })
    }

    /// Takes decoded pictures from this cache, and adds them to it.
    #[must_use]
    pub fn cached(mut self, cache: Arc<DecodedCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file of picture `index`.
    ///
    /// # Panics
    /// Panics when `index` is not below the length.
    pub fn path(&self, index: usize) -> &Path {
        &self.samples[index].path
    }

    /// The number of pictures of each class.
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        self.samples.iter().for_each(|sample| counts[sample.class] += 1);
        counts
    }

    /// The skipped files and folders, with the reason.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// A sentence about the skipped files, if there are any: how many for each reason, and the first one.
    pub fn skip_summary(&self) -> Option<String> {
        let first = self.skipped.iter().min_by_key(|skipped| (Reverse(skipped.why), &skipped.path))?;
        let mut counts = BTreeMap::new();
        self.skipped.iter().for_each(|skipped| *counts.entry(Reverse(skipped.why)).or_insert(0) += 1);
        let counts: Vec<String> = counts.into_iter().map(|(Reverse(why), count)| format!("{count} {why}")).collect();
        let (root, first) = (self.root.display(), first.path.display());
        Some(format!("passed over in {root}: {}; first {first}", counts.join(", ")))
    }
}

impl Pictures for ImageFolder {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i64 {
        self.samples[index].class as i64
    }

    /// Reads and decodes the file: see [`decode`]. The error is a [`DataError`].
    fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
        let path = &self.samples[index].path;
        Ok(self.cache.as_ref().map_or_else(|| lockstep_picture_decoder::read(path), |cache| cache.picture(path))?)
    }

    /// Covers the classes' names and each file's relative path, class and length. The pictures are not read, so that even a
    /// large folder takes no time. A picture that is replaced by another one of equal length goes unnoticed.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let mut hasher = crc32fast::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(&(self.classes.len() as u64).to_le_bytes());
        self.classes.iter().for_each(|class| add(class.as_bytes()));
        for sample in &self.samples {
            add(sample.path.strip_prefix(&self.root).unwrap_or(&sample.path).as_os_str().as_bytes());
            add(&sample.bytes.to_le_bytes());
        }
        Ok(hasher.finalize())
    }
}

// A data folder with one folder per split: `Train`, `Validation` and optionally `Test`.

/// The splits of one data folder. All have the same classes in the same order.
#[derive(Debug, Clone)]
pub struct Splits {
    /// The pictures to train on.
    pub train: ImageFolder,
    /// The held-out pictures that select the best model.
    pub validation: ImageFolder,
    /// The held-out pictures that select nothing, if there are any.
    pub test: Option<ImageFolder>,
}

impl Splits {
    /// What was skipped in each split, as [`ImageFolder::skip_summary`] describes it.
    pub fn skip_summaries(&self) -> Vec<String> {
        let all = [Some(&self.train), Some(&self.validation), self.test.as_ref()];
        all.into_iter().flatten().filter_map(ImageFolder::skip_summary).collect()
    }

    /// Finds and checks `Train` (or `training`), `Validation` (or `val`, `valid`) and, if it exists, `Test` (or `testing`) in
    /// `dir`, ignoring case.
    ///
    /// Fails when training or validation is missing (the message lists what is there), two folders match one split, one is not a
    /// valid [`ImageFolder`], or their classes differ.
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        let SplitFolders { train, validation, test } = SplitFolders::find(dir)?;
        let splits = Splits {
            train: ImageFolder::open(&train)?,
            validation: ImageFolder::open(&validation)?,
            test: test.map(|test| ImageFolder::open(&test)).transpose()?,
        };
        splits.check()?;
        Ok(splits)
    }

    /// Takes decoded pictures from this cache, and adds them to it.
    #[must_use]
    pub fn cached(self, cache: &Arc<DecodedCache>) -> Self {
        let cached = |folder: ImageFolder| folder.cached(Arc::clone(cache));
        Splits { train: cached(self.train), validation: cached(self.validation), test: self.test.map(cached) }
    }

    fn check(&self) -> Result<(), DataError> {
        let train = &self.train;
        match [Some(&self.validation), self.test.as_ref()].into_iter().flatten().find(|o| o.classes != train.classes) {
            None => Ok(()),
            Some(other) => Err(DataError::new("use")
                .at(&other.root)
                .expected(format!("the classes of {}: {}", train.root.display(), train.classes.join(", ")))
                .found(other.classes.join(", "))
                .hint("both need the same class folders")),
        }
    }
}

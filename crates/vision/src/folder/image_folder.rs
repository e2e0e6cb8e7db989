//! A folder of labelled pictures: its samples, and the files that were skipped.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DecodedCache;
use crate::{Pictures, RgbImage};
use lockstep::data::DataError;
use lockstep_datafiles::folder::{Found, Sample, Skipped, walk};

/// Labelled pictures in files: one folder per class.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    pub(super) root: PathBuf,
    pub(super) classes: Vec<String>,
    samples: Vec<Sample>,
    skipped: Vec<Skipped>,
    cache: Option<Arc<DecodedCache>>,
}

impl ImageFolder {
    /// Finds the classes and their pictures in `dir`, and checks that each file exists and can be read. Decodes no picture.
    ///
    /// # Errors
    /// Fails when there is no class folder, a class has no pictures, something cannot be read, symbolic links form a loop, or
    /// the folder holds `Train` and `Validation` instead of classes (use [`Splits::open`](super::Splits::open) for those).
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        let Found { classes, samples, skipped } = walk(dir)?;
        Ok(Self { root: dir.into(), classes, samples, skipped, cache: None })
    }

    /// Takes decoded pictures from this cache, and adds them to it.
    #[must_use]
    pub fn cached(mut self, cache: Arc<DecodedCache>) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The opened folder.
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

    /// Reads and decodes the file: see [`decode`](super::decode). The error is a [`DataError`].
    fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
        let path = &self.samples[index].path;
        Ok(self.cache.as_ref().map_or_else(|| lockstep_decode::read(path), |cache| cache.picture(path))?)
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

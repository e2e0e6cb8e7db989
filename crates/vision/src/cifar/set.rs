//! The CIFAR-10 data set, from files or from records in memory.

use std::path::Path;

use image::RgbImage;

use crate::Pictures;
use lockstep::data::{DataError, Split};
use lockstep_datafiles::cifar::{self, CLASSES, PIXELS, RECORD, SIDE};

/// Colour pictures of 32 × 32 pixels with their labels, in memory, in the layout of the files.
///
/// The format (Alex Krizhevsky's CIFAR-10 page, "binary version"): a file is a sequence of records, 10,000 in each published
/// file. A record is one byte for the label, 0 to 9, and 3,072 bytes for the planes.
///
/// ```
/// use lockstep::data::Split;
/// use lockstep_vision::{Cifar10, Objects};
/// # fn main() -> Result<(), lockstep::data::DataError> {
/// let folder = tempfile::tempdir().expect("a folder");
/// Objects::new(7, Split::Test).first(20).write_bin(folder.path(), Split::Test)?;
/// let set = Cifar10::from_dir(folder.path(), Split::Test)?;
/// assert_eq!((set.count(), set.picture(0).dimensions()), (20, (32, 32)));
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Cifar10 {
    pub(super) records: Vec<u8>,
    classes: Vec<String>,
}

impl Cifar10 {
    /// A set from records of [`RECORD`] bytes each, with CIFAR-10's class names.
    ///
    /// # Errors
    /// Fails when there are no records, the last one is incomplete, or a label is above 9.
    pub fn new(records: Vec<u8>) -> Result<Self, DataError> {
        cifar::check(&records)?;
        Ok(Self { records, classes: CLASSES.map(str::to_owned).into() })
    }

    /// Reads `data_batch_1.bin` to `data_batch_5.bin`, or `test_batch.bin`, and `batches.meta.txt` if it exists, from `dir` or
    /// from its folder `cifar-10-batches-bin`. Fewer than five training files are accepted, a gap is not.
    ///
    /// # Errors
    /// Fails when the files are missing (the message says what is there instead and what to download), truncated, or not
    /// CIFAR-10's.
    pub fn from_dir(dir: &Path, split: Split) -> Result<Self, DataError> {
        let folder = cifar::folder(dir)?;
        let mut records = Vec::new();
        for path in cifar::batches(&folder, split)? {
            records.append(&mut cifar::read(&path)?);
        }
        Ok(Self { records, classes: cifar::read_classes(&folder)? })
    }

    /// Writes the set under CIFAR-10's file names to `dir`, which must exist: five files for training, one for testing, and the
    /// class names. Each file is written atomically.
    ///
    /// # Errors
    /// Fails when a file cannot be written, or when there are fewer training pictures than files.
    pub fn write_bin(&self, dir: &Path, split: Split) -> Result<(), DataError> {
        let names = cifar::names(split);
        if self.count() < names.len() {
            let operation = format!("write {} pictures to {} files", self.count(), names.len());
            return Err(DataError::new(operation).hint("each file needs one at least"));
        }
        for (part, name) in names.iter().enumerate() {
            let at = |part: usize| self.count() * part / names.len() * RECORD;
            cifar::write(&dir.join(name), &self.records[at(part)..at(part + 1)])?;
        }
        cifar::write(&dir.join(cifar::CLASSES_FILE), format!("{}\n", self.classes.join("\n")).as_bytes())
    }

    /// The number of pictures.
    pub fn count(&self) -> usize {
        self.records.len() / RECORD
    }

    /// The label of picture `index`, 0 to 9.
    ///
    /// # Panics
    /// Panics when `index` is not below [`count`](Self::count).
    pub fn kind(&self, index: usize) -> u8 {
        self.record(index)[0]
    }

    /// Picture `index`.
    ///
    /// # Panics
    /// Panics when `index` is not below [`count`](Self::count).
    pub fn picture(&self, index: usize) -> RgbImage {
        let planes = &self.record(index)[1..];
        RgbImage::from_fn(SIDE as u32, SIDE as u32, |x, y| {
            let pixel = y as usize * SIDE + x as usize;
            image::Rgb([0, 1, 2].map(|plane| planes[plane * PIXELS + pixel]))
        })
    }

    fn record(&self, index: usize) -> &[u8] {
        &self.records[index * RECORD..(index + 1) * RECORD]
    }

    /// Covers all bytes: the published set's 184 MB take some hundredths of a second.
    fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        self.classes.iter().for_each(|name| hasher.update(format!("{name}\n").as_bytes()));
        hasher.update(&self.records);
        hasher.finalize()
    }
}

impl Pictures for Cifar10 {
    fn len(&self) -> usize {
        self.count()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> i64 {
        self.kind(index).into()
    }

    fn picture(&self, index: usize) -> anyhow::Result<RgbImage> {
        Ok(self.picture(index))
    }

    fn fingerprint(&self) -> anyhow::Result<u32> {
        Ok(self.checksum())
    }
}

impl std::fmt::Debug for Cifar10 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cifar10 of {} pictures, checksum {:08x}", self.count(), self.checksum())
    }
}

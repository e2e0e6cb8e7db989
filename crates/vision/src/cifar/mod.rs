//! CIFAR-10: small colour pictures of ten kinds of objects, read from the published binary files or drawn.
//!
//! [`Cifar10`] is the data set from either source; [`Objects`] draws one when there are no files. Leaves out decoding and
//! augmenting into tensors ([`crate::Transformed`]), and Python's pickles, which are programs rather than data.

mod objects;

use std::path::Path;

use image::RgbImage;
use lockstep::data::{DataError, Split};
use lockstep_datasets::cifar::{self, PIXELS};

use crate::Pictures;

pub use lockstep_datasets::cifar::{CLASSES, RECORD, SIDE};
pub use objects::Objects;

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
    records: Vec<u8>,
    classes: Vec<String>,
}

impl Cifar10 {
    /// A set from records of [`RECORD`] bytes each, with CIFAR-10's class names.
    pub fn new(records: Vec<u8>) -> Result<Self, DataError> {
        cifar::check(&records)?;
        Ok(Self { records, classes: CLASSES.map(str::to_owned).into() })
    }

    /// Reads `data_batch_1.bin` to `data_batch_5.bin`, or `test_batch.bin`, and `batches.meta.txt` if it exists, from `dir` or
    /// from its folder `cifar-10-batches-bin`. Fewer than five training files are accepted, a gap is not.
    ///
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use lockstep::data::Split;
    use tempfile::TempDir;

    use super::*;
    use crate::Pictures;

    /// `count` records whose bytes differ from each other; labels cycle from 0 to 9.
    fn records(count: usize) -> Vec<u8> {
        (0..count * RECORD)
            .map(|at| if at % RECORD == 0 { (at / RECORD % 10) as u8 } else { (at % 251 + at / RECORD) as u8 })
            .collect()
    }

    fn set(count: usize) -> Cifar10 {
        Cifar10::new(records(count)).unwrap()
    }

    fn folder(files: &[(&str, &[u8])]) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let path = folder.path().to_owned();
        (folder, path)
    }

    fn refused(dir: &Path, split: Split) -> String {
        Cifar10::from_dir(dir, split).unwrap_err().to_string()
    }

    #[test]
    fn reads_label_and_planes_of_the_published_layout() {
        let set = set(13);
        assert_eq!((set.count(), set.kind(0), set.kind(12)), (13, 0, 2));
        let (picture, bytes) = (set.picture(12), &records(13)[12 * RECORD..]);
        assert_eq!(picture.dimensions(), (32, 32));
        for (x, y) in [(0, 0), (31, 0), (0, 31), (5, 7)] {
            let pixel = y as usize * 32 + x as usize;
            assert_eq!(picture.get_pixel(x, y).0, [1, 1025, 2049].map(|plane| bytes[plane + pixel]));
        }
    }

    #[test]
    fn reads_back_what_it_wrote_five_files_and_one() {
        let folder = tempfile::tempdir().unwrap();
        set(23).write_bin(folder.path(), Split::Train).unwrap();
        set(3).write_bin(folder.path(), Split::Test).unwrap();
        assert_eq!(Cifar10::from_dir(folder.path(), Split::Train).unwrap(), set(23));
        assert_eq!(Cifar10::from_dir(folder.path(), Split::Test).unwrap(), set(3));
        let counts: Vec<u64> = (1..=5)
            .map(|part| {
                fs::metadata(folder.path().join(format!("data_batch_{part}.bin"))).unwrap().len() / RECORD as u64
            })
            .collect();
        assert_eq!(counts, [4, 5, 4, 5, 5]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 7, "a temporary file was left");
        let names = fs::read_to_string(folder.path().join("batches.meta.txt")).unwrap();
        assert!(names.starts_with("airplane\nautomobile\nbird\n") && names.ends_with("ship\ntruck\n"), "{names}");
    }

    #[test]
    fn refuses_to_write_fewer_training_pictures_than_files_and_to_a_folder_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let error = set(4).write_bin(folder.path(), Split::Train).unwrap_err().to_string();
        assert_eq!(error, "write 4 pictures to 5 files: each file needs one at least");
        let error = set(4).write_bin(&folder.path().join("absent"), Split::Test).unwrap_err().to_string();
        assert!(
            error.starts_with("write ") && error.contains("absent/test_batch.bin: check that the folder"),
            "{error}"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn finds_the_folder_of_the_archive_and_accepts_fewer_than_five_files() {
        let (bytes, more) = (records(2), records(4));
        let files: [(&str, &[u8]); 2] = [
            ("cifar-10-batches-bin/data_batch_1.bin", &bytes),
            ("cifar-10-batches-bin/data_batch_2.bin", &more[2 * RECORD..]),
        ];
        let (_folder, path) = folder(&files);
        assert_eq!(Cifar10::from_dir(&path, Split::Train).unwrap(), set(4));
        assert_eq!(Cifar10::from_dir(&path.join("cifar-10-batches-bin"), Split::Train).unwrap(), set(4));
        let message = refused(&path, Split::Test);
        assert!(message.contains("test_batch.bin: it is not there, but data_batch_1.bin is"), "{message}");
    }

    #[test]
    fn rejects_a_gap_between_the_training_files() {
        let bytes = records(1);
        let (_folder, path) = folder(&[("data_batch_1.bin", &bytes), ("data_batch_3.bin", &bytes)]);
        let message = refused(&path, Split::Train);
        assert!(message.contains("data_batch_2.bin: it is not there, but data_batch_3.bin is"), "{message}");
        let (_folder, path) = folder(&[("test_batch.bin", &bytes)]);
        let message = refused(&path, Split::Train);
        assert!(message.contains("data_batch_1.bin: it is not there, but test_batch.bin is"), "{message}");
    }

    #[test]
    fn says_what_is_there_instead_and_what_to_download() {
        for (file, words) in [
            ("cifar-10-binary.tar.gz", "the archive is still packed; run tar -xzf "),
            ("cifar-10-python.tar.gz", "whose files are pickles; get the binary version, cifar-10-binary.tar.gz"),
            ("data_batch_1", "whose files are pickles"),
            ("cifar-10-batches-py/data_batch_1", "whose files are pickles"),
            ("data_batch_1.mat", "the version for Matlab"),
            ("cifar-100-binary/train.bin", "this is CIFAR-100"),
            ("other.txt", "there is neither data_batch_1.bin nor a folder cifar-10-batches-bin"),
            ("deep/cifar-10-batches-bin/test_batch.bin", "/deep, give that folder"),
        ] {
            let (_folder, path) = folder(&[(file, b"x")]);
            let message = refused(&path, Split::Train);
            assert!(
                message.starts_with("find CIFAR-10's binary files in ") && message.contains(words),
                "{file}: {message}"
            );
        }
        let (_folder, path) =
            folder(&[("cifar-10-binary.tar.gz", b"x"), ("cifar-10-python.tar.gz", b"x"), ("a.bin", b"x")]);
        for (name, words) in [
            ("cifar-10-binary.tar.gz", "the archive is still packed"),
            ("cifar-10-python.tar.gz", "whose files are pickles"),
            ("a.bin", "that is a file; give the folder that holds it"),
            ("absent", "that folder does not exist, check the path"),
        ] {
            let message = refused(&path.join(name), Split::Train);
            assert!(message.contains(words), "{name}: {message}");
        }
    }

    #[test]
    fn rejects_records_cut_off_at_any_byte_and_says_where() {
        let whole = records(2);
        for length in 0..whole.len() {
            match Cifar10::new(whole[..length].to_vec()) {
                Ok(set) => assert_eq!((length, set.count()), (RECORD, 1)),
                Err(error) if length == 0 => assert!(error.to_string().contains("found an empty file"), "{error}"),
                Err(error) => {
                    let (record, rest) = (length / RECORD, length % RECORD);
                    let offset = record * RECORD;
                    let due =
                        format!("{length} bytes: record {record} begins at offset {offset} and has {rest} of them");
                    assert_eq!(error.found, due);
                }
            }
        }
        let (_folder, path) = folder(&[("test_batch.bin", &whole[..whole.len() - 1])]);
        let message = refused(&path, Split::Test);
        assert!(message.contains("test_batch.bin: expected whole records of 3073 bytes"), "{message}");
        assert!(
            message
                .contains("found 6145 bytes: record 1 begins at offset 3073 and has 3072 of them; the file is cut off"),
            "{message}"
        );
    }

    #[test]
    fn rejects_a_wrong_label_and_says_where() {
        let mut bytes = records(3);
        bytes[2 * RECORD] = 10;
        let (_folder, path) = folder(&[("data_batch_1.bin", &bytes)]);
        let message = refused(&path, Split::Train);
        assert!(
            message.contains("expected a label from 0 to 9 at offset 6146, where record 2 begins, found 10"),
            "{message}"
        );
    }

    #[test]
    fn recognizes_files_of_other_formats_under_the_right_name() {
        for (bytes, words) in [
            (&b""[..], "found an empty file; a download failed"),
            (b"\x1f\x8b\x08rest", "found a gzip file; unpack it"),
            (b"\x80\x04\x95", "found a Python pickle; get the binary version"),
            (b"<!DOCTYPE html>", "found a HTML or XML page"),
            (b"version https://git-lfs.github.com/spec/v1", "found a Git LFS pointer"),
            (&[3; RECORD + 1], "that would be whole records of CIFAR-100"),
        ] {
            let (_folder, path) = folder(&[("test_batch.bin", bytes)]);
            let message = refused(&path, Split::Test);
            assert!(message.contains(words), "{message}");
        }
        let (_folder, path) = folder(&[("test_batch.bin/inside", b"")]);
        let message = refused(&path, Split::Test);
        assert!(message.ends_with("found a folder"), "{message}");
    }

    #[test]
    fn reads_the_names_of_the_classes_or_rejects_them() {
        let bytes = records(1);
        let named = |names: &[u8]| {
            let (_folder, path) = folder(&[("test_batch.bin", &bytes), ("batches.meta.txt", names)]);
            Cifar10::from_dir(&path, Split::Test)
        };
        let set = named(b"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n").unwrap();
        assert_eq!((set.classes()[0].as_str(), set.classes()[9].as_str()), ("a", "j"));
        for (names, found) in
            [(&b"a\nb\n"[..], "found 2;"), (b"", "found 0;"), (b"\xff\xfe", "found what is not text;")]
        {
            let message = named(names).unwrap_err().to_string();
            assert!(
                message.contains("batches.meta.txt: expected the names of ten classes") && message.contains(found),
                "{message}"
            );
        }
        let error = named(&[b'\n'; 5_000]).unwrap_err().to_string();
        assert!(error.contains("expected a file of at most 4096 bytes, found more"), "{error}");
    }

    #[test]
    fn distinguishes_sets_by_their_checksums() {
        let mut other = records(3);
        other[RECORD + 5] ^= 1;
        assert_ne!(set(3).fingerprint().unwrap(), Cifar10::new(other).unwrap().fingerprint().unwrap());
        assert_ne!(set(3).fingerprint().unwrap(), set(4).fingerprint().unwrap());
        assert_eq!(set(3).fingerprint().unwrap(), set(3).fingerprint().unwrap());
    }

    #[test]
    fn draws_the_same_object_whatever_was_drawn_before() {
        let objects = Objects::new(7, Split::Train);
        let (long, short) = (objects.first(60), objects.first(21));
        for index in [20, 0, 7] {
            assert_eq!((long.kind(index), long.picture(index)), (objects.kind(index), short.picture(index)));
        }
    }

    #[test]
    fn draws_other_objects_for_another_seed_or_split() {
        let first = |seed, split| Objects::new(seed, split).first(10);
        let sets = [first(1, Split::Train), first(1, Split::Test), first(2, Split::Train)];
        assert!(sets[0] != sets[1] && sets[0] != sets[2] && sets[1] != sets[2]);
    }

    #[test]
    fn draws_each_kind_once_in_every_ten() {
        let set = Objects::new(3, Split::Test).first(200);
        for ten in 0..20 {
            let mut kinds: Vec<u8> = (0..10).map(|one| set.kind(ten * 10 + one)).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, (0..10).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn keeps_the_bytes_of_a_seed_forever() {
        let set = Objects::new(42, Split::Train).first(1_000);
        let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        assert_eq!((0..10).map(|index| set.kind(index)).collect::<Vec<u8>>(), [2, 8, 9, 6, 4, 3, 7, 0, 5, 1]);
        assert_eq!(set.records.iter().fold(0xcbf2_9ce4_8422_2325, fnv), 15_015_307_668_300_495_384);
    }
}

//! Finds the size of a data set without asking the program under test.
//!
//! Reads the first eight bytes of MNIST's label files; the lab checks the rest.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::read::GzDecoder;
use lockstep_contract::foreign;
use serde::Serialize;

/// Samples of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Sizes {
    /// Training samples.
    pub(crate) train: u64,
    /// Test samples.
    pub(crate) test: u64,
}

/// The magic number of an IDX file of bytes in one dimension (yann.lecun.com/exdb/mnist: 0x00000801).
const LABELS: [u8; 4] = [0, 0, 8, 1];

impl Sizes {
    /// The sizes of drawn digits: a quarter as many are drawn for the test.
    pub(crate) fn drawn(train: u64) -> Self {
        Sizes { train, test: train.div_ceil(4) }
    }

    /// The sizes of the MNIST files in `folder`.
    ///
    /// # Errors
    /// A label file is missing or invalid.
    pub(crate) fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        Ok(Sizes { train: count(folder, "train")?, test: count(folder, "t10k")? })
    }
}

fn count(folder: &Path, split: &str) -> anyhow::Result<u64> {
    let path = labels(folder, split).with_context(|| {
        let name = format!("{split}-labels-idx1-ubyte[.gz]");
        format!("{} holds no {name}: give the folder with MNIST's four files", foreign::path(folder))
    })?;
    count_of(&path).with_context(|| format!("cannot read how many labels {} holds", foreign::path(&path)))
}

/// The first of the file's usual names that exists, in the lab's order.
fn labels(folder: &Path, split: &str) -> Option<PathBuf> {
    let names = ["-labels-idx1-ubyte", "-labels.idx1-ubyte", "-labels-idx1-ubyte.gz", "-labels.idx1-ubyte.gz"];
    names.iter().map(|name| folder.join(format!("{split}{name}"))).find(|path| path.exists())
}

fn count_of(path: &Path) -> anyhow::Result<u64> {
    let file = File::open(path)?;
    let zipped = path.extension().is_some_and(|end| end == "gz");
    let mut head = [0; 8];
    if zipped { GzDecoder::new(file).read_exact(&mut head) } else { (&file).read_exact(&mut head) }?;
    let [a, b, c, d, count @ ..] = head;
    anyhow::ensure!([a, b, c, d] == LABELS, "it begins with {a:02x}{b:02x}{c:02x}{d:02x}, labels begin with 00000801");
    Ok(u32::from_be_bytes(count).into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn labels_of(count: u32) -> Vec<u8> {
        [&LABELS[..], &count.to_be_bytes(), &vec![7; count as usize]].concat()
    }

    #[test]
    fn reads_the_sizes_of_plain_and_zipped_sets() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("train-labels.idx1-ubyte"), labels_of(300)).unwrap();
        let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
        zipped.write_all(&labels_of(70)).unwrap();
        fs::write(folder.path().join("t10k-labels-idx1-ubyte.gz"), zipped.finish().unwrap()).unwrap();
        assert_eq!(Sizes::of_folder(folder.path()).unwrap(), Sizes { train: 300, test: 70 });
    }

    #[test]
    fn rejects_a_folder_without_labels_and_a_file_that_holds_none() {
        let folder = tempfile::tempdir().unwrap();
        let error = Sizes::of_folder(folder.path()).unwrap_err().to_string();
        assert!(error.contains("holds no train-labels-idx1-ubyte"), "{error}");
        let whole = labels_of(1);
        for bad in [&b"<html><body>"[..], &whole[..7], &[]] {
            fs::write(folder.path().join("train-labels-idx1-ubyte"), bad).unwrap();
            let error = format!("{:#}", Sizes::of_folder(folder.path()).unwrap_err());
            assert!(error.contains("how many labels"), "{error}");
        }
    }
}

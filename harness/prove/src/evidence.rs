//! The evidence of a lab's run, read from its files: weights, results and events of every rank; and the [`Plan`] with which checks compare
//! it.
//!
//! Reading never fails: a missing or damaged file is kept as such, so that a check fails because of it. The lab's output is not evidence.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::read::GzDecoder;
use lockstep_contract::events::EventLog;
use lockstep_contract::foreign;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;
use serde_json::Value;

/// The parameters of a run, with which checks compare the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Processes.
    pub(crate) ranks: usize,
    /// Samples in a batch of one rank.
    pub(crate) batch: usize,
    pub(crate) epochs: u64,
    /// The seed of data, order and initial weights.
    pub(crate) seed: u64,
    /// Samples in the data set.
    pub(crate) sizes: Sizes,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = if self.ranks == 1 { "rank" } else { "ranks" };
        write!(f, "{} {ranks} × batch {}", self.ranks, self.batch)
    }
}

/// The files of a run. An `Err` describes what is wrong with them.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// The parameters of the run.
    pub(crate) plan: Plan,
    /// The event files by rank.
    pub(crate) logs: Result<BTreeMap<usize, EventLog>, String>,
    /// The weights of rank 0, rank 1, ….
    pub(crate) weights: Vec<Result<Weights, String>>,
}

/// A model's tensors by name.
pub(crate) type Weights = BTreeMap<String, Tensor>;

/// A tensor, bit for bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// The type of its values.
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// The values, row-major, little-endian.
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// The values as numbers; `None` unless they are floats of 32 or 64 bits.
    pub(crate) fn values(&self) -> Option<Vec<f64>> {
        // The chunks are exactly as long as the arrays.
        let f32s = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap_or_default()));
        let f64s = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap_or_default());
        match self.dtype {
            Dtype::F32 => Some(self.bytes.chunks_exact(4).map(f32s).collect()),
            Dtype::F64 => Some(self.bytes.chunks_exact(8).map(f64s).collect()),
            _ => None,
        }
    }

    /// The number of its values.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of a safetensors file; an `Err` describes what is wrong with it.
pub(crate) fn read_weights(path: &Path) -> Result<Weights, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = fs::read(path).map_err(|error| format!("cannot read the weights {name}: {error}"))?;
    let file =
        SafeTensors::deserialize(&bytes).map_err(|error| format!("{name} is not a safetensors file: {error}"))?;
    let tensor = |view: safetensors::tensor::TensorView<'_>| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    Ok(file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect())
}

/// A rank's results after each part, by the part's name: a number, a list of numbers, or a list of lists.
pub(crate) type Results = BTreeMap<String, Value>;

/// The results of rank `rank` of a lab without weights in `folder`; an `Err` describes what is wrong with them.
pub(crate) fn read_results(folder: &Path, rank: usize) -> Result<Results, String> {
    let name = format!("rank-{rank}.json");
    let bytes = fs::read(folder.join(&name)).map_err(|error| format!("cannot read the results {name}: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{name} has no results: {error}"))
}

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
    pub(crate) fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        Ok(Sizes { train: count(folder, "train")?, test: count(folder, "t10k")? })
    }
}

fn count(folder: &Path, split: &str) -> anyhow::Result<u64> {
    let path = labels(folder, split).with_context(|| {
        let name = format!("{split}-labels-idx1-ubyte[.gz]");
        format!("{} has no {name}: give the folder with MNIST's four files", foreign::path(folder))
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
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn says_what_is_wrong_with_weights_that_are_missing_or_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-1.safetensors");
        let message = read_weights(&path).unwrap_err();
        assert!(message.contains("rank-1.safetensors: No such file"), "{message}");
        fs::write(&path, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}").unwrap();
        assert!(read_weights(&path).unwrap_err().contains("rank-1.safetensors is not a safetensors file"));
    }

    #[test]
    fn reads_the_values_of_floats_only() {
        let tensor = |dtype, bytes: Vec<u8>| Tensor { dtype, shape: vec![2], bytes };
        let singles = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
        let doubles = [0.1_f64, -2.0].map(f64::to_le_bytes).concat();
        assert_eq!(tensor(Dtype::F32, singles).values().unwrap(), [1.5, -2.0]);
        assert_eq!(tensor(Dtype::F64, doubles).values().unwrap(), [0.1, -2.0]);
        assert_eq!(tensor(Dtype::U8, vec![1, 2]).values(), None);
    }

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
        assert!(error.contains("has no train-labels-idx1-ubyte"), "{error}");
        let whole = labels_of(1);
        for bad in [&b"<html><body>"[..], &whole[..7], &[]] {
            fs::write(folder.path().join("train-labels-idx1-ubyte"), bad).unwrap();
            let error = format!("{:#}", Sizes::of_folder(folder.path()).unwrap_err());
            assert!(error.contains("how many labels"), "{error}");
        }
    }
}

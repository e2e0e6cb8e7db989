//! The evidence of a run, read from its files: events and weights of every rank.
//!
//! Reading never fails: a missing or damaged file is kept as such, so that a check fails because of it. The lab's output is not
//! evidence. `checks` interprets it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use lockstep_contract::events::EventLog;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::Plan;

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
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Its values, row-major, little-endian.
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// Its values as numbers; `None` unless they are floats of 32 or 64 bits.
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
    let file = SafeTensors::deserialize(&bytes).map_err(|error| format!("{name} is no safetensors file: {error}"))?;
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
    serde_json::from_slice(&bytes).map_err(|error| format!("{name} holds no results: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong_with_weights_that_are_missing_or_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-1.safetensors");
        let message = read_weights(&path).unwrap_err();
        assert!(message.contains("rank-1.safetensors: No such file"), "{message}");
        fs::write(&path, b"\xff\xff\xff\xff\xff\xff\xff\x7f{}").unwrap();
        assert!(read_weights(&path).unwrap_err().contains("rank-1.safetensors is no safetensors file"));
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
}

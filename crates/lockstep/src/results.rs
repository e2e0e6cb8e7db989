//! A rank's tensors at the end of each part of a lab, in a file, so that a harness or a reader can check them independently.
//!
//! `rank-R.json` in the folder that the user named holds one JSON object, from the part's name to numbers: a list for one
//! tensor (flattened, in row order), a list of lists for several. Leaves out the expected values: the checker must know them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lockstep_paths::write_atomically;
use serde::Serialize;
use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use crate::Rank;

/// A rank's results so far.
#[derive(Debug)]
pub struct Results {
    rank: Rank,
    parts: Map<String, Value>,
}

impl Results {
    /// A rank without results.
    pub fn new(rank: Rank) -> Self {
        Results { rank, parts: Map::new() }
    }

    /// Records the rank's values after `part`: a number, or lists of numbers. A later call for the same part replaces the
    /// earlier one.
    ///
    /// Errors: the value has no JSON form; this includes NaN and infinity, which `serde_json` would silently turn into `null`.
    pub fn note(&mut self, part: &str, held: impl Serialize) -> Result<()> {
        let value = serde_json::to_value(held).with_context(|| format!("cannot note the result of {part}"))?;
        ensure!(is_finite(&value), "cannot note the result of {part}: NaN or infinity is in it, or no number at all");
        self.parts.insert(part.to_owned(), value);
        Ok(())
    }

    /// Records a tensor's elements, flattened.
    pub fn note_tensor(&mut self, part: &str, held: &Tensor) -> Result<()> {
        self.note(part, numbers(held)?)
    }

    /// Writes `rank-R.json` in `folder`, creating the folder if it is missing. The write is atomic: a reader finds the complete
    /// file or none.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(format!("rank-{}.json", self.rank));
        let attempt = || -> Result<()> {
            fs::create_dir_all(folder)?;
            Ok(write_atomically(&path, |out| Ok(serde_json::to_writer(out, &self.parts)?))?)
        };
        attempt().with_context(|| format!("failed to save results to {}", path.display()))
    }
}

fn is_finite(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().all(is_finite),
        value => value.is_number(),
    }
}

/// A tensor's elements in row order, from any device.
pub fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(Vec::try_from(tensor.to_device(tch::Device::Cpu).to_kind(Kind::Double).flatten(0, -1))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_an_object_from_part_to_numbers_and_keeps_the_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::new(Rank::new(3));
        results.note_tensor("ring", &Tensor::from_slice2(&[[1i64, 2], [3, 4]])).unwrap();
        results.note("gather", [[0.0], [1.5]]).unwrap();
        results.note("gather", [[0.0], [2.5]]).unwrap();
        results.save(&folder.path().join("new")).unwrap();
        results.save(&folder.path().join("new")).unwrap();
        let read: Value = serde_json::from_slice(&fs::read(folder.path().join("new/rank-3.json")).unwrap()).unwrap();
        assert_eq!(read, serde_json::json!({"ring": [1.0, 2.0, 3.0, 4.0], "gather": [[0.0], [2.5]]}));
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn refuses_numbers_that_are_not_finite_and_keeps_earlier_ones() {
        let mut results = Results::new(Rank::ZERO);
        results.note("loss", [1.0]).unwrap();
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for message in [results.note("loss", number), results.note("loss", [vec![0.5], vec![0.5, number]])] {
                let message = message.unwrap_err().to_string();
                assert_eq!(message, "cannot note the result of loss: NaN or infinity is in it, or no number at all");
            }
        }
        assert!(results.note_tensor("loss", &Tensor::from_slice(&[f32::NAN])).is_err());
        assert!(results.note("loss", None::<f64>).is_err() && results.note("loss", "1.0").is_err());
        assert_eq!(results.parts["loss"], serde_json::json!([1.0]));
    }

    #[test]
    fn names_the_file_that_cannot_be_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let message = format!("{:#}", Results::new(Rank::ZERO).save(file.path()).unwrap_err());
        assert!(message.starts_with("failed to save results to ") && message.contains("rank-0.json"), "{message}");
    }
}

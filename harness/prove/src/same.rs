//! `lockstep same`: have two files of weights the same bits?

use std::path::{Path, PathBuf};

use clap::Args;
use lockstep_contract::foreign;

use crate::check_same::{compare_weights, drift};
use crate::evidence::{Tensor, Weights, read_weights};
use crate::exit::{Code, Refused};
use crate::report::{Screen, count};

/// Compare two files of weights bit by bit, such as those of a run that was killed and of one that was not
#[derive(Args)]
pub struct SameOptions {
    /// A .safetensors file
    first: PathBuf,
    /// The other file
    second: PathBuf,
}

impl SameOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let (code, line) = compare(&self.first, &self.second)?;
        Screen::new(false).line(format_args!("{line}"));
        Ok(code)
    }
}

fn compare(first: &Path, second: &Path) -> Result<(Code, String), Refused> {
    let [one, other] = [read(first)?, read(second)?];
    if let Err(difference) = compare_weights(&one, &other) {
        let (first, second) = (foreign::path(first), foreign::path(second));
        // How far apart they are tells rounding from another training.
        let apart =
            drift(&other, &one).map(|drift| format!("; the values differ by at most {drift:.1e} of the largest"));
        let apart = apart.unwrap_or_default();
        return Ok((Code::Failure, format!("not the same bits: {second} differs from {first}: {difference}{apart}")));
    }
    let values: usize = one.values().map(Tensor::len).sum();
    Ok((Code::Success, format!("the same bits: {} in {}", count(values, "value"), count(one.len(), "tensor"))))
}

fn read(path: &Path) -> Result<Weights, Refused> {
    let weights = read_weights(path).map_err(Refused)?;
    if weights.values().all(|tensor| tensor.len() == 0) {
        return Err(Refused(format!("{} has no values to compare", foreign::path(path))));
    }
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    #[test]
    fn names_the_first_value_that_differs_and_refuses_files_without_any() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let tensor = TensorView::new(Dtype::F32, vec![values.len()], &bytes).unwrap();
            let path = folder.path().join(name);
            fs::write(&path, safetensors::serialize([("head.weight", tensor)], None).unwrap()).unwrap();
            path
        };
        let [a, b, c] =
            [("a", [1.0, 2.0]), ("b", [1.0, 2.0]), ("c", [1.0, -2.0])].map(|(name, values)| file(name, &values));
        let same = compare(&a, &b).unwrap();
        assert_eq!(same, (Code::Success, "the same bits: 2 values in 1 tensor".to_owned()));
        let (code, line) = compare(&a, &c).unwrap();
        assert_eq!(code, Code::Failure);
        let expected = "1 value of head.weight, the first is value 1: bits c0000000, not 40000000; the values differ by at most 2.0e0 of the largest";
        assert!(line.ends_with(expected), "{line}");
        // The bits of 0 and -0 differ, although the numbers are equal.
        assert_eq!(compare(&file("d", &[0.0]), &file("e", &[-0.0])).unwrap().0, Code::Failure);
        for path in [folder.path().join("none"), file("empty", &[])] {
            assert!(compare(&a, &path).is_err(), "{}", path.display());
        }
    }
}

//! Lists of numbers in the ranks' results.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Numbers that may be NaN. JSON cannot represent NaN, so `null` stands for it.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Option<f64>>")]
pub struct Numbers(pub Vec<f64>);

impl From<Vec<Option<f64>>> for Numbers {
    fn from(numbers: Vec<Option<f64>>) -> Self {
        Numbers(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
    }
}

impl From<Vec<f64>> for Numbers {
    fn from(numbers: Vec<f64>) -> Self {
        Numbers(numbers)
    }
}

/// Shows a plain list, since learners read it.
impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for Numbers {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_null_as_nan() {
        let written = serde_json::to_string(&Numbers(vec![1.5, f64::NAN])).unwrap();
        let read: Numbers = serde_json::from_str(&written).unwrap();
        assert!(read.len() == 2 && read[0] == 1.5 && read[1].is_nan(), "{written}");
    }
}

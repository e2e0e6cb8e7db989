//! Texts as tokens: [`Tokenizer`] turns a text into numbers, by characters or by byte pairs that it learns from a text, and
//! [`Windows`] is the data set of pieces of equal length.
//!
//! Both depend on the text alone, so all ranks make the same ones. Files are read by [`Texts`](super::Texts).

use std::sync::Arc;

use lockstep_datasets::rows;
pub use lockstep_datasets::tokenizer::{TextError, Tokenizer};
use tch::Tensor;

use super::{Batch, Dataset, check_indices};
use crate::loss::IGNORE_INDEX;

/// A stream of tokens in windows: sample `i` has the tokens `i · window` to `(i + 1) · window` as inputs, and the token after each as
/// its target. Every token but the first is a target exactly once; targets that the last window lacks are [`IGNORE_INDEX`], with token
/// 0 as their input.
#[derive(Clone, Debug)]
pub struct Windows {
    tokens: Arc<[u32]>,
    window: usize,
}

impl Windows {
    /// Cuts `tokens` into samples of `window` tokens.
    ///
    /// Errors: a window of 0, and fewer than 2 tokens.
    pub fn new(tokens: impl Into<Arc<[u32]>>, window: usize) -> Result<Self, TextError> {
        let tokens = tokens.into();
        match (window, tokens.len()) {
            (0, _) => Err(TextError::Window),
            (_, ..2) => Err(TextError::Short { tokens: tokens.len() }),
            _ => Ok(Windows { tokens, window }),
        }
    }

    /// How many targets there are in all samples: one for each token but the first.
    pub fn targets(&self) -> usize {
        self.tokens.len() - 1
    }
}

impl Dataset for Windows {
    fn len(&self) -> usize {
        self.targets().div_ceil(self.window)
    }

    /// Inputs and targets: `Int64 [n, window]`.
    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        check_indices(self.len(), indices)?;
        let size = [indices.len() as i64, self.window as i64];
        let of = |tokens, missing| Tensor::from_slice(&rows::windows(tokens, self.window, indices, missing)).view(size);
        Ok(Batch { inputs: of(&self.tokens[..self.targets()], 0), targets: of(&self.tokens[1..], IGNORE_INDEX) })
    }

    /// A CRC-32 of all tokens and of the window.
    fn fingerprint(&self) -> anyhow::Result<u32> {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&(self.window as u64).to_le_bytes());
        self.tokens.iter().for_each(|token| hasher.update(&token.to_le_bytes()));
        Ok(hasher.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_wrong_with_windows() {
        assert_eq!(Windows::new(vec![1, 2], 0).unwrap_err(), TextError::Window);
        assert_eq!(Windows::new(vec![1], 4).unwrap_err(), TextError::Short { tokens: 1 });
    }

    #[test]
    fn each_token_but_the_first_is_a_target_once() {
        for (tokens, window) in [(2, 1), (9, 4), (10, 4), (5, 8)] {
            let set = Windows::new((100..100 + tokens).collect::<Vec<u32>>(), window).unwrap();
            let all = set.batch(0, &(0..set.len()).collect::<Vec<_>>()).unwrap();
            assert_eq!(all.inputs.size(), [set.len() as i64, window as i64]);
            let numbers = |tensor: &Tensor| Vec::<i64>::try_from(tensor.flatten(0, -1)).unwrap();
            let (inputs, targets) = (numbers(&all.inputs), numbers(&all.targets));
            let counted: Vec<i64> = targets.iter().copied().filter(|target| *target != IGNORE_INDEX).collect();
            assert_eq!(counted, (101..100 + i64::from(tokens)).collect::<Vec<_>>());
            let pairs = inputs.iter().zip(&targets).filter(|(_, target)| **target != IGNORE_INDEX);
            assert!(pairs.clone().all(|(input, target)| input + 1 == *target));
            assert_eq!(pairs.count(), set.targets());
        }
    }

    #[test]
    fn another_window_or_token_is_another_set() {
        let of = |tokens: Vec<u32>, window| Windows::new(tokens, window).unwrap().fingerprint().unwrap();
        let prints = [of(vec![1, 2, 3, 4], 2), of(vec![1, 2, 3, 4], 3), of(vec![1, 2, 3, 5], 2)];
        assert!(prints[0] != prints[1] && prints[0] != prints[2]);
        assert_eq!(prints[0], of(vec![1, 2, 3, 4], 2));
    }
}

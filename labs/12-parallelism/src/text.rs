//! The text: sentences made from a seed, or a file's, as numbers of characters.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lockstep::data::rng::KeyedRng;
use tch::Tensor;

/// The characters: the line's end, and ASCII from the space to the tilde. 96 can be divided by 2, 3 and 4.
pub(crate) const VOCABULARY: i64 = 96;
/// Characters of a sequence.
pub(crate) const CONTEXT: i64 = 32;

/// Sequences in a step: inputs `[n, CONTEXT]`, and targets of the same shape, each the character that follows.
pub(crate) struct Batch {
    pub(crate) inputs: Tensor,
    pub(crate) targets: Tensor,
}

impl Batch {
    /// Equal parts of the batch, in order.
    pub(crate) fn chunk(&self, parts: usize) -> Vec<Batch> {
        let [inputs, targets] = [&self.inputs, &self.targets].map(|tensor| tensor.chunk(parts as i64, 0));
        inputs.into_iter().zip(targets).map(|(inputs, targets)| Batch { inputs, targets }).collect()
    }
}

pub(crate) struct Text {
    characters: Tensor,
    seed: u64,
}

impl Text {
    /// A file's text. A character that is not of the vocabulary becomes a question mark.
    pub(crate) fn read(path: &Path, seed: u64) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            text.chars().count() > CONTEXT as usize + 1,
            "{} has fewer than {} characters",
            path.display(),
            CONTEXT + 2
        );
        Ok(Self::of(&text, seed))
    }

    /// Sentences of subject, verb and object.
    pub(crate) fn made(seed: u64) -> Self {
        const SUBJECTS: [&str; 6] = ["the rank", "a worker", "the launcher", "one thread", "the store", "a bucket"];
        const VERBS: [&str; 6] = ["sends", "waits for", "adds up", "copies", "divides", "forgets"];
        const OBJECTS: [&str; 6] = ["the gradients", "a message", "its part", "the weights", "all sums", "nothing"];
        let mut random = KeyedRng::new(&[seed, u64::from_be_bytes(*b"sentence")]);
        let mut sentence = || {
            let mut word = |of: [&'static str; 6]| of[random.below(6)];
            format!("{} {} {}.\n", word(SUBJECTS), word(VERBS), word(OBJECTS))
        };
        Self::of(&(0..400).map(|_| sentence()).collect::<String>(), seed)
    }

    fn of(text: &str, seed: u64) -> Self {
        let number = |character: char| match character {
            '\n' => 0,
            ' '..='~' => i64::from(u32::from(character)) - 31,
            _ => i64::from(u32::from('?')) - 31,
        };
        Text { characters: Tensor::from_slice(&text.chars().map(number).collect::<Vec<_>>()), seed }
    }

    /// The sequences of a step, which depend on the seed and the step only.
    pub(crate) fn batch(&self, step: u64, size: i64) -> Batch {
        let mut random = KeyedRng::new(&[self.seed, u64::from_be_bytes(*b"sequence"), step]);
        let last = self.characters.size()[0] - CONTEXT - 1;
        let begins: Vec<i64> = (0..size).map(|_| random.below(last as usize) as i64).collect();
        let at = |begin: &i64, shift: i64| self.characters.narrow(0, begin + shift, CONTEXT);
        let [inputs, targets] =
            [0, 1].map(|shift| Tensor::stack(&begins.iter().map(|begin| at(begin, shift)).collect::<Vec<_>>(), 0));
        Batch { inputs, targets }
    }
}

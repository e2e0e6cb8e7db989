//! Sequences of different lengths in one batch: padded to the longest, and what finds the padding again.
//!
//! A batch has no third tensor with lengths. [`pad`] fills the inputs with a value that occurs nowhere else, 0 for tokens that count
//! from 1, NaN for numbers, and [`lengths`] reads the lengths from it where the network needs them. So a network takes its inputs alone,
//! in training and in evaluation, and the ranks may pad to different lengths.
//!
//! | PyTorch | here |
//! |---|---|
//! | `pad_sequence(rows, batch_first=True, padding_value=0)` | [`pad`] |
//! | lengths from `collate_fn` | [`lengths`] |
//! | `pack_padded_sequence` for the last state of an LSTM or a GRU | [`last`] of all outputs: a step does not see those after it |
//! | `bidirectional=True` | a second network on [`reversed`] inputs |
//! | a mean over the real steps; `key_padding_mask` | [`mean`]; [`mask`] |
//!
//! Targets for each step, `Int64 [n, t]`, are padded with [`IGNORE_INDEX`](crate::loss::IGNORE_INDEX): they count neither in a loss nor in
//! an accuracy. [`accumulate`](crate::accumulate::accumulate) weighs the rest the same on all ranks.

use c10d::{Error, Result};
use tch::{Kind, Tensor};

/// Sequences, each of shape `[length, …]` and not empty, as `[n, longest, …]`, with `padding` behind the shorter ones.
///
/// Errors: no sequences, an empty one, or different shapes behind the first dimension; padding that a sequence ends with, which could not
/// be told from it.
pub fn pad(sequences: &[Tensor], padding: f64) -> Result<Tensor> {
    const PAD: &str = "pad sequences";
    for (at, sequence) in sequences.iter().enumerate() {
        let length = sequence.size().first().copied().unwrap_or_default();
        let refused = |why: &str| Err(Error::bad_argument(PAD, format!("sequence {at} of the batch {why}")));
        if length == 0 {
            return refused("is empty: leave it out");
        }
        if is_padding(&sequence.unsqueeze(0).narrow(1, length - 1, 1), padding).any().int64_value(&[]) != 0 {
            return refused(&format!("ends with {padding}, the padding: choose a padding that occurs in no sequence"));
        }
    }
    Tensor::f_pad_sequence(sequences, true, padding, "right").map_err(|error| Error::of_torch(PAD, &error))
}

/// The lengths, `Int64 [n]`, of sequences `[n, t]` or `[n, t, …]`: a step behind which there is nothing but `padding` is none.
pub fn lengths(inputs: &Tensor, padding: f64) -> Tensor {
    let real = is_padding(inputs, padding).logical_not();
    let numbers = Tensor::arange(real.size()[1], (Kind::Int64, real.device())) + 1;
    (real.to_kind(Kind::Int64) * numbers).amax([1_i64].as_slice(), false)
}

/// For each step, `Bool [n, t]`, whether all of it is padding.
fn is_padding(inputs: &Tensor, padding: f64) -> Tensor {
    let same = if padding.is_nan() { inputs.isnan() } else { inputs.eq(padding) };
    if same.dim() > 2 { same.flatten(2, -1).all_dim(-1, false) } else { same }
}

/// Which of `steps` steps are real, `Bool [n, steps]`.
pub fn mask(lengths: &Tensor, steps: i64) -> Tensor {
    Tensor::arange(steps, (Kind::Int64, lengths.device())).unsqueeze(0).less_tensor(&lengths.unsqueeze(1))
}

/// The last real step of each sequence, `[n, width]`, of `[n, t, width]`.
pub fn last(outputs: &Tensor, lengths: &Tensor) -> Tensor {
    let (n, width) = (outputs.size()[0], outputs.size()[2]);
    let at = (lengths - 1).clamp_min(0).view([n, 1, 1]).expand([n, 1, width], false);
    outputs.gather(1, &at, false).squeeze_dim(1)
}

/// The mean over the real steps of each sequence, `[n, width]`, of `[n, t, width]`.
pub fn mean(outputs: &Tensor, lengths: &Tensor) -> Tensor {
    let mask = mask(lengths, outputs.size()[1]).unsqueeze(-1);
    let sum =
        outputs.where_self(&mask, &outputs.zeros_like()).sum_dim_intlist([1_i64].as_slice(), false, outputs.kind());
    sum / lengths.clamp_min(1).unsqueeze(-1)
}

/// Each sequence, `[n, t]` or `[n, t, …]`, from its last real step to its first; the padding stays where it is.
pub fn reversed(inputs: &Tensor, lengths: &Tensor) -> Tensor {
    let size = inputs.size();
    let steps = Tensor::arange(size[1], (Kind::Int64, inputs.device())).unsqueeze(0);
    let turned = lengths.unsqueeze(1) - 1 - &steps;
    let mut at = turned.where_self(&turned.ge(0), &steps);
    for _ in 2..size.len() {
        at = at.unsqueeze(-1);
    }
    inputs.gather(1, &at.expand(&size, false), false)
}

#[cfg(test)]
mod tests {
    use tch::Device;
    use tch::nn::{self, RNN, VarStore};

    use super::*;

    fn tokens(sequences: &[&[i64]]) -> Vec<Tensor> {
        sequences.iter().map(|sequence| Tensor::from_slice(sequence)).collect()
    }

    fn read(tensor: &Tensor) -> Vec<i64> {
        Vec::try_from(tensor.to_kind(Kind::Int64).flatten(0, -1)).unwrap()
    }

    #[test]
    fn finds_the_lengths_of_what_was_padded() {
        // Padding within a sequence is a value like any other.
        let padded = pad(&tokens(&[&[3, 0, 4], &[5], &[6, 7]]), 0.0).unwrap();
        assert_eq!(read(&padded), [3, 0, 4, 5, 0, 0, 6, 7, 0]);
        let lengths = lengths(&padded, 0.0);
        assert_eq!(read(&lengths), [3, 1, 2]);
        assert_eq!(read(&mask(&lengths, 3)), [1, 1, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(read(&reversed(&padded, &lengths)), [4, 0, 3, 5, 0, 0, 7, 6, 0]);
    }

    #[test]
    fn numbers_are_padded_with_nan() {
        let rows = [[1f32, 0.0, f32::NAN, 2.0].as_slice(), &[3.0, 4.0]];
        let rows = rows.map(|row| Tensor::from_slice(row).view([-1, 2]));
        let padded = pad(&rows, f64::NAN).unwrap();
        let lengths = lengths(&padded, f64::NAN);
        assert_eq!((padded.size(), read(&lengths)), (vec![2, 2, 2], vec![2, 1]));
        let means: Vec<f64> =
            Vec::try_from(mean(&padded.nan_to_num(0.0, None, None), &lengths).flatten(0, -1).to_kind(Kind::Double))
                .unwrap();
        assert_eq!(means, [0.5, 1.0, 3.0, 4.0]);
        assert_eq!(
            Vec::<f64>::try_from(reversed(&padded, &lengths).get(1).get(0).to_kind(Kind::Double)).unwrap(),
            [3.0, 4.0]
        );
    }

    #[test]
    fn an_lstm_gives_a_padded_sequence_the_state_that_it_gives_it_alone() {
        let vs = VarStore::new(Device::Cpu);
        tch::manual_seed(1);
        let lstm = nn::lstm(vs.root(), 4, 5, Default::default());
        let rows = [6, 2, 4].map(|length| Tensor::randn([length, 4], (Kind::Float, Device::Cpu)));
        let padded = pad(&rows, f64::NAN).unwrap();
        let lengths = lengths(&padded, f64::NAN);
        let together = last(&lstm.seq(&padded.nan_to_num(9.0, None, None)).0, &lengths);
        for (at, row) in rows.iter().enumerate() {
            let (_, alone) = lstm.seq(&row.unsqueeze(0));
            assert!(together.get(at as i64).allclose(&alone.h().flatten(0, -1), 1e-6, 1e-7, false), "{at}");
        }
    }

    #[test]
    fn refuses_what_could_not_be_found_again() {
        for (sequences, part) in [
            (tokens(&[&[1], &[2, 0]]), "sequence 1 of the batch ends with 0, the padding"),
            (tokens(&[&[]]), "sequence 0 of the batch is empty"),
            (vec![], "pad sequences"),
            (
                vec![Tensor::zeros([1, 2], tch::kind::FLOAT_CPU) + 1, Tensor::zeros([1, 3], tch::kind::FLOAT_CPU) + 1],
                "pad sequences",
            ),
        ] {
            let error = pad(&sequences, 0.0).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

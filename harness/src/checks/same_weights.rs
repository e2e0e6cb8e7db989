//! Checks that all ranks of a run end with the same weights, bit for bit.

use super::{Doubt, Finding, counted};
use crate::lab_run::{Evidence, Tensor, Weights};

/// Compares the tensors of every rank with rank 0's: names, types, shapes and bits.
pub(crate) fn same_weights(run: &Evidence) -> Finding {
    Finding::of("All ranks end with the same weights, to the bit".into(), evidence_for(run))
}

fn evidence_for(run: &Evidence) -> Result<String, Doubt> {
    let ranks = run.weights.iter().map(|weights| weights.as_ref().map_err(String::clone));
    let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
    let Some((first, others)) = ranks.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err(Doubt::NotVerified("a single rank has no other to compare with".into()));
    };
    let values: usize = first.values().map(Tensor::len).sum();
    if values == 0 {
        return Err(Doubt::Failed("rank 0 saved no weights".into()));
    }
    for (rank, other) in (1..).zip(others) {
        compare(first, other).map_err(|difference| format!("rank {rank} differs from rank 0: {difference}"))?;
    }
    let (tensors, values, ranks) = (counted(first.len(), "tensor"), counted(values, "value"), ranks.len());
    Ok(format!("{tensors}, {values} on each of {ranks} ranks: no bit differs"))
}

/// Compares the tensors of every rank of `run` with those of rank 0 of `other`.
pub(crate) fn same_weights_as(claim: &str, other: &Evidence, run: &Evidence) -> Finding {
    let evidence = || {
        let missing = || Doubt::Failed("the other run has no rank".into());
        let expected = other.weights.first().ok_or_else(missing)?.as_ref().map_err(String::clone)?;
        for (rank, weights) in run.weights.iter().enumerate() {
            let weights = weights.as_ref().map_err(|why| format!("rank {rank}: {why}"))?;
            compare(expected, weights).map_err(|difference| format!("rank {rank} differs: {difference}"))?;
        }
        let values: usize = expected.values().map(Tensor::len).sum();
        Ok(format!("{} on each of {} ranks: no bit differs", counted(values, "value"), run.weights.len()))
    };
    Finding::of(claim.into(), evidence())
}

/// Describes how `other` differs from `first`, if it does.
pub(crate) fn compare(first: &Weights, other: &Weights) -> Result<(), String> {
    if let Some(name) = other.keys().find(|name| !first.contains_key(*name)) {
        return Err(format!("it alone has {name}"));
    }
    for (name, tensor) in first {
        let other = other.get(name).ok_or_else(|| format!("it has no {name}"))?;
        if (tensor.dtype, &tensor.shape) != (other.dtype, &other.shape) {
            let layout = |tensor: &Tensor| format!("{:?} {:?}", tensor.dtype, tensor.shape);
            return Err(format!("{name} is {}, not {}", layout(other), layout(tensor)));
        }
        if let Some(byte) = tensor.bytes.iter().zip(&other.bytes).position(|(one, other)| one != other) {
            return Err(at(name, tensor, other, byte));
        }
    }
    Ok(())
}

/// The first different value, and the number of different ones.
fn at(name: &str, tensor: &Tensor, other: &Tensor, byte: usize) -> String {
    // Some types take less than a byte.
    let size = (tensor.bytes.len() / tensor.len()).max(1);
    let pairs = || tensor.bytes.chunks(size).zip(other.bytes.chunks(size));
    let (differing, index) = (pairs().filter(|(one, other)| one != other).count(), byte / size);
    let (one, other) = (&tensor.bytes[index * size..][..size], &other.bytes[index * size..][..size]);
    let hex = |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    let counted = counted(differing, "value");
    format!("{counted} of {name}, the first is value {index}: bits {}, not {}", hex(other), hex(one))
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;

    use super::*;
    use crate::checks::Verdict;
    use crate::lab_run::testing::{Run, weights};

    #[test]
    fn compares_the_ranks_of_one_run_with_another_run() {
        let one = Run::of(1, 4, 1, 8).evidence();
        let mut other = Run::of(2, 4, 1, 8).evidence();
        assert_eq!(same_weights_as("a", &one, &other).verdict, Verdict::Passed);
        other.weights[1] = Err("no file".into());
        let finding = same_weights_as("a", &one, &other);
        assert_eq!((finding.verdict, &*finding.evidence), (Verdict::Failed, "rank 1: no file"));
    }

    fn after(falsify: impl FnOnce(&mut Weights)) -> Finding {
        let mut run = Run::of(2, 4, 1, 8).evidence();
        falsify(run.weights[1].as_mut().unwrap());
        same_weights(&run)
    }

    #[test]
    fn passes_equal_weights_with_their_numbers() {
        let finding = same_weights(&Run::of(3, 4, 1, 8).evidence());
        assert_eq!(finding.verdict, Verdict::Passed);
        assert_eq!(finding.evidence, "2 tensors, 8 values on each of 3 ranks: no bit differs");
    }

    #[test]
    fn fails_when_one_bit_of_one_weight_differs() {
        for bit in 0..32 {
            let finding = after(|weights| weights.get_mut("fc.weight").unwrap().bytes[8 + bit / 8] ^= 1 << (bit % 8));
            assert_eq!(finding.verdict, Verdict::Failed, "bit {bit}");
            assert!(
                finding.evidence.starts_with("rank 1 differs from rank 0: 1 value of fc.weight, the first is value 2")
            );
        }
        let finding = after(|weights| weights.get_mut("fc.weight").unwrap().bytes[8] ^= 1);
        assert!(finding.evidence.ends_with("bits 3ecccccc, not 3ecccccd"), "{}", finding.evidence);
    }

    #[test]
    fn fails_when_zeros_differ_in_sign_only() {
        let mut run = Run::of(2, 4, 1, 8).evidence();
        run.weights = vec![Ok(weights(&[0.0])), Ok(weights(&[-0.0]))];
        assert_eq!(same_weights(&run).verdict, Verdict::Failed);
    }

    #[test]
    fn fails_when_tensors_differ_in_name_type_or_shape() {
        let evidence_of = |falsify: fn(&mut Weights)| {
            let finding = after(falsify);
            assert_eq!(finding.verdict, Verdict::Failed);
            finding.evidence
        };
        assert!(evidence_of(|weights| drop(weights.remove("fc.bias"))).ends_with("it has no fc.bias"));
        let extra = evidence_of(|weights| drop(weights.insert("fc2".into(), weights["fc.bias"].clone())));
        assert!(extra.ends_with("it alone has fc2"));
        let shape = evidence_of(|weights| weights.get_mut("fc.bias").unwrap().shape = vec![2, 1]);
        assert!(shape.ends_with("fc.bias is F32 [2, 1], not F32 [2]"), "{shape}");
        assert!(evidence_of(|weights| weights.get_mut("fc.bias").unwrap().dtype = Dtype::I32).contains("is I32"));
    }

    #[test]
    fn fails_when_the_file_of_a_rank_is_missing() {
        for rank in 0..2 {
            let mut run = Run::of(2, 4, 1, 8).evidence();
            run.weights[rank] = Err("cannot read it".into());
            assert_eq!(same_weights(&run).verdict, Verdict::Failed);
        }
    }

    #[test]
    fn fails_when_nothing_was_saved() {
        let mut run = Run::of(2, 4, 1, 8).evidence();
        run.weights = vec![Ok(Weights::new()), Ok(Weights::new())];
        assert_eq!(same_weights(&run).verdict, Verdict::Failed);
    }

    #[test]
    fn cannot_decide_with_one_rank() {
        assert_eq!(same_weights(&Run::of(1, 4, 1, 8).evidence()).verdict, Verdict::NotVerified);
    }
}

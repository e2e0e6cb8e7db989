//! Checks whether a good snapshot fits this run: pure comparisons of saved values with current ones.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use tch::Tensor;

use super::error::{Difference, Unfit};
use super::file::{dtype, shape};
use super::meta::{Meta, Run};

/// The current values, to compare with the saved ones.
pub(super) struct ThisRun {
    pub(super) run: Run,
    pub(super) world_size: usize,
    pub(super) threads: i32,
}

type Shapes = BTreeMap<String, (Dtype, Vec<usize>)>;

/// Rejects a snapshot whose position would mean other samples in this run; returns notes on all other differences and their
/// consequences.
pub(super) fn check_run(saved: &Meta, here: &ThisRun) -> Result<Vec<String>, Unfit> {
    let position = saved.position;
    let pairs = [
        ("the seed", saved.run.seed.to_string(), here.run.seed.to_string()),
        ("the data set's length", saved.run.samples.to_string(), here.run.samples.to_string()),
        ("the data set's fingerprint", format!("{:08x}", saved.run.data), format!("{:08x}", here.run.data)),
    ];
    let mut notes = Vec::new();
    for (what, saved, here) in pairs.into_iter().filter(|(_, saved, here)| saved != here) {
        if !position.is_start() {
            return Err(Unfit::Run { what, saved, here });
        }
        notes.push(format!("{what} was {saved} when the snapshot was taken and is {here} now"));
    }
    // Each step takes at least one sample.
    if position.samples > saved.run.samples || position.step > position.samples {
        return Err(Unfit::Position { position, samples: saved.run.samples });
    }
    if saved.run.batch_size != here.run.batch_size {
        notes.push(changed("samples in a rank's batch", saved.run.batch_size, here.run.batch_size));
    }
    notes.extend(same_bits(saved, here));
    Ok(notes)
}

/// The differences that keep the run from ending with the same bits as an uninterrupted one.
fn same_bits(saved: &Meta, here: &ThisRun) -> Option<String> {
    if saved.world_size != here.world_size {
        return Some(changed("ranks", saved.world_size, here.world_size));
    }
    (saved.threads != here.threads)
        .then(|| changed("libtorch threads", saved.threads, here.threads) + " (OMP_NUM_THREADS sets them)")
}

fn changed(what: &str, saved: impl fmt::Display, here: impl fmt::Display) -> String {
    format!("the snapshot was taken with {saved} {what} and training goes on with {here}: weights will differ in bits")
}

/// A note about learning rates that a resume has replaced.
pub(super) fn replaced_rates(built_with: &[f64], saved: &[f64]) -> Vec<String> {
    let pairs = built_with.iter().zip(saved).enumerate().filter(|(_, (here, saved))| here != saved);
    let describe = |(group, (here, saved)): (usize, (&f64, &f64))| {
        format!(
            "the learning rate of parameter group {group} goes on as the snapshot's, {saved}, and is not {here} as asked for; \
             if your program sets it before each step, say so: SnapshotOptions {{ sets_rates: true, .. }}"
        )
    };
    pairs.map(describe).collect()
}

/// Rejects variables with other names, shapes or dtypes.
pub(super) fn check_model<'a>(
    saved: &BTreeMap<String, Tensor>,
    here: impl IntoIterator<Item = (&'a String, &'a Tensor)>,
) -> Result<(), Unfit> {
    compare(&shapes(saved), &shapes(here))
}

fn shapes<'a>(tensors: impl IntoIterator<Item = (&'a String, &'a Tensor)>) -> Shapes {
    // A kind that safetensors lacks cannot be in the snapshot, so any other dtype serves for the comparison.
    let described = |tensor: &Tensor| (dtype(tensor.kind()).unwrap_or(Dtype::F8_E4M3), shape(tensor));
    tensors.into_iter().map(|(name, tensor)| (name.clone(), described(tensor))).collect()
}

fn compare(saved: &Shapes, here: &Shapes) -> Result<(), Unfit> {
    let only = |left: &Shapes, right: &Shapes| left.keys().filter(|name| !right.contains_key(*name)).cloned().collect();
    let (missing, unexpected): (Vec<_>, Vec<_>) = (only(here, saved), only(saved, here));
    let both = saved.iter().filter_map(|(name, saved)| Some((name.clone(), saved.clone(), here.get(name)?.clone())));
    let different = both.filter(|(_, saved, here)| saved != here);
    let different: Vec<_> = different.map(|(name, saved, here)| Difference { name, saved, here }).collect();
    if missing.is_empty() && unexpected.is_empty() && different.is_empty() {
        return Ok(());
    }
    Err(Unfit::Model { missing, unexpected, different })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::Position;
    use crate::optim::StateMeta;

    const RUN: Run = Run { seed: 1, samples: 50, data: 0xabc, batch_size: 4 };

    fn saved(step: usize) -> Meta {
        let position = Position { epoch: 1, step, samples: step * 8 };
        Meta {
            position,
            run: RUN,
            world_size: 2,
            threads: 1,
            optimizer: StateMeta { groups: Vec::new() },
            jobs: Vec::new(),
            attempt: None,
            sharded: None,
        }
    }

    fn here(run: Run) -> ThisRun {
        ThisRun { run, world_size: 2, threads: 1 }
    }

    #[test]
    fn accepts_the_same_run_silently() {
        assert_eq!(check_run(&saved(3), &here(RUN)).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn refuses_another_order_inside_an_epoch_and_notes_it_at_its_start() {
        for (run, expected) in [
            (Run { seed: 2, ..RUN }, "the seed was 1 there and is 2 here"),
            (Run { data: 0xdef, ..RUN }, "the data set's fingerprint was 00000abc there and is 00000def here"),
            (Run { samples: 49, ..RUN }, "the data set's length was 50 there and is 49 here"),
        ] {
            let refused = check_run(&saved(3), &here(run)).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
            assert_eq!(check_run(&saved(0), &here(run)).unwrap().len(), 1);
        }
    }

    #[test]
    fn refuses_a_position_outside_the_data_set() {
        let absurd = Position { epoch: 1, step: usize::MAX, samples: 8 };
        for position in [saved(7).position, absurd] {
            let refused = check_run(&Meta { position, ..saved(0) }, &here(RUN)).unwrap_err();
            assert!(matches!(refused, Unfit::Position { samples: 50, .. }), "{refused}");
        }
    }

    #[test]
    fn notes_what_will_change_bits() {
        let notes = |here: ThisRun| check_run(&saved(3), &here).unwrap().concat();
        let text = notes(ThisRun { world_size: 4, ..here(RUN) });
        assert!(text.contains("2 ranks") && text.contains("with 4"), "{text}");
        let text = notes(here(Run { batch_size: 5, ..RUN }));
        assert!(text.contains("with 4 samples in a rank's batch and training goes on with 5"), "{text}");
        let text = notes(ThisRun { threads: 8, ..here(RUN) });
        assert!(text.contains("1 libtorch threads") && text.contains("OMP_NUM_THREADS"), "{text}");
    }

    #[test]
    fn names_both_learning_rates_if_they_differ() {
        assert_eq!(replaced_rates(&[0.1, 0.2], &[0.1, 0.2]), Vec::<String>::new());
        let notes = replaced_rates(&[0.1, 0.2], &[0.1, 0.05]);
        assert!(
            notes.len() == 1 && notes[0].contains("group 1") && notes[0].contains("0.05") && notes[0].contains("0.2")
        );
    }

    #[test]
    fn names_variables_of_either_side_and_both_shapes() {
        let of = |list: &[(&str, &[i64])]| -> BTreeMap<String, Tensor> {
            list.iter().map(|(name, shape)| ((*name).to_owned(), Tensor::zeros(*shape, tch::kind::FLOAT_CPU))).collect()
        };
        let there = of(&[("a", &[2]), ("b", &[3, 4]), ("old", &[1])]);
        let message = check_model(&there, &of(&[("a", &[2]), ("b", &[4, 3]), ("new", &[1])])).unwrap_err().to_string();
        assert_eq!(
            message,
            "it is of another model: it lacks new; only it has old; b is F32 [3, 4] there and F32 [4, 3] here"
        );
        assert!(check_model(&there, &there).is_ok());
        let kinds = of(&[("a", &[2])]).into_iter().map(|(name, tensor)| (name, tensor.to_kind(tch::Kind::Double)));
        let message = check_model(&of(&[("a", &[2])]), &kinds.collect::<BTreeMap<_, _>>()).unwrap_err().to_string();
        assert!(message.contains("F32 [2] there and F64 [2] here"), "{message}");
    }

    #[test]
    fn counts_names_beyond_the_first_few() {
        let there: BTreeMap<_, _> =
            (0..9).map(|i| (format!("w{i}"), Tensor::zeros([1], tch::kind::FLOAT_CPU))).collect();
        let message = check_model(&there, &BTreeMap::new()).unwrap_err().to_string();
        assert!(message.ends_with("w5 and 3 more"), "{message}");
    }
}

//! Checks whether a good snapshot fits this run: pure comparisons of saved values with current ones.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;

use c10d::Backend;
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
    pub(super) nodes: Vec<usize>,
    pub(super) backend: String,
    pub(super) virtual_ranks: Option<NonZeroUsize>,
    pub(super) instructions: &'static str,
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
        let note = changed("samples in a rank's batch", saved.run.batch_size, here.run.batch_size);
        notes.push(note + " (each step is a mean over another number of samples)");
    }
    notes.extend(same_bits(saved, here));
    Ok(notes)
}

/// The differences that keep the run from ending with the same bits as an uninterrupted one.
fn same_bits(saved: &Meta, here: &ThisRun) -> Vec<String> {
    let mut notes = Vec::new();
    // Gloo's order of additions does not depend on nodes.
    let nodes_count = [&saved.backend, &here.backend].iter().any(|backend| *backend != Backend::Gloo.name());
    let other_order = saved.backend != here.backend || nodes_count && saved.nodes != here.nodes;
    if saved.virtual_ranks != here.virtual_ranks {
        let [saved, here] = [saved.virtual_ranks, here.virtual_ranks].map(|count| count.map_or(0, NonZeroUsize::get));
        let what = "virtual ranks, whose number is fixed for the life of a training";
        notes.push(changed(what, saved, here) + " (--virtual-ranks of the labs sets it)");
    } else if here.virtual_ranks.is_some() {
        // Neither the number of ranks nor the order in which a backend adds matters.
    } else if saved.world_size != here.world_size {
        notes.push(changed("ranks", saved.world_size, here.world_size));
    } else if other_order && !saved.backend.is_empty() {
        let [saved, here] = [(&saved.backend, &saved.nodes), (&here.backend, &here.nodes)]
            .map(|(backend, nodes)| format!("{} over {backend}", on_nodes(nodes)));
        notes.push(format!(
            "the snapshot was taken with {saved} and training goes on with {here}: sums may be added in another order, and weights may \
             differ in bits (LOCKSTEP_BACKEND=gloo has one order for all nodes)"
        ));
    }
    if saved.threads != here.threads {
        notes.push(changed("libtorch threads", saved.threads, here.threads) + " (OMP_NUM_THREADS sets them)");
    }
    if !saved.instructions.is_empty() && saved.instructions != here.instructions {
        notes.push(format!(
            "the snapshot was taken on a processor with {} instructions and training goes on with {}: weights may differ in bits \
             (ATEN_CPU_CAPABILITY limits libtorch's own kernels to those that all processors have)",
            saved.instructions, here.instructions
        ));
    }
    notes
}

/// "2 ranks on each of 2 nodes", or "3 + 1 ranks on 2 nodes".
fn on_nodes(ranks: &[usize]) -> String {
    let nodes = ranks.len();
    match ranks {
        [1] => "1 rank".into(),
        [1, others @ ..] if others.iter().all(|other| *other == 1) => format!("1 rank on each of {nodes} nodes"),
        [one] => format!("{one} ranks on 1 node"),
        [first, others @ ..] if others.iter().all(|other| other == first) => {
            format!("{first} ranks on each of {nodes} nodes")
        }
        _ => {
            let each: Vec<String> = ranks.iter().map(ToString::to_string).collect();
            format!("{} ranks on {nodes} nodes", each.join(" + "))
        }
    }
}

fn changed(what: &str, saved: impl fmt::Display, here: impl fmt::Display) -> String {
    format!("the snapshot was taken with {saved} {what} and training goes on with {here}: weights will differ in bits")
}

/// Notes about learning rates that this run was `built_with` and the run of the snapshot was not. The optimizer now has the rates
/// `loaded`, unless the program itself `sets_rates`.
pub(super) fn other_rates(saved: &Meta, built_with: &[f64], loaded: &[f64], sets_rates: bool) -> Vec<String> {
    let asked_for = match saved.built_with.is_empty() {
        false => &saved.built_with[..],
        true if sets_rates => built_with, // unknown
        true => loaded,
    };
    let groups =
        built_with.iter().zip(asked_for).zip(loaded).enumerate().filter(|(_, ((here, saved), _))| here != saved);
    let describe = |(group, ((here, saved), loaded)): (usize, ((&f64, &f64), &f64))| {
        if sets_rates {
            return format!(
                "the learning rate of parameter group {group} was {saved} before the program's schedule when the snapshot was taken \
                 and is {here} now: training goes on with the new one, and weights will differ"
            );
        }
        format!(
            "the learning rate of parameter group {group} goes on as the snapshot's, {loaded}, and is not {here} as asked for; \
             if your program sets it before each step, say so: SnapshotOptions {{ sets_rates: true, .. }}"
        )
    };
    groups.map(describe).collect()
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

    const RUN: Run = Run { seed: 1, samples: 50, data: 0xabc, batch_size: 4 };

    fn saved(step: usize) -> Meta {
        let position = Position { epoch: 1, step, samples: step * 8 };
        let (nodes, backend) = (vec![1, 1], "shm".into());
        Meta { position, run: RUN, world_size: 2, threads: 1, nodes, backend, ..Meta::default() }
    }

    fn here(run: Run) -> ThisRun {
        let (virtual_ranks, instructions) = (None, "AVX2");
        ThisRun {
            run,
            world_size: 2,
            threads: 1,
            nodes: vec![1, 1],
            backend: "shm".into(),
            virtual_ranks,
            instructions,
        }
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
        let text = notes(ThisRun { threads: 8, world_size: 3, nodes: vec![3], ..here(RUN) });
        assert!(text.contains("2 ranks") && text.contains("libtorch threads") && !text.contains("node"), "{text}");
        let text = notes(ThisRun { nodes: vec![2], ..here(RUN) });
        assert!(
            text.contains("with 1 rank on each of 2 nodes over shm") && text.contains("2 ranks on 1 node over shm:")
        );
        let text = notes(ThisRun { backend: "gloo".into(), ..here(RUN) });
        assert!(
            text.contains("2 nodes over shm and training goes on with 1 rank on each of 2 nodes over gloo"),
            "{text}"
        );
        assert_eq!(on_nodes(&[3, 1]), "3 + 1 ranks on 2 nodes");
    }

    #[test]
    fn does_not_note_what_does_not_change_bits_or_is_not_known() {
        let over_gloo = Meta { backend: "gloo".into(), ..saved(3) };
        let on_one_node = ThisRun { backend: "gloo".into(), nodes: vec![2], ..here(RUN) };
        assert_eq!(check_run(&over_gloo, &on_one_node).unwrap(), Vec::<String>::new());
        let unknown = Meta { backend: String::new(), nodes: Vec::new(), ..saved(3) };
        assert_eq!(check_run(&unknown, &on_one_node).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn with_virtual_ranks_only_what_changes_their_bits_is_a_difference() {
        let v = NonZeroUsize::new;
        let saved = Meta { virtual_ranks: v(6), instructions: "AVX2".into(), ..saved(3) };
        let notes = |here: ThisRun| check_run(&saved, &here).unwrap();
        let elastic =
            |run| ThisRun { virtual_ranks: v(6), world_size: 5, nodes: vec![5], backend: "gloo".into(), ..here(run) };
        assert_eq!(notes(elastic(RUN)), Vec::<String>::new());
        let text = notes(ThisRun { virtual_ranks: v(4), ..elastic(RUN) }).concat();
        assert!(
            text.contains("with 6 virtual ranks") && text.contains("with 4") && !text.contains("backend"),
            "{text}"
        );
        let text = notes(ThisRun { virtual_ranks: None, ..elastic(RUN) }).concat();
        assert!(text.contains("with 6 virtual ranks") && text.contains("goes on with 0"), "{text}");
        let text = notes(ThisRun { threads: 2, instructions: "AVX512", ..elastic(RUN) }).concat();
        assert!(text.contains("OMP_NUM_THREADS") && text.contains("AVX2 instructions"), "{text}");
        assert!(text.contains("goes on with AVX512") && text.contains("ATEN_CPU_CAPABILITY"), "{text}");
    }

    #[test]
    fn names_both_learning_rates_if_the_run_was_asked_for_another() {
        let notes = |built_with: &[f64], here: &[f64], loaded: &[f64], sets_rates| {
            other_rates(&Meta { built_with: built_with.to_vec(), ..saved(3) }, here, loaded, sets_rates)
        };
        let words = |notes: Vec<String>, words: &[&str]| {
            assert!(notes.len() == 1 && words.iter().all(|word| notes[0].contains(word)), "{notes:?}");
        };
        // A schedule has lowered it.
        for sets_rates in [false, true] {
            assert_eq!(notes(&[0.1, 0.2], &[0.1, 0.2], &[0.01, 0.02], sets_rates), Vec::<String>::new());
        }
        words(
            notes(&[0.1, 0.2], &[0.1, 0.5], &[0.1, 0.02], false),
            &["group 1", "snapshot's, 0.02", "not 0.5 as asked"],
        );
        words(notes(&[0.1], &[0.5], &[0.02], true), &["group 0", "was 0.1 before", "is 0.5 now"]);
        // Of a run that did not know.
        words(notes(&[], &[0.1, 0.2], &[0.1, 0.05], false), &["group 1", "0.05", "0.2"]);
        assert_eq!(notes(&[], &[0.1], &[0.05], true), Vec::<String>::new());
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

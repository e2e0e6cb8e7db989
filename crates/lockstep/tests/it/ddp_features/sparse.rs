//! Sparse gradients: the mean over ranks as of dense ones, the same bits on both backends, in a join, and what is refused.

use std::rc::Rc;

use c10d::{Backend, ErrorKind, ProcessGroup};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DdpVariables, DistributedDataParallel, JoinOptions};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use super::{BACKENDS, SPARSE, Words, apart, targets, words};
use crate::common::{bits, ranks_on, values};

/// The gradients of a step on this rank: that of the table made dense, and the others.
fn gradients(group: Rc<ProcessGroup>, sparse: bool, options: &DdpOptions) -> (bool, Vec<Vec<f64>>) {
    let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get());
    let model = Words::new(&vs, sparse);
    let variables = if sparse { SPARSE } else { DdpVariables::default() };
    let ddp = DistributedDataParallel::new_with(model, &vs, group, options, &variables).unwrap();
    let mut last = (false, vec![]);
    for step in 0..3 {
        named_parameters(&vs).iter_mut().for_each(|(_, parameter)| c10d::clear_grad(parameter).unwrap());
        let output = ddp.forward_with(|model| model.forward(&words(rank, step))).unwrap();
        ddp.backward(&output.cross_entropy_for_logits(&targets(rank, step))).unwrap();
        let grads: Vec<Tensor> = named_parameters(&vs).iter().map(|(_, parameter)| parameter.grad()).collect();
        let dense = |grad: &Tensor| if grad.is_sparse() { grad.to_dense(None, false) } else { grad.shallow_clone() };
        last = (grads[0].is_sparse(), grads.iter().map(|grad| values(&dense(grad).flatten(0, -1))).collect());
    }
    last
}

#[test]
fn sparse_gradients_are_the_mean_over_ranks_as_dense_ones_are() {
    for backend in BACKENDS {
        for world in [1, 3] {
            for options in [
                DdpOptions::default(),
                DdpOptions { bucket_cap_mb: 0.0001, ..Default::default() },
                DdpOptions { find_unused_parameters: true, ..Default::default() },
                DdpOptions { fixed_buckets: true, ..Default::default() },
                DdpOptions { static_graph: true, ..Default::default() },
            ] {
                let sparse = ranks_on(backend, world, |group| gradients(group, true, &options));
                let dense = ranks_on(backend, world, |group| gradients(group, false, &options));
                for ((is_sparse, ours), (is_dense, theirs)) in sparse.iter().zip(&dense) {
                    assert!(*is_sparse && !*is_dense, "{options:?}");
                    assert_eq!(ours, &sparse[0].1, "all ranks have the same: {options:?}");
                    let worst = apart(ours, theirs);
                    assert!(worst < 1e-6, "{worst} on {}, {world} ranks: {options:?}", backend.name());
                }
            }
        }
    }
}

#[test]
fn sparse_gradients_have_the_same_bits_on_both_backends() {
    // Dense ones are added in another order.
    let table = |group| gradients(group, true, &DdpOptions::default()).1.swap_remove(0);
    let on = |backend| ranks_on(backend, 3, table);
    assert_eq!(on(Backend::Gloo), on(Backend::SharedMemory));
}

#[test]
fn a_rank_without_inputs_joins_those_with_sparse_gradients() {
    for backend in BACKENDS {
        let weights = ranks_on(backend, 2, |group| {
            let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get());
            let model = Words::new(&vs, true);
            let ddp = DistributedDataParallel::new_with(model, &vs, group, &DdpOptions::default(), &SPARSE).unwrap();
            let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: 0.5, ..Default::default() }).unwrap();
            let steps: c10d::Result<()> = ddp.join(&JoinOptions::default(), || {
                for step in 0..=rank {
                    optimizer.zero_grad();
                    let output = ddp.forward_with(|model| model.forward(&words(rank, step)))?;
                    ddp.backward(&output.sum(Kind::Float))?;
                    optimizer.step().unwrap();
                }
                Ok(())
            });
            steps.unwrap();
            assert!(ddp.logging_data().unwrap().join_uneven_inputs);
            bits(&vs.variables()["table.weight"])
        });
        assert_eq!(weights[0], weights[1]);
    }
}

#[test]
fn names_that_are_no_trained_parameters_are_refused() {
    ranks_on(Backend::Gloo, 1, |group| {
        for (ignored, sparse, named) in [
            (&["tabel.weight"][..], &[][..], "tabel.weight"),
            (&[], &["head"], "head"),
            (&["table.weight"], &["table.weight"], "table.weight"),
        ] {
            let vs = VarStore::new(Device::Cpu);
            let (model, variables) = (Words::new(&vs, true), DdpVariables { ignored, sparse });
            let refused =
                DistributedDataParallel::new_with(model, &vs, Rc::clone(&group), &DdpOptions::default(), &variables);
            let error = refused.err().expect("a refusal");
            assert_eq!(error.kind(), ErrorKind::BadArgument);
            assert!(error.to_string().contains(named), "{error}");
        }
    });
}

#[test]
fn a_sparse_gradient_that_was_not_announced_fails_the_step() {
    ranks_on(Backend::Gloo, 1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let ddp = DistributedDataParallel::new(Words::new(&vs, true), &vs, group, &DdpOptions::default()).unwrap();
        let output = ddp.forward_with(|model| model.forward(&words(0, 0))).unwrap();
        let error = ddp.backward(&output.sum(Kind::Float)).unwrap_err();
        assert!(error.to_string().to_lowercase().contains("sparse"), "{error}");
    });
}

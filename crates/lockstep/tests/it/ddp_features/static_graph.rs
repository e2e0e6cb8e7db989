//! Static graphs: parameters that are used twice or never, and what is refused.

use std::rc::Rc;

use c10d::{Backend, ErrorKind, ProcessGroup};
use lockstep::optim::named_parameters;
use lockstep::{DdpOptions, DistributedDataParallel, JoinOptions};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use super::{BACKENDS, Twice, apart, numbers, targets};
use crate::common::{ranks_on, values};

/// The gradients that the parameters have, empty lists where there are none.
fn gradients(vs: &VarStore) -> Vec<Vec<f64>> {
    let of = |(_, parameter): &(String, Tensor)| {
        let grad = parameter.grad();
        if grad.defined() { values(&grad.flatten(0, -1)) } else { vec![] }
    };
    named_parameters(vs).iter().map(of).collect()
}

/// Those of the last of some steps.
fn of_twice(group: Rc<ProcessGroup>, options: &DdpOptions, accumulate: bool) -> c10d::Result<Vec<Vec<f64>>> {
    let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get());
    let ddp = DistributedDataParallel::new(Twice::new(&vs), &vs, group, options)?;
    for step in 0..3 {
        named_parameters(&vs).iter_mut().for_each(|(_, parameter)| c10d::clear_grad(parameter).unwrap());
        let pass = |step| {
            let output = ddp.forward_with(|model| model.forward(&numbers(rank, step), true))?;
            ddp.backward(&output.cross_entropy_for_logits(&targets(rank, step)))
        };
        if accumulate {
            ddp.no_sync(|| pass(step + 10))?;
        }
        pass(step)?;
    }
    Ok(gradients(&vs))
}

/// What one process computes for all ranks, without recomputation.
fn due(world: usize, accumulate: bool) -> Vec<Vec<f64>> {
    let vs = VarStore::new(Device::Cpu);
    let model = Twice::new(&vs);
    let steps: &[usize] = if accumulate { &[2, 12] } else { &[2] };
    let loss = |rank: usize, step: usize| {
        model.forward(&numbers(rank, step), false).cross_entropy_for_logits(&targets(rank, step))
    };
    let losses = (0..world).flat_map(|rank| steps.iter().map(move |step| (rank, *step)));
    let sum = losses.map(|(rank, step)| loss(rank, step)).reduce(|a, b| a + b).unwrap();
    c10d::backward(&(sum / world as f64)).unwrap();
    gradients(&vs)
}

#[test]
fn a_static_graph_may_use_a_parameter_in_two_recomputations_and_leave_one_out() {
    for backend in BACKENDS {
        for world in 1..=3 {
            for (gradient_as_bucket_view, accumulate) in [(false, false), (true, false), (false, true)] {
                let options = DdpOptions { static_graph: true, gradient_as_bucket_view, ..Default::default() };
                let found = ranks_on(backend, world, |group| of_twice(group, &options, accumulate).unwrap());
                let due = due(world, accumulate);
                for grads in &found {
                    assert_eq!(grads, &found[0]);
                    assert_eq!(
                        grads.iter().map(Vec::len).collect::<Vec<_>>(),
                        due.iter().map(Vec::len).collect::<Vec<_>>()
                    );
                    let worst = apart(grads, &due);
                    assert!(worst < 1e-6, "{worst}, {world} ranks on {}", backend.name());
                }
            }
        }
    }
}

#[test]
fn without_a_static_graph_the_same_model_fails_with_the_reason() {
    let errors = ranks_on(Backend::Gloo, 2, |group| of_twice(group, &DdpOptions::default(), false).unwrap_err());
    for error in errors {
        assert!(
            error.to_string().contains("marked as ready twice") || error.to_string().contains("ready only once"),
            "{error}"
        );
    }
}

#[test]
fn a_graph_that_loses_a_gradient_although_it_was_said_to_be_static_fails_the_next_step() {
    ranks_on(Backend::Gloo, 1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let options = DdpOptions { static_graph: true, ..Default::default() };
        let ddp = DistributedDataParallel::new(Twice::new(&vs), &vs, group, &options).unwrap();
        // The shared layer's gradients come twice, and then once.
        for checkpointed in [true, false] {
            let output = ddp.forward_with(|model| model.forward(&numbers(0, 0), checkpointed)).unwrap();
            ddp.backward(&output.sum(Kind::Float)).unwrap();
        }
        let error = ddp.forward_with(|model| model.forward(&numbers(0, 0), true)).unwrap_err().to_string();
        assert!(error.contains("graph has changed"), "{error}");
    });
}

#[test]
fn what_does_not_go_with_a_static_graph_is_refused() {
    ranks_on(Backend::Gloo, 1, |group| {
        let wrap = |fixed_buckets| {
            let vs = VarStore::new(Device::Cpu);
            let options = DdpOptions { static_graph: true, fixed_buckets, ..Default::default() };
            DistributedDataParallel::new(Twice::new(&vs), &vs, Rc::clone(&group), &options)
        };
        assert_eq!(wrap(true).err().unwrap().kind(), ErrorKind::BadArgument);
        let joined: c10d::Result<()> = wrap(false).unwrap().join(&JoinOptions::default(), || Ok(()));
        assert_eq!(joined.unwrap_err().kind(), ErrorKind::BadArgument);
    });
}

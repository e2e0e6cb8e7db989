//! A run on the CPU never loads CUDA. This test is alone in its file because other tests of a process may load CUDA on
//! purpose.

#![allow(clippy::unwrap_used)]

mod common;

use std::rc::Rc;

use c10d::{Backend, FusedSgd, ReduceOp, Reducer, ReducerOptions, fused_sgd};
use common::{mapped, rank, ranks};
use tch::{Device, Kind, Tensor};

#[test]
fn training_on_the_cpu_never_loads_cuda() {
    ranks(2, |group| {
        assert_eq!((group.backend(), group.device()), (Backend::Gloo, Device::Cpu));
        let subgroup = group.new_group(&[rank(0), rank(1)], &common::options()).unwrap().unwrap();
        assert_eq!(subgroup.backend(), group.backend());
        subgroup.barrier().unwrap();
        let weight = Tensor::ones([3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let params = [("weight".to_owned(), weight)];
        let reducer = Reducer::new(Rc::new(group), &params, &ReducerOptions::default()).unwrap();
        let loss = params[0].1.sum(Kind::Float);
        reducer.prepare_for_forward().unwrap();
        reducer.prepare_for_backward(&[]).unwrap();
        reducer.backward(&loss).unwrap();
        let (mut params, grads) = ([params[0].1.shallow_clone()], [params[0].1.grad()]);
        let sgd = FusedSgd {
            lr: 0.5,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
            is_first_step: false,
        };
        fused_sgd(&mut params, &grads, &mut [], &sgd).unwrap();
        let mut sum = params[0].detach().copy();
        subgroup.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(Vec::<f32>::try_from(&sum).unwrap(), [1.0; 3]);
    });
    assert!(mapped("libtorch_cpu.so"), "the test looks for the wrong files");
    for library in ["libtorch_cuda.so", "libc10_cuda.so", "libnccl.so.2", "memfd:lockstep-nccl"] {
        assert!(!mapped(library), "{library} is loaded");
    }
}

//! Groups with one backend for tensors in host memory and another for those on GPUs. No GPU is needed: `cpu:shm,cuda:gloo` connects two
//! backends, of which the tensors here use the first.

use c10d::{Backend, BackendConfig, DebugLevel, ErrorKind, GroupOptions, ReduceOp};
use tch::{Device, Kind, Tensor};

use crate::common::{DEADLINE, options, rank, ranks_on, ranks_over};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn parse(text: &str) -> BackendConfig {
    BackendConfig::parse(text, Device::Cpu).unwrap()
}

fn sum_over(group: &c10d::ProcessGroup) -> f64 {
    let mut t = Tensor::full([5], group.rank().get() as f64 + 1.0, FLOAT);
    group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
    t.double_value(&[4])
}

#[test]
fn both_backends_are_connected_under_one_name_and_subgroups_have_both() {
    ranks_on(parse("cpu:shm,cuda:gloo"), 3, &options(), |group| {
        assert_eq!(
            (group.backend(), group.backends().to_string()),
            (Backend::SharedMemory, "cpu:shm,cuda:gloo".into())
        );
        assert_eq!(group.backends().of(Device::Cuda(0)), Some(Backend::Gloo));
        assert_eq!(sum_over(&group), 6.0);
        group.barrier().unwrap();
        group.monitored_barrier(DEADLINE, true).unwrap();
        assert_eq!(group.traffic().unwrap().bytes, 20);
        let pair = group.new_group(&[rank(0), rank(1)], &options()).unwrap();
        if let Some(pair) = &pair {
            assert_eq!((pair.backends(), sum_over(pair)), (group.backends(), 3.0));
        }
        drop(pair.map(|pair| pair.all_reduce_async(Tensor::ones([3], FLOAT), ReduceOp::Sum).unwrap()));
    });
}

#[test]
fn the_ranks_choose_the_backend_of_host_memory_next_to_a_named_one_and_debug_mode_wraps_both() {
    let detail = GroupOptions { debug: Some(DebugLevel::Detail), ..options() };
    for options in [&options(), &detail] {
        ranks_over(&[0, 0], parse("cpu:auto,cuda:gloo"), options, |group| {
            assert_eq!(group.backends(), parse("cpu:shm,cuda:gloo"));
            assert!(group.why_backend().unwrap().contains("one host"));
            assert_eq!(sum_over(&group), 3.0);
        });
    }
}

#[test]
fn a_tensor_of_a_device_without_a_backend_is_refused_as_in_python() {
    ranks_on(parse("cuda:gloo"), 2, &options(), |group| {
        // PyTorch: "No backend type associated with device type cpu".
        let refused = [
            group.all_reduce(&mut Tensor::ones([1], FLOAT), ReduceOp::Sum),
            group.send(&Tensor::ones([1], FLOAT), rank(1 - group.rank().get()), 0),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::BadArgument);
            assert!(error.detail().contains("no backend type associated with device type cpu"), "{error}");
            assert!(error.detail().contains("cpu:gloo,cuda:nccl"), "{error}");
        }
        assert_eq!(group.monitored_barrier(DEADLINE, true).unwrap_err().kind(), ErrorKind::BadArgument);
        // It needs no tensor.
        group.barrier().unwrap();
    });
}

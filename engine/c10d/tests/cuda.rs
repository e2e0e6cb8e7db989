//! Requests CUDA and NCCL on any machine. With a GPU they must work; otherwise the error names the reason and the
//! process continues. Several GPUs are not verified here.

#![allow(clippy::unwrap_used)]

mod common;

use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use c10d::{
    Backend, BackendConfig, DebugLevel, ErrorKind, GroupOptions, ProcessGroup, ReduceOp, Reducer, ReducerOptions,
    Store, WorldSize, cuda,
};
use common::{mapped, rank, ranks};
use tch::{Cuda, Device, Kind, Tensor};

/// Serializes the tests, because a library that fails to load is mapped for a moment. Loads CUDA if possible: each test
/// may be the first of its process, and later would be too late.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = cuda::load();
    guard
}

fn join_nccl(options: &GroupOptions) -> c10d::Result<ProcessGroup> {
    ProcessGroup::nccl(&Store::hash().unwrap(), rank(0), WorldSize::ONE, Device::Cuda(0), options)
}

/// Gloo, autograd and C++ exceptions work.
fn still_works() {
    let sums = ranks(2, |group| {
        let mut t = Tensor::ones([2], (Kind::Float, Device::Cpu));
        group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
        let odd = group.all_reduce(&mut Tensor::zeros([1], (Kind::Int16, Device::Cpu)), ReduceOp::Sum);
        assert_eq!(odd.unwrap_err().kind(), ErrorKind::BadArgument);
        t.double_value(&[1])
    });
    assert_eq!(sums, [2.0, 2.0]);
    let x = Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    c10d::backward(&(&x * 3.0).sum(Kind::Float)).unwrap();
    assert_eq!(x.grad().double_value(&[0]), 3.0);
}

#[test]
fn loading_cuda_works_or_names_what_is_missing_and_the_process_continues() {
    let _alone = alone();
    match cuda::load() {
        Ok(()) => {
            println!("not verified here: the message of a libtorch without its CUDA half");
            assert!(mapped("libtorch_cuda.so"));
            cuda::load().unwrap();
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Internal);
            let text = error.to_string();
            assert!(text.starts_with("load CUDA failed: ") && text.contains(".so"), "{text}");
            assert!(text.ends_with("scripts/setup.sh --cuda --force"), "{text}");
            assert!(!mapped("libtorch_cuda.so"), "a library that failed to load stayed");
            assert_eq!(cuda::load().unwrap_err().to_string(), text, "the second error differs");
            assert!(!Cuda::is_available());
        }
    }
    still_works();
}

#[test]
fn nccl_works_or_names_what_is_missing_and_the_process_continues() {
    let _alone = alone();
    let missing = if !Backend::HAS_NCCL {
        Some("this program was built without NCCL".to_owned())
    } else if let Err(error) = cuda::load() {
        Some(error.detail().to_owned())
    } else if Cuda::device_count() == 0 {
        Some("device cuda:0 is not there: libtorch sees 0 CUDA devices".to_owned())
    } else {
        None
    };
    match missing {
        None => one_rank_on_a_gpu(&join_nccl(&common::options()).unwrap()),
        Some(reason) => {
            println!("not verified here: NCCL on a GPU ({reason})");
            let error = join_nccl(&common::options()).unwrap_err();
            assert!(error.detail().contains(&reason), "{error}");
            assert_eq!(error.rank(), Some(rank(0)));
        }
    }
    still_works();
}

fn one_rank_on_a_gpu(group: &ProcessGroup) {
    let gpu = Device::Cuda(0);
    assert_eq!((group.backend(), group.device()), (Backend::Nccl { device: 0 }, gpu));
    let error = group.monitored_barrier(common::DEADLINE, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
    let subgroup = group.new_group(&[rank(0)], &common::options()).unwrap().unwrap();
    let debug = join_nccl(&GroupOptions { debug: Some(DebugLevel::Detail), ..common::options() }).unwrap();
    assert_eq!(subgroup.backend(), group.backend());
    for group in [group, &subgroup, &debug] {
        let mut t = Tensor::full([4], 3.0, (Kind::Float, gpu));
        group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
        group.broadcast(&mut t, rank(0)).unwrap();
        group.barrier().unwrap();
        assert_eq!(Vec::<f32>::try_from(&t.to_device(Device::Cpu)).unwrap(), [3.0; 4]);
    }
    both_kinds_of_memory(gpu);
    let params = [("p".to_owned(), Tensor::ones([4], (Kind::Float, gpu)).set_requires_grad(true))];
    let reducer = Reducer::new(Rc::new(subgroup), &params, &ReducerOptions::default()).unwrap();
    reducer.prepare_for_forward().unwrap();
    reducer.prepare_for_backward(&[]).unwrap();
    reducer.backward(&(&params[0].1 * 2.0).sum(Kind::Float)).unwrap();
    assert_eq!(params[0].1.grad().double_value(&[3]), 2.0);
}

/// One group on NCCL and a backend for host memory: each tensor goes to the backend of its device.
fn both_kinds_of_memory(gpu: Device) {
    for host in ["gloo", "shm", "auto"] {
        let backends = BackendConfig::parse(&format!("cpu:{host},cuda:nccl"), gpu).unwrap();
        let store = Store::hash().unwrap();
        let group = ProcessGroup::new(backends, &store, rank(0), WorldSize::ONE, &common::options()).unwrap();
        assert_eq!((group.backend(), group.device()), (Backend::Nccl { device: 0 }, gpu));
        for device in [Device::Cpu, gpu] {
            let mut t = Tensor::full([4], 3.0, (Kind::Float, device));
            group.all_reduce(&mut t, ReduceOp::Sum).unwrap();
            assert_eq!(Vec::<f32>::try_from(&t.to_device(Device::Cpu)).unwrap(), [3.0; 4]);
            drop(group.all_reduce_async(t, ReduceOp::Sum).unwrap());
        }
        let mut whole = Tensor::ones([1], (Kind::Int64, Device::Cpu));
        group.all_reduce(&mut whole, ReduceOp::BitAnd).unwrap();
        group.barrier().unwrap();
        group.monitored_barrier(common::DEADLINE, false).unwrap();
    }
    let error = join_nccl(&common::options())
        .unwrap()
        .all_reduce(&mut Tensor::ones([1], (Kind::Float, Device::Cpu)), ReduceOp::Sum);
    assert!(error.unwrap_err().detail().contains("no backend type associated with device type cpu"));
}

#[test]
fn nccl_refuses_a_device_that_is_not_a_gpu() {
    let store = Store::hash().unwrap();
    let error = ProcessGroup::nccl(&store, rank(0), WorldSize::ONE, Device::Cpu, &common::options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadArgument);
    assert!(error.detail().contains("NCCL needs a CUDA device, not Cpu: use Gloo"), "{error}");
}

#[cfg(nccl)]
#[test]
fn nccl_refuses_a_gpu_that_does_not_exist() {
    let _alone = alone();
    if let Err(error) = cuda::load() {
        println!("not verified here: {error}");
        return;
    }
    let (store, beyond) = (Store::hash().unwrap(), Cuda::device_count() as usize);
    let join = ProcessGroup::nccl(&store, rank(0), WorldSize::ONE, Device::Cuda(beyond), &common::options());
    let error = join.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadArgument);
    assert!(error.detail().contains(&format!("device cuda:{beyond} is not there: libtorch sees {beyond}")), "{error}");
}

//! Gradients that are compressed before they are averaged: what is sent, and what is kept.

use std::rc::Rc;

use crate::common::values;
use c10d::ProcessGroup;
use lockstep::compress::{CompressedAverage, Compression};
use tch::nn::{Init, VarStore};
use tch::{Device, Kind, Tensor};

const N: i64 = 12;
const M: i64 = 10;

/// Runs `body` on each rank of a group with a matrix and a vector.
fn ranks<T: Send>(n: usize, body: impl Fn(Rc<ProcessGroup>, VarStore) -> T + Send + Sync) -> Vec<T> {
    crate::common::ranks(n, |group| {
        let vs = VarStore::new(Device::Cpu);
        let _ = vs.root().var("matrix", &[N, M], Init::Const(0.0));
        let _ = vs.root().var("vector", &[M], Init::Const(0.0));
        body(group, vs)
    })
}

fn set(vs: &VarStore, name: &str, gradient: &Tensor) {
    let mut parameter = vs.variables()[name].shallow_clone();
    if parameter.grad().defined() {
        c10d::clear_grad(&mut parameter).unwrap();
    }
    (&parameter * gradient).sum(Kind::Float).backward();
}

fn gradient(vs: &VarStore, name: &str) -> Vec<f64> {
    values(&vs.variables()[name].grad())
}

/// A matrix of rank 1 for each rank, with the same columns, so that the mean has rank 1 too.
fn rank_one(rank: usize) -> Tensor {
    let row = (Tensor::arange(M, (Kind::Float, Device::Cpu)) + rank as f64) / 8.0;
    (Tensor::arange(N, (Kind::Float, Device::Cpu)) - 3.0).outer(&row)
}

fn close(found: &[f64], expected: &Tensor, tolerance: f64) {
    let expected = values(expected);
    let far = found.iter().zip(&expected).find(|(found, expected)| (*found - *expected).abs() > tolerance);
    assert!(found.len() == expected.len() && far.is_none(), "{far:?}");
}

#[test]
fn powersgd_sends_thin_matrices_and_keeps_a_mean_of_low_rank() {
    ranks(2, |group, vs| {
        let mut average = CompressedAverage::new(Rc::clone(&group), &vs, Compression::PowerSgd { rank: 2 }, 0).unwrap();
        set(&vs, "matrix", &rank_one(group.rank().get()));
        set(&vs, "vector", &Tensor::full([M], group.rank().get() as f64, (Kind::Float, Device::Cpu)));
        let before = group.traffic().unwrap();
        average.average().unwrap();
        let sent = group.traffic().unwrap() - before;
        assert_eq!((sent.calls, sent.bytes), (2, 4 * (2 * (N + M) + M) as u64));
        close(&gradient(&vs, "matrix"), &((rank_one(0) + rank_one(1)) / 2.0), 1e-4);
        assert_eq!(gradient(&vs, "vector"), vec![0.5; M as usize]);
    });
}

#[test]
fn powersgd_makes_up_for_what_it_has_lost() {
    ranks(2, |group, vs| {
        let mut average = CompressedAverage::new(Rc::clone(&group), &vs, Compression::PowerSgd { rank: 1 }, 0).unwrap();
        // A mean of full rank: one step keeps a tenth of it.
        let full = Tensor::eye(N, (Kind::Float, Device::Cpu)).narrow(1, 0, M) * (1.0 + group.rank().get() as f64);
        let mut sum = Tensor::zeros([N, M], (Kind::Float, Device::Cpu));
        let mut errors = Vec::new();
        for step in 1..=60 {
            set(&vs, "matrix", &full);
            set(&vs, "vector", &Tensor::zeros([M], (Kind::Float, Device::Cpu)));
            average.average().unwrap();
            sum += vs.variables()["matrix"].grad();
            let mean = Tensor::eye(N, (Kind::Float, Device::Cpu)).narrow(1, 0, M) * 1.5;
            errors.push((&sum / f64::from(step) - &mean).norm().double_value(&[]) / mean.norm().double_value(&[]));
        }
        assert!(errors[0] > 0.5 && errors[59] < 0.3, "{errors:?}");
    });
}

#[test]
fn bf16_sends_half_the_bytes_and_keeps_8_bits() {
    ranks(3, |group, vs| {
        let mut average = CompressedAverage::new(Rc::clone(&group), &vs, Compression::Bf16, 0).unwrap();
        let rank = group.rank().get();
        set(&vs, "matrix", &rank_one(rank));
        set(&vs, "vector", &Tensor::full([M], 1e30, (Kind::Float, Device::Cpu)));
        let before = group.traffic().unwrap();
        average.average().unwrap();
        let sent = group.traffic().unwrap() - before;
        assert_eq!((sent.calls, sent.bytes), (1, 2 * (N * M + M) as u64));
        let mean = (rank_one(0) + rank_one(1) + rank_one(2)) / 3.0;
        close(&gradient(&vs, "matrix"), &mean, mean.abs().max().double_value(&[]) / 64.0);
        assert!(gradient(&vs, "vector").iter().all(|value| (value / 1e30 - 1.0).abs() < 1.0 / 64.0));
    });
}

#[test]
fn refuses_a_rank_of_zero_and_a_missing_gradient() {
    ranks(1, |group, vs| {
        let none = CompressedAverage::new(Rc::clone(&group), &vs, Compression::PowerSgd { rank: 0 }, 0);
        assert!(none.unwrap_err().to_string().contains("rank 1 at least"));
        let error = CompressedAverage::new(group, &vs, Compression::Bf16, 0).unwrap().average().unwrap_err();
        assert!(error.to_string().contains("has no gradient"), "{error}");
    });
}

//! The formula of weights and samples that benches share with their twins in Python (`harness/bench/src/python/steps.py`).
#![allow(unreachable_pub)]

use tch::{Device, Kind, Tensor};

/// Numbers in [-1, 1] in steps of 1/1000, times `scale`; the same bits in Python.
pub fn formula(shape: &[i64], salt: i64, scale: f64) -> Tensor {
    let numbers = Tensor::arange(shape.iter().product::<i64>(), (Kind::Int64, Device::Cpu));
    let thousandths = (numbers * 7919 + salt * 104_729).remainder(2001) - 1000;
    (thousandths.to_kind(Kind::Double) / 1000.0 * scale).to_kind(Kind::Float).reshape(shape)
}

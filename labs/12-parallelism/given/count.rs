//! Runs steps of a model in each scheme and counts what a rank holds and sends. You do not change this file.

use std::rc::Rc;

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Traffic};
use lockstep::optim::{Adam, AdamOptions, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::{
    Activations, ColumnParallelLinear, FullyShard, FullyShardOptions, ParallelMlp, Pipeline, RowParallelLinear,
    Schedule,
};
use lockstep::{DdpOptions, DistributedDataParallel};
use tch::nn::{Path, VarStore};
use tch::{Device, Kind, Tensor};

use crate::predict_bytes::{Bytes, Model, Scheme};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const MICRO_BATCHES: i64 = 2;

/// What this rank holds after a step, and sends in the next.
pub(crate) fn count(group: &Rc<ProcessGroup>, scheme: Scheme, model: Model) -> Result<Bytes> {
    let vs = VarStore::new(Device::Cpu);
    let (ranks, rank) = (group.size().get() as u64, group.rank().get() as u64);
    let rows = |count: i64| Tensor::ones([count, model.features as i64], FLOAT).set_requires_grad(true);
    let blocks = |which: std::ops::Range<u64>| -> Vec<_> {
        which.map(|block| Whole::new(&(vs.root() / block), model.features as i64)).collect()
    };
    let through = |blocks: &[Whole], x: &Tensor| blocks.iter().fold(x.shallow_clone(), |x, block| block.forward(&x));
    let all = model.rows as i64;
    let mut sharded = None;
    let pass: Box<dyn Fn() -> Result<()> + '_> = match scheme {
        Scheme::Ddp | Scheme::Zero => {
            let options = DdpOptions { fixed_buckets: true, ..Default::default() };
            let ddp = DistributedDataParallel::new(blocks(0..model.blocks), &vs, Rc::clone(group), &options)?;
            Box::new(move || {
                let loss = ddp.forward_with(|blocks| through(blocks, &rows(all / ranks as i64)).sum(Kind::Float))?;
                Ok(ddp.backward(&loss)?)
            })
        }
        Scheme::Sharded => {
            let blocks = blocks(0..model.blocks);
            let names: Vec<String> = (0..model.blocks).map(|block| block.to_string()).collect();
            let units: Vec<&str> = names.iter().map(String::as_str).collect();
            let units = Rc::new(FullyShard::new(&vs, Rc::clone(group), &units, &FullyShardOptions::default())?);
            sharded = Some(Rc::clone(&units));
            Box::new(move || {
                let mut x = rows(all / ranks as i64);
                for (name, block) in names.iter().zip(&blocks) {
                    x = units.forward(name, &x, |x| block.forward(x))?;
                }
                Ok(units.backward(&x.sum(Kind::Float))?)
            })
        }
        Scheme::Tensor => {
            let block = |block| divided(&(vs.root() / block), model.features as i64, group);
            let blocks = (0..model.blocks).map(block).collect::<Result<Vec<_>>>()?;
            Box::new(move || {
                let mut x = rows(all);
                for block in &blocks {
                    x = &x + block.try_forward(&x)?;
                }
                Ok(c10d::backward(&x.sum(Kind::Float))?)
            })
        }
        Scheme::Pipeline => {
            let each = model.blocks / ranks;
            let stage = blocks(rank * each..(rank + 1) * each);
            let schedule = Schedule::one_f_one_b(ranks as usize, MICRO_BATCHES as usize);
            let size = vec![all / MICRO_BATCHES, model.features as i64];
            let pipeline = Pipeline::new(Rc::clone(group), schedule, Activations { size, kind: Kind::Float })?;
            Box::new(move || {
                let loss = |_: usize, outputs: &Tensor| outputs.sum(Kind::Float);
                pipeline.step(|_| rows(all / MICRO_BATCHES), |x| through(&stage, x), loss)?;
                Ok(())
            })
        }
    };
    let params = sharded.map_or_else(|| named_parameters(&vs), |units| units.named_parameters());
    let held: Vec<Tensor> = params.iter().map(|(_, param)| param.shallow_clone()).collect();
    let options = AdamOptions::default();
    let (states, sent) = match scheme {
        Scheme::Zero => {
            let mut zero = ZeroRedundancyOptimizer::new(params, options, Rc::clone(group))?;
            let sent = second_step(group, &pass, &mut zero)?;
            (zero.local_state(), sent)
        }
        _ => {
            let mut adam = Adam::new(params, options)?;
            let sent = second_step(group, &pass, &mut adam)?;
            (adam.shared_state()?, sent)
        }
    };
    let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
    Ok(Bytes {
        parameters: held.iter().map(bytes).sum(),
        gradients: held.iter().map(Tensor::grad).filter(Tensor::defined).map(|grad| bytes(&grad)).sum(),
        states: states.tensors().iter().map(|(_, tensor)| bytes(tensor)).sum(),
        sent,
    })
}

/// Two steps; the bytes that the second passes to the group.
fn second_step(group: &ProcessGroup, pass: &dyn Fn() -> Result<()>, optimizer: &mut impl Optimizer) -> Result<u64> {
    let mut sent = Traffic::default();
    for _ in 0..2 {
        let traffic = || group.traffic().context("Gloo counts");
        let before = traffic()?;
        optimizer.zero_grad();
        pass()?;
        optimizer.step()?;
        sent = traffic()? - before;
    }
    Ok(sent.bytes)
}

/// A block with both weights.
#[derive(Debug)]
struct Whole(Tensor, Tensor);

impl Whole {
    fn new(vs: &Path<'_>, features: i64) -> Self {
        let weight = |name: &str, size: [i64; 2]| vs.var_copy(name, &(Tensor::ones(size, FLOAT) * 0.01));
        Whole(weight("first", [4 * features, features]), weight("second", [features, 4 * features]))
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x + x.matmul(&self.0.tr()).relu().matmul(&self.1.tr())
    }
}

/// A block with a part of both.
fn divided(vs: &Path<'_>, features: i64, group: &Rc<ProcessGroup>) -> Result<ParallelMlp> {
    let weight = |size: [i64; 2]| Tensor::ones(size, FLOAT) * 0.01;
    let first = ColumnParallelLinear::new(&(vs / "first"), &weight([4 * features, features]), None, group)?;
    let second = RowParallelLinear::new(&(vs / "second"), &weight([features, 4 * features]), None, group)?;
    Ok(ParallelMlp::new(first, second))
}

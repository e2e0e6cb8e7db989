//! DataParallel: one process, one model, and in each step a copy of it for each thread.
//!
//! This is what DDP replaced. The model's owner copies all weights out and gathers all gradients in each step, and it alone updates them; in
//! Python the threads also share one interpreter. Source: `torch/nn/parallel/data_parallel.py`.

use std::thread;

use anyhow::Result;
use lockstep::optim::named_parameters;
use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::model::{Layers, Transformer, Weights};
use crate::network::{Network, Plain};
use crate::text::Batch;

pub(crate) struct Threads {
    pub(crate) replicas: usize,
    pub(crate) blocks: i64,
}

impl Threads {
    /// Adds the gradients of all copies to the model's; returns the mean loss.
    pub(crate) fn step(&self, vs: &VarStore, batch: &Batch) -> Result<f64> {
        let params = named_parameters(vs);
        // The names of the parameters end with what the layer calls them; those of the weights do not.
        let name = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let copy = || params.iter().map(|(from, param)| (from.clone(), param.detach().copy())).collect::<Vec<_>>();
        let parts: Vec<_> = batch.chunk(self.replicas).into_iter().map(|part| (copy(), part)).collect();
        let replica = |(copies, part): (Vec<(String, Tensor)>, Batch)| -> Result<(f64, Vec<Tensor>)> {
            let mut own = VarStore::new(part.inputs.device());
            own.set_kind(copies[0].1.kind());
            let weights: Weights = copies.iter().map(|(from, copy)| (name(from), copy.shallow_clone())).collect();
            let model = Transformer::new(
                &Layers { vs: own.root(), weights: &weights, tensor: None },
                0..self.blocks,
                self.blocks,
                false,
            )?;
            let mine = named_parameters(&own);
            // A layer begins with a bias of zeros; this one continues.
            tch::no_grad(|| mine.iter().zip(&copies).for_each(|((_, to), (_, from))| to.shallow_clone().copy_(from)));
            let loss = model.loss(&model.forward(&part.inputs, &Plain), &part.targets);
            c10d::backward(&loss)?;
            Ok((loss.double_value(&[]), mine.iter().map(|(_, param)| param.grad()).collect()))
        };
        let done: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| replica(part))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let (mut sum, share) = (0.0, 1.0 / self.replicas as f64);
        for replica in done {
            let (loss, grads) = replica?;
            sum += loss * share;
            for ((_, param), grad) in params.iter().zip(grads) {
                // A scalar with exactly this gradient.
                c10d::backward(&(param * (grad * share)).sum(None::<Kind>))?;
            }
        }
        Ok(sum)
    }
}

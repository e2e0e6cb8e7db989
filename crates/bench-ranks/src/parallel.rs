//! Training steps of a model that is divided over the ranks. Every turn starts from the same weights, so losses can be compared.
//!
//! What a rank sends: the bytes that its process writes to sockets, as the kernel counts them. What it keeps: the memory of its
//! tensors between two steps.

use std::fs;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::measure::Spread;
use lockstep::memory::MemoryBytes;
use lockstep::optim::{AdamW, AdamWOptions, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::context::zigzag;
use lockstep::parallel::{
    ColumnParallelLinear, FullyShard, FullyShardOptions, MixtureOfExperts, ParallelMlp, RowParallelLinear,
    ring_attention,
};
use lockstep::results::numbers;
use lockstep::{DdpOptions, DistributedDataParallel, nn};
use lockstep_rank_messages::bench::{ParallelAnswer, ParallelOrder, Scheme};
use tch::nn::{Path, VarStore};
use tch::{Device, Reduction, Tensor};

use crate::formula::formula;

/// Steps before the first timed one.
const WARM_UP: usize = 2;
/// Salts of the formula, larger than the salts of the weights.
const INPUTS: i64 = 1000;
const TARGETS: i64 = 2000;
/// With the formula's weights, attention learns by no larger steps.
const RATE: f64 = 1e-4;
/// On each rank.
const EXPERTS: i64 = 2;
const CAPACITY: f64 = 2.0;

/// Every rank calls this with the same order.
pub(crate) fn run(group: &Rc<ProcessGroup>, order: &ParallelOrder) -> Result<ParallelAnswer> {
    forget_peak()?;
    let mut trainer = Trainer::new(group, order)?;
    let mut losses = (0..WARM_UP).map(|_| Ok(trainer.step()?.1)).collect::<Result<Vec<_>>>()?;
    let before = written()?;
    let mut seconds = Vec::new();
    for _ in 0..order.steps {
        let (time, loss) = trainer.step()?;
        seconds.push(time);
        losses.push(loss);
    }
    let sent = (written()? - before) as f64 / f64::from(order.steps);
    let MemoryBytes { parameters, gradients, optimizer, buckets, .. } = trainer.held()?;
    // A rank's own numbers, then its mean over the ranks.
    let own = [&seconds[..], &losses, &[sent, (parameters + gradients + optimizer + buckets) as f64, peak()? as f64]];
    let mut sums = Tensor::from_slice(&own.concat());
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let means: Vec<f64> = numbers(&sums)?.into_iter().map(|sum| sum / group.size().get() as f64).collect();
    let (seconds, rest) = means.split_at(seconds.len());
    let (losses, rest) = rest.split_at(losses.len());
    Ok(ParallelAnswer {
        step: Spread::of(seconds).map_or(0.0, |spread| spread.median),
        losses: losses.to_vec(),
        sent: rest[0],
        kept: rest[1],
        peak: rest[2],
    })
}

/// A model or this rank's part of a model, with its optimizer and its batch.
struct Trainer {
    how: How,
    optimizer: Updates,
    params: Vec<(String, Tensor)>,
    group: Rc<ProcessGroup>,
    inputs: Tensor,
    targets: Tensor,
}

enum How {
    Copy(DistributedDataParallel<Vec<Whole>>),
    Sharded(Vec<Whole>, FullyShard),
    Divided(Vec<ParallelMlp>),
    Sequence(Vec<Attention>),
    Experts(Vec<MixtureOfExperts>),
}

enum Updates {
    Own(AdamW),
    Shared(ZeroRedundancyOptimizer<AdamWOptions>),
}

impl Updates {
    fn optimizer(&mut self) -> &mut dyn Optimizer {
        match self {
            Updates::Own(optimizer) => optimizer,
            Updates::Shared(optimizer) => optimizer,
        }
    }
}

impl Trainer {
    fn new(group: &Rc<ProcessGroup>, order: &ParallelOrder) -> Result<Self> {
        let (features, blocks) = (i64::from(order.features), i64::from(order.blocks));
        let vs = VarStore::new(Device::Cpu);
        let whole = || (0..blocks).map(|block| Whole::new(&(vs.root() / block), block, features)).collect::<Vec<_>>();
        let how = match order.scheme {
            Scheme::Zero => {
                How::Copy(DistributedDataParallel::new(whole(), &vs, Rc::clone(group), &DdpOptions::default())?)
            }
            Scheme::Sharded => {
                let (model, names) = (whole(), (0..blocks).map(|block| block.to_string()).collect::<Vec<_>>());
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                How::Sharded(model, FullyShard::new(&vs, Rc::clone(group), &names, &FullyShardOptions::default())?)
            }
            Scheme::Tensor => {
                let block = |block| divided(&(vs.root() / block), block, features, group);
                How::Divided((0..blocks).map(block).collect::<Result<_>>()?)
            }
            Scheme::Context => {
                How::Sequence((0..blocks).map(|block| Attention::new(&(vs.root() / block), block, features)).collect())
            }
            Scheme::Expert => {
                let block = |block| experts(&(vs.root() / block), block, features, group);
                How::Experts((0..blocks).map(block).collect::<Result<_>>()?)
            }
        };
        let params = match &how {
            How::Sharded(_, units) => units.named_parameters(),
            _ => named_parameters(&vs),
        };
        let own = params.iter().map(|(name, param)| (name.clone(), param.shallow_clone())).collect();
        let options = AdamWOptions { lr: RATE, ..AdamWOptions::default() };
        let optimizer = match order.scheme {
            Scheme::Zero => Updates::Shared(ZeroRedundancyOptimizer::new(own, options, Rc::clone(group))?),
            _ => Updates::Own(AdamW::new(own, options)?),
        };
        // Ranks that hold parts of one layer get the same rows, those with parts of one sequence rows of the same.
        let share =
            if matches!(order.scheme, Scheme::Tensor | Scheme::Context) { 0 } else { group.rank().get() as i64 };
        let rows = |salt: i64| {
            let whole = |rows: i64| formula(&[rows, features], salt + share, 1.0);
            match order.scheme {
                Scheme::Context => zigzag(group, &whole(i64::from(order.rows) * group.size().get() as i64), 0),
                _ => Ok(whole(order.rows.into())),
            }
        };
        let (inputs, targets) = (rows(INPUTS)?, rows(TARGETS)?);
        Ok(Trainer { how, optimizer, params, group: Rc::clone(group), inputs, targets })
    }

    /// Runs a step that all ranks start together. Returns its seconds and the rank's loss.
    fn step(&mut self) -> Result<(f64, f64)> {
        let Trainer { how, optimizer, params, group, inputs, targets } = self;
        group.barrier()?;
        let begun = Instant::now();
        optimizer.optimizer().zero_grad();
        let loss = |outputs: &Tensor| outputs.mse_loss(targets, Reduction::Mean);
        let loss = match how {
            How::Copy(ddp) => {
                let through =
                    |model: &Vec<Whole>| model.iter().fold(inputs.shallow_clone(), |x, block| block.forward(&x));
                let loss = ddp.forward_with(|model| loss(&through(model)))?;
                ddp.backward(&loss)?;
                loss
            }
            How::Sharded(model, units) => {
                let mut x = inputs.shallow_clone();
                for (number, block) in model.iter().enumerate() {
                    x = units.forward(&number.to_string(), &x, |x| block.forward(x))?;
                }
                let loss = loss(&x);
                units.backward(&loss)?;
                loss
            }
            How::Divided(model) => {
                let mut x = inputs.shallow_clone();
                for block in model {
                    x = &x + block.try_forward(&x)?;
                }
                let loss = nn::caught(|| loss(&x))?;
                c10d::backward_over(group, &loss)?;
                loss
            }
            How::Sequence(model) => {
                let mut x = inputs.shallow_clone();
                for block in model {
                    x = block.forward(&x, group)?;
                }
                averaged(group, params, loss(&x))?
            }
            How::Experts(model) => {
                let mut x = inputs.shallow_clone();
                for block in model {
                    x = &x + block.try_forward(&x)?.output;
                }
                averaged(group, params, loss(&x))?
            }
        };
        optimizer.optimizer().step()?;
        Ok((begun.elapsed().as_secs_f64(), loss.double_value(&[])))
    }

    /// What the rank keeps between two steps.
    fn held(&self) -> Result<MemoryBytes> {
        let parameters: Vec<Tensor> = self.params.iter().map(|(_, param)| param.shallow_clone()).collect();
        Ok(match (&self.how, &self.optimizer) {
            (How::Copy(ddp), Updates::Shared(zero)) => MemoryBytes::of_ddp(&parameters, zero, ddp.reducer()?)?,
            (How::Copy(ddp), Updates::Own(own)) => MemoryBytes::of_ddp(&parameters, own, ddp.reducer()?)?,
            // Units are freed between steps.
            (How::Sharded(_, units), Updates::Own(own)) => {
                MemoryBytes { buckets: 0, ..MemoryBytes::of_sharded(units, own) }
            }
            (_, Updates::Own(own)) => MemoryBytes::of(&parameters, own),
            (_, Updates::Shared(zero)) => MemoryBytes::of(&parameters, zero),
        })
    }
}

/// x + gelu(x W₁ᵀ) W₂ᵀ, with both weights.
struct Whole(Tensor, Tensor);

impl Whole {
    fn new(vs: &Path<'_>, block: i64, features: i64) -> Self {
        let [first, second] = weights(block, features);
        Whole((vs / "first").var_copy("weight", &first), (vs / "second").var_copy("weight", &second))
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x + x.linear(&self.0, None::<Tensor>).gelu("none").linear(&self.1, None::<Tensor>)
    }
}

/// The same layer, with a part of each weight.
fn divided(vs: &Path<'_>, block: i64, features: i64, group: &Rc<ProcessGroup>) -> Result<ParallelMlp> {
    let [first, second] = weights(block, features);
    let first = ColumnParallelLinear::new(&(vs / "first"), &first, None, group)?;
    Ok(ParallelMlp::new(first, RowParallelLinear::new(&(vs / "second"), &second, None, group)?))
}

/// x + attention of normalized x to all earlier positions, with one head.
struct Attention {
    qkv: Tensor,
    out: Tensor,
}

impl Attention {
    fn new(vs: &Path<'_>, block: i64, features: i64) -> Self {
        let weight = |size: &[i64], salt: i64| formula(size, salt, scale(features));
        Attention {
            qkv: vs.var_copy("qkv", &weight(&[3 * features, features], 2 * block + 1)),
            out: vs.var_copy("out", &weight(&[features, features], 2 * block + 2)),
        }
    }

    /// `x` `[rows, features]`, of this rank's positions.
    fn forward(&self, x: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let normalized = x.layer_norm([x.size()[1]], None::<Tensor>, None::<Tensor>, 1e-5, false);
        let parts = normalized.linear(&self.qkv, None::<Tensor>).chunk(3, 1);
        let [queries, keys, values] = [0, 1, 2].map(|part| parts[part].unsqueeze(0).unsqueeze(0));
        let attended = ring_attention(group, &queries, &keys, &values)?.view_as(x);
        Ok(x + attended.linear(&self.out, None::<Tensor>))
    }
}

/// Experts in place of the two layers, and a router that sends a row by its features.
fn experts(vs: &Path<'_>, block: i64, features: i64, group: &Rc<ProcessGroup>) -> Result<MixtureOfExperts> {
    let all = EXPERTS * group.size().get() as i64;
    let router = formula(&[all, features], 3 * block + 3, scale(features));
    let first = formula(&[all, 4 * features, features], 3 * block + 1, scale(features));
    let second = formula(&[all, features, 4 * features], 3 * block + 2, scale(4 * features));
    Ok(MixtureOfExperts::new(vs, [&router, &first, &second], CAPACITY, group)?)
}

/// Runs backward from a rank's loss; parameters get the gradients of the ranks' mean loss.
fn averaged(group: &ProcessGroup, params: &[(String, Tensor)], loss: Tensor) -> Result<Tensor> {
    c10d::backward_over(group, &loss)?;
    MixtureOfExperts::average_gradients(group, params)?;
    Ok(loss)
}

/// Of random weights for so many inputs.
fn scale(inputs: i64) -> f64 {
    (inputs as f64).sqrt().recip()
}

fn weights(block: i64, features: i64) -> [Tensor; 2] {
    [
        formula(&[4 * features, features], 2 * block + 1, scale(features)),
        formula(&[features, 4 * features], 2 * block + 2, scale(4 * features)),
    ]
}

/// Bytes that this process has passed to write(2) and similar calls, which Gloo uses to send.
fn written() -> Result<u64> {
    field("/proc/self/io", "wchar:", 1)
}

/// The peak resident memory of this process since [`forget_peak`], in bytes.
fn peak() -> Result<u64> {
    field("/proc/self/status", "VmHWM:", 1024)
}

/// Resets the peak to the current value; see proc(5).
fn forget_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot set back the peak of the memory in use")
}

fn field(path: &str, name: &str, unit: u64) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("{path} has no {name}"))?;
    let number = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    Ok(number.with_context(|| format!("{name} of {path} is {line:?}"))? * unit)
}

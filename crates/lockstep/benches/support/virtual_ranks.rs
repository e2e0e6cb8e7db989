//! Small trainings with virtual ranks, on samples and weights by formula, that end with the same bits on any number of ranks. The tests train
//! them on threads, and `lockstep bench elastic` on processes.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use c10d::{ProcessGroup, Rank};
use lockstep::accumulate::accumulate_virtual;
use lockstep::amp::{GradScaler, GradScalerState, Precision};
use lockstep::data::{Batch, Dataset};
use lockstep::loader::{DataLoader, Position};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::{EvalOptions, Evaluation, evaluate_with};
use lockstep::models::gpt::{Gpt, GptConfig, Positions};
use lockstep::models::{Depth, ResNet, ResNetOptions};
use lockstep::optim::{
    AdamW, AdamWOptions, GradParts, Optimizer, Sgd, SgdOptions, ZeroRedundancyOptimizer, clip_grad_norm,
    named_parameters,
};
use lockstep::rng::{KeyedRng, seed_step, step_seed};
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Save, SnapshotOptions, Snapshots};
use lockstep::virtual_ranks::VirtualLoader;
use lockstep::{DdpOptions, DistributedDataParallel, Reporter};
use lockstep_rank_messages::bench::{ElasticModel, ElasticTraining, Float, Updates};
use tch::nn::{self, ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

use super::formula::formula;

const SEED: u64 = 5;
const BATCH: usize = 4;
pub const CLASSES: i64 = 4;
const SAMPLES: usize = 50;
/// The part of the numbers that is dropped.
const DROPOUT: f64 = 0.2;

/// Samples by formula. A picture is mirrored in half of the epochs.
struct Samples(ElasticModel);

impl Samples {
    fn shape(&self) -> &'static [i64] {
        match self.0 {
            ElasticModel::Mlp => &[20],
            ElasticModel::Resnet => &[3, 16, 16],
            ElasticModel::Gpt => &[6],
        }
    }
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        SAMPLES
    }

    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let samples: Vec<Tensor> = indices
            .iter()
            .map(|&i| {
                let sample = formula(self.shape(), i as i64 + 3, 1.0);
                match self.0 {
                    ElasticModel::Mlp => sample,
                    ElasticModel::Resnet if KeyedRng::new(&[SEED, epoch, i as u64]).below(2) == 1 => sample.flip([2]),
                    ElasticModel::Resnet => sample,
                    ElasticModel::Gpt => (sample.abs() * 11.0).to_kind(Kind::Int64).clamp(0, 10),
                }
            })
            .collect();
        let target = |i: &usize| (i * i + i / 3) as i64 % CLASSES;
        let targets = match self.0 {
            ElasticModel::Gpt => {
                Tensor::from_slice(&indices.iter().flat_map(|i| [target(i); 6]).collect::<Vec<_>>()).view([-1, 6])
            }
            _ => Tensor::from_slice(&indices.iter().map(target).collect::<Vec<_>>()),
        };
        Ok(Batch { inputs: Tensor::stack(&samples, 0), targets })
    }
}

/// The network of a training.
#[derive(Debug)]
pub struct Net(Box<dyn ModuleT>);

impl ModuleT for Net {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        self.0.forward_t(inputs, train)
    }
}

/// The network, which drops this part of its numbers: an MLP of two layers; a ResNet-18 of few channels, with batch norm, which drops none;
/// or a GPT.
pub fn network(model: ElasticModel, vs: &VarStore, dropout: f64) -> c10d::Result<Net> {
    let root = vs.root();
    let net: Box<dyn ModuleT> = match model {
        ElasticModel::Mlp => {
            let [first, second] = [("0", 20, 16), ("2", 16, CLASSES)]
                .map(|(name, from, to)| nn::linear(&root / name, from, to, Default::default()));
            let hidden = move |x: &Tensor, train| x.relu().dropout(dropout, train);
            Box::new(nn::seq_t().add(first).add_fn_t(hidden).add(second))
        }
        ElasticModel::Resnet => {
            Box::new(ResNet::new(&root, Depth::Eighteen, &ResNetOptions { width: 4, ..ResNetOptions::new(CLASSES) }))
        }
        ElasticModel::Gpt => {
            let (layers, heads, width, positions) = (2, 2, 8, Positions::Learned);
            Box::new(Gpt::new(
                &root,
                GptConfig { vocabulary: 11, context: 6, layers, heads, width, positions, dropout },
            )?)
        }
    };
    // Not drawn: the generator of random weights belongs to all threads.
    for (salt, (_, param)) in named_parameters(vs).into_iter().enumerate() {
        no_grad(|| param.shallow_clone().copy_(&formula(&param.size(), salt as i64 + 1, 0.25)));
    }
    Ok(Net(net))
}

/// Where the random numbers of dropout come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// From libtorch's generator, which belongs to a process.
    Generator,
    /// From a generator of this training's own, for ranks that are threads: logits are dropped instead.
    Own,
}

/// The logits, some of which are dropped as the seed of the virtual rank's step says.
fn dropped(logits: &Tensor, epoch: u64, step: usize, v: Rank) -> Tensor {
    let mut draw = KeyedRng::new(&[step_seed(SEED, epoch, step, v) as u64]);
    let kept = (1.0 / (1.0 - DROPOUT)) as f32;
    let mask: Vec<f32> = (0..logits.numel()).map(|_| if draw.below(5) == 0 { 0.0 } else { kept }).collect();
    logits * Tensor::from_slice(&mask).view(&*logits.size())
}

/// What is the same for any number of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// The mean loss of each step since the snapshot, as bits.
    pub losses: Vec<u64>,
    /// After the last step.
    pub evaluation: Vec<u64>,
    /// All parameters and buffers, sorted by name.
    pub weights: Vec<Vec<u32>>,
}

/// Trains from the newest snapshot in `folder` up to the step `until`, counted over all epochs, and saves another one.
pub fn train(
    group: Rc<ProcessGroup>,
    report: &Reporter,
    training: &ElasticTraining,
    draws: Draws,
    folder: &Path,
    until: usize,
) -> anyhow::Result<Outcome> {
    let ElasticTraining { model: kind, updates, micro_batches, clip, float, .. } = *training;
    let precision = match float {
        Float::Float32 => Precision::Float32,
        Float::Float16 => Precision::Float16,
        Float::Bfloat16 => Precision::Bfloat16,
    };
    let (vs, set): (_, Arc<dyn Dataset>) = (VarStore::new(Device::Cpu), Arc::new(Samples(kind)));
    let net = network(kind, &vs, if draws == Draws::Generator { DROPOUT } else { 0.0 })?;
    let virtual_ranks = training.virtual_ranks.and_then(NonZeroUsize::new);
    let options = DdpOptions { virtual_ranks, fixed_buckets: true, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &options)?;
    let (ranks, params) = (model.virtual_ranks(), named_parameters(&vs));
    let mut optimizer = optimizer(updates, named_parameters(&vs), &group)?;
    let mut scaler: GradScaler = precision.scaler();
    // Without a last batch of one picture, which has no variance.
    let whole = kind == ElasticModel::Resnet;
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(set.len(), v, ranks.count())?.seed(SEED);
        anyhow::Ok(DataLoader::new(Arc::clone(&set), sampler, BATCH)?.drop_last(whole))
    })?;
    let run = Run { seed: SEED, samples: set.len(), data: 0, batch_size: BATCH };
    let options = SnapshotOptions { virtual_ranks, background: false, ..Default::default() };
    let mut snapshots = Snapshots::new(folder, run, options, report);
    let (mut here, saved) = snapshots.resume_with::<GradScalerState>(&vs, &mut *optimizer, &group)?;
    saved.map_or(Ok(()), |state| scaler.load_state_dict(state))?;

    let (mut losses, criterion) = (Vec::new(), CrossEntropy::default());
    let done = |here: Position| here.epoch as usize * loader.steps() + here.step;
    while done(here) < until {
        let (from, epoch) = (here, here.epoch);
        for (step, batches) in (from.step..).zip(loader.epoch_at(from)) {
            if done(here) == until {
                break;
            }
            optimizer.zero_grad();
            let pass = |v: Rank, batch: &Batch| -> c10d::Result<Tensor> {
                let logits = precision.autocast(Device::Cpu, || {
                    let logits = model.forward(&batch.inputs)?;
                    let drops = draws == Draws::Own && kind != ElasticModel::Resnet;
                    c10d::Result::Ok(if drops { dropped(&logits, epoch, step, v) } else { logits })
                });
                Ok(logits??.to_kind(Kind::Float))
            };
            let seed = |v: Rank| {
                if draws == Draws::Generator {
                    seed_step(SEED, epoch, step, v)
                }
            };
            let batches = batches?;
            let loss = if micro_batches > 1 {
                let parts = |tensor: &Tensor| tensor.chunk(i64::from(micro_batches), 0);
                let split = |batch: Batch| parts(&batch.inputs).into_iter().zip(parts(&batch.targets));
                let micro = batches.into_iter().map(|(v, batch)| {
                    (v, split(batch).map(|(inputs, targets)| Batch { inputs, targets }).collect::<Vec<_>>())
                });
                let micro: Vec<_> = micro.collect();
                accumulate_virtual(
                    &model,
                    &micro,
                    |batch| criterion.count(&batch.targets),
                    |v, number, batch| {
                        if number == 0 {
                            seed(v);
                        }
                        criterion.sum(&pass(v, batch)?, &batch.targets)
                    },
                )?
            } else {
                let mut own = Vec::new();
                for (v, batch) in batches {
                    seed(v);
                    let loss = criterion.try_loss(&pass(v, &batch)?, &batch.targets)?;
                    model.backward(&scaler.scale(&loss)?)?;
                    own.push(loss.double_value(&[]));
                }
                ranks.mean(&group, &own)?
            };
            losses.push(loss.to_bits());
            if let Some(norm) = clip {
                scaler.unscale(&*optimizer)?;
                clip_grad_norm(&[GradParts::whole(&params)], norm)?;
            }
            scaler.step(&mut *optimizer)?;
            scaler.update()?;
            here = loader.after(from, step);
        }
    }
    model.sync_buffers()?;
    snapshots.save_if(true, Save::new(here, &vs, &*optimizer).with(&scaler.state_dict()), &group)?;
    snapshots.finish()?;
    let options = EvalOptions { batch_size: 3, ..Default::default() };
    let scored: Evaluation = evaluate_with(&model, set, Device::Cpu, &options)?;
    let evaluation = [scored.loss(), scored.accuracy()].map(f64::to_bits).into();
    Ok(Outcome { losses, evaluation, weights: weights(&vs)? })
}

fn optimizer(
    updates: Updates,
    params: Vec<(String, Tensor)>,
    group: &Rc<ProcessGroup>,
) -> anyhow::Result<Box<dyn Optimizer>> {
    let sgd = SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-3, ..Default::default() };
    let adam = AdamWOptions { lr: 0.01, ..Default::default() };
    Ok(match updates {
        Updates::Sgd => Box::new(Sgd::new(params, sgd)?),
        Updates::AdamW => Box::new(AdamW::new(params, adam)?),
        Updates::Zero => Box::new(ZeroRedundancyOptimizer::new(params, adam, Rc::clone(group))?),
    })
}

/// All parameters and buffers as bits, sorted by name.
fn weights(vs: &VarStore) -> Result<Vec<Vec<u32>>, tch::TchError> {
    let mut variables: Vec<_> = vs.variables().into_iter().collect();
    variables.sort_by(|(a, _), (b, _)| a.cmp(b));
    let bits = |tensor: &Tensor| {
        let values: Vec<f32> = Vec::try_from(tensor.to_kind(Kind::Float).flatten(0, -1))?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    variables.iter().map(|(_, tensor)| bits(tensor)).collect()
}

//! Lab 11: scaling. DDP whose step can be varied from the command line, with a table of where its time and its bytes go.
//!
//! Runs under `lockstep run` or torchrun, or alone. The training is that of lab 03; what is new is how a step exchanges gradients (in
//! buckets of another size, after several passes, compressed), at which rate it learns with a large batch, and what it costs.

mod args;
mod costs;

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use args::Args;
use c10d::GroupOptions;
use clap::Parser;
use costs::{Costs, Part};
use lockstep::compress::CompressedAverage;
use lockstep::data::{Batch, Dataset, mnist_or_drawn};
use lockstep::loader::DataLoader;
use lockstep::metrics::Evaluation;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::DistributedSampler;
use lockstep::{DistributedDataParallel, LaunchEnv, Reporter, checkpoint, exit, init_process_group};
use tch::nn::{self, ModuleT, VarStore};
use tch::{Device, Tensor};

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        train(&LaunchEnv::from_env_or_alone()?, &args)
    })
}

// ANCHOR: train
fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    tch::set_num_threads(args.threads);
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    // To compare calls is one more message for each, which would be measured, too.
    let options = GroupOptions { compare_calls: Some(false), ..Default::default() };
    let group = Rc::new(init_process_group(env, device, &options)?);
    let report = Reporter::new(env, device)?;
    if let Some(sizes) = &args.links {
        report.say_once(costs::links(&group, sizes)?);
    }
    let (train_set, _) = mnist_or_drawn(args.data.as_deref(), args.seed, args.samples.get(), 1)?;

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = net(&vs.root(), args.width);
    vs.set_device(device);
    let model = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &args.ddp())?;
    let compression = args.compression().map(|how| CompressedAverage::new(Rc::clone(&group), &vs, how, args.seed));
    let mut compression = compression.transpose()?;

    let sampler = DistributedSampler::new(train_set.len(), env.rank, env.world_size)?.seed(args.seed);
    let loader = DataLoader::new(Arc::new(train_set), sampler, args.batch_size.get())?.workers(1);
    let schedule = args.schedule(env.world_size.get())?;
    let options = SgdOptions { lr: args.lr, momentum: args.momentum, ..Default::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options)?;

    // ANCHOR: loop
    let mut costs = Costs::new(&group);
    let mut trained = Evaluation::default();
    for epoch in 0..args.epochs {
        report.epoch(epoch, &loader);
        trained = Evaluation::default();
        let mut batches = loader.epoch(epoch);
        for step in 0..loader.steps() {
            costs.begin_step();
            let Some(batch) = costs.time(Part::Data, || batches.next()) else { break };
            costs.time(Part::Data, || args.slow.load(&group));
            let batch = batch?.to(device);
            schedule.apply(costs.steps(), &mut optimizer);
            optimizer.zero_grad();
            costs.time(Part::Forward, || args.slow.compute(&group));
            let loss = gradients(&model, &batch, args, compression.as_mut(), &mut costs, &mut trained)?;
            costs.time(Part::Exchange, || args.slow.log(&group, loss))?;
            costs.time(Part::Optimizer, || optimizer.step())?;
            costs.end_step(batch.len());
            report.step(epoch, step, loss, batch.len());
        }
        trained = trained.all_reduce(&group)?;
    }
    // ANCHOR_END: loop
    let alone = without_exchange(&model, &loader, args, &mut optimizer)?;
    report.say_once(costs.table(&alone));
    let (loss, accuracy) = (trained.loss(), 100.0 * trained.accuracy());
    report.say_once(format!("final loss {loss:.4}, accuracy {accuracy:.1} %, over all samples of the last epoch"));
    report.say(costs.counters(&alone, model.reducer()?.bucket_numels()?.len()));
    if let Some(folder) = &args.weights {
        checkpoint::save_of_rank(&vs, folder, env.rank)?;
    }
    Ok(())
}
// ANCHOR_END: train

fn net(vs: &nn::Path<'_>, width: i64) -> impl ModuleT + use<> {
    let layer = |name: &str, from, to| nn::linear(vs / name, from, to, Default::default());
    let hidden = [layer("fc1", 28 * 28, width), layer("fc2", width, width)];
    let last = layer("fc3", width, 10);
    let relu = |inputs: Tensor, layer: &nn::Linear| inputs.apply(layer).relu();
    nn::func(move |digits| hidden.iter().fold(digits.flat_view(), relu).apply(&last))
}

// ANCHOR: gradients
/// Leaves the gradient of the mean loss over the batches of all ranks: several passes, and one exchange. Returns the rank's loss.
fn gradients<M: ModuleT>(
    model: &DistributedDataParallel<M>,
    batch: &Batch,
    args: &Args,
    compression: Option<&mut CompressedAverage>,
    costs: &mut Costs<'_>,
    trained: &mut Evaluation,
) -> Result<f64> {
    let parts = [&batch.inputs, &batch.targets].map(|tensor| tensor.chunk(args.accumulate, 0));
    let (passes, mut whole) = (parts[0].len(), 0.0);
    for (number, (inputs, targets)) in parts[0].iter().zip(&parts[1]).enumerate() {
        let share = targets.size()[0] as f64 / batch.len() as f64;
        let mut pass = || -> Result<f64> {
            let logits = costs.time(Part::Forward, || model.forward(inputs))?;
            let loss = logits.cross_entropy_for_logits(targets) * share;
            costs.time(Part::Backward, || model.backward(&loss))?;
            let loss = loss.double_value(&[]);
            trained.add(&logits, targets, loss / share);
            Ok(loss)
        };
        // DDP exchanges gradients in the last pass, unless a compressed exchange follows.
        let is_local = number + 1 < passes || compression.is_some();
        whole += if is_local { model.no_sync(pass)? } else { pass()? };
    }
    if let Some(compression) = compression {
        costs.time(Part::Exchange, || compression.average())?;
    }
    Ok(whole)
}
// ANCHOR_END: gradients

/// The costs of some steps of one batch whose gradients stay on the rank.
fn without_exchange<'a, M: ModuleT>(
    model: &'a DistributedDataParallel<M>,
    loader: &DataLoader,
    args: &Args,
    optimizer: &mut impl Optimizer,
) -> Result<Costs<'a>> {
    const STEPS: usize = 10;
    let mut costs = Costs::new(model.group());
    let Some(batch) = loader.epoch(0).next().transpose()? else { return Ok(costs) };
    let batch = batch.to(model.group().device());
    for _ in 0..STEPS {
        costs.begin_step();
        optimizer.zero_grad();
        model.no_sync(|| gradients(model, &batch, args, None, &mut costs, &mut Evaluation::default()))?;
        costs.end_step(batch.len());
    }
    Ok(costs)
}

//! Lab 07: a real network. ResNet-18 learns CIFAR-10 on several ranks.
//!
//! Runs under `lockstep run` or torchrun, or alone. New since lab 06: colour pictures that are cropped and mirrored at random,
//! batch normalization, weight decay, an evaluation before each epoch, and a learning rate that can scale with the number of ranks.

mod args;

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use args::Args;
use clap::Parser;
use lockstep::amp::GradScalerState;
use lockstep::checkpoint::{self, ModelFile};
use lockstep::data::Dataset;
use lockstep::loader::{DataLoader, Position};
use lockstep::metrics::{EvalOptions, Evaluation, evaluate_with};
use lockstep::models::{Depth, Norm, ResNet, ResNetOptions, channels_last};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Save, SnapshotOptions, Snapshots};
use lockstep::virtual_ranks::VirtualLoader;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, exit, init_process_group};
use lockstep_vision::{Normalize, Pictures, Pipeline, RandomCrop, RandomHorizontalFlip, Transformed, cifar_or_drawn};
use tch::Device;
use tch::nn::VarStore;

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        train(&LaunchEnv::from_env_or_alone()?, &args)
    })
}

// ANCHOR: train
fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    let (about_local_rank, model_file) = (args.about_local_rank(env)?, args.model_file()?);
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    let report = Reporter::new(env, device)?;
    about_local_rank.iter().for_each(|note| report.say_once(note));

    // ANCHOR: data
    let drawn = args.samples.get();
    let (train, test) = cifar_or_drawn(args.data.as_deref(), args.random_seed, drawn, drawn.div_ceil(4))?;
    let augment = Pipeline::new().then(RandomCrop { size: 32, padding: 4 }).then(RandomHorizontalFlip { p: 0.5 });
    let train_set = Transformed::new(train, Normalize::CIFAR10).pipeline(augment).seed(args.random_seed);
    let test_set: Arc<dyn Dataset> = Arc::new(Transformed::new(test, Normalize::CIFAR10));
    // ANCHOR_END: data
    let (samples, data, classes) = (train_set.len(), train_set.fingerprint()?, train_set.pictures().classes().len());
    report.say_once(format!("{samples} pictures to train on, {} to test", test_set.len()));

    // ANCHOR: model
    tch::manual_seed(args.random_seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let norm = if args.sync_batch_norm { Norm::Sync(Rc::clone(&group)) } else { Norm::Batch };
    let options = ResNetOptions { width: args.width, norm, ..ResNetOptions::new(classes as i64) };
    let net = ResNet::new(&vs.root(), Depth::Eighteen, &options);
    vs.set_device(device);
    if args.channels_last {
        channels_last(&vs)?;
    }
    let virtual_ranks = args.virtual_ranks;
    let fixed = DdpOptions { fixed_buckets: true, virtual_ranks, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, group, &fixed)?;
    // ANCHOR_END: model

    let (ranks, train_set, batch_size) = (model.virtual_ranks(), Arc::new(train_set), args.batch_size.get());
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(samples, v, ranks.count())?.seed(args.random_seed);
        let loader = DataLoader::new(train_set.clone(), sampler, batch_size)?.workers(args.workers);
        anyhow::Ok(loader.channels_last(args.channels_last).pin_memory(device))
    })?;
    let evaluation = EvalOptions { workers: args.workers, ..Default::default() };

    // ANCHOR: optimizer
    let schedule = args.schedule(ranks.count().get(), loader.steps())?;
    let lr = schedule.lr(u64::MAX); // that after the warm-up
    let options = SgdOptions { lr, momentum: 0.9, weight_decay: 1e-5, ..Default::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options)?;
    let mut scaler = args.precision.scaler();
    // ANCHOR_END: optimizer

    // ANCHOR: resume
    let run = Run { seed: args.random_seed, samples, data, batch_size };
    let sets_rates = args.lr_for_batch.is_some();
    let options = SnapshotOptions { resume: args.resume, sets_rates, virtual_ranks, ..args.save.options() };
    let mut snapshots = Snapshots::new(&args.model_dir, run, options, &report);
    let (start, saved) = snapshots.resume_with::<GradScalerState>(&vs, &mut optimizer, model.group())?;
    saved.map_or(Ok(()), |state| scaler.load_state_dict(state))?;
    // ANCHOR_END: resume
    if args.resume && start == Position::default() {
        report.say_once(format!("No snapshot in {}: training starts from the beginning", args.model_dir.display()));
    }
    let share = loader.first().sampler();
    args.check_last_batch([share.len(), share.len_from(start.samples)], env.world_size.get())?;
    let file = ModelFile::new(model_file, args.save.on_save_error, &report);
    if start.epoch > 0 && start.is_start() {
        file.save(&vs, model.group())?; // the file may be missing
    }

    // ANCHOR: loop
    for epoch in start.epoch..args.num_epochs {
        let from = start.within(epoch);
        if from.is_start() {
            report.eval(epoch, &evaluate_with(&model, Arc::clone(&test_set), device, &evaluation)?);
        }
        report.epoch_at(from, &loader);
        let (begun, mut trained) = (Instant::now(), vec![Evaluation::default(); ranks.own().len()]);
        for (step, batches) in (from.step..).zip(loader.epoch_at(from)) {
            if args.lr_for_batch.is_some() {
                schedule.apply(epoch * loader.steps() as u64 + step as u64, &mut optimizer);
            }
            optimizer.zero_grad();
            let (mut losses, mut taken) = (Vec::new(), 0);
            for ((v, batch), trained) in batches?.into_iter().zip(&mut trained) {
                let batch = batch.to(device);
                seed_step(args.random_seed, epoch, step, v);
                let (logits, loss) = args.precision.autocast(device, || {
                    let logits = model.forward(&batch.inputs)?;
                    let loss = logits.cross_entropy_for_logits(&batch.targets);
                    anyhow::Ok((logits, loss))
                })??;
                model.backward(&scaler.scale(&loss)?)?;
                let loss = loss.double_value(&[]);
                trained.add(&logits, &batch.targets, loss);
                losses.push(loss);
                taken += batch.len();
            }
            scaler.step(&mut optimizer)?;
            scaler.update()?;
            report.virtual_step(ranks, epoch, step, ranks.mean(model.group(), &losses)?, taken);
            let next = loader.after(from, step);
            if !next.is_start() {
                let state = scaler.state_dict();
                let save = Save::new(next, &vs, &optimizer).with(&state);
                snapshots.save_if(args.save.is_due(next), save, model.group())?;
            }
        }
        // This also waits for the slowest rank.
        let trained = Evaluation::over_virtual_ranks(&trained, ranks, model.group())?;
        report.trained_in(epoch, &trained, begun.elapsed());
        file.save(&vs, model.group())?; // before the snapshot, so that a finished run always has its model
        let (next, state) = (Position::start_of(epoch + 1), scaler.state_dict());
        snapshots.save_if(true, Save::new(next, &vs, &optimizer).with(&state), model.group())?;
    }
    report.eval(args.num_epochs.max(start.epoch), &evaluate_with(&model, test_set, device, &evaluation)?);
    snapshots.finish()?;
    // ANCHOR_END: loop
    if let Some(folder) = &args.weights {
        checkpoint::save_of_rank(&vs, folder, env.rank)?;
    }
    Ok(())
}
// ANCHOR_END: train

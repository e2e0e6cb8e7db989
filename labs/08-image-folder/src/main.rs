//! Lab 08: transfer learning. A network classifies photographs of houses after a storm by their damage.
//!
//! Runs under `lockstep run` or torchrun, or alone. New since lab 06: a folder of photographs per class, a pretrained network with a
//! new head, a learning rate that falls when the validation loss stalls, and a separate file for the best model.

mod args;

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use args::Args;
use clap::Parser;
use lockstep::best::{Best, BestModel};
use lockstep::data::Dataset;
use lockstep::loader::{DataLoader, Position};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::{EvalOptions, Evaluation, evaluate_classes, evaluate_with};
use lockstep::models::{Depth, Head, Norm, ResNet, ResNetOptions, channels_last, count_trainable, freeze_all_but};
use lockstep::optim::schedule::{PlateauOptions, PlateauState, ReduceLrOnPlateau};
use lockstep::optim::{Adam, AdamOptions, Optimizer, named_parameters};
use lockstep::pretrained::{self, LoadOptions};
use lockstep::progress::of_epochs;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Save, Snapshots};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, checkpoint, exit, init_process_group};
use lockstep_vision::{AutoAugment, Normalize, Pipeline, Resize, Transformed, houses_or_drawn};
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
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    let report = Reporter::new(env, device)?;

    // ANCHOR: data
    let drawn = args.samples.get();
    let cache = args.cache(&report)?;
    let houses = houses_or_drawn(args.data.as_deref(), cache, args.seed, drawn, drawn.div_ceil(4))?;
    let classes = houses.train.classes().to_vec();
    houses.notes.into_iter().for_each(|note| report.warn_once(note));
    let set = |pictures, pipeline: Pipeline| {
        let pipeline = pipeline.then(Resize::square(args.image_size.get()));
        let (set, report) = (Transformed::new(pictures, Normalize::IMAGENET), report.clone());
        set.pipeline(pipeline).seed(args.seed).on_broken(args.on_broken_image).warn(move |message| report.warn(message))
    };
    let train_set = Arc::new(set(houses.train, Pipeline::new().then(AutoAugment::imagenet())).in_training());
    let validation_set = Arc::new(set(houses.validation, Pipeline::new()));
    let test_set = houses.test.map(|pictures| Arc::new(set(pictures, Pipeline::new())));
    // ANCHOR_END: data

    // ANCHOR: model
    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let norm = if args.sync_batch_norm { Norm::Sync(Rc::clone(&group)) } else { Norm::Batch };
    let options = ResNetOptions { classes: classes.len() as i64, width: args.width, head: Head::TwoLayers, norm };
    let net = ResNet::new(&vs.root(), Depth::ThirtyFour, &options);
    vs.set_device(device);
    if args.channels_last {
        channels_last(&vs)?;
    }
    let parameters = count_trainable(&vs);
    if let Some(file) = args.pretrained.as_ref().filter(|_| env.rank.is_zero()) {
        // The head is new. The other ranks get all weights from this one when DDP is created.
        let options = LoadOptions { skip: vec![format!("{}.", ResNet::HEAD)], ..Default::default() };
        report.println(pretrained::load(&vs, file, &options)?.to_string());
    }
    if args.freeze {
        freeze_all_but(&vs, &[ResNet::HEAD]);
        if args.pretrained.is_none() {
            report.warn_once("--freeze without --pretrained: the frozen layers have learned nothing".into());
        }
    }
    report.say_once(format!("Trainable parameters: {} of {parameters}", count_trainable(&vs)));
    // ANCHOR_END: model

    let options = AdamOptions { lr: args.lr, ..Default::default() };
    let mut optimizer = Adam::new(named_parameters(&vs), options)?;
    let options = PlateauOptions { factor: 0.1, patience: 5, min_lr: vec![1e-8], ..Default::default() };
    let mut schedule = ReduceLrOnPlateau::new(options)?;
    let criterion = CrossEntropy { label_smoothing: 0.1, ..Default::default() };
    let fixed = DdpOptions { fixed_buckets: true, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, group, &fixed)?;
    let (samples, data, batch_size) = (train_set.len(), train_set.fingerprint()?, args.batch_size.get());
    let sampler = DistributedSampler::new(samples, env.rank, env.world_size)?.seed(args.seed);
    let loader = DataLoader::new(train_set, sampler, batch_size)?.workers(args.workers);
    let loader = loader.channels_last(args.channels_last).pin_memory(device);
    let validation = EvalOptions { criterion, batch_size, workers: args.workers };

    // ANCHOR: resume
    let run = Run { seed: args.seed, samples, data, batch_size };
    let mut snapshots = Snapshots::new(&args.snapshots, run, args.save.options(), &report);
    let file = args.best.clone().unwrap_or_else(|| args.snapshots.join("best_model.safetensors"));
    let mut best = BestModel::new(&file, args.save.on_save_error, &report);
    let (start, saved) = snapshots.resume_with::<(PlateauState, Option<Best>)>(&vs, &mut optimizer, model.group())?;
    let (state, best_so_far) = saved.unzip();
    state.map(|state| schedule.load_state(state)).transpose()?;
    best.resume(best_so_far.flatten(), model.group())?;
    // ANCHOR_END: resume

    // ANCHOR: loop
    for epoch in start.epoch..args.epochs {
        let from = start.within(epoch);
        report.epoch_at(from, &loader);
        let mut trained = Evaluation::default();
        for (step, batch) in (from.step..).zip(loader.epoch_at(from)) {
            let batch = batch?.to(device);
            optimizer.zero_grad();
            let logits = model.forward(&batch.inputs)?;
            let loss = criterion.loss(&logits, &batch.targets);
            model.backward(&loss)?;
            optimizer.step()?;
            let loss = loss.double_value(&[]);
            trained.add(&logits, &batch.targets, loss);
            report.step(epoch, step, loss, batch.len());
            let next = loader.after(from, step);
            if !next.is_start() {
                let state = (schedule.state(), best.best());
                let save = Save::new(next, &vs, &optimizer).with(&state);
                snapshots.save_if(args.save.is_due(next), save, model.group())?;
            }
        }
        report.trained(epoch, args.epochs, &trained.all_reduce(model.group())?);
        let validated = evaluate_with(&model, validation_set.clone(), device, &validation)?;
        report.validated(epoch, args.epochs, &validated);
        for reduced in schedule.step(validated.loss(), &mut optimizer)? {
            report.say_once(reduced.to_string());
        }
        best.offer(epoch, &validated, &vs, model.group())?;
        let state = (schedule.state(), best.best());
        let save = Save::new(Position::start_of(epoch + 1), &vs, &optimizer).with(&state);
        snapshots.save_if(true, save, model.group())?;
    }
    snapshots.finish()?;
    // ANCHOR_END: loop
    if let Some(folder) = &args.weights {
        checkpoint::save_of_rank(&vs, folder, env.rank)?;
    }

    // ANCHOR: report
    if let Some(Best { epoch, .. }) = best.finish(&vs, model.group())? {
        for (name, set) in [("val", Some(validation_set)), ("test", test_set)] {
            let Some(set) = set else { continue };
            let (all, confusion) = evaluate_classes(&model, set, device, &validation, &classes)?;
            let (loss, accuracy, of, path) =
                (all.loss(), all.accuracy(), of_epochs(epoch, args.epochs), file.display());
            report.say_once(format!(
                "{of} Best model ({name} loss: {loss:.4}, {name} accuracy: {accuracy:.4}) is in {path}\n{confusion}"
            ));
        }
    }
    // ANCHOR_END: report
    Ok(())
}
// ANCHOR_END: train

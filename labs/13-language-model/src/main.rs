//! Lab 13: a language model. A GPT is trained on the pages of this book, on any number of ranks, and writes a few lines at the end. It runs
//! alone, or under `lockstep run` or torchrun, and resumes after a kill.

mod pages;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use lockstep::accumulate::accumulate_virtual;
use lockstep::data::{Dataset, Texts, Tokenizer, Windows};
use lockstep::device::DeviceChoice;
use lockstep::loader::{DataLoader, Position};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::evaluate;
use lockstep::models::gpt::{Gpt, GptConfig, Positions, Sampling};
use lockstep::optim::schedule::{Cosine, Warmup};
use lockstep::optim::{AdamW, AdamWOptions, GradParts, Optimizer, clip_grad_norm, named_parameters};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Save, SnapshotOptions, Snapshots};
use lockstep::virtual_ranks::VirtualLoader;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, checkpoint, exit, init_process_group};
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Tensor, no_grad};

fn main() -> ExitCode {
    exit::main(|| train(&LaunchEnv::from_env_or_alone()?, &Args::parse()))
}

// ANCHOR: train
fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    let report = Reporter::new(env, device)?;

    let text = Text::read(args)?;
    let (windows, batch_size) = (text.train.len(), args.batch_size.get());
    let run = Run { seed: args.seed, samples: windows, data: text.train.fingerprint()?, batch_size };

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = Gpt::new(&vs.root(), args.config(text.tokenizer.vocabulary()))?;
    vs.set_device(device);
    let params = named_parameters(&vs);
    let mut optimizer = AdamW::new(named_parameters(&vs), AdamWOptions { lr: args.lr, ..Default::default() })?;
    let virtual_ranks = args.virtual_ranks;
    let fixed = DdpOptions { fixed_buckets: true, virtual_ranks, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, group, &fixed)?;
    // ANCHOR: data
    let ranks = model.virtual_ranks(); // one on each rank, unless --virtual-ranks asks for more
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(windows, v, ranks.count())?.seed(args.seed);
        anyhow::Ok(DataLoader::new(Arc::clone(&text.train), sampler, batch_size)?.workers(1))
    })?;
    // ANCHOR_END: data
    // Both count windows, not steps: so they mean the same on any number of ranks.
    let all = args.epochs * windows as u64;
    let schedule = Cosine::new(Warmup::new(args.lr, 0.1, all / 20)?, 0.1 * args.lr, all.max(1))?;
    let options = SnapshotOptions { keep: args.keep, sets_rates: true, virtual_ranks, ..Default::default() };
    let mut snapshots = Snapshots::new(&args.snapshots, run, options, &report);
    let start = snapshots.resume(&vs, &mut optimizer, model.group())?;

    let criterion = CrossEntropy::default();
    for epoch in start.epoch..args.epochs {
        let from = start.within(epoch);
        let (begun, mut here, mut tokens) = (Instant::now(), from, 0);
        report.epoch_at(from, &loader);
        for (step, batches) in (from.step..).zip(loader.epoch_at(from)) {
            schedule.apply(epoch * windows as u64 + here.samples as u64, &mut optimizer);
            // ANCHOR: step
            optimizer.zero_grad();
            let (parts, mut micro, mut taken) = (args.micro_batches.get() as i64, Vec::new(), 0);
            for (v, batch) in batches? {
                let batch = batch.to(device);
                let [inputs, targets] = [&batch.inputs, &batch.targets].map(|tensor| tensor.chunk(parts, 0));
                micro.push((v, inputs.into_iter().zip(targets).collect()));
                taken += batch.len();
            }
            let count = |(_, targets): &(Tensor, Tensor)| criterion.count(targets);
            let loss = accumulate_virtual(&model, &micro, count, |v, number, (inputs, targets)| {
                if number == 0 {
                    seed_step(args.seed, epoch, step, v);
                }
                let logits = model.forward_with(|net| net.forward_t(inputs, true))?;
                criterion.sum(&logits, targets)
            })?;
            clip_grad_norm(&[GradParts::whole(&params)], args.clip)?;
            optimizer.step()?;
            // ANCHOR_END: step
            report.virtual_step(ranks, epoch, step, loss, taken);
            tokens += taken / ranks.own().len() * ranks.count().get() * args.window;
            here = loader.after(from, step);
            if !here.is_start() {
                let due = args.save_every_steps.is_some_and(|every| here.step % every == 0);
                snapshots.save_if(due, Save::new(here, &vs, &optimizer), model.group())?;
            }
        }
        let rate = tokens as f64 / begun.elapsed().as_secs_f64();
        let held_out = evaluate(&model, Arc::clone(&text.held_out), device)?;
        report.eval(epoch, &held_out);
        report.say_once(format!("{rate:.0} tokens a second; perplexity {:.2} on held-out text", held_out.perplexity()));
        snapshots.save_if(true, Save::new(Position::start_of(epoch + 1), &vs, &optimizer), model.group())?;
    }
    snapshots.finish()?;
    if let Some(folder) = &args.weights {
        checkpoint::save_of_rank(&vs, folder, env.rank)?;
    }
    let sampling = Sampling { temperature: args.temperature, seed: args.seed };
    let written = no_grad(|| model.module().generate(&text.prompt, args.write, sampling))?;
    report.say_once(format!("It writes:\n{}", text.tokenizer.decode(&written)));
    Ok(())
}
// ANCHOR_END: train

/// What the model learns from.
struct Text {
    tokenizer: Tokenizer,
    train: Arc<dyn Dataset>,
    held_out: Arc<dyn Dataset>,
    /// The beginning of the held-out text, which the model continues at the end.
    prompt: Vec<u32>,
}

impl Text {
    fn read(args: &Args) -> Result<Self> {
        let Texts { train, validation } = match &args.data {
            Some(path) => Texts::read(path)?,
            None => pages::texts(),
        };
        let tokenizer = match args.vocabulary {
            Some(vocabulary) if !args.characters => Tokenizer::byte_pairs(&train, vocabulary)?,
            // The held-out text may have characters that no other has: the tokenizer must know them.
            _ => Tokenizer::characters(&format!("{train}{validation}")),
        };
        let windows = |text: &str, most: Option<NonZeroUsize>| -> Result<(Vec<u32>, Arc<dyn Dataset>)> {
            let mut tokens = tokenizer.encode(text)?;
            if let Some(most) = most {
                tokens.truncate(most.get().saturating_mul(args.window).saturating_add(1));
            }
            Ok((tokens.clone(), Arc::new(Windows::new(tokens, args.window)?)))
        };
        let (_, train) = windows(&train, args.samples)?;
        let (tokens, held_out) = windows(&validation, args.held_out)?;
        let prompt = tokens[..tokens.len().min(args.window / 4 + 1)].to_vec();
        Ok(Text { tokenizer, train, held_out, prompt })
    }
}

/// Train a GPT on the pages of this book, or on a text of your own, and let it write
#[derive(Parser)]
struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 8)]
    epochs: u64,
    /// A text file, or a folder of .txt files of which those named validation… are held out; without it, pages of this book
    #[arg(long)]
    data: Option<PathBuf>,
    /// Learn this many tokens, 256 or more, as pairs of bytes
    #[arg(long, default_value = "512")]
    vocabulary: Option<usize>,
    /// Each character is a token
    #[arg(long)]
    characters: bool,
    /// Tokens in a window, which are all that the model sees at once
    #[arg(long, default_value_t = 64)]
    window: usize,
    /// Windows to train on, the first ones of the text; all if not given
    #[arg(long)]
    samples: Option<NonZeroUsize>,
    /// Windows that are held out, the first ones of their text; all if not given
    #[arg(long)]
    held_out: Option<NonZeroUsize>,
    /// Windows in a batch of one rank
    #[arg(long, default_value = "8")]
    batch_size: NonZeroUsize,
    /// Parts of a batch, whose gradients are added up before the ranks exchange them
    #[arg(long, default_value = "2")]
    micro_batches: NonZeroUsize,
    /// Train so many virtual ranks, each with its own batch, on any number of ranks up to theirs: with the same bits on all
    #[arg(long)]
    virtual_ranks: Option<NonZeroUsize>,
    /// Blocks of the model
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Attention heads of a block
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Numbers for each token between two blocks
    #[arg(long, default_value_t = 96)]
    width: usize,
    /// The part of the numbers that training drops between the layers
    #[arg(long, default_value_t = 0.0)]
    dropout: f64,
    /// The highest learning rate
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// The largest norm of all gradients together
    #[arg(long, default_value_t = 1.0)]
    clip: f64,
    /// Seed of initial weights, the order of the windows, dropout, and what is written
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder of snapshots; training resumes from the newest good one
    #[arg(long, default_value = "snapshots")]
    snapshots: PathBuf,
    /// How many snapshots to keep
    #[arg(long, default_value = "2")]
    keep: NonZeroUsize,
    /// Also save a snapshot every this many steps of an epoch
    #[arg(long)]
    save_every_steps: Option<NonZeroUsize>,
    /// A folder in which each rank saves its weights at the end
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    weights: Option<PathBuf>,
    /// Tokens to write at the end
    #[arg(long, default_value_t = 120)]
    write: usize,
    /// Divides the logits when the model writes: below 1 the likely tokens become likelier
    #[arg(long, default_value_t = 0.7)]
    temperature: f64,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

impl Args {
    fn config(&self, vocabulary: usize) -> GptConfig {
        let Args { window: context, layers, heads, width, dropout, .. } = *self;
        GptConfig { vocabulary, context, layers, heads, width, positions: Positions::Learned, dropout }
    }
}

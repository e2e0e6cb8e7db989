//! The program that your functions make together: a small GPT on pages of this book, on any number of ranks. What it prints shows what each of
//! them does. You do not change this file.
//!
//! Numbers are in double precision. Half precision is SIMULATED: a scaled gradient that it could not hold counts as an overflow.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use c10d::{GroupOptions, ProcessGroup};
use clap::Parser;
use lockstep::data::{Texts, Tokenizer};
use lockstep::loader::Position;
use lockstep::loss::{CrossEntropy, IGNORE_INDEX};
use lockstep::optim::{AdamW, AdamWOptions, Optimizer, named_parameters};
use lockstep::parallel::MixtureOfExperts;
use lockstep::parallel::context::zigzag;
use lockstep::rng::KeyedRng;
use lockstep::snapshot::{Run as SameRun, SnapshotOptions, Snapshots};
use lockstep::{LaunchEnv, Reporter, all_gather_object, exit, init_process_group};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor, no_grad};

use crate::accumulating::{Batch, Model};
use crate::gpt::{Gpt, LAYERS, WIDTH};
use crate::norm::{Gradient, norm};
use crate::resumable::{Passes, Run, Settings};
use crate::resume::resume;
use crate::speed::{Sizes, StepTimes, speed};
use crate::token_mean::token_mean;
use crate::windows::windows;

#[path = "../src/pages.rs"]
mod pages;

const WINDOW: usize = 32;
/// Windows of all ranks together.
const BATCH: usize = 16;
const MAX_NORM: f64 = 1.0;
const LEARNING_RATE: f64 = 5e-3;
/// The largest number of half precision.
const LARGEST: f64 = 65504.0;
/// Batches between two snapshots, and between two lines.
const EVERY: usize = 20;

/// Train a small GPT with your own functions, and let it write
#[derive(Clone, Parser)]
struct Args {
    /// Passes over the text
    #[arg(long, default_value_t = 2)]
    epochs: u64,
    /// Windows of 32 characters to learn, the first ones of the text
    #[arg(long, default_value_t = 4800)]
    windows: usize,
    /// Give each rank a part of every window, with `ring_attention`
    #[arg(long)]
    context: bool,
    /// Put experts in the place of each block's two layers, with `experts`
    #[arg(long, conflicts_with = "context")]
    experts: bool,
    /// A folder of snapshots, from which a next start goes on with `resume`
    #[arg(long, conflicts_with = "experts")]
    snapshots: Option<PathBuf>,
    /// Seed of initial weights, the order of the windows, and what is written
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn main() -> ExitCode {
    exit::main(|| train(&LaunchEnv::from_env_or_alone()?, &Args::parse()))
}

fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    tch::set_num_threads(1);
    let group: &'static ProcessGroup =
        Box::leak(Box::new(init_process_group(env, Device::Cpu, &GroupOptions::default())?));
    let report = Rc::new(Reporter::new(env, Device::Cpu)?);
    let ranks = group.size().get();
    ensure!(
        !args.experts || [1, 2, 4].contains(&ranks),
        "--experts is for 1, 2 or 4 ranks, which divide {BATCH} windows and 12 experts; not for {ranks}"
    );

    let Texts { train, validation } = pages::texts();
    let tokenizer = Tokenizer::characters(&format!("{train}{validation}"));
    let mut stream = tokenizer.encode(&train)?;
    stream.truncate(args.windows * WINDOW + 1);
    let targets = |rank: usize, ranks: usize| -> usize {
        windows(&stream, WINDOW, rank, ranks, 0).iter().map(|(_, targets)| targets.len()).sum()
    };
    let learned: usize = (0..ranks).map(|rank| targets(rank, ranks)).sum();
    report.say_once(format!("windows: {learned} of {} characters are learned, on {ranks} ranks", stream.len() - 1));

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(Kind::Double);
    let vocabulary = tokenizer.vocabulary() as i64;
    let gpt = Rc::new(Gpt::new(&vs.root(), vocabulary, WINDOW as i64, args.experts, group));
    let mut data = windows(&stream, WINDOW, 0, 1, 0);
    if args.experts {
        // All ranks have as many tokens.
        data.truncate(data.len() / BATCH * BATCH);
    }
    ensure!(!data.is_empty(), "`windows` has no window for one rank");
    ensure!(
        data.iter().all(|(inputs, targets)| inputs.len() == targets.len() && inputs.len() <= WINDOW),
        "`windows` has a window with other than {WINDOW} inputs, or fewer at the end, and as many targets"
    );
    let settings = Settings {
        epochs: args.epochs,
        windows: data.len(),
        batch: BATCH,
        growth_interval: 100,
        warmup: 20,
        seed: args.seed,
    };
    let mut optimizer = AdamW::new(named_parameters(&vs), AdamWOptions { weight_decay: 0.01, ..Default::default() })?;
    let (snapshots, position, saved) = match &args.snapshots {
        Some(folder) => {
            let run = SameRun { seed: args.seed, samples: data.len(), data: 0, batch_size: BATCH };
            let mut snapshots =
                Snapshots::new(folder, run, SnapshotOptions { sets_rates: true, ..Default::default() }, &report);
            let (position, numbers) = snapshots.resume_with::<Vec<f64>>(&vs, &mut optimizer, group)?;
            (Some(snapshots), position, numbers)
        }
        None => (None, Position::start_of(0), None),
    };
    let now = Now { epoch: position.epoch, windows: position.samples, batches: position.step, ..Now::default() };
    let training = Rc::new(RefCell::new(Training {
        group,
        report: Rc::clone(&report),
        gpt: Rc::clone(&gpt),
        vs,
        optimizer,
        data,
        args: args.clone(),
        snapshots,
        now,
        times: Vec::new(),
        failed: None,
    }));
    let mut run = Run::new(settings, group, saved, training.clone());
    if args.context {
        // All ranks have the same windows.
        (run.rank, run.ranks) = (0, 1);
    }
    resume(&mut run).context("`resume` failed")?;
    drop(run);
    let training = Rc::into_inner(training).context("your `resume` keeps the run")?.into_inner();
    let (vs, times) = training.end()?;
    let parameters = vs.trainable_variables().iter().map(|variable| variable.numel() as u64).sum();
    say_speed(group, &report, parameters, &times)?;

    let held_out: Vec<i64> = tokenizer.encode(&validation)?.into_iter().map(i64::from).collect();
    let rows = |from: usize| Tensor::from_slice(&held_out[from..from + 32 * WINDOW]).view([32, WINDOW as i64]);
    let (logits, _) = no_grad(|| gpt.forward(&rows(0), false))?;
    let loss = CrossEntropy::default().loss(&logits.flatten(0, 1), &rows(1).flatten(0, 1)).double_value(&[]);
    report.say_once(format!(
        "perplexity {:.2} on a page that it has not seen; of {}",
        loss.exp(),
        tokenizer.vocabulary()
    ));
    if let Some(dropped) = gpt.dropped()? {
        report.say_once(format!(
            "experts: {dropped} of these characters found no place, in {LAYERS} layers on {ranks} ranks"
        ));
    }
    let written = write(&gpt, &held_out[..WINDOW / 2], args.seed)?;
    report.say_once(format!("It writes:\n{}", tokenizer.decode(&written)));
    Ok(())
}

fn say_speed(group: &ProcessGroup, report: &Reporter, parameters: u64, times: &[Times]) -> Result<()> {
    let of = |(tokens, data, compute, exchange): &Times| StepTimes {
        tokens: *tokens,
        data: *data,
        compute: *compute,
        exchange: *exchange,
    };
    let ranks: Vec<Vec<StepTimes>> =
        all_gather_object(group, &times.to_vec())?.iter().map(|all| all.iter().map(of).collect()).collect();
    if times.len() > 1 {
        let sizes = Sizes { parameters, layers: LAYERS as u64, width: WIDTH as u64, context: WINDOW as u64 };
        let speed = speed(&sizes, peak(), &ranks);
        report.say_once(format!(
            "speed: {:.0} characters a second, {:.1} % of what the processors could do, {:.0} % of the time waiting",
            speed.tokens,
            100.0 * speed.utilization,
            100.0 * speed.waiting
        ));
    }
    Ok(())
}

/// Operations in a second of the fastest of some products of matrices.
fn peak() -> f64 {
    const SIZE: i64 = 256;
    let matrix = Tensor::ones([SIZE, SIZE], (Kind::Double, Device::Cpu));
    let once = || {
        let begun = Instant::now();
        drop(matrix.matmul(&matrix));
        2.0 * (SIZE as f64).powi(3) / begun.elapsed().as_secs_f64()
    };
    (0..10).map(|_| once()).fold(0.0, f64::max)
}

/// Continues these tokens.
fn write(gpt: &Gpt, prompt: &[i64], seed: u64) -> Result<Vec<u32>> {
    const TEMPERATURE: f64 = 0.6;
    let mut random = KeyedRng::new(&[seed, u64::from_be_bytes(*b"it write")]);
    let mut tokens = prompt.to_vec();
    for _ in 0..200 {
        let seen = &tokens[tokens.len().saturating_sub(WINDOW)..];
        let (logits, _) = no_grad(|| gpt.forward(&Tensor::from_slice(seen).unsqueeze(0), false))?;
        let chances: Vec<f64> = (logits.get(0).get(-1) / TEMPERATURE).softmax(-1, Kind::Double).try_into()?;
        let point = random.below(1 << 30) as f64 / f64::from(1 << 30);
        let mut sum = 0.0;
        let passed = chances.iter().take_while(|chance| {
            sum += **chance;
            sum <= point
        });
        tokens.push(passed.count().min(chances.len() - 1) as i64);
    }
    Ok(tokens.into_iter().map(|token| token as u32).collect())
}

/// Tokens of a step, and seconds of its data, computing and exchanges.
type Times = (u64, f64, f64, f64);

/// The batch that is trained with.
#[derive(Default)]
struct Now {
    epoch: u64,
    /// Windows of the epoch that all ranks have taken, with it, and batches.
    windows: usize,
    batches: usize,
    loss: f64,
    scale: f64,
    times: Times,
}

/// The real passes of a [`Run`].
struct Training {
    group: &'static ProcessGroup,
    report: Rc<Reporter>,
    gpt: Rc<Gpt>,
    vs: VarStore,
    optimizer: AdamW,
    data: Vec<(Vec<u32>, Vec<u32>)>,
    args: Args,
    snapshots: Option<Snapshots>,
    now: Now,
    times: Vec<Times>,
    /// A step cannot return its error.
    failed: Option<anyhow::Error>,
}

impl Training {
    /// The windows as a micro-batch; without any, one of which no token has a target.
    fn micro(&self, windows: &[usize]) -> Result<Batch> {
        let padded = |tokens: &[u32], with: i64| -> Vec<i64> {
            let rest = std::iter::repeat_n(with, WINDOW - tokens.len());
            tokens.iter().map(|token| i64::from(*token)).chain(rest).collect()
        };
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for window in windows {
            let (of_inputs, of_targets) = &self.data[*window];
            inputs.extend(padded(of_inputs, 0));
            targets.extend(padded(of_targets, IGNORE_INDEX));
        }
        if windows.is_empty() {
            (inputs, targets) = (padded(&[], 0), padded(&[], IGNORE_INDEX));
        }
        let mine = |tokens: Vec<i64>| -> Result<Tensor> {
            let whole = Tensor::from_slice(&tokens).view([-1, WINDOW as i64]);
            Ok(if self.args.context { zigzag(self.group, &whole, 1)? } else { whole })
        };
        Ok(Batch::new(mine(inputs)?, mine(targets)?))
    }

    fn clip(&mut self) -> Result<f64> {
        let scale = self.now.scale;
        let mut gradients: Vec<Gradient> = (self.optimizer.grads().into_iter())
            .map(|(name, grad)| Gradient { values: grad / scale, divided: MixtureOfExperts::has_parameter(&name) })
            .collect();
        let before = norm(self.group, &mut gradients, MAX_NORM)?;
        let all = self.optimizer.grads().into_iter().zip(gradients);
        no_grad(|| all.for_each(|((_, mut grad), clipped)| grad.copy_(&clipped.values)));
        Ok(before)
    }

    /// The variables, and the times of all steps.
    fn end(mut self) -> Result<(VarStore, Vec<Times>)> {
        if let Some(snapshots) = self.snapshots.take() {
            snapshots.finish()?;
        }
        self.failed.map_or(Ok((self.vs, self.times)), Err)
    }
}

impl Passes for Training {
    fn forward_backward(&mut self, epoch: u64, windows: &[usize], scale: f64) -> Result<bool> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let begun = Instant::now();
        self.optimizer.zero_grad();
        let (one, other) = windows.split_at(windows.len().div_ceil(2));
        let batches = [self.micro(one)?, self.micro(other)?];
        let data = begun.elapsed().as_secs_f64();
        let gpt = Rc::clone(&self.gpt);
        let divided = self.args.context;
        let forward = move |inputs: &Tensor| gpt.forward(inputs, divided).unwrap_or_else(|error| panic!("{error:#}"));
        let model = Model::new(self.group, named_parameters(&self.vs), Box::new(forward)).scaled(scale);
        let loss = token_mean(&model, &batches).context("`token_mean` failed")?;
        let tokens = batches.iter().map(Batch::tokens).sum::<i64>() as u64;
        if epoch != self.now.epoch {
            self.now = Now { epoch, ..Now::default() };
        }
        let exchange = model.exchanging();
        let computed = begun.elapsed().as_secs_f64() - data - exchange;
        self.now = Now {
            loss,
            scale,
            windows: self.data.len().min(self.now.windows + BATCH),
            batches: self.now.batches + 1,
            times: (tokens, data, computed, exchange),
            ..std::mem::take(&mut self.now)
        };
        let largest = |grad: &Tensor| grad.abs().max().double_value(&[]);
        Ok(self.optimizer.grads().iter().all(|(_, grad)| largest(grad) <= LARGEST))
    }

    fn step(&mut self, learning_rate: f64) {
        let begun = Instant::now();
        let clipped = self.clip().context("`norm` failed");
        self.optimizer.set_lr(LEARNING_RATE * learning_rate);
        match clipped.and_then(|norm| Ok((norm, self.optimizer.step()?))) {
            Ok((norm, ())) => {
                let (tokens, data, compute, exchange) = self.now.times;
                self.times.push((tokens, data, compute + begun.elapsed().as_secs_f64(), exchange));
                let Now { epoch, batches, loss, scale, .. } = self.now;
                if self.times.len().is_multiple_of(EVERY) {
                    self.report.say_once(format!(
                        "epoch {epoch}, batch {batches}: loss {loss:.4} a character, norm {norm:.4}, learning rate {learning_rate:.3}, scale {scale}"
                    ));
                }
            }
            Err(error) => self.failed = Some(error),
        }
    }

    fn save(&mut self, numbers: &[f64]) {
        let Now { epoch, windows, batches, .. } = self.now;
        let position = match windows == self.data.len() {
            true => Position::start_of(epoch + 1),
            false => Position { epoch, step: batches, samples: windows },
        };
        let due = position.is_start() || batches.is_multiple_of(EVERY);
        if let Some(snapshots) = &mut self.snapshots {
            let saved = snapshots.save_if_with(due, position, &self.vs, &self.optimizer, &numbers.to_vec(), self.group);
            self.failed = self.failed.take().or(saved.err().map(Into::into));
        }
    }
}

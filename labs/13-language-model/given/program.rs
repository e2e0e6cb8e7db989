//! The program that your functions make together: a small GPT on pages of this book, on any number of ranks. What it prints shows what each of
//! them does. You do not change this file.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use c10d::{GroupOptions, ProcessGroup};
use clap::Parser;
use lockstep::data::{Dataset, Texts, Tokenizer, Windows};
use lockstep::loss::CrossEntropy;
use lockstep::models::gpt::Sampling;
use lockstep::snapshot::Run as SameRun;
use lockstep::{LaunchEnv, Reporter, all_gather_object, exit, init_process_group};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor, no_grad};

use crate::gpt::{Gpt, LAYERS, WIDTH};
use crate::resumable::{Run, Settings};
use crate::resume::resume;
use crate::speed::{Sizes, StepTimes, speed};
use crate::training::{BATCH, Times, Training, WINDOW};
use crate::windows::windows;

#[path = "../src/pages.rs"]
mod pages;

/// Train a small GPT with your own functions, and let it write
#[derive(Parser)]
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
    let text = Text::read(args.windows)?;
    let (learned, all) = (text.targets(ranks), text.stream.len() - 1);
    report.say_once(format!("windows: {learned} of {all} characters are learned, on {ranks} ranks"));

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(Kind::Double);
    let vocabulary = text.tokenizer.vocabulary() as i64;
    let gpt = Rc::new(Gpt::new(&vs.root(), vocabulary, WINDOW as i64, args.experts, group));
    let data = text.windows(args.experts)?;
    let settings = Settings {
        epochs: args.epochs,
        windows: data.len(),
        batch: BATCH,
        growth_interval: 100,
        warmup: 20,
        seed: args.seed,
    };
    let same = SameRun { seed: args.seed, samples: data.len(), data: text.fingerprint()?, batch_size: BATCH };
    let mut training = Training::new(group, &report, &gpt, vs, data, args.context)?;
    let saved = args.snapshots.as_ref().map(|folder| training.resume(folder, same)).transpose()?.flatten();
    let training = Rc::new(RefCell::new(training));
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
    say_perplexity(&report, &gpt, &text)?;
    if let Some(dropped) = gpt.dropped()? {
        report.say_once(format!(
            "experts: {dropped} of these characters found no place, in {LAYERS} layers on {ranks} ranks"
        ));
    }
    let written = write(&gpt, &text.held_out[..WINDOW / 2], args.seed)?;
    report.say_once(format!("It writes:\n{}", text.tokenizer.decode(&written)));
    Ok(())
}

/// What the model learns, and a page that it does not see.
struct Text {
    tokenizer: Tokenizer,
    stream: Vec<u32>,
    held_out: Vec<i64>,
}

impl Text {
    fn read(most_windows: usize) -> Result<Self> {
        let Texts { train, validation } = pages::texts();
        let tokenizer = Tokenizer::characters(&format!("{train}{validation}"));
        let mut stream = tokenizer.encode(&train)?;
        stream.truncate(most_windows * WINDOW + 1);
        let held_out = tokenizer.encode(&validation)?.into_iter().map(i64::from).collect();
        Ok(Text { tokenizer, stream, held_out })
    }

    /// How many targets so many ranks have in all.
    fn targets(&self, ranks: usize) -> usize {
        let of_rank = |rank: usize| windows(&self.stream, WINDOW, rank, ranks, 0);
        (0..ranks).flat_map(of_rank).map(|(_, targets)| targets.len()).sum()
    }

    /// All windows; with experts a number that all ranks share equally, so that they have as many tokens.
    fn windows(&self, experts: bool) -> Result<Vec<(Vec<u32>, Vec<u32>)>> {
        let mut all = windows(&self.stream, WINDOW, 0, 1, 0);
        if experts {
            all.truncate(all.len() / BATCH * BATCH);
        }
        ensure!(!all.is_empty(), "`windows` has no window for one rank");
        ensure!(
            all.iter().all(|(inputs, targets)| inputs.len() == targets.len() && inputs.len() <= WINDOW),
            "`windows` has a window with other than {WINDOW} inputs, or fewer at the end, and as many targets"
        );
        Ok(all)
    }

    fn fingerprint(&self) -> Result<u32> {
        Windows::new(self.stream.clone(), WINDOW)?.fingerprint()
    }
}

fn say_perplexity(report: &Reporter, gpt: &Gpt, text: &Text) -> Result<()> {
    let rows = |from: usize| Tensor::from_slice(&text.held_out[from..from + 32 * WINDOW]).view([32, WINDOW as i64]);
    let (logits, _) = no_grad(|| gpt.forward(&rows(0), false))?;
    let loss = CrossEntropy::default().loss(&logits.flatten(0, 1), &rows(1).flatten(0, 1)).double_value(&[]);
    let (perplexity, vocabulary) = (loss.exp(), text.tokenizer.vocabulary());
    report.say_once(format!("perplexity {perplexity:.2} on a page that it has not seen; of {vocabulary}"));
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
    let sampling = Sampling { temperature: 0.6, seed };
    let mut tokens = prompt.to_vec();
    for place in 0..200 {
        let seen = &tokens[tokens.len().saturating_sub(WINDOW)..];
        let (logits, _) = no_grad(|| gpt.forward(&Tensor::from_slice(seen).unsqueeze(0), false))?;
        tokens.push(sampling.choose(&logits.select(1, -1), place)?.into());
    }
    Ok(tokens.into_iter().map(|token| token as u32).collect())
}

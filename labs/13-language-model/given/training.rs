//! What a run of the program trains with: your functions, in the place of the simulated passes of task `resume`. You do not change this file.
//!
//! Numbers are in double precision. Half precision is SIMULATED: a scaled gradient that it could not hold counts as an overflow.

use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use c10d::ProcessGroup;
use lockstep::Reporter;
use lockstep::loader::Position;
use lockstep::loss::IGNORE_INDEX;
use lockstep::optim::{AdamW, AdamWOptions, Optimizer, named_parameters};
use lockstep::parallel::MixtureOfExperts;
use lockstep::parallel::context::zigzag;
use lockstep::snapshot::{Run as SameRun, Save, SnapshotOptions, Snapshots};
use tch::nn::VarStore;
use tch::{Tensor, no_grad};

use crate::accumulating::{Batch, Model};
use crate::gpt::Gpt;
use crate::norm::{Gradient, norm};
use crate::resumable::Passes;
use crate::token_mean::token_mean;

pub(crate) const WINDOW: usize = 32;
/// Windows of all ranks together.
pub(crate) const BATCH: usize = 16;
const MAX_NORM: f64 = 1.0;
const LEARNING_RATE: f64 = 5e-3;
/// The largest number of half precision.
const LARGEST: f64 = 65504.0;
/// Batches between two snapshots, and between two lines.
const EVERY: usize = 20;

/// Tokens of a step, and seconds of its data, computing and exchanges.
pub(crate) type Times = (u64, f64, f64, f64);

/// Inputs and targets.
type Window = (Vec<u32>, Vec<u32>);

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

/// The real passes of a [`Run`](crate::resumable::Run).
pub(crate) struct Training {
    group: &'static ProcessGroup,
    report: Rc<Reporter>,
    gpt: Rc<Gpt>,
    vs: VarStore,
    optimizer: AdamW,
    data: Vec<Window>,
    /// Each rank has a part of every window.
    divided: bool,
    snapshots: Option<Snapshots>,
    now: Now,
    times: Vec<Times>,
    /// A step cannot return its error.
    failed: Option<anyhow::Error>,
}

impl Training {
    pub(crate) fn new(
        group: &'static ProcessGroup,
        report: &Rc<Reporter>,
        gpt: &Rc<Gpt>,
        vs: VarStore,
        data: Vec<Window>,
        divided: bool,
    ) -> Result<Self> {
        let optimizer = AdamW::new(named_parameters(&vs), AdamWOptions { weight_decay: 0.01, ..Default::default() })?;
        let (report, gpt) = (Rc::clone(report), Rc::clone(gpt));
        let (snapshots, now, times, failed) = (None, Now::default(), Vec::new(), None);
        Ok(Training { group, report, gpt, vs, optimizer, data, divided, snapshots, now, times, failed })
    }

    /// Saves snapshots to the folder from now on, and takes the newest one of this run over: its numbers, or nothing on a first start.
    pub(crate) fn resume(&mut self, folder: &Path, run: SameRun) -> Result<Option<Vec<f64>>> {
        let options = SnapshotOptions { sets_rates: true, ..Default::default() };
        let mut snapshots = Snapshots::new(folder, run, options, &self.report);
        let (position, numbers) = snapshots.resume_with(&self.vs, &mut self.optimizer, self.group)?;
        let Position { epoch, step: batches, samples: windows } = position;
        (self.snapshots, self.now) = (Some(snapshots), Now { epoch, windows, batches, ..Now::default() });
        Ok(numbers)
    }

    /// The windows as a micro-batch; without any, a micro-batch without targets.
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
            Ok(if self.divided { zigzag(self.group, &whole, 1)? } else { whole })
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
    pub(crate) fn end(mut self) -> Result<(VarStore, Vec<Times>)> {
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
        let divided = self.divided;
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
            let numbers = numbers.to_vec();
            let save = Save::new(position, &self.vs, &self.optimizer).with(&numbers);
            let saved = snapshots.save_if(due, save, self.group);
            self.failed = self.failed.take().or(saved.err().map(Into::into));
        }
    }
}

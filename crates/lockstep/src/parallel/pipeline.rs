//! Pipeline parallelism: each rank holds some of the model's layers, a stage, and micro-batches pass through the stages by messages.
//!
//! The order of the passes is a [`Schedule`]. Leaves out stages that share a rank or a parameter, activations whose shape changes
//! from one micro-batch to the next, and DDP's overlap: average the gradients over copies of the pipeline after the step, by
//! [`average_gradients`](super::average_gradients).

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use c10d::{Error, ProcessGroup, Rank, Work};
use tch::{Kind, Tensor};

use super::{Action, Schedule};
use crate::nn;
use crate::virtual_ranks::refuse_in_pass;

/// What a stage receives for each micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activations {
    /// Shape of the stage's inputs for one micro-batch; the first stage's do not matter.
    pub size: Vec<i64>,
    /// Their dtype.
    pub kind: Kind,
}

/// This rank's stage of a pipeline: stage r of the group is its rank r.
///
/// ```no_run
/// # use std::rc::Rc;
/// # use tch::{Kind, Tensor, nn::Module};
/// # fn step(group: Rc<c10d::ProcessGroup>, layers: impl Module, inputs: Tensor, targets: Tensor) -> anyhow::Result<()> {
/// use lockstep::parallel::{Activations, Pipeline, Schedule};
///
/// let (m, size) = (8, inputs.size()[0] / 8);
/// let received = Activations { size: vec![size, 64], kind: Kind::Float };
/// let pipeline = Pipeline::new(group, Schedule::one_f_one_b(2, m), received)?;
/// let (inputs, targets) = (inputs.chunk(m as i64, 0), targets.chunk(m as i64, 0));
/// let report = pipeline.step(
///     |micro_batch| inputs[micro_batch].shallow_clone(),             // called on the first stage
///     |activations| layers.forward(activations),
///     |micro_batch, outputs| outputs.cross_entropy_for_logits(&targets[micro_batch]), // on the last
/// )?;
/// println!("loss {:?}, bubble {:.0} %", report.loss, report.bubble() * 100.0);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pipeline {
    group: Rc<ProcessGroup>,
    schedule: Schedule,
    received: Activations,
}

/// What this rank did in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The mean of the micro-batches' losses; on the last stage.
    pub loss: Option<f64>,
    /// When each action computed, from the beginning of the step, without its wait for messages.
    pub spans: Vec<(Action, Duration, Duration)>,
    /// How long the whole step took.
    pub total: Duration,
    /// The most micro-batches whose activations this rank held at once.
    pub peak: usize,
}

impl StepReport {
    /// The share of the step in which this rank did not compute, as measured. On a machine with fewer free cores than ranks, a rank
    /// that waits for a core counts as computing.
    pub fn bubble(&self) -> f64 {
        let busy: Duration = self.spans.iter().map(|(_, begin, end)| end.saturating_sub(*begin)).sum();
        1.0 - busy.as_secs_f64() / self.total.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// A step failed, and where in the schedule.
#[derive(Debug, thiserror::Error)]
#[error("stage {stage} of {stages} failed in {action}, action {} of {actions}", position + 1)]
pub struct PipelineError {
    /// This rank's stage.
    pub stage: usize,
    /// How many there are.
    pub stages: usize,
    /// What it did or waited to do.
    pub action: Action,
    /// The action's position in the stage's list.
    pub position: usize,
    /// Length of that list.
    pub actions: usize,
    /// The failure, with the state of the other ranks.
    #[source]
    pub source: Error,
}

/// A micro-batch between its forward and its backward pass.
struct Held {
    input: Tensor,
    /// On the last stage the loss.
    output: Tensor,
}

/// A message, and the action in which its receiver receives it.
struct Sent {
    to: Rank,
    received_in: Action,
    work: Work<Tensor>,
}

impl Pipeline {
    /// The stage of this rank; all ranks of `group` pass the same schedule.
    ///
    /// Errors: `BadArgument` if the schedule's number of stages is not the group's number of ranks, or if there are more micro-batches than
    /// message tags.
    pub fn new(group: Rc<ProcessGroup>, schedule: Schedule, received: Activations) -> Result<Self, Error> {
        let (stages, ranks) = (schedule.stages(), group.size());
        let refuse = |detail| Err(Error::bad_argument("make a pipeline", detail));
        if stages != ranks.get() {
            return refuse(format!("a schedule of {stages} stages on {ranks} ranks: each rank is one stage"));
        }
        if schedule.micro_batches() > usize::from(u16::MAX / 2) {
            return refuse(format!("{} micro-batches are more than messages have tags", schedule.micro_batches()));
        }
        Ok(Pipeline { group, schedule, received })
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// One training step: gradients of the mean of the micro-batches' losses add to those of the stage's parameters. `input` gives
    /// the first stage a micro-batch, `forward` is this stage's layers, `loss` the scalar loss of the last stage's outputs.
    ///
    /// A stage that calls [`c10d::checkpoint`] in `forward` holds its inputs in place of all activations.
    ///
    /// Errors: a message failed, with the position in the schedule and the other ranks' reports; a pass failed.
    pub fn step(
        &self,
        input: impl Fn(usize) -> Tensor,
        forward: impl Fn(&Tensor) -> Tensor,
        loss: impl Fn(usize, &Tensor) -> Tensor,
    ) -> Result<StepReport, PipelineError> {
        let (stage, actions) = (self.group.rank().get(), self.schedule.actions(self.group.rank().get()));
        let mut step =
            Step { pipeline: self, begun: Instant::now(), held: HashMap::new(), sent: Vec::new(), losses: Vec::new() };
        let (mut spans, mut peak) = (Vec::new(), 0);
        for (position, &action) in actions.iter().enumerate() {
            let done = match action {
                Action::Forward(micro_batch) => step.forward(micro_batch, &input, &forward, &loss),
                Action::Backward(micro_batch) => step.backward(micro_batch),
            };
            let done = done.and_then(|span| {
                if position + 1 == actions.len() { step.wait_for_sent().map(|()| span) } else { Ok(span) }
            });
            let (begin, end) = done.map_err(|source| {
                let (stages, actions) = (self.schedule.stages(), actions.len());
                PipelineError { stage, stages, action, position, actions, source }
            })?;
            spans.push((action, begin, end));
            peak = peak.max(step.held.len());
        }
        let losses = &step.losses;
        let loss = (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64);
        Ok(StepReport { loss, spans, total: step.begun.elapsed(), peak })
    }

    fn stage(&self) -> usize {
        self.group.rank().get()
    }

    fn before(&self) -> Option<Rank> {
        self.stage().checked_sub(1).map(Rank::new)
    }

    fn after(&self) -> Option<Rank> {
        (self.stage() + 1 < self.schedule.stages()).then(|| Rank::new(self.stage() + 1))
    }
}

type Span = (Duration, Duration);

/// A step that is under way.
struct Step<'a> {
    pipeline: &'a Pipeline,
    begun: Instant,
    held: HashMap<usize, Held>,
    sent: Vec<Sent>,
    losses: Vec<f64>,
}

impl Step<'_> {
    fn forward(
        &mut self,
        micro_batch: usize,
        input: impl Fn(usize) -> Tensor,
        forward: impl Fn(&Tensor) -> Tensor,
        loss: impl Fn(usize, &Tensor) -> Tensor,
    ) -> Result<Span, Error> {
        refuse_in_pass("pipeline parallelism")?;
        let action = Action::Forward(micro_batch);
        let input = match self.pipeline.before() {
            None => input(micro_batch),
            Some(before) => {
                let Activations { size, kind } = &self.pipeline.received;
                let received = Tensor::empty(size, (*kind, self.pipeline.group.device()));
                self.receive(action, received, before)?.set_requires_grad(true)
            }
        };
        let begin = self.begun.elapsed();
        let micro_batches = self.pipeline.schedule.micro_batches() as f64;
        let last = self.pipeline.after().is_none();
        let output = nn::caught(|| {
            let output = forward(&input);
            if last { loss(micro_batch, &output) } else { output }
        })?;
        let output = if last {
            self.losses.push(output.double_value(&[]));
            output / micro_batches
        } else {
            output
        };
        let end = self.begun.elapsed();
        if let Some(after) = self.pipeline.after() {
            self.send(action, output.detach().contiguous(), after)?;
        }
        self.held.insert(micro_batch, Held { input, output });
        Ok((begin, end))
    }

    fn backward(&mut self, micro_batch: usize) -> Result<Span, Error> {
        let action = Action::Backward(micro_batch);
        let held = self.held.remove(&micro_batch).expect("a schedule's backward pass follows the forward pass");
        let scalar = match self.pipeline.after() {
            None => held.output,
            Some(after) => {
                let gradient = self.receive(action, held.output.detach().empty_like().contiguous(), after)?;
                // A scalar with exactly this gradient.
                let kind = held.output.kind();
                (held.output * gradient).sum(kind)
            }
        };
        let begin = self.begun.elapsed();
        c10d::backward(&scalar)?;
        let end = self.begun.elapsed();
        if let Some(before) = self.pipeline.before() {
            self.send(action, held.input.grad().contiguous(), before)?;
        }
        Ok((begin, end))
    }

    fn send(&mut self, action: Action, tensor: Tensor, to: Rank) -> Result<(), Error> {
        let work = self.pipeline.group.isend_for(&purpose(action), tensor, to, tag(action))?;
        self.sent.push(Sent { to, received_in: action, work });
        Ok(())
    }

    /// Receives what the neighbour sends after the same action, and completes the sends to it that it must have received
    /// before.
    fn receive(&mut self, action: Action, mut tensor: Tensor, from: Rank) -> Result<Tensor, Error> {
        self.pipeline.group.recv_for(&purpose(action), &mut tensor, from, tag(action))?;
        let of_neighbour = self.pipeline.schedule.actions(from.get());
        let position = |action: Action| of_neighbour.iter().position(|other| *other == action);
        let over = |sent: &mut Sent| sent.to == from && position(sent.received_in) <= position(action);
        for sent in self.sent.extract_if(.., over) {
            drop(sent.work.wait()?);
        }
        Ok(tensor)
    }

    fn wait_for_sent(&mut self) -> Result<(), Error> {
        self.sent.drain(..).try_for_each(|sent| sent.work.wait().map(drop))
    }
}

fn purpose(action: Action) -> String {
    match action {
        Action::Forward(micro_batch) => format!("activations of micro-batch {micro_batch}"),
        Action::Backward(micro_batch) => format!("gradient of micro-batch {micro_batch}"),
    }
}

fn tag(action: Action) -> u16 {
    let number = match action {
        Action::Forward(micro_batch) => 2 * micro_batch,
        Action::Backward(micro_batch) => 2 * micro_batch + 1,
    };
    u16::try_from(number).expect("`Pipeline::new` checks the number of micro-batches")
}

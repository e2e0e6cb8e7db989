//! Training steps under DDP, timed in parts.
//!
//! Steps come in threes: two with communication, then one without (`no_sync`). The second and the third are timed. The first is there
//! because DDP omits the broadcast of the buffers in the step after one without communication.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use c10d::{BucketTime, ProcessGroup, ReduceOp, Reducer};
use lockstep::measure::{Repeats, Spread, synchronize, time};
use lockstep::models::Norm;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::results::numbers;
use lockstep::{DdpOptions, DistributedDataParallel, all_gather_object};
use lockstep_rank_messages::bench::{Model, StepAnswer, StepOrder, TraceAnswer, TracedBucket, TracedStep};
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, Tensor};

use crate::{mlp, resnet};

/// Threes of steps before the first timed one.
const WARM_UP: usize = 2;
/// Channels of the ResNet's first stage.
const WIDTH: i64 = 16;

/// The models requested so far, by kind and batch.
#[derive(Default)]
pub(crate) struct Trainers(BTreeMap<(Model, u32), Trainer>);

impl Trainers {
    /// Every rank calls this with the same order.
    pub(crate) fn run(&mut self, group: &Rc<ProcessGroup>, order: &StepOrder) -> Result<StepAnswer> {
        self.of(group, order.model, order.batch)?.measure(order.steps as usize)
    }

    /// The trainer of a model; a new one first runs its warm-up steps.
    fn of(&mut self, group: &Rc<ProcessGroup>, model: Model, batch: u32) -> Result<&mut Trainer> {
        Ok(match self.0.entry((model, batch)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let mut trainer = Trainer::new(Rc::clone(group), model, batch)?;
                (0..WARM_UP).try_for_each(|_| trainer.three().map(drop))?;
                place.insert(trainer)
            }
        })
    }
}

/// A model under DDP with its optimizer and its batch; every step does the same work.
pub(crate) struct Trainer {
    ddp: DistributedDataParallel<Box<dyn ModuleT>>,
    optimizer: Sgd,
    parameters: Vec<Tensor>,
    inputs: Tensor,
    targets: Tensor,
}

/// When the parts of a step began, and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) begun: Instant,
    pub(crate) forward: Instant,
    pub(crate) backward: Instant,
    pub(crate) optimizer: Instant,
    pub(crate) ended: Instant,
}

impl Marks {
    fn backward(&self) -> f64 {
        (self.optimizer - self.backward).as_secs_f64()
    }

    /// Step, forward, backward, optimizer.
    fn parts(&self) -> [f64; 4] {
        let optimizer = (self.forward - self.begun) + (self.ended - self.optimizer);
        let forward = self.backward - self.forward;
        let [step, forward, optimizer] = [self.ended - self.begun, forward, optimizer].map(|time| time.as_secs_f64());
        [step, forward, self.backward(), optimizer]
    }
}

impl Trainer {
    pub(crate) fn new(group: Rc<ProcessGroup>, model: Model, batch: u32) -> Result<Self> {
        let (mut vs, rank, batch) = (VarStore::new(Device::Cpu), group.rank().get() as i64, i64::from(batch));
        let device = group.device();
        let (net, (inputs, targets)): (Box<dyn ModuleT>, _) = match model {
            Model::Mlp => (Box::new(mlp::network(&vs)), mlp::batch(rank, batch)),
            Model::Resnet => (Box::new(resnet::network(&vs, Norm::Batch, WIDTH)), resnet::batch(rank, batch)),
        };
        vs.set_device(device);
        let (inputs, targets) = (inputs.to_device(device), targets.to_device(device));
        // With a learning rate of 0 the loss stays the same, but all the work is done.
        let options = SgdOptions { lr: 0.0, momentum: 0.9, weight_decay: 1e-5, ..SgdOptions::default() };
        let optimizer = Sgd::new(named_parameters(&vs), options)?;
        let ddp = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default())?;
        Ok(Trainer { ddp, optimizer, parameters: vs.trainable_variables(), inputs, targets })
    }

    pub(crate) fn reducer(&self) -> c10d::Result<&Reducer> {
        self.ddp.reducer()
    }

    /// Runs a step that all ranks start together.
    pub(crate) fn step(&mut self) -> Result<(Marks, Tensor)> {
        let Trainer { ddp, optimizer, inputs, targets, .. } = self;
        one(ddp, optimizer, inputs, targets)
    }

    /// Seconds of the backward pass of a step without communication.
    fn backward_alone(&mut self) -> Result<f64> {
        let Trainer { ddp, optimizer, inputs, targets, .. } = self;
        Ok(ddp.no_sync(|| one(ddp, optimizer, inputs, targets))?.0.backward())
    }

    /// Runs three steps. Returns the parts of the second, followed by the backward pass of the third.
    fn three(&mut self) -> Result<[f64; 5]> {
        let _first = self.step()?;
        let [step, forward, backward, optimizer] = self.step()?.0.parts();
        Ok([step, forward, backward, optimizer, self.backward_alone()?])
    }

    fn measure(&mut self, steps: usize) -> Result<StepAnswer> {
        c10d::reset_peak_memory(self.ddp.group().device())?;
        let rows = (0..steps).map(|_| self.three()).collect::<Result<Vec<_>>>()?;
        let [step, forward, backward, optimizer, backward_alone] = medians(self.ddp.group(), &rows)?;
        let (_, loss) = self.step()?;
        let gradient = self.gradient();
        let peak = peak(self.ddp.group())?;
        let sizes = self.ddp.reducer()?.bucket_numels()?;
        let (at_once, in_turn) = all_reduces(self.ddp.group(), &sizes, steps)?;
        Ok(StepAnswer {
            step,
            forward,
            backward,
            optimizer,
            backward_alone,
            all_reduces: at_once,
            one_all_reduce: in_turn / sizes.len() as f64,
            bytes: 4 * sizes.iter().sum::<usize>() as u64,
            buckets: sizes.len() as u32,
            loss: loss.double_value(&[]),
            gradient,
            peak,
        })
    }

    fn gradient(&self) -> f64 {
        let squares =
            self.parameters.iter().map(|parameter| parameter.grad().square().sum(Kind::Double).double_value(&[]));
        squares.sum::<f64>().sqrt()
    }
}

fn one(
    ddp: &DistributedDataParallel<Box<dyn ModuleT>>,
    optimizer: &mut Sgd,
    inputs: &Tensor,
    targets: &Tensor,
) -> Result<(Marks, Tensor)> {
    let device = ddp.group().device();
    // Work queued on a GPU belongs to the part before.
    let now = || {
        synchronize(device);
        Instant::now()
    };
    ddp.group().barrier()?;
    let begun = now();
    optimizer.zero_grad();
    let forward = now();
    let loss = ddp.forward_with(|net| net.forward_t(inputs, true))?.cross_entropy_for_logits(targets);
    let backward = now();
    ddp.backward(&loss)?;
    let ended_backward = now();
    optimizer.step()?;
    Ok((Marks { begun, forward, backward, optimizer: ended_backward, ended: now() }, loss))
}

/// The peak memory of a GPU's tensors since the last reset, in bytes: the maximum over the ranks.
fn peak(group: &ProcessGroup) -> Result<Option<u64>> {
    let Some(bytes) = c10d::peak_memory(group.device())? else { return Ok(None) };
    let mut most = Tensor::from(bytes as i64);
    group.all_reduce(&mut most, ReduceOp::Max)?;
    Ok(u64::try_from(most.int64_value(&[])).ok())
}

/// The median of each column, after each row is averaged over the ranks.
fn medians<const N: usize>(group: &ProcessGroup, rows: &[[f64; N]]) -> Result<[f64; N]> {
    let mut sums = Tensor::from_slice(&rows.concat());
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let means: Vec<f64> = numbers(&sums)?.into_iter().map(|sum| sum / group.size().get() as f64).collect();
    let median = |column: usize| {
        let values: Vec<f64> = means.iter().copied().skip(column).step_by(N).collect();
        Spread::of(&values).map_or(0.0, |spread| spread.median)
    };
    Ok(std::array::from_fn(median))
}

/// Seconds to reduce buckets of these numbers of elements with nothing else running: all started at once, and one after the other.
fn all_reduces(group: &ProcessGroup, sizes: &[usize], times: usize) -> Result<(f64, f64)> {
    let repeats = Repeats { warm_up: 1, timed: times, batch: 1 };
    let mut buckets: Vec<Tensor> =
        sizes.iter().map(|size| Tensor::zeros([*size as i64], (Kind::Float, group.device()))).collect();
    let at_once = time(group, &repeats, || {
        let started = buckets.iter().map(|bucket| group.all_reduce_async(bucket.shallow_clone(), ReduceOp::Sum));
        started.collect::<c10d::Result<Vec<_>>>()?.into_iter().try_for_each(|work| work.wait().map(drop))?;
        Ok(())
    })?;
    let in_turn = time(group, &repeats, || {
        buckets.iter_mut().try_for_each(|bucket| group.all_reduce(bucket, ReduceOp::Sum))?;
        Ok(())
    })?;
    Ok((at_once.median * 1e-6, in_turn.median * 1e-6))
}

/// Steps before those shown: from the second one on, the buckets are final.
const TRACE_WARM_UP: usize = 4;

/// Every rank calls this with the same order.
pub(crate) fn trace(group: &Rc<ProcessGroup>, order: &StepOrder) -> Result<TraceAnswer> {
    let mut trainer = Trainer::new(Rc::clone(group), order.model, order.batch)?;
    trainer.reducer()?.time_buckets()?;
    for _ in 0..TRACE_WARM_UP {
        let _warm = trainer.step()?;
    }
    trainer.reducer()?.take_bucket_times()?;
    let mut steps = Vec::with_capacity(order.steps as usize);
    for _ in 0..order.steps {
        let (marks, _) = trainer.step()?;
        let buckets = trainer.reducer()?.take_bucket_times()?;
        steps.push(traced(&marks, &buckets));
    }
    Ok(TraceAnswer { ranks: all_gather_object(group, &steps)? })
}

fn traced(marks: &Marks, buckets: &[BucketTime]) -> TracedStep {
    let now = (Instant::now(), SystemTime::now());
    let at = |instant: Instant| microseconds(now.1 - (now.0 - instant));
    // Backward waits for all buckets. The thread that records an end may get a core later than the thread that waited for
    // it.
    let ended = |time: &BucketTime| microseconds(time.ended.unwrap_or(time.started)).min(at(marks.optimizer));
    let bucket = |time: &BucketTime| TracedBucket {
        bucket: time.bucket,
        bytes: time.bytes as u64,
        started: microseconds(time.started),
        ended: ended(time),
    };
    TracedStep {
        begun: at(marks.begun),
        forward: at(marks.forward),
        backward: at(marks.backward),
        optimizer: at(marks.optimizer),
        ended: at(marks.ended),
        buckets: buckets.iter().map(bucket).collect(),
    }
}

fn microseconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as f64 / 1e3
}

//! Runs in each scheme whose ranks are killed: after a restart they end with the bits of a run without faults, and every snapshot is
//! whole.
//!
//! Tensor parallelism and a pipeline have no snapshots of their own: here each rank keeps the parts of all ranks, trains its own, and
//! takes the others' after each step, so that rank 0 saves the whole model with the state of its optimizer.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context;
use c10d::{Endpoint, GroupOptions, ProcessGroup};
use lockstep::loader::Position;
use lockstep::memory::MemoryBytes;
use lockstep::optim::{AdamW, AdamWOptions, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::{
    Activations, ColumnParallelLinear, FullyShard, FullyShardOptions, ParallelMlp, Pipeline, RowParallelLinear,
    Schedule,
};
use lockstep::snapshot::{self, Run, Save, Snapshot, SnapshotOptions, Snapshots};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Rank, Reporter, checkpoint, init_process_group};
use lockstep_contract::events::Event;
use lockstep_contract::fault::{Act, SavePhase};
use lockstep_testkit::{Job, kill, undisturbed, while_saving};
use tch::nn::{self, Module, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

/// The program's name, before that of the scheme.
pub(crate) const CASE: &str = "killed";

const WORLD: usize = 3;
const STEPS: usize = 6;
const FEATURES: i64 = 6;

fn adam_w() -> AdamWOptions {
    AdamWOptions { lr: 0.05, ..Default::default() }
}

// ---- the program: trains in one epoch and saves each step

/// A rank of the job.
struct Member {
    group: Rc<ProcessGroup>,
    report: Reporter,
    vs: VarStore,
    snapshots: Snapshots,
}

pub(crate) fn work(env: &LaunchEnv, scheme: &str) -> anyhow::Result<()> {
    let options = GroupOptions { endpoint: Endpoint::Interface("lo".into()), ..Default::default() };
    let group = Rc::new(init_process_group(env, Device::Cpu, &options)?);
    let report = Reporter::new(env, Device::Cpu)?;
    tch::manual_seed(3);
    let run = Run { seed: 0, samples: STEPS * WORLD, data: 0, batch_size: 1 };
    let snapshots = Snapshots::new("snapshots", run, SnapshotOptions::default(), &report);
    let member = Member { group, report, vs: VarStore::new(Device::Cpu), snapshots };
    match scheme {
        "ddp" => ddp(member),
        "zero" => zero(member),
        "tensor" => tensor(member),
        "pipeline" => pipeline(member),
        "sharded" => sharded(member),
        other => anyhow::bail!("no scheme {other:?}"),
    }
}

impl Member {
    /// `pass` makes the gradients of a step and returns its loss; after the optimizer's step, `complete` makes rank 0 have the
    /// whole state.
    fn train<O: Optimizer>(
        mut self,
        mut optimizer: O,
        pass: impl Fn(usize) -> anyhow::Result<f64>,
        complete: impl Fn(&mut O) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let start = self.snapshots.resume(&self.vs, &mut optimizer, &self.group)?;
        for step in start.step..STEPS {
            optimizer.zero_grad();
            let loss = pass(step)?;
            optimizer.step()?;
            complete(&mut optimizer)?;
            self.report.step(0, step, loss, 1);
            self.snapshots.save_if(true, Save::new(after(step), &self.vs, &optimizer), &self.group)?;
        }
        self.end()
    }

    fn end(self) -> anyhow::Result<()> {
        self.snapshots.finish()?;
        checkpoint::save_of_rank(&self.vs, Path::new("weights"), self.group.rank())
    }
}

fn after(step: usize) -> Position {
    Position { epoch: 0, step: step + 1, samples: (step + 1) * WORLD }
}

fn inputs(number: usize) -> Tensor {
    (Tensor::arange(FEATURES, (Kind::Float, Device::Cpu)).unsqueeze(0) * 0.1 + number as f64 * 0.2).sin()
}

fn draw(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.5
}

/// Two layers, wrapped for DDP, and this rank's pass.
fn replicated(member: &Member) -> anyhow::Result<impl Fn(usize) -> anyhow::Result<f64> + use<>> {
    let root = member.vs.root();
    let net = nn::seq()
        .add(nn::linear(&root / "first", FEATURES, 7, Default::default()))
        .add_fn(|x| x.tanh())
        .add(nn::linear(&root / "second", 7, 3, Default::default()));
    let (group, options) = (Rc::clone(&member.group), DdpOptions { fixed_buckets: true, ..Default::default() });
    let (rank, model) = (group.rank().get(), DistributedDataParallel::new(net, &member.vs, group, &options)?);
    Ok(move |step| {
        let loss = model.forward(&inputs(step * WORLD + rank))?.square().mean(Kind::Float);
        model.backward(&loss)?;
        Ok(loss.double_value(&[]))
    })
}

fn ddp(member: Member) -> anyhow::Result<()> {
    let pass = replicated(&member)?;
    let optimizer = AdamW::new(named_parameters(&member.vs), adam_w())?;
    member.train(optimizer, pass, |_| Ok(()))
}

fn zero(member: Member) -> anyhow::Result<()> {
    let pass = replicated(&member)?;
    let (params, group) = (named_parameters(&member.vs), Rc::clone(&member.group));
    let optimizer = ZeroRedundancyOptimizer::new(params, adam_w(), group)?;
    member.train(optimizer, pass, |_| Ok(()))
}

fn tensor(member: Member) -> anyhow::Result<()> {
    let (weight1, bias1, weight2, bias2) =
        (draw(&[12, FEATURES]), draw(&[12]), draw(&[FEATURES, 12]), draw(&[FEATURES]));
    let mut layers = None;
    for rank in 0..WORLD {
        let part = member.vs.root() / part(rank);
        let (fc1, fc2) = (&part / "fc1", &part / "fc2");
        if rank == member.group.rank().get() {
            let fc1 = ColumnParallelLinear::new(&fc1, &weight1, Some(&bias1), &member.group)?;
            layers = Some(ParallelMlp::new(fc1, RowParallelLinear::new(&fc2, &weight2, Some(&bias2), &member.group)?));
            continue;
        }
        let of = |whole: &Tensor, dim| whole.chunk(WORLD as i64, dim)[rank].contiguous();
        for (path, name, tensor) in [
            (&fc1, "weight", of(&weight1, 0)),
            (&fc1, "bias", of(&bias1, 0)),
            (&fc2, "weight", of(&weight2, 1)),
            (&fc2, "bias", bias2.shallow_clone()),
        ] {
            let _of_another_rank = path.var_copy(name, &tensor);
        }
    }
    let (layers, group) = (layers.context("this rank is in its group")?, Rc::clone(&member.group));
    divided(member, move |step| {
        let loss = layers.try_forward(&inputs(step))?.square().mean(Kind::Float);
        c10d::backward_over(&group, &loss)?;
        Ok(loss.double_value(&[]))
    })
}

fn pipeline(member: Member) -> anyhow::Result<()> {
    let stage = |rank: usize| {
        let path = member.vs.root() / part(rank);
        ["a", "b"].map(|name| path.var_copy(name, &draw(&[FEATURES, FEATURES])))
    };
    let mut stages: Vec<_> = (0..WORLD).map(stage).collect();
    let layers = stages.swap_remove(member.group.rank().get());
    let received = Activations { size: vec![1, FEATURES], kind: Kind::Float };
    let pipeline = Pipeline::new(Rc::clone(&member.group), Schedule::one_f_one_b(WORLD, 4), received)?;
    divided(member, move |step| {
        let report = pipeline.step(
            |micro_batch| inputs(step * 4 + micro_batch),
            |x| layers.iter().fold(x.shallow_clone(), |x, weight| x.matmul(&weight.tr()).tanh()),
            |_, outputs| outputs.square().mean(Kind::Float),
        )?;
        Ok(report.loss.unwrap_or(0.0))
    })
}

fn part(rank: usize) -> String {
    format!("part{rank}")
}

/// Trains a model whose parts belong to one rank each.
fn divided(member: Member, pass: impl Fn(usize) -> anyhow::Result<f64>) -> anyhow::Result<()> {
    let (params, group) = (named_parameters(&member.vs), Rc::clone(&member.group));
    let optimizer = AdamW::new(named_parameters(&member.vs), adam_w())?;
    let own = format!("{}.", part(group.rank().get()));
    let others = || params.iter().filter(|(name, _)| !name.starts_with(&own)).map(|(_, param)| param);
    let pass = |step| {
        let loss = pass(step)?;
        // So that the optimizer has state for them as well.
        others().try_for_each(|param| c10d::add_grad(&mut param.shallow_clone(), &param.detach().zeros_like()))?;
        Ok(loss)
    };
    member.train(optimizer, pass, |optimizer| {
        let states = optimizer.shared_state()?.tensors();
        for (name, tensor) in params.iter().chain(&states) {
            let owner = (0..WORLD).find(|rank| name.split('.').any(|word| word == part(*rank)));
            let owner = Rank::new(owner.context("every tensor belongs to a part")?);
            no_grad(|| group.broadcast(&mut tensor.detach(), owner))?;
        }
        Ok(())
    })
}

fn sharded(mut member: Member) -> anyhow::Result<()> {
    let (vs, group) = (&member.vs, &member.group);
    let [first, second] = [("first", FEATURES, 7), ("second", 7, 3)]
        .map(|(name, from, to)| nn::linear(vs.root() / name, from, to, Default::default()));
    let model = FullyShard::new(vs, Rc::clone(group), &["first", "second"], &FullyShardOptions::default())?;
    let mut optimizer = AdamW::new(model.named_parameters(), adam_w())?;
    let start = member.snapshots.resume((vs, &model), &mut optimizer, group)?;
    for step in start.step..STEPS {
        let inputs = inputs(step * WORLD + group.rank().get());
        optimizer.zero_grad();
        let hidden = model.forward("first", &inputs, |x| first.forward(x).tanh())?;
        let loss = model.forward("second", &hidden, |x| second.forward(x))?.square().mean(Kind::Float);
        model.backward(&loss)?;
        optimizer.step()?;
        member.report.step(0, step, loss.double_value(&[]), 1);
        member.snapshots.save_if(true, Save::new(after(step), (vs, &model), &optimizer), group)?;
    }
    member.report.memory(&MemoryBytes::of_sharded(&model, &optimizer));
    model.summon_full_params(|| member.end())?
}

// ---- the tests

/// This executable as a program of the case, for a [`Job`].
fn script(folder: &Path, scheme: &str) -> PathBuf {
    let (path, own) = (folder.join("train"), std::env::current_exe().unwrap());
    let text = format!("#!/bin/sh\nLOCKSTEP_TEST_CASE='{CASE} {scheme}' exec '{}'\n", own.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Kills after a step, and while rank 0 writes a snapshot: one of each for schemes that save as DDP does, whose kills in all phases of
/// saving are lab 06's, and for a sharded run, which saves in its own way, in each phase. Between two of them, all ranks take a step
/// together.
pub(crate) fn ends_with_the_same_bits(scheme: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = script(folder.path(), scheme);
    let whole = undisturbed(&program, WORLD, &[]);
    // In a sharded run its part is the first file that rank 0 writes.
    let at_save = |step, phase| while_saving(0, step, phase, &[Act::Signal(9)]);
    let faults = match scheme {
        "sharded" => vec![
            at_save(1, SavePhase::HalfWritten),
            at_save(2, SavePhase::Written),
            at_save(3, SavePhase::Named),
            kill(2, 0, 5),
        ],
        _ => vec![kill(1, 0, 2), at_save(4, SavePhase::Written)],
    };
    let mut job = Job::with(&program, &faults);
    let attempts = job.finish(WORLD, &[]);
    assert_eq!((attempts, job.injected()), (faults.len() + 1, faults.len()), "{scheme}");
    assert!(job.weights(WORLD) == whole, "{scheme} ends with other bits");
    every_snapshot_is_whole(&job);
    if scheme == "sharded" {
        let counted = |events: &[(u32, Event)]| {
            events.iter().any(|(_, event)| matches!(event, Event::Memory { sent, .. } if *sent > 0))
        };
        assert!(job.events().values().all(|events| counted(events)));
    }
}

fn every_snapshot_is_whole(job: &Job) {
    let names = job.snapshots();
    assert!(!names.iter().any(|name| name.ends_with(".partial")), "{names:?}");
    let found = snapshot::list(&job.path("snapshots")).unwrap();
    assert!(!found.is_empty());
    for file in found {
        if let Err(why) = Snapshot::read(&file.path) {
            panic!("{}: {why}", file.path.display());
        }
    }
}

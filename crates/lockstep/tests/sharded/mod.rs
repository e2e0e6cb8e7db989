//! A fully sharded run whose ranks are killed: it ends with the bits of one without faults.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use c10d::{Endpoint, GroupOptions};
use lockstep::loader::Position;
use lockstep::memory::MemoryBytes;
use lockstep::optim::{AdamW, AdamWOptions, Optimizer};
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::snapshot::{Run, SnapshotOptions, Snapshots};
use lockstep::{LaunchEnv, Reporter, checkpoint, init_process_group};
use lockstep_contract::fault::{Act, SavePhase};
use lockstep_events::Event;
use lockstep_testkit::{Job, kill, undisturbed, while_saving};
use tch::nn::{self, Module, VarStore};
use tch::{Device, Kind, Tensor};

/// The program's name.
pub(crate) const CASE: &str = "sharded";

const WORLD: usize = 3;
const STEPS: usize = 6;

/// Trains a network of two units in one epoch and saves each step.
pub(crate) fn work(env: &LaunchEnv) -> anyhow::Result<()> {
    let options = GroupOptions { endpoint: Endpoint::Interface("lo".into()), ..Default::default() };
    let group = Rc::new(init_process_group(env, Device::Cpu, &options)?);
    let report = Reporter::new(env, Device::Cpu)?;
    tch::manual_seed(3);
    let vs = VarStore::new(Device::Cpu);
    let [first, second] = [("first", 5, 7), ("second", 7, 3)]
        .map(|(name, from, to)| nn::linear(vs.root() / name, from, to, Default::default()));
    let model = FullyShard::new(&vs, Rc::clone(&group), &["first", "second"], &FullyShardOptions::default())?;
    let mut optimizer = AdamW::new(model.named_parameters(), AdamWOptions { lr: 0.05, ..Default::default() })?;
    let run = Run { seed: 0, samples: STEPS * WORLD, data: 0, batch_size: 1 };
    let mut snapshots = Snapshots::new("snapshots", run, SnapshotOptions::default(), &report);
    let start = snapshots.resume_sharded(&vs, &model, &mut optimizer)?;
    for step in start.step..STEPS {
        let sample = (step * WORLD + env.rank.get()) as f64;
        let inputs = Tensor::arange(5, (Kind::Float, Device::Cpu)).unsqueeze(0) * 0.1 + sample * 0.2;
        optimizer.zero_grad();
        let hidden = model.forward("first", &inputs.sin(), |x| first.forward(x).tanh())?;
        let loss = model.forward("second", &hidden, |x| second.forward(x))?.square().mean(Kind::Float);
        model.backward(&loss)?;
        optimizer.step()?;
        report.step(0, step, loss.double_value(&[]), 1);
        let next = Position { epoch: 0, step: step + 1, samples: (step + 1) * WORLD };
        snapshots.save_sharded_if(true, next, &vs, &model, &optimizer)?;
    }
    report.memory(&MemoryBytes::of_sharded(&model, &optimizer));
    snapshots.finish()?;
    model.summon_full_params(|| checkpoint::save_of_rank(&vs, Path::new("weights"), env.rank))?
}

/// This executable as a program of the case, for a [`Job`].
fn script(folder: &Path) -> PathBuf {
    let (path, own) = (folder.join("train"), std::env::current_exe().unwrap());
    let text = format!("#!/bin/sh\nLOCKSTEP_TEST_CASE={CASE} exec '{}'\n", own.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let program = script(folder.path());
    let whole = undisturbed(&program, WORLD, &[]);
    // Its part is the first that rank 0 writes.
    let at_save = |step, phase| while_saving(0, step, phase, &[Act::Signal(9)]);
    let plans = [
        vec![kill(1, 0, 2)],
        vec![at_save(3, SavePhase::HalfWritten), at_save(4, SavePhase::Written)],
        vec![at_save(2, SavePhase::Named), kill(2, 0, 4)],
    ];
    for faults in plans {
        let mut job = Job::with(&program, &faults);
        let attempts = job.finish(WORLD, &[]);
        assert_eq!((attempts, job.injected()), (faults.len() + 1, faults.len()), "{faults:?}");
        assert_eq!(job.weights(WORLD), whole, "{faults:?}");
        let counted = |events: &[(u32, Event)]| {
            events.iter().any(|(_, event)| matches!(event, Event::Memory { sent, .. } if *sent > 0))
        };
        assert!(job.events().values().all(|events| counted(events)));
    }
}

//! Recorded jobs: what a recording says of ranks that hang, are late, or are killed. The ranks run under `lockstep run`'s launcher, which
//! this executable is, too.

use std::process::{Command, Output};
use std::rc::Rc;
use std::{env, fs};

use anyhow::Context;
use c10d::{GroupOptions, ProcessGroup, ReduceOp};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Rank, Reporter, init_process_group, spawn};
use lockstep_contract::recording::{Enter, FOLDER, Line, Recorded, folder};
use lockstep_process::watchdog::until;
use lockstep_replay::model::{MarkKind, SpanKind};
use lockstep_replay::{Replay, read};
use rustix::process::{Signal, getpid, kill_process};
use tch::nn::{self, VarStore};
use tch::{Device, Kind, Tensor};

use crate::failures::{on_host, set_timeout, timeout};
use crate::{Test, finish, program, text};

/// Before the names of the cases.
pub(crate) const CASE: &str = "recorded";
/// The case that is the launcher.
pub(crate) const LAUNCHER: &str = "launcher";

pub(crate) const TESTS: &[Test] = &[
    ("a_recording_shows_two_ranks_in_different_collectives", || hangs(&["gloo", "shm"])),
    ("a_recording_shows_for_whom_the_others_waited", || straggles(&["gloo", "shm"])),
    ("a_recording_shows_a_kill_and_the_restart_after_it", || killed(&["gloo", "shm"])),
    ("spawned_ranks_are_recorded_with_their_ends", spawned),
    ("a_launcher_says_where_it_recorded_and_refuses_what_it_cannot_replace", refuses),
];

// ---- the ranks

pub(crate) fn case(name: &str) -> anyhow::Result<()> {
    match name {
        "spawned" => Ok(spawn(2, &(), |env, ()| {
            let group = init_process_group(env, Device::Cpu, &on_host(env))?;
            Ok(group.barrier()?)
        })?),
        _ => work(&LaunchEnv::from_env()?, name),
    }
}

fn work(env: &LaunchEnv, name: &str) -> anyhow::Result<()> {
    let group = Rc::new(init_process_group(env, Device::Cpu, &on_host(env))?);
    match name {
        "hang" => hang(&group),
        "straggler" => straggle(&group),
        "killed" => train(env, &group),
        "nothing" => Ok(()),
        other => anyhow::bail!("no case {other:?}"),
    }
}

/// Both ranks are in both groups, and each enters the barrier of another one.
fn hang(group: &ProcessGroup) -> anyhow::Result<()> {
    let options = GroupOptions { timeout: timeout()?, ..group.options().clone() };
    let members = [Rank::ZERO, Rank::new(1)];
    let groups = [group.new_group(&members, &options)?, group.new_group(&members, &options)?];
    let own = groups[group.rank().get()].as_ref().context("a member")?;
    Ok(own.barrier()?)
}

/// Rank 2 sums when the others have been waiting for it.
fn straggle(group: &ProcessGroup) -> anyhow::Result<()> {
    let mut t = Tensor::ones([3], (Kind::Float, Device::Cpu));
    group.all_reduce(&mut t, ReduceOp::Sum)?;
    if group.rank() == Rank::new(2) {
        [0, 1].into_iter().try_for_each(|rank| until_in_call(rank, 2))?;
    }
    Ok(group.all_reduce(&mut t, ReduceOp::Sum)?)
}

/// Waits until a rank's recording has this.
fn until_recorded(rank: usize, has: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let path = folder().context("not recorded")?.join(format!("rank-{rank}.jsonl"));
    Ok(until(|| fs::read_to_string(&path).is_ok_and(|text| has(&text)))?)
}

/// Waits until a rank's recording says that it has entered its collective of this number.
fn until_in_call(rank: usize, number: u64) -> anyhow::Result<()> {
    let is_in_call = |line: &str| {
        let line: Option<Line> = serde_json::from_str(line).ok();
        line.is_some_and(|line| matches!(line.what, Recorded::Enter(Enter { number: of, .. }) if of == Some(number)))
    };
    until_recorded(rank, |text| text.lines().any(is_in_call)).context("no such call")
}

/// Three steps under DDP. At the first start, rank 1 kills itself after the second, when rank 0 waits in the next.
fn train(env: &LaunchEnv, group: &Rc<ProcessGroup>) -> anyhow::Result<()> {
    let (report, vs) = (Reporter::new(env, Device::Cpu)?, VarStore::new(Device::Cpu));
    let net = nn::linear(vs.root(), 4, 1, Default::default());
    let model = DistributedDataParallel::new(net, &vs, Rc::clone(group), &DdpOptions::default())?;
    let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: 0.1, ..Default::default() })?;
    for step in 0..3 {
        if (step, env.restart_count, env.rank) == (2, 0, Rank::new(1)) {
            until_backward(0, 3)?;
            kill_process(getpid(), Signal::KILL)?;
        }
        optimizer.zero_grad();
        let loss = model.forward(&Tensor::ones([1, 4], (Kind::Float, Device::Cpu)))?.sum(Kind::Float);
        model.backward(&loss)?;
        optimizer.step()?;
        report.step(0, step, loss.double_value(&[]), 1);
    }
    Ok(())
}

/// Waits until a rank's recording has this many backward passes.
fn until_backward(rank: usize, count: usize) -> anyhow::Result<()> {
    let passes = |text: &str| text.lines().filter(|line| line.contains("\"operation\":\"backward with")).count();
    until_recorded(rank, |text| passes(text) >= count).context("no such pass")
}

// ---- the tests

/// Runs a case under the launcher, which records it in `run` of the folder.
fn launched(folder: &std::path::Path, flags: &[&str], backend: &str, case: &str) -> Output {
    let mut command: Command = program(LAUNCHER);
    command.args(["--standalone", "--record=run", "--stacks=never"]).args(flags);
    let case = format!("{}={CASE} {case}", crate::CASE);
    command.args(["env", &case, &format!("LOCKSTEP_BACKEND={backend}")]).arg(env::current_exe().unwrap());
    set_timeout(&mut command).current_dir(folder).env("GLOO_SOCKET_IFNAME", "lo");
    finish(command)
}

/// Records a case on each backend.
fn on_each(backends: &[&str], flags: &[&str], case: &str, check: impl Fn(&Output, &Replay)) {
    for backend in backends {
        let dir = tempfile::tempdir().unwrap();
        let output = launched(dir.path(), flags, backend, case);
        let replay = read(&dir.path().join("run")).unwrap_or_else(|why| panic!("{why}: {}", text(&output.stderr)));
        assert!(text(&output.stderr).contains("recorded in "), "{}", text(&output.stderr));
        assert!(replay.missing.is_empty(), "{:?}", replay.missing);
        check(&output, &replay);
    }
}

fn hangs(backends: &[&str]) {
    on_each(backends, &["--nproc-per-node=2"], "hang", |output, replay| {
        assert_eq!(output.status.code(), Some(1));
        let [standstill] = &replay.standstills[..] else { panic!("{:?}", replay.standstills) };
        assert_eq!((&standstill.ranks[..], standstill.circle), (&[0, 1][..], true), "{standstill:?}");
        let never: Vec<_> = replay.waits.iter().filter(|wait| wait.to.is_none()).collect();
        assert_eq!(never.len(), 2, "{:?}", replay.waits);
        for wait in never {
            let (other, group) = (1 - wait.rank, wait.rank + 1);
            assert_eq!(wait.on.iter().map(|on| on.rank).collect::<Vec<_>>(), [other]);
            let why = wait.why.as_deref().unwrap();
            // The one that gives up later sees that the other one has.
            let begin = format!("rank {other} has not called barrier (call 1 of group {group}): it ");
            let there = format!(" in barrier (call 1 of group {})", other + 1);
            assert!(why.starts_with(&begin) && why.contains(&there), "{why}");
        }
        let errors = replay.lanes.iter().flat_map(|lane| &lane.marks).filter(|mark| mark.kind == MarkKind::Error);
        assert!(errors.count() >= 1);
    });
}

fn straggles(backends: &[&str]) {
    on_each(backends, &["--nproc-per-node=3"], "straggler", |output, replay| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(replay.standstills.is_empty() && replay.mismatches.is_empty());
        for rank in [0, 1] {
            let second = |span: &&lockstep_replay::model::Span| {
                span.call.as_ref().is_some_and(|call| call.number == Some(2) && span.kind == SpanKind::Collective)
            };
            let span = replay.lanes[rank].spans.iter().find(second).unwrap();
            let wait = replay.waits.iter().find(|wait| wait.span == span.id).unwrap();
            let last = wait.on.iter().max_by_key(|on| on.until).unwrap();
            assert_eq!((last.rank, last.until), (2, wait.to), "{wait:?}");
            let call = span.call.as_ref().unwrap();
            assert_eq!((call.bytes, call.before.len(), call.after.len(), span.matched.len()), (Some(12), 3, 3, 2));
        }
        assert!(replay.lanes[2].waited_for > 0);
        assert_eq!(replay.attempts[0].ended.as_deref(), Some("all ranks succeeded"));
    });
}

fn killed(backends: &[&str]) {
    on_each(backends, &["--nproc-per-node=2", "--max-restarts=1"], "killed", |output, replay| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let ended: Vec<_> = replay.attempts.iter().map(|attempt| attempt.ended.as_deref().unwrap()).collect();
        assert_eq!(ended, ["rank 1 was killed by SIGKILL", "all ranks succeeded"]);
        let [standstill] = &replay.standstills[..] else { panic!("{:?}", replay.standstills) };
        assert_eq!((standstill.attempt, &standstill.ranks[..], standstill.circle), (0, &[1][..], false));
        assert!(standstill.text.contains("killed by SIGKILL"), "{}", standstill.text);
        let steps = |rank: usize, attempt: u32| {
            let of = |span: &&lockstep_replay::model::Span| span.kind == SpanKind::Step && span.attempt == attempt;
            replay.lanes[rank].spans.iter().filter(of).filter(|span| span.to.is_some()).count()
        };
        assert_eq!([(0, 0), (1, 0), (0, 1), (1, 1)].map(|(rank, attempt)| steps(rank, attempt)), [2, 2, 3, 3]);
        assert!(replay.marks.iter().any(|mark| mark.kind == MarkKind::Restart && mark.attempt == 0));
        assert!(replay.lanes[1].marks.iter().any(|mark| mark.kind == MarkKind::Death));
        let passes = replay.lanes[0].spans.iter().filter(|span| span.name.starts_with("backward with"));
        let bytes: Vec<_> =
            passes.filter(|span| span.to.is_some()).map(|span| span.call.clone().unwrap().bytes).collect();
        assert!(bytes.contains(&Some(20)), "5 gradients of 4 bytes: {bytes:?}");
    });
}

fn spawned() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program(&format!("{CASE} spawned"));
    command.env(FOLDER, dir.path()).env("GLOO_SOCKET_IFNAME", "lo");
    let output = finish(command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let replay = read(dir.path()).unwrap();
    assert!(replay.missing.is_empty(), "{:?}", replay.missing);
    assert_eq!(replay.attempts[0].ended.as_deref(), Some("all ranks succeeded"));
    for lane in &replay.lanes {
        assert_eq!(lane.processes[0].ended.as_deref(), Some("exit code 0"));
        assert!(lane.spans.iter().any(|span| span.name == "barrier" && span.matched.len() == 1));
    }
}

fn refuses() {
    let dir = tempfile::tempdir().unwrap();
    let run = |record: &str| {
        let mut command = program(LAUNCHER);
        command.args(["--standalone", record, "sh", "-c", "true"]).current_dir(dir.path());
        finish(command)
    };
    for (place, why) in [("/dev/null", "it is not a file"), (".", "is a folder, and a file is meant")] {
        let output = run(&format!("--record={place}"));
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
    assert_eq!(run("--record=new/run").status.code(), Some(0));
    let replay = read(&dir.path().join("new/run")).unwrap();
    assert!(!replay.lanes[0].recorded && replay.missing[0].contains("only the launcher's part is recorded"));
}

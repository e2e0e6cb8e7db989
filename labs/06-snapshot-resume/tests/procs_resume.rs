//! The lab's promise: whatever is killed, and whenever, the run ends with the same bits as a run without a failure. Signals ask for a
//! snapshot: whichever ranks receive one, and whenever, all ranks act after the same step.

#![allow(clippy::unwrap_used)] // a test may

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use lockstep::events::Event;
use lockstep_contract::fault::{Act, Point, RankFault, SavePhase};
use lockstep_contract::snapshot_request::{LAUNCHER, SAVE, SAVE_AND_END, SAVED, SNAPSHOT_ON};
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Attempt, Job, Running, kill, while_saving};
use rustix::process::{Pid, Signal, kill_process};

/// The arguments of a job that takes a second. An epoch has 25 steps for 1 rank, 13 for 2, 9 for 3, 7 for 4; a snapshot is saved
/// after every 3 of them and at the epochs' ends.
fn quick(model: &'static str, epochs: &'static str) -> Vec<&'static str> {
    let sizes = ["--samples", "50", "--batch-size", "2", "--save-every-steps", "3"];
    let rest = ["--model", model, "--epochs", epochs, "--weights", "weights", "--device", "cpu"];
    [&sizes[..], &rest].concat()
}

fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-06-snapshot-resume")
}

fn undisturbed(world: usize, args: &[&str]) -> Vec<u8> {
    lockstep_testkit::undisturbed(lab(), world, args)
}

/// Kills ranks at six points, one per attempt: before the first snapshot, right after one, at the start and end of an epoch.
fn survives_kills(world: usize) {
    let (last, args) = (world - 1, quick("mlp", "2"));
    let steps = 50_usize.div_ceil(world).div_ceil(2) as u64;
    let faults = [
        kill(last, 0, 1),
        kill(0, 0, 3),
        kill(last, 0, steps - 1),
        kill(0, 1, 0),
        kill(last, 1, 4),
        kill(0, 1, steps - 1),
    ];
    let mut job = Job::with(lab(), &faults);
    assert_eq!(job.finish(world, &args), 7);
    assert_eq!(job.injected(), 6);
    assert!(job.weights(world) == undisturbed(world, &args), "the weights have other bits");
}

#[test]
fn kills_of_a_process_alone_change_no_bit() {
    survives_kills(1);
}

#[test]
fn kills_of_either_of_two_ranks_change_no_bit() {
    survives_kills(2);
}

/// Three ranks, whose shares of 50 samples are padded.
#[test]
fn the_convolutional_network_survives_kills_on_three_ranks() {
    let args = quick("conv", "2");
    let mut job = Job::with(lab(), &[kill(1, 0, 4), kill(2, 1, 2)]);
    assert_eq!(job.finish(3, &args), 3);
    assert!(job.weights(3) == undisturbed(3, &args), "the weights have other bits");
}

#[test]
fn a_kill_in_any_phase_of_saving_leaves_a_good_snapshot_and_no_other_file() {
    let args = quick("mlp", "2");
    let phases = [SavePhase::HalfWritten, SavePhase::Written, SavePhase::Named];
    let faults = phases.map(|phase| while_saving(0, 6, phase, &[Act::Signal(9)]));
    let mut job = Job::with(lab(), &faults);
    for (phase, newest) in phases.into_iter().zip(["000000-00000003", "000000-00000003", "000000-00000006"]) {
        assert!(!job.attempt(2, &args).succeeded());
        let names = job.snapshots();
        let (temporary, saved): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.ends_with(".partial"));
        assert_eq!(saved.last().unwrap().as_str(), format!("snapshot-{newest}.safetensors"));
        assert_eq!(temporary.len(), usize::from(phase != SavePhase::Named), "{names:?}");
    }
    assert_eq!(job.finish(2, &args), 1);
    assert_eq!(job.snapshots(), ["snapshot-000001-00000012.safetensors", "snapshot-000002-00000000.safetensors"]);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
}

/// Starts the job again, whose newest snapshot, after `damaged` steps, is so.
fn resumes_from_the_one_before(job: &mut Job, damaged: u64, message: &str) -> Attempt {
    let resumed = job.attempt(2, &quick("mlp", "2"));
    let warning = format!("skipped the snapshot snapshots/snapshot-000001-{damaged:08}.safetensors: it is {message}");
    assert!(resumed.stderr().contains(&warning), "{}", resumed.stderr());
    let resuming = format!("Resuming training from snapshot at Epoch 1, step {}\n", damaged - 3);
    assert!(resumed.stdout().starts_with(&resuming), "{}", resumed.stdout());
    resumed
}

/// Each is damaged right after it was saved, and its writer killed.
#[test]
fn a_torn_snapshot_and_one_with_a_flipped_bit_are_each_skipped_for_the_one_before() {
    let args = quick("mlp", "2");
    let harmed = |step, harm| while_saving(1, step, SavePhase::Named, &[harm, Act::Signal(9)]);
    let mut job = Job::with(lab(), &[harmed(6, Act::TearSnapshot), harmed(9, Act::FlipSnapshotBit)]);
    assert!(!job.attempt(2, &args).succeeded());
    assert!(!resumes_from_the_one_before(&mut job, 6, "torn: ").succeeded());
    let resumed = resumes_from_the_one_before(&mut job, 9, "damaged: its checksum is ");
    assert!(resumed.succeeded(), "{}", resumed.stderr());
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
    assert_eq!(job.snapshots(), ["snapshot-000001-00000012.safetensors", "snapshot-000002-00000000.safetensors"]);
    let resume = |(attempt, event): &(u32, Event)| match event {
        Event::Resume { epoch, step, .. } => Some((*attempt, *epoch, *step)),
        _ => None,
    };
    for (rank, events) in job.events() {
        assert_eq!(events.iter().filter_map(resume).collect::<Vec<_>>(), [(1, 1, 3), (2, 1, 6)], "rank {rank}");
    }
}

#[test]
fn starts_from_the_beginning_when_the_only_snapshot_is_torn() {
    let args = quick("mlp", "2");
    let mut job = Job::with(lab(), &[while_saving(0, 3, SavePhase::Named, &[Act::TearSnapshot, Act::Signal(9)])]);
    assert_eq!(job.finish(2, &args), 2);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
}

#[test]
fn survives_exits_and_panics() {
    let args = quick("mlp", "2");
    let fault = |rank, act| while_saving(0, rank, SavePhase::Written, &[act]);
    let mut panics = kill(1, 0, 4);
    panics.acts = vec![Act::Panic];
    let mut job = Job::with(lab(), &[panics, fault(6, Act::Exit(7))]);
    let first = job.attempt(2, &args);
    assert!(first.stderr().contains("a panic was asked for"), "{}", first.stderr());
    let second = job.attempt(2, &args);
    assert_eq!(second.0[0].status.code(), Some(7), "{}", second.stderr());
    assert_eq!(job.finish(2, &args), 1);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
    let message = |event: &Event| if let Event::Fault { message } = event { Some(message.clone()) } else { None };
    let of_rank_0: Vec<_> = job.events()[&0].iter().filter_map(|(_, event)| message(event)).collect();
    assert_eq!(of_rank_0, ["injected: exit 7 (save-0-6-Written)"]);
}

#[test]
fn a_finished_run_only_writes_its_weights_again_and_goes_on_if_it_is_asked_for_more_epochs() {
    let args = quick("mlp", "2");
    let mut job = Job::new(lab());
    assert!(job.attempt(2, &args).succeeded());
    let weights = job.weights(2);
    std::fs::remove_dir_all(job.path("weights")).unwrap();
    let again = job.attempt(2, &args);
    assert_eq!(again.stdout(), "Resuming training from snapshot at Epoch 2\n");
    assert!(job.weights(2) == weights);
    let three = quick("mlp", "3");
    assert!(job.attempt(2, &three).succeeded());
    assert!(job.weights(2) == undisturbed(2, &three));
}

#[test]
fn a_resumed_python_script_prints_what_an_undisturbed_run_does() {
    let Some(mut twin) = Job::in_python("lab 06 and its Python script") else { return };
    lockstep::data::Digits::write_idx(&twin.path("digits"), 3, 300, 75).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshot_resume.py");
    let mut printed = String::new();
    for epochs in ["1", "2"] {
        let python = twin.attempt(2, &[script, "--data", "digits", "--seed", "3", "--epochs", epochs]);
        assert!(python.succeeded(), "{}", python.stderr());
        printed += &python.stdout();
    }
    assert!(printed.contains("Resuming training from snapshot at Epoch 1\n"), "{printed}");
    let own = Job::new(lab()).attempt(2, &["--samples", "300", "--seed", "3", "--epochs", "2", "--device", "cpu"]);
    assert!(own.succeeded(), "{}", own.stderr());
    assert_prints_alike(&own.stdout(), &printed, &["Epoch: "], 1e-3);
}

/// A rank gets a signal after a step, before it looks for one.
fn signal(rank: usize, epoch: u64, step: u64, signal: i32) -> RankFault {
    let at = Point::Step { epoch, step };
    RankFault { name: format!("signal-{signal}-{rank}-{epoch}-{step}"), rank, at, acts: vec![Act::Signal(signal)] }
}

fn assert_saved(attempt: &Attempt) {
    for rank in &attempt.0 {
        assert_eq!(rank.status.code(), Some(SAVED.into()), "{}{}", attempt.stdout(), attempt.stderr());
    }
    assert!(attempt.stdout().contains("A signal asked for a snapshot and the end: epoch "), "{}", attempt.stdout());
    assert!(!attempt.stderr().contains("error"), "the end is no error: {}", attempt.stderr());
}

/// Where training would continue from the snapshots that were saved, in order.
fn saved(job: &Job) -> Vec<(u64, u64)> {
    let position = |(_, event): &(u32, Event)| match event {
        Event::Snapshot { epoch, step, .. } => Some((*epoch, *step)),
        _ => None,
    };
    job.events()[&0].iter().filter_map(position).collect()
}

/// Rank 0 gets one in the first attempt, and rank 1 in the second.
#[test]
fn a_signal_to_any_one_rank_saves_and_ends_all_ranks_after_the_same_step() {
    let args = quick("mlp", "2");
    let mut job = Job::with(lab(), &[signal(0, 0, 3, SAVE_AND_END), signal(1, 0, 6, SAVE_AND_END)]);
    assert_saved(&job.attempt(2, &args));
    assert_eq!(saved(&job), [(0, 3), (0, 5)], "a signal after step 3 is noted there and granted after step 4");
    assert_saved(&job.attempt(2, &args));
    assert_eq!(saved(&job)[2..], [(0, 6), (0, 8)], "one after step 6 is granted after step 7");
    assert_eq!(job.finish(2, &args), 1);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
}

#[test]
fn a_signal_to_any_one_rank_saves_once_and_changes_no_bit() {
    let args = quick("mlp", "2");
    let mut job = Job::with(lab(), &[signal(0, 0, 3, SAVE), signal(1, 0, 9, SAVE)]);
    assert_eq!(job.finish(2, &args), 1);
    assert_eq!(saved(&job)[..6], [(0, 3), (0, 5), (0, 6), (0, 9), (0, 11), (0, 12)]);
    assert!(job.weights(2) == undisturbed(2, &args), "the weights have other bits");
}

#[test]
fn signals_of_both_kinds_to_several_ranks_at_once_end_the_run_once() {
    let args = quick("mlp", "2");
    let mut job = Job::with(
        lab(),
        &[signal(0, 0, 6, SAVE), signal(1, 0, 6, SAVE_AND_END), signal(2, 0, 6, SAVE), signal(2, 0, 7, SAVE_AND_END)],
    );
    assert_saved(&job.attempt(3, &args));
    assert_eq!(saved(&job), [(0, 3), (0, 6), (0, 8)]);
    assert_eq!(job.finish(3, &args), 1);
    assert!(job.weights(3) == undisturbed(3, &args), "the weights have other bits");
}

#[test]
fn a_process_alone_saves_and_ends_after_the_step_of_the_signal() {
    let args = quick("mlp", "1");
    let job = Job::with(lab(), &[signal(0, 0, 9, SAVE_AND_END)]);
    assert_eq!(job.alone(&args).status.code(), Some(SAVED.into()));
    assert_eq!(saved(&job), [(0, 3), (0, 6), (0, 9), (0, 10)]);
    assert!(job.alone(&args).status.success());
    assert!(job.weights(1) == undisturbed(1, &args), "the weights have other bits");
}

/// A rank that has begun to train, and would train for long. To its launcher, this process or another one, SIGTERM is a request for a
/// snapshot.
fn trains(job: &Job, launcher: u32) -> Running {
    let mut command = job.command(lab());
    command.args(quick("mlp", "100000")).env(SNAPSHOT_ON, "SIGTERM").env(LAUNCHER, launcher.to_string());
    let running = Running::start(command);
    let saved = || fs::read_dir(job.path("snapshots")).is_ok_and(|mut entries| entries.next().is_some());
    lockstep_process::watchdog::until(saved).expect("the rank did not save");
    running
}

#[test]
fn sigterm_of_a_scheduler_saves_and_ends_and_that_of_the_launcher_ends_at_once() {
    let me = std::process::id();
    let end = |launcher: u32| {
        let job = Job::new(lab());
        let rank = trains(&job, launcher);
        kill_process(Pid::from_raw(rank.pid() as i32).unwrap(), Signal::TERM).unwrap();
        rank.end().status
    };
    assert_eq!(end(me).signal(), Some(15));
    assert_eq!(end(me + 1).code(), Some(SAVED.into()));
}

#[test]
fn a_run_that_sigterm_ended_goes_on_with_the_same_bits() {
    let args = quick("mlp", "8");
    let job = Job::with(lab(), &[signal(0, 0, 3, 15)]);
    let run = || {
        let mut command = job.command(lab());
        command.args(&args).env(SNAPSHOT_ON, "SIGTERM").env(LAUNCHER, "1").output().unwrap()
    };
    let first = run();
    assert_eq!(first.status.code(), Some(SAVED.into()), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(run().status.success());
    assert!(job.weights(1) == undisturbed(1, &args), "the weights have other bits");
}

/// The same as [`quick`], trained as six virtual ranks: an epoch has 5 steps.
fn elastic(epochs: &'static str) -> Vec<&'static str> {
    [&quick("mlp", epochs)[..], &["--virtual-ranks", "6"]].concat()
}

#[test]
fn virtual_ranks_end_with_the_same_bits_whatever_number_of_ranks_is_left() {
    let args = elastic("3");
    let mut job = Job::with(lab(), &[kill(3, 0, 3), kill(2, 1, 1), kill(0, 2, 0), kill(4, 2, 3)]);
    for world in [4, 3, 1, 5] {
        let attempt = job.attempt(world, &args);
        assert!(!attempt.succeeded());
        assert!(!attempt.stderr().contains("differ in bits"), "{}", attempt.stderr());
    }
    // Which snapshot is the newest depends on how far its writer was; there is one inside an epoch.
    let attempt = job.succeeds(2, &args);
    assert!(attempt.stdout().starts_with("Resuming training from snapshot at Epoch "), "{}", attempt.stdout());
    assert_eq!(job.injected(), 4);
    assert!(job.weights(2) == undisturbed(1, &args), "the weights have other bits");
    assert!(job.weights(2) == undisturbed(6, &args), "the weights have other bits");
}

#[test]
fn what_else_decides_bits_is_named_before_training_goes_on() {
    let mut job = Job::new(lab());
    job.succeeds(1, &elastic("1"));
    let stderr = |args: &[&str], variable: (&str, &str)| {
        let mut command = job.command(job.program());
        command.args(args).env(variable.0, variable.1);
        let ended = job.run_all(vec![command]).remove(0);
        assert!(ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    };
    let with = |flag: &'static str, value: &'static str| {
        let mut args = elastic("1");
        match args.iter().position(|arg| *arg == flag) {
            Some(at) => args[at + 1] = value,
            None => args.extend([flag, value]),
        }
        args
    };
    let none = ("OMP_NUM_THREADS", "1");
    let said = stderr(&elastic("1"), none);
    assert!(!said.contains("differ in bits") && !said.contains("when the snapshot was taken"), "{said}");
    let x86 = cfg!(target_arch = "x86_64");
    for (args, variable, says) in [
        (elastic("1"), ("OMP_NUM_THREADS", "2"), &["with 1 libtorch threads", "goes on with 2", "OMP_NUM_THREADS"][..]),
        (with("--virtual-ranks", "4"), none, &["with 6 virtual ranks", "goes on with 4", "--virtual-ranks"]),
        (with("--batch-size", "3"), none, &["with 2 samples in a rank's batch", "goes on with 3"]),
        (with("--seed", "1"), none, &["the seed was 0 when the snapshot was taken and is 1 now"]),
        // Where libtorch has kernels for more than one kind of processor, and this one is of the better.
        (
            elastic("1"),
            ("ATEN_CPU_CAPABILITY", "default"),
            if x86 { &["instructions", "ATEN_CPU_CAPABILITY"] } else { &[] },
        ),
    ] {
        let said = stderr(&args, variable);
        assert!(says.iter().all(|words| said.contains(words)), "{variable:?} {args:?}: {said}");
    }
}

#[test]
fn another_number_of_virtual_ranks_is_named_and_more_ranks_than_that_are_refused() {
    let mut job = Job::new(lab());
    job.succeeds(2, &elastic("1"));
    let four = [&quick("mlp", "2")[..], &["--virtual-ranks", "4"]].concat();
    let stderr = job.succeeds(2, &four).stderr();
    assert!(stderr.contains("taken with 6 virtual ranks") && stderr.contains("goes on with 4"), "{stderr}");
    assert!(stderr.contains("--virtual-ranks"), "{stderr}");
    let refused = job.attempt(3, &[&quick("mlp", "2")[..], &["--virtual-ranks", "2"]].concat());
    assert!(!refused.succeeded());
    let stderr = refused.stderr();
    assert!(
        stderr.contains("3 ranks are more than 2 virtual ranks") && stderr.contains("start 2 ranks or fewer"),
        "{stderr}"
    );
}

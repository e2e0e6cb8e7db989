//! What the lab does when snapshots cannot be saved, when they belong to another run, or when the number of ranks changes.

#![allow(clippy::unwrap_used)] // a test may

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use lockstep::data::Digits;
use lockstep::events::Event;
use lockstep_contract::fault::{Act, SavePhase};
use lockstep_testkit::{Job, Running, kill, undisturbed, while_saving};

fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-06-snapshot-resume")
}

/// A job that takes a second, with more arguments. A snapshot is saved after every 3 steps of an epoch, and at its end.
fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&of_model("mlp")[..], more].concat()
}

fn of_model(model: &str) -> Vec<&str> {
    let sizes = ["--samples", "50", "--batch-size", "2", "--save-every-steps", "3"];
    [&sizes[..], &["--model", model, "--epochs", "2", "--weights", "weights", "--device", "cpu"]].concat()
}

#[test]
fn continues_with_a_warning_when_there_is_no_space_and_keeps_the_old_snapshot() {
    let args = with(&[]);
    let mut job = Job::with(
        lab(),
        &[
            while_saving(0, 6, SavePhase::HalfWritten, &[Act::NoSpace]),
            while_saving(0, 9, SavePhase::Written, &[Act::NoSpace]),
            while_saving(0, 12, SavePhase::HalfWritten, &[Act::NoSpace]),
            while_saving(1, 0, SavePhase::HalfWritten, &[Act::Signal(9)]),
        ],
    );
    let first = job.attempt(2, &args);
    assert!(!first.succeeded());
    assert_eq!(first.stderr().matches("No space left on device").count(), 3, "{}", first.stderr());
    assert!(first.stderr().contains("those that were there still are"), "{}", first.stderr());
    let names = job.snapshots();
    assert!(names.len() == 2 && names[0].ends_with(".partial"), "what the killed writer left, and one more: {names:?}");
    assert_eq!(names[1], "snapshot-000000-00000003.safetensors");
    assert_eq!(job.finish(2, &args), 1);
    assert!(job.weights(2) == undisturbed(lab(), 2, &args));
}

#[test]
fn stops_when_there_is_no_space_if_asked_to() {
    let mut job = Job::with(lab(), &[while_saving(0, 6, SavePhase::Written, &[Act::NoSpace])]);
    let ended = job.attempt(2, &with(&["--on-save-error", "stop"]));
    let message = String::from_utf8_lossy(&ended.0[0].stderr).into_owned();
    assert_eq!(ended.0[0].status.code(), Some(1), "{message}");
    assert!(
        message.contains("error: failed to save the snapshot snapshots/snapshot-000000-00000006.safetensors"),
        "{message}"
    );
    assert!(message.contains("caused by: No space left on device"), "{message}");
    assert_eq!(job.snapshots(), ["snapshot-000000-00000003.safetensors"]);
}

/// Runs one process in a mount namespace where `snapshots` is a file system of 500 KiB: two snapshots fit, three do not.
#[test]
fn continues_when_the_disk_is_really_full() {
    let job = Job::new(lab());
    fs::create_dir(job.path("snapshots")).unwrap();
    let mut trial = job.command("unshare");
    trial.args(["-Urm", "sh", "-c", "mount -t tmpfs -o size=500k none snapshots"]);
    if !trial.status().is_ok_and(|status| status.success()) {
        println!("not verified here: a full disk (no file system can be mounted without privileges)");
        return;
    }
    let mut command = job.command("unshare");
    let script = "mount -t tmpfs -o size=500k none snapshots; \"$0\" \"$@\"; code=$?; ls -A snapshots; exit $code";
    command.args(["-Urm", "sh", "-c", script]).arg(lab()).args(with(&[]));
    let output = Running::start(command).end();
    let (printed, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("No space left on device") && message.contains("training goes on"), "{message}");
    let left: Vec<&str> = printed.lines().rev().take(2).collect();
    assert_eq!(left, ["snapshot-000000-00000006.safetensors", "snapshot-000000-00000003.safetensors"], "{printed}");
    assert!(job.weights(1) == undisturbed(lab(), 1, &with(&[])));
}

#[test]
fn does_not_begin_to_train_when_nothing_can_be_saved_in_the_folder() {
    let mut job = Job::new(lab());
    fs::write(job.path("file"), "").unwrap();
    symlink("/no/such/disk", job.path("link")).unwrap();
    symlink("/proc", job.path("readonly")).unwrap();
    for (ranks, folder, why) in [
        (2, "file/inside", "file is a file, and a folder is meant"),
        (1, "link", "link is a link to /no/such/disk, which does not exist"),
        (1, "readonly/snapshots", "nothing can be written to readonly"),
    ] {
        let ended = job.attempt(ranks, &with(&["--snapshots", folder]));
        let (out, err) = (ended.stdout(), ended.stderr());
        let message = format!("cannot save snapshots in {folder}: {why}");
        assert!(!ended.succeeded() && err.contains(&message) && !out.contains("Epoch"), "{out}{err}");
    }
}

#[test]
fn rejects_the_snapshots_of_another_model_on_every_rank_with_both_sides_named() {
    let mut job = Job::new(lab());
    assert!(job.attempt(2, &with(&[])).succeeded());
    let ended = job.attempt(2, &of_model("conv"));
    for output in &ended.0 {
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        for words in [
            "snapshots/snapshot-000002-00000000.safetensors: it is of another model: it lacks conv1.bias, conv1.weight",
            "fc1.weight is F32 [32, 784] there and F32 [64, 1568] here",
            "name another folder to start over",
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}

#[test]
fn rejects_another_seed_inside_an_epoch() {
    let mut job = Job::with(lab(), &[while_saving(0, 3, SavePhase::Named, &[Act::Signal(9)])]);
    assert!(!job.attempt(1, &with(&[])).succeeded());
    let ended = job.attempt(1, &with(&["--seed", "5"]));
    let refused = "the seed was 0 there and is 5 here";
    assert!(!ended.succeeded() && ended.stderr().contains(refused), "{}", ended.stderr());
    assert_eq!(job.finish(1, &with(&[])), 1);
}

#[test]
fn rejects_other_data_of_the_same_length_inside_an_epoch() {
    let mut job = Job::with(lab(), &[while_saving(0, 3, SavePhase::Named, &[Act::Signal(9)])]);
    assert!(!job.attempt(1, &with(&[])).succeeded());
    fs::create_dir(job.path("data")).unwrap();
    Digits::write_idx(&job.path("data"), 9, 50, 13).unwrap();
    let ended = job.attempt(1, &with(&["--data", "data"]));
    let refused = "the data set's fingerprint was ";
    assert!(!ended.succeeded() && ended.stderr().contains(refused), "{}", ended.stderr());
}

#[test]
fn warns_of_a_learning_rate_and_a_batch_size_that_are_not_the_snapshots() {
    let mut job = Job::with(lab(), &[while_saving(0, 3, SavePhase::Named, &[Act::Signal(9)])]);
    assert!(!job.attempt(1, &with(&[])).succeeded());
    let batches_of_3: Vec<&str> =
        with(&["--lr", "0.5"]).into_iter().map(|arg| if arg == "2" { "3" } else { arg }).collect();
    let ended = job.attempt(1, &batches_of_3);
    assert!(ended.succeeded(), "{}", ended.stderr());
    for words in
        ["goes on as the snapshot's, 0.01, and is not 0.5", "2 samples in a rank's batch and training goes on with 3"]
    {
        assert_eq!(ended.stderr().matches(words).count(), 1, "{}", ended.stderr());
    }
}

#[test]
fn a_segmentation_fault_on_request_kills() {
    let mut fault = kill(0, 0, 2);
    fault.acts = vec![Act::Signal(11)];
    let mut job = Job::with(lab(), &[fault]);
    let ended = job.attempt(1, &with(&[]));
    assert_eq!(ended.0[0].status.signal(), Some(11), "{}", ended.stderr());
}

#[test]
fn rejects_an_invalid_plan_of_faults_with_a_clear_error() {
    let job = Job::new(lab());
    fs::write(job.path("faults.json"), "{").unwrap();
    let mut command = job.command(lab());
    command.args(with(&[]));
    let output = Running::start(command).end();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.starts_with("error: ") && message.contains("is not a plan of faults") && !message.contains("panicked"),
        "{message}"
    );
}

#[test]
fn does_not_train_alone_as_one_of_several_tasks() {
    let job = Job::new(lab());
    let mut command = job.command(lab());
    command.args(with(&[])).env("SLURM_NTASKS", "2").env("SLURM_PROCID", "1");
    let output = Running::start(command).end();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.starts_with("error: RANK, LOCAL_RANK, ") && message.contains("one `lockstep run` per node"),
        "{message}"
    );
}

#[test]
fn runs_alone_without_a_launcher_and_resumes() {
    let job = Job::with(lab(), &[while_saving(1, 3, SavePhase::Named, &[Act::Signal(9)])]);
    let run = || {
        let mut command = job.command(lab());
        command.args(with(&[]));
        Running::start(command).end()
    };
    assert!(!run().status.success());
    assert!(run().status.success());
    assert!(job.weights(1) == undisturbed(lab(), 1, &with(&[])));
}

#[test]
fn waits_for_a_lock_that_outlives_its_job_and_names_the_lock() {
    let job = Job::new(lab());
    fs::create_dir(job.path("snapshots")).unwrap();
    let lock = fs::File::open(job.path("snapshots")).unwrap();
    lock.lock().unwrap();
    let mut command = job.command(lab());
    command.args(with(&[])).stdout(Stdio::null());
    let mut lab = command.spawn().unwrap();
    let mut message = BufReader::new(lab.stderr.take().unwrap()).lines().map_while(Result::ok);
    let words = "for the lock on the folder of snapshots snapshots and waits up to ";
    let waits = message.find(|line| line.contains(words));
    drop(lock);
    let rest: Vec<String> = message.collect();
    assert!(lab.wait().unwrap().success() && waits.is_some(), "{rest:?}");
}

/// A job of Slurm whose first attempt is on a node that the network has cut off: it is stopped in the middle of a save, and continues
/// when the second attempt, on another node, has saved and ended.
#[test]
fn a_former_attempt_never_writes_over_the_snapshots_of_a_later_one() {
    let job = Job::with(lab(), &[while_saving(0, 6, SavePhase::Written, &[Act::Signal(19)])]);
    let attempt = |number: &str| {
        let mut command = job.command(lab());
        command.args(with(&[])).env("SLURM_JOB_ID", "17").env("SLURM_RESTART_COUNT", number);
        command
    };
    let mut former = attempt("0").stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let stat = format!("/proc/{}/stat", former.id());
    let is_stopped = || fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" T ");
    lockstep_process::watchdog::until(is_stopped).expect("the former attempt did not save");

    let later = Running::start(attempt("1")).end();
    let message = String::from_utf8_lossy(&later.stderr).into_owned();
    assert!(later.status.success(), "{message}");
    assert!(message.contains("takes the folder of snapshots snapshots over"), "{message}");
    let saved = || job.snapshots().into_iter().filter(|name| name.ends_with(".safetensors")).collect::<Vec<_>>();
    let contents =
        || saved().iter().map(|name| fs::read(job.path("snapshots").join(name)).unwrap()).collect::<Vec<_>>();
    let (names, bytes) = (saved(), contents());
    let weights = job.weights(1);
    assert!(weights == undisturbed(lab(), 1, &with(&[])), "the weights have other bits");

    rustix::process::kill_process(rustix::process::Pid::from_child(&former), rustix::process::Signal::CONT).unwrap();
    let mut message = String::new();
    former.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(former.wait().unwrap().code(), Some(1), "{message}");
    assert!(
        message.contains("attempt 1 of this job has saved its snapshots in snapshots, and this is attempt 0"),
        "{message}"
    );
    assert_eq!(saved(), names);
    assert!(contents() == bytes, "a snapshot of the later attempt was replaced");
    // It does not come back either.
    let again = Running::start(attempt("0")).end();
    assert_eq!(again.status.code(), Some(1), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(contents() == bytes);
}

/// The samples that an epoch really used, over all attempts: from each attempt, the steps up to where the next one resumed.
fn taken(job: &Job, wanted: u64) -> Vec<u64> {
    let mut taken = Vec::new();
    let resumed: Vec<(u32, (u64, u64))> = job.events()[&0]
        .iter()
        .filter_map(|(attempt, event)| match event {
            Event::Resume { epoch, step, .. } => Some((*attempt, (*epoch, *step))),
            _ => None,
        })
        .collect();
    let from = |attempt: u32| resumed.iter().find(|(n, _)| *n == attempt).map_or((0, 0), |(_, at)| *at);
    for events in job.events().values() {
        let mut batch = 0;
        for (attempt, event) in events {
            match event {
                Event::Epoch { batch_size, .. } => batch = *batch_size as u64,
                Event::Samples { epoch, indices } if *epoch == wanted => {
                    let first = if from(*attempt).0 == wanted { from(*attempt).1 } else { 0 };
                    let next = resumed.iter().find(|(n, _)| n > attempt).map(|(_, at)| *at);
                    let steps = match next {
                        Some((epoch, step)) if epoch == wanted => step.saturating_sub(first),
                        Some((epoch, _)) if epoch < wanted => 0,
                        _ => u64::MAX,
                    };
                    let count = usize::try_from(steps.saturating_mul(batch)).unwrap_or(usize::MAX);
                    taken.extend(indices.iter().take(count));
                }
                _ => {}
            }
        }
    }
    taken.sort_unstable();
    taken
}

#[test]
fn other_world_sizes_resume_with_each_sample_once_per_epoch() {
    let killed = |step| while_saving(0, step, SavePhase::Named, &[Act::Signal(9)]);
    let (mut job, args) = (Job::with(lab(), &[killed(3), killed(6)]), with(&[]));
    // 50 samples in batches of 2: 3 steps of 2 ranks are saved, then 3 of 3 ranks, and 20 samples are left to 4 ranks.
    assert!(!job.attempt(2, &args).succeeded());
    let second = job.attempt(3, &args);
    assert!(second.stderr().contains("taken with 2 ranks and training goes on with 3"), "{}", second.stderr());
    let third = job.attempt(4, &args);
    assert!(third.succeeded(), "{}", third.stderr());
    assert!(third.stdout().contains("Resuming training from snapshot at Epoch 0, step 6\n"), "{}", third.stdout());
    assert!(third.stdout().contains("[rank 3] Epoch 0 | Batchsize: 2 | Steps: 9\n"), "{}", third.stdout());
    assert_eq!(taken(&job, 0), (0..50).collect::<Vec<u64>>());
    let mut second_epoch = taken(&job, 1);
    assert_eq!(second_epoch.len(), 52, "two samples pad the last turn of four ranks");
    second_epoch.dedup();
    assert_eq!(second_epoch, (0..50).collect::<Vec<u64>>());
    job.weights(4);
}

#[test]
fn pythons_torchrun_restarts_the_lab_and_no_bit_changes() {
    let job = Job::with(lab(), &[kill(1, 0, 4), kill(0, 1, 7)]);
    let Some(mut torchrun) = job.under_torchrun("lab 06 under torchrun", &["--max-restarts=2"]) else { return };
    torchrun.args(with(&[]));
    let output = Running::start(torchrun).end();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(job.injected(), 2);
    assert!(job.weights(2) == undisturbed(lab(), 2, &with(&[])), "the weights have other bits");
}

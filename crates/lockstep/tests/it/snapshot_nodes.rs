//! Which snapshot a job of several nodes resumes from, if each node has its own disk, and which job owns it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use c10d::ProcessGroup;
use lockstep::loader::Position;
use lockstep::optim::{Sgd, SgdOptions, named_parameters};
use lockstep::snapshot::{Run, SnapshotOptions, Snapshots};
use lockstep::{LaunchEnv, Reporter};
use tch::nn::{self, VarStore};
use tch::{Device, no_grad};

use crate::common::ranks;

const RUN: Run = Run { seed: 3, samples: 100, data: 9, batch_size: 4 };

fn at(epoch: u64) -> Position {
    Position::start_of(epoch)
}

fn model(value: f64) -> VarStore {
    let vs = VarStore::new(Device::Cpu);
    let _layer = nn::linear(vs.root(), 2, 3, Default::default());
    no_grad(|| vs.variables().values_mut().for_each(|variable| drop(variable.fill_(value))));
    vs
}

fn value(vs: &VarStore) -> f64 {
    vs.variables()["weight"].double_value(&[0, 0])
}

fn sgd(vs: &VarStore) -> Sgd {
    Sgd::new(named_parameters(vs), SgdOptions { lr: 0.1, ..Default::default() }).unwrap()
}

/// A rank that is alone on its node, a worker of the job `job` after `restarts` restarts by its launcher.
fn reporter(rank: usize, world: usize, job: &str, restarts: u32) -> Reporter {
    let variables = BTreeMap::from([
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("WORLD_SIZE", world.to_string()),
        ("LOCAL_WORLD_SIZE", "1".to_owned()),
        ("MASTER_ADDR", "localhost".to_owned()),
        ("MASTER_PORT", "1".to_owned()),
        ("TORCHELASTIC_RUN_ID", job.to_owned()),
        ("TORCHELASTIC_RESTART_COUNT", restarts.to_string()),
    ]);
    let env = LaunchEnv::parse(|name| variables.get(name).map(OsString::from)).unwrap();
    Reporter::new(&env, Device::Cpu).unwrap()
}

/// The job `job` saves a model with values `epoch` in `folder`.
fn save(folder: &Path, job: &str, epoch: u64) {
    let vs = model(epoch as f64);
    let mut snapshots = Snapshots::new(folder, RUN, SnapshotOptions::default(), &reporter(0, 1, job, 0));
    snapshots.save(at(epoch), &vs, &sgd(&vs)).unwrap();
    snapshots.finish().unwrap();
}

/// The result on each of two nodes with these folders: where training continues and with which weights, or the error's text.
fn resume(folders: [&Path; 2], job: &str, resume: bool) -> Vec<Result<(u64, f64), String>> {
    let one = |group: &ProcessGroup| {
        let (vs, rank) = (model(-1.0), group.rank().get());
        let options = SnapshotOptions { resume, ..Default::default() };
        let mut snapshots = Snapshots::new(folders[rank], RUN, options, &reporter(rank, 2, job, 0));
        let start = snapshots.resume(&vs, &mut sgd(&vs), group).map_err(|error| error.to_string())?;
        Ok((start.epoch, value(&vs)))
    };
    ranks(2, |group| one(&group))
}

#[test]
fn a_job_requeued_in_another_order_resumes_from_the_disk_that_has_the_newest() {
    let disks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    save(disks[1].path(), "job7", 2);
    save(disks[1].path(), "job7", 3);
    for on_request in [true, false] {
        assert_eq!(resume([disks[0].path(), disks[1].path()], "job7", on_request), [Ok((3, 3.0)), Ok((3, 3.0))]);
    }
    // Rank 0 has an older one of the same job.
    save(disks[0].path(), "job7", 1);
    assert_eq!(resume([disks[0].path(), disks[1].path()], "job7", true), [Ok((3, 3.0)), Ok((3, 3.0))]);
}

#[test]
fn a_jobs_own_snapshots_are_resumed_from_without_the_flag_and_anothers_are_refused_on_every_rank() {
    let disk = tempfile::tempdir().unwrap();
    save(disk.path(), "job7", 2);
    assert_eq!(resume([disk.path(); 2], "job7", false), [Ok((2, 2.0)), Ok((2, 2.0))]);
    for message in resume([disk.path(); 2], "job8", false) {
        let message = message.unwrap_err();
        assert!(message.contains("holds snapshots of a run, the newest of epoch 2; pass --resume"), "{message}");
    }
    assert_eq!(resume([disk.path(); 2], "job8", true), [Ok((2, 2.0)), Ok((2, 2.0))]);
}

#[test]
fn a_restart_does_not_make_anothers_snapshots_a_jobs_own() {
    let disk = tempfile::tempdir().unwrap();
    save(disk.path(), "job7", 2);
    let messages = ranks(1, |group| {
        let vs = model(-1.0);
        let options = SnapshotOptions { resume: false, ..Default::default() };
        let mut snapshots = Snapshots::new(disk.path(), RUN, options, &reporter(0, 1, "job8", 1));
        snapshots.resume(&vs, &mut sgd(&vs), &group).unwrap_err().to_string()
    });
    assert!(messages[0].contains("pass --resume"), "{messages:?}");
}

#[test]
fn snapshots_of_different_runs_on_two_disks_are_refused_with_both_sides_named() {
    let disks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    save(disks[0].path(), "job7", 1);
    save(disks[1].path(), "job8", 2);
    for message in resume([disks[0].path(), disks[1].path()], "job9", true) {
        let message = message.unwrap_err();
        for (rank, epoch, job) in [(0, 1, "job7"), (1, 2, "job8")] {
            let side = format!("has one of epoch {epoch}, step 0 of run {job} in {}", disks[rank].path().display());
            assert!(message.contains(&format!("rank {rank} on ")) && message.contains(&side), "{message}");
        }
    }
    // A job's own snapshot is never ambiguous.
    assert_eq!(resume([disks[0].path(), disks[1].path()], "job7", true), [Ok((1, 1.0)), Ok((1, 1.0))]);
}

#[test]
fn a_torn_snapshot_on_another_nodes_disk_is_skipped_for_the_previous_one() {
    let disks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    save(disks[0].path(), "job7", 1);
    save(disks[1].path(), "job7", 2);
    save(disks[1].path(), "job7", 3);
    let newest = lockstep::snapshot::list(disks[1].path()).unwrap().remove(0).path;
    let half = std::fs::metadata(&newest).unwrap().len() - 4;
    std::fs::OpenOptions::new().write(true).open(newest).unwrap().set_len(half).unwrap();
    assert_eq!(resume([disks[0].path(), disks[1].path()], "job7", false), [Ok((2, 2.0)), Ok((2, 2.0))]);
}

#[test]
fn the_copy_of_a_damaged_snapshot_on_another_nodes_disk_is_taken_before_an_older_one() {
    let disks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    save(disks[0].path(), "job7", 1);
    save(disks[0].path(), "job7", 2);
    let newest = lockstep::snapshot::list(disks[0].path()).unwrap().remove(0).path;
    std::fs::copy(&newest, disks[1].path().join(newest.file_name().unwrap())).unwrap();
    // The header is unchanged.
    let mut bytes = std::fs::read(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    for on_request in [true, false] {
        assert_eq!(resume([disks[0].path(), disks[1].path()], "job7", on_request), [Ok((2, 2.0)), Ok((2, 2.0))]);
    }
}

//! The best model's file: which model it holds, and its state after a kill between any two writes.

use std::fs;
use std::path::{Path, PathBuf};

use c10d::ProcessGroup;
use lockstep::best::Best;
use lockstep::metrics::Evaluation;
use lockstep::snapshot::OnSaveError;
use lockstep::{BestModel, LaunchEnv, Reporter};
use lockstep_testkit::names;
use tch::nn::{self, VarStore};
use tch::{Device, Tensor};

/// The file of the best model, and the backup next to it.
const FILE: &str = "best.safetensors";
const BEFORE: &str = "best.before.safetensors";

/// An evaluation with `correct` right answers of four.
fn right(correct: i64) -> Evaluation {
    let targets = Tensor::from_slice(&[0i64; 4]);
    let predictions = Tensor::from_slice(&[0, 1, 2, 3]).ge(correct).to_kind(tch::Kind::Int64);
    let mut all = Evaluation::default();
    all.add(&predictions.one_hot(2), &targets, 0.5);
    assert_eq!(all.accuracy(), correct as f64 / 4.0);
    all
}

fn model(value: f64) -> VarStore {
    let vs = VarStore::new(Device::Cpu);
    let _shared = vs.root().var("w", &[2], nn::Init::Const(value));
    vs
}

fn value(vs: &VarStore) -> f64 {
    vs.variables()["w"].double_value(&[0])
}

fn keeper(folder: &Path, group: &ProcessGroup) -> BestModel {
    let env = LaunchEnv { rank: group.rank(), world_size: group.size(), ..LaunchEnv::alone() };
    BestModel::new(folder.join(FILE), OnSaveError::Continue, &Reporter::new(&env, Device::Cpu).unwrap())
}

/// Runs these epochs starting from `best`, each with its number of right answers and its weight; returns the new best.
fn run(folder: &Path, group: &ProcessGroup, best: Option<Best>, epochs: &[(u64, i64)]) -> Option<Best> {
    let mut keeper = keeper(folder, group);
    keeper.resume(best, group).unwrap();
    for &(epoch, correct) in epochs {
        keeper.offer(epoch, &right(correct), &model(epoch as f64), group).unwrap();
    }
    keeper.best()
}

fn alone<T: Send>(body: impl Fn(&Path, &ProcessGroup) -> T + Send + Sync) -> T {
    let folder = tempfile::tempdir().unwrap();
    crate::common::ranks(1, |group| body(folder.path(), &group)).pop().unwrap()
}

#[test]
fn keeps_the_first_of_the_most_accurate_and_gives_it_to_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let ends = crate::common::ranks(2, |group| {
        // The file on rank 1's node does not matter.
        let own: PathBuf = if group.rank().is_zero() { folder.path().into() } else { "/nowhere".into() };
        let mut keeper = keeper(&own, &group);
        keeper.resume(None, &group).unwrap();
        let kept = [0, 2, 1, 2, 3, 3].into_iter().zip(0..);
        let kept: Vec<bool> = kept
            .map(|(correct, epoch)| keeper.offer(epoch, &right(correct), &model(epoch as f64), &group).unwrap())
            .collect();
        let vs = model(-1.0);
        let best = keeper.finish(&vs, &group).unwrap().unwrap();
        (kept, best.epoch, best.accuracy, best.samples, value(&vs))
    });
    for end in ends {
        assert_eq!(end, (vec![true, true, false, false, true, false], 4, 0.75, 4, 4.0));
    }
    assert_eq!(names(folder.path()), [FILE]);
}

#[test]
fn a_run_without_an_epoch_has_no_best_model() {
    alone(|folder, group| {
        let vs = model(7.0);
        assert_eq!(keeper(folder, group).finish(&vs, group).unwrap(), None);
        assert_eq!(value(&vs), 7.0);
    });
}

/// A run is killed after epoch 1 found a better model and before a snapshot recorded it; `harm` sets the exact moment. It
/// resumes from the snapshot of epoch 0's end, and must end with the same file as an uninterrupted run.
fn killed(harm: impl Fn(&Path) + Send + Sync) {
    alone(|folder, group| {
        let [disturbed, calm] = ["a", "b"].map(|name| folder.join(name));
        run(&calm, group, None, &[(0, 1), (1, 2), (2, 1)]);
        let snapshot = run(&disturbed, group, None, &[(0, 1)]);
        run(&disturbed, group, snapshot, &[(1, 2)]);
        harm(&disturbed);
        let after = run(&disturbed, group, snapshot, &[]);
        assert_eq!(after, snapshot, "the snapshot counts");
        assert_eq!(names(&disturbed), [FILE], "the model of epoch 0 is back in its place");
        run(&disturbed, group, after, &[(1, 2), (2, 1)]);
        let read = |folder: &Path| fs::read(folder.join(FILE)).unwrap();
        assert!(read(&disturbed) == read(&calm), "the best model's file has other bits");
    });
}

#[test]
fn a_model_that_is_newer_than_the_snapshot_gives_way_to_the_previous_one() {
    killed(|_| ());
}

#[test]
fn a_kill_between_the_two_renames_leaves_the_previous_model() {
    killed(|folder| fs::rename(folder.join(FILE), folder.join("best.partial.safetensors")).unwrap());
}

#[test]
fn a_kill_while_a_model_is_written_leaves_the_one_in_place() {
    killed(|folder| {
        fs::rename(folder.join(BEFORE), folder.join(FILE)).unwrap();
        fs::write(folder.join("best.partial.safetensors"), "half a mod").unwrap();
    });
}

#[test]
fn overwrites_the_model_of_another_run() {
    alone(|folder, group| {
        run(folder, group, None, &[(0, 4)]);
        let best = run(folder, group, None, &[(0, 1)]).unwrap();
        assert_eq!((best.accuracy, names(folder)), (0.25, vec![FILE.to_owned()]));
    });
}

#[test]
fn a_missing_model_is_reported_and_the_best_of_the_later_epochs_is_kept() {
    alone(|folder, group| {
        let snapshot = run(folder, group, None, &[(0, 3)]);
        fs::remove_file(folder.join(FILE)).unwrap();
        let best = run(folder, group, snapshot, &[(1, 1), (2, 2)]).unwrap();
        assert_eq!(best.epoch, 2);
    });
}

#[test]
fn refuses_at_the_end_a_file_that_was_replaced_meanwhile() {
    alone(|folder, group| {
        let mut keeper = keeper(folder, group);
        keeper.offer(0, &right(2), &model(0.0), group).unwrap();
        run(&folder.join("other"), group, None, &[(5, 3)]);
        fs::copy(folder.join("other").join(FILE), folder.join(FILE)).unwrap();
        let error = keeper.finish(&model(0.0), group).unwrap_err().to_string();
        assert!(error.contains(FILE) && error.contains("replaced"), "{error}");
    });
}

#[test]
fn refuses_at_the_start_a_name_that_no_model_can_have() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("folder.safetensors")).unwrap();
    for (name, expected) in [("best.pt", "does not end in .safetensors"), ("folder.safetensors", "not a regular file")]
    {
        let refused = crate::common::ranks(2, |group| {
            let env = LaunchEnv { rank: group.rank(), world_size: group.size(), ..LaunchEnv::alone() };
            let report = Reporter::new(&env, Device::Cpu).unwrap();
            let mut keeper = BestModel::new(folder.path().join(name), OnSaveError::Continue, &report);
            keeper.resume(None, &group).unwrap_err().to_string()
        });
        assert!(refused.iter().all(|said| said.contains(expected) && said.contains(name)), "{refused:?}");
    }
}

#[test]
fn a_model_that_cannot_be_saved_stops_the_run_or_leaves_the_best_so_far() {
    for (on_error, stops) in [(OnSaveError::Continue, false), (OnSaveError::Stop, true)] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let ends = crate::common::ranks(2, |group| {
            let env = LaunchEnv { rank: group.rank(), world_size: group.size(), ..LaunchEnv::alone() };
            let path = folder.path().join("file/best.safetensors");
            let mut keeper = BestModel::new(path, on_error, &Reporter::new(&env, Device::Cpu).unwrap());
            let offered = keeper.offer(0, &right(2), &model(0.0), &group).map_err(|error| error.to_string());
            (offered, keeper.best())
        });
        for (offered, best) in ends {
            assert_eq!((offered.is_err(), best), (stops, None));
            assert!(offered.is_ok_and(|kept| !kept) || stops);
        }
    }
}

#[test]
fn the_node_that_has_the_best_model_sends_it_to_rank_0() {
    let disks = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [other, own] = [disks[0].path(), disks[1].path()];
    let both = crate::common::ranks(1, |group| {
        let first = run(own, &group, None, &[(0, 2)]);
        (first, run(own, &group, first, &[(1, 3)]))
    });
    let (before, best) = both[0];
    for (best, file) in [(best, FILE), (before, BEFORE)] {
        // The job was started again in another order: rank 0 is on the node without files.
        let after = crate::common::ranks(2, |group| run(disks[group.rank().get()].path(), &group, best, &[]));
        assert_eq!(after, [best, best]);
        assert!(fs::read(other.join(FILE)).unwrap() == fs::read(own.join(file)).unwrap());
        fs::remove_file(other.join(FILE)).unwrap();
    }
}

//! Snapshots of fully sharded models: the same bits later, on any number of ranks, and whole at every moment.
//!
//! Which snapshot a job of several nodes resumes from, if each node has its own disk, and which job owns it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use c10d::ProcessGroup;
use lockstep::best::Best;
use lockstep::loader::Position;
use lockstep::metrics::Evaluation;
use lockstep::optim::{AdamW, FusedOptimizer, Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::snapshot::{OnSaveError, Run, Save, Snapshot, SnapshotError, SnapshotOptions, Snapshots};
use lockstep::{BestModel, LaunchEnv, Reporter, snapshot};
use tch::nn::VarStore;
use tch::{Device, Kind, nn, no_grad};

use crate::common::{ranks, values};
use crate::fully_shard::{Net, adam_w, batch, loss, sharded};
use crate::snapshot::reporter;

const RUN: Run = Run { seed: 3, samples: 100, data: 9, batch_size: 4 };

fn at(step: usize) -> Position {
    Position { epoch: 1, step, samples: step * 12 }
}

type Values = BTreeMap<String, Vec<u64>>;

fn bits(vs: &VarStore) -> Values {
    let of = |tensor: &tch::Tensor| values(tensor).into_iter().map(f64::to_bits).collect();
    named_parameters(vs).into_iter().map(|(name, param)| (name, of(&param))).collect()
}

/// A sharded model in training.
struct Sharded {
    vs: VarStore,
    net: Net,
    model: FullyShard,
    optimizer: AdamW,
    snapshots: Snapshots,
    group: Rc<ProcessGroup>,
}

impl Sharded {
    fn new(folder: &Path, group: Rc<ProcessGroup>) -> Self {
        let (vs, net, model) = sharded(&group, Kind::Double, &FullyShardOptions::default());
        let optimizer = FusedOptimizer::new(model.named_parameters(), adam_w()).unwrap();
        let options = SnapshotOptions { on_error: OnSaveError::Stop, ..Default::default() };
        let snapshots = Snapshots::new(folder, RUN, options, &reporter(&group));
        Sharded { vs, net, model, optimizer, snapshots, group }
    }

    fn train(&mut self, steps: Range<i64>) {
        for step in steps {
            let (inputs, targets) = batch(step, Kind::Double, Some(&self.group));
            self.optimizer.zero_grad();
            let output = self.net.sharded(&self.model, &inputs);
            self.model.backward(&loss(&output, &targets)).unwrap();
            self.optimizer.step().unwrap();
        }
    }

    fn save(&mut self, step: usize) -> Result<(), SnapshotError> {
        self.snapshots.save(Save::new(at(step), (&self.vs, &self.model), &self.optimizer))
    }

    fn resume(&mut self) -> Position {
        self.snapshots.resume((&self.vs, &self.model), &mut self.optimizer, &self.group).unwrap()
    }

    fn bits(&self) -> Values {
        self.model.summon_full_params(|| bits(&self.vs)).unwrap()
    }
}

/// One rank with the whole batch, as if it had been one of the DDP ranks.
struct OnOneRank {
    vs: VarStore,
    net: Net,
    optimizer: AdamW,
    snapshots: Snapshots,
}

impl OnOneRank {
    fn new(folder: &Path, report: &Reporter) -> Self {
        let (vs, net) = Net::new(Kind::Double);
        let optimizer = FusedOptimizer::new(named_parameters(&vs), adam_w()).unwrap();
        let snapshots = Snapshots::new(folder, RUN, SnapshotOptions::default(), report);
        OnOneRank { vs, net, optimizer, snapshots }
    }

    fn train(&mut self, steps: Range<i64>) {
        for step in steps {
            let (inputs, targets) = batch(step, Kind::Double, None);
            self.optimizer.zero_grad();
            loss(&self.net.forward(&inputs), &targets).backward();
            self.optimizer.step().unwrap();
        }
    }
}

/// Trains two steps on `world` ranks and saves; returns the parameters.
fn saved_after_two_steps(folder: &Path, world: usize) -> Values {
    let saved = ranks(world, |group| {
        let mut run = Sharded::new(folder, group);
        run.train(0..2);
        run.save(2).unwrap();
        run.bits()
    });
    saved.into_iter().next().unwrap()
}

fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    let mut files: Vec<_> = entries.filter(named).collect();
    files.sort();
    files
}

fn far(a: &Values, b: &Values) -> f64 {
    assert!(a.keys().eq(b.keys()));
    let pairs = a.values().flatten().zip(b.values().flatten());
    pairs.map(|(a, b)| (f64::from_bits(*a) - f64::from_bits(*b)).abs()).fold(0.0, f64::max)
}

#[test]
fn goes_on_with_the_same_bits_on_as_many_ranks_and_within_rounding_on_others() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ranks(3, |group| {
        let mut run = Sharded::new(folder.path(), group);
        run.train(0..2);
        run.save(2).unwrap();
        assert_eq!(files(folder.path(), "part-").len(), 3);
        let saved = run.bits();
        run.train(2..4);
        (saved, run.bits())
    });
    let (saved, ended) = &expected[0];
    for world in 1..=4 {
        let found = ranks(world, |group| {
            let mut run = Sharded::new(folder.path(), group);
            assert_eq!(run.resume(), at(2));
            let resumed = run.bits();
            run.train(2..4);
            (resumed, run.bits())
        });
        for (resumed, end) in found {
            assert_eq!(resumed, *saved, "{world} ranks");
            if world == 3 {
                assert_eq!(end, *ended);
            }
            assert!(far(&end, ended) < 1e-10, "{world} ranks");
        }
    }
}

#[test]
fn goes_on_from_the_snapshot_of_a_whole_model_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let alone = Reporter::alone(Device::Cpu).unwrap();
    let mut whole = OnOneRank::new(folder.path(), &alone);
    whole.train(0..2);
    whole.snapshots.save(Save::new(at(2), &whole.vs, &whole.optimizer)).unwrap();
    whole.snapshots.finish().unwrap();
    let saved = ranks(3, |group| {
        let mut run = Sharded::new(folder.path(), group);
        assert_eq!(run.resume(), at(2));
        assert_eq!(run.bits(), bits(&whole.vs));
        run.train(2..3);
        run.save(3).unwrap();
        run.bits()
    });
    let ended = ranks(2, |group| {
        let mut again = OnOneRank::new(folder.path(), &reporter(&group));
        assert_eq!(again.snapshots.resume(&again.vs, &mut again.optimizer, &group).unwrap(), at(3));
        assert_eq!(bits(&again.vs), saved[0]);
        again.train(3..4);
        bits(&again.vs)
    });
    let mut through = OnOneRank::new(&folder.path().join("none"), &alone);
    through.train(0..4);
    assert!(ended.iter().all(|end| far(end, &bits(&through.vs)) < 1e-10));
}

/// Copies a folder of snapshots.
fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for path in files(folder, "") {
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

#[test]
fn refuses_torn_missing_and_exchanged_parts_by_name_and_takes_the_former_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let former = saved_after_two_steps(folder.path(), 3);
    ranks(3, |group| {
        let mut run = Sharded::new(folder.path(), group);
        run.resume();
        run.train(2..3);
        run.save(3).unwrap();
    });
    let parts: Vec<_> = files(folder.path(), "part-000001-00000003");
    assert_eq!(parts.len(), 3);
    let name = parts[1].file_name().unwrap().to_str().unwrap().to_owned();
    type Harm = fn(&Path, &Path);
    let harms: [(&str, Harm); 4] = [
        ("cannot be read", |part, _| fs::remove_file(part).unwrap()),
        ("torn", |part, _| {
            let bytes = fs::read(part).unwrap();
            fs::write(part, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("damaged", |part, _| {
            let mut bytes = fs::read(part).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(part, bytes).unwrap();
        }),
        ("not the file that the index lists", |part, other| assert!(fs::copy(other, part).unwrap() > 0)),
    ];
    for (word, harm) in harms {
        let copy = copied(folder.path());
        harm(&copy.path().join(&name), &copy.path().join(parts[0].file_name().unwrap()));
        let newest = &snapshot::list(copy.path()).unwrap()[0];
        let why = Snapshot::read(&newest.path).unwrap_err().to_string();
        assert!(why.contains(&name) && why.contains(word), "{word}: {why}");
        ranks(2, |group| {
            let mut run = Sharded::new(copy.path(), group);
            assert_eq!(run.resume(), at(2), "{word}");
            assert_eq!(run.bits(), former, "{word}");
        });
    }
}

/// The folder as a kill after each of the files of a save leaves it.
#[test]
fn a_kill_at_any_moment_of_a_save_leaves_the_former_snapshot_and_the_next_save_removes_the_remains() {
    let (folder, complete) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let former = saved_after_two_steps(folder.path(), 3);
    let newer = ranks(3, |group| {
        let mut run = Sharded::new(folder.path(), Rc::clone(&group));
        run.resume();
        run.train(2..3);
        let mut elsewhere = Snapshots::new(complete.path(), RUN, SnapshotOptions::default(), &reporter(&group));
        elsewhere.save(Save::new(at(3), (&run.vs, &run.model), &run.optimizer)).unwrap();
        run.bits()
    });
    // By name, the parts come before the index, as they are written.
    let written = files(complete.path(), "");
    assert_eq!(written.len(), 4);
    for done in 0..=written.len() {
        let copy = copied(folder.path());
        for path in &written[..done] {
            fs::copy(path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        if let Some(next) = written.get(done) {
            let half = fs::read(next).unwrap();
            fs::write(copy.path().join(".snapshot-killed.partial"), &half[..half.len() / 2]).unwrap();
        }
        ranks(3, |group| {
            let mut run = Sharded::new(copy.path(), group);
            let (position, expected) = if done == written.len() { (at(3), &newer[0]) } else { (at(2), &former) };
            assert_eq!((run.resume(), &run.bits()), (position, expected), "{done} files written");
            run.train(2..4);
            run.save(4).unwrap();
        });
        assert_eq!(snapshot::list(copy.path()).unwrap().len(), 2);
        let left = files(copy.path(), "part-000001-0000000");
        assert_eq!(left.len(), 6, "the parts of two snapshots, {done} files written: {left:?}");
        assert!(files(copy.path(), ".snapshot-").is_empty());
    }
}

#[test]
fn the_programs_state_and_the_best_model_come_back_to_divided_and_to_whole_models() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("best.safetensors");
    let saved = ranks(2, |group| {
        let mut run = Sharded::new(folder.path(), Rc::clone(&group));
        let mut best = BestModel::new(&file, OnSaveError::Stop, &reporter(&group)).by_loss();
        let losses = [0.5, 0.25, 0.75].map(|loss| {
            let mut all = Evaluation::default();
            all.add_loss(loss, 1);
            all
        });
        let mut bits = Vec::new();
        for (epoch, all) in (0..).zip(&losses) {
            run.train(epoch..epoch + 1);
            best.offer(epoch as u64, all, (&run.vs, &run.model), &group).unwrap();
            bits.push(run.bits());
        }
        assert!(!best.has_waited(3, 2) && best.has_waited(3, 1));
        let state = best.best();
        run.snapshots
            .save_if(true, Save::new(at(3), (&run.vs, &run.model), &run.optimizer).with(&state), &group)
            .unwrap();
        best.finish((&run.vs, &run.model), &group).unwrap();
        assert!(run.bits() == bits[1] && bits[1] != bits[2]);
        (state.unwrap(), bits.remove(1))
    });
    ranks(2, |group| {
        let (best, expected) = &saved[group.rank().get()];
        assert_eq!((best.epoch, best.loss, best.accuracy), (1, Some(0.25), 0.0));
        let mut run = Sharded::new(folder.path(), Rc::clone(&group));
        let back =
            run.snapshots.resume_with::<Option<Best>>((&run.vs, &run.model), &mut run.optimizer, &group).unwrap();
        assert_eq!(back, (at(3), Some(Some(*best))));
        drop(run);
        let mut whole = OnOneRank::new(folder.path(), &reporter(&group));
        let back = whole.snapshots.resume_with::<Option<Best>>(&whole.vs, &mut whole.optimizer, &group).unwrap();
        assert_eq!(back, (at(3), Some(Some(*best))));
        let mut keeper = BestModel::new(&file, OnSaveError::Stop, &reporter(&group)).by_loss();
        keeper.resume(Some(*best), &group).unwrap();
        keeper.finish(&whole.vs, &group).unwrap();
        assert!(bits(&whole.vs) == *expected);
    });
}

#[test]
fn a_rank_that_cannot_write_ends_the_save_on_all_and_the_former_snapshot_stays() {
    let folder = tempfile::tempdir().unwrap();
    let former = saved_after_two_steps(folder.path(), 2);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    ranks(2, |group| {
        let mut run = Sharded::new(folder.path(), Rc::clone(&group));
        run.resume();
        run.train(2..3);
        let (second, options) =
            (!group.rank().is_zero(), SnapshotOptions { on_error: OnSaveError::Stop, ..Default::default() });
        if second {
            run.snapshots = Snapshots::new(file.join("below"), RUN, options, &reporter(&group));
        }
        let error = run.save(3).unwrap_err();
        match error {
            SnapshotError::Save { .. } => assert!(second),
            SnapshotError::Part { rank, why } => {
                assert!(!second && rank.get() == 1 && why.contains("failed to save the snapshot"), "{why}");
            }
            other => panic!("{other}"),
        }
    });
    ranks(2, |group| {
        let mut run = Sharded::new(folder.path(), group);
        assert_eq!((run.resume(), run.bits()), (at(2), former.clone()));
    });
}

#[test]
fn another_model_is_refused_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    saved_after_two_steps(folder.path(), 2);
    ranks(2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let _linear = tch::nn::linear(vs.root() / "first", 5, 7, Default::default());
        let model = FullyShard::new(&vs, Rc::clone(&group), &["first"], &FullyShardOptions::default()).unwrap();
        let mut optimizer: AdamW = FusedOptimizer::new(model.named_parameters(), adam_w()).unwrap();
        let before = model.summon_full_params(|| bits(&vs)).unwrap();
        let mut snapshots = Snapshots::new(folder.path(), RUN, SnapshotOptions::default(), &reporter(&group));
        let error = snapshots.resume((&vs, &model), &mut optimizer, &group).unwrap_err().to_string();
        assert!(error.contains("last.weight") && error.contains("F64 [7, 5] there and F32 [7, 5] here"), "{error}");
        assert_eq!(model.summon_full_params(|| bits(&vs)).unwrap(), before);
    });
}

fn epoch_at(epoch: u64) -> Position {
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
fn reporter_of(rank: usize, world: usize, job: &str, restarts: u32) -> Reporter {
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
    let mut snapshots = Snapshots::new(folder, RUN, SnapshotOptions::default(), &reporter_of(0, 1, job, 0));
    snapshots.save(Save::new(epoch_at(epoch), &vs, &sgd(&vs))).unwrap();
    snapshots.finish().unwrap();
}

/// The result on each of two nodes with these folders: where training continues and with which weights, or the error's text.
fn resume(folders: [&Path; 2], job: &str, resume: bool) -> Vec<Result<(u64, f64), String>> {
    let one = |group: &ProcessGroup| {
        let (vs, rank) = (model(-1.0), group.rank().get());
        let options = SnapshotOptions { resume, ..Default::default() };
        let mut snapshots = Snapshots::new(folders[rank], RUN, options, &reporter_of(rank, 2, job, 0));
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
        let mut snapshots = Snapshots::new(disk.path(), RUN, options, &reporter_of(0, 1, "job8", 1));
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

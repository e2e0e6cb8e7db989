//! The guarantees of snapshots to several ranks, and to Python.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{bits, ranks};
use c10d::ProcessGroup;
use lockstep::loader::Position;
use lockstep::optim::schedule::{PlateauOptions, PlateauState, ReduceLrOnPlateau};
use lockstep::optim::{Adam, AdamOptions, OptimError, Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::snapshot::{self, OnSaveError, Run, Save, Snapshot, SnapshotError, SnapshotOptions, Snapshots, Unfit};
use lockstep::{LaunchEnv, Reporter};
use lockstep_testkit::python::python_with;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tch::nn::{self, ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

const RUN: Run = Run { seed: 3, samples: 100, data: 9, batch_size: 4 };
const AT: Position = Position { epoch: 4, step: 2, samples: 16 };

/// A network with a layer that has buffers, all values `value`.
fn model(value: f64) -> (VarStore, nn::Sequential) {
    let vs = VarStore::new(Device::Cpu);
    let root = vs.root();
    let norm = nn::batch_norm1d(&root / "norm", 3, Default::default());
    let net = nn::seq_t().add(nn::linear(&root / "in", 2, 3, Default::default())).add(norm);
    let net = nn::seq().add_fn(move |inputs| net.forward_t(inputs, true));
    no_grad(|| vs.variables().values_mut().for_each(|variable| drop(variable.fill_(value))));
    (vs, net)
}

fn adam(vs: &VarStore) -> Adam {
    Adam::new(named_parameters(vs), AdamOptions::default()).unwrap()
}

fn step(net: &nn::Sequential, optimizer: &mut impl Optimizer) {
    optimizer.zero_grad();
    let inputs = crate::common::formula_tensor(&[4, 2], 5, 1.0);
    net.forward_t(&inputs, true).pow_tensor_scalar(3).sum(Kind::Float).backward();
    optimizer.step().unwrap();
}

pub(crate) fn reporter(group: &ProcessGroup) -> Reporter {
    let variables = BTreeMap::from([
        ("RANK", group.rank().to_string()),
        ("LOCAL_RANK", group.rank().to_string()),
        ("WORLD_SIZE", group.size().to_string()),
        ("LOCAL_WORLD_SIZE", group.size().to_string()),
        ("MASTER_ADDR", "localhost".to_owned()),
        ("MASTER_PORT", "1".to_owned()),
    ]);
    let env = LaunchEnv::parse(|name| variables.get(name).map(OsString::from)).unwrap();
    Reporter::new(&env, Device::Cpu).unwrap()
}

fn values(vs: &VarStore) -> BTreeMap<String, Vec<u32>> {
    vs.variables().into_iter().map(|(name, tensor)| (name, bits(&tensor))).collect()
}

/// Saves a model after a step of Adam, without a group.
fn save_adam(folder: &Path) -> VarStore {
    let (vs, net) = model(0.5);
    let mut optimizer = adam(&vs);
    step(&net, &mut optimizer);
    let mut snapshots = Snapshots::new(folder, RUN, SnapshotOptions::default(), &Reporter::alone(Device::Cpu).unwrap());
    snapshots.save(Save::new(AT, &vs, &optimizer)).unwrap();
    snapshots.finish().unwrap();
    vs
}

#[test]
fn ranks_without_the_file_resume_from_rank_0s() {
    let folder = tempfile::tempdir().unwrap();
    let saved = values(&save_adam(folder.path()));
    let next = ranks(3, |group| {
        let (vs, net) = model(group.rank().get() as f64);
        let mut optimizer = adam(&vs);
        // Each node has a private disk: only rank 0 has the snapshot.
        let private = folder.path().join(format!("private-{}", group.rank()));
        let place = if group.rank().is_zero() { folder.path() } else { &private };
        let mut snapshots = Snapshots::new(place, RUN, SnapshotOptions::default(), &reporter(&group));
        assert_eq!(snapshots.resume(&vs, &mut optimizer, &group).unwrap(), AT);
        assert_eq!(values(&vs), saved, "rank {}", group.rank());
        step(&net, &mut optimizer);
        // Only rank 0 saves.
        snapshots.save(Save::new(Position { step: 3, ..AT }, &vs, &optimizer)).unwrap();
        snapshots.finish().unwrap();
        assert!(!private.exists());
        values(&vs)
    });
    assert!(next[0] != saved && next[1] == next[0] && next[2] == next[0]);
    let found: Vec<_> = snapshot::list(folder.path()).unwrap().iter().map(|one| (one.epoch, one.step)).collect();
    assert_eq!(found, [(4, 3), (4, 2)]);
}

#[test]
fn all_ranks_start_from_the_beginning_without_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let starts = ranks(2, |group| {
        let (vs, _net) = model(7.0);
        let mut snapshots = Snapshots::new(folder.path(), RUN, SnapshotOptions::default(), &reporter(&group));
        let start = snapshots.resume(&vs, &mut adam(&vs), &group).unwrap();
        assert!(values(&vs).values().flatten().all(|value| *value == 7.0f32.to_bits()));
        start
    });
    assert_eq!(starts, [Position::default(); 2]);
}

#[test]
fn another_optimizer_is_refused_on_every_rank_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    save_adam(folder.path());
    ranks(2, |group| {
        let (vs, _net) = model(7.0);
        let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: 0.1, ..Default::default() }).unwrap();
        let mut snapshots = Snapshots::new(folder.path(), RUN, SnapshotOptions::default(), &reporter(&group));
        let error = snapshots.resume(&vs, &mut optimizer, &group).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("Adam") && message.contains("SGD"), "{message}");
        match error {
            SnapshotError::Unfit { why: Unfit::Optimizer(OptimError::WrongOptimizer { .. }), .. } => {}
            SnapshotError::Refused { rank, .. } => assert!(rank.is_zero() && !group.rank().is_zero()),
            other => panic!("{other}"),
        }
        assert!(values(&vs).values().flatten().all(|value| *value == 7.0f32.to_bits()));
        assert_eq!(optimizer.lr(), 0.1);
    });
}

/// Resumes from the folder on one rank.
fn resumed(folder: &Path) -> Result<Position, String> {
    let resume = |group: Rc<ProcessGroup>| {
        let vs = vs_of(0.0);
        let mut snapshots = Snapshots::new(folder, RUN, SnapshotOptions::default(), &reporter(&group));
        snapshots.resume(&vs, &mut adam(&vs), &group).map_err(with_causes)
    };
    ranks(1, resume).remove(0)
}

#[test]
fn a_snapshot_of_another_schema_is_refused_as_long_as_a_save_would_meet_it() {
    let folder = tempfile::tempdir().unwrap();
    save_adam(folder.path());
    let path = snapshot::list(folder.path()).unwrap().remove(0).path;
    let place = |name: &str| folder.path().join(format!("snapshot-{name}.safetensors"));
    let of_7 = of_schema_7(&std::fs::read(&path).unwrap());
    std::fs::write(place("000003-00000000"), &of_7).unwrap();
    assert_eq!(resumed(folder.path()), Ok(AT));
    std::fs::write(place("000009-00000000"), of_7).unwrap();
    for _ in 0..2 {
        let message = resumed(folder.path()).unwrap_err();
        assert!(message.contains(r#"schema "7""#) && message.contains("this program reads 1"), "{message}");
        let _ = std::fs::remove_file(&path); // the second time there is no other
    }
    assert!(place("000009-00000000").exists());
}

/// Damages to the bytes of a snapshot, and whether it can still be recognized.
fn damages(whole: &[u8]) -> Vec<(&'static str, Vec<u8>, bool)> {
    let with = |from: usize, bytes: &[u8]| [&whole[..from], bytes, &whole[from + bytes.len()..]].concat();
    vec![
        ("cut to 1 byte", whole[..1].to_vec(), true),
        ("cut in the length", whole[..5].to_vec(), true),
        ("cut to the length", whole[..8].to_vec(), true),
        ("cut at the beginning of the header", whole[..50].to_vec(), true),
        ("cut in the header", whole[..300].to_vec(), true),
        ("cut by a byte", whole[..whole.len() - 1].to_vec(), true),
        ("a flipped byte in the JSON", with(9, b"!"), true),
        ("an enormous header", with(0, &[0xff; 8]), true),
        ("a flipped byte in a tensor", with(whole.len() - 1, &[!whole[whole.len() - 1]]), true),
        ("zeroes at the beginning", with(0, &[0; 400]), false),
        ("only zeroes", vec![0; whole.len()], false),
        ("another header", with(8, &[b'{'; 400]), false),
    ]
}

#[test]
fn every_damaged_snapshot_is_skipped_and_the_next_save_of_its_position_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let vs = save_adam(folder.path());
    let whole = std::fs::read(&snapshot::list(folder.path()).unwrap()[0].path).unwrap();
    let path = folder.path().join("snapshot-000005-00000000.safetensors");
    let options = SnapshotOptions { background: false, on_error: OnSaveError::Stop, ..Default::default() };
    for (what, damaged, recognized) in damages(&whole) {
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(resumed(folder.path()), Ok(AT), "{what}");
        let mut snapshots = Snapshots::new(folder.path(), RUN, options, &Reporter::alone(Device::Cpu).unwrap());
        snapshots
            .save(Save::new(Position::start_of(5), &vs, &adam(&vs)))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(snapshots);
        assert_eq!(resumed(folder.path()), Ok(Position::start_of(5)), "{what}");
        let aside = path.with_extension("safetensors.damaged");
        assert_eq!(aside.exists(), !recognized, "{what}");
        if !recognized {
            assert_eq!(std::fs::read(&aside).unwrap(), damaged, "{what}");
            std::fs::remove_file(aside).unwrap();
        }
    }
}

#[test]
fn leaves_files_of_others_that_are_named_as_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(format!("snapshot-{name}.safetensors"));
    let foreign = Tensor::from_slice(&[1.0f32]);
    for name in ["000000-00000001", "000002-00000000", "000009-00000000"] {
        Tensor::write_safetensors(&[("w", &foreign)], place(name)).unwrap();
    }
    std::fs::write(place("000000-00000002"), "notes").unwrap();
    let before = std::fs::read(place("000002-00000000")).unwrap();
    let (vs, _net) = model(1.0);
    let on_error = OnSaveError::Stop;
    let options = SnapshotOptions { keep: 1.try_into().unwrap(), background: false, on_error, ..Default::default() };
    let message = resumed(folder.path()).unwrap_err();
    assert!(message.contains("it is a safetensors file of another program"), "{message}");
    let mut snapshots = Snapshots::new(folder.path(), RUN, options, &Reporter::alone(Device::Cpu).unwrap());
    snapshots.save(Save::new(Position::start_of(1), &vs, &adam(&vs))).unwrap();
    let refused = snapshots.save(Save::new(Position::start_of(2), &vs, &adam(&vs))).unwrap_err();
    assert!(with_causes(refused).contains("move it away"));
    snapshots.save(Save::new(Position::start_of(3), &vs, &adam(&vs))).unwrap();
    let found = snapshot::list(folder.path()).unwrap();
    let places: Vec<_> = found.iter().map(|one| (one.epoch, one.step)).collect();
    assert_eq!(places, [(9, 0), (3, 0), (2, 0), (0, 2), (0, 1)]);
    assert_eq!(std::fs::read(place("000002-00000000")).unwrap(), before);
}

#[test]
fn what_no_save_can_replace_is_refused_before_training_begins() {
    let folder = tempfile::tempdir().unwrap();
    save_adam(folder.path());
    for name in ["snapshot-000005-00000000.safetensors", "part-000005-00000000-0-of-2-0a1b2c3d.safetensors"] {
        let path = folder.path().join(name);
        let make: [(&dyn Fn(), &str); 4] = [
            (&|| std::fs::create_dir(&path).unwrap(), "is a folder, and a file is meant"),
            (&|| std::os::unix::fs::symlink("/no/such/disk", &path).unwrap(), "is a link to /no/such/disk"),
            (&|| mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap(), "not a regular file"),
            (&|| std::fs::write(&path, "notes of a person").unwrap(), "it is a text"),
        ];
        for (make, what) in make {
            make();
            let message = resumed(folder.path()).unwrap_err();
            assert!(message.contains(name) && message.contains(what) && message.contains("move"), "{message}");
            std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)).unwrap();
        }
    }
    assert_eq!(resumed(folder.path()), Ok(AT));
}

fn vs_of(value: f64) -> VarStore {
    model(value).0
}

fn with_causes(error: SnapshotError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

#[test]
fn every_rank_learns_the_whole_reason_of_a_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let messages = ranks(2, |group| {
        let vs = vs_of(1.0);
        let mut snapshots = Snapshots::new(file.join("inside"), RUN, SnapshotOptions::default(), &reporter(&group));
        with_causes(snapshots.resume(&vs, &mut adam(&vs), &group).unwrap_err())
    });
    assert!(messages.iter().all(|messages| messages.contains("is a file, and a folder is meant")), "{messages:?}");
}

#[test]
fn resumes_from_a_folder_whose_name_is_not_unicode() {
    use std::os::unix::ffi::OsStringExt;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join(OsString::from_vec(b"run-\xff".to_vec()));
    save_adam(&folder);
    let starts = ranks(2, |group| {
        let vs = vs_of(1.0);
        let mut snapshots = Snapshots::new(&folder, RUN, SnapshotOptions::default(), &reporter(&group));
        snapshots.resume(&vs, &mut adam(&vs), &group).unwrap()
    });
    assert_eq!(starts, [AT; 2]);
}

#[test]
fn a_second_job_on_the_folder_of_a_running_one_is_refused_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let options = SnapshotOptions { lock_wait: Some(Duration::ZERO), ..Default::default() };
    let vs = vs_of(1.0);
    let mut first = Snapshots::new(folder.path(), RUN, options, &Reporter::alone(Device::Cpu).unwrap());
    first.save(Save::new(AT, &vs, &adam(&vs))).unwrap();
    let resume = || {
        ranks(2, |group| {
            let vs = vs_of(1.0);
            let mut snapshots = Snapshots::new(folder.path(), RUN, options, &reporter(&group));
            snapshots.resume(&vs, &mut adam(&vs), &group).map_err(with_causes)
        })
    };
    for message in resume() {
        let message = message.unwrap_err();
        let words = format!("another job is saving its snapshots in {}", folder.path().display());
        assert!(message.contains(&words) && message.contains("name another folder"), "{message}");
    }
    let mut second = Snapshots::new(folder.path(), RUN, options, &Reporter::alone(Device::Cpu).unwrap());
    assert!(matches!(second.save(Save::new(AT, &vs, &adam(&vs))), Err(SnapshotError::Taken { .. })));
    first.finish().unwrap();
    assert_eq!(resume(), [Ok(AT), Ok(AT)]);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct SoFar {
    plateau: PlateauState,
    best: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Other {
    best: Option<f64>,
    worst: f64,
}

fn so_far() -> SoFar {
    SoFar { plateau: ReduceLrOnPlateau::new(PlateauOptions::default()).unwrap().state(), best: Some(0.1 + 0.2) }
}

/// Saves a model of zeros with the state.
fn save_with<E: Serialize + DeserializeOwned + Sync>(folder: &Path, extra: &E) -> Result<(), SnapshotError> {
    let saved = ranks(1, |group| {
        let vs = vs_of(0.0);
        let mut snapshots = Snapshots::new(folder, RUN, SnapshotOptions::default(), &reporter(&group));
        snapshots.save_if(true, Save::new(AT, &vs, &adam(&vs)).with(extra), &group)?;
        snapshots.finish()
    });
    saved.into_iter().collect()
}

#[test]
fn the_programs_state_comes_back_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    save_with(folder.path(), &so_far()).unwrap();
    let back = ranks(3, |group| {
        let vs = vs_of(1.0);
        let private = folder.path().join(format!("private-{}", group.rank()));
        let place = if group.rank().is_zero() { folder.path() } else { &private };
        let mut snapshots = Snapshots::new(place, RUN, SnapshotOptions::default(), &reporter(&group));
        snapshots.resume_with::<SoFar>(&vs, &mut adam(&vs), &group).unwrap()
    });
    assert!(back.into_iter().all(|back| back == (AT, Some(so_far()))));
    // A program that does not ask for it resumes without it.
    let start = ranks(2, |group| {
        let vs = vs_of(1.0);
        let mut snapshots = Snapshots::new(folder.path(), RUN, SnapshotOptions::default(), &reporter(&group));
        snapshots.resume(&vs, &mut adam(&vs), &group).unwrap()
    });
    assert_eq!(start, [AT; 2]);
}

#[test]
fn a_snapshot_without_a_program_state_and_a_fresh_start_return_none() {
    let folder = tempfile::tempdir().unwrap();
    let resume = || {
        ranks(2, |group| {
            let vs = vs_of(1.0);
            let mut snapshots = Snapshots::new(folder.path(), RUN, SnapshotOptions::default(), &reporter(&group));
            snapshots.resume_with::<SoFar>(&vs, &mut adam(&vs), &group).unwrap()
        })
    };
    assert!(resume().into_iter().all(|back| back == (Position::default(), None)));
    save_adam(folder.path());
    assert!(resume().into_iter().all(|back| back == (AT, None)));
}

#[test]
fn a_state_of_another_shape_is_refused_on_every_rank_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    save_with(folder.path(), &so_far()).unwrap();
    let message = ranks(2, |group| {
        let vs = vs_of(7.0);
        let mut optimizer = adam(&vs);
        let mut snapshots = Snapshots::new(folder.path(), RUN, SnapshotOptions::default(), &reporter(&group));
        let error = snapshots.resume_with::<Other>(&vs, &mut optimizer, &group).unwrap_err();
        let before = values(&vs).into_values().flatten().all(|value| value == 7.0f32.to_bits());
        assert!(before && optimizer.state_dict().unwrap().tensors().is_empty());
        error.to_string()
    });
    for message in message {
        assert!(message.contains("Other") && message.contains("missing field `worst`"), "{message}");
        assert!(message.contains(r#""best":0.30000000000000004"#) && message.contains("snapshot-000004"), "{message}");
    }
}

#[test]
fn a_state_that_json_would_lose_is_refused_when_it_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let error = save_with(folder.path(), &Other { best: None, worst: f64::NEG_INFINITY }).unwrap_err();
    assert!(matches!(error, SnapshotError::State { .. }), "{error}");
    assert_eq!(snapshot::list(folder.path()).unwrap(), []);
}

/// The same snapshot as a later version might write it.
fn of_schema_7(bytes: &[u8]) -> Vec<u8> {
    let place =
        |bytes: &[u8], label: &[u8]| bytes.windows(label.len()).position(|part| part == label).unwrap() + label.len();
    let mut bytes = bytes.to_vec();
    let schema = place(&bytes, br#""lockstep.schema":""#);
    bytes[schema] = b'7';
    let checksum = place(&bytes, br#""lockstep.crc32":""#);
    bytes[checksum..checksum + 8].copy_from_slice(b"00000000");
    let sum = format!("{:08x}", crc32fast::hash(&bytes));
    bytes[checksum..checksum + 8].copy_from_slice(sum.as_bytes());
    bytes
}

#[test]
fn keeps_as_many_as_asked_and_reads_back_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let (vs, _net) = model(1.0);
    let options = SnapshotOptions { keep: 3.try_into().unwrap(), background: false, ..Default::default() };
    let mut snapshots = Snapshots::new(folder.path(), RUN, options, &Reporter::alone(Device::Cpu).unwrap());
    for epoch in 1..=5 {
        snapshots.save(Save::new(Position::start_of(epoch), &vs, &adam(&vs))).unwrap();
    }
    let found = snapshot::list(folder.path()).unwrap();
    assert_eq!(found.iter().map(|one| one.epoch).collect::<Vec<_>>(), [5, 4, 3]);
    let newest = Snapshot::read(&found[0].path).unwrap();
    assert_eq!((newest.meta.position, newest.meta.run, newest.meta.world_size), (Position::start_of(5), RUN, 1));
    assert_eq!(newest.model.len(), vs.variables().len());
}

#[test]
fn is_read_by_pythons_safetensors_with_its_checksum() {
    let Some(python) = python_with(&["safetensors"], "snapshots in Python") else { return };
    let folder = tempfile::tempdir().unwrap();
    let vs = save_adam(folder.path());
    let script = r#"
import json, sys, zlib
from safetensors import safe_open
with safe_open(sys.argv[1], "pt") as file:
    said = file.metadata()
    assert json.loads(said["lockstep.snapshot"])["position"] == {"epoch": 4, "step": 2, "samples": 16}, said
    assert len([name for name in file.keys() if name.startswith("optimizer.exp_avg_sq.")]) == 4
    print(file.get_tensor("model.in.weight").flatten().double().tolist())
data, field = open(sys.argv[1], "rb").read(), b'"lockstep.crc32":"%s"' % said["lockstep.crc32"].encode()
assert data.count(field) == 1
assert "%08x" % zlib.crc32(data.replace(field, b'"lockstep.crc32":"00000000"')) == said["lockstep.crc32"]
"#;
    let path = snapshot::list(folder.path()).unwrap().remove(0).path;
    let output = Command::new(&python).args(["-c", script]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: Vec<f64> = serde_json::from_slice(&output.stdout).unwrap();
    let here = Vec::<f64>::try_from(vs.variables()["in.weight"].detach().flatten(0, -1).to_kind(Kind::Double)).unwrap();
    assert_eq!(read, here);
}

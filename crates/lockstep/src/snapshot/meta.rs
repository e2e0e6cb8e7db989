//! A snapshot's metadata: position, run, job, attempt and shard, and the program's own state as JSON.

use std::any::type_name;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;

use lockstep_contract::scheduler::{Read, restarts};
use lockstep_process::AGENT;
use lockstep_process::proc::Stat;
use rustix::process::getppid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Tensor;

use super::error::{SnapshotError, Unfit};
use crate::LaunchEnv;
use crate::loader::Position;
use crate::optim::StateMeta;
use crate::parallel::Piece;

/// The version of the format. The checksum is independent of it: all versions have it in the same place.
pub const SCHEMA: u32 = 1;

/// torchrun's name for a job without an id.
const UNNAMED: &str = "none";

/// Maximum length of the state, in bytes: it is in the header of the file, which must stay below 100 MB.
const LONGEST: usize = 16 << 20;

/// How many characters of a saved state a message shows.
const SHOWN: usize = 200;

/// The description in a snapshot, besides its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Where training continues.
    pub position: Position,
    /// What the order of the data depends on.
    pub run: Run,
    /// The world size.
    pub world_size: usize,
    /// The number of libtorch's intra-op threads: another number rounds sums differently.
    pub threads: i32,
    /// How many ranks are on each node, and the backend that adds their numbers: others may add them in another order. Empty if the run
    /// has not looked for a snapshot, which is when it learns them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<usize>,
    /// See `nodes`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    /// How many virtual ranks the training has, if it has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_ranks: Option<NonZeroUsize>,
    /// The vector instructions for which rank 0's libtorch chose its kernels, as [`c10d::cpu_capability`] names them: others may round sums
    /// differently. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub instructions: String,
    /// The learning rates that the optimizer was built with, by parameter group: what the run was asked for, whatever a schedule has
    /// made of it. Empty as `nodes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub built_with: Vec<f64>,
    /// The optimizer: its kind, options and step counts.
    pub optimizer: StateMeta,
    /// The job that saved it, by the names of all its launchers; `None` for a process without a launcher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// Which start of the scheduler's job saved it; `None` without a scheduler that counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// What this file is of a sharded snapshot; `None` if it has everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharded: Option<Sharded>,
}

/// Everything that determines the order of the data, and so the meaning of a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The seed of shuffling and of all other random choices.
    pub seed: u64,
    /// The length of the training set.
    pub samples: usize,
    /// The training set's [fingerprint](crate::data::Dataset::fingerprint).
    pub data: u32,
    /// Samples in a batch of one rank.
    pub batch_size: usize,
}

/// A good snapshot, in memory.
#[derive(Debug)]
pub struct Snapshot {
    /// Its description.
    pub meta: Meta,
    /// The model's variables, by name.
    pub model: BTreeMap<String, Tensor>,
    /// The optimizer's tensors, as [`State::tensors`](crate::optim::State::tensors) names them.
    pub optimizer: Vec<(String, Tensor)>,
    /// The program's own state, as the JSON text of [`Save::with`](super::Save::with); `None` in a snapshot
    /// of [`Snapshots::save`](super::Snapshots::save).
    pub extra: Option<String>,
}

/// A start of a scheduler's job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The job, which keeps its id when it is started again: `SLURM_JOB_ID=17`.
    pub job: String,
    /// How often it was started before.
    pub number: u32,
}

/// What a file of a sharded snapshot is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharded {
    /// The index, with the files of all ranks, by rank.
    Index(Vec<PartFile>),
    /// What this rank has.
    Part {
        /// The rank.
        rank: usize,
        /// Which elements of each parameter this file holds.
        pieces: Vec<Piece>,
    },
}

/// A part, as the index lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// The file's name, in the folder of the index.
    pub file: String,
    /// Its length.
    pub bytes: u64,
}

impl Attempt {
    /// The attempt that this process belongs to; `None` without a scheduler that counts them. Slurm does (sbatch(1)).
    pub(super) fn here() -> Option<Self> {
        Self::of(&Read::here())
    }

    fn of(read: &Read<'_>) -> Option<Self> {
        let number = restarts(read)?;
        Some(Attempt { job: format!("SLURM_JOB_ID={}", (read.variable)("SLURM_JOB_ID")?), number })
    }
}

/// The name of this process's job; `None` if no launcher started it.
///
/// An interrupted job resumes from its own snapshots, and no other does. The number of restarts does not identify a job: each launcher
/// counts its own workers' failures, a launcher that replaces a lost one counts from 0, and so does a new run in an old folder. So a job is
/// named by the run id given to its launchers (`--rdzv-id`), which a requeued job keeps, or which `--standalone` draws; otherwise by any of
/// its launchers: the job lives as long as one of them does.
pub(crate) fn job_of(env: &LaunchEnv) -> Option<String> {
    name(env.run_id.as_deref(), std::env::var_os(AGENT), parent)
}

fn name(run_id: Option<&str>, agent: Option<OsString>, parent: impl Fn() -> Option<String>) -> Option<String> {
    let run_id = run_id?;
    if run_id != UNNAMED {
        return Some(format!("run {run_id}"));
    }
    let agent = agent.and_then(|ids| ids.to_str()?.rsplit(':').next().map(str::to_owned)).filter(|id| !id.is_empty());
    agent.map(|id| format!("launcher {id}")).or_else(parent)
}

/// The identity of the parent process, unique over all machines until they reboot: torchrun starts its workers directly.
fn parent() -> Option<String> {
    let pid = getppid()?.as_raw_pid();
    let start = Stat::of(pid)?.start;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("launcher {pid} started at {start} since boot {}", boot.trim()))
}

/// The JSON to save. Checks that it reads back to equal JSON, so that a loss is found now and not when resuming.
pub(super) fn encode_state<E: Serialize + DeserializeOwned>(extra: &E) -> Result<String, SnapshotError> {
    let lost = |why: String| SnapshotError::State { type_name: type_name::<E>(), why };
    let text = serde_json::to_string(extra).map_err(|error| lost(error.to_string()))?;
    if text.len() > LONGEST {
        return Err(lost(format!(
            "it takes {} bytes and may take {LONGEST}; keep large values in tensors",
            text.len()
        )));
    }
    let again: E = serde_json::from_str(&text).map_err(|error| {
        lost(format!("it would be written as {} and could not be read again: {error}", shortened(&text)))
    })?;
    if value(&again).is_none_or(|again| Some(again) != value(extra)) {
        return Err(lost(format!("it would be written as {} and read as another value", shortened(&text))));
    }
    Ok(text)
}

/// The saved value, if it is an `E` and an `E` has a place for all of it.
pub(super) fn decode_state<E: Serialize + DeserializeOwned>(text: &str) -> Result<E, Unfit> {
    let unfit =
        |why: String| Unfit::State { saved: shortened(text), type_name: type_name::<E>(), why: shortened(&why) };
    let extra: E = serde_json::from_str(text).map_err(|error| unfit(error.to_string()))?;
    let saved = serde_json::from_str(text).map_err(|error| unfit(error.to_string()))?;
    let lost = value(&extra).and_then(|here| lost_field(&saved, &here, ""));
    lost.map_or(Ok(extra), |field| Err(unfit(format!("it has no field `{field}` here"))))
}

fn value(extra: &impl Serialize) -> Option<Value> {
    serde_json::to_value(extra).ok()
}

/// The path of the first field that `saved` has and `here` lacks.
fn lost_field(saved: &Value, here: &Value, path: &str) -> Option<String> {
    match (saved, here) {
        (Value::Object(saved), Value::Object(here)) => saved.iter().find_map(|(name, saved)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            here.get(name).map_or(Some(path.clone()), |here| lost_field(saved, here, &path))
        }),
        (Value::Array(saved), Value::Array(here)) => saved
            .iter()
            .zip(here)
            .enumerate()
            .find_map(|(at, (saved, here))| lost_field(saved, here, &format!("{path}[{at}]"))),
        _ => None,
    }
}

fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    fn nobody() -> Option<String> {
        None
    }

    #[test]
    fn identifies_a_job_by_its_run_id_with_any_launcher() {
        let named = |agent: &str| name(Some("job7"), Some(agent.into()), nobody);
        assert_eq!(named("a"), Some("run job7".into()));
        assert_eq!(named("b"), named("a"));
        assert_ne!(name(Some("job8"), Some("a".into()), nobody), named("a"));
    }

    #[test]
    fn identifies_a_job_without_an_id_by_its_innermost_launcher() {
        let unnamed = |agent: &str| name(Some("none"), Some(agent.into()), || Some("parent".into()));
        assert_eq!(unnamed("outer:inner"), Some("launcher inner".into()));
        assert_eq!(unnamed(""), Some("parent".into()));
        assert_eq!(name(Some("none"), None, || Some("parent".into())), Some("parent".into()));
    }

    #[test]
    fn treats_a_process_without_a_launcher_as_a_separate_job() {
        assert_eq!(name(None, Some("outer".into()), || Some("a shell".into())), None);
    }

    #[test]
    fn names_the_parent_uniquely() {
        let named = parent().unwrap();
        assert_eq!(Some(&named), parent().as_ref());
        assert!(named.contains(&getppid().unwrap().as_raw_pid().to_string()), "{named}");
    }

    fn of(variables: &[(&str, &str)]) -> Option<Attempt> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Attempt::of(&Read { variable: &variable, file: &|_: &str| Err(std::io::ErrorKind::NotFound.into()) })
    }

    #[test]
    fn counts_the_starts_of_a_slurm_job() {
        let job = "SLURM_JOB_ID=17".to_owned();
        assert_eq!(of(&[("SLURM_JOB_ID", "17")]), Some(Attempt { job: job.clone(), number: 0 }));
        let again = [("SLURM_JOB_ID", "17"), ("SLURM_RESTART_COUNT", "2")];
        assert_eq!(of(&again), Some(Attempt { job, number: 2 }));
        assert_eq!(of(&[("SLURM_RESTART_COUNT", "2")]), None);
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct SoFar {
        best: f64,
        names: Vec<String>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Other {
        best: f64,
        epochs: u64,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Less {
        best: f64,
    }

    fn message(refused: Unfit) -> String {
        refused.to_string()
    }

    #[test]
    fn refuses_a_state_that_lacks_a_field_and_names_both_sides() {
        let text = encode_state(&SoFar { best: 0.5, names: vec!["a".into()] }).unwrap();
        let message = message(decode_state::<Other>(&text).unwrap_err());
        assert!(message.contains(r#"{"best":0.5,"names":["a"]}"#), "{message}");
        assert!(message.contains("Other") && message.contains("missing field `epochs`"), "{message}");
    }

    #[test]
    fn refuses_a_state_of_which_a_field_would_be_lost() {
        let text = encode_state(&vec![SoFar { best: 0.5, names: Vec::new() }]).unwrap();
        let message = message(decode_state::<Vec<Less>>(&text).unwrap_err());
        assert!(message.contains("no field `[0].names`") && message.contains("Less"), "{message}");
    }

    #[test]
    fn refuses_to_save_what_json_would_lose() {
        let error = encode_state(&SoFar { best: f64::NAN, names: Vec::new() }).unwrap_err().to_string();
        assert!(error.contains("SoFar") && error.contains(r#""best":null"#), "{error}");
    }

    #[test]
    fn refuses_to_save_what_no_header_would_hold() {
        let error = encode_state(&"x".repeat(LONGEST)).unwrap_err().to_string();
        assert!(error.contains("may take 16777216"), "{error}");
    }

    #[test]
    fn shows_the_beginning_of_a_long_state() {
        let message = message(decode_state::<Less>(&encode_state(&"é".repeat(500)).unwrap()).unwrap_err());
        assert!(message.contains("ééé…") && message.chars().count() < 600, "{message}");
    }

    proptest! {
        #[test]
        fn brings_back_every_bit(best in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL, names: Vec<String>) {
            let so_far = SoFar { best, names };
            let back: SoFar = decode_state(&encode_state(&so_far).unwrap()).unwrap();
            prop_assert_eq!((back.best.to_bits(), &back.names), (so_far.best.to_bits(), &so_far.names));
        }
    }
}

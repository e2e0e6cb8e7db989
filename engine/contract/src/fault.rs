//! Fault injection: a worker harms itself at an exact rank, epoch and step, so that tests of recovery are exact.
//!
//! `LOCKSTEP_FAULTS` names a JSON file with a [`Plan`]. A worker that finds its own rank in the plan injects each fault
//! **once per job**: before the fault it creates the empty file `<plan>.fired-<name>`. The restarted worker, which
//! passes the same point again, finds the file and continues. Only where it waits for the harness ([`Act::AwaitHarness`])
//! does the harness create the file. Without the variable this costs nothing. The scenario, not this module, says what a
//! fault proves.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::foreign;

/// The variable that names the file with the plan.
pub const FAULTS: &str = "LOCKSTEP_FAULTS";

/// The numbers of Linux's signals, without the real-time signals (signal(7)).
const SIGNALS: RangeInclusive<i32> = 1..=31;

/// The faults of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Faults at the same point are injected in this order.
    pub faults: Vec<RankFault>,
}

/// A fault that one rank injects into itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankFault {
    /// Unique in the plan. It becomes part of a file name.
    pub name: String,
    /// The rank that injects it.
    pub rank: usize,
    /// The point at which it is injected.
    pub at: Point,
    /// What happens, one after the other.
    pub acts: Vec<Act>,
}

/// A point in a training run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "point", rename_all = "snake_case", deny_unknown_fields)]
pub enum Point {
    /// Right after this rank's optimizer step, before its result is used. Both counts start at 0.
    Step {
        epoch: u64,
        /// The step in the epoch.
        step: u64,
    },
    /// While a snapshot is being saved. Training would resume from it at `step` of `epoch`. Only rank 0 saves
    /// snapshots.
    Save {
        epoch: u64,
        /// The step in the epoch.
        step: u64,
        /// How far the save has progressed.
        phase: SavePhase,
    },
}

/// How far the save of a snapshot has progressed; in a plan and in a scenario's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SavePhase {
    /// Half of the bytes are written to the temporary file.
    HalfWritten,
    /// All bytes are written, but the file does not have its final name yet.
    Written,
    /// The file has its final name.
    Named,
}

/// A single action, harmful but for [`Act::AwaitHarness`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// The process sends itself this signal: 9 kills it, 11 looks like a segmentation fault, 19 stops it.
    Signal(i32),
    /// The process exits with this code, without clean-up.
    Exit(i32),
    Panic,
    /// The process ignores SIGTERM from now on.
    IgnoreTerm,
    /// The newest snapshot loses its second half, as a file system may leave it after a power cut.
    TearSnapshot,
    /// Flips a bit of the newest snapshot, as a bad disk may.
    FlipSnapshotBit,
    /// Writing the snapshot fails with the error of a full disk; the disk itself is not full. Allowed only at a
    /// [`Point::Save`] before the file has its final name.
    NoSpace,
    /// The process waits until the harness has done to the job what it does from outside at this point: until the file
    /// [`came`] exists, but no longer than [`LONGEST_WAIT`]. A process that starts later, when the file [`fired`] exists, does
    /// not wait.
    AwaitHarness,
}

/// How long [`Act::AwaitHarness`] waits at most: a harness that has ended does nothing any more.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The faults of one rank, ready to be injected.
#[derive(Debug, Default)]
pub struct Armed {
    path: PathBuf,
    faults: Vec<RankFault>,
}

/// Why faults that were requested cannot be injected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// The file cannot be read.
    #[error("cannot read the faults in {} (LOCKSTEP_FAULTS)", foreign::path(path))]
    Read {
        /// The file with the plan.
        path: PathBuf,
        source: io::Error,
    },
    /// The file is not a plan.
    #[error("{} (LOCKSTEP_FAULTS) is not a plan of faults", foreign::path(path))]
    Malformed {
        /// The file with the plan.
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The fault could never be injected as written.
    #[error(
        "the fault {} in {} (LOCKSTEP_FAULTS) cannot be injected: {why}",
        foreign::quotation(name),
        foreign::path(path)
    )]
    Misplaced {
        /// The file with the plan.
        path: PathBuf,
        name: String,
        why: &'static str,
    },
    /// The injection could not be recorded, so the fault was not injected.
    #[error("cannot record the injection of the fault {} in {}", foreign::quotation(name), foreign::path(path))]
    Note {
        name: String,
        /// The file that could not be created.
        path: PathBuf,
        source: io::Error,
    },
}

impl RankFault {
    fn is_wait(&self) -> bool {
        self.acts == [Act::AwaitHarness]
    }

    /// Why this fault could never be injected, or `None`. A test of recovery must not pass because nothing happened.
    fn misplaced(&self) -> Option<&'static str> {
        let unnamed = matches!(self.at, Point::Save { phase: SavePhase::HalfWritten | SavePhase::Written, .. });
        if self.name.is_empty() || self.name.contains('/') {
            Some("its name is empty or contains a slash, and the name becomes part of a file name")
        } else if self.acts.is_empty() {
            Some("it has no acts")
        } else if self.acts.iter().any(|act| matches!(act, Act::Signal(number) if !SIGNALS.contains(number))) {
            Some("signal numbers go from 1 to 31")
        } else if self.acts.contains(&Act::NoSpace) && !unnamed {
            Some("no_space needs a point at which a snapshot is being written")
        } else if self.rank != 0 && matches!(self.at, Point::Save { .. }) {
            Some("only rank 0 saves snapshots")
        } else {
            None
        }
    }
}

impl Plan {
    /// A name that two faults share: injecting the first would mark the second as injected, too.
    fn double(&self) -> Option<(String, &'static str)> {
        let mut names = BTreeSet::new();
        let double = self.faults.iter().find(|fault| !names.insert(&fault.name))?;
        Some((double.name.clone(), "another fault has its name"))
    }
}

impl Armed {
    /// The faults of `rank` in the plan that the environment names; empty without a plan.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn from_env(rank: usize) -> Result<Self, FaultError> {
        match std::env::var_os(FAULTS).filter(|path| !path.is_empty()) {
            Some(path) => Self::read(Path::new(&path), rank),
            None => Ok(Self::default()),
        }
    }

    /// The faults of `rank` in the plan at `path`.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn read(path: &Path, rank: usize) -> Result<Self, FaultError> {
        let text = fs::read(path).map_err(|source| FaultError::Read { path: path.to_owned(), source })?;
        let plan: Plan =
            serde_json::from_slice(&text).map_err(|source| FaultError::Malformed { path: path.to_owned(), source })?;
        let wrong = plan.faults.iter().find_map(|fault| Some((fault.name.clone(), fault.misplaced()?)));
        if let Some((name, why)) = wrong.or_else(|| plan.double()) {
            return Err(FaultError::Misplaced { path: path.to_owned(), name, why });
        }
        let past = |fault: &RankFault| fault.is_wait() && fired(path, &fault.name).exists();
        let faults = plan.faults.into_iter().filter(|fault| fault.rank == rank && !past(fault)).collect();
        Ok(Armed { path: path.to_owned(), faults })
    }

    /// Returns true if this rank has no faults, so that callers can skip all other checks.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults that are due at `point` and have not been injected yet. They count as injected from now on, but for waits.
    ///
    /// # Errors
    /// [`FaultError::Note`] if that cannot be recorded; then no fault may be injected.
    pub fn due(&self, point: &Point) -> Result<Vec<&RankFault>, FaultError> {
        let mut due = Vec::new();
        for fault in self.faults.iter().filter(|fault| fault.at == *point) {
            if fault.is_wait() || self.fires(fault)? {
                due.push(fault);
            }
        }
        Ok(due)
    }

    /// The file for which [`Act::AwaitHarness`] of this fault waits.
    pub fn came(&self, fault: &RankFault) -> PathBuf {
        came(&self.path, &fault.name)
    }

    /// Returns true for the one process that creates the file.
    fn fires(&self, fault: &RankFault) -> Result<bool, FaultError> {
        let path = fired(&self.path, &fault.name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(FaultError::Note { name: fault.name.clone(), path, source }),
        }
    }
}

/// The file that exists once the fault `name` of the plan at `plan` has been injected: by a rank, or, where ranks wait for it, by the
/// harness.
pub fn fired(plan: &Path, name: &str) -> PathBuf {
    beside(plan, "fired", name)
}

/// The file that the harness creates once it has done what [`Act::AwaitHarness`] of the fault `name` waits for.
pub fn came(plan: &Path, name: &str) -> PathBuf {
    beside(plan, "came", name)
}

fn beside(plan: &Path, what: &str, name: &str) -> PathBuf {
    let mut file = plan.as_os_str().to_owned();
    file.push(format!(".{what}-{name}"));
    PathBuf::from(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, rank: usize, step: u64) -> RankFault {
        RankFault { name: name.into(), rank, at: Point::Step { epoch: 1, step }, acts: vec![Act::Signal(9)] }
    }

    fn written(plan: &Plan) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults.json");
        fs::write(&path, serde_json::to_vec(plan).unwrap()).unwrap();
        (dir, path)
    }

    #[test]
    fn injects_a_fault_once_even_when_its_point_is_passed_again_after_a_restart() {
        let plan = Plan { faults: vec![fault("a", 0, 3), fault("b", 1, 3)] };
        let (_dir, path) = written(&plan);
        let armed = Armed::read(&path, 1).unwrap();
        assert!(armed.due(&Point::Step { epoch: 1, step: 2 }).unwrap().is_empty());
        assert_eq!(armed.due(&Point::Step { epoch: 1, step: 3 }).unwrap(), [&plan.faults[1]]);
        assert!(fired(&path, "b").exists() && !fired(&path, "a").exists());
        assert!(Armed::read(&path, 1).unwrap().due(&Point::Step { epoch: 1, step: 3 }).unwrap().is_empty());
    }

    #[test]
    fn only_a_process_that_starts_after_the_harness_has_come_does_not_wait_for_it() {
        let wait = RankFault { acts: vec![Act::AwaitHarness], ..fault("outside", 0, 3) };
        let (_dir, path) = written(&Plan { faults: vec![wait.clone()] });
        let waits = |armed: &Armed| armed.due(&Point::Step { epoch: 1, step: 3 }).unwrap() == [&wait];
        let before = Armed::read(&path, 0).unwrap();
        assert!(waits(&before) && waits(&Armed::read(&path, 0).unwrap()));
        fs::write(fired(&path, "outside"), "").unwrap();
        assert!(waits(&before) && !waits(&Armed::read(&path, 0).unwrap()));
    }

    #[test]
    fn injects_nothing_and_fails_when_the_injection_cannot_be_recorded() {
        let (dir, path) = written(&Plan { faults: vec![fault("a", 0, 3)] });
        let armed = Armed::read(&path, 0).unwrap();
        drop(dir);
        let error = armed.due(&Point::Step { epoch: 1, step: 3 }).unwrap_err();
        assert!(matches!(&error, FaultError::Note { name, .. } if name == "a"), "{error}");
    }

    #[test]
    fn reads_every_point_and_act_back() {
        let save = |phase| Point::Save { epoch: 0, step: 8, phase };
        let acts = [Act::Exit(3), Act::Panic, Act::IgnoreTerm, Act::TearSnapshot, Act::FlipSnapshotBit, Act::NoSpace];
        let phases = [SavePhase::HalfWritten, SavePhase::Written, SavePhase::Named];
        let faults =
            phases.map(|phase| RankFault { name: format!("{phase:?}"), rank: 0, at: save(phase), acts: acts.to_vec() });
        let plan = Plan { faults: faults.to_vec() };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }

    #[test]
    fn rejects_faults_that_could_never_be_injected() {
        let save = |phase| Point::Save { epoch: 0, step: 8, phase };
        let step = fault("a", 0, 3);
        let (no_space, elsewhere) = (vec![Act::NoSpace], "../a".to_owned());
        for (bad, words) in [
            (RankFault { acts: no_space.clone(), ..step.clone() }, "being written"),
            (RankFault { acts: no_space.clone(), at: save(SavePhase::Named), ..step.clone() }, "being written"),
            (RankFault { rank: 1, at: save(SavePhase::Written), ..step.clone() }, "only rank 0"),
            (RankFault { name: elsewhere, ..step.clone() }, "slash"),
            (RankFault { acts: Vec::new(), name: "b".into(), ..step.clone() }, "no acts"),
            (RankFault { acts: vec![Act::Signal(0)], name: "b".into(), ..step.clone() }, "from 1 to 31"),
            (RankFault { acts: vec![Act::Panic, Act::Signal(99)], name: "b".into(), ..step.clone() }, "from 1 to 31"),
            (RankFault { rank: 1, ..step.clone() }, "another fault has its name"),
        ] {
            let (_dir, path) = written(&Plan { faults: vec![step.clone(), bad] });
            let error = Armed::read(&path, 0).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let good = RankFault { acts: no_space, at: save(SavePhase::Written), ..step };
        let (_dir, path) = written(&Plan { faults: vec![good] });
        assert!(!Armed::read(&path, 0).unwrap().is_empty());
    }

    #[test]
    fn rejects_a_plan_that_is_missing_or_malformed_by_its_name() {
        let (dir, path) = written(&Plan::default());
        assert!(Armed::read(&path, 0).unwrap().is_empty());
        let error = Armed::read(&dir.path().join("none"), 0).unwrap_err().to_string();
        assert!(error.contains("none") && error.contains(FAULTS), "{error}");
        fs::write(&path, r#"{"faults": [{"name": "a", "rank": 0, "when": 3}]}"#).unwrap();
        assert!(matches!(Armed::read(&path, 0), Err(FaultError::Malformed { .. })));
    }
}

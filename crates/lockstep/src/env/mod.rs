//! A launcher's variables (torchrun's), read and checked once, as one value. Without a launcher, `mpirun`, `mpiexec` or `srun` may have
//! started one process for each rank; what a launcher would have set is then [`Taken`] from their variables.
//!
//! Rank, position on the node and world size are three types, because tutorials confuse the three numbers. Parsing is a pure function
//! of a lookup, so tests never touch the process's environment. Leaves out joining the group, and starting processes: see
//! [`crate::spawn()`].

mod taken;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use lockstep_contract::scheduler::{Task, TaskError, size_variables};
use serde::{Deserialize, Serialize};

pub use c10d::{Rank, WorldSize};
pub use taken::Taken;
pub(crate) use taken::{HANDSHAKE, read};

use taken::REQUIRED;

/// The variable with the path of the file where a failing worker records its error.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// Variables that only a launcher sets; if one is present, processes were already started.
pub const LAUNCHER_VARIABLES: [&str; 3] = ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"];

/// The variable in which Slurm passes the number of a job's processes (sbatch(1)).
const TASKS: &str = "SLURM_NTASKS";

/// A worker's place in its job, as `lockstep run`, torchrun or [`crate::spawn()`] pass it.
///
/// Source of names and meanings: "Environment Variables" in `torch/distributed/run.py`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchEnv {
    /// Position among all processes of the job (`RANK`).
    pub rank: Rank,
    /// Position among the processes of this node (`LOCAL_RANK`): the index of the device.
    pub local_rank: LocalRank,
    /// Processes in the job (`WORLD_SIZE`).
    pub world_size: WorldSize,
    /// Processes on this node (`LOCAL_WORLD_SIZE`).
    pub local_world_size: WorldSize,
    /// Position of this node's agent (`GROUP_RANK`); `None` if no agent set it.
    pub group_rank: Option<usize>,
    /// Host of the rendezvous store (`MASTER_ADDR`).
    pub master_addr: String,
    /// Port of the rendezvous store (`MASTER_PORT`); 0, any free port, only for a process [`alone`](LaunchEnv::alone).
    pub master_port: u16,
    /// How often the workers have been restarted (`TORCHELASTIC_RESTART_COUNT`, 0 if unset).
    pub restart_count: u32,
    /// True if the launcher hosts the store, so that rank 0 is a client like the others (`TORCHELASTIC_USE_AGENT_STORE`, which
    /// torch compares with `True`).
    pub agent_store: bool,
    /// Where a failure is recorded for the launcher (`TORCHELASTIC_ERROR_FILE`).
    pub error_file: Option<PathBuf>,
    /// The job's name (`TORCHELASTIC_RUN_ID`).
    pub run_id: Option<String>,
    /// The variables that no launcher set, with the values that MPI's launcher or Slurm gave them; empty under a launcher.
    pub taken: Vec<Taken>,
}

impl LaunchEnv {
    /// Reads this process's environment: a launcher's variables, and those that are not set from `mpirun`, `mpiexec` or `srun` if one
    /// of them started this process as one of its ranks.
    ///
    /// Errors: [`EnvError::Missing`] names every absent variable at once, [`EnvError::Task`] two variables that contradict each other; the
    /// others name the first bad value.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::parse(|name| std::env::var_os(name))
    }

    /// Reads this process's environment; without a launcher, this is a process alone: rank 0 of a world of 1.
    ///
    /// Also fails if Slurm's job has several tasks and this process is none of them: each would train alone, on all of the data.
    pub fn from_env_or_alone() -> Result<Self, EnvError> {
        Ok(Self::from_env_if_launched()?.unwrap_or_else(Self::alone))
    }

    /// Reads this process's environment; `None` without a launcher.
    pub fn from_env_if_launched() -> Result<Option<Self>, EnvError> {
        let lookup = |name: &str| std::env::var_os(name);
        is_one_of_many(&lookup).then(|| Self::parse(lookup)).transpose()
    }

    /// A process that is the whole job. It hosts its own store on a free port of the loopback interface.
    pub fn alone() -> Self {
        LaunchEnv {
            rank: Rank::ZERO,
            local_rank: LocalRank::new(0),
            world_size: WorldSize::ONE,
            local_world_size: WorldSize::ONE,
            group_rank: None,
            master_addr: "127.0.0.1".to_owned(),
            master_port: 0,
            restart_count: 0,
            agent_store: false,
            error_file: std::env::var_os(ERROR_FILE).filter(|path| !path.is_empty()).map(PathBuf::from),
            run_id: None,
            taken: Vec::new(),
        }
    }

    /// What was taken from MPI's launcher or Slurm, for a log: `RANK=1 (OMPI_COMM_WORLD_RANK), …`; `None` under a launcher.
    #[must_use]
    pub fn source(&self) -> Option<String> {
        let taken: Vec<_> = self.taken.iter().map(Taken::to_string).collect();
        (!taken.is_empty()).then(|| taken.join(", "))
    }

    /// Reads variables through `lookup`.
    pub fn parse(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, EnvError> {
        let taken = taken::take(&lookup)?;
        let vars = Vars { lookup, taken };
        vars.check_present()?;
        let env = LaunchEnv {
            rank: Rank::new(vars.number("RANK")?),
            local_rank: LocalRank::new(vars.number("LOCAL_RANK")?),
            world_size: vars.world("WORLD_SIZE")?,
            local_world_size: vars.world("LOCAL_WORLD_SIZE")?,
            group_rank: vars.optional_number("GROUP_RANK")?,
            master_addr: vars.address("MASTER_ADDR")?,
            master_port: vars.port("MASTER_PORT")?,
            restart_count: vars.optional_number("TORCHELASTIC_RESTART_COUNT")?.unwrap_or(0),
            agent_store: vars.python_bool("TORCHELASTIC_USE_AGENT_STORE")?,
            error_file: vars.get(ERROR_FILE).map(PathBuf::from),
            run_id: vars.get("TORCHELASTIC_RUN_ID").map(|id| id.to_string_lossy().into_owned()),
            taken: vars.taken,
        };
        env.check_places()?;
        Ok(env)
    }

    fn check_places(&self) -> Result<(), EnvError> {
        let LaunchEnv { rank, local_rank, world_size, local_world_size, .. } = *self;
        if !world_size.contains(rank) {
            return Err(EnvError::RankOutsideWorld { rank, world_size });
        }
        if local_rank.get() >= local_world_size.get() {
            return Err(EnvError::LocalRankOutsideNode { local_rank, local_world_size });
        }
        if local_world_size > world_size {
            return Err(EnvError::NodeLargerThanWorld { local_world_size, world_size });
        }
        Ok(())
    }
}

/// Returns true if a variable shows that other processes belong to the job.
fn is_one_of_many(lookup: &impl Fn(&str) -> Option<OsString>) -> bool {
    let number = |name: &str| lookup(name)?.to_str()?.trim().parse::<u64>().ok();
    let is_set = |name: &str| lookup(name).is_some_and(|value| !value.is_empty());
    let many = match read(lookup, Task::find) {
        Ok(Some(task)) => task.size.value > 1,
        Err(TaskError::Uncounted { .. }) => true,
        _ => size_variables().chain([TASKS]).any(|name| number(name).is_some_and(|tasks| tasks > 1)),
    };
    many || LAUNCHER_VARIABLES.into_iter().any(is_set)
}

/// The environment, completed by what was taken.
struct Vars<F> {
    lookup: F,
    taken: Vec<Taken>,
}

impl<F: Fn(&str) -> Option<OsString>> Vars<F> {
    /// A variable that is set but empty counts as absent, as for a shell's `${VAR:?}`.
    fn get(&self, name: &str) -> Option<OsString> {
        let taken = || self.taken.iter().find(|taken| taken.variable == name).map(|taken| taken.value.clone().into());
        (self.lookup)(name).filter(|value| !value.is_empty()).or_else(taken)
    }

    fn check_present(&self) -> Result<(), EnvError> {
        let names: Vec<_> = REQUIRED.into_iter().filter(|name| self.get(name).is_none()).collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(EnvError::Missing { names, slurm: self.get("SLURM_PROCID").is_some() })
    }

    fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_string_lossy().trim().to_owned()
    }

    fn number<N: std::str::FromStr>(&self, name: &'static str) -> Result<N, EnvError> {
        let value = self.text(name);
        value.parse().map_err(|_| EnvError::Unparsable { name, value, expected: "a whole number of 0 or more" })
    }

    fn optional_number<N: std::str::FromStr>(&self, name: &'static str) -> Result<Option<N>, EnvError> {
        self.get(name).map(|_| self.number(name)).transpose()
    }

    fn world(&self, name: &'static str) -> Result<WorldSize, EnvError> {
        let bad = || EnvError::Unparsable { name, value: self.text(name), expected: "a whole number of 1 or more" };
        self.number(name).ok().and_then(WorldSize::new).ok_or_else(bad)
    }

    fn port(&self, name: &'static str) -> Result<u16, EnvError> {
        let value = self.text(name);
        let port = value.parse().ok().filter(|port| *port != 0);
        port.ok_or(EnvError::Unparsable { name, value, expected: "a port from 1 to 65535" })
    }

    fn address(&self, name: &'static str) -> Result<String, EnvError> {
        let value = self.text(name);
        let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '/' || c == '\u{fffd}');
        if plain { Ok(value) } else { Err(EnvError::Unparsable { name, value, expected: "a host name or an address" }) }
    }

    fn python_bool(&self, name: &'static str) -> Result<bool, EnvError> {
        let value = self.text(name);
        match value.as_str() {
            "True" => Ok(true),
            "" | "False" => Ok(false),
            _ => Err(EnvError::Unparsable { name, value, expected: "True or False" }),
        }
    }
}

/// A process's position among the processes of *its own node*: it selects the device, never the rank in the group.
///
/// On one node it equals the rank, which is why `init_process_group(rank=LOCAL_RANK)` seems to work until a second node joins.
/// As a separate type it does not compile there:
///
/// ```compile_fail
/// fn join(rank: lockstep::Rank) {}
/// join(lockstep::LocalRank::new(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LocalRank(usize);

impl LocalRank {
    /// Wraps a position.
    pub const fn new(position: usize) -> Self {
        LocalRank(position)
    }

    /// The position as a plain number: the index of the device.
    pub const fn get(self) -> usize {
        self.0
    }
}

impl fmt::Display for LocalRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why the environment does not describe a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// Variables that every launcher sets are absent.
    #[error("{} not set: {}", listed(names), start_hint(names, *slurm))]
    Missing {
        /// All absent names, in the order of [`LaunchEnv`].
        names: Vec<&'static str>,
        /// True if Slurm started this process (`SLURM_PROCID` is set).
        slurm: bool,
    },
    /// The program that started this process numbers it incompletely, or nothing says where the ranks meet.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A value does not have the form that its variable requires.
    #[error("{name} is {value:?}, which is not {expected}: let the launcher set it, or unset it")]
    Unparsable {
        name: &'static str,
        /// Its value, lossily decoded.
        value: String,
        expected: &'static str,
    },
    /// The rank does not exist in this world.
    #[error("RANK is {rank} but WORLD_SIZE is {world_size}: ranks run from 0 to WORLD_SIZE - 1")]
    RankOutsideWorld {
        /// `RANK`.
        rank: Rank,
        /// `WORLD_SIZE`.
        world_size: WorldSize,
    },
    /// The local rank does not exist on this node.
    #[error(
        "LOCAL_RANK is {local_rank} but LOCAL_WORLD_SIZE is {local_world_size}: local ranks run from 0 to LOCAL_WORLD_SIZE - 1"
    )]
    LocalRankOutsideNode {
        /// `LOCAL_RANK`.
        local_rank: LocalRank,
        /// `LOCAL_WORLD_SIZE`.
        local_world_size: WorldSize,
    },
    /// The node has more processes than the whole job.
    #[error(
        "LOCAL_WORLD_SIZE is {local_world_size} but WORLD_SIZE is {world_size}: a node cannot hold more processes than the job; are the two swapped?"
    )]
    NodeLargerThanWorld {
        /// `LOCAL_WORLD_SIZE`.
        local_world_size: WorldSize,
        /// `WORLD_SIZE`.
        world_size: WorldSize,
    },
}

fn listed(names: &[&str]) -> String {
    match names {
        [one] => format!("{one} is"),
        _ => format!("{} are", names.join(", ")),
    }
}

fn start_hint(names: &[&str], slurm: bool) -> &'static str {
    if slurm && names.contains(&"RANK") {
        return "Slurm started this process (SLURM_PROCID is set), but not as a task of a step: start a task for each rank with \
                `srun PROGRAM`, or let srun start one `lockstep run` per node, and that start this program";
    }
    "start the program with `lockstep run --standalone --nproc-per-node=2 PROGRAM` (or torchrun), or use `lockstep::spawn`"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn worker() -> BTreeMap<&'static str, &'static str> {
        BTreeMap::from([
            ("RANK", "5"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node-1"),
            ("MASTER_PORT", "29500"),
        ])
    }

    fn parse(vars: &BTreeMap<&'static str, &'static str>) -> Result<LaunchEnv, EnvError> {
        LaunchEnv::parse(|name| vars.get(name).map(OsString::from))
    }

    fn with(name: &'static str, value: &'static str) -> Result<LaunchEnv, EnvError> {
        let mut vars = worker();
        vars.insert(name, value);
        parse(&vars)
    }

    #[test]
    fn reads_every_variable_that_torchrun_sets() {
        let mut vars = worker();
        vars.extend([
            ("GROUP_RANK", "1"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_ERROR_FILE", "/tmp/error.json"),
            ("TORCHELASTIC_RUN_ID", "job-7"),
        ]);
        let env = parse(&vars).unwrap();
        assert_eq!((env.rank.get(), env.local_rank.get(), env.group_rank), (5, 1, Some(1)));
        assert_eq!((env.world_size.get(), env.local_world_size.get()), (8, 4));
        assert_eq!((env.master_addr.as_str(), env.master_port), ("node-1", 29500));
        assert_eq!((env.restart_count, env.agent_store), (2, true));
        assert_eq!(env.error_file, Some(PathBuf::from("/tmp/error.json")));
        assert_eq!(env.run_id.as_deref(), Some("job-7"));
    }

    #[test]
    fn takes_torchs_defaults_for_what_only_an_agent_sets() {
        let env = parse(&worker()).unwrap();
        assert_eq!((env.group_rank, env.restart_count, env.agent_store), (None, 0, false));
        assert_eq!((env.error_file, env.run_id), (None, None));
    }

    #[test]
    fn names_all_missing_variables_at_once() {
        let error = LaunchEnv::parse(|_| None).unwrap_err();
        assert_eq!(error, EnvError::Missing { names: REQUIRED.to_vec(), slurm: false });
        assert_eq!(
            error.to_string(),
            "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: \
             start the program with `lockstep run --standalone --nproc-per-node=2 PROGRAM` (or torchrun), or use \
             `lockstep::spawn`"
        );
    }

    #[test]
    fn counts_an_empty_variable_as_missing() {
        assert_eq!(with("MASTER_ADDR", ""), Err(EnvError::Missing { names: vec!["MASTER_ADDR"], slurm: false }));
    }

    #[test]
    fn asks_a_bare_slurm_task_for_a_launcher() {
        let error = LaunchEnv::parse(|name| (name == "SLURM_PROCID").then(|| "3".into())).unwrap_err();
        assert!(error.to_string().contains("SLURM_PROCID is set"), "{error}");
        assert!(error.to_string().contains("one `lockstep run` per node"), "{error}");
    }

    #[test]
    fn takes_a_rank_from_mpi_and_keeps_what_is_set() {
        let vars = BTreeMap::from([
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("MASTER_PORT", "29501"),
        ]);
        let env = parse(&vars).unwrap();
        assert_eq!(
            (env.rank.get(), env.world_size.get(), env.local_rank.get(), env.local_world_size.get()),
            (1, 2, 1, 2)
        );
        assert_eq!((env.group_rank, env.master_addr.as_str(), env.master_port), (Some(0), "127.0.0.1", 29501));
        assert_eq!(
            env.source().unwrap(),
            "RANK=1 (OMPI_COMM_WORLD_RANK), WORLD_SIZE=2 (OMPI_COMM_WORLD_SIZE), LOCAL_RANK=1 (OMPI_COMM_WORLD_LOCAL_RANK), \
             LOCAL_WORLD_SIZE=2 (OMPI_COMM_WORLD_LOCAL_SIZE), GROUP_RANK=0 (OMPI_COMM_WORLD_LOCAL_SIZE), MASTER_ADDR=127.0.0.1 (all \
             ranks are on one node, OMPI_COMM_WORLD_LOCAL_SIZE=2)"
        );
        assert_eq!(parse(&worker()).unwrap().source(), None);
    }

    #[test]
    fn treats_a_process_as_alone_only_if_no_variable_shows_others() {
        let with = |set: &'static str, value: &'static str| {
            is_one_of_many(&move |name: &str| (name == set).then(|| value.into()))
        };
        for name in ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PMI_SIZE"] {
            assert!(with(name, "2") && !with(name, "1") && !with(name, "") && !with(name, "x"), "{name}");
        }
        assert!(with("RANK", "0") && with("WORLD_SIZE", "1") && !with("RANK", "") && !with("HOME", "2"));
    }

    #[test]
    fn rejects_values_of_the_wrong_form() {
        for (name, value) in [
            ("RANK", "-1"),
            ("RANK", "one"),
            ("RANK", "99999999999999999999999"),
            ("LOCAL_RANK", "0.5"),
            ("WORLD_SIZE", "0"),
            ("LOCAL_WORLD_SIZE", "0"),
            ("MASTER_PORT", "0"),
            ("MASTER_PORT", "65536"),
            ("MASTER_PORT", "http"),
            ("MASTER_ADDR", " "),
            ("MASTER_ADDR", "http://node"),
            ("GROUP_RANK", "x"),
            ("TORCHELASTIC_RESTART_COUNT", "-2"),
            ("TORCHELASTIC_USE_AGENT_STORE", "1"),
        ] {
            match with(name, value) {
                Err(EnvError::Unparsable { name: blamed, .. }) => assert_eq!(blamed, name, "{value:?}"),
                other => panic!("{name}={value:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn rejects_a_value_that_is_not_text() {
        use std::os::unix::ffi::OsStringExt;
        let vars = worker();
        let error = LaunchEnv::parse(|name| match name {
            "MASTER_ADDR" => Some(OsString::from_vec(vec![0xff, 0xfe])),
            _ => vars.get(name).map(OsString::from),
        });
        assert!(matches!(error, Err(EnvError::Unparsable { name: "MASTER_ADDR", .. })), "{error:?}");
    }

    #[test]
    fn rejects_places_that_do_not_exist() {
        assert!(matches!(with("RANK", "8"), Err(EnvError::RankOutsideWorld { .. })));
        assert!(matches!(with("LOCAL_RANK", "4"), Err(EnvError::LocalRankOutsideNode { .. })));
        assert!(matches!(with("LOCAL_WORLD_SIZE", "9"), Err(EnvError::NodeLargerThanWorld { .. })));
    }
}

//! Takes what a launcher would set from the variables of `mpirun`, `mpiexec` or `srun`. Variables that are set stay as they are.

use std::ffi::OsString;
use std::fmt;

use lockstep_contract::scheduler::{Allocation, Number, Read, Task, TaskError};

/// The only variable of our own in the environment of a worker of [`spawn`](crate::spawn()): its handshake as JSON.
pub(crate) const HANDSHAKE: &str = "LOCKSTEP_SPAWN";

/// What every launcher sets.
pub(super) const REQUIRED: [&str; 6] =
    ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// A variable that no launcher set, with the value that MPI's launcher or Slurm gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The launcher's variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// The variable, or the fact, that it was taken from.
    pub from: String,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} ({})", self.variable, self.value, self.from)
    }
}

/// What a launcher would set and the environment lacks.
pub(super) fn take(lookup: &impl Fn(&str) -> Option<OsString>) -> Result<Vec<Taken>, TaskError> {
    read(lookup, |read| {
        let is_set = |name: &str| (read.variable)(name).is_some();
        let launched = REQUIRED.into_iter().all(is_set);
        // A launcher's workers inherit the variables that number their launcher.
        if ["TORCHELASTIC_RUN_ID", HANDSHAKE].into_iter().any(is_set) {
            return Ok(Vec::new());
        }
        match Task::find(read) {
            Ok(Some(task)) if launched => check_launcher(read, &task).map(|()| Vec::new()),
            Err(_) if launched => Ok(Vec::new()),
            Ok(None) => Ok(Vec::new()),
            Ok(Some(task)) => complete(read, &task),
            Err(error) => Err(error),
        }
    })
}

/// Calls `body` with access to variables as text; one that is set but empty counts as absent.
pub(crate) fn read<T>(lookup: &impl Fn(&str) -> Option<OsString>, body: impl FnOnce(&Read<'_>) -> T) -> T {
    let variable = |name: &str| {
        let value = lookup(name).filter(|value| !value.is_empty())?;
        Some(value.to_string_lossy().into_owned())
    };
    body(&Read { variable: &variable, file: &|path| std::fs::read_to_string(path) })
}

/// A launcher numbers its workers again, but starts at least one in each task. Ranks that were set by hand, or are left over in the
/// shell, are the same in each task.
fn check_launcher(read: &Read<'_>, task: &Task) -> Result<(), TaskError> {
    let (Some(rank), Some(world)) = (set(read, "RANK"), set(read, "WORLD_SIZE")) else { return Ok(()) };
    if world.value < task.size.value {
        return Err(contradiction(world, task.size));
    }
    if world.value == task.size.value && rank.value != task.rank.value {
        return Err(contradiction(rank, task.rank));
    }
    Ok(())
}

/// The variables that are not set. A variable that is set must agree with the task.
fn complete(read: &Read<'_>, task: &Task) -> Result<Vec<Taken>, TaskError> {
    let numbers = [
        ("RANK", Some(task.rank)),
        ("WORLD_SIZE", Some(task.size)),
        ("LOCAL_RANK", Some(task.local_rank)),
        ("LOCAL_WORLD_SIZE", Some(task.local_size)),
        ("GROUP_RANK", task.node),
    ];
    let mut taken = Vec::new();
    for (variable, number) in numbers.into_iter().filter_map(|(variable, number)| Some((variable, number?))) {
        match set(read, variable) {
            Some(set) if set.value != number.value => return Err(contradiction(set, number)),
            Some(_) => {}
            None => taken.push(Taken { variable, value: number.value.to_string(), from: number.from.to_owned() }),
        }
    }
    let job = Allocation::find(read, None).ok().flatten();
    let is_unset = |name: &str| (read.variable)(name).is_none();
    if is_unset("MASTER_ADDR") {
        let (value, from) = task.address(job.as_ref())?;
        taken.push(Taken { variable: "MASTER_ADDR", value, from });
    }
    if is_unset("MASTER_PORT") {
        let (port, from) = task.port(read, job.as_ref());
        taken.push(Taken { variable: "MASTER_PORT", value: port.to_string(), from });
    }
    if let Some(job) = job.filter(|job| !job.id.is_empty()) {
        taken.push(Taken { variable: "TORCHELASTIC_RUN_ID", value: job.id.clone(), from: job.name() });
    }
    Ok(taken)
}

/// A launcher's variable. One that is not a number is an error of its own later.
fn set(read: &Read<'_>, from: &'static str) -> Option<Number> {
    let value = (read.variable)(from)?.trim().parse().ok()?;
    Some(Number { value, from })
}

fn contradiction(one: Number, other: Number) -> TaskError {
    TaskError::Contradiction { one: one.to_string(), other: other.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRUN: [(&str, &str); 9] = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n[1-2]"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
    ];

    fn taken(more: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let all = [&SRUN, more].concat();
        let value = |name: &str| all.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let taken = take(&value).map_err(|error| error.to_string())?;
        Ok(taken.iter().map(Taken::to_string).collect())
    }

    const LAUNCHED: [(&str, &str); 6] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "n9"),
        ("MASTER_PORT", "5"),
    ];

    /// As a launcher that sets all variables, with these changed.
    fn launched<'a>(changed: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        [changed, &LAUNCHED].concat()
    }

    #[test]
    fn takes_everything_from_a_step() {
        let taken = taken(&[]).unwrap();
        assert_eq!(
            taken[..6],
            [
                "RANK=3 (SLURM_PROCID)",
                "WORLD_SIZE=4 (SLURM_STEP_NUM_TASKS)",
                "LOCAL_RANK=1 (SLURM_LOCALID)",
                "LOCAL_WORLD_SIZE=2 (SLURM_STEP_TASKS_PER_NODE)",
                "GROUP_RANK=1 (SLURM_NODEID)",
                "MASTER_ADDR=n1 (SLURM_STEP_NODELIST=n[1-2])",
            ]
        );
        assert!(taken[6].starts_with("MASTER_PORT=2") && taken[6].ends_with(" (Slurm job 17.0)"), "{}", taken[6]);
        assert_eq!(taken[7], "TORCHELASTIC_RUN_ID=17.0 (SLURM_JOB_ID=17)");
    }

    #[test]
    fn keeps_what_is_set_and_agrees() {
        let taken = taken(&[("RANK", "3"), ("MASTER_ADDR", "n9"), ("MASTER_PORT", "5")]).unwrap();
        assert_eq!(taken.len(), 5, "{taken:?}");
        assert!(!taken.iter().any(|taken| taken.starts_with("RANK") || taken.starts_with("MASTER")), "{taken:?}");
    }

    #[test]
    fn refuses_a_set_number_that_contradicts_the_task() {
        for (set, contradicted) in [
            (("RANK", "0"), "RANK=0 and SLURM_PROCID=3"),
            (("WORLD_SIZE", "8"), "WORLD_SIZE=8 and SLURM_STEP_NUM_TASKS=4"),
            (("LOCAL_RANK", "0"), "LOCAL_RANK=0 and SLURM_LOCALID=1"),
            (("LOCAL_WORLD_SIZE", "4"), "LOCAL_WORLD_SIZE=4 and SLURM_STEP_TASKS_PER_NODE=2"),
        ] {
            let error = taken(&[set]).unwrap_err();
            assert!(error.starts_with(&format!("{contradicted} contradict each other")), "{error}");
        }
    }

    #[test]
    fn leaves_the_workers_of_a_launcher_alone() {
        assert!(taken(&LAUNCHED).unwrap().is_empty());
        assert!(taken(&launched(&[("WORLD_SIZE", "8"), ("RANK", "0")])).unwrap().is_empty());
        for launcher in ["TORCHELASTIC_RUN_ID", HANDSHAKE] {
            let one = launched(&[("RANK", "0"), ("WORLD_SIZE", "1"), (launcher, "x")]);
            assert!(taken(&one).unwrap().is_empty(), "{launcher}");
        }
    }

    #[test]
    fn refuses_ranks_that_are_the_same_in_each_task() {
        let error = taken(&launched(&[("RANK", "0")])).unwrap_err();
        assert!(error.starts_with("RANK=0 and SLURM_PROCID=3 contradict each other"), "{error}");
        let error = taken(&launched(&[("WORLD_SIZE", "1")])).unwrap_err();
        assert!(error.starts_with("WORLD_SIZE=1 and SLURM_STEP_NUM_TASKS=4 contradict each other"), "{error}");
    }
}

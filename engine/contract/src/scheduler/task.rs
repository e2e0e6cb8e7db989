//! The place of a process among those that `mpirun`, `mpiexec` or `srun` started, one for each rank.
//!
//! These programs number their processes as a launcher does, under names of their own. They do not name the address at which the
//! ranks meet; [`Task::address`] and [`Task::port`] derive it.

use super::{Allocation, Read, port_of};

/// torch's default port, for a job without an id.
const DEFAULT_PORT: u16 = 29_500;

/// The variables in which a program numbers the processes that it starts.
pub(super) struct Names {
    pub(super) starter: &'static str,
    pub(super) rank: &'static str,
    pub(super) size: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_size: &'static str,
    /// How to pass a variable to the processes.
    pub(super) pass_on: &'static str,
}

/// A number, and the variable that it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub value: usize,
    pub from: &'static str,
}

/// A process's place among all those that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The program that started the processes.
    pub starter: &'static str,
    /// Position among all processes.
    pub rank: Number,
    /// The number of all processes.
    pub size: Number,
    /// Position among the processes of this node.
    pub local_rank: Number,
    /// The number of processes on this node.
    pub local_size: Number,
    /// The number of this node, if it is known.
    pub node: Option<Number>,
    pub(super) pass_on: &'static str,
}

/// Why the variables do not describe a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Some variables of a program are set, and others are not.
    #[error(
        "{set} is set but {} {} not, and {starter} sets all of them: unset {set}, or start the program with {starter} again",
        .unset.join(", "), if .unset.len() == 1 { "is" } else { "are" }
    )]
    Incomplete {
        /// The program that sets them.
        starter: &'static str,
        /// A variable that is set.
        set: &'static str,
        /// Variables that are not set.
        unset: Vec<&'static str>,
    },
    /// A variable is not a number.
    #[error("{name} is {value:?}, which is not {expected}: {starter} sets it, so do not change it")]
    Unparsable {
        /// The program that sets it.
        starter: &'static str,
        name: &'static str,
        value: String,
        expected: &'static str,
    },
    /// Two programs number this process differently.
    #[error(
        "{one} and {other} contradict each other: one of them is left over from another launcher, so unset it where this program is \
         started"
    )]
    Contradiction {
        /// A variable with its value.
        one: String,
        /// The variable that contradicts it, with its value.
        other: String,
    },
    /// PMIx numbers this process, and nothing says how many there are.
    #[error(
        "{rank}, and no variable says how many processes there are, or how many on this node: prterun passes that with `prterun \
         --personality ompi ...` only; or start the program with mpirun, srun or `lockstep run`"
    )]
    Uncounted {
        /// The variable with its value.
        rank: String,
    },
    /// Nothing names the node of rank 0.
    #[error(
        "{starter} started {here} of {size} ranks on this node, and nothing names the node of rank 0: pass its name to all ranks, such as \
         `{pass_on}`"
    )]
    NoAddress {
        /// The program that started the ranks.
        starter: &'static str,
        /// The number of ranks on this node, with its variable.
        here: String,
        /// The number of all ranks, with its variable.
        size: String,
        /// How to pass it.
        pass_on: &'static str,
    },
}

impl std::fmt::Display for Number {
    /// As in a shell: `PMI_RANK=1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.from, self.value)
    }
}

impl Task {
    /// The host of rank 0, and where its name comes from.
    ///
    /// # Errors
    /// [`TaskError::NoAddress`] if the ranks are on several nodes and nothing names them.
    pub fn address(&self, job: Option<&Allocation>) -> Result<(String, String), TaskError> {
        if self.local_size.value == self.size.value {
            return Ok(("127.0.0.1".to_owned(), format!("all ranks are on one node, {}", self.local_size)));
        }
        let hosts = job.and_then(|job| job.hosts.as_ref());
        let first = hosts.and_then(|(hosts, from)| Some((hosts.first()?.clone(), from.clone())));
        first.ok_or_else(|| TaskError::NoAddress {
            starter: self.starter,
            here: self.local_size.to_string(),
            size: self.size.to_string(),
            pass_on: self.pass_on,
        })
    }

    /// The port at which the ranks meet, and what it is derived from: the scheduler's job and, under Open MPI, the name that mpirun
    /// gives its job. A job without an id gets torch's default port.
    #[must_use]
    pub fn port(&self, read: &Read<'_>, job: Option<&Allocation>) -> (u16, String) {
        let namespace = (read.variable)("PMIX_NAMESPACE").map(|name| format!("PMIX_NAMESPACE={name}"));
        let namespace = namespace.filter(|_| self.rank.from == "OMPI_COMM_WORLD_RANK");
        let job = job.filter(|job| !job.id.is_empty());
        match (job, namespace) {
            (Some(job), None) => (job.port(), job.title()),
            (Some(job), Some(namespace)) => {
                (port_of(&format!("{} {namespace}", job.name())), format!("{} and {namespace}", job.title()))
            }
            (None, Some(namespace)) => (port_of(&namespace), namespace),
            (None, None) => (DEFAULT_PORT, format!("torch's default, as {} names no job", self.starter)),
        }
    }
}

/// The task of a program that sets a variable for each number.
pub(super) fn read_task(read: &Read<'_>, names: &Names) -> Result<Option<Task>, TaskError> {
    let is_set = |name: &str| (read.variable)(name).is_some_and(|value| !value.trim().is_empty());
    let Some(set) = [names.rank, names.size].into_iter().find(|name| is_set(name)) else { return Ok(None) };
    let all = [names.rank, names.size, names.local_rank, names.local_size];
    let unset: Vec<_> = all.into_iter().filter(|name| !is_set(name)).collect();
    if !unset.is_empty() {
        return Err(TaskError::Incomplete { starter: names.starter, set, unset });
    }
    let number = |from| number(read, names.starter, from);
    let (size, local_size) = (number(names.size)?, number(names.local_size)?);
    let node = (local_size.value == size.value).then_some(Number { value: 0, from: names.local_size });
    let (rank, local_rank) = (number(names.rank)?, number(names.local_rank)?);
    Ok(Some(Task { starter: names.starter, rank, size, local_rank, local_size, node, pass_on: names.pass_on }))
}

/// A variable that `starter` sets to a number.
pub(super) fn number(read: &Read<'_>, starter: &'static str, from: &'static str) -> Result<Number, TaskError> {
    let value = (read.variable)(from).unwrap_or_default();
    let expected = "a whole number of 0 or more";
    match value.trim().parse() {
        Ok(value) => Ok(Number { value, from }),
        Err(_) => Err(TaskError::Unparsable { starter, name: from, value, expected }),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// What Open MPI 4.1.4 sets for rank 1 of `mpirun -np 2`, in its order.
    const OPEN_MPI: [(&str, &str); 6] = [
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("OMPI_COMM_WORLD_NODE_RANK", "1"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("PMIX_NAMESPACE", "2076704769"),
    ];

    /// What MPICH's Hydra sets for rank 1 of `mpiexec -n 2`.
    const HYDRA: [(&str, &str); 7] = [
        ("HYDI_CONTROL_FD", "7"),
        ("MPI_LOCALNRANKS", "2"),
        ("MPI_LOCALRANKID", "1"),
        ("PMI_FD", "11"),
        ("PMI_HOSTNAME", "vm"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
    ];

    /// What mpirun_rsh sets (mpispawn.c), jsrun (LSF's jsrun(1)), PALS with Cray's PMI (mpiexec(1)), and Cray's PMI without it, for
    /// rank 3 of four on two nodes.
    const OTHERS: [(&str, &[(&str, &str)]); 4] = [
        (
            "mpirun_rsh (MVAPICH2)",
            &[
                ("MV2_COMM_WORLD_LOCAL_RANK", "1"),
                ("MV2_COMM_WORLD_LOCAL_SIZE", "2"),
                ("MV2_COMM_WORLD_RANK", "3"),
                ("MV2_COMM_WORLD_SIZE", "4"),
            ],
        ),
        (
            "jsrun",
            &[
                ("JSM_NAMESPACE_LOCAL_RANK", "1"),
                ("JSM_NAMESPACE_LOCAL_SIZE", "2"),
                ("JSM_NAMESPACE_RANK", "3"),
                ("JSM_NAMESPACE_SIZE", "4"),
                ("PMIX_NAMESPACE", "1"),
                ("PMIX_RANK", "3"),
            ],
        ),
        (
            "mpiexec (PALS)",
            &[
                ("PALS_LOCAL_RANKID", "1"),
                ("PALS_LOCAL_SIZE", "2"),
                ("PALS_NODEID", "1"),
                ("PALS_RANKID", "3"),
                ("PMI_LOCAL_RANK", "1"),
                ("PMI_LOCAL_SIZE", "2"),
                ("PMI_RANK", "3"),
                ("PMI_SIZE", "4"),
            ],
        ),
        ("a launcher that speaks PMI", &CRAY_PMI),
    ];

    const CRAY_PMI: [(&str, &str); 4] =
        [("PMI_LOCAL_RANK", "1"), ("PMI_LOCAL_SIZE", "2"), ("PMI_RANK", "3"), ("PMI_SIZE", "4")];

    /// What Slurm 22.05 sets for task 4 of `srun --nodes=3 --ntasks=5`.
    const SRUN: [(&str, &str); 12] = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "2"),
        ("SLURM_NTASKS", "5"),
        ("SLURM_PROCID", "4"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n[2-4]"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_STEP_NUM_TASKS", "5"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
        ("SLURM_TASKS_PER_NODE", "2(x2),1"),
    ];

    fn lookup(variables: &[(&str, &str)], name: &str) -> Option<String> {
        variables.iter().rev().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    /// The task in the first variables, after the others have changed; an empty value unsets a variable.
    fn find(recorded: &[(&str, &str)], changes: &[(&str, &str)]) -> Result<Option<Task>, TaskError> {
        with_read(recorded, changes, Task::find)
    }

    fn with_read<T>(recorded: &[(&str, &str)], changes: &[(&str, &str)], body: impl FnOnce(&Read<'_>) -> T) -> T {
        let all = [recorded, changes].concat();
        let variable = |name: &str| lookup(&all, name).filter(|value| !value.is_empty());
        let file = |_: &str| Err(io::Error::from(io::ErrorKind::NotFound));
        body(&Read { variable: &variable, file: &file })
    }

    fn meets(recorded: &[(&str, &str)], changes: &[(&str, &str)]) -> Result<[(String, String); 2], TaskError> {
        with_read(recorded, changes, |read| {
            let job = Allocation::find(read, None).unwrap();
            let task = Task::find(read)?.unwrap();
            let (port, from) = task.port(read, job.as_ref());
            Ok([task.address(job.as_ref())?, (port.to_string(), from)])
        })
    }

    fn numbers(task: &Task) -> [usize; 4] {
        [task.rank, task.size, task.local_rank, task.local_size].map(|number| number.value)
    }

    #[test]
    fn reads_recorded_environments() {
        for (recorded, starter, expected, node) in [
            (&OPEN_MPI[..], "mpirun (Open MPI)", [1, 2, 1, 2], Some(0)),
            (&HYDRA[..], "mpiexec (Hydra)", [1, 2, 1, 2], Some(0)),
            (&SRUN[..], "srun", [4, 5, 0, 1], Some(2)),
        ] {
            let task = find(recorded, &[]).unwrap().unwrap();
            assert_eq!((task.starter, numbers(&task), task.node.map(|node| node.value)), (starter, expected, node));
        }
        assert_eq!(find(&[("HOME", "/")], &[]), Ok(None));
    }

    #[test]
    fn reads_the_variables_of_each_launcher() {
        for (starter, recorded) in OTHERS {
            let task = find(recorded, &[]).unwrap().unwrap();
            assert_eq!((task.starter, numbers(&task), task.node), (starter, [3, 4, 1, 2], None));
            let error = meets(recorded, &[]).unwrap_err().to_string();
            assert!(error.contains("2 of ") && error.contains("MASTER_ADDR=HOST"), "{starter}: {error}");
        }
    }

    #[test]
    fn takes_sruns_numbers_where_srun_sets_those_of_pmi() {
        let pmi = [("PMI_LOCAL_RANK", "0"), ("PMI_LOCAL_SIZE", "1"), ("PMI_RANK", "4"), ("PMI_SIZE", "5")];
        let task = find(&[&SRUN[..], &pmi].concat(), &[]).unwrap().unwrap();
        assert_eq!((task.starter, task.node.unwrap().value), ("srun", 2));
        let pmix = [("PMIX_RANK", "4"), ("PMIX_NAMESPACE", "slurm.pmix.17.0")];
        assert_eq!(find(&[&SRUN[..], &pmix].concat(), &[]).unwrap().unwrap().starter, "srun");
    }

    #[test]
    fn refuses_numbers_of_pmix_that_nothing_completes() {
        let prterun = [
            ("PMIX_HOSTNAME", "n1"),
            ("PMIX_NAMESPACE", "prterun-n1-77@1"),
            ("PMIX_RANK", "1"),
            ("PMIX_VERSION", "5.0.3"),
        ];
        let error = find(&prterun, &[]).unwrap_err();
        assert_eq!(error, TaskError::Uncounted { rank: "PMIX_RANK=1".into() });
        assert!(error.to_string().contains("--personality ompi"), "{error}");
        assert_eq!(find(&[&prterun[..], &OPEN_MPI].concat(), &[]).unwrap().unwrap().starter, "mpirun (Open MPI)");
        assert_eq!(find(&prterun, &[("PMIX_RANK", "")]), Ok(None));
    }

    #[test]
    fn leaves_the_node_open_where_mpi_does_not_number_nodes() {
        let two_nodes = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "3")];
        assert_eq!(find(&OPEN_MPI, &two_nodes).unwrap().unwrap().node, None);
    }

    #[test]
    fn treats_only_the_tasks_of_a_step_as_ranks() {
        assert_eq!(find(&SRUN, &[("SLURM_STEP_ID", "")]), Ok(None));
        assert_eq!(find(&SRUN, &[("SLURM_STEP_ID", "4294967291")]), Ok(None), "the batch script");
    }

    #[test]
    fn prefers_mpis_numbers_to_those_of_the_step_that_started_its_daemon() {
        let task = find(&[&SRUN[..], &OPEN_MPI].concat(), &[]).unwrap().unwrap();
        assert_eq!((task.starter, task.rank.value), ("mpirun (Open MPI)", 1));
    }

    #[test]
    fn refuses_incomplete_variables_and_names_both_kinds() {
        let error = find(&HYDRA, &[("MPI_LOCALRANKID", "")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "PMI_RANK is set but MPI_LOCALRANKID is not, and mpiexec (Hydra) sets all of them: unset PMI_RANK, or start the program \
             with mpiexec (Hydra) again"
        );
        let error = find(&OPEN_MPI, &[("OMPI_COMM_WORLD_RANK", ""), ("OMPI_COMM_WORLD_LOCAL_SIZE", "")]).unwrap_err();
        let message = error.to_string();
        assert!(
            message
                .contains("OMPI_COMM_WORLD_SIZE is set but OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL_SIZE are not")
        );
        let error = find(&SRUN, &[("SLURM_LOCALID", "")]).unwrap_err().to_string();
        assert!(error.starts_with("SLURM_PROCID is set but SLURM_LOCALID is not"), "{error}");
    }

    #[test]
    fn ignores_incomplete_variables_of_another_program() {
        let task = find(&OPEN_MPI, &[("PMI_RANK", "5")]).unwrap().unwrap();
        assert_eq!(task.starter, "mpirun (Open MPI)");
    }

    #[test]
    fn refuses_programs_that_contradict_each_other() {
        assert!(find(&[&OPEN_MPI[..], &HYDRA].concat(), &[]).is_ok());
        let error = find(&[&OPEN_MPI[..], &HYDRA].concat(), &[("PMI_RANK", "0")]).unwrap_err();
        assert!(
            error.to_string().starts_with("OMPI_COMM_WORLD_RANK=1 and PMI_RANK=0 contradict each other"),
            "{error}"
        );
        assert!(find(&SRUN, &[("PMI_RANK", "4"), ("PMI_SIZE", "5")]).is_ok());
        let error = find(&SRUN, &[("PMI_RANK", "4"), ("PMI_SIZE", "6")]).unwrap_err();
        assert!(error.to_string().starts_with("SLURM_STEP_NUM_TASKS=5 and PMI_SIZE=6 contradict"), "{error}");
    }

    #[test]
    fn refuses_what_is_not_a_number() {
        for (recorded, name, value) in [
            (&OPEN_MPI[..], "OMPI_COMM_WORLD_RANK", "one"),
            (&HYDRA[..], "MPI_LOCALNRANKS", "-1"),
            (&SRUN[..], "SLURM_STEP_TASKS_PER_NODE", "2(x"),
            (&SRUN[..], "SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            (&SRUN[..], "SLURM_NODEID", "n3"),
        ] {
            match find(recorded, &[(name, value)]) {
                Err(TaskError::Unparsable { name: blamed, .. }) => assert_eq!(blamed, name, "{value:?}"),
                other => panic!("{name}={value:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn ranks_of_one_node_meet_on_it_at_a_port_of_their_job() {
        let [(address, from), (port, of)] = meets(&OPEN_MPI, &[]).unwrap();
        assert_eq!(
            (address.as_str(), from.as_str()),
            ("127.0.0.1", "all ranks are on one node, OMPI_COMM_WORLD_LOCAL_SIZE=2")
        );
        assert_eq!(of, "PMIX_NAMESPACE=2076704769");
        assert_ne!(port, meets(&OPEN_MPI, &[("PMIX_NAMESPACE", "2076704770")]).unwrap()[1].0);
        let [_, (port, of)] = meets(&HYDRA, &[]).unwrap();
        assert_eq!((port.as_str(), of.as_str()), ("29500", "torch's default, as mpiexec (Hydra) names no job"));
    }

    #[test]
    fn ranks_of_several_nodes_meet_on_the_first_node_of_the_step() {
        let [(address, from), (port, of)] = meets(&SRUN, &[]).unwrap();
        assert_eq!((address.as_str(), from.as_str()), ("n2", "SLURM_STEP_NODELIST=n[2-4]"));
        assert_eq!(of, "Slurm job 17.0");
        assert!(super::super::PORTS.contains(&port.parse().unwrap()), "{port}");
        let four = [("OMPI_COMM_WORLD_SIZE", "4")];
        let [(address, _), (_, of)] = meets(&[&SRUN[..], &OPEN_MPI].concat(), &four).unwrap();
        assert_eq!((address.as_str(), of.as_str()), ("n1", "Slurm job 17 and PMIX_NAMESPACE=2076704769"));
    }

    #[test]
    fn asks_for_the_address_that_nothing_names() {
        let error = meets(&OPEN_MPI, &[("OMPI_COMM_WORLD_SIZE", "4")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "mpirun (Open MPI) started OMPI_COMM_WORLD_LOCAL_SIZE=2 of OMPI_COMM_WORLD_SIZE=4 ranks on this node, and nothing names \
             the node of rank 0: pass its name to all ranks, such as `mpirun -x MASTER_ADDR=HOST ...`"
        );
    }
}

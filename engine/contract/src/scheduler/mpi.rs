//! MPI's launchers: the variables in which they number their processes. They do not name their nodes. A process is a training program
//! that is a rank, see [`super::task`], or an agent, if one was started on each node.
//!
//! The variables are those of Open MPI (prrte's `schizo_ompi.c`), MVAPICH2 (`mpispawn.c`), jsrun (IBM's "jsrun", environment variables),
//! Hydra (MPICH's `pmip_cb.c`), PALS (HPE's mpiexec(1)) and PMI as Cray's library has it (intro_pmi(3)).
//!
//! prterun by itself sets only PMIx's variables (`PMIx_server_setup_fork`): `PMIX_NAMESPACE` names the job and `PMIX_RANK` numbers the
//! process. No variable gives the number of processes, in all or on a node; a program has to ask PMIx's server for it.

use super::task::Names;
use super::{Allocation, Read, Scheduler, Started};

/// All launchers, in the order in which they are tried, since some share variables.
pub(super) const LAUNCHERS: [Names; 6] = [
    // Also prterun with --personality ompi, and Spectrum MPI.
    Names {
        starter: "mpirun (Open MPI)",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        pass_on: "mpirun -x MASTER_ADDR=HOST ...",
    },
    Names {
        starter: "mpirun_rsh (MVAPICH2)",
        rank: "MV2_COMM_WORLD_RANK",
        size: "MV2_COMM_WORLD_SIZE",
        local_rank: "MV2_COMM_WORLD_LOCAL_RANK",
        local_size: "MV2_COMM_WORLD_LOCAL_SIZE",
        pass_on: "mpirun_rsh -np N -hostfile FILE MASTER_ADDR=HOST ...",
    },
    Names {
        starter: "jsrun",
        rank: "JSM_NAMESPACE_RANK",
        size: "JSM_NAMESPACE_SIZE",
        local_rank: "JSM_NAMESPACE_LOCAL_RANK",
        local_size: "JSM_NAMESPACE_LOCAL_SIZE",
        pass_on: "jsrun -E MASTER_ADDR=HOST ...",
    },
    // The mpiexec of MPICH and Intel MPI.
    Names {
        starter: "mpiexec (Hydra)",
        rank: PMI_RANK,
        size: PMI_SIZE,
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        pass_on: "mpiexec -genv MASTER_ADDR HOST ...",
    },
    Names {
        starter: "mpiexec (PALS)",
        rank: PMI_RANK,
        size: PMI_SIZE,
        local_rank: "PALS_LOCAL_RANKID",
        local_size: "PALS_LOCAL_SIZE",
        pass_on: "mpiexec --env MASTER_ADDR=HOST ...",
    },
    Names {
        starter: "a launcher that speaks PMI",
        rank: PMI_RANK,
        size: PMI_SIZE,
        local_rank: "PMI_LOCAL_RANK",
        local_size: "PMI_LOCAL_SIZE",
        pass_on: "mpiexec --env MASTER_ADDR=HOST ...",
    },
];

/// PMI's number of a process, which `srun --mpi=pmi2` sets, too.
pub(super) const PMI_RANK: &str = "PMI_RANK";
/// PMI's number of all processes.
pub(super) const PMI_SIZE: &str = "PMI_SIZE";

/// The variables in which MPI's launchers pass the number of all processes.
pub fn size_variables() -> impl Iterator<Item = &'static str> {
    LAUNCHERS.iter().map(|launcher| launcher.size)
}

pub(super) fn find(read: &Read<'_>) -> Option<Allocation> {
    let number = |name: &str| (read.variable)(name).and_then(|text| text.parse::<usize>().ok());
    let numbered = |names: &&Names| number(names.rank).zip(number(names.size)).is_some();
    let Names { rank, size, .. } = LAUNCHERS.iter().find(numbered)?;
    let (node, agents) = (number(rank)?, number(size)?);
    let of_this = LAUNCHERS.iter().filter(|names| names.rank == *rank).map(|names| names.local_size);
    let started = match of_this.into_iter().find_map(|name| Some((name, number(name)?))) {
        Some((name, here)) if here > 1 => Started::SeveralTimes { agents, variable: format!("{name}={here}") },
        _ => Started::OnEachNode { node: Some((node, rank)) },
    };
    let nodes = (agents, format!("{size}={agents}"));
    Some(Allocation { scheduler: Scheduler::Mpi, id: String::new(), nodes, hosts: None, started })
}

/// Returns true if MPI's own launcher started this process. srun sets PMI's variables, too, but none of these.
pub(super) fn is_not_srun(read: &Read<'_>) -> bool {
    let own = LAUNCHERS.iter().flat_map(|names| [names.size, names.local_size]);
    own.into_iter().filter(|name| !name.starts_with("PMI_")).any(|name| (read.variable)(name).is_some())
}

/// PMIx's variables, if they alone number this process.
pub(super) fn pmix(read: &Read<'_>) -> Option<String> {
    let set = |name: &str| (read.variable)(name).filter(|value| !value.trim().is_empty());
    let (rank, _) = (set("PMIX_RANK")?, set("PMIX_NAMESPACE")?);
    Some(format!("PMIX_RANK={rank}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::testing::find;

    #[test]
    fn reads_open_mpi_and_hydra() {
        let open_mpi =
            [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "1")];
        let job = find(&open_mpi, &[], None).unwrap();
        assert_eq!(job.nodes, (2, "OMPI_COMM_WORLD_SIZE=2".to_owned()));
        assert_eq!(job.started, Started::OnEachNode { node: Some((1, "OMPI_COMM_WORLD_RANK")) });
        let hydra = [("PMI_SIZE", "4"), ("PMI_RANK", "0"), ("MPI_LOCALNRANKS", "2")];
        let started = find(&hydra, &[], None).unwrap().started;
        assert_eq!(started, Started::SeveralTimes { agents: 4, variable: "MPI_LOCALNRANKS=2".to_owned() });
        assert_eq!(find(&[("PMI_RANK", "0")], &[], None), None);
    }

    #[test]
    fn counts_the_agents_on_a_node_by_each_launchers_variable() {
        for (prefix, local) in [
            ("OMPI_COMM_WORLD", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            ("MV2_COMM_WORLD", "MV2_COMM_WORLD_LOCAL_SIZE"),
            ("JSM_NAMESPACE", "JSM_NAMESPACE_LOCAL_SIZE"),
            ("PMI", "MPI_LOCALNRANKS"),
            ("PMI", "PALS_LOCAL_SIZE"),
            ("PMI", "PMI_LOCAL_SIZE"),
        ] {
            let (rank, size) = (format!("{prefix}_RANK"), format!("{prefix}_SIZE"));
            let started = |here| find(&[(&rank, "1"), (&size, "8"), (local, here)], &[], None).unwrap().started;
            let several = Started::SeveralTimes { agents: 8, variable: format!("{local}=4") };
            assert_eq!((started("4"), matches!(started("1"), Started::OnEachNode { .. })), (several, true), "{local}");
        }
    }
}

//! MPI's launchers. They number their processes, each of which is an agent here, and do not name their nodes.

use super::allocation::{Allocation, Read, Scheduler, Started};

/// The variables of a launcher: a process's number, that of all, and that of its node, by the first of several names.
struct Launcher {
    rank: &'static str,
    size: &'static str,
    local_sizes: &'static [&'static str],
}

const LAUNCHERS: [Launcher; 4] = [
    // Open MPI, also as prterun, and Spectrum MPI.
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_sizes: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    },
    // MVAPICH2's mpirun_rsh (mpirun_rsh's mpispawn.c).
    Launcher { rank: "MV2_COMM_WORLD_RANK", size: "MV2_COMM_WORLD_SIZE", local_sizes: &["MV2_COMM_WORLD_LOCAL_SIZE"] },
    // jsrun.
    Launcher { rank: "JSM_NAMESPACE_RANK", size: "JSM_NAMESPACE_SIZE", local_sizes: &["JSM_NAMESPACE_LOCAL_SIZE"] },
    // Hydra of MPICH and Intel MPI, PALS of Cray, and others that speak PMI.
    Launcher {
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_sizes: &["MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"],
    },
];

pub(super) fn find(read: &Read<'_>) -> Option<Allocation> {
    LAUNCHERS.iter().find_map(|Launcher { rank, size, local_sizes }| {
        let number = |name: &str| (read.variable)(name).and_then(|text| text.parse::<usize>().ok());
        let (agents, node) = (number(size)?, number(rank)?);
        let started = match local_sizes.iter().find_map(|name| Some((name, number(name)?))) {
            Some((name, here)) if here > 1 => Started::SeveralTimes { agents, variable: format!("{name}={here}") },
            _ => Started::OnEachNode { node: Some((node, rank)) },
        };
        let nodes = (agents, format!("{size}={agents}"));
        Some(Allocation { scheduler: Scheduler::Mpi, id: String::new(), nodes, hosts: None, started })
    })
}

/// Returns true if MPI's own launcher started this process. `srun --mpi=pmi2` sets `PMI_*`, too, but none of these.
pub(super) fn is_not_srun(read: &Read<'_>) -> bool {
    ["OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE"]
        .iter()
        .any(|name| (read.variable)(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::allocation::testing::find;
    use super::*;

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

//! MPI's launchers: Open MPI's (`OMPI_COMM_WORLD_*`) and Hydra's, which MPICH and Intel MPI use (`PMI_*`,
//! `MPI_LOCALNRANKS`). They number their processes, each of which is an agent here, and do not name their nodes.

use super::allocation::{Allocation, Read, Scheduler, Started};
use super::names::{HYDRA, Names, OPEN_MPI};

pub(super) fn find(read: &Read<'_>) -> Option<Allocation> {
    [OPEN_MPI, HYDRA].iter().find_map(|Names { size, rank, local_size, .. }| {
        let number = |name: &str| (read.variable)(name).and_then(|text| text.parse::<usize>().ok());
        let (agents, node) = (number(size)?, number(rank)?);
        let started = match number(local_size) {
            Some(here) if here > 1 => Started::SeveralTimes { agents, variable: format!("{local_size}={here}") },
            _ => Started::OnEachNode { node: Some((node, rank)) },
        };
        let nodes = (agents, format!("{size}={agents}"));
        Some(Allocation { scheduler: Scheduler::Mpi, id: String::new(), nodes, hosts: None, started })
    })
}

/// Returns true if MPI's own launcher started this process. `srun --mpi=pmi2` sets `PMI_*`, too, but neither of these.
pub(super) fn is_not_srun(read: &Read<'_>) -> bool {
    ["OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"].iter().any(|name| (read.variable)(name).is_some())
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
}

//! The variables in which `mpirun` and `mpiexec` number the processes that they start.

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

/// Open MPI's mpirun.
pub(super) const OPEN_MPI: Names = Names {
    starter: "mpirun (Open MPI)",
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    pass_on: "mpirun -x MASTER_ADDR=HOST ...",
};

/// The mpiexec of MPICH and Intel MPI.
pub(super) const HYDRA: Names = Names {
    starter: "mpiexec (Hydra)",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
    pass_on: "mpiexec -genv MASTER_ADDR HOST ...",
};

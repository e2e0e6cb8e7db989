//! The environment variables that the project reads or sets, in one table from which the book's page is generated.

/// Variables of one meaning.
pub(crate) struct Variables {
    /// Their names, as a shell has them.
    pub(crate) names: &'static [&'static str],
    /// Which programs read them.
    pub(crate) by: &'static str,
    pub(crate) meaning: &'static str,
}

/// All variables, those of launchers first.
pub(crate) const VARIABLES: &[Variables] = &[
    Variables {
        names: &["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
        by: "`LaunchEnv`",
        meaning: "torchrun's variables, with torchrun's meaning; `lockstep run` and `spawn` set them for their workers, and `spawn` \
            refuses to run where a launcher has set them",
    },
    Variables {
        names: &[
            "GROUP_WORLD_SIZE",
            "ROLE_NAME",
            "ROLE_RANK",
            "ROLE_WORLD_SIZE",
            "TORCHELASTIC_MAX_RESTARTS",
            "TORCHELASTIC_SIGNALS_TO_HANDLE",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        ],
        by: "programs that expect torchrun",
        meaning: "set by the launcher as torchrun does: the number of nodes; the role with its rank and size; the allowed restarts; the \
            signals that end the job; 1, unless the user chose a value",
    },
    Variables {
        names: &["CUDA_VISIBLE_DEVICES"],
        by: "CUDA, `lockstep run`",
        meaning: "the GPUs that a process sees; with `--virtual-local-rank` the launcher sets it to one GPU for each worker",
    },
    Variables {
        names: &["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"],
        by: "PyTorch for ROCm, `lockstep run`",
        meaning: "the same for AMD's GPUs: first ROCR_VISIBLE_DEVICES hides some from all programs, then HIP_VISIBLE_DEVICES, or \
            CUDA_VISIBLE_DEVICES where it is not set, counts those that are left",
    },
    Variables {
        names: &["GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"],
        by: "`LaunchEnv`",
        meaning: "set by the launcher: the node's number, which attempt this is, the job's id, and whether the store is the launcher's \
            (`True`)",
    },
    Variables {
        names: &[
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "PMIX_NAMESPACE",
        ],
        by: "`LaunchEnv`, `lockstep run`",
        meaning: "Open MPI's: ranks of a program that mpirun starts without a launcher, nodes for a launcher that it starts on each; the \
            namespace is the job's name, from which the ranks' port follows",
    },
    Variables {
        names: &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        by: "`LaunchEnv`, `lockstep run`",
        meaning: "the same of Hydra, the mpiexec of MPICH and Intel MPI",
    },
    Variables {
        names: &["PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"],
        by: "`LaunchEnv`, `lockstep run`",
        meaning: "a process and the number of processes on its node, of Cray's PALS and of others that speak PMI, next to `PMI_RANK` and \
            `PMI_SIZE`",
    },
    Variables {
        names: &["MV2_COMM_WORLD_<NAME>", "JSM_NAMESPACE_<NAME>"],
        by: "`LaunchEnv`, `lockstep run`",
        meaning: "the same of MVAPICH2's mpirun_rsh and of jsrun: `RANK`, `SIZE`, `LOCAL_RANK`, `LOCAL_SIZE`",
    },
    Variables {
        names: &["PMIX_RANK"],
        by: "`LaunchEnv`, `lockstep run`",
        meaning: "PMIx's number of a process that prterun started; alone it is refused, since no variable says how many there are",
    },
    Variables {
        names: &[
            "SLURM_STEP_ID",
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_STEP_TASKS_PER_NODE",
        ],
        by: "`LaunchEnv`, `lockstep run`",
        meaning: "the same of a step, which srun starts",
    },
    Variables {
        names: &["TORCHELASTIC_ERROR_FILE"],
        by: "labs, `lockstep run`",
        meaning: "where a failing process leaves its error; a launcher sets one for each worker, and leaves the root cause in its own",
    },
    Variables {
        names: &["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"],
        by: "`lockstep run`",
        meaning: "the prefix of workers' lines, of `${role_name}`, `${rank}`, `${local_rank}`, `${hostname}`; `--log-line-prefix-template` wins",
    },
    Variables {
        names: &["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"],
        by: "`lockstep run`",
        meaning: "the default of `--shutdown-timeout`",
    },
    Variables {
        names: &["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"],
        by: "`lockstep run`",
        meaning: "how many seconds a worker may sleep in the kernel before the job ends; if unset, for ever",
    },
    Variables {
        names: &["PET_<NAME>"],
        by: "`lockstep run`",
        meaning: "the default of the flag `--name`; 0 or 1 for switches",
    },
    Variables {
        names: &["LOGLEVEL"],
        by: "`lockstep run`",
        meaning: "the launcher's log level: `DEBUG`, `INFO`, `WARNING` (if unset) or `ERROR`",
    },
    Variables { names: &["PYTHON_EXEC"], by: "`lockstep run`", meaning: "the Python that runs scripts and modules" },
    Variables {
        names: &["GLOO_SOCKET_IFNAME"],
        by: "labs, `lockstep run`",
        meaning: "the network interface that Gloo uses; `lockstep run` on several nodes sets it for the workers if it is unset and the \
            host name leads to loopback or nowhere",
    },
    Variables {
        names: &["LOCKSTEP_BACKEND"],
        by: "labs",
        meaning: "what carries a group's CPU tensors, next to NCCL for those on a GPU: `shm`, memory that ranks on one host share; `gloo`, \
            sockets; `auto` (if unset), memory within a host and Gloo between hosts, or Gloo alone where memory is not possible. `lockstep \
            run --backend` sets it",
    },
    Variables {
        names: &["LOCKSTEP_DETERMINISTIC"],
        by: "labs",
        meaning: "1: deterministic kernels only, so that runs on a GPU can be compared bit by bit; there `CUBLAS_WORKSPACE_CONFIG=:4096:8` \
            is needed as well. `verify` and `inject` set both",
    },
    Variables {
        names: &["LOCKSTEP_COMPARE_CALLS"],
        by: "labs",
        meaning: "1: the ranks of a group over Gloo, or over several hosts, compare their calls, shapes and dtypes before numbers move; 0: \
            they do not; if unset, they do in builds with debug assertions. Ranks on one host that share memory always compare",
    },
    Variables {
        names: &["TORCH_DISTRIBUTED_DEBUG"],
        by: "labs",
        meaning: "`DETAIL` compares every collective across ranks and names those that differ",
    },
    Variables {
        names: &["TORCH_CPP_LOG_LEVEL"],
        by: "labs",
        meaning: "what libtorch itself logs; nothing if unset, since errors carry its words",
    },
    Variables {
        names: &["TORCH_FR_BUFFER_SIZE"],
        by: "labs",
        meaning: "entries of c10d's flight recorder; off if unset",
    },
    Variables {
        names: &["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"],
        by: "PyTorch, launcher",
        meaning: "where the flight recorder of each rank is written, without the rank at the end; read after a collective has timed out",
    },
    Variables {
        names: &["OMP_NUM_THREADS"],
        by: "labs",
        meaning: "threads of one rank's tensor operations; `lockstep run` sets 1 if it is unset and the node has several workers",
    },
    Variables {
        names: &["SLURM_JOB_ID", "SLURM_RESTART_COUNT"],
        by: "labs, `lockstep run`",
        meaning: "set by Slurm: which start of which job this is. A snapshot carries both, and a former start of the job saves nothing \
            more once a later one has. The launcher reports why the job was started again",
    },
    Variables {
        names: &["SLURM_JOB_END_TIME", "PBS_QUEUE"],
        by: "`lockstep run`",
        meaning: "set by Slurm: when the job ends, in seconds since 1970; set by PBS: the queue, whose `kill_delay` is how long workers \
            may take to end",
    },
    Variables {
        names: &["LOCKSTEP_EVENTS"],
        by: "labs, `lockstep run`",
        meaning: "the folder for event files of ranks and launchers, a new one for each run; `lockstep report` draws them",
    },
    Variables {
        names: &["LOCKSTEP_RECORD"],
        by: "labs, `lockstep run`",
        meaning: "the folder in which ranks record their calls, set by `lockstep run --record FILE`; set it yourself for a program that starts \
            its own ranks. `lockstep replay` shows the recording",
    },
    Variables {
        names: &["LOCKSTEP_FAULTS"],
        by: "labs",
        meaning: "a file with faults that ranks inject into themselves, as `lockstep inject` writes it; each happens once per job",
    },
    Variables {
        names: &["LOCKSTEP_CLASS"],
        by: "`lockstep grade`, `watch` and `progress`, `cargo test` of an exercise",
        meaning: "a folder that all seats of a class share; the seat joins with any of these, and each grading adds to its own file there, \
            which `lockstep class` shows",
    },
    Variables { names: &["LOCKSTEP_SEAT"], by: "the same", meaning: "the seat's name; if unset, the user on the host" },
    Variables {
        names: &["LOCKSTEP_DATA"],
        by: "tests",
        meaning: "a folder with real data sets (`mnist/`), otherwise `shared/data` next to the checkout; tests print \"not verified here\" without either",
    },
    Variables {
        names: &["LOCKSTEP_PYTHON"],
        by: "tests, `lockstep bench`, `grade` of answers in Python, `tour` without a checkout",
        meaning: "a Python with PyTorch: 2.11 for tests, which let it meet Rust ranks, and as a bench's peer, 2.4 or newer for answers; if unset, the \
            first of these that has one: next to the installed command, of `scripts/setup.sh --python-peer`, `python3`",
    },
    Variables {
        names: &["TCPSTORE_FUZZ_SEED", "TCPSTORE_FUZZ_ITERATIONS"],
        by: "tests",
        meaning: "replay a run of the store's fuzz test; how long it takes (20,000 inputs if unset)",
    },
    Variables {
        names: &["LOCKSTEP_TEST_SEED"],
        by: "tests",
        meaning: "the seed of every test that checks learning, and of the inputs with which tests grade the course's answers, instead \
            of its own",
    },
    Variables {
        names: &["LOCKSTEP_CHECK_WORLDS"],
        by: "tests",
        meaning: "how many worlds each search through the rendezvous may visit, in place of its own bound",
    },
    Variables {
        names: &["LIBTORCH"],
        by: "set-up",
        meaning: "an existing libtorch 2.11 to use instead of fetching one",
    },
    Variables {
        names: &["LIBTORCH_BYPASS_VERSION_CHECK"],
        by: "set-up",
        meaning: "accept another version of it, at your own risk",
    },
    Variables {
        names: &["LOCKSTEP_FETCH"],
        by: "set-up",
        meaning: "`pip` lets pip fetch by itself, for an index that asks for a login",
    },
    Variables {
        names: &["LOCKSTEP_AGENT"],
        by: "labs, `lockstep run`",
        meaning: "set for workers: identifies the launcher's workers and their children when it has ended, and the snapshots of a job \
            without a run id",
    },
    Variables {
        names: &["LOCKSTEP_SNAPSHOT_ON", "LOCKSTEP_LAUNCHER"],
        by: "labs",
        meaning: "set for workers: the signals of `--snapshot-on`, and the launcher's process id. Such a signal asks for a snapshot and \
            the end, unless the launcher or a program between the two sends it",
    },
    Variables {
        names: &["LOCKSTEP_CALL", "LOCKSTEP_ANSWERS"],
        by: "exercises",
        meaning: "set by the grader for ranks of a learner's program: the file that says what is asked, and the folder for answers",
    },
    Variables {
        names: &["LOCKSTEP_TEMPLATE"],
        by: "exercises",
        meaning: "set by the grader for a learner's program that makes a copy of itself for each rank",
    },
    Variables {
        names: &["LOCKSTEP_EXERCISE_LOST"],
        by: "lab 10's exercise",
        meaning: "set for the process that is rank 1 until it ends, where a task loses a rank",
    },
    Variables {
        names: &["LOCKSTEP_GPU"],
        by: "lab 10",
        meaning: "`simulated` takes the course's simulated device in place of GPUs and NVIDIA's libraries; `real`, the default, takes GPUs",
    },
    Variables {
        names: &["LOCKSTEP_GPU_COUNT", "LOCKSTEP_GPU_MEMORY", "LOCKSTEP_GPU_SEED", "LOCKSTEP_GPU_DEADLINE"],
        by: "the simulated device",
        meaning: "the number of devices (4, or with `lab-10-nccl --simulated` one for each rank of the node if these are more); the memory \
            of each in MiB (256); a number from which the delay of each operation is drawn, without which work starts when it is asked \
            for; the seconds after which a wait gives up (300)",
    },
    Variables {
        names: &["XDG_RUNTIME_DIR"],
        by: "`lockstep cluster`",
        meaning: "the folder in which clusters keep their files; if unset, the one for temporary files",
    },
    Variables {
        names: &["NCCL_<NAME>", "GLOO_<NAME>", "FI_<NAME>", "TORCH_<NAME>"],
        by: "`lockstep doctor`",
        meaning: "variables of the libraries: compared between nodes, and [what does harm](reference-faults.md) is named",
    },
    Variables {
        names: &["CARGO"],
        by: "`lockstep grade`, `watch`, `course`",
        meaning: "the cargo that builds exercises",
    },
    Variables {
        names: &["LOCKSTEP_SPAWN"],
        by: "labs",
        meaning: "what `spawn` passes to the processes that it starts",
    },
    Variables {
        names: &["LOCKSTEP_INJECT_MARK"],
        by: "`lockstep inject`, `verify`, `tour`",
        meaning: "set for all processes of a run, to find those that it leaves behind",
    },
];

//! The flags of `lockstep run`: torchrun's, in its order, then this project's own.
//!
//! Parsed as text; each falls back on `PET_<NAME>` and then on torchrun's default, so that an error can name the source of a
//! value.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::config::{ConfigError, Env, Flags, Given, path, switch};

const AFTER_HELP: &str = "\
Everything after PROGRAM is the program's own. In its arguments `${local_rank}` is replaced and `$$` becomes `$`.

PROGRAM ending in .py, and any file that is no program by itself, is run as `python -u PROGRAM` (PYTHON_EXEC chooses the \
Python); a binary, an executable script of another language, or a name in PATH is run as it is.

The flags are torchrun's: underscores for dashes and unambiguous beginnings of names will do, and PET_<NAME> (such as \
PET_NPROC_PER_NODE) gives a flag's default, switches by 0 or 1.

Started once on each node by srun, mpirun or mpiexec, or by a loop over ssh or pbsdsh with --hostfile, it finds the nodes, their number, \
the first of them, a port and the job's id on its own: no rendezvous flag is needed. Flags that are given win, and --dry-run shows what \
came from where.

Exit codes: 0 all workers succeeded · 1 a worker or the rendezvous failed, the configuration is wrong, or a handled signal \
came · 2 usage · 75 the workers saved a snapshot and ended, as a signal or the time limit asked. A worker's own code is never passed on: it stands in the report.";

/// Run a program once per rank, on one or several nodes, with torchrun's flags and environment
#[derive(Args)]
#[command(infer_long_args = true, args_override_self = true, after_help = AFTER_HELP)]
pub struct RunOptions {
    /// Number of nodes, or the range of it: N or MIN:MAX [default: 1:1]
    #[arg(long, value_name = "N", help_heading = SIZE)]
    nnodes: Option<String>,
    /// Workers on this node: a number, cpu, gpu, or auto (gpu if there is any, else cpu) [default: 1]
    #[arg(long, alias = "nproc_per_node", value_name = "N", help_heading = SIZE)]
    nproc_per_node: Option<String>,

    /// How nodes meet: static (each has its --node-rank) or c10d (they may come and go) [default: static]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME", help_heading = RENDEZVOUS)]
    rdzv_backend: Option<String>,
    /// Where they meet; the default port is 29400 for c10d, the default address is the master's for static
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", help_heading = RENDEZVOUS)]
    rdzv_endpoint: Option<String>,
    /// The job's id, the same on all its nodes [default: none]
    #[arg(long, alias = "rdzv_id", value_name = "ID", help_heading = RENDEZVOUS)]
    rdzv_id: Option<String>,
    /// Timeouts and more, such as join_timeout=60,last_call_timeout=5 (seconds)
    #[arg(long, alias = "rdzv_conf", value_name = "K=V,…", help_heading = RENDEZVOUS)]
    rdzv_conf: Option<String>,
    /// One node, a free port, a random id; other rendezvous flags are ignored
    #[arg(long, help_heading = RENDEZVOUS)]
    standalone: bool,
    /// The number of this node, for static [default: 0]
    #[arg(long, alias = "node_rank", value_name = "N", allow_hyphen_values = true, help_heading = RENDEZVOUS)]
    node_rank: Option<String>,
    /// The address of node 0, for static [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "HOST", help_heading = RENDEZVOUS)]
    master_addr: Option<String>,
    /// The port of node 0, for static [default: 29500]
    #[arg(long, alias = "master_port", value_name = "PORT", allow_hyphen_values = true, help_heading = RENDEZVOUS)]
    master_port: Option<String>,
    /// The address at which others reach this node [default: its name]
    #[arg(long, alias = "local_addr", value_name = "HOST", help_heading = RENDEZVOUS)]
    local_addr: Option<String>,

    /// Run PROGRAM as a Python module, as `python -m`
    #[arg(short, long, help_heading = PROGRAM)]
    module: bool,
    /// Run PROGRAM as it is, even if it looks like a Python script
    #[arg(long, alias = "no_python", help_heading = PROGRAM)]
    no_python: bool,
    /// Run PROGRAM by Python's runpy.run_path; wins over --no-python
    #[arg(long, alias = "run_path", help_heading = PROGRAM)]
    run_path: bool,
    /// What the workers are called [default: default]
    #[arg(long, value_name = "NAME", help_heading = PROGRAM)]
    role: Option<String>,
    /// Each worker sees one GPU only, as its device 0, and has LOCAL_RANK=0
    #[arg(long, alias = "virtual_local_rank", help_heading = PROGRAM)]
    virtual_local_rank: bool,

    /// How often all workers may be restarted after a failure [default: 0]
    #[arg(long, alias = "max_restarts", value_name = "N", allow_hyphen_values = true, help_heading = FAILURES)]
    max_restarts: Option<String>,
    /// Accepted; the kernel reports a worker's death at once [default: 0.1]
    #[arg(long, alias = "monitor_interval", value_name = "SECONDS", allow_hyphen_values = true, help_heading = FAILURES)]
    monitor_interval: Option<String>,
    /// Signals that are passed on to the workers and end the job [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAMES", help_heading = FAILURES)]
    signals_to_handle: Option<String>,

    /// Where the log folders are created, one per run; /dev/null for none [default: temporary, removed after success]
    #[arg(long, alias = "log_dir", value_name = "DIR", help_heading = OUTPUT)]
    log_dir: Option<PathBuf>,
    /// Streams that go to files instead: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, such as 0:3,1:2 [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = OUTPUT)]
    redirects: Option<String>,
    /// Streams that go to files and to the console, in the same form [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = OUTPUT)]
    tee: Option<String>,
    /// Local ranks that the console shows, such as 0,2; files get all [default: all]
    #[arg(long, alias = "local_ranks_filter", value_name = "RANKS", help_heading = OUTPUT)]
    local_ranks_filter: Option<String>,
    /// Lines of tee'd stdout with one of these texts go to filtered_stdout.log too; `,,` is a comma in a text
    #[arg(long, alias = "duplicate_stdout_filters", value_name = "TEXTS", help_heading = OUTPUT)]
    duplicate_stdout_filters: Option<String>,
    /// The same for stderr and filtered_stderr.log
    #[arg(long, alias = "duplicate_stderr_filters", value_name = "TEXTS", help_heading = OUTPUT)]
    duplicate_stderr_filters: Option<String>,

    /// Accepted without effect, of torch.distributed.launch: workers read LOCAL_RANK from the environment
    #[arg(long, alias = "use_env", help_heading = WITHOUT)]
    use_env: bool,
    /// Accepted without effect: workers are separate programs [spawn, fork, forkserver]
    #[arg(long, alias = "start_method", value_name = "METHOD", help_heading = WITHOUT)]
    start_method: Option<String>,
    /// Accepted without effect: set LOCKSTEP_EVENTS=DIR for event files
    #[arg(long, alias = "event_log_handler", value_name = "NAME", help_heading = WITHOUT)]
    event_log_handler: Option<String>,
    /// Accepted without effect: it names a Python object
    #[arg(long, alias = "logs_specs", value_name = "NAME", help_heading = WITHOUT)]
    logs_specs: Option<String>,
    /// Accepted without effect: bind by numactl or the scheduler
    #[arg(long, alias = "numa_binding", value_name = "MODE", help_heading = WITHOUT)]
    #[arg(value_parser = ["node", "socket", "exclusive", "core-complex"], hide_possible_values = true)]
    numa_binding: Option<String>,

    /// Also pass --local-rank=N to each worker, before its own arguments, as torch.distributed.launch without --use-env
    #[arg(long, alias = "pass_local_rank", help_heading = OWN)]
    pass_local_rank: bool,
    /// Signals that end the job, on which workers that handle SIGUSR2 get that instead, save a snapshot and end with code 75 [default:
    /// SIGTERM under Slurm and PBS, which an empty list switches off, else none; SIGUSR2 itself always does this]
    #[arg(long, alias = "snapshot_on", value_name = "NAMES", help_heading = OWN)]
    snapshot_on: Option<String>,
    /// Signals that every worker itself gets while the job goes on [default: none; SIGUSR1 is passed on to workers that handle it]
    #[arg(long, alias = "forward_signals", value_name = "NAMES", help_heading = OWN)]
    forward_signals: Option<String>,
    /// What carries the collectives of workers that use this project's runtime, as LOCKSTEP_BACKEND: gloo (sockets), shm (memory that
    /// the ranks of one host share) or auto (shm within a host and gloo between hosts, where possible) [default: LOCKSTEP_BACKEND, if
    /// that is set, else auto]
    #[arg(long, value_name = "NAME", help_heading = OWN)]
    backend: Option<String>,
    /// Seconds between the request to end and SIGKILL [default: 30, or what Slurm or PBS gives if that is more]
    #[arg(long, alias = "stop_timeout", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    stop_timeout: Option<String>,
    /// Seconds from now until the job ends, where neither Slurm nor PBS says so
    #[arg(long, alias = "time_limit", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    time_limit: Option<String>,
    /// Seconds before the job's end at which workers that handle SIGUSR2 save a snapshot and end with code 75; 0 for never [default: 60,
    /// or a tenth of the time that is left if that is less]
    #[arg(long, alias = "save_before_limit", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    save_before_limit: Option<String>,
    /// Seconds that nodes wait for each other once their own workers are done [default: 300]
    #[arg(long, alias = "exit_barrier_timeout", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    exit_barrier_timeout: Option<String>,
    /// Keep the temporary log folder after success too
    #[arg(long, alias = "keep_logs", help_heading = OWN)]
    keep_logs: bool,
    /// A file with a host on each line, the first of which hosts the rendezvous: for agents that a loop over ssh or pbsdsh starts
    #[arg(long, value_name = "FILE", help_heading = OWN)]
    hostfile: Option<PathBuf>,
    /// Prefix lines with the worker that printed them: auto (if there are several), always, tee (as torchrun: tee'd streams only) or never
    /// [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = OWN)]
    prefix: Option<String>,
    /// Stacks of this node's ranks in the report when a rank has waited in vain for another: auto (if py-spy, gdb or eu-stack is
    /// installed; takes at most 10 s) or never [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = OWN)]
    stacks: Option<String>,
    /// Live status on a terminal: auto or never [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = OWN)]
    status: Option<String>,
    /// Show what would run, and exit
    #[arg(long, alias = "dry_run", help_heading = OWN)]
    pub(super) dry_run: bool,

    /// The script, module or program, and its arguments
    #[arg(required = true, value_name = "PROGRAM [ARGS]", trailing_var_arg = true)]
    program: Vec<OsString>,
}

const SIZE: &str = "Size";
const RENDEZVOUS: &str = "Rendezvous";
const PROGRAM: &str = "Program";
const FAILURES: &str = "Failures";
const OUTPUT: &str = "Output";
const WITHOUT: &str = "Without effect here";
const OWN: &str = "Not torchrun's";

impl RunOptions {
    /// The file that `--hostfile` names.
    pub(super) fn hostfile(&self, env: Env<'_>) -> Option<PathBuf> {
        path("hostfile", self.hostfile.clone(), env)
    }

    /// The flags, with defaults for those that were not given.
    pub(super) fn flags(self, env: Env<'_>) -> Result<Flags, ConfigError> {
        let pick = |flag, text, default| Given::pick(flag, text, default, env);
        let mut words = self.program.into_iter();
        Ok(Flags {
            nnodes: pick("nnodes", self.nnodes, "1:1"),
            nproc_per_node: pick("nproc-per-node", self.nproc_per_node, "1"),
            rdzv_backend: pick("rdzv-backend", self.rdzv_backend, "static"),
            rdzv_endpoint: pick("rdzv-endpoint", self.rdzv_endpoint, ""),
            rdzv_id: pick("rdzv-id", self.rdzv_id, "none"),
            rdzv_conf: pick("rdzv-conf", self.rdzv_conf, ""),
            standalone: switch("standalone", self.standalone, env)?,
            max_restarts: pick("max-restarts", self.max_restarts, "0"),
            monitor_interval: pick("monitor-interval", self.monitor_interval, "0.1"),
            start_method: pick("start-method", self.start_method, "spawn"),
            event_log_handler: pick("event-log-handler", self.event_log_handler, "null"),
            role: pick("role", self.role, "default"),
            module: switch("module", self.module, env)?,
            no_python: switch("no-python", self.no_python, env)?,
            run_path: switch("run-path", self.run_path, env)?,
            log_dir: path("log-dir", self.log_dir, env),
            redirects: pick("redirects", self.redirects, "0"),
            tee: pick("tee", self.tee, "0"),
            local_ranks_filter: pick("local-ranks-filter", self.local_ranks_filter, ""),
            duplicate_stdout_filters: pick("duplicate-stdout-filters", self.duplicate_stdout_filters, ""),
            duplicate_stderr_filters: pick("duplicate-stderr-filters", self.duplicate_stderr_filters, ""),
            node_rank: pick("node-rank", self.node_rank, "0"),
            master_addr: pick("master-addr", self.master_addr, "127.0.0.1"),
            master_port: pick("master-port", self.master_port, "29500"),
            local_addr: pick("local-addr", self.local_addr, ""),
            logs_specs: self.logs_specs,
            numa_binding: self.numa_binding,
            signals_to_handle: pick("signals-to-handle", self.signals_to_handle, "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            use_env: switch("use-env", self.use_env, env)?,
            pass_local_rank: switch("pass-local-rank", self.pass_local_rank, env)?,
            snapshot_on: pick("snapshot-on", self.snapshot_on, ""),
            forward_signals: pick("forward-signals", self.forward_signals, ""),
            virtual_local_rank: switch("virtual-local-rank", self.virtual_local_rank, env)?,
            backend: pick("backend", self.backend, ""),
            stop_timeout: pick("stop-timeout", self.stop_timeout, "30"),
            time_limit: pick("time-limit", self.time_limit, ""),
            save_before_limit: pick("save-before-limit", self.save_before_limit, ""),
            exit_barrier_timeout: pick("exit-barrier-timeout", self.exit_barrier_timeout, "300"),
            keep_logs: switch("keep-logs", self.keep_logs, env)?,
            stacks: pick("stacks", self.stacks, "auto"),
            status: pick("status", self.status, "auto"),
            prefix: pick("prefix", self.prefix, "auto"),
            program: words.next().unwrap_or_default(), // the parser demands one
            args: words.collect(),
        })
    }
}

//! `lockstep run`: starts a program once per rank, supervises it, and restarts it when a rank fails.
//!
//! The command line is torchrun's. [`crate::config`] interprets its flags, and [`crate::agent`] runs the job.
//!
//! Flags are parsed as text; each falls back on `PET_<NAME>` and then on torchrun's default, so that an error can name the source of a
//! value. Characters that look like others, as web pages, PDFs and word processors put them in (an en dash for `--`), get an error of their
//! own.

mod look_alikes;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, Args, Command, CommandFactory, Parser, ValueEnum, ValueHint};
use clap_complete::{Shell as Generator, generate};
use lockstep_contract::{foreign, warn};

pub use look_alikes::{LookAlike, LookAlikeKind, parse};
use look_alikes::{find, flag_like};

use crate::agent::{self, Ended};
use crate::config::{Backend, Config, ConfigError, Env, Flags, Given, HostInfo, LogBase, path, switch, threads_notice};
use crate::exit::{self, Code, Refused};
use crate::report::propagate_agent_error;
use crate::scheduler::{self, Allocation, Taken};

const AFTER_HELP: &str = "\
Everything after PROGRAM belongs to the program. In its arguments, `${local_rank}` becomes the local rank and `$$` becomes `$`.

A PROGRAM that ends in .py, or that cannot run on its own, runs as `python -u PROGRAM`; PYTHON_EXEC names the Python. A binary, an \
executable script of another language or a name in PATH runs as it is.

The flags are torchrun's. Underscores may replace dashes, and a name may be cut short while it is unambiguous. PET_<NAME>, such as \
PET_NPROC_PER_NODE, sets a flag's default; a switch takes 0 or 1.

On several nodes, start it once on each: by srun, mpirun or mpiexec, or by a loop over ssh or pbsdsh with --hostfile. It then finds the \
nodes, a port and the job's id on its own and needs no rendezvous flag. A flag that you give wins. --dry-run shows where each value came from.

Exit codes: 0 all workers succeeded · 1 a worker or the rendezvous failed, the configuration is wrong, or a signal ended the job · \
2 usage · 75 the workers saved a snapshot and ended, as a signal or the time limit asked. The report has each worker's own code.";

/// Run a program once per rank, on one or several nodes, with torchrun's flags and environment
#[derive(Args)]
#[command(infer_long_args = true, args_override_self = true, after_help = AFTER_HELP)]
pub struct RunOptions {
    /// Number of nodes: N, or a range MIN:MAX [default: 1:1]
    #[arg(long, value_name = "N", help_heading = SIZE)]
    nnodes: Option<String>,
    /// Workers on this node: a number, cpu (one for each usable processor), gpu, or auto (gpu if there is one, else cpu) [default: 1]
    #[arg(long, alias = "nproc_per_node", value_name = "N", help_heading = SIZE)]
    nproc_per_node: Option<String>,

    /// How nodes meet: static (each has its --node-rank) or c10d (they may come and go) [default: static]
    #[arg(long, alias = "rdzv_backend", value_name = "NAME", help_heading = RENDEZVOUS)]
    rdzv_backend: Option<String>,
    /// Where nodes meet [default: --master-addr and --master-port for static, localhost for c10d, with port 29400]
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT", help_heading = RENDEZVOUS)]
    rdzv_endpoint: Option<String>,
    /// The job's id, the same on all its nodes [default: none, or random for one node with a free port]
    #[arg(long, alias = "rdzv_id", value_name = "ID", help_heading = RENDEZVOUS)]
    rdzv_id: Option<String>,
    /// Timeouts and other settings, such as join_timeout=60,last_call_timeout=5 (seconds)
    #[arg(long, alias = "rdzv_conf", value_name = "K=V,…", help_heading = RENDEZVOUS)]
    rdzv_conf: Option<String>,
    /// Run on this node alone, with a free port and a random id; other rendezvous flags have no effect
    #[arg(long, help_heading = RENDEZVOUS)]
    standalone: bool,
    /// This node's number, for static [default: 0]
    #[arg(long, alias = "node_rank", value_name = "N", allow_hyphen_values = true, help_heading = RENDEZVOUS)]
    node_rank: Option<String>,
    /// Node 0's address, for static [default: 127.0.0.1]
    #[arg(long, alias = "master_addr", value_name = "HOST", help_heading = RENDEZVOUS)]
    master_addr: Option<String>,
    /// Node 0's port, for static [default: a free one for one node, 29500 for several]
    #[arg(long, alias = "master_port", value_name = "PORT", allow_hyphen_values = true, help_heading = RENDEZVOUS)]
    master_port: Option<String>,
    /// The address at which other nodes reach this one [default: its name]
    #[arg(long, alias = "local_addr", value_name = "HOST", help_heading = RENDEZVOUS)]
    local_addr: Option<String>,

    /// Run PROGRAM as a Python module, like `python -m`
    #[arg(short, long, help_heading = PROGRAM)]
    module: bool,
    /// Run PROGRAM as it is, even if it looks like a Python script
    #[arg(long, alias = "no_python", help_heading = PROGRAM)]
    no_python: bool,
    /// Run PROGRAM by Python's runpy.run_path; this wins over --no-python
    #[arg(long, alias = "run_path", help_heading = PROGRAM)]
    run_path: bool,
    /// A name for the workers [default: default]
    #[arg(long, value_name = "NAME", help_heading = PROGRAM)]
    role: Option<String>,
    /// Show each worker one GPU only, as its device 0, with LOCAL_RANK=0
    #[arg(long, alias = "virtual_local_rank", help_heading = PROGRAM)]
    virtual_local_rank: bool,

    /// How often all workers may restart after a failure [default: 0]
    #[arg(long, alias = "max_restarts", value_name = "N", allow_hyphen_values = true, help_heading = FAILURES)]
    max_restarts: Option<String>,
    /// Seconds between two looks for workers that sleep in the kernel, if TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT limits that;
    /// a death is noticed at once [default: 0.1]
    #[arg(long, alias = "monitor_interval", value_name = "SECONDS", allow_hyphen_values = true, help_heading = FAILURES)]
    monitor_interval: Option<String>,
    /// Signals that end the job; the workers get them, too [default: SIGTERM,SIGINT,SIGHUP,SIGQUIT]
    #[arg(long, alias = "signals_to_handle", value_name = "NAMES", help_heading = FAILURES)]
    signals_to_handle: Option<String>,
    /// Seconds from the request to end to SIGKILL [default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30, or more if Slurm or PBS gives
    /// more]
    #[arg(long, aliases = ["shutdown_timeout", "stop_timeout"], visible_alias = "stop-timeout", value_name = "SECONDS")]
    #[arg(allow_hyphen_values = true, help_heading = FAILURES)]
    shutdown_timeout: Option<String>,

    /// Where each run makes its log folder; /dev/null for no logs [default: a temporary folder, removed after success]
    #[arg(long, alias = "log_dir", value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = OUTPUT)]
    log_dir: Option<PathBuf>,
    /// Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, such as 0:3,1:2 [default: 0]
    #[arg(short, long, alias = "re", value_name = "STREAMS", help_heading = OUTPUT)] // torchrun's shortest form
    redirects: Option<String>,
    /// Streams that go to files and to the console, in the same form [default: 0]
    #[arg(short, long, value_name = "STREAMS", help_heading = OUTPUT)]
    tee: Option<String>,
    /// The prefix of lines on the console, with ${role_name}, ${rank}, ${local_rank} and ${hostname} [default:
    /// TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:]
    #[arg(long, alias = "log_line_prefix_template", value_name = "TEXT", allow_hyphen_values = true, help_heading = OUTPUT)]
    log_line_prefix_template: Option<String>,
    /// Local ranks whose output the console shows, such as 0,2; files get all [default: all]
    #[arg(long, alias = "local_ranks_filter", value_name = "RANKS", help_heading = OUTPUT)]
    local_ranks_filter: Option<String>,
    /// Texts: tee'd lines of stdout that have one of them go to filtered_stdout.log, too; `,,` is a comma in a text
    #[arg(long, alias = "duplicate_stdout_filters", value_name = "TEXTS", help_heading = OUTPUT)]
    duplicate_stdout_filters: Option<String>,
    /// The same for stderr and filtered_stderr.log
    #[arg(long, alias = "duplicate_stderr_filters", value_name = "TEXTS", help_heading = OUTPUT)]
    duplicate_stderr_filters: Option<String>,

    /// A flag of torch.distributed.launch; workers always read LOCAL_RANK from the environment
    #[arg(long, alias = "use_env", help_heading = WITHOUT)]
    use_env: bool,
    /// spawn, fork or forkserver; workers are separate programs
    #[arg(long, alias = "start_method", value_name = "METHOD", help_heading = WITHOUT)]
    start_method: Option<String>,
    /// Set LOCKSTEP_EVENTS=DIR instead, for event files
    #[arg(long, alias = "event_log_handler", value_name = "NAME", help_heading = WITHOUT)]
    event_log_handler: Option<String>,
    /// It names a Python object
    #[arg(long, alias = "logs_specs", value_name = "NAME", help_heading = WITHOUT)]
    logs_specs: Option<String>,
    /// Bind by numactl or the scheduler instead
    #[arg(long, alias = "numa_binding", value_name = "MODE", help_heading = WITHOUT)]
    #[arg(value_parser = ["node", "socket", "exclusive", "core-complex"], hide_possible_values = true)]
    numa_binding: Option<String>,

    /// Also pass --local-rank=N to each worker before its own arguments, like torch.distributed.launch without --use-env
    #[arg(long, alias = "pass_local_rank", help_heading = OWN)]
    pass_local_rank: bool,
    /// Signals that end the job after a snapshot: workers that handle SIGUSR2 get SIGUSR2 instead, save a snapshot and end with code
    /// 75. SIGUSR2 itself always does this [default: SIGTERM under Slurm and PBS, else none; an empty list is none]
    #[arg(long, alias = "snapshot_on", value_name = "NAMES", help_heading = OWN)]
    snapshot_on: Option<String>,
    /// Signals that every worker gets while the job goes on [default: none; workers that handle SIGUSR1 always get it]
    #[arg(long, alias = "forward_signals", value_name = "NAMES", help_heading = OWN)]
    forward_signals: Option<String>,
    /// What carries the collectives of workers that use this project's runtime: gloo (sockets), shm (memory that the ranks of one
    /// host share) or auto (shm within a host, gloo between hosts) [default: LOCKSTEP_BACKEND, else auto]
    #[arg(long, value_name = "NAME", help_heading = OWN)]
    backend: Option<String>,
    /// Seconds from now until the job ends, where neither Slurm nor PBS says so
    #[arg(long, alias = "time_limit", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    time_limit: Option<String>,
    /// Seconds before that end at which workers that handle SIGUSR2 save a snapshot and end with code 75; 0 for never [default: 60,
    /// or a tenth of the time left if that is less]
    #[arg(long, alias = "save_before_limit", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    save_before_limit: Option<String>,
    /// Seconds that a node waits for the others once its own workers are done [default: 300]
    #[arg(long, alias = "exit_barrier_timeout", value_name = "SECONDS", allow_hyphen_values = true, help_heading = OWN)]
    exit_barrier_timeout: Option<String>,
    /// Keep the temporary log folder even after success
    #[arg(long, alias = "keep_logs", help_heading = OWN)]
    keep_logs: bool,
    /// Record what each rank does, in calls, steps, waits and failures, for `lockstep replay FILE`; at most 8 MiB a rank, the newest. In a
    /// job of several nodes each launcher writes FILE.HOST
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = OWN)]
    record: Option<PathBuf>,
    /// A file with one host a line, for agents that a loop over ssh or pbsdsh starts; the first host holds the rendezvous
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = OWN)]
    hostfile: Option<PathBuf>,
    /// Prefix lines with their worker: auto (if several print), always, tee (tee'd streams only, like torchrun) or never
    /// [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = OWN)]
    prefix: Option<String>,
    /// Add stacks of this node's ranks to the report when a rank has waited for another in vain: auto (by py-spy, gdb or eu-stack,
    /// for at most 10 s) or never [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = OWN)]
    stacks: Option<String>,
    /// Live status on a terminal: auto or never [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = OWN)]
    status: Option<String>,
    /// Show what would run, and exit
    #[arg(long, alias = "dry_run", help_heading = OWN)]
    dry_run: bool,

    /// Print a script that completes `lockstep` in this shell, and exit
    #[arg(long, alias = "print_completion", value_name = "SHELL")]
    print_completion: Option<Shell>,

    /// The script, module or program, and its arguments
    #[arg(required_unless_present = "print_completion", value_name = "PROGRAM [ARGS]", trailing_var_arg = true)]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
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
    /// The flags, with defaults for those that were not given.
    fn flags(self, env: Env<'_>) -> Result<Flags, ConfigError> {
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
            log_line_prefix_template: pick("log-line-prefix-template", self.log_line_prefix_template, "")
                .or_variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", env),
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
            shutdown_timeout: pick("shutdown-timeout", self.shutdown_timeout, "30")
                .or_variable("PET_STOP_TIMEOUT", env)
                .or_variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", env),
            use_env: switch("use-env", self.use_env, env)?,
            pass_local_rank: switch("pass-local-rank", self.pass_local_rank, env)?,
            snapshot_on: pick("snapshot-on", self.snapshot_on, ""),
            forward_signals: pick("forward-signals", self.forward_signals, ""),
            virtual_local_rank: switch("virtual-local-rank", self.virtual_local_rank, env)?,
            backend: pick("backend", self.backend, ""),
            time_limit: pick("time-limit", self.time_limit, ""),
            save_before_limit: pick("save-before-limit", self.save_before_limit, ""),
            exit_barrier_timeout: pick("exit-barrier-timeout", self.exit_barrier_timeout, "300"),
            keep_logs: switch("keep-logs", self.keep_logs, env)?,
            record: path("record", self.record, env),
            stacks: pick("stacks", self.stacks, "auto"),
            status: pick("status", self.status, "auto"),
            prefix: pick("prefix", self.prefix, "auto"),
            program: words.next().unwrap_or_default(), // the parser demands one
            args: words.collect(),
        })
    }
}

// Not a doc comment: clap would show it as the program's description.
// The command line of `torchrun`: its flags, without a subcommand.
#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: RunOptions,
}

/// The `main` of a launcher: reads this process's arguments, runs the job, prints an error if there is one, and returns
/// the exit code, as `--help` lists them.
///
/// Call it on the main thread, before anything else: the executable starts itself again as the process that ends what workers have left if
/// this one is killed, and the kernel ends workers with the thread that started them.
pub fn torchrun() -> ExitCode {
    lockstep_process::internal_main()
        .unwrap_or_else(|| exit::main(|| parse::<CommandLine>().options.exec(|| Ok(CommandLine::command()))))
}

impl RunOptions {
    /// Runs the job, or prints the script that completes the `whole` command line.
    ///
    /// # Errors
    /// Why it cannot run.
    pub fn exec(self, whole: impl FnOnce() -> anyhow::Result<clap::Command>) -> anyhow::Result<Code> {
        if let Some(shell) = self.print_completion {
            return shell.print(&whole()?);
        }
        agent::settle().context("cannot handle signals")?;
        let env = |name: &str| std::env::var_os(name);
        let dry_run = self.dry_run;
        let words = self.program.clone();
        // The launcher's own, and the program.
        let own: Vec<OsString> = std::env::args_os().skip(1).collect();
        let own = &own[..(own.len() + 1).saturating_sub(words.len())];
        let (config, taken, mut notices) = match self.config(&HostInfo::here(&env)) {
            Ok(made) => made,
            Err(error) if let Some(named) = find(own.iter().map(|word| &**word)) => {
                return Err(Refused(format!("{named} ({error})\n\n{TRY_HELP}")).into());
            }
            Err(error) if error.is_usage() => return Err(Refused(format!("{error}\n\n{TRY_HELP}")).into()),
            Err(error) => return Err(left_for_the_caller(error.into())),
        };
        notices.extend(flag_like(words.iter().skip(1).map(|word| &**word)));
        for notice in notices.into_iter().chain(threads_notice(&config, &env)) {
            warn(&format_args!("note: {notice}"));
        }
        if dry_run { show(&config, &taken) } else { start(&config) }
    }

    /// The job, the flags that came from the scheduler, and notices for the user.
    fn config(self, host: &HostInfo<'_>) -> Result<(Config, Vec<Taken>, Vec<String>), ConfigError> {
        let hostfile =
            path("hostfile", self.hostfile.clone(), host.env).map(|path| path.to_string_lossy().into_owned());
        let mut flags = self.flags(host.env)?;
        flags.check_types()?; // before an allocation is looked for
        let allocation =
            Allocation::here(hostfile.as_deref()).map_err(|error| ConfigError::Clash(error.to_string()))?;
        let (taken, mut notices) = match allocation {
            Some(found) => scheduler::apply(&found, &mut flags)?,
            None => scheduler::without_job(&flags)?,
        };
        let (config, more) = Config::from_flags(&flags, host)?;
        notices.extend(more);
        Ok((config, taken, notices))
    }
}

const TRY_HELP: &str = "For more information, try '--help'.";

fn start(config: &Config) -> anyhow::Result<Code> {
    match agent::run(config).map_err(left_for_the_caller)? {
        Ended::Succeeded => Ok(Code::Success),
        Ended::Failed => Ok(Code::Failure),
        Ended::Saved => Ok(Code::Saved),
    }
}

/// Records the error where the parent process expects it (torch's `record`, around `main`).
fn left_for_the_caller(error: anyhow::Error) -> anyhow::Error {
    if let Some(path) = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path: &OsString| !path.is_empty())
        && let Err(why) = propagate_agent_error(&error, Path::new(&path))
    {
        return error
            .context(format!("cannot write {} (TORCHELASTIC_ERROR_FILE): {why}", foreign::path(Path::new(&path))));
    }
    error
}

/// `--dry-run`: prints what would run, as lines of a name and a value.
fn show(config: &Config, taken: &[Taken]) -> anyhow::Result<Code> {
    let taken = taken.iter().map(|taken| ("taken", origin(taken)));
    let lines = lines(config)
        .into_iter()
        .chain(taken)
        .map(|(name, value)| format!("{name:<12} {}\n", foreign::escaped(&value)));
    stdout().write_all(lines.collect::<String>().as_bytes()).context("cannot print the plan")?;
    Ok(Code::Success)
}

fn lines(config: &Config) -> Vec<(&'static str, String)> {
    let rendezvous = &config.rendezvous;
    let node = match rendezvous.backend {
        Backend::Static { node_rank } => format!(", this is --node-rank={node_rank}"),
        Backend::C10d => String::new(),
    };
    let mut lines = vec![
        ("program", config.program.name.clone()),
        ("nodes", config.nodes.to_string()),
        ("workers here", config.local_world_size.to_string()),
        (
            "rendezvous",
            format!("{} at {}{node}, id {}", rendezvous.backend.name(), rendezvous.endpoint, rendezvous.run_id),
        ),
        ("restarts", config.max_restarts.to_string()),
        ("logs", logs(&config.logs.base)),
    ];
    lines.extend(config.record.iter().map(|file| ("recording", file.display().to_string())));
    lines.extend((0..config.local_world_size).map(|rank| ("command", command(config, rank))));
    lines
}

/// A flag that came from the scheduler, and which variable or file it came from.
fn origin(taken: &Taken) -> String {
    let value = if taken.value.is_empty() { String::new() } else { format!("={}", taken.value) };
    format!("--{}{value} from {}", taken.flag, taken.from)
}

fn logs(base: &LogBase) -> String {
    match base {
        LogBase::Temporary => "in a temporary folder".to_owned(),
        LogBase::Folder(folder) => format!("in {}", folder.display()),
        LogBase::Nowhere => "none".to_owned(),
    }
}

/// Quoted for a shell.
fn command(config: &Config, local_rank: usize) -> String {
    let args = config.program.args(local_rank);
    let words = std::iter::once(&config.program.file).chain(&args);
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quoted so that a shell reads it back.
pub fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(safe) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// A shell that scripts are made for: torchrun's three, and fish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the shells' own names
pub enum Shell {
    Bash,
    Zsh,
    Tcsh,
    Fish,
}

impl Shell {
    /// Prints the script for this command line.
    ///
    /// # Errors
    /// When it cannot be printed.
    pub fn print(self, command: &Command) -> anyhow::Result<Code> {
        stdout().write_all(&self.script(command)).context("cannot print the script")?;
        Ok(Code::Success)
    }

    /// The script, without subcommands that the help page does not list.
    fn script(self, command: &Command) -> Vec<u8> {
        let name = command.get_name().to_owned();
        let listed = command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned();
        let arguments = command.get_arguments().cloned();
        let generator = match self {
            Shell::Bash => Generator::Bash,
            Shell::Zsh => Generator::Zsh,
            Shell::Fish => Generator::Fish,
            Shell::Tcsh => return tcsh(&name, command).into_bytes(),
        };
        // The generators take the program's name from `generate`; this one only names states in the script.
        let mut shown = Command::new("lockstep").args(arguments).subcommands(listed);
        let mut script = Vec::new();
        generate(generator, &mut shown, name, &mut script);
        script
    }
}

/// tcsh's `complete` takes words: the subcommands as the first, and the flags of all wherever one begins with dashes.
fn tcsh(name: &str, command: &Command) -> String {
    let listed: Vec<&Command> = command.get_subcommands().filter(|inner| !inner.is_hide_set()).collect();
    let flags = listed.iter().copied().chain([command]).flat_map(Command::get_arguments).filter_map(Arg::get_long);
    let flags: BTreeSet<&str> = flags.collect();
    let words = |words: Vec<&str>| words.join(" ");
    let first = words(listed.iter().map(|inner| inner.get_name()).collect());
    let first = if first.is_empty() { String::new() } else { format!(" 'p/1/({first})/'") };
    format!("complete {name} 'c/--/({})/'{first} 'p/*/f/'\n", words(flags.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_words_that_a_shell_would_change() {
        assert_eq!(
            ["--seed=0.7", "a b", "", "it's", "$x", "é"].map(quoted),
            ["--seed=0.7", "'a b'", "''", r"'it'\''s'", "'$x'", "'é'"]
        );
    }

    #[test]
    fn completes_flags_and_listed_subcommands_only() {
        let run = Command::new("run").arg(Arg::new("nnodes").long("nnodes").alias("n_nodes"));
        let command = Command::new("x").subcommands([run, Command::new("x-rank").hide(true)]);
        for shell in [Shell::Bash, Shell::Zsh, Shell::Tcsh, Shell::Fish] {
            let script = String::from_utf8(shell.script(&command)).unwrap();
            assert!(script.contains("nnodes"), "{script}");
            assert!(["x-rank", "n_nodes"].iter().all(|word| !script.contains(word)), "{script}");
        }
    }
}

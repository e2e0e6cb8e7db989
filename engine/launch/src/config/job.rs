//! The configuration of a job on this node: torchrun's flags, checked and interpreted (`config_from_args` of
//! torch/distributed/run.py).
//!
//! [`Signals`]: the signals to the agent that end the job cleanly (`--signals-to-handle`), with a snapshot first (`--snapshot-on`), and those
//! that are passed on to the workers (`--forward-signals`).
//!
//! [`worker_env`]: the environment variables of a worker, torchrun's in addition to the agent's own
//! (`LocalElasticAgent._start_workers` of torch/distributed/elastic/agent/server/local_elastic_agent.py). Not here: `LOCKSTEP_EVENTS`, `LOCKSTEP_RECORD` and
//! `GLOO_SOCKET_IFNAME` (`agent/workers.rs`), and `LOCKSTEP_AGENT` (`lockstep_process`'s `workers.rs`).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_contract::snapshot_request::{LAUNCHER, SAVE, SAVE_AND_END, SNAPSHOT_ON};
use lockstep_contract::{BACKEND, BACKENDS, foreign};
use lockstep_paths::check_file;
use lockstep_process::proc::is_python;
use lockstep_process::{known_signal_name, signal_number};

use super::flags::{ConfigError, Flags, Given, Source, choice, seconds, seconds_if_given, whole};
use super::host::{HostInfo, Nodes, entries, of_one_gpu, workers};
use super::logs::{self, LogBase, Logs, MACROS, PrefixWhen, Streams};
use super::program::{Env, How, Program};
use super::rendezvous::Rendezvous;

/// The configuration of a job on this node. Every value is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of agents.
    pub nodes: Nodes,
    /// The number of workers of this agent; at least 1.
    pub local_world_size: usize,
    /// How the agents find each other.
    pub rendezvous: Rendezvous,
    /// The role of the workers.
    pub role: String,
    /// How many times this agent's workers may be restarted after a failure.
    pub max_restarts: u32,
    /// torchrun's polling interval. The kernel reports deaths here, so this only says how often workers that sleep are looked for.
    pub monitor_interval: Duration,
    /// The program that a worker runs.
    pub program: Program,
    /// Where its output goes.
    pub logs: Logs,
    /// The signals that end the job, ask for a snapshot or are passed on.
    pub signals: Signals,
    /// Each worker sees only one GPU, as its device 0.
    pub virtual_local_rank: bool,
    /// What carries the workers' collectives, for `LOCKSTEP_BACKEND`; `None` for what the agent's environment says.
    pub backend: Option<&'static str>,
    /// How long a worker may sleep in the kernel before the job ends, by [`KERNEL_SLEEP`]; `None` for no limit.
    pub kernel_sleep_limit: Option<Duration>,
    /// The time between the stop signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// True if the user has not chosen it. A longer time that a scheduler allows then replaces it.
    pub shutdown_timeout_is_default: bool,
    /// When the job ends, from now; `None` to find out.
    pub time_limit: Option<Duration>,
    /// How long before that the workers save a snapshot and end; zero for never, `None` for the default.
    pub save_before_limit: Option<Duration>,
    /// How long agents wait for each other after their own workers have succeeded.
    pub exit_barrier_timeout: Duration,
    /// Read the stacks of the living workers when one's wait for another has timed out.
    pub stacks: bool,
    /// Live status on a terminal.
    pub status: StatusWhen,
    /// The file in which the run is recorded.
    pub record: Option<PathBuf>,
}

/// torch's variable for the seconds that a worker may sleep in the kernel.
pub const KERNEL_SLEEP: &str = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";

/// When live status is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWhen {
    /// When stderr is a terminal.
    Auto,
    /// Never.
    Never,
}

impl Config {
    /// Checks and interprets `flags` on this `host`. The returned list has notices for the user that are not errors,
    /// one sentence each.
    ///
    /// # Errors
    /// [`ConfigError`], which names the flag or variable, its text, and what it accepts.
    pub fn from_flags(flags: &Flags, host: &HostInfo<'_>) -> Result<(Config, Vec<String>), ConfigError> {
        flags.check_types()?;
        let nodes = Nodes::parse(&flags.nnodes)?;
        let local_world_size = workers(&flags.nproc_per_node, host)?;
        let (signals, mut notices) =
            Signals::parse(&flags.signals_to_handle, &flags.snapshot_on, &flags.forward_signals)?;
        let (rendezvous, more) = Rendezvous::from_flags(flags, nodes, host)?;
        notices.extend(more);
        let (kernel_sleep_limit, unread) = kernel_sleep_limit(host);
        notices.extend(unread);
        let config = Config {
            nodes,
            local_world_size,
            rendezvous,
            role: flags.role.text.clone(),
            max_restarts: max_restarts(&flags.max_restarts)?,
            monitor_interval: seconds(&flags.monitor_interval)?,
            program: program(flags, host)?,
            logs: output(flags)?,
            signals,
            virtual_local_rank: flags.virtual_local_rank,
            backend: backend(&flags.backend)?,
            kernel_sleep_limit,
            shutdown_timeout: seconds(&flags.shutdown_timeout)?,
            shutdown_timeout_is_default: flags.shutdown_timeout.source == Source::Default,
            time_limit: seconds_if_given(&flags.time_limit)?,
            save_before_limit: seconds_if_given(&flags.save_before_limit)?,
            exit_barrier_timeout: seconds(&flags.exit_barrier_timeout)?,
            stacks: choice(&flags.stacks, &[("auto", true), ("never", false)], "auto or never")?,
            status: choice(
                &flags.status,
                &[("auto", StatusWhen::Auto), ("never", StatusWhen::Never)],
                "auto or never",
            )?,
            record: record(flags)?,
        };
        check_devices(&config, host)?;
        notices.extend(without_meaning(flags));
        notices.extend(by_python(flags, &config));
        notices.extend(recorded_by_launcher(&config));
        notices.extend(unused_ranks(flags, &config));
        notices.extend(unused_template(flags, &config.logs));
        Ok((config, notices))
    }
}

fn program(flags: &Flags, host: &HostInfo<'_>) -> Result<Program, ConfigError> {
    if flags.module && flags.no_python && !flags.run_path {
        return Err(ConfigError::Clash("--module and --no-python contradict each other: give one of them".into()));
    }
    if flags.use_env && flags.pass_local_rank {
        return Err(ConfigError::Clash(
            "--use-env and --pass-local-rank contradict each other: give one of them".into(),
        ));
    }
    let how = How { module: flags.module, no_python: flags.no_python, run_path: flags.run_path };
    // As torch.distributed.launch does, before the script's own arguments.
    let local_rank = flags.pass_local_rank.then(|| OsString::from("--local-rank=${local_rank}"));
    let args: Vec<OsString> = local_rank.into_iter().chain(flags.args.iter().cloned()).collect();
    Ok(Program::resolve(&flags.program, &args, how, host.env)?)
}

fn output(flags: &Flags) -> Result<Logs, ConfigError> {
    let base = match &flags.log_dir {
        None => LogBase::Temporary,
        Some(folder) if folder == Path::new("/dev/null") => LogBase::Nowhere,
        Some(folder) => LogBase::Folder(folder.clone()),
    };
    let when = [
        ("auto", PrefixWhen::Auto),
        ("always", PrefixWhen::Always),
        ("tee", PrefixWhen::Tee),
        ("never", PrefixWhen::Never),
    ];
    Ok(Logs {
        base,
        keep: flags.keep_logs,
        redirects: Streams::parse(&flags.redirects)?,
        tee: Streams::parse(&flags.tee)?,
        shown: logs::shown(&flags.local_ranks_filter)?,
        duplicate_stdout: logs::filters(&flags.duplicate_stdout_filters),
        duplicate_stderr: logs::filters(&flags.duplicate_stderr_filters),
        prefix: choice(&flags.prefix, &when, "auto, always, tee or never")?,
        prefix_template: Some(flags.log_line_prefix_template.text.clone()).filter(|template| !template.is_empty()),
    })
}

/// Checks that there is an entry for each worker.
fn check_devices(config: &Config, host: &HostInfo<'_>) -> Result<(), ConfigError> {
    let variable = of_one_gpu(host.env);
    let Some(visible) = (host.env)(variable).filter(|_| config.virtual_local_rank) else {
        return Ok(());
    };
    let visible = visible.to_string_lossy();
    let entries = entries(&visible).count();
    if entries == 0 || config.local_world_size <= entries {
        return Ok(());
    }
    let workers = config.local_world_size;
    Err(ConfigError::Clash(format!(
        "--virtual-local-rank gives each worker a GPU, but {variable}={visible} has {entries} for {workers} workers: \
         lower --nproc-per-node or name more"
    )))
}

/// Notices for flags that only make sense for Python's agent.
fn without_meaning(flags: &Flags) -> Vec<String> {
    let mut notices = Vec::new();
    let mut notice = |given: String, why: &str| notices.push(format!("{given} has no effect here: {why}"));
    if flags.start_method.source != Source::Default {
        notice(flags.start_method.to_string(), "workers are separate programs, not Python processes of the agent");
    }
    if flags.event_log_handler.text != "null" {
        let why = "handlers are Python objects; set LOCKSTEP_EVENTS=FOLDER for event files";
        notice(flags.event_log_handler.to_string(), why);
    }
    if let Some(name) = &flags.logs_specs {
        notice(format!("--logs-specs={name}"), "it names a Python object; see --log-dir, --redirects and --tee");
    }
    if flags.use_env {
        let why = "workers always read LOCAL_RANK; --pass-local-rank also passes it as an argument";
        notice("--use-env".to_owned(), why);
    }
    if let Some(mode) = &flags.numa_binding {
        notice(
            format!("--numa-binding={mode}"),
            "start the program through `numactl` or your scheduler's binding instead",
        );
    }
    notices
}

/// A notice for an executable file that does not say who runs it: Python does, as under torchrun.
fn by_python(flags: &Flags, config: &Config) -> Option<String> {
    let path = Path::new(&flags.program);
    let is_program = |about: &Metadata| about.is_file() && about.permissions().mode() & 0o111 != 0;
    let named = flags.module || flags.run_path || path.extension() == Some(OsStr::new("py"));
    let chosen = config.program.file != flags.program && config.program.file != Path::new(".").join(path);
    if named || !chosen || !fs::metadata(path).is_ok_and(|about| is_program(&about)) {
        return None;
    }
    let mut first = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    (read.is_err() || &first != b"#!").then(|| {
        let path = foreign::path(path);
        format!(
            "{path} has no first line such as `#!/bin/sh`, so Python runs it; add the line if it is not a Python script"
        )
    })
}

/// `--record`: a file that is not there, or that may be replaced.
fn record(flags: &Flags) -> Result<Option<PathBuf>, ConfigError> {
    let Some(file) = &flags.record else { return Ok(None) };
    let refuse = |why: String| Err(ConfigError::Clash(format!("--record={}: {why}", foreign::path(file))));
    match check_file(file) {
        Err(why) => refuse(why.with_advice()),
        // A device, such as /dev/null, would be replaced.
        Ok(()) if file.exists() && !file.is_file() => refuse("it is not a file; name one".to_owned()),
        Ok(()) => Ok(Some(file.clone())),
    }
}

/// A notice for a Python program, whose calls are not recorded.
fn recorded_by_launcher(config: &Config) -> Option<String> {
    let asked = config.record.is_some() && is_python(&config.program.file.to_string_lossy());
    asked.then(|| {
        "--record has starts, ends and restarts of a Python program, and says where PyTorch's flight recorder writes \
         (TORCH_FR_DUMP_TEMP_FILE); calls are recorded of programs that use this project's runtime"
            .to_owned()
    })
}

/// Notices for local ranks that do not exist.
fn unused_ranks(flags: &Flags, config: &Config) -> Vec<String> {
    let workers = config.local_world_size;
    let highest = [
        (&flags.redirects, config.logs.redirects.highest()),
        (&flags.tee, config.logs.tee.highest()),
        (&flags.local_ranks_filter, config.logs.shown.as_ref().and_then(|shown| shown.last().copied())),
    ];
    let beyond = highest.iter().filter_map(|(given, highest)| Some((given, highest.filter(|rank| *rank >= workers)?)));
    beyond
        .map(|(given, rank)| format!("{given}: there is no local rank {rank}, the last one is {}", workers - 1))
        .collect()
}

/// Notices for a prefix's template that has unknown macros, or that no line gets.
fn unused_template(flags: &Flags, logs: &Logs) -> Vec<String> {
    let given = &flags.log_line_prefix_template;
    let Some(template) = &logs.prefix_template else { return vec![] };
    if logs.prefix == PrefixWhen::Never {
        return vec![format!("{given} has no effect: --prefix=never leaves all lines without a prefix")];
    }
    let known = MACROS.map(|name| format!("${{{name}}}")).join(", ");
    let unknown = logs::unknown_macros(template).into_iter();
    unknown.map(|unknown| format!("{given}: `{unknown}` stays as it is; the macros are {known}")).collect()
}

fn max_restarts(given: &Given) -> Result<u32, ConfigError> {
    u32::try_from(whole(given)?).map_err(|_| ConfigError::not_allowed(given, format!("expected 0 to {}", u32::MAX)))
}

/// Read as in torch: a value that is missing, not positive or not a number means no limit. The last gives a notice.
fn kernel_sleep_limit(host: &HostInfo<'_>) -> (Option<Duration>, Option<String>) {
    let Some(text) = (host.env)(KERNEL_SLEEP).filter(|text| !text.is_empty()) else { return (None, None) };
    let text = text.to_string_lossy();
    match text.trim().parse().ok().and_then(|seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).ok()) {
        Some(limit) => (Some(limit).filter(|limit| *limit > Duration::ZERO), None),
        None => (
            None,
            Some(format!(
                "{KERNEL_SLEEP}={} is not a number of seconds: workers that sleep in the kernel are not looked for",
                foreign::escaped(&text)
            )),
        ),
    }
}

fn backend(given: &Given) -> Result<Option<&'static str>, ConfigError> {
    let known = BACKENDS.map(|name| (name, Some(name)));
    choice(given, &[&[("", None)], &known[..]].concat(), "auto, gloo or shm")
}

/// The agent itself needs SIGCHLD, and no program can continue after the others.
const OTHERS: [&str; 4] = ["SIGCHLD", "SIGILL", "SIGFPE", "SIGSEGV"];

/// The signals that the agent handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Signals that end the job: their numbers on this host, each once.
    pub numbers: Vec<i32>,
    /// As given; workers read it in TORCHELASTIC_SIGNALS_TO_HANDLE.
    pub text: String,
    /// The signals of `numbers` on which the workers may save a snapshot first.
    pub snapshot: Vec<i32>,
    /// Signals that every worker gets while the job goes on.
    pub forward: Vec<i32>,
}

/// What the agent does when a signal arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// Stop the workers with the signal, and exit.
    End,
    /// Ask the workers to save a snapshot and to end, if they can; stop them if they cannot.
    SaveAndEnd,
    /// Pass it on to the workers themselves.
    PassOn {
        /// Also to workers that do not handle the signal, which may end them.
        to_all: bool,
    },
}

impl Signals {
    /// The signals, and a notice for each unknown name (torchrun ignores those, too).
    pub(super) fn parse(given: &Given, snapshot: &Given, forward: &Given) -> Result<(Self, Vec<String>), ConfigError> {
        let (numbers, mut notices) = parse(given)?;
        let (on_snapshot, more) = parse(snapshot)?;
        notices.extend(more);
        let (forwarded, more) = parse(forward)?;
        notices.extend(more);
        if on_snapshot.iter().any(|number| !numbers.contains(number)) {
            let why = format!("a snapshot is saved on signals that end the job, which are {given}");
            return Err(ConfigError::not_allowed(snapshot, why));
        }
        if forwarded.iter().any(|number| numbers.contains(number)) {
            let why = format!("the job goes on after a signal that is forwarded, and ends after {given}");
            return Err(ConfigError::not_allowed(forward, why));
        }
        Ok((Signals { numbers, text: given.text.clone(), snapshot: on_snapshot, forward: forwarded }, notices))
    }

    /// All signals that the agent handles.
    #[must_use]
    pub fn all(&self) -> Vec<i32> {
        let mut all = [&self.numbers[..], &self.forward, &[SAVE, SAVE_AND_END]].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The names of the signals that ask the workers themselves for a snapshot, too, joined by commas.
    #[must_use]
    pub fn snapshot_names(&self) -> String {
        let others = self.snapshot.iter().filter(|signal| ![SAVE, SAVE_AND_END].contains(signal));
        others.filter_map(|signal| signal_name(*signal)).collect::<Vec<_>>().join(",")
    }

    /// What the agent does when this signal arrives.
    #[must_use]
    pub fn response(&self, signal: i32) -> Response {
        match signal {
            _ if self.snapshot.contains(&signal) => Response::SaveAndEnd,
            _ if self.numbers.contains(&signal) => Response::End,
            _ if self.forward.contains(&signal) => Response::PassOn { to_all: true },
            SAVE_AND_END => Response::SaveAndEnd,
            _ => Response::PassOn { to_all: false },
        }
    }
}

/// The numbers of a list of names, each once, and a notice for each unknown name.
fn parse(given: &Given) -> Result<(Vec<i32>, Vec<String>), ConfigError> {
    let (mut numbers, mut notices) = (Vec::new(), Vec::new());
    let given_names = given.text.split(',').map(str::trim);
    for name in given_names.filter(|name| !(name.is_empty() && given.text.is_empty())) {
        if ["SIGKILL", "SIGSTOP"].contains(&name) {
            return Err(ConfigError::not_allowed(given, format!("{name} cannot be handled by any program")));
        }
        match signal_number(name).filter(|_| !OTHERS.contains(&name)) {
            Some(number) if !numbers.contains(&number) => numbers.push(number),
            Some(_) => {}
            None => notices.push(format!("{given}: `{name}` is not a signal that can be handled here; it is ignored")),
        }
    }
    Ok((numbers, notices))
}

/// The name of a signal, as in Python's `signal.Signals`, if it has one.
pub fn signal_name(number: i32) -> Option<&'static str> {
    match number {
        34 => Some("SIGRTMIN"),
        64 => Some("SIGRTMAX"),
        _ => known_signal_name(number),
    }
}

/// The place of one worker in the group that the nodes agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are torchrun's variables
pub struct Placement {
    pub rank: usize,
    pub local_rank: usize,
    pub world_size: usize,
    pub local_world_size: usize,
    pub group_rank: usize,
    pub group_world_size: usize,
    pub role_rank: usize,
    pub role_world_size: usize,
    /// How many of `--max-restarts` have been used.
    pub restart_count: u32,
    pub master_addr: String,
    pub master_port: u16,
    /// The file for the worker's error; `None` without log files.
    pub error_file: Option<PathBuf>,
}

/// The variables of the worker at `place`, which override the agent's own.
pub fn worker_env(config: &Config, place: &Placement, parent: Env<'_>) -> Vec<(OsString, OsString)> {
    let numbers = [
        ("RANK", place.rank),
        ("WORLD_SIZE", place.world_size),
        ("LOCAL_WORLD_SIZE", place.local_world_size),
        ("GROUP_RANK", place.group_rank),
        ("GROUP_WORLD_SIZE", place.group_world_size),
        ("ROLE_RANK", place.role_rank),
        ("ROLE_WORLD_SIZE", place.role_world_size),
        ("TORCHELASTIC_RESTART_COUNT", place.restart_count as usize),
        ("TORCHELASTIC_MAX_RESTARTS", config.max_restarts as usize),
        ("MASTER_PORT", usize::from(place.master_port)),
    ];
    let texts = [
        ("ROLE_NAME", config.role.as_str()),
        ("MASTER_ADDR", &place.master_addr),
        ("TORCHELASTIC_RUN_ID", &config.rendezvous.run_id),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_SIGNALS_TO_HANDLE", &config.signals.text),
    ];
    let mut env: Vec<(OsString, OsString)> =
        numbers.iter().map(|(name, number)| ((*name).into(), number.to_string().into())).collect();
    env.extend(texts.iter().map(|(name, text)| ((*name).into(), (*text).into())));
    let error_file = place.error_file.clone().map(PathBuf::into_os_string).unwrap_or_default();
    env.push(("TORCHELASTIC_ERROR_FILE".into(), error_file));
    let nccl = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    env.push((nccl.into(), parent(nccl).unwrap_or_else(|| "1".into())));
    if limits_threads(config, parent) {
        env.push(("OMP_NUM_THREADS".into(), "1".into()));
    }
    env.extend(config.backend.map(|name| (BACKEND.into(), name.into())));
    env.extend(snapshot_signals(config, parent));
    env.extend(local_rank(config, place, parent));
    env
}

/// A notice, printed once before the first start, that workers get one thread each.
pub fn threads_notice(config: &Config, parent: Env<'_>) -> Option<String> {
    limits_threads(config, parent).then(|| {
        format!(
            "setting OMP_NUM_THREADS=1 for each of the {} workers, so that they do not overload this host; set it yourself \
             for more speed",
            config.local_world_size
        )
    })
}

fn limits_threads(config: &Config, parent: Env<'_>) -> bool {
    config.local_world_size > 1 && parent("OMP_NUM_THREADS").is_none()
}

/// The signals that ask for a snapshot if a process other than this one sends them. They override those of an outer launcher.
fn snapshot_signals(config: &Config, parent: Env<'_>) -> Vec<(OsString, OsString)> {
    let names = config.signals.snapshot_names();
    if names.is_empty() && parent(SNAPSHOT_ON).is_none() {
        return vec![];
    }
    vec![(SNAPSHOT_ON.into(), names.into()), (LAUNCHER.into(), std::process::id().to_string().into())]
}

/// With `--virtual-local-rank` each worker sees one GPU, as its device 0.
fn local_rank(config: &Config, place: &Placement, parent: Env<'_>) -> Vec<(OsString, OsString)> {
    let own = |rank: usize| ("LOCAL_RANK".into(), rank.to_string().into());
    if !config.virtual_local_rank {
        return vec![own(place.local_rank)];
    }
    let variable = of_one_gpu(parent);
    let device = match parent(variable) {
        None => place.local_rank.to_string(),
        Some(visible) => match entries(&visible.to_string_lossy()).nth(place.local_rank) {
            Some(entry) => entry.to_owned(),
            // `Config::from_flags` checked that there are enough entries, or none: then no worker sees a GPU.
            None => return vec![own(0)],
        },
    };
    vec![own(0), (variable.into(), device.into())]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::flags::Source;
    use crate::config::host::Gpus;
    use crate::config::rendezvous::Backend;
    use crate::config::testing::{config, flags, refused, try_config, try_config_in};

    #[test]
    fn without_flags_has_torchruns_defaults() {
        let config = config(&[]);
        assert_eq!((config.nodes, config.local_world_size), (Nodes { min: 1, max: 1 }, 1));
        assert_eq!((config.rendezvous.backend, config.role.as_str()), (Backend::C10d, "default"));
        assert_eq!(config.rendezvous.endpoint.to_string(), "localhost:0");
        assert_eq!((config.max_restarts, config.monitor_interval), (0, Duration::from_millis(100)));
        assert_eq!((config.shutdown_timeout.as_secs(), config.exit_barrier_timeout.as_secs()), (30, 300));
        assert!(config.shutdown_timeout_is_default && (config.time_limit, config.save_before_limit) == (None, None));
        assert_eq!(config.signals.numbers, [15, 2, 1, 3]);
        assert_eq!((config.logs.base.clone(), config.rendezvous.local_addr.clone()), (LogBase::Temporary, None));
        assert!(!config.virtual_local_rank && config.rendezvous.standalone);
        let two = super::super::testing::config(&["--nnodes=2"]).rendezvous;
        assert_eq!((two.backend, two.run_id.as_str()), (Backend::Static { node_rank: 0 }, "none"));
        assert_eq!(two.endpoint.to_string(), "127.0.0.1:29500");
    }

    #[test]
    fn distinguishes_wrong_types_from_wrong_values_as_torchrun_does() {
        for flag in [
            "max-restarts",
            "node-rank",
            "master-port",
            "monitor-interval",
            "shutdown-timeout",
            "time-limit",
            "save-before-limit",
            "backend",
            "status",
            "prefix",
            "start-method",
        ] {
            let error = refused(&[&format!("--{flag}=x")]);
            assert!(error.is_usage() && error.to_string().starts_with(&format!("--{flag}=x: expected ")), "{error}");
        }
        for flag in
            ["max-restarts=-1", "monitor-interval=-1", "monitor-interval=nan", "nnodes=x", "nproc-per-node=x", "tee=9"]
        {
            assert!(!refused(&[&format!("--{flag}")]).is_usage(), "{flag}");
        }
    }

    #[test]
    fn reports_flags_without_effect_and_accepts_them() {
        let (_, notices) = try_config(&[
            "--start-method=fork",
            "--event-log-handler=console",
            "--logs-specs=x",
            "--numa-binding=node",
        ])
        .unwrap();
        let names = ["--start-method=fork", "--event-log-handler=console", "--logs-specs=x", "--numa-binding=node"];
        assert_eq!(notices.len(), 4, "{notices:?}");
        assert!(
            notices.iter().zip(names).all(|(notice, name)| notice.starts_with(&format!("{name} has no effect here: ")))
        );
        assert_eq!(try_config(&[]).unwrap().1, [""; 0]);
    }

    #[test]
    fn reports_values_that_are_not_used() {
        let (_, notices) =
            try_config(&["--rdzv-backend=c10d", "--master-addr=node1", "--tee=0:1,4:1", "--local-ranks-filter=1"])
                .unwrap();
        assert!(notices[0].starts_with("--master-addr=node1: only a static rendezvous uses it"), "{notices:?}");
        assert_eq!(notices[1], "--tee=0:1,4:1: there is no local rank 4, the last one is 0");
        assert_eq!(notices[2], "--local-ranks-filter=1: there is no local rank 1, the last one is 0");
    }

    #[test]
    fn reads_how_long_a_worker_may_sleep_in_the_kernel_as_torch_does() {
        let read = |text: &'static str| {
            let env = |name: &str| (name == KERNEL_SLEEP).then(|| OsString::from(text));
            let host = HostInfo { cpus: 1, gpus: Gpus::default(), env: &env, random: 0 };
            kernel_sleep_limit(&host)
        };
        assert_eq!(["2.5", " 3 "].map(|text| read(text).0.unwrap().as_millis()), [2500, 3000]);
        for none in ["", "0", "-1"] {
            assert_eq!(read(none), (None, None), "{none}");
        }
        for unread in ["soon", "inf", "1e300"] {
            let (limit, notice) = read(unread);
            assert!(limit.is_none() && notice.unwrap().contains(&format!("={unread} is not a number of seconds")));
        }
    }

    #[test]
    fn reports_a_template_with_macros_that_are_not_known_or_without_a_line_to_stand_in() {
        let notices = |template: &str, prefix: &str| {
            let template = format!("--log-line-prefix-template={template}");
            try_config(&[&template, &format!("--prefix={prefix}")]).unwrap().1
        };
        let unknown = notices("${host} ${rank}${hostname", "auto");
        let end = "stays as it is; the macros are ${role_name}, ${rank}, ${local_rank}, ${hostname}";
        let starts = ["${host}", "$"].map(|text| format!(": `{text}` {end}"));
        assert!(unknown.iter().zip(&starts).all(|(notice, end)| notice.ends_with(end)), "{unknown:?}");
        assert_eq!(unknown.len(), 2, "{unknown:?}");
        assert_eq!(notices("$role_name $${x} ${hostname}:", "auto"), [""; 0]);
        assert!(
            notices("${rank}", "never")[0].ends_with("has no effect: --prefix=never leaves all lines without a prefix")
        );
    }

    #[test]
    fn rejects_flags_that_contradict_each_other() {
        let error = refused(&["--module", "--no-python"]);
        assert_eq!(error.to_string(), "--module and --no-python contradict each other: give one of them");
        let host = HostInfo {
            cpus: 1,
            gpus: Gpus::default(),
            env: &|name| (name == "CUDA_VISIBLE_DEVICES").then(|| OsString::from("0,1")),
            random: 0,
        };
        let three = flags(&["--virtual-local-rank", "--nproc-per-node=3"]);
        let error = try_config_in(&three, &host).unwrap_err().to_string();
        assert!(error.contains("CUDA_VISIBLE_DEVICES=0,1 has 2 for 3 workers"), "{error}");
    }

    #[test]
    fn reads_where_logs_go() {
        let base = |flags: &[&str]| config(flags).logs.base;
        assert_eq!(base(&["--log-dir=/dev/null"]), LogBase::Nowhere);
        assert_eq!(base(&["--log-dir=logs"]), LogBase::Folder("logs".into()));
        assert!(config(&["--keep-logs"]).logs.keep);
    }

    fn parse(text: &str) -> Result<(Signals, Vec<String>), ConfigError> {
        with(text, "", "")
    }

    fn with(text: &str, snapshot: &str, forward: &str) -> Result<(Signals, Vec<String>), ConfigError> {
        let given = |flag, text: &str| Given { flag, text: text.into(), source: Source::CommandLine };
        let (snapshot, forward) = (given("snapshot-on", snapshot), given("forward-signals", forward));
        Signals::parse(&given("signals-to-handle", text), &snapshot, &forward)
    }

    #[test]
    fn ends_saves_or_passes_on_as_the_flags_say() {
        let (signals, _) = with("SIGTERM,SIGINT", "SIGTERM", "SIGWINCH").unwrap();
        let expected = [
            (2, Response::End),
            (15, Response::SaveAndEnd),
            (28, Response::PassOn { to_all: true }),
            (10, Response::PassOn { to_all: false }),
            (12, Response::SaveAndEnd),
        ];
        assert_eq!(expected.map(|(signal, _)| (signal, signals.response(signal))), expected);
        assert_eq!(signals.all(), [2, 10, 12, 15, 28]);
        let (signals, _) = with("SIGUSR1", "", "SIGUSR2").unwrap();
        assert_eq!([10, 12].map(|signal| signals.response(signal)), [Response::End, Response::PassOn { to_all: true }]);
    }

    #[test]
    fn refuses_a_signal_that_would_do_two_things() {
        let error = with("SIGTERM", "SIGUSR1", "").unwrap_err().to_string();
        assert!(error.starts_with("--snapshot-on=SIGUSR1: a snapshot is saved on signals that end the job"), "{error}");
        let error = with("SIGTERM,SIGUSR1", "", "SIGUSR1").unwrap_err().to_string();
        assert!(error.starts_with("--forward-signals=SIGUSR1: the job goes on after"), "{error}");
    }

    #[test]
    fn parses_names_and_ignores_unknown_ones_with_a_notice() {
        let (signals, notices) = parse("SIGTERM, SIGUSR1,SIGTERM").unwrap();
        assert_eq!((signals.numbers, notices.len()), (vec![15, 10], 0));
        let (signals, notices) = parse("SIGINT,term").unwrap();
        assert_eq!((signals.numbers, signals.text.as_str()), (vec![2], "SIGINT,term"));
        assert!(notices[0].starts_with("--signals-to-handle=SIGINT,term: `term` is not a signal"), "{notices:?}");
        assert!(parse("SIGCHLD").unwrap().0.numbers.is_empty(), "the death of a worker does not end the job");
    }

    #[test]
    fn rejects_signals_that_no_program_can_handle() {
        assert!(
            parse("SIGTERM,SIGKILL").unwrap_err().to_string().ends_with("SIGKILL cannot be handled by any program")
        );
        assert!(parse("SIGSTOP").is_err());
    }

    #[test]
    fn names_signals_as_python_does() {
        let names = [1, 2, 6, 7, 9, 11, 15, 19, 31, 34].map(signal_name);
        let expected = ["HUP", "INT", "ABRT", "BUS", "KILL", "SEGV", "TERM", "STOP", "SYS", "RTMIN"];
        assert_eq!(names.map(|name| name.unwrap().to_owned()), expected.map(|name| format!("SIG{name}")));
        assert_eq!([signal_name(0), signal_name(35), signal_name(-9)], [None, None, None]);
    }

    fn place(local_rank: usize) -> Placement {
        Placement {
            rank: 4 + local_rank,
            local_rank,
            world_size: 8,
            local_world_size: 2,
            group_rank: 2,
            group_world_size: 3,
            role_rank: 1,
            role_world_size: 5,
            restart_count: 1,
            master_addr: "node0".into(),
            master_port: 29400,
            error_file: Some("/logs/error.json".into()),
        }
    }

    fn env_of(flags: &[&str], local_rank: usize, parent: &[(&str, &str)]) -> BTreeMap<String, String> {
        let parent: BTreeMap<_, _> = parent.iter().copied().collect();
        let look = |name: &str| parent.get(name).map(OsString::from);
        let env = worker_env(&config(flags), &place(local_rank), &look);
        let count = env.len();
        let map: BTreeMap<_, _> =
            env.into_iter().map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap())).collect();
        assert_eq!(map.len(), count, "no name occurs twice");
        map
    }

    #[test]
    fn sets_exactly_torchruns_variables() {
        let env = env_of(&["--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job7", "--role=trainer"], 1, &[]);
        let expected = [
            ("GROUP_RANK", "2"),
            ("GROUP_WORLD_SIZE", "3"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29400"),
            ("OMP_NUM_THREADS", "1"),
            ("RANK", "5"),
            ("ROLE_NAME", "trainer"),
            ("ROLE_RANK", "1"),
            ("ROLE_WORLD_SIZE", "5"),
            ("TORCHELASTIC_ERROR_FILE", "/logs/error.json"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_RUN_ID", "job7"),
            ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("WORLD_SIZE", "8"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(env, BTreeMap::from(expected));
    }

    #[test]
    fn names_the_signals_that_ask_for_a_snapshot_and_itself() {
        let launcher = std::process::id().to_string();
        let env = env_of(&["--snapshot-on=SIGTERM,SIGINT"], 0, &[]);
        assert_eq!((env[SNAPSHOT_ON].as_str(), &env[LAUNCHER]), ("SIGTERM,SIGINT", &launcher));
        let env = env_of(&[], 0, &[(SNAPSHOT_ON, "SIGTERM"), (LAUNCHER, "7")]);
        assert_eq!((env[SNAPSHOT_ON].as_str(), &env[LAUNCHER]), ("", &launcher), "those of an outer launcher");
    }

    #[test]
    fn limits_threads_only_for_several_workers_without_a_limit() {
        assert!(!env_of(&["--nproc-per-node=1"], 0, &[]).contains_key("OMP_NUM_THREADS"));
        let env = env_of(&["--nproc-per-node=2"], 0, &[("OMP_NUM_THREADS", "7")]);
        assert!(!env.contains_key("OMP_NUM_THREADS"), "the parent's own is inherited");
        let two = config(&["--nproc-per-node=2"]);
        assert!(threads_notice(&two, &|_| None).unwrap().contains("OMP_NUM_THREADS=1 for each of the 2 workers"));
        assert_eq!(threads_notice(&two, &|_| Some("4".into())), None);
        assert_eq!(threads_notice(&config(&[]), &|_| None), None);
    }

    #[test]
    fn names_the_backend_only_if_it_is_given() {
        assert_eq!(env_of(&["--backend=auto"], 0, &[(BACKEND, "gloo")])[BACKEND], "auto");
        assert!(!env_of(&[], 0, &[(BACKEND, "gloo")]).contains_key(BACKEND), "the parent's own is inherited");
    }

    #[test]
    fn keeps_the_parents_choice_for_nccl() {
        let env = env_of(&[], 0, &[("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")]);
        assert_eq!(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
    }

    #[test]
    fn shows_each_worker_its_own_gpu_as_device_0_if_requested() {
        let flags = ["--virtual-local-rank", "--nproc-per-node=2"];
        let env = env_of(&flags, 1, &[("CUDA_VISIBLE_DEVICES", "3, GPU-7")]);
        assert_eq!((env["LOCAL_RANK"].as_str(), env["CUDA_VISIBLE_DEVICES"].as_str()), ("0", "GPU-7"));
        let env = env_of(&flags, 1, &[]);
        assert_eq!((env["LOCAL_RANK"].as_str(), env["CUDA_VISIBLE_DEVICES"].as_str()), ("0", "1"));
        assert!(!env_of(&[], 1, &[("CUDA_VISIBLE_DEVICES", "3")]).contains_key("CUDA_VISIBLE_DEVICES"));
        let env = env_of(&flags, 1, &[("HIP_VISIBLE_DEVICES", "3,5")]);
        assert_eq!(env["HIP_VISIBLE_DEVICES"], "5", "HIP would not read the other one");
        for none in ["", "-1"] {
            let env = env_of(&flags, 1, &[("CUDA_VISIBLE_DEVICES", none)]);
            assert!(env["LOCAL_RANK"] == "0" && !env.contains_key("CUDA_VISIBLE_DEVICES"), "the agent's own stays");
        }
    }
}

//! The job's configuration, from torchrun's flags, and the environment of each worker.
//!
//! The command line fills in [`Flags`], plain texts with their source; [`Config::from_flags`] checks and interprets
//! them. Everything else follows from the configuration: [`Program::args`] and [`worker_env`] define how a worker is
//! started, [`Logs::routes`] where its output goes, [`LogDir`] in which folder. This module neither starts nor waits
//! for anything.

mod flags;
mod host;
mod job;
mod logs;
mod program;
mod rendezvous;

pub use flags::{ConfigError, Flags, Given, Source, path, switch, variable};
pub use host::{GpuVendor, Gpus, HostInfo, Nodes};
pub use job::{
    Config, KERNEL_SLEEP, Placement, Response, Signals, StatusWhen, signal_name, threads_notice, worker_env,
};
pub use logs::{Attempt, LineOrigin, LogBase, LogDir, LogDirError, Logs, PrefixWhen, Route, Routes, Std, Streams};
pub use program::{Env, Program, ProgramError};
pub use rendezvous::{Backend, DEFAULT_PORT, Endpoint, Rendezvous};

/// Configurations for tests, from flags as a user would write them.
#[cfg(test)]
pub(crate) mod testing {
    use super::flags::{ConfigError, Flags, Given, Source};
    use super::host::{Gpus, HostInfo};
    use super::job::Config;

    /// The configuration for these flags; the program is `sh`.
    pub(crate) fn config(given: &[&str]) -> Config {
        try_config(given).unwrap().0
    }

    pub(super) fn refused(given: &[&str]) -> ConfigError {
        try_config(given).unwrap_err()
    }

    pub(super) fn try_config(given: &[&str]) -> Result<(Config, Vec<String>), ConfigError> {
        let env = |name: &str| (name == "PATH").then(|| "/usr/bin:/bin".into());
        let gpus = Gpus::default();
        let random = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        Config::from_flags(&flags(given), &HostInfo { cpus: 4, gpus, env: &env, random })
    }

    /// The same on a host of the test's choice, which need not have the program.
    pub(super) fn try_config_in(flags: &Flags, host: &HostInfo<'_>) -> Result<(Config, Vec<String>), ConfigError> {
        let flags = Flags { program: "/bin/sh".into(), ..flags.clone() };
        Config::from_flags(&flags, host)
    }

    /// Each flag is `--name` or `--name=value`.
    pub(crate) fn flags(given: &[&str]) -> Flags {
        let value = |flag: &str| {
            let value =
                given.iter().rev().find_map(|given| given.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('='));
            value.map(str::to_owned)
        };
        let pick = |flag: &'static str, default: &str| match value(flag) {
            Some(text) => Given { flag, text, source: Source::CommandLine },
            None => Given { flag, text: default.to_owned(), source: Source::Default },
        };
        let on = |flag: &str| given.contains(&format!("--{flag}").as_str());
        Flags {
            nnodes: pick("nnodes", "1:1"),
            nproc_per_node: pick("nproc-per-node", "1"),
            rdzv_backend: pick("rdzv-backend", "static"),
            rdzv_endpoint: pick("rdzv-endpoint", ""),
            rdzv_id: pick("rdzv-id", "none"),
            rdzv_conf: pick("rdzv-conf", ""),
            standalone: on("standalone"),
            max_restarts: pick("max-restarts", "0"),
            monitor_interval: pick("monitor-interval", "0.1"),
            start_method: pick("start-method", "spawn"),
            event_log_handler: pick("event-log-handler", "null"),
            role: pick("role", "default"),
            module: on("module"),
            no_python: on("no-python"),
            run_path: on("run-path"),
            log_dir: value("log-dir").map(Into::into),
            redirects: pick("redirects", "0"),
            tee: pick("tee", "0"),
            log_line_prefix_template: pick("log-line-prefix-template", ""),
            local_ranks_filter: pick("local-ranks-filter", ""),
            duplicate_stdout_filters: pick("duplicate-stdout-filters", ""),
            duplicate_stderr_filters: pick("duplicate-stderr-filters", ""),
            node_rank: pick("node-rank", "0"),
            master_addr: pick("master-addr", "127.0.0.1"),
            master_port: pick("master-port", "29500"),
            local_addr: pick("local-addr", ""),
            logs_specs: value("logs-specs"),
            numa_binding: value("numa-binding"),
            signals_to_handle: pick("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"),
            shutdown_timeout: pick("shutdown-timeout", "30"),
            virtual_local_rank: on("virtual-local-rank"),
            use_env: on("use-env"),
            pass_local_rank: on("pass-local-rank"),
            snapshot_on: pick("snapshot-on", ""),
            forward_signals: pick("forward-signals", ""),
            backend: pick("backend", ""),
            time_limit: pick("time-limit", ""),
            save_before_limit: pick("save-before-limit", ""),
            exit_barrier_timeout: pick("exit-barrier-timeout", "300"),
            keep_logs: on("keep-logs"),
            record: value("record").map(Into::into),
            stacks: pick("stacks", "auto"),
            status: pick("status", "auto"),
            prefix: pick("prefix", "auto"),
            program: "sh".into(),
            args: vec![],
        }
    }
}

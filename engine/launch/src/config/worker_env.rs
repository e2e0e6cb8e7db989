//! The environment variables of a worker: torchrun's, in addition to the agent's own.
//!
//! Not here: `LOCKSTEP_EVENTS` and `GLOO_SOCKET_IFNAME` (`agent/workers.rs`), and `LOCKSTEP_AGENT` (`lockstep_process`'s `workers.rs`).
//!
//! The source is `LocalElasticAgent._start_workers` (torch/distributed/elastic/agent/server/local_elastic_agent.py).

use std::ffi::OsString;
use std::path::PathBuf;

use lockstep_contract::BACKEND;
use lockstep_contract::snapshot_request::{LAUNCHER, SNAPSHOT_ON};

use super::host::entries;
use super::job::Config;
use super::program::Env;

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
    let device = match parent("CUDA_VISIBLE_DEVICES") {
        None => place.local_rank.to_string(),
        Some(visible) => match entries(&visible.to_string_lossy()).nth(place.local_rank) {
            Some(entry) => entry.to_owned(),
            // `Config::from_flags` checked that there are enough entries, or none: then no worker sees a GPU.
            None => return vec![own(0)],
        },
    };
    vec![own(0), ("CUDA_VISIBLE_DEVICES".into(), device.into())]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::testing::config;

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
        for none in ["", "-1"] {
            let env = env_of(&flags, 1, &[("CUDA_VISIBLE_DEVICES", none)]);
            assert!(env["LOCAL_RANK"] == "0" && !env.contains_key("CUDA_VISIBLE_DEVICES"), "the agent's own stays");
        }
    }
}

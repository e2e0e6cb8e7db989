//! Runs the lab as a user does: ranks as threads of one process, or processes that a launcher has started.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses its part

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
use c10d::{Store, TcpStoreOptions};
use serde_json::Value;
use tempfile::TempDir;

/// No run takes nearly this long.
const LIMIT: Duration = Duration::from_secs(100);

/// What a launcher, or the developer's own shell, may have set.
const FOREIGN: [&str; 9] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCH_DISTRIBUTED_DEBUG",
];

pub fn lab() -> &'static Path {
    cargo_bin!("lab-05-collectives")
}

pub fn command(program: impl AsRef<std::ffi::OsStr>, args: &[&str], folder: &TempDir) -> Command {
    let mut command = Command::new(program);
    for name in FOREIGN {
        command.env_remove(name);
    }
    command.env("OMP_NUM_THREADS", "1").env("GLOO_SOCKET_IFNAME", "lo").current_dir(folder.path()).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn finish(command: Command) -> Output {
    assert_cmd::Command::from_std(command).timeout(LIMIT).output().unwrap()
}

/// One process whose ranks are threads.
pub fn in_threads(args: &[&str], folder: &TempDir) -> Output {
    finish(command(lab(), args, folder))
}

/// `world` processes, started as a launcher does, which hosts their store.
pub fn in_processes(world: usize, args: &[&str], folder: &TempDir) -> Vec<Output> {
    let store = Store::tcp("127.0.0.1", 0, &TcpStoreOptions { host_server: true, ..Default::default() }).unwrap();
    let port = store.port().unwrap().to_string();
    let start = |rank: usize| {
        let mut command = command(lab(), args, folder);
        let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world)];
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port).env("TORCHELASTIC_USE_AGENT_STORE", "True");
        std::thread::spawn(|| finish(command))
    };
    let ranks: Vec<_> = (0..world).map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What each rank wrote with `--results results`.
pub fn results(world: usize, folder: &TempDir) -> Vec<Value> {
    let of = |rank| fs::read(folder.path().join(format!("results/rank-{rank}.json"))).unwrap();
    (0..world).map(|rank| serde_json::from_slice(&of(rank)).unwrap()).collect()
}

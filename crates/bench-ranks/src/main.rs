//! The ranks of `lockstep bench collectives`: `lockstep run` starts this program, and the bench asks rank 0 for one turn after another.
//!
//! The bench and each rank share a socket. A rank reports itself there: its rank, the restarts before it, and its process id. Then rank
//! 0 reads orders, a line of JSON each, passes them on to all ranks, and answers with a line of JSON. When the bench closes the socket,
//! all ranks end. `harness/src/bench/twins/collectives.py` does the same in Python.

mod collectives;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use c10d::{DebugLevel, GroupOptions, ProcessGroup, Rank};
use clap::Parser;
use lockstep::{LaunchEnv, exit, init_process_group};
use tch::{Device, Tensor};

use collectives::Order;

/// A rank of a bench, started by `lockstep run`
#[derive(Parser)]
struct Args {
    /// The bench's socket
    socket: PathBuf,
}

fn main() -> ExitCode {
    exit::main(|| work(&LaunchEnv::from_env()?, &Args::parse().socket))
}

fn work(env: &LaunchEnv, socket: &Path) -> Result<()> {
    tch::set_num_threads(1);
    let options = GroupOptions { compare_calls: Some(false), debug: Some(DebugLevel::Off), ..GroupOptions::default() };
    let group = init_process_group(env, Device::Cpu, &options)?;
    let mut bench = Bench::connect(env, socket)?;
    loop {
        let line = pass_on(&group, if env.rank.is_zero() { bench.order()? } else { String::new() })?;
        if line.is_empty() {
            return Ok(());
        }
        let order: Order = serde_json::from_str(&line).with_context(|| format!("cannot read the order {line:?}"))?;
        let answer = collectives::run(&group, &order)?;
        if env.rank.is_zero() {
            bench.answer(&serde_json::to_string(&answer)?)?;
        }
    }
}

/// Sends rank 0's text to all ranks: its length, then its bytes.
fn pass_on(group: &ProcessGroup, text: String) -> Result<String> {
    let mut length = Tensor::from(text.len() as i64);
    group.broadcast(&mut length, Rank::ZERO)?;
    let mut bytes = text.into_bytes();
    bytes.resize(length.int64_value(&[]) as usize, 0);
    if bytes.is_empty() {
        return Ok(String::new());
    }
    let mut tensor = Tensor::from_slice(&bytes);
    group.broadcast(&mut tensor, Rank::ZERO)?;
    Ok(String::from_utf8(Vec::try_from(&tensor)?)?)
}

/// The connection to the bench.
struct Bench(BufReader<UnixStream>);

impl Bench {
    fn connect(env: &LaunchEnv, socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        let mut bench = Bench(BufReader::new(stream));
        bench.answer(&format!("{} {} {}", env.rank, env.restart_count, std::process::id()))?;
        Ok(bench)
    }

    /// The next order; empty if the bench is gone.
    fn order(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn answer(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.0.get_mut(), "{line}")?)
    }
}

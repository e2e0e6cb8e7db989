//! The ranks of the benches that need libtorch: `lockstep run` starts this program, and the bench asks rank 0 for one turn after
//! another.
//!
//! The bench and each rank share a socket. A rank reports itself there: its rank, the restarts before it, and its process id. Then rank
//! 0 reads orders, a line of JSON each, passes them on to all ranks, and answers with a line of JSON. When the bench closes the socket,
//! all ranks end. `lockstep_rank_messages::bench` defines the messages. `harness/bench/src/python` has the same program in Python.

mod collectives;
#[path = "../../lockstep/benches/support/virtual_ranks.rs"]
mod virtual_ranks;
// The models that criterion's benches measure.
#[path = "../../lockstep/benches/support/formula.rs"]
mod formula;
#[path = "../../lockstep/benches/support/mlp.rs"]
mod mlp;
mod parallel;
#[path = "../../vision/benches/support/photographs.rs"]
mod photographs;
mod pictures;
#[path = "../../lockstep/benches/support/resnet.rs"]
mod resnet;
mod snapshots;
mod steps;
mod virtual_steps;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use c10d::{Backend, BackendConfig, DebugLevel, GroupOptions};
use clap::Parser;
use lockstep::device::DeviceChoice;
use lockstep::{LaunchEnv, broadcast_object, exit, init_process_group_on};
use lockstep_rank_messages::bench::{Hello, Order};
use tch::Device;
use virtual_steps::Resumed;

/// A rank of a bench, started by `lockstep run`
#[derive(Parser)]
struct Args {
    /// The bench's socket: a path, or tcp:HOST:PORT:WORD, where WORD is to be sent first
    socket: String,
    /// What carries the collectives of tensors in host memory
    #[arg(long, default_value = "gloo", value_parser = backend)]
    backend: Backend,
    /// Rank r is on host r modulo this number, as far as sharing memory is concerned; without it, all are on this one
    #[arg(long)]
    hosts: Option<NonZeroUsize>,
    /// Where tensors are; NCCL carries those on GPUs
    #[arg(long, value_enum, default_value = "cpu")]
    device: DeviceChoice,
}

fn main() -> ExitCode {
    exit::main(|| work(&LaunchEnv::from_env()?, &Args::parse()))
}

fn backend(name: &str) -> Result<Backend, String> {
    Backend::of_host_memory(name).ok_or_else(|| format!("there is no backend {name:?}"))
}

fn work(env: &LaunchEnv, args: &Args) -> Result<()> {
    tch::set_num_threads(1);
    let options = GroupOptions {
        compare_calls: Some(false),
        debug: Some(DebugLevel::Off),
        // The other ranks wait for rank 0 while the bench measures something else. The bench itself watches the time.
        timeout: Duration::from_secs(24 * 60 * 60),
        simulated_host: args.hosts.map(|hosts| (env.rank.get() % hosts).to_string()),
        ..GroupOptions::default()
    };
    let backends = match args.device.pick(env.local_rank, env.local_world_size)? {
        Device::Cuda(device) => BackendConfig::pair(args.backend, Backend::Nccl { device })?,
        _ => args.backend.into(),
    };
    let group = Rc::new(init_process_group_on(backends, env, &options)?);
    let mut bench = Bench::connect(env, &args.socket)?;
    let (mut trainers, mut loaders) = (steps::Trainers::default(), pictures::Loaders::default());
    let (mut saver, mut resumed) = (None, None);
    loop {
        let order = env.rank.is_zero().then(|| bench.order()).transpose()?;
        let line = broadcast_object(&group, order.as_ref())?;
        if line.is_empty() {
            return Ok(());
        }
        let order: Order = serde_json::from_str(&line).with_context(|| format!("cannot read the order {line:?}"))?;
        let answer = match order {
            Order::Collective(order) => serde_json::to_string(&collectives::run(&group, &order)?)?,
            Order::Draw(order) => serde_json::to_string(&pictures::draw(&order)?)?,
            Order::Elastic(order) => serde_json::to_string(&virtual_steps::elastic(env, &group, &order)?)?,
            Order::Parallel(order) => serde_json::to_string(&parallel::run(&group, &order)?)?,
            Order::Pictures(order) => serde_json::to_string(&loaders.run(&order)?)?,
            Order::Resumed(order) => serde_json::to_string(&Resumed::run(&mut resumed, env, &group, &order)?)?,
            Order::Snapshot(order) => serde_json::to_string(&snapshots::run(&mut saver, env, &group, &order)?)?,
            Order::Step(order) => serde_json::to_string(&trainers.run(&group, &order)?)?,
            Order::Trace(order) => serde_json::to_string(&steps::trace(&group, &order)?)?,
        };
        if env.rank.is_zero() {
            bench.answer(&answer)?;
        }
    }
}

/// The connection to the bench.
struct Bench(BufReader<Box<dyn Stream>>);

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl Bench {
    fn connect(env: &LaunchEnv, socket: &str) -> Result<Self> {
        let failed = || format!("cannot connect to the bench at {socket}");
        let (stream, word): (Box<dyn Stream>, _) = match socket.strip_prefix("tcp:").and_then(|at| at.rsplit_once(':'))
        {
            Some((address, word)) => {
                let stream = TcpStream::connect(address).with_context(failed)?;
                stream.set_nodelay(true)?;
                (Box::new(stream), Some(word))
            }
            None => (Box::new(UnixStream::connect(socket).with_context(failed)?), None),
        };
        let mut bench = Bench(BufReader::new(stream));
        word.map_or(Ok(()), |word| bench.answer(word))?;
        let (rank, restart) = (env.rank.get(), env.restart_count);
        bench.answer(&Hello { rank, restart, pid: std::process::id() as i32 }.to_string())?;
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

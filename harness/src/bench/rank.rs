//! The hidden subcommand that benches of the launcher start as ranks. It does nothing but to be there: it connects to its job's
//! store, as each rank of a training job does, reports itself to the bench, and ends when the bench says so or is gone.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_contract::bench::Hello;
use lockstep_contract::foreign;
use tcpstore::Client;

use crate::exit::Code;

/// The subcommand's name.
pub(crate) const RANK: &str = "bench-rank";
/// A thousand processes on two cores take a while to start.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the subcommand was called with
#[derive(Args)]
pub(crate) struct Rank {
    /// The bench's socket
    socket: PathBuf,
}

impl Rank {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let hello = Hello {
            rank: variable("RANK")?,
            restart: variable("TORCHELASTIC_RESTART_COUNT")?,
            pid: std::process::id() as i32,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (host, port) = (std::env::var("MASTER_ADDR").context("MASTER_ADDR")?, variable("MASTER_PORT")?);
        let _client = runtime.block_on(Client::connect(&host, port, PATIENCE))?;
        let socket = &self.socket;
        let mut bench = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to the bench at {}", foreign::path(socket)))?;
        writeln!(bench, "{hello}")?;
        // The bench sends a byte, or is gone; either is the end.
        let _ = bench.read(&mut [0]);
        Ok(Code::Success)
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> anyhow::Result<T> {
    let value = std::env::var(name).with_context(|| format!("{name} is not set: a launcher starts this program"))?;
    value.parse().ok().with_context(|| format!("{name} is {value:?}, not a number"))
}

//! The hidden subcommand that benches of the launcher start as ranks. It does nothing but to be there: it connects to its job's
//! store, as each rank of a training job does, reports itself to the bench, and ends when the bench says so or is gone.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
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

/// A rank's report of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rank: usize,
    /// Restarts before it.
    pub(super) restart: u32,
    pub(super) pid: i32,
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
            .with_context(|| format!("cannot connect to the bench at {}", socket.display()))?;
        bench.write_all(hello.line().as_bytes())?;
        // The bench sends a byte, or is gone; either is the end.
        let _ = bench.read(&mut [0]);
        Ok(Code::Success)
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> anyhow::Result<T> {
    let value = std::env::var(name).with_context(|| format!("{name} is not set: a launcher starts this program"))?;
    value.parse().ok().with_context(|| format!("{name} is {value:?}, not a number"))
}

impl Hello {
    fn line(self) -> String {
        format!("{} {} {}\n", self.rank, self.restart, self.pid)
    }

    /// Parses a line without its end.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let hello = Hello {
            rank: words.next()?.parse().ok()?,
            restart: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_and_a_part_of_it_does_not() {
        let hello = Hello { rank: 12, restart: 3, pid: 4711 };
        let line = hello.line();
        assert_eq!(Hello::parse(line.trim_end()), Some(hello));
        for bad in ["", "12", "12 3", "12 3 ", "12 3 x", "12 3 4 5", "-1 3 4"] {
            assert_eq!(Hello::parse(bad), None, "{bad:?}");
        }
    }
}

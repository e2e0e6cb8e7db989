//! Stores to measure: each is a server process of its own, so that it shares no thread with the clients. Ours is a hidden subcommand.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use lockstep_process::{Process, dying_with_parent};

use super::launcher::this_program;
use super::peer::Python;
use crate::exit::Code;

/// The subcommand's name.
pub(crate) const STORE: &str = "bench-store";
/// PyTorch's server: prints its port, and ends with its standard input.
const PYTHON_SERVER: &str = "
import sys
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
";
/// libtorch asks for the host name of each client that connects, on the thread that serves all clients. Where no name server answers,
/// the store is blocked meanwhile: for a second, not for ten (resolv.conf(5)).
const QUICK_NAMES: &str = "timeout:1 attempts:1";
/// How long a server may take to end when its standard input is closed.
const GRACE: Duration = Duration::from_secs(5);

/// Serve our store until standard input is closed
#[derive(Args)]
pub(crate) struct Serve {}

impl Serve {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        let server = tcpstore::Server::start(listener, tcpstore::ServerOptions::default())?;
        writeln!(stdout(), "{}", server.local_addr().port())?;
        stdin().read_to_end(&mut Vec::new())?;
        Ok(Code::Success)
    }
}

/// A server process. Dropping it ends it.
pub(super) struct Server {
    /// Its name in results.
    pub(super) name: &'static str,
    /// On loopback.
    pub(super) port: u16,
    process: Process,
    /// Closed to end it.
    input: Option<ChildStdin>,
}

impl Server {
    /// The store of `lockstep run`.
    ///
    /// # Errors
    /// It did not start.
    pub(super) fn own() -> anyhow::Result<Self> {
        let mut command = dying_with_parent(&this_program());
        command.arg(STORE);
        Self::start("lockstep", command)
    }

    /// libtorch's.
    ///
    /// # Errors
    /// It did not start.
    pub(super) fn libtorch(python: &Python) -> anyhow::Result<Self> {
        let mut command = dying_with_parent(python.program.as_os_str());
        command.args([OsStr::new("-c"), OsStr::new(PYTHON_SERVER)]).env("RES_OPTIONS", QUICK_NAMES);
        Self::start("libtorch", command)
    }

    fn start(name: &'static str, mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = Process::start(&mut command).with_context(|| format!("cannot start the store of {name}"))?;
        let (input, output) = (process.child.stdin.take(), process.child.stdout.take());
        let mut server = Server { name, port: 0, process, input };
        let mut line = String::new();
        // It prints a line or ends; both end the wait.
        BufReader::new(output.context("it has no output")?).read_line(&mut line)?;
        match line.trim().parse() {
            Ok(port) => server.port = port,
            Err(_) => bail!("the store of {name} ended before it served: its reason is above"),
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        // One that does not end by itself is killed; an error would mean that it is gone.
        let _ = self.process.wait_or_kill(Instant::now() + GRACE);
    }
}

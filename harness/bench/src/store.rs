//! `lockstep measure store`: operations a second of the store through which ranks meet, and how long they take, with one client and with
//! many.
//!
//! Each client sends its next request when it has the reply to the last. All clients are in this process, on one thread, and are the
//! same for every server. So a rate is that of server and clients together, and a ratio understates how much the servers differ.
//!
//! Stores to measure: each is a server process of its own, so that it shares no thread with the clients. Ours is a hidden subcommand.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use lockstep_grading::Python;
use lockstep_process::{Process, Signals, dying_with_parent, raise_open_files, this_program};
use tcpstore::{Client, ClientOptions};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::exit::{Code, Interrupted, Refused};
use crate::report::count;
use crate::results::Unit::{PerSecond, Seconds};
use crate::rounds::{BenchCase, CaseSide, CommonOptions, Plan, Quantity};

/// Bytes of a value: about an address, as ranks exchange them.
const VALUE: [u8; 64] = [7; 64];
/// A key that exists, for `get` and `wait`.
const KEY: &str = "bench/there";
/// Open files of this process besides the clients' connections.
const OTHER_FILES: usize = 64;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Each client writes its own key.
    Set,
    /// All read one key.
    Get,
    /// All increase one counter.
    Add,
    /// All wait for a key that exists.
    Wait,
}

const OPERATIONS: [Operation; 4] = [Operation::Set, Operation::Get, Operation::Add, Operation::Wait];

/// Measure the store: operations a second, and how long they take, with one client and with many
#[derive(Args)]
pub(crate) struct StoreOptions {
    /// Clients at once: a list
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', default_values_t = [1, 64, 1000], value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients: Vec<u16>,
    /// Operations of each kind in a turn, shared by the clients
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    operations: u32,
    #[command(flatten)]
    common: CommonOptions,
}

impl StoreOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let most = self.clients.iter().copied().max().map_or(0, usize::from);
        let files = (2 * self.clients.iter().copied().map(usize::from).sum::<usize>() + OTHER_FILES) as u64;
        // The servers inherit the limit.
        raise_open_files(most, files).map_err(|few| {
            let hard = few.hard;
            Refused(format!(
                "these clients need {files} open files, but the hard limit is {hard}: raise it (`ulimit -Hn`)"
            ))
        })?;
        let (operations, patience) = (self.operations as usize, self.common.patience());
        self.common.exec("store", |signals| {
            let (servers, not_measured) = servers(&self.common)?;
            let case = |clients: &u16| {
                let clients = usize::from(*clients);
                let load = Load { clients, each: operations.div_ceil(clients), patience };
                BenchCase {
                    name: count(clients, "client"),
                    quantities: quantities(),
                    labels: vec![],
                    sides: servers.iter().map(|server| side(Rc::clone(server), load, signals)).collect(),
                }
            };
            Ok(Plan { cases: self.clients.iter().map(case).collect(), not_measured })
        })
    }
}

/// Two for each operation: its rate, and the time that 99 of 100 do not exceed.
fn quantities() -> Vec<Quantity> {
    let pair = |operation: &Operation| {
        let name = format!("{operation:?}").to_lowercase();
        [Quantity::new(&name, PerSecond), Quantity::new(&format!("{name} p99"), Seconds)]
    };
    OPERATIONS.iter().flat_map(pair).collect()
}

fn servers(common: &CommonOptions) -> anyhow::Result<(Vec<Rc<Server>>, Vec<String>)> {
    common.sides("libtorch's store", vec![Rc::new(Server::own()?)], |python| {
        Ok(vec![Rc::new(Server::libtorch(&python)?)])
    })
}

/// The work of a turn.
#[derive(Clone, Copy, Debug)]
struct Load {
    clients: usize,
    /// Operations of each client.
    each: usize,
    patience: Duration,
}

/// The clients of a server, which stay connected through all rounds.
struct Clients {
    runtime: Runtime,
    clients: Vec<Arc<Client>>,
}

fn side<'a>(server: Rc<Server>, load: Load, signals: &'a Signals) -> CaseSide<'a> {
    let name = server.name;
    let mut connected: Option<Clients> = None;
    let turn = move || {
        if let Some(signal) = signals.arrived() {
            return Err(Interrupted { signal }.into());
        }
        let clients = match &mut connected {
            Some(clients) => clients,
            none => none.insert(Clients::connect(server.port, load)?),
        };
        let turns = OPERATIONS.iter().map(|operation| clients.run(*operation, load));
        Ok(turns.collect::<anyhow::Result<Vec<_>>>()?.concat())
    };
    CaseSide { name, turn: Box::new(turn) }
}

impl Clients {
    fn connect(port: u16, load: Load) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // libtorch's server may stand still while clients connect, see its start.
        let options = ClientOptions { handshake_timeout: load.patience, ..ClientOptions::default() };
        let connect = async {
            let mut clients = Vec::with_capacity(load.clients);
            for number in 0..load.clients {
                let client = Client::connect_with("127.0.0.1", port, load.patience, options.clone()).await;
                clients.push(Arc::new(client.with_context(|| format!("client {number} cannot connect"))?));
            }
            clients[0].set(KEY, &VALUE).await?;
            anyhow::Ok(clients)
        };
        let clients = runtime.block_on(connect)?;
        Ok(Clients { runtime, clients })
    }

    /// Operations a second, and the 99th percentile of their times in seconds.
    fn run(&self, operation: Operation, load: Load) -> anyhow::Result<Vec<f64>> {
        let begun = Instant::now();
        let all = async {
            let mut set = JoinSet::new();
            for (number, client) in self.clients.iter().enumerate() {
                set.spawn(times(Arc::clone(client), operation, number, load));
            }
            let mut all = Vec::with_capacity(load.clients * load.each);
            while let Some(times) = set.join_next().await {
                all.extend(times.context("a client panicked")??);
            }
            anyhow::Ok(all)
        };
        let mut all = self.runtime.block_on(all).with_context(|| format!("{operation:?} failed"))?;
        let rate = all.len() as f64 / begun.elapsed().as_secs_f64();
        Ok(vec![rate, percentile_99(&mut all)])
    }
}

/// The seconds of each operation of one client.
async fn times(client: Arc<Client>, operation: Operation, number: usize, load: Load) -> anyhow::Result<Vec<f64>> {
    let own = format!("bench/{number}");
    let mut times = Vec::with_capacity(load.each);
    for _ in 0..load.each {
        let begun = Instant::now();
        match operation {
            Operation::Set => client.set(&own, &VALUE).await?,
            Operation::Get => drop(client.get(KEY, load.patience).await?),
            Operation::Add => drop(client.add("bench/counter", 1).await?),
            Operation::Wait => client.wait(&[KEY], load.patience).await?,
        }
        times.push(begun.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// The least time that at least 99 of 100 do not exceed.
fn percentile_99(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    let place = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(place).copied().unwrap_or(0.0)
}

/// The subcommand's name.
pub const STORE: &str = "bench-store";
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
pub struct Serve {}

impl Serve {
    pub fn exec(self) -> anyhow::Result<Code> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        let server = tcpstore::Server::start(listener, tcpstore::ServerOptions::default())?;
        writeln!(stdout(), "{}", server.local_addr().port())?;
        stdin().read_to_end(&mut Vec::new())?;
        Ok(Code::Success)
    }
}

/// A server process. Dropping it ends it.
pub(crate) struct Server {
    /// Its name in results.
    pub(crate) name: &'static str,
    /// On loopback.
    pub(crate) port: u16,
    process: Process,
    /// Closed to end it.
    input: Option<ChildStdin>,
}

impl Server {
    /// The store of `lockstep run`.
    pub(crate) fn own() -> anyhow::Result<Self> {
        let mut command = dying_with_parent(&this_program());
        command.arg(STORE);
        Self::start("lockstep", command)
    }

    /// libtorch's.
    pub(crate) fn libtorch(python: &Python) -> anyhow::Result<Self> {
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
        // The wait ends when it prints a line or ends.
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
        // Kill it if it does not exit; an error means that it already has.
        let _ = self.process.wait_or_kill(Instant::now() + GRACE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_time_that_99_of_100_do_not_exceed() {
        let times = |count: u32| (1..=count).rev().map(f64::from).collect::<Vec<_>>();
        assert_eq!(
            [1, 10, 100, 200, 1000].map(|count| percentile_99(&mut times(count))),
            [1.0, 10.0, 99.0, 198.0, 990.0]
        );
        assert_eq!(percentile_99(&mut []), 0.0);
    }

    /// On a server in this process: each operation had its effect, as often as it should.
    #[test]
    fn clients_do_the_operations_that_are_counted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = tcpstore::Server::start(listener, tcpstore::ServerOptions::default()).unwrap();
        let load = Load { clients: 3, each: 5, patience: Duration::from_secs(60) };
        let clients = Clients::connect(server.local_addr().port(), load).unwrap();
        for operation in OPERATIONS {
            let values = clients.run(operation, load).unwrap();
            assert!(values.len() == 2 && values.iter().all(|value| *value > 0.0), "{operation:?} {values:?}");
        }
        assert_eq!(server.get("bench/counter").unwrap(), b"15");
        assert_eq!(server.get("bench/2").unwrap(), VALUE);
    }
}

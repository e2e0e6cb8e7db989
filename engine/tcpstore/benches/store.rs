//! Round trips of one client, on our server and on PyTorch's own server if PyTorch is installed (`LOCKSTEP_PYTHON`,
//! else `python3`). Run with `cargo bench -p tcpstore`. Compare the ratio of two lines of the same run, not the times.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use lockstep_process::KillOnDrop;
use tcpstore::{Client, Server, ServerOptions};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);
const PYTHON_SERVER: &str = "
import sys
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, None, True)
print(store.port, flush=True)
sys.stdin.read()
";

/// Starts PyTorch's server, which ends with the bench, and returns its port, if PyTorch is installed.
fn python_server() -> Option<(KillOnDrop, u16)> {
    let python = std::env::var("LOCKSTEP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(&python);
    command.args(["-c", PYTHON_SERVER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = KillOnDrop(command.spawn().ok()?);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take()?).read_line(&mut line).ok()?;
    Some((child, line.trim().parse().ok()?))
}

fn measure(criterion: &mut Criterion, server: &str, port: u16) {
    let runtime = Runtime::new().expect("a runtime");
    let client = runtime.block_on(Client::connect("127.0.0.1", port, PATIENCE)).expect("connects");
    let mut group = criterion.benchmark_group(server);
    group.sample_size(30).measurement_time(Duration::from_secs(3));
    group.bench_function("set", |bencher| {
        bencher.iter(|| runtime.block_on(client.set("key", b"value")).expect("sets"));
    });
    group.bench_function("get", |bencher| {
        bencher.iter(|| runtime.block_on(client.get("key", PATIENCE)).expect("gets"));
    });
    group.bench_function("add", |bencher| {
        bencher.iter(|| runtime.block_on(client.add("counter", 1)).expect("adds"));
    });
}

fn round_trips(criterion: &mut Criterion) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let server = Server::start(listener, ServerOptions::default()).expect("the server starts");
    measure(criterion, "this server", server.local_addr().port());
    match python_server() {
        Some((_python, port)) => measure(criterion, "PyTorch's server", port),
        None => println!("not verified here: PyTorch's server (no PyTorch; set LOCKSTEP_PYTHON)"),
    }
}

criterion_group!(store, round_trips);
criterion_main!(store);

//! Joins a process group: that of the job, by the launcher's variables, or one at an address, as Python's `init_method`
//! (`tcp://HOST:PORT` or `file:///PATH`).
//!
//! Waits first until the job's store accepts connections, and prints a message while it does not: libtorch's client waits silently, and
//! longer than its deadline. The actual connection and its protocol are left to it.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{io, thread};

use c10d::{
    Backend, BackendConfig, DEFAULT_STORE_TIMEOUT, Error, GroupOptions, ProcessGroup, Rank, Result, Store,
    TcpStoreOptions, WorldSize,
};
use lockstep_contract::{BACKEND, BACKENDS};
use lockstep_process::AGENT;
use tch::Device;

use crate::LaunchEnv;
use crate::events::{Event, EventSink};

/// Why joining the group failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// No store answered.
    #[error("failed to join the process group")]
    NobodyListens(#[from] NobodyListens),
    /// The store or another rank failed.
    #[error(transparent)]
    Group(#[from] c10d::Error),
}

/// Joins the default group as the environment says, like `init_process_group(init_method="env://")`: connects to the store at
/// `MASTER_ADDR:MASTER_PORT`, hosting it on rank 0 unless the launcher does, and waits for all ranks.
///
/// For tensors in host memory the ranks choose a backend ([`Backend::Auto`]): shared memory within a host, Gloo between hosts.
/// `LOCKSTEP_BACKEND` may name one, `shm` or `gloo`. If `device` is a GPU, the group also has NCCL for the tensors there, like
/// `cpu:gloo,cuda:nccl` in Python. A program that was built without NCCL ([`Backend::HAS_NCCL`]) has Gloo for both, which copies a
/// GPU's tensors through host memory. An event names the chosen backends, and why.
///
/// Without a launcher, rank 0 prints to stderr what was taken from MPI's launcher or Slurm ([`LaunchEnv::source`]).
///
/// Rank and local rank are different types, so that the classic mistake of joining with `LOCAL_RANK` does not compile.
///
/// Errors: [`JoinError::NobodyListens`] when no store answered before the deadline; stderr shows the wait meanwhile. `Timeout` and
/// `PeerGone` name the store's address or the missing ranks.
pub fn init_process_group(env: &LaunchEnv, device: Device, options: &GroupOptions) -> Result<ProcessGroup, JoinError> {
    init_process_group_on(backends_for(device)?, env, options)
}

/// As [`init_process_group`], on this backend, or one for each device ([`BackendConfig::parse`]).
pub fn init_process_group_on(
    backends: impl Into<BackendConfig>,
    env: &LaunchEnv,
    options: &GroupOptions,
) -> Result<ProcessGroup, JoinError> {
    if let Some(source) = env.source().filter(|_| env.rank.is_zero()) {
        eprintln!("[rank 0] started without a launcher: {source}");
    }
    let store = connect_store(env, options.timeout.min(DEFAULT_STORE_TIMEOUT))?;
    // The store of `lockstep run` is empty at each start of its workers, so that their keys can be Python's.
    let ours = std::env::var_os(AGENT).is_some();
    let store = match attempt_prefix(env).filter(|_| !ours) {
        Some(prefix) => store.prefix(&prefix)?,
        None => store,
    };
    let group = ProcessGroup::new(backends, &store, env.rank, env.world_size, options)?;
    let (backend, reason) = (group.backends().to_string(), group.why_backend().map(str::to_owned));
    let joined = Event::Group { world_size: env.world_size.get(), backend, reason };
    EventSink::from_env(env.rank.get(), env.restart_count).emit(&joined);
    Ok(group)
}

/// The prefix that separates the keys of restarted workers from those of the previous attempt, where one is needed.
///
/// torchrun keeps one store for all attempts of a job. A restarted rank then finds the address of a dead one in it, and Gloo
/// gives up after a few refused connections; Python's `init_process_group("gloo")` has the same bug, up to and including 2.11.
/// The number of restarts identifies the attempt, but only among the workers of one agent, since each agent counts its own. So
/// on several nodes, and in a first attempt, the keys are Python's.
fn attempt_prefix(env: &LaunchEnv) -> Option<String> {
    let one_agent = env.local_world_size == env.world_size;
    (env.agent_store && env.restart_count > 0 && one_agent).then(|| format!("attempt_{}", env.restart_count))
}

fn backends_for(device: Device) -> Result<BackendConfig> {
    next_to(named(&std::env::var(BACKEND).unwrap_or_default())?, device)
}

/// `host` is the backend of host memory.
fn next_to(host: Backend, device: Device) -> Result<BackendConfig> {
    match device {
        Device::Cuda(device) if Backend::HAS_NCCL => BackendConfig::pair(host, Backend::Nccl { device }),
        Device::Cpu => Ok(host.into()),
        _ => Ok(Backend::Gloo.into()),
    }
}

fn named(name: &str) -> Result<Backend> {
    match name {
        "" => Ok(Backend::Auto),
        _ => Backend::of_host_memory(name).ok_or_else(|| {
            let detail = format!("{name:?} is none of {}", BACKENDS.join(", "));
            c10d::Error::bad_argument(format!("read {BACKEND}"), detail)
        }),
    }
}

/// This rank's end of the job's store.
fn connect_store(env: &LaunchEnv, timeout: Duration) -> Result<Store, JoinError> {
    let (hosts, begun) = (env.rank.is_zero() && !env.agent_store, Instant::now());
    if !hosts {
        until_it_listens(env, timeout)?;
    }
    // The store does listen, so a second is enough to connect even if the wait took all the time.
    let timeout = timeout.saturating_sub(begun.elapsed()).max(timeout.min(Duration::from_secs(1)));
    // As in Python, clients announce themselves and a host waits for all of them.
    let wait_for = Some(env.world_size.get());
    let options = TcpStoreOptions { host_server: hosts, wait_for, timeout, multi_tenant: hosts };
    Ok(Store::tcp(&env.master_addr, env.master_port, &options)?)
}

/// A store on a free loopback port, which a launcher keeps open while its workers run.
pub(crate) fn host_store() -> Result<Store> {
    Store::tcp("127.0.0.1", 0, &TcpStoreOptions { host_server: true, ..TcpStoreOptions::default() })
}

/// Joins the default group of `size` ranks at an address that all of them know, without a launcher, like
/// `init_process_group(init_method=…, rank=…, world_size=…)`.
///
/// - `tcp://HOST:PORT`: rank 0 serves the store there, and HOST is a name of its machine.
/// - `file:///PATH`: a file on a file system that all ranks share, and that locks files. It must not exist yet: remove one that a
///   killed job has left.
///
/// For the variables that a launcher sets (`env://`) there is [`init_process_group`](crate::init_process_group).
///
/// Errors: `BadArgument` for another address; otherwise as [`ProcessGroup::new`], and the store's.
///
/// ```no_run
/// # fn main() -> anyhow::Result<()> {
/// # let (rank, size) = (lockstep::Rank::ZERO, lockstep::WorldSize::new(2).unwrap());
/// let group = lockstep::init_process_group_at("tcp://node1:29500", rank, size, tch::Device::Cpu, &Default::default())?;
/// # drop(group); Ok(()) }
/// ```
pub fn init_process_group_at(
    address: &str,
    rank: Rank,
    size: WorldSize,
    device: Device,
    options: &GroupOptions,
) -> Result<ProcessGroup> {
    let backends = backends_for(device)?;
    let store = match parse(address)? {
        Address::Tcp { host, port } => {
            let timeout = options.timeout.min(DEFAULT_STORE_TIMEOUT);
            let host_server = rank.is_zero();
            let store = TcpStoreOptions { host_server, wait_for: Some(size.get()), timeout, multi_tenant: host_server };
            Store::tcp(host, port, &store)?
        }
        Address::File(path) => Store::file(path, size.get())?,
    };
    ProcessGroup::new(backends, &store, rank, size, options)
}

#[derive(Debug, PartialEq)]
enum Address<'a> {
    Tcp { host: &'a str, port: u16 },
    File(&'a Path),
}

fn parse(address: &str) -> Result<Address<'_>> {
    let refuse = |why: &str| {
        let detail = format!("{address:?} {why}: give tcp://HOST:PORT or file:///PATH");
        Err(Error::bad_argument("init_process_group", detail))
    };
    if let Some(path) = address.strip_prefix("file://") {
        return match path {
            "" | "/" => refuse("names no file"),
            _ if !path.starts_with('/') => refuse("has no absolute path"),
            _ => Ok(Address::File(Path::new(path))),
        };
    }
    let Some(place) = address.strip_prefix("tcp://") else { return refuse("is not the address of a store") };
    let Some((host, port)) = place.rsplit_once(':') else { return refuse("has no port") };
    let Some(port) = port.parse().ok().filter(|port| *port != 0) else { return refuse("has no port from 1 to 65535") };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')); // of IPv6
    match bare.unwrap_or(host) {
        "" => refuse("names no host"),
        host if bare.is_none() && host.contains(':') => refuse("needs brackets around an IPv6 address"),
        host => Ok(Address::Tcp { host, port }),
    }
}

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// Timeout of one attempt, for an address that drops packets.
const ATTEMPT: Duration = Duration::from_secs(3);
/// A wait is reported after this time; a slow start of the host is shorter.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// After the first report, the wait is reported at this interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Nothing listened at the address until the deadline.
#[derive(Debug, thiserror::Error)]
#[error("nobody listens at {address} (MASTER_ADDR:MASTER_PORT) after {waited:.0?}: {hint}")]
pub struct NobodyListens {
    /// Host and port.
    pub address: String,
    /// The time waited.
    pub waited: Duration,
    /// Which process should listen there, and what to check.
    pub hint: &'static str,
    /// The error of the last attempt.
    pub source: io::Error,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Retry,
    ReportAndRetry,
    GiveUp,
}

/// Returns once something listens at the store's address.
///
/// Errors: [`NobodyListens`] at the deadline.
fn until_it_listens(env: &LaunchEnv, deadline: Duration) -> Result<(), NobodyListens> {
    let (begun, mut reported) = (Instant::now(), None);
    let address = format!("{}:{}", env.master_addr, env.master_port);
    loop {
        let left = deadline.saturating_sub(begun.elapsed());
        let Err(source) = try_connect(&env.master_addr, env.master_port, left.clamp(PAUSE, ATTEMPT)) else {
            return Ok(());
        };
        let waited = begun.elapsed();
        match next(waited, reported, deadline) {
            Next::GiveUp => return Err(NobodyListens { address, waited, hint: hint(env), source }),
            Next::ReportAndRetry => {
                reported = Some(waited);
                eprintln!(
                    "[rank {}] waiting for the store: nobody listens at {address} for {waited:.0?} ({source}); {}; giving up \
                     after {deadline:.0?}",
                    env.rank,
                    hint(env)
                );
            }
            Next::Retry => {}
        }
        thread::sleep(PAUSE);
    }
}

fn next(waited: Duration, reported: Option<Duration>, deadline: Duration) -> Next {
    let silent_since = reported.map_or(waited, |reported| waited.saturating_sub(reported));
    if waited >= deadline {
        Next::GiveUp
    } else if silent_since >= if reported.is_some() { REPORT_INTERVAL } else { REPORT_AFTER } {
        Next::ReportAndRetry
    } else {
        Next::Retry
    }
}

/// A connection that is closed at once.
fn try_connect(host: &str, port: u16, limit: Duration) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn hint(env: &LaunchEnv) -> &'static str {
    if env.agent_store {
        "the launcher hosts the store there: is it alive, and can this node reach it?"
    } else {
        "rank 0 hosts the store there: is it started, with the same address, and can this node reach it?"
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::{Rank, WorldSize};

    #[test]
    fn the_ranks_choose_the_backend_of_host_memory_unless_it_is_named() {
        assert_eq!(named("").unwrap().name(), "auto");
        assert_eq!(BACKENDS.map(|name| named(name).unwrap().name()), BACKENDS);
        assert!(named("nccl").unwrap_err().to_string().contains("\"nccl\" is none of auto, gloo, shm"));
    }

    #[test]
    fn a_gpu_has_nccl_next_to_the_backend_of_host_memory_where_the_program_has_it() {
        let backends = next_to(Backend::Auto, Device::Cuda(1)).unwrap().to_string();
        assert_eq!(backends, if Backend::HAS_NCCL { "cpu:auto,cuda:nccl" } else { "gloo" });
    }

    #[test]
    fn keeps_pythons_keys_except_for_restarted_workers_of_a_single_agent() {
        let two = WorldSize::new(2).unwrap();
        let one_node = LaunchEnv { world_size: two, local_world_size: two, agent_store: true, ..LaunchEnv::alone() };
        let restarted = LaunchEnv { restart_count: 3, ..one_node.clone() };
        assert_eq!(attempt_prefix(&restarted).as_deref(), Some("attempt_3"));
        assert_eq!(attempt_prefix(&one_node), None);
        assert_eq!(attempt_prefix(&LaunchEnv { agent_store: false, ..restarted.clone() }), None);
        assert_eq!(attempt_prefix(&LaunchEnv { local_world_size: WorldSize::ONE, ..restarted }), None);
    }

    #[test]
    fn addresses_are_those_of_a_port_or_of_a_file() {
        let tcp = |host, port| Address::Tcp { host, port };
        assert_eq!(parse("tcp://node1:29500").unwrap(), tcp("node1", 29_500));
        assert_eq!(parse("tcp://[::1]:7").unwrap(), tcp("::1", 7));
        assert_eq!(parse("file:///shared/store").unwrap(), Address::File(Path::new("/shared/store")));
        for (address, why) in [
            ("env://", "not the address of a store"),
            ("node1:29500", "not the address of a store"),
            ("tcp://node1", "no port"),
            ("tcp://node1:0", "no port from 1"),
            ("tcp://node1:70000", "no port from 1"),
            ("tcp://:29500", "no host"),
            ("tcp://::1:29500", "brackets"),
            ("file://", "no file"),
            ("file://store", "absolute"),
        ] {
            let error = parse(address).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(address), "{error}");
        }
    }

    fn client_of(port: u16) -> LaunchEnv {
        LaunchEnv { rank: Rank::new(1), master_port: port, ..LaunchEnv::alone() }
    }

    #[test]
    fn is_silent_at_first_then_reports_now_and_then_and_gives_up_at_the_deadline() {
        let (s, deadline) = (Duration::from_secs, Duration::from_secs(300));
        assert_eq!(next(s(4), None, deadline), Next::Retry);
        assert_eq!(next(s(5), None, deadline), Next::ReportAndRetry);
        assert_eq!(next(s(34), Some(s(5)), deadline), Next::Retry);
        assert_eq!(next(s(35), Some(s(5)), deadline), Next::ReportAndRetry);
        assert_eq!(next(s(300), Some(s(290)), deadline), Next::GiveUp);
        assert_eq!(next(s(2), None, s(2)), Next::GiveUp);
    }

    #[test]
    fn finds_a_listener_or_names_who_should_listen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        until_it_listens(&client_of(port), Duration::from_secs(60)).unwrap();
        // The port of a client: nobody listens there, and nobody else gets it.
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let port = client.local_addr().unwrap().port();
        let message = until_it_listens(&client_of(port), Duration::ZERO).unwrap_err().to_string();
        assert!(message.contains(&format!("nobody listens at 127.0.0.1:{port}")), "{message}");
        assert!(message.contains("rank 0 hosts the store there"), "{message}");
        let launched = LaunchEnv { agent_store: true, ..client_of(port) };
        let message = until_it_listens(&launched, Duration::ZERO).unwrap_err().to_string();
        assert!(message.contains("the launcher hosts the store there"), "{message}");
    }
}

//! Ranks as threads of the test's own process, the fastest way to run several. They find each other in a HashStore and communicate over
//! real Gloo connections on loopback, or real shared memory. A panic in one fails the test. The hosts of a group in two levels are
//! simulated.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses only a part

use std::cell::Cell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use c10d::{
    Backend, BackendConfig, Endpoint, Error, ErrorKind, GroupOptions, ProcessGroup, Rank, Reducer, ReducerOptions,
    Store, WorldSize, stragglers,
};
use tch::{Device, Kind, Tensor};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Longer than any test takes on a busy machine; a test that hangs fails after this time.
pub const DEADLINE: Duration = Duration::from_secs(600);

pub fn options() -> GroupOptions {
    GroupOptions { timeout: DEADLINE, endpoint: Endpoint::Interface("lo".into()), ..GroupOptions::default() }
}

/// Held by a test that listens for findings: a process has one listener, and plain cargo runs several tests in one process
/// at once.
pub fn listening() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives this process's reports about late ranks from now on: the line, and the finding if there is one. Call it while
/// you are [`listening`].
pub fn findings() -> Receiver<(String, Option<stragglers::Finding>)> {
    let (sender, heard) = channel();
    stragglers::listen(move |line, finding| {
        // The receiver is gone when the test has heard enough.
        let _ = sender.send((line.to_owned(), finding.cloned()));
    });
    heard
}

/// Runs `body` once per rank, on the test's [`backend`], and returns the results in rank order.
pub fn ranks<T: Send>(n: usize, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
    ranks_with(n, &options(), body)
}

/// As `ranks`, but only in shared memory.
pub fn ranks_in_memory<T: Send>(n: usize, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
    ranks_on(Backend::SharedMemory, n, &options(), body)
}

pub fn ranks_with<T: Send>(n: usize, options: &GroupOptions, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
    ranks_on(backend(), n, options, body)
}

thread_local! {
    static BACKEND: Cell<Backend> = const { Cell::new(Backend::Gloo) };
}

/// The backend of the groups that this thread's test makes.
pub fn backend() -> Backend {
    BACKEND.get()
}

/// Runs a test's body once for each backend of CPU tensors. Tests that do not depend on the backend do without it and run on
/// Gloo.
pub fn on_each_backend(body: impl Fn()) {
    for backend in [Backend::Gloo, Backend::TwoLevels, Backend::SharedMemory] {
        println!("on {backend:?}:");
        BACKEND.set(backend);
        body();
    }
}

/// Each rank's host in tests that run on every backend: unequal numbers of ranks, not in order, and one rank for each with two ranks.
const HOSTS: [usize; 9] = [0, 1, 0, 0, 1, 2, 0, 2, 1];

pub fn ranks_on<T: Send>(
    backends: impl Into<BackendConfig>,
    n: usize,
    options: &GroupOptions,
    body: impl Fn(ProcessGroup) -> T + Send + Sync,
) -> Vec<T> {
    ranks_over(&HOSTS[..n], backends, options, body)
}

/// As `ranks_on`, with a rank for each of these hosts.
pub fn ranks_over<T: Send>(
    hosts: &[usize],
    backends: impl Into<BackendConfig>,
    options: &GroupOptions,
    body: impl Fn(ProcessGroup) -> T + Send + Sync,
) -> Vec<T> {
    let (store, backends) = (Arc::new(Store::hash().unwrap()), backends.into());
    let world = WorldSize::new(hosts.len()).unwrap();
    let joined = Barrier::new(hosts.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = world
            .ranks()
            .map(|rank| {
                let (store, body, joined) = (Arc::clone(&store), &body, &joined);
                let options = on_host(hosts[rank.get()], backends, options);
                scope.spawn(move || {
                    let group = ProcessGroup::new(backends, &store, rank, world, &options);
                    // Gloo fails ranks that still connect to one that leaves at once.
                    joined.wait();
                    body(group.unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Options of a rank on this host. Ranks that use only shared memory are all on one host.
fn on_host(host: usize, backends: BackendConfig, options: &GroupOptions) -> GroupOptions {
    let hosts_matter = matches!(backends.of(Device::Cpu), Some(Backend::TwoLevels | Backend::Auto));
    let simulated_host = hosts_matter.then(|| host.to_string());
    GroupOptions { simulated_host, ..options.clone() }
}

/// Joins a group as a rank of `ranks_on` does.
pub fn join_on(
    backend: Backend,
    store: &Store,
    rank: Rank,
    size: WorldSize,
    options: &GroupOptions,
) -> c10d::Result<ProcessGroup> {
    ProcessGroup::new(backend, store, rank, size, &on_host(HOSTS[rank.get()], backend.into(), options))
}

/// The error of a call with arguments that are refused.
#[track_caller]
pub fn refused<T: Debug>(result: c10d::Result<T>) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
    error
}

/// The gradients of one weight, each rank's number and 1, are averaged in a bucket in shared memory, which stays readable after the
/// group.
pub fn assert_buckets_are_shared(group: ProcessGroup, mean: f64) {
    let scale = (group.rank().get() + 1) as f64;
    let mut weight = Tensor::ones([60_000], FLOAT).set_requires_grad(true);
    let params = [("weight".to_owned(), weight.shallow_clone())];
    let options = ReducerOptions { gradient_as_bucket_view: true, ..ReducerOptions::default() };
    let reducer = Reducer::new(Rc::new(group), &params, &options).unwrap();
    for _ in 0..3 {
        c10d::clear_grad(&mut weight).unwrap();
        reducer.prepare_for_forward().unwrap();
        reducer.rebuild_buckets().unwrap();
        let loss = (&weight * scale).sum(Kind::Float);
        reducer.prepare_for_backward(std::slice::from_ref(&loss)).unwrap();
        reducer.backward(&loss).unwrap();
        assert!(is_shared(&weight.grad()));
    }
    drop((reducer, params));
    assert_eq!(weight.grad(), Tensor::full([60_000], mean, FLOAT));
}

/// Returns true if the tensor's memory is in a file that peers map.
pub fn is_shared(tensor: &tch::Tensor) -> bool {
    place_in_file(tensor).is_some()
}

/// The position of the tensor's memory in such a file, in bytes.
pub fn place_in_file(tensor: &tch::Tensor) -> Option<usize> {
    let address = tensor.data_ptr() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:lockstep")).find_map(|line| {
        let number = |digits| usize::from_str_radix(digits, 16).unwrap();
        let mut fields = line.split(' ');
        let (begin, end) = fields.next().unwrap().split_once('-').unwrap();
        let offset = number(fields.nth(1).unwrap());
        (number(begin)..number(end)).contains(&address).then(|| address - number(begin) + offset)
    })
}

pub fn rank(n: usize) -> Rank {
    Rank::new(n)
}

/// Returns true if this process has a file of this name mapped.
pub fn mapped(name: &str) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.contains(&format!("/{name}")))
}

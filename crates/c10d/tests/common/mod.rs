//! Ranks as threads of the test's own process, the fastest way to have several. They find each other in a HashStore and
//! communicate over real Gloo connections on loopback, or real shared memory. A panic in one fails the test.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses a part

use std::sync::Arc;
use std::time::Duration;

use c10d::{Backend, BackendConfig, Endpoint, GroupOptions, ProcessGroup, Rank, Store, WorldSize};

/// Longer than any test takes on a busy machine; a hang ends here.
pub const DEADLINE: Duration = Duration::from_secs(600);

pub fn options() -> GroupOptions {
    GroupOptions { timeout: DEADLINE, endpoint: Endpoint::Interface("lo".into()), ..GroupOptions::default() }
}

/// Runs `body` once per rank and returns the results in rank order.
pub fn ranks<T: Send>(n: usize, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
    ranks_with(n, &options(), body)
}

pub fn ranks_with<T: Send>(n: usize, options: &GroupOptions, body: impl Fn(ProcessGroup) -> T + Send + Sync) -> Vec<T> {
    ranks_on(Backend::Gloo, n, options, body)
}

pub fn ranks_on<T: Send>(
    backends: impl Into<BackendConfig>,
    n: usize,
    options: &GroupOptions,
    body: impl Fn(ProcessGroup) -> T + Send + Sync,
) -> Vec<T> {
    let (store, backends) = (Arc::new(Store::hash().unwrap()), backends.into());
    let world = WorldSize::new(n).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = world
            .ranks()
            .map(|rank| {
                let (store, body) = (Arc::clone(&store), &body);
                scope.spawn(move || body(ProcessGroup::new(backends, &store, rank, world, options).unwrap()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
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

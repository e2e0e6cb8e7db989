//! Ranks that are threads of one process: the quickest way to have several, for programs that mainly communicate.
//!
//! They use a private store on a free loopback port and join their group like processes, so that the program is the same for
//! both. Leaves out what only processes have: a rank that can be killed, and memory of its own. See [`crate::spawn()`] for
//! those.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use c10d::{ErrorKind, Store};

use crate::error_file::panic_text;
use crate::exit::UsageError;
use crate::group::host_store;
use crate::{LaunchEnv, LocalRank, Rank, WorldSize};

/// The default number of ranks.
pub const DEFAULT_RANKS: usize = 2;

/// Maximum number of threads; more is probably a typing mistake, since each rank keeps a connection to every other one.
pub const MOST_RANKS: usize = 64;

/// How long the other ranks may continue after one has failed, before their store is closed, in which they may be waiting.
const GRACE: Duration = Duration::from_secs(4);

/// Runs `body` as the rank that a launcher made of this process; without a launcher, as `nprocs` ranks that are threads.
///
/// Returns the ranks' values in rank order: one value under a launcher. `nprocs` is the program's flag; `None` stands for
/// [`DEFAULT_RANKS`].
pub fn run<T: Send>(nprocs: Option<usize>, body: impl Fn(&LaunchEnv) -> Result<T> + Sync) -> Result<Vec<T>> {
    match LaunchEnv::from_env_if_launched()? {
        Some(env) => {
            agree(nprocs, env.world_size)?;
            Ok(vec![body(&env)?])
        }
        None => run_threads(nprocs.unwrap_or(DEFAULT_RANKS), body),
    }
}

/// Runs `body` on `nprocs` threads, each with its own [`LaunchEnv`], and waits for all. A thread that joins a group with it
/// ([`crate::init_process_group`]) meets the others there.
///
/// Each thread computes with one libtorch thread unless `OMP_NUM_THREADS` is set, just as launchers set it for processes.
/// `tch::no_grad` affects one thread, `tch::manual_seed` all of them.
///
/// If several ranks failed, returns the first error that does not merely report another rank as gone; a panic counts as an error.
/// The others are waited for: their operations fail when the failed rank's group is dropped and their store is closed.
pub fn run_threads<T: Send>(nprocs: usize, body: impl Fn(&LaunchEnv) -> Result<T> + Sync) -> Result<Vec<T>> {
    let world = world(nprocs)?;
    let store = host_store().context("cannot open the store in which the ranks meet")?;
    let port = store.port().context("the store of the ranks has no port")?;
    thread::scope(|scope| {
        let (sender, ended) = channel();
        for rank in world.ranks() {
            let (sender, body, env) = (sender.clone(), &body, env_of(rank, world, port));
            let run = move || {
                let result =
                    catch_unwind(AssertUnwindSafe(|| one_rank(&env, body))).unwrap_or_else(|p| Err(panicked(p)));
                // The receiver waits until every sender is gone.
                let _ = sender.send((rank, result));
            };
            let thread = thread::Builder::new().name(format!("rank {rank}"));
            thread.spawn_scoped(scope, run).with_context(|| format!("cannot start a thread for rank {rank}"))?;
        }
        drop(sender);
        collect(&ended, store)
    })
}

fn world(nprocs: usize) -> Result<WorldSize, UsageError> {
    let usage = |words: &str| UsageError(format!("cannot run {nprocs} ranks as threads: {words}"));
    match WorldSize::new(nprocs) {
        None => Err(usage("ask for 1 or more")),
        Some(_) if nprocs > MOST_RANKS => Err(usage("at most 64 are allowed in one process; is the number right?")),
        Some(world) => Ok(world),
    }
}

fn agree(nprocs: Option<usize>, launched: WorldSize) -> Result<(), UsageError> {
    match nprocs.filter(|&nprocs| nprocs != launched.get()) {
        Some(nprocs) => Err(UsageError(format!(
            "{nprocs} ranks were asked for, but a launcher has started {launched}: leave the number out under a launcher"
        ))),
        None => Ok(()),
    }
}

fn env_of(rank: Rank, world: WorldSize, port: u16) -> LaunchEnv {
    LaunchEnv {
        rank,
        local_rank: LocalRank::new(rank.get()),
        world_size: world,
        local_world_size: world,
        master_port: port,
        agent_store: true,
        ..LaunchEnv::alone()
    }
}

fn one_rank<T>(env: &LaunchEnv, body: impl Fn(&LaunchEnv) -> Result<T>) -> Result<T> {
    if env.world_size.get() > 1 && std::env::var_os("OMP_NUM_THREADS").is_none() {
        tch::set_num_threads(1);
    }
    body(env)
}

fn panicked(payload: Box<dyn Any + Send>) -> anyhow::Error {
    anyhow!("panicked: {}", panic_text(&*payload).unwrap_or("with a payload that is not a text"))
}

/// The ranks' results, in rank order, once all have ended. Closes the store when the others do not end soon after a failure.
fn collect<T>(ended: &Receiver<(Rank, Result<T>)>, store: Store) -> Result<Vec<T>> {
    let (mut store, mut good, mut failures) = (Some(store), Vec::new(), Vec::new());
    loop {
        let next = match &store {
            Some(_) if !failures.is_empty() => ended.recv_timeout(GRACE),
            _ => ended.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok((rank, Ok(value))) => good.push((rank, value)),
            Ok((rank, Err(error))) => failures.push((rank, error)),
            Err(RecvTimeoutError::Timeout) => drop(store.take()),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Some((rank, error)) = root_cause(failures) {
        return Err(error.context(format!("rank {rank} failed")));
    }
    good.sort_unstable_by_key(|(rank, _)| *rank);
    Ok(good.into_iter().map(|(_, value)| value).collect())
}

/// The first failure that is not a consequence of another one; if all are, the first.
fn root_cause(mut failures: Vec<(Rank, anyhow::Error)>) -> Option<(Rank, anyhow::Error)> {
    let place = failures.iter().position(|(_, error)| !is_echo(error)).unwrap_or(0);
    (!failures.is_empty()).then(|| failures.swap_remove(place))
}

fn is_echo(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<c10d::Error>().is_some_and(|e| e.kind() == ErrorKind::PeerGone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_ranks_may_not_contradict_the_launchers() {
        let two = WorldSize::new(2).unwrap();
        assert!(agree(None, two).is_ok() && agree(Some(2), two).is_ok());
        let message = agree(Some(3), two).unwrap_err().to_string();
        assert_eq!(
            message,
            "3 ranks were asked for, but a launcher has started 2: leave the number out under a launcher"
        );
    }

    #[test]
    fn refuses_no_ranks_and_far_too_many() {
        for (nprocs, words) in [(0, "ask for 1 or more"), (MOST_RANKS + 1, "at most 64")] {
            let message = world(nprocs).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}

//! Starts several processes of one program, as `torch.multiprocessing.spawn` does.
//!
//! ```no_run
//! use lockstep::{LaunchEnv, spawn::{Hosted, Spawn}};
//!
//! # fn open_store() -> anyhow::Result<Hosted> { anyhow::bail!("shown elsewhere") }
//! fn main() -> anyhow::Result<()> {
//!     Spawn::new(2, open_store).run(&0.01, train)?;
//!     Ok(())
//! }
//!
//! fn train(env: &LaunchEnv, learning_rate: f64) -> anyhow::Result<()> {
//!     println!("rank {} of {} trains with {learning_rate}", env.rank, env.world_size);
//!     Ok(())
//! }
//! ```
//!
//! # How one program becomes several processes
//!
//! A process with threads (libtorch has many) cannot be forked safely, so the parent starts **its own executable
//! again**, with the same arguments and environment, once per rank. Each new process runs `main` from the top. When it
//! reaches the same call of [`Spawn::run`], it reads its arguments, runs the worker and exits. It never returns from
//! that call.
//!
//! So **the code before the call runs again in every process**, like a module's top level with Python's spawn start
//! method. Keep it cheap and free of side effects: parse arguments, decide; do not train, delete or print. It must
//! reach the same call in every process: calls are identified by their order and their place in the source. An earlier
//! call, which the parent has finished, is skipped and returns the result that it had in the parent (`Ok`, or
//! [`SpawnError::Earlier`]). Every process creates the values that the worker captures itself; only `args` is sent to
//! it.
//!
//! # Guarantees
//!
//! - The parent hosts the rendezvous store, so that it survives the death of rank 0.
//! - The first failure stops the others (SIGTERM, then SIGKILL after a grace period) and is the error that the caller
//!   gets. The order of deaths is the kernel's.
//! - No worker outlives its parent, however that ends: each asks the kernel for a SIGKILL at its parent's death.
//! - No file is left behind: arguments and errors are passed in anonymous files that the workers inherit.
//!
//! Not here: several nodes and restarts (`lockstep run`), and joining the process group (the worker does that).

mod error;
mod parent;
mod state_machine;
mod worker;

use std::any::Any;
use std::panic::Location;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::{Failure, Report, SpawnError, Stage, Stopped, StoppedBy};
pub(crate) use worker::watch_parent;

use crate::LaunchEnv;

/// The time from SIGTERM to SIGKILL, unless set otherwise. (torch waits 30 s; a worker that has to finish a snapshot
/// needs less.)
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// The maximum number of processes. A larger number for one node is a mistake in the argument.
pub const MOST_PROCESSES: usize = 1024;

/// Processes of one program: their number, the host of their store, and the time that they may take to stop.
pub struct Spawn<H> {
    nprocs: usize,
    host: H,
    grace: Duration,
    timeout: Option<Duration>,
}

impl<H> Spawn<H>
where
    H: FnOnce() -> anyhow::Result<Hosted>,
{
    /// `nprocs` processes that meet at the store that `host` opens. Only the parent opens it.
    pub fn new(nprocs: usize, host: H) -> Self {
        Spawn { nprocs, host, grace: DEFAULT_GRACE, timeout: None }
    }

    /// How long a worker may take to end after SIGTERM, before SIGKILL.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Stops all workers if they have not ended after `timeout`. By default there is no limit, since training may take
    /// long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Runs `worker(env, args)` in every process and waits for all of them. In a worker process it does not return.
    ///
    /// The workers get `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and the
    /// rest of torchrun's variables, share the parent's stdout and stderr, and have an empty stdin. `args` is sent as
    /// JSON, so it may be large, but floats must be finite.
    ///
    ///
    /// Errors:
    /// - [`SpawnError::Workers`] if a worker failed; all others have been stopped by then.
    /// - [`SpawnError::TimedOut`] after [`Spawn::timeout`].
    /// - Incorrect use, before anything is started: no or too many processes, a call under a launcher, in a worker, or
    ///   from two threads at once. The error says what to do.
    #[track_caller]
    pub fn run<A, W>(self, args: &A, worker: W) -> Result<(), SpawnError>
    where
        A: Serialize + DeserializeOwned,
        W: FnOnce(&LaunchEnv, A) -> anyhow::Result<()>,
    {
        let at = Location::caller().to_string();
        let origin = worker::Origin::of_this_process()?;
        let mut call = worker::begin(at)?;
        match call.role(origin) {
            worker::Role::PassedOver(outcome) => outcome,
            worker::Role::Worker(handshake) => worker::run(handshake, worker),
            worker::Role::Elsewhere(handshake) => worker::refuse(handshake, &call.at, call.ordinal),
            worker::Role::Parent => call.finish(|call| {
                check(self.nprocs)?;
                worker::refuse_launcher(|name| std::env::var_os(name))?;
                parent::run(self, call, args)
            }),
        }
    }
}

fn check(nprocs: usize) -> Result<(), SpawnError> {
    match nprocs {
        0 => Err(SpawnError::NoProcesses),
        1..=MOST_PROCESSES => Ok(()),
        _ => Err(SpawnError::TooManyProcesses { nprocs }),
    }
}

/// Runs `worker(env, args)` in `nprocs` new processes of this program, as `torch.multiprocessing.spawn` does, and waits
/// for them. This is [`Spawn::run`] with a store in this process on a free loopback port.
#[track_caller]
pub fn spawn<A, W>(nprocs: usize, args: &A, worker: W) -> Result<(), SpawnError>
where
    A: Serialize + DeserializeOwned,
    W: FnOnce(&LaunchEnv, A) -> anyhow::Result<()>,
{
    Spawn::new(nprocs, Hosted::store).run(args, worker)
}

/// An open rendezvous store, which workers find by `MASTER_ADDR` and `MASTER_PORT`.
pub struct Hosted {
    addr: String,
    port: u16,
    _guard: Box<dyn Any>,
}

impl Hosted {
    /// The store at `addr:port`. It is open while `guard` exists, which is until the last worker has ended.
    pub fn new(addr: impl Into<String>, port: u16, guard: impl Any) -> Self {
        Hosted { addr: addr.into(), port, _guard: Box::new(guard) }
    }

    /// A TCPStore in this process, on a free loopback port.
    ///
    /// Errors: no port can be opened on loopback.
    pub fn store() -> anyhow::Result<Self> {
        let store = crate::group::host_store()?;
        let port = store.port().context("a TCPStore that hosts has a port")?;
        Ok(Hosted::new("127.0.0.1", port, store))
    }
}

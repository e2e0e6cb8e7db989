//! The state of all devices of this process, under one lock.
//!
//! The lock also guards device memory: an operation reads and writes it while it holds the lock, so that a wrong order of streams gives
//! wrong data and never a data race. What waits (for other streams, for other ranks) does so without the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::codes::Cuda;
use crate::events::Event;
use crate::kernels::Module;
use crate::memory::Allocation;
use crate::options;
use crate::streams::Stream;

/// How long no call may come before streams start what nobody has asked for.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The first handle, above those that CUDA gives a meaning (`CU_STREAM_LEGACY` is 1).
const FIRST_HANDLE: u64 = 0x1000;

pub(crate) struct World {
    pub(crate) devices: Vec<Device>,
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) modules: HashMap<u64, Module>,
    /// Memory of the host that was allocated for asynchronous copies.
    pub(crate) pinned: BTreeMap<u64, Allocation>,
    last_handle: u64,
    last_call: Instant,
}

#[derive(Default)]
pub(crate) struct Device {
    /// Its number on the machine, of which this process may see a part.
    pub(crate) physical: usize,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Devices whose memory its kernels may use.
    pub(crate) peers: BTreeSet<usize>,
    /// The error of an operation. It stays with the context.
    pub(crate) error: Option<Cuda>,
    /// The legacy default stream, once it is used.
    pub(crate) null_stream: Option<u64>,
}

pub(crate) type Guard = MutexGuard<'static, World>;

static CHANGED: Condvar = Condvar::new();

fn world() -> &'static Mutex<World> {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    WORLD.get_or_init(|| {
        let device = |physical: &usize| Device { physical: *physical, ..Device::default() };
        Mutex::new(World {
            devices: options::get().devices.iter().map(device).collect(),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            pinned: BTreeMap::new(),
            last_handle: FIRST_HANDLE,
            last_call: Instant::now(),
        })
    })
}

/// For a call of the program.
pub(crate) fn call() -> Guard {
    let mut world = lock();
    world.last_call = Instant::now();
    world
}

/// For the device's own threads.
pub(crate) fn lock() -> Guard {
    world().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes all that wait for the state to change.
pub(crate) fn changed() {
    CHANGED.notify_all();
}

/// Waits for a change, at most for this long.
pub(crate) fn wait(world: Guard, most: Duration) -> Guard {
    CHANGED.wait_timeout(world, most).unwrap_or_else(PoisonError::into_inner).0
}

/// Says that something took longer than the device's deadline, and returns the error for it.
pub(crate) fn too_late(what: &str) -> Cuda {
    eprintln!(
        "simulated device: {what} took more than {} s ({})",
        options::get().deadline.as_secs(),
        options::DEADLINE
    );
    Cuda::LAUNCH_TIMEOUT
}

/// Waits until `is` holds, for no longer than the device's deadline. The lock is kept, in either case.
pub(crate) fn wait_until(mut world: Guard, what: &str, is: impl Fn(&World) -> bool) -> Result<Guard, (Guard, Cuda)> {
    let deadline = options::get().deadline;
    let begun = Instant::now();
    while !is(&world) {
        let Some(left) = deadline.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
            return Err((world, too_late(what)));
        };
        world = wait(world, left);
    }
    Ok(world)
}

impl World {
    pub(crate) fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    /// The time until streams start what nobody has asked for.
    pub(crate) fn until_quiet(&self) -> Duration {
        PATIENCE.saturating_sub(self.last_call.elapsed())
    }

    pub(crate) fn device(&mut self, device: usize) -> Result<&mut Device, Cuda> {
        self.devices.get_mut(device).ok_or(Cuda::INVALID_DEVICE)
    }

    /// The device, unless an operation on it has failed.
    pub(crate) fn healthy(&mut self, device: usize) -> Result<&mut Device, Cuda> {
        let device = self.device(device)?;
        device.error.map_or(Ok(device), Err)
    }
}

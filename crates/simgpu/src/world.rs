//! The state of all devices of this process, under one lock.
//!
//! The lock also guards device memory: an operation reads and writes it while it holds the lock, so that a wrong order of streams gives
//! wrong data and never a data race. What waits (for other streams, for other ranks) does so without the lock.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::Cuda;
use crate::streams::{Event, Module, Stream};

/// After this time without a call, streams start work that nobody has asked for.
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
    /// Its number on the machine. The process may see only some of the machine's devices.
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
            devices: options().devices.iter().map(device).collect(),
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

/// Prints that something took longer than the device's deadline, and returns the error for it.
pub(crate) fn too_late(what: &str) -> Cuda {
    eprintln!("simulated device: {what} took more than {} s ({})", options().deadline.as_secs(), DEADLINE);
    Cuda::LAUNCH_TIMEOUT
}

/// Waits until `is` holds, for no longer than the device's deadline. The lock is kept, in either case.
pub(crate) fn wait_until(mut world: Guard, what: &str, is: impl Fn(&World) -> bool) -> Result<Guard, (Guard, Cuda)> {
    let deadline = options().deadline;
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

// The device's options: environment variables that are read once.

/// The number of devices, 4 by default.
pub const COUNT: &str = "LOCKSTEP_GPU_COUNT";
/// The memory of each device in MiB, 256 by default.
pub const MEMORY: &str = "LOCKSTEP_GPU_MEMORY";
/// A number from which the delay of each operation is drawn. Without it, work starts when it is asked for.
pub const SEED: &str = "LOCKSTEP_GPU_SEED";
/// The number of seconds after which a wait gives up, 300 by default.
pub const DEADLINE: &str = "LOCKSTEP_GPU_DEADLINE";

/// As many as in a machine that NVIDIA sells.
const MOST_DEVICES: u64 = 16;

pub(crate) struct DeviceOptions {
    /// The numbers of the visible devices on the simulated machine.
    pub(crate) devices: Vec<usize>,
    pub(crate) memory: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) deadline: Duration,
}

/// What [`SET_COUNT`](crate::SET_COUNT) was given.
static SET: OnceLock<u32> = OnceLock::new();

#[unsafe(no_mangle)]
extern "C" fn simgpuSetCount(count: u32) {
    SET.get_or_init(|| count);
}

pub(crate) fn options() -> &'static DeviceOptions {
    static OPTIONS: OnceLock<DeviceOptions> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let text = |name: &str| std::env::var(name).ok();
        let number = |name: &str| text(name).and_then(|text| text.trim().parse::<u64>().ok());
        let count = |number: u64| number.clamp(1, MOST_DEVICES) as usize;
        let devices = match SET.get() {
            Some(set) => visible(count((*set).into()), None),
            None => visible(count(number(COUNT).unwrap_or(4)), text("CUDA_VISIBLE_DEVICES").as_deref()),
        };
        DeviceOptions {
            devices,
            memory: number(MEMORY).unwrap_or(256) << 20,
            seed: number(SEED),
            deadline: Duration::from_secs(number(DEADLINE).unwrap_or(300).max(1)),
        }
    })
}

/// The devices that `CUDA_VISIBLE_DEVICES` names. As CUDA does, it stops at the first that is not there.
fn visible(count: usize, named: Option<&str>) -> Vec<usize> {
    let Some(named) = named else { return (0..count).collect() };
    let numbers = named.split(',').map(|name| name.trim().parse().ok().filter(|number| *number < count));
    numbers.take_while(Option::is_some).flatten().collect()
}

// Memory of devices and of the host: limits, what an address belongs to, and who may use it.

/// CUDA aligns allocations to 256 bytes at least.
const ALIGNMENT: usize = 256;
/// What new memory is filled with: as `f32` a NaN, so that reads of memory that was never written are noticed.
const FRESH: u8 = 0xff;

/// A piece of memory, freed when it is dropped.
pub(crate) struct Allocation {
    address: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to the allocation, and is only used under the world's lock.
unsafe impl Send for Allocation {}

impl Allocation {
    pub(crate) fn new(bytes: usize) -> Result<Self, Cuda> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| Cuda::INVALID_VALUE)?;
        if bytes == 0 {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: the size is not zero.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return Err(Cuda::OUT_OF_MEMORY);
        }
        // SAFETY: the allocation is of this size.
        unsafe { address.write_bytes(FRESH, bytes) };
        Ok(Allocation { address, layout })
    }

    pub(crate) fn begin(&self) -> u64 {
        self.address as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.layout.size() as u64
    }

    fn holds(&self, address: u64, bytes: u64) -> bool {
        address.checked_add(bytes).is_some_and(|end| self.begin() <= address && end <= self.begin() + self.len())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.address, self.layout) }
    }
}

impl World {
    /// Bytes in use on a device.
    pub(crate) fn used(&self, device: usize) -> u64 {
        self.devices.get(device).map_or(0, |device| device.allocations.values().map(Allocation::len).sum())
    }

    pub(crate) fn allocate(&mut self, device: usize, bytes: u64) -> Result<u64, Cuda> {
        self.healthy(device)?;
        if bytes > options().memory.saturating_sub(self.used(device)) {
            return Err(Cuda::OUT_OF_MEMORY);
        }
        let allocation = Allocation::new(usize::try_from(bytes).map_err(|_| Cuda::OUT_OF_MEMORY)?)?;
        let address = allocation.begin();
        self.device(device)?.allocations.insert(address, allocation);
        Ok(address)
    }

    /// The device whose memory this is.
    pub(crate) fn owner(&self, address: u64, bytes: u64) -> Option<usize> {
        let holds = |allocation: &Allocation| allocation.holds(address, bytes);
        self.devices
            .iter()
            .position(|device| device.allocations.range(..=address).next_back().is_some_and(|(_, it)| holds(it)))
    }

    pub(crate) fn is_pinned(&self, address: u64, bytes: u64) -> bool {
        self.pinned.range(..=address).next_back().is_some_and(|(_, allocation)| allocation.holds(address, bytes))
    }

    /// The error of an operation on `device` that uses memory which is neither its own nor a peer's.
    pub(crate) fn may_use(&self, device: usize, address: u64, bytes: u64) -> Result<(), Cuda> {
        let may = self.owner(address, bytes).is_some_and(|owner| {
            owner == device || self.devices.get(device).is_some_and(|device| device.peers.contains(&owner))
        });
        if may { Ok(()) } else { Err(Cuda::ILLEGAL_ADDRESS) }
    }

    /// Reads memory that an operation on `device` may use.
    pub(crate) fn read(&self, device: usize, address: u64, bytes: u64) -> Result<Vec<u8>, Cuda> {
        self.may_use(device, address, bytes)?;
        Ok(self.read_any(address, bytes))
    }

    /// Writes memory that an operation on `device` may use.
    pub(crate) fn write(&mut self, device: usize, address: u64, data: &[u8]) -> Result<(), Cuda> {
        self.may_use(device, address, data.len() as u64)?;
        self.write_any(address, data);
        Ok(())
    }

    /// Reads memory of any device. The caller has checked its owner.
    pub(crate) fn read_any(&self, address: u64, bytes: u64) -> Vec<u8> {
        let mut data = vec![0; bytes as usize];
        if self.owner(address, bytes).is_some() {
            // SAFETY: an allocation that this world keeps holds these bytes; all use of it is under the world's lock, which `self` is
            // borrowed from.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, data.as_mut_ptr(), data.len()) };
        }
        data
    }

    /// Writes memory of any device. The caller has checked its owner.
    pub(crate) fn write_any(&mut self, address: u64, data: &[u8]) {
        if self.owner(address, data.len() as u64).is_some() {
            // SAFETY: as in `read_any`; `self` is borrowed mutably.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address as *mut u8, data.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_devices_that_are_named_up_to_the_first_that_is_not_there() {
        assert_eq!(visible(3, None), [0, 1, 2]);
        assert_eq!(visible(4, Some("2, 0")), [2, 0]);
        assert_eq!(visible(4, Some("1,7,2")), [1]);
        assert!(visible(4, Some("")).is_empty() && visible(4, Some("-1")).is_empty());
    }
}

//! Memory of devices and of the host: limits, what an address belongs to, and who may use it.

use std::alloc::{Layout, alloc, dealloc};

use crate::codes::Cuda;
use crate::options;
use crate::world::World;

/// CUDA aligns allocations to 256 bytes at least.
const ALIGNMENT: usize = 256;
/// What new memory is filled with: as `f32` a NaN, so that memory that was never written shows.
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
        if bytes > options::get().memory.saturating_sub(self.used(device)) {
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

    /// Reads memory of any device. The caller has asked for its owner.
    pub(crate) fn read_any(&self, address: u64, bytes: u64) -> Vec<u8> {
        let mut data = vec![0; bytes as usize];
        if self.owner(address, bytes).is_some() {
            // SAFETY: an allocation that this world keeps holds these bytes; all use of it is under the world's lock, which `self` is
            // borrowed from.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, data.as_mut_ptr(), data.len()) };
        }
        data
    }

    /// Writes memory of any device. The caller has asked for its owner.
    pub(crate) fn write_any(&mut self, address: u64, data: &[u8]) {
        if self.owner(address, data.len() as u64).is_some() {
            // SAFETY: as in `read_any`; `self` is borrowed mutably.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address as *mut u8, data.len()) };
        }
    }
}

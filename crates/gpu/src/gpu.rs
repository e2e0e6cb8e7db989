//! Devices and their memory.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr};

use crate::library::{self, Error, Result, cuda};
use crate::stream::Kernels;
use crate::{Kind, Tier, comm};

/// Bytes for a name or a bus id.
const NAME: usize = 256;

/// A device, with its primary context. Clones are the same device.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    ordinal: usize,
    device: c_int,
    context: CUcontext,
    name: String,
    bus_id: String,
    kernels: OnceLock<Result<Kernels>>,
}

// SAFETY: a context may be used from any thread: the driver's functions take it as the calling thread's current one.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing here changes after `open`.
unsafe impl Sync for Inner {}

/// How one device reaches another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Whether its kernels can use the other's memory.
    pub access: bool,
    /// The way between them. `None` without NVML.
    pub tier: Option<Tier>,
}

/// Elements (`f32`) in the memory of a device.
pub struct Buffer {
    gpu: Gpu,
    address: CUdeviceptr,
    len: usize,
}

impl Gpu {
    /// The number of devices that this process sees.
    ///
    /// # Errors
    /// Those of [`open`](crate::open).
    pub fn count() -> Result<usize> {
        library::open()?;
        let mut count = 0;
        // SAFETY: the result may be written.
        cuda("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device of this number, among those that the process sees.
    ///
    /// # Errors
    /// Those of [`open`](crate::open), and CUDA's.
    pub fn open(ordinal: usize) -> Result<Self> {
        library::open()?;
        let mut device = 0;
        let mut context = std::ptr::null_mut();
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the results may be written; the context is never released, since others in the process may use it.
        unsafe {
            cuda("cuDeviceGet", sys::cuDeviceGet(&mut device, number))?;
            cuda("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        // SAFETY: both functions write at most as many bytes as they are told.
        let name = text("cuDeviceGetName", |to, len| unsafe { sys::cuDeviceGetName(to, len, device) })?;
        // SAFETY: as above.
        let bus_id = text("cuDeviceGetPCIBusId", |to, len| unsafe { sys::cuDeviceGetPCIBusId(to, len, device) })?;
        let gpu = Gpu { inner: Arc::new(Inner { ordinal, device, context, name, bus_id, kernels: OnceLock::new() }) };
        gpu.bind()?;
        Ok(gpu)
    }

    pub fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    /// The device's model; for a simulated device, a name that says so.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its place on the PCI bus, which identifies it on the machine.
    pub fn bus_id(&self) -> &str {
        &self.inner.bus_id
    }

    /// Free bytes and all bytes of its memory.
    ///
    /// # Errors
    /// CUDA's.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the results may be written.
        cuda("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// How this device reaches another.
    ///
    /// # Errors
    /// CUDA's.
    pub fn peer(&self, other: &Gpu) -> Result<Peer> {
        let mut can = 0;
        // SAFETY: the result may be written.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.inner.device, other.inner.device) };
        cuda("cuDeviceCanAccessPeer", result)?;
        Ok(Peer { access: can != 0, tier: library::between(self, other) })
    }

    /// Allocates memory for elements, whose values are undefined.
    ///
    /// # Errors
    /// CUDA's: `CUDA_ERROR_OUT_OF_MEMORY`, or an error of work that was issued before.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: the result may be written.
        cuda("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, len * size_of::<f32>()) })?;
        Ok(Buffer { gpu: self.clone(), address, len })
    }

    /// Waits for all streams of the device.
    ///
    /// # Errors
    /// CUDA's, of any work that was issued before.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        crate::stream::count_wait();
        // SAFETY: takes nothing.
        cuda("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Makes it the thread's current device, which each call requires.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: a primary context that is never released.
        cuda("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.inner.context) })
    }

    pub(crate) fn kernels(&self) -> Result<&Kernels> {
        self.inner.kernels.get_or_init(|| Kernels::load(self)).as_ref().map_err(Error::clone)
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = library::open().unwrap_or(Kind::Real);
        write!(f, "{kind} {} ({}, {})", self.inner.ordinal, self.inner.name, self.inner.bus_id)
    }
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements on device {}", self.len, self.gpu.ordinal())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (gpu, address) = (self.gpu.clone(), self.address);
        // SAFETY: allocated by `Gpu::buffer` and freed once. The driver waits for work that uses it; work that a group has collected is
        // issued before. An error of such work has been reported, or will be, by another call.
        comm::free(move || drop(gpu.bind().map(|()| unsafe { sys::cuMemFree_v2(address) })));
    }
}

fn text(call: &'static str, get: impl Fn(*mut c_char, c_int) -> sys::CUresult) -> Result<String> {
    let mut bytes = [0_u8; NAME];
    cuda(call, get(bytes.as_mut_ptr().cast(), NAME as c_int))?;
    Ok(CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned()))
}

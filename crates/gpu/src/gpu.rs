//! Devices and their memory, streams and events.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr, CUevent, CUfunction, CUresult, CUstream};

use crate::library::{self, Error, Result, cuda};
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
    pub fn count() -> Result<usize> {
        library::open()?;
        let mut count = 0;
        // SAFETY: the result may be written.
        cuda("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device of this number, among those that the process sees.
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
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the results may be written.
        cuda("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// How this device reaches another.
    pub fn peer(&self, other: &Gpu) -> Result<Peer> {
        let mut can = 0;
        // SAFETY: the result may be written.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.inner.device, other.inner.device) };
        cuda("cuDeviceCanAccessPeer", result)?;
        Ok(Peer { access: can != 0, tier: library::between(self, other) })
    }

    /// Allocates memory for elements, whose values are undefined.
    ///
    /// Errors: CUDA's: `CUDA_ERROR_OUT_OF_MEMORY`, or an error of work that was issued before.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: the result may be written.
        cuda("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, len * size_of::<f32>()) })?;
        Ok(Buffer { gpu: self.clone(), address, len })
    }

    /// Waits for all streams of the device.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        crate::gpu::count_wait();
        // SAFETY: takes nothing.
        cuda("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Makes it the thread's current device, which each call requires.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: a primary context that is never released.
        cuda("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.inner.context) })
    }

    fn kernels(&self) -> Result<&Kernels> {
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

thread_local! {
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// The number of times that this thread has waited for a device: `synchronize`, uploads and downloads.
pub fn host_waits() -> u64 {
    WAITS.get()
}

fn count_wait() {
    WAITS.set(WAITS.get() + 1);
}

/// A queue of work for a device. Work on one stream runs in order; only an [`Event`] orders two streams.
pub struct Stream {
    gpu: Gpu,
    handle: CUstream,
}

/// A place in a stream.
pub struct Event {
    gpu: Gpu,
    handle: CUevent,
}

// SAFETY: handles of streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: the driver locks a stream while it is given work.
unsafe impl Sync for Stream {}
// SAFETY: handles of events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: an event is recorded once, when it is made.
unsafe impl Sync for Event {}

impl Gpu {
    /// A new stream, for which the device's default stream does not wait.
    pub fn stream(&self) -> Result<Stream> {
        self.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the result may be written.
        cuda("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, flags) })?;
        Ok(Stream { gpu: self.clone(), handle })
    }
}

impl Stream {
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }

    /// New memory with these elements. Waits until they are there.
    pub fn upload(&self, elements: &[f32]) -> Result<Buffer> {
        let buffer = self.gpu.buffer(elements.len())?;
        let (from, bytes) = (elements.as_ptr().cast(), size_of_val(elements));
        // SAFETY: both have this many bytes. The elements are not pinned, so the copy may have ended when the driver returns, or not;
        // they are borrowed until the stream has come to its end, or its context has failed and runs nothing more.
        cuda("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(buffer.address(), from, bytes, self.handle) })?;
        self.synchronize()?;
        Ok(buffer)
    }

    /// The elements, after the work on this stream. Waits for them.
    pub fn download(&self, buffer: &Buffer) -> Result<Vec<f32>> {
        self.gpu.bind()?;
        let mut elements = vec![0.0_f32; buffer.len()];
        let (to, bytes) = (elements.as_mut_ptr().cast(), size_of_val(&elements[..]));
        // SAFETY: both have this many bytes. The elements are not pinned, so the copy may have ended when the driver returns, or not;
        // they live until the stream has come to its end, or its context has failed and runs nothing more.
        cuda("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(to, buffer.address(), bytes, self.handle) })?;
        self.synchronize()?;
        Ok(elements)
    }

    /// Marks the place after all work so far.
    pub fn record(&self) -> Result<Event> {
        self.gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32;
        // SAFETY: the result may be written.
        cuda("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        let event = Event { gpu: self.gpu.clone(), handle };
        // SAFETY: both handles are alive.
        cuda("cuEventRecord", unsafe { sys::cuEventRecord(handle, self.handle) })?;
        Ok(event)
    }

    /// Makes later work on this stream wait for the event. The host does not wait.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: both handles are alive.
        cuda("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) })
    }

    /// Waits, on the host, for all work so far.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.bind()?;
        count_wait();
        // SAFETY: the handle is alive.
        cuda("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle) })
    }

    /// Returns true if all work so far has ended.
    pub fn is_done(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: the handle is alive.
        is_ready("cuStreamQuery", unsafe { sys::cuStreamQuery(self.handle) })
    }
}

impl Event {
    /// Returns true if the stream has reached it.
    pub fn is_done(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: the handle is alive.
        is_ready("cuEventQuery", unsafe { sys::cuEventQuery(self.handle) })
    }

    /// Waits, on the host, until the stream has reached it.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.bind()?;
        count_wait();
        // SAFETY: the handle is alive.
        cuda("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }

    /// Milliseconds of the device from an earlier event to this one. Both must be done.
    ///
    /// Errors: CUDA's: `CUDA_ERROR_NOT_READY` if one of them is not done.
    pub fn since(&self, earlier: &Event) -> Result<f32> {
        self.gpu.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: the handles are alive, and the result may be written.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.handle, self.handle) };
        cuda("cuEventElapsedTime", result)?;
        Ok(milliseconds)
    }
}

fn is_ready(call: &'static str, result: CUresult) -> Result<bool> {
    if result == CUresult::CUDA_ERROR_NOT_READY {
        return Ok(false);
    }
    cuda(call, result).map(|()| true)
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (gpu, handle) = (self.gpu.clone(), self.handle);
        // SAFETY: created here and destroyed once. The driver lets its work end; work that a group has collected is issued before.
        comm::free(move || drop(gpu.bind().map(|()| unsafe { sys::cuStreamDestroy_v2(handle) })));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once. Streams that wait for it still do.
        let _ = self.gpu.bind().map(|()| unsafe { sys::cuEventDestroy_v2(self.handle) });
    }
}

// Three kernels, in PTX: no compiler for CUDA is needed to build them. The driver translates them for the device.

const THREADS: u32 = 256;

/// One thread per element: thread i returns immediately if i is not below n.
macro_rules! kernel {
    ($name:literal, $second:literal, $body:literal) => {
        concat!(
            ".visible .entry ",
            $name,
            "(.param .u64 x, .param ",
            $second,
            " second, .param .u64 n)\n{\n",
            ".reg .pred %p<2>;\n.reg .b32 %r<4>;\n.reg .b64 %d<8>;\n.reg .f32 %f<4>;\n",
            "ld.param.u64 %d1, [x];\nld.param.u64 %d2, [n];\n",
            "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n",
            "cvt.u64.u32 %d3, %r3;\nmad.wide.u32 %d4, %r1, %r2, %d3;\n",
            "setp.ge.u64 %p1, %d4, %d2;\n@%p1 bra DONE;\n",
            "cvta.to.global.u64 %d1, %d1;\nshl.b64 %d5, %d4, 2;\nadd.s64 %d1, %d1, %d5;\n",
            $body,
            "st.global.f32 [%d1], %f1;\nDONE:\nret;\n}\n"
        )
    };
}

const PTX: &str = concat!(
    ".version 7.0\n.target sm_75\n.address_size 64\n",
    kernel!("fill", ".f32", "ld.param.f32 %f1, [second];\n"),
    kernel!("scale", ".f32", "ld.global.f32 %f2, [%d1];\nld.param.f32 %f3, [second];\nmul.f32 %f1, %f2, %f3;\n"),
    kernel!(
        "add",
        ".u64",
        "ld.param.u64 %d6, [second];\ncvta.to.global.u64 %d6, %d6;\nadd.s64 %d6, %d6, %d5;\nld.global.f32 %f2, [%d1];\n\
         ld.global.f32 %f3, [%d6];\nadd.f32 %f1, %f2, %f3;\n"
    ),
    "\0"
);

/// The functions of the module, loaded into one context.
struct Kernels {
    fill: CUfunction,
    scale: CUfunction,
    add: CUfunction,
}

impl Kernels {
    pub(crate) fn load(gpu: &Gpu) -> Result<Self> {
        gpu.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: PTX that ends with a zero. The module stays loaded for as long as its context lives.
        cuda("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, PTX.as_ptr().cast()) })?;
        let function = |name: &std::ffi::CStr| {
            let mut function = std::ptr::null_mut();
            // SAFETY: a module that was just loaded, and a string.
            let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            cuda("cuModuleGetFunction", result).map(|()| function)
        };
        Ok(Kernels { fill: function(c"fill")?, scale: function(c"scale")?, add: function(c"add")? })
    }
}

// SAFETY: handles of functions may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; they never change.
unsafe impl Sync for Kernels {}

impl Stream {
    /// Issues a kernel that sets each element.
    pub fn fill(&self, buffer: &Buffer, mut value: f32) -> Result<()> {
        let function = self.gpu().kernels()?.fill;
        self.launch(function, buffer.address(), (&raw mut value).cast(), buffer.len())
    }

    /// Issues a kernel that multiplies each element.
    pub fn scale(&self, buffer: &Buffer, mut factor: f32) -> Result<()> {
        let function = self.gpu().kernels()?.scale;
        self.launch(function, buffer.address(), (&raw mut factor).cast(), buffer.len())
    }

    /// Issues a kernel that adds `other` to `buffer`, element by element, up to the shorter one's length.
    pub fn add(&self, buffer: &Buffer, other: &Buffer) -> Result<()> {
        let function = self.gpu().kernels()?.add;
        let mut address = other.address();
        self.launch(function, buffer.address(), (&raw mut address).cast(), buffer.len().min(other.len()))
    }

    /// Launches a kernel of this module, whose parameters are an address, `second` and a length.
    fn launch(&self, function: CUfunction, mut address: u64, second: *mut c_void, len: usize) -> Result<()> {
        self.gpu().bind()?;
        let mut n = len as u64;
        let mut arguments = [(&raw mut address).cast(), second, (&raw mut n).cast()];
        let blocks = u32::try_from(len.div_ceil(THREADS as usize)).unwrap_or(u32::MAX).max(1);
        // SAFETY: the kernel's three parameters, of its types; the driver copies them before it returns. The kernel stays below `n`,
        // which both buffers have; they are freed only after the work on their device.
        let result = unsafe {
            let (extra, none) = (std::ptr::null_mut(), 0);
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                none,
                self.handle(),
                arguments.as_mut_ptr(),
                extra,
            )
        };
        cuda("cuLaunchKernel", result)
    }
}

//! Streams and events.

use std::cell::Cell;

use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};

use crate::error::{Result, cuda};
use crate::{Buffer, Gpu, group};

thread_local! {
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// The number of times that this thread has waited for a device: `synchronize`, uploads and downloads.
pub fn host_waits() -> u64 {
    WAITS.get()
}

pub(crate) fn count_wait() {
    WAITS.set(WAITS.get() + 1);
}

/// A queue of work for a device. Work on one stream runs in order; nothing orders two streams but an [`Event`].
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
    ///
    /// # Errors
    /// CUDA's.
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
    /// Its device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.handle
    }

    /// New memory with these elements. Waits until they are there.
    ///
    /// # Errors
    /// CUDA's, of this call or of earlier work.
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
    ///
    /// # Errors
    /// CUDA's, of this call or of earlier work.
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
    ///
    /// # Errors
    /// CUDA's.
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
    ///
    /// # Errors
    /// CUDA's.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.gpu.bind()?;
        // SAFETY: both handles are alive.
        cuda("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) })
    }

    /// Waits, on the host, for all work so far.
    ///
    /// # Errors
    /// CUDA's, of any work that was issued before.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.bind()?;
        count_wait();
        // SAFETY: the handle is alive.
        cuda("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.handle) })
    }

    /// Returns true if all work so far has ended.
    ///
    /// # Errors
    /// CUDA's, of any work that was issued before.
    pub fn is_done(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: the handle is alive.
        is_ready("cuStreamQuery", unsafe { sys::cuStreamQuery(self.handle) })
    }
}

impl Event {
    /// Returns true if the stream has come to it.
    ///
    /// # Errors
    /// CUDA's, of any work that was issued before.
    pub fn is_done(&self) -> Result<bool> {
        self.gpu.bind()?;
        // SAFETY: the handle is alive.
        is_ready("cuEventQuery", unsafe { sys::cuEventQuery(self.handle) })
    }

    /// Waits, on the host, until the stream has come to it.
    ///
    /// # Errors
    /// CUDA's, of any work that was issued before.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.bind()?;
        count_wait();
        // SAFETY: the handle is alive.
        cuda("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.handle) })
    }

    /// Milliseconds of the device from an earlier event to this one. Both must be done.
    ///
    /// # Errors
    /// CUDA's: `CUDA_ERROR_NOT_READY` if one of them is not done.
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
        group::free(move || drop(gpu.bind().map(|()| unsafe { sys::cuStreamDestroy_v2(handle) })));
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created here and destroyed once. Streams that wait for it still do.
        let _ = self.gpu.bind().map(|()| unsafe { sys::cuEventDestroy_v2(self.handle) });
    }
}

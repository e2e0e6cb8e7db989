//! NCCL's communicators and their operations.
//!
//! An operation returns once it is queued in its stream. [`Comm::check`] reports errors of other ranks later; an operation that does not
//! match those of the other ranks never ends, unless [`Comm::abort`] ends it.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use crate::library::{self, Error, Result, nccl};
use crate::{Buffer, Gpu, Stream};

/// Identifies one communicator. One rank creates it, the others get its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; UniqueId::BYTES]);

/// How elements of ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Avg,
    Max,
    Min,
}

/// The type as which an operation reads a buffer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// As many floats as the buffer has elements.
    Float,
    /// Twice as many, of IEEE's half precision.
    Half,
    /// Twice as many, with the range of a float and 8 significant bits.
    Bfloat16,
}

/// A call that was issued on a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issued {
    pub call: Call,
    /// The same for the calls of a group, which are one operation, and greater for later ones.
    pub operation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// An operation of all ranks.
    Collective,
    Send {
        to: usize,
    },
    Receive {
        from: usize,
    },
}

/// One rank's communicator. Dropping it aborts it: wait for its streams first.
pub struct Comm {
    /// Taken out when the communicator ends.
    handle: Mutex<Option<Handle>>,
    gpu: Gpu,
    rank: usize,
    size: usize,
    issued: Mutex<Vec<Issued>>,
}

#[derive(Clone, Copy)]
struct Handle(ncclComm_t);

// SAFETY: NCCL lets any thread use a communicator, one at a time; `Comm` has a lock for that.
unsafe impl Send for Handle {}

impl UniqueId {
    pub const BYTES: usize = 128;

    /// A new id. The process that creates it serves the others while they join.
    pub fn new() -> Result<Self> {
        library::open()?;
        let mut id = ncclUniqueId { internal: [0; Self::BYTES] };
        // SAFETY: the result may be written.
        nccl("ncclGetUniqueId", unsafe { sys::ncclGetUniqueId(&mut id) })?;
        Ok(UniqueId(id.internal.map(|byte| byte as u8)))
    }

    /// Its bytes, to send to the other ranks.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id of these bytes. `None` if there are more or fewer than [`UniqueId::BYTES`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(UniqueId)
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({:02x?}…)", &self.0[..4])
    }
}

impl Comm {
    /// Joins as one of `size` ranks, on a device of its own. Waits for all of them.
    ///
    /// Errors: [`Error::Grouped`] in a [`group`](crate::comm).
    pub fn join(gpu: &Gpu, id: &UniqueId, rank: usize, size: usize) -> Result<Self> {
        refuse("ncclCommInitRank")?;
        gpu.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the result may be written, and is written in this call, since no group is open.
        let result = unsafe {
            sys::ncclCommInitRank(
                &mut handle,
                number(size),
                ncclUniqueId { internal: id.0.map(|byte| byte as c_char) },
                number(rank),
            )
        };
        nccl("ncclCommInitRank", result)?;
        Ok(Comm::new(handle, gpu, rank, size))
    }

    /// Joins all ranks from one process: a communicator for each of these devices, with ranks in their order.
    ///
    /// Errors: [`Error::Grouped`] in a [`group`](crate::comm).
    pub fn all(gpus: &[Gpu]) -> Result<Vec<Self>> {
        refuse("ncclCommInitAll")?;
        library::open()?;
        let devices: Vec<c_int> = gpus.iter().map(|gpu| number(gpu.ordinal())).collect();
        let mut handles = vec![std::ptr::null_mut(); gpus.len()];
        // SAFETY: as many results and devices as the count says. The results are written in this call, since no group is open.
        let result = unsafe { sys::ncclCommInitAll(handles.as_mut_ptr(), number(gpus.len()), devices.as_ptr()) };
        nccl("ncclCommInitAll", result)?;
        let each = handles.into_iter().zip(gpus).enumerate();
        Ok(each.map(|(rank, (handle, gpu))| Comm::new(handle, gpu, rank, gpus.len())).collect())
    }

    fn new(handle: ncclComm_t, gpu: &Gpu, rank: usize, size: usize) -> Self {
        let (handle, issued) = (Mutex::new(Some(Handle(handle))), Mutex::default());
        Comm { handle, gpu: gpu.clone(), rank, size, issued }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The collectives, sends and receives that were issued on it, in this order. They say what a stream waits for.
    pub fn issued(&self) -> Vec<Issued> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Combines the elements of all ranks, in place.
    pub fn all_reduce(&self, buffer: &Buffer, how: Reduction, stream: &Stream) -> Result<()> {
        self.all_reduce_as(Element::Float, buffer, how, stream)
    }

    /// As [`all_reduce`](Self::all_reduce), with the buffer's bytes as elements of another type.
    pub fn all_reduce_as(&self, element: Element, buffer: &Buffer, how: Reduction, stream: &Stream) -> Result<()> {
        let (dtype, each) = match element {
            Element::Float => (FLOAT, 1),
            Element::Half => (ncclDataType_t::ncclFloat16, 2),
            Element::Bfloat16 => (ncclDataType_t::ncclBfloat16, 2),
        };
        let (at, len) = (buffer.address(), buffer.len() * each);
        // SAFETY: in place; the buffer has the bytes of this many elements, and is freed only after the work on its device.
        self.issue_as(Call::Collective, "ncclAllReduce", |comm| unsafe {
            sys::ncclAllReduce(at as _, at as _, len, dtype, operation(how), comm, stream.handle().cast())
        })
    }

    /// Replaces the elements by the `root`'s.
    pub fn broadcast(&self, buffer: &Buffer, root: usize, stream: &Stream) -> Result<()> {
        let (at, len) = (buffer.address(), buffer.len());
        // SAFETY: as in `all_reduce`.
        self.issue_as(Call::Collective, "ncclBroadcast", |comm| unsafe {
            sys::ncclBroadcast(at as _, at as _, len, FLOAT, number(root), comm, stream.handle().cast())
        })
    }

    /// Combines `from` of all ranks. Rank r gets the r-th part, as long as `to`.
    ///
    /// Errors: [`Error::Nccl`] if `from` is not as long as the parts of all ranks.
    pub fn reduce_scatter(&self, from: &Buffer, to: &Buffer, how: Reduction, stream: &Stream) -> Result<()> {
        self.lengths("ncclReduceScatter", from, to)?;
        // SAFETY: as in `all_reduce`; `from` has as many elements as all ranks get.
        self.issue_as(Call::Collective, "ncclReduceScatter", |comm| unsafe {
            let (from, to, len) = (from.address() as _, to.address() as _, to.len());
            sys::ncclReduceScatter(from, to, len, FLOAT, operation(how), comm, stream.handle().cast())
        })
    }

    /// Concatenates the elements of all ranks, on every rank.
    ///
    /// Errors: [`Error::Nccl`] if `to` is not as long as the parts of all ranks.
    pub fn all_gather(&self, from: &Buffer, to: &Buffer, stream: &Stream) -> Result<()> {
        self.lengths("ncclAllGather", to, from)?;
        // SAFETY: as in `all_reduce`; `to` has as many elements as all ranks send.
        self.issue_as(Call::Collective, "ncclAllGather", |comm| unsafe {
            let (from, to, len) = (from.address() as _, to.address() as _, from.len());
            sys::ncclAllGather(from, to, len, FLOAT, comm, stream.handle().cast())
        })
    }

    /// Sends elements to a rank, which must receive the same number.
    pub fn send(&self, buffer: &Buffer, to: usize, stream: &Stream) -> Result<()> {
        // SAFETY: as in `all_reduce`.
        self.issue_as(Call::Send { to }, "ncclSend", |comm| unsafe {
            sys::ncclSend(buffer.address() as _, buffer.len(), FLOAT, number(to), comm, stream.handle().cast())
        })
    }

    /// Receives elements from a rank, which must send the same number.
    pub fn recv(&self, buffer: &Buffer, from: usize, stream: &Stream) -> Result<()> {
        // SAFETY: as in `all_reduce`.
        self.issue_as(Call::Receive { from }, "ncclRecv", |comm| unsafe {
            sys::ncclRecv(buffer.address() as _, buffer.len(), FLOAT, number(from), comm, stream.handle().cast())
        })
    }

    /// A communicator of the ranks with the same color, ordered by key. All ranks call it. `None` without a color.
    ///
    /// Errors: [`Error::Grouped`] in a [`group`](crate::comm).
    pub fn split(&self, color: Option<u32>, key: usize) -> Result<Option<Comm>> {
        refuse("ncclCommSplit")?;
        /// `NCCL_SPLIT_NOCOLOR` of nccl.h.
        const NO_COLOR: c_int = -1;
        let color = color.map_or(NO_COLOR, |color| number(color as usize));
        let mut handle = std::ptr::null_mut();
        self.issue("ncclCommSplit", |comm| {
            // SAFETY: the result may be written, and is written in this call, since no group is open; without a configuration the
            // parent's counts.
            unsafe { sys::ncclCommSplit(comm, color, number(key), &mut handle, std::ptr::null_mut()) }
        })?;
        if handle.is_null() {
            return Ok(None);
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a communicator that was just made, and results that may be written.
        unsafe {
            nccl("ncclCommUserRank", sys::ncclCommUserRank(handle, &mut rank))?;
            nccl("ncclCommCount", sys::ncclCommCount(handle, &mut size))?;
        }
        Ok(Some(Comm::new(handle, &self.gpu, rank as usize, size as usize)))
    }

    /// An error of this communicator's work since it was made, such as a rank whose process has ended. Does not wait.
    pub fn check(&self) -> Result<()> {
        let mut found = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the result may be written.
        self.issue("ncclCommGetAsyncError", |comm| unsafe { sys::ncclCommGetAsyncError(comm, &mut found) })?;
        nccl("an operation of the communicator", found)
    }

    /// Ends the communicator and its unfinished operations, without the other ranks. What these operations have written is
    /// undefined. Another thread can call it while one waits for a stream.
    ///
    /// Returns no error if it has ended already. Errors: [`Error::Grouped`] in a [`group`](crate::comm).
    pub fn abort(&self) -> Result<()> {
        refuse("ncclCommAbort")?;
        let Some(Handle(comm)) = self.lock().take() else { return Ok(()) };
        // SAFETY: taken out above, so that nobody uses it again.
        nccl("ncclCommAbort", unsafe { sys::ncclCommAbort(comm) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn issue_as(
        &self,
        call: Call,
        name: &'static str,
        issue: impl FnOnce(ncclComm_t) -> sys::ncclResult_t,
    ) -> Result<()> {
        let operation = if is_open() { OPERATION.get() } else { next_operation() };
        self.issued.lock().unwrap_or_else(PoisonError::into_inner).push(Issued { call, operation });
        self.issue(name, issue)
    }

    fn issue(&self, call: &'static str, issue: impl FnOnce(ncclComm_t) -> sys::ncclResult_t) -> Result<()> {
        self.gpu.bind()?;
        let handle = self.lock();
        let Some(Handle(comm)) = *handle else { return Err(Error::Aborted { call }) };
        nccl(call, issue(comm))
    }

    fn lengths(&self, call: &'static str, whole: &Buffer, part: &Buffer) -> Result<()> {
        if whole.len() == part.len() * self.size {
            return Ok(());
        }
        let text = format!("{} elements are not {} of each of {} ranks", whole.len(), part.len(), self.size);
        Err(Error::Nccl { call, text, detail: None })
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        let Some(Handle(comm)) = self.lock().take() else { return };
        // SAFETY: taken out above, so that nobody uses it again. No group is open then on this thread.
        free(move || drop(nccl("ncclCommAbort", unsafe { sys::ncclCommAbort(comm) })));
    }
}

const FLOAT: ncclDataType_t = ncclDataType_t::ncclFloat32;

fn operation(how: Reduction) -> ncclRedOp_t {
    match how {
        Reduction::Sum => ncclRedOp_t::ncclSum,
        Reduction::Avg => ncclRedOp_t::ncclAvg,
        Reduction::Max => ncclRedOp_t::ncclMax,
        Reduction::Min => ncclRedOp_t::ncclMin,
    }
}

/// Ranks, devices and keys are far below this limit; NCCL refuses larger numbers.
fn number(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

// Grouped calls.

type Free = Box<dyn FnOnce()>;

thread_local! {
    /// The number of nested groups that are open on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The operation that they are.
    static OPERATION: Cell<u64> = const { Cell::new(0) };
    /// What was dropped meanwhile: calls that NCCL has collected may use it.
    static LATER: RefCell<Vec<Free>> = const { RefCell::new(Vec::new()) };
}

fn next_operation() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Runs calls of any communicators as one: they are issued together when `calls` has returned, and their order does not matter.
///
/// Communicators are neither made nor aborted in a group. Buffers, streams and communicators that are dropped in it are freed after its
/// end.
pub fn group<R>(calls: impl FnOnce() -> Result<R>) -> Result<R> {
    library::open()?;
    // SAFETY: takes nothing; ended below, whatever the calls return.
    nccl("ncclGroupStart", unsafe { sys::ncclGroupStart() })?;
    if !is_open() {
        OPERATION.set(next_operation());
    }
    DEPTH.set(DEPTH.get() + 1);
    /// Ends the group, even if the calls panic: otherwise NCCL keeps it open for the thread.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            // Only runs after a panic, so nothing can receive the result.
            let _ = end();
        }
    }
    let open = End;
    let result = calls();
    std::mem::forget(open);
    let ended = end();
    let result = result?;
    ended.map(|()| result)
}

fn end() -> Result<()> {
    // SAFETY: takes nothing.
    let ended = nccl("ncclGroupEnd", unsafe { sys::ncclGroupEnd() });
    DEPTH.set(DEPTH.get() - 1);
    if !is_open() {
        // Taken out first, because freeing may drop more.
        LATER.take().into_iter().for_each(|free| free());
    }
    ended
}

fn is_open() -> bool {
    DEPTH.get() > 0
}

/// The error of a call that cannot wait for the end of a group, since it writes its result only there.
pub(crate) fn refuse(call: &'static str) -> Result<()> {
    if is_open() { Err(Error::Grouped { call }) } else { Ok(()) }
}

/// Frees something now, or after the end of the group that is open on this thread.
pub(crate) fn free(free: impl FnOnce() + 'static) {
    if is_open() {
        LATER.with_borrow_mut(|later| later.push(Box::new(free)));
    } else {
        free();
    }
}

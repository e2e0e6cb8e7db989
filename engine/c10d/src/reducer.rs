//! The DDP reducer, and the collective calls that DDP needs around it.
//!
//! Not here: DDP's part in the training loop (`lockstep::ddp`).

use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, Bytes, ReducerHandle, Status, pointers};
use crate::tensors::{backend_for, check_dense};
use crate::work::Call;
use crate::{Backend, ProcessGroup, Rank, Storage, stragglers};

/// Built-in ways to communicate a bucket; the numbers are c10d's (default_comm_hooks.hpp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CommHook {
    /// Divides by the world size and all-reduces, which is also the behaviour without a hook.
    AllReduce = 1,
    /// The mean, with half-precision values on the wire: half the bytes, 11 bits of mantissa.
    Fp16Compress = 2,
}

/// When the all-reduce of a bucket began and ended, by the system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketTime {
    /// The bucket's number, in the order of reduction.
    pub bucket: usize,
    /// The size of its gradients in bytes.
    pub bytes: usize,
    /// When all its gradients were ready and the all-reduce was started.
    pub started: SystemTime,
    /// When the sum was complete; `None` if the all-reduce failed.
    pub ended: Option<SystemTime>,
}

/// How long [`Reducer::take_bucket_times`] waits for an end: the reducing threads record it after they have woken backward.
const PATIENCE_MS: i64 = 5000;

/// The reducer's options; names and defaults are `torch.nn.parallel.DistributedDataParallel`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReducerOptions {
    /// Capacity of a bucket in bytes.
    pub bucket_bytes_cap: usize,
    /// Capacity in bytes of the bucket that is ready first. It is smaller, so that communication starts early.
    pub first_bucket_bytes_cap: usize,
    /// Searches the graph of each step for parameters without a gradient, so that no rank waits for them.
    pub find_unused_parameters: bool,
    /// Makes each gradient a view of its bucket, which avoids a copy of all gradients.
    pub gradient_as_bucket_view: bool,
    /// The graph is the same in every step. In the first step the reducer counts how often each gradient arrives and reduces
    /// after the pass; from then on a gradient may arrive several times, or never. If a gradient is missing later, the step after
    /// fails, but one that arrives more often may go unnoticed.
    pub static_graph: bool,
}

impl Default for ReducerOptions {
    fn default() -> Self {
        ReducerOptions {
            bucket_bytes_cap: 25 * 1024 * 1024,
            first_bucket_bytes_cap: 1024 * 1024,
            find_unused_parameters: false,
            gradient_as_bucket_view: false,
            static_graph: false,
        }
    }
}

/// Reduces a model's gradients over a group while backward is still computing the others.
///
/// Autograd calls it through hooks on the parameters, so it belongs to the training thread: it is neither `Send` nor
/// `Sync`.
///
/// tch's tensors are `Send`, and a loss carries its graph. On CPUs, backward of these parameters on another thread is
/// refused as `BadArgument` while the reducer lives. On a GPU libtorch runs backward on its own threads, so this cannot
/// be checked: keep the loss on the model's thread, and do not drop the reducer while a backward pass runs elsewhere.
///
/// # Errors
/// `BadArgument` for tensors that do not fit, libtorch's own message for what its reducer refuses (a second forward pass before all
/// gradients of the first were reduced, for example), and where gradients are reduced, those of [`ProcessGroup::all_reduce`].
#[derive(Debug)]
pub struct Reducer {
    handle: NonNull<ReducerHandle>,
    group: Rc<ProcessGroup>,
    /// The backend for the parameters' device.
    backend: Backend,
}

impl Reducer {
    /// Attaches a reducer to the parameters, in the order of their definition. All ranks must pass the same shapes and
    /// dtypes; see [`verify_params`].
    pub fn new(group: Rc<ProcessGroup>, params: &[(String, Tensor)], options: &ReducerOptions) -> Result<Self> {
        Self::with_sparse(group, params, &vec![false; params.len()], options)
    }

    /// As [`new`](Self::new); `sparse` has for each parameter whether its gradients are sparse, as those of an embedding may be.
    /// A sparse gradient is summed separately: all ranks gather the indices and values of all ranks.
    ///
    /// # Errors
    /// As [`new`](Self::new); `BadArgument` for a list of another length. A dense gradient where a sparse one was announced fails
    /// the backward pass, and so does the reverse.
    pub fn with_sparse(
        group: Rc<ProcessGroup>,
        params: &[(String, Tensor)],
        sparse: &[bool],
        options: &ReducerOptions,
    ) -> Result<Self> {
        if sparse.len() != params.len() {
            let detail = format!("`sparse` has {} entries for {} parameters", sparse.len(), params.len());
            return Err(Error::bad_argument("make a reducer", detail).at_rank(group.rank()));
        }
        let tensors: Vec<Tensor> = params.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
        check_dense("make a reducer", &tensors).map_err(|error| error.at_rank(group.rank()))?;
        let names: Vec<&[u8]> = params.iter().map(|(name, _)| name.as_bytes()).collect();
        let mut buckets = assignment(&tensors, sparse, &first_limits(options))?;
        // Gradients become ready roughly in the reverse order of definition.
        buckets.reverse();
        let lengths: Vec<usize> = buckets.iter().map(Vec::len).collect();
        let indices: Vec<usize> = buckets.concat();
        let (list, names, raw) = (pointers(&tensors), Bytes::list(&names), raw_options(options));
        let handle = ffi::made(|out| {
            // SAFETY: all lists outlive the call and have the given lengths; the reducer takes its own references to
            // the group and the tensors.
            unsafe {
                ffi::lc_reducer_new(
                    group.as_ptr(),
                    list.as_ptr(),
                    names.as_ptr(),
                    sparse.as_ptr(),
                    list.len(),
                    lengths.as_ptr(),
                    lengths.len(),
                    indices.as_ptr(),
                    &raw,
                    out,
                )
            }
        })
        .map_err(|exception| Error::new("make a reducer", exception).at_rank(group.rank()))?;
        let backend = backend_for(&group, &tensors);
        Ok(Reducer { handle, group, backend })
    }

    /// Call it before each forward pass whose gradients will be reduced.
    pub fn prepare_for_forward(&self) -> Result<()> {
        // SAFETY: the handle is alive as long as self.
        self.local("prepare for forward", || unsafe { ffi::lc_reducer_prepare_for_forward(self.handle.as_ptr()) })
    }

    /// After the first backward pass, orders the buckets by the time at which gradients became ready on rank 0. Returns
    /// true if it did so now.
    pub fn rebuild_buckets(&self) -> Result<bool> {
        let mut rebuilt = false;
        self.collective("rebuild buckets", || {
            // SAFETY: the handle is alive as long as self; `rebuilt` is ours to be written.
            unsafe { ffi::lc_reducer_rebuild_buckets(self.handle.as_ptr(), &mut rebuilt) }
        })?;
        Ok(rebuilt)
    }

    /// Call it between forward and backward. With `find_unused_parameters`, the search begins at `outputs`.
    pub fn prepare_for_backward(&self, outputs: &[Tensor]) -> Result<()> {
        let outputs = pointers(outputs);
        self.local("prepare for backward", || {
            // SAFETY: the handle is alive as long as self, and the tensors are borrowed for the call.
            unsafe { ffi::lc_reducer_prepare_for_backward(self.handle.as_ptr(), outputs.as_ptr(), outputs.len()) }
        })
    }

    /// Runs backward from a scalar. If [`Reducer::prepare_for_backward`] was called, gradients are reduced during the
    /// pass and are equal on all ranks when it returns; otherwise they only accumulate locally.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        let begun = Instant::now();
        let mut call = Call::pass(self.group.inner(), "backward with gradient all-reduce".into()).on(self.backend);
        // SAFETY: the handle is alive as long as self, and the tensor is borrowed for the call.
        let status = unsafe { ffi::lc_reducer_backward(self.handle.as_ptr(), loss.as_ptr()) };
        // After the start of the last bucket's all-reduce, the pass only waits.
        if let Some(waited) = self.group.since_last_call().filter(|since| *since < begun.elapsed()) {
            stragglers::count_wait(waited);
            call.waited(waited);
        }
        call.end(status.check())
    }

    /// Chooses how buckets are communicated. Call it once, before the first backward pass.
    pub fn register_comm_hook(&self, hook: CommHook) -> Result<()> {
        self.local("register a communication hook", || {
            // SAFETY: the handle is alive as long as self.
            unsafe { ffi::lc_reducer_register_hook(self.handle.as_ptr(), hook as u8) }
        })
    }

    /// Makes the reducer record the time of each bucket's all-reduce, through a communication hook. The plain reducer divides
    /// while it copies gradients; this hook divides in a separate pass. Call it once, before the first backward pass, and without
    /// another hook.
    pub fn time_buckets(&self) -> Result<()> {
        self.local("register a communication hook", || {
            // SAFETY: both handles are alive as long as self; the hook takes its own reference to the group.
            unsafe { ffi::lc_reducer_time_buckets(self.handle.as_ptr(), self.group.as_ptr()) }
        })
    }

    /// The times of the buckets since the last call, in the order in which they were started. Call it after a backward pass.
    pub fn take_bucket_times(&self) -> Result<Vec<BucketTime>> {
        let times = self.list("take the buckets' times", |list, capacity, n| {
            // SAFETY: the handle is alive as long as self; at most `capacity` times are written.
            unsafe { ffi::lc_reducer_take_bucket_times(self.handle.as_ptr(), PATIENCE_MS, list, capacity, n) }
        })?;
        Ok(times.iter().map(BucketTime::of).collect())
    }

    /// The number of gradient elements in each bucket, in the order of reduction.
    pub fn bucket_numels(&self) -> Result<Vec<usize>> {
        let numels: Vec<i64> = self.list("list buckets", |list, capacity, n| {
            // SAFETY: the handle is alive as long as self; at most `capacity` numbers are written.
            unsafe { ffi::lc_reducer_bucket_numels(self.handle.as_ptr(), list, capacity, n) }
        })?;
        Ok(numels.into_iter().map(|numel| usize::try_from(numel).unwrap_or(0)).collect())
    }

    /// The memory of the buckets of dense gradients. With `gradient_as_bucket_view` the gradients lie in it.
    pub fn bucket_storages(&self) -> Result<Vec<Storage>> {
        let mut storages = Vec::new();
        loop {
            // SAFETY: the handle is alive as long as self; both values may be written.
            let found = Storage::made(|handle, id| unsafe {
                ffi::lc_reducer_bucket_storage(self.handle.as_ptr(), storages.len(), handle, id)
            });
            match found.map_err(|exception| Error::new("list buckets", exception))? {
                Some(storage) => storages.push(storage),
                None => return Ok(storages),
            }
        }
    }

    /// The group over which gradients are reduced.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    fn collective(&self, operation: &str, call: impl FnOnce() -> Status) -> Result<()> {
        let record = Call::inside(self.group.inner(), operation.into()).on(self.backend);
        record.end(call().check())
    }

    /// Returns what `call` writes to a list of the given capacity. `call` sets the number of values, and writes none if they
    /// exceed the capacity.
    fn list<T: Clone + Default>(
        &self,
        operation: &str,
        call: impl Fn(*mut T, usize, &mut usize) -> Status,
    ) -> Result<Vec<T>> {
        let (mut n, mut list) = (0, Vec::new());
        loop {
            let capacity = list.len();
            self.local(operation, || call(list.as_mut_ptr(), capacity, &mut n))?;
            list.resize(n, T::default());
            if n <= capacity {
                return Ok(list);
            }
        }
    }

    fn local(&self, operation: &str, call: impl FnOnce() -> Status) -> Result<()> {
        Call::local(self.group.inner(), operation.into()).end(call().check())
    }
}

impl BucketTime {
    fn of(raw: &ffi::BucketTime) -> Self {
        let at = |nanoseconds: i64| UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
        BucketTime {
            bucket: usize::try_from(raw.bucket).unwrap_or(0),
            bytes: usize::try_from(raw.bytes).unwrap_or(0),
            started: at(raw.started),
            ended: (raw.ended != 0).then(|| at(raw.ended)),
        }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once; the reducer removes its hooks from the parameters.
        unsafe { ffi::lc_reducer_free(self.handle.as_ptr()) };
    }
}

fn raw_options(options: &ReducerOptions) -> ffi::ReducerOptions {
    ffi::ReducerOptions {
        bucket_bytes_cap: i64::try_from(options.bucket_bytes_cap).unwrap_or(i64::MAX),
        first_bucket_bytes_cap: i64::try_from(options.first_bucket_bytes_cap).unwrap_or(i64::MAX),
        find_unused_parameters: options.find_unused_parameters,
        gradient_as_bucket_view: options.gradient_as_bucket_view,
        static_graph: options.static_graph,
    }
}

/// The limits before the first step: a single bucket, unless some step may leave out parameters
/// (DistributedDataParallel._ddp_init_helper).
fn first_limits(options: &ReducerOptions) -> Vec<usize> {
    if options.static_graph || !options.find_unused_parameters {
        vec![i64::MAX as usize]
    } else {
        vec![options.first_bucket_bytes_cap, options.bucket_bytes_cap]
    }
}

/// Packs tensors into buckets, in order, by dtype and device. A bucket is closed when it reaches its limit in bytes;
/// the last limit applies to all further buckets. Each bucket lists indices into `tensors`.
pub fn bucket_assignment(tensors: &[Tensor], limits: &[usize]) -> Result<Vec<Vec<usize>>> {
    if tensors.is_empty() || limits.is_empty() {
        return Err(Error::bad_argument("assign buckets", "neither tensors nor limits may be empty"));
    }
    check_dense("assign buckets", tensors)?;
    assignment(tensors, &vec![false; tensors.len()], limits)
}

/// As [`bucket_assignment`], of tensors that have been checked; those with sparse gradients have buckets of their own.
fn assignment(tensors: &[Tensor], sparse: &[bool], limits: &[usize]) -> Result<Vec<Vec<usize>>> {
    if tensors.is_empty() {
        return Err(Error::bad_argument("assign buckets", "there is no parameter to train"));
    }
    let list = pointers(tensors);
    let mut bucket_of = vec![0; tensors.len()];
    let (n, of) = (list.len(), bucket_of.as_mut_ptr());
    // SAFETY: all lists outlive the call, the first two have one entry per tensor; one number per tensor is written.
    let status =
        unsafe { ffi::lc_bucket_assignment(list.as_ptr(), sparse.as_ptr(), n, limits.as_ptr(), limits.len(), of) };
    status.check().map_err(|exception| Error::new("assign buckets", exception))?;
    let mut buckets = vec![Vec::new(); bucket_of.iter().max().map_or(0, |&last| last + 1)];
    for (index, &bucket) in bucket_of.iter().enumerate() {
        buckets[bucket].push(index);
    }
    Ok(buckets)
}

/// Checks that all ranks have as many parameters as rank 0, with the same shapes, strides and dtypes.
///
/// # Errors
/// `Mismatch` on the ranks that differ, and on rank 0; `BadArgument` without parameters, before anything is sent.
pub fn verify_params(group: &ProcessGroup, params: &[Tensor]) -> Result<()> {
    const OPERATION: &str = "compare parameter shapes";
    if params.is_empty() {
        // libtorch reads the first parameter unchecked.
        return Err(Error::bad_argument(OPERATION, "there is no parameter to train").at_rank(group.rank()));
    }
    check_dense(OPERATION, params).map_err(|error| error.at_rank(group.rank()))?;
    let list = pointers(params);
    let record = Call::inside(group.inner(), OPERATION.into()).on(backend_for(group, params));
    // SAFETY: the group is alive, and the tensors are borrowed for the call.
    record.end(unsafe { ffi::lc_verify_params(group.as_ptr(), list.as_ptr(), list.len()) }.check())
}

/// Copies the root's tensors to all ranks, packed into messages of at most `buffer_bytes`.
pub fn broadcast_coalesced(group: &ProcessGroup, tensors: &[Tensor], buffer_bytes: usize, root: Rank) -> Result<()> {
    let operation = format!("broadcast {} tensors from rank {root}", tensors.len());
    group.check_member(&operation, root)?;
    check_dense(&operation, tensors).map_err(|error| error.at_rank(group.rank()))?;
    let list = pointers(tensors);
    let record = Call::inside(group.inner(), operation).on(backend_for(group, tensors));
    let _waiting = stragglers::waiting();
    // SAFETY: the group is alive, and the tensors are borrowed for the call.
    let status = unsafe {
        ffi::lc_broadcast_coalesced(group.as_ptr(), list.as_ptr(), list.len(), buffer_bytes, root.get() as i32)
    };
    record.end(status.check())
}

/// Runs backward from a scalar, without a group.
pub fn backward(loss: &Tensor) -> Result<()> {
    let begun = Instant::now();
    // SAFETY: the tensor is borrowed for the call.
    let status = unsafe { ffi::lc_backward(loss.as_ptr()) };
    status.check().map_err(|exception| Error::new("backward", exception).after(begun.elapsed()))
}

/// Returns true if autograd records the computations of this thread, that is, outside `tch::no_grad`.
pub fn grad_enabled() -> bool {
    // SAFETY: takes nothing and reads a flag of the calling thread.
    unsafe { ffi::lc_grad_enabled() }
}

/// Clears a gradient, as `zero_grad(set_to_none=True)` does.
///
/// tch's own `zero_grad` detaches the gradient in place, which would disconnect it from its bucket.
pub fn clear_grad(tensor: &mut Tensor) -> Result<()> {
    // SAFETY: the tensor is borrowed exclusively for the call.
    let status = unsafe { ffi::lc_grad_to_none(tensor.as_ptr()) };
    status.check().map_err(|exception| Error::new("clear a gradient", exception))
}

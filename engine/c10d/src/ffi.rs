//! The C boundary: the functions that `shim/*.cpp` exports, and helpers that turn each into one safe call.
//!
//! Not here: the meaning of arguments and failures, which the modules above define.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use tch::Tensor;
use torch_sys::C_tensor;

/// A pointer to a tensor that the callee borrows.
pub(crate) type TensorPtr = *const C_tensor;

/// `Body` of `shim/autograd.cpp`.
pub(crate) type CheckpointBody = unsafe extern "C" fn(*mut c_void, *mut C_tensor, *mut c_char, usize) -> *mut C_tensor;

/// The class of a caught C++ exception; the numbers are those of `shim::Kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Timeout,
    Network,
    Store,
    Argument,
    Other,
}

/// A C++ exception.
#[derive(Clone, Debug)]
pub(crate) struct Exception {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

/// `shim::Status`.
#[repr(C)]
#[must_use]
pub(crate) struct Status {
    kind: i32,
    message: *mut c_char,
}

impl Status {
    /// Takes ownership of the message and frees it.
    pub(crate) fn check(self) -> Result<(), Exception> {
        let kind = match self.kind {
            0 => return Ok(()),
            1 => Kind::Timeout,
            2 => Kind::Network,
            3 => Kind::Store,
            4 => Kind::Argument,
            _ => Kind::Other,
        };
        if self.message.is_null() {
            return Err(Exception { kind, message: "out of memory while reporting an error".into() });
        }
        // SAFETY: a failed status carries a NUL-terminated string that the shim allocated for this caller.
        let message = unsafe { CStr::from_ptr(self.message) }.to_string_lossy().into_owned();
        // SAFETY: the shim made it with malloc, and this is its only release.
        unsafe { lc_message_free(self.message) };
        Err(Exception { kind, message })
    }
}

/// `shim::Bytes`: a slice of bytes that the callee borrows for the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Bytes { data: bytes.as_ptr(), size: bytes.len() }
    }

    pub(crate) fn list<T: AsRef<[u8]>>(items: &[T]) -> Vec<Self> {
        items.iter().map(|item| Bytes::new(item.as_ref())).collect()
    }
}

/// Declares types that are opaque to Rust.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(StoreHandle, BackendHandle, GroupHandle, ArrivalsHandle, WorkHandle, ReducerHandle, StorageHandle, Blobs);

/// `shim::MemberConfig`.
#[repr(C)]
pub(crate) struct MemberConfig {
    pub(crate) store: *const StoreHandle,
    pub(crate) group_name: Bytes,
    pub(crate) rank: i32,
    pub(crate) size: i32,
    pub(crate) global_ranks: *const u64,
    pub(crate) timeout_ms: i64,
}

/// `MemoryRequest` of `shim/two_levels.cpp`.
#[repr(C)]
pub(crate) struct MemoryRequest {
    /// `shm::Reach`.
    pub(crate) reach: u8,
    pub(crate) or_gloo: bool,
    pub(crate) compares: bool,
    pub(crate) host: Bytes,
    pub(crate) page: usize,
}

/// `Options` of `shim/reducer.cpp`.
#[repr(C)]
pub(crate) struct ReducerOptions {
    pub(crate) bucket_bytes_cap: i64,
    pub(crate) first_bucket_bytes_cap: i64,
    pub(crate) find_unused_parameters: bool,
    pub(crate) gradient_as_bucket_view: bool,
    pub(crate) static_graph: bool,
}

/// `Message` of `shim/group.cpp`.
#[repr(C)]
pub(crate) struct Message {
    pub(crate) tensor: TensorPtr,
    pub(crate) peer: i32,
    pub(crate) tag: i32,
    pub(crate) sends: bool,
}

/// `BucketTime` of `shim/reducer.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct BucketTime {
    pub(crate) bucket: i64,
    pub(crate) bytes: i64,
    pub(crate) started: i64,
    pub(crate) ended: i64,
}

/// `SgdStep` of `shim/kernels.cpp`.
#[repr(C)]
pub(crate) struct SgdStep {
    pub(crate) lr: f64,
    pub(crate) momentum: f64,
    pub(crate) dampening: f64,
    pub(crate) weight_decay: f64,
    pub(crate) nesterov: bool,
    pub(crate) maximize: bool,
    pub(crate) is_first_step: bool,
}

/// `AdamStep` of `shim/kernels.cpp`.
#[repr(C)]
pub(crate) struct AdamStep {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) decoupled: bool,
    pub(crate) amsgrad: bool,
    pub(crate) maximize: bool,
}

/// `AutocastState` of `shim/autocast.hpp`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct AutocastState {
    dtype: i32,
    enabled: bool,
    cuda: bool,
}

/// `c10::DeviceType` of host memory.
pub(crate) const CPU: i32 = 0;

/// `TensorFacts` of `shim/kernels.cpp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TensorFacts {
    pub(crate) defined: bool,
    /// One dense block of memory with strides: not sparse, not a list of tensors.
    pub(crate) strided: bool,
    /// The memory holds all values, without lazy operations.
    pub(crate) in_storage: bool,
    pub(crate) contiguous: bool,
    /// `c10::ScalarType`.
    pub(crate) kind: i32,
    /// `c10::DeviceType`.
    pub(crate) device_type: i32,
    pub(crate) device_index: i32,
    /// The size of an element in bytes.
    pub(crate) item_size: i64,
    pub(crate) numel: i64,
    pub(crate) address: u64,
}

/// The Rust functions that `shim/hooks.cpp` calls.
pub(crate) type PackCall = unsafe extern "C" fn(*const C_tensor, *mut *mut c_void, *mut c_char, usize) -> bool;
pub(crate) type UnpackCall = unsafe extern "C" fn(*const c_void, *mut c_char, usize) -> *mut C_tensor;
pub(crate) type HookCall = unsafe extern "C" fn(*const c_void, *mut c_char, usize) -> bool;
pub(crate) type FreeCall = unsafe extern "C" fn(*mut c_void);

/// Pointers to tensors that stay borrowed during the call.
pub(crate) fn pointers(tensors: &[Tensor]) -> Vec<TensorPtr> {
    tensors.iter().map(Tensor::as_ptr).collect()
}

/// Calls a constructor of the shim: `make` writes the pointer if it succeeds.
pub(crate) fn made<T>(make: impl FnOnce(*mut *mut T) -> Status) -> Result<ptr::NonNull<T>, Exception> {
    let mut out = ptr::null_mut();
    make(&mut out).check()?;
    ptr::NonNull::new(out).ok_or_else(|| Exception { kind: Kind::Other, message: "the shim returned no object".into() })
}

/// Takes ownership of byte strings that the shim created.
pub(crate) fn blobs(make: impl FnOnce(*mut *mut Blobs) -> Status) -> Result<Vec<Vec<u8>>, Exception> {
    let blobs = made(make)?;
    // SAFETY: `made` returned a live object, which is ours until it is freed below.
    let n = unsafe { lc_blobs_len(blobs.as_ptr()) };
    let items = (0..n)
        .map(|i| {
            // SAFETY: i < n, and the object is alive.
            let bytes = unsafe { lc_blobs_at(blobs.as_ptr(), i) };
            if bytes.size == 0 {
                return Vec::new();
            }
            // SAFETY: the slice belongs to the object, which is freed only after this copy.
            unsafe { std::slice::from_raw_parts(bytes.data, bytes.size) }.to_vec()
        })
        .collect();
    // SAFETY: freed once; no borrow of it is left.
    unsafe { lc_blobs_free(blobs.as_ptr()) };
    Ok(items)
}

// Every function is noexcept in C++. Pointers are borrowed for the call, except those named `out`.
unsafe extern "C" {
    pub(crate) fn lc_message_free(message: *mut c_char);
    pub(crate) fn lc_blobs_len(blobs: *const Blobs) -> usize;
    pub(crate) fn lc_blobs_at(blobs: *const Blobs, i: usize) -> Bytes;
    pub(crate) fn lc_blobs_free(blobs: *mut Blobs);

    pub(crate) fn lc_store_tcp(
        host: Bytes,
        port: u16,
        is_server: bool,
        world_size: i64,
        wait_workers: bool,
        multi_tenant: bool,
        timeout_ms: i64,
        out: *mut *mut StoreHandle,
        bound_port: *mut u16,
    ) -> Status;
    pub(crate) fn lc_store_file(path: Bytes, workers: i32, timeout_ms: i64, out: *mut *mut StoreHandle) -> Status;
    pub(crate) fn lc_store_hash(timeout_ms: i64, out: *mut *mut StoreHandle) -> Status;
    pub(crate) fn lc_store_prefix(prefix: Bytes, base: *const StoreHandle, out: *mut *mut StoreHandle) -> Status;
    pub(crate) fn lc_store_clone(store: *const StoreHandle, out: *mut *mut StoreHandle) -> Status;
    pub(crate) fn lc_store_free(store: *mut StoreHandle);
    pub(crate) fn lc_store_set(store: *const StoreHandle, key: Bytes, value: Bytes) -> Status;
    pub(crate) fn lc_store_get(store: *const StoreHandle, key: Bytes, out: *mut *mut Blobs) -> Status;
    pub(crate) fn lc_store_add(store: *const StoreHandle, key: Bytes, delta: i64, out: *mut i64) -> Status;
    pub(crate) fn lc_store_wait(store: *const StoreHandle, keys: *const Bytes, n: usize, timeout_ms: i64) -> Status;
    pub(crate) fn lc_store_check(store: *const StoreHandle, keys: *const Bytes, n: usize, out: *mut bool) -> Status;
    pub(crate) fn lc_store_compare_set(
        store: *const StoreHandle,
        key: Bytes,
        expected: Bytes,
        desired: Bytes,
        out: *mut *mut Blobs,
    ) -> Status;
    pub(crate) fn lc_store_delete(store: *const StoreHandle, key: Bytes, out: *mut bool) -> Status;
    pub(crate) fn lc_store_append(store: *const StoreHandle, key: Bytes, value: Bytes) -> Status;
    pub(crate) fn lc_store_multi_get(
        store: *const StoreHandle,
        keys: *const Bytes,
        n: usize,
        out: *mut *mut Blobs,
    ) -> Status;
    pub(crate) fn lc_store_multi_set(
        store: *const StoreHandle,
        keys: *const Bytes,
        values: *const Bytes,
        n: usize,
    ) -> Status;
    pub(crate) fn lc_store_num_keys(store: *const StoreHandle, out: *mut i64) -> Status;
    pub(crate) fn lc_store_list_keys(store: *const StoreHandle, out: *mut *mut Blobs) -> Status;
    pub(crate) fn lc_store_queue_push(store: *const StoreHandle, key: Bytes, value: Bytes) -> Status;
    pub(crate) fn lc_store_queue_pop(
        store: *const StoreHandle,
        key: Bytes,
        block: bool,
        out: *mut *mut Blobs,
    ) -> Status;
    pub(crate) fn lc_store_queue_len(store: *const StoreHandle, key: Bytes, out: *mut i64) -> Status;
    pub(crate) fn lc_store_set_timeout(store: *const StoreHandle, timeout_ms: i64) -> Status;
    pub(crate) fn lc_store_timeout_ms(store: *const StoreHandle) -> i64;

    pub(crate) fn lc_cuda_is_hooked() -> bool;

    pub(crate) fn lc_use_deterministic_algorithms(on: bool) -> Status;
    pub(crate) fn lc_cpu_capability() -> *const c_char;
    pub(crate) fn lc_is_channels_last(tensor: TensorPtr) -> bool;
    pub(crate) fn lc_channels_last(tensor: TensorPtr, out: *mut *mut C_tensor) -> Status;
    pub(crate) fn lc_to_channels_last(tensor: *mut C_tensor) -> Status;
    pub(crate) fn lc_pin_memory(tensor: TensorPtr, out: *mut *mut C_tensor) -> Status;
    pub(crate) fn lc_one_thread_here() -> Status;
    pub(crate) fn lc_peak_memory(device: i32, bytes: *mut i64) -> Status;
    pub(crate) fn lc_reset_peak_memory(device: i32) -> Status;

    pub(crate) fn lc_tensor_facts(tensor: TensorPtr, out: *mut TensorFacts) -> Status;

    pub(crate) fn lc_backend_gloo(
        member: *const MemberConfig,
        interface: Bytes,
        host: Bytes,
        out: *mut *mut BackendHandle,
    ) -> Status;
    pub(crate) fn lc_backend_memory(
        member: *const MemberConfig,
        request: *const MemoryRequest,
        interface: Bytes,
        host: Bytes,
        out: *mut *mut BackendHandle,
        why: *mut *mut Blobs,
        is_two_levels: *mut bool,
        guard_compares: *mut bool,
    ) -> Status;
    pub(crate) fn lc_caller_waits(waits: bool);
    pub(crate) fn lc_backend_compare_calls(
        backend: *mut BackendHandle,
        member: *const MemberConfig,
        interface: Bytes,
        host: Bytes,
    ) -> Status;
    pub(crate) fn lc_backend_guard(backend: *mut BackendHandle, compare: bool) -> Status;
    pub(crate) fn lc_backend_free(backend: *mut BackendHandle);
    pub(crate) fn lc_group_new(
        store: *const StoreHandle,
        member: *const MemberConfig,
        cpu: *const BackendHandle,
        cuda: *const BackendHandle,
        out: *mut *mut GroupHandle,
    ) -> Status;
    pub(crate) fn lc_group_free(group: *mut GroupHandle, give_up: bool);
    pub(crate) fn lc_group_set_timeout(group: *const GroupHandle, timeout_ms: i64) -> Status;
    pub(crate) fn lc_group_abort(group: *const GroupHandle) -> Status;
    pub(crate) fn lc_group_traffic(group: *const GroupHandle, calls: *mut u64, bytes: *mut u64) -> bool;
    pub(crate) fn lc_group_since_last_call(group: *const GroupHandle) -> i64;
    pub(crate) fn lc_group_arrivals(group: *const GroupHandle) -> *mut ArrivalsHandle;
    pub(crate) fn lc_arrivals_read(
        arrivals: *const ArrivalsHandle,
        seconds: *mut f64,
        n: usize,
        now_for: *mut i32,
        now_seconds: *mut f64,
    ) -> bool;
    pub(crate) fn lc_arrivals_free(arrivals: *mut ArrivalsHandle);

    pub(crate) fn lc_broadcast(
        group: *mut GroupHandle,
        tensor: TensorPtr,
        root: i64,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_all_reduce(
        group: *mut GroupHandle,
        tensor: TensorPtr,
        op: u8,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_all_reduce_sparse(group: *mut GroupHandle, tensor: TensorPtr, timeout_ms: i64) -> Status;
    pub(crate) fn lc_reduce(
        group: *mut GroupHandle,
        tensor: TensorPtr,
        root: i64,
        op: u8,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_all_gather(
        group: *mut GroupHandle,
        outputs: *const TensorPtr,
        n: usize,
        input: TensorPtr,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_all_gather_into_tensor(
        group: *mut GroupHandle,
        output: TensorPtr,
        input: TensorPtr,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_gather(
        group: *mut GroupHandle,
        outputs: *const TensorPtr,
        n: usize,
        input: TensorPtr,
        root: i64,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_scatter(
        group: *mut GroupHandle,
        output: TensorPtr,
        inputs: *const TensorPtr,
        n: usize,
        root: i64,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_reduce_scatter(
        group: *mut GroupHandle,
        output: TensorPtr,
        inputs: *const TensorPtr,
        n: usize,
        op: u8,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_reduce_scatter_tensor(
        group: *mut GroupHandle,
        output: TensorPtr,
        input: TensorPtr,
        op: u8,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_all_to_all_single(
        group: *mut GroupHandle,
        output: TensorPtr,
        input: TensorPtr,
        output_splits: *const i64,
        n_output: usize,
        input_splits: *const i64,
        n_input: usize,
        timeout_ms: i64,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_barrier(group: *mut GroupHandle, timeout_ms: i64, out: *mut *mut WorkHandle) -> Status;
    pub(crate) fn lc_monitored_barrier(group: *mut GroupHandle, timeout_ms: i64, wait_all_ranks: bool) -> Status;
    pub(crate) fn lc_send(
        group: *mut GroupHandle,
        tensor: TensorPtr,
        peer: i32,
        tag: i32,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_recv(
        group: *mut GroupHandle,
        tensor: TensorPtr,
        peer: i32,
        tag: i32,
        out: *mut *mut WorkHandle,
    ) -> Status;
    pub(crate) fn lc_batch(
        group: *mut GroupHandle,
        messages: *const Message,
        n: usize,
        works: *mut *mut WorkHandle,
    ) -> Status;

    pub(crate) fn lc_work_wait(work: *mut WorkHandle, timeout_ms: i64) -> Status;
    pub(crate) fn lc_work_is_completed(work: *mut WorkHandle, out: *mut bool) -> Status;
    pub(crate) fn lc_work_source_rank(work: *const WorkHandle, out: *mut i32) -> Status;
    pub(crate) fn lc_work_free(work: *mut WorkHandle);

    pub(crate) fn lc_bucket_assignment(
        tensors: *const TensorPtr,
        sparse: *const bool,
        n: usize,
        limits: *const usize,
        n_limits: usize,
        bucket_of: *mut usize,
    ) -> Status;
    pub(crate) fn lc_reducer_new(
        group: *mut GroupHandle,
        params: *const TensorPtr,
        names: *const Bytes,
        sparse: *const bool,
        n: usize,
        bucket_lengths: *const usize,
        n_buckets: usize,
        bucket_indices: *const usize,
        options: *const ReducerOptions,
        out: *mut *mut ReducerHandle,
    ) -> Status;
    pub(crate) fn lc_reducer_free(reducer: *mut ReducerHandle);
    pub(crate) fn lc_reducer_prepare_for_forward(reducer: *mut ReducerHandle) -> Status;
    pub(crate) fn lc_reducer_rebuild_buckets(reducer: *mut ReducerHandle, rebuilt: *mut bool) -> Status;
    pub(crate) fn lc_reducer_prepare_for_backward(
        reducer: *mut ReducerHandle,
        outputs: *const TensorPtr,
        n: usize,
    ) -> Status;
    pub(crate) fn lc_reducer_backward(reducer: *mut ReducerHandle, loss: TensorPtr) -> Status;
    pub(crate) fn lc_reducer_register_hook(reducer: *mut ReducerHandle, hook: u8) -> Status;
    pub(crate) fn lc_reducer_time_buckets(reducer: *mut ReducerHandle, group: *mut GroupHandle) -> Status;
    pub(crate) fn lc_reducer_take_bucket_times(
        reducer: *mut ReducerHandle,
        patience_ms: i64,
        times: *mut BucketTime,
        capacity: usize,
        n: *mut usize,
    ) -> Status;
    pub(crate) fn lc_reducer_bucket_numels(
        reducer: *mut ReducerHandle,
        numels: *mut i64,
        capacity: usize,
        n: *mut usize,
    ) -> Status;
    pub(crate) fn lc_reducer_bucket_storage(
        reducer: *mut ReducerHandle,
        bucket: usize,
        out: *mut *mut StorageHandle,
        id: *mut u64,
    ) -> Status;
    pub(crate) fn lc_verify_params(group: *mut GroupHandle, params: *const TensorPtr, n: usize) -> Status;
    pub(crate) fn lc_broadcast_coalesced(
        group: *mut GroupHandle,
        tensors: *const TensorPtr,
        n: usize,
        buffer_bytes: usize,
        root: i32,
    ) -> Status;
    pub(crate) fn lc_sync_batch_norm(
        group: *mut GroupHandle,
        input: TensorPtr,
        weight: TensorPtr,
        bias: TensorPtr,
        eps: f64,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn lc_paired(
        group: *mut GroupHandle,
        input: TensorPtr,
        forward: i64,
        backward: i64,
        dim: i64,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn lc_rows_exchanged(
        group: *mut GroupHandle,
        input: TensorPtr,
        sends: *const i64,
        receives: *const i64,
        n: usize,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn lc_checkpoint(
        input: TensorPtr,
        body: CheckpointBody,
        free: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        out: *mut *mut C_tensor,
    ) -> Status;
    pub(crate) fn lc_backward(loss: TensorPtr) -> Status;
    pub(crate) fn lc_grad_enabled() -> bool;
    pub(crate) fn lc_grad_to_none(tensor: TensorPtr) -> Status;
    pub(crate) fn lc_grad_add(tensor: TensorPtr, grad: TensorPtr) -> Status;
    pub(crate) fn lc_saved_tensors_init(pack: PackCall, unpack: UnpackCall, free: FreeCall) -> Status;
    pub(crate) fn lc_saved_tensors_hook(on: bool) -> bool;
    pub(crate) fn lc_gradient_hook(tensor: TensorPtr, call: HookCall, free: FreeCall, data: *mut c_void) -> Status;

    pub(crate) fn lc_storage_of(tensor: TensorPtr, out: *mut *mut StorageHandle, id: *mut u64) -> Status;
    pub(crate) fn lc_storage_bytes(handle: *const StorageHandle) -> u64;
    pub(crate) fn lc_storage_free(handle: *mut StorageHandle);

    pub(crate) fn lc_fused_sgd(
        params: *const TensorPtr,
        grads: *const TensorPtr,
        n: usize,
        buffers: *const TensorPtr,
        n_buffers: usize,
        step: *const SgdStep,
    ) -> Status;
    pub(crate) fn lc_fused_adam(
        params: *const TensorPtr,
        grads: *const TensorPtr,
        averages: *const TensorPtr,
        squares: *const TensorPtr,
        steps: *const TensorPtr,
        n: usize,
        max_squares: *const TensorPtr,
        n_max: usize,
        step: *const AdamStep,
    ) -> Status;

    pub(crate) fn lc_autocast_enter(cuda: bool, half: bool, enabled: bool, before: *mut AutocastState) -> Status;
    pub(crate) fn lc_autocast_leave(before: *const AutocastState) -> Status;
    pub(crate) fn lc_unscale(
        grads: *const TensorPtr,
        n: usize,
        found_inf: TensorPtr,
        inverse_scale: TensorPtr,
    ) -> Status;
}

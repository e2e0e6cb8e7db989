//! NCCL's entry points: communicators between processes and within one.
//!
//! The process that creates a unique id serves it: one of its threads, the hub, listens on the interface that `NCCL_SOCKET_IFNAME`
//! names, or on the loopback device if it is not set. Each rank of a communicator connects to the hub and sends it its operations;
//! the hub answers an operation once all ranks have sent the same one. Operations that do not match are never answered: their ranks
//! wait until somebody aborts, or fail at the device's deadline.
//!
//! Stricter than NCCL: a send ends only when its receive has begun, however short it is. Not here: an upper limit on the number of
//! channels, protocols, other networks than TCP over IPv4, and the wait for connections in the first use of an algorithm or peer.

mod comm;
mod hub;
mod reduce;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use comm::Part;
use getifaddrs::getifaddrs;
use hub::{Kind, UniqueId};

use crate::{Cuda, Nccl, cuda, world};

pub(crate) use comm::Exchange;

/// 2.30.0, the version whose bindings the course uses.
const VERSION: c_int = 23000;
/// `ncclConfig_t`'s color of a rank that joins no new communicator.
const NO_COLOR: c_int = -1;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps the reason for `ncclGetLastError`.
fn refuse(error: Nccl, why: impl Into<String>) -> Nccl {
    LAST_ERROR.set(CString::new(format!("simulated device: {}", why.into())).unwrap_or_default());
    error
}

unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Nccl> {
    if to.is_null() {
        return Err(refuse(Nccl::INVALID_ARGUMENT, "a result has nowhere to go: the pointer is null"));
    }
    // SAFETY: not null, and the caller's to write.
    unsafe { to.write(value) };
    Ok(())
}

fn current() -> Result<usize, Nccl> {
    cuda::current().ok_or_else(|| refuse(Nccl::UNHANDLED_CUDA_ERROR, "the thread has no device: set one before"))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(to: *mut c_int) -> Nccl {
    // SAFETY: a result of the caller's.
    unsafe { give(to, VERSION) }.into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(to: *mut UniqueId) -> Nccl {
    let id = hub::new_id().map_err(|error| refuse(Nccl::SYSTEM_ERROR, format!("cannot listen for ranks: {error}")));
    // SAFETY: a result of the caller's.
    id.and_then(|id| unsafe { give(to, id) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(to: *mut *mut c_void, size: c_int, id: UniqueId, rank: c_int) -> Nccl {
    let join = || {
        if rank < 0 || rank >= size || to.is_null() {
            return Err(refuse(Nccl::INVALID_ARGUMENT, format!("rank {rank} of {size}")));
        }
        let join = comm::Join { id, rank: rank as u32, size: size as u32, device: current()?, to: to as usize };
        comm::join(join)
    };
    join().into()
}

/// The configuration is ignored: it tells NCCL what to use, and there is nothing to choose from here.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    to: *mut *mut c_void,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    _config: *mut c_void,
) -> Nccl {
    // SAFETY: NCCL's contract, passed on.
    unsafe { ncclCommInitRank(to, size, id, rank) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitAll(to: *mut *mut c_void, size: c_int, devices: *const c_int) -> Nccl {
    let join = || {
        if to.is_null() || size < 1 {
            return Err(refuse(Nccl::INVALID_ARGUMENT, format!("communicators for {size} devices")));
        }
        let id = hub::new_id().map_err(|error| refuse(Nccl::SYSTEM_ERROR, error.to_string()))?;
        let device = |rank: usize| {
            // SAFETY: NCCL's contract: null, or as many numbers.
            let number = if devices.is_null() { rank as c_int } else { unsafe { devices.add(rank).read() } };
            let number = usize::try_from(number).ok().filter(|number| *number < world::lock().devices.len());
            number.ok_or_else(|| refuse(Nccl::INVALID_ARGUMENT, format!("there is no device for rank {rank}")))
        };
        let all = (0..size as usize).map(|rank| {
            let to = to.wrapping_add(rank) as usize;
            Ok::<_, Nccl>(comm::Join { id, rank: rank as u32, size: size as u32, device: device(rank)?, to })
        });
        comm::join_all(all.collect::<Result<_, Nccl>>()?)
    };
    join().into()
}

/// All ranks of the communicator call it. Waits for the operations before it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommSplit(
    handle: *mut c_void,
    color: c_int,
    key: c_int,
    to: *mut *mut c_void,
    _config: *mut c_void,
) -> Nccl {
    let split = || {
        let comm = comm::get(handle)?;
        if color < NO_COLOR || to.is_null() {
            return Err(refuse(Nccl::INVALID_ARGUMENT, format!("color {color}")));
        }
        comm.finish()?;
        let new = comm.split(color, key)?;
        // SAFETY: a result of the caller's.
        unsafe { give(to, new.map_or(std::ptr::null_mut(), comm::add)) }
    };
    split().into()
}

/// Ends the communicator and its unfinished operations. Never waits for other ranks.
#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: *mut c_void) -> Nccl {
    comm::take(handle).map(|comm| comm.abort()).into()
}

/// Waits for the communicator's operations, then ends it.
#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: *mut c_void) -> Nccl {
    let destroy = || {
        let comm = comm::get(handle)?;
        let finished = comm.finish();
        comm::take(handle)?.abort();
        finished
    };
    destroy().into()
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(handle: *mut c_void) -> Nccl {
    comm::get(handle).and_then(|comm| comm.finish()).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, to: *mut Nccl) -> Nccl {
    // SAFETY: a result of the caller's.
    comm::get(handle).and_then(|comm| unsafe { give(to, comm.error()) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(handle: *mut c_void, to: *mut c_int) -> Nccl {
    // SAFETY: a result of the caller's.
    comm::get(handle).and_then(|comm| unsafe { give(to, comm.size as c_int) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(handle: *mut c_void, to: *mut c_int) -> Nccl {
    // SAFETY: a result of the caller's.
    comm::get(handle).and_then(|comm| unsafe { give(to, comm.rank as c_int) }).into()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCuDevice(handle: *mut c_void, to: *mut c_int) -> Nccl {
    // SAFETY: a result of the caller's.
    comm::get(handle).and_then(|comm| unsafe { give(to, comm.device as c_int) }).into()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(error: Nccl) -> *const c_char {
    error.text().as_ptr()
}

/// The reason for this thread's last error, valid until the next error.
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    LAST_ERROR.with_borrow(|text| text.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> Nccl {
    comm::start_group();
    Nccl::SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> Nccl {
    comm::end_group().into()
}

/// Checks an operation's arguments and issues it, or keeps it for the end of the group.
fn operation(
    kind: Kind,
    buffers: (u64, u64),
    count: usize,
    kinds: (u32, u32),
    other: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    let (dtype, op) = kinds;
    let issue = || {
        let comm = comm::get(comm)?;
        let size = reduce::size(dtype)
            .ok_or_else(|| refuse(Nccl::INVALID_ARGUMENT, format!("it has no data type {dtype}")))?;
        if !reduce::knows(op) {
            return Err(refuse(Nccl::INVALID_ARGUMENT, format!("it has no reduction {op}")));
        }
        if other < 0 || other as u32 >= comm.size {
            return Err(refuse(Nccl::INVALID_ARGUMENT, format!("rank {other} of {}", comm.size)));
        }
        let stream = world::call().stream_of(stream as u64, Some(comm.device));
        let stream =
            stream.map_err(|error: Cuda| refuse(Nccl::UNHANDLED_CUDA_ERROR, format!("CUDA's error {}", error.0)))?;
        let (send, recv) = buffers;
        let part = Part { kind, send, recv, count: count as u64, size, dtype, op, other: other as u32 };
        comm::issue(Arc::clone(&comm), part, stream)
    };
    issue().into()
}

const NONE: u32 = 0;

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: u32,
    op: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    operation(Kind::AllReduce, (from, to), count, (dtype, op), 0, comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    from: u64,
    to: u64,
    count: usize,
    dtype: u32,
    op: u32,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    operation(Kind::Reduce, (from, to), count, (dtype, op), root, comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    from: u64,
    to: u64,
    count: usize,
    dtype: u32,
    root: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    operation(Kind::Broadcast, (from, to), count, (dtype, NONE), root, comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    from: u64,
    to: u64,
    count: usize,
    dtype: u32,
    op: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    operation(Kind::ReduceScatter, (from, to), count, (dtype, op), 0, comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    from: u64,
    to: u64,
    count: usize,
    dtype: u32,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    operation(Kind::AllGather, (from, to), count, (dtype, NONE), 0, comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    from: u64,
    count: usize,
    dtype: u32,
    peer: c_int,
    comm: *mut c_void,
    stream: *mut c_void,
) -> Nccl {
    operation(Kind::Send, (from, 0), count, (dtype, NONE), peer, comm, stream)
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(to: u64, count: usize, dtype: u32, peer: c_int, comm: *mut c_void, stream: *mut c_void) -> Nccl {
    operation(Kind::Recv, (0, to), count, (dtype, NONE), peer, comm, stream)
}

// Where a hub listens, and how ranks tell machines apart: NCCL's variables `NCCL_SOCKET_IFNAME` and `NCCL_HOSTID`.

/// Without the variable, or if it is empty, ranks of this machine only can connect. NCCL itself would choose an interface.
fn address() -> io::Result<Ipv4Addr> {
    let rule = std::env::var("NCCL_SOCKET_IFNAME").unwrap_or_default();
    if rule.is_empty() {
        return Ok(Ipv4Addr::LOCALHOST);
    }
    let interfaces: Vec<(String, Ipv4Addr)> = getifaddrs()?
        .filter_map(|entry| match entry.address.ip_addr() {
            Some(IpAddr::V4(address)) => Some((entry.name, address)),
            _ => None,
        })
        .collect();
    chosen(&rule, &interfaces).ok_or_else(|| {
        let names: Vec<&str> = interfaces.iter().map(|(name, _)| name.as_str()).collect();
        io::Error::other(format!(
            "NCCL_SOCKET_IFNAME={rule} names no interface with an IPv4 address; there are {}",
            names.join(", ")
        ))
    })
}

/// The first interface that matches the rule: beginnings of names with commas, whole names after `=`, all others after `^`.
fn chosen(rule: &str, interfaces: &[(String, Ipv4Addr)]) -> Option<Ipv4Addr> {
    let (rule, is_negated) = rule.strip_prefix('^').map_or((rule, false), |rest| (rest, true));
    let (rule, is_whole) = rule.strip_prefix('=').map_or((rule, false), |rest| (rest, true));
    let fits = |name: &str| {
        let named = |one: &str| if is_whole { name == one } else { name.starts_with(one) };
        rule.split(',').filter(|one| !one.is_empty()).any(named) != is_negated
    };
    interfaces.iter().find(|(name, _)| fits(name)).map(|(_, address)| *address)
}

/// A number that identifies this machine.
fn host() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    match std::env::var("NCCL_HOSTID") {
        Ok(id) => id.hash(&mut hasher),
        Err(_) => (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id")).hash(&mut hasher),
    }
    hasher.finish()
}

/// A random number, which other programs cannot guess.
fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_beginnings_whole_names_or_all_others() {
        let of = |last| Ipv4Addr::new(10, 0, 0, last);
        let interfaces =
            [("lo", of(1)), ("eth0", of(2)), ("eth01", of(3)), ("ib0", of(4))].map(|(name, at)| (name.to_owned(), at));
        for (rule, found) in [
            ("eth", Some(2)),
            ("ib,eth", Some(2)),
            ("=eth01", Some(3)),
            ("=eth", None),
            ("^lo", Some(2)),
            ("^lo,eth", Some(4)),
            ("^=lo,eth0", Some(3)),
            ("wlan", None),
            ("", None),
        ] {
            assert_eq!(chosen(rule, &interfaces), found.map(of), "{rule}");
        }
    }
}

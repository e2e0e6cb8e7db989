//! Grouped calls: what a thread issues between `ncclGroupStart` and `ncclGroupEnd` is issued at the end, together.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread;

use super::comm::{self, Comm};
use super::exchange::{Exchange, Part};
use super::refuse;
use super::wire::UniqueId;
use crate::codes::{Cuda, Nccl};
use crate::cuda;
use crate::streams::Operation;
use crate::world;

/// A rank that joins, and where its communicator goes.
pub(super) struct Join {
    pub(super) id: UniqueId,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) device: usize,
    /// The address of an `ncclComm_t`.
    pub(super) to: usize,
}

/// Calls with their streams.
type Parts = Vec<(Part, u64)>;

#[derive(Default)]
struct Group {
    depth: u32,
    joins: Vec<Join>,
    parts: Vec<(Arc<Comm>, Part, u64)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(super) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

pub(super) fn join(join: Join) -> Result<(), Nccl> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.joins.push(join));
        return Ok(());
    }
    join_all(vec![join])
}

/// Ranks of one thread have to join at once: each waits for the others.
pub(super) fn join_all(joins: Vec<Join>) -> Result<(), Nccl> {
    let threads = joins.into_iter().map(|join| {
        thread::spawn(move || {
            let Join { id, rank, size, device, to } = join;
            // The reason is the thread's own, so it comes back with the error.
            let joined = cuda::on_device(device, || Comm::join(&id, rank, size, device));
            (to, joined.map_err(|error| (error, super::LAST_ERROR.with_borrow(Clone::clone))))
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut failed = Ok(());
    for thread in threads {
        match thread.join() {
            // SAFETY: NCCL's contract: where a communicator goes may be written until the group ends, and this is its end.
            Ok((to, Ok(joined))) => unsafe { (to as *mut *mut c_void).write(comm::add(joined)) },
            Ok((_, Err((error, why)))) => {
                super::LAST_ERROR.set(why);
                failed = Err(error);
            }
            Err(_) => failed = Err(refuse(Nccl::SYSTEM_ERROR, "a thread ended")),
        }
    }
    failed
}

pub(super) fn issue(comm: Arc<Comm>, part: Part, stream: u64) -> Result<(), Nccl> {
    if is_open() {
        GROUP.with_borrow_mut(|group| group.parts.push((comm, part, stream)));
        return Ok(());
    }
    enqueue(comm, vec![(part, stream)])
}

pub(super) fn end() -> Result<(), Nccl> {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(if group.depth == 0 { std::mem::take(group) } else { Group::default() })
    });
    let group = ended.ok_or_else(|| refuse(Nccl::INVALID_USAGE, "ncclGroupEnd without ncclGroupStart"))?;
    if !group.joins.is_empty() {
        join_all(group.joins)?;
    }
    let mut together: Vec<(Arc<Comm>, Parts)> = Vec::new();
    for (comm, part, stream) in group.parts {
        match together.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &comm)) {
            Some((_, parts)) => parts.push((part, stream)),
            None => together.push((comm, vec![(part, stream)])),
        }
    }
    together.into_iter().try_for_each(|(comm, parts)| enqueue(comm, parts))
}

/// Issues parts of one communicator on the first of their streams. The others wait for it, and it for them; and all of it for what the
/// communicator was given before, on whatever stream.
fn enqueue(comm: Arc<Comm>, parts: Parts) -> Result<(), Nccl> {
    let first = parts[0].1;
    let others: Vec<u64> = parts.iter().map(|(_, stream)| *stream).filter(|stream| *stream != first).collect();
    let parts = parts.into_iter().map(|(part, _)| part).collect();
    let mut world = world::call();
    let issue = || {
        let before = comm.last().into_iter().chain(others.iter().map(|stream| (*stream, world.tail(*stream))));
        for (stream, number) in before.collect::<Vec<_>>() {
            if stream != first && !world.is_done(stream, number) {
                world.issue(first, Operation::WaitFor(stream, number))?;
            }
        }
        let number = world.issue(first, Operation::Exchange(Exchange { comm: Arc::clone(&comm), parts }))?;
        comm.follow((first, number));
        others.iter().try_for_each(|stream| world.issue(*stream, Operation::WaitFor(first, number)).map(|_| ()))
    };
    issue().map_err(|error: Cuda| refuse(Nccl::UNHANDLED_CUDA_ERROR, format!("CUDA's error {}", error.0)))
}

//! Deaths of processes, in the order in which the kernel saw them.
//!
//! Process descriptors (pidfd_open(2)) become readable when their process has ended. They are gathered in an epoll
//! instance of our own, whose list of ready descriptors is first in, first out (epoll(7), fs/eventpoll.c); the runtime
//! waits for that instance alone. Its own list would do, too, but it wakes tasks and keeps no order among them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// As many deaths as are taken from the kernel at once.
const AT_ONCE: usize = 64;

/// The processes that are watched. What it tells of is no longer watched.
pub(super) struct Watch {
    ready: AsyncFd<OwnedFd>,
    told: VecDeque<u64>,
}

impl Watch {
    /// # Panics
    /// Outside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Watch { ready: listen(epoll)?, told: VecDeque::new() })
    }

    /// Watches a child of this process; `name` is what its death will be told by. Each name is told once.
    pub(super) fn add(&self, pidfd: &impl AsFd, name: u64) -> io::Result<()> {
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(self.ready.get_ref(), pidfd, epoll::EventData::new_u64(name), once)?)
    }

    /// The next that has died. Cancelling loses none.
    pub(super) async fn next(&mut self) -> io::Result<u64> {
        loop {
            if let Some(name) = self.told.pop_front() {
                return Ok(name);
            }
            let mut guard = self.ready.readable().await?;
            let dead = take(guard.get_inner())?;
            if dead.is_empty() {
                guard.clear_ready();
            }
            self.told.extend(dead);
        }
    }
}

fn take(epoll: &OwnedFd) -> io::Result<Vec<u64>> {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(AT_ONCE);
    let at_once = Timespec::try_from(Duration::ZERO).unwrap_or_default();
    loop {
        match epoll::wait(epoll, spare_capacity(&mut events), Some(&at_once)) {
            Ok(_) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Lets the runtime wait until a descriptor is readable.
pub(super) fn listen(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor may change while it is registered; an `OwnedFd`'s never does. What replaces
    // it is unsafe, so that the caller vouches for the same.
    #[allow(deprecated)]
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// A descriptor for a child of this process, or for another one that the caller then looks at again.
pub(super) fn open(pid: Pid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for one process's end, or until it is too late. Blocks.
pub(super) fn await_end(pidfd: &OwnedFd, until: Instant) {
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()
    }

    /// Kills the processes in this order, each once the one before has died, while nobody listens; returns the order told.
    async fn order_told(order: &[usize]) -> Vec<u64> {
        let mut watch = Watch::new().unwrap();
        let mut children: Vec<Child> = order.iter().map(|_| sleeper()).collect();
        let fds: Vec<OwnedFd> = children.iter().map(|child| open(Pid::from_child(child)).unwrap()).collect();
        for (name, fd) in fds.iter().enumerate() {
            watch.add(fd, name as u64).unwrap();
        }
        for &victim in order {
            children[victim].kill().unwrap();
            children[victim].wait().unwrap();
        }
        let mut told = vec![];
        for _ in order {
            told.push(watch.next().await.unwrap());
        }
        told
    }

    #[tokio::test(flavor = "current_thread")]
    async fn tells_deaths_in_their_order_though_nobody_listened() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1], [1, 2, 0], [0, 2, 1]].repeat(5) {
            assert_eq!(order_told(&order).await, order.map(|name| name as u64));
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn tells_more_deaths_than_it_takes_at_once() {
        let order: Vec<usize> = (0..AT_ONCE + 6).rev().collect();
        let expected: Vec<u64> = order.iter().map(|name| *name as u64).collect();
        assert_eq!(order_told(&order).await, expected);
    }
}

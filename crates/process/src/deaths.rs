//! Deaths of processes, in the order in which the kernel saw them.
//!
//! Process descriptors (pidfd_open(2)) become readable when their process has ended. They are gathered in an epoll
//! instance, whose list of ready descriptors is first in, first out (epoll(7), fs/eventpoll.c). A runtime can wait for
//! that instance; its own list would not do, since it wakes tasks and keeps no order among them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// The number of deaths that one call reads from the kernel.
const AT_ONCE: usize = 64;

/// The set of watched processes. Its descriptor is readable while there is a death to report.
#[derive(Debug)]
pub struct Deaths {
    epoll: OwnedFd,
}

impl Deaths {
    /// An empty set.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Self> {
        Ok(Deaths { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches a process by its descriptor. Its death is reported once, as `name`.
    ///
    /// # Errors
    /// The system's error.
    pub fn add(&self, pidfd: &impl AsFd, name: u64) -> io::Result<()> {
        self.register(pidfd, name, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
    }

    /// Also watches this descriptor: reports `name` whenever it is readable.
    pub(super) fn add_descriptor(&self, fd: &impl AsFd, name: u64) -> io::Result<()> {
        self.register(fd, name, epoll::EventFlags::IN)
    }

    fn register(&self, fd: &impl AsFd, name: u64, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(name), flags)?)
    }

    /// The names of all processes that have died since the last call, in the order of their deaths. Waits for the first
    /// until the deadline, or without a limit if there is none; empty if the deadline has passed.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let mut names = self.take(deadline)?;
        let mut taken = names.len();
        while taken == AT_ONCE {
            let more = self.take(Some(Instant::now()))?;
            taken = more.len();
            names.extend(more);
        }
        Ok(names)
    }

    fn take(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(AT_ONCE);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A time too long for the kernel's clock is no limit.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref()) {
                Ok(_) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Deaths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::Process;

    /// Kills the processes in this order, each after the previous one has died, while the set is not read; returns the
    /// reported order.
    fn order_reported(order: &[usize]) -> Vec<u64> {
        let deaths = Deaths::new().unwrap();
        let sleeper = |_| Process::start(Command::new("sleep").arg("1000").stdin(Stdio::null())).unwrap();
        let mut sleepers: Vec<Process> = order.iter().map(sleeper).collect();
        for (name, sleeper) in sleepers.iter().enumerate() {
            deaths.add(sleeper, name as u64).unwrap();
        }
        for &victim in order {
            sleepers[victim].child.kill().unwrap();
            sleepers[victim].child.wait().unwrap();
        }
        let reported = deaths.wait(None).unwrap();
        assert!(deaths.wait(Some(Instant::now())).unwrap().is_empty(), "each is reported once");
        reported
    }

    #[test]
    fn reports_deaths_in_their_order_even_if_it_is_read_later() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1], [1, 2, 0], [0, 2, 1]].repeat(5) {
            assert_eq!(order_reported(&order), order.map(|name| name as u64));
        }
    }

    #[test]
    fn reports_more_deaths_than_one_call_reads() {
        let order: Vec<usize> = (0..AT_ONCE + 6).rev().collect();
        let expected: Vec<u64> = order.iter().map(|name| *name as u64).collect();
        assert_eq!(order_reported(&order), expected);
    }
}

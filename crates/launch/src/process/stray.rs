//! Processes that workers left behind, and how they are ended.
//!
//! The agent is a child subreaper (prctl(2)): whatever a worker started, however often it forked and began sessions of
//! its own, becomes the agent's own child when its parents have died. So strays are found among the agent's children,
//! and killing one brings up the next generation. A child is no stray while it is known, or while it is in the agent's
//! own session: a worker's descendants never get there, and what else the agent's process started stays there.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, pidfd_send_signal, waitpid};
use tokio::time::{Instant, timeout_at};

use super::proc::{self, Stat};
use super::watch;

/// A process that a worker had left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its process id.
    pub pid: u32,
    /// The name of its program, as the kernel has it (15 bytes).
    pub name: String,
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// They were killed.
    pub killed: Vec<Stray>,
    /// They were still there when the time was over: held in the kernel, as by a broken file system.
    pub left: Vec<Stray>,
}

/// Which of a worker's leavings to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose<'a> {
    /// No worker lives: everything that is not known.
    Anyone,
    /// Others live: only what is in these sessions.
    Sessions(&'a [i32]),
}

impl Stray {
    fn of(stat: &Stat) -> Self {
        Stray { pid: stat.pid as u32, name: stat.name.clone() }
    }
}

impl Swept {
    /// With those that were `there` before the sweep, and ended too soon to be found in it.
    pub(super) fn with(mut self, there: Vec<Stray>) -> Self {
        let known = |stray: &Stray| self.killed.contains(stray) || self.left.contains(stray);
        let missed: Vec<Stray> = there.into_iter().filter(|stray| !known(stray)).collect();
        self.killed.extend(missed);
        self
    }
}

/// The strays among the agent's children.
pub(super) fn strays<'a>(
    children: &'a [Stat],
    own_session: i32,
    known: &'a dyn Fn(i32) -> bool,
    whose: Whose<'a>,
) -> impl Iterator<Item = &'a Stat> {
    children.iter().filter(move |child| {
        let wanted = match whose {
            Whose::Anyone => true,
            Whose::Sessions(sessions) => sessions.contains(&child.session),
        };
        wanted && child.session != own_session && !known(child.pid)
    })
}

/// The strays that are there now, of the first generation.
pub(super) fn living(known: &dyn Fn(i32) -> bool, whose: Whose<'_>) -> Vec<Stray> {
    let children = children();
    strays(&children, own_session(), known, whose).filter(|stat| !stat.is_dead()).map(Stray::of).collect()
}

/// Kills strays, generation after generation, and reaps them.
pub(super) async fn sweep(known: &dyn Fn(i32) -> bool, whose: Whose<'_>, deadline: Instant) -> Swept {
    let own_session = own_session();
    let mut swept = Swept::default();
    loop {
        let children = children();
        let mut found = strays(&children, own_session, known, whose).peekable();
        if found.peek().is_none() {
            return swept;
        }
        if Instant::now() >= deadline {
            swept.left = found.filter(|stat| !stat.is_dead()).map(Stray::of).collect();
            swept.killed.retain(|stray| !swept.left.contains(stray));
            return swept;
        }
        let found: Vec<&Stat> = found.collect();
        let dying: Vec<(i32, OwnedFd)> = found.iter().filter_map(|stat| kill(stat)).collect();
        let new = found.iter().filter(|stat| !stat.is_dead()).map(|stat| Stray::of(stat));
        let new: Vec<Stray> = new.filter(|stray| !swept.killed.contains(stray)).collect();
        swept.killed.extend(new);
        for (pid, pidfd) in dying {
            await_end(pidfd, deadline).await;
            reap(pid);
        }
    }
}

/// Reaps the strays that have ended by themselves.
pub(super) fn reap_dead(known: &dyn Fn(i32) -> bool) {
    let children = children();
    for stray in strays(&children, own_session(), known, Whose::Anyone).filter(|stat| stat.is_dead()) {
        reap(stray.pid);
    }
}

/// The agent's own session; 0 when its leader is outside the agent's process id namespace, as in a container.
fn own_session() -> i32 {
    let own = getpid().as_raw_pid();
    Stat::of(own).map_or(own, |stat| stat.session)
}

fn children() -> Vec<Stat> {
    proc::children().into_iter().filter_map(Stat::of).collect()
}

/// Kills a child with its whole group. The child is unreaped, so its id and its group's are no others'.
fn kill(child: &Stat) -> Option<(i32, OwnedFd)> {
    let pidfd = watch::open(Pid::from_raw(child.pid)?).ok()?;
    if let Some(group) = Pid::from_raw(child.group) {
        // The group is of the child's session, which is not the agent's.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    Some((child.pid, pidfd))
}

async fn await_end(pidfd: OwnedFd, deadline: Instant) {
    let Ok(ended) = watch::listen(pidfd) else { return };
    // Too late is seen by the caller: the process is still there.
    let _ = timeout_at(deadline, ended.readable()).await;
}

/// Reaps a child if it has ended.
pub(super) fn reap(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    while let Err(rustix::io::Errno::INTR) = waitpid(Some(pid), WaitOptions::NOHANG) {}
}

/// Makes this process the parent of all orphans among its descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(pid: i32, session: i32) -> Stat {
        Stat { pid, name: "x".into(), state: 'S', parent: 1, group: session, session, start: 5 }
    }

    #[test]
    fn counts_those_that_were_gone_before_the_sweep_once() {
        let stray = |pid| Stray::of(&child(pid, 300));
        let swept = Swept { killed: vec![stray(1)], left: vec![stray(2)] }.with(vec![stray(1), stray(2), stray(3)]);
        assert_eq!(swept, Swept { killed: vec![stray(1), stray(3)], left: vec![stray(2)] });
    }

    fn found(children: &[Stat], whose: Whose<'_>) -> Vec<i32> {
        strays(children, 100, &|pid| pid == 200, whose).map(|stat| stat.pid).collect()
    }

    #[test]
    fn a_stray_is_unknown_and_in_a_foreign_session() {
        let children = [child(200, 200), child(201, 200), child(202, 202), child(203, 100)];
        assert_eq!(found(&children, Whose::Anyone), [201, 202]);
    }

    #[test]
    fn while_others_live_only_the_sessions_of_the_dead_are_swept() {
        let children = [child(200, 200), child(201, 200), child(202, 202)];
        assert_eq!(found(&children, Whose::Sessions(&[200])), [201]);
    }
}

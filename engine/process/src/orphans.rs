//! Orphans: processes that workers left behind.
//!
//! The agent is a child subreaper (prctl(2)): every process that a worker started, however often it forked and began
//! new sessions, becomes a child of the agent when its parents have died. So orphans are found among the agent's
//! children, and killing one generation reveals the next.
//!
//! Not every unknown child descends from a worker. A program that becomes the agent by `exec` passes its children on,
//! and their orphans come to the agent, too; so does every orphan of a container in which the agent is process 1. Only
//! a process in a worker's session, or with the agent's [id](AgentId), is an orphan of this agent. The others
//! are left alone, and reaped when they have ended.
//!
//! The id identifies the processes of an agent even after the agent itself has ended.
//!
//! A worker gets the id in two places before its program starts, and its descendants inherit both:
//! - a variable in its environment, [`AGENT`];
//! - its soft limit on file locks (`RLIMIT_LOCKS`), set to the agent's id. Linux has ignored this limit since 2.4.25
//!   (getrlimit(2)) but still passes it on over fork and exec, so that daemons that cleared their environment have it,
//!   too.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getrlimit, kill_process_group, pidfd_send_signal, setrlimit,
};

use crate::proc::{self, Stat, Status};
use crate::process::{self, reap};

/// A process that a worker left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub pid: u32,
    /// The name of its program as the kernel stores it (15 bytes).
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub killed: Vec<Orphan>,
    /// Orphans that were still alive at the deadline: they hang in the kernel, as on a broken file system.
    pub left: Vec<Orphan>,
}

/// Which orphans to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepScope<'a> {
    /// No worker is alive: every orphan.
    All,
    /// Some workers are alive: only orphans in these sessions.
    Sessions(&'a [i32]),
}

impl Orphan {
    pub(super) fn of(stat: &Stat) -> Self {
        Orphan { pid: stat.pid as u32, name: stat.name.clone() }
    }
}

impl Swept {
    /// Adds orphans that are not known yet to the killed ones.
    pub(super) fn add(&mut self, found: Vec<Orphan>) {
        let known = |orphan: &Orphan| self.killed.contains(orphan) || self.left.contains(orphan);
        let new: Vec<Orphan> = found.into_iter().filter(|orphan| !known(orphan)).collect();
        self.killed.extend(new);
    }

    /// Records that these are still alive.
    pub(super) fn abandon(&mut self, left: Vec<Orphan>) {
        self.killed.retain(|orphan| !left.contains(orphan));
        self.left = left;
    }
}

/// The agent's children that existed before its first worker, by process id and start time.
#[derive(Debug, Default)]
pub(super) struct EarlierChildren(BTreeSet<(i32, u64)>);

impl EarlierChildren {
    /// The children that exist now; most agents have none.
    pub(super) fn here() -> Self {
        if !proc::has_children() {
            return EarlierChildren::default();
        }
        let children = proc::children().into_iter().filter_map(Stat::of);
        EarlierChildren(children.map(|child| (child.pid, child.start)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, child: &Stat) -> bool {
        self.0.contains(&(child.pid, child.start))
    }
}

/// What identifies a child as an orphan of a worker.
pub(super) struct OrphanCriteria<'a> {
    /// The agent's own session, which no descendant of a worker can join; see [`own_session`].
    pub(super) own_session: i32,
    /// Workers that are not reaped yet, each of which leads a session; sorted.
    pub(super) workers: &'a [i32],
    pub(super) reaper: i32,
    pub(super) earlier: &'a EarlierChildren,
    /// Returns true if a process has the agent's id.
    pub(super) has_id: &'a dyn Fn(i32) -> bool,
}

impl OrphanCriteria<'_> {
    /// The orphans among the agent's children.
    fn orphans<'a>(&'a self, children: &'a [Stat], scope: SweepScope<'a>) -> impl Iterator<Item = &'a Stat> {
        children.iter().filter(move |child| {
            let wanted = match scope {
                SweepScope::All => true,
                SweepScope::Sessions(sessions) => sessions.contains(&child.session),
            };
            wanted && self.is_orphan(child)
        })
    }

    fn is_orphan(&self, child: &Stat) -> bool {
        let excluded = self.is_known(child.pid) || self.earlier.has(child) || child.session == self.own_session;
        !excluded && (self.is_worker(child.session) || (self.has_id)(child.pid))
    }

    fn is_known(&self, pid: i32) -> bool {
        pid == self.reaper || self.is_worker(pid)
    }

    fn is_worker(&self, pid: i32) -> bool {
        self.workers.binary_search(&pid).is_ok()
    }

    /// Returns true if the agent's only children are workers and the reaper.
    pub(super) fn covers_all_children(&self) -> bool {
        proc::children().into_iter().all(|pid| self.is_known(pid))
    }

    /// The agent's children except workers and the reaper.
    fn others(&self) -> Vec<Stat> {
        proc::children().into_iter().filter(|pid| !self.is_known(*pid)).filter_map(Stat::of).collect()
    }
}

/// The orphans that exist now and are direct children of the agent, including dead ones.
pub(super) fn present(criteria: &OrphanCriteria<'_>, scope: SweepScope<'_>) -> Vec<Stat> {
    criteria.orphans(&criteria.others(), scope).cloned().collect()
}

/// Describes the orphans that are alive.
pub(super) fn living(orphans: &[Stat]) -> Vec<Orphan> {
    orphans.iter().filter(|stat| !stat.is_dead()).map(Orphan::of).collect()
}

/// Describes those that would have lived on: a signal to a worker's group, which reaches them too, has not ended them.
pub(super) fn going_on(orphans: &[Stat]) -> Vec<Orphan> {
    let goes_on = |stat: &&Stat| !stat.is_dead() && Status::of(stat.pid).is_some_and(|status| !status.is_ending());
    orphans.iter().filter(goes_on).map(Orphan::of).collect()
}

/// Reaps all children that have ended, orphans or not, except workers and the reaper.
pub(super) fn reap_dead(criteria: &OrphanCriteria<'_>) {
    criteria.others().iter().filter(|child| child.is_dead()).for_each(|child| reap(child.pid));
}

/// The agent's own session; 0 if the session's leader is outside the agent's process id namespace, as in a container.
pub(super) fn own_session() -> i32 {
    let own = getpid().as_raw_pid();
    Stat::of(own).map_or(own, |stat| stat.session)
}

/// Kills a child and its process group. The child is not reaped yet, so neither id can refer to anything else.
pub(super) fn kill(child: &Stat) -> Option<OwnedFd> {
    let pidfd = process::open(Pid::from_raw(child.pid)?).ok()?;
    if let Some(group) = Pid::from_raw(child.group) {
        // The group is in the child's session, which is not the agent's.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    Some(pidfd)
}

/// Makes this process the parent of all its orphaned descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

/// The variable in every worker's environment that lists the agents it belongs to: their ids, from the outermost to the
/// innermost, joined by colons.
pub const AGENT: &str = "LOCKSTEP_AGENT";

/// An id of an agent, unique on this machine: a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgentId(u64);

impl AgentId {
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        // Far from all limits that people set, and not "unlimited".
        Ok(AgentId((u64::from_ne_bytes(bytes) >> 1) | 1 << 62))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok().map(AgentId)).flatten()
    }

    /// The value of [`AGENT`] for a process of this agent, which itself runs under the agents `outer`.
    pub(super) fn joined(self, outer: Option<OsString>) -> OsString {
        match outer {
            Some(mut ids) if !ids.is_empty() => {
                ids.push(format!(":{self}"));
                ids
            }
            _ => self.to_string().into(),
        }
    }

    /// Returns true if a value of [`AGENT`] names this agent.
    fn is_in(self, value: &OsStr) -> bool {
        value.as_bytes().split(|byte| *byte == b':').any(|part| part == self.to_string().as_bytes())
    }

    /// The soft limit on file locks that carries the id.
    pub(super) fn lock_limit(self) -> u64 {
        self.0
    }

    /// Returns true if a process has the id in one of the two places.
    pub(super) fn is_of(self, pid: i32) -> bool {
        proc::lock_limit(pid) == Some(self.0) || proc::variable(pid, AGENT).is_some_and(|value| self.is_in(&value))
    }
}

impl std::fmt::Display for AgentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Sets this process's limit on file locks to the id of the innermost agent in [`AGENT`].
pub(super) fn set_limit() {
    let marker = std::env::var(AGENT).unwrap_or_default();
    let Some(AgentId(id)) = marker.rsplit(':').next().and_then(AgentId::parse) else { return };
    let maximum = getrlimit(Resource::Locks).maximum;
    // If the hard limit is lower, which is unusual, only the variable identifies the process.
    let _ = setrlimit(Resource::Locks, Rlimit { current: Some(id), maximum });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn child(pid: i32, session: i32) -> Stat {
        Stat {
            pid,
            name: "x".into(),
            state: 'S',
            parent: 1,
            group: session,
            session,
            used: Duration::ZERO,
            used_by_children: Duration::ZERO,
            start: 5,
        }
    }

    #[test]
    fn counts_orphans_that_ended_before_the_sweep_once() {
        let orphan = |pid| Orphan::of(&child(pid, 300));
        let mut swept = Swept { killed: vec![orphan(1)], left: vec![orphan(2)] };
        swept.add(vec![orphan(1), orphan(2), orphan(3)]);
        assert_eq!(swept, Swept { killed: vec![orphan(1), orphan(3)], left: vec![orphan(2)] });
    }

    #[test]
    fn counts_orphans_that_stay_alive_as_left() {
        let orphan = |pid| Orphan::of(&child(pid, 300));
        let mut swept = Swept { killed: vec![orphan(1), orphan(2)], left: vec![] };
        swept.abandon(vec![orphan(2)]);
        assert_eq!(swept, Swept { killed: vec![orphan(1)], left: vec![orphan(2)] });
    }

    /// Process 200 is a worker, 300 the reaper, 400 a stranger, and everything from 500 has the id.
    fn found(children: &[Stat], scope: SweepScope<'_>) -> Vec<i32> {
        let earlier = EarlierChildren([(400, 5), (500, 4)].into());
        let criteria = OrphanCriteria {
            own_session: 100,
            workers: &[200],
            reaper: 300,
            earlier: &earlier,
            has_id: &|pid| pid >= 500,
        };
        criteria.orphans(children, scope).map(|stat| stat.pid).collect()
    }

    #[test]
    fn an_orphan_is_in_a_workers_session_or_has_the_id() {
        let children = [child(200, 200), child(201, 200), child(202, 202), child(203, 100), child(300, 300)];
        assert_eq!(found(&children, SweepScope::All), [201]);
        let children = [child(501, 501), child(502, 100), child(503, 200)];
        assert_eq!(found(&children, SweepScope::All), [501, 503]);
    }

    #[test]
    fn a_child_from_before_is_spared_and_a_later_process_with_its_pid_is_not() {
        let children = [child(400, 400), child(401, 400), child(500, 500)];
        assert_eq!(found(&children, SweepScope::All), [500]);
    }

    #[test]
    fn while_some_workers_are_alive_only_the_sessions_of_dead_ones_are_swept() {
        let children = [child(200, 200), child(201, 200), child(502, 502)];
        assert_eq!(found(&children, SweepScope::Sessions(&[200])), [201]);
    }

    #[test]
    fn a_marker_names_each_agent_from_the_outermost_in() {
        let [outer, inner] = [AgentId::random().unwrap(), AgentId::random().unwrap()];
        assert_ne!(outer, inner);
        assert_eq!(outer.joined(None), outer.joined(Some("".into())));
        let both = inner.joined(Some(outer.joined(None)));
        assert_eq!(both, OsString::from(format!("{outer}:{inner}")));
        assert!(outer.is_in(&both) && inner.is_in(&both));
        assert!(!outer.is_in(OsStr::new("")) && !outer.is_in(OsStr::new(&format!("x{outer}"))));
    }

    #[test]
    fn an_id_comes_back_from_its_text() {
        let id = AgentId::random().unwrap();
        assert_eq!(AgentId::parse(&id.to_string()), Some(id));
        assert_eq!(AgentId::parse("12"), None);
    }
}

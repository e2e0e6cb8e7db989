//! The id of an agent, which identifies its processes even after the agent itself has ended.
//!
//! A worker gets the id in two places before its program starts, and its descendants inherit both:
//! - a variable in its environment, [`AGENT`];
//! - its soft limit on file locks (`RLIMIT_LOCKS`), set to the agent's id. Linux has ignored this limit since 2.4.25
//!   (getrlimit(2)) but still passes it on over fork and exec, so that daemons that cleared their environment have it,
//!   too.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::proc;

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
    use super::*;

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

//! The limit of open files: a job of a thousand workers needs thousands of them in its agent, while many systems let a process
//! have 1,024 unless it asks for more.
//!
//! The soft limit is low for the sake of programs that use `select`(2), so workers get the one that the agent was started with.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The hard limit forbids as many open files as are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{workers} workers on this node take {needed} open files in their agent, but it may have {hard} at most: raise the hard \
     limit (`ulimit -Hn`, LimitNOFILE= of a systemd unit, nofile in /etc/security/limits.conf) or lower --nproc-per-node"
)]
pub struct TooFewFiles {
    /// Workers of this node.
    pub workers: usize,
    /// Open files that they take.
    pub needed: u64,
    /// The hard limit.
    pub hard: u64,
}

/// Raises this process's soft limit of open files as far as the hard limit allows. `needed` is the number of files that
/// this node's `workers` take. Returns the soft limit from before, for [`Workers::limit_open_files`](super::Workers::limit_open_files); `None` if
/// there was none.
///
/// # Errors
/// The hard limit is lower than what is needed.
pub fn raise_open_files(workers: usize, needed: u64) -> Result<Option<u64>, TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    if let Some(hard) = limit.maximum.filter(|hard| *hard < needed) {
        return Err(TooFewFiles { workers, needed, hard });
    }
    // What cannot be raised is as large as it was; opening a file will tell.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    Ok(limit.current)
}

/// Sets the soft limit of this process.
pub(super) fn set_soft(soft: u64) -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_workers_the_need_and_the_limit() {
        let Some(hard) = getrlimit(Resource::Nofile).maximum else { return };
        let refused = raise_open_files(9, hard + 1).unwrap_err();
        assert_eq!(refused, TooFewFiles { workers: 9, needed: hard + 1, hard });
        let message = refused.to_string();
        assert!(message.starts_with("9 workers on this node take ") && message.contains("`ulimit -Hn`"), "{message}");
    }
}

//! The limit on open files. A job of a thousand workers needs thousands of files in its agent, while many systems allow
//! a process 1,024 unless it asks for more.
//!
//! The soft limit is low for programs that use `select`(2), so workers get the limit with which the agent was started.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The hard limit is lower than the number of open files that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{workers} workers on this node need {needed} open files in their agent, but the hard limit is {hard}: raise the hard \
     limit (`ulimit -Hn`, LimitNOFILE= of a systemd unit, nofile in /etc/security/limits.conf) or lower --nproc-per-node"
)]
pub struct TooFewFiles {
    /// Workers of this node.
    pub workers: usize,
    /// Open files that the agent needs for them.
    pub needed: u64,
    /// The hard limit.
    pub hard: u64,
}

/// Raises this process's soft limit on open files as far as the hard limit allows. `needed` is the number of files that
/// this node's `workers` need. Returns the previous soft limit, for
/// [`Workers::limit_open_files`](super::Workers::limit_open_files); `None` if it was unlimited.
///
/// # Errors
/// The hard limit is lower than what is needed.
pub fn raise_open_files(workers: usize, needed: u64) -> Result<Option<u64>, TooFewFiles> {
    let limit = getrlimit(Resource::Nofile);
    if let Some(hard) = limit.maximum.filter(|hard| *hard < needed) {
        return Err(TooFewFiles { workers, needed, hard });
    }
    // A limit that cannot be raised stays as it was; opening a file reports it when it is reached.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    Ok(limit.current)
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
        assert!(message.starts_with("9 workers on this node need ") && message.contains("`ulimit -Hn`"), "{message}");
    }
}

//! Options of a group: timeouts, Gloo's address, and checks.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

/// c10d's default for Gloo (Backend.hpp, `kBackendDefaultTimeout`): 30 minutes. See
/// [`Backend::default_timeout`](crate::Backend::default_timeout).
pub const DEFAULT_GROUP_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How much c10d checks, as in `TORCH_DISTRIBUTED_DEBUG`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DebugLevel {
    /// Only the checks of the operations themselves.
    #[default]
    Off,
    /// More detail in libtorch's own messages, if the variable requests it: libtorch reads the variable directly.
    Info,
    /// Before each collective the ranks compare their calls; a difference becomes a `Mismatch` that names the ranks and
    /// both calls, instead of a hang or wrong values.
    Detail,
}

impl DebugLevel {
    /// Reads `TORCH_DISTRIBUTED_DEBUG`; unset means `Off`.
    ///
    /// # Errors
    /// `BadArgument` for anything except OFF, INFO and DETAIL, in upper or lower case.
    pub fn from_env() -> Result<Self> {
        match std::env::var("TORCH_DISTRIBUTED_DEBUG") {
            Ok(value) => Self::parse(&value),
            Err(_) => Ok(DebugLevel::Off),
        }
    }

    fn parse(value: &str) -> Result<Self> {
        match value.to_ascii_uppercase().as_str() {
            "" | "OFF" => Ok(DebugLevel::Off),
            "INFO" => Ok(DebugLevel::Info),
            "DETAIL" => Ok(DebugLevel::Detail),
            _ => Err(Error::bad_argument(
                "read TORCH_DISTRIBUTED_DEBUG",
                format!("{value:?} is not one of OFF, INFO and DETAIL"),
            )),
        }
    }
}

/// Where Gloo listens. With NCCL, Gloo compares calls in debug mode. NCCL itself reads `NCCL_SOCKET_IFNAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Endpoint {
    /// `GLOO_SOCKET_IFNAME` if set (several with commas), otherwise the address that this host's name resolves to,
    /// otherwise loopback.
    #[default]
    Default,
    /// The address of a network interface, such as `lo` or `hsn0`.
    Interface(String),
    /// A host name or address of this machine.
    Host(String),
}

/// Options of a group.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Timeout of connecting, and of every operation without its own timeout.
    pub timeout: Duration,
    /// Where Gloo listens.
    pub endpoint: Endpoint,
    /// How much to check. `None` reads `TORCH_DISTRIBUTED_DEBUG`; a subgroup then inherits its parent's level.
    pub debug: Option<DebugLevel>,
    /// Whether the ranks of a group over Gloo, or over several hosts, compare their calls before each collective. Ranks that
    /// share the memory of one host always do. If the call, shape or dtype of a rank differs, it gets a `Mismatch` that names
    /// both sides, before any value is sent. For a message, only the receiver compares and gets the error, and its tensor stays
    /// unchanged; see [`ProcessGroup::send`](crate::ProcessGroup::send) for the sender. The comparison costs one short exchange
    /// per collective. It takes place only if all ranks want it, so never with ranks of other programs.
    ///
    /// `None` reads `LOCKSTEP_COMPARE_CALLS` (0 or 1); if that is unset, builds with debug assertions compare. A
    /// subgroup inherits its parent's setting. Without the comparison, differing calls fail at a timeout or because a
    /// message is too long; small differences in size may go unnoticed.
    pub compare_calls: Option<bool>,
    /// Whether the ranks make desync reports, which show in errors where the other ranks are. A subgroup does as its parent.
    /// Ranks of other programs do not answer. With desync reports, the ranks of an NCCL group first meet in the store, so the
    /// group cannot form with ranks of other programs.
    pub desync_report: bool,
    /// The folder in which the rank records its calls, for `lockstep replay`: which operation in which group, when, with how many bytes,
    /// and the first four elements of tensors in host memory. `None` reads `LOCKSTEP_RECORD`; if that is unset, nothing is recorded. A
    /// subgroup is recorded with its parent.
    pub recording: Option<PathBuf>,
    /// For tests: ranks of one machine that have different names here are on different hosts, as far as sharing memory is concerned. A
    /// subgroup inherits its parent's name.
    #[doc(hidden)]
    pub simulated_host: Option<String>,
    /// For tests: the size in bytes of the pages for which shared memory is laid out, a multiple of 4 KiB, the same on all ranks; 0 for
    /// this system's.
    #[doc(hidden)]
    pub simulated_page: usize,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            timeout: DEFAULT_GROUP_TIMEOUT,
            endpoint: Endpoint::Default,
            debug: None,
            compare_calls: None,
            desync_report: true,
            recording: None,
            simulated_host: None,
            simulated_page: 0,
        }
    }
}

/// Whether ranks compare their calls if [`GroupOptions::compare_calls`] is `None`.
const COMPARE_CALLS: &str = "LOCKSTEP_COMPARE_CALLS";

impl GroupOptions {
    pub(crate) fn compares(&self) -> Result<bool> {
        let asked = || std::env::var(COMPARE_CALLS).unwrap_or_default();
        self.compare_calls.map_or_else(|| parse_switch(COMPARE_CALLS, &asked(), cfg!(debug_assertions)), Ok)
    }
}

fn parse_switch(name: &str, value: &str, unset: bool) -> Result<bool> {
    match value {
        "" => Ok(unset),
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Error::bad_argument(format!("read {name}"), format!("{value:?} is neither 0 nor 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn reads_debug_levels_in_any_case_and_rejects_others() {
        assert_eq!(DebugLevel::parse("detail").unwrap(), DebugLevel::Detail);
        assert_eq!(DebugLevel::parse("").unwrap(), DebugLevel::Off);
        let error = DebugLevel::parse("VERBOSE").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        assert!(error.to_string().contains("OFF, INFO and DETAIL"), "{error}");
    }

    #[test]
    fn a_switch_is_0_or_1_or_unset() {
        assert!(parse_switch("X", "", true).unwrap() && parse_switch("X", "1", false).unwrap());
        assert!(!parse_switch("X", "0", true).unwrap());
        assert!(parse_switch("X", "yes", true).unwrap_err().to_string().contains("neither 0 nor 1"));
    }
}

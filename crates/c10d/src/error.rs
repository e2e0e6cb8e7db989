//! Errors by fault: who has to act is told apart before what happened.
//!
//! libtorch reports most faults of a peer as plain text; this file is the one place that reads it.

use std::fmt;
use std::time::Duration;

use crate::Rank;
use crate::desync_report::DesyncReport;
use crate::ffi::{Exception, Kind};

/// Who or what is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing arrived in time, and nothing says why.
    Timeout,
    /// A peer, or the store's host, closed its connections: it exited, was killed or cannot be reached.
    PeerGone,
    /// The ranks called different collectives, or the same one with different shapes or dtypes.
    Mismatch,
    /// The caller's arguments are wrong; nothing was sent.
    BadArgument,
    /// A fault of libtorch, of this binding or of the system.
    Internal,
}

impl Fault {
    fn of(exception: &Exception) -> Fault {
        let text = exception.message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(&MISMATCH) {
            Fault::Mismatch
        } else if exception.kind == Kind::Timeout || says(&["timed out", "timeout"]) {
            Fault::Timeout
        } else if exception.kind == Kind::Argument || says(&BAD_ARGUMENT) {
            Fault::BadArgument
        } else if exception.kind == Kind::Network || says(&PEER_GONE) {
            Fault::PeerGone
        } else {
            Fault::Internal
        }
    }

    fn words(self) -> &'static str {
        match self {
            Fault::Timeout => "timed out",
            Fault::PeerGone => "lost a peer",
            Fault::Mismatch => "met different calls on different ranks",
            Fault::BadArgument => "was given a bad argument",
            Fault::Internal => "failed",
        }
    }
}

/// What c10d's collective checks, its comparison of parameters, and Gloo say when ranks disagree.
const MISMATCH: [&str; 5] =
    ["detected mismatch", "collectives differ", "op.preamble", "appears not to match", "inconsistent"];

/// What c10d's checks of arguments say, and Gloo of an interface or host name that is not this machine's.
const BAD_ARGUMENT: [&str; 4] = ["invalid", "does not support", "unsupported", "unable to find address"];

/// What Gloo's TCP transport, c10d's sockets and NCCL say when the other side is gone.
const PEER_GONE: [&str; 10] = [
    "connection closed",
    "connection reset",
    "connection refused",
    "connection was likely closed",
    "broken pipe",
    "no route to host",
    "socket closed",
    "pair closure",
    "failed to recv",
    "ncclremoteerror",
];

/// A failed operation: what, on which rank, towards whom, after how long, and what the other ranks said about it.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    fault: Fault,
    operation: String,
    rank: Option<Rank>,
    peer: Option<String>,
    elapsed: Duration,
    detail: String,
    desync_report: Option<DesyncReport>,
}

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(operation: impl Into<String>, exception: Exception) -> Self {
        let fault = Fault::of(&exception);
        Self::with_fault(fault, operation, exception.message)
    }

    /// A refusal of arguments by something that is built on this crate: a layer whose input cannot be used. It reads as those of
    /// this crate do, "`operation` was given a bad argument: `detail`".
    pub fn bad_argument(operation: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::with_fault(Fault::BadArgument, operation, detail)
    }

    pub(crate) fn with_fault(fault: Fault, operation: impl Into<String>, detail: impl Into<String>) -> Self {
        let detail = detail.into().trim().trim_end_matches('.').to_owned();
        let operation = operation.into();
        Error(Box::new(Inner {
            fault,
            operation,
            rank: None,
            peer: None,
            elapsed: Duration::ZERO,
            detail,
            desync_report: None,
        }))
    }

    pub(crate) fn at_rank(mut self, rank: Rank) -> Self {
        self.0.rank = Some(rank);
        self
    }

    pub(crate) fn with_peer(mut self, peer: Option<String>) -> Self {
        self.0.peer = peer;
        self
    }

    pub(crate) fn after(mut self, elapsed: Duration) -> Self {
        self.0.elapsed = elapsed;
        self
    }

    /// The same error in other words.
    pub(crate) fn with_detail(mut self, detail: String) -> Self {
        self.0.detail = detail;
        self
    }

    /// The same error, of whom one knows better whose it is.
    pub(crate) fn with_verdict(mut self, fault: Fault) -> Self {
        self.0.fault = fault;
        self
    }

    /// What the other ranks answered may say more than the exception: a timeout becomes a lost peer or a mismatch. A mismatch stays
    /// one, also where the others have left since.
    pub(crate) fn with_desync_report(mut self, desync_report: DesyncReport) -> Self {
        self.0.fault = match self.0.fault {
            Fault::Mismatch => Fault::Mismatch,
            _ if desync_report.shows_a_loss() => Fault::PeerGone,
            _ if desync_report.shows_a_mismatch() => Fault::Mismatch,
            fault => fault,
        };
        self.0.desync_report = Some(desync_report);
        self
    }

    /// Who is at fault.
    pub fn fault(&self) -> Fault {
        self.0.fault
    }

    /// The operation, with shapes where it has tensors.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// The rank that reports, where there is a group.
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The other side: a rank or an address, where the operation has exactly one.
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }

    /// From the call until the failure, without the desync report.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed
    }

    /// libtorch's own words.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What the other ranks said after the failure, where the group makes desync reports.
    pub fn desync_report(&self) -> Option<&DesyncReport> {
        self.0.desync_report.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        write!(f, "{}", e.operation)?;
        if let Some(peer) = &e.peer {
            write!(f, " with {peer}")?;
        }
        if let Some(rank) = e.rank {
            write!(f, " on rank {rank}")?;
        }
        write!(f, " {}", e.fault.words())?;
        if !e.elapsed.is_zero() {
            write!(f, " after {:.2} s", e.elapsed.as_secs_f64())?;
        }
        if let Some(desync_report) = &e.desync_report {
            write!(f, ": {desync_report}")?;
        }
        write!(f, ": {}", e.detail)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: Kind, message: &str) -> Fault {
        Fault::of(&Exception { kind, message: message.into() })
    }

    #[test]
    fn tells_faults_apart_by_what_gloo_and_c10d_really_say() {
        let closed = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242";
        assert_eq!(fault(Kind::Other, closed), Fault::PeerGone);
        let late = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 500ms for recv";
        assert_eq!(fault(Kind::Other, late), Fault::Timeout);
        assert_eq!(fault(Kind::Store, "wait timeout after 100ms, keys: /a"), Fault::Timeout);
        assert_eq!(fault(Kind::Argument, "ProcessGroupGloo::allreduce: invalid tensor type"), Fault::BadArgument);
        assert_eq!(fault(Kind::Other, "Detected mismatch between collectives on ranks"), Fault::Mismatch);
        assert_eq!(fault(Kind::Other, "something else"), Fault::Internal);
    }

    #[test]
    fn says_operation_peer_rank_and_time_in_that_order() {
        let error = Error::with_fault(Fault::Timeout, "recv [4] Float", "nothing came.")
            .at_rank(Rank::ZERO)
            .with_peer(Some("rank 1".into()))
            .after(Duration::from_millis(1500));
        assert_eq!(error.to_string(), "recv [4] Float with rank 1 on rank 0 timed out after 1.50 s: nothing came");
    }
}

//! Errors and their kinds, which show who has to act.
//!
//! libtorch reports most failures of a peer as plain text; only this file parses it.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use lockstep_contract::desync_report::{DIFFERENT_CALLS, RankState};
use lockstep_contract::error_file::without_frames;

use crate::Rank;
use crate::ffi::{Exception, Kind};

/// The kind of an error: who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing arrived in time, and the reason is unknown.
    Timeout,
    /// A peer, or the store's host, closed its connections: it exited, was killed or is unreachable.
    PeerGone,
    /// The ranks called different collectives, or the same one with different shapes or dtypes.
    Mismatch,
    /// The caller's arguments are wrong; nothing was sent.
    BadArgument,
    /// This rank has aborted the group ([`ProcessGroup::abort`](crate::ProcessGroup::abort)).
    Aborted,
    /// A bug in libtorch or this binding, or an error of the operating system.
    Internal,
}

impl ErrorKind {
    fn of(exception: &Exception) -> ErrorKind {
        let text = exception.message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if says(&MISMATCH) {
            ErrorKind::Mismatch
        } else if exception.kind == Kind::Timeout || says(&["timed out", "timeout"]) {
            ErrorKind::Timeout
        } else if exception.kind == Kind::Argument || says(&BAD_ARGUMENT) {
            ErrorKind::BadArgument
        } else if exception.kind == Kind::Network || says(&PEER_GONE) {
            ErrorKind::PeerGone
        } else {
            ErrorKind::Internal
        }
    }

    fn words(self) -> &'static str {
        match self {
            ErrorKind::Timeout => "timed out",
            ErrorKind::PeerGone => "lost a peer",
            ErrorKind::Mismatch => DIFFERENT_CALLS,
            ErrorKind::BadArgument => "was given a bad argument",
            ErrorKind::Aborted => "was aborted",
            ErrorKind::Internal => "failed",
        }
    }
}

/// Texts of c10d's collective checks, its comparison of parameters, and Gloo when ranks disagree.
const MISMATCH: [&str; 6] = [
    "detected mismatch",
    "collectives differ",
    "op.preamble",
    "appears not to match",
    "inconsistent",
    "sparse dimensions do not match",
];

/// Texts of c10d's argument checks, and of Gloo for an interface or host name that does not belong to this machine.
const BAD_ARGUMENT: [&str; 4] = ["invalid", "does not support", "unsupported", "unable to find address"];

/// Texts of Gloo's TCP transport, c10d's sockets and NCCL when the other side is gone.
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

/// A failed operation: its name, rank, peer and elapsed time, and the reports of the other ranks.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    operation: String,
    rank: Option<Rank>,
    peer: Option<String>,
    elapsed: Duration,
    detail: String,
    desync_report: Option<DesyncReport>,
    called_at: Option<&'static Location<'static>>,
}

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result of a function with `#[track_caller]`; its error says where that function was called.
///
/// # Errors
/// That of the result.
#[track_caller]
pub fn from_caller<T>(result: Result<T>) -> Result<T> {
    let place = Location::caller();
    result.map_err(|mut error| {
        error.0.called_at = Some(place);
        error
    })
}

impl Error {
    pub(crate) fn new(operation: impl Into<String>, exception: Exception) -> Self {
        let kind = ErrorKind::of(&exception);
        Self::with_kind(kind, operation, exception.message)
    }

    /// Refuses arguments on behalf of code that builds on this crate, such as a layer with unusable input. The message
    /// has the form of this crate's own: "`operation` was given a bad argument: `detail`".
    pub fn bad_argument(operation: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::with_kind(ErrorKind::BadArgument, operation, detail)
    }

    /// An operation of a group that this rank has aborted.
    pub(crate) fn aborted(operation: impl Into<String>) -> Self {
        Self::with_kind(ErrorKind::Aborted, operation, "this rank has aborted the group: make a new one to go on")
    }

    /// A failure of libtorch in code that builds on this crate.
    pub fn of_torch(operation: impl Into<String>, error: &tch::TchError) -> Self {
        let message = without_frames(&error.to_string()).to_owned();
        Self::new(operation, Exception { kind: Kind::Other, message })
    }

    pub(crate) fn with_kind(kind: ErrorKind, operation: impl Into<String>, detail: impl Into<String>) -> Self {
        let detail = detail.into().trim().trim_end_matches('.').to_owned();
        let operation = operation.into();
        Error(Box::new(Inner {
            kind,
            operation,
            rank: None,
            peer: None,
            elapsed: Duration::ZERO,
            detail,
            desync_report: None,
            called_at: None,
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

    /// Replaces libtorch's message.
    pub(crate) fn with_detail(mut self, detail: String) -> Self {
        self.0.detail = detail;
        self
    }

    /// Overrides the kind once it is known better.
    pub(crate) fn with_verdict(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// Adds the answers of the other ranks, which may explain more than the exception: a timeout may become a lost peer or a
    /// mismatch. A mismatch stays a mismatch even if other ranks have left since.
    pub(crate) fn with_desync_report(mut self, desync_report: DesyncReport) -> Self {
        self.0.kind = match self.0.kind {
            ErrorKind::Mismatch => ErrorKind::Mismatch,
            _ if desync_report.shows_a_loss() => ErrorKind::PeerGone,
            _ if desync_report.shows_a_mismatch() => ErrorKind::Mismatch,
            kind => kind,
        };
        self.0.desync_report = Some(desync_report);
        self
    }

    /// The kind: who has to act.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation, with the shapes of its tensors.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// The rank that reports the error, if it belongs to a group.
    pub fn rank(&self) -> Option<Rank> {
        self.0.rank
    }

    /// The other side, a rank or an address, if the operation has exactly one.
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }

    /// The time from the call until the failure, without the time for asking other ranks.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed
    }

    /// libtorch's message.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// What the other ranks reported after the failure, if the group makes desync reports.
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
        write!(f, " {}", e.kind.words())?;
        if !e.elapsed.is_zero() {
            write!(f, " after {:.2} s", e.elapsed.as_secs_f64())?;
        }
        if let Some(desync_report) = &e.desync_report {
            write!(f, ": {desync_report}")?;
        }
        write!(f, ": {}", e.detail)?;
        e.called_at.map_or(Ok(()), |place| write!(f, " (called at {place})"))
    }
}

impl std::error::Error for Error {}

/// How long the asking rank waits for answers: several polls, so that a live rank on a busy machine does not count as
/// dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The answers of all ranks, as one rank sees them. Ranks are counted in the whole job.
#[derive(Clone, Debug)]
pub struct DesyncReport {
    pub(crate) own: RankState,
    pub(crate) answers: BTreeMap<Rank, Option<RankState>>,
    pub(crate) store_error: Option<String>,
}

impl DesyncReport {
    /// The ranks that did not answer: dead, stopped, or not a program of this project.
    pub fn missing(&self) -> Vec<Rank> {
        self.answers.iter().filter(|(_, answer)| answer.is_none()).map(|(&rank, _)| rank).collect()
    }

    /// Each other rank's answer; `None` if it did not answer.
    pub fn answers(&self) -> &BTreeMap<Rank, Option<RankState>> {
        &self.answers
    }

    /// Returns true if a rank did not answer or has left, but false if the store itself does not answer: then nothing is
    /// known.
    pub(crate) fn shows_a_loss(&self) -> bool {
        let gone = |state: &Option<RankState>| {
            matches!(state, None | Some(RankState::Left { .. } | RankState::Aborted { .. }))
        };
        self.store_error.is_none() && self.answers.values().any(gone)
    }

    /// Returns true if a rank was in another operation at the same call number.
    pub(crate) fn shows_a_mismatch(&self) -> bool {
        self.answers.values().flatten().any(|state| self.contradicts(state))
    }

    /// Returns true if the rank is in, or failed in, a call with the same number as this rank's but another operation.
    fn contradicts(&self, other: &RankState) -> bool {
        match (self.own.call(), other.call()) {
            (Some(own), Some(other)) => {
                let same_place = own.group == other.group && own.number.is_some() && own.number == other.number;
                same_place && own.operation != other.operation
            }
            _ => false,
        }
    }
}

impl fmt::Display for DesyncReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.store_error {
            return write!(
                f,
                "the store did not answer a request for a desync report either ({error}): its host is gone or unreachable"
            );
        }
        let mut parts = Vec::new();
        let mut here = Vec::new();
        for (rank, answer) in &self.answers {
            match answer {
                None => parts.push(format!(
                    "rank {rank} did not answer within {} s: it has exited, was killed, is stopped, or takes no part in desync reports",
                    PATIENCE.as_secs()
                )),
                Some(answer) if answer.call().is_some() && answer.call() == self.own.call() => {
                    here.push(rank.to_string())
                }
                Some(answer) => parts.push(format!("rank {rank} {answer}")),
            }
        }
        if !here.is_empty() {
            let (word, verb) = if here.len() == 1 { ("rank", "was") } else { ("ranks", "were") };
            parts.push(format!("{word} {} {verb} in the same call", here.join(", ")));
        }
        if let Some(call) = self.own.call() {
            parts.push(format!("this rank was in {call}"));
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(kind: Kind, message: &str) -> ErrorKind {
        ErrorKind::of(&Exception { kind, message: message.into() })
    }

    #[test]
    fn finds_the_kind_by_real_messages_of_gloo_and_c10d() {
        let closed = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242";
        assert_eq!(kind(Kind::Other, closed), ErrorKind::PeerGone);
        let late = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 500ms for recv";
        assert_eq!(kind(Kind::Other, late), ErrorKind::Timeout);
        assert_eq!(kind(Kind::Store, "wait timeout after 100ms, keys: /a"), ErrorKind::Timeout);
        assert_eq!(kind(Kind::Argument, "ProcessGroupGloo::allreduce: invalid tensor type"), ErrorKind::BadArgument);
        assert_eq!(kind(Kind::Other, "Detected mismatch between collectives on ranks"), ErrorKind::Mismatch);
        assert_eq!(kind(Kind::Other, "something else"), ErrorKind::Internal);
    }

    #[test]
    fn names_operation_peer_rank_and_time_in_that_order() {
        let error = Error::with_kind(ErrorKind::Timeout, "recv [4] Float", "nothing came.")
            .at_rank(Rank::ZERO)
            .with_peer(Some("rank 1".into()))
            .after(Duration::from_millis(1500));
        assert_eq!(error.to_string(), "recv [4] Float with rank 1 on rank 0 timed out after 1.50 s: nothing came");
    }
}

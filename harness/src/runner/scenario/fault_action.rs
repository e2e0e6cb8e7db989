//! The actions on a worker, an agent or a node, and their form in a file: a word, a table with one key, or a list of these.

use std::fmt;

use lockstep_contract::fault::Act;
use lockstep_contract::snapshot_request::{SAVE, SAVE_AND_END};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Actions, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct What(pub(crate) Vec<FaultAction>);

/// One action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FaultAction {
    /// SIGKILL: no clean-up, as from the kernel's OOM killer or a power failure.
    Kill,
    /// SIGTERM: as a batch system sends it.
    Term,
    /// SIGSTOP: the process is alive but does nothing, like a hang.
    Stop,
    /// SIGINT: as Ctrl-C sends it.
    Interrupt,
    /// SIGUSR1: a wish for a snapshot.
    AskToSave,
    /// SIGUSR2: a wish for a snapshot and the end.
    AskToSaveAndEnd,
    /// From now on it ignores SIGTERM, so that only SIGKILL ends it.
    IgnoreTerm,
    /// It exits with this code, without clean-up.
    Exit(i32),
    /// It panics.
    Panic,
    /// SIGSEGV: as caused by a wild pointer.
    Segfault,
    /// The newest snapshot is truncated to its first half.
    TearSnapshot,
    /// One bit of the newest snapshot flips.
    FlipSnapshotBit,
    /// Saving fails as on a full disk; the error is simulated.
    NoSpace,
    /// The disk with the snapshots is really full: a small file system of the run's own.
    DiskFull,
    /// The file system with the snapshots is really read-only.
    ReadOnly,
    /// The node's network link goes down.
    CutNetwork,
    /// The node's network link is limited to this many kilobits a second.
    SlowNetwork(u64),
}

impl FaultAction {
    /// The acts in the form that a rank performs them on itself; `None` if it cannot.
    pub(crate) fn acts(&self) -> Option<Vec<Act>> {
        // Rust's own handler of this signal ignores the first one: it restores the default action, and expects the faulting
        // instruction to be executed again (std/src/sys/pal/unix/stack_overflow.rs). The second signal replaces that.
        let again = (*self == FaultAction::Segfault).then_some(Act::Signal(11));
        Some(std::iter::once(self.act()?).chain(again).collect())
    }

    fn act(&self) -> Option<Act> {
        if let Some(signal) = self.signal() {
            return Some(Act::Signal(signal));
        }
        Some(match self {
            FaultAction::Segfault => Act::Signal(11),
            FaultAction::IgnoreTerm => Act::IgnoreTerm,
            FaultAction::Exit(code) => Act::Exit(*code),
            FaultAction::Panic => Act::Panic,
            FaultAction::TearSnapshot => Act::TearSnapshot,
            FaultAction::FlipSnapshotBit => Act::FlipSnapshotBit,
            FaultAction::NoSpace => Act::NoSpace,
            _ => return None,
        })
    }

    /// The signal, if the action is one that can be sent from outside.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self {
            FaultAction::Kill => Some(9),
            FaultAction::Term => Some(15),
            FaultAction::Interrupt => Some(2),
            FaultAction::AskToSave => Some(SAVE),
            FaultAction::AskToSaveAndEnd => Some(SAVE_AND_END),
            FaultAction::Stop => Some(19),
            _ => None,
        }
    }

    /// Returns true if the action needs a network namespace for the run.
    pub(crate) fn is_of_the_network(&self) -> bool {
        matches!(self, FaultAction::CutNetwork | FaultAction::SlowNetwork(_))
    }

    /// Returns true if the action needs a file system for the run.
    pub(crate) fn is_of_the_disk(&self) -> bool {
        matches!(self, FaultAction::DiskFull | FaultAction::ReadOnly)
    }
}

impl fmt::Display for FaultAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultAction::Kill => f.write_str("SIGKILL"),
            FaultAction::Term => f.write_str("SIGTERM"),
            FaultAction::Interrupt => f.write_str("SIGINT"),
            FaultAction::AskToSave => f.write_str("SIGUSR1"),
            FaultAction::AskToSaveAndEnd => f.write_str("SIGUSR2"),
            FaultAction::Stop => f.write_str("SIGSTOP"),
            FaultAction::IgnoreTerm => f.write_str("SIGTERM ignored"),
            FaultAction::Segfault => f.write_str("SIGSEGV"),
            FaultAction::Exit(code) => write!(f, "exit code {code}"),
            FaultAction::Panic => f.write_str("panic"),
            FaultAction::TearSnapshot => f.write_str("newest snapshot torn"),
            FaultAction::FlipSnapshotBit => f.write_str("bit of the newest snapshot flipped"),
            FaultAction::NoSpace => f.write_str("no space (made up)"),
            FaultAction::DiskFull => f.write_str("disk full"),
            FaultAction::ReadOnly => f.write_str("disk read-only"),
            FaultAction::CutNetwork => f.write_str("network cut"),
            FaultAction::SlowNetwork(kbit) => write!(f, "network slowed to {kbit} kbit/s"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<_> = self.0.iter().map(FaultAction::to_string).collect();
        f.write_str(&actions.join(", then "))
    }
}

impl Serialize for What {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &*self.0 {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for What {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// Unlike an untagged enum, it passes on the error of the action's own parser.
struct OneOrSeveral;

impl<'de> Visitor<'de> for OneOrSeveral {
    type Value = What;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an action such as \"kill\" or { exit = 3 }, or a list of actions")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<What, E> {
        FaultAction::deserialize(StrDeserializer::new(word)).map(|action| What(vec![action]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<What, A::Error> {
        FaultAction::deserialize(MapAccessDeserializer::new(map)).map(|action| What(vec![action]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<What, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(What)
    }
}

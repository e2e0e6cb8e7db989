//! What can happen to a worker, an agent or a node, and how a file says it: a word, a table with one key, or a list of these.

use std::fmt;

use lockstep_contract::fault::Act;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Deeds, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct What(pub(crate) Vec<Deed>);

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Deed {
    /// SIGKILL: no clean-up, as from the kernel's memory killer or a pulled plug.
    Kill,
    /// SIGTERM: as a batch system asks.
    Term,
    /// SIGSTOP: it lives and does nothing, as a hang does.
    Stop,
    /// From now on it ignores SIGTERM, so that only SIGKILL ends it.
    IgnoreTerm,
    /// It exits with this code, without clean-up.
    Exit(i32),
    /// It panics.
    Panic,
    /// SIGSEGV: what a wild pointer ends with.
    Segfault,
    /// The newest snapshot loses its second half.
    TearSnapshot,
    /// One bit of the newest snapshot flips.
    FlipSnapshotBit,
    /// Saving fails as on a full disk; the error is made, the disk is not full.
    NoSpace,
    /// The disk with the snapshots is full, for real: a small file system of the run's own.
    DiskFull,
    /// The file system with the snapshots can only be read, for real.
    ReadOnly,
    /// The node's network link goes down.
    CutNetwork,
    /// The node's network link carries this many kilobits a second.
    SlowNetwork(u64),
}

impl Deed {
    /// As a rank does it to itself, act by act; `None` if it cannot.
    pub(crate) fn acts(&self) -> Option<Vec<Act>> {
        // Rust's own handler of this signal lets the first one pass: it puts the system's in its place, and expects the bad
        // instruction to be tried again (std/src/sys/pal/unix/stack_overflow.rs). The second takes the place of that.
        let again = (*self == Deed::Segfault).then_some(Act::Signal(11));
        Some(std::iter::once(self.act()?).chain(again).collect())
    }

    fn act(&self) -> Option<Act> {
        Some(match self {
            Deed::Kill => Act::Signal(9),
            Deed::Term => Act::Signal(15),
            Deed::Stop => Act::Signal(19),
            Deed::Segfault => Act::Signal(11),
            Deed::IgnoreTerm => Act::IgnoreTerm,
            Deed::Exit(code) => Act::Exit(*code),
            Deed::Panic => Act::Panic,
            Deed::TearSnapshot => Act::TearSnapshot,
            Deed::FlipSnapshotBit => Act::FlipSnapshotBit,
            Deed::NoSpace => Act::NoSpace,
            Deed::DiskFull | Deed::ReadOnly | Deed::CutNetwork | Deed::SlowNetwork(_) => return None,
        })
    }

    /// The signal that it is, if it can be sent from outside.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self {
            Deed::Kill => Some(9),
            Deed::Term => Some(15),
            Deed::Stop => Some(19),
            _ => None,
        }
    }

    /// Whether it takes a network of the run's own.
    pub(crate) fn is_of_the_network(&self) -> bool {
        matches!(self, Deed::CutNetwork | Deed::SlowNetwork(_))
    }

    /// Whether it takes a file system of the run's own.
    pub(crate) fn is_of_the_disk(&self) -> bool {
        matches!(self, Deed::DiskFull | Deed::ReadOnly)
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deed::Kill => f.write_str("SIGKILL"),
            Deed::Term => f.write_str("SIGTERM"),
            Deed::Stop => f.write_str("SIGSTOP"),
            Deed::IgnoreTerm => f.write_str("SIGTERM ignored"),
            Deed::Segfault => f.write_str("SIGSEGV"),
            Deed::Exit(code) => write!(f, "exit code {code}"),
            Deed::Panic => f.write_str("panic"),
            Deed::TearSnapshot => f.write_str("newest snapshot torn"),
            Deed::FlipSnapshotBit => f.write_str("bit of the newest snapshot flipped"),
            Deed::NoSpace => f.write_str("no space (made up)"),
            Deed::DiskFull => f.write_str("disk full"),
            Deed::ReadOnly => f.write_str("disk read-only"),
            Deed::CutNetwork => f.write_str("network cut"),
            Deed::SlowNetwork(kbit) => write!(f, "network slowed to {kbit} kbit/s"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deeds: Vec<_> = self.0.iter().map(Deed::to_string).collect();
        f.write_str(&deeds.join(", then "))
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

/// Unlike an untagged enum, it passes on what the deed's own parser says.
struct OneOrSeveral;

impl<'de> Visitor<'de> for OneOrSeveral {
    type Value = What;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a deed such as \"kill\" or { exit = 3 }, or a list of deeds")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<What, E> {
        Deed::deserialize(StrDeserializer::new(word)).map(|deed| What(vec![deed]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<What, A::Error> {
        Deed::deserialize(MapAccessDeserializer::new(map)).map(|deed| What(vec![deed]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<What, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(What)
    }
}

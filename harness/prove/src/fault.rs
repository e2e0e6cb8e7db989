//! A fault of a scenario: its target, its moment, and its actions. In a file, actions are a word, a table with one key, or a list of these.

use std::fmt;

use lockstep_contract::fault::{self, Act, SavePhase};
use lockstep_contract::snapshot_request::{SAVE, SAVE_AND_END};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Fault {
    pub(crate) who: Who,
    pub(crate) when: When,
    /// What happens to the target, one after the other.
    pub(crate) what: What,
    /// After this time the network or the disk works again, or the stopped process continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) for_seconds: Option<f64>,
    /// After this time, once the lost agent has ended, another one is started in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replace_after_seconds: Option<f64>,
}

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Who {
    /// A worker, by its rank.
    Rank(usize),
    /// The agent of a node, and nothing else on it.
    Agent(usize),
    /// A node: its agent, its workers, its network, its disk.
    Node(usize),
}

/// When it happens: one of `epoch` and `step`, those with `save`, `after-seconds`, `log-line`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct When {
    /// From 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<u64>,
    /// Right after this step of the epoch, from 0; with `save`, the step at which the snapshot would continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<u64>,
    /// While that snapshot is being saved, at this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) save: Option<SavePhase>,
    /// This long after the start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after_seconds: Option<f64>,
    /// Once a line of output matches this regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_line: Option<String>,
}

impl Fault {
    /// The fault in the form that its rank injects into itself; `None` if the harness must inject it.
    pub(crate) fn inside(&self, index: usize) -> Option<fault::RankFault> {
        let (Who::Rank(rank), Some(at)) = (self.who, self.when.point()) else { return None };
        let acts = self.what.0.iter().map(FaultAction::acts).collect::<Option<Vec<_>>>()?;
        Some(fault::RankFault { name: format!("fault-{index}"), rank, at, acts: acts.concat() })
    }
}

impl Fault {
    /// For a fault that the harness injects at a step: rank 0 waits there until it has come or, where the job goes on with other members,
    /// until it is stopped. Otherwise the job might end first, when the harness gets no processor.
    pub(crate) fn awaited(&self, index: usize) -> Option<fault::RankFault> {
        let at @ fault::Point::Step { .. } = self.when.point()? else { return None };
        let name = awaited_name(index);
        self.inside(index).is_none().then(|| fault::RankFault {
            name,
            rank: 0,
            at,
            acts: vec![fault::Act::AwaitHarness],
        })
    }
}

/// The name in the plan of the wait for fault number `index`.
pub(crate) fn awaited_name(index: usize) -> String {
    format!("outside-{index}")
}

impl When {
    /// The point in the training run, if it is one.
    pub(crate) fn point(&self) -> Option<fault::Point> {
        let (epoch, step) = (self.epoch?, self.step?);
        Some(match self.save {
            Some(phase) => fault::Point::Save { epoch, step, phase },
            None => fault::Point::Step { epoch, step },
        })
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Rank(rank) => write!(f, "rank {rank}"),
            Who::Agent(node) => write!(f, "the agent of node {node}"),
            Who::Node(node) => write!(f, "node {node}"),
        }
    }
}

impl std::fmt::Display for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (epoch, step) = (self.epoch.unwrap_or_default(), self.step.unwrap_or_default());
        match (self.save, self.after_seconds, &self.log_line) {
            (Some(SavePhase::HalfWritten), ..) => {
                write!(f, "with half of the snapshot for epoch {epoch}, step {step} written")
            }
            (Some(SavePhase::Written), ..) => {
                write!(f, "before the snapshot for epoch {epoch}, step {step} has its name")
            }
            (Some(SavePhase::Named), ..) => {
                write!(f, "right after the snapshot for epoch {epoch}, step {step} was saved")
            }
            (_, Some(seconds), _) => write!(f, "{seconds} s after the start"),
            (.., Some(line)) => write!(f, "at a line like {line:?}"),
            _ => write!(f, "after step {step} of epoch {epoch}"),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {}", self.who, self.what, self.when)
    }
}

/// Actions, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct What(pub(crate) Vec<FaultAction>);

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
    /// SIGUSR1: a request for a snapshot.
    AskToSave,
    /// SIGUSR2: a request for a snapshot and the end.
    AskToSaveAndEnd,
    /// From now on it ignores SIGTERM, so that only SIGKILL ends it.
    IgnoreTerm,
    /// It exits with this code, without clean-up.
    Exit(i32),
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
    /// An agent starts on the node, which was lost before or has not come yet.
    Join,
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

    /// Returns true if the action ends an agent or a node.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, FaultAction::Kill | FaultAction::Term)
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
            FaultAction::Join => f.write_str("joins"),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(who: Who, when: When, what: &[FaultAction]) -> Fault {
        Fault { who, when, what: What(what.to_vec()), for_seconds: None, replace_after_seconds: None }
    }

    #[test]
    fn rank_0_waits_for_what_the_harness_does_at_a_step_and_for_nothing_else() {
        let point = When { epoch: Some(1), step: Some(3), ..When::default() };
        let timed = When { after_seconds: Some(0.5), ..When::default() };
        let awaited = |who, when: &When| fault(who, when.clone(), &[FaultAction::Kill]).awaited(7);
        let wait = awaited(Who::Node(1), &point).unwrap();
        assert_eq!((wait.rank, &*wait.name, &wait.acts[..]), (0, "outside-7", &[fault::Act::AwaitHarness][..]));
        assert_eq!(wait.at, fault::Point::Step { epoch: 1, step: 3 });
        assert_eq!([awaited(Who::Node(1), &timed), awaited(Who::Rank(1), &point)], [None, None]);
    }

    #[test]
    fn leaves_exact_points_of_a_rank_to_the_rank_and_the_rest_to_the_harness() {
        let point = When { epoch: Some(1), step: Some(3), ..When::default() };
        let save = When { save: Some(SavePhase::Written), ..point.clone() };
        let timed = When { after_seconds: Some(0.5), ..When::default() };
        let inside = |who, when: &When, actions: &[FaultAction]| fault(who, when.clone(), actions).inside(7);
        let exact = inside(Who::Rank(1), &point, &[FaultAction::FlipSnapshotBit, FaultAction::Kill]).unwrap();
        assert_eq!((exact.rank, &*exact.name), (1, "fault-7"));
        assert_eq!(exact.acts, [fault::Act::FlipSnapshotBit, fault::Act::Signal(9)]);
        assert_eq!(exact.at, fault::Point::Step { epoch: 1, step: 3 });
        let phase = SavePhase::Written;
        let at = inside(Who::Rank(0), &save, &[FaultAction::Kill]).unwrap().at;
        assert_eq!(at, fault::Point::Save { epoch: 1, step: 3, phase });
        let twice = inside(Who::Rank(1), &point, &[FaultAction::Segfault]).unwrap();
        assert_eq!(twice.acts, [fault::Act::Signal(11), fault::Act::Signal(11)]);
        assert_eq!(inside(Who::Rank(1), &timed, &[FaultAction::Kill]), None);
        assert_eq!(inside(Who::Node(1), &point, &[FaultAction::Kill]), None);
        assert_eq!(inside(Who::Agent(0), &point, &[FaultAction::Kill]), None);
    }

    #[test]
    fn describes_a_fault_in_one_line() {
        let when = When { epoch: Some(1), step: Some(3), ..When::default() };
        assert_eq!(
            fault(Who::Rank(1), when, &[FaultAction::Kill]).to_string(),
            "rank 1: SIGKILL after step 3 of epoch 1"
        );
    }
}

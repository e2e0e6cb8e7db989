//! A fault of a scenario: its target, its moment, and what happens.

use lockstep_contract::fault::{self, SavePhase};
use serde::{Deserialize, Serialize};

use super::{FaultAction, What};

/// A fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Fault {
    /// Its target.
    pub(crate) who: Who,
    /// When.
    pub(crate) when: When,
    /// What happens to the target, one after the other.
    pub(crate) what: What,
    /// After this time the network or the disk works again, or the stopped process continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) for_seconds: Option<f64>,
    /// After this time another agent is started in place of the lost one.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(who: Who, when: When, what: &[FaultAction]) -> Fault {
        Fault { who, when, what: What(what.to_vec()), for_seconds: None, replace_after_seconds: None }
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

//! Decides when the harness injects a fault: a pure function of the time and of the progress that the run has shown.

use std::collections::BTreeSet;
use std::time::Duration;

use regex::Regex;

use crate::fault::{Fault, FaultAction, When, Who};
use crate::scenario::Scenario;

/// The faults that are still to come, and when injected ones are reverted.
pub(crate) struct FaultSchedule {
    pending: Vec<Pending>,
    reverts: Vec<(Duration, FaultOrder)>,
}

struct Pending {
    index: usize,
    fault: Fault,
    line: Option<Regex>,
}

/// What a run has shown so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Complete lines that were printed since the last call, of all nodes.
    pub(crate) lines: Vec<String>,
    /// The last step, as (epoch, step), that any rank has reported.
    pub(crate) steps: Option<(u64, u64)>,
    /// The nodes whose agent runs.
    pub(crate) running: BTreeSet<usize>,
}

/// What the harness has to do now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FaultOrder {
    /// Inject `action`, of the scenario's fault number `fault`.
    Inject { fault: usize, who: Who, action: FaultAction },
    /// Revert it.
    Revert { who: Who, action: FaultAction },
    /// Start another agent in place of the node's, which has ended, on a new machine if it is `fresh`; or the first one, if
    /// the node comes late.
    Replace { node: usize, fresh: bool },
}

impl FaultOrder {
    /// The number of the scenario's fault that is injected.
    pub(crate) fn fault(&self) -> Option<usize> {
        match self {
            FaultOrder::Inject { fault, .. } => Some(*fault),
            FaultOrder::Revert { .. } | FaultOrder::Replace { .. } => None,
        }
    }
}

impl Progress {
    /// Returns true if the agent that is to be replaced still runs.
    fn has_agent_for(&self, order: &FaultOrder) -> bool {
        matches!(order, FaultOrder::Replace { node, .. } if self.running.contains(node))
    }
}

impl FaultSchedule {
    /// The scenario's faults that the ranks do not inject themselves.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let pending = scenario.outside().map(|(index, fault)| Pending {
            index,
            fault: fault.clone(),
            // The scenario's regular expressions were checked when it was read.
            line: fault.when.log_line.as_deref().and_then(|text| Regex::new(text).ok()),
        });
        let late = Duration::try_from_secs_f64(scenario.run.late_seconds).unwrap_or_default();
        let last = FaultOrder::Replace { node: scenario.run.nodes - 1, fresh: false };
        let reverts = (!late.is_zero()).then_some((late, last)).into_iter().collect();
        FaultSchedule { pending: pending.collect(), reverts }
    }

    /// What is due `now`, counted from the start of the run. Each order is returned once.
    pub(crate) fn due(&mut self, now: Duration, progress: &Progress) -> Vec<FaultOrder> {
        let (due, pending) = std::mem::take(&mut self.pending).into_iter().partition(|one| is_due(one, now, progress));
        self.pending = pending;
        let due: Vec<Pending> = due;
        let mut orders = Vec::new();
        for Pending { index, fault, .. } in due {
            self.reverts.extend(reverts(now, &fault));
            let injection =
                |action: &FaultAction| FaultOrder::Inject { fault: index, who: fault.who, action: action.clone() };
            orders.extend(fault.what.0.iter().map(injection));
        }
        let (due, later) = std::mem::take(&mut self.reverts)
            .into_iter()
            .partition(|(at, order)| *at <= now && !progress.has_agent_for(order));
        self.reverts = later;
        let due: Vec<(Duration, FaultOrder)> = due;
        orders.extend(due.into_iter().map(|(_, order)| order));
        orders
    }

    /// Returns true if a pending fault waits for a step.
    pub(crate) fn awaits_step(&self) -> bool {
        self.pending.iter().any(|one| step_of(&one.fault.when).is_some())
    }

    /// Returns true if an agent still has to be started: then the run has not ended.
    pub(crate) fn has_agents_to_start(&self) -> bool {
        self.reverts.iter().any(|(_, order)| matches!(order, FaultOrder::Replace { .. }))
    }

    /// Returns true if an agent still has to be started for this node.
    pub(crate) fn will_start(&self, node: usize) -> bool {
        self.reverts.iter().any(|(_, order)| matches!(order, FaultOrder::Replace { node: of, .. } if *of == node))
    }

    /// Cancels all starts of agents: all agents have ended, and the whole job is started again.
    pub(crate) fn cancel_agent_starts(&mut self) {
        self.reverts.retain(|(_, order)| !matches!(order, FaultOrder::Replace { .. }));
    }

    /// Returns true if nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.pending.is_empty() && self.reverts.is_empty()
    }
}

fn is_due(Pending { fault, line, .. }: &Pending, now: Duration, progress: &Progress) -> bool {
    let by_clock = fault.when.after_seconds.is_some_and(|seconds| now.as_secs_f64() >= seconds);
    let by_line = line.as_ref().is_some_and(|line| progress.lines.iter().any(|text| line.is_match(text)));
    let by_step = step_of(&fault.when).is_some_and(|point| progress.steps.is_some_and(|reached| reached >= point));
    // An agent that was asked to end may still be about to.
    let free = !matches!(fault.who, Who::Node(node) if fault.what.0.contains(&FaultAction::Join) && progress.running.contains(&node));
    free && (by_clock || by_line || by_step)
}

/// The step that the fault waits for, as (epoch, step in the epoch).
fn step_of(when: &When) -> Option<(u64, u64)> {
    when.epoch.zip(when.step)
}

fn reverts(now: Duration, fault: &Fault) -> Vec<(Duration, FaultOrder)> {
    let at = |seconds: f64| now + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let mut reverts = Vec::new();
    if let Some(seconds) = fault.for_seconds {
        reverts.extend(
            fault
                .what
                .0
                .iter()
                .map(|action| (at(seconds), FaultOrder::Revert { who: fault.who, action: action.clone() })),
        );
    }
    if let (Some(seconds), Who::Agent(node) | Who::Node(node)) = (fault.replace_after_seconds, fault.who) {
        // A node that was only cut off keeps its disk.
        let fresh = matches!(fault.who, Who::Node(_)) && fault.what.0.iter().any(FaultAction::ends);
        reverts.push((at(seconds), FaultOrder::Replace { node, fresh }));
    }
    reverts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario_file::parse;

    fn schedule(faults: &str) -> FaultSchedule {
        let head = "name = \"a\"\ntitle = \"b\"\nshows = \"c\"\n[run]\nnodes = 2\n";
        FaultSchedule::new(&parse("x", &format!("{head}{faults}")).unwrap())
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn injection(fault: usize, who: Who, action: FaultAction) -> FaultOrder {
        FaultOrder::Inject { fault, who, action }
    }

    #[test]
    fn injects_by_the_clock_once_and_replaces_the_agent_later() {
        let mut schedule = schedule(
            "[[fault]]\nwho = { node = 1 }\nwhen = { after-seconds = 2 }\nwhat = \"kill\"\nreplace-after-seconds = 1\n",
        );
        let mut due = |now| schedule.due(seconds(now), &Progress::default());
        assert_eq!(due(1.9), []);
        assert_eq!(due(2.1), [injection(0, Who::Node(1), FaultAction::Kill)]);
        assert_eq!(due(3.0), []);
        assert_eq!(due(3.2), [FaultOrder::Replace { node: 1, fresh: true }]);
        assert!(due(99.0).is_empty() && schedule.is_done());
    }

    #[test]
    fn replaces_a_cut_agent_only_once_it_has_ended() {
        let mut schedule = schedule(
            "[[fault]]\nwho = { node = 0 }\nwhen = { after-seconds = 2 }\nwhat = \"cut-network\"\nfor-seconds = 3\nreplace-after-seconds = 3\n",
        );
        let due = |schedule: &mut FaultSchedule, now, running: &[usize]| {
            schedule.due(seconds(now), &Progress { running: running.iter().copied().collect(), ..Progress::default() })
        };
        assert_eq!(due(&mut schedule, 2.0, &[0, 1]), [injection(0, Who::Node(0), FaultAction::CutNetwork)]);
        assert_eq!(due(&mut schedule, 4.0, &[0, 1]), []);
        assert_eq!(
            due(&mut schedule, 5.0, &[0, 1]),
            [FaultOrder::Revert { who: Who::Node(0), action: FaultAction::CutNetwork }]
        );
        assert!(schedule.will_start(0) && !schedule.will_start(1));
        assert_eq!(due(&mut schedule, 9.0, &[1]), [FaultOrder::Replace { node: 0, fresh: false }]);
        assert!(due(&mut schedule, 99.0, &[]).is_empty() && schedule.is_done());
    }

    #[test]
    fn starts_a_late_agent_once_and_no_agent_after_the_whole_job_was_started_again() {
        let head = "name = \"a\"\ntitle = \"b\"\nshows = \"c\"\n[run]\nnodes = 2\nlate-seconds = 1\n";
        let scenario = parse("x", head).unwrap();
        let mut schedule = FaultSchedule::new(&scenario);
        assert!(schedule.has_agents_to_start() && schedule.due(seconds(0.9), &Progress::default()).is_empty());
        assert_eq!(schedule.due(seconds(1.0), &Progress::default()), [FaultOrder::Replace { node: 1, fresh: false }]);
        assert!(schedule.is_done());
        let mut schedule = FaultSchedule::new(&scenario);
        schedule.cancel_agent_starts();
        assert!(!schedule.has_agents_to_start() && schedule.due(seconds(9.0), &Progress::default()).is_empty());
    }

    #[test]
    fn injects_at_a_line_and_reverts_after_the_time() {
        let mut schedule = schedule(
            "[[fault]]\nwho = { rank = 1 }\nwhen = { log-line = \"^Epoch [1-9]\" }\nwhat = \"stop\"\nfor-seconds = 1\n",
        );
        let mut due =
            |now, line: &str| schedule.due(seconds(now), &Progress { lines: vec![line.into()], ..Progress::default() });
        assert_eq!(due(0.1, "an Epoch 1"), []);
        assert_eq!(due(0.2, "Epoch 1"), [injection(0, Who::Rank(1), FaultAction::Stop)]);
        assert_eq!(due(0.3, "Epoch 1"), []);
        assert_eq!(due(1.2, ""), [FaultOrder::Revert { who: Who::Rank(1), action: FaultAction::Stop }]);
    }

    #[test]
    fn injects_from_outside_once_a_step_is_reached_or_passed() {
        let fault = "[[fault]]\nwho = { agent = 0 }\nwhen = { epoch = 1, step = 2 }\nwhat = \"kill\"\n";
        for (reached, expected) in
            [(None, 0), (Some((0, 7)), 0), (Some((1, 1)), 0), (Some((1, 2)), 1), (Some((2, 0)), 1)]
        {
            let progress = Progress { steps: reached, ..Progress::default() };
            assert_eq!(schedule(fault).due(seconds(0.0), &progress).len(), expected, "{reached:?}");
        }
    }

    #[test]
    fn starts_a_node_that_joins_once_its_former_agent_has_ended() {
        let faults = "min-nodes = 1\nvirtual-ranks = 2\n[[fault]]\nwho = { agent = 1 }\nwhen = { epoch = 0, step = 1 }\nwhat = \"term\"\n\
                      [[fault]]\nwho = { node = 1 }\nwhen = { epoch = 0, step = 2 }\nwhat = \"join\"\n";
        let mut schedule = schedule(faults);
        let mut due = |steps, running: &[usize]| {
            let running = running.iter().copied().collect();
            schedule.due(seconds(0.0), &Progress { steps: Some(steps), running, ..Progress::default() })
        };
        assert_eq!(due((0, 1), &[0, 1]), [injection(0, Who::Agent(1), FaultAction::Term)]);
        assert_eq!(due((0, 2), &[0, 1]), []);
        assert_eq!(due((0, 2), &[0]), [injection(1, Who::Node(1), FaultAction::Join)]);
    }

    #[test]
    fn leaves_exact_faults_to_the_ranks() {
        let fault = "[[fault]]\nwho = { rank = 0 }\nwhen = { epoch = 0, step = 0 }\nwhat = \"kill\"\n";
        assert!(schedule(fault).is_done());
    }
}

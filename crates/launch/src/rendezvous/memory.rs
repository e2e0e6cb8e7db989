//! What one agent has observed and wants: the private part of the input of a decision.

#[cfg(test)]
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::header::{Header, HeaderPhase, Own, View};
use super::node::NodeId;
use super::options::Options;
use super::peers::Peers;
use super::request::Want;
use super::state::Closing;

/// What an agent wants to achieve.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// To take part in a round. `since` limits the wait.
    Join {
        /// When it first asked to join, or stopped being a spare.
        since: Duration,
    },
    /// To stay in this round.
    Stay {
        /// The round.
        round: u64,
    },
    /// To restart the workers of this round.
    Restart {
        /// The round.
        round: u64,
        /// What failed.
        reason: String,
    },
    /// To announce that its workers of this round have all succeeded.
    Succeed {
        /// The round.
        round: u64,
    },
    /// To end the job for all nodes.
    Close(Box<Closing>),
    /// To leave.
    Leave {
        /// Why.
        why: String,
    },
}

/// What an agent has observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Its goal.
    pub goal: Goal,
    /// True if the shared state has contained this node under its current id. It must not join again under that id.
    pub entered: bool,
    /// The latest round that the agent took part in.
    pub given: Option<u64>,
    /// True if this agent leads.
    pub leads: bool,
    /// Its last request, with the term of the leader that it was sent to.
    pub asked: Option<(u64, Want)>,
    leader: Peers,
    /// The time since which the gathering of this round has had enough members.
    enough: Option<(u64, Duration)>,
}

impl Memory {
    /// The memory of an agent that first asks to join at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Memory {
            goal: Goal::Join { since: now },
            entered: false,
            given: None,
            leads: false,
            asked: None,
            leader: Peers::new(now),
            enough: None,
        }
    }

    /// Updates the memory after a read of the store at `now`; `beat` is the leader's heartbeat.
    pub fn observe(
        &mut self,
        now: Duration,
        view: Option<&View>,
        beat: Option<(NodeId, u64)>,
        me: NodeId,
        options: &Options,
    ) {
        let Some(view) = view else { return };
        self.entered |= view.own != Own::Absent;
        let leader = view.header.leader.as_ref().map(|leader| leader.id).filter(|id| *id != me);
        self.leader.watch(now, leader);
        if let Some(beat) = beat {
            self.leader.observe(now, &[beat], options);
        }
        self.enough = enough(&view.header).then_some(match self.enough {
            Some((round, since)) if round == view.header.round => (round, since),
            _ => (view.header.round, now),
        });
        if let (Goal::Join { since }, Own::Waiting { holder: None, .. }) = (&mut self.goal, &view.own) {
            *since = now;
        }
    }

    /// Why the leader `id` counts as lost at `now`, if it does.
    #[must_use]
    pub fn lost(&self, now: Duration, id: NodeId, options: &Options) -> Option<String> {
        self.leader.lost(now, id, options)
    }

    /// The time since which the gathering of `round` has had enough members.
    #[must_use]
    pub fn enough_since(&self, round: u64) -> Option<Duration> {
        self.enough.filter(|(of, _)| *of == round).map(|(_, since)| since)
    }

    /// Records that this agent sent the leader of `term` this request.
    pub fn asked(&mut self, term: u64, want: Want) {
        self.asked = Some((term, want));
    }

    /// Forgets this agent's past, so that it can take part under a new id.
    pub(super) fn renewed(&mut self) {
        (self.entered, self.leads, self.asked) = (false, false, None);
    }

    /// Two memories with the same hash lead to the same decisions; ages beyond `cap` count as equal. The time to join
    /// is excluded, because the model checker does not limit it.
    #[cfg(test)]
    pub(super) fn digest(
        &self,
        now: Duration,
        cap: Duration,
        latest: &dyn Fn(NodeId) -> u64,
        term: u64,
        hasher: &mut impl Hasher,
    ) {
        let goal = match &self.goal {
            Goal::Join { .. } => Goal::Join { since: Duration::ZERO },
            goal => goal.clone(),
        };
        let asked = self.asked.as_ref().filter(|(of, _)| *of == term).map(|(_, want)| want);
        (goal, self.entered, self.given, self.leads, asked).hash(hasher);
        self.leader.digest(now, cap, latest, false, hasher);
    }
}

/// Returns true if the round gathers, no member is expected, and the minimum has come.
fn enough(header: &Header) -> bool {
    header.phase == HeaderPhase::Gathering && header.members >= header.job.min_nodes && header.arrived == header.members
}

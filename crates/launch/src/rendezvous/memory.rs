//! What one agent has observed and wants: the private half of a decision's input.

#[cfg(test)]
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::header::{Header, Own, Stand, View};
use super::node::NodeId;
use super::options::Options;
use super::peers::Peers;
use super::request::Want;
use super::state::Closing;

/// What this agent is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// To take part in a round. The time counts from `since`.
    Join {
        /// When it began to ask in, or ceased to be a spare.
        since: Duration,
    },
    /// To stay in this round.
    Stay {
        /// The round.
        round: u64,
    },
    /// To have the workers of this round started again.
    Restart {
        /// The round.
        round: u64,
        /// What failed.
        reason: String,
    },
    /// To say that its workers of this round have all succeeded.
    Succeed {
        /// The round.
        round: u64,
    },
    /// To end the job for all.
    Close(Box<Closing>),
    /// To go.
    Leave {
        /// Why.
        why: String,
    },
}

/// What this agent has observed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// What it wants.
    pub goal: Goal,
    /// Whether the shared state has held this node under its present number: it must not come back under it.
    pub entered: bool,
    /// The latest round that the agent was given.
    pub given: Option<u64>,
    /// Whether this agent leads.
    pub leads: bool,
    /// What it asked for last, of the leader of which term.
    pub asked: Option<(u64, Want)>,
    leader: Peers,
    /// Since when a gathering, by its round, has had enough members.
    enough: Option<(u64, Duration)>,
}

impl Memory {
    /// An agent that begins to ask in at `now`.
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

    /// Takes in a look at the store at `now`; `beat` is the leader's heartbeat.
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

    /// Since when the gathering of `round` has had enough members.
    #[must_use]
    pub fn enough_since(&self, round: u64) -> Option<Duration> {
        self.enough.filter(|(of, _)| *of == round).map(|(_, since)| since)
    }

    /// Takes in that this agent asked the leader of `term` for this.
    pub fn asked(&mut self, term: u64, want: Want) {
        self.asked = Some((term, want));
    }

    /// As if nothing was known of this agent's own past: it takes part under a new number.
    pub(super) fn renewed(&mut self) {
        (self.entered, self.leads, self.asked) = (false, false, None);
    }

    /// Hashes alike two memories which will decide alike whatever comes: ages beyond `cap` are one. The time to join is left
    /// out: the model checker has no end of it.
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

/// Gathering, nobody expected, and at least the minimum there.
fn enough(header: &Header) -> bool {
    header.stand == Stand::Gathering && header.members >= header.job.min_nodes && header.arrived == header.members
}

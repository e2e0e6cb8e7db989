//! What one agent has observed and wants: the private half of a decision's input.
//!
//! Times are spans of this agent's own monotonic clock since some start; nobody else ever sees them.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::node::NodeId;
use super::options::Options;
use super::state::{Closing, Phase, State};

/// Up to so many others are watched by everyone.
const WATCH_ALL: usize = 16;
/// In a larger group each node watches the store's host and so many that follow it, in a ring.
const WATCH_NEXT: usize = 8;

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
    peers: BTreeMap<NodeId, Peer>,
    severed: BTreeSet<NodeId>,
    /// Since when a gathering, by its round, has had enough members.
    enough: Option<(u64, Duration)>,
    looked: Duration,
}

/// What is known of another node's life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    beat: u64,
    changed: Duration,
    first_seen: Duration,
    beat_seen: bool,
}

/// The heartbeats that were read along with a state; a node that has none counts as 0.
pub(super) type Beats = [(NodeId, u64)];

impl Memory {
    /// An agent that begins to ask in at `now`.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Memory {
            goal: Goal::Join { since: now },
            entered: false,
            given: None,
            peers: BTreeMap::new(),
            severed: BTreeSet::new(),
            enough: None,
            looked: now,
        }
    }

    /// Takes in a look at the store at `now`. Time since the look before, beyond two polls, counts against nobody: then it
    /// was this agent, or the store, that was away.
    pub fn observe(&mut self, now: Duration, state: Option<&State>, beats: &Beats, me: NodeId, options: &Options) {
        let away = now.saturating_sub(self.looked).saturating_sub(usual_gap(options));
        self.looked = now;
        let Some(state) = state else { return };
        self.wrote(state, me);
        self.peers.retain(|id, _| state.node(*id).is_some());
        self.severed.retain(|id| state.node(*id).is_some());
        for (id, beat) in beats {
            self.hear(now, *id, *beat, away);
        }
        for node in state.everyone().filter(|node| node.id != me) {
            self.peers.entry(node.id).or_insert(Peer { beat: 0, changed: now, first_seen: now, beat_seen: false });
        }
        self.enough = enough(state).then_some(match self.enough {
            Some((round, since)) if round == state.round => (round, since),
            _ => (state.round, now),
        });
        if let (Goal::Join { since }, true) = (&mut self.goal, state.waits(me)) {
            *since = now;
        }
    }

    fn hear(&mut self, now: Duration, id: NodeId, beat: u64, away: Duration) {
        let known = self.peers.contains_key(&id);
        let peer = self.peers.entry(id).or_insert(Peer { beat, changed: now, first_seen: now, beat_seen: false });
        if peer.beat == beat {
            peer.changed = (peer.changed + away).min(now);
        } else {
            (peer.beat, peer.changed) = (beat, now);
            peer.beat_seen |= known;
        }
    }

    /// The host of the store saw node `id`'s connection close: the node counts as lost at once.
    pub fn sever(&mut self, id: NodeId) {
        self.severed.insert(id);
    }

    /// For how long node `id` has been silent; `None` for a node never observed.
    #[must_use]
    pub fn silence(&self, now: Duration, id: NodeId) -> Option<Duration> {
        self.peers.get(&id).map(|peer| now.saturating_sub(peer.changed))
    }

    /// How long ago node `id` was first seen.
    #[must_use]
    pub fn seen_ago(&self, now: Duration, id: NodeId) -> Option<Duration> {
        self.peers.get(&id).map(|peer| now.saturating_sub(peer.first_seen))
    }

    /// Whether node `id` has given a sign of life since it was first seen.
    #[must_use]
    pub fn lives(&self, id: NodeId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.beat_seen)
    }

    /// Since when the gathering of `round` has had enough members.
    #[must_use]
    pub fn enough_since(&self, round: u64) -> Option<Duration> {
        self.enough.filter(|(of, _)| *of == round).map(|(_, since)| since)
    }

    /// Nodes of `state` that count as lost at `now`, each with the reason and its numbers.
    #[must_use]
    pub fn lost(&self, now: Duration, state: &State, me: NodeId, options: &Options) -> Vec<(NodeId, String)> {
        let why = |id: NodeId| {
            if self.severed.contains(&id) {
                return Some("its connection to the store was closed".to_owned());
            }
            let silent = self.silence(now, id)?;
            (silent >= options.lease()).then(|| {
                let (limit, interval) = (options.lease().as_secs_f64(), options.keep_alive_interval.as_secs_f64());
                let attempts = options.keep_alive_max_attempt;
                format!("no heartbeat for {:.1} s (limit {limit} s: {attempts} of {interval} s)", silent.as_secs_f64())
            })
        };
        watched(state, me).into_iter().filter_map(|id| why(id).map(|why| (id, why))).collect()
    }

    /// Takes in that this agent's own write put `state` into the store.
    pub fn wrote(&mut self, state: &State, me: NodeId) {
        self.entered |= state.node(me).is_some();
    }

    /// As if nothing was known of this agent's own past: it takes part under a new number.
    pub(super) fn renewed(&mut self) {
        self.entered = false;
    }

    /// Hashes alike two memories which will decide alike whatever comes: ages beyond `cap` are one, and of a
    /// beat only whether it is the `latest`. The time to join is left out: the model checker has no end of it.
    #[cfg(test)]
    pub(super) fn digest(
        &self,
        now: Duration,
        cap: Duration,
        latest: &dyn Fn(NodeId) -> u64,
        hasher: &mut impl Hasher,
    ) {
        let age = |at: Duration| now.saturating_sub(at).min(cap);
        let peers: Vec<_> = self
            .peers
            .iter()
            .map(|(id, peer)| (*id, latest(*id) == peer.beat, age(peer.changed), peer.beat_seen))
            .collect();
        let goal = match &self.goal {
            Goal::Join { .. } => Goal::Join { since: Duration::ZERO },
            goal => goal.clone(),
        };
        let enough = self.enough.map(|(round, since)| (round, age(since)));
        (goal, self.entered, self.given, peers, &self.severed, enough, age(self.looked)).hash(hasher);
    }
}

/// Whose heartbeats node `me` reads: everyone's in a small group; in a large one the store's host's and those of the next few
/// in a ring, so that the load grows with the number of nodes and not with its square. The store's host watches everyone.
#[must_use]
pub fn watched(state: &State, me: NodeId) -> Vec<NodeId> {
    let all: Vec<NodeId> = state.everyone().map(|node| node.id).collect();
    let host = state.host().map(|node| node.id);
    let place = all.iter().position(|id| *id == me);
    let mut ids: Vec<NodeId> = match place {
        Some(at) if all.len() > WATCH_ALL && host != Some(me) => {
            let next = (1..=WATCH_NEXT).map(|step| all[(at + step) % all.len()]);
            next.chain(host).collect()
        }
        _ => all,
    };
    ids.retain(|id| *id != me);
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Gathering, nobody expected, and at least the minimum there.
fn enough(state: &State) -> bool {
    state.phase == Phase::Gathering
        && state.members.len() >= state.job.min_nodes
        && state.members.iter().all(|member| member.arrived)
}

/// An agent that is there looks at least so often.
fn usual_gap(options: &Options) -> Duration {
    options.keep_alive_interval.max(options.poll() * 2)
}

#[cfg(test)]
mod tests {
    use super::super::node::Me;
    use super::super::node::tests::{job, node};
    use super::*;

    fn state(nodes: u64) -> State {
        let join = |state: State, id| state.with(&Me { node: node(id, "h"), job: job(1, 99) });
        (1..=nodes).fold(State::empty(job(1, 99)), join)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn counts_a_node_as_lost_when_its_beat_stood_still_for_a_lease() {
        let (state, options, mut memory) = (state(2), Options::default(), Memory::new(at(0)));
        memory.observe(at(100), Some(&state), &[(2, 4)], 1, &options);
        for now in [105, 110, 114] {
            memory.observe(at(now), Some(&state), &[(2, 4)], 1, &options);
            assert_eq!(memory.lost(at(now), &state, 1, &options), []);
        }
        memory.observe(at(115), Some(&state), &[(2, 4)], 1, &options);
        let lost = memory.lost(at(115), &state, 1, &options);
        assert_eq!(lost, [(2, "no heartbeat for 15.0 s (limit 15 s: 3 of 5 s)".to_owned())]);
        memory.observe(at(116), Some(&state), &[(2, 5)], 1, &options);
        assert_eq!(memory.lost(at(116), &state, 1, &options), []);
    }

    #[test]
    fn holds_time_in_which_it_did_not_look_against_nobody() {
        let (state, options, mut memory) = (state(2), Options::default(), Memory::new(at(0)));
        memory.observe(at(1), Some(&state), &[(2, 4)], 1, &options);
        memory.observe(at(100), Some(&state), &[(2, 4)], 1, &options);
        assert_eq!(memory.silence(at(100), 2), Some(at(5)));
        assert_eq!(memory.lost(at(100), &state, 1, &options), []);
    }

    #[test]
    fn counts_a_node_as_lost_at_once_when_its_connection_closed() {
        let (state, options, mut memory) = (state(2), Options::default(), Memory::new(at(0)));
        memory.observe(at(1), Some(&state), &[(2, 4)], 1, &options);
        memory.sever(2);
        let lost = memory.lost(at(1), &state, 1, &options);
        assert_eq!(lost, [(2, "its connection to the store was closed".to_owned())]);
    }

    #[test]
    fn takes_a_first_look_at_an_old_beat_for_no_sign_of_life() {
        let (state, options, mut memory) = (state(2), Options::default(), Memory::new(at(0)));
        memory.observe(at(1), Some(&state), &[(2, 4)], 1, &options);
        assert!(!memory.lives(2));
        memory.observe(at(2), Some(&state), &[(2, 5)], 1, &options);
        assert!(memory.lives(2));
    }

    #[test]
    fn watches_a_few_in_a_large_group_and_each_is_watched_by_as_many() {
        let mut state = state(40);
        state.members[4].node.hosts_store = true;
        assert_eq!(watched(&state, 39), [1, 2, 3, 4, 5, 6, 7, 40]);
        assert_eq!(watched(&state, 20), [5, 21, 22, 23, 24, 25, 26, 27, 28]);
        assert_eq!(watched(&state, 5).len(), 39);
        for id in 1..=40 {
            assert!((1..=40).filter(|watcher| watched(&state, *watcher).contains(&id)).count() >= WATCH_NEXT, "{id}");
        }
    }
}

//! Signs of life of other nodes, by one agent's own clock.
//!
//! Times are spans of this agent's monotonic clock since some start; nobody else ever sees them.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::node::NodeId;
use super::options::Options;

/// Heartbeats as they were read.
pub(super) type Beats = [(NodeId, u64)];

/// What an agent has observed of the lives of the nodes that it watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    peers: BTreeMap<NodeId, Peer>,
    /// Given up before their silence says so, and why.
    given_up: BTreeMap<NodeId, String>,
    looked: Duration,
}

/// What is known of another node's life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    /// The latest heartbeat; `None` before the first was read.
    beat: Option<u64>,
    changed: Duration,
    first_seen: Duration,
    /// When a heartbeat was seen to follow another.
    lived: Option<Duration>,
}

impl Peers {
    /// Nobody is watched yet.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Peers { peers: BTreeMap::new(), given_up: BTreeMap::new(), looked: now }
    }

    /// These are the nodes to watch from now on.
    pub fn watch(&mut self, now: Duration, ids: impl IntoIterator<Item = NodeId>) {
        let ids: BTreeSet<NodeId> = ids.into_iter().collect();
        self.peers.retain(|id, _| ids.contains(id));
        self.given_up.retain(|id, _| ids.contains(id));
        for id in ids {
            self.peers.entry(id).or_insert(Peer { beat: None, changed: now, first_seen: now, lived: None });
        }
    }

    /// This node had been known for `age` before this agent first saw it.
    pub(super) fn known_for(&mut self, now: Duration, id: NodeId, age: Duration) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.first_seen = now.saturating_sub(age);
        }
    }

    /// Takes in heartbeats that were read at `now`. Time since the reading before, beyond the usual, counts against nobody:
    /// then it was this agent, or the store, that was away.
    pub fn observe(&mut self, now: Duration, beats: &Beats, options: &Options) {
        let away = now.saturating_sub(self.looked).saturating_sub(usual_gap(options));
        self.looked = now;
        for (id, beat) in beats {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            if peer.beat == Some(*beat) {
                peer.changed = (peer.changed + away).min(now);
            } else {
                peer.lived = peer.beat.map_or(peer.lived, |_| Some(now));
                (peer.beat, peer.changed) = (Some(*beat), now);
            }
        }
    }

    /// The host of the store saw node `id`'s connection close: the node counts as lost at once.
    pub fn sever(&mut self, id: NodeId) {
        self.give_up(id, "its connection to the store was closed".to_owned());
    }

    /// Node `id`, if it is watched, counts as lost for this reason, whatever its heart does.
    pub fn give_up(&mut self, id: NodeId, why: String) {
        if self.peers.contains_key(&id) {
            self.given_up.insert(id, why);
        }
    }

    /// For how long node `id` has been silent; `None` for a node that is not watched.
    #[must_use]
    pub fn silence(&self, now: Duration, id: NodeId) -> Option<Duration> {
        self.peers.get(&id).map(|peer| now.saturating_sub(peer.changed))
    }

    /// How long ago node `id` was first seen.
    #[must_use]
    pub fn seen_ago(&self, now: Duration, id: NodeId) -> Option<Duration> {
        self.peers.get(&id).map(|peer| now.saturating_sub(peer.first_seen))
    }

    /// Whether node `id` has given a sign of life since node `since` was first seen; where that is not watched, since the
    /// first look.
    #[must_use]
    pub fn lives(&self, id: NodeId, since: NodeId) -> bool {
        let seen = self.peers.get(&since).map(|peer| peer.first_seen);
        let lived = self.peers.get(&id).and_then(|peer| peer.lived);
        lived.is_some_and(|lived| seen.is_none_or(|seen| lived > seen))
    }

    /// Why node `id` counts as lost at `now`, with the numbers; `None` while it does not.
    #[must_use]
    pub fn lost(&self, now: Duration, id: NodeId, options: &Options) -> Option<String> {
        if let Some(why) = self.given_up.get(&id) {
            return Some(why.clone());
        }
        let silent = self.silence(now, id)?;
        (silent >= options.lease()).then(|| {
            let (limit, interval) = (options.lease().as_secs_f64(), options.keep_alive_interval.as_secs_f64());
            let attempts = options.keep_alive_max_attempt;
            format!("no heartbeat for {:.1} s (limit {limit} s: {attempts} of {interval} s)", silent.as_secs_f64())
        })
    }

    /// All nodes that count as lost at `now`, each with the reason.
    #[must_use]
    pub fn all_lost(&self, now: Duration, options: &Options) -> Vec<(NodeId, String)> {
        self.peers.keys().filter_map(|id| Some((*id, self.lost(now, *id, options)?))).collect()
    }

    /// Those that are watched.
    pub(super) fn ids(&self) -> Vec<NodeId> {
        self.peers.keys().copied().collect()
    }

    /// Hashes alike two observers who will judge alike whatever comes: ages beyond `cap` are one, and of a beat counts only
    /// whether it is the `latest`.
    #[cfg(test)]
    pub(super) fn digest(
        &self,
        now: Duration,
        cap: Duration,
        latest: &dyn Fn(NodeId) -> u64,
        contested: bool,
        hasher: &mut impl Hasher,
    ) {
        let age = |at: Duration| now.saturating_sub(at).min(cap);
        for (id, peer) in &self.peers {
            (id, peer.beat == Some(latest(*id)), peer.beat.is_some(), age(peer.changed)).hash(hasher);
            if contested {
                (peer.lived.map(age), age(peer.first_seen)).hash(hasher);
            }
        }
        (self.given_up.keys().collect::<Vec<_>>(), age(self.looked)).hash(hasher);
    }
}

/// An agent that is there looks at least so often.
fn usual_gap(options: &Options) -> Duration {
    options.keep_alive_interval.max(options.poll() * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn watching(now: u64) -> (Peers, Options) {
        let (mut peers, options) = (Peers::new(at(0)), Options::default());
        peers.watch(at(now), [2, 3]);
        peers.observe(at(now), &[(2, 4)], &options);
        (peers, options)
    }

    #[test]
    fn counts_a_node_as_lost_when_its_beat_stood_still_for_a_lease() {
        let (mut peers, options) = watching(100);
        for now in [105, 110, 114] {
            peers.observe(at(now), &[(2, 4), (3, now)], &options);
            assert_eq!(peers.all_lost(at(now), &options), []);
        }
        peers.observe(at(115), &[(2, 4), (3, 115)], &options);
        let lost = peers.all_lost(at(115), &options);
        assert_eq!(lost, [(2, "no heartbeat for 15.0 s (limit 15 s: 3 of 5 s)".to_owned())]);
        peers.observe(at(116), &[(2, 5)], &options);
        assert_eq!(peers.all_lost(at(116), &options), []);
    }

    #[test]
    fn holds_time_in_which_it_did_not_look_against_nobody() {
        let (mut peers, options) = watching(1);
        peers.observe(at(100), &[(2, 4)], &options);
        assert_eq!(peers.silence(at(100), 2), Some(at(5)));
        assert_eq!(peers.lost(at(100), 2, &options), None);
    }

    #[test]
    fn counts_a_node_as_lost_at_once_when_its_connection_closed() {
        let (mut peers, options) = watching(1);
        peers.sever(2);
        assert_eq!(peers.lost(at(1), 2, &options).unwrap(), "its connection to the store was closed");
        peers.watch(at(2), [3]);
        assert_eq!(peers.all_lost(at(2), &options), []);
    }

    #[test]
    fn takes_only_a_beat_that_follows_the_newcomer_for_a_sign_of_life() {
        let (mut peers, options) = watching(1);
        peers.observe(at(2), &[(2, 5)], &options);
        assert!(peers.lives(2, 3));
        peers.watch(at(3), [2, 3, 4]);
        assert!(!peers.lives(2, 4));
        peers.observe(at(4), &[(2, 6)], &options);
        assert!(peers.lives(2, 4));
    }
}

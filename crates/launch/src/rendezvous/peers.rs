//! Whether other nodes are alive, by one agent's own clock.
//!
//! Times are durations of this agent's monotonic clock since an arbitrary start; they are never shared.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(test)]
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::node::NodeId;
use super::options::Options;

/// Heartbeats that were read.
pub(super) type Beats = [(NodeId, u64)];

/// What an agent has observed about the nodes that it watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    peers: BTreeMap<NodeId, Peer>,
    /// Nodes that are lost for another reason than a missing heartbeat, with the reason.
    given_up: BTreeMap<NodeId, String>,
    looked: Duration,
}

/// What is known about one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    /// The latest heartbeat; `None` before the first was read.
    beat: Option<u64>,
    changed: Duration,
    first_seen: Duration,
    /// When the heartbeat last changed.
    lived: Option<Duration>,
}

impl Peers {
    /// Starts without watched nodes.
    #[must_use]
    pub fn new(now: Duration) -> Self {
        Peers { peers: BTreeMap::new(), given_up: BTreeMap::new(), looked: now }
    }

    /// Sets the nodes to watch.
    pub fn watch(&mut self, now: Duration, ids: impl IntoIterator<Item = NodeId>) {
        let ids: BTreeSet<NodeId> = ids.into_iter().collect();
        self.peers.retain(|id, _| ids.contains(id));
        self.given_up.retain(|id, _| ids.contains(id));
        for id in ids {
            self.peers.entry(id).or_insert(Peer { beat: None, changed: now, first_seen: now, lived: None });
        }
    }

    /// Records that the node was known for `age` before this agent first saw it.
    pub(super) fn known_for(&mut self, now: Duration, id: NodeId, age: Duration) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.first_seen = now.saturating_sub(age);
        }
    }

    /// Processes heartbeats that were read at `now`. If the time since the previous read is longer than usual, the
    /// excess does not count: this agent, or the store, was not available then.
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

    /// The host of the store saw node `id` disconnect: the node counts as lost immediately.
    pub fn disconnected(&mut self, id: NodeId) {
        self.give_up(id, "its connection to the store was closed".to_owned());
    }

    /// Node `id`, if it is watched, counts as lost for this reason, independently of its heartbeat.
    pub fn give_up(&mut self, id: NodeId, why: String) {
        if self.peers.contains_key(&id) {
            self.given_up.insert(id, why);
        }
    }

    /// How long node `id`'s heartbeat has been missing; `None` if it is not watched.
    #[must_use]
    pub fn silence(&self, now: Duration, id: NodeId) -> Option<Duration> {
        self.peers.get(&id).map(|peer| now.saturating_sub(peer.changed))
    }

    /// How long ago node `id` was first seen.
    #[must_use]
    pub fn seen_ago(&self, now: Duration, id: NodeId) -> Option<Duration> {
        self.peers.get(&id).map(|peer| now.saturating_sub(peer.first_seen))
    }

    /// Returns true if node `id`'s heartbeat has changed since node `since` was first seen; if that is not watched,
    /// since the first read.
    #[must_use]
    pub fn is_alive(&self, id: NodeId, since: NodeId) -> bool {
        let seen = self.peers.get(&since).map(|peer| peer.first_seen);
        let lived = self.peers.get(&id).and_then(|peer| peer.lived);
        lived.is_some_and(|lived| seen.is_none_or(|seen| lived > seen))
    }

    /// Why node `id` counts as lost at `now`, with the numbers; `None` if it does not.
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

    /// All nodes that count as lost at `now`, with the reasons.
    #[must_use]
    pub fn all_lost(&self, now: Duration, options: &Options) -> Vec<(NodeId, String)> {
        self.peers.keys().filter_map(|id| Some((*id, self.lost(now, *id, options)?))).collect()
    }

    /// The watched nodes.
    pub(super) fn ids(&self) -> Vec<NodeId> {
        self.peers.keys().copied().collect()
    }

    /// Two observers with the same hash make the same decisions; ages beyond `cap` count as equal, and a beat only
    /// counts as equal to `latest` or not.
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

/// An agent that is available reads at least this often.
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
    fn counts_a_node_as_lost_when_its_heartbeat_did_not_change_for_a_lease() {
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
    fn does_not_count_time_in_which_it_did_not_look() {
        let (mut peers, options) = watching(1);
        peers.observe(at(100), &[(2, 4)], &options);
        assert_eq!(peers.silence(at(100), 2), Some(at(5)));
        assert_eq!(peers.lost(at(100), 2, &options), None);
    }

    #[test]
    fn counts_a_node_as_lost_immediately_when_it_disconnects() {
        let (mut peers, options) = watching(1);
        peers.disconnected(2);
        assert_eq!(peers.lost(at(1), 2, &options).unwrap(), "its connection to the store was closed");
        peers.watch(at(2), [3]);
        assert_eq!(peers.all_lost(at(2), &options), []);
    }

    #[test]
    fn only_a_heartbeat_after_the_new_node_proves_that_the_holder_is_alive() {
        let (mut peers, options) = watching(1);
        peers.observe(at(2), &[(2, 5)], &options);
        assert!(peers.is_alive(2, 3));
        peers.watch(at(3), [2, 3, 4]);
        assert!(!peers.is_alive(2, 4));
        peers.observe(at(4), &[(2, 6)], &options);
        assert!(peers.is_alive(2, 4));
    }
}

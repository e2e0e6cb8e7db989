//! A node's heartbeat and its connection key, how the store's host reads the latter, and the names of all keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::header::Pages;
use super::node::NodeId;
use super::options::Options;
use super::store::Store;

/// Timeout after which the wait for a connection key is renewed; no other timeout depends on it.
const CONNECTION_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The keys of one rendezvous.
#[derive(Clone, Debug)]
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn of(run_id: &str) -> Keys {
        Keys(format!("lockstep/rendezvous/{run_id}"))
    }

    /// The header of the shared state.
    pub(super) fn state(&self) -> String {
        format!("{}/state", self.0)
    }

    /// The counter that gives each node its id.
    pub(super) fn nodes(&self) -> String {
        format!("{}/nodes", self.0)
    }

    /// A node's heartbeat: a counter.
    pub(super) fn heartbeat(&self, id: NodeId) -> String {
        format!("{}/heartbeat/{id}", self.0)
    }

    /// Never set: a node waits for this key as long as it is alive.
    pub(super) fn connected(&self, id: NodeId) -> String {
        format!("{}/connected/{id}", self.0)
    }

    /// The keys of all pages of one write.
    pub(super) fn pages(&self, Pages { term, write, count }: Pages) -> Vec<String> {
        (0..count).map(|page| self.page(term, write, page)).collect()
    }

    /// One page of a write.
    pub(super) fn page(&self, term: u64, write: u64, page: u64) -> String {
        format!("{}/page/{term}.{write}/{page}", self.0)
    }

    /// The queue of requests to the leader of a term.
    pub(super) fn requests(&self, term: u64) -> String {
        format!("{}/requests/{term}", self.0)
    }

    /// Set when the header's counter of changes has this value.
    pub(super) fn change_key(&self, news: u64) -> String {
        format!("{}/change/{news}", self.0)
    }

    /// Set when a node no longer needs the store.
    pub(super) fn shutdown_ack(&self, id: NodeId) -> String {
        format!("{}/shutdown_ack/{id}", self.0)
    }

    /// The address of the workers' store of a round.
    pub(super) fn master(&self, round: u64) -> String {
        format!("{}/round/{round}/master", self.0)
    }
}

/// The task that increments this node's heartbeat and waits for its connection key; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat(JoinHandle<()>);

impl Heartbeat {
    pub(super) fn start<S: Store>(store: S, keys: &Keys, id: NodeId, options: &Options) -> Heartbeat {
        let (alive, connected, options) = (keys.heartbeat(id), keys.connected(id), options.clone());
        Heartbeat(tokio::spawn(async move {
            tokio::join!(beat(&store, &alive, &options), show(&store, &connected, &options));
        }))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat<S: Store>(store: &S, key: &str, options: &Options) {
    let mut next = Instant::now();
    for beat in 2u64.. {
        // A slow beat does not delay the next one.
        next = Instant::now().max(next + options.keep_alive_interval);
        sleep_until(next).await;
        if !matches!(timeout(options.heartbeat_timeout, store.set(key, beat.to_string().as_bytes())).await, Ok(Ok(())))
        {
            tracing::debug!(key, beat, "a heartbeat was not stored");
        }
    }
}

async fn show<S: Store>(store: &S, key: &str, options: &Options) {
    loop {
        if store.wait(key, CONNECTION_WAIT).await.is_err() {
            sleep(options.keep_alive_interval).await;
        }
    }
}

/// For the agent that hosts the store: finds disconnected nodes among the keys that clients wait for. Each node waits
/// for a key of its own as long as it is alive, so the wait ends with its process.
#[derive(Clone, Debug)]
pub struct ConnectedNodes {
    prefix: String,
    present: BTreeSet<NodeId>,
}

impl ConnectedNodes {
    /// Starts without connected nodes.
    #[must_use]
    pub fn new(run_id: &str) -> Self {
        ConnectedNodes { prefix: format!("{}/connected/", Keys::of(run_id).0), present: BTreeSet::new() }
    }

    /// The prefix of all connection keys.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns true if node `id` was connected at the last update.
    #[must_use]
    pub fn contains(&self, id: NodeId) -> bool {
        self.present.contains(&id)
    }

    /// Updates the set from all keys that clients wait for now, and returns the nodes that are no longer connected, for
    /// [`Disconnects`]. The keys are the `waits_for` of each of [`tcpstore::Server::peers`].
    pub fn update<'a>(&mut self, waited_for: impl IntoIterator<Item = &'a str>) -> Vec<NodeId> {
        let id = |key: &str| key.strip_prefix(self.prefix.as_str())?.parse().ok();
        let now: BTreeSet<NodeId> = waited_for.into_iter().filter_map(id).collect();
        let gone = self.present.difference(&now).copied().collect();
        self.present = now;
        gone
    }
}

/// A channel through which the agent that hosts the store reports disconnected nodes, independently of what its
/// [`Rendezvous`](super::Rendezvous) is doing.
#[derive(Clone, Debug, Default)]
pub struct Disconnects(Arc<watch::Sender<Vec<NodeId>>>);

impl Disconnects {
    /// Reports that node `id` has disconnected: it counts as lost.
    pub fn report(&self, id: NodeId) {
        self.0.send_modify(|closed| closed.push(id));
    }

    /// All disconnects, past and future. Ids are never reused.
    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<NodeId>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [NodeId; 0] = [];

    #[test]
    fn reports_each_disconnected_node_once() {
        let mut connected = ConnectedNodes::new("a/b");
        let keys = Keys::of("a/b");
        let (one, two) = (keys.connected(1), keys.connected(2));
        assert_eq!(connected.update([one.as_str(), two.as_str(), "other", "lockstep/rendezvous/x/connected/9"]), NONE);
        assert_eq!(connected.update([two.as_str()]), [1]);
        assert_eq!(connected.update([two.as_str()]), NONE);
        assert_eq!(connected.update([]), [2]);
    }
}

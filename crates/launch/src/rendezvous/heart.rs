//! The signs of life: a node's heartbeat and its presence, and how the store's host reads the latter. Also the names of all keys.

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

/// A wait for presence is asked for anew so often; nobody's clock depends on it.
const PRESENCE: Duration = Duration::from_secs(24 * 3600);

/// The names of the keys of one rendezvous.
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

    /// Counts the nodes, so that each has a number.
    pub(super) fn nodes(&self) -> String {
        format!("{}/nodes", self.0)
    }

    /// A node's heartbeat: a count.
    pub(super) fn alive(&self, id: NodeId) -> String {
        format!("{}/alive/{id}", self.0)
    }

    /// Never set: a node waits for it as long as it lives.
    pub(super) fn presence(&self, id: NodeId) -> String {
        format!("{}/presence/{id}", self.0)
    }

    /// All pages of one write.
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

    /// Set when there has been this much news.
    pub(super) fn bell(&self, news: u64) -> String {
        format!("{}/bell/{news}", self.0)
    }

    /// Set when a node needs the store no more.
    pub(super) fn bye(&self, id: NodeId) -> String {
        format!("{}/bye/{id}", self.0)
    }

    /// Where the workers' store of a round is.
    pub(super) fn master(&self, round: u64) -> String {
        format!("{}/round/{round}/master", self.0)
    }
}

/// The task that counts up this node's heartbeat and waits for its presence key; ends when dropped.
#[derive(Debug)]
pub(super) struct Heart(JoinHandle<()>);

impl Heart {
    pub(super) fn start<S: Store>(store: S, keys: &Keys, id: NodeId, options: &Options) -> Heart {
        let (alive, presence, options) = (keys.alive(id), keys.presence(id), options.clone());
        Heart(tokio::spawn(async move {
            tokio::join!(beat(&store, &alive, &options), show(&store, &presence, &options));
        }))
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat<S: Store>(store: &S, key: &str, options: &Options) {
    let mut next = Instant::now();
    for beat in 2u64.. {
        // A beat that took long is no reason for the next to come later.
        next = Instant::now().max(next + options.keep_alive_interval);
        sleep_until(next).await;
        if !matches!(timeout(options.heartbeat_timeout, store.set(key, beat.to_string().as_bytes())).await, Ok(Ok(())))
        {
            tracing::debug!(key, beat, "a heartbeat was not taken");
        }
    }
}

async fn show<S: Store>(store: &S, key: &str, options: &Options) {
    loop {
        if store.wait(key, PRESENCE).await.is_err() {
            sleep(options.keep_alive_interval).await;
        }
    }
}

/// For the agent that hosts the store: tells from the keys that its clients wait for which nodes have gone. Each node waits
/// for a key of its own as long as it lives, so the wait ends in the moment when its process does.
#[derive(Clone, Debug)]
pub struct Presence {
    prefix: String,
    present: BTreeSet<NodeId>,
}

impl Presence {
    /// Nobody is present yet.
    #[must_use]
    pub fn new(run_id: &str) -> Self {
        Presence { prefix: format!("{}/presence/", Keys::of(run_id).0), present: BTreeSet::new() }
    }

    /// What the names of all its keys begin with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether node `id` was present at the latest look.
    #[must_use]
    pub fn has(&self, id: NodeId) -> bool {
        self.present.contains(&id)
    }

    /// Takes in all keys that clients wait for now, and returns the nodes that are no longer among them: for
    /// [`Closings`]. They are what `waits_for` says of each of
    /// [`tcpstore::Server::peers`].
    pub fn gone<'a>(&mut self, waited_for: impl IntoIterator<Item = &'a str>) -> Vec<NodeId> {
        let id = |key: &str| key.strip_prefix(self.prefix.as_str())?.parse().ok();
        let now: BTreeSet<NodeId> = waited_for.into_iter().filter_map(id).collect();
        let gone = self.present.difference(&now).copied().collect();
        self.present = now;
        gone
    }
}

/// Where the agent that hosts the store says whose connection closed, whatever its [`Rendezvous`](super::Rendezvous) is
/// about at that time.
#[derive(Clone, Debug, Default)]
pub struct Closings(Arc<watch::Sender<Vec<NodeId>>>);

impl Closings {
    /// Node `id`'s connection closed: it counts as lost.
    pub fn tell(&self, id: NodeId) {
        self.0.send_modify(|closed| closed.push(id));
    }

    /// All that closed, now and later. No number is ever given twice.
    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<NodeId>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [NodeId; 0] = [];

    #[test]
    fn tells_once_which_nodes_wait_no_longer() {
        let mut presence = Presence::new("a/b");
        let keys = Keys::of("a/b");
        let (one, two) = (keys.presence(1), keys.presence(2));
        assert_eq!(presence.gone([one.as_str(), two.as_str(), "other", "lockstep/rendezvous/x/presence/9"]), NOBODY);
        assert_eq!(presence.gone([two.as_str()]), [1]);
        assert_eq!(presence.gone([two.as_str()]), NOBODY);
        assert_eq!(presence.gone([]), [2]);
    }
}

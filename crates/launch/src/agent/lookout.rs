//! On the agent that hosts the store: sees which nodes' connections closed, long before their heartbeat is missed.
//!
//! A node waits for a key of its own as long as it lives; a wait that is not there in two looks in a row has ended with the
//! node. A node that takes part and whose wait was never seen may be slow, or may have died before the first look: it has a
//! time of grace. What follows is the rendezvous' business. The store says when a node's wait began or ended: without news
//! nothing is looked at.

use std::collections::BTreeMap;
use std::mem::{replace, take};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tcpstore::Server;
use tcpstore::server::Waits;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::rendezvous::{Closings, NodeId, Presence};

/// Between two looks. One look may fall between the end of a wait and its renewal; two do not.
const BETWEEN: Duration = Duration::from_millis(100);

/// The task's handle; dropping it ends the task.
#[derive(Debug)]
pub(super) struct Lookout {
    expected: Arc<Expected>,
    task: JoinHandle<()>,
}

/// Nodes that take part since the last look.
#[derive(Debug, Default)]
struct Expected {
    nodes: Mutex<Vec<NodeId>>,
    added: Notify,
}

impl Expected {
    fn add(&self, nodes: impl IntoIterator<Item = NodeId>) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).extend(nodes);
        self.added.notify_one();
    }

    fn take(&self) -> Vec<NodeId> {
        take(&mut *self.nodes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Lookout {
    /// Starts looking, for the rendezvous of this job. A node may take `grace` to begin its wait after it was expected.
    pub(super) fn start(server: &Server, run_id: &str, grace: Duration, closings: Closings) -> Self {
        let look = Look::new(run_id, grace);
        let waits = server.watch_waits(look.presence.prefix());
        let expected: Arc<Expected> = Arc::default();
        let task = tokio::spawn(watch(look, waits, Arc::clone(&expected), move |id| closings.tell(id)));
        Lookout { expected, task }
    }

    /// These nodes take part: each waits for its key, or will soon.
    pub(super) fn expect(&self, nodes: impl Iterator<Item = NodeId>) {
        self.expected.add(nodes);
    }
}

/// Looks when there is news, once more when somebody was missed, and when somebody's grace is over.
async fn watch(mut look: Look, mut waits: Waits, expected: Arc<Expected>, tell: impl Fn(NodeId)) {
    let mut next = Instant::now();
    loop {
        if look.missed.is_empty() {
            tokio::select! {
                () = waits.changed() => {}
                () = expected.added.notified() => {}
                () = at(look.next_grace()) => {}
            }
        }
        sleep_until(next).await;
        let now = Instant::now();
        next = now + BETWEEN;
        look.expect(now, expected.take());
        look.gone(now, waits.keys().iter().map(String::as_str)).into_iter().for_each(&tell);
    }
}

/// Sleeps until then; for ever if there is no such time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Look {
    presence: Presence,
    missed: Vec<NodeId>,
    grace: Duration,
    /// Who takes part and was never seen, and when that means that it is gone.
    unseen: BTreeMap<NodeId, Instant>,
}

impl Look {
    fn new(run_id: &str, grace: Duration) -> Self {
        Look { presence: Presence::new(run_id), missed: vec![], grace, unseen: BTreeMap::new() }
    }

    fn expect(&mut self, now: Instant, nodes: Vec<NodeId>) {
        let unseen = nodes.into_iter().filter(|id| !self.presence.has(*id));
        self.unseen.extend(unseen.map(|id| (id, now + self.grace)));
    }

    /// When the first grace ends.
    fn next_grace(&self) -> Option<Instant> {
        self.unseen.values().min().copied()
    }

    /// Who was missed at the last look and still is, and who was never seen within its grace.
    fn gone<'a>(&mut self, now: Instant, waits: impl IntoIterator<Item = &'a str>) -> Vec<NodeId> {
        let missed = self.presence.gone(waits);
        let mut gone = replace(&mut self.missed, missed);
        gone.retain(|id| !self.presence.has(*id));
        self.unseen.retain(|id, _| !self.presence.has(*id));
        gone.extend(self.unseen.extract_if(.., |_, end| *end <= now).map(|(id, _)| id));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [NodeId; 0] = [];
    const KEY: &str = "lockstep/rendezvous/j/presence/7";
    const GRACE: Duration = Duration::from_secs(5);

    /// While nothing changes, time may pass as it likes.
    #[tokio::test(start_paused = true)]
    async fn tells_once_of_a_node_that_is_expected_and_never_waits() {
        let server = super::super::master::host_on(([127, 0, 0, 1], 0).into()).unwrap();
        let look = Look::new("j", GRACE);
        let waits = server.watch_waits(look.presence.prefix());
        let expected: Arc<Expected> = Arc::default();
        expected.add([7]);
        let (tell, mut gone) = tokio::sync::mpsc::unbounded_channel();
        let (begun, task) =
            (Instant::now(), tokio::spawn(watch(look, waits, expected, move |id| tell.send(id).unwrap())));
        assert_eq!(gone.recv().await, Some(7));
        assert!(begun.elapsed() >= GRACE, "{:?}", begun.elapsed());
        tokio::time::sleep(100 * BETWEEN).await;
        assert!(gone.try_recv().is_err());
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_gone_when_two_looks_in_a_row_miss_it() {
        let (mut look, now) = (Look::new("j", GRACE), Instant::now());
        assert_eq!([look.gone(now, [KEY]), look.gone(now, []), look.gone(now, [KEY])], [NOBODY; 3].map(Vec::from));
        assert_eq!(look.gone(now, []), NOBODY);
        assert_eq!(look.gone(now, []), [7]);
        assert_eq!(look.gone(now, []), NOBODY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_may_begin_to_wait_long_after_the_round_formed() {
        let (mut look, formed) = (Look::new("j", GRACE), Instant::now());
        look.expect(formed, vec![7]);
        for look_at in 0..10 {
            assert_eq!(look.gone(formed + look_at * BETWEEN, []), NOBODY);
        }
        assert_eq!(look.gone(formed + GRACE - BETWEEN, [KEY]), NOBODY);
        assert_eq!(look.next_grace(), None);
        let later = formed + 2 * GRACE;
        assert_eq!([look.gone(later, []), look.gone(later, [])], [vec![], vec![7]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_there_already_has_no_grace() {
        let (mut look, now) = (Look::new("j", GRACE), Instant::now());
        assert_eq!(look.gone(now, [KEY]), NOBODY);
        look.expect(now, vec![7]);
        assert_eq!([look.gone(now, []), look.gone(now, [])], [vec![], vec![7]]);
    }
}

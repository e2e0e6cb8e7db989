//! On the agent that hosts the store: sees which nodes' connections closed, long before their heartbeat is missed.
//!
//! A node waits for a key of its own as long as it lives; a wait that is not there in two looks in a row has ended with the
//! node. What follows is the rendezvous' business. The store says when a node's wait began or ended: without news nothing is
//! looked at.

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

/// Nodes that must be there at the next look.
#[derive(Debug, Default)]
struct Expected {
    nodes: Mutex<Vec<NodeId>>,
    added: Notify,
}

impl Lookout {
    /// Starts looking, for the rendezvous of this job.
    pub(super) fn start(server: &Server, run_id: &str, closings: Closings) -> Self {
        let look = Look { presence: Presence::new(run_id), missed: vec![] };
        let waits = server.watch_waits(look.presence.prefix());
        let expected: Arc<Expected> = Arc::default();
        let task = tokio::spawn(watch(look, waits, Arc::clone(&expected), move |id| closings.tell(id)));
        Lookout { expected, task }
    }

    /// These nodes take part, so they were there, even if they die before the next look.
    pub(super) fn expect(&self, nodes: impl Iterator<Item = NodeId>) {
        self.expected.nodes.lock().unwrap_or_else(PoisonError::into_inner).extend(nodes);
        self.expected.added.notify_one();
    }
}

/// Looks when there is news, and once more when somebody was missed.
async fn watch(mut look: Look, mut waits: Waits, expected: Arc<Expected>, tell: impl Fn(NodeId)) {
    let mut next = Instant::now();
    loop {
        if look.missed.is_empty() {
            tokio::select! {
                () = waits.changed() => {}
                () = expected.added.notified() => {}
            }
        }
        sleep_until(next).await;
        next = Instant::now() + BETWEEN;
        look.presence.expect(take(&mut *expected.nodes.lock().unwrap_or_else(PoisonError::into_inner)));
        look.gone(waits.keys().iter().map(String::as_str)).into_iter().for_each(&tell);
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
}

impl Look {
    /// Who was missed at the last look and still is.
    fn gone<'a>(&mut self, waits: impl IntoIterator<Item = &'a str>) -> Vec<NodeId> {
        let missed = self.presence.gone(waits);
        let mut gone = replace(&mut self.missed, missed);
        gone.retain(|id| !self.presence.has(*id));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: [NodeId; 0] = [];

    /// While nothing changes, time may pass as it likes.
    #[tokio::test(start_paused = true)]
    async fn tells_once_of_a_node_that_is_expected_and_never_waits() {
        let server = super::super::master::host_on(([127, 0, 0, 1], 0).into()).unwrap();
        let look = Look { presence: Presence::new("j"), missed: vec![] };
        let waits = server.watch_waits(look.presence.prefix());
        let expected: Arc<Expected> = Arc::default();
        expected.nodes.lock().unwrap().push(7);
        expected.added.notify_one();
        let (tell, mut gone) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(watch(look, waits, expected, move |id| tell.send(id).unwrap()));
        assert_eq!(gone.recv().await, Some(7));
        tokio::time::sleep(100 * BETWEEN).await;
        assert!(gone.try_recv().is_err());
        task.abort();
    }

    #[test]
    fn a_node_is_gone_when_two_looks_in_a_row_miss_it() {
        let mut look = Look { presence: Presence::new("j"), missed: vec![] };
        let key = "lockstep/rendezvous/j/presence/7";
        assert_eq!([look.gone([key]), look.gone([]), look.gone([key])], [NOBODY; 3].map(Vec::from));
        assert_eq!(look.gone([]), NOBODY);
        assert_eq!(look.gone([]), [7]);
        assert_eq!(look.gone([]), NOBODY);
        look.presence.expect([8]);
        assert_eq!([look.gone([]), look.gone([])], [vec![], vec![8]]);
    }
}

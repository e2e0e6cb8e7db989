//! On the agent that hosts the store: sees which nodes' connections closed, long before their heartbeat is missed.
//!
//! A node waits for a key of its own as long as it lives; a wait that is not there in two looks in a row has ended with the
//! node. What follows is the rendezvous' business.

use std::mem::{replace, take};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tcpstore::Server;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::rendezvous::{Closings, NodeId, Presence};

/// Between two looks. One look may fall between the end of a wait and its renewal; two do not.
const BETWEEN: Duration = Duration::from_millis(100);

/// The task's handle; dropping it ends the task.
#[derive(Debug)]
pub(super) struct Lookout {
    expected: Arc<Mutex<Vec<NodeId>>>,
    task: JoinHandle<()>,
}

impl Lookout {
    /// Starts looking, for the rendezvous of this job.
    pub(super) fn start(server: Arc<Server>, run_id: &str, closings: Closings) -> Self {
        let mut look = Look { presence: Presence::new(run_id), missed: vec![] };
        let expected: Arc<Mutex<Vec<NodeId>>> = Arc::default();
        let told = Arc::clone(&expected);
        let task = tokio::spawn(async move {
            loop {
                sleep(BETWEEN).await;
                look.presence.expect(take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner)));
                let peers = server.peers();
                let waits = peers.iter().flat_map(|peer| peer.waits_for.iter().map(String::as_str));
                look.gone(waits).into_iter().for_each(|id| closings.tell(id));
            }
        });
        Lookout { expected, task }
    }

    /// These nodes take part, so they were there, even if they die before the next look.
    pub(super) fn expect(&self, nodes: impl Iterator<Item = NodeId>) {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).extend(nodes);
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

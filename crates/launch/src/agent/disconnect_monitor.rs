//! Runs on the agent that hosts the store: detects disconnected nodes long before their heartbeat is missed.
//!
//! A node waits for a key of its own as long as it is alive; if its wait is missing in two checks in a row, the node is
//! gone. If the wait of a member was never seen, the node may be slow, or may have died before the first check: it has
//! a grace period. The rendezvous handles the consequences. The store notifies this task when a wait begins or ends;
//! without a notification it checks nothing.

use std::collections::BTreeMap;
use std::mem::{replace, take};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tcpstore::Server;
use tcpstore::server::Waits;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::rendezvous::{ConnectedNodes, Disconnects, NodeId};

/// Time between two checks. One check may fall between the end of a wait and its renewal; two do not.
const BETWEEN: Duration = Duration::from_millis(100);

/// The task's handle; dropping it ends the task.
#[derive(Debug)]
pub(super) struct DisconnectMonitor {
    expected: Arc<Expected>,
    task: JoinHandle<()>,
}

/// Nodes that have joined since the last check.
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

impl DisconnectMonitor {
    /// Starts to monitor the rendezvous of this job. After a node joins, its wait may take up to `grace` to begin.
    pub(super) fn start(server: &Server, run_id: &str, grace: Duration, disconnects: Disconnects) -> Self {
        let monitor = Monitor::new(run_id, grace);
        let waits = server.watch_waits(monitor.connected.prefix());
        let expected: Arc<Expected> = Arc::default();
        let task = tokio::spawn(watch(monitor, waits, Arc::clone(&expected), move |id| disconnects.report(id)));
        DisconnectMonitor { expected, task }
    }

    /// Announces members: each waits for its key, or will soon.
    pub(super) fn expect(&self, nodes: impl Iterator<Item = NodeId>) {
        self.expected.add(nodes);
    }
}

/// Checks after a notification, again when a node was missing, and when a grace period ends.
async fn watch(mut monitor: Monitor, mut waits: Waits, expected: Arc<Expected>, report: impl Fn(NodeId)) {
    let mut next = Instant::now();
    loop {
        if monitor.missed.is_empty() {
            tokio::select! {
                () = waits.changed() => {}
                () = expected.added.notified() => {}
                () = at(monitor.next_grace()) => {}
            }
        }
        sleep_until(next).await;
        let now = Instant::now();
        next = now + BETWEEN;
        monitor.expect(now, expected.take());
        monitor.gone(now, waits.keys().iter().map(String::as_str)).into_iter().for_each(&report);
    }
}

/// Sleeps until then; forever if there is no time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Drop for DisconnectMonitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Monitor {
    connected: ConnectedNodes,
    missed: Vec<NodeId>,
    grace: Duration,
    /// Members that were never seen, and when that means that they are gone.
    unseen: BTreeMap<NodeId, Instant>,
}

impl Monitor {
    fn new(run_id: &str, grace: Duration) -> Self {
        Monitor { connected: ConnectedNodes::new(run_id), missed: vec![], grace, unseen: BTreeMap::new() }
    }

    fn expect(&mut self, now: Instant, nodes: Vec<NodeId>) {
        let unseen = nodes.into_iter().filter(|id| !self.connected.contains(*id));
        self.unseen.extend(unseen.map(|id| (id, now + self.grace)));
    }

    /// When the first grace period ends.
    fn next_grace(&self) -> Option<Instant> {
        self.unseen.values().min().copied()
    }

    /// The nodes that were missing in two checks in a row, and those that were not seen within their grace period.
    fn gone<'a>(&mut self, now: Instant, waits: impl IntoIterator<Item = &'a str>) -> Vec<NodeId> {
        let missed = self.connected.update(waits);
        let mut gone = replace(&mut self.missed, missed);
        gone.retain(|id| !self.connected.contains(*id));
        self.unseen.retain(|id, _| !self.connected.contains(*id));
        gone.extend(self.unseen.extract_if(.., |_, end| *end <= now).map(|(id, _)| id));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [NodeId; 0] = [];
    const KEY: &str = "lockstep/rendezvous/j/connected/7";
    const GRACE: Duration = Duration::from_secs(5);

    /// While nothing changes, any amount of time may pass.
    #[tokio::test(start_paused = true)]
    async fn reports_once_a_member_that_never_waits() {
        let server = super::super::master::host_on(([127, 0, 0, 1], 0).into()).unwrap();
        let monitor = Monitor::new("j", GRACE);
        let waits = server.watch_waits(monitor.connected.prefix());
        let expected: Arc<Expected> = Arc::default();
        expected.add([7]);
        let (tell, mut gone) = tokio::sync::mpsc::unbounded_channel();
        let (begun, task) =
            (Instant::now(), tokio::spawn(watch(monitor, waits, expected, move |id| tell.send(id).unwrap())));
        assert_eq!(gone.recv().await, Some(7));
        assert!(begun.elapsed() >= GRACE, "{:?}", begun.elapsed());
        tokio::time::sleep(100 * BETWEEN).await;
        assert!(gone.try_recv().is_err());
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_gone_when_two_checks_in_a_row_miss_it() {
        let (mut monitor, now) = (Monitor::new("j", GRACE), Instant::now());
        assert_eq!(
            [monitor.gone(now, [KEY]), monitor.gone(now, []), monitor.gone(now, [KEY])],
            [NONE; 3].map(Vec::from)
        );
        assert_eq!(monitor.gone(now, []), NONE);
        assert_eq!(monitor.gone(now, []), [7]);
        assert_eq!(monitor.gone(now, []), NONE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_may_begin_to_wait_long_after_the_round_formed() {
        let (mut monitor, formed) = (Monitor::new("j", GRACE), Instant::now());
        monitor.expect(formed, vec![7]);
        for look_at in 0..10 {
            assert_eq!(monitor.gone(formed + look_at * BETWEEN, []), NONE);
        }
        assert_eq!(monitor.gone(formed + GRACE - BETWEEN, [KEY]), NONE);
        assert_eq!(monitor.next_grace(), None);
        let later = formed + 2 * GRACE;
        assert_eq!([monitor.gone(later, []), monitor.gone(later, [])], [vec![], vec![7]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connected_node_has_no_grace_period() {
        let (mut monitor, now) = (Monitor::new("j", GRACE), Instant::now());
        assert_eq!(monitor.gone(now, [KEY]), NONE);
        monitor.expect(now, vec![7]);
        assert_eq!([monitor.gone(now, []), monitor.gone(now, [])], [vec![], vec![7]]);
    }
}

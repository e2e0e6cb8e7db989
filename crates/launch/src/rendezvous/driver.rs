//! Executes decisions: reads the store, calls [`decide`], sends requests to the leader, waits.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::decide::Action;
use super::error::{Change, Refusal, RendezvousError};
use super::header::View;
use super::heartbeat::{Disconnects, Heartbeat, Keys};
use super::leader_task::{LeaderTask, read_beats};
use super::memory::{Goal, Memory};
use super::node::{Job, Me, Node, NodeId};
use super::options::Options;
use super::peers::Peers;
use super::reason::Reason;
use super::round::Round;
use super::state::{Closing, RootCause, State};
use super::store::{Store, StoreError};

mod steps;

use steps::Step;

/// One agent's part in a rendezvous. A separate task increments the heartbeat from the first [`join`](Rendezvous::join)
/// until this is dropped or [`finish`](Rendezvous::finish)ed, so the agent can be busy with its workers.
#[derive(Debug)]
pub struct Rendezvous<S: Store> {
    store: S,
    me: Me,
    options: Options,
    memory: Memory,
    keys: Keys,
    begun: Instant,
    answered: Instant,
    /// The header as it was read, and the view that it gives.
    seen: Option<(Vec<u8>, View)>,
    heartbeat: Option<Heartbeat>,
    /// Set while this agent leads.
    leader: Option<LeaderTask>,
    disconnects: Disconnects,
    reason: watch::Sender<String>,
    last_reason: Option<Reason>,
}

/// The result of [`Rendezvous::succeed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Succeeded {
    /// All nodes know it.
    Recorded,
    /// The round had already ended: its workers must run again, or the job has ended.
    Changed(Box<Change>),
}

/// The result of [`Rendezvous::exit_barrier`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The workers of all nodes have succeeded.
    AllDone,
    /// They will not: the job was closed, or the store is lost.
    Changed(Box<Change>),
    /// The workers of these nodes did not end in time.
    TimedOut(Vec<Node>),
}

impl<S: Store> Rendezvous<S> {
    /// An agent that has not joined yet. The store's id will replace `node.id`.
    pub fn new(store: S, node: Node, job: Job, options: Options) -> Self {
        let begun = Instant::now();
        Rendezvous {
            keys: Keys::of(&job.run_id),
            store,
            me: Me { node, job },
            options,
            memory: Memory::new(Duration::ZERO),
            begun,
            answered: begun,
            seen: None,
            heartbeat: None,
            leader: None,
            disconnects: Disconnects::default(),
            reason: watch::Sender::new(String::new()),
            last_reason: None,
        }
    }

    /// The current reason for waiting, as a text. It changes only when the text is different.
    pub fn reasons(&self) -> watch::Receiver<String> {
        self.reason.subscribe()
    }

    /// This node, with its current id (0 before the first [`join`](Rendezvous::join)).
    pub fn me(&self) -> &Node {
        &self.me.node
    }

    /// The shared state as it was last read.
    pub fn view(&self) -> Option<&View> {
        self.seen.as_ref().map(|(_, view)| view)
    }

    /// Takes part in the next round. Call it again after a [`Change`] that requires it; the workers must have ended.
    ///
    /// # Errors
    /// [`RendezvousError`]; after [`RendezvousError::Timeout`] this node no longer counts as arrived.
    pub async fn join(&mut self) -> Result<Round, RendezvousError> {
        self.memory.goal = Goal::Join { since: self.now() };
        if self.heartbeat.is_none() {
            self.renew().await?;
        }
        match self.run().await? {
            Action::Formed(mut round) => {
                self.memory.given = Some(round.number);
                self.memory.goal = Goal::Stay { round: round.number };
                if let Some(leader) = self.leader.as_ref().filter(|leader| leader.is_leading()) {
                    round.ids = leader.members();
                }
                Ok(*round)
            }
            Action::Fail(error) => {
                if matches!(*error, RendezvousError::Timeout(_)) || self.leader.is_some() {
                    // The failure of this node is known; an error of the announcement must not hide it.
                    let _ = self.leave(&error.to_string()).await;
                }
                Err(*error)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until a change ends this node's part in the round. Cancel safe: it may be dropped and called again.
    pub async fn watch(&mut self) -> Change {
        match self.run().await {
            Ok(Action::Changed(change)) => *change,
            Ok(other) => Change::Evicted { why: unexpected(&other).to_string() },
            Err(RendezvousError::StoreLost(lost)) => Change::StoreLost(*lost),
            Err(error) => Change::Evicted { why: error.to_string() },
        }
    }

    /// The channel for the host of the store to report disconnected nodes.
    pub fn disconnects(&self) -> Disconnects {
        self.disconnects.clone()
    }

    /// Makes all nodes stop their workers and join again. Call [`join`](Rendezvous::join) afterwards.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn request_restart(&mut self, reason: &str) -> Result<(), RendezvousError> {
        match self.memory.given {
            Some(round) => self.pursue(Goal::Restart { round, reason: reason.to_owned() }).await.map(drop),
            None => Ok(()),
        }
    }

    /// Announces that all workers of this node have succeeded.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn succeed(&mut self) -> Result<Succeeded, RendezvousError> {
        let Some(round) = self.memory.given else { return Ok(Succeeded::Recorded) };
        match self.pursue(Goal::Succeed { round }).await? {
            Action::Changed(change) => Ok(Succeeded::Changed(change)),
            _ => Ok(Succeeded::Recorded),
        }
    }

    /// Waits until the workers of all nodes have succeeded, or can no longer succeed.
    pub async fn exit_barrier(&mut self, limit: Duration) -> Barrier {
        match timeout(limit, self.watch()).await {
            Ok(Change::AllDone) => Barrier::AllDone,
            Ok(change) => Barrier::Changed(Box::new(change)),
            Err(_) => Barrier::TimedOut(self.unfinished().await),
        }
    }

    async fn unfinished(&mut self) -> Vec<Node> {
        let Some(state) = self.read_state().await else { return Vec::new() };
        let others = state.members.iter().map(|member| &member.node);
        others.filter(|node| !state.done().contains(&node.id)).cloned().collect()
    }

    /// Reads the whole state; `None` if there is none or the store is lost.
    async fn read_state(&mut self) -> Option<State> {
        self.look().await.ok()?;
        self.survey().await.ok()?;
        self.view()?.survey.as_ref().map(|survey| survey.state.clone())
    }

    /// Ends the job for all nodes, because this node's workers failed for good. No effect if it has already ended, or
    /// this node no longer takes part.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn close(&mut self, reason: &str, root_cause: Option<RootCause>) -> Result<(), RendezvousError> {
        let closing = Closing { by: self.me.node.clone(), reason: reason.to_owned(), root_cause };
        self.pursue(Goal::Close(Box::new(closing))).await.map(drop)
    }

    /// Leaves: the others see it immediately. If this agent hosts the store, the others cannot continue, so it ends the
    /// job.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn leave(&mut self, why: &str) -> Result<(), RendezvousError> {
        self.pursue(Goal::Leave { why: why.to_owned() }).await.map(drop)
    }

    /// The last call. Announces that this node no longer needs the store. If this agent hosts the store, waits until
    /// all others have announced the same, are lost, or `close_timeout` has passed, and returns those that did not.
    pub async fn finish(mut self) -> Vec<Node> {
        if self.me.node.hosts_store {
            return self.await_shutdown_acks().await;
        }
        if self.leader.as_ref().is_some_and(LeaderTask::is_leading) {
            // Then another node leads immediately, and not only after a lease.
            let _ = self.leave("it has ended").await;
        }
        let ack = self.keys.shutdown_ack(self.me.node.id);
        // If the store does not answer, its host does not wait either.
        let _ = timeout(self.options.heartbeat_timeout, self.store.set(&ack, b"1")).await;
        Vec::new()
    }

    /// Waits for one shutdown acknowledgement after the other: each costs one request.
    async fn await_shutdown_acks(&mut self) -> Vec<Node> {
        let deadline = Instant::now() + self.options.close_timeout;
        let Some(state) = self.read_state().await else { return Vec::new() };
        let mut left: Vec<Node> = state.everyone().filter(|node| node.id != self.me.node.id).cloned().collect();
        let mut peers = Peers::new(self.now());
        while let (Some(next), false) = (left.last(), Instant::now() >= deadline) {
            let ack = self.keys.shutdown_ack(next.id);
            let slice = self.options.poll().min(deadline - Instant::now());
            match timeout(slice, self.store.wait(&ack, slice)).await {
                Ok(Ok(true)) => drop(left.pop()),
                Ok(Err(_)) => return Vec::new(),
                Ok(Ok(false)) | Err(_) => {
                    self.remove_lost(&mut peers, &mut left).await;
                    let turn = left.len().min(1);
                    left.rotate_right(turn);
                }
            }
        }
        left
    }

    /// Removes lost nodes from `left`.
    async fn remove_lost(&self, peers: &mut Peers, left: &mut Vec<Node>) {
        let ids: Vec<NodeId> = left.iter().map(|node| node.id).collect();
        peers.watch(self.now(), ids.iter().copied());
        self.disconnects.subscribe().borrow().iter().for_each(|id| peers.disconnected(*id));
        if let Ok(beats) = read_beats(&self.store, &self.keys, &ids, &self.options).await {
            peers.observe(self.now(), &beats, &self.options);
        }
        left.retain(|node| peers.lost(self.now(), node.id, &self.options).is_none());
    }

    /// Publishes the address of the workers' store, on group rank 0.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn publish_master(&mut self, round: &Round, address: &str) -> Result<(), RendezvousError> {
        let key = self.keys.master(round.number);
        let old = round.number.checked_sub(2).map(|number| self.keys.master(number));
        let store = self.store.clone();
        let publish = async {
            store.set(&key, address.as_bytes()).await?;
            match old {
                Some(old) => store.delete(&old).await.map(drop),
                None => Ok(()),
            }
        };
        self.ask(publish).await
    }

    /// Waits for the address that group rank 0 publishes.
    ///
    /// # Errors
    /// [`RendezvousError::NoMaster`] after `limit`; [`RendezvousError::Changed`] if the round ends earlier.
    pub async fn await_master(&mut self, round: &Round, limit: Duration) -> Result<String, RendezvousError> {
        let (key, store, begun) = (self.keys.master(round.number), self.store.clone(), Instant::now());
        loop {
            let waited = begun.elapsed();
            let slice = self.options.poll().min(limit.saturating_sub(waited));
            if self.ask(store.wait(&key, slice)).await?
                && let Some(address) = self.ask(store.try_get(&key)).await?
            {
                return Ok(String::from_utf8_lossy(&address).into_owned());
            }
            match self.step().await? {
                Step::End(Action::Changed(change)) => return Err(RendezvousError::Changed(change)),
                Step::End(other) => return Err(unexpected(&other)),
                Step::Again | Step::Wait(_) => {}
            }
            if waited >= limit {
                return Err(RendezvousError::NoMaster { host: Box::new(round.first.clone()), waited });
            }
        }
    }

    /// Pursues `goal` for at most `close_timeout`; afterwards the goal is to stay in the round, if there is one.
    async fn pursue(&mut self, goal: Goal) -> Result<Action, RendezvousError> {
        self.memory.goal = goal;
        let limit = self.options.close_timeout;
        let said = timeout(limit, self.run()).await;
        if let Some(round) = self.memory.given {
            self.memory.goal = Goal::Stay { round };
        }
        let silent =
            || self.lost(&StoreError(format!("no answer to this node's request within {}", limit.as_secs_f64())));
        said.unwrap_or_else(|_| Err(silent()))
    }
}

fn unexpected(action: &Action) -> RendezvousError {
    Refusal::BadJob(format!("bug in lockstep: the rendezvous decided {action:?} here")).into()
}

#[cfg(test)]
mod scale;
#[cfg(test)]
mod tests;

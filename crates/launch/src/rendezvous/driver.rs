//! Carries decisions out: reads the store, asks [`decide`], asks the leader, waits. It decides nothing itself.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::decide::Action;
use super::error::{Change, Refusal, RendezvousError};
use super::header::View;
use super::heart::{Closings, Heart, Keys};
use super::leader::{Leader, read_beats};
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

/// One agent's part in a rendezvous. A task of its own counts up the heartbeat from the first [`join`](Rendezvous::join)
/// until this is dropped or [`finish`](Rendezvous::finish)ed, so the agent may be busy with its workers meanwhile.
#[derive(Debug)]
pub struct Rendezvous<S: Store> {
    store: S,
    me: Me,
    options: Options,
    memory: Memory,
    keys: Keys,
    begun: Instant,
    answered: Instant,
    /// The header as it was read, and what follows from it.
    seen: Option<(Vec<u8>, View)>,
    heart: Option<Heart>,
    /// While this agent leads.
    leader: Option<Leader>,
    closings: Closings,
    reason: watch::Sender<String>,
    told: Option<Reason>,
}

/// What [`Rendezvous::succeed`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Succeeded {
    /// All know it.
    Recorded,
    /// The round had ended before: its workers must run once more, or the job has ended.
    Changed(Box<Change>),
}

/// What [`Rendezvous::exit_barrier`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The workers of all nodes have succeeded.
    AllDone,
    /// They will not: the job was closed, or the store is lost.
    Changed(Box<Change>),
    /// These nodes' workers had not ended in time.
    TimedOut(Vec<Node>),
}

impl<S: Store> Rendezvous<S> {
    /// An agent that has not yet asked in. `node.id` is overwritten by the number that the store gives.
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
            heart: None,
            leader: None,
            closings: Closings::default(),
            reason: watch::Sender::new(String::new()),
            told: None,
        }
    }

    /// What it waits for, in words; changes only when there is something new to tell.
    pub fn reasons(&self) -> watch::Receiver<String> {
        self.reason.subscribe()
    }

    /// This node, with its present number (0 before the first [`join`](Rendezvous::join)).
    pub fn me(&self) -> &Node {
        &self.me.node
    }

    /// The shared state, as it was seen last.
    pub fn view(&self) -> Option<&View> {
        self.seen.as_ref().map(|(_, view)| view)
    }

    /// Takes part in the next round. Called again after a [`Change`] that asks for it; the workers must have ended.
    ///
    /// # Errors
    /// [`RendezvousError`]; after [`RendezvousError::Timeout`] this node no longer counts as come.
    pub async fn join(&mut self) -> Result<Round, RendezvousError> {
        self.memory.goal = Goal::Join { since: self.now() };
        if self.heart.is_none() {
            self.renew().await?;
        }
        match self.run().await? {
            Action::Formed(mut round) => {
                self.memory.given = Some(round.number);
                self.memory.goal = Goal::Stay { round: round.number };
                if let Some(leader) = self.leader.as_ref().filter(|leader| leader.is_at_work()) {
                    round.ids = leader.members();
                }
                Ok(*round)
            }
            Action::Fail(error) => {
                if matches!(*error, RendezvousError::Timeout(_)) || self.leader.is_some() {
                    // It is known already that this node fails; that it could not say so too would hide why.
                    let _ = self.leave(&error.to_string()).await;
                }
                Err(*error)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until something ends this node's part in the round. May be dropped at any point and called again.
    pub async fn watch(&mut self) -> Change {
        match self.run().await {
            Ok(Action::Changed(change)) => *change,
            Ok(other) => Change::Evicted { why: unexpected(&other).to_string() },
            Err(RendezvousError::StoreLost(lost)) => Change::StoreLost(*lost),
            Err(error) => Change::Evicted { why: error.to_string() },
        }
    }

    /// Where the host of the store tells that the connection of a node closed.
    pub fn closings(&self) -> Closings {
        self.closings.clone()
    }

    /// Has all nodes stop their workers and join again. To be followed by [`join`](Rendezvous::join).
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn request_restart(&mut self, reason: &str) -> Result<(), RendezvousError> {
        match self.memory.given {
            Some(round) => self.say(Goal::Restart { round, reason: reason.to_owned() }).await.map(drop),
            None => Ok(()),
        }
    }

    /// Says that all workers of this node have succeeded.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn succeed(&mut self) -> Result<Succeeded, RendezvousError> {
        let Some(round) = self.memory.given else { return Ok(Succeeded::Recorded) };
        match self.say(Goal::Succeed { round }).await? {
            Action::Changed(change) => Ok(Succeeded::Changed(change)),
            _ => Ok(Succeeded::Recorded),
        }
    }

    /// Waits until the workers of all nodes have succeeded, or it is clear that they will not.
    pub async fn exit_barrier(&mut self, limit: Duration) -> Barrier {
        match timeout(limit, self.watch()).await {
            Ok(Change::AllDone) => Barrier::AllDone,
            Ok(change) => Barrier::Changed(Box::new(change)),
            Err(_) => Barrier::TimedOut(self.unfinished().await),
        }
    }

    async fn unfinished(&mut self) -> Vec<Node> {
        let Some(state) = self.everybody().await else { return Vec::new() };
        let others = state.members.iter().map(|member| &member.node);
        others.filter(|node| !state.done().contains(&node.id)).cloned().collect()
    }

    /// The whole state, read now; `None` where there is none or the store is lost.
    async fn everybody(&mut self) -> Option<State> {
        self.look().await.ok()?;
        self.survey().await.ok()?;
        self.view()?.survey.as_ref().map(|survey| survey.state.clone())
    }

    /// Ends the job for all, since this node's workers failed for good. Without effect where it has ended already, or this node
    /// no longer takes part.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn close(&mut self, reason: &str, root_cause: Option<RootCause>) -> Result<(), RendezvousError> {
        let closing = Closing { by: self.me.node.clone(), reason: reason.to_owned(), root_cause };
        self.say(Goal::Close(Box::new(closing))).await.map(drop)
    }

    /// Goes: the others learn it at once. Where the store lives in this agent, nobody can stay, so it ends the job.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn leave(&mut self, why: &str) -> Result<(), RendezvousError> {
        self.say(Goal::Leave { why: why.to_owned() }).await.map(drop)
    }

    /// The last call: tells the store's host that this node needs the store no more; or, where this is the host, waits until
    /// all others have told so, are lost, or `close_timeout` is over. Returns who did not.
    pub async fn finish(mut self) -> Vec<Node> {
        if self.me.node.hosts_store {
            return self.see_others_off().await;
        }
        if self.leader.as_ref().is_some_and(Leader::is_at_work) {
            // Another one leads then at once, and not only when this one is missed.
            let _ = self.leave("it has ended").await;
        }
        let bye = self.keys.bye(self.me.node.id);
        // A store that does not answer has no host that waits.
        let _ = timeout(self.options.heartbeat_timeout, self.store.set(&bye, b"1")).await;
        Vec::new()
    }

    /// Waits for one farewell after the other: each costs a request, however many there are.
    async fn see_others_off(&mut self) -> Vec<Node> {
        let deadline = Instant::now() + self.options.close_timeout;
        let Some(state) = self.everybody().await else { return Vec::new() };
        let mut left: Vec<Node> = state.everyone().filter(|node| node.id != self.me.node.id).cloned().collect();
        let mut peers = Peers::new(self.now());
        while let (Some(next), false) = (left.last(), Instant::now() >= deadline) {
            let bye = self.keys.bye(next.id);
            let slice = self.options.poll().min(deadline - Instant::now());
            match timeout(slice, self.store.wait(&bye, slice)).await {
                Ok(Ok(true)) => drop(left.pop()),
                Ok(Err(_)) => return Vec::new(),
                Ok(Ok(false)) | Err(_) => {
                    self.strike(&mut peers, &mut left).await;
                    let turn = left.len().min(1);
                    left.rotate_right(turn);
                }
            }
        }
        left
    }

    /// Takes those who are lost from `left`.
    async fn strike(&self, peers: &mut Peers, left: &mut Vec<Node>) {
        let ids: Vec<NodeId> = left.iter().map(|node| node.id).collect();
        peers.watch(self.now(), ids.iter().copied());
        self.closings.subscribe().borrow().iter().for_each(|id| peers.sever(*id));
        if let Ok(beats) = read_beats(&self.store, &self.keys, &ids, &self.options).await {
            peers.observe(self.now(), &beats, &self.options);
        }
        left.retain(|node| peers.lost(self.now(), node.id, &self.options).is_none());
    }

    /// Group rank 0 tells the others where the workers' store is.
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

    /// Waits for what group rank 0 tells.
    ///
    /// # Errors
    /// [`RendezvousError::NoMaster`] after `limit`; [`RendezvousError::Changed`] when the round ends before.
    pub async fn await_master(&mut self, round: &Round, limit: Duration) -> Result<String, RendezvousError> {
        let (key, store, begun) = (self.keys.master(round.number), self.store.clone(), Instant::now());
        loop {
            let waited = begun.elapsed();
            let slice = self.options.poll().min(limit.saturating_sub(waited));
            if self.ask(store.wait(&key, slice)).await?
                && let Some(told) = self.ask(store.try_get(&key)).await?
            {
                return Ok(String::from_utf8_lossy(&told).into_owned());
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

    /// Pursues `goal` for at most `close_timeout`; then it is to stay in the round, if there is one.
    async fn say(&mut self, goal: Goal) -> Result<Action, RendezvousError> {
        self.memory.goal = goal;
        let limit = self.options.close_timeout;
        let said = timeout(limit, self.run()).await;
        if let Some(round) = self.memory.given {
            self.memory.goal = Goal::Stay { round };
        }
        let silent = || self.lost(&StoreError(format!("this node could not be heard within {}", limit.as_secs_f64())));
        said.unwrap_or_else(|_| Err(silent()))
    }
}

fn unexpected(action: &Action) -> RendezvousError {
    Refusal::BadJob(format!("our bug: the rendezvous decided {action:?} here")).into()
}

#[cfg(test)]
mod scale;
#[cfg(test)]
mod tests;

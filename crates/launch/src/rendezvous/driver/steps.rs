//! One step of the driver: look, decide, write or wait.

use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::Rendezvous;
use crate::rendezvous::decide::{Action, decide};
use crate::rendezvous::error::{RendezvousError, StoreLost};
use crate::rendezvous::heart::Heart;
use crate::rendezvous::memory::watched;
use crate::rendezvous::node::NodeId;
use crate::rendezvous::reason::Reason;
use crate::rendezvous::state::State;
use crate::rendezvous::store::{Store, StoreError};

/// A bell of a version so many versions back is taken away.
const BELLS_KEPT: u64 = 16;

/// What is left to do after a step.
pub(super) enum Step {
    Again,
    Wait(Option<Duration>),
    End(Action),
}

impl<S: Store> Rendezvous<S> {
    pub(super) async fn run(&mut self) -> Result<Action, RendezvousError> {
        loop {
            match self.step().await? {
                Step::Again => {}
                Step::Wait(until) => self.pause(until).await?,
                Step::End(action) => return Ok(action),
            }
        }
    }

    pub(super) async fn step(&mut self) -> Result<Step, RendezvousError> {
        self.look().await?;
        let decision = decide(self.now(), self.state(), &self.me, &self.memory, &self.options);
        self.tell(decision.reason);
        match decision.action {
            Action::Write(next) => self.write(*next).await?,
            Action::Renew => self.renew().await?,
            Action::Wait { until } => return Ok(Step::Wait(until)),
            action => return Ok(Step::End(action)),
        }
        Ok(Step::Again)
    }

    /// Reads the state and the heartbeats that this node watches.
    pub(super) async fn look(&mut self) -> Result<(), RendezvousError> {
        let (store, key) = (self.store.clone(), self.keys.state());
        match self.ask(store.try_get(&key)).await? {
            None => self.seen = None,
            Some(bytes) if self.seen.as_ref().is_some_and(|(seen, _)| *seen == bytes) => {}
            Some(bytes) => {
                let state = State::decode(&bytes)?;
                self.seen = Some((bytes, state));
            }
        }
        let ids = self.state().map(|state| watched(state, self.me.node.id)).unwrap_or_default();
        let mut beats = Vec::with_capacity(ids.len());
        for id in ids {
            let key = self.keys.alive(id);
            let beat = self.ask(store.try_get(&key)).await?;
            beats.push((id, beat.and_then(|beat| String::from_utf8_lossy(&beat).parse().ok()).unwrap_or(0)));
        }
        self.closings.take().into_iter().for_each(|id| self.memory.sever(id));
        let now = self.now();
        let state = self.seen.as_ref().map(|(_, state)| state);
        self.memory.observe(now, state, &beats, self.me.node.id, &self.options);
        Ok(())
    }

    /// Puts `next` in the place of what was seen, and rings for those who wait for a change.
    async fn write(&mut self, mut next: State) -> Result<(), RendezvousError> {
        // However many changes it is made of: those who wait listen for the bell of the very next version.
        next.version = self.state().map_or(0, |state| state.version) + 1;
        let (store, key, bytes) = (self.store.clone(), self.keys.state(), next.encode());
        let expected = self.seen.as_ref().map(|(bytes, _)| bytes.clone()).unwrap_or_default();
        if !self.ask(store.compare_set(&key, &expected, &bytes)).await? {
            self.races_lost += 1;
            sleep(backoff(self.me.node.id, self.races_lost)).await;
            return Ok(());
        }
        self.races_lost = 0;
        self.memory.wrote(&next, self.me.node.id);
        let (bell, old) =
            (self.keys.bell(next.version), next.version.checked_sub(BELLS_KEPT).map(|old| self.keys.bell(old)));
        self.ask(store.set(&bell, b"1")).await?;
        if let Some(old) = old {
            self.ask(store.delete(&old)).await?;
        }
        Ok(())
    }

    /// Waits for the bell of the next version, or for the next look.
    async fn pause(&mut self, until: Option<Duration>) -> Result<(), RendezvousError> {
        let left = until.map_or(Duration::MAX, |until| until.saturating_sub(self.now()));
        let slice = self.options.poll().min(left);
        let bell = self.keys.bell(self.state().map_or(0, |state| state.version) + 1);
        let (store, closings) = (self.store.clone(), self.closings.clone());
        tokio::select! {
            () = closings.told() => {}
            rung = self.ask(store.wait(&bell, slice)) => drop(rung?),
        }
        Ok(())
    }

    /// Gets a number for this node, and starts its heart.
    pub(super) async fn renew(&mut self) -> Result<(), RendezvousError> {
        let store = self.store.clone();
        let id = self.ask(store.add(&self.keys.nodes(), 1)).await?;
        let id = NodeId::try_from(id).unwrap_or_default();
        self.me.node.id = id;
        self.memory.renewed();
        self.ask(store.set(&self.keys.alive(id), b"1")).await?;
        self.heart = Some(Heart::start(store, &self.keys, id, &self.options));
        Ok(())
    }

    /// One request, with its deadline; keeps when the store answered last.
    pub(super) async fn ask<T>(
        &mut self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, RendezvousError> {
        let limit = self.options.request_timeout();
        let slow = || Err(StoreError(format!("no answer within {} s", limit.as_secs_f64())));
        let answer = timeout(limit, request).await.unwrap_or_else(|_| slow());
        if answer.is_ok() {
            self.answered = Instant::now();
        }
        answer.map_err(|error| self.lost(&error))
    }

    pub(super) fn lost(&self, error: &StoreError) -> RendezvousError {
        let (host, since) = (self.state().and_then(State::host).cloned(), self.answered.elapsed());
        let lost = StoreLost { address: self.store.address(), host, since, error: error.to_string() };
        RendezvousError::StoreLost(Box::new(lost))
    }

    fn tell(&mut self, reason: Reason) {
        let reason = match reason {
            Reason::Found | Reason::Wanted => return,
            reason => reason,
        };
        if !self.told.as_ref().is_some_and(|told| told.same(&reason)) {
            self.reason.send_replace(reason.to_string());
            self.told = Some(reason);
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// After lost races nodes wait for different spans, so that a crowd gets in. The first retry is at once.
fn backoff(id: NodeId, races_lost: u32) -> Duration {
    let mut hasher = DefaultHasher::new();
    (id, races_lost).hash(&mut hasher);
    let window = u64::from(races_lost.saturating_sub(1).min(20)) * 5;
    Duration::from_millis(hasher.finish() % (window + 1))
}

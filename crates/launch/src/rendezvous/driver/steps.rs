//! One step of the driver: read, decide, send a request or wait.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::Rendezvous;
use crate::rendezvous::decide::{Action, decide};
use crate::rendezvous::error::{RendezvousError, StoreLost};
use crate::rendezvous::header::{self, Header, Own, PAGE, View};
use crate::rendezvous::heartbeat::Heartbeat;
use crate::rendezvous::leader_task::{LeaderContext, LeaderTask, read_pages, within};
use crate::rendezvous::node::NodeId;
use crate::rendezvous::reason::Reason;
use crate::rendezvous::request::{Request, Want};
use crate::rendezvous::store::{Store, StoreError};

/// How many times in a row to look for a page of the latest header.
const LOOKS: u32 = 5;

/// What follows a step.
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
        self.memory.leads = self.leader.as_ref().is_some_and(LeaderTask::is_leading);
        let decision = decide(self.now(), self.view(), &self.me, &self.memory, &self.options);
        self.report(decision.reason);
        match decision.action {
            Action::Lead { header, lost } => self.lead(*header, lost).await?,
            Action::Ask { term, want } => {
                self.request(term, *want).await?;
                // The answer changes the state.
                return Ok(Step::Wait(None));
            }
            Action::Renew => self.renew().await?,
            Action::Survey => self.survey().await?,
            Action::Wait { until } => return Ok(Step::Wait(until)),
            action => return Ok(Step::End(action)),
        }
        Ok(Step::Again)
    }

    /// Reads the header, the leader's heartbeat, and this node's entry.
    pub(super) async fn look(&mut self) -> Result<(), RendezvousError> {
        let mut beat = None;
        for _ in 0..LOOKS {
            let bytes;
            (bytes, beat) = self.read_header().await?;
            if self.seen.as_ref().map(|(seen, _)| seen) == bytes.as_ref() {
                break;
            }
            let Some(bytes) = bytes else {
                self.seen = None;
                break;
            };
            let header = Header::decode(&bytes)?;
            if let Some(own) = self.read_own(&header).await? {
                self.seen = Some((bytes, View { header, own, survey: None }));
                break;
            }
        }
        let now = self.now();
        let view = self.seen.as_ref().map(|(_, view)| view);
        self.memory.observe(now, view, beat, self.me.node.id, &self.options);
        self.take_back().await
    }

    /// Deletes requests of this node to a leader of an earlier term: they will never be read.
    async fn take_back(&mut self) -> Result<(), RendezvousError> {
        let term = self.view().map(|view| view.header.term);
        let Some((of, _)) = self.memory.asked.take_if(|(of, _)| term.is_some_and(|term| *of < term)) else {
            return Ok(());
        };
        let (store, key) = (self.store.clone(), self.keys.requests(of));
        while self.ask(store.try_pop(&key)).await?.is_some() {}
        Ok(())
    }

    /// Reads the header, and the heartbeat of the leader that was last seen.
    async fn read_header(&mut self) -> Result<(Option<Vec<u8>>, Option<(NodeId, u64)>), RendezvousError> {
        let (store, key) = (self.store.clone(), self.keys.state());
        let leader = self.view().and_then(|view| view.header.leader.as_ref()).map(|leader| leader.id);
        if let Some(id) = leader.filter(|id| *id != self.me.node.id)
            && let Some(values) = self.ask(store.try_get_all(&[key.clone(), self.keys.heartbeat(id)])).await?
            && let Ok([bytes, beat]) = <[Vec<u8>; 2]>::try_from(values)
        {
            return Ok((Some(bytes), Some((id, String::from_utf8_lossy(&beat).parse().unwrap_or(0)))));
        }
        Ok((self.ask(store.try_get(&key)).await?, leader.map(|id| (id, 0))))
    }

    /// Reads this node's entry; `None` if its page is gone because the header has been replaced.
    async fn read_own(&mut self, header: &Header) -> Result<Option<Own>, RendezvousError> {
        let (store, id) = (self.store.clone(), self.me.node.id);
        let Some(pages) = header.pages.as_ref().filter(|pages| id / PAGE < pages.count && !header.is_final()) else {
            return Ok(Some(Own::Absent));
        };
        if let Some(before) = self.view().filter(|before| before.header.pages == header.pages) {
            return Ok(Some(before.own.clone()));
        }
        let page = self.ask(store.try_get(&self.keys.page(pages.term, pages.write, id / PAGE))).await?;
        Ok(page.map(|page| header::own(&page, id)).transpose()?)
    }

    /// Reads all nodes, unless the pages are being replaced: then the next look reads the new ones.
    pub(super) async fn survey(&mut self) -> Result<(), RendezvousError> {
        let Some((_, View { header, .. })) = &self.seen else { return Ok(()) };
        let read = read_pages(&self.store, &self.keys, header, &self.options).await;
        let survey = match read.map_err(|error| self.lost(&error))? {
            Some(pages) => Some(header::survey(header, &pages)?),
            None => None,
        };
        if let Some((_, view)) = &mut self.seen {
            view.survey = survey;
        }
        Ok(())
    }

    /// Replaces the header that was read with `next`, and leads if it was still current.
    async fn lead(&mut self, next: Header, lost: Option<(NodeId, String)>) -> Result<(), RendezvousError> {
        let (store, key, bytes) = (self.store.clone(), self.keys.state(), next.encode());
        let expected = self.seen.as_ref().map(|(bytes, _)| bytes.clone()).unwrap_or_default();
        self.leader = None;
        if self.ask(store.compare_set(&key, &expected, &bytes)).await? {
            let context = LeaderContext {
                store,
                keys: self.keys.clone(),
                me: self.me.node.id,
                options: self.options.clone(),
                begun: self.begun,
                disconnects: self.disconnects.clone(),
            };
            self.leader = Some(LeaderTask::start(context, next, bytes, lost));
        }
        Ok(())
    }

    /// Sends a request to the leader of `term`.
    async fn request(&mut self, term: u64, want: Want) -> Result<(), RendezvousError> {
        let (store, key) = (self.store.clone(), self.keys.requests(term));
        let request = header::encode(&Request { from: self.me.node.id, want: want.clone() });
        self.ask(store.push(&key, &request)).await?;
        self.memory.asked(term, want);
        Ok(())
    }

    /// Waits for a change, or for the next look.
    async fn pause(&mut self, until: Option<Duration>) -> Result<(), RendezvousError> {
        let left = until.map_or(Duration::MAX, |until| until.saturating_sub(self.now()));
        let slice = self.options.poll().min(left);
        let change = self.keys.change_key(self.view().map_or(0, |view| view.header.news) + 1);
        let store = self.store.clone();
        self.ask(store.wait(&change, slice)).await.map(drop)
    }

    /// Gets an id for this node, and starts its heartbeat.
    pub(super) async fn renew(&mut self) -> Result<(), RendezvousError> {
        let store = self.store.clone();
        let id = self.ask(store.add(&self.keys.nodes(), 1)).await?;
        let id = NodeId::try_from(id).unwrap_or_default();
        self.me.node.id = id;
        (self.leader, self.seen) = (None, None);
        self.memory.renewed();
        self.ask(store.set(&self.keys.heartbeat(id), b"1")).await?;
        self.heartbeat = Some(Heartbeat::start(store, &self.keys, id, &self.options));
        Ok(())
    }

    /// Runs a request with its deadline, and records when the store last answered.
    pub(super) async fn ask<T>(
        &mut self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, RendezvousError> {
        let answer = within(self.options.request_timeout(), request).await;
        if answer.is_ok() {
            self.answered = Instant::now();
        }
        answer.map_err(|error| self.lost(&error))
    }

    pub(super) fn lost(&self, error: &StoreError) -> RendezvousError {
        let (host, since) = (self.view().and_then(|view| view.header.host.clone()), self.answered.elapsed());
        let lost = StoreLost { address: self.store.address(), host, since, error: error.to_string() };
        RendezvousError::StoreLost(Box::new(lost))
    }

    fn report(&mut self, reason: Reason) {
        let reason = match reason {
            Reason::Found | Reason::Wanted => return,
            reason => reason,
        };
        if !self.last_reason.as_ref().is_some_and(|last| last.same(&reason)) {
            self.reason.send_replace(reason.to_string());
            self.last_reason = Some(reason);
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

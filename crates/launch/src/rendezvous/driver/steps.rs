//! One step of the driver: look, decide, ask or wait.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use super::Rendezvous;
use crate::rendezvous::decide::{Action, decide};
use crate::rendezvous::error::{RendezvousError, StoreLost};
use crate::rendezvous::header::{self, Header, Own, PAGE, View};
use crate::rendezvous::heart::Heart;
use crate::rendezvous::leader::{Leader, Office, read_pages, within};
use crate::rendezvous::node::NodeId;
use crate::rendezvous::reason::Reason;
use crate::rendezvous::request::{Request, Want};
use crate::rendezvous::store::{Store, StoreError};

/// So often in a row a page is looked for that the latest header names.
const LOOKS: u32 = 5;

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
        self.memory.leads = self.leader.as_ref().is_some_and(Leader::is_at_work);
        let decision = decide(self.now(), self.view(), &self.me, &self.memory, &self.options);
        self.tell(decision.reason);
        match decision.action {
            Action::Lead { header, lost } => self.lead(*header, lost).await?,
            Action::Ask { term, want } => {
                self.request(term, *want).await?;
                // What comes of it is news.
                return Ok(Step::Wait(None));
            }
            Action::Renew => self.renew().await?,
            Action::Survey => self.survey().await?,
            Action::Wait { until } => return Ok(Step::Wait(until)),
            action => return Ok(Step::End(action)),
        }
        Ok(Step::Again)
    }

    /// Reads the header, the leader's heartbeat, and what the state says of this node.
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

    /// What this node asked of a leader of an earlier term nobody will read.
    async fn take_back(&mut self) -> Result<(), RendezvousError> {
        let term = self.view().map(|view| view.header.term);
        let Some((of, _)) = self.memory.asked.take_if(|(of, _)| term.is_some_and(|term| *of < term)) else {
            return Ok(());
        };
        let (store, key) = (self.store.clone(), self.keys.requests(of));
        while self.ask(store.try_pop(&key)).await?.is_some() {}
        Ok(())
    }

    /// The header, and the heartbeat of the leader that was seen last.
    async fn read_header(&mut self) -> Result<(Option<Vec<u8>>, Option<(NodeId, u64)>), RendezvousError> {
        let (store, key) = (self.store.clone(), self.keys.state());
        let leader = self.view().and_then(|view| view.header.leader.as_ref()).map(|leader| leader.id);
        if let Some(id) = leader.filter(|id| *id != self.me.node.id)
            && let Some(values) = self.ask(store.try_get_all(&[key.clone(), self.keys.alive(id)])).await?
            && let Ok([bytes, beat]) = <[Vec<u8>; 2]>::try_from(values)
        {
            return Ok((Some(bytes), Some((id, String::from_utf8_lossy(&beat).parse().unwrap_or(0)))));
        }
        Ok((self.ask(store.try_get(&key)).await?, leader.map(|id| (id, 0))))
    }

    /// What the page says of this node; `None` where that page is gone, since the header has been replaced.
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

    /// Reads everybody, unless the pages are replaced in this moment: then the next look is at others.
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

    /// Puts `next` in the place of the header that was seen, and leads if it was still there.
    async fn lead(&mut self, next: Header, lost: Option<(NodeId, String)>) -> Result<(), RendezvousError> {
        let (store, key, bytes) = (self.store.clone(), self.keys.state(), next.encode());
        let expected = self.seen.as_ref().map(|(bytes, _)| bytes.clone()).unwrap_or_default();
        self.leader = None;
        if self.ask(store.compare_set(&key, &expected, &bytes)).await? {
            let office = Office {
                store,
                keys: self.keys.clone(),
                me: self.me.node.id,
                options: self.options.clone(),
                begun: self.begun,
                closings: self.closings.clone(),
            };
            self.leader = Some(Leader::start(office, next, bytes, lost));
        }
        Ok(())
    }

    /// Asks the leader of `term`.
    async fn request(&mut self, term: u64, want: Want) -> Result<(), RendezvousError> {
        let (store, key) = (self.store.clone(), self.keys.requests(term));
        let request = header::encode(&Request { from: self.me.node.id, want: want.clone() });
        self.ask(store.push(&key, &request)).await?;
        self.memory.asked(term, want);
        Ok(())
    }

    /// Waits for news, or for the next look.
    async fn pause(&mut self, until: Option<Duration>) -> Result<(), RendezvousError> {
        let left = until.map_or(Duration::MAX, |until| until.saturating_sub(self.now()));
        let slice = self.options.poll().min(left);
        let bell = self.keys.bell(self.view().map_or(0, |view| view.header.news) + 1);
        let store = self.store.clone();
        self.ask(store.wait(&bell, slice)).await.map(drop)
    }

    /// Gets a number for this node, and starts its heart.
    pub(super) async fn renew(&mut self) -> Result<(), RendezvousError> {
        let store = self.store.clone();
        let id = self.ask(store.add(&self.keys.nodes(), 1)).await?;
        let id = NodeId::try_from(id).unwrap_or_default();
        self.me.node.id = id;
        (self.leader, self.seen) = (None, None);
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

//! The leader's task: reads requests and heartbeats, asks [`Draft::lead`] what to do, and writes. It decides nothing itself.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::header::{self, Header, Pages};
use super::heart::{Closings, Keys};
use super::leader_policy::{Draft, Lead};
use super::node::NodeId;
use super::options::Options;
use super::peers::Peers;
use super::state::{Phase, State};
use super::store::{Store, StoreError};

/// A bell that is this much older than the latest is taken away.
const BELLS_KEPT: u64 = 16;
/// How many pages one request carries, so that none comes near the store's limits.
const PAGES_AT_ONCE: usize = 64;
/// How many requests are granted between two looks at the heartbeats.
const GRANTS_AT_ONCE: usize = 1024;

/// The task's handle; dropping it ends the task. Its heart beats with its agent's.
#[derive(Debug)]
pub(super) struct Leader {
    task: JoinHandle<()>,
    members: watch::Receiver<Vec<NodeId>>,
}

/// What the task needs of its agent.
pub(super) struct Office<S> {
    pub(super) store: S,
    pub(super) keys: Keys,
    pub(super) me: NodeId,
    pub(super) options: Options,
    /// Where the agent's clock starts.
    pub(super) begun: Instant,
    pub(super) closings: Closings,
}

impl Leader {
    /// Starts to lead from `header`, which this agent has just written as `bytes`. The leader before, if it is named, is lost.
    pub(super) fn start<S: Store>(
        office: Office<S>,
        header: Header,
        bytes: Vec<u8>,
        lost: Option<(NodeId, String)>,
    ) -> Leader {
        let (sender, members) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            let led = async { Task::take_office(office, header, bytes, lost, sender).await?.live().await };
            if let Err(error) = led.await {
                // The agent meets the same store, and tells of it.
                tracing::debug!("the leader stops: {error}");
            }
        });
        Leader { task, members }
    }

    /// Whether it still leads.
    pub(super) fn is_at_work(&self) -> bool {
        !self.task.is_finished()
    }

    /// The members of the latest round.
    pub(super) fn members(&self) -> Vec<NodeId> {
        self.members.borrow().clone()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task<S> {
    office: Office<S>,
    term: u64,
    /// The header in the store.
    bytes: Vec<u8>,
    /// The pages that the header in the store names.
    pages: Option<Pages>,
    /// The pages before those, which it names too.
    former: Option<Pages>,
    /// Counts the writes of this term.
    writes: u64,
    draft: Draft,
    peers: Peers,
    /// When the heartbeats are to be read next.
    look_at: Duration,
    closed: watch::Receiver<Vec<NodeId>>,
    /// How many of those that closed are known.
    severed: usize,
    members: watch::Sender<Vec<NodeId>>,
}

impl<S: Store> Task<S> {
    async fn take_office(
        office: Office<S>,
        header: Header,
        bytes: Vec<u8>,
        lost: Option<(NodeId, String)>,
        members: watch::Sender<Vec<NodeId>>,
    ) -> Result<Self, StoreError> {
        let now = office.begun.elapsed();
        let pages = read_pages(&office.store, &office.keys, &header, &office.options).await?;
        let pages = pages.ok_or_else(|| StoreError("the pages of the rendezvous are gone".to_owned()))?;
        let survey = header::survey(&header, &pages).map_err(|refusal| StoreError(refusal.to_string()))?;
        sweep(&office.store, &office.keys, &header, &office.options).await?;
        let mut peers = Peers::new(now);
        peers.watch(now, others(&survey.state, office.me));
        survey.ages.iter().for_each(|(id, age)| peers.known_for(now, *id, *age));
        if let Some((id, why)) = lost {
            peers.give_up(id, why);
        }
        Ok(Task {
            term: header.term,
            bytes,
            pages: header.pages,
            former: None,
            writes: 0,
            draft: Draft::new(survey.state, now),
            peers,
            look_at: now,
            closed: office.closings.subscribe(),
            severed: 0,
            members,
            office,
        })
    }

    async fn live(mut self) -> Result<(), StoreError> {
        while self.look().await? {
            let (lead, reason) = self.draft.lead(self.now(), self.office.me, &self.peers, &self.office.options);
            tracing::debug!(term = self.term, version = self.draft.state.version, "leads: {reason}");
            match lead {
                Lead::Write { news } if self.write(news).await? => {}
                Lead::Write { .. } | Lead::End => return Ok(()),
                Lead::Wait { until } => self.pause(until).await?,
            }
        }
        Ok(())
    }

    /// Reads what is new. Returns false if another node leads now.
    async fn look(&mut self) -> Result<bool, StoreError> {
        let key = self.office.keys.requests(self.term);
        let store = self.office.store.clone();
        for _ in 0..GRANTS_AT_ONCE {
            let Some(request) = self.ask(store.try_pop(&key)).await? else { break };
            match header::read(&request) {
                Ok(request) => self.draft.grant(request),
                Err(refusal) => tracing::warn!("a request to the leader is dropped: {refusal}"),
            }
        }
        let now = self.now();
        let closed = self.closed.borrow_and_update().clone();
        if now >= self.look_at || closed.len() > self.severed {
            self.severed = closed.len();
            self.peers.watch(now, others(&self.draft.state, self.office.me));
            closed.into_iter().for_each(|id| self.peers.sever(id));
        }
        if now < self.look_at {
            return Ok(true);
        }
        self.look_at = now + self.office.options.poll();
        if self.ask(store.try_get(&self.office.keys.state())).await?.as_ref() != Some(&self.bytes) {
            return Ok(false);
        }
        let ids = self.peers.ids();
        let beats = read_beats(&store, &self.office.keys, &ids, &self.office.options).await?;
        self.peers.observe(self.now(), &beats, &self.office.options);
        Ok(true)
    }

    /// Puts the draft in the store, and rings if it is news. Returns false if another node leads now.
    async fn write(&mut self, news: bool) -> Result<bool, StoreError> {
        let (store, keys) = (self.office.store.clone(), self.office.keys.clone());
        self.draft.state.version += 1;
        self.draft.state.news += u64::from(news);
        // Before the header forgets them: so none is left behind if this agent dies.
        let oldest = self.former.take();
        delete_pages(&store, &keys, oldest, &self.office.options).await?;
        let pages = Some(self.write_pages().await?);
        let bytes = Header { former: self.pages, ..Header::of(&self.draft.state, pages) }.encode();
        if matches!(self.draft.state.phase, Phase::Running { .. }) {
            self.members.send_replace(self.draft.state.members.iter().map(|member| member.node.id).collect());
        }
        if !self.ask(store.compare_set(&keys.state(), &self.bytes, &bytes)).await? {
            delete_pages(&store, &keys, pages, &self.office.options).await?;
            return Ok(false);
        }
        self.bytes = bytes;
        self.former = std::mem::replace(&mut self.pages, pages);
        self.draft.wrote(self.now());
        if news {
            self.ring(self.draft.state.news).await?;
        }
        Ok(true)
    }

    async fn write_pages(&mut self) -> Result<Pages, StoreError> {
        let (state, now) = (&self.draft.state, self.now());
        let age = |id| if id == self.office.me { now } else { self.peers.seen_ago(now, id).unwrap_or_default() };
        let pages = header::pages(state, &age);
        let written = Pages { term: self.term, write: self.writes, count: pages.len() as u64 };
        let entries: Vec<_> = self.office.keys.pages(written).into_iter().zip(pages).collect();
        for some in entries.chunks(PAGES_AT_ONCE) {
            self.ask(self.office.store.set_all(some)).await?;
        }
        self.writes += 1;
        Ok(written)
    }

    async fn ring(&self, news: u64) -> Result<(), StoreError> {
        let (store, keys) = (&self.office.store, &self.office.keys);
        self.ask(store.set(&keys.bell(news), b"1")).await?;
        match news.checked_sub(BELLS_KEPT) {
            Some(old) => self.ask(store.delete(&keys.bell(old))).await.map(drop),
            None => Ok(()),
        }
    }

    /// Waits for a request, for the end of a connection, or for the next look.
    async fn pause(&mut self, until: Option<Duration>) -> Result<(), StoreError> {
        let now = self.now();
        let until = until.map_or(self.look_at, |until| until.min(self.look_at));
        let slice = until.saturating_sub(now);
        let (store, key) = (self.office.store.clone(), self.office.keys.requests(self.term));
        let limit = self.office.options.request_timeout();
        tokio::select! {
            Ok(()) = self.closed.changed() => Ok(()),
            asked = within(limit, store.wait(&key, slice)) => asked.map(drop),
        }
    }

    async fn ask<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        within(self.office.options.request_timeout(), request).await
    }

    fn now(&self) -> Duration {
        self.office.begun.elapsed()
    }
}

fn others(state: &State, me: NodeId) -> impl Iterator<Item = NodeId> {
    state.everyone().map(|node| node.id).filter(move |id| *id != me)
}

/// One request, with its deadline.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let slow = || Err(StoreError(format!("no answer within {} s", limit.as_secs_f64())));
    timeout(limit, request).await.unwrap_or_else(|_| slow())
}

/// All pages that `header` names; `None` where some are gone, since the header has been replaced.
pub(super) async fn read_pages<S: Store>(
    store: &S,
    keys: &Keys,
    header: &Header,
    options: &Options,
) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
    let Some(written) = header.pages else { return Ok(Some(Vec::new())) };
    let mut pages = Vec::new();
    for some in keys.pages(written).chunks(PAGES_AT_ONCE) {
        match within(options.request_timeout(), store.try_get_all(some)).await? {
            Some(mut found) => pages.append(&mut found),
            None => return Ok(None),
        }
    }
    Ok(Some(pages))
}

/// Deletes the pages of one write, if there was one.
async fn delete_pages<S: Store>(
    store: &S,
    keys: &Keys,
    pages: Option<Pages>,
    options: &Options,
) -> Result<(), StoreError> {
    for key in pages.into_iter().flat_map(|pages| keys.pages(pages)) {
        within(options.request_timeout(), store.delete(&key)).await?;
    }
    Ok(())
}

/// Deletes what the leaders before that of `header` left, besides the pages that everybody reads. Whoever wrote those had swept
/// before, so nothing is older than its term. There may be the pages before them, in each term those of a write that did not come
/// to its end, and requests.
async fn sweep<S: Store>(store: &S, keys: &Keys, header: &Header, options: &Options) -> Result<(), StoreError> {
    let limit = options.request_timeout();
    delete_pages(store, keys, header.former, options).await?;
    for term in header.pages.map_or(1, |pages| pages.term)..header.term {
        let queue = keys.requests(term);
        while within(limit, store.try_pop(&queue)).await?.is_some() {}
        let unfinished = header.pages.filter(|pages| pages.term == term).map_or(0, |pages| pages.write + 1);
        for page in 0.. {
            if !within(limit, store.delete(&keys.page(term, unfinished, page))).await? {
                break;
            }
        }
    }
    Ok(())
}

/// The heartbeats of these nodes; a node that has none counts as 0.
pub(super) async fn read_beats<S: Store>(
    store: &S,
    keys: &Keys,
    ids: &[NodeId],
    options: &Options,
) -> Result<Vec<(NodeId, u64)>, StoreError> {
    let limit = options.request_timeout();
    let names: Vec<String> = ids.iter().map(|id| keys.alive(*id)).collect();
    let count = |beat: &[u8]| String::from_utf8_lossy(beat).parse().unwrap_or(0);
    if let Some(beats) = within(limit, store.try_get_all(&names)).await? {
        return Ok(ids.iter().copied().zip(beats.iter().map(|beat| count(beat))).collect());
    }
    let mut beats = Vec::new();
    for (id, name) in ids.iter().zip(&names) {
        beats.push((*id, within(limit, store.try_get(name)).await?.map_or(0, |beat| count(&beat))));
    }
    Ok(beats)
}

//! The leader's task: reads requests and heartbeats, lets [`Draft::decide`] decide what to do, and writes.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::header::{self, Header, Pages};
use super::heartbeat::{Disconnects, Keys};
use super::leader_policy::{Draft, LeaderAction};
use super::node::NodeId;
use super::options::Options;
use super::peers::Peers;
use super::state::{RoundPhase, State};
use super::store::{Store, StoreError};

/// A change key that is this much older than the latest is deleted.
const CHANGE_KEYS_KEPT: u64 = 16;
/// Number of pages per request, so that no request comes near the store's limits.
const PAGES_AT_ONCE: usize = 64;
/// Number of requests that are granted between two checks of the heartbeats.
const GRANTS_AT_ONCE: usize = 1024;

/// The task's handle; dropping it ends the task. The agent's heartbeat counts for it, too.
#[derive(Debug)]
pub(super) struct LeaderTask {
    task: JoinHandle<()>,
    members: watch::Receiver<Vec<NodeId>>,
}

/// What the task needs from its agent.
pub(super) struct LeaderContext<S> {
    pub(super) store: S,
    pub(super) keys: Keys,
    pub(super) me: NodeId,
    pub(super) options: Options,
    /// The start of the agent's clock.
    pub(super) begun: Instant,
    pub(super) disconnects: Disconnects,
}

impl LeaderTask {
    /// Starts to lead from `header`, which this agent has just written as `bytes`. If `lost` names the previous leader,
    /// it is lost.
    pub(super) fn start<S: Store>(
        context: LeaderContext<S>,
        header: Header,
        bytes: Vec<u8>,
        lost: Option<(NodeId, String)>,
    ) -> LeaderTask {
        let (sender, members) = watch::channel(Vec::new());
        let task = tokio::spawn(async move {
            let led = async { Task::begin(context, header, bytes, lost, sender).await?.live().await };
            if let Err(error) = led.await {
                // The agent uses the same store and reports its errors.
                tracing::debug!("the leader stops: {error}");
            }
        });
        LeaderTask { task, members }
    }

    /// Returns true if it still leads.
    pub(super) fn is_leading(&self) -> bool {
        !self.task.is_finished()
    }

    /// The members of the latest round.
    pub(super) fn members(&self) -> Vec<NodeId> {
        self.members.borrow().clone()
    }
}

impl Drop for LeaderTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task<S> {
    context: LeaderContext<S>,
    term: u64,
    /// The header in the store.
    bytes: Vec<u8>,
    /// The pages that the header in the store refers to.
    pages: Option<Pages>,
    /// The previous pages, which the header also refers to.
    former: Option<Pages>,
    /// The number of writes in this term.
    writes: u64,
    draft: Draft,
    peers: Peers,
    /// When to read the heartbeats next.
    look_at: Duration,
    closed: watch::Receiver<Vec<NodeId>>,
    /// The number of disconnects that have been processed.
    disconnects_seen: usize,
    members: watch::Sender<Vec<NodeId>>,
}

impl<S: Store> Task<S> {
    async fn begin(
        context: LeaderContext<S>,
        header: Header,
        bytes: Vec<u8>,
        lost: Option<(NodeId, String)>,
        members: watch::Sender<Vec<NodeId>>,
    ) -> Result<Self, StoreError> {
        let now = context.begun.elapsed();
        let pages = read_pages(&context.store, &context.keys, &header, &context.options).await?;
        let pages = pages.ok_or_else(|| StoreError("the pages of the rendezvous are gone".to_owned()))?;
        let survey = header::survey(&header, &pages).map_err(|refusal| StoreError(refusal.to_string()))?;
        sweep(&context.store, &context.keys, &header, &context.options).await?;
        let mut peers = Peers::new(now);
        peers.watch(now, others(&survey.state, context.me));
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
            closed: context.disconnects.subscribe(),
            disconnects_seen: 0,
            members,
            context,
        })
    }

    async fn live(mut self) -> Result<(), StoreError> {
        while self.look().await? {
            let (lead, reason) = self.draft.decide(self.now(), self.context.me, &self.peers, &self.context.options);
            tracing::debug!(term = self.term, version = self.draft.state.version, "leads: {reason}");
            match lead {
                LeaderAction::Write { news } if self.write(news).await? => {}
                LeaderAction::Write { .. } | LeaderAction::End => return Ok(()),
                LeaderAction::Wait { until } => self.pause(until).await?,
            }
        }
        Ok(())
    }

    /// Reads requests, heartbeats and disconnects. Returns false if another node leads now.
    async fn look(&mut self) -> Result<bool, StoreError> {
        let key = self.context.keys.requests(self.term);
        let store = self.context.store.clone();
        for _ in 0..GRANTS_AT_ONCE {
            let Some(request) = self.ask(store.try_pop(&key)).await? else { break };
            match header::read(&request) {
                Ok(request) => self.draft.grant(request),
                Err(refusal) => tracing::warn!("a request to the leader is dropped: {refusal}"),
            }
        }
        let now = self.now();
        let closed = self.closed.borrow_and_update().clone();
        if now >= self.look_at || closed.len() > self.disconnects_seen {
            self.disconnects_seen = closed.len();
            self.peers.watch(now, others(&self.draft.state, self.context.me));
            closed.into_iter().for_each(|id| self.peers.disconnected(id));
        }
        if now < self.look_at {
            return Ok(true);
        }
        self.look_at = now + self.context.options.poll();
        if self.ask(store.try_get(&self.context.keys.state())).await?.as_ref() != Some(&self.bytes) {
            return Ok(false);
        }
        let ids = self.peers.ids();
        let beats = read_beats(&store, &self.context.keys, &ids, &self.context.options).await?;
        self.peers.observe(self.now(), &beats, &self.context.options);
        Ok(true)
    }

    /// Writes the draft to the store, and announces it if `news` is set. Returns false if another node leads now.
    async fn write(&mut self, news: bool) -> Result<bool, StoreError> {
        let (store, keys) = (self.context.store.clone(), self.context.keys.clone());
        self.draft.state.version += 1;
        self.draft.state.news += u64::from(news);
        // Deletes them while the header still refers to them, so that they are not left behind if this agent dies.
        let oldest = self.former.take();
        delete_pages(&store, &keys, oldest, &self.context.options).await?;
        let pages = Some(self.write_pages().await?);
        let bytes = Header { former: self.pages, ..Header::of(&self.draft.state, pages) }.encode();
        if matches!(self.draft.state.phase, RoundPhase::Running { .. }) {
            self.members.send_replace(self.draft.state.members.iter().map(|member| member.node.id).collect());
        }
        if !self.ask(store.compare_set(&keys.state(), &self.bytes, &bytes)).await? {
            delete_pages(&store, &keys, pages, &self.context.options).await?;
            return Ok(false);
        }
        self.bytes = bytes;
        self.former = std::mem::replace(&mut self.pages, pages);
        self.draft.wrote(self.now());
        if news {
            self.announce(self.draft.state.news).await?;
        }
        Ok(true)
    }

    async fn write_pages(&mut self) -> Result<Pages, StoreError> {
        let (state, now) = (&self.draft.state, self.now());
        let age = |id| if id == self.context.me { now } else { self.peers.seen_ago(now, id).unwrap_or_default() };
        let pages = header::pages(state, &age);
        let written = Pages { term: self.term, write: self.writes, count: pages.len() as u64 };
        let entries: Vec<_> = self.context.keys.pages(written).into_iter().zip(pages).collect();
        for some in entries.chunks(PAGES_AT_ONCE) {
            self.ask(self.context.store.set_all(some)).await?;
        }
        self.writes += 1;
        Ok(written)
    }

    async fn announce(&self, news: u64) -> Result<(), StoreError> {
        let (store, keys) = (&self.context.store, &self.context.keys);
        self.ask(store.set(&keys.change_key(news), b"1")).await?;
        match news.checked_sub(CHANGE_KEYS_KEPT) {
            Some(old) => self.ask(store.delete(&keys.change_key(old))).await.map(drop),
            None => Ok(()),
        }
    }

    /// Waits for a request, a disconnect, or the next check.
    async fn pause(&mut self, until: Option<Duration>) -> Result<(), StoreError> {
        let now = self.now();
        let until = until.map_or(self.look_at, |until| until.min(self.look_at));
        let slice = until.saturating_sub(now);
        let (store, key) = (self.context.store.clone(), self.context.keys.requests(self.term));
        let limit = self.context.options.request_timeout();
        tokio::select! {
            Ok(()) = self.closed.changed() => Ok(()),
            asked = within(limit, store.wait(&key, slice)) => asked.map(drop),
        }
    }

    async fn ask<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        within(self.context.options.request_timeout(), request).await
    }

    fn now(&self) -> Duration {
        self.context.begun.elapsed()
    }
}

fn others(state: &State, me: NodeId) -> impl Iterator<Item = NodeId> {
    state.everyone().map(|node| node.id).filter(move |id| *id != me)
}

/// Runs a request with its deadline.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let slow = || Err(StoreError(format!("no answer within {} s", limit.as_secs_f64())));
    timeout(limit, request).await.unwrap_or_else(|_| slow())
}

/// Reads all pages of `header`; `None` if some are gone because the header has been replaced.
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

/// Deletes what earlier leaders left, except for the pages that are still read. The writer of those pages swept before
/// it wrote them, so nothing is older than its term. There may be the previous pages, the pages of an interrupted write
/// in each later term, and requests.
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

/// Reads the heartbeats of these nodes; a missing heartbeat counts as 0.
pub(super) async fn read_beats<S: Store>(
    store: &S,
    keys: &Keys,
    ids: &[NodeId],
    options: &Options,
) -> Result<Vec<(NodeId, u64)>, StoreError> {
    let limit = options.request_timeout();
    let names: Vec<String> = ids.iter().map(|id| keys.heartbeat(*id)).collect();
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

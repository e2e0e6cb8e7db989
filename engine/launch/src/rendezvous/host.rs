//! Hosts authorities in this process: one for each job that meets at this endpoint, called directly by the agent in this process and
//! over connections by the others. Not here: what an authority decides.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::authority::{Authority, Conn, Event, LOCAL};
use super::message::{self, Greeting, Request, SCHEMA, ToAgent, ToAuthority, View};
use super::options::RendezvousOptions;
use super::state::{JobIdentity, Node};
use super::succession::{Candidacy, SUCCESSORS};

/// Maximum number of connections; further ones are closed.
const MOST: usize = 8192;
/// Maximum number of jobs that meet here.
const JOBS: usize = 64;
/// A larger message waits until less than [`LARGE`] others of its kind are being received.
const SMALL: usize = 64 << 10;
/// See [`SMALL`].
const LARGE: usize = 64;
/// The errors of a connection whose process has closed it, or has ended, with or without unread messages. Any other may be the network's
/// fault.
pub(super) const CLOSED: [io::ErrorKind; 3] =
    [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
/// Time limit for the first message, and for the rest of one that has begun.
const PROMPT: Duration = Duration::from_secs(30);
/// Maximum length of a host's name, an address or a role.
const NAME: usize = 4096;

/// The authorities of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Host(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    hosted: Mutex<Hosted>,
    options: RendezvousOptions,
    begun: Instant,
    /// A time at which something is due has changed.
    due: Notify,
    /// A connection has closed.
    gone: Notify,
    large: Semaphore,
}

#[derive(Debug)]
struct Hosted {
    /// By run id.
    authorities: BTreeMap<String, Authority>,
    connections: BTreeMap<Conn, Connection>,
    last: Conn,
}

#[derive(Debug)]
struct Connection {
    /// Empty before it has joined.
    run_id: String,
    views: watch::Sender<Option<View>>,
}

impl Host {
    /// An authority for `job`, whose agent in this process is [`LOCAL`]; returns that agent's views.
    pub fn new(job: &JobIdentity, options: &RendezvousOptions) -> (Self, watch::Receiver<Option<View>>) {
        let (views, local) = watch::channel(None);
        let authority = Authority::new(Duration::ZERO, job.clone(), options.clone());
        let hosted = Hosted {
            authorities: [(job.run_id.clone(), authority)].into(),
            connections: [(LOCAL, Connection { run_id: job.run_id.clone(), views })].into(),
            last: LOCAL,
        };
        let shared = Shared {
            hosted: Mutex::new(hosted),
            options: options.clone(),
            begun: Instant::now(),
            due: Notify::new(),
            gone: Notify::new(),
            large: Semaphore::new(LARGE),
        };
        (Host(Arc::new(shared)), local)
    }

    /// A member that takes over as soon as it has the right to it; returns its own views.
    pub fn succeed(candidacy: Candidacy, options: &RendezvousOptions) -> (Self, watch::Receiver<Option<View>>) {
        let job = candidacy.follow.job.clone();
        let (host, views) = Host::new(&job, options);
        let authority = Authority::succeed(Duration::ZERO, job.clone(), options.clone(), candidacy);
        host.lock().authorities.insert(job.run_id, authority);
        host.tick();
        (host, views)
    }

    /// Returns true if this process has the right to lead the job, and does.
    pub fn leads(&self, run_id: &str) -> bool {
        self.lock().authorities.get(run_id).is_some_and(Authority::leads)
    }

    /// Returns true if this process has left its job to the next member.
    pub fn has_resigned(&self) -> bool {
        let hosted = self.lock();
        let own = hosted.connections.get(&LOCAL).and_then(|own| hosted.authorities.get(&own.run_id));
        own.is_some_and(Authority::has_resigned)
    }

    /// Handles a request of the agent in this process.
    pub fn request(&self, request: Request) {
        self.handle(LOCAL, Event::Asks(request));
    }

    /// Does what is due, and serves these connections, until it is dropped.
    pub async fn run(self, mut incoming: mpsc::UnboundedReceiver<std::net::TcpStream>) {
        let mut served = JoinSet::new();
        loop {
            let next = self.lock().authorities.values().filter_map(Authority::next_tick).min();
            tokio::select! {
                Some(stream) = incoming.recv() => if served.len() < MOST && let Ok(stream) = TcpStream::from_std(stream) {
                    served.spawn(self.clone().serve(stream));
                },
                Some(_) = served.join_next() => {}
                () = self.0.due.notified() => {}
                () = self.at(next) => self.tick(),
            }
        }
    }

    /// Serves the connection of an agent until it closes.
    pub async fn serve(self, stream: impl AsyncRead + AsyncWrite) {
        let (views, latest) = watch::channel(None);
        let conn = {
            let mut hosted = self.lock();
            hosted.last += 1;
            let conn = hosted.last;
            hosted.connections.insert(conn, Connection { run_id: String::new(), views });
            conn
        };
        let (beat, beats) = watch::channel(Duration::ZERO);
        let (reads, writes) = split(stream);
        let outcome = tokio::select! {
            outcome = self.receive(conn, reads, &beat) => outcome,
            outcome = send_views(latest, writes, beats) => outcome,
        };
        tracing::debug!(conn, "an agent's connection has ended: {outcome:?}");
        let has_ended = outcome.is_err_and(|error| CLOSED.contains(&error.kind()));
        self.handle(conn, if has_ended { Event::Closed } else { Event::Broken });
        self.lock().connections.remove(&conn);
        self.0.gone.notify_waiters();
    }

    async fn receive(
        &self,
        conn: Conn,
        mut stream: impl AsyncRead + Unpin,
        beat: &watch::Sender<Duration>,
    ) -> io::Result<()> {
        let mut first = true;
        loop {
            let limit = if first { PROMPT } else { Duration::MAX };
            let length = timeout(limit, message::read_length(&mut stream, message::MAX_REQUEST)).await??;
            let rest = async {
                let _permit = if length > SMALL { self.0.large.acquire().await.ok() } else { None };
                message::read_rest(&mut stream, length).await
            };
            match timeout(PROMPT, rest).await?? {
                ToAuthority::Beat(sent) => {
                    self.handle(conn, Event::Heard);
                    beat.send_replace(sent);
                }
                ToAuthority::Request(request) if is_reasonable(&request) => self.handle(conn, Event::Asks(request)),
                ToAuthority::Request(_) => return Err(io::ErrorKind::InvalidData.into()),
                ToAuthority::Superseded { run_id, generation, address } => {
                    self.supersede(&run_id, generation, address);
                }
            }
            first = false;
        }
    }

    /// Waits until the other agents of this job have closed their connections, and returns those that have not within `limit`.
    pub async fn until_alone(&self, run_id: &str, limit: Duration) -> Vec<Node> {
        let connected = || self.lock().authorities.get(run_id).map(Authority::connected).unwrap_or_default();
        let alone = async {
            loop {
                let mut gone = pin!(self.0.gone.notified());
                gone.as_mut().enable();
                if connected().is_empty() {
                    return;
                }
                gone.await;
            }
        };
        match timeout(limit, alone).await {
            Ok(()) => Vec::new(),
            Err(_) => connected(),
        }
    }

    fn handle(&self, conn: Conn, event: Event) {
        let now = self.now();
        let mut hosted = self.lock();
        hosted.assign(now, conn, &event, &self.0.options);
        let Hosted { authorities, connections, .. } = &mut *hosted;
        let Some(connection) = connections.get(&conn) else { return };
        let closed = matches!(event, Event::Closed | Event::Broken);
        if let Some(authority) = authorities.get_mut(&connection.run_id) {
            let before = authority.next_tick();
            send(connections, authority.handle(now, conn, event));
            if authority.next_tick() != before {
                self.0.due.notify_one();
            }
        }
        if closed {
            // The job of the agent in this process stays, also while that agent has not asked to join yet.
            let own = hosted.connections.get(&LOCAL).map(|connection| connection.run_id.clone());
            hosted.authorities.retain(|run_id, authority| own.as_ref() == Some(run_id) || !authority.is_deserted());
        }
    }

    fn supersede(&self, run_id: &str, generation: u64, address: String) {
        let now = self.now();
        let mut hosted = self.lock();
        let Hosted { authorities, connections, .. } = &mut *hosted;
        if let Some(authority) = authorities.get_mut(run_id) {
            send(connections, authority.handle(now, LOCAL, Event::Superseded(generation, address)));
        }
    }

    fn tick(&self) {
        let now = self.now();
        let mut hosted = self.lock();
        let Hosted { authorities, connections, .. } = &mut *hosted;
        authorities.values_mut().for_each(|authority| send(connections, authority.tick(now)));
    }

    async fn at(&self, time: Option<Duration>) {
        match time {
            Some(time) => sleep_until(self.0.begun + time).await,
            None => pending().await,
        }
    }

    fn now(&self) -> Duration {
        self.0.begun.elapsed()
    }

    /// Every change is a single step, so the state is valid even after a panic.
    fn lock(&self) -> MutexGuard<'_, Hosted> {
        self.0.hosted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hosted {
    /// The first request on a connection decides which job it is for.
    fn assign(&mut self, now: Duration, conn: Conn, event: &Event, options: &RendezvousOptions) {
        let job = match event {
            Event::Asks(Request::Join { job, .. }) => &**job,
            Event::Asks(Request::Follow(follow)) if self.authorities.contains_key(&follow.job.run_id) => &follow.job,
            _ => return,
        };
        let room = self.authorities.len() < JOBS || self.authorities.contains_key(&job.run_id);
        if let Some(connection) =
            self.connections.get_mut(&conn).filter(|connection| connection.run_id.is_empty() && room)
        {
            connection.run_id.clone_from(&job.run_id);
            let new = || Authority::new(now, job.clone(), options.clone());
            self.authorities.entry(job.run_id.clone()).or_insert_with(new);
        }
    }
}

fn send(connections: &BTreeMap<Conn, Connection>, views: Vec<(Conn, View)>) {
    for (conn, view) in views {
        if let Some(connection) = connections.get(&conn) {
            connection.views.send_replace(Some(view));
        }
    }
}

/// Greets the agent, then sends it its latest view and answers its beats.
async fn send_views(
    mut views: watch::Receiver<Option<View>>,
    mut stream: impl AsyncWrite + Unpin,
    mut beats: watch::Receiver<Duration>,
) -> io::Result<()> {
    message::write(&mut stream, &Greeting { schema: SCHEMA }).await?;
    loop {
        let message = tokio::select! {
            changed = views.changed() => match changed {
                Ok(()) => views.borrow_and_update().clone().map(|view| ToAgent::View(Box::new(view))),
                Err(_) => return Ok(()),
            },
            Ok(()) = beats.changed() => Some(ToAgent::Beat(*beats.borrow_and_update())),
        };
        if let Some(message) = message {
            message::write(&mut stream, &message).await?;
        }
    }
}

/// Returns true if an agent may have sent this: what this process keeps of a message is small.
fn is_reasonable(request: &Request) -> bool {
    let is_short = |text: &String| text.len() <= NAME;
    let is_agent = |node: &Node, job: &JobIdentity| {
        let names = [&node.host, &node.addr, &node.role, &job.run_id];
        names.into_iter().all(is_short) && job.commands.len() <= JOBS
    };
    match request {
        Request::Join { node, job, .. } => is_agent(node, job),
        Request::Follow(follow) => {
            let order = &follow.base.order;
            let is_order = order.len() <= SUCCESSORS && order.iter().all(|successor| is_short(&successor.address));
            is_agent(&follow.node, &follow.job) && is_order && follow.taken.len() <= JOBS
        }
        _ => true,
    }
}

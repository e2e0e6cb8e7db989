//! The task that connects an agent with its authority: it sends requests and beats and receives views, or calls the authority if that is in
//! this process. If the authority is lost, it follows the member that takes over, or takes over itself.
//!
//! [`succession`](super::succession) decides who is asked; this module has the sockets. [`Link`] is the agent's end of the connection: in
//! the same process, or over TCP with beats in both directions.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;
use tcpstore::{Client, ClientOptions, Server};
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::error::Refusal;
use super::host::{CLOSED, Host};
use super::message::{self, Follow, Greeting, MAX_REPLY, Phase, Request, SCHEMA, ToAgent, ToAuthority, View};
use super::options::RendezvousOptions;
use super::state::JobIdentity;
use super::succession::{Answer, Candidacy, Membership, Next, Search, send_on};

/// Time limit for connecting to a member.
const DIAL: Duration = Duration::from_secs(5);
/// The same for a lost authority: a machine whose process has ended refuses within a round trip, and workers wait meanwhile.
const FORMER: Duration = Duration::from_secs(1);

/// The time between two attempts to connect to a process that may be ending.
const AGAIN: Duration = Duration::from_millis(1);

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// The address of the other side.
    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}

impl Stream for TcpStream {
    fn peer(&self) -> Option<SocketAddr> {
        self.peer_addr().ok()
    }
}

#[cfg(test)]
impl Stream for tokio::io::DuplexStream {}

/// Why a connection has ended.
pub(super) enum Ended {
    /// The authority is lost.
    Lost(String),
    /// It is superseded by the one at this address. Its view says so.
    Moved(String, Box<View>),
    Refused(Refusal),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        let closed = CLOSED.contains(&error.kind());
        Ended::Lost(if closed { "it closed the connection".to_owned() } else { error.to_string() })
    }
}

/// What became of an attempt to connect.
enum Dialed {
    Open(TcpStream),
    /// The machine answers, but the process has ended.
    Dead,
    /// It opened, and was closed before anything was sent.
    Closed,
    Unknown,
}

/// An agent's connection to its authority, and what it needs to go on without it.
pub(super) struct Connection {
    place: watch::Sender<Place>,
    /// The machine that this was when it was connected: the name may mean another one since.
    peer: Option<SocketAddr>,
    inbox: mpsc::UnboundedReceiver<Request>,
    state: watch::Sender<LinkState>,
    options: RendezvousOptions,
    begun: Instant,
    /// Where others reach this agent if it takes over.
    listener: Option<TcpListener>,
    membership: Membership,
    /// Where the authorities before this one were; the first is a store.
    former: Vec<String>,
    /// Connections to former authorities and to this agent's own followers. They stay open while this process lives, because a closed
    /// connection means that the process has ended.
    streams: Vec<Box<dyn Stream>>,
    served: Vec<Task>,
    /// The store whose connections are served, while it exists.
    store: Weak<Server>,
}

impl Connection {
    pub(super) fn new(
        place: watch::Sender<Place>,
        inbox: mpsc::UnboundedReceiver<Request>,
        state: watch::Sender<LinkState>,
        options: RendezvousOptions,
        listener: Option<TcpListener>,
    ) -> Self {
        Connection {
            place,
            peer: None,
            inbox,
            state,
            options,
            begun: Instant::now(),
            listener,
            membership: Membership::default(),
            former: Vec::new(),
            streams: Vec::new(),
            served: Vec::new(),
            store: Weak::new(),
        }
    }

    /// Converses with the authority behind a stream, and with those that take over from it.
    async fn live_with(mut self, opening: impl Future<Output = Result<Box<dyn Stream>, Ended>>) {
        let ended = match opening.await {
            Ok(stream) => self.converse(stream, None).await,
            Err(ended) => ended,
        };
        self.go_on(ended).await;
    }

    /// Calls the authority in this process, which `serving` connects with others that come to this store, and converses with those that
    /// take over from it.
    async fn live_at(mut self, host: Host, views: watch::Receiver<Option<View>>, serving: Task, store: Weak<Server>) {
        self.served.push(serving);
        self.store = store;
        let ended = self.lead(&host, views, None).await;
        self.go_on(ended).await;
    }

    async fn go_on(&mut self, mut ended: Ended) {
        loop {
            ended = match ended {
                Ended::Lost(why) => match self.succeed(&why).await {
                    Some(next) => next,
                    None => break self.state.send_modify(|seen| seen.lost = Some(why)),
                },
                Ended::Moved(address, view) => self.move_to(address, &view).await,
                Ended::Refused(refusal) => break self.state.send_modify(|seen| seen.refusal = Some(refusal)),
            };
        }
    }

    /// Joins the authority at this address like a late node.
    async fn move_to(&mut self, address: String, view: &View) -> Ended {
        self.state.send_modify(|seen| send_on(&mut seen.view, view, &address));
        self.turn_to(address.clone());
        match dial_successor(address).await {
            Ok(stream) => self.converse(Box::new(stream), None).await,
            Err(ended) => ended,
        }
    }

    fn address(&self) -> String {
        self.place.borrow().address.clone()
    }

    fn turn_to(&mut self, address: String) {
        self.former.push(self.place.send_replace(Place { address, succeeds: None }).address);
    }

    /// Goes on without the authority; `None` if that is not possible.
    async fn succeed(&mut self, why: &str) -> Option<Ended> {
        let (view, beat) = {
            let seen = self.state.borrow();
            (seen.view.clone()?, seen.beat)
        };
        let lease_ends = beat.map_or(Duration::ZERO, |sent| sent + self.options.lease());
        let former = self.peer.map_or_else(|| self.address(), |peer| peer.to_string());
        let former = (self.begun.elapsed() < lease_ends).then_some(former);
        let found = self.membership.search(&view, former, lease_ends, why);
        let mut search = found.filter(|_| self.options.takeover)?;
        loop {
            self.state.send_modify(|seen| seen.view.iter_mut().for_each(|view| search.pretend(view)));
            let answer = match search.next() {
                Next::End => return None,
                Next::Lead(candidacy) => match self.listener.take() {
                    Some(listener) => return Some(self.take_over(*candidacy, listener).await),
                    None => Answer::Unknown,
                },
                Next::Ask(address) => match knock(&address, if search.asks_former() { FORMER } else { DIAL }).await {
                    Dialed::Dead => Answer::Dead,
                    Dialed::Open(stream) if !search.asks_former() => {
                        if let Some(ended) = self.follow(address, stream, &search).await {
                            return Some(ended);
                        }
                        Answer::Unknown
                    }
                    Dialed::Open(_) | Dialed::Closed | Dialed::Unknown => Answer::Unknown,
                },
            };
            search.answered(self.begun.elapsed(), answer);
        }
    }

    /// Follows the member at this address; `None` if it does not lead.
    async fn follow(&mut self, address: String, stream: TcpStream, search: &Search) -> Option<Ended> {
        self.turn_to(address);
        let ended = self.converse(Box::new(stream), Some(search.follow.clone())).await;
        let has_led = self.state.borrow().view.as_ref().is_some_and(|view| view.id != 0);
        (has_led || !matches!(ended, Ended::Lost(_))).then_some(ended)
    }

    /// Takes over, if this agent has the right to it.
    async fn take_over(&mut self, candidacy: Candidacy, listener: TcpListener) -> Ended {
        let (generation, run_id) = (candidacy.generation, candidacy.follow.job.run_id.clone());
        let (address, lost) = (candidacy.address(), self.address());
        let succeeds = candidacy.lost.as_ref().map_or_else(|| format!("the agent at {lost}"), ToString::to_string);
        let former: Vec<String> = self.former.iter().cloned().chain([lost]).collect();
        let (host, views) = Host::succeed(candidacy, &self.options);
        let (connections, incoming) = mpsc::unbounded_channel();
        self.served.push(Task::spawn(host.clone().run(incoming)));
        self.served.push(Task::spawn(accept(listener, connections)));
        self.state.send_modify(|seen| seen.leads = Some(host.clone()));
        let mut again = interval(self.options.poll());
        let message = ToAuthority::Superseded { run_id: run_id.clone(), generation, address: address.clone() };
        let telling = async {
            loop {
                again.tick().await;
                for (at, former) in former.iter().enumerate().filter(|_| host.leads(&run_id)) {
                    let _ = timeout(DIAL, tell(former, at == 0, &run_id, &message)).await; // it usually is dead
                }
            }
        };
        let place = Place { address, succeeds: Some(succeeds) };
        tokio::select! {
            ended = self.lead(&host, views, Some(place)) => ended,
            () = telling => unreachable!("former authorities are told again and again"),
        }
    }

    /// Calls the authority in this process until it is superseded. One that takes over sends views only if it may, and then is at `place`.
    async fn lead(&mut self, host: &Host, mut views: watch::Receiver<Option<View>>, mut place: Option<Place>) -> Ended {
        let ended = loop {
            tokio::select! {
                request = self.inbox.recv() => match request {
                    Some(request) => {
                        host.request(request);
                        if host.has_resigned() {
                            self.hang_up();
                        }
                    }
                    None => break Ended::Lost("this agent ended".to_owned()),
                },
                Ok(()) = views.changed() => {
                    let Some(view) = views.borrow_and_update().clone() else { continue };
                    if let Some(address) = view.moved.clone() {
                        break Ended::Moved(address, Box::new(view));
                    }
                    let leads = matches!(view.phase, Phase::Gathering | Phase::Running);
                    if let Some(place) = place.take_if(|_| leads) {
                        self.place.send_replace(place);
                    }
                    self.state.send_modify(|seen| {
                        seen.answered = Instant::now();
                        seen.show(view);
                    });
                }
            }
        };
        self.state.send_modify(|seen| seen.leads = None);
        ended
    }

    /// Closes the listener, and then the connections, of the authority in this process: the others see its end, and the next of them takes
    /// over at once, while this process still waits for its workers.
    fn hang_up(&mut self) {
        if let Some(store) = std::mem::take(&mut self.store).upgrade() {
            store.stop_listening();
        }
        self.served.clear();
        self.state.send_modify(|seen| seen.leads = None);
    }

    /// Sends requests and receives views until the connection ends. A member first says whom it follows.
    async fn converse(&mut self, mut stream: Box<dyn Stream>, follow: Option<Follow>) -> Ended {
        self.peer = stream.peer();
        self.state.send_modify(|seen| (seen.answered, seen.beat) = (Instant::now(), None));
        let (seen, options, begun) = (self.state.subscribe(), self.options.clone(), self.begun);
        let conversation = async {
            let (mut reads, mut writes) = split(&mut stream);
            // The authority speaks first: what comes before would still be read as requests to the store.
            greet(&mut reads).await?;
            // What follows counts as a beat.
            self.state.send_modify(|seen| seen.beat = Some(begun.elapsed()));
            if let Some(follow) = follow {
                message::write(&mut writes, &ToAuthority::Request(Request::Follow(Box::new(follow)))).await?;
            }
            let mut beats = interval(self.options.keep_alive_interval);
            beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let receiving = receive(&self.state, reads);
            let mut receiving = std::pin::pin!(receiving);
            loop {
                let message = tokio::select! {
                    biased;
                    ended = &mut receiving => return ended,
                    request = self.inbox.recv() => match request {
                        Some(mut request) => {
                            if let Request::Join { node, .. } = &mut request {
                                node.hosts_store = false; // it may have led before
                                node.port.take_if(|_| self.listener.is_none());
                            }
                            self.membership.note(&request, self.state.borrow().view.as_ref());
                            ToAuthority::Request(request)
                        }
                        None => return Ok(()),
                    },
                    _ = beats.tick() => ToAuthority::Beat(begun.elapsed()),
                };
                message::write(&mut writes, &message).await?;
            }
        };
        let outcome = tokio::select! {
            outcome = conversation => outcome,
            ended = silence(seen, &options) => Err(ended),
        };
        self.state.borrow().view.iter().for_each(|view| self.membership.saw(view));
        self.streams.push(stream);
        outcome.err().unwrap_or_else(|| Ended::Lost("this agent closed the connection".to_owned()))
    }
}

async fn greet(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), Ended> {
    let Greeting { schema } = message::read(stream, MAX_REPLY).await?;
    if schema == SCHEMA { Ok(()) } else { Err(Ended::Refused(Refusal::Schema { ours: SCHEMA, theirs: schema })) }
}

async fn receive(state: &watch::Sender<LinkState>, mut stream: impl AsyncRead + Unpin) -> Result<(), Ended> {
    loop {
        let received = message::read(&mut stream, MAX_REPLY).await?;
        if let ToAgent::View(view) = &received
            && let Some(address) = &view.moved
        {
            return Err(Ended::Moved(address.clone(), view.clone()));
        }
        state.send_if_modified(|seen| {
            seen.answered = Instant::now();
            match received {
                ToAgent::View(view) => seen.show(*view),
                ToAgent::Beat(sent) => {
                    seen.beat = Some(sent);
                    return false;
                }
            }
            true
        });
    }
}

/// Ends when the authority has been silent for too long. Time in which this agent did not look does not count.
async fn silence(seen: watch::Receiver<LinkState>, options: &RendezvousOptions) -> Ended {
    let (poll, limit) = (options.poll(), options.request_timeout());
    let (mut looked, mut silent, mut answered) = (Instant::now(), Duration::ZERO, seen.borrow().answered);
    loop {
        tokio::time::sleep(poll).await;
        let (now, last) = (Instant::now(), seen.borrow().answered);
        silent = if last == answered { silent + (now - looked).min(2 * poll) } else { now - last };
        (looked, answered) = (now, last);
        if silent >= limit {
            return Ended::Lost(format!("no answer within {} s", limit.as_secs_f64()));
        }
    }
}

/// Connects to an authority that has taken over.
pub(super) async fn dial_successor(address: String) -> Result<TcpStream, Ended> {
    match dial(&address, DIAL).await {
        Dialed::Open(stream) => Ok(stream),
        Dialed::Dead | Dialed::Closed | Dialed::Unknown => Err(Ended::Lost(format!("{address} cannot be reached"))),
    }
}

/// Dials, and waits for the first byte or the limit. A process that ends may close its connections before its listener: one more
/// connection opens then, and closes without a byte. So this one dials again.
async fn knock(address: &str, limit: Duration) -> Dialed {
    let begun = Instant::now();
    loop {
        match dial(address, limit).await {
            Dialed::Open(stream) => {
                if let Ok(Ok(1..)) | Err(_) = timeout(limit, stream.peek(&mut [0])).await {
                    return Dialed::Open(stream);
                }
            }
            Dialed::Closed => (),
            other => return other,
        }
        if begun.elapsed() >= limit {
            return Dialed::Unknown;
        }
        sleep(AGAIN).await;
    }
}

async fn dial(address: &str, limit: Duration) -> Dialed {
    match timeout(limit, TcpStream::connect(address)).await {
        // On loopback a socket can connect to itself if the port is in the ephemeral range.
        Ok(Ok(stream)) if stream.local_addr().ok() == stream.peer_addr().ok() => Dialed::Dead,
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            Dialed::Open(stream)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Dialed::Dead,
        // The listener took the connection and was closed, both before this process looked.
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Dialed::Closed,
        Ok(Err(_)) | Err(_) => Dialed::Unknown,
    }
}

/// Accepts connections until it is dropped.
async fn accept(listener: TcpListener, connections: mpsc::UnboundedSender<std::net::TcpStream>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(stream.into_std().map(|stream| connections.send(stream))),
            Err(_) => sleep(Duration::from_millis(100)).await, // too many descriptors are open
        }
    }
}

/// Tells the authority at this address, if there is one, that another one has taken over.
async fn tell(address: &str, is_store: bool, run_id: &str, message: &ToAuthority) -> Result<(), Ended> {
    let lost = |why: &str| Ended::Lost(why.to_owned());
    let mut stream = if is_store {
        let (host, port) = address.rsplit_once(':').ok_or_else(|| lost("no port"))?;
        let port = port.parse().map_err(|_| lost("no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let client = tcpstore::Client::connect_with(host, port, Duration::ZERO, ClientOptions::default()).await;
        open_store(client.map_err(|error| lost(&error.to_string()))?, run_id, DIAL).await?
    } else {
        dial_successor(address.to_owned()).await?
    };
    greet(&mut stream).await?;
    Ok(message::write(&mut stream, message).await?)
}

/// Where agents before schema 5 kept their state. The first thing that an agent of any version reads is the schema in it.
fn state_key(run_id: &str) -> String {
    format!("lockstep/rendezvous/{run_id}/state")
}

/// What [`state_key`] holds, for agents that look there.
fn state_value() -> Vec<u8> {
    format!("{{\"schema\":{SCHEMA}}}").into_bytes()
}

/// Begins the key of torchrun's own rendezvous (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py).
const TORCH_KEY: &str = "torch.rendezvous.";

/// A store that does not know a request closes the connection within this time.
const CLOSES: Duration = Duration::from_secs(1);

/// An agent's connection to the job's authority, in this process or another.
#[derive(Debug)]
pub struct Link {
    requests: mpsc::UnboundedSender<Request>,
    seen: watch::Receiver<LinkState>,
    place: watch::Receiver<Place>,
    /// The connection; it closes with this.
    _task: Task,
}

/// Where the job's authority is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `host:port`.
    pub address: String,
    /// Whom this agent has taken over from, if it is the authority for that reason.
    pub succeeds: Option<String>,
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

/// What has arrived from the authority.
#[derive(Clone, Debug)]
pub struct LinkState {
    pub(super) view: Option<View>,
    /// When it last answered.
    pub(super) answered: Instant,
    /// When the last beat that was answered was sent, by the connection's clock.
    pub(super) beat: Option<Duration>,
    /// Why it will not answer any more.
    pub(super) lost: Option<String>,
    /// Why this agent must not take part.
    pub(super) refusal: Option<Refusal>,
    /// The authority, if it is in this process.
    pub(super) leads: Option<Host>,
}

impl LinkState {
    fn new(leads: Option<Host>) -> Self {
        LinkState { view: None, answered: Instant::now(), beat: None, lost: None, refusal: None, leads }
    }

    /// A view has arrived.
    pub(super) fn show(&mut self, view: View) {
        let connection = self.view.as_ref().map_or(0, |view| view.connection);
        self.view = Some(View { connection, ..view });
    }
}

impl Task {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Task(tokio::spawn(task))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// The authority is in this process; `server` connects the other nodes at this address, if there can be some.
    #[must_use]
    pub fn host(address: String, job: &JobIdentity, options: &RendezvousOptions, server: Option<&Arc<Server>>) -> Link {
        let (host, views) = Host::new(job, options);
        let connections = match server {
            Some(server) => {
                // A store that has just been started has room for it.
                let _ = server.set(&state_key(&job.run_id), &state_value());
                server.take_switched()
            }
            None => None,
        };
        let connections = connections.unwrap_or_else(|| mpsc::unbounded_channel().1);
        let serving = Task::spawn(host.clone().run(connections));
        let store = server.map_or_else(Weak::new, Arc::downgrade);
        let live = |connection: Connection| connection.live_at(host.clone(), views, serving, store);
        Link::start(address, options, None, Some(host.clone()), live)
    }

    /// The authority is where this client of its store is connected to. If it is lost, this agent may take over at `listener`.
    #[must_use]
    pub fn connect(
        client: Client,
        job: &JobIdentity,
        options: &RendezvousOptions,
        listener: Option<TcpListener>,
    ) -> Link {
        let (address, run_id, limit) = (client.peer().to_owned(), job.run_id.clone(), options.request_timeout());
        let opening = async move { open_store(client, &run_id, limit).await };
        Link::open(address, opening, options, listener)
    }

    /// An authority behind the stream that `opening` gives.
    pub(super) fn open<S: Stream + 'static>(
        address: String,
        opening: impl Future<Output = Result<S, Ended>> + Send + 'static,
        options: &RendezvousOptions,
        listener: Option<TcpListener>,
    ) -> Link {
        let opening = async { opening.await.map(|stream| Box::new(stream) as Box<dyn Stream>) };
        Link::start(address, options, listener, None, |connection| connection.live_with(opening))
    }

    fn start<F: Future<Output = ()> + Send + 'static>(
        address: String,
        options: &RendezvousOptions,
        listener: Option<TcpListener>,
        leads: Option<Host>,
        live: impl FnOnce(Connection) -> F,
    ) -> Link {
        let (requests, inbox) = mpsc::unbounded_channel();
        let (state, seen) = watch::channel(LinkState::new(leads));
        let (moves, place) = watch::channel(Place { address, succeeds: None });
        let connection = Connection::new(moves, inbox, state, options.clone(), listener);
        Link { requests, seen, place, _task: Task::spawn(live(connection)) }
    }

    /// Where the authority is. It changes when another agent takes over.
    pub(super) fn place(&self) -> watch::Receiver<Place> {
        self.place.clone()
    }

    /// Sends a request.
    pub(super) fn send(&self, request: Request) {
        // If the connection has ended, `seen` says so.
        let _ = self.requests.send(request);
    }

    /// What has arrived.
    pub(super) fn seen(&mut self) -> LinkState {
        self.seen.borrow_and_update().clone()
    }

    /// Returns once something has arrived that was not seen. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Leaves the protocol of the authority's store.
async fn open_store(client: Client, run_id: &str, limit: Duration) -> Result<TcpStream, Ended> {
    let key = state_key(run_id);
    let read = async |key| client.try_get(key).await.map_err(|error| Ended::Lost(format!("failed to {error}")));
    let ours = read(&key).await?;
    if let Some(found) = &ours {
        check_schema(found).map_err(Ended::Refused)?;
    }
    let foreign = || Ended::Refused(Refusal::ForeignStore(client.peer().to_owned()));
    if ours.is_none() && read(&format!("{TORCH_KEY}{run_id}")).await?.is_some() {
        return Err(foreign());
    }
    let switched = timeout(limit, client.switch()).await.map_err(|late| Ended::Lost(late.to_string()))?;
    let stream = switched.map_err(|error| Ended::Lost(format!("failed to {error}")))?;
    // An authority, of another job for example, waits for a greeting. A store that does not know the request closes the connection.
    let closed = async || !matches!(timeout(CLOSES, stream.peek(&mut [0])).await, Err(_) | Ok(Ok(1..)));
    if ours.is_none() && closed().await { Err(foreign()) } else { Ok(stream) }
}

/// Refuses another schema in the value that agents of all versions read first.
fn check_schema(found: &[u8]) -> Result<(), Refusal> {
    #[derive(Deserialize)]
    struct Versioned {
        schema: u32,
    }
    match serde_json::from_slice::<Versioned>(found) {
        Ok(Versioned { schema: SCHEMA }) => Ok(()),
        Ok(Versioned { schema }) => Err(Refusal::Schema { ours: SCHEMA, theirs: schema }),
        Err(error) => {
            let head = String::from_utf8_lossy(&found[..found.len().min(80)]).into_owned();
            Err(Refusal::Corrupt { why: error.to_string(), head })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_closes_its_listener_last_is_known_to_have_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let ends = async {
            drop(listener.accept().await);
            drop(listener.accept().await);
            drop(listener);
        };
        let (found, ()) = tokio::join!(knock(&address, Duration::from_secs(60)), ends);
        assert!(matches!(found, Dialed::Dead));
    }

    #[tokio::test]
    async fn a_process_that_ends_while_one_connects_is_known_to_have_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // The kernel has opened the connection before the first poll returns.
        let ends = async { drop(listener) };
        let (found, ()) = tokio::join!(biased; knock(&address, Duration::from_secs(60)), ends);
        assert!(matches!(found, Dialed::Dead));
    }

    #[test]
    fn refuses_other_versions_in_the_value_that_all_versions_read_first() {
        assert_eq!(check_schema(&state_value()), Ok(()));
        let text = check_schema(br#"{"schema":4,"version":4,"members":[]}"#).unwrap_err().to_string();
        assert_eq!(text, "the rendezvous is of schema 4, this agent is of schema 6: run the same version on all nodes");
        assert!(matches!(check_schema(b"{}"), Err(Refusal::Corrupt { .. })));
    }

    #[tokio::test]
    async fn tells_a_store_of_torchrun_from_one_of_another_job() {
        let start = |hands_over| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let options = tcpstore::ServerOptions { hands_over, ..tcpstore::ServerOptions::default() };
            (tcpstore::Server::start(listener, options).unwrap(), port)
        };
        let limit = Duration::from_secs(60);
        let open = async |port, run_id| {
            let client = Client::connect("127.0.0.1", port, limit).await.unwrap();
            open_store(client, run_id, limit).await
        };
        let is_foreign = |opened| matches!(opened, Err(Ended::Refused(Refusal::ForeignStore(_))));
        let (_plain, port) = start(false);
        assert!(is_foreign(open(port, "job").await), "it closes the connection");
        let (server, port) = start(true);
        assert!(open(port, "job").await.is_ok(), "it waits for a greeting");
        server.set("torch.rendezvous.job", b"state").unwrap();
        assert!(is_foreign(open(port, "job").await), "it has torchrun's state");
    }
}

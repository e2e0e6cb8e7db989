//! An agent's connection to its authority: in the same process, or over TCP with beats in both directions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;
use tcpstore::{Client, Server};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::connection::{Connection, Ended, Stream};
use super::error::Refusal;
use super::host::Host;
use super::message::{Request, SCHEMA, View};
use super::node::JobIdentity;
use super::options::RendezvousOptions;

/// Where agents before schema 5 kept their state. The first thing that an agent of any version reads is the schema in it.
pub(super) fn state_key(run_id: &str) -> String {
    format!("lockstep/rendezvous/{run_id}/state")
}

/// What [`state_key`] holds, for agents that look there.
pub(super) fn state_value() -> Vec<u8> {
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
pub(super) async fn open_store(client: Client, run_id: &str, limit: Duration) -> Result<TcpStream, Ended> {
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

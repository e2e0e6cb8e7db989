//! An agent's connection to its authority: in the same process, or over TCP with beats in both directions.

use std::time::Duration;

use serde::Deserialize;
use tcpstore::Client;
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

/// A connection to an authority.
#[derive(Debug)]
pub enum Link {
    /// It is in this process.
    Local {
        /// The authority.
        host: Host,
        /// This agent's views.
        views: watch::Receiver<Option<View>>,
        /// Connects it with other nodes and lets time pass; ends with this.
        task: Task,
    },
    /// It is in another process.
    Remote {
        /// Its address, for messages.
        address: String,
        /// What to send.
        requests: mpsc::UnboundedSender<Request>,
        /// What has arrived.
        seen: watch::Receiver<LinkState>,
        /// The connection; it closes with this.
        task: Task,
    },
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

/// What has arrived from an authority in another process.
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
    /// This agent has taken over.
    pub(super) leads: Option<Host>,
}

impl LinkState {
    fn new(view: Option<View>) -> Self {
        LinkState { view, answered: Instant::now(), beat: None, lost: None, refusal: None, leads: None }
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
    /// The authority is in this process; `server` connects the other nodes, if there can be some.
    #[must_use]
    pub fn host(job: &JobIdentity, options: &RendezvousOptions, server: Option<&tcpstore::Server>) -> Link {
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
        let task = Task::spawn(host.clone().run(connections));
        Link::Local { host, views, task }
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
        let (requests, inbox) = mpsc::unbounded_channel();
        let (sender, seen) = watch::channel(LinkState::new(None));
        let connection = Connection::new(address.clone(), inbox, sender, options.clone(), listener);
        let opening = async { opening.await.map(|stream| Box::new(stream) as Box<dyn Stream>) };
        let task = Task::spawn(connection.live(opening));
        Link::Remote { address, requests, seen, task }
    }

    /// Sends a request.
    pub(super) fn send(&self, request: Request) {
        match self {
            Link::Local { host, .. } => host.request(request),
            // If the connection has ended, `seen` says so.
            Link::Remote { requests, .. } => drop(requests.send(request)),
        }
    }

    /// What has arrived.
    pub(super) fn seen(&mut self) -> LinkState {
        match self {
            Link::Local { views, .. } => LinkState::new(views.borrow_and_update().clone()),
            Link::Remote { seen, .. } => seen.borrow_and_update().clone(),
        }
    }

    /// Returns once something has arrived that was not seen. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let changed = match self {
            Link::Local { views, .. } => views.changed().await,
            Link::Remote { seen, .. } => seen.changed().await,
        };
        if changed.is_err() {
            std::future::pending().await
        }
    }
}

/// Leaves the protocol of the authority's store.
pub(super) async fn open_store(client: Client, run_id: &str, limit: Duration) -> Result<TcpStream, Ended> {
    let key = state_key(run_id);
    let found = client.try_get(&key).await.map_err(|error| Ended::Lost(format!("failed to {error}")))?;
    found.map_or(Ok(()), |found| check_schema(&found)).map_err(Ended::Refused)?;
    let switched = timeout(limit, client.switch()).await.map_err(|late| Ended::Lost(late.to_string()))?;
    switched.map_err(|error| Ended::Lost(format!("failed to {error}")))
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
}

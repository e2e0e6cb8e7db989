//! An agent's connection to its authority: in the same process, or over TCP with beats in both directions.

use std::io;
use std::time::Duration;

use serde::Deserialize;
use tcpstore::Client;
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::error::Refusal;
use super::host::Host;
use super::message::{self, Greeting, MAX_REPLY, Request, SCHEMA, ToAgent, ToAuthority, View};
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
    /// Why it will not answer any more.
    pub(super) lost: Option<String>,
    /// Why this agent must not take part.
    pub(super) refusal: Option<Refusal>,
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
        let task = Task(tokio::spawn(host.clone().run(connections)));
        Link::Local { host, views, task }
    }

    /// The authority is where this client of its store is connected to.
    #[must_use]
    pub fn connect(client: Client, job: &JobIdentity, options: &RendezvousOptions) -> Link {
        let (address, key, limit) = (client.peer().to_owned(), state_key(&job.run_id), options.request_timeout());
        let opening = async move {
            let found = client.try_get(&key).await.map_err(|error| Ended::Lost(format!("failed to {error}")))?;
            found.map_or(Ok(()), |found| check_schema(&found)).map_err(Ended::Refused)?;
            let switched = timeout(limit, client.switch()).await.map_err(|late| Ended::Lost(late.to_string()))?;
            switched.map_err(|error| Ended::Lost(format!("failed to {error}")))
        };
        Link::open(address, opening, options)
    }

    /// An authority behind the stream that `opening` gives.
    pub(super) fn open<S: AsyncRead + AsyncWrite + Send + 'static>(
        address: String,
        opening: impl Future<Output = Result<S, Ended>> + Send + 'static,
        options: &RendezvousOptions,
    ) -> Link {
        let (requests, inbox) = mpsc::unbounded_channel();
        let (sender, seen) =
            watch::channel(LinkState { view: None, answered: Instant::now(), lost: None, refusal: None });
        let options = options.clone();
        let task = tokio::spawn(async move {
            let ended = match opening.await {
                Ok(stream) => converse(stream, inbox, &sender, &options).await,
                Err(ended) => ended,
            };
            sender.send_modify(|seen| match ended {
                Ended::Lost(why) => seen.lost = Some(why),
                Ended::Refused(refusal) => seen.refusal = Some(refusal),
            });
        });
        Link::Remote { address, requests, seen, task: Task(task) }
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
            Link::Local { views, .. } => {
                let view = views.borrow_and_update().clone();
                LinkState { view, answered: Instant::now(), lost: None, refusal: None }
            }
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

/// Why a connection has ended.
pub(super) enum Ended {
    Lost(String),
    Refused(Refusal),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Ended::Lost(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        })
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite,
    requests: mpsc::UnboundedReceiver<Request>,
    seen: &watch::Sender<LinkState>,
    options: &RendezvousOptions,
) -> Ended {
    let (mut reads, writes) = split(stream);
    let conversation = async {
        // The authority speaks first: what comes before would still be read as requests to the store.
        greet(&mut reads).await?;
        tokio::select! {
            outcome = receive(reads, seen) => outcome,
            outcome = send(requests, writes, options) => outcome,
        }
    };
    let outcome = tokio::select! {
        outcome = conversation => outcome,
        ended = silence(seen.subscribe(), options) => Err(ended),
    };
    outcome.err().unwrap_or_else(|| Ended::Lost("this agent closed the connection".to_owned()))
}

async fn greet(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), Ended> {
    let Greeting { schema } = message::read(stream, MAX_REPLY).await?;
    if schema == SCHEMA { Ok(()) } else { Err(Ended::Refused(Refusal::Schema { ours: SCHEMA, theirs: schema })) }
}

async fn receive(mut stream: impl AsyncRead + Unpin, seen: &watch::Sender<LinkState>) -> Result<(), Ended> {
    loop {
        let received = message::read(&mut stream, MAX_REPLY).await?;
        seen.send_if_modified(|seen| {
            seen.answered = Instant::now();
            match received {
                ToAgent::View(view) => seen.view = Some(*view),
                ToAgent::Beat => return false,
            }
            true
        });
    }
}

async fn send(
    mut requests: mpsc::UnboundedReceiver<Request>,
    mut stream: impl AsyncWrite + Unpin,
    options: &RendezvousOptions,
) -> Result<(), Ended> {
    let mut beats = interval(options.keep_alive_interval);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked = tokio::select! {
            biased;
            request = requests.recv() => match request {
                Some(request) => ToAuthority::Request(request),
                None => return Ok(()),
            },
            _ = beats.tick() => ToAuthority::Beat,
        };
        message::write(&mut stream, &asked).await?;
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
        assert_eq!(text, "the rendezvous is of schema 4, this agent is of schema 5: run the same version on all nodes");
        assert!(matches!(check_schema(b"{}"), Err(Refusal::Corrupt { .. })));
    }
}

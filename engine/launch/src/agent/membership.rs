//! This node's part in the rendezvous, as a separate task: the agent sends it commands and receives the results.
//!
//! A command interrupts the current wait, so that a signal need not wait for a rendezvous. Below: the store of a round's workers, which
//! group rank 0 hosts.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lockstep_process::refusal;
use tcpstore::{Server, ServerOptions};
use tokio::sync::{mpsc, oneshot};

use crate::rendezvous::{Barrier, Change, Node, Rendezvous, RendezvousError, RootCause, Round, Succeeded};

/// A command of the agent.
#[derive(Debug)]
pub(super) enum Command {
    /// Take part in the next round.
    Join,
    /// Make all nodes agree again.
    AskToReform(String),
    /// Announce that all workers here have succeeded, and wait for the workers of other nodes.
    AwaitOthers,
    /// End the job for all nodes, unless another node does so within `patience`.
    Close { reason: String, root_cause: Option<RootCause>, patience: Duration },
    /// Leave, for this reason.
    Leave(String),
    /// End; the answer names the nodes that still needed the store that this agent hosts.
    Finish(oneshot::Sender<Vec<Node>>),
}

/// A result.
#[derive(Debug)]
pub(super) enum News {
    /// A round formed, and the workers' store is available.
    Formed(Box<(Round, Master)>),
    /// No round formed.
    NotFormed(Box<RendezvousError>),
    /// The workers' store could not be opened here.
    NoMaster(String),
    /// A change ended this node's part in the round.
    Changed(Box<Change>),
    /// All workers have succeeded, or the wait for them ended.
    Barrier(Barrier),
}

impl News {
    fn is_of_a_lost_store(&self) -> bool {
        let lost = |change: &Change| matches!(change, Change::StoreLost(_));
        match self {
            News::NotFormed(error) => matches!(**error, RendezvousError::StoreLost(_)),
            News::Changed(change) | News::Barrier(Barrier::Changed(change)) => lost(change),
            _ => false,
        }
    }
}

/// The task's handle; dropping it ends the task.
#[derive(Debug)]
pub(super) struct Membership {
    commands: mpsc::UnboundedSender<Command>,
    news: mpsc::UnboundedReceiver<News>,
    task: tokio::task::JoinHandle<()>,
    /// How soon the loss of a node is known.
    pub(super) lease: Duration,
}

/// Time limits for other nodes, in addition to the rendezvous' own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For group rank 0 to publish the address of the workers' store.
    pub(super) master: Duration,
    /// For the other nodes' workers to end.
    pub(super) exit_barrier: Duration,
}

impl Membership {
    /// Starts the task.
    pub(super) fn start(rendezvous: Rendezvous, hosting: StoreHosting, limits: Limits) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (outbox, news) = mpsc::unbounded_channel();
        let lease = rendezvous.lease();
        let member = Member { rendezvous, hosting, limits, inbox, outbox, next: None, watches: false, lost: false };
        Membership { commands, news, task: tokio::spawn(member.live()), lease }
    }

    /// Sends the task a command.
    pub(super) fn send(&self, command: Command) {
        // The task ends only on command.
        let _ = self.commands.send(command);
    }

    /// The next result; never returns after the task has ended.
    pub(super) async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Announces the end, and waits until the other nodes no longer need the store that this agent hosts.
    pub(super) async fn finish(self) -> Vec<Node> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Finish(answer));
        answered.await.unwrap_or_default()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Member {
    rendezvous: Rendezvous,
    hosting: StoreHosting,
    limits: Limits,
    inbox: mpsc::UnboundedReceiver<Command>,
    outbox: mpsc::UnboundedSender<News>,
    /// A command that interrupted another.
    next: Option<Command>,
    /// True while a round runs that may change.
    watches: bool,
    /// True if the store no longer answers, so that nothing can be announced.
    lost: bool,
}

impl Member {
    async fn live(mut self) {
        while let Some(command) = self.command().await {
            match command {
                Command::Join => self.join().await,
                Command::AwaitOthers => self.await_others().await,
                Command::AskToReform(reason) => {
                    self.watches = false;
                    self.log("ask for a restart", |rendezvous| Box::pin(rendezvous.request_restart(&reason))).await;
                }
                Command::Close { reason, root_cause, patience } => {
                    self.await_closing(patience).await;
                    self.watches = false;
                    self.log("close", |rendezvous| Box::pin(rendezvous.close(&reason, root_cause))).await;
                }
                Command::Leave(why) => {
                    self.watches = false;
                    self.log("leave", |rendezvous| Box::pin(rendezvous.leave(&why))).await;
                }
                Command::Finish(answer) => {
                    let left = if self.lost { vec![] } else { self.rendezvous.finish().await };
                    // The receiver may be gone.
                    let _ = answer.send(left);
                    return;
                }
            }
        }
    }

    /// Returns the next command; until then, watches the round.
    async fn command(&mut self) -> Option<Command> {
        if let Some(command) = self.next.take() {
            return Some(command);
        }
        if self.watches {
            tokio::select! {
                biased;
                command = self.inbox.recv() => return command,
                change = self.rendezvous.watch() => {
                    self.watches = false;
                    self.send(News::Changed(Box::new(change)));
                }
            }
        }
        self.inbox.recv().await
    }

    async fn join(&mut self) {
        self.watches = false;
        let Member { rendezvous, hosting, limits, inbox, .. } = self;
        let news = tokio::select! {
            biased;
            command = inbox.recv() => {
                self.next = command;
                return;
            }
            news = form(rendezvous, hosting, *limits) => news,
        };
        self.watches = matches!(news, News::Formed(_));
        self.send(news);
    }

    /// Waits for another node to end the job.
    async fn await_closing(&mut self, patience: Duration) {
        if self.watches
            && let Ok(change) = tokio::time::timeout(patience, self.rendezvous.watch()).await
        {
            self.send(News::Changed(Box::new(change)));
        }
    }

    async fn await_others(&mut self) {
        self.watches = false;
        let limit = self.limits.exit_barrier;
        let news = async {
            News::Barrier(match self.rendezvous.succeed().await {
                Ok(Succeeded::Recorded) => self.rendezvous.exit_barrier(limit).await,
                // A new round was requested before this node announced its success: its workers run again.
                Ok(Succeeded::Changed(change)) if leads_on(&change) => return News::Changed(change),
                Ok(Succeeded::Changed(change)) => Barrier::Changed(change),
                Err(RendezvousError::StoreLost(lost)) => Barrier::Changed(Box::new(Change::StoreLost(*lost))),
                Err(error) => Barrier::Changed(Box::new(Change::Evicted { why: error.to_string() })),
            })
        };
        tokio::select! {
            biased;
            command = self.inbox.recv() => self.next = command,
            news = news => self.send(news),
        }
    }

    /// A failed announcement is not an error: the other nodes notice on their own.
    async fn log<'a, F>(&'a mut self, what: &str, tell: F)
    where
        F: FnOnce(&'a mut Rendezvous) -> Telling<'a>,
    {
        if self.lost {
            return;
        }
        if let Err(error) = tell(&mut self.rendezvous).await {
            tracing::warn!("could not {what}: {error}");
            self.lost |= matches!(error, RendezvousError::StoreLost(_));
        }
    }

    fn send(&mut self, news: News) {
        self.lost |= news.is_of_a_lost_store();
        // The agent has dropped the receiver: it is about to exit.
        let _ = self.outbox.send(news);
    }
}

type Telling<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), RendezvousError>> + Send + 'a>>;

/// Returns true if this change ends only one round, so that another may follow.
fn leads_on(change: &Change) -> bool {
    !matches!(change, Change::Closed(_) | Change::AllDone | Change::StoreLost(_))
}

/// Joins a round and agrees on the address of the workers' store. If a round ends before that is known, joins the next
/// one.
async fn form(rendezvous: &mut Rendezvous, hosting: &mut StoreHosting, limits: Limits) -> News {
    loop {
        let round = match rendezvous.join().await {
            Ok(round) => round,
            Err(error) => return News::NotFormed(Box::new(error)),
        };
        match agree_on_master(rendezvous, hosting, &round, limits).await {
            Ok(master) => return News::Formed(Box::new((round, master))),
            Err(NoMaster::Here(why)) => {
                // If the announcement fails, the other nodes notice on their own.
                let _ = rendezvous.leave(&why).await;
                return News::NoMaster(why);
            }
            Err(NoMaster::Rendezvous(RendezvousError::Changed(change))) if leads_on(&change) => {}
            Err(NoMaster::Rendezvous(RendezvousError::Changed(change))) => return News::Changed(change),
            Err(NoMaster::Rendezvous(error)) => {
                if !matches!(error, RendezvousError::StoreLost(_)) {
                    let _ = rendezvous.leave(&error.to_string()).await;
                }
                return News::NotFormed(Box::new(error));
            }
        }
    }
}

/// Why the address of the workers' store is not known.
enum NoMaster {
    /// It cannot be hosted here, or its address is invalid.
    Here(String),
    Rendezvous(RendezvousError),
}

async fn agree_on_master(
    rendezvous: &mut Rendezvous,
    hosting: &mut StoreHosting,
    round: &Round,
    limits: Limits,
) -> Result<Master, NoMaster> {
    hosting.close();
    if round.group_rank() == 0 {
        let master = hosting.open().map_err(NoMaster::Here)?;
        rendezvous.publish_master(round, &master.to_string());
        return Ok(master);
    }
    let text = rendezvous.await_master(round, limits.master).await.map_err(NoMaster::Rendezvous)?;
    text.parse().map_err(|why| NoMaster::Here(format!("group rank 0 named `{text}` as the workers' store: {why}")))
}

/// MASTER_ADDR and MASTER_PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    /// The name or address at which the workers of all nodes reach it.
    pub(super) host: String,
    /// The store's port.
    pub(super) port: u16,
}

/// How this node hosts the workers' store.
#[derive(Debug)]
pub(super) enum StoreHosting {
    /// Every round has its own store, on a free port of this interface; `host` is the name for other nodes.
    Own { host: String, interface: IpAddr, server: Option<Server> },
    /// All rounds share the agents' store, as a static rendezvous requires, because its port is fixed in advance. Only
    /// the agent that hosts it has a `server`.
    Shared { master: Master, server: Option<Arc<Server>>, agents_prefix: String },
}

impl StoreHosting {
    /// Closes the store that this node opened for an earlier round, whose workers have ended on all nodes.
    pub(super) fn close(&mut self) {
        if let StoreHosting::Own { server, .. } = self {
            *server = None;
        }
    }

    /// Opens the store of a new round and closes the store of the previous one, which no worker uses any more.
    ///
    /// # Errors
    /// A message if there is no free port or no such interface.
    pub(super) fn open(&mut self) -> Result<Master, String> {
        match self {
            StoreHosting::Own { host, interface, server } => {
                *server = None;
                let opened = check_loopback(*interface).and_then(|()| host_on(SocketAddr::new(*interface, 0), false));
                let opened = opened.map_err(|error| {
                    let advice = refusal(&error).unwrap_or_else(|| advice(&error, *interface).to_owned());
                    format!("cannot open the workers' store on {interface}: {error}; {advice}")
                })?;
                let master = Master { host: host.clone(), port: opened.local_addr().port() };
                *server = Some(opened);
                Ok(master)
            }
            StoreHosting::Shared { master, server, agents_prefix } => {
                if let Some(server) = server {
                    // Keys of the previous round's workers would be mistaken for this round's.
                    server.clear_except(agents_prefix);
                }
                Ok(master.clone())
            }
        }
    }
}

/// Checks that this machine reaches a loopback address. A listener opens on one even where the interface is down, and no worker would reach
/// it.
fn check_loopback(interface: IpAddr) -> io::Result<()> {
    if !interface.is_loopback() {
        return Ok(());
    }
    // Connecting a UDP socket asks for the route and sends nothing.
    UdpSocket::bind(SocketAddr::new(interface, 0))?.connect(SocketAddr::new(interface, 9))
}

/// What to do where a store cannot be opened on this interface.
fn advice(error: &io::Error, interface: IpAddr) -> &'static str {
    match error.kind() {
        ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable if interface.is_loopback() => {
            "this machine's loopback interface is down or has no such address: `ip addr show lo`, and as root \
             `ip link set lo up && ip addr add 127.0.0.1/8 dev lo`"
        }
        ErrorKind::AddrNotAvailable | ErrorKind::NetworkUnreachable => "name this node's address by --local-addr",
        _ => "`lockstep doctor` shows this machine's limits",
    }
}

/// Starts a store server on `address`, which also lets agents leave the store's protocol if they meet here.
pub(super) fn host_on(address: SocketAddr, hands_over: bool) -> std::io::Result<Server> {
    Server::start(TcpListener::bind(address)?, ServerOptions { hands_over, ..ServerOptions::default() })
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(host) => write!(f, "[{host}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Master {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let (host, port) = split.ok_or_else(|| "it is not HOST:PORT".to_owned())?;
        let port = port.parse().map_err(|_| format!("`{port}` is not a port"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        Ok(Master { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::rendezvous::tests::two;

    #[tokio::test]
    async fn a_node_that_is_no_longer_the_first_closes_the_store_of_the_previous_round() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut hosting = StoreHosting::Own { host: "127.0.0.1".into(), interface: loopback, server: None };
        let former = hosting.open().unwrap().port;
        let (mut a, mut b, [first, second], _) = two().await;
        a.publish_master(&first, "a:4711");
        let limits = Limits { master: Duration::from_secs(60), exit_barrier: Duration::from_secs(60) };
        let agreed = agree_on_master(&mut b, &mut hosting, &second, limits).await;
        assert!(matches!(agreed, Ok(master) if master.port == 4711));
        assert!(!lockstep_testkit::listens(former), "the store of the previous round still listens on port {former}");
    }

    #[test]
    fn parses_its_own_text() {
        for (host, text) in [("gpu01", "gpu01:7"), ("10.0.0.1", "10.0.0.1:7"), ("fe80::1", "[fe80::1]:7")] {
            let master = Master { host: host.into(), port: 7 };
            assert_eq!(master.to_string(), text);
            assert_eq!(text.parse(), Ok(master));
        }
    }

    #[test]
    fn rejects_texts_without_a_port() {
        for text in ["", "gpu01", "gpu01:", ":7", "gpu01:65536", "gpu01:-1"] {
            assert!(text.parse::<Master>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_round_has_its_own_store_and_the_old_one_is_closed() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut hosting = StoreHosting::Own { host: "127.0.0.1".into(), interface: loopback, server: None };
        let first = hosting.open().unwrap();
        let StoreHosting::Own { server: Some(server), .. } = &hosting else { panic!("{hosting:?}") };
        server.set("k", b"v").unwrap();
        hosting.open().unwrap();
        let StoreHosting::Own { server: Some(server), .. } = &hosting else { panic!("{hosting:?}") };
        assert_eq!(server.get("k"), None);
        drop(hosting);
        assert!(!lockstep_testkit::listens(first.port), "the store still listens on port {}", first.port);
    }

    #[test]
    fn what_to_do_depends_on_the_error_and_on_the_interface() {
        let (loopback, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]));
        let down = io::Error::from(ErrorKind::NetworkUnreachable);
        assert!(advice(&down, loopback).contains("ip link set lo up"));
        assert!(advice(&io::Error::from(ErrorKind::AddrNotAvailable), other).contains("--local-addr"));
        assert!(advice(&io::Error::from(ErrorKind::WouldBlock), loopback).contains("lockstep doctor"));
        check_loopback(loopback).unwrap();
        check_loopback(other).unwrap();
    }

    #[test]
    fn a_shared_store_drops_keys_of_workers_and_keeps_keys_of_agents() {
        let server = Arc::new(host_on(SocketAddr::from(([127, 0, 0, 1], 0)), false).unwrap());
        server.set("lockstep/rendezvous/none/state", b"{}").unwrap();
        server.set("default_pg/0//cpu//0", b"address").unwrap();
        let master = Master { host: "127.0.0.1".into(), port: server.local_addr().port() };
        let agents_prefix = "lockstep/".to_owned();
        let mut hosting =
            StoreHosting::Shared { master: master.clone(), server: Some(Arc::clone(&server)), agents_prefix };
        assert_eq!(hosting.open(), Ok(master));
        assert_eq!(server.keys(""), ["lockstep/rendezvous/none/state"]);
    }
}

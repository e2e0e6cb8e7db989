//! This node's part in the rendezvous, as a task of its own: the agent tells it what to do and hears what came of it.
//!
//! A command interrupts whatever wait is under way, so that a signal need not wait for a rendezvous.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::master::{Master, Site};
use crate::rendezvous::{Barrier, Change, Node, Rendezvous, RendezvousError, RootCause, Round, Store, Succeeded};

/// What the agent wants.
#[derive(Debug)]
pub(super) enum Command {
    /// Take part in the next round.
    Join,
    /// Have all nodes agree anew.
    AskToReform(String),
    /// Tell that all workers here have succeeded, and wait for the others'.
    AwaitOthers,
    /// End the job for all.
    Close { reason: String, root_cause: Option<RootCause> },
    /// Go, and say why.
    Leave(String),
    /// Say farewell; the answer names who still needed the store that lives here.
    Finish(oneshot::Sender<Vec<Node>>),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum News {
    /// A round came about, and the workers' store is there.
    Formed(Box<(Round, Master)>),
    /// None did.
    NotFormed(Box<RendezvousError>),
    /// The workers' store could not be opened here.
    NoMaster(String),
    /// Something ended this node's part in the round.
    Changed(Box<Change>),
    /// All have succeeded, or that was waited for in vain.
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
}

/// The longest waits for other nodes, beside the rendezvous' own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For group rank 0 to tell where the workers' store is.
    pub(super) master: Duration,
    /// For the other nodes' workers to end.
    pub(super) exit_barrier: Duration,
}

impl Membership {
    /// Starts the task.
    pub(super) fn start<S: Store>(rendezvous: Rendezvous<S>, site: Site, limits: Limits) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (outbox, news) = mpsc::unbounded_channel();
        let member = Member { rendezvous, site, limits, inbox, outbox, next: None, watches: false, lost: false };
        Membership { commands, news, task: tokio::spawn(member.live()) }
    }

    /// Tells the task what to do.
    pub(super) fn tell(&self, command: Command) {
        // The task ends only when it is told to.
        let _ = self.commands.send(command);
    }

    /// The next news; never, once the task has ended.
    pub(super) async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Says farewell, and waits until the other nodes no longer need what lives here.
    pub(super) async fn finish(self) -> Vec<Node> {
        let (answer, answered) = oneshot::channel();
        self.tell(Command::Finish(answer));
        answered.await.unwrap_or_default()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Member<S: Store> {
    rendezvous: Rendezvous<S>,
    site: Site,
    limits: Limits,
    inbox: mpsc::UnboundedReceiver<Command>,
    outbox: mpsc::UnboundedSender<News>,
    /// A command that interrupted another.
    next: Option<Command>,
    /// Whether a round runs of which news may come.
    watches: bool,
    /// Whether the store has ceased to answer, so that nothing more can be told.
    lost: bool,
}

impl<S: Store> Member<S> {
    async fn live(mut self) {
        while let Some(command) = self.command().await {
            match command {
                Command::Join => self.join().await,
                Command::AwaitOthers => self.await_others().await,
                Command::AskToReform(reason) => {
                    self.watches = false;
                    self.log("ask for a restart", |rendezvous| Box::pin(rendezvous.request_restart(&reason))).await;
                }
                Command::Close { reason, root_cause } => {
                    self.watches = false;
                    self.log("close", |rendezvous| Box::pin(rendezvous.close(&reason, root_cause))).await;
                }
                Command::Leave(why) => {
                    self.watches = false;
                    self.log("leave", |rendezvous| Box::pin(rendezvous.leave(&why))).await;
                }
                Command::Finish(answer) => {
                    let left = if self.lost { vec![] } else { self.rendezvous.finish().await };
                    // Nobody waits for the answer any more: as good.
                    let _ = answer.send(left);
                    return;
                }
            }
        }
    }

    /// The next command; until it comes, the round is watched.
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
        let Member { rendezvous, site, limits, inbox, .. } = self;
        let news = tokio::select! {
            biased;
            command = inbox.recv() => {
                self.next = command;
                return;
            }
            news = form(rendezvous, site, *limits) => news,
        };
        self.watches = matches!(news, News::Formed(_));
        self.send(news);
    }

    async fn await_others(&mut self) {
        self.watches = false;
        let limit = self.limits.exit_barrier;
        let news = async {
            News::Barrier(match self.rendezvous.succeed().await {
                Ok(Succeeded::Recorded) => self.rendezvous.exit_barrier(limit).await,
                // Somebody asked for a new round before this node could tell: its workers run once more.
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

    /// What the others cannot be told is no reason to fail: they notice by themselves.
    async fn log<'a, F>(&'a mut self, what: &str, tell: F)
    where
        F: FnOnce(&'a mut Rendezvous<S>) -> Telling<'a>,
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
        // The agent no longer listens: it is about to end.
        let _ = self.outbox.send(news);
    }
}

type Telling<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), RendezvousError>> + Send + 'a>>;

/// Whether this change ends one round only, so that another may come.
fn leads_on(change: &Change) -> bool {
    !matches!(change, Change::Closed(_) | Change::AllDone | Change::StoreLost(_))
}

/// Joins a round and agrees on where the workers' store is. A round that is over before that is known makes room for the next.
async fn form<S: Store>(rendezvous: &mut Rendezvous<S>, site: &mut Site, limits: Limits) -> News {
    loop {
        let round = match rendezvous.join().await {
            Ok(round) => round,
            Err(error) => return News::NotFormed(Box::new(error)),
        };
        match agree(rendezvous, site, &round, limits).await {
            Ok(master) => return News::Formed(Box::new((round, master))),
            Err(NoMaster::Here(why)) => {
                // That the others cannot be told is no reason to wait: they notice by themselves.
                let _ = rendezvous.leave(&why).await;
                return News::NoMaster(why);
            }
            Err(NoMaster::Told(RendezvousError::Changed(change))) if leads_on(&change) => {}
            Err(NoMaster::Told(RendezvousError::Changed(change))) => return News::Changed(change),
            Err(NoMaster::Told(error)) => {
                if !matches!(error, RendezvousError::StoreLost(_)) {
                    let _ = rendezvous.leave(&error.to_string()).await;
                }
                return News::NotFormed(Box::new(error));
            }
        }
    }
}

/// Why the workers' store is not known.
enum NoMaster {
    /// It cannot be here, or the name of it is none.
    Here(String),
    Told(RendezvousError),
}

async fn agree<S: Store>(
    rendezvous: &mut Rendezvous<S>,
    site: &mut Site,
    round: &Round,
    limits: Limits,
) -> Result<Master, NoMaster> {
    site.close();
    if round.group_rank == 0 {
        let master = site.open().map_err(NoMaster::Here)?;
        rendezvous.publish_master(round, &master.to_string()).await.map_err(NoMaster::Told)?;
        return Ok(master);
    }
    let text = rendezvous.await_master(round, limits.master).await.map_err(NoMaster::Told)?;
    text.parse().map_err(|why| NoMaster::Here(format!("group rank 0 named `{text}` as the workers' store: {why}")))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, TcpListener};

    use super::*;
    use crate::rendezvous::{Job, MemoryStore, Options};

    fn agent(store: &MemoryStore, host: &str) -> Rendezvous<MemoryStore> {
        let (host, addr, role) = (host.to_owned(), host.to_owned(), "default".to_owned());
        let node = Node {
            id: 0,
            host,
            addr,
            pid: 1,
            local_world_size: 1,
            role: role.clone(),
            hosts_store: false,
            node_rank: None,
        };
        let commands = [(role, "train".to_owned())].into();
        let (run_id, backend, user) = ("none".to_owned(), "c10d".to_owned(), "ada".to_owned());
        let job = Job { run_id, min_nodes: 2, max_nodes: 2, backend, user, batch: None, commands };
        Rendezvous::new(store.clone(), node, job, Options::default())
    }

    #[tokio::test]
    async fn a_node_that_is_no_longer_the_first_closes_the_store_of_the_round_before() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut site = Site::Own { host: "127.0.0.1".into(), interface: loopback, server: None };
        let former = SocketAddr::new(loopback, site.open().unwrap().port);
        let store = MemoryStore::default();
        let (mut a, mut b) = (agent(&store, "a"), agent(&store, "b"));
        let (first, second) = tokio::join!(a.join(), b.join());
        a.publish_master(&first.unwrap(), "a:4711").await.unwrap();
        let limits = Limits { master: Duration::from_secs(60), exit_barrier: Duration::from_secs(60) };
        let agreed = agree(&mut b, &mut site, &second.unwrap(), limits).await;
        assert!(matches!(agreed, Ok(master) if master.port == 4711));
        assert!(TcpListener::bind(former).is_ok(), "the store of the round before still listens at {former}");
    }
}

//! This node's part in the rendezvous, as a separate task: the agent sends it commands and receives the results.
//!
//! A command interrupts the current wait, so that a signal need not wait for a rendezvous.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::master::{Master, StoreHosting};
use crate::rendezvous::{Barrier, Change, Node, Rendezvous, RendezvousError, RootCause, Round, Succeeded};

/// A command of the agent.
#[derive(Debug)]
pub(super) enum Command {
    /// Take part in the next round.
    Join,
    /// Make all nodes agree again.
    AskToReform(String),
    /// Announce that all workers here have succeeded, and wait for those of other nodes.
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
}

/// Time limits for other nodes, in addition to those of the rendezvous.
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
        let member = Member { rendezvous, hosting, limits, inbox, outbox, next: None, watches: false, lost: false };
        Membership { commands, news, task: tokio::spawn(member.live()) }
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
}

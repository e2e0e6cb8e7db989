//! Carries out an agent's decisions: sends requests, waits for views, and gives the results to the agent's event loop.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::{Action, Client, Goal, Round};
use super::connection::{Link, Place};
use super::error::{Change, Reason, Refusal, RendezvousError, StoreLost};
use super::message::{OwnPart, Request, View};
use super::options::RendezvousOptions;
use super::state::{Closing, JobIdentity, Node, RootCause};

/// One agent's part in a rendezvous. Its beats go on until this is dropped or [`finish`](Rendezvous::finish)ed, so the agent can be
/// busy with its workers.
#[derive(Debug)]
pub struct Rendezvous {
    pub(super) client: Client,
    pub(super) link: Link,
    pub(super) options: RendezvousOptions,
    pub(super) view: Option<View>,
    begun: Instant,
    reason: watch::Sender<String>,
    last_reason: Option<Reason>,
}

/// The result of [`Rendezvous::succeed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Succeeded {
    /// The authority knows it.
    Recorded,
    /// The round had already ended: its workers must run again, or the job has ended.
    Changed(Box<Change>),
}

/// The result of [`Rendezvous::exit_barrier`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// The workers of all nodes have succeeded.
    AllDone,
    /// They will not: the job was closed, or the authority is lost.
    Changed(Box<Change>),
    /// The workers of these nodes did not end in time.
    TimedOut(Vec<Node>),
}

impl Rendezvous {
    /// An agent that has not joined yet. The authority's id will replace `node.id`.
    #[must_use]
    pub fn new(link: Link, node: Node, job: JobIdentity, options: RendezvousOptions) -> Self {
        Rendezvous {
            client: Client::new(node, job, options.clone()),
            link,
            options,
            view: None,
            begun: Instant::now(),
            reason: watch::Sender::new(String::new()),
            last_reason: None,
        }
    }

    /// The current reason for waiting, as a text. It changes only when the text is different.
    pub fn reasons(&self) -> watch::Receiver<String> {
        self.reason.subscribe()
    }

    /// Where the rendezvous is. It changes when another agent takes over.
    pub fn place(&self) -> watch::Receiver<Place> {
        self.link.place()
    }

    /// This node, with its current id (0 before the first [`join`](Rendezvous::join)).
    pub fn me(&self) -> &Node {
        &self.client.node
    }

    /// After this time, a member that is lost without a sign is known to be lost.
    pub fn lease(&self) -> Duration {
        self.options.lease()
    }

    /// Takes part in the next round. Call it again after a [`Change`] that requires it; the workers must have ended.
    ///
    /// # Errors
    /// [`RendezvousError`]; after [`RendezvousError::Timeout`] this node no longer counts as arrived.
    pub async fn join(&mut self) -> Result<Round, RendezvousError> {
        self.client.goal = Goal::Join { since: self.now() };
        match self.run().await? {
            Action::Formed(round) => {
                (self.client.given, self.client.given_in) = (Some(round.number), self.client.generation);
                self.link.send(Request::Took { round: round.number });
                self.client.goal = Goal::Stay { round: round.number };
                Ok(*round)
            }
            Action::Fail(error) => {
                if matches!(*error, RendezvousError::Timeout(_)) || self.link.seen().leads.is_some() {
                    // The failure of this node is known; an error of the announcement must not hide it.
                    let _ = self.leave(&error.to_string()).await;
                }
                Err(*error)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until a change ends this node's part in the round. Cancel safe: it may be dropped and called again.
    pub async fn watch(&mut self) -> Change {
        match self.run().await {
            Ok(Action::Changed(change)) => *change,
            Ok(other) => Change::Evicted { why: unexpected(&other).to_string() },
            Err(RendezvousError::StoreLost(lost)) => Change::StoreLost(*lost),
            Err(error) => Change::Evicted { why: error.to_string() },
        }
    }

    /// Makes all nodes stop their workers and join again. Call [`join`](Rendezvous::join) afterwards.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn request_restart(&mut self, reason: &str) -> Result<(), RendezvousError> {
        match self.client.given {
            Some(round) => self.pursue(Goal::Restart { round, reason: reason.to_owned() }).await.map(drop),
            None => Ok(()),
        }
    }

    /// Announces that all workers of this node have succeeded.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn succeed(&mut self) -> Result<Succeeded, RendezvousError> {
        let Some(round) = self.client.given else { return Ok(Succeeded::Recorded) };
        match self.pursue(Goal::Succeed { round }).await? {
            Action::Changed(change) => Ok(Succeeded::Changed(change)),
            _ => Ok(Succeeded::Recorded),
        }
    }

    /// Waits until the workers of all nodes have succeeded, or can no longer succeed.
    pub async fn exit_barrier(&mut self, limit: Duration) -> Barrier {
        match timeout(limit, self.watch()).await {
            Ok(Change::AllDone) => Barrier::AllDone,
            Ok(change) => Barrier::Changed(Box::new(change)),
            Err(_) => {
                let _ = self.pursue(Goal::Survey).await;
                let survey = self.view.as_ref().and_then(|view| view.survey.as_ref());
                Barrier::TimedOut(survey.map_or_else(Vec::new, |survey| survey.unfinished.clone()))
            }
        }
    }

    /// Ends the job for all nodes, because this node's workers failed for good. No effect if it has already ended, or
    /// this node no longer takes part.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn close(&mut self, reason: &str, root_cause: Option<RootCause>) -> Result<(), RendezvousError> {
        let closing = Closing { by: self.client.node.clone(), reason: reason.to_owned(), root_cause };
        self.pursue(Goal::Close(Box::new(closing))).await.map(drop)
    }

    /// Leaves: the others see it immediately. If this agent is the authority, the next member takes over; if none can, it ends the job.
    ///
    /// # Errors
    /// [`RendezvousError::StoreLost`].
    pub async fn leave(&mut self, why: &str) -> Result<(), RendezvousError> {
        self.pursue(Goal::Leave { why: why.to_owned() }).await.map(drop)
    }

    /// The last call. If this agent is the authority, waits until all others have disconnected or `close_timeout` has passed, and
    /// returns those that have not.
    pub async fn finish(mut self) -> Vec<Node> {
        match self.link.seen().leads {
            Some(host) => host.until_alone(&self.client.job.run_id, self.options.close_timeout).await,
            None => Vec::new(),
        }
    }

    /// Publishes the address of the workers' store, on group rank 0.
    pub fn publish_master(&mut self, round: &Round, address: &str) {
        self.link.send(Request::Master { round: round.number, address: address.to_owned() });
    }

    /// Waits for the address that group rank 0 publishes.
    ///
    /// # Errors
    /// [`RendezvousError::NoMaster`] after `limit`; [`RendezvousError::Changed`] if the round ends earlier.
    pub async fn await_master(&mut self, round: &Round, limit: Duration) -> Result<String, RendezvousError> {
        let begun = Instant::now();
        let found = async {
            loop {
                match self.step()? {
                    Step::End(Action::Changed(change)) => return Err(RendezvousError::Changed(change)),
                    Step::End(other) => return Err(unexpected(&other)),
                    Step::Again => {}
                    Step::Wait(until) => match self.master() {
                        Some(address) => return Ok(address),
                        None => self.pause(until).await,
                    },
                }
            }
        };
        let late = || RendezvousError::NoMaster { host: Box::new(round.first.clone()), waited: begun.elapsed() };
        timeout(limit, found).await.unwrap_or_else(|_| Err(late()))
    }

    fn master(&self) -> Option<String> {
        match &self.view.as_ref()?.own {
            OwnPart::Member { place: Some(place), .. } => place.master.clone(),
            _ => None,
        }
    }

    /// Pursues `goal` for at most `close_timeout`; afterwards the goal is to stay in the round, if there is one.
    async fn pursue(&mut self, goal: Goal) -> Result<Action, RendezvousError> {
        self.client.goal = goal;
        let limit = self.options.close_timeout;
        let said = timeout(limit, self.run()).await;
        if let Some(round) = self.client.given {
            self.client.goal = Goal::Stay { round };
        }
        said.unwrap_or_else(|_| {
            Err(self.lost(format!("no answer to this node's request within {}", limit.as_secs_f64())))
        })
    }

    async fn run(&mut self) -> Result<Action, RendezvousError> {
        loop {
            match self.step()? {
                Step::Again => {}
                Step::Wait(until) => self.pause(until).await,
                Step::End(action) => return Ok(action),
            }
        }
    }

    fn step(&mut self) -> Result<Step, RendezvousError> {
        let seen = self.link.seen();
        self.view = seen.view.or(self.view.take());
        if let Some(refusal) = seen.refusal {
            return Err(refusal.into());
        }
        // The authority's last view counts, even if the authority has gone since.
        let (action, reason) = self.client.decide(self.now(), self.view.as_ref());
        self.report(reason);
        match (action, seen.lost) {
            (Action::Ask(_) | Action::Wait { .. }, Some(why)) => Err(self.lost(why)),
            (Action::Ask(request), None) => {
                self.link.send(request);
                Ok(Step::Again)
            }
            (Action::Wait { until }, None) => Ok(Step::Wait(until)),
            (action, _) => Ok(Step::End(action)),
        }
    }

    /// Waits for a view, or until then.
    async fn pause(&mut self, until: Option<Duration>) {
        let begun = self.begun;
        let due = async {
            match until {
                Some(until) => sleep_until(begun + until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.link.changed() => {}
            () = due => {}
        }
    }

    fn lost(&mut self, error: String) -> RendezvousError {
        let address = self.link.place().borrow().address.clone();
        let host = self.view.as_ref().and_then(|view| view.host.clone());
        let since = self.link.seen().answered.elapsed();
        RendezvousError::StoreLost(Box::new(StoreLost { address, host, since, error }))
    }

    fn report(&mut self, reason: Reason) {
        let reason = match reason {
            Reason::Found | Reason::Wanted => return,
            reason => reason,
        };
        if !self.last_reason.as_ref().is_some_and(|last| last.same(&reason)) {
            self.reason.send_replace(reason.to_string());
            self.last_reason = Some(reason);
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// What follows a step.
enum Step {
    Again,
    Wait(Option<Duration>),
    End(Action),
}

fn unexpected(action: &Action) -> RendezvousError {
    Refusal::BadJob(format!("bug in lockstep: the rendezvous decided {action:?} here")).into()
}

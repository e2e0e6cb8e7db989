//! The agents of a run with their networks and disks: starts them, injects faults and ends them. Dropping them ends
//! every process of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use lockstep_contract::foreign::quotation;
use lockstep_contract::{BACKEND, CUBLAS_WORKSPACE, DETERMINISTIC};
use lockstep_process::{Exit, Job, Listener, Log, Signal, free_port};
use rustix::process::{getpid, set_child_subreaper};

use crate::fault::{FaultAction, Who};
use crate::isolation::{Disk, LINK, Network};
use crate::launch::{AgentCommand, Launcher, Prefix, Rendezvous, RunFolder};
use crate::processes::{self, MARK};
use crate::report::history::RunEvents;
use crate::scenario::{Disks, RunSpec, Scenario};

/// OpenMP's variable for the number of threads of a process.
const THREADS: &str = "OMP_NUM_THREADS";
/// The port in a network of the run's own, where no other process listens.
const OWN_PORT: u16 = 29_400;

/// The agents of a run.
pub(crate) struct Nodes<'a> {
    pub(crate) folder: RunFolder,
    launcher: &'a Launcher,
    spec: &'a RunSpec,
    program: &'a Path,
    mark: String,
    rendezvous: Option<Rendezvous>,
    network: Option<Network>,
    disk: Option<Disk>,
    /// The agents of all starts.
    agents: Vec<Agent>,
    job: Job,
    /// The output of each node.
    logs: Vec<Log>,
    /// The machine of each node; its number identifies its disk.
    pub(crate) machines: Vec<usize>,
    /// The number of the next new machine.
    fresh: usize,
    /// How often the whole job has been started again.
    requeued: u32,
    /// How many nodes it may have since then.
    count: usize,
    ended: bool,
}

/// An agent of a node.
struct Agent {
    node: usize,
    /// How often the whole job had been started again before this agent's start.
    requeued: u32,
    /// The node's number in the job.
    number: usize,
    /// The harness killed it, or asked it to leave a job that goes on, so its exit says nothing about the job.
    killed: bool,
}

impl<'a> Nodes<'a> {
    /// Makes the networks and disks, and starts an agent on each node.
    pub(crate) fn start(
        launcher: &'a Launcher,
        scenario: &'a Scenario,
        program: &'a Path,
        folder: RunFolder,
    ) -> Result<Self, NoRun> {
        // Workers whose agent was killed become children of this process, which can then wait for them.
        set_child_subreaper(Some(getpid()))?;
        let spec = &scenario.run;
        let mark = mark(&folder);
        let network = scenario.has(FaultAction::is_of_the_network).then(|| Network::make(spec.nodes));
        let network = network.transpose().map_err(NoRun::NotHere)?;
        let disk = scenario.has(FaultAction::is_of_the_disk).then(|| Disk::new(folder.snapshots()));
        disk.iter().try_for_each(Disk::check).map_err(NoRun::NotHere)?;
        let rendezvous =
            needs_rendezvous(spec).then(|| open_rendezvous(network.as_ref(), spec.nodes, &mark)).transpose()?;
        let (agents, machines, fresh) = (Vec::new(), (0..spec.nodes).collect(), spec.nodes);
        let (requeued, ended, job) = (0, false, Job::new()?);
        let logs = (0..spec.nodes).map(|node| folder.output(node)).collect();
        let mut nodes = Nodes {
            folder,
            launcher,
            spec,
            program,
            mark,
            rendezvous,
            network,
            disk,
            agents,
            job,
            logs,
            machines,
            fresh,
            requeued,
            count: spec.nodes,
            ended,
        };
        let late = |node: usize| spec.late_seconds > 0.0 && node + 1 == spec.nodes || scenario.joins_later(node);
        for node in (0..spec.nodes).filter(|node| !late(*node)) {
            nodes.start_agent(node)?;
        }
        Ok(nodes)
    }

    fn start_agent(&mut self, node: usize) -> anyhow::Result<()> {
        let Nodes { launcher, spec, folder, program, rendezvous, .. } = &*self;
        let (rendezvous, machine) = (rendezvous.as_ref(), self.machines[node]);
        let agent = AgentCommand { launcher, spec, rendezvous, node, nodes: self.count, machine, folder, program };
        let words = agent.words(&self.prefix(node));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.env(MARK, format!("{}:{node}", self.mark)).env("TMPDIR", self.folder.tmp());
        command.env(lockstep_contract::fault::FAULTS, self.folder.faults());
        command.env(lockstep_contract::events::FOLDER, self.folder.events());
        if std::env::var_os(THREADS).is_none() {
            // Another number of threads sums in another order; launchers choose it by the number of workers of a node.
            command.env(THREADS, "1");
        }
        // Runs are compared bit by bit, on GPUs too.
        for (name, value) in [(DETERMINISTIC, "1"), CUBLAS_WORKSPACE] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        if spec.over_sockets() {
            command.env(BACKEND, "gloo");
        }
        if self.network.is_some() {
            // The host's interface does not exist there.
            command.env("GLOO_SOCKET_IFNAME", LINK).env("NCCL_SOCKET_IFNAME", LINK);
        }
        let number = self.job.start(&mut command, &self.logs[node]);
        let number = number.with_context(|| format!("cannot start {}", words[0].to_string_lossy()))?;
        self.agents.push(Agent { node, requeued: self.requeued, number, killed: false });
        Ok(())
    }

    fn prefix(&self, node: usize) -> Prefix {
        let network = self.network.as_ref().map(|network| network.prefix(node));
        let disk = self.disk.as_ref().map(Disk::prefix);
        network.into_iter().chain(disk).flatten().collect()
    }

    /// Waits until an agent ends, for at most this long.
    pub(crate) fn wait(&mut self, long: Duration) -> anyhow::Result<()> {
        self.job.wait(Instant::now() + long).context("cannot wait for an agent's end")?;
        Ok(())
    }

    fn runs(&self, agent: &Agent) -> bool {
        self.job.exit(agent.number).is_none()
    }

    fn has_succeeded(&self, agent: &Agent) -> bool {
        self.job.exit(agent.number).is_some_and(Exit::success)
    }

    pub(crate) fn all_ended(&self) -> bool {
        !self.agents.iter().any(|agent| self.runs(agent))
    }

    /// The exit codes of the agents that the harness did not kill, the newest of each node.
    pub(crate) fn codes(&self) -> BTreeMap<usize, Option<i32>> {
        let own = self.agents.iter().filter(|agent| !agent.killed && agent.requeued == self.requeued);
        let code = |exit: &Exit| if let Exit::Code(code) = exit { Some(*code) } else { None };
        own.filter_map(|agent| Some((agent.node, code(self.job.exit(agent.number)?)))).collect()
    }

    /// Returns true if the newest agent of some node has not succeeded; where nodes may be lost for good, if none has.
    pub(crate) fn failed(&self) -> bool {
        if self.is_elastic() {
            return !self.some_succeeded();
        }
        let newest = self.newest();
        newest.len() < self.spec.nodes || newest.values().any(|agent| agent.killed || !self.has_succeeded(agent))
    }

    /// The nodes whose newest agent has ended; in an elastic job, without nodes that a fault has ended.
    pub(crate) fn ended(&self) -> BTreeSet<usize> {
        let missing = |agent: &&Agent| !(self.runs(agent) || self.is_elastic() && agent.killed);
        self.newest().into_values().filter(missing).map(|agent| agent.node).collect()
    }

    /// Returns true if the job goes on with other members because of this.
    pub(crate) fn regroups(&self, who: Who, action: &FaultAction) -> bool {
        let lost = action.ends() && matches!(who, Who::Agent(_) | Who::Node(_));
        self.is_elastic() && (lost || *action == FaultAction::Join)
    }

    /// Returns true if the job may go on without some of its nodes.
    fn is_elastic(&self) -> bool {
        self.spec.min_nodes.is_some()
    }

    /// Returns true if an agent of the current start has succeeded: then the job has.
    pub(crate) fn some_succeeded(&self) -> bool {
        let mut now = self.agents.iter().filter(|agent| agent.requeued == self.requeued);
        now.any(|agent| self.has_succeeded(agent))
    }

    /// The nodes whose agent runs.
    pub(crate) fn running(&self) -> BTreeSet<usize> {
        self.agents.iter().filter(|agent| self.runs(agent)).map(|agent| agent.node).collect()
    }

    /// The newest agent of each node.
    fn newest(&self) -> BTreeMap<usize, &Agent> {
        self.agents.iter().map(|agent| (agent.node, agent)).collect()
    }

    /// Kills the agents that still run.
    pub(crate) fn end_others(&mut self) {
        for agent in self.agents.iter_mut().filter(|agent| self.job.exit(agent.number).is_none()) {
            agent.killed = true;
            let _ = self.job.signal(agent.number, Signal::KILL);
        }
    }

    /// Complete lines that were printed since the last call.
    pub(crate) fn new_lines(&mut self) -> Vec<String> {
        self.logs.iter_mut().flat_map(Log::new_lines).collect()
    }

    /// The end of each node's output.
    pub(crate) fn output(&self) -> String {
        self.logs.iter().map(Log::text).collect()
    }

    /// The sockets on which the live agents listen now. Those in a network of the run's own are left out, since they
    /// end with it.
    pub(crate) fn listeners(&self) -> BTreeSet<Listener> {
        if self.network.is_some() {
            return BTreeSet::new();
        }
        let live = self.agents.iter().filter(|agent| self.runs(agent));
        live.flat_map(|agent| Listener::of(self.pid(agent) as u32)).collect()
    }

    /// Does this to a target; `listing` has the processes of this moment, once they have been listed.
    pub(crate) fn inject(
        &mut self,
        who: Who,
        action: &FaultAction,
        listing: &mut Option<Vec<processes::Process>>,
    ) -> Result<(), String> {
        match (action, who) {
            (FaultAction::CutNetwork, Who::Node(node)) => self.network()?.cut(node),
            (FaultAction::SlowNetwork(kbit), Who::Node(node)) => self.network()?.throttle(node, *kbit),
            (FaultAction::DiskFull, Who::Node(node)) => self.disk()?.fill(self.agent_of(node)?),
            (FaultAction::ReadOnly, Who::Node(node)) => self.disk()?.remount(self.agent_of(node)?, "ro"),
            (FaultAction::Join, Who::Node(node)) => {
                let fresh = self.agents.iter().any(|agent| agent.node == node);
                self.replace(node, fresh)
            }
            _ => match action.signal() {
                Some(signal) => self.signal(who, signal, listing.get_or_insert_with(processes::listing)),
                None => Err(format!("{action} cannot be done from outside")),
            },
        }
    }

    pub(crate) fn revert(&mut self, who: Who, action: &FaultAction) -> Result<(), String> {
        match (action, who) {
            (FaultAction::CutNetwork, Who::Node(node)) => self.network()?.restore(node),
            (FaultAction::SlowNetwork(_), Who::Node(node)) => self.network()?.unthrottle(node),
            (FaultAction::DiskFull, Who::Node(node)) => self.disk()?.free(self.agent_of(node)?),
            (FaultAction::ReadOnly, Who::Node(node)) => self.disk()?.remount(self.agent_of(node)?, "rw"),
            (FaultAction::Stop, who) => self.signal(who, CONTINUE, &processes::listing()),
            _ => Ok(()),
        }
    }

    /// Starts another agent for the node, on a new machine if it is `fresh`.
    pub(crate) fn replace(&mut self, node: usize, fresh: bool) -> Result<(), String> {
        if fresh {
            self.machines[node] = self.fresh;
            self.fresh += 1;
        }
        self.start_agent(node).map_err(|error| format!("{error:#}"))
    }

    /// Starts an agent for each node, on the machines in the order that the scenario gives.
    pub(crate) fn requeue(&mut self) -> Result<(), String> {
        self.requeued += 1;
        let order = &self.spec.requeue_order;
        if !order.is_empty() {
            let others = (0..self.spec.nodes).filter(|node| !order.contains(node));
            self.machines = order.iter().copied().chain(others).map(|node| self.machines[node]).collect();
            self.count = order.len();
        }
        let rendezvous =
            needs_rendezvous(self.spec).then(|| open_rendezvous(self.network.as_ref(), self.spec.nodes, &self.mark));
        self.rendezvous = rendezvous.transpose().map_err(|error| format!("{error:#}"))?;
        (0..self.count).try_for_each(|node| self.start_agent(node)).map_err(|error| format!("{error:#}"))
    }

    fn network(&self) -> Result<&Network, String> {
        self.network.as_ref().ok_or_else(|| "the run has no network of its own".into())
    }

    fn disk(&self) -> Result<&Disk, String> {
        self.disk.as_ref().ok_or_else(|| "the run has no disk of its own".into())
    }

    fn signal(&mut self, who: Who, signal: i32, listing: &[processes::Process]) -> Result<(), String> {
        let targets = match who {
            Who::Rank(rank) => vec![self.worker(rank, listing)?],
            Who::Agent(node) => vec![self.agent_of(node)?],
            Who::Node(node) => {
                processes::of_node(listing, &self.mark, node).iter().map(|process| process.pid).collect()
            }
        };
        let leaves = self.is_elastic() && [TERM, INTERRUPT].contains(&signal);
        if (signal == KILL || leaves)
            && let Who::Agent(node) | Who::Node(node) = who
        {
            let job = &self.job;
            let killed = self.agents.iter_mut().filter(|agent| agent.node == node && job.exit(agent.number).is_none());
            killed.for_each(|agent| agent.killed = true);
        }
        if targets.is_empty() {
            return Err(format!("{who} no longer has a process"));
        }
        targets.iter().for_each(|pid| processes::send(*pid, signal));
        Ok(())
    }

    /// The process id of the node's live agent.
    fn agent_of(&self, node: usize) -> Result<i32, String> {
        let live = self.agents.iter().find(|agent| agent.node == node && self.runs(agent));
        live.map(|agent| self.pid(agent)).ok_or_else(|| format!("the agent of node {node} has ended"))
    }

    /// The process id of a rank's live worker, as its agent recorded it.
    fn worker(&self, rank: usize, listing: &[processes::Process]) -> Result<i32, String> {
        let events = RunEvents::read(&self.folder.events());
        if let Some(why) = events.unreadable.first() {
            return Err(why.clone());
        }
        let newest = events.newest_process(rank);
        let marked = processes::of_run(listing, &self.mark, getpid().as_raw_pid(), &self.holders());
        // Another process may have the id by now.
        let live = newest.filter(|pid| marked.iter().any(|process| process.pid == *pid));
        live.ok_or_else(|| format!("rank {rank} does not run"))
    }

    /// What is left of the run although its agents have ended, a sentence each.
    pub(crate) fn leaks(&self, listeners: &BTreeSet<Listener>) -> Vec<String> {
        let processes = processes::leaked(&self.mark, &self.ours());
        let open = Listener::all();
        let processes =
            processes.iter().map(|process| format!("process {} runs: {}", process.pid, quotation(&process.command)));
        let ports = listeners.intersection(&open).map(|listener| format!("port {} is listened on", listener.port));
        let finished = self.codes().values().all(|code| *code == Some(0));
        let files =
            self.folder.leftovers(finished, &self.disks()).into_iter().map(|file| format!("temporary file {file}"));
        processes.chain(ports).chain(files).collect()
    }

    /// The machines whose disks count: all but nodes that were lost for good.
    fn disks(&self) -> Vec<usize> {
        let newest = self.newest();
        let lost = |node: &usize| newest.get(node).is_some_and(|agent| agent.killed);
        let of_nodes = self.spec.disks == Disks::OfNodes;
        (0..self.spec.nodes).filter(|node| of_nodes && !lost(node)).map(|node| self.machines[node]).collect()
    }

    /// Processes of the harness itself that belong to no agent.
    fn holders(&self) -> Vec<i32> {
        self.network.as_ref().map_or_else(Vec::new, Network::holders)
    }

    /// The processes for which the harness itself waits.
    fn ours(&self) -> Vec<i32> {
        self.agents.iter().map(|agent| self.pid(agent)).chain(self.holders()).collect()
    }

    fn pid(&self, agent: &Agent) -> i32 {
        self.job.pid(agent.number).as_raw_pid()
    }

    /// Ends every process that still runs.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.end_others();
        let ours = self.ours();
        self.job.end(Duration::ZERO);
        processes::end(&self.mark, &ours);
        self.network = None;
    }
}

/// Signals, as Linux numbers them on the processors that libtorch supports (signal(7)).
const CONTINUE: i32 = 18;
const TERM: i32 = 15;
const KILL: i32 = 9;
const INTERRUPT: i32 = 2;

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Unique on this machine while this process lives.
fn mark(folder: &RunFolder) -> String {
    let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
    format!("{}-{name}", std::process::id())
}

/// Returns true if the job needs an id of its own, so that agents meet or a later start continues it.
fn needs_rendezvous(spec: &RunSpec) -> bool {
    spec.nodes > 1 || spec.requeues > 0
}

/// Where the agents of the nodes meet.
fn open_rendezvous(network: Option<&Network>, nodes: usize, mark: &str) -> anyhow::Result<Rendezvous> {
    let addresses = match network {
        Some(network) => network.addresses(),
        None => (1..=nodes).map(|node| format!("127.0.0.{node}")).collect(),
    };
    let port = match network {
        Some(_) => OWN_PORT,
        // If another process takes it meanwhile, the launcher reports it.
        None => free_port().context("cannot find a free port")?,
    };
    Ok(Rendezvous { endpoint: format!("{}:{port}", addresses[0]), id: mark.to_owned(), addresses })
}

/// Why there is no observation.
pub(crate) enum NoRun {
    /// This machine cannot do what the scenario needs.
    NotHere(String),
    /// An error, or a signal to the harness.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for NoRun {
    fn from(error: E) -> Self {
        NoRun::Failed(error.into())
    }
}

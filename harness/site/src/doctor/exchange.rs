//! What the nodes of a job do together, over a TCPStore: each stores its facts there; the first waits for all, and
//! answers with a plan; each then tries to reach the others, looks at the shared folder, and stores what it found.
//! Every wait has a deadline.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tcpstore::{Client, Server};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::facts::{ConnectionAttempt, JobFacts, Link, Missing, Node, Outcome, Resolved, Silent, User, View};
use super::gather::{self, in_time, resolve};
use super::meeting::Meeting;
use super::probe::{self, Listeners, ask};
use super::rules::names;

/// Connections that a node opens at the same time.
const AT_ONCE: usize = 256;
/// A port on which nobody listens: the discard service's (RFC 863).
const CLOSED: u16 = 9;

#[derive(Clone, Debug)]
pub(super) struct DoctorSettings {
    /// From now to the report.
    pub(super) deadline: Duration,
    /// The folder for snapshots.
    pub(super) folder: PathBuf,
    /// The ports that all nodes must reach.
    pub(super) ports: Vec<u16>,
}

impl DoctorSettings {
    /// How long the nodes may take to come.
    fn gathering(&self) -> Duration {
        self.deadline / 2
    }

    /// How long a connection, a program or the resolution of a name may take.
    pub(super) fn patience(&self) -> Duration {
        self.deadline / 10
    }
}

/// What every node needs to know of the others.
#[derive(Serialize, Deserialize)]
struct Plan {
    members: Vec<Member>,
    /// The folder that the head node made, if it could.
    folder: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Member {
    index: usize,
    name: String,
    free: u16,
    known: Vec<u16>,
    /// Addresses that Gloo or NCCL listens on.
    addresses: Vec<(IpAddr, User)>,
}

/// What a node found.
#[derive(Serialize, Deserialize)]
struct Results {
    links: Vec<Link>,
    peers: Vec<(String, Resolved)>,
    view: Option<View>,
}

/// Examines a job from this node. Returns the facts of all nodes on the first node; on the others nothing, unless the
/// first could not be reached.
pub(super) async fn examine(meeting: &Meeting, settings: &DoctorSettings) -> anyhow::Result<Option<JobFacts>> {
    let begun = Instant::now();
    let name = meeting.names.get(meeting.index).map(String::as_str);
    let server = if meeting.is_host() { Some(host(meeting.port)?) } else { None };
    let mut node = gather::node(name, &settings.folder, settings.patience()).await;
    let listeners = Listeners::open(&node.name, &settings.ports).context("cannot open a TCP port")?;
    node.ports = listeners.ports.clone();
    let address = if server.is_some() { "127.0.0.1" } else { &meeting.host };
    let job = JobFacts {
        title: meeting.title.clone(),
        launched: meeting.launched,
        size: meeting.size,
        ..JobFacts::default()
    };
    let patience = settings.gathering().saturating_sub(begun.elapsed()).max(settings.patience());
    let exam = match Client::connect(address, meeting.port, patience).await {
        Ok(client) => Exam { meeting, settings, begun, client: client.with_operation_timeout(settings.patience()) },
        Err(error) => {
            let attempt = ConnectionAttempt {
                to: format!("{}:{}", meeting.host, meeting.port),
                outcome: Outcome::Failed(error.kind.to_string()),
            };
            return Ok(Some(without_head(job, node, meeting, begun, Some(attempt))));
        }
    };
    if meeting.index == 0 {
        return exam.lead(job, node).await.map(Some);
    }
    match exam.follow(&node).await {
        Ok(()) => Ok(None),
        Err(_) => Ok(Some(without_head(job, node, meeting, begun, None))),
    }
}

/// Examines this machine alone.
pub(super) async fn examine_alone(settings: &DoctorSettings) -> anyhow::Result<JobFacts> {
    let mut node = gather::node(None, &settings.folder, settings.patience()).await;
    let listeners = Listeners::open(&node.name, &settings.ports).context("cannot open a TCP port")?;
    node.ports = listeners.ports.clone();
    Ok(JobFacts { title: "this machine".into(), size: 1, nodes: vec![node], ..JobFacts::default() })
}

fn host(port: u16) -> anyhow::Result<Server> {
    let listener = std::net::TcpListener::bind(("0.0.0.0", port));
    let listener = listener.with_context(|| {
        format!("cannot open port {port}, where the nodes meet: another program holds it; --endpoint=HOST:PORT names another")
    })?;
    Server::start(listener, tcpstore::ServerOptions::default()).context("cannot start the store where the nodes meet")
}

/// This node's own facts, when the first node does not answer.
fn without_head(
    job: JobFacts,
    node: Node,
    meeting: &Meeting,
    begun: Instant,
    attempt: Option<ConnectionAttempt>,
) -> JobFacts {
    let (name, waited) = (meeting.name(0), begun.elapsed().as_secs());
    JobFacts { nodes: vec![node], silent: vec![Silent { name, missing: Missing::Head, waited, attempt }], ..job }
}

struct Exam<'a> {
    meeting: &'a Meeting,
    settings: &'a DoctorSettings,
    begun: Instant,
    client: Client,
}

impl Exam<'_> {
    fn key(&self, what: &str) -> String {
        format!("{}{what}", self.meeting.prefix)
    }

    /// What is left of a time that began with the examination.
    fn left(&self, whole: Duration) -> Duration {
        whole.saturating_sub(self.begun.elapsed())
    }

    async fn put(&self, what: &str, value: &impl Serialize) -> anyhow::Result<()> {
        Ok(self.client.set(&self.key(what), &serde_json::to_vec(value)?).await?)
    }

    async fn get<T: DeserializeOwned>(&self, what: &str, whole: Duration) -> anyhow::Result<T> {
        let bytes = self.client.get(&self.key(what), self.left(whole)).await?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// A value from each of these nodes, without nodes that do not send one in time.
    async fn collect<T: DeserializeOwned>(&self, what: &str, of: &[usize], whole: Duration) -> Vec<(usize, Option<T>)> {
        let mut waits = JoinSet::new();
        for index in of.iter().copied() {
            let (client, key) = (self.client.clone(), self.key(&format!("{what}/{index}")));
            let left = self.left(whole);
            waits.spawn(async move { (index, client.get(&key, left).await) });
        }
        let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes).ok();
        let mut found: Vec<_> =
            waits.join_all().await.into_iter().map(|(index, value)| (index, value.ok().and_then(read))).collect();
        found.sort_by_key(|(index, _)| *index);
        found
    }

    /// The first node's part: sends the plan, and gathers what all have found.
    async fn lead(&self, mut job: JobFacts, own: Node) -> anyhow::Result<JobFacts> {
        let others: Vec<usize> = (1..self.meeting.size).collect();
        let come = self.collect::<Node>("facts", &others, self.settings.gathering()).await;
        let mut nodes = vec![(0, own)];
        let absent: Vec<usize> = come.iter().filter(|(_, node)| node.is_none()).map(|(index, _)| *index).collect();
        nodes.extend(come.into_iter().filter_map(|(index, node)| Some((index, node?))));
        job.silent = self.silent(&absent, Missing::Facts).await;
        let token = format!(".lockstep-doctor-{}-{}", nodes[0].1.host, std::process::id());
        let answers = !nodes[0].1.folder.hangs;
        let shared = if answers { probe::Host::start(&self.settings.folder, &token).ok() } else { None };
        let members: Vec<Member> = nodes.iter().map(|(index, node)| member(*index, node)).collect();
        let plan = Plan { members, folder: shared.as_ref().map(|_| token) };
        self.put("plan", &plan).await?;
        let own = self.results(&plan, 0).await;
        let present: Vec<usize> = nodes.iter().map(|(index, _)| *index).filter(|index| *index > 0).collect();
        // What is left of the deadline is for the report.
        let end = self.settings.deadline * 9 / 10;
        let mut results = vec![(0, Some(own))];
        results.extend(self.collect::<Results>("results", &present, end).await);
        let absent: Vec<usize> = results.iter().filter(|(_, found)| found.is_none()).map(|(index, _)| *index).collect();
        job.silent.extend(self.silent(&absent, Missing::Results).await);
        for (index, found) in results.into_iter().filter_map(|(index, found)| Some((index, found?))) {
            job.links.extend(found.links);
            job.views.extend(found.view);
            if let Some((_, node)) = nodes.iter_mut().find(|(known, _)| *known == index) {
                node.names.peers = found.peers.into_iter().collect();
            }
        }
        shared.iter().for_each(|host| host.completes(&mut job.views));
        job.nodes = nodes.into_iter().map(|(_, node)| node).collect();
        self.put("done", &true).await?;
        Ok(job)
    }

    /// Another node's part. It stays until the first has heard from all, so that others reach its ports.
    async fn follow(&self, own: &Node) -> anyhow::Result<()> {
        let index = self.meeting.index;
        self.put(&format!("facts/{index}"), own).await?;
        let plan: Plan = self.get("plan", self.settings.deadline).await?;
        self.put(&format!("results/{index}"), &self.results(&plan, index).await).await?;
        // When the first node has gone, it has reported.
        let _ = self.get::<bool>("done", self.settings.deadline).await;
        Ok(())
    }

    /// Tries to reach all others, and looks at the shared folder.
    async fn results(&self, plan: &Plan, index: usize) -> Results {
        let from = plan.members.iter().find(|member| member.index == index).map(|member| member.name.clone());
        let from = from.unwrap_or_default();
        let (gate, patience) = (Arc::new(Semaphore::new(AT_ONCE)), self.settings.patience());
        let mut tasks = JoinSet::new();
        for member in plan.members.iter().filter(|member| member.index != index).cloned() {
            tasks.spawn(reach(from.clone(), member, Arc::clone(&gate), patience));
        }
        let found = tasks.join_all().await;
        let view = match plan.folder.clone().filter(|_| index > 0) {
            Some(token) => {
                let folder = self.settings.folder.clone();
                in_time(patience, move || probe::look(&folder, &token, &from)).await
            }
            None => None,
        };
        let (peers, links): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let mut links: Vec<Link> = links.into_iter().flatten().collect();
        links.sort_by(|a, b| (&a.to, a.port).cmp(&(&b.to, b.port)));
        Results { links, peers, view }
    }

    /// Nodes from which something is missing, with what a connection to each says.
    async fn silent(&self, of: &[usize], missing: Missing) -> Vec<Silent> {
        let waited = self.begun.elapsed().as_secs();
        let patience = self.settings.patience().min(self.left(self.settings.deadline));
        let mut attempts = JoinSet::new();
        for index in of.iter().copied() {
            let (name, known) = (self.meeting.name(index), self.meeting.names.get(index).is_some());
            attempts.spawn(async move {
                let attempt = if known { Some(attempt(&name, patience).await) } else { None };
                (index, Silent { name, missing, waited, attempt })
            });
        }
        let mut found = attempts.join_all().await;
        found.sort_by_key(|(index, _)| *index);
        found.into_iter().map(|(_, silent)| silent).collect()
    }
}

/// Connects to a port that is closed: where a kernel lives, it refuses.
async fn attempt(name: &str, patience: Duration) -> ConnectionAttempt {
    match resolve(name, patience).await {
        Resolved::Addresses(found) if !found.is_empty() => {
            let outcome = ask(SocketAddr::new(found[0], CLOSED), patience).await;
            ConnectionAttempt { to: found[0].to_string(), outcome }
        }
        Resolved::Addresses(_) => {
            ConnectionAttempt { to: name.into(), outcome: Outcome::Failed("its name has no address".into()) }
        }
        Resolved::Failed(error) => ConnectionAttempt { to: name.into(), outcome: Outcome::Failed(error) },
    }
}

/// Resolves a node's name, and connects to all its ports.
async fn reach(
    from: String,
    member: Member,
    gate: Arc<Semaphore>,
    patience: Duration,
) -> ((String, Resolved), Vec<Link>) {
    let resolved = resolve(&member.name, patience).await;
    let mut asks = JoinSet::new();
    for (address, port, users) in targets(&member, &resolved) {
        let (from, to, gate) = (from.clone(), member.name.clone(), Arc::clone(&gate));
        let known = port != member.free;
        asks.spawn(async move {
            let _turn = gate.acquire().await;
            let outcome = ask(SocketAddr::new(address, port), patience).await;
            Link { from, to, address, port, known, users, outcome }
        });
    }
    ((member.name, resolved), asks.join_all().await)
}

fn member(index: usize, node: &Node) -> Member {
    let mut addresses: Vec<(IpAddr, User)> =
        names::gloo(node).into_iter().map(|choice| (choice.address, User::Gloo)).collect();
    if node.uses_nccl() {
        addresses.extend(names::nccl(node).into_iter().map(|choice| (choice.address, User::Nccl)));
    }
    Member { index, name: node.name.clone(), free: node.ports.free, known: node.ports.known.clone(), addresses }
}

/// What to connect to on another node: all ports at the first address of its name, and the free one at the addresses of libraries. Its
/// loopback addresses would lead to this node.
fn targets(member: &Member, resolved: &Resolved) -> Vec<(IpAddr, u16, Vec<User>)> {
    let mut found: Vec<(IpAddr, u16, Vec<User>)> = Vec::new();
    let mut add = |address: IpAddr, port, user| {
        if address.is_loopback() {
            return;
        }
        match found.iter_mut().find(|(known, at, _)| (*known, *at) == (address, port)) {
            Some((_, _, users)) => users.push(user),
            None => found.push((address, port, vec![user])),
        }
    };
    if let Resolved::Addresses(addresses) = resolved
        && let Some(address) = addresses.first()
    {
        [member.free].iter().chain(&member.known).for_each(|port| add(*address, *port, User::Name));
    }
    member.addresses.iter().for_each(|(address, user)| add(*address, member.free, *user));
    found
}

#[cfg(test)]
mod tests {
    use super::super::examples::node;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_comes_and_then_says_no_more_is_named_within_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::start(listener, tcpstore::ServerOptions::default()).unwrap();
        let meeting = Meeting {
            title: "test".into(),
            host: "127.0.0.1".into(),
            port: server.local_addr().port(),
            launched: true,
            size: 3,
            index: 0,
            names: ["localhost"; 3].map(str::to_owned).to_vec(),
            prefix: "doctor/".into(),
        };
        server.set("doctor/facts/1", &serde_json::to_vec(&node("came", 2)).unwrap()).unwrap();
        // Only the wait for what does not come is short: connecting and the store's answers have more time.
        let settings = DoctorSettings { deadline: Duration::from_secs(1), folder: dir.path().into(), ports: vec![] };
        let client = Client::connect("127.0.0.1", meeting.port, PATIENCE).await.unwrap();
        let client = client.with_operation_timeout(PATIENCE);
        let exam = Exam { meeting: &meeting, settings: &settings, begun: Instant::now(), client };
        let job = exam.lead(JobFacts::default(), node("head", 1)).await.unwrap();
        let missing: Vec<_> = job.silent.iter().map(|silent| silent.missing).collect();
        assert_eq!((missing, job.nodes.len()), (vec![Missing::Facts, Missing::Results], 2));
        let attempt = job.silent[0].attempt.clone().unwrap();
        assert!(attempt.outcome != Outcome::OtherProgram, "nobody listens there: {attempt:?}");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn connects_once_to_an_address_that_several_use_and_never_to_loopback() {
        let mut node = node("n2", 2);
        node.variables.insert("NCCL_DEBUG".into(), "INFO".into());
        let member = member(1, &node);
        let own: IpAddr = "10.88.0.2".parse().unwrap();
        let found = targets(&member, &Resolved::Addresses(vec![own]));
        assert_eq!(found[0], (own, 40_000, vec![User::Name, User::Gloo, User::Nccl]));
        assert_eq!(found[1..].iter().map(|(_, port, _)| *port).collect::<Vec<_>>(), [29_400, 29_500]);
        let loopback = Resolved::Addresses(vec![IpAddr::from([127, 0, 0, 1])]);
        assert_eq!(targets(&member, &loopback), [(own, 40_000, vec![User::Gloo, User::Nccl])]);
    }
}

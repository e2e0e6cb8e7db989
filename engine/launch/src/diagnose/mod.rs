//! Explains why a rendezvous failed, from observed facts: [`diagnose`] is a pure function from [`Observed`] to an ordered list of likely
//! causes, the most likely first. A cause is listed only if a fact supports it, and the advice depends on what was already tried.
//!
//! Not here: collecting the facts, except for those in `/proc`; the agent does that.

mod observed;

use std::fmt;
use std::net::IpAddr;

use lockstep_contract::foreign::escaped;

use crate::rendezvous::{Absence, Node, seconds};
use crate::scheduler::Allocation;

pub use observed::{ConnectFailure, Observed, PortOwner, port_owner};

/// The diagnosis for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// What failed, in one line.
    pub headline: String,
    /// The observed facts.
    pub facts: Vec<String>,
    /// Likely causes, the most likely first.
    pub causes: Vec<Advice>,
}

/// A likely cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What may be wrong.
    pub cause: String,
    /// What to do.
    pub fix: String,
}

/// Derives the diagnosis from the facts.
#[must_use]
pub fn diagnose(seen: &Observed) -> Diagnosis {
    let mut causes = Vec::new();
    causes.extend(port_taken(seen));
    if let Some(failure) = &seen.connect {
        causes.extend(not_reached(seen, failure));
    }
    if let Some(absence) = &seen.absence {
        causes.extend(too_few(seen, absence));
    }
    Diagnosis { headline: headline(seen), facts: facts(seen), causes }
}

fn headline(seen: &Observed) -> String {
    let needed = |absence: &Absence| match absence.min_nodes == absence.max_nodes {
        true => absence.min_nodes.to_string(),
        false => format!("at least {}", absence.min_nodes),
    };
    match (&seen.connect, &seen.absence) {
        (Some(_), _) => format!("this node did not reach the rendezvous at {}", seen.endpoint),
        (None, Some(absence)) => format!(
            "{} of {} nodes came to the rendezvous at {} within {}",
            absence.came.len(),
            needed(absence),
            seen.endpoint,
            seconds(absence.waited)
        ),
        (None, None) => format!("no rendezvous formed at {}", seen.endpoint),
    }
}

fn facts(seen: &Observed) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(absence) = &seen.absence {
        facts.extend(absence.came.iter().map(|one| format!("came {} ago: {}", seconds(one.ago), one.node)));
        let back = |node: &Node| format!("alive, but not back from the previous round: {node}");
        facts.extend(absence.expected.iter().map(|one| back(&one.node)));
        facts.extend(
            absence.lost.iter().map(|lost| format!("lost in round {}: {}: {}", lost.round, lost.node, lost.why)),
        );
        facts.extend(missing(seen, absence));
    }
    let refused = seen.refused.iter();
    facts.extend(refused.map(|(peer, why)| format!("refused: {peer}: {why}")));
    facts.push(format!("address that every node must reach: {}{}", seen.endpoint, resolution(seen)));
    facts
}

fn resolution(seen: &Observed) -> String {
    if seen.resolved.is_empty() {
        return String::new();
    }
    format!(" (here: {})", list(&seen.resolved))
}

/// The missing nodes: by name if the batch system names the job's hosts, otherwise by number.
fn missing(seen: &Observed, absence: &Absence) -> Option<String> {
    let count = absence.min_nodes.saturating_sub(absence.came.len());
    let came = |host: &str| absence.came.iter().any(|one| short(&one.node.host) == short(host));
    let hosts = seen.batch.iter().flat_map(Allocation::host_names);
    let named: Vec<&str> = hosts.map(String::as_str).filter(|host| !came(host)).take(16).collect();
    match (count, named.is_empty()) {
        (0, _) => None,
        (count, true) => Some(format!("missing: {count} {}", nodes(count))),
        (count, false) => Some(format!(
            "missing: {count} {}; nodes of the batch job that have not joined: {}",
            nodes(count),
            named.join(", ")
        )),
    }
}

fn port_taken(seen: &Observed) -> Option<Advice> {
    let owner = seen.port_owner.as_ref().filter(|_| seen.is_host || seen.connect.is_some())?;
    let fix = match owner.process.as_ref().map(|process| (&process.job, process.pid)) {
        Some((Some(_), pid)) => {
            format!(
                "give this job its own port in --rdzv-endpoint, or end the other with `kill {pid}`; `--standalone` chooses a free port"
            )
        }
        Some((None, pid)) => format!("take another port in --rdzv-endpoint, or end that process with `kill {pid}`"),
        None => {
            format!("take another port in --rdzv-endpoint; `sudo ss -ltnp 'sport = :{}'` names the process", owner.port)
        }
    };
    Some(Advice { cause: owner.to_string(), fix })
}

fn not_reached(seen: &Observed, failure: &ConnectFailure) -> Vec<Advice> {
    let (host, port) = split(&seen.endpoint);
    let advice = |cause: String, fix: String| Advice { cause, fix };
    let mut causes = match failure {
        ConnectFailure::Unresolved { error } => vec![advice(
            format!("the name `{host}` does not resolve on this node ({error})"),
            format!(
                "see what `getent hosts {host}` says here; name the host as this node knows it, or by its IP address"
            ),
        )],
        ConnectFailure::Refused { tried } => vec![advice(
            format!(
                "{host} answers, but no process listened on port {port} for {}: the agent that hosts the rendezvous has not been started, has ended, or runs elsewhere",
                seconds(*tried)
            ),
            format!("start `lockstep run` on {host} too, with the same --rdzv-endpoint, and see its output there"),
        )],
        ConnectFailure::Unreachable { error, tried } => vec![advice(
            format!(
                "{host} did not answer for {} ({error}): a firewall drops port {port}, there is no route, or the host is down",
                seconds(*tried)
            ),
            format!(
                "try `nc -vz {host} {port}` and `ip route get {host}` from here; let the firewall pass port {port} between the nodes, or take an address on the nodes' own network"
            ),
        )],
        ConnectFailure::Mute { tried } => vec![advice(
            format!(
                "something accepts connections on {}, but did not answer for {}: it is not a rendezvous, or its process is stopped",
                seen.endpoint,
                seconds(*tried)
            ),
            format!("`ss -ltnp 'sport = :{port}'` on {host} names it; take another port, or wake it up (`kill -CONT`)"),
        )],
        ConnectFailure::OtherService { got } => vec![advice(
            format!("another program listens on {} (it answered {got:?})", seen.endpoint),
            format!("`ss -ltnp 'sport = :{port}'` on {host} names it; take another port"),
        )],
        ConnectFailure::HungUp => vec![advice(
            format!(
                "the listener on {} hangs up immediately: it is not a rendezvous, or it accepts no more clients",
                seen.endpoint
            ),
            format!("`ss -ltnp 'sport = :{port}'` on {host} names it; take another port if it is not the job's agent"),
        )],
        ConnectFailure::Other { error } => {
            vec![advice(error.clone(), format!("try `nc -vz {host} {port}` from here"))]
        }
    };
    let gone_local = matches!(failure, ConnectFailure::Refused { .. }) && loopback(seen);
    if gone_local {
        let cause = format!("{} means this node itself ({}), and nothing listens here", host, list(&seen.resolved));
        causes.insert(0, advice(cause, name_a_reachable_host(seen)));
    }
    causes
}

fn too_few(seen: &Observed, absence: &Absence) -> Vec<Advice> {
    let mut causes = Vec::new();
    let alone = absence.came.len() <= 1 && absence.min_nodes > 1;
    if let (true, Some(batch)) = (alone, seen.batch.as_ref().filter(|batch| batch.nodes.0 > 1)) {
        causes.push(Advice {
            cause: format!(
                "the job has {} nodes ({}), but an agent was started on this one only: the job script runs only on the first node",
                batch.nodes.0,
                batch.name()
            ),
            fix: format!("start one agent on each node: {}", batch.one_agent_per_node()),
        });
    }
    let others_came = absence.came.len() > 1 || !absence.lost.is_empty();
    if loopback(seen) && absence.min_nodes > 1 && absence.came.len() < absence.min_nodes && !others_came {
        let (host, _) = split(&seen.endpoint);
        let cause = format!(
            "{host} is the loopback address ({}): nodes other than this one cannot reach it",
            list(&seen.resolved)
        );
        causes.push(Advice { cause, fix: name_a_reachable_host(seen) });
    }
    if !seen.refused.is_empty() {
        let cause = "peers reached the port, but were refused (see above)".to_owned();
        let fix = "run the same version of lockstep, with the same flags, on all nodes; give other jobs another port"
            .to_owned();
        causes.push(Advice { cause, fix });
    }
    if !absence.expected.is_empty() {
        let cause = "nodes of the previous round are alive, but their workers have not ended yet".to_owned();
        let fix = "see their agents' output; a worker that ignores SIGTERM is killed when its grace period is over"
            .to_owned();
        causes.push(Advice { cause, fix });
    }
    if !absence.lost.is_empty() {
        let cause = "nodes were lost, and too few are left".to_owned();
        let fix = format!(
            "see why they went (their agents' output, `dmesg` for the OOM killer), start them again, or let the job go on with fewer: \
             --nnodes=1:{}",
            absence.max_nodes
        );
        causes.push(Advice { cause, fix });
    }
    if absence.came.len() < absence.min_nodes && absence.lost.is_empty() {
        causes.extend(others_not_started(seen, absence));
    }
    causes
}

fn others_not_started(seen: &Observed, absence: &Absence) -> [Advice; 2] {
    let (host, port) = split(&seen.endpoint);
    [
        Advice {
            cause: "the launcher does not run on the other nodes, or ended there".to_owned(),
            fix: same_on_each_node(absence).to_owned(),
        },
        Advice {
            cause: format!(
                "the other nodes cannot reach {}: a firewall, no route, or another meaning of the name there",
                seen.endpoint
            ),
            fix: format!("try `getent hosts {host}` and `nc -vz {host} {port}` on a node that is missing"),
        },
    ]
}

/// What to start on each node of a job.
fn same_on_each_node(absence: &Absence) -> &'static str {
    if absence.came.iter().any(|seen| seen.node.node_rank.is_some()) {
        "run the same `lockstep run` command on each node, each with its own --node-rank, and see each agent's output"
    } else {
        "run the same `lockstep run` command on each node, and see each agent's output"
    }
}

fn name_a_reachable_host(seen: &Observed) -> String {
    let (_, port) = split(&seen.endpoint);
    match seen.own_addresses.iter().find(|address| !address.is_loopback()) {
        Some(address) => format!(
            "name the host by an address that all nodes reach; this node's own: --rdzv-endpoint={}",
            with_port(*address, port)
        ),
        None => "name the host by an address that all nodes reach; `ip -brief address` lists a node's own".to_owned(),
    }
}

fn with_port(address: IpAddr, port: &str) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

fn loopback(seen: &Observed) -> bool {
    !seen.resolved.is_empty() && seen.resolved.iter().all(IpAddr::is_loopback)
}

fn split(endpoint: &str) -> (&str, &str) {
    endpoint.rsplit_once(':').unwrap_or((endpoint, "?"))
}

fn short(host: &str) -> &str {
    host.split('.').next().unwrap_or(host)
}

fn nodes(count: usize) -> &'static str {
    if count == 1 { "node" } else { "nodes" }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", escaped(&self.headline))?;
        for fact in &self.facts {
            write!(f, "\n  {}", escaped(fact))?;
        }
        if !self.causes.is_empty() {
            write!(f, "\nlikely causes, the most likely first:")?;
        }
        for (at, advice) in self.causes.iter().enumerate() {
            write!(f, "\n  {}. {}\n     -> {}", at + 1, escaped(&advice.cause), escaped(&advice.fix))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::observed::{PortOwner, PortProcess};
    use super::*;
    use crate::rendezvous::{Lost, SeenNode};
    use crate::scheduler::{Scheduler, Started};

    fn node(id: u64, host: &str) -> Node {
        let (host, role) = (host.to_owned(), "default".to_owned());
        Node {
            id,
            addr: host.clone(),
            host,
            pid: 9,
            local_world_size: 1,
            role,
            hosts_store: id == 1,
            node_rank: None,
            port: None,
        }
    }

    fn one_of(min: usize) -> Observed {
        let came = vec![SeenNode { node: node(1, "gpu01.cluster"), ago: Duration::from_secs(600) }];
        let (waited, round) = (Duration::from_secs(600), 0);
        let absence = Absence { waited, round, min_nodes: min, max_nodes: min, came, expected: vec![], lost: vec![] };
        let (endpoint, resolved) = ("gpu01:29500".to_owned(), vec!["10.0.0.1".parse().unwrap()]);
        Observed { endpoint, resolved, is_host: true, absence: Some(absence), ..Observed::default() }
    }

    #[test]
    fn reports_that_only_the_first_node_of_a_batch_job_runs_an_agent() {
        let (id, hosts) = ("5.head".to_owned(), vec!["gpu01".to_owned(), "gpu02".to_owned()]);
        let batch = Some(Allocation {
            scheduler: Scheduler::Pbs,
            id,
            nodes: (2, "PBS_NODEFILE=/nodes".into()),
            hosts: Some((hosts, "PBS_NODEFILE=/nodes".into())),
            started: Started::ByTheScript,
        });
        let diagnosis = diagnose(&Observed { batch, ..one_of(2) }).to_string();
        assert_eq!(
            diagnosis,
            "1 of 2 nodes came to the rendezvous at gpu01:29500 within 600 s
  came 600 s ago: node gpu01.cluster (pid 9)
  missing: 1 node; nodes of the batch job that have not joined: gpu02
  address that every node must reach: gpu01:29500 (here: 10.0.0.1)
likely causes, the most likely first:
  1. the job has 2 nodes (PBS_JOBID=5.head), but an agent was started on this one only: the job script runs only on the first node
     -> start one agent on each node: pbsdsh -u -- lockstep run ... (or: mpiexec -ppn 1 lockstep run ...)
  2. the launcher does not run on the other nodes, or ended there
     -> run the same `lockstep run` command on each node, and see each agent's output
  3. the other nodes cannot reach gpu01:29500: a firewall, no route, or another meaning of the name there
     -> try `getent hosts gpu01` and `nc -vz gpu01 29500` on a node that is missing"
        );
    }

    #[test]
    fn reports_that_other_nodes_cannot_reach_a_loopback_endpoint() {
        let resolved = vec!["127.0.1.1".parse().unwrap()];
        let own_addresses = vec!["127.0.0.1".parse().unwrap(), "fd00::7".parse().unwrap()];
        let diagnosis = diagnose(&Observed { resolved, own_addresses, ..one_of(2) });
        assert_eq!(
            (diagnosis.causes[0].cause.as_str(), diagnosis.causes[0].fix.as_str()),
            (
                "gpu01 is the loopback address (127.0.1.1): nodes other than this one cannot reach it",
                "name the host by an address that all nodes reach; this node's own: --rdzv-endpoint=[fd00::7]:29500"
            )
        );
    }

    #[test]
    fn blames_neither_the_batch_script_nor_the_network_when_nodes_were_lost() {
        let mut seen = one_of(2);
        let absence = seen.absence.as_mut().unwrap();
        absence.lost.push(Lost { node: node(2, "gpu02"), why: "no heartbeat for 15.0 s".into(), round: 0 });
        let diagnosis = diagnose(&seen);
        assert!(diagnosis.facts.contains(&"lost in round 0: node gpu02 (pid 9): no heartbeat for 15.0 s".to_owned()));
        assert_eq!(diagnosis.causes.len(), 1);
        assert!(diagnosis.causes[0].fix.ends_with("--nnodes=1:2"), "{diagnosis}");
    }

    #[test]
    fn names_the_owner_of_the_port() {
        let process = |job: Option<&str>| PortProcess {
            pid: 42,
            program: "python3".into(),
            command: "python3 -m http.server".into(),
            job: job.map(str::to_owned),
        };
        let owner = |process| PortOwner { port: 29500, user: "ada".into(), process };
        let first = |process| {
            let seen = Observed {
                port_owner: Some(owner(process)),
                is_host: true,
                endpoint: "a:29500".into(),
                ..Observed::default()
            };
            let advice = diagnose(&seen).causes.remove(0);
            format!("{} -> {}", advice.cause, advice.fix)
        };
        assert_eq!(
            first(Some(process(None))),
            "port 29500 is taken by python3 (pid 42, user ada: python3 -m http.server) -> take another port in --rdzv-endpoint, \
             or end that process with `kill 42`"
        );
        assert!(
            first(Some(process(Some("a7")))).starts_with("port 29500 is taken by another lockstep run, of job id `a7`")
        );
        assert!(first(None).ends_with("`sudo ss -ltnp 'sport = :29500'` names the process"));
    }

    #[test]
    fn has_a_cause_and_a_command_for_each_connect_failure() {
        let tried = Duration::from_secs(60);
        let cases = [
            (ConnectFailure::Unresolved { error: "unknown".into() }, "does not resolve", "getent hosts gpu01"),
            (
                ConnectFailure::Refused { tried },
                "no process listened on port 29500 for 60 s",
                "start `lockstep run` on gpu01",
            ),
            (ConnectFailure::Unreachable { error: "no route".into(), tried }, "a firewall", "nc -vz gpu01 29500"),
            (ConnectFailure::Mute { tried }, "did not answer for 60 s", "kill -CONT"),
            (
                ConnectFailure::OtherService { got: "HTTP/1.1".into() },
                "it answered \"HTTP/1.1\"",
                "ss -ltnp 'sport = :29500'",
            ),
            (ConnectFailure::HungUp, "hangs up immediately", "ss -ltnp"),
            (ConnectFailure::Other { error: "too many open files".into() }, "too many open files", "nc -vz"),
        ];
        for (failure, cause, fix) in cases {
            let seen = Observed { connect: Some(failure), absence: None, is_host: false, ..one_of(2) };
            let diagnosis = diagnose(&seen);
            assert_eq!(diagnosis.headline, "this node did not reach the rendezvous at gpu01:29500");
            assert!(diagnosis.causes[0].cause.contains(cause), "{diagnosis}");
            assert!(diagnosis.causes[0].fix.contains(fix), "{diagnosis}");
        }
    }

    #[test]
    fn reports_that_the_endpoint_of_a_refused_client_is_this_node_itself() {
        let connect = Some(ConnectFailure::Refused { tried: Duration::from_secs(1) });
        let resolved = vec!["127.0.0.1".parse().unwrap()];
        let seen = Observed { endpoint: "localhost:29500".into(), connect, resolved, ..Observed::default() };
        assert_eq!(
            diagnose(&seen).causes[0].cause,
            "localhost means this node itself (127.0.0.1), and nothing listens here"
        );
    }
}

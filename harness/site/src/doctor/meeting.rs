//! Where the nodes of a job meet, and which of them this one is: as `lockstep run` finds it, from the scheduler, a host file or a
//! launcher's variables.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use lockstep_launch::scheduler::{Allocation, Started, meeting_point};

use crate::exit::Refused;

/// The port of `--endpoint` without a port.
const PORT: u16 = 29_399;
/// The command that replaces the agent's in the scheduler's hints.
const AGENT: &str = "lockstep run ...";
const DOCTOR: &str = "lockstep doctor --job";

/// A job whose nodes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    /// `Slurm job 17.0`.
    pub(super) title: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// A launcher hosts the store; otherwise the first node does.
    pub(super) launched: bool,
    pub(super) size: usize,
    /// The index of this node among them, from 0.
    pub(super) index: usize,
    /// The nodes' names in order; empty if they are not known.
    pub(super) names: Vec<String>,
    /// The beginning of all keys.
    pub(super) prefix: String,
}

/// How doctor takes part in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Participation {
    /// This machine is one of several nodes.
    Node(Meeting),
    /// As the only node.
    Alone,
    /// Not at all: another process of this node does.
    None,
}

impl Meeting {
    /// The meeting of the job in which this process was started.
    pub(super) fn find(hostfile: Option<&Path>, endpoint: Option<&str>) -> Result<Participation, Refused> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(part) = launched(&variable).filter(|_| hostfile.is_none()) {
            return part;
        }
        let hostfile = hostfile.map(|path| path.to_string_lossy().into_owned());
        let found = Allocation::here(hostfile.as_deref()).map_err(|error| Refused(error.to_string()))?;
        let job = found.ok_or_else(|| {
            Refused(
                "--job: this process belongs to no job: start it on each node by srun, mpiexec or `lockstep run`, or by a loop over \
                 ssh or pbsdsh with --hostfile=FILE"
                    .to_owned(),
            )
        })?;
        of(&job, endpoint)
    }

    /// The name of a node.
    pub(super) fn name(&self, index: usize) -> String {
        self.names.get(index).cloned().unwrap_or_else(|| format!("node {index}"))
    }

    /// This node hosts the store.
    pub(super) fn is_host(&self) -> bool {
        self.index == 0 && !self.launched
    }
}

/// The job of a launcher with torchrun's variables. One worker of each node takes part.
fn launched(variable: &dyn Fn(&str) -> Option<String>) -> Option<Result<Participation, Refused>> {
    let id = variable("TORCHELASTIC_RUN_ID")?;
    let number = |name: &str| variable(name)?.parse::<usize>().ok();
    let (Some(index), Some(size), Some(local)) =
        (number("GROUP_RANK"), number("GROUP_WORLD_SIZE"), number("LOCAL_RANK"))
    else {
        let message = "TORCHELASTIC_RUN_ID is set, but not GROUP_RANK, GROUP_WORLD_SIZE and LOCAL_RANK: unset it";
        return Some(Err(Refused(message.into())));
    };
    if local != 0 {
        return Some(Ok(Participation::None));
    }
    if size <= 1 {
        return Some(Ok(Participation::Alone));
    }
    let place = variable("MASTER_ADDR").zip(variable("MASTER_PORT").and_then(|port| port.parse().ok()));
    let Some((host, port)) = place else {
        return Some(Err(Refused(
            "MASTER_ADDR and MASTER_PORT do not name a store: start doctor by a launcher".into(),
        )));
    };
    let attempt = variable("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    let prefix = format!("lockstep/doctor/{id}/{attempt}/");
    let title = format!("job `{id}` of a launcher");
    Some(Ok(Participation::Node(Meeting { title, host, port, launched: true, size, index, names: Vec::new(), prefix })))
}

fn of(job: &Allocation, endpoint: Option<&str>) -> Result<Participation, Refused> {
    let size = job.nodes.0;
    let once = || job.one_agent_per_node().replace(AGENT, DOCTOR);
    let node = match &job.started {
        Started::ByTheScript if size > 1 => {
            return Err(Refused(format!(
                "{} has {size} nodes, but its script starts doctor on one of them alone: {}",
                job.title(),
                once()
            )));
        }
        Started::SeveralTimes { variable, .. } => {
            return Err(Refused(format!(
                "{} starts doctor several times on a node ({variable}): {}",
                job.title(),
                once()
            )));
        }
        Started::OnEachNode { node } => node.map(|(node, _)| node),
        Started::ByTheScript => None,
    };
    if size <= 1 {
        return Ok(Participation::Alone);
    }
    let names = job.host_names().to_vec();
    let index = node.or_else(|| position(&names)).ok_or_else(|| {
        Refused(format!(
            "{}: none of its nodes ({}) is this one: name the nodes as `hostname` prints it, or by their addresses",
            job.title(),
            names.join(", ")
        ))
    })?;
    let (host, port) = match endpoint {
        Some(endpoint) => parse(endpoint)?,
        None => meeting_point(job, "doctor")
            .map_err(|error| Refused(error.to_string().replace("--rdzv-endpoint", "--endpoint")))?,
    };
    let prefix = "lockstep/doctor/".to_owned();
    Ok(Participation::Node(Meeting { title: job.title(), host, port, launched: false, size, index, names, prefix }))
}

fn parse(endpoint: &str) -> Result<(String, u16), Refused> {
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (endpoint, Some(PORT)),
    };
    let port = port.filter(|_| !host.is_empty());
    let port = port.ok_or_else(|| Refused(format!("--endpoint={endpoint}: expected HOST or HOST:PORT")))?;
    Ok((host.to_owned(), port))
}

/// The place of this machine in a list of hosts: by its name, otherwise by an address that is its own.
fn position(names: &[String]) -> Option<usize> {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let is_local = |address: SocketAddr| !address.ip().is_loopback() && UdpSocket::bind((address.ip(), 0)).is_ok();
    names.iter().position(|name| *name == own).or_else(|| {
        let is_name = |name: &str| name.parse::<std::net::IpAddr>().is_err();
        names.iter().position(|name| is_name(name) && short(name) == short(&own)).or_else(|| {
            names.iter().position(|name| {
                (name.as_str(), 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.any(is_local))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use lockstep_launch::scheduler::Scheduler;

    use super::*;

    fn job(node: Option<usize>, hosts: &[&str]) -> Allocation {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        Allocation {
            scheduler: Scheduler::Slurm,
            id: "17.0".into(),
            nodes: (2, "SLURM_STEP_NUM_NODES=2".into()),
            hosts: (!hosts.is_empty()).then(|| (hosts, "SLURM_STEP_NODELIST=n[1-2]".into())),
            started: Started::OnEachNode { node: node.map(|node| (node, "SLURM_NODEID")) },
        }
    }

    fn meeting(part: Result<Participation, Refused>) -> Meeting {
        match part.unwrap() {
            Participation::Node(meeting) => meeting,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_step_meets_at_its_first_node_apart_from_its_agents() {
        let found = meeting(of(&job(Some(1), &["n1", "n2"]), None));
        assert_eq!((found.host.as_str(), found.index, found.is_host(), found.name(1)), ("n1", 1, false, "n2".into()));
        assert_ne!(found.port, meeting_point(&job(Some(1), &["n1", "n2"]), "").unwrap().1);
        assert_eq!(meeting(of(&job(Some(0), &["n1", "n2"]), Some("x:7"))).port, 7);
    }

    #[test]
    fn refuses_what_does_not_run_once_on_each_node() {
        let refused = |started| of(&Allocation { started, ..job(None, &["n1", "n2"]) }, None).unwrap_err().0;
        assert!(refused(Started::ByTheScript).ends_with("srun --nodes=2 --ntasks-per-node=1 lockstep doctor --job"));
        let variable = "SLURM_STEP_TASKS_PER_NODE=4(x2)".to_owned();
        assert!(refused(Started::SeveralTimes { agents: 8, variable }).contains("several times on a node"));
        let unknown = of(&job(None, &["no-such-host-1.invalid", "no-such-host-2.invalid"]), None).unwrap_err().0;
        assert!(unknown.contains("none of its nodes"), "{unknown}");
        let nameless = of(&job(Some(0), &[]), None).unwrap_err().0;
        assert!(nameless.contains("--endpoint=HOST:PORT"), "{nameless}");
        assert!(parse(":7").is_err() && parse("n1:x").is_err() && parse("n1").is_ok());
    }

    #[test]
    fn one_worker_of_each_node_takes_part_under_a_launcher() {
        let part = |changed: &[(&str, &str)]| {
            let all = [
                ("TORCHELASTIC_RUN_ID", "a"),
                ("GROUP_RANK", "1"),
                ("GROUP_WORLD_SIZE", "2"),
                ("LOCAL_RANK", "0"),
                ("MASTER_ADDR", "n1"),
                ("MASTER_PORT", "7"),
            ];
            let value =
                |name: &str| changed.iter().chain(&all).find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
            launched(&value).unwrap()
        };
        let found = meeting(part(&[]));
        assert_eq!(
            (found.host.as_str(), found.port, found.is_host(), found.name(0)),
            ("n1", 7, false, "node 0".into())
        );
        assert_eq!(part(&[("LOCAL_RANK", "1")]).unwrap(), Participation::None);
        assert_eq!(part(&[("GROUP_WORLD_SIZE", "1")]).unwrap(), Participation::Alone);
        assert!(part(&[("MASTER_PORT", "x")]).is_err() && part(&[("GROUP_RANK", "")]).is_err());
        assert!(launched(&|_| None).is_none());
    }
}

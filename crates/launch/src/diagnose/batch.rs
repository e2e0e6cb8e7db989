//! The batch system's id and nodes of this job, from Slurm's and PBS's environment (man sbatch, "OUTPUT ENVIRONMENT
//! VARIABLES"; man qsub, "PBS_NODEFILE").

/// Longer lists of nodes are truncated: a message never names more hosts.
const MAX_HOSTS: usize = 4096;

/// The batch job in which this agent was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The batch system.
    pub system: BatchSystem,
    /// The job's id.
    pub id: String,
    /// The number of its nodes.
    pub nodes: usize,
    /// Their names, if known.
    pub hosts: Vec<String>,
}

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSystem {
    /// Slurm.
    Slurm,
    /// PBS Pro, OpenPBS or Torque.
    Pbs,
}

impl Batch {
    /// Reads it from the environment; `read` returns the text of a file (for `PBS_NODEFILE`).
    #[must_use]
    pub fn find(variable: impl Fn(&str) -> Option<String>, read: impl Fn(&str) -> Option<String>) -> Option<Batch> {
        if let Some(id) = variable("SLURM_JOB_ID") {
            let hosts = variable("SLURM_JOB_NODELIST").map(|list| expand(&list)).unwrap_or_default();
            let count = variable("SLURM_JOB_NUM_NODES").or_else(|| variable("SLURM_NNODES"));
            let nodes = count.and_then(|count| count.parse().ok()).unwrap_or(hosts.len());
            return Some(Batch { system: BatchSystem::Slurm, id, nodes, hosts });
        }
        let id = variable("PBS_JOBID")?;
        let mut hosts: Vec<String> = Vec::new();
        for line in read(&variable("PBS_NODEFILE")?).unwrap_or_default().lines().take(MAX_HOSTS * 64) {
            let host = line.trim();
            if !host.is_empty() && hosts.len() < MAX_HOSTS && !hosts.iter().any(|known| known == host) {
                hosts.push(host.to_owned());
            }
        }
        Some(Batch { system: BatchSystem::Pbs, id, nodes: hosts.len(), hosts })
    }

    /// As [`Batch::find`], with this process's own environment.
    #[must_use]
    pub fn here() -> Option<Batch> {
        Batch::find(|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path).ok())
    }

    /// A name that is unique to the job: `SLURM_JOB_ID=17`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.system {
            BatchSystem::Slurm => format!("SLURM_JOB_ID={}", self.id),
            BatchSystem::Pbs => format!("PBS_JOBID={}", self.id),
        }
    }

    /// The command that starts one agent on each node.
    #[must_use]
    pub fn one_agent_per_node(&self) -> String {
        match self.system {
            BatchSystem::Slurm => {
                format!("srun --nodes={} --ntasks-per-node=1 lockstep run ...", self.nodes)
            }
            BatchSystem::Pbs => "pbsdsh -u -- lockstep run ... (or: mpiexec -ppn 1 lockstep run ...)".to_owned(),
        }
    }
}

/// Expands Slurm's compressed list of hosts: `gpu[01-03,07],login`. Invalid parts are kept unchanged.
#[must_use]
pub fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for part in split(list) {
        match one(part) {
            Some(expanded) => hosts.extend(expanded),
            None => hosts.push(part.to_owned()),
        }
        hosts.truncate(MAX_HOSTS);
    }
    hosts
}

/// Splits at commas outside of brackets.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn one(part: &str) -> Option<Vec<String>> {
    let Some((head, rest)) = part.split_once('[') else { return Some(vec![part.to_owned()]) };
    let (inside, tail) = rest.split_once(']')?;
    let mut hosts = Vec::new();
    for range in inside.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        let width = from.len();
        let wanted = MAX_HOSTS.saturating_sub(hosts.len());
        hosts.extend((first..=last).take(wanted).map(|number| format!("{head}{number:0width$}{tail}")));
    }
    Some(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pairs: &[(&str, &str)], file: &str) -> Option<Batch> {
        let variable = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Batch::find(variable, |path| (path == "/nodes").then(|| file.to_owned()))
    }

    #[test]
    fn reads_slurm() {
        let pairs = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NUM_NODES", "3"), ("SLURM_JOB_NODELIST", "gpu[09-10],login")];
        let batch = find(&pairs, "").unwrap();
        assert_eq!((batch.nodes, batch.name().as_str()), (3, "SLURM_JOB_ID=17"));
        assert_eq!(batch.hosts, ["gpu09", "gpu10", "login"]);
        assert_eq!(batch.one_agent_per_node(), "srun --nodes=3 --ntasks-per-node=1 lockstep run ...");
    }

    #[test]
    fn reads_pbs_where_a_host_occurs_once_per_core() {
        let pairs = [("PBS_JOBID", "5.head"), ("PBS_NODEFILE", "/nodes")];
        let batch = find(&pairs, "x1\nx1\nx2\n\n").unwrap();
        assert_eq!((batch.nodes, batch.hosts), (2, vec!["x1".to_owned(), "x2".to_owned()]));
        assert_eq!(find(&[("HOME", "/")], ""), None);
    }

    #[test]
    fn expands_host_lists_and_keeps_invalid_parts() {
        assert_eq!(expand("a[1-2,5]x, b"), ["a1x", "a2x", "a5x", "b"]);
        assert_eq!(expand("a[1-"), ["a[1-"]);
        assert_eq!(expand("a[x-y]"), ["a[x-y]"]);
        assert_eq!(expand("]],["), ["]]", "["]);
        assert_eq!(expand("a[0-99999999999]").len(), MAX_HOSTS);
        assert_eq!(expand(""), [""; 0]);
    }
}

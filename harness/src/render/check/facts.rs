//! What a script asks the scheduler for, and how it starts its launchers.

use super::script::{Assigned, Command, Scheduler, Script, base, flag};
use super::word::Word;

/// A command that starts workers on a node.
pub(super) struct Launch<'a> {
    /// The command that it is in.
    pub(super) command: &'a Command,
    /// The launcher and its arguments.
    pub(super) words: &'a [Word],
    /// `torchrun`, `lockstep run`, `accelerate launch`, or `torch.distributed.launch`.
    pub(super) name: &'static str,
}

impl Launch<'_> {
    /// Its line.
    pub(super) fn line(&self) -> usize {
        self.words.first().map_or(self.command.line, |word| word.line)
    }

    /// The value of one of the launcher's flags, by torchrun's name.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        let own = match name {
            _ if self.name != "accelerate launch" => name,
            "nnodes" => "num-machines",
            "node-rank" => "machine-rank",
            "master-addr" => "main-process-ip",
            "master-port" => "main-process-port",
            _ => name,
        };
        flag(self.words, own)
    }

    /// Some of its flags, or what starts it, come from a variable of which the script does not say what it is.
    pub(super) fn is_open(&self) -> bool {
        let end = self.words.iter().position(|word| word.text.ends_with(".py")).unwrap_or(self.words.len());
        let is_value =
            |at: usize| at > 0 && self.words[at - 1].text.starts_with("--") && !self.words[at - 1].text.contains('=');
        self.before().iter().any(|word| word.open)
            || self.words[..end].iter().enumerate().any(|(at, word)| word.open && !is_value(at))
    }

    /// Returns true if it has this switch.
    pub(super) fn has(&self, name: &str) -> bool {
        self.words
            .iter()
            .any(|word| word.text.trim_start_matches('-').replace('_', "-").split('=').next() == Some(name))
    }

    /// `--nnodes`: the number, or the least of a range.
    pub(super) fn nnodes(&self) -> Option<u32> {
        self.flag("nnodes")?.split(':').next()?.parse().ok()
    }

    /// `--nproc-per-node`, as it stands.
    pub(super) fn workers(&self) -> Option<&str> {
        self.flag("nproc-per-node")
    }

    /// The words in front of the launcher: what starts it.
    pub(super) fn before(&self) -> Vec<&Word> {
        let own = &self.command.words[..self.command.words.len() - self.words.len()];
        self.command.starter.iter().chain(own).collect()
    }

    /// Returns true if what starts it has this option, with a value or without.
    pub(super) fn is_started_with(&self, option: &str) -> bool {
        self.before().iter().any(|word| word.text.split('=').next() == Some(option))
    }

    /// The program that starts it on the nodes.
    pub(super) fn starter(&self) -> Option<&str> {
        let own = &self.command.words[..self.command.words.len() - self.words.len()];
        let starter = own.iter().map(|word| base(&word.text)).find(|word| super::script::STARTERS.contains(word));
        starter.or(self.command.far.as_deref())
    }
}

impl Script {
    /// All launchers.
    pub(super) fn launches(&self) -> Vec<Launch<'_>> {
        self.commands.iter().filter_map(launch).collect()
    }

    /// The value of one of sbatch's options, and its line; the last counts.
    pub(super) fn slurm(&self, name: &str, short: char) -> Option<(usize, String)> {
        self.slurm_all(name, short).pop()
    }

    /// All values of one of sbatch's options: the parts of a heterogeneous job have one each.
    fn slurm_all(&self, name: &str, short: char) -> Vec<(usize, String)> {
        let of = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            words.iter().enumerate().find_map(|(index, word)| {
                let next = || words.get(index + 1).map(|word| (*word).to_owned()).or(Some(String::new()));
                match word.strip_prefix("--") {
                    Some(long) if long == name => next(),
                    Some(long) => Some(long.strip_prefix(name)?.strip_prefix('=')?.to_owned()),
                    None => {
                        let rest = word.strip_prefix('-')?.strip_prefix(short)?;
                        if rest.is_empty() { next() } else { Some(rest.into()) }
                    }
                }
            })
        };
        self.live(Scheduler::Slurm).filter_map(|directive| Some((directive.line, of(&directive.text)?))).collect()
    }

    /// The chunks of PBS's `select=`, and the line.
    pub(super) fn select(&self) -> Option<(usize, Vec<String>)> {
        self.live(Scheduler::Pbs).find_map(|directive| {
            let at = directive.text.find("select=")? + "select=".len();
            let value = directive.text[at..].split([',', ' ']).next()?;
            Some((directive.line, value.split('+').map(str::to_owned).collect()))
        })
    }

    /// Nodes that the job asks for, and the line.
    pub(super) fn nodes(&self) -> Option<(usize, u32)> {
        let is_het = self.live(Scheduler::Slurm).any(|directive| ["hetjob", "packjob"].contains(&&*directive.text));
        let least = |(line, value): &(usize, String)| Some((*line, value.split('-').next()?.parse::<u32>().ok()?));
        let said: Option<Vec<_>> = self.slurm_all("nodes", 'N').iter().map(least).collect();
        if let Some((line, last)) = said.as_ref()?.last() {
            let all = said.iter().flatten().map(|(_, nodes)| nodes).sum();
            return Some((*line, if is_het { all } else { *last }));
        }
        let (line, chunks) = self.select()?;
        let count = |chunk: &String| chunk.split(':').next().and_then(|count| count.parse::<u32>().ok()).unwrap_or(1);
        Some((line, chunks.iter().map(count).sum()))
    }

    /// Returns true if the job has several nodes, by what it asks for or by what it tells its launcher.
    pub(super) fn has_several_nodes(&self) -> bool {
        let launched = || self.launches().iter().any(|launch| launch.nnodes().is_some_and(|nodes| nodes > 1));
        self.nodes().map_or_else(launched, |(_, nodes)| nodes > 1)
    }

    /// The most that one of PBS's chunks asks for of a resource.
    pub(super) fn chunk(&self, name: &str) -> Option<u32> {
        let (_, chunks) = self.select()?;
        let resource = |part: &str| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
        chunks.iter().flat_map(|chunk| chunk.split(':')).filter_map(resource).max()
    }

    /// GPUs of the nodes that have most, as far as the job says: `None` if it asks for none.
    pub(super) fn gpus(&self) -> Option<u32> {
        let mut said = self.slurm_all("gres", '\0');
        said.retain(|(_, value)| value.contains("gpu"));
        said.extend(["gpus-per-node", "gpus-per-task"].iter().flat_map(|name| self.slurm_all(name, '\0')));
        said.extend(self.slurm_all("gpus", 'G'));
        let count =
            |(_, value): &(usize, String)| value.rsplit(':').next().and_then(|count| count.parse().ok()).unwrap_or(1);
        said.iter().map(count).max().or_else(|| self.chunk("ngpus"))
    }

    /// Tasks of a node, and the line.
    pub(super) fn tasks_per_node(&self) -> Option<(usize, u32)> {
        let slurm = self.slurm("ntasks-per-node", '\0').and_then(|(line, value)| Some((line, value.parse().ok()?)));
        slurm.or_else(|| Some((self.select()?.0, self.chunk("mpiprocs")?)))
    }

    /// Returns true if it is meant for GPUs: it says so to the launcher, to a container or to NCCL, or loads CUDA.
    pub(super) fn is_for_gpus(&self) -> bool {
        self.launches().iter().any(|launch| launch.workers() == Some("gpu"))
            || self.gpus().is_some()
            || self.code().any(|(_, line)| line.contains("NCCL_") || line.contains("cuda") || line.contains("--nv"))
    }

    /// What the script assigns to a variable last.
    pub(super) fn variable(&self, name: &str) -> Option<&Assigned> {
        self.assigned.iter().rfind(|assigned| assigned.name == name)
    }
}

fn launch(command: &Command) -> Option<Launch<'_>> {
    let at = |index: usize| command.words.get(index).map_or("", |word| base(&word.text));
    let found = (0..command.words.len()).find_map(|index| match at(index) {
        "torchrun" => Some((index, "torchrun")),
        "lockstep" if at(index + 1) == "run" => Some((index, "lockstep run")),
        "accelerate" if at(index + 1) == "launch" => Some((index, "accelerate launch")),
        "torch.distributed.run" => Some((index, "torchrun")),
        "torch.distributed.launch" => Some((index, "torch.distributed.launch")),
        _ => None,
    });
    let told_only = ["echo", "printf", "which", "command", "type", "alias"].contains(&command.program());
    found.filter(|_| !told_only).map(|(index, name)| Launch { command, words: &command.words[index..], name })
}

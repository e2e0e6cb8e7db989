//! A shell script as far as the rules need it: directives, simple commands with their words, what runs on other nodes, what it
//! asks the scheduler for, and how it starts its launchers.

use std::collections::BTreeMap;
use std::ops::Range;

use super::evaluate::{evaluate, mentions};
use super::kept::Loss;
use super::words::{Source, Word};

/// Programs that start another one on the nodes of a job.
pub(super) const STARTERS: [&str; 16] = [
    "srun",
    "mpirun",
    "mpiexec",
    "aprun",
    "pbsdsh",
    "ssh",
    "pdsh",
    "clush",
    "blaunch",
    "flux",
    "ibrun",
    "jsrun",
    "mpiexec.hydra",
    "mpiexec_mpt",
    "prterun",
    "prun",
];
/// Starters that do not pass on the batch script's variables, modules and folder.
const REMOTE: [&str; 5] = ["ssh", "pdsh", "clush", "pbsdsh", PARALLEL];
/// GNU parallel, which starts programs on other machines if it is told their names.
const PARALLEL: &str = "parallel";
/// Programs that pass a word to a shell.
pub(super) const SHELLS: [&str; 4] = ["bash", "sh", "/bin/bash", "/bin/sh"];
/// The bytes with which some editors begin files.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Whose directives they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheduler {
    Slurm,
    Pbs,
    Lsf,
}

/// What begins a line for a scheduler.
pub(super) const PREFIXES: [(&str, Scheduler); 3] =
    [("#SBATCH", Scheduler::Slurm), ("#PBS", Scheduler::Pbs), ("#BSUB", Scheduler::Lsf)];

/// A line for the scheduler.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    /// Its line, from 1.
    pub(super) line: usize,
    /// Who reads it.
    pub(super) scheduler: Scheduler,
    /// What follows `#SBATCH`, `#PBS` or `#BSUB`.
    pub(super) text: String,
    /// It is after the first command, where Slurm and PBS do not look.
    pub(super) is_late: bool,
}

/// A simple command.
#[derive(Clone, Debug, Default)]
pub(super) struct Command {
    /// Its line, from 1.
    pub(super) line: usize,
    /// `NAME=value` in front of the command, or alone.
    pub(super) assignments: Vec<(String, Word)>,
    /// The program and its arguments; variables that the script sets are replaced.
    pub(super) words: Vec<Word>,
    /// It ends with `&`.
    pub(super) background: bool,
    /// Evaluated on the job's nodes: it is in a word for a shell that this program starts there.
    pub(super) far: Option<String>,
    /// The command that starts this shell: its own words, up to the text that it passes.
    pub(super) starter: Vec<Word>,
    /// It stands between `$(` and `)`.
    pub(super) substituted: bool,
    /// It depends on a condition that is only known at run time.
    pub(super) conditional: bool,
    /// The shell's process whose `wait` gets its exit code: a number for each pair of parentheses, part of a pipe and so on.
    pub(super) process: usize,
    /// It is in the body of a loop.
    pub(super) repeated: bool,
    /// The loops and conditions around it, outermost first.
    pub(super) around: Vec<Around>,
    /// It is for the case that the command before `||` fails.
    pub(super) otherwise: bool,
    pub(super) code: ExitCode,
}

/// What decides whether, and how often, a command runs: its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Around {
    /// A loop: its variable, if it has one, and what it goes over; also what a pipe gives to `xargs` or `parallel`.
    Loop { variable: String, over: String },
    /// All conditions of an `if`, the value and patterns of a `case`, the first side of `&&` and `||`.
    Condition(String),
}

/// What becomes of a command's exit code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ExitCode {
    /// It ends the script under `set -e`, or is the script's own if the command is the last.
    #[default]
    Counts,
    /// A condition, `||` or `$?` reads it.
    Read,
    /// `||` replaces it by the success of a command that only prints.
    Dropped,
    /// The last command of this pipe replaces it: an index in the script's list.
    Piped(usize),
}

/// A pipe without `pipefail`.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    /// The program of its last part.
    pub(super) last: String,
    /// The line where PIPESTATUS is read, after another command has replaced it.
    pub(super) read_late: Option<usize>,
}

/// What the script assigns to a variable.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) line: usize,
    pub(super) name: String,
    /// For an array, only the elements given here.
    pub(super) value: Word,
    /// The program that starts the shell in which it happens, if that is another one.
    pub(super) far: Option<String>,
    /// It is between `$(` and `)`, or is for one command alone.
    pub(super) elsewhere: bool,
    /// It depends on a condition that is only known at run time.
    pub(super) conditional: bool,
}

impl Assigned {
    pub(super) fn new(name: &str, value: Word, command: &Command, alone: bool) -> Self {
        let (far, conditional) = (command.far.clone(), command.conditional);
        let elsewhere = command.substituted || !alone;
        Assigned { line: value.line, name: name.into(), value, far, elsewhere, conditional }
    }
}

impl Command {
    /// The program's name without its folder.
    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", |word| base(&word.text))
    }

    /// The texts of its words.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(|word| word.text.as_str())
    }

    /// The value of a flag: `--name=value`, `--name value`; dashes and underscores are one.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        flag(&self.words, name)
    }

    /// Returns true if a flag is there, with a value or without.
    pub(super) fn has(&self, name: &str) -> bool {
        self.words.iter().any(|word| key(&word.text).0 == name)
    }
}

/// The value of a flag among these words.
pub(super) fn flag<'a>(words: &'a [Word], name: &str) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(index, word)| match key(&word.text) {
        (found, Some(at)) if found == name => Some(&word.text[at..]),
        (found, None) if found == name => words.get(index + 1).map(|word| word.text.as_str()),
        _ => None,
    })
}

/// `--rdzv_id=x` as `rdzv-id`, and where the value begins.
fn key(text: &str) -> (String, Option<usize>) {
    let Some(rest) = text.strip_prefix("--") else { return (String::new(), None) };
    let (name, at) = rest.split_once('=').map_or((rest, None), |(name, _)| (name, Some(name.len() + 3)));
    (name.replace('_', "-"), at)
}

/// The last part of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A name that the script exports.
#[derive(Clone, Debug)]
pub(super) struct Exported {
    pub(super) line: usize,
    pub(super) name: String,
    /// In a shell that runs on the nodes.
    pub(super) is_far: bool,
}

/// A script, read.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// Unchanged, including Windows line ends.
    pub(super) lines: Vec<String>,
    /// It begins with a byte order mark, which is not in `lines`.
    pub(super) marked: bool,
    /// In their order, dead ones included.
    pub(super) directives: Vec<Directive>,
    /// In their order; those inside others follow them.
    pub(super) commands: Vec<Command>,
    pub(super) assigned: Vec<Assigned>,
    pub(super) exported: Vec<Exported>,
    /// All that it assigns is exported: `set -a`.
    pub(super) exports_all: bool,
    /// Variables that another shell reads, but that this script has not exported, with the line and the program that starts this shell.
    pub(super) lost: Vec<(usize, String, Option<String>)>,
    /// Variables that `read` and `mapfile` fill, and files that a command writes: from what.
    pub(super) filled: Vec<(String, String)>,
    /// Expansions as they are written, with the lines, and the program that starts the shell in which they happen, if it is another one.
    pub(super) expanded: Vec<(usize, String, Option<String>)>,
    /// Pipes that hide exit codes.
    pub(super) pipes: Vec<Pipe>,
    /// Changes that end with a process, and who relies on them later.
    pub(super) losses: Vec<Loss>,
    /// Lines of here-documents, each from its first to behind its last.
    pub(super) documents: Vec<Range<usize>>,
    /// The first line that the grammar does not fit.
    pub(super) unread: Option<usize>,
}

impl Script {
    /// Reads a script. Never fails: what the grammar does not fit is left out.
    pub(super) fn read(text: &str) -> Self {
        let rest = text.strip_prefix(BYTE_ORDER_MARK);
        let text = rest.unwrap_or(text);
        let lines = text.split('\n').map(str::to_owned).collect();
        let mut script = Script { lines, marked: rest.is_some(), ..Script::default() };
        evaluate(&mut script, &text.replace('\r', ""));
        script.read_directives();
        script
    }

    /// Returns true if this variable is exported anywhere.
    pub(super) fn exports(&self, name: &str) -> bool {
        self.exports_all || self.exported.iter().any(|exported| exported.name == name)
    }

    /// As the schedulers read them. sbatch stops at the first line that is neither blank nor a comment, whatever bash makes of it. So does
    /// qsub, for which a line that begins with a colon is none, and which takes directives that are indented. bsub reads them everywhere.
    fn read_directives(&mut self) {
        let is_command = |line: &String, more: &[char]| {
            let text = line.trim_matches(|c: char| c.is_ascii_whitespace());
            !text.is_empty() && !text.starts_with('#') && !line.starts_with(more)
        };
        let first = |more: &[char]| self.lines.iter().position(|line| is_command(line, more)).unwrap_or(usize::MAX);
        let (slurm, pbs) = (first(&[]), first(&[':']));
        let read = |(index, line): (usize, &String)| {
            let (rest, scheduler) = PREFIXES.into_iter().find_map(|(prefix, scheduler)| {
                let line = if scheduler == Scheduler::Pbs { line.trim_start() } else { line };
                Some((line.strip_prefix(prefix)?, scheduler))
            })?;
            let begins = |c: char| c == '-' || c.is_whitespace() || !c.is_ascii();
            if !rest.starts_with(begins) || self.is_document(index + 1) {
                return None;
            }
            let text = rest.split(" #").next().unwrap_or_default();
            let text = text.trim_matches(|c: char| c.is_ascii_whitespace()).to_owned();
            let is_late = match scheduler {
                Scheduler::Slurm => index > slurm,
                Scheduler::Pbs => index > pbs,
                Scheduler::Lsf => false,
            };
            Some(Directive { line: index + 1, scheduler, text, is_late })
        };
        self.directives = self.lines.iter().enumerate().filter_map(read).collect();
    }

    /// Directives that count, of one scheduler.
    pub(super) fn live(&self, scheduler: Scheduler) -> impl Iterator<Item = &Directive> {
        self.directives.iter().filter(move |directive| directive.scheduler == scheduler && !directive.is_late)
    }

    /// The scheduler that its directives are for.
    pub(super) fn scheduler(&self) -> Option<Scheduler> {
        self.directives.first().map(|directive| directive.scheduler)
    }

    /// The scheduler of its directives or, in a script for an interactive job, that of the variables that it reads.
    pub(super) fn served_by(&self) -> Option<Scheduler> {
        let named = |(name, scheduler)| self.code().any(|(_, line)| line.contains(name)).then_some(scheduler);
        let variables = [("$PBS_", Scheduler::Pbs), ("${PBS_", Scheduler::Pbs), ("$LSB_", Scheduler::Lsf)];
        self.scheduler().or_else(|| variables.into_iter().find_map(named))
    }

    /// Lines outside comments and here-documents, with their numbers.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()));
        lines.filter(|(line, text)| !text.trim_start().starts_with('#') && !self.is_document(*line))
    }

    /// Returns true if this line is in a here-document.
    pub(super) fn is_document(&self, line: usize) -> bool {
        self.documents.iter().any(|lines| lines.contains(&line))
    }
}

/// What a command passes to a shell: the program that starts this shell on the nodes, if one does, the text, and the shell's arguments.
/// `document` is the command's here-document, and `files` are those that the script has written before.
pub(super) fn handed_to_a_shell(
    command: &Command,
    document: Option<&Source>,
    files: &BTreeMap<String, Source>,
) -> Option<(Option<String>, Source, Vec<Word>)> {
    let words = &command.words;
    let starter = starter(words).map(str::to_owned);
    let shell = words.iter().position(|word| SHELLS.contains(&word.text.as_str()));
    let option = |word: &Word| word.text.starts_with('-') && word.text.ends_with('c');
    if let Some(at) = shell.filter(|at| words.get(at + 1).is_some_and(option)) {
        let word = words.get(at + 2)?;
        return Some((starter, Source { text: word.handed(), line: word.line }, words[at + 3..].to_vec()));
    }
    let runs = shell.is_some() || starter.is_some();
    // Also by another path to the same folder: `$PWD/node.sh`.
    let file = |word: &Word| {
        let name = word.text.trim_start_matches("./");
        let same = || files.iter().find(|(file, _)| name.contains('/') && base(file) == base(name));
        files.get(name).or_else(|| same().map(|(_, text)| text))
    };
    let written = words.iter().enumerate().find_map(|(at, word)| Some((at, file(word)?)));
    if let Some((at, text)) = written.filter(|(at, _)| runs || *at == 0) {
        return Some((starter, text.clone(), words[at..].to_vec()));
    }
    if let Some(document) = document.filter(|_| shell.is_some() || starter.as_deref() == Some("ssh")) {
        return Some((starter, document.clone(), vec![]));
    }
    // What follows `:::` is parallel's own.
    let own = words.iter().position(|word| word.text.starts_with(":::")).unwrap_or(words.len());
    let last = words[..own].last().filter(|word| word.text.contains(' ') && own > 2)?;
    let joins = starter.as_deref().is_some_and(|starter| starter != "pbsdsh" && is_remote(starter));
    joins.then(|| (starter, Source { text: last.handed(), line: last.line }, vec![]))
}

/// The program among these words that starts another one on the job's nodes.
pub(super) fn starter(words: &[Word]) -> Option<&str> {
    let far = |word: &Word| {
        let name = word.text.split('=').next().unwrap_or_default();
        ["-S", "--sshlogin", "--sshloginfile", "--slf", "--nonall", "--onall"].contains(&name)
    };
    let parallel = || words.first().filter(|word| base(&word.text) == PARALLEL && words.iter().any(far));
    words.iter().map(|word| base(&word.text)).find(|word| STARTERS.contains(word)).or(parallel().map(|_| PARALLEL))
}

/// Returns true if what this program starts has neither the variables nor the modules of the script.
pub(super) fn is_remote(starter: &str) -> bool {
    REMOTE.contains(&starter)
}

/// The first word of a line, without its quotes.
pub(super) fn first_word(line: &str) -> Option<String> {
    Script::read(line).commands.into_iter().next()?.words.into_iter().next().map(|word| word.text)
}

// ---- what a script asks for

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

    /// Some of its flags, or what starts it, come from a variable whose value the script does not determine.
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

    /// Returns true if `--nnodes` is a range: the launchers go on with fewer nodes.
    pub(super) fn is_elastic(&self) -> bool {
        self.flag("nnodes").and_then(|text| text.split_once(':')).is_some_and(|(least, most)| least != most)
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
        starter(own).or(self.command.far.as_deref())
    }

    /// The conditions that decide about it inside its loops or outside, and their texts.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &str> {
        self.command.around.iter().filter_map(|around| match around {
            Around::Condition(text) => Some(text.as_str()),
            Around::Loop { .. } => None,
        })
    }
}

impl Script {
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
        let lsf = |directive: &Directive| {
            Some((directive.line, directive.text.strip_prefix("-nnodes")?.trim().parse().ok()?))
        };
        if let Some(nodes) = self.live(Scheduler::Lsf).find_map(lsf) {
            return Some(nodes);
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

    /// The largest amount of a resource that one of PBS's chunks asks for.
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
        // `-l nodes=2:ppn=4` and `-R "span[ptile=4]"`.
        let of = |scheduler, name: &str| {
            self.live(scheduler).find_map(|directive| {
                let (_, value) = directive.text.split_once(name)?;
                let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
                Some((directive.line, value[..end].parse().ok()?))
            })
        };
        slurm
            .or_else(|| Some((self.select()?.0, self.chunk("mpiprocs")?)))
            .or_else(|| of(Scheduler::Pbs, ":ppn="))
            .or_else(|| of(Scheduler::Lsf, "ptile="))
    }

    /// The text, and all that the variables and files in it are made of.
    pub(super) fn with_origins(&self, text: &str, depth: usize) -> String {
        let mut all = text.to_owned();
        if depth == 0 {
            return all;
        }
        let assigned = self.assigned.iter().filter(|set| mentions(text, &set.name)).map(|set| set.value.raw.as_str());
        let names = |name: &str| mentions(text, name) || name.contains('.') && text.contains(name);
        let filled =
            self.filled.iter().filter(|(name, from)| names(name) && from != text).map(|(_, from)| from.as_str());
        for origin in assigned.chain(filled) {
            all.push(' ');
            all.push_str(&self.with_origins(origin, depth - 1));
        }
        all
    }

    /// Returns true if it is meant for GPUs: it says so to the launcher, to a container or to NCCL. That a site's template loads CUDA, or
    /// names NCCL's interface next to Gloo's, says nothing of this job.
    pub(super) fn is_for_gpus(&self) -> bool {
        let nccl =
            |line: &str| line.match_indices("NCCL_").any(|(at, _)| !line[at..].starts_with("NCCL_SOCKET_IFNAME"));
        self.launches().iter().any(|launch| launch.workers() == Some("gpu"))
            || self.gpus().is_some()
            || self.code().any(|(_, line)| nccl(line) || line.contains("--nv") || line.contains("nvidia-smi"))
            || self.is_for_amd()
    }

    /// Returns true if it is meant for AMD's GPUs: it names ROCm, what only ROCm's libraries and Cray's modules for such GPUs read, or a
    /// partition or image of LUMI.
    pub(super) fn is_for_amd(&self) -> bool {
        const NAMES: [&str; 10] = [
            "rocm",
            "ROCM_",
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "MIOPEN_",
            "HSA_",
            "amd-smi",
            "accel-amd",
            "mi250",
            "mi300",
        ];
        let on_lumi = || {
            let names = self
                .slurm("partition", 'p')
                .is_some_and(|(_, name)| ["standard-g", "small-g", "dev-g"].contains(&&*name));
            names || self.code().any(|(_, line)| line.contains("lumi-") && line.contains(".sif"))
        };
        self.code().any(|(_, line)| NAMES.iter().any(|name| line.contains(name))) || on_lumi()
    }

    /// What the script assigns to a variable last.
    pub(super) fn variable(&self, name: &str) -> Option<&Assigned> {
        self.assigned.iter().rfind(|assigned| assigned.name == name)
    }
}

pub(super) fn launch(command: &Command) -> Option<Launch<'_>> {
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

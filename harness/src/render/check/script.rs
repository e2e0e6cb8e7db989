//! A shell script as far as the rules need it: directives, simple commands with their words, and what is evaluated on other nodes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::evaluate::evaluate;
use super::tree::Source;
use super::word::Word;

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
/// Programs that hand a word to a shell.
const SHELLS: [&str; 4] = ["bash", "sh", "/bin/bash", "/bin/sh"];
/// With which files of some editors begin.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Whose directives they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheduler {
    Slurm,
    Pbs,
}

/// A line for the scheduler.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    /// Its line, from 1.
    pub(super) line: usize,
    /// Who reads it.
    pub(super) scheduler: Scheduler,
    /// What follows `#SBATCH` or `#PBS`.
    pub(super) text: String,
    /// It stands after the first command, where no scheduler looks.
    pub(super) is_late: bool,
}

/// A simple command.
#[derive(Clone, Debug, Default)]
pub(super) struct Command {
    /// Its line, from 1.
    pub(super) line: usize,
    /// `NAME=value` in front of it, or on their own.
    pub(super) assignments: Vec<(String, Word)>,
    /// The program and its arguments; variables that the script sets are replaced.
    pub(super) words: Vec<Word>,
    /// It ends with `&`.
    pub(super) background: bool,
    /// Evaluated on the job's nodes: it stands in a word for a shell that this program starts there.
    pub(super) far: Option<String>,
    /// The command that starts this shell: its own words, up to the text that it hands over.
    pub(super) starter: Vec<Word>,
    /// It stands between `$(` and `)`.
    pub(super) substituted: bool,
    /// It runs under a condition that only the run shows.
    pub(super) conditional: bool,
}

/// What the script assigns to a variable.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) line: usize,
    pub(super) name: String,
    /// Of an array, only what stands there.
    pub(super) value: Word,
    /// The program that starts the shell in which it happens, if that is another one.
    pub(super) far: Option<String>,
    /// It stands between `$(` and `)`, or is for one command alone.
    pub(super) elsewhere: bool,
    /// It happens under a condition that only the run shows.
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
    /// As it is, line ends of Windows included.
    pub(super) lines: Vec<String>,
    /// It begins with a byte order mark, which is not in `lines`.
    pub(super) marked: bool,
    /// In their order, dead ones included.
    pub(super) directives: Vec<Directive>,
    /// In their order; those inside others follow them.
    pub(super) commands: Vec<Command>,
    /// What the script assigns.
    pub(super) assigned: Vec<Assigned>,
    /// Names that it exports.
    pub(super) exported: Vec<Exported>,
    /// All that it assigns is exported: `set -a`.
    pub(super) exports_all: bool,
    /// Variables that another shell reads, but that this script has not exported, with the line.
    pub(super) lost: Vec<(usize, String)>,
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

    fn read_directives(&mut self) {
        let first = self.commands.first().map_or(usize::MAX, |command| command.line);
        let read = |(index, line): (usize, &String)| {
            let (rest, scheduler) = [("#SBATCH", Scheduler::Slurm), ("#PBS", Scheduler::Pbs)]
                .into_iter()
                .find_map(|(prefix, scheduler)| Some((line.strip_prefix(prefix)?, scheduler)))
                .filter(|(rest, _)| rest.starts_with([' ', '\t']) && !self.is_document(index + 1))?;
            let text = rest.split(" #").next().unwrap_or_default().trim().to_owned();
            Some(Directive { line: index + 1, scheduler, text, is_late: index + 1 > first })
        };
        self.directives = self.lines.iter().enumerate().filter_map(read).collect();
    }

    /// Directives that count, of one scheduler.
    pub(super) fn live(&self, scheduler: Scheduler) -> impl Iterator<Item = &Directive> {
        self.directives.iter().filter(move |directive| directive.scheduler == scheduler && !directive.is_late)
    }

    /// Who is to read it, as its directives say.
    pub(super) fn scheduler(&self) -> Option<Scheduler> {
        self.directives.first().map(|directive| directive.scheduler)
    }

    /// Lines that are no comments and in no here-document, with their numbers.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()));
        lines.filter(|(line, text)| !text.trim_start().starts_with('#') && !self.is_document(*line))
    }

    /// Returns true if this line is in a here-document.
    pub(super) fn is_document(&self, line: usize) -> bool {
        self.documents.iter().any(|lines| lines.contains(&line))
    }
}

/// What a command hands to a shell: the program that starts this shell on the nodes, if one does, the text, and the shell's arguments.
/// `document` is the command's here-document, and `files` are those that the script has written before.
pub(super) fn handed_to_a_shell(
    command: &Command,
    document: Option<&Source>,
    files: &BTreeMap<String, Source>,
) -> Option<(Option<String>, Source, Vec<Word>)> {
    let words = &command.words;
    let starter = words.iter().map(|word| base(&word.text)).find(|word| STARTERS.contains(word)).map(str::to_owned);
    let shell = words.iter().position(|word| SHELLS.contains(&word.text.as_str()));
    let option = |word: &Word| word.text.starts_with('-') && word.text.ends_with('c');
    if let Some(at) = shell.filter(|at| words.get(at + 1).is_some_and(option)) {
        let word = words.get(at + 2)?;
        return Some((starter, Source { text: word.handed(), line: word.line }, words[at + 3..].to_vec()));
    }
    let runs = shell.is_some() || starter.is_some();
    let file = |word: &Word| files.get(word.text.trim_start_matches("./"));
    let written = words.iter().enumerate().find_map(|(at, word)| Some((at, file(word)?)));
    if let Some((at, text)) = written.filter(|(at, _)| runs || *at == 0) {
        return Some((starter, text.clone(), words[at..].to_vec()));
    }
    if let Some(document) = document.filter(|_| shell.is_some() || starter.as_deref() == Some("ssh")) {
        return Some((starter, document.clone(), vec![]));
    }
    let last = words.last().filter(|word| word.text.contains(' ') && words.len() > 2)?;
    (starter.as_deref() == Some("ssh")).then(|| (starter, Source { text: last.handed(), line: last.line }, vec![]))
}

/// The first word of a line, without its quotes.
pub(in crate::render) fn first_word(line: &str) -> Option<String> {
    Script::read(line).commands.into_iter().next()?.words.into_iter().next().map(|word| word.text)
}

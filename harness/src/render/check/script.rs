//! A shell script as far as the rules need it: directives, simple commands with their words, and what is evaluated on other nodes.
//!
//! This is no shell: `case`, arithmetic and functions are read as plain commands, here-documents are skipped, and of variables only
//! those are replaced that the script sets to a plain text.

use std::collections::BTreeMap;

use super::lexer::{Word, lex};

/// Programs that start another one on the nodes of a job.
pub(super) const STARTERS: [&str; 8] = ["srun", "mpirun", "mpiexec", "aprun", "pbsdsh", "ssh", "pdsh", "clush"];
/// Programs that hand a word to a shell.
const SHELLS: [&str; 4] = ["bash", "sh", "/bin/bash", "/bin/sh"];

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
    /// It stands between `$(` and `)`.
    pub(super) substituted: bool,
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

/// A script, read.
#[derive(Debug)]
pub(super) struct Script {
    /// As it is, line ends of Windows included.
    pub(super) lines: Vec<String>,
    /// In their order, dead ones included.
    pub(super) directives: Vec<Directive>,
    /// In their order; those inside others follow them.
    pub(super) commands: Vec<Command>,
    /// What the script assigns, with its line.
    pub(super) variables: Vec<(usize, String, Word)>,
    /// Names that it exports.
    pub(super) exported: Vec<(usize, String)>,
}

impl Script {
    /// Reads a script. Never fails: what cannot be understood is taken for words.
    pub(super) fn read(text: &str) -> Self {
        let mut script = Script {
            lines: text.split('\n').map(str::to_owned).collect(),
            directives: vec![],
            commands: vec![],
            variables: vec![],
            exported: vec![],
        };
        script.gather(&lex(&text.replace('\r', ""), 1), None, false, &mut BTreeMap::new());
        script.read_directives();
        script
    }

    fn read_directives(&mut self) {
        let first = self.commands.first().map_or(usize::MAX, |command| command.line);
        for (index, line) in self.lines.iter().enumerate() {
            let found = [("#SBATCH", Scheduler::Slurm), ("#PBS", Scheduler::Pbs)]
                .into_iter()
                .find_map(|(prefix, scheduler)| Some((line.strip_prefix(prefix)?, scheduler)));
            if let Some((rest, scheduler)) = found.filter(|(rest, _)| rest.starts_with([' ', '\t'])) {
                let text = rest.split(" #").next().unwrap_or_default().trim().to_owned();
                self.directives.push(Directive { line: index + 1, scheduler, text, is_late: index + 1 > first });
            }
        }
    }

    /// Takes commands in, and those within their words.
    fn gather(
        &mut self,
        commands: &[super::lexer::Raw],
        far: Option<&str>,
        substituted: bool,
        known: &mut BTreeMap<String, String>,
    ) {
        for raw in commands {
            let mut command = Command {
                line: raw.line,
                background: raw.background,
                far: far.map(str::to_owned),
                substituted,
                ..Command::default()
            };
            let is_export =
                raw.words.first().is_some_and(|word| ["export", "declare", "local", "readonly"].contains(&&*word.text));
            for word in &raw.words {
                if let Some((name, value)) = word.assignment().filter(|_| command.words.is_empty() || is_export) {
                    self.variables.push((word.line, name.clone(), value.clone()));
                    if raw.words[0].text == "export" {
                        self.exported.push((word.line, name.clone()));
                    }
                    if far.is_none() && !value.text.contains("$(") {
                        known.insert(name.clone(), expand(&value.text, known));
                    }
                    command.assignments.push((name, value));
                } else {
                    if is_export && !command.words.is_empty() {
                        self.exported.push((word.line, word.text.clone()));
                    }
                    command.words.extend(replaced(word, known));
                }
            }
            let inner: Vec<(String, usize)> = raw.words.iter().flat_map(|word| word.substitutions.clone()).collect();
            let handed = handed(&command);
            self.commands.push(command);
            for (text, line) in inner {
                self.gather(&lex(&text, line), far, true, known);
            }
            if let Some((starter, word)) = handed {
                self.gather(&lex(&word.text, word.line), starter.as_deref().or(far), false, known);
            }
        }
    }

    /// Directives that count, of one scheduler.
    pub(super) fn live(&self, scheduler: Scheduler) -> impl Iterator<Item = &Directive> {
        self.directives.iter().filter(move |directive| directive.scheduler == scheduler && !directive.is_late)
    }

    /// Who is to read it, as its directives say.
    pub(super) fn scheduler(&self) -> Option<Scheduler> {
        self.directives.first().map(|directive| directive.scheduler)
    }

    /// Lines that are no comments, with their numbers.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()));
        lines.filter(|(_, line)| !line.trim_start().starts_with('#'))
    }
}

/// The word that a program hands to a shell, and the program that starts this shell on the nodes.
fn handed(command: &Command) -> Option<(Option<String>, Word)> {
    let starter =
        command.words.iter().find(|word| STARTERS.contains(&base(&word.text))).map(|word| base(&word.text).to_owned());
    let shell = command.words.iter().position(|word| SHELLS.contains(&word.text.as_str()));
    let option = |word: &&Word| word.text.starts_with('-') && word.text.ends_with('c');
    if let Some(at) = shell.filter(|at| command.words.get(at + 1).as_ref().is_some_and(option)) {
        return Some((starter, command.words.get(at + 2)?.clone()));
    }
    let last = command.words.last().filter(|word| word.text.contains(' ') && command.words.len() > 2)?;
    (starter.as_deref() == Some("ssh")).then(|| (starter, last.clone()))
}

/// A word with the script's own variables replaced; several words where a bare variable holds several.
fn replaced(word: &Word, known: &BTreeMap<String, String>) -> Vec<Word> {
    let name = word.raw.strip_prefix('$').map(|name| name.trim_start_matches('{').trim_end_matches('}'));
    match name.and_then(|name| known.get(name)) {
        Some(value) => value.split_whitespace().map(|part| Word { text: part.into(), ..word.clone() }).collect(),
        None => {
            vec![Word { text: if word.single { word.text.clone() } else { expand(&word.text, known) }, ..word.clone() }]
        }
    }
}

fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (name, value) in known.iter().rev() {
        text = text.replace(&format!("${{{name}}}"), value);
        if let Some(at) = text.find(&format!("${name}")) {
            let end = at + 1 + name.len();
            if !text[end..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                text.replace_range(at..end, value);
            }
        }
    }
    text
}

//! What a shell keeps for the commands that follow, and loses when its process ends: parentheses, parts of a pipe, `$(…)`, the background
//! and `bash -c` are processes of their own. What changes there, and who relies on it later in a process that does not see it.

use super::evaluate::mentions;
use super::script::{Command, SHELLS, STARTERS, base};

/// What changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Variable(String),
    /// What all programs inherit, by the words that change it.
    State(State),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Folder,
    /// Modules, activated environments, sourced files, limits, exported variables.
    Environment,
}

/// A change in a process.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) line: usize,
    pub(super) kept: Kept,
    /// The words that make it, or the variable's name.
    pub(super) words: String,
    /// The process, for people: `parentheses`.
    pub(super) place: &'static str,
    /// The process itself has used it, or one that it started.
    is_used: bool,
    /// It was made before this process started.
    is_inherited: bool,
    /// The new value is made of the old one, as when counting.
    grows: bool,
}

/// A change that somebody relies on who does not see it.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub(super) change: Change,
    /// The line that relies on it.
    pub(super) line: usize,
    /// What does there.
    pub(super) reader: String,
}

/// The changes that matter to one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Keeps {
    /// Changes that this process made.
    made: Vec<Change>,
    /// Changes of processes that this process has started.
    gone: Vec<Change>,
    /// Variables of the functions that run.
    pub(super) locals: Vec<String>,
}

/// Commands of the shell itself: they inherit nothing.
const BUILTINS: [&str; 30] = [
    ":", "[", "alias", "break", "cd", "continue", "declare", "echo", "eval", "exit", "export", "false", "hash", "let",
    "local", "popd", "printf", "pushd", "pwd", "read", "return", "set", "shift", "shopt", "test", "trap", "true",
    "umask", "unset", "wait",
];

/// Programs that look at no folder, module or environment of the job's.
pub(super) const PLACELESS: [&str; 16] = [
    "date",
    "free",
    "hostname",
    "nvidia-smi",
    "rocm-smi",
    "scontrol",
    "seq",
    "sinfo",
    "sleep",
    "squeue",
    "sstat",
    "uname",
    "uptime",
    "which",
    "whoami",
    "ulimit",
];
/// Programs that handle files, or text.
pub(super) const OF_FILES: [&str; 29] = [
    "awk", "basename", "cat", "chmod", "cp", "cut", "df", "dirname", "du", "find", "getent", "grep", "head", "ln",
    "ls", "md5sum", "mkdir", "mktemp", "mv", "rm", "rsync", "sed", "sort", "tail", "tar", "tee", "touch", "tr", "wc",
];

/// Files that are made to be sourced.
const SOURCED: [&str; 7] =
    ["activate", ".bashrc", ".bash_profile", ".profile", "conda.sh", "setvars.sh", "setup-env.sh"];

impl Keeps {
    /// The state with which a process that this one starts begins.
    pub(super) fn child(&self) -> Self {
        let made = self.made.iter().map(|change| Change { is_inherited: true, ..change.clone() });
        Keeps { made: made.collect(), ..self.clone() }
    }

    /// A process has ended. `known` are variables that its parent has.
    pub(super) fn ended(&mut self, child: Keeps, place: &'static str, losses: &[Loss], known: impl Fn(&str) -> bool) {
        let is_told = |change: &Change| {
            losses.iter().any(|loss| loss.change.line == change.line && loss.change.kept == change.kept)
        };
        let is_lost = |change: &Change| match &change.kept {
            Kept::Variable(name) => !change.is_used || change.grows || !known(name),
            Kept::State(_) => !change.is_used,
        };
        let is_here = |change: &Change, gone: &[Change]| {
            gone.iter().any(|other| (other.line, &other.kept) == (change.line, &change.kept))
        };
        let (inherited, made): (Vec<_>, Vec<_>) = child.made.into_iter().partition(|change| change.is_inherited);
        for used in inherited.iter().filter(|change| change.is_used) {
            let mine = self.made.iter_mut().filter(|mine| (mine.line, &mine.kept) == (used.line, &used.kept));
            mine.for_each(|mine| mine.is_used = true);
        }
        let made = made.into_iter().filter(is_lost).map(|change| Change { place, ..change });
        for change in child.gone.into_iter().chain(made) {
            if !is_here(&change, &self.gone) {
                self.gone.push(change);
            }
        }
        self.gone.retain(|change| !is_told(change));
    }

    /// A variable gets a value. `text` is what it is made of.
    pub(super) fn sets(&mut self, line: usize, name: &str, text: &str) {
        self.gone.retain(|change| change.kept != Kept::Variable(name.into()));
        if self.locals.iter().any(|local| local == name) {
            return;
        }
        let change = Change {
            line,
            kept: Kept::Variable(name.into()),
            words: name.into(),
            place: "",
            is_used: false,
            is_inherited: false,
            grows: names(text, name),
        };
        self.made.retain(|before| before.kept != change.kept);
        self.made.push(change);
    }

    /// All programs inherit this from now on.
    pub(super) fn changes(&mut self, line: usize, state: State, words: String) {
        self.gone.retain(|change| {
            change.words != words && (state, &change.kept) != (State::Folder, &Kept::State(State::Folder))
        });
        let kept = Kept::State(state);
        self.made.push(Change { line, kept, words, place: "", is_used: false, is_inherited: false, grows: false });
    }

    /// This text of shell is expanded.
    pub(super) fn reads(&mut self, line: usize, text: &str, losses: &mut Vec<Loss>) {
        let text = without_quoted(text);
        let reader = |kept: &Kept| match kept {
            Kept::Variable(name) => names(&text, name).then(|| format!("`${name}`")),
            Kept::State(State::Folder) => names(&text, "PWD").then(|| "`$PWD`".into()),
            Kept::State(State::Environment) => None,
        };
        self.uses(|kept| reader(kept).is_some());
        self.misses(line, losses, reader);
    }

    /// A command is run.
    pub(super) fn runs(&mut self, command: &Command, losses: &mut Vec<Loss>) {
        let program = command.program();
        if program.is_empty() || change(command).is_some() {
            return;
        }
        if BUILTINS.contains(&program) {
            // `$(cd folder && pwd)`
            self.uses(|kept| ["pwd", "echo", "printf"].contains(&program) && *kept == Kept::State(State::Folder));
            return;
        }
        self.uses(|kept| matches!(kept, Kept::State(_)));
        let relies = |kept: &Kept| match kept {
            Kept::Variable(_) => false,
            Kept::State(State::Folder) => !PLACELESS.contains(&program),
            Kept::State(State::Environment) => !PLACELESS.contains(&program) && !OF_FILES.contains(&program),
        };
        self.misses(command.line, losses, |kept| relies(kept).then(|| format!("`{program}`")));
    }

    fn uses(&mut self, is_used: impl Fn(&Kept) -> bool) {
        self.made.iter_mut().filter(|change| is_used(&change.kept)).for_each(|change| change.is_used = true);
    }

    fn misses(&mut self, line: usize, losses: &mut Vec<Loss>, reader: impl Fn(&Kept) -> Option<String>) {
        self.gone.retain(|change| {
            let missed = reader(&change.kept);
            let missing = missed.is_some();
            losses.extend(missed.map(|reader| Loss { change: change.clone(), line, reader }));
            !missing
        });
    }
}

/// The change that a command makes for the programs after it, and whether it makes it in a process of its own.
pub(super) fn change(command: &Command) -> Option<(State, bool)> {
    let word = |index: usize| command.words.get(index).map_or("", |word| word.text.as_str());
    let file = |index: usize| SOURCED.contains(&base(word(index)));
    let environment = Some((State::Environment, false));
    match (command.program(), word(1)) {
        ("umask", "") => None,
        ("cd" | "pushd", _) => Some((State::Folder, false)),
        ("module" | "ml", "avail" | "av" | "list" | "spider" | "show" | "help" | "whatis" | "keyword" | "") => None,
        ("module" | "ml" | "source" | ".", _) => environment,
        ("ulimit" | "umask", _) => {
            environment.filter(|_| command.words.last().is_some_and(|word| !word.text.starts_with('-')))
        }
        ("conda" | "mamba" | "micromamba" | "spack" | "pyenv", "activate" | "load") => environment,
        (shell, _) if SHELLS.contains(&shell) && file(1) || file(0) => Some((State::Environment, true)),
        // `srun module load cuda`
        (starter, _) if STARTERS.contains(&starter) => {
            let is_option = |word: &&str| word.starts_with('-') || word.parse::<u32>().is_ok();
            let started = command.texts().skip(1).find(|word| !is_option(word));
            let folder = started.filter(|word| ["cd", "pushd"].contains(word)).map(|_| (State::Folder, true));
            let environment = || started.filter(|word| ["ml", "module", "source", "ulimit"].contains(word));
            folder.or_else(|| environment().map(|_| (State::Environment, true)))
        }
        _ => None,
    }
}

/// Returns true if a text of shell names this variable, in a calculation even without `$`.
fn names(text: &str, name: &str) -> bool {
    let calculates =
        || text.contains("((") && text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    mentions(text, name) || calculates()
}

/// The text without what stands in single quotes, which is not expanded.
fn without_quoted(text: &str) -> String {
    let (mut out, mut doubled, mut single) = (String::new(), false, false);
    for c in text.chars() {
        match c {
            '\'' if !doubled => single = !single,
            '"' if !single => doubled = !doubled,
            _ if single => {}
            _ => out.push(c),
        }
    }
    out
}

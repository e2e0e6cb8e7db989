//! What a script does, found without running it: its commands in order, with variables, arrays, arguments and
//! functions replaced where the script determines them, and otherwise with the process that will determine them.
//!
//! Both branches of a condition are taken, and a loop's body once. What a branch assigns is not known afterwards.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use tree_sitter::Node;

use super::kept::{Keeps, State, change};
use super::script::{Around, Assigned, Command, ExitCode, Exported, Pipe, Script, handed_to_a_shell, is_remote};
use super::words::{Piece, Source, Word, below, child, children, first_error, handed, hide, named, unhide};

/// Functions that call themselves, and shells in shells, end here.
const DEPTH: usize = 8;
/// A longer value, in bytes, is not followed: it may double in each line.
const LONGEST: usize = 64 << 10;

/// Reads a script's commands.
pub(super) fn evaluate(script: &mut Script, text: &str) {
    let source = Source { text: text.into(), line: 1 };
    let first = text.lines().next().filter(|line| line.starts_with("#!")).unwrap_or_default();
    // In these shells the last part of a pipe is no process of its own.
    let lastpipe = first.contains("zsh") || first.contains("ksh");
    let mut shell = Shell { pipefail: first.contains("pipefail"), lastpipe, ..Shell::default() };
    Evaluation { script, hidden: vec![], backgrounds: vec![], depth: 0, processes: 0 }.run(&source, &mut shell);
}

/// A variable's value.
#[derive(Clone, Debug)]
enum Value {
    One(Vec<Piece>),
    Many(Vec<Vec<Piece>>),
    /// Something that only the run shows.
    Unknown,
}

/// A shell's state.
#[derive(Clone, Debug, Default)]
struct Shell {
    variables: BTreeMap<String, Value>,
    functions: BTreeMap<String, Source>,
    /// Files that the script writes as here-documents: their text, for the shell that reads them.
    files: BTreeMap<String, Source>,
    /// `$0`, `$1` and so on, if they are known.
    arguments: Option<Vec<Vec<Piece>>>,
    /// Names that the batch script has set and not exported: they are empty here.
    lost: Vec<String>,
    far: Option<String>,
    /// The command that has started this shell.
    starter: Vec<Word>,
    substituted: bool,
    conditional: bool,
    background: bool,
    repeated: bool,
    around: Vec<Around>,
    /// `set -o pipefail`
    pipefail: bool,
    /// `shopt -s lastpipe`
    lastpipe: bool,
    process: usize,
    /// Behind `||`.
    otherwise: bool,
    code: ExitCode,
    keeps: Keeps,
}

/// The contents of a command's redirections.
#[derive(Default)]
struct Redirects<'t> {
    target: Option<String>,
    /// The text of the input.
    input: Option<String>,
    document: Option<Source>,
    /// Words of the command behind a redirection.
    words: Vec<Node<'t>>,
}

struct Evaluation<'a> {
    script: &'a mut Script,
    /// What outer shells have put into the text that is read now.
    hidden: Vec<String>,
    /// Lines of the text, from 0, whose command goes on in the background, where the grammar does not see it.
    backgrounds: Vec<usize>,
    depth: usize,
    /// How many the script has started.
    processes: usize,
}

impl Evaluation<'_> {
    fn run(&mut self, source: &Source, shell: &mut Shell) {
        if self.depth == DEPTH {
            return;
        }
        self.depth += 1;
        // A line's end belongs to what is before it.
        let text = hide(&source.text, &mut self.hidden) + "\n";
        let outer = std::mem::take(&mut self.backgrounds);
        let source = Source { text: self.without_backgrounds(text), line: source.line };
        let line = match source.parse() {
            Some(tree) => {
                self.walk(&source, tree.root_node(), shell);
                first_error(tree.root_node()).map(|wrong| source.line_of(wrong))
            }
            None => Some(source.line),
        };
        self.script.unread = self.script.unread.or(line);
        self.backgrounds = outer;
        self.depth -= 1;
    }

    /// The grammar does not know `command <<END &`: such a line is read without its `&`, and its number is kept.
    fn without_backgrounds(&mut self, text: String) -> String {
        static BACKGROUND: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r#"(?m)(<<-?\s*["'\\]?\w+["']?[^\n&|;]*?)&[ \t]*$"#).expect("the pattern is constant")
        });
        let lines = BACKGROUND.find_iter(&text).map(|found| text[..found.start()].matches('\n').count());
        self.backgrounds.extend(lines);
        BACKGROUND.replace_all(&text, "$1 ").into_owned()
    }

    fn walk(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        match node.kind() {
            "command" => self.command(source, node, shell, Redirects::default()),
            "declaration_command" => self.declaration(source, node, shell),
            "variable_assignment" => self.assignments(source, &[node], shell),
            "variable_assignments" => self.assignments(source, &named(node), shell),
            "unset_command" => {
                for name in named(node) {
                    shell.variables.remove(source.of(name));
                }
            }
            "pipeline" => self.pipeline(source, node, shell),
            "test_command" => {
                self.reads(source, node, shell);
                self.each(source, node, shell);
            }
            "compound_statement" if source.of(node).starts_with("((") => self.calculation(source, node, shell),
            "redirected_statement" => self.redirected(source, node, shell),
            "function_definition" => {
                let (Some(name), Some(body)) = (node.child_by_field_name("name"), node.child_by_field_name("body"))
                else {
                    return;
                };
                shell.functions.insert(source.of(name).into(), source.part(body));
            }
            "subshell" => self.process(shell, "parentheses", |this, inner| this.each(source, node, inner)),
            "if_statement" | "case_statement" => self.branches(source, node, shell),
            "list" => self.list(source, node, shell),
            "for_statement" => {
                let mut over = vec![];
                for value in node.children_by_field_name("value", &mut node.walk()) {
                    self.reads(source, value, shell);
                    over.push(unhide(source.of(value), &self.hidden));
                }
                let variable = child(node, "variable_name").map_or("", |name| source.of(name)).to_owned();
                if let Some(name) = child(node, "variable_name") {
                    shell.variables.insert(source.of(name).into(), Value::Unknown);
                    shell.keeps.sets(source.line_of(name), source.of(name), "");
                }
                self.repeated(source, node, shell, Around::Loop { variable, over: over.join(" ") });
            }
            "while_statement" | "c_style_for_statement" => {
                let head = source.of(node).lines().next().unwrap_or_default().to_owned();
                let body = node.child_by_field_name("body").filter(|_| node.kind() == "c_style_for_statement");
                // `for ((i = 0; …`
                for name in body.map_or(vec![], |_| changed(source, node)) {
                    shell.variables.insert(name, Value::Unknown);
                }
                let around = Around::Loop { variable: String::new(), over: head };
                self.repeated(source, body.unwrap_or(node), shell, around);
            }
            "command_substitution" | "process_substitution" => {
                let place = if node.kind() == "command_substitution" { "$(…)" } else { "<(…)" };
                let (background, code) = (shell.background, shell.code);
                (shell.background, shell.code) = (false, ExitCode::Counts);
                self.process(shell, place, |this, inner| {
                    inner.substituted = true;
                    this.each(source, node, inner);
                });
                (shell.background, shell.code) = (background, code);
            }
            "comment" | "heredoc_start" | "heredoc_end" | "heredoc_content" => {}
            _ => self.each(source, node, shell),
        }
    }

    /// All children, each of which knows whether it goes on in the background, and whether somebody reads its exit code.
    fn each(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        let all = children(node);
        for (index, child) in all.iter().enumerate().filter(|(_, child)| child.is_named()) {
            let before = (shell.background, shell.code);
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            let is_condition = node.field_name_for_child(number) == Some("condition");
            if is_condition || next_of(&all[index + 1..]).is_some_and(|next| source.of(next).contains("$?")) {
                shell.code = ExitCode::Read;
            }
            let hidden =
                child.kind() == "redirected_statement" && self.backgrounds.contains(&child.start_position().row);
            if hidden || all.get(index + 1).is_some_and(|next| next.kind() == "&") {
                shell.background = true;
                self.process(shell, "the background", |this, inner| this.walk(source, *child, inner));
            } else {
                self.walk(source, *child, shell);
            }
            (shell.background, shell.code) = before;
        }
    }

    /// `first && second`, `first || second`. What stands behind `||` or a test happens or not.
    fn list(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        let sides = named(node);
        let Some((first, rest)) = sides.split_first() else { return };
        let otherwise = children(node).iter().any(|child| child.kind() == "||");
        if !otherwise && first.kind() != "test_command" {
            return self.each(source, node, shell);
        }
        let before = (shell.code, shell.otherwise);
        if otherwise {
            // `|| true` is what somebody wants.
            let prints = |side: &Node<'_>| {
                let text = source.of(*side).replace(">&2", "");
                !text.contains('>') && ["echo", "printf"].contains(&text.split_whitespace().next().unwrap_or_default())
            };
            shell.code = if rest.iter().all(prints) { ExitCode::Dropped } else { ExitCode::Read };
        }
        self.walk(source, *first, shell);
        (shell.code, shell.otherwise) = (before.0, otherwise);
        let condition = Around::Condition(source.of(*first).into());
        self.perhaps(shell, condition, |this, shell| rest.iter().for_each(|side| this.walk(source, *side, shell)));
        shell.otherwise = before.1;
    }

    fn repeated(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell, around: Around) {
        let before = std::mem::replace(&mut shell.repeated, true);
        // What the body changes differs from one time to the next.
        for name in changed(source, node) {
            shell.variables.entry(name).and_modify(|value| *value = Value::Unknown);
        }
        shell.around.push(around);
        self.each(source, node, shell);
        shell.around.pop();
        shell.repeated = before;
    }

    /// The loop in `body`, or the program that is one (`xargs`, `parallel`), goes over this text.
    fn over(&mut self, over: Option<String>, shell: &mut Shell, body: impl FnOnce(&mut Self, &mut Shell)) {
        let depth = shell.around.len();
        shell.around.extend(over.map(|over| Around::Loop { variable: String::new(), over }));
        body(self, shell);
        shell.around.truncate(depth);
    }

    /// A process of its own, of which the shell keeps nothing but files.
    fn process(&mut self, shell: &mut Shell, place: &'static str, body: impl FnOnce(&mut Self, &mut Shell)) {
        let mut inner = self.start(shell);
        body(self, &mut inner);
        self.ended(shell, inner, place);
    }

    fn start(&mut self, shell: &Shell) -> Shell {
        self.processes += 1;
        // What is in the background belongs to the shell that can wait for it.
        let process = if shell.background { shell.process } else { self.processes };
        Shell { process, keeps: shell.keeps.child(), ..shell.clone() }
    }

    fn ended(&mut self, shell: &mut Shell, inner: Shell, place: &'static str) {
        let known = |name: &str| shell.variables.contains_key(name);
        shell.keeps.ended(inner.keeps, place, &self.script.losses, known);
        shell.files = inner.files;
    }

    /// Each part is a process, and they run together; the exit code is that of the last one, unless the shell says otherwise.
    fn pipeline(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        let parts = named(node);
        let Some((last, before)) = parts.split_last() else { return };
        let code = self.hide_codes(source, node, shell);
        let mut ended = vec![];
        for part in before {
            let mut inner = self.start(shell);
            self.walk(source, *part, &mut inner);
            ended.push(inner);
        }
        shell.code = code;
        // `cat <<END | first && second`: the grammar has the list in the pipe.
        let sides = if last.kind() == "list" { named(*last) } else { vec![*last] };
        let (last, after) = sides.split_first().unwrap_or((last, &[]));
        let given = before.iter().map(|part| unhide(source.of(*part), &self.hidden)).collect::<Vec<_>>().join(" | ");
        if shell.lastpipe {
            self.over(Some(given), shell, |this, shell| this.walk(source, *last, shell));
        } else {
            let mut inner = self.start(shell);
            self.over(Some(given), &mut inner, |this, inner| this.walk(source, *last, inner));
            ended.push(inner);
        }
        ended.into_iter().for_each(|inner| self.ended(shell, inner, "a part of a pipe"));
        let condition = Around::Condition(String::new());
        self.perhaps(shell, condition, |this, shell| after.iter().for_each(|side| this.walk(source, *side, shell)));
    }

    /// From now on exit codes are hidden by the last part of this pipe, if they are. Returns what became of them before.
    fn hide_codes(&mut self, source: &Source, pipe: Node<'_>, shell: &mut Shell) -> ExitCode {
        let later = std::iter::successors(pipe.next_named_sibling(), |next| next.next_named_sibling());
        let mut later = later.filter(|next| next.kind() != "comment");
        let reads = |next: &Node<'_>| source.of(*next).contains("PIPESTATUS");
        let is_read = later.next().as_ref().is_some_and(reads);
        let last = named(pipe).last().map_or("", |last| source.of(*last).split_whitespace().next().unwrap_or_default());
        let code = shell.code;
        // A condition on `grep` asks for a line.
        let asks = code == ExitCode::Read && last.ends_with("grep");
        if !(shell.pipefail || is_read || asks) {
            let read_late = later.find(reads).map(|next| source.line_of(next));
            self.script.pipes.push(Pipe { last: last.into(), read_late });
            shell.code = ExitCode::Piped(self.script.pipes.len() - 1);
        }
        code
    }

    /// `((n++))`
    fn calculation(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        self.reads(source, node, shell);
        for (part, name) in calculated(node) {
            let grows = if children(part).iter().any(|sign| sign.kind() == "=") { "" } else { source.of(node) };
            shell.keeps.sets(source.line_of(name), source.of(name), grows);
            shell.variables.insert(source.of(name).into(), Value::Unknown);
        }
    }

    /// Expands the variables in a text.
    fn reads(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        let text = unhide(source.of(node), &self.hidden);
        shell.keeps.reads(source.line_of(node), &text, &mut self.script.losses);
        let mut parts = vec![node];
        while let Some(part) = parts.pop() {
            match part.kind() {
                "simple_expansion" | "expansion" => {
                    let made = (source.line_of(part), source.of(part).to_owned(), shell.far.clone());
                    self.script.expanded.push(made);
                }
                // It has a walk of its own.
                "command_substitution" | "process_substitution" => {}
                _ => parts.extend(named(part)),
            }
        }
    }

    /// Each part is taken or not.
    fn branches(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        if let Some(value) = node.child_by_field_name("value") {
            self.reads(source, value, shell);
        }
        let mut asked: Vec<&str> = vec![];
        let mut parts = vec![node];
        while let Some(part) = parts.pop() {
            for name in ["condition", "value"] {
                asked.extend(part.children_by_field_name(name, &mut part.walk()).map(|asks| source.of(asks)));
            }
            if part.kind() == "elif_clause" {
                asked.extend(named(part).first().map(|asks| source.of(*asks)));
            }
            parts.extend(named(part).into_iter().filter(|part| matches!(part.kind(), "elif_clause" | "case_item")));
        }
        let condition = Around::Condition(unhide(&asked.join(" "), &self.hidden));
        self.perhaps(shell, condition, |this, shell| this.each(source, node, shell));
    }

    fn perhaps(&mut self, shell: &mut Shell, condition: Around, body: impl FnOnce(&mut Self, &mut Shell)) {
        let before = (shell.conditional, self.script.assigned.len());
        shell.conditional = true;
        shell.around.push(condition);
        body(self, shell);
        shell.around.pop();
        shell.conditional = before.0;
        for assigned in &self.script.assigned[before.1..] {
            shell.variables.insert(assigned.name.clone(), Value::Unknown);
        }
    }

    fn redirected<'t>(&mut self, source: &Source, node: Node<'t>, shell: &mut Shell) {
        let mut redirects = Redirects::default();
        let mut body = None;
        let mut further = vec![];
        for part in named(node) {
            match part.kind() {
                "file_redirect" => self.redirect(source, part, shell, &mut redirects),
                "heredoc_redirect" => {
                    redirects.document = self.document(source, part, shell);
                    for rest in named(part) {
                        match rest.kind() {
                            "file_redirect" => self.redirect(source, rest, shell, &mut redirects),
                            "heredoc_body" | "heredoc_start" | "heredoc_end" | "file_descriptor" => {}
                            kind if is_word(kind) => redirects.words.push(rest),
                            _ => further.push(rest),
                        }
                    }
                }
                "herestring_redirect" => {
                    self.within(source, part, shell);
                    redirects.input = Some(unhide(source.of(part), &self.hidden));
                }
                _ => body = Some(part),
            }
        }
        // `command <<END | tee log`: the grammar has the rest of the pipe in the here-document's redirection.
        let pipe = further.iter().find(|rest| rest.kind() == "pipeline");
        let code = pipe.map_or(shell.code, |pipe| self.hide_codes(source, *pipe, shell));
        match body {
            Some(body) if body.kind() == "command" => self.command(source, body, shell, redirects),
            Some(body) => self.over(redirects.input.take(), shell, |this, shell| this.walk(source, body, shell)),
            None => {}
        }
        shell.code = code;
        further.into_iter().for_each(|rest| self.walk(source, rest, shell));
    }

    /// A redirection to or from a file; the grammar puts the command's remaining words behind it.
    fn redirect<'t>(&mut self, source: &Source, node: Node<'t>, shell: &mut Shell, redirects: &mut Redirects<'t>) {
        self.within(source, node, shell);
        self.reads(source, node, shell);
        let mut words = node.children_by_field_name("destination", &mut node.walk()).collect::<Vec<_>>().into_iter();
        let Some(file) = words.next() else { return };
        redirects.words.extend(words);
        if children(node).iter().any(|sign| sign.kind() == "<") {
            redirects.input = Some(unhide(source.of(file), &self.hidden));
        }
        if children(node).iter().any(|sign| [">", ">>", ">|", "&>"].contains(&sign.kind())) {
            let file = self.expand(source, file, shell, false).into_iter().next();
            redirects.target = file.map(|pieces| Word::new(0, "", false, pieces).text).or(redirects.target.take());
        }
    }

    /// A here-document's text, for the shell that reads it.
    fn document(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) -> Option<Source> {
        let (start, body) = (child(node, "heredoc_start")?, child(node, "heredoc_body")?);
        let lines = source.line_of(body)..source.line + body.end_position().row;
        self.script.documents.push(lines);
        let quoted = source.of(start).contains(['\'', '"', '\\']);
        let pieces = if quoted { vec![Piece::Text(source.of(body).into())] } else { self.quoted(source, body, shell) };
        self.within(source, body, shell);
        if !quoted {
            self.reads(source, body, shell);
        }
        Some(Source { text: handed(&pieces), line: source.line_of(body) })
    }

    /// Runs the substitutions in a word or redirection.
    fn within(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        if matches!(node.kind(), "command_substitution" | "process_substitution") {
            self.walk(source, node, shell);
        } else {
            named(node).into_iter().for_each(|child| self.within(source, child, shell));
        }
    }

    fn command<'t>(&mut self, source: &Source, node: Node<'t>, shell: &mut Shell, mut redirects: Redirects<'t>) {
        let parts = named(node);
        // The grammar reads a line of several assignments as the beginning of the next command.
        let ends_line = |pair: &[Node<'_>]| {
            let between = &source.text[pair[0].end_byte()..pair[1].start_byte()];
            pair[0].kind() == "variable_assignment" && between.replace("\\\n", "").contains('\n')
        };
        let (lines, parts) = parts.split_at(parts.windows(2).rposition(ends_line).map_or(0, |at| at + 1));
        self.assignments(source, lines, shell);
        let Some(first) = parts.first() else { return };
        let mut command = self.begin(source, *first, shell);
        for part in parts.iter().copied() {
            self.within(source, part, shell);
            self.reads(source, part.child_by_field_name("value").unwrap_or(part), shell);
            match part.kind() {
                "variable_assignment" if command.words.is_empty() && is_assignment(source, part) => {
                    let (name, value) = self.assigned(source, part, shell);
                    let word = word_of(source, part, value);
                    self.script.assigned.push(Assigned::new(&name, word.clone(), &command, false));
                    command.assignments.push((name, word));
                }
                "command_name" => {
                    let inner = named(part).first().copied().unwrap_or(part);
                    self.push_words(source, inner, shell, &mut command);
                }
                "file_redirect" => self.redirect(source, part, shell, &mut redirects),
                "heredoc_redirect" | "herestring_redirect" => {}
                _ => self.push_words(source, part, shell, &mut command),
            }
        }
        for word in std::mem::take(&mut redirects.words) {
            self.push_words(source, word, shell, &mut command);
        }
        self.finish(command, shell, redirects);
    }

    fn begin(&self, source: &Source, node: Node<'_>, shell: &Shell) -> Command {
        Command {
            line: source.line_of(node),
            background: shell.background,
            far: shell.far.clone(),
            starter: shell.starter.clone(),
            substituted: shell.substituted,
            conditional: shell.conditional,
            process: shell.process,
            repeated: shell.repeated,
            around: shell.around.clone(),
            otherwise: shell.otherwise,
            code: shell.code,
            ..Command::default()
        }
    }

    fn push_words(&mut self, source: &Source, node: Node<'_>, shell: &Shell, command: &mut Command) {
        let (line, raw, bare) = (source.line_of(node), source.of(node), is_bare(node));
        for pieces in self.expand(source, node, shell, false) {
            let word = Word::new(line, &unhide(raw, &self.hidden), bare, pieces);
            for made in word.made() {
                let lost = shell.lost.iter().find(|name| mentions(made, name) && !shell.variables.contains_key(*name));
                self.script.lost.extend(lost.map(|name| (line, name.clone(), shell.far.clone())));
            }
            command.words.push(word);
        }
    }

    /// Adds a command, and what it starts within this script.
    fn finish(&mut self, mut command: Command, shell: &mut Shell, redirects: Redirects<'_>) {
        // `xargs <hosts`, `xargs -a hosts`, `parallel … :::: hosts`
        let behind = command.words.iter().skip_while(|word| !word.text.starts_with(":::") && word.text != "-a").skip(1);
        let listed = behind.map(|word| word.raw.as_str()).collect::<Vec<_>>().join(" ");
        let listed = Some(listed).filter(|_| ["parallel", "xargs"].contains(&command.program()));
        let over = redirects.input.iter().cloned().chain(listed);
        let over: Vec<_> = over.map(|over| Around::Loop { variable: String::new(), over }).collect();
        command.around.extend(over.clone());
        if let (Some(file), Some(document)) = (&redirects.target, &redirects.document) {
            shell.files.insert(file.clone(), document.clone());
        }
        let text = || command.words.iter().map(|word| word.raw.as_str()).collect::<Vec<_>>().join(" ");
        let copy = command.words.last().filter(|_| ["cp", "mv", "ln"].contains(&command.program()));
        let file = redirects.target.as_ref().or(copy.map(|word| &word.text));
        self.script.filled.extend(file.map(|file| (file.clone(), text())));
        self.script.commands.push(command.clone());
        let program = command.program().to_owned();
        if ["read", "mapfile", "readarray"].contains(&&*program) {
            for word in command.words[1..].iter().filter(|word| !word.text.starts_with('-')) {
                shell.variables.insert(word.text.clone(), Value::Unknown);
                shell.keeps.sets(command.line, &word.text, "");
                self.script.filled.extend(redirects.input.iter().map(|from| (word.text.clone(), from.clone())));
            }
        }
        self.keep(&command, shell);
        if program == "set"
            && command.words.iter().any(|word| ["-a", "-o allexport", "allexport"].contains(&word.text.as_str()))
        {
            self.script.exports_all = true;
        }
        if let Some(body) = shell.functions.get(&program).cloned() {
            let outer = shell.arguments.replace(command.words.iter().map(|word| word.pieces().to_vec()).collect());
            let locals = shell.keeps.locals.len();
            self.run(&body, shell);
            shell.keeps.locals.truncate(locals);
            shell.arguments = outer;
        } else if let Some((starter, text, arguments)) =
            handed_to_a_shell(&command, redirects.document.as_ref(), &shell.files)
        {
            let far = starter.or_else(|| shell.far.clone());
            let pipefail = command.texts().any(|word| word == "pipefail");
            let starter = [shell.starter.clone(), command.words].concat();
            self.processes += 1;
            let process = self.processes;
            let code = shell.code;
            let around = [shell.around.clone(), over].concat();
            let mut inner =
                Shell { starter, pipefail, process, code, around, ..self.inner_shell(shell, far, arguments) };
            self.run(&text, &mut inner);
            self.ended(shell, inner, "a shell of its own");
        }
    }

    /// What a command changes for those after it, and what it uses.
    fn keep(&mut self, command: &Command, shell: &mut Shell) {
        let is_function = shell.functions.contains_key(command.program());
        let words: Vec<&str> = command.texts().collect();
        match words[..] {
            ["set", ..] => {
                for pair in words.windows(2).filter(|pair| pair[1] == "pipefail") {
                    shell.pipefail = pair[0].starts_with('-');
                }
            }
            ["shopt", flag, "lastpipe"] => shell.lastpipe = flag == "-s",
            ["let", ref sums @ ..] => {
                for sum in sums {
                    let name =
                        sum.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').find(|name| !name.is_empty());
                    shell.keeps.sets(command.line, name.unwrap_or_default(), &format!("(({sum}))"));
                }
            }
            _ => {}
        }
        match change(command).filter(|_| !is_function) {
            Some((state, false)) => shell.keeps.changes(command.line, state, words.join(" ")),
            Some((state, true)) => {
                let words = words.join(" ");
                self.process(shell, "a shell of its own", |_, inner| inner.keeps.changes(command.line, state, words));
            }
            None if !is_function => shell.keeps.runs(command, &mut self.script.losses),
            None => {}
        }
    }

    /// A shell that a command starts: it has what was exported, as it was made before, unless it is started by ssh or its like.
    fn inner_shell(&self, shell: &Shell, far: Option<String>, arguments: Vec<Word>) -> Shell {
        let travels = !far.as_deref().is_some_and(is_remote);
        let exported = |name: &String| self.script.exports(name);
        let (kept, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            shell.variables.clone().into_iter().partition(|(name, _)| travels && exported(name));
        let outer = |pieces: &Vec<Piece>| vec![Piece::Text(handed(pieces))];
        let kept = kept.into_iter().map(|(name, value)| match value {
            Value::One(pieces) => (name, Value::One(outer(&pieces))),
            Value::Many(_) | Value::Unknown => (name, Value::Unknown),
        });
        Shell {
            variables: kept.collect(),
            arguments: (!arguments.is_empty())
                .then(|| arguments.iter().map(|word| outer(&word.pieces().to_vec())).collect()),
            lost: if shell.far.is_none() { lost.into_keys().collect() } else { vec![] },
            far,
            conditional: shell.conditional,
            // `export -f`
            functions: shell.functions.clone().into_iter().filter(|(name, _)| travels && exported(name)).collect(),
            // Written files are there for all.
            files: shell.files.clone(),
            keeps: shell.keeps.child(),
            ..Shell::default()
        }
    }

    fn declaration(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell) {
        let mut command = self.begin(source, node, shell);
        let kind = children(node).first().map_or("", |first| first.kind()).to_owned();
        command.words.push(Word::new(command.line, &kind, false, vec![Piece::Text(kind.clone())]));
        let parts = named(node);
        let exports = kind == "export" || parts.iter().any(|part| source.of(*part).starts_with("-x"));
        let is_local = shell.arguments.is_some() && !exports;
        for part in parts {
            self.within(source, part, shell);
            if is_local
                && let Some(name) = source.of(part).split(['=', '[', '+']).next().filter(|name| !name.starts_with('-'))
            {
                shell.keeps.locals.push(name.to_owned());
            }
            let name = match part.kind() {
                "variable_assignment" => self.assign(source, part, shell, &mut command),
                "variable_name" => source.of(part).to_owned(),
                _ => {
                    self.push_words(source, part, shell, &mut command);
                    continue;
                }
            };
            if exports {
                let line = source.line_of(part);
                shell.keeps.changes(line, State::Environment, format!("export {name}"));
                self.script.exported.push(Exported { line, name, is_far: shell.far.is_some() });
            }
        }
        self.script.commands.push(command);
    }

    /// `NAME=value` on its own, once or several times.
    fn assignments(&mut self, source: &Source, parts: &[Node<'_>], shell: &mut Shell) {
        let Some(first) = parts.first() else { return };
        let mut command = self.begin(source, *first, shell);
        for part in parts {
            self.within(source, *part, shell);
            if is_assignment(source, *part) {
                self.assign(source, *part, shell, &mut command);
            } else {
                // An option that a lost line ends before, such as `--rdzv_id=$x`.
                command.words.push(word_of(source, *part, vec![Piece::Text(source.of(*part).into())]));
            }
        }
        self.finish(command, shell, Redirects::default());
    }

    fn assign(&mut self, source: &Source, node: Node<'_>, shell: &mut Shell, command: &mut Command) -> String {
        let (name, pieces) = self.assigned(source, node, shell);
        let value = node.child_by_field_name("value");
        value.into_iter().for_each(|value| self.reads(source, value, shell));
        let adds = children(node).iter().any(|sign| sign.kind() == "+=");
        let made_of = if adds { format!("${name}") } else { value.map_or("", |value| source.of(value)).into() };
        shell.keeps.sets(source.line_of(node), &name, &made_of);
        let array = child(node, "array");
        let word = word_of(source, node, pieces.clone());
        self.script.assigned.push(Assigned::new(&name, word.clone(), command, true));
        command.assignments.push((name.clone(), word));
        let known = shell.variables.get(&name).filter(|_| adds).cloned();
        let value = match (array, known) {
            (Some(array), known) => {
                let mut items = match known {
                    Some(Value::Many(items)) => items,
                    Some(Value::One(pieces)) => vec![pieces],
                    _ => vec![],
                };
                named(array).into_iter().for_each(|item| items.extend(self.expand(source, item, shell, false)));
                Value::Many(items)
            }
            (None, Some(Value::One(before))) => Value::One([before, pieces].concat()),
            (None, Some(Value::Many(_) | Value::Unknown)) => Value::Unknown,
            // What one command prints, or a calculation: it is called by the variable's name.
            (None, None) if matches!(&*pieces, [Piece::Made(made)] if made.starts_with("$(") || made.starts_with('`')) => {
                Value::Unknown
            }
            (None, None) if child(node, "subscript").is_some() => Value::Unknown,
            (None, None) => Value::One(pieces),
        };
        let length: usize = match &value {
            Value::One(pieces) => length(pieces),
            Value::Many(items) => items.iter().map(|pieces| length(pieces)).sum(),
            Value::Unknown => 0,
        };
        shell.variables.insert(name.clone(), if length > LONGEST { Value::Unknown } else { value });
        name
    }

    /// Name and value of an assignment.
    fn assigned(&mut self, source: &Source, node: Node<'_>, shell: &Shell) -> (String, Vec<Piece>) {
        let name = named(node).first().map_or("", |name| source.of(*name));
        let name = name.split('[').next().unwrap_or_default().to_owned();
        let value = node.child_by_field_name("value").filter(|value| value.kind() != "array");
        let pieces = value.map(|value| self.one(source, value, shell)).unwrap_or_default();
        (name, pieces)
    }

    /// A word that is not split: an assignment's value.
    fn one(&mut self, source: &Source, node: Node<'_>, shell: &Shell) -> Vec<Piece> {
        self.expand(source, node, shell, true).concat()
    }

    /// The words that a word makes.
    fn expand(&mut self, source: &Source, node: Node<'_>, shell: &Shell, quoted: bool) -> Vec<Vec<Piece>> {
        let text = unhide(source.of(node), &self.hidden);
        match node.kind() {
            "raw_string" => vec![vec![Piece::Text(text.trim_matches('\'').into())]],
            "ansi_c_string" => {
                let inner = text.trim_start_matches("$'").trim_end_matches('\'');
                vec![vec![Piece::Text(inner.replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'"))]]
            }
            "string" | "translated_string" => self.string(source, node, shell),
            "concatenation" => self.joined(source, node, shell, quoted),
            "simple_expansion" | "expansion" => self.expansion(source, node, shell, quoted),
            "command_substitution" | "arithmetic_expansion" => vec![vec![Piece::Made(text)]],
            "variable_assignment" if !is_assignment(source, node) => {
                vec![vec![Piece::Text(text)]]
            }
            _ => vec![vec![Piece::Text(unescaped(&text, None))]],
        }
    }

    /// A text in double quotes: one word, or several if it is all of an array.
    fn string(&mut self, source: &Source, node: Node<'_>, shell: &Shell) -> Vec<Vec<Piece>> {
        if let [only] = *named(node)
            && matches!(only.kind(), "expansion" | "simple_expansion")
            && source.of(node).len() == source.of(only).len() + 2
        {
            return self.expansion(source, only, shell, true);
        }
        vec![self.quoted(source, node, shell)]
    }

    /// The contents of double quotes or of a here-document: expansions, and the text between them.
    fn quoted(&mut self, source: &Source, node: Node<'_>, shell: &Shell) -> Vec<Piece> {
        let (mut pieces, mut at) = (vec![], node.start_byte());
        let text = |from: usize, to: usize, hidden: &[String]| {
            Piece::Text(unescaped(&unhide(&source.text[from..to], hidden), Some("\\\"$`")))
        };
        let in_string = node.kind() != "heredoc_body";
        let end = node.end_byte() - usize::from(in_string && source.of(node).len() > 1);
        at += source.of(node).find('"').map_or(0, |quote| if in_string { quote + 1 } else { 0 });
        for part in named(node).into_iter().filter(|part| !matches!(part.kind(), "string_content" | "heredoc_content"))
        {
            pieces.extend((part.start_byte() > at).then(|| text(at, part.start_byte(), &self.hidden)));
            pieces.extend(self.expand(source, part, shell, true).concat());
            at = part.end_byte();
        }
        pieces.extend((end > at).then(|| text(at, end, &self.hidden)));
        pieces
    }

    /// Parts without a blank between them.
    fn joined(&mut self, source: &Source, node: Node<'_>, shell: &Shell, quoted: bool) -> Vec<Vec<Piece>> {
        let mut words: Vec<Vec<Piece>> = vec![vec![]];
        for part in named(node) {
            let mut more = self.expand(source, part, shell, quoted).into_iter();
            if let (Some(last), Some(first)) = (words.last_mut(), more.next()) {
                last.extend(first);
            }
            words.extend(more);
        }
        words
    }

    fn expansion(&mut self, source: &Source, node: Node<'_>, shell: &Shell, quoted: bool) -> Vec<Vec<Piece>> {
        let text = unhide(source.of(node), &self.hidden);
        let unknown = || vec![vec![Piece::Made(text.clone())]];
        let inner = text.trim_start_matches("${").trim_start_matches('$').trim_end_matches('}');
        let (name, rest) =
            inner.split_at(inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len()));
        let whole = ["[@]", "[*]"].contains(&rest);
        if let Some(arguments) = shell.arguments.as_ref().filter(|_| name.is_empty() || name.parse::<usize>().is_ok()) {
            return match (inner, name.parse::<usize>()) {
                ("@" | "*", _) => arguments.iter().skip(1).cloned().collect(),
                (_, Ok(index)) if rest.is_empty() => arguments.get(index).cloned().into_iter().collect(),
                _ => unknown(),
            };
        }
        let index = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse::<usize>().ok());
        let pieces = match shell.variables.get(name) {
            Some(Value::Many(items)) if whole => return items.clone(),
            Some(Value::Many(items)) if rest.is_empty() || index.is_some() => match items.get(index.unwrap_or(0)) {
                Some(pieces) if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))) => pieces.clone(),
                _ => return unknown(),
            },
            Some(Value::One(pieces)) if rest.is_empty() || whole || rest.starts_with(":-") => pieces.clone(),
            _ => return unknown(),
        };
        if quoted { vec![pieces] } else { split(&pieces) }
    }
}

/// The calculations in it that change a variable, `n++` or `n += 1`, and this variable.
fn calculated(node: Node<'_>) -> Vec<(Node<'_>, Node<'_>)> {
    let sign = |child: &Node<'_>| {
        matches!(child.kind(), "++" | "--")
            || child.kind().ends_with('=') && !matches!(child.kind(), "==" | "!=" | "<=" | ">=")
    };
    let changed = |part: Node<'_>| part.kind() != "variable_assignment" && children(part).iter().any(sign);
    below(node)
        .into_iter()
        .filter(|part| changed(*part))
        .filter_map(|part| Some((part, child(part, "variable_name")?)))
        .collect()
}

/// The variables that a loop changes.
fn changed(source: &Source, node: Node<'_>) -> Vec<String> {
    let assigned = below(node).into_iter().filter(|part| part.kind() == "variable_assignment");
    let assigned = assigned.filter_map(|part| child(part, "variable_name"));
    let calculated = calculated(node).into_iter().map(|(_, name)| name);
    calculated.chain(assigned).map(|name| source.of(name).to_owned()).collect()
}

/// The next statement.
fn next_of<'t>(rest: &[Node<'t>]) -> Option<Node<'t>> {
    rest.iter().copied().find(|next| next.is_named() && next.kind() != "comment")
}

fn length(pieces: &[Piece]) -> usize {
    pieces.iter().map(|(Piece::Text(text) | Piece::Made(text))| text.len() + 1).sum()
}

/// Splits known text at its blanks.
fn split(pieces: &[Piece]) -> Vec<Vec<Piece>> {
    let mut words: Vec<Vec<Piece>> = vec![];
    let mut fresh = true;
    for piece in pieces {
        let Piece::Text(text) = piece else {
            if fresh {
                words.push(vec![]);
            }
            words.last_mut().expect("one was begun").push(piece.clone());
            fresh = false;
            continue;
        };
        for part in text.split_inclusive(char::is_whitespace) {
            let word = part.trim_end();
            if !word.is_empty() {
                if fresh {
                    words.push(vec![]);
                }
                words.last_mut().expect("one was begun").push(Piece::Text(word.into()));
                fresh = false;
            }
            fresh |= part.len() > word.len();
        }
    }
    words
}

/// Without backslashes; in double quotes they count before these characters only.
fn unescaped(text: &str, only: Option<&str>) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') => {}
                Some(next) if only.is_none_or(|only| only.contains(next)) => out.push(next),
                Some(next) => out.extend(['\\', next]),
                None => out.push('\\'),
            },
            _ => out.push(c),
        }
    }
    out
}

fn word_of(source: &Source, node: Node<'_>, pieces: Vec<Piece>) -> Word {
    let value = node.child_by_field_name("value").unwrap_or(node);
    Word::new(source.line_of(node), source.of(value), is_bare(value), pieces)
}

/// The grammar also reads `--option=$x` at the beginning of a command as an assignment.
fn is_assignment(source: &Source, node: Node<'_>) -> bool {
    let name = source.of(node).split(['=', '[', '+']).next().unwrap_or_default();
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_word(kind: &str) -> bool {
    matches!(
        kind,
        "word"
            | "number"
            | "string"
            | "raw_string"
            | "concatenation"
            | "expansion"
            | "simple_expansion"
            | "command_substitution"
    )
}

/// It has an expansion outside quotes.
fn is_bare(node: Node<'_>) -> bool {
    let expands = |kind| matches!(kind, "expansion" | "simple_expansion" | "command_substitution");
    expands(node.kind()) || node.kind() == "concatenation" && named(node).iter().any(|part| expands(part.kind()))
}

/// Returns true if an expansion as it is written names this variable.
pub(super) fn mentions(made: &str, name: &str) -> bool {
    made.match_indices(name).any(|(at, _)| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (before, after) = (&made[..at], &made[at + name.len()..]);
        let before = before.strip_suffix('{').unwrap_or(before).strip_suffix(['#', '!']).unwrap_or(before);
        let sign = before.strip_suffix('{').unwrap_or(before).strip_suffix('$');
        sign.is_some_and(|before| !before.ends_with('\\')) && !after.starts_with(is_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of each command.
    fn words(text: &str) -> Vec<String> {
        let commands = Script::read(text).commands;
        let line = |command: &Command| command.texts().collect::<Vec<_>>().join("|");
        commands.iter().filter(|command| !command.words.is_empty()).map(line).collect()
    }

    #[test]
    fn splits_commands_and_words_as_bash_does() {
        assert_eq!(words("a b;c | d && e & # f\ng \\\n h"), ["a|b", "c", "d", "e", "g|h"]);
        assert_eq!(words("x 'a b' \"c $(d \\\"e\\\")\" f\\ g"), ["d|\"e\"", "x|a b|c $(d \\\"e\\\")|f g"]);
        assert_eq!(words("a >out 2>&1 <in b"), ["a|b"]);
    }

    #[test]
    fn replaces_what_the_script_itself_says() {
        let text = "a=1 b='2 3'\nc=$a$b d=\"$b\"\nA=(x \"$b\" $b)\nA+=(y)\nf() { g \"$2\" \"$@\"; }\nh $a$c ${A[@]} \"${A[1]}\" ${u:-5}\nf \
            1 2\n";
        assert_eq!(words(text), ["h|112|3|x|2 3|2|3|y|2 3|${u:-5}", "f|1|2", "g|2|1|2"]);
    }

    #[test]
    fn what_a_branch_or_a_command_decides_is_not_known() {
        let text = "a=1\nif b; then a=2; fi\nc $a\nd=$(e)\nf \"$d\"\nread -r g\nh $g\nfor i in 1 2; do j $i; done\n";
        assert_eq!(words(text), ["b", "c|$a", "e", "f|$d", "read|-r|g", "h|$g", "j|$i"]);
    }

    #[test]
    fn another_shell_gets_what_was_exported_and_what_this_one_has_made() {
        let script = Script::read("export a=1 b=$(x)\nc=3\nsrun bash -c 'd $a $b $c $R' && ssh h \"e $b \\$R\"\n");
        let far: Vec<_> = script.commands.iter().filter(|command| command.far.is_some()).collect();
        assert_eq!(far[0].texts().collect::<Vec<_>>(), ["d", "1", "$b", "$c", "$R"]);
        assert_eq!(script.lost, [(3, "c".to_owned(), Some("srun".to_owned()))]);
        assert_eq!(super::super::words::made_outside(&far[1].words[1].text).collect::<Vec<_>>(), ["b"]);
        assert_eq!(far[1].words[2].text, "$R");
    }
}

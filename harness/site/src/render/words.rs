//! Words of a shell script and what is known of them before anything runs; bash's grammar; and the numbers that a calculation can
//! give: a port that is computed from the job's id has to be valid for every id.

use tree_sitter::{Node, Parser, Tree};

use super::script::Script;

/// Marks around text that an outer shell inserts before this shell reads it: characters for private use in Unicode.
const MADE: char = '\u{e000}';
const END: char = '\u{e001}';

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The text without its quotes. Text that outer shells have inserted is marked in it.
    Text(String),
    /// An expansion of this shell, as it is written: `$head`, `$(hostname)`.
    Made(String),
}

/// A word, its known variables replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// Its line, from 1.
    pub(super) line: usize,
    /// As it stands in the script.
    pub(super) raw: String,
    /// It has an expansion outside quotes.
    pub(super) bare: bool,
    /// The word is one whole expansion, which may become several words.
    pub(super) open: bool,
    /// Without its quotes. Expansions of its shell are in it as they are written; text that outer shells have inserted, between marks.
    pub(super) text: String,
    pieces: Vec<Piece>,
}

impl Word {
    pub(super) fn new(line: usize, raw: &str, bare: bool, pieces: Vec<Piece>) -> Self {
        let text = pieces.iter().map(|(Piece::Text(text) | Piece::Made(text))| text.as_str()).collect();
        let open = matches!(&*pieces, [Piece::Made(made)] if bare || made.contains(['@', '*']));
        Word { line, raw: raw.into(), bare, open, text, pieces }
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// What the word's own shell expands in it.
    pub(super) fn made(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Made(made) => Some(made.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// The text as another shell gets it: what this shell expands is marked.
    pub(super) fn handed(&self) -> String {
        handed(&self.pieces)
    }
}

/// The pieces as another shell gets them.
pub(super) fn handed(pieces: &[Piece]) -> String {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(known) => text.push_str(known),
            Piece::Made(made) => text.push_str(&format!("{MADE}{}{END}", made.trim_start_matches('$'))),
        }
    }
    text
}

/// The parts of a text that outer shells have inserted.
pub(super) fn made_outside(text: &str) -> impl Iterator<Item = &str> {
    text.split(MADE).skip(1).map(|rest| rest.split(END).next().unwrap_or_default())
}

/// Replaces inserted parts by numbers, since their characters have no meaning to this shell, and keeps the parts in a list.
pub(super) fn hide(text: &str, hidden: &mut Vec<String>) -> String {
    let mut parts = text.split(MADE);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (made, rest) = part.split_once(END).unwrap_or((part, ""));
        out.push_str(&format!("{MADE}{}{END}{rest}", hidden.len()));
        hidden.push(made.into());
    }
    out
}

/// Undoes [`hide`].
pub(super) fn unhide(text: &str, hidden: &[String]) -> String {
    let mut parts = text.split(MADE);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (number, rest) = part.split_once(END).unwrap_or((part, ""));
        let made = number.parse().ok().and_then(|number: usize| hidden.get(number)).map_or(number, String::as_str);
        out.push_str(&format!("{MADE}{made}{END}{rest}"));
    }
    out
}

/// The text for people.
pub(super) fn shown(text: &str) -> String {
    text.replace(MADE, "$").replace(END, "")
}

/// Returns true if no shell expands anything in it.
pub(super) fn is_plain(text: &str) -> bool {
    !text.contains(['$', '`', MADE])
}

// ---- bash's grammar, from tree-sitter

/// A text of shell and its place.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) text: String,
    /// The number of its first line.
    pub(super) line: usize,
}

impl Source {
    /// Parses it. Where the grammar does not fit, the tree has error nodes. Rejects text that is nested deeper than people write.
    pub(super) fn parse(&self) -> Option<Tree> {
        let mut parser = Parser::new();
        parser.set_language(&tree_sitter_bash::LANGUAGE.into()).expect("the grammar is of the library's version");
        let tree = parser.parse(&self.text, None).expect("nothing ends it early");
        is_flat(&tree).then_some(tree)
    }

    /// What a node stands for.
    pub(super) fn of(&self, node: Node<'_>) -> &str {
        &self.text[node.byte_range()]
    }

    /// A node's line.
    pub(super) fn line_of(&self, node: Node<'_>) -> usize {
        self.line + node.start_position().row
    }

    /// The part of it that a node stands for.
    pub(super) fn part(&self, node: Node<'_>) -> Source {
        Source { text: self.of(node).into(), line: self.line_of(node) }
    }
}

/// The greatest depth of a tree: reading it takes a recursive call for each level.
const DEEPEST: u32 = 250;

fn is_flat(tree: &Tree) -> bool {
    let mut cursor = tree.walk();
    loop {
        if cursor.depth() > DEEPEST {
            return false;
        }
        if cursor.goto_first_child() || cursor.goto_next_sibling() {
            continue;
        }
        loop {
            if !cursor.goto_parent() {
                return true;
            }
            if cursor.goto_next_sibling() {
                break;
            }
        }
    }
}

/// The first node that the grammar does not fit, or that it misses.
pub(super) fn first_error(node: Node<'_>) -> Option<Node<'_>> {
    let is_wrong = node.is_error() || node.is_missing();
    if is_wrong {
        Some(node)
    } else {
        children(node).into_iter().filter(|child| child.has_error()).find_map(first_error)
    }
}

/// A node's children, punctuation included.
pub(super) fn children(node: Node<'_>) -> Vec<Node<'_>> {
    node.children(&mut node.walk()).collect()
}

/// The children that have a name in the grammar.
pub(super) fn named(node: Node<'_>) -> Vec<Node<'_>> {
    node.named_children(&mut node.walk()).collect()
}

/// The descendants that have a name in the grammar.
pub(super) fn below(node: Node<'_>) -> Vec<Node<'_>> {
    let (mut all, mut parts) = (vec![], named(node));
    while let Some(part) = parts.pop() {
        all.push(part);
        parts.extend(named(part));
    }
    all
}

/// The first child of this kind.
pub(super) fn child<'a>(node: Node<'a>, kind: &str) -> Option<Node<'a>> {
    named(node).into_iter().find(|child| child.kind() == kind)
}

// ---- numbers

/// The largest id of a job: Slurm's go up to this one (MaxJobId), and then start over.
const JOB_IDS: Range = Range { least: 1, most: 67_043_328, zeros: false };
const RANDOM: Range = Range { least: 0, most: 32_767, zeros: false };

/// The least and the most that something can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) least: i64,
    pub(super) most: i64,
    /// Bash may have to read it as an octal number: a part of it begins with 0 and is not said to be decimal.
    pub(super) zeros: bool,
}

/// The numbers to which a text of shell can expand, if it is known to be a number.
pub(super) fn range(text: &str, script: &Script) -> Option<Range> {
    Reader { script, source: Source { text: format!("x={text}"), line: 1 }, depth: 0 }.all()
}

struct Reader<'a> {
    script: &'a Script,
    source: Source,
    depth: usize,
}

impl Reader<'_> {
    fn all(&self) -> Option<Range> {
        let tree = self.source.parse()?;
        self.of(tree.root_node().named_child(0)?.child_by_field_name("value")?, false)
    }

    fn number(text: &str) -> Option<Range> {
        let text = text.strip_prefix("10#").unwrap_or(text);
        text.parse().ok().map(|number| Range { least: number, most: number, zeros: false })
    }

    /// `calculates`: within `$((` and `))`, where a number that begins with 0 is octal.
    fn of(&self, node: Node<'_>, calculates: bool) -> Option<Range> {
        let text = self.source.of(node);
        let parts = named(node);
        match node.kind() {
            "number" if !parts.is_empty() => {
                let range = self.of(*parts.first().filter(|_| text.starts_with("10#"))?, calculates)?;
                Some(Range { zeros: false, ..range })
            }
            "number" | "word" => Self::number(text),
            "variable_name" => self.variable(text),
            "string" | "parenthesized_expression" | "arithmetic_expansion" => self
                .of(*parts.first().filter(|_| parts.len() == 1)?, calculates || node.kind() == "arithmetic_expansion"),
            "simple_expansion" => self.variable(text.trim_start_matches('$')),
            "expansion" => self.expansion(text, calculates),
            "binary_expression" => {
                let sign = children(node).into_iter().find(|child| !child.is_named())?.kind();
                binary(self.of(*parts.first()?, true)?, sign, self.of(*parts.get(1)?, true)?)
            }
            "concatenation" => self.digits(&parts),
            "command_substitution" => self.printed(*parts.first()?, calculates),
            _ => None,
        }
    }

    fn variable(&self, name: &str) -> Option<Range> {
        match name {
            "SLURM_JOB_ID" | "SLURM_JOBID" | "SLURM_ARRAY_JOB_ID" | "LSB_JOBID" => return Some(JOB_IDS),
            "RANDOM" => return Some(RANDOM),
            _ => {}
        }
        let value = self.script.variable(name).filter(|assigned| self.depth < 4 && !assigned.conditional)?;
        let source = Source { text: format!("x={}", value.value.raw), line: 1 };
        Reader { script: self.script, source, depth: self.depth + 1 }.all()
    }

    /// `${SLURM_JOB_ID: -4}`.
    fn expansion(&self, text: &str, calculates: bool) -> Option<Range> {
        let inner = text.strip_prefix("${")?.strip_suffix('}')?;
        let Some((name, from)) = inner.split_once(':') else { return self.variable(inner) };
        let last = from.trim().trim_matches(['(', ')']).strip_prefix('-').filter(|_| !from.starts_with('-'))?;
        self.variable(name)?;
        last_digits(last.parse().ok()?, calculates)
    }

    /// Digits, and then the last ones of something.
    fn digits(&self, parts: &[Node<'_>]) -> Option<Range> {
        let [before, after] = parts else { return None };
        let before = self.source.of(*before);
        let after_range = self.of(*after, false)?;
        let width = after_range.most.to_string().len();
        let all_nines =
            after_range.least == 0 && after_range.most == 10_i64.checked_pow(u32::try_from(width).ok()?)? - 1;
        let shift = before.parse::<i64>().ok().filter(|_| all_nines)? * 10_i64.pow(u32::try_from(width).ok()?);
        Some(Range { least: shift, most: shift + after_range.most, zeros: false })
    }

    /// `$(expr 10000 + …)`, `$(echo -n $SLURM_JOB_ID | tail -c 4)`.
    fn printed(&self, node: Node<'_>, calculates: bool) -> Option<Range> {
        let words: Vec<Node<'_>> = named(node);
        let program = |node: Node<'_>| node.child_by_field_name("name").map(|name| self.source.of(name).to_owned());
        match (node.kind(), program(node).as_deref()) {
            ("command", Some("expr")) => {
                let [_, left, sign, right] = *words else { return None };
                binary(self.of(left, false)?, self.source.of(sign).trim_start_matches('\\'), self.of(right, false)?)
            }
            ("pipeline", _) => {
                let [first, last] = *words else { return None };
                let number = program(last).filter(|name| name == "tail")?;
                let count = self.source.of(last).strip_prefix(&number)?.trim().strip_prefix("-c")?.trim();
                let count: u32 = count.trim_start_matches('-').parse().ok()?;
                // Without -n, a line end is the last character.
                let ends = !self.source.of(first).contains("-n") && !self.source.of(first).starts_with("printf");
                last_digits(count - u32::from(ends && count > 0), calculates)
            }
            _ => None,
        }
    }
}

fn last_digits(count: u32, calculates: bool) -> Option<Range> {
    Some(Range { least: 0, most: 10_i64.checked_pow(count)? - 1, zeros: calculates && count > 1 })
}

fn binary(left: Range, sign: &str, right: Range) -> Option<Range> {
    let zeros = left.zeros || right.zeros;
    let (least, most) = match sign {
        "+" => (left.least.checked_add(right.least)?, left.most.checked_add(right.most)?),
        "-" => (left.least.checked_sub(right.most)?, left.most.checked_sub(right.least)?),
        "*" if left.least >= 0 && right.least >= 0 => {
            (left.least.checked_mul(right.least)?, left.most.checked_mul(right.most)?)
        }
        "/" if left.least >= 0 && right.least > 0 => (left.least / right.most, left.most / right.least),
        "%" if left.least >= 0 && right.least > 0 && left.most < right.least => (left.least, left.most),
        "%" if left.least >= 0 && right.least > 0 => (0, right.most - 1),
        _ => return None,
    };
    Some(Range { least, most, zeros })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<(i64, i64, bool)> {
        let script = Script::read("offset=$((SLURM_JOB_ID % 100))\nbase=15000\n");
        range(text, &script).map(|range| (range.least, range.most, range.zeros))
    }

    #[test]
    fn a_port_made_of_the_jobs_id_has_a_least_and_a_most() {
        assert_eq!(of("29500"), Some((29_500, 29_500, false)));
        assert_eq!(of("$((20000 + SLURM_JOB_ID % 10000))"), Some((20_000, 29_999, false)));
        assert_eq!(of("\"$((10000 + $SLURM_JOBID % 60000))\""), Some((10_000, 69_999, false)));
        assert_eq!(of("$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))"), Some((10_000, 19_999, false)));
        assert_eq!(of("$(($base + offset * 2))"), Some((15_000, 15_198, false)));
        assert_eq!(of("$((RANDOM % 1000 + 20000))"), Some((20_000, 20_999, false)));
        assert_eq!(of("1${SLURM_JOB_ID: -4}"), Some((10_000, 19_999, false)));
    }

    #[test]
    fn last_digits_may_begin_with_a_zero_where_bash_calculates() {
        assert_eq!(of("$((10000 + ${SLURM_JOB_ID: -4}))"), Some((10_000, 19_999, true)));
        assert_eq!(of("$((10000 + 10#${SLURM_JOB_ID: -4}))").map(|range| range.2), Some(false));
        assert_eq!(of("$((10000 + $(echo $SLURM_JOB_ID | tail -c 5)))"), Some((10_000, 19_999, true)));
    }

    #[test]
    fn what_only_the_run_shows_has_no_range() {
        for text in ["$(shuf -i 1-9 -n 1)", "$PORT", "$((UID + 1000))", "$(date +%s)", ""] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}

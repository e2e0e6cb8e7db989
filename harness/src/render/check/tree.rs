//! Bash's grammar, from tree-sitter: a text as a tree of commands, words and expansions.

use tree_sitter::{Node, Parser, Tree};

/// A text of shell and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) text: String,
    /// The number of its first line.
    pub(super) line: usize,
}

impl Source {
    /// Reads it. Where the grammar does not fit, the tree has nodes that are errors. Nothing that is nested deeper than people write.
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

/// No node is below more than this many others: what reads the tree calls itself for each.
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

/// Those that have a name in the grammar.
pub(super) fn named(node: Node<'_>) -> Vec<Node<'_>> {
    node.named_children(&mut node.walk()).collect()
}

/// The first child of this kind.
pub(super) fn child<'a>(node: Node<'a>, kind: &str) -> Option<Node<'a>> {
    named(node).into_iter().find(|child| child.kind() == kind)
}

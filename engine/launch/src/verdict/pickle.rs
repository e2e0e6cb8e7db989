//! Reads the part of Python's pickle format in which PyTorch writes its flight recorder: texts, integers, lists, tuples and
//! dictionaries (`torch::jit::Pickler`, torch/csrc/jit/serialization/pickler.cpp; opcodes as in Python's `pickletools`).
//!
//! Everything else is refused, above all the opcodes that name and call functions. Depth and size of the result are limited.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

/// The deepest nesting of the result. A recorded frame of a stack is 5 deep.
const DEEPEST: usize = 16;
/// The total size of the texts and the number of other values in the result: a text can be used often.
const LARGEST: usize = 64 << 20;

/// Why bytes are not such a pickle.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum PickleError {
    #[error("it ends too early")]
    Truncated,
    #[error("byte {at} is the opcode {opcode:#04x}, which plain data does not need")]
    Forbidden { at: usize, opcode: u8 },
    #[error("the opcode at byte {at} does not fit what precedes it")]
    Misplaced { at: usize },
    #[error("a key of a dictionary is neither a text nor a number")]
    Key,
    #[error("its result is too deep or too large")]
    TooLarge,
}

/// A value under construction. Lists and dictionaries refer to their parts by number, since several may share one.
enum Node {
    Plain(Value),
    List(Vec<usize>),
    Dictionary(Vec<(usize, usize)>),
}

/// An entry of the stack.
enum Item {
    Mark,
    Node(usize),
}

struct Unpickler<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Item>,
    memo: BTreeMap<u32, usize>,
}

/// Reads the whole pickle. Keys of dictionaries become texts; bytes after its end are refused.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, PickleError> {
    let mut unpickler = Unpickler { bytes, at: 0, nodes: vec![], stack: vec![], memo: BTreeMap::new() };
    while unpickler.step()? {}
    let rest = unpickler.at < bytes.len();
    match (unpickler.stack.pop(), unpickler.stack.is_empty() && !rest) {
        (Some(Item::Node(node)), true) => resolve(&unpickler.nodes, node, 0, &mut LARGEST.clone()),
        _ => Err(unpickler.misplaced()),
    }
}

/// The value of a node. One that contains itself is too deep.
fn resolve(nodes: &[Node], node: usize, depth: usize, left: &mut usize) -> Result<Value, PickleError> {
    let size = match &nodes[node] {
        Node::Plain(Value::String(text)) => 1 + text.len(),
        _ => 1,
    };
    *left = left.checked_sub(size).filter(|_| depth <= DEEPEST).ok_or(PickleError::TooLarge)?;
    match &nodes[node] {
        Node::Plain(value) => Ok(value.clone()),
        Node::List(parts) => parts.iter().map(|part| resolve(nodes, *part, depth + 1, left)).collect(),
        Node::Dictionary(parts) => {
            let mut object = Map::new();
            for (key, value) in parts {
                let key = match &nodes[*key] {
                    Node::Plain(Value::String(text)) => text.clone(),
                    Node::Plain(Value::Number(number)) => number.to_string(),
                    _ => return Err(PickleError::Key),
                };
                object.insert(key, resolve(nodes, *value, depth + 1, left)?);
            }
            Ok(Value::Object(object))
        }
    }
}

impl Unpickler<'_> {
    /// Executes one opcode; false after the last one.
    fn step(&mut self) -> Result<bool, PickleError> {
        let begin = self.at;
        match self.take::<1>()?[0] {
            0x80 => drop(self.take::<1>()?), // PROTO
            b'(' => self.stack.push(Item::Mark),
            b'}' => self.push(Node::Dictionary(vec![])),
            b']' | b')' => self.push(Node::List(vec![])),
            b'N' => self.plain(Value::Null),
            0x88 => self.plain(true),
            0x89 => self.plain(false),
            b'K' => self.number(1)?,
            b'M' => self.number(2)?,
            b'J' => {
                let number = i32::from_le_bytes(self.take()?);
                self.plain(number);
            }
            0x8a => self.long()?, // LONG1
            b'G' => {
                let number = f64::from_be_bytes(self.take()?);
                self.plain(number);
            }
            b'X' => {
                let length = u32::from_le_bytes(self.take()?) as usize;
                self.text(length)?;
            }
            0x8c => {
                let length = self.take::<1>()?[0];
                self.text(length.into())?;
            }
            b'q' => {
                let place = self.take::<1>()?[0].into();
                self.put(place)?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.take()?);
                self.put(place)?;
            }
            b'h' => {
                let place = self.take::<1>()?[0].into();
                self.get(place)?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.take()?);
                self.get(place)?;
            }
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' => {
                let parts = self.pop_to_mark()?;
                self.append(parts)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![key, value])?;
            }
            b'u' => {
                let parts = self.pop_to_mark()?;
                self.set(parts)?;
            }
            b't' => {
                let parts = self.pop_to_mark()?;
                self.push(Node::List(parts));
            }
            opcode @ 0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b'.' => return Ok(false),
            opcode => return Err(PickleError::Forbidden { at: begin, opcode }),
        }
        Ok(true)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk()).ok_or(PickleError::Truncated)?;
        self.at += N;
        Ok(*taken)
    }

    fn misplaced(&self) -> PickleError {
        PickleError::Misplaced { at: self.at.saturating_sub(1) }
    }

    fn push(&mut self, node: Node) {
        self.stack.push(Item::Node(self.nodes.len()));
        self.nodes.push(node);
    }

    fn plain(&mut self, value: impl Into<Value>) {
        self.push(Node::Plain(value.into()));
    }

    fn number(&mut self, length: usize) -> Result<(), PickleError> {
        let mut number = 0_u64;
        for place in 0..length {
            number |= u64::from(self.take::<1>()?[0]) << (8 * place);
        }
        self.plain(number);
        Ok(())
    }

    /// A signed number of up to eight bytes.
    fn long(&mut self) -> Result<(), PickleError> {
        let length = usize::from(self.take::<1>()?[0]);
        let bytes = self.bytes.get(self.at..self.at + length).ok_or(PickleError::Truncated)?;
        let negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole.get_mut(..length).ok_or(self.misplaced())?.copy_from_slice(bytes);
        self.at += length;
        self.plain(i64::from_le_bytes(whole));
        Ok(())
    }

    fn text(&mut self, length: usize) -> Result<(), PickleError> {
        let end = self.at.checked_add(length).ok_or(PickleError::Truncated)?;
        let bytes = self.bytes.get(self.at..end).ok_or(PickleError::Truncated)?;
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.at = end;
        self.plain(text);
        Ok(())
    }

    fn put(&mut self, place: u32) -> Result<(), PickleError> {
        let Some(Item::Node(node)) = self.stack.last() else { return Err(self.misplaced()) };
        self.memo.insert(place, *node);
        Ok(())
    }

    fn get(&mut self, place: u32) -> Result<(), PickleError> {
        let node = *self.memo.get(&place).ok_or(self.misplaced())?;
        self.stack.push(Item::Node(node));
        Ok(())
    }

    fn pop(&mut self) -> Result<usize, PickleError> {
        match self.stack.pop() {
            Some(Item::Node(node)) => Ok(node),
            _ => Err(self.misplaced()),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<usize>, PickleError> {
        let mark = self.stack.iter().rposition(|item| matches!(item, Item::Mark)).ok_or(self.misplaced())?;
        let nodes = self.stack.drain(mark..).skip(1);
        Ok(nodes.filter_map(|item| if let Item::Node(node) = item { Some(node) } else { None }).collect())
    }

    fn tuple(&mut self, length: usize) -> Result<(), PickleError> {
        let mut parts = (0..length).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        parts.reverse();
        self.push(Node::List(parts));
        Ok(())
    }

    /// The list or dictionary on top of the stack.
    fn top(&mut self) -> Option<&mut Node> {
        match self.stack.last() {
            Some(Item::Node(node)) => self.nodes.get_mut(*node),
            _ => None,
        }
    }

    fn append(&mut self, parts: Vec<usize>) -> Result<(), PickleError> {
        let misplaced = self.misplaced();
        let Some(Node::List(list)) = self.top() else { return Err(misplaced) };
        list.extend(parts);
        Ok(())
    }

    /// Keys and values in turn.
    fn set(&mut self, parts: Vec<usize>) -> Result<(), PickleError> {
        let misplaced = self.misplaced();
        let (pairs, rest) = parts.as_chunks::<2>();
        match self.top() {
            Some(Node::Dictionary(dictionary)) if rest.is_empty() => {
                dictionary.extend(pairs.iter().map(|[key, value]| (*key, *value)));
                Ok(())
            }
            _ => Err(misplaced),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `{"a": [1, 300, -2, 2**40], "b": ("x", "x"), "c": None, "d": [True, 1.5]}` by Python's `pickle.dumps(…, protocol=2)`.
    const PYTHON: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01M,\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00xq\x04h\x04\x86q\x05X\x01\x00\x00\x00cq\x06NX\x01\x00\x00\x00dq\x07]q\x08(\x88G?\xf8\x00\x00\x00\x00\x00\x00eu.";

    #[test]
    fn reads_what_python_writes() {
        let expected = json!({"a": [1, 300, -2, 1_u64 << 40], "b": ["x", "x"], "c": null, "d": [true, 1.5]});
        assert_eq!(parse(PYTHON), Ok(expected));
    }

    #[test]
    fn reads_a_list_that_is_used_twice() {
        // x = [1]; pickle.dumps({"a": x, "b": x}, protocol=2)
        let shared = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02K\x01aX\x01\x00\x00\x00bq\x03h\x02u.";
        assert_eq!(parse(shared), Ok(json!({"a": [1], "b": [1]})));
    }

    #[test]
    fn refuses_a_pickle_cut_at_any_byte_and_bytes_after_its_end() {
        for length in 0..PYTHON.len() {
            assert!(parse(&PYTHON[..length]).is_err(), "{length}");
        }
        assert!(parse(&[PYTHON, b"."].concat()).is_err());
    }

    #[test]
    fn refuses_opcodes_that_name_or_call_functions() {
        // os.system("true") by GLOBAL and REDUCE, STACK_GLOBAL, INST, OBJ, NEWOBJ, BUILD, PERSID.
        let calls = b"cos\nsystem\n(X\x04\x00\x00\x00truetR.";
        assert_eq!(parse(calls), Err(PickleError::Forbidden { at: 0, opcode: b'c' }));
        for opcode in [b'R', 0x93, b'i', b'o', 0x81, b'b', b'P', b'Q', 0x82, 0x95, b'0', b'2'] {
            assert_eq!(parse(&[b'N', opcode, b'.']), Err(PickleError::Forbidden { at: 1, opcode }));
        }
    }

    #[test]
    fn survives_any_single_changed_byte() {
        for at in 0..PYTHON.len() {
            for value in 0..=255 {
                let mut changed = PYTHON.to_vec();
                changed[at] = value;
                let _ = parse(&changed);
            }
        }
    }

    #[test]
    fn limits_depth_and_size() {
        let deep = [&[b']'; 40][..], &[b'a'; 39], b"."].concat();
        assert_eq!(parse(&deep), Err(PickleError::TooLarge));
        let text = [&b"](X\x00\x00\x10\x00"[..], &vec![b'x'; 1 << 20], b"q\x00"].concat();
        let often = [&text[..], &b"h\x00".repeat(100), b"e."].concat();
        assert_eq!(parse(&often), Err(PickleError::TooLarge));
        // A list in itself.
        assert_eq!(parse(b"]q\x00h\x00a."), Err(PickleError::TooLarge));
        assert!(parse(b"X\xff\xff\xff\xffabc").is_err() && parse(b"e.").is_err() && parse(b"(.").is_err());
    }
}

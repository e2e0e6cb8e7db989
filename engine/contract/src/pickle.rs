//! Python's pickle format, read as plain data: what scripts and PyTorch's own tools leave in files.
//!
//! A pickle is a program: it names functions and calls them, which is how a file can run `os.system`. Here nothing is ever called. The
//! machine knows containers, numbers and texts; which names it accepts beyond these, and what their calls stand for, is up to the reader
//! ([`Objects`]), and any other name is an error.
//!
//! Values are in one list and refer to each other by index: nesting costs no stack, and a value that contains itself is
//! harmless. Memory is bounded by [`MOST_VALUES`] and by the pickle's own length.
//!
//! Source: Python's `pickletools.py`, PyTorch's `torch/_weights_only_unpickler.py`.

use std::collections::HashMap;

use thiserror::Error;

/// How many values a pickle may create, put into containers, hold on its stack, and memoize. A state dict costs about 60 for
/// each of its tensors.
pub const MOST_VALUES: usize = 4_000_000;
/// How many characters of a name an error shows.
const SHOWN: usize = 120;

/// Why bytes are not a pickle that can be read here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PickleError {
    /// It uses a name that its reader does not know.
    #[error("it names {0}")]
    Refused(
        /// The name, shortened and without control characters.
        String,
    ),
    /// It violates the format, or is truncated.
    #[error("{0}")]
    Damaged(String),
}

impl PickleError {
    pub fn damaged(why: impl Into<String>) -> Self {
        PickleError::Damaged(why.into())
    }

    pub fn refused(name: &str) -> Self {
        PickleError::Refused(name.chars().take(SHOWN).flat_map(char::escape_default).collect())
    }

    /// Adds the position in the pickle.
    fn at_byte(self, at: usize) -> Self {
        match self {
            PickleError::Damaged(why) => PickleError::Damaged(format!("{why} (byte {at} of its pickle)")),
            refused @ PickleError::Refused(_) => refused,
        }
    }
}

/// The index of a value in its pickle.
pub type Id = usize;

/// A value. Texts are UTF-8; an object is what its reader makes of names and calls.
#[derive(Debug)]
pub enum Value<O> {
    None,
    Bool(bool),
    Int(i64),
    /// A larger integer: little-endian, two's complement.
    Long(Vec<u8>),
    Float(f64),
    Text(String),
    /// A text of bytes, without its contents.
    Bytes,
    Tuple(Vec<Id>),
    List(Vec<Id>),
    /// In insertion order; of two equal keys the later counts.
    Dict(Vec<(Id, Id)>),
    Object(O),
}

/// What a reader accepts beyond plain data. By default it accepts nothing.
pub trait Objects: Sized {
    /// What a name stands for.
    fn named(module: &str, name: &str) -> Result<Value<Self>, PickleError> {
        Err(PickleError::refused(&format!("{module}.{name}")))
    }

    /// Pushes what a call of the value would return.
    fn call(_machine: &mut Machine<Self>, _callable: Id, _arguments: Id) -> Result<(), PickleError> {
        Err(PickleError::damaged("it calls a value that cannot be called"))
    }

    /// Sets attributes of an object: those of a dict are ignored.
    fn build(machine: &mut Machine<Self>, object: Id, _state: Id) -> Result<(), PickleError> {
        match machine.value(object) {
            Value::Dict(_) => Ok(()),
            _ => Err(PickleError::damaged("it sets attributes of a value that has none")),
        }
    }

    /// Pushes what is stored elsewhere under an id.
    fn persistent(_machine: &mut Machine<Self>, _id: Id) -> Result<(), PickleError> {
        Err(PickleError::damaged("it refers to something outside"))
    }
}

/// Plain data: any name is an error.
#[derive(Debug)]
pub enum Plain {}

impl Objects for Plain {}

/// All values of a pickle, and its result.
#[derive(Debug)]
pub struct Pickle<O> {
    values: Vec<Value<O>>,
    root: Id,
}

impl<O> Pickle<O> {
    /// The result.
    pub fn root(&self) -> &Value<O> {
        &self.values[self.root]
    }

    pub fn get(&self, id: Id) -> &Value<O> {
        &self.values[id]
    }

    /// All values, used or not.
    pub fn values(&self) -> impl Iterator<Item = &Value<O>> {
        self.values.iter()
    }

    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads one pickle from the start of `reader`.
pub fn parse<O: Objects>(reader: &mut Reader<'_>) -> Result<Pickle<O>, PickleError> {
    let mut machine =
        Machine { values: Vec::new(), charged: 0, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    loop {
        let at = reader.at();
        let opcode = reader.byte()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { values: machine.values, root });
        }
        machine.run(opcode, reader).map_err(|bad| bad.at_byte(at))?;
    }
}

/// The state while a pickle is read.
pub struct Machine<O> {
    values: Vec<Value<O>>,
    /// The cost so far of values, their contents, and copies of them.
    charged: usize,
    stack: Vec<Id>,
    /// The height of the stack at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<O: Objects> Machine<O> {
    /// Opcodes by their letters, as in `pickletools.py`.
    fn run(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), PickleError> {
        match opcode {
            0x80 => reader.take(1).map(drop),                      // PROTO
            0x95 => reader.take(8).map(drop),                      // FRAME
            b'(' => self.mark(),                                   // MARK
            b'0' => self.pop_value_or_mark(),                      // POP
            b'1' => self.above_mark().map(drop),                   // POP_MARK
            b'2' => self.top().and_then(|id| self.push_again(id)), // DUP
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Bool(opcode == 0x88)), // NEWTRUE, NEWFALSE
            b'K' | b'M' | b'J' | b'I' | b'L' | 0x8a | 0x8b => {
                integer(opcode, reader).and_then(|value| self.push(value))
            }
            b'G' => reader.array().and_then(|bytes| self.push(Value::Float(f64::from_be_bytes(bytes)))), // BINFLOAT
            b'F' => reader.line().and_then(number).and_then(|float| self.push(Value::Float(float))),     // FLOAT
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'S' | b'V' => text(opcode, reader).and_then(|value| self.push(value)),
            b'C' | b'B' | 0x8e | 0x96 => bytes(opcode, reader).and_then(|()| self.push(Value::Bytes)),
            b')' => self.push(Value::Tuple(Vec::new())),
            b't' | 0x85 | 0x86 | 0x87 => self.tuple(opcode),
            b']' => self.push(Value::List(Vec::new())),
            b'l' => self.above_mark().and_then(|items| self.push(Value::List(items))),
            b'a' => self.pop().and_then(|item| self.append(vec![item])), // APPEND
            b'e' => self.above_mark().and_then(|items| self.append(items)), // APPENDS
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => self.above_mark().and_then(pairs).and_then(|items| self.push(Value::Dict(items))),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(vec![(key, value)]) // SETITEM
            }
            b'u' => self.above_mark().and_then(pairs).and_then(|items| self.set(items)), // SETITEMS
            b'q' | b'r' | b'p' | 0x94 => self.memoize(opcode, reader),
            b'h' | b'j' | b'g' => self.recall(opcode, reader),
            b'c' | 0x93 | b'i' => self.global(opcode, reader),
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                O::call(self, callable, arguments) // REDUCE, NEWOBJ
            }
            b'b' => {
                let (state, object) = (self.pop()?, self.top()?);
                O::build(self, object, state) // BUILD
            }
            b'Q' => self.pop().and_then(|id| O::persistent(self, id)), // BINPERSID
            0x82..=0x84 => Err(PickleError::refused("what the registry copyreg has under a number")), // EXT1, EXT2, EXT4
            other => Err(PickleError::damaged(format!("it has the opcode {other:#04x}, which data does not need"))),
        }
    }

    fn charge(&mut self, count: usize) -> Result<(), PickleError> {
        self.charged = self.charged.saturating_add(count);
        if self.charged > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    /// A container costs its contents, too: one byte of a pickle can push an existing value again.
    pub fn push(&mut self, value: Value<O>) -> Result<(), PickleError> {
        let parts = match &value {
            Value::Tuple(items) | Value::List(items) => items.len(),
            Value::Dict(items) => items.len(),
            _ => 0,
        };
        self.charge(1 + parts)?;
        self.values.push(value);
        self.push_again(self.values.len() - 1)
    }

    /// Pushes an existing value.
    pub fn push_again(&mut self, id: Id) -> Result<(), PickleError> {
        self.stack.push(id);
        if self.stack.len() > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    fn mark(&mut self) -> Result<(), PickleError> {
        self.marks.push(self.stack.len());
        if self.marks.len() > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    /// The start of the part of the stack above the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Id, PickleError> {
        self.stack[self.floor()..]
            .last()
            .copied()
            .ok_or_else(|| PickleError::damaged("a value is missing on its stack"))
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    fn pop_value_or_mark(&mut self) -> Result<(), PickleError> {
        if self.stack.len() > self.floor() { self.pop().map(drop) } else { self.above_mark().map(drop) }
    }

    fn above_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| PickleError::damaged("a mark is missing on its stack"))?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, opcode: u8) -> Result<(), PickleError> {
        let items = match opcode {
            b't' => self.above_mark()?,
            _ => {
                let mut items = (0..opcode - 0x84).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
                items.reverse();
                items
            }
        };
        self.push(Value::Tuple(items))
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), PickleError> {
        self.charge(items.len())?;
        let onto = self.top()?;
        match &mut self.values[onto] {
            Value::List(list) => list.extend(items),
            _ => return Err(PickleError::damaged("it appends to a value that is not a list")),
        }
        Ok(())
    }

    fn set(&mut self, items: Vec<(Id, Id)>) -> Result<(), PickleError> {
        self.charge(items.len())?;
        let into = self.top()?;
        match &mut self.values[into] {
            Value::Dict(dict) => dict.extend(items),
            _ => return Err(PickleError::damaged("it sets an item of a value that is not a dict")),
        }
        Ok(())
    }

    fn memoize(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), PickleError> {
        let place = match opcode {
            0x94 => u32::try_from(self.memo.len()).map_err(|_| too_much())?, // MEMOIZE
            b'q' => reader.byte()?.into(),
            b'r' => u32::from_le_bytes(reader.array()?),
            _ => number(reader.line()?)?,
        };
        let id = self.top()?;
        self.memo.insert(place, id);
        if self.memo.len() > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    fn recall(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), PickleError> {
        let place: u32 = match opcode {
            b'h' => reader.byte()?.into(),
            b'j' => u32::from_le_bytes(reader.array()?),
            _ => number(reader.line()?)?,
        };
        let id = self.memo.get(&place).copied();
        id.map_or_else(
            || Err(PickleError::damaged("it reads a memo entry that it has not written")),
            |id| self.push_again(id),
        )
    }

    /// Looks a name up, which may already be an error.
    fn global(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), PickleError> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            (self.text(module)?.to_owned(), self.text(name)?.to_owned())
        } else {
            (utf8(reader.line()?)?, utf8(reader.line()?)?)
        };
        if opcode == b'i' {
            return Err(PickleError::refused(&format!("{module}.{name}"))); // INST, which makes an object of any class
        }
        self.push(O::named(&module, &name)?)
    }

    pub fn value(&self, id: Id) -> &Value<O> {
        &self.values[id]
    }

    /// Replaces a value.
    pub fn set_value(&mut self, id: Id, value: Value<O>) {
        self.values[id] = value;
    }

    /// The items of a tuple or list, as a copy with a cost: a pickle may request many copies in few bytes.
    pub fn items(&mut self, id: Id) -> Result<Vec<Id>, PickleError> {
        let (Value::Tuple(items) | Value::List(items)) = &self.values[id] else {
            return Err(PickleError::damaged("it has another value where a tuple is expected"));
        };
        let items = if items.len() <= MOST_VALUES - self.charged { items.clone() } else { return Err(too_much()) };
        self.charge(items.len())?;
        Ok(items)
    }

    pub fn text(&self, id: Id) -> Result<&str, PickleError> {
        match &self.values[id] {
            Value::Text(text) => Ok(text),
            _ => Err(PickleError::damaged("it has another value where a text is expected")),
        }
    }

    pub fn int(&self, id: Id) -> Result<i64, PickleError> {
        match self.values[id] {
            Value::Int(value) => Ok(value),
            _ => Err(PickleError::damaged("it has another value where a number is expected")),
        }
    }

    pub fn count(&self, id: Id) -> Result<u64, PickleError> {
        u64::try_from(self.int(id)?).map_err(|_| PickleError::damaged("a length is negative"))
    }
}

pub fn pairs(items: Vec<Id>) -> Result<Vec<(Id, Id)>, PickleError> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(PickleError::damaged("a key of a dict has no value"));
    }
    Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
}

fn too_much() -> PickleError {
    PickleError::damaged(format!("its pickle makes more than {MOST_VALUES} values"))
}

/// The remaining bytes.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// The number of bytes taken so far.
    pub fn at(&self) -> usize {
        self.at
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| {
            PickleError::Damaged(format!("its pickle ends at byte {}, inside of a value", self.bytes.len()))
        })?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array().map(|[byte]| byte)
    }

    /// Takes bytes with a length prefix of 1, 4 or 8 bytes.
    fn counted<const N: usize>(&mut self) -> Result<&'a [u8], PickleError> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.array::<N>()?);
        // A length that does not fit usize exceeds the data.
        self.take(usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX))
    }

    /// Takes the bytes up to the next newline, and the newline.
    fn line(&mut self) -> Result<&'a [u8], PickleError> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let line = self.take(length)?;
        self.take(1)?;
        Ok(line)
    }
}

fn integer<O>(opcode: u8, reader: &mut Reader<'_>) -> Result<Value<O>, PickleError> {
    Ok(match opcode {
        b'K' => Value::Int(reader.byte()?.into()),
        b'M' => Value::Int(u16::from_le_bytes(reader.array()?).into()),
        b'J' => Value::Int(i32::from_le_bytes(reader.array()?).into()),
        b'I' => match reader.line()? {
            truth @ (b"00" | b"01") => Value::Bool(truth == b"01"),
            digits => Value::Int(number(digits)?),
        },
        b'L' => reader.line().and_then(|digits| number(digits.strip_suffix(b"L").unwrap_or(digits))).map(Value::Int)?,
        0x8a => long(reader.counted::<1>()?),
        _ => long(reader.counted::<4>()?),
    })
}

/// Little-endian, two's complement, of any length.
fn long<O>(bytes: &[u8]) -> Value<O> {
    if bytes.len() > 8 {
        return Value::Long(bytes.to_vec());
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}

fn text<O>(opcode: u8, reader: &mut Reader<'_>) -> Result<Value<O>, PickleError> {
    let bytes = match opcode {
        0x8c | b'U' => reader.counted::<1>()?,
        b'X' | b'T' => reader.counted::<4>()?,
        0x8d => reader.counted::<8>()?,
        b'V' => reader.line()?,
        _ => unquoted(reader.line()?)?,
    };
    utf8(bytes).map(Value::Text)
}

fn bytes(opcode: u8, reader: &mut Reader<'_>) -> Result<(), PickleError> {
    match opcode {
        b'C' => reader.counted::<1>(),
        b'B' => reader.counted::<4>(),
        _ => reader.counted::<8>(),
    }
    .map(drop)
}

/// A text of protocol 0, written as in Python's source; names of weights need no escapes.
fn unquoted(line: &[u8]) -> Result<&[u8], PickleError> {
    match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => Ok(inner),
        _ => Err(PickleError::damaged("a text is not quoted as it should be")),
    }
}

fn utf8(bytes: &[u8]) -> Result<String, PickleError> {
    let text = std::str::from_utf8(bytes).map_err(|_| PickleError::damaged("a text is not UTF-8"))?;
    Ok(text.to_owned())
}

fn number<N: std::str::FromStr>(digits: &[u8]) -> Result<N, PickleError> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| PickleError::damaged("it has other bytes where digits are expected"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Pickle<Plain>, PickleError> {
        parse(&mut Reader::new(bytes))
    }

    fn int(bytes: &[u8]) -> i64 {
        match *parsed(bytes).unwrap().root() {
            Value::Int(value) => value,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reads_integers_of_every_width_and_protocol() {
        for (bytes, value) in [
            (&b"K\xff."[..], 255),
            (b"M\x01\x02.", 513),
            (b"J\xfe\xff\xff\xff.", -2),
            (b"I-12\n.", -12),
            (b"L-12L\n.", -12),
            (b"\x8a\x00.", 0),
            (b"\x8a\x01\x80.", -128),
            (b"\x8a\x02\x80\x00.", 128),
            (b"\x8b\x03\x00\x00\x00\x00\x00\x01.", 65536),
        ] {
            assert_eq!(int(bytes), value, "{bytes:?}");
        }
        assert!(
            matches!(parsed(b"\x8a\x09\0\0\0\0\0\0\0\0\x01.").unwrap().root(), Value::Long(bytes) if bytes.len() == 9)
        );
    }

    #[test]
    fn reads_texts_of_every_width_and_protocol() {
        for bytes in [
            &b"X\x02\0\0\0ab."[..],
            b"\x8c\x02ab.",
            b"\x8d\x02\0\0\0\0\0\0\0ab.",
            b"U\x02ab.",
            b"T\x02\0\0\0ab.",
            b"S'ab'\n.",
            b"Vab\n.",
        ] {
            assert!(matches!(parsed(bytes).unwrap().root(), Value::Text(text) if text == "ab"), "{bytes:?}");
        }
    }

    #[test]
    fn stops_at_the_end_and_leaves_the_rest() {
        let bytes = b"\x80\x02K\x01.\x80\x02K\x02.";
        let mut reader = Reader::new(bytes);
        for value in [1, 2] {
            assert!(matches!(parse::<Plain>(&mut reader).unwrap().root(), Value::Int(found) if *found == value));
        }
        assert_eq!(reader.at(), bytes.len());
    }

    #[test]
    fn does_not_reach_below_a_mark() {
        for bytes in [
            &b"."[..],
            b"N(.",
            b"N(a.",
            b"](a.",
            b"NN(s.",
            b"(0.",
            b"1.",
            b"N(2.",
            b"0.",
            b"(Nu.",
            b"R.",
            b"NR.",
            b"b.",
        ] {
            assert!(matches!(parsed(bytes), Err(PickleError::Damaged(_))), "{bytes:?}");
        }
    }

    #[test]
    fn names_what_plain_data_does_not_need() {
        // os.system("true") by GLOBAL and REDUCE, STACK_GLOBAL and INST.
        for bytes in [&b"cos\nsystem\n(X\x04\x00\x00\x00truetR."[..], b"U\x02osU\x06system\x93.", b"ios\nsystem\n."] {
            assert_eq!(parsed(bytes).unwrap_err(), PickleError::Refused("os.system".into()));
        }
        // OBJ, PERSID and BINPERSID.
        for opcode in [b'o', b'P', b'Q'] {
            assert!(matches!(parsed(&[b'N', opcode, b'.']), Err(PickleError::Damaged(_))), "{opcode:#x}");
        }
    }
}

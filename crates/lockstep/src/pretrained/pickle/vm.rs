//! The pickle virtual machine: a stack, marks on it, and a memo.

mod objects;

use std::collections::HashMap;

use super::atoms::{bytes, integer, number, text};
use super::globals;
use super::reader::Reader;
use super::value::{Id, Pickle, Value};
use crate::pretrained::error::BadFile;

/// How many values a pickle may create, put into containers, hold on its stack, and memoize. A state dict costs about 60 for
/// each of its tensors.
pub(in crate::pretrained) const MOST_VALUES: usize = 4_000_000;

/// Reads one pickle from the start of `reader`.
pub(in crate::pretrained) fn parse(reader: &mut Reader<'_>) -> Result<Pickle, BadFile> {
    let mut machine = Vm { values: Vec::new(), charged: 0, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
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

struct Vm {
    values: Vec<Value>,
    /// The cost so far of values, their contents, and copies of them.
    charged: usize,
    stack: Vec<Id>,
    /// The height of the stack at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Vm {
    /// Opcodes by their letters, as in `pickletools.py`.
    fn run(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
        match opcode {
            0x80 => reader.take(1).map(drop),                      // PROTO
            0x95 => reader.take(8).map(drop),                      // FRAME
            b'(' => self.mark(),                                   // MARK
            b'0' => self.pop_value_or_mark(),                      // POP
            b'1' => self.above_mark().map(drop),                   // POP_MARK
            b'2' => self.top().and_then(|id| self.push_again(id)), // DUP
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Other), // NEWTRUE, NEWFALSE
            b'K' | b'M' | b'J' | b'I' | b'L' | 0x8a | 0x8b => {
                integer(opcode, reader).and_then(|value| self.push(value))
            }
            b'G' => reader.take(8).and_then(|_| self.push(Value::Other)), // BINFLOAT
            b'F' => reader.line().and_then(|_| self.push(Value::Other)),  // FLOAT
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'S' | b'V' => text(opcode, reader).and_then(|value| self.push(value)),
            b'C' | b'B' | 0x8e | 0x96 => bytes(opcode, reader).and_then(|()| self.push(Value::Other)),
            b')' => self.push(Value::Tuple(Vec::new())),
            b't' | 0x85 | 0x86 | 0x87 => self.tuple(opcode),
            b']' => self.push(Value::List(Vec::new())),
            b'l' => self.above_mark().and_then(|items| self.push(Value::List(items))),
            b'a' => self.pop().and_then(|item| self.append(vec![item])), // APPEND
            b'e' => self.above_mark().and_then(|items| self.append(items)), // APPENDS
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => self.above_mark().and_then(pairs).and_then(|items| self.push(Value::Dict(items))),
            b's' => self.set_one(), // SETITEM
            b'u' => self.above_mark().and_then(pairs).and_then(|items| self.set(items)), // SETITEMS
            b'q' | b'r' | b'p' | 0x94 => self.memoize(opcode, reader),
            b'h' | b'j' | b'g' => self.recall(opcode, reader),
            b'c' | 0x93 | b'i' => self.global(opcode, reader),
            b'R' | 0x81 => self.call(), // REDUCE, NEWOBJ
            b'b' => self.build(),       // BUILD
            b'Q' => self.persistent(),  // BINPERSID
            0x82..=0x84 => Err(globals::refused("what the registry copyreg has under a number")), // EXT1, EXT2, EXT4
            other => Err(BadFile::damaged(format!("it has the opcode {other:#04x}, which no state dict needs"))),
        }
    }

    fn charge(&mut self, count: usize) -> Result<(), BadFile> {
        self.charged = self.charged.saturating_add(count);
        if self.charged > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    /// A container costs its contents, too: one byte of a pickle can push an existing value again.
    fn push(&mut self, value: Value) -> Result<(), BadFile> {
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
    fn push_again(&mut self, id: Id) -> Result<(), BadFile> {
        self.stack.push(id);
        if self.stack.len() > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    fn mark(&mut self) -> Result<(), BadFile> {
        self.marks.push(self.stack.len());
        if self.marks.len() > MOST_VALUES { Err(too_much()) } else { Ok(()) }
    }

    /// The start of the part of the stack above the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Id, BadFile> {
        self.stack[self.floor()..].last().copied().ok_or_else(|| BadFile::damaged("a value is missing on its stack"))
    }

    fn pop(&mut self) -> Result<Id, BadFile> {
        let id = self.top()?;
        self.stack.pop();
        Ok(id)
    }

    fn pop_value_or_mark(&mut self) -> Result<(), BadFile> {
        if self.stack.len() > self.floor() { self.pop().map(drop) } else { self.above_mark().map(drop) }
    }

    fn above_mark(&mut self) -> Result<Vec<Id>, BadFile> {
        let mark = self.marks.pop().ok_or_else(|| BadFile::damaged("a mark is missing on its stack"))?;
        Ok(self.stack.split_off(mark))
    }

    fn tuple(&mut self, opcode: u8) -> Result<(), BadFile> {
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

    fn append(&mut self, items: Vec<Id>) -> Result<(), BadFile> {
        self.charge(items.len())?;
        let onto = self.top()?;
        match &mut self.values[onto] {
            Value::List(list) => list.extend(items),
            _ => return Err(BadFile::damaged("it appends to something that is no list")),
        }
        Ok(())
    }

    fn set_one(&mut self) -> Result<(), BadFile> {
        let (value, key) = (self.pop()?, self.pop()?);
        self.set(vec![(key, value)])
    }

    fn set(&mut self, items: Vec<(Id, Id)>) -> Result<(), BadFile> {
        self.charge(items.len())?;
        let into = self.top()?;
        match &mut self.values[into] {
            Value::Dict(dict) => dict.extend(items),
            _ => return Err(BadFile::damaged("it sets an item of something that is no dict")),
        }
        Ok(())
    }

    fn memoize(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
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

    fn recall(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
        let place: u32 = match opcode {
            b'h' => reader.byte()?.into(),
            b'j' => u32::from_le_bytes(reader.array()?),
            _ => number(reader.line()?)?,
        };
        let id = self.memo.get(&place).copied();
        id.map_or_else(
            || Err(BadFile::damaged("it recalls a value that it has not remembered")),
            |id| self.push_again(id),
        )
    }
}

fn pairs(items: Vec<Id>) -> Result<Vec<(Id, Id)>, BadFile> {
    let (pairs, rest) = items.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(BadFile::damaged("a key of a dict has no value"));
    }
    Ok(pairs.iter().map(|&[key, value]| (key, value)).collect())
}

fn too_much() -> BadFile {
    BadFile::damaged(format!("its pickle makes more than {MOST_VALUES} values"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Pickle, BadFile> {
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
            assert!(matches!(parse(&mut reader).unwrap().root(), Value::Int(found) if *found == value));
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
            let message = parsed(bytes).unwrap_err().to_string();
            assert!(message.contains("damaged"), "{bytes:?}: {message}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_over_any_bytes(bytes: Vec<u8>) {
            let _either = parsed(&bytes);
        }

        /// Opcodes with few arguments, which reach deeper code than random bytes.
        #[test]
        fn never_panics_over_any_program(
            program in prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..60)
        ) {
            let bytes: Vec<u8> = program.concat();
            if let Ok(pickle) = parsed(&[&bytes, &b"."[..]].concat()) {
                let _either = crate::pretrained::state_dict::find(&pickle).is_ok();
            }
        }
    }

    const PARTS: [&[u8]; 34] = [
        b"(",
        b"0",
        b"1",
        b"2",
        b"N",
        b"K\x01",
        b"K\x02",
        b"U\x01k",
        b"U\x07storage",
        b"U\x0astate_dict",
        b")",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"]",
        b"l",
        b"a",
        b"e",
        b"}",
        b"d",
        b"s",
        b"u",
        b"q\0",
        b"q\x01",
        b"h\0",
        b"h\x01",
        b"R",
        b"\x81",
        b"b",
        b"Q",
        b"ctorch\nFloatStorage\n",
        b"ctorch._utils\n_rebuild_tensor\n",
        b"ccollections\nOrderedDict\n",
    ];
}

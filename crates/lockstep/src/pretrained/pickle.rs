//! The part of Python's pickle format that a state dict needs.
//!
//! A pickle is a program: it names functions and calls them, which is how a file of weights can run `os.system`. Here nothing
//! is ever called. The virtual machine knows containers, numbers, texts, and the few names of [`Global`], whose
//! "calls" only record which part of which storage a tensor is. Any other name is an error.
//!
//! Values are in one list and refer to each other by index: nesting costs no stack, and a value that contains itself is
//! harmless. Memory is bounded by [`MOST_VALUES`] and by the pickle's own length.
//!
//! Source: Python's `pickletools.py`, PyTorch's `torch/_weights_only_unpickler.py`.

use std::collections::HashMap;

use super::error::BadFile;
use super::values::{Global, Id, Pickle, Reader, Storage, Strided, Value, bytes, integer, number, refused, text, utf8};

/// How many values a pickle may create, put into containers, hold on its stack, and memoize. A state dict costs about 60 for
/// each of its tensors.
const MOST_VALUES: usize = 4_000_000;

/// Reads one pickle from the start of `reader`.
pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Pickle, BadFile> {
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
            0x82..=0x84 => Err(refused("what the registry copyreg has under a number")), // EXT1, EXT2, EXT4
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
            _ => return Err(BadFile::damaged("it appends to a value that is not a list")),
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
            _ => return Err(BadFile::damaged("it sets an item of a value that is not a dict")),
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
            || Err(BadFile::damaged("it reads a memo entry that it has not written")),
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

/// Maximum number of dimensions of a tensor (NumPy's limit; PyTorch's own operators stop at 64 too).
const MOST_DIMENSIONS: usize = 64;

impl Vm {
    /// Looks a name up, which may already be an error.
    fn global(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            (self.text(module)?.to_owned(), self.text(name)?.to_owned())
        } else {
            (utf8(reader.line()?)?, utf8(reader.line()?)?)
        };
        if opcode == b'i' {
            return Err(refused(&format!("{module}.{name}"))); // INST, which makes an object of any class
        }
        self.push(Value::Global(Global::find(&module, &name)?))
    }

    /// Records what a call would return. Nothing is called.
    fn call(&mut self) -> Result<(), BadFile> {
        let (args, callable) = (self.pop()?, self.pop()?);
        let Value::Global(global) = self.values[callable] else {
            return Err(BadFile::damaged("it calls a value that cannot be called"));
        };
        let args = self.items(args)?;
        match (global, &args[..]) {
            (Global::OrderedDict, []) => self.push(Value::Dict(Vec::new())),
            (Global::OrderedDict, &[list]) => self.dict_of_pairs(list),
            (Global::RebuildTensor, &[storage, offset, size, stride, ..]) => self.tensor(storage, offset, size, stride),
            (Global::Parameter, []) => self.push(Value::Parameter(None)),
            (Global::RebuildParameter | Global::Parameter, &[data, ..]) => self.push_again(data),
            (Global::Size, &[sizes]) => self.push_again(sizes),
            (Global::Device, _) => self.push(Value::Other),
            (global, args) => Err(BadFile::damaged(format!("it calls {global:?} with {} arguments", args.len()))),
        }
    }

    /// Applies state that is set on an existing object. For a dict or a tensor these are attributes, which weights do not need.
    fn build(&mut self) -> Result<(), BadFile> {
        let (state, object) = (self.pop()?, self.top()?);
        match self.values[object] {
            Value::Dict(_) | Value::Tensor(_) => Ok(()),
            Value::Parameter(_) => {
                // `torch/_tensor.py`, `__setstate__`: of five items the first is the data; three items contain none.
                let data = self.items(state)?.first().copied();
                let data = data.filter(|&data| matches!(self.values[data], Value::Tensor(_)));
                self.values[object] = Value::Parameter(data);
                Ok(())
            }
            _ => Err(BadFile::damaged("it sets attributes of a value that has none")),
        }
    }

    /// `("storage", type, key, location, elements)`, followed by a view in the old format.
    fn persistent(&mut self) -> Result<(), BadFile> {
        let id = self.pop()?;
        let parts = self.items(id)?;
        let &[tag, kind, key, _location, numel, ..] = &parts[..] else {
            return Err(BadFile::damaged("a reference to a storage is incomplete"));
        };
        let (Value::Global(Global::Storage(kind)), "storage") = (&self.values[kind], self.text(tag)?) else {
            return Err(BadFile::damaged("a reference is not to a storage"));
        };
        self.text(key)?;
        let (kind, numel) = (*kind, self.count(numel)?);
        let storage = Storage { key, kind, numel, part: (0, numel) };
        let storage = parts.get(5).map_or(Ok(storage), |&view| self.view(storage, view))?;
        self.push(Value::Storage(Box::new(storage)))
    }

    /// `None`, or `(key, offset, elements)`.
    fn view(&mut self, storage: Storage, view: Id) -> Result<Storage, BadFile> {
        if matches!(self.values[view], Value::None) {
            return Ok(storage);
        }
        match self.items(view)?[..] {
            [_key, offset, numel] => Ok(Storage { part: (self.count(offset)?, self.count(numel)?), ..storage }),
            _ => Err(BadFile::damaged("a view of a storage is incomplete")),
        }
    }

    fn tensor(&mut self, storage: Id, offset: Id, size: Id, stride: Id) -> Result<(), BadFile> {
        let Value::Storage(storage) = &self.values[storage] else {
            return Err(BadFile::damaged("a tensor has no storage"));
        };
        let storage = **storage;
        let (size, stride) = (self.dimensions(size)?, self.dimensions(stride)?);
        let offset = self.int(offset)?;
        self.push(Value::Tensor(Box::new(Strided { storage, offset, size, stride })))
    }

    fn dimensions(&mut self, id: Id) -> Result<Vec<i64>, BadFile> {
        let items = self.items(id)?;
        if items.len() > MOST_DIMENSIONS {
            return Err(BadFile::damaged(format!("a tensor has {} dimensions", items.len())));
        }
        items.into_iter().map(|item| self.int(item)).collect()
    }

    fn dict_of_pairs(&mut self, list: Id) -> Result<(), BadFile> {
        let pair = |items: Vec<Id>| pairs(items).ok().filter(|pairs| pairs.len() == 1).map(|pairs| pairs[0]);
        let lists = self.items(list)?;
        let mut dict = Vec::new();
        for item in lists {
            let items = self.items(item)?;
            dict.push(pair(items).ok_or_else(|| BadFile::damaged("an item of an OrderedDict is not a pair"))?);
        }
        self.push(Value::Dict(dict))
    }

    /// The items of a tuple or list, as a copy with a cost: a pickle may request many copies in few bytes.
    fn items(&mut self, id: Id) -> Result<Vec<Id>, BadFile> {
        let (Value::Tuple(items) | Value::List(items)) = &self.values[id] else {
            return Err(BadFile::damaged("it has another value where a tuple is expected"));
        };
        let items = if items.len() <= MOST_VALUES - self.charged { items.clone() } else { return Err(too_much()) };
        self.charge(items.len())?;
        Ok(items)
    }

    fn text(&self, id: Id) -> Result<&str, BadFile> {
        match &self.values[id] {
            Value::Text(text) => Ok(text),
            _ => Err(BadFile::damaged("it has another value where a text is expected")),
        }
    }

    fn int(&self, id: Id) -> Result<i64, BadFile> {
        match self.values[id] {
            Value::Int(value) => Ok(value),
            _ => Err(BadFile::damaged("it has another value where a number is expected")),
        }
    }

    fn count(&self, id: Id) -> Result<u64, BadFile> {
        u64::try_from(self.int(id)?).map_err(|_| BadFile::damaged("a length is negative"))
    }
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
                let _either = crate::pretrained::tensors::find(&pickle).is_ok();
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

//! What a pickle of tensors names and calls: a few globals of PyTorch, which are recorded and never called.

use super::super::atoms::utf8;
use super::super::globals::{self, Global};
use super::super::reader::Reader;
use super::super::value::{Id, Storage, Strided, Value};
use super::{MOST_VALUES, Vm, pairs, too_much};
use crate::pretrained::error::BadFile;

/// Maximum number of dimensions of a tensor (NumPy's limit; PyTorch's own operators stop at 64 too).
const MOST_DIMENSIONS: usize = 64;

impl Vm {
    /// Looks a name up, which may already be an error.
    pub(super) fn global(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
        let (module, name) = if opcode == 0x93 {
            let (name, module) = (self.pop()?, self.pop()?);
            (self.text(module)?.to_owned(), self.text(name)?.to_owned())
        } else {
            (utf8(reader.line()?)?, utf8(reader.line()?)?)
        };
        if opcode == b'i' {
            return Err(globals::refused(&format!("{module}.{name}"))); // INST, which makes an object of any class
        }
        self.push(Value::Global(Global::find(&module, &name)?))
    }

    /// Records what a call would return. Nothing is called.
    pub(super) fn call(&mut self) -> Result<(), BadFile> {
        let (args, callable) = (self.pop()?, self.pop()?);
        let Value::Global(global) = self.values[callable] else {
            return Err(BadFile::damaged("it calls something that cannot be called"));
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
    pub(super) fn build(&mut self) -> Result<(), BadFile> {
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
            _ => Err(BadFile::damaged("it sets attributes of something that has none")),
        }
    }

    /// `("storage", type, key, location, elements)`, followed by a view in the old format.
    pub(super) fn persistent(&mut self) -> Result<(), BadFile> {
        let id = self.pop()?;
        let parts = self.items(id)?;
        let &[tag, kind, key, _location, numel, ..] = &parts[..] else {
            return Err(BadFile::damaged("a reference to a storage is incomplete"));
        };
        let (Value::Global(Global::Storage(kind)), "storage") = (&self.values[kind], self.text(tag)?) else {
            return Err(BadFile::damaged("a reference is to something else than a storage"));
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
            dict.push(pair(items).ok_or_else(|| BadFile::damaged("an item of an OrderedDict is no pair"))?);
        }
        self.push(Value::Dict(dict))
    }

    /// The items of a tuple or list, as a copy with a cost: a pickle may request many copies in few bytes.
    fn items(&mut self, id: Id) -> Result<Vec<Id>, BadFile> {
        let (Value::Tuple(items) | Value::List(items)) = &self.values[id] else {
            return Err(BadFile::damaged("it has something else where a tuple belongs"));
        };
        let items = if items.len() <= MOST_VALUES - self.charged { items.clone() } else { return Err(too_much()) };
        self.charge(items.len())?;
        Ok(items)
    }

    fn text(&self, id: Id) -> Result<&str, BadFile> {
        match &self.values[id] {
            Value::Text(text) => Ok(text),
            _ => Err(BadFile::damaged("it has something else where a text belongs")),
        }
    }

    fn int(&self, id: Id) -> Result<i64, BadFile> {
        match self.values[id] {
            Value::Int(value) => Ok(value),
            _ => Err(BadFile::damaged("it has something else where a number belongs")),
        }
    }

    fn count(&self, id: Id) -> Result<u64, BadFile> {
        u64::try_from(self.int(id)?).map_err(|_| BadFile::damaged("a length is negative"))
    }
}

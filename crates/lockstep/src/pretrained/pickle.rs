//! What a state dict's pickle has beyond plain data: the few names of [`Global`], whose "calls" only record which part of which storage a
//! tensor is. `lockstep_contract::pickle` reads the rest, and calls nothing.

use lockstep_contract::pickle::{self, Id, Machine, Objects, PickleError, pairs};
use tch::Kind;

/// All values of a pickle, and its result.
pub(super) type Pickle = pickle::Pickle<Object>;
pub(super) type Value = pickle::Value<Object>;

/// What names and calls stand for. Large ones are boxed, so that other values stay small.
#[derive(Debug)]
pub(super) enum Object {
    Global(Global),
    Storage(Box<Storage>),
    Tensor(Box<Strided>),
    /// A parameter as PyTorch before 0.4 saved it: its tensor is set later.
    Parameter(Option<Id>),
    /// Something that is not part of weights: a device.
    Other,
}

/// A storage: elements in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage {
    /// Its key in the file.
    pub(super) key: Id,
    pub(super) kind: Kind,
    /// Its total number of elements.
    pub(super) numel: u64,
    /// The selected part, in elements: a view of the whole in old files.
    pub(super) part: (u64, u64),
}

/// A tensor: a view of a storage. Not yet checked against the storage.
#[derive(Debug)]
pub(super) struct Strided {
    pub(super) storage: Storage,
    pub(super) offset: i64,
    pub(super) size: Vec<i64>,
    pub(super) stride: Vec<i64>,
}

/// The tensor that the value is, or that the parameter has: one step only, since PyTorch never writes a parameter of a parameter.
pub(super) fn tensor<'a>(pickle: &'a Pickle, value: &'a Value) -> Option<&'a Strided> {
    let behind = match value {
        Value::Object(Object::Parameter(Some(data))) => pickle.get(*data),
        other => other,
    };
    match behind {
        Value::Object(Object::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Global {
    OrderedDict,
    /// `_rebuild_tensor(storage, offset, size, stride)`, and `_rebuild_tensor_v2` with additional arguments.
    RebuildTensor,
    /// `_rebuild_parameter(tensor, requires_grad, hooks)`.
    RebuildParameter,
    /// `torch.nn.parameter.Parameter`, as PyTorch before 0.4 saved it.
    Parameter,
    Storage(Kind),
    /// `torch.Size(tuple)`.
    Size,
    /// `torch.device(text)`.
    Device,
    /// `torch.float32` and others: never called.
    Dtype,
}

impl Global {
    /// The meaning of `module.name`.
    fn find(module: &str, name: &str) -> Result<Self, PickleError> {
        let known = match (module, name) {
            ("collections", "OrderedDict") => Some(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Global::RebuildParameter),
            ("torch.nn.parameter", "Parameter") => Some(Global::Parameter),
            ("torch", "Size") => Some(Global::Size),
            ("torch", "device") => Some(Global::Device),
            ("torch", name) => storage(name).map(Global::Storage).or_else(|| is_dtype(name).then_some(Global::Dtype)),
            _ => None,
        };
        known.ok_or_else(|| PickleError::refused(&format!("{module}.{name}")))
    }
}

fn storage(name: &str) -> Option<Kind> {
    let kinds = [
        ("FloatStorage", Kind::Float),
        ("DoubleStorage", Kind::Double),
        ("HalfStorage", Kind::Half),
        ("BFloat16Storage", Kind::BFloat16),
        ("LongStorage", Kind::Int64),
        ("IntStorage", Kind::Int),
        ("ShortStorage", Kind::Int16),
        ("CharStorage", Kind::Int8),
        ("ByteStorage", Kind::Uint8),
        ("BoolStorage", Kind::Bool),
    ];
    kinds.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
}

fn is_dtype(name: &str) -> bool {
    let known = [
        "float", "float16", "float32", "float64", "half", "double", "bfloat16", "int", "int8", "int16", "int32",
        "int64", "long", "short", "uint8", "bool",
    ];
    known.contains(&name)
}

/// Maximum number of dimensions of a tensor (NumPy's limit; PyTorch's own operators stop at 64 too).
const MOST_DIMENSIONS: usize = 64;

impl Objects for Object {
    fn named(module: &str, name: &str) -> Result<Value, PickleError> {
        Global::find(module, name).map(|global| Value::Object(Object::Global(global)))
    }

    /// Records what a call would return.
    fn call(machine: &mut Machine<Self>, callable: Id, arguments: Id) -> Result<(), PickleError> {
        let Value::Object(Object::Global(global)) = *machine.value(callable) else {
            return Err(PickleError::damaged("it calls a value that cannot be called"));
        };
        let args = machine.items(arguments)?;
        match (global, &args[..]) {
            (Global::OrderedDict, []) => machine.push(Value::Dict(Vec::new())),
            (Global::OrderedDict, &[list]) => dict_of_pairs(machine, list),
            (Global::RebuildTensor, &[storage, offset, size, stride, ..]) => {
                strided(machine, storage, offset, size, stride)
            }
            (Global::Parameter, []) => machine.push(Value::Object(Object::Parameter(None))),
            (Global::RebuildParameter | Global::Parameter, &[data, ..]) => machine.push_again(data),
            (Global::Size, &[sizes]) => machine.push_again(sizes),
            (Global::Device, _) => machine.push(Value::Object(Object::Other)),
            (global, args) => Err(PickleError::damaged(format!("it calls {global:?} with {} arguments", args.len()))),
        }
    }

    /// Attributes of a dict or a tensor are not part of weights.
    fn build(machine: &mut Machine<Self>, object: Id, state: Id) -> Result<(), PickleError> {
        match machine.value(object) {
            Value::Dict(_) | Value::Object(Object::Tensor(_)) => Ok(()),
            Value::Object(Object::Parameter(_)) => {
                // `torch/_tensor.py`, `__setstate__`: of five items the first is the data; three items contain none.
                let data = machine.items(state)?.first().copied();
                let data = data.filter(|&data| matches!(machine.value(data), Value::Object(Object::Tensor(_))));
                machine.set_value(object, Value::Object(Object::Parameter(data)));
                Ok(())
            }
            _ => Err(PickleError::damaged("it sets attributes of a value that has none")),
        }
    }

    /// `("storage", type, key, location, elements)`, followed by a view in the old format.
    fn persistent(machine: &mut Machine<Self>, id: Id) -> Result<(), PickleError> {
        let parts = machine.items(id)?;
        let &[tag, kind, key, _location, numel, ..] = &parts[..] else {
            return Err(PickleError::damaged("a reference to a storage is incomplete"));
        };
        let (&Value::Object(Object::Global(Global::Storage(kind))), "storage") =
            (machine.value(kind), machine.text(tag)?)
        else {
            return Err(PickleError::damaged("a reference is not to a storage"));
        };
        machine.text(key)?;
        let numel = machine.count(numel)?;
        let storage = Storage { key, kind, numel, part: (0, numel) };
        let storage = parts.get(5).map_or(Ok(storage), |&view| view_of(machine, storage, view))?;
        machine.push(Value::Object(Object::Storage(Box::new(storage))))
    }
}

/// `None`, or `(key, offset, elements)`.
fn view_of(machine: &mut Machine<Object>, storage: Storage, view: Id) -> Result<Storage, PickleError> {
    if matches!(machine.value(view), Value::None) {
        return Ok(storage);
    }
    match machine.items(view)?[..] {
        [_key, offset, numel] => Ok(Storage { part: (machine.count(offset)?, machine.count(numel)?), ..storage }),
        _ => Err(PickleError::damaged("a view of a storage is incomplete")),
    }
}

fn strided(machine: &mut Machine<Object>, storage: Id, offset: Id, size: Id, stride: Id) -> Result<(), PickleError> {
    let Value::Object(Object::Storage(storage)) = machine.value(storage) else {
        return Err(PickleError::damaged("a tensor has no storage"));
    };
    let storage = **storage;
    let (size, stride) = (dimensions(machine, size)?, dimensions(machine, stride)?);
    let offset = machine.int(offset)?;
    machine.push(Value::Object(Object::Tensor(Box::new(Strided { storage, offset, size, stride }))))
}

fn dimensions(machine: &mut Machine<Object>, id: Id) -> Result<Vec<i64>, PickleError> {
    let items = machine.items(id)?;
    if items.len() > MOST_DIMENSIONS {
        return Err(PickleError::damaged(format!("a tensor has {} dimensions", items.len())));
    }
    items.into_iter().map(|item| machine.int(item)).collect()
}

fn dict_of_pairs(machine: &mut Machine<Object>, list: Id) -> Result<(), PickleError> {
    let pair = |items: Vec<Id>| pairs(items).ok().filter(|pairs| pairs.len() == 1).map(|pairs| pairs[0]);
    let lists = machine.items(list)?;
    let mut dict = Vec::new();
    for item in lists {
        let items = machine.items(item)?;
        dict.push(pair(items).ok_or_else(|| PickleError::damaged("an item of an OrderedDict is not a pair"))?);
    }
    machine.push(Value::Dict(dict))
}

#[cfg(test)]
mod tests {
    use lockstep_contract::pickle::{Reader, parse};
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> Result<Pickle, PickleError> {
        parse(&mut Reader::new(bytes))
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

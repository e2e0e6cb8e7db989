//! The values in a pickle, which refer to each other by index.

use tch::Kind;

use super::globals::Global;

/// The index of a value in its pickle.
pub(in crate::pretrained) type Id = usize;

/// A value. Texts are UTF-8.
#[derive(Debug)]
pub(in crate::pretrained) enum Value {
    None,
    Int(i64),
    /// A larger integer: little-endian, two's complement.
    Long(Vec<u8>),
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    /// In insertion order; of two equal keys the later counts.
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Box<Storage>),
    /// Boxed, like the storage, so that other values stay small.
    Tensor(Box<Strided>),
    /// A parameter as PyTorch before 0.4 saved it: its tensor is set later.
    Parameter(Option<Id>),
    /// Something that is not part of weights: a float, a boolean, bytes, a device.
    Other,
}

/// A storage: elements in the file.
#[derive(Clone, Copy, Debug)]
pub(in crate::pretrained) struct Storage {
    /// Its key in the file.
    pub(in crate::pretrained) key: Id,
    pub(in crate::pretrained) kind: Kind,
    /// Its total number of elements.
    pub(in crate::pretrained) numel: u64,
    /// The selected part, in elements: a view of the whole in old files.
    pub(in crate::pretrained) part: (u64, u64),
}

/// A tensor: a view of a storage. Not yet checked against the storage.
#[derive(Debug)]
pub(in crate::pretrained) struct Strided {
    pub(in crate::pretrained) storage: Storage,
    pub(in crate::pretrained) offset: i64,
    pub(in crate::pretrained) size: Vec<i64>,
    pub(in crate::pretrained) stride: Vec<i64>,
}

/// All values of a pickle, and its result.
#[derive(Debug)]
pub(in crate::pretrained) struct Pickle {
    pub(super) values: Vec<Value>,
    pub(super) root: Id,
}

impl Pickle {
    pub(in crate::pretrained) fn root(&self) -> &Value {
        &self.values[self.root]
    }

    pub(in crate::pretrained) fn get(&self, id: Id) -> &Value {
        &self.values[id]
    }

    pub(in crate::pretrained) fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    pub(in crate::pretrained) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The tensor that the value is, or that the parameter has.
    pub(in crate::pretrained) fn tensor<'a>(&'a self, value: &'a Value) -> Option<&'a Strided> {
        match self.behind(value) {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// One step only: PyTorch never writes a parameter of a parameter.
    fn behind<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value {
            Value::Parameter(Some(data)) => self.get(*data),
            other => other,
        }
    }
}

//! What a pickle is made of: a bounds-checked reader of its bytes, numbers and texts in their several encodings, the names that a state
//! dict may use, and values that refer to each other by index.

use tch::Kind;

use super::error::{BadFile, SHOWN};

/// The index of a value in its pickle.
pub(super) type Id = usize;

/// A value. Texts are UTF-8.
#[derive(Debug)]
pub(super) enum Value {
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

/// All values of a pickle, and its result.
#[derive(Debug)]
pub(super) struct Pickle {
    pub(super) values: Vec<Value>,
    pub(super) root: Id,
}

impl Pickle {
    pub(super) fn root(&self) -> &Value {
        &self.values[self.root]
    }

    pub(super) fn get(&self, id: Id) -> &Value {
        &self.values[id]
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter()
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The tensor that the value is, or that the parameter has.
    pub(super) fn tensor<'a>(&'a self, value: &'a Value) -> Option<&'a Strided> {
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
    pub(super) fn find(module: &str, name: &str) -> Result<Self, BadFile> {
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
        known.ok_or_else(|| refused(&format!("{module}.{name}")))
    }
}

/// The error for an unknown name from the file.
pub(super) fn refused(global: &str) -> BadFile {
    let global = global.chars().take(SHOWN).flat_map(char::escape_default).collect();
    BadFile::Refused { global }
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

/// The remaining bytes.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    /// The number of bytes taken so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], BadFile> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| {
            BadFile::Damaged(format!("its pickle ends at byte {}, inside of a value", self.bytes.len()))
        })?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFile> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Result<u8, BadFile> {
        self.array().map(|[byte]| byte)
    }

    /// Takes bytes with a length prefix of 1, 4 or 8 bytes.
    pub(super) fn counted<const N: usize>(&mut self) -> Result<&'a [u8], BadFile> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.array::<N>()?);
        // A length that does not fit usize exceeds the data.
        self.take(usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX))
    }

    /// Takes the bytes up to the next newline, and the newline.
    pub(super) fn line(&mut self) -> Result<&'a [u8], BadFile> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let line = self.take(length)?;
        self.take(1)?;
        Ok(line)
    }
}

pub(super) fn integer(opcode: u8, reader: &mut Reader<'_>) -> Result<Value, BadFile> {
    Ok(match opcode {
        b'K' => Value::Int(reader.byte()?.into()),
        b'M' => Value::Int(u16::from_le_bytes(reader.array()?).into()),
        b'J' => Value::Int(i32::from_le_bytes(reader.array()?).into()),
        b'I' => match reader.line()? {
            b"00" | b"01" => Value::Other, // truth values
            digits => Value::Int(number(digits)?),
        },
        b'L' => reader.line().and_then(|digits| number(digits.strip_suffix(b"L").unwrap_or(digits))).map(Value::Int)?,
        0x8a => long(reader.counted::<1>()?),
        _ => long(reader.counted::<4>()?),
    })
}

/// Little-endian, two's complement, of any length.
fn long(bytes: &[u8]) -> Value {
    if bytes.len() > 8 {
        return Value::Long(bytes.to_vec());
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}

pub(super) fn text(opcode: u8, reader: &mut Reader<'_>) -> Result<Value, BadFile> {
    let bytes = match opcode {
        0x8c | b'U' => reader.counted::<1>()?,
        b'X' | b'T' => reader.counted::<4>()?,
        0x8d => reader.counted::<8>()?,
        b'V' => reader.line()?,
        _ => unquoted(reader.line()?)?,
    };
    utf8(bytes).map(Value::Text)
}

pub(super) fn bytes(opcode: u8, reader: &mut Reader<'_>) -> Result<(), BadFile> {
    match opcode {
        b'C' => reader.counted::<1>(),
        b'B' => reader.counted::<4>(),
        _ => reader.counted::<8>(),
    }
    .map(drop)
}

/// A text of protocol 0, written as in Python's source; names of weights need no escapes.
fn unquoted(line: &[u8]) -> Result<&[u8], BadFile> {
    match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] if !inner.contains(&b'\\') => Ok(inner),
        _ => Err(BadFile::damaged("a text is not quoted as it should be")),
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<String, BadFile> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadFile::damaged("a text is not UTF-8"))?;
    Ok(text.to_owned())
}

pub(super) fn number<N: std::str::FromStr>(digits: &[u8]) -> Result<N, BadFile> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| BadFile::damaged("it has other bytes where digits are expected"))
}

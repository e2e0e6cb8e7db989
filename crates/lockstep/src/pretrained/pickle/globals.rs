//! The names that a state dict may use. All others are errors.

use tch::Kind;

use crate::pretrained::error::{BadFile, SHOWN};

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::pretrained) enum Global {
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

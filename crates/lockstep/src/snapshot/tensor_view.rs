//! Tensors in safetensors' terms.

use std::borrow::Cow;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use tch::{Kind, Tensor};

use super::error::SnapshotError;

/// A tensor's bytes on the CPU, in the form that safetensors' own writer expects.
pub(crate) struct View {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View {
    /// Copies the tensor, which the file will store under `name`.
    ///
    /// # Errors
    /// The format does not support the kind of tensor, or it cannot be copied.
    pub(crate) fn new(name: &str, tensor: &Tensor) -> Result<Self, SnapshotError> {
        let TensorInfo { dtype, shape, data_offsets: (_, length) } = info(name, tensor)?;
        let mut data = vec![0; length];
        let copied = tensor.detach().f_copy_data_u8(&mut data, tensor.numel());
        copied.map_err(|source| SnapshotError::Tensor { name: name.to_owned(), source })?;
        Ok(View { dtype, shape, data })
    }
}

impl safetensors::View for View {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (&self.data).into()
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// Its second offset holds its length for now.
pub(super) fn info(name: &str, tensor: &Tensor) -> Result<TensorInfo, SnapshotError> {
    let kind = tensor.kind();
    let dtype = dtype(kind).ok_or_else(|| SnapshotError::Kind { name: name.to_owned(), kind })?;
    let data_offsets = (0, tensor.numel() * kind.elt_size_in_bytes());
    Ok(TensorInfo { dtype, shape: shape(tensor), data_offsets })
}

/// Dimensions are never negative.
pub(super) fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| size as usize).collect()
}

/// The tensor of these bytes, if libtorch has the dtype.
pub(crate) fn tensor(dtype: Dtype, shape: &[usize], data: &[u8]) -> Option<Tensor> {
    let size: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    Tensor::f_from_data_size(data, &size, kind(dtype)?).ok()
}

/// libtorch's name of a dtype, if it has it.
pub(super) fn kind(dtype: Dtype) -> Option<Kind> {
    KINDS.iter().find(|(_, known)| *known == dtype).map(|(kind, _)| *kind)
}

/// safetensors' name of a kind of tensor, if it has one.
pub(super) fn dtype(kind: Kind) -> Option<Dtype> {
    KINDS.iter().find(|(known, _)| *known == kind).map(|(_, dtype)| *dtype)
}

pub(super) const KINDS: [(Kind, Dtype); 10] = [
    (Kind::Float, Dtype::F32),
    (Kind::Double, Dtype::F64),
    (Kind::Half, Dtype::F16),
    (Kind::BFloat16, Dtype::BF16),
    (Kind::Int64, Dtype::I64),
    (Kind::Int, Dtype::I32),
    (Kind::Int16, Dtype::I16),
    (Kind::Int8, Dtype::I8),
    (Kind::Uint8, Dtype::U8),
    (Kind::Bool, Dtype::BOOL),
];

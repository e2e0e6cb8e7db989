//! The memory of a tensor, which several tensors may share: whether it has been freed, and a tensor that is filled in place.

use std::collections::HashMap;
use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use crate::ffi::{self, Exception, Status, StorageHandle};

/// A weak reference to the memory of a tensor; `torch.UntypedStorage`.
#[derive(Debug)]
pub struct Storage {
    handle: NonNull<StorageHandle>,
    id: u64,
}

// SAFETY: it holds a weak reference, whose count is atomic; nothing is read but the length.
unsafe impl Send for Storage {}

impl Storage {
    /// The memory of `tensor`; `None` if it has no memory of its own, because it is undefined or sparse.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        // SAFETY: the tensor is borrowed for the call, and both values may be written.
        Self::made(|handle, id| unsafe { ffi::lc_storage_of(tensor.as_ptr(), handle, id) }).ok()?
    }

    /// Returns the memory that a function of the shim writes: a handle, or null.
    pub(crate) fn made(
        make: impl FnOnce(*mut *mut StorageHandle, *mut u64) -> Status,
    ) -> Result<Option<Self>, Exception> {
        let (mut handle, mut id) = (std::ptr::null_mut(), 0);
        make(&mut handle, &mut id).check()?;
        Ok(NonNull::new(handle).map(|handle| Storage { handle, id }))
    }

    /// Its length in bytes, including bytes that the tensor does not use; 0 once it is freed.
    pub fn bytes(&self) -> u64 {
        // SAFETY: the handle is alive as long as self.
        unsafe { ffi::lc_storage_bytes(self.handle.as_ptr()) }
    }

    /// A number that no other living memory has.
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once.
        unsafe { ffi::lc_storage_free(self.handle.as_ptr()) };
    }
}

/// The size in bytes of the memory of `tensors`. Memory that several share counts once.
pub fn storage_bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    let storages = tensors.into_iter().filter_map(Storage::of);
    // Two storages that live at the same time have different numbers.
    let by_id: HashMap<u64, u64> = storages.map(|storage| (storage.id(), storage.bytes())).collect();
    by_id.values().sum()
}

// A tensor that is still being filled, number by number, in its own memory.

/// A float32 tensor on the CPU to whose memory only this value has access. [`Tensor::from_slice`] would copy from other memory.
#[derive(Debug)]
pub struct Floats(Tensor);

impl Floats {
    /// Zeros of this shape.
    ///
    /// # Panics
    /// Panics when a size is negative.
    #[must_use]
    pub fn zeros(size: &[i64]) -> Self {
        Floats(Tensor::zeros(size, (Kind::Float, Device::Cpu)))
    }

    /// Its numbers, row by row.
    pub fn numbers(&mut self) -> &mut [f32] {
        let count = self.0.numel();
        if count == 0 {
            return &mut [];
        }
        // SAFETY: libtorch allocated this many aligned floats for `zeros`, contiguously, and set them. The tensor is private and was
        // never copied or passed on, so `&mut self` is the only way to its memory as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.0.data_ptr().cast::<f32>(), count) }
    }

    /// The tensor.
    pub fn into_tensor(self) -> Tensor {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn memory_is_freed_with_its_last_tensor_and_counts_once() {
        let tensor = Tensor::zeros([2, 8], (Kind::Float, Device::Cpu));
        let part = tensor.narrow(0, 1, 1);
        let memory = Storage::of(&tensor).unwrap();
        assert_eq!(Storage::of(&part).unwrap().id(), memory.id());
        assert_eq!(storage_bytes([&tensor, &part, &tensor.copy(), &Tensor::new()]), 128);
        drop(tensor);
        assert_eq!(memory.bytes(), 64);
        drop(part);
        assert_eq!(memory.bytes(), 0);
        assert!(Storage::of(&Tensor::new()).is_none());
    }

    #[test]
    fn numbers_are_the_tensors_row_by_row() {
        let mut floats = Floats::zeros(&[2, 3]);
        floats.numbers().copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        floats.numbers()[4] = 7.0;
        let expected = Tensor::from_slice(&[1_f32, 2.0, 3.0, 4.0, 7.0, 6.0]).view([2, 3]);
        assert!(floats.into_tensor().equal(&expected));
        assert_eq!(Floats::zeros(&[0, 3]).numbers(), [] as [f32; 0]);
    }
}

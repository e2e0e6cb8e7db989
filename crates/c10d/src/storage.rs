//! The memory that a tensor lies in, which several tensors may share, and whether it has been freed.

use std::collections::HashMap;
use std::ptr::NonNull;

use tch::Tensor;

use crate::ffi::{self, Exception, Status, StorageHandle};

/// A look at the memory of a tensor that does not keep it alive; `torch.UntypedStorage`, by a weak reference.
#[derive(Debug)]
pub struct Storage {
    handle: NonNull<StorageHandle>,
    id: u64,
}

// SAFETY: it holds a weak reference, whose count is atomic; nothing is read but the length.
unsafe impl Send for Storage {}

impl Storage {
    /// The memory of `tensor`; `None` if it has none of its own: it is undefined or sparse.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        // SAFETY: the tensor is borrowed for the call, and both values may be written.
        Self::made(|handle, id| unsafe { ffi::lc_storage_of(tensor.as_ptr(), handle, id) }).ok()?
    }

    /// What a function of the shim writes: a handle, or null.
    pub(crate) fn made(
        make: impl FnOnce(*mut *mut StorageHandle, *mut u64) -> Status,
    ) -> Result<Option<Self>, Exception> {
        let (mut handle, mut id) = (std::ptr::null_mut(), 0);
        make(&mut handle, &mut id).check()?;
        Ok(NonNull::new(handle).map(|handle| Storage { handle, id }))
    }

    /// Its length in bytes, including what the tensor does not use; 0 once it is freed.
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

/// The bytes of memory that `tensors` lie in. Memory that several share counts once.
pub fn storage_bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    let storages = tensors.into_iter().filter_map(Storage::of);
    // Two that live at the same time have different numbers.
    let by_id: HashMap<u64, u64> = storages.map(|storage| (storage.id(), storage.bytes())).collect();
    by_id.values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

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
}

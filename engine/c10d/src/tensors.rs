//! Checks of tensors before a backend gets them: backends take an address and a number of elements, and check nothing
//! else.
//!
//! [`Guard`] looks at every tensor of a call and refuses those that a backend would misread. Not here: sizes, for which each
//! operation has its own rules, and the arguments of other ranks, which the ranks compare
//! ([`GroupOptions::compare_calls`](crate::GroupOptions)).
//!
//! Below: [`Storage`], the memory that several tensors may share and whether it has been freed; [`Floats`], a tensor that is filled in place.

use std::collections::HashMap;
use std::ptr::NonNull;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{self, CPU, Exception, Status, StorageHandle};
use crate::lifetime::{Access, InUse, Span};
use crate::recording::Passed;
use crate::{Backend, ProcessGroup, Splits, WorldSize};

/// The numbers of `c10::ScalarType` with their names in tch, as far as tch has them.
const KINDS: [(i32, &str); 13] = [
    (0, "Uint8"),
    (1, "Int8"),
    (2, "Int16"),
    (3, "Int"),
    (4, "Int64"),
    (5, "Half"),
    (6, "Float"),
    (7, "Double"),
    (8, "ComplexHalf"),
    (9, "ComplexFloat"),
    (10, "ComplexDouble"),
    (11, "Bool"),
    (15, "BFloat16"),
];
const BOOL: i32 = 11;
/// The dtypes that all backends support in collectives.
const COLLECTIVE: [i32; 9] = [0, 1, 3, 4, 5, 6, 7, BOOL, 15];
const CUDA: i32 = 1;

/// What an operation does with the values of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Transfers them between all ranks.
    Collective,
    /// Combines them, for example by a sum.
    Reduction,
    /// Transfers them between two ranks, byte by byte.
    Message,
}

/// Checks every tensor of one call.
pub(crate) struct Guard<'a> {
    call: &'a str,
    group: &'a ProcessGroup,
    purpose: Purpose,
    /// The dtype and device of the first tensor, which all others must share.
    first: Option<ffi::TensorFacts>,
    spans: Vec<Span>,
    /// Only if calls are recorded.
    passed: Option<Tensors>,
}

/// What a recording needs of a call's tensors.
#[derive(Default)]
struct Tensors {
    /// Bytes that it reads, and bytes that it writes.
    bytes: [u64; 2],
    /// The first tensor that it reads.
    read: Option<ffi::TensorFacts>,
    /// The first tensor that it writes.
    written: Option<Tensor>,
}

impl<'a> Guard<'a> {
    pub(crate) fn new(call: &'a str, group: &'a ProcessGroup, purpose: Purpose) -> Self {
        let passed = group.inner().recording().map(|_| Tensors::default());
        Guard { call, group, purpose, first: None, spans: Vec::new(), passed }
    }

    /// Checks a tensor that the call only reads.
    pub(crate) fn reads(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.take(name, tensor, Access::Read)
    }

    /// Checks a tensor that the call writes, whether or not it reads it.
    pub(crate) fn writes(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        self.take(name, tensor, Access::Write)
    }

    /// Checks every tensor of a list, as [`Guard::reads`] or [`Guard::writes`], all of the size of `like`.
    pub(crate) fn list(&mut self, name: &str, tensors: &[Tensor], access: Access, like: &Tensor) -> Result<()> {
        for (i, tensor) in tensors.iter().enumerate() {
            self.take(&format!("{name} {i}"), tensor, access)?;
            let (size, wanted) = (tensor.size(), like.size());
            if size != wanted {
                return self.refuse(format!("{name} {i} is of shape {size:?}, where {wanted:?} is needed"));
            }
        }
        Ok(())
    }

    /// Claims the memory of all tensors for `operation`. Memory that it writes must not belong to another tensor, nor
    /// to an operation that is still in progress. Also returns what a recording needs, if there is one.
    pub(crate) fn claim(mut self, operation: &str) -> Result<(InUse, Option<Passed>)> {
        self.spans.retain(|span| span.begin < span.end);
        self.spans.sort_unstable_by_key(|span| span.begin);
        if Span::sorted_conflict(&self.spans) {
            return self
                .refuse("a tensor that is written shares memory with another tensor of the call: copy one".into());
        }
        let claimed = InUse::claim(operation, std::mem::take(&mut self.spans)).or_else(|other| {
            self.refuse(format!(
                "a tensor's memory is in use by {other}, which is still in progress: wait for that first, or pass a copy"
            ))
        })?;
        let passed = self.passed.map(|Tensors { bytes: [read, written], read: first, written: result }| {
            // What is in the memory of an output has no meaning, but a reduction in place reads it.
            let own = result.as_ref().filter(|_| self.purpose == Purpose::Reduction).and_then(|own| facts(own).ok());
            Passed::new(if read > 0 { read } else { written }, first.or(own).as_ref(), result)
        });
        Ok((claimed, passed))
    }

    fn take(&mut self, name: &str, tensor: &Tensor, access: Access) -> Result<()> {
        let facts = facts(tensor).map_err(|exception| Error::new(self.call, exception).at_rank(self.group.rank()))?;
        if let Some(why) = self.misuse(&facts, tensor) {
            return self.refuse(format!("{name} {why}"));
        }
        let begin = facts.address;
        let bytes = u64::try_from(facts.numel.saturating_mul(facts.item_size)).unwrap_or(0);
        self.spans.push(Span { begin, end: begin.saturating_add(bytes), access });
        if let Some(passed) = &mut self.passed {
            passed.bytes[usize::from(access == Access::Write)] += bytes;
            match access {
                Access::Read => {
                    passed.read.get_or_insert(facts);
                }
                Access::Write => {
                    passed.written.get_or_insert_with(|| tensor.shallow_clone());
                }
            }
        }
        self.first.get_or_insert(facts);
        Ok(())
    }

    /// Why the tensor is refused, as the end of a sentence.
    fn misuse(&self, facts: &ffi::TensorFacts, tensor: &Tensor) -> Option<String> {
        if let Some(why) = unusable(facts) {
            return Some(why);
        }
        if !facts.contiguous {
            let (size, stride) = (tensor.size(), tensor.stride());
            return Some(format!(
                "of shape {size:?} and strides {stride:?} is not contiguous in memory: pass `.contiguous()`, which is a copy, and \
                 copy the result back where it is written"
            ));
        }
        self.wrong_device(facts).or_else(|| self.wrong_kind(facts))
    }

    fn wrong_device(&self, facts: &ffi::TensorFacts) -> Option<String> {
        let (here, backends) = (device(facts), self.group.backends());
        let Some(backend) = of_tch(facts).and_then(|device| backends.of(device)) else {
            let kind = here.split(':').next().unwrap_or_default();
            return Some(format!(
                "is on device {here}, and the group ({backends}) has no backend type associated with device type {kind}: move it \
                 to {:?} with `.to_device()`, or make a group for both, such as cpu:gloo,cuda:nccl",
                self.group.device()
            ));
        };
        let taken = match backend {
            Backend::Gloo => facts.device_type == CPU || self.purpose != Purpose::Message,
            Backend::SharedMemory | Backend::TwoLevels | Backend::Auto => true,
            Backend::Nccl { device } => usize::try_from(facts.device_index) == Ok(device),
        };
        if !taken {
            let there = self.group.device();
            return Some(format!(
                "is on device {here}, the group's tensors on {there:?}: move it there with `.to_device()`"
            ));
        }
        let first = self.first.as_ref().unwrap_or(facts);
        let same = (first.device_type, first.device_index) == (facts.device_type, facts.device_index);
        (!same).then(|| format!("is on device {here}, another tensor of the call on {}", device(first)))
    }

    fn wrong_kind(&self, facts: &ffi::TensorFacts) -> Option<String> {
        let backend = of_tch(facts).and_then(|device| self.group.backends().of(device)).unwrap_or(self.group.backend());
        let taken = match self.purpose {
            Purpose::Message => KINDS.iter().any(|&(number, _)| number == facts.kind),
            Purpose::Collective => COLLECTIVE.contains(&facts.kind),
            Purpose::Reduction => COLLECTIVE.contains(&facts.kind) && (facts.kind != BOOL || backend.is_nccl()),
        };
        let name = backend.name();
        if !taken {
            return Some(format!(
                "is of dtype {}, which {name} does not take here: convert it with `.to_kind()`",
                kind(facts.kind)
            ));
        }
        let first = self.first.as_ref().map_or(facts.kind, |first| first.kind);
        (first != facts.kind).then(|| {
            format!(
                "is of dtype {}, another tensor of the call of {}: convert one with `.to_kind()`",
                kind(facts.kind),
                kind(first)
            )
        })
    }

    /// The backend that gets the call.
    pub(crate) fn backend(&self) -> Backend {
        backend_of(self.group, self.first.as_ref())
    }

    pub(crate) fn refuse<T>(&self, detail: String) -> Result<T> {
        Err(Error::bad_argument(self.call, detail).at_rank(self.group.rank()))
    }
}

/// The backend for a call with this first tensor.
fn backend_of(group: &ProcessGroup, first: Option<&ffi::TensorFacts>) -> Backend {
    let of_first = first.and_then(of_tch).and_then(|device| group.backends().of(device));
    of_first.unwrap_or(group.backend())
}

/// The same for a call of libtorch that no [`Guard`] checks.
pub(crate) fn backend_for(group: &ProcessGroup, tensors: &[Tensor]) -> Backend {
    backend_of(group, tensors.first().and_then(|tensor| facts(tensor).ok()).as_ref())
}

/// Why no call can use the tensor, as the end of a sentence.
fn unusable(facts: &ffi::TensorFacts) -> Option<String> {
    if !facts.defined {
        return Some("is undefined: give it memory first, as `Tensor::zeros` does".into());
    }
    if !facts.strided {
        return Some(
            "is sparse, nested or of another layout that is not one block: pass `.to_dense(None, false)`".into(),
        );
    }
    let lazy =
        "has no memory that holds its values (a lazy conjugate, negative or zero, or cut-off storage): pass `.copy()`";
    (!facts.in_storage).then(|| lazy.into())
}

pub(crate) fn facts(tensor: &Tensor) -> Result<ffi::TensorFacts, ffi::Exception> {
    let mut facts = ffi::TensorFacts::default();
    // SAFETY: the tensor is borrowed for the call, and `facts` may be written.
    unsafe { ffi::lc_tensor_facts(tensor.as_ptr(), &mut facts) }.check()?;
    Ok(facts)
}

/// Refuses tensors that libtorch's own code does not expect: it accepts every memory layout, but not undefined or
/// sparse tensors.
pub(crate) fn check_dense(call: &str, tensors: &[Tensor]) -> Result<()> {
    for (i, tensor) in tensors.iter().enumerate() {
        let facts = facts(tensor).map_err(|exception| Error::new(call, exception))?;
        if let Some(why) = unusable(&facts) {
            return Err(Error::bad_argument(call, format!("tensor {i} {why}")));
        }
    }
    Ok(())
}

/// Shape and dtype, for messages and reports; also for tensors on which tch's own `size` and `kind` panic.
pub(crate) fn describe(tensor: &Tensor) -> String {
    match facts(tensor) {
        Ok(facts) if facts.defined && facts.strided => format!("{:?} {}", tensor.size(), kind(facts.kind)),
        Ok(facts) if facts.defined => format!("a tensor that is not dense, of {}", kind(facts.kind)),
        _ => "an undefined tensor".into(),
    }
}

fn kind(number: i32) -> String {
    let known = KINDS.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("number {number} of c10::ScalarType"), |(_, name)| (*name).into())
}

/// The device, if groups have backends for devices of its type.
fn of_tch(facts: &ffi::TensorFacts) -> Option<Device> {
    match facts.device_type {
        CPU => Some(Device::Cpu),
        CUDA => usize::try_from(facts.device_index).ok().map(Device::Cuda),
        _ => None,
    }
}

fn device(facts: &ffi::TensorFacts) -> String {
    match facts.device_type {
        CPU => "cpu".into(),
        CUDA => format!("cuda:{}", facts.device_index),
        other => format!("number {other} of c10::DeviceType"),
    }
}

// The sizes of a collective's tensors where they differ. Gloo splits memory by these sizes without a check.

/// A tensor and its name in messages.
type Named<'a> = (&'a str, &'a Tensor);

/// Checks that `whole` holds one `part` per rank, either concatenated or stacked in a new first dimension.
pub(crate) fn check_parts(guard: &Guard<'_>, world: WorldSize, whole: Named<'_>, part: Named<'_>) -> Result<()> {
    let (whole_size, part_size) = (whole.1.size(), part.1.size());
    let [in_a_row, stacked] = wholes(world.get() as i64, &part_size);
    if in_a_row.as_ref() == Some(&whole_size) || stacked.as_ref() == Some(&whole_size) {
        return Ok(());
    }
    let fitting: Vec<String> = [in_a_row, stacked].iter().flatten().map(|size| format!("{size:?}")).collect();
    guard.refuse(format!(
        "the {} is of shape {whole_size:?}, where {world} ranks and an {} of {part_size:?} need {}",
        whole.0,
        part.0,
        fitting.join(" or ")
    ))
}

/// The shapes of `world` parts concatenated, which is impossible for scalars, and stacked.
fn wholes(world: i64, part: &[i64]) -> [Option<Vec<i64>>; 2] {
    let in_a_row = part.split_first().map(|(rows, rest)| [&[rows.saturating_mul(world)], rest].concat());
    [in_a_row, Some([&[world], part].concat())]
}

/// Checks that both tensors have rows of the same size and that the splits cover all rows.
pub(crate) fn check_splits(
    guard: &Guard<'_>,
    world: WorldSize,
    output: &Tensor,
    input: &Tensor,
    splits: &Splits,
) -> Result<()> {
    let (output, input) = (output.size(), input.size());
    let (Some((out_rows, out_row)), Some((in_rows, in_row))) = (output.split_first(), input.split_first()) else {
        return guard.refuse("a scalar has no dimension to split: pass tensors of at least one dimension".into());
    };
    if out_row != in_row {
        return guard.refuse(format!("the output has rows of shape {out_row:?}, the input of {in_row:?}"));
    }
    match splits {
        Splits::Equal if out_rows != in_rows || in_rows % world.get() as i64 != 0 => guard.refuse(format!(
            "{in_rows} rows of input and {out_rows} of output are not {world} equal parts: give the sizes with Splits::Sizes"
        )),
        Splits::Equal => Ok(()),
        Splits::Sizes { input, output } => {
            check_split(guard, world, ("input", input.as_slice()), *in_rows)?;
            check_split(guard, world, ("output", output.as_slice()), *out_rows)
        }
    }
}

fn check_split(guard: &Guard<'_>, world: WorldSize, (what, sizes): (&str, &[i64]), rows: i64) -> Result<()> {
    if sizes.len() != world.get() {
        return guard.refuse(format!("{} {what} splits were given for {world} ranks", sizes.len()));
    }
    let sum = sizes.iter().try_fold(0_i64, |sum, &size| sum.checked_add(size).filter(|_| size >= 0));
    if sum == Some(rows) {
        return Ok(());
    }
    guard.refuse(format!("the {what} splits {sizes:?} are not sizes that add up to its {rows} rows"))
}

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

    /// The memory's length in bytes, including bytes that the tensor does not use; 0 once it is freed.
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

    /// The tensor's numbers, row by row.
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
    fn describes_tensors_of_any_kind_without_a_panic() {
        let matrix = Tensor::zeros([2, 3], (Kind::Int64, Device::Cpu));
        assert_eq!(describe(&matrix), format!("{:?} {:?}", matrix.size(), matrix.kind()));
        assert_eq!(describe(&Tensor::new()), "an undefined tensor");
        assert_eq!(describe(&matrix.to_sparse_sparse_dim(2)), "a tensor that is not dense, of Int64");
    }

    #[test]
    fn names_of_dtypes_are_tchs() {
        for kind_of_tch in [Kind::Uint8, Kind::Int8, Kind::Int16, Kind::Int, Kind::Half, Kind::Bool, Kind::BFloat16] {
            let facts = facts(&Tensor::zeros([1], (kind_of_tch, Device::Cpu))).unwrap();
            assert_eq!(kind(facts.kind), format!("{kind_of_tch:?}"));
        }
    }

    #[test]
    fn a_lazy_negative_has_no_memory_of_its_own() {
        let ones = Tensor::ones([2], (Kind::Float, Device::Cpu));
        let lazy = Tensor::complex(&ones, &ones).conj().imag();
        assert!(unusable(&facts(&lazy).unwrap()).is_some());
        assert!(unusable(&facts(&ones).unwrap()).is_none());
    }

    #[test]
    fn parts_are_concatenated_or_stacked() {
        assert_eq!(wholes(3, &[2, 5]), [Some(vec![6, 5]), Some(vec![3, 2, 5])]);
        assert_eq!(wholes(3, &[]), [None, Some(vec![3])]);
    }

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

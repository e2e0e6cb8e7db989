//! What tch cannot ask of libtorch's kernels: determinism, memory with the channels last, page-locked memory, the peak of
//! a GPU's memory, and the threads of one thread's operations.

use tch::{Device, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{self, Status};

/// From now on every operation uses a deterministic kernel, or fails if there is none; `torch.use_deterministic_algorithms`. cuDNN no
/// longer chooses kernels by their times. For the whole process.
///
/// cuBLAS also needs the variable `CUBLAS_WORKSPACE_CONFIG=:4096:8` (or `:16:8`) before its first use, as libtorch's error then says.
/// As in PyTorch, `Tensor::empty` is filled with NaN meanwhile.
///
/// # Errors
/// libtorch's.
pub fn use_deterministic_algorithms(on: bool) -> Result<()> {
    // SAFETY: sets flags of libtorch's context, at any time.
    done("use deterministic algorithms", unsafe { ffi::lc_use_deterministic_algorithms(on) })
}

/// Returns true if the tensor has four dimensions, and the second one is the last in memory: `torch.channels_last`.
pub fn is_channels_last(tensor: &Tensor) -> bool {
    // SAFETY: the tensor is borrowed for the call.
    unsafe { ffi::lc_is_channels_last(tensor.as_ptr()) }
}

/// The same values, of shape `[n, c, h, w]`, with the channels last in memory. No copy if they are.
///
/// # Errors
/// `BadArgument` for a tensor without four dimensions.
pub fn channels_last(tensor: &Tensor) -> Result<Tensor> {
    const CALL: &str = "put channels last";
    four_dimensions(CALL, tensor)?;
    // SAFETY: the tensor is borrowed for the call, and the result may be written.
    made(CALL, |out| unsafe { ffi::lc_channels_last(tensor.as_ptr(), out) })
}

/// As [`channels_last`], in place: parameters stay the same parameters, and gradients will have their layout.
///
/// # Errors
/// As there.
pub fn to_channels_last(tensor: &mut Tensor) -> Result<()> {
    const CALL: &str = "put channels last in place";
    four_dimensions(CALL, tensor)?;
    // SAFETY: the tensor is borrowed exclusively for the call, and keeps its shape and type.
    done(CALL, unsafe { ffi::lc_to_channels_last(tensor.as_mut_ptr()) })
}

/// A copy in page-locked memory, from which a GPU copies while the program goes on.
///
/// # Errors
/// libtorch's, for example where CUDA is not loaded.
pub fn pin_memory(tensor: &Tensor) -> Result<Tensor> {
    // SAFETY: the tensor is borrowed for the call, and the result may be written.
    made("lock memory for copies to a GPU", |out| unsafe { ffi::lc_pin_memory(tensor.as_ptr(), out) })
}

/// From now on the operations of the calling thread use no other thread, as in a worker of Python's loader; `torch.set_num_threads(1)` for
/// this thread alone. `tch::set_num_threads` changes the number for all threads that start later, too.
///
/// # Errors
/// libtorch's.
pub fn use_one_thread_here() -> Result<()> {
    // SAFETY: changes settings of the calling thread.
    done("use one thread", unsafe { ffi::lc_one_thread_here() })
}

/// The most bytes that tensors on a GPU had at a time, since the start or [`reset_peak_memory`]; `torch.cuda.max_memory_allocated`. `None`
/// for another device.
///
/// # Errors
/// libtorch's.
pub fn peak_memory(device: Device) -> Result<Option<u64>> {
    let Device::Cuda(index) = device else { return Ok(None) };
    let mut bytes = 0;
    // SAFETY: the result may be written.
    done("read the peak of a GPU's memory", unsafe { ffi::lc_peak_memory(number(index), &mut bytes) })?;
    Ok(Some(u64::try_from(bytes).unwrap_or(0)))
}

/// Forgets the peak; nothing to do for another device than a GPU.
///
/// # Errors
/// libtorch's.
pub fn reset_peak_memory(device: Device) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    // SAFETY: takes a number, which libtorch checks.
    done("reset the peak of a GPU's memory", unsafe { ffi::lc_reset_peak_memory(number(index)) })
}

/// GPUs of a machine are fewer than this limit; libtorch refuses what is not there.
fn number(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

fn four_dimensions(call: &str, tensor: &Tensor) -> Result<()> {
    let dimensions = if tensor.defined() { tensor.dim() } else { 0 };
    if dimensions == 4 {
        return Ok(());
    }
    Err(Error::bad_argument(
        call,
        format!("a tensor of {dimensions} dimensions has none: give one of shape [n, c, h, w]"),
    ))
}

fn made(call: &str, make: impl FnOnce(*mut *mut torch_sys::C_tensor) -> Status) -> Result<Tensor> {
    let made = ffi::made(make).map_err(|exception| Error::new(call, exception))?;
    // SAFETY: the shim made the tensor for its caller, who owns it from now on.
    Ok(unsafe { Tensor::from_ptr(made.as_ptr()) })
}

fn done(call: &str, status: Status) -> Result<()> {
    status.check().map_err(|exception| Error::new(call, exception))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn deterministic_kernels_are_on_until_they_are_switched_off() {
        let fresh = || Tensor::empty([64], (Kind::Float, Device::Cpu)).isnan().all().int64_value(&[]) == 1;
        use_deterministic_algorithms(true).unwrap();
        let filled = fresh();
        use_deterministic_algorithms(false).unwrap();
        // PyTorch fills new memory with NaN meanwhile (torch.utils.deterministic.fill_uninitialized_memory).
        assert!(filled);
    }

    #[test]
    fn one_thread_of_a_program_may_compute_alone() {
        tch::set_num_threads(3);
        let (other, later) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                use_one_thread_here().unwrap();
                tch::get_num_threads()
            });
            let other = other.join().unwrap();
            (other, scope.spawn(tch::get_num_threads).join().unwrap())
        });
        assert_eq!((other, later, tch::get_num_threads()), (1, 3, 3));
    }

    #[test]
    fn channels_last_keeps_the_values_and_moves_them_in_memory() {
        let pictures = Tensor::arange(2 * 3 * 4 * 5, (Kind::Float, Device::Cpu)).reshape([2, 3, 4, 5]);
        assert!(!is_channels_last(&pictures));
        let moved = channels_last(&pictures).unwrap();
        assert_eq!((moved.stride(), is_channels_last(&moved)), (vec![60, 1, 15, 3], true));
        assert_eq!((moved.size(), &moved), (pictures.size(), &pictures));
        let mut same = moved.shallow_clone();
        let address = same.data_ptr();
        to_channels_last(&mut same).unwrap();
        assert_eq!(same.data_ptr(), address);
        let error = channels_last(&Tensor::zeros([2, 3], (Kind::Float, Device::Cpu))).unwrap_err();
        assert!(error.to_string().contains("2 dimensions"), "{error}");
    }

    #[test]
    fn a_parameter_stays_itself_and_its_gradient_gets_its_layout() {
        let weight = Tensor::ones([4, 3, 2, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let held = weight.shallow_clone();
        to_channels_last(&mut weight.shallow_clone()).unwrap();
        assert!(is_channels_last(&held) && held.requires_grad() && held.is_leaf());
        let pictures = channels_last(&Tensor::ones([2, 3, 8, 8], (Kind::Float, Device::Cpu))).unwrap();
        crate::backward(&pictures.conv2d(&weight, None::<Tensor>, [1, 1], [0, 0], [1, 1], 1).sum(Kind::Float)).unwrap();
        assert!(is_channels_last(&held.grad()));
    }

    #[test]
    fn a_host_has_no_peak_and_without_cuda_locked_memory_is_an_error() {
        assert_eq!(peak_memory(Device::Cpu).unwrap(), None);
        reset_peak_memory(Device::Cpu).unwrap();
        if tch::Cuda::is_available() {
            println!("not verified here: the error of locked memory without a GPU");
        } else {
            pin_memory(&Tensor::ones([1], (Kind::Float, Device::Cpu))).unwrap_err();
        }
    }
}

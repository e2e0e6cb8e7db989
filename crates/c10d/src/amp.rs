//! Mixed precision: autocast, and the kernel that unscales gradients.
//!
//! Not here: the scale and when it changes (`lockstep::amp::GradScaler`).

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{self, pointers};

/// Runs `body` with `torch.autocast(device, dtype=kind, enabled=enabled)`: on tensors of this kind of device, operations that
/// are safe in half the precision take their inputs as `kind`, and those that need it take them as `Float`.
///
/// It is for the forward pass and the loss: backward runs each operation in the type that its forward pass had. It holds for the
/// calling thread and may be nested; the state before returns with the end of `body`, also by a panic.
///
/// # Errors
/// `BadArgument` for a kind other than `BFloat16` and `Half`, and for a device other than CPU and CUDA.
///
/// ```
/// use tch::{Device, Kind, Tensor};
/// let (a, b) = (Tensor::ones([2, 3], (Kind::Float, Device::Cpu)), Tensor::ones([3, 2], (Kind::Float, Device::Cpu)));
/// let product = c10d::autocast(Device::Cpu, Kind::BFloat16, true, || a.matmul(&b))?;
/// assert_eq!(product.kind(), Kind::BFloat16);
/// # Ok::<(), c10d::Error>(())
/// ```
pub fn autocast<T>(device: Device, kind: Kind, enabled: bool, body: impl FnOnce() -> T) -> Result<T> {
    let refuse = |why: String| Err(Error::bad_argument("autocast", why));
    let cuda = match device {
        Device::Cpu => false,
        Device::Cuda(_) => true,
        other => return refuse(format!("{other:?} is not supported; use Cpu or Cuda")),
    };
    let half = match kind {
        Kind::Half => true,
        Kind::BFloat16 => false,
        other => return refuse(format!("{other:?} is not supported; use BFloat16 or Half")),
    };
    let _within = Autocast::enter(cuda, half, enabled)?;
    Ok(body())
}

/// Autocast as long as it lives, on the thread that made it.
struct Autocast(ffi::AutocastState);

impl Autocast {
    fn enter(cuda: bool, half: bool, enabled: bool) -> Result<Self> {
        let mut before = ffi::AutocastState::default();
        // SAFETY: the shim writes the state before the call to `before`.
        let status = unsafe { ffi::lc_autocast_enter(cuda, half, enabled, &mut before) };
        status.check().map_err(|exception| Error::new("autocast", exception))?;
        Ok(Autocast(before))
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: the state was filled when this was made.
        let status = unsafe { ffi::lc_autocast_leave(&self.0) };
        let restored = status.check();
        debug_assert!(restored.is_ok(), "setting thread-local variables does not fail");
    }
}

/// Multiplies gradients by `inverse_scale` in place, and sets `found_inf` to 1 if one of them is infinite or NaN.
/// `_amp_foreach_non_finite_check_and_unscale_` in PyTorch.
///
/// The gradients have one dtype, and `found_inf` and `inverse_scale` are one `Float` each on their device.
///
/// # Errors
/// `BadArgument` for other tensors.
pub fn unscale(grads: &mut [Tensor], found_inf: &mut Tensor, inverse_scale: &Tensor) -> Result<()> {
    let Some(first) = grads.first() else { return Ok(()) };
    let device = first.device();
    let alike = grads.iter().all(|grad| (grad.kind(), grad.device()) == (first.kind(), device));
    let single = [&*found_inf, inverse_scale]
        .iter()
        .all(|tensor| tensor.kind() == Kind::Float && tensor.numel() == 1 && tensor.device() == device);
    if !(alike && single) {
        let why = "gradients of one dtype and device are needed, with a flag and a scale of one Float on that device";
        return Err(Error::bad_argument("unscale", why));
    }
    let grads = pointers(grads);
    // SAFETY: the list has the given length, and all tensors outlive the call. The shim refuses gradients that the kernel would
    // misread.
    let status = unsafe { ffi::lc_unscale(grads.as_ptr(), grads.len(), found_inf.as_ptr(), inverse_scale.as_ptr()) };
    status.check().map_err(|exception| Error::new("unscale", exception))
}

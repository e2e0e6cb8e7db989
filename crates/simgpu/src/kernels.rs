//! The kernels that the device knows by name. It reads no instructions: of a module's PTX it takes the names of the entries.

use std::ffi::c_void;

use crate::codes::Cuda;
use crate::world::World;

/// As on all of NVIDIA's devices since compute capability 2.0.
pub(crate) const MOST_THREADS: u32 = 1024;

pub(crate) struct Module {
    pub(crate) device: usize,
    pub(crate) entries: Vec<String>,
}

/// A kernel with its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    /// `fill(float *x, float value, uint64_t n)`
    Fill { x: u64, value: f32, n: u64 },
    /// `scale(float *x, float factor, uint64_t n)`
    Scale { x: u64, factor: f32, n: u64 },
    /// `add(float *x, const float *y, uint64_t n)`: y is added to x.
    Add { x: u64, y: u64, n: u64 },
}

/// A kernel on a number of threads.
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) threads: u64,
}

/// The names of the entries in a module's PTX.
pub(crate) fn entries(ptx: &str) -> Vec<String> {
    let after = ptx.split(".entry").skip(1);
    let name = |text: &str| text.trim_start().split(|c: char| c == '(' || c.is_whitespace()).next().map(str::to_owned);
    after.filter_map(name).filter(|name| !name.is_empty()).collect()
}

impl Kernel {
    /// Reads the arguments, as `cuLaunchKernel` does before it returns.
    ///
    /// # Safety
    /// `arguments` points to as many pointers as the kernel has parameters, each to a value of the parameter's type.
    pub(crate) unsafe fn read(name: &str, arguments: *const *const c_void) -> Result<Kernel, Cuda> {
        if !matches!(name, "fill" | "scale" | "add") {
            eprintln!("simulated device: it has no kernel {name}, only fill, scale and add");
            return Err(Cuda::NOT_SUPPORTED);
        }
        if arguments.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: three parameters, by the caller's promise.
        let [first, second, third] = unsafe { [*arguments, *arguments.add(1), *arguments.add(2)] };
        if first.is_null() || second.is_null() || third.is_null() {
            return Err(Cuda::INVALID_VALUE);
        }
        // SAFETY: the first and the last parameter of each of the three kernels have 64 bits.
        let (x, n) = unsafe { (first.cast::<u64>().read_unaligned(), third.cast::<u64>().read_unaligned()) };
        // SAFETY: of `add` it is a pointer, of the others a float.
        let (y, value) = unsafe {
            if name == "add" {
                (second.cast::<u64>().read_unaligned(), 0.0)
            } else {
                (0, second.cast::<f32>().read_unaligned())
            }
        };
        Ok(match name {
            "fill" => Kernel::Fill { x, value, n },
            "scale" => Kernel::Scale { x, factor: value, n },
            _ => Kernel::Add { x, y, n },
        })
    }
}

impl Launch {
    /// Threads beyond `n` do nothing, and elements beyond the threads stay as they were.
    pub(crate) fn run(&self, world: &mut World, device: usize) -> Result<(), Cuda> {
        let (Kernel::Fill { x, n, .. } | Kernel::Scale { x, n, .. } | Kernel::Add { x, n, .. }) = self.kernel;
        let bytes = 4 * n.min(self.threads);
        let mut own = floats(&world.read(device, x, bytes)?);
        match self.kernel {
            Kernel::Fill { value, .. } => own.fill(value),
            Kernel::Scale { factor, .. } => own.iter_mut().for_each(|element| *element *= factor),
            Kernel::Add { y, .. } => {
                let other = floats(&world.read(device, y, bytes)?);
                own.iter_mut().zip(other).for_each(|(element, other)| *element += other);
            }
        }
        let bytes: Vec<u8> = own.iter().flat_map(|element| element.to_le_bytes()).collect();
        world.write(device, x, &bytes)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_entries_of_a_module() {
        let ptx = ".version 7.0\n.visible .entry fill(\n.param .u64 x)\n{ ret; }\n.entry  other ( )\n{ ret; }";
        assert_eq!(entries(ptx), ["fill", "other"]);
        assert!(entries("\u{7f}ELF").is_empty());
    }
}

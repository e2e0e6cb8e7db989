//! Three kernels, in PTX: no compiler for CUDA is needed to build them. The driver translates them for the device.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUfunction};

use crate::error::{Result, cuda};
use crate::{Buffer, Gpu, Stream};

const THREADS: u32 = 256;

/// One thread an element: thread i leaves at once if i is not below n.
macro_rules! kernel {
    ($name:literal, $second:literal, $body:literal) => {
        concat!(
            ".visible .entry ",
            $name,
            "(.param .u64 x, .param ",
            $second,
            " second, .param .u64 n)\n{\n",
            ".reg .pred %p<2>;\n.reg .b32 %r<4>;\n.reg .b64 %d<8>;\n.reg .f32 %f<4>;\n",
            "ld.param.u64 %d1, [x];\nld.param.u64 %d2, [n];\n",
            "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n",
            "cvt.u64.u32 %d3, %r3;\nmad.wide.u32 %d4, %r1, %r2, %d3;\n",
            "setp.ge.u64 %p1, %d4, %d2;\n@%p1 bra DONE;\n",
            "cvta.to.global.u64 %d1, %d1;\nshl.b64 %d5, %d4, 2;\nadd.s64 %d1, %d1, %d5;\n",
            $body,
            "st.global.f32 [%d1], %f1;\nDONE:\nret;\n}\n"
        )
    };
}

const PTX: &str = concat!(
    ".version 7.0\n.target sm_75\n.address_size 64\n",
    kernel!("fill", ".f32", "ld.param.f32 %f1, [second];\n"),
    kernel!("scale", ".f32", "ld.global.f32 %f2, [%d1];\nld.param.f32 %f3, [second];\nmul.f32 %f1, %f2, %f3;\n"),
    kernel!(
        "add",
        ".u64",
        "ld.param.u64 %d6, [second];\ncvta.to.global.u64 %d6, %d6;\nadd.s64 %d6, %d6, %d5;\nld.global.f32 %f2, [%d1];\n\
         ld.global.f32 %f3, [%d6];\nadd.f32 %f1, %f2, %f3;\n"
    ),
    "\0"
);

/// The functions of the module, loaded into one context.
pub(crate) struct Kernels {
    fill: CUfunction,
    scale: CUfunction,
    add: CUfunction,
}

impl Kernels {
    pub(crate) fn load(gpu: &Gpu) -> Result<Self> {
        gpu.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: PTX that ends with a zero. The module stays loaded for as long as its context lives.
        cuda("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, PTX.as_ptr().cast()) })?;
        let function = |name: &std::ffi::CStr| {
            let mut function = std::ptr::null_mut();
            // SAFETY: a module that was just loaded, and a string.
            let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            cuda("cuModuleGetFunction", result).map(|()| function)
        };
        Ok(Kernels { fill: function(c"fill")?, scale: function(c"scale")?, add: function(c"add")? })
    }
}

// SAFETY: handles of functions may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; they never change.
unsafe impl Sync for Kernels {}

impl Stream {
    /// Issues a kernel that sets each element.
    ///
    /// # Errors
    /// CUDA's, of this call or of earlier work.
    pub fn fill(&self, buffer: &Buffer, mut value: f32) -> Result<()> {
        let function = self.gpu().kernels()?.fill;
        self.launch(function, buffer.address(), (&raw mut value).cast(), buffer.len())
    }

    /// Issues a kernel that multiplies each element.
    ///
    /// # Errors
    /// CUDA's, of this call or of earlier work.
    pub fn scale(&self, buffer: &Buffer, mut factor: f32) -> Result<()> {
        let function = self.gpu().kernels()?.scale;
        self.launch(function, buffer.address(), (&raw mut factor).cast(), buffer.len())
    }

    /// Issues a kernel that adds `other` to `buffer`, element by element, up to the shorter one's length.
    ///
    /// # Errors
    /// CUDA's, of this call or of earlier work.
    pub fn add(&self, buffer: &Buffer, other: &Buffer) -> Result<()> {
        let function = self.gpu().kernels()?.add;
        let mut address = other.address();
        self.launch(function, buffer.address(), (&raw mut address).cast(), buffer.len().min(other.len()))
    }

    /// Launches a kernel of this module, whose parameters are an address, `second` and a length.
    fn launch(&self, function: CUfunction, mut address: u64, second: *mut c_void, len: usize) -> Result<()> {
        self.gpu().bind()?;
        let mut n = len as u64;
        let mut arguments = [(&raw mut address).cast(), second, (&raw mut n).cast()];
        let blocks = u32::try_from(len.div_ceil(THREADS as usize)).unwrap_or(u32::MAX).max(1);
        // SAFETY: the kernel's three parameters, of its types; the driver copies them before it returns. The kernel stays below `n`,
        // which both buffers have; they are freed only after the work on their device.
        let result = unsafe {
            let (extra, none) = (std::ptr::null_mut(), 0);
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                none,
                self.handle(),
                arguments.as_mut_ptr(),
                extra,
            )
        };
        cuda("cuLaunchKernel", result)
    }
}

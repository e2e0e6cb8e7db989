//! Builds two empty libraries, `libcuda.so` and `libnccl.so`, that depend on the simulated device. Once the program itself has loaded
//! them, the loader finds them under these names (see `src/library.rs`).

use std::path::{Path, PathBuf};

/// `simgpu::SONAME`: the library that holds the functions.
const DEVICE: &str = "libsimgpu.so";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it"));
    let source = out.join("empty.c");
    std::fs::write(&source, "").expect("OUT_DIR can be written");
    // Only the library's name matters: the real one is loaded by its path.
    let device = link(&out, &source, DEVICE, None);
    for name in ["libcuda.so", "libnccl.so"] {
        link(&out, &source, name, Some(&device));
    }
}

fn link(out: &Path, source: &Path, name: &str, needs: Option<&Path>) -> PathBuf {
    let path = out.join(name);
    let mut compiler = cc::Build::new().cargo_metadata(false).get_compiler().to_command();
    compiler.args(["-shared", "-nostdlib", "-Wl,--no-as-needed"]).arg(format!("-Wl,-soname,{name}"));
    compiler.arg("-o").arg(&path).arg(source).args(needs);
    let status = compiler.status().expect("the C compiler that the course's set-up needs");
    assert!(status.success(), "cannot link {name}: {status}");
    path
}

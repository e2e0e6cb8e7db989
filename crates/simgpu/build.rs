//! Names the shared library, so that the loader finds it again by that name once it is loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsimgpu.so");
}

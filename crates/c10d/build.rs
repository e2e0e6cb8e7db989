//! Compiles the C++ shim against the headers of the libtorch that torch-sys links.
//!
//! Leaves out linking: torch-sys names the libraries.

use std::path::{Path, PathBuf};

const SOURCES: [&str; 4] = ["shim/store.cpp", "shim/group.cpp", "shim/reducer.cpp", "shim/optim.cpp"];

fn main() {
    println!("cargo:rerun-if-changed=shim");
    let include = libtorch_dir().join("include");
    assert!(
        include.join("torch/csrc/distributed/c10d/ProcessGroup.hpp").exists(),
        "no libtorch headers in {}: run scripts/setup.sh",
        include.display()
    );
    shim_build(&include).files(SOURCES).compile("lockstep_c10d");
}

/// The folder that torch-sys was built with: the parent of the library folder that it hands to its dependents.
fn libtorch_dir() -> PathBuf {
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names its library folder");
    Path::new(&lib).parent().expect("the library folder has a parent").to_path_buf()
}

/// libtorch's headers as system headers, so that their warnings stay theirs; `shim/gloo` stands in for Gloo's.
fn shim_build(include: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).include("shim").flag("-Wno-unused-parameter").opt_level(1).debug(false);
    for dir in [include.to_path_buf(), include.join("torch/csrc/api/include")] {
        build.flag("-isystem").flag(dir.to_str().expect("a path in UTF-8"));
    }
    build.define("_GLIBCXX_USE_CXX11_ABI", "1").define("USE_DISTRIBUTED", None).define("USE_C10D_GLOO", None);
    build
}

//! Compiles the C++ shim against the headers of the libtorch that torch-sys links. Where libtorch has CUDA's libraries and NVIDIA's
//! headers are there (`scripts/setup.sh --cuda`), it also builds the NCCL part as a shared library, whose bytes the crate embeds, and
//! sets `cfg(nccl)`.
//!
//! It does not link libtorch: torch-sys names the libraries. With the feature `doc-only` it does nothing.

use std::path::{Path, PathBuf};

const SOURCES: [&str; 1] = ["shim/shim.cpp"];
/// Collectives in shared memory, which do not depend on libtorch.
const SHARED_MEMORY: [&str; 7] = [
    "shim/shm/collectives.cpp",
    "shim/shm/executor.cpp",
    "shim/shm/meeting.cpp",
    "shim/shm/members.cpp",
    "shim/shm/messages.cpp",
    "shim/shm/reduce.cpp",
    "shim/shm/segment.cpp",
];
const NCCL_SOURCES: [&str; 2] = ["shim/status.cpp", "shim/nccl.cpp"];

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rustc-check-cfg=cfg(nccl)");
    if std::env::var_os("CARGO_FEATURE_DOC_ONLY").is_some() {
        return;
    }
    let libtorch = libtorch_dir();
    let include = libtorch.join("include");
    assert!(
        include.join("torch/csrc/distributed/c10d/ProcessGroup.hpp").exists(),
        "no libtorch headers in {}: let LIBTORCH name a libtorch 2.11 (in a checkout of Lockstep, run scripts/setup.sh)",
        include.display()
    );
    // Set-up writes these files when the libtorch that this script finds changes. A missing path would count as changed in
    // every build.
    let written = ["backend", "installed"].map(|file| libtorch.join(file));
    if let Some(file) = written.iter().find(|file| file.exists()) {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let nvidia = Nvidia::find(&libtorch);
    shim_build(&include, nvidia.is_some()).files(SOURCES).compile("lockstep_c10d");
    build_shared_memory();
    if let Some(nvidia) = nvidia {
        nvidia.build_nccl(&include);
        println!("cargo:rustc-cfg=nccl");
    }
}

/// The folder of the libtorch that torch-sys was built with: the parent of the library folder that torch-sys reports.
fn libtorch_dir() -> PathBuf {
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    let lib = std::env::var_os("DEP_TCH_LIBTORCH_LIB").expect("torch-sys names its library folder");
    let libtorch = Path::new(&lib).parent().expect("the library folder has a parent");
    // A checkout of Lockstep has one for each architecture; the linker skips the libraries of another architecture that torch-sys
    // names.
    let own = libtorch.join(std::env::var_os("CARGO_CFG_TARGET_ARCH").expect("cargo names it"));
    if !own.join("lib/libtorch_cpu.so").exists() {
        return libtorch.to_path_buf();
    }
    println!("cargo:rustc-link-search=native={}", own.join("lib").display());
    own
}

/// libtorch's headers are system headers here, which silences their warnings; `shim/gloo` replaces Gloo's headers.
fn shim_build(include: &Path, with_nccl: bool) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).include("shim").flag("-Wno-unused-parameter").opt_level(1).debug(false);
    for dir in [include.to_path_buf(), include.join("torch/csrc/api/include")] {
        system_include(&mut build, &dir);
    }
    build.define("_GLIBCXX_USE_CXX11_ABI", "1").define("USE_DISTRIBUTED", None).define("USE_C10D_GLOO", None);
    if with_nccl {
        build.define("WITH_NCCL", None);
    }
    build
}

/// Always with full optimization, because its loops are vector code. They never read the flags of floating-point exceptions.
fn build_shared_memory() {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).opt_level(3).debug(false).flag("-fno-trapping-math");
    build.files(SHARED_MEMORY).compile("lockstep_shm");
}

fn system_include(build: &mut cc::Build, dir: &Path) {
    build.flag("-isystem").flag(dir.to_str().expect("a path in UTF-8"));
}

/// What the NCCL part needs in addition to libtorch's CPU libraries.
struct Nvidia {
    headers: [PathBuf; 2],
    /// The real folder of libtorch's libraries. The folder that cargo builds against lacks the CUDA libraries.
    libraries: PathBuf,
}

impl Nvidia {
    /// Returns `None` unless everything is there.
    fn find(libtorch: &Path) -> Option<Self> {
        let folder = libtorch.join("nvidia");
        let headers = [folder.join("nccl/include"), folder.join("cu13/include")];
        let cpu = libtorch.join("lib/libtorch_cpu.so").canonicalize().expect("torch-sys found libtorch_cpu.so");
        let libraries = cpu.parent().expect("a file has a folder").to_path_buf();
        let needed = [
            headers[0].join("nccl.h"),
            headers[1].join("cuda_runtime_api.h"),
            libraries.join("libtorch_cuda.so"),
            libraries.join("libc10_cuda.so"),
        ];
        needed.iter().all(|file| file.exists()).then_some(Nvidia { headers, libraries })
    }

    /// Builds `liblockstep_nccl.so` with every symbol resolved, so that an incompatible libtorch fails the build and
    /// not a run.
    fn build_nccl(&self, include: &Path) {
        let mut build = shim_build(include, true);
        self.headers.iter().for_each(|dir| system_include(&mut build, dir));
        // Last, so that NVIDIA's own headers of these names take precedence.
        system_include(&mut build, Path::new("shim/cuda"));
        let objects = build.define("USE_C10D_NCCL", None).files(NCCL_SOURCES).compile_intermediates();
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo names it")).join("liblockstep_nccl.so");
        let mut link = build.get_compiler().to_command();
        link.arg("-shared").arg("-o").arg(&out).args(objects).arg("-L").arg(&self.libraries);
        link.args(["-Wl,-z,defs", "-ltorch_cuda", "-lc10_cuda", "-ltorch_cpu", "-lc10"]);
        let status = link.status().expect("the compiler that just compiled");
        assert!(status.success(), "cannot link the NCCL part against {}: {status}", self.libraries.display());
    }
}

//! This program, libtorch, and containers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use lockstep_process::find_program;

use super::super::facts::{Libtorch, Program};

/// Container runtimes of clusters and of clouds.
const RUNTIMES: [&str; 5] = ["apptainer", "singularity", "podman", "docker", "enroot"];

/// The `lockstep` that runs.
pub(super) fn program() -> Program {
    let path = std::env::current_exe().unwrap_or_default();
    let checksum = checksum(&path).ok();
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), path, checksum }
}

/// CRC-32.
fn checksum(path: &Path) -> io::Result<String> {
    let mut reader = flate2::CrcReader::new(File::open(path)?);
    io::copy(&mut reader, &mut io::sink())?;
    Ok(format!("{:08x}", reader.crc().sum()))
}

/// What kind of container this process is in; `None` outside of one.
pub(super) fn container() -> Option<String> {
    let set = |name: &str| std::env::var_os(name).is_some();
    let there = |path: &str| Path::new(path).exists();
    let kinds = [
        ("apptainer", set("APPTAINER_CONTAINER") || there("/.singularity.d")),
        ("singularity", set("SINGULARITY_CONTAINER")),
        ("enroot", set("ENROOT_ROOTFS")),
        ("podman", there("/run/.containerenv")),
        ("kubernetes", set("KUBERNETES_SERVICE_HOST")),
        ("docker", there("/.dockerenv")),
    ];
    kinds.into_iter().find(|(_, is)| *is).map(|(name, _)| name.to_owned())
}

/// The container runtimes in `PATH`.
pub(super) fn runtimes() -> Vec<String> {
    let path = std::env::var_os("PATH");
    let there = |name: &&&str| find_program(OsStr::new(name), path.as_deref()).is_ok();
    RUNTIMES.iter().filter(there).map(|name| (*name).to_owned()).collect()
}

/// The libtorch that programs of the course would load: that of `LIBTORCH`, of the checkout around this program or the current folder
/// (`scripts/setup.sh` installs it in `.libtorch`), or of `LD_LIBRARY_PATH`.
pub(super) fn libtorch(variables: &BTreeMap<String, String>) -> Option<Libtorch> {
    let named = variables.get("LIBTORCH").map(|folder| (PathBuf::from(folder), "LIBTORCH"));
    let begins = [std::env::current_exe().ok(), std::env::current_dir().ok()];
    let checkouts = begins.iter().flatten().flat_map(|begin| begin.ancestors());
    let installed = checkouts.map(|folder| (folder.join(".libtorch"), "scripts/setup.sh"));
    let libraries = variables.get("LD_LIBRARY_PATH").map(String::as_str).unwrap_or_default();
    let loaded = libraries.split(':').filter(|folder| !folder.is_empty()).map(Path::new);
    let loaded = loaded.filter_map(Path::parent).map(|folder| (folder.to_owned(), "LD_LIBRARY_PATH"));
    named.into_iter().chain(installed).chain(loaded).find_map(|(folder, found)| at(&folder, found))
}

/// As set-up looks for it: the folder itself, or one in it.
fn at(folder: &Path, found: &str) -> Option<Libtorch> {
    let folders = [folder.to_owned(), folder.join("torch"), folder.join("libtorch")];
    let folder = folders.into_iter().find(|folder| folder.join("lib/libtorch_cpu.so").is_file())?;
    Some(Libtorch { version: version(&folder), folder, found: found.to_owned() })
}

/// The version, from whichever file of the installation contains it.
fn version(folder: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let recorded = || read("installed")?.lines().find_map(|line| line.strip_prefix("version=")).map(str::to_owned);
    let stamped = || read("build-version")?.lines().next().map(str::to_owned);
    let python = || {
        let text = read("version.py")?;
        let value = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
        Some(value.trim_matches(['\'', '"']).to_owned())
    };
    let header = |name: &str| {
        let text = read(name)?;
        let part = |part: &str| {
            let define = format!("#define TORCH_VERSION_{part} ");
            text.lines().find_map(|line| line.strip_prefix(&define)).map(|value| value.trim().to_owned())
        };
        Some(format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
    };
    recorded()
        .or_else(stamped)
        .or_else(python)
        .or_else(|| header("include/torch/headeronly/version.h"))
        .or_else(|| header("include/torch/version.h"))
        .filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installation(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("torch/lib/libtorch_cpu.so", "")].iter().chain(files) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn finds_libtorch_and_its_version_in_each_form() {
        let header = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n";
        for (file, text, version) in [
            ("torch/build-version", "2.11.0+cpu\n", Some("2.11.0+cpu")),
            ("torch/version.py", "# \n__version__ = '2.11.0+cu130'\n", Some("2.11.0+cu130")),
            ("torch/include/torch/headeronly/version.h", header, Some("2.11.0")),
            ("torch/installed", "source=own\nversion=2.11.0\n", Some("2.11.0")),
            ("torch/other", "", None),
        ] {
            let dir = installation(&[(file, text)]);
            let found = at(dir.path(), "test").unwrap();
            assert_eq!(found.version.as_deref(), version, "{file}");
        }
        assert_eq!(at(Path::new("/none"), "test"), None);
        let dir = installation(&[]);
        let found = libtorch(&[("LIBTORCH".to_owned(), dir.path().to_str().unwrap().to_owned())].into()).unwrap();
        assert_eq!((found.found.as_str(), found.folder), ("LIBTORCH", dir.path().join("torch")));
    }

    #[test]
    fn the_checksum_is_that_of_the_content() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "123456789").unwrap();
        assert_eq!(checksum(&dir.path().join("a")).unwrap(), "cbf43926");
    }
}

//! The command: checks the name, and writes the files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_grading::package::write_file;
use lockstep_launch::command::quoted;

use super::manifest;
use crate::course;
use crate::exit::{Code, Refused};

/// Files of the new package, and their texts. `{{name}}`, `{{program}}` and `{{checkout}}` are replaced.
const FILES: [(&str, &str); 7] = [
    (".cargo/config.toml", include_str!("../../../template/texts/config.toml")),
    (".gitignore", include_str!("../../../template/texts/gitignore")),
    ("README.md", include_str!("../../../template/texts/README.md")),
    ("job.slurm", include_str!("../../../template/texts/job.slurm")),
    ("src/main.rs", include_str!("../../../template/src/main.rs")),
    ("src/points.rs", include_str!("../../../template/src/points.rs")),
    ("train.py", include_str!("../../../template/train.py")),
];

/// Names that cargo refuses or warns of, and why (`restricted_names.rs` of cargo).
const RESERVED: [(&str, &str); 5] = [
    ("deps examples build incremental", "it is a folder of cargo's in target"),
    ("test", "it is Rust's built-in test library"),
    ("alloc core proc_macro proc-macro std", "it is a part of Rust's standard library"),
    (
        "abstract as async await become box break const continue crate do dyn else enum extern false final fn for if impl in let loop \
         macro match mod move mut override priv pub ref return self static struct super trait true try type typeof unsafe unsized use \
         virtual where while yield",
        "it is a keyword of Rust",
    ),
    (
        "aux con nul prn com1 com2 com3 com4 com5 com6 com7 com8 com9 lpt1 lpt2 lpt3 lpt4 lpt5 lpt6 lpt7 lpt8 lpt9",
        "it is the name of a device on Windows",
    ),
];

/// Make a package of your own: data, a network, DDP, snapshots, a batch script and a Python twin
#[derive(Args)]
pub(crate) struct Options {
    /// The new folder; its last part is the package's name
    folder: PathBuf,
}

impl Options {
    /// # Errors
    /// [`Refused`] for a name that is not a package's, one in use, a folder that exists, or no checkout; the system's error.
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let checkout = course::checkout()?;
        let checkout = checkout.canonicalize().with_context(|| format!("cannot read {}", foreign::path(&checkout)))?;
        let lock = read(&checkout.join("Cargo.lock"))?;
        let name = name(&self.folder, &lock)?;
        if self.folder.exists() {
            return Err(
                Refused(format!("{} exists already: choose another folder", foreign::path(&self.folder))).into()
            );
        }
        let manifest = manifest::of(&name, &checkout, &read(&checkout.join("Cargo.toml"))?, &lock)?;
        let (program, folder) = (checkout.join("target/debug").join(&name), checkout.display().to_string());
        let fill = |text: &str| {
            let text = text.replace("{{name}}", &name).replace("{{program}}", &quoted(&program.display().to_string()));
            // The book's marks of excerpts.
            let lines = text.replace("{{checkout}}", &folder);
            lines.split_inclusive('\n').filter(|line| !line.contains("// ANCHOR")).collect::<String>()
        };
        write_file(&self.folder.join("Cargo.toml"), &manifest)?;
        write_file(&self.folder.join("Cargo.lock"), &lock)?;
        write_file(&self.folder.join("rust-toolchain.toml"), &read(&checkout.join("rust-toolchain.toml"))?)?;
        for (path, text) in FILES {
            write_file(&self.folder.join(path), &fill(text))?;
        }
        println!("{} is there; its README says how to run it", self.folder.display());
        println!("next: cd {} && cargo run", quoted(&self.folder.display().to_string()));
        Ok(Code::Success)
    }
}

/// The package's name: a word for cargo, and none that a crate in the lock file has.
fn name(folder: &Path, lock: &str) -> Result<String, Refused> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_');
    if !is_word {
        return Err(Refused(format!("{name:?} is no name of a package: a lower-case letter, then a-z, 0-9, - and _")));
    }
    if let Some((_, why)) = RESERVED.iter().find(|(names, _)| names.split_whitespace().any(|reserved| reserved == name))
    {
        return Err(Refused(format!("{name} is reserved, cargo gives it to no package: {why}; choose another name")));
    }
    // Programs share the checkout's target folder, and not all are named as their package.
    let is_taken = lock.contains(&format!("\nname = \"{name}\"\n"));
    if is_taken || ["lockstep-", "lab-"].iter().any(|start| name.starts_with(start)) {
        return Err(Refused(format!("{name} is the name of a crate that the course uses: choose another")));
    }
    Ok(name.to_owned())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", foreign::path(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_of_packages_that_no_crate_has() {
        let lock = "[[package]]\nname = \"tch\"\nversion = \"1\"\n";
        assert_eq!(name(Path::new("../my_model-2"), lock).unwrap(), "my_model-2");
        for folder in
            ["..", "/", "My", "2model", "a b", "tch", "core", "build", "lockstep-paths", "lab-x", "modèle", "\"x"]
        {
            assert!(name(Path::new(folder), lock).is_err(), "{folder}");
        }
    }

    #[test]
    fn says_that_a_name_is_reserved_and_for_what() {
        let why = |text: &str| name(Path::new(text), "").unwrap_err().to_string();
        let expected =
            "test is reserved, cargo gives it to no package: it is Rust's built-in test library; choose another name";
        assert_eq!(why("../test"), expected);
        for (name, part) in [
            ("build", "folder of cargo's"),
            ("proc-macro", "standard library"),
            ("yield", "keyword"),
            ("com1", "Windows"),
        ] {
            assert!(why(name).contains(part), "{name}");
        }
        assert_eq!(name(Path::new("tester"), "").unwrap(), "tester");
    }

    #[test]
    fn the_copy_has_the_flags_of_the_checkout() {
        let flags = |text: &str| text.parse::<toml::Table>().unwrap()["build"]["rustflags"].clone();
        let own = include_str!("../../../.cargo/config.toml");
        assert_eq!(flags(include_str!("../../../template/texts/config.toml")), flags(own));
    }
}

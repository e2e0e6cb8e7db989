//! `lockstep new`: a package of the user's own, outside the course's workspace, as a copy of `template/`. Its manifest has the template's
//! dependencies with the checkout's versions, and the parts of the checkout's profile that apply.
//!
//! It shares the checkout's target folder, lock file, flags and profile, so that only the course's own crates are compiled for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use lockstep_contract::foreign;
use lockstep_grading::package::write_file;
use lockstep_launch::command::quoted;
use serde::Deserialize;
use toml::{Table, Value};

use crate::checkout;
use crate::exit::{Code, Refused};
use crate::report::Screen;

/// The kind of data that one has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Task {
    /// Points on spirals, to begin with data of any other kind; with the same in Python
    #[default]
    Points,
    /// A text: a GPT that writes more of it
    Tokens,
    /// Pictures in folders by class, or in IDX files: a classifier
    Images,
    /// A CSV file of numbers: one column from the others
    Table,
    /// Sequences of different lengths: an LSTM that classifies them
    Sequences,
}

/// What differs between the packages: `src/task.rs`, and what its README says of it.
struct Parts {
    module: &'static str,
    about: &'static str,
}

impl Task {
    fn parts(self) -> Parts {
        macro_rules! parts {
            ($module:literal, $about:literal) => {
                Parts {
                    module: include_str!(concat!("../../../template/src/", $module)),
                    about: include_str!(concat!("../../../template/texts/", $about)),
                }
            };
        }
        match self {
            Task::Points => parts!("task.rs", "points.md"),
            Task::Tokens => parts!("tokens/task.rs", "tokens.md"),
            Task::Images => parts!("images/task.rs", "images.md"),
            Task::Table => parts!("table/task.rs", "table.md"),
            Task::Sequences => parts!("sequences/task.rs", "sequences.md"),
        }
    }

    /// Returns true unless only another task needs this dependency of the template.
    fn needs(self, dependency: &str) -> bool {
        match dependency {
            "csv" => self == Task::Table,
            "lockstep-vision" => self == Task::Images,
            _ => true,
        }
    }
}

/// Files of all new packages, and their texts. `{{name}}`, `{{program}}`, `{{checkout}}` and, in the README, `{{about}}` are replaced.
const FILES: [(&str, &str); 6] = [
    (".cargo/config.toml", include_str!("../../../template/texts/config.toml")),
    (".gitignore", include_str!("../../../template/texts/gitignore")),
    ("README.md", include_str!("../../../template/texts/README.md")),
    ("job.slurm", include_str!("../../../template/texts/job.slurm")),
    ("src/main.rs", include_str!("../../../template/src/main.rs")),
    ("src/wrap.rs", include_str!("../../../template/src/wrap.rs")),
];

/// Make a package of your own: data, a network, three ways to divide it, snapshots, and a batch script
#[derive(Args)]
pub struct NewOptions {
    /// The new folder; its last part is the package's name
    folder: PathBuf,
    /// The kind of data that you have
    #[arg(long, value_enum, default_value_t)]
    task: Task,
}

impl NewOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let checkout = checkout::checkout()?;
        let checkout = checkout.canonicalize().with_context(|| format!("cannot read {}", foreign::path(&checkout)))?;
        let lock = read(&checkout.join("Cargo.lock"))?;
        let name = name(&self.folder, &lock)?;
        if self.folder.exists() {
            return Err(
                Refused(format!("{} exists already: choose another folder", foreign::path(&self.folder))).into()
            );
        }
        let manifest = manifest(&name, self.task, &checkout, &read(&checkout.join("Cargo.toml"))?, &lock)?;
        let (program, folder) = (checkout.join("target/debug").join(&name), checkout.display().to_string());
        let parts = self.task.parts();
        let fill = |text: &str| {
            let text = text
                .replace("{{about}}", parts.about.trim_end())
                .replace("{{name}}", &name)
                .replace("{{program}}", &quoted(&program.display().to_string()));
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
        write_file(&self.folder.join("src/task.rs"), &fill(parts.module))?;
        if self.task == Task::Points {
            write_file(&self.folder.join("train.py"), include_str!("../../../template/train.py"))?;
        }
        let screen = Screen::new(false);
        screen.line(format_args!("made {}: its README says how to run it", self.folder.display()));
        screen.line(format_args!(
            "it builds in {}, with the course's libraries; grading builds elsewhere, so neither waits for the other",
            checkout.join("target").display()
        ));
        screen.line(format_args!("next: cd {} && cargo run", quoted(&self.folder.display().to_string())));
        Ok(Code::Success)
    }
}

/// The package's name: a word for cargo, and none that a crate in the lock file has.
fn name(folder: &Path, lock: &str) -> Result<String, Refused> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_word = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_');
    if !is_word {
        return Err(Refused(format!(
            "{name:?} cannot be the name of a package: it needs a lower-case letter, then a-z, 0-9, - and _"
        )));
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

/// The template's own manifest: its dependencies are the new package's.
const TEMPLATE: &str = include_str!("../../../template/Cargo.toml");

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    #[serde(default)]
    dependencies: Vec<String>,
}

fn manifest(name: &str, task: Task, checkout: &Path, workspace: &str, lock: &str) -> anyhow::Result<String> {
    let workspace: Table = workspace.parse().context("cannot read the checkout's Cargo.toml")?;
    let lock: Lock = toml::from_str(lock).context("cannot read the checkout's Cargo.lock")?;
    let shared = workspace.get("workspace").context("the checkout's Cargo.toml has no [workspace]")?;
    let of_workspace = |table: &str, name: &str| {
        let found = shared.get(table).and_then(|table| table.get(name)).cloned();
        found.with_context(|| format!("the checkout's Cargo.toml has no {name} in workspace.{table}"))
    };
    let template: Table = TEMPLATE.parse().context("cannot read the template's Cargo.toml")?;
    let names: Vec<&str> =
        template["dependencies"].as_table().into_iter().flat_map(Table::keys).map(|name| &**name).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| task.needs(name)).collect();
    let mut dependencies = Table::new();
    for &name in &names {
        let mut dependency = of_workspace("dependencies", name)?;
        if let Some(Value::String(path)) = dependency.get_mut("path") {
            *path = checkout.join(&*path).display().to_string();
        }
        dependencies.insert(name.to_owned(), dependency);
    }
    let needed = needed(&lock, names);
    let mut profile = workspace.get("profile").and_then(|of| of.get("dev")?.as_table()).cloned().unwrap_or_default();
    let mut packages = profile.remove("package").and_then(|of| of.as_table().cloned()).unwrap_or_default();
    packages.retain(|package, _| package == "*" || needed.contains(package));
    let package = [
        ("name", Value::String(name.to_owned())),
        ("version", Value::String("0.1.0".to_owned())),
        ("edition", of_workspace("package", "edition")?),
        ("publish", Value::Boolean(false)),
    ];
    let package = package.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    let sections = [
        section("package", &package),
        section("dependencies", &dependencies),
        section("workspace", &Table::new()),
        "# As in the checkout: a crate with other settings would be compiled again.\n".to_owned()
            + &section("profile.dev", &profile),
        section("profile.dev.package", &packages),
    ];
    Ok(sections.join("\n"))
}

/// A table with each entry on a line, where `toml` would write a table for each.
fn section(name: &str, entries: &Table) -> String {
    let line = |(key, value): (&String, &Value)| match key.as_str() {
        "*" => format!("\"*\" = {value}\n"),
        _ => format!("{key} = {value}\n"),
    };
    format!("[{name}]\n") + &entries.iter().map(line).collect::<String>()
}

/// What our crates need for their own tests alone, which the lock file does not tell.
const OF_TESTS: [&str; 3] = ["lockstep-launch", "lockstep-replay", "lockstep-testkit"];

/// The names of all crates that the package needs: cargo warns of a profile for any other.
fn needed<'a>(lock: &'a Lock, mut next: Vec<&'a str>) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    while let Some(name) = next.pop() {
        if needed.insert(name) {
            let packages = lock.package.iter().filter(|package| package.name == name);
            let direct = packages.flat_map(|package| &package.dependencies).filter_map(|of| of.split(' ').next());
            next.extend(direct.filter(|of| !OF_TESTS.contains(of)));
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_of_packages_that_no_crate_has() {
        let lock = "[[package]]\nname = \"tch\"\nversion = \"1\"\n";
        assert_eq!(name(Path::new("../my_model-2"), lock).unwrap(), "my_model-2");
        for folder in ["..", "/", "My", "2model", "a b", "tch", "lockstep-paths", "lab-x", "modèle", "\"x"] {
            assert!(name(Path::new(folder), lock).is_err(), "{folder}");
        }
    }

    #[test]
    fn the_copy_has_the_flags_of_the_checkout() {
        let flags = |text: &str| {
            let config: toml::Table = text.parse().unwrap();
            let flags = ["x86_64", "aarch64"]
                .map(|of| config["target"][&format!("{of}-unknown-linux-gnu")]["rustflags"].clone());
            (flags, config["env"]["OMP_WAIT_POLICY"].clone())
        };
        let own = include_str!("../../../.cargo/config.toml");
        assert_eq!(flags(include_str!("../../../template/texts/config.toml")), flags(own));
    }

    #[test]
    fn depends_only_on_what_its_task_needs() {
        let (workspace, lock) = (include_str!("../../../Cargo.toml"), include_str!("../../../Cargo.lock"));
        for (task, others) in [(Task::Points, [false; 2]), (Task::Table, [true, false]), (Task::Images, [false, true])]
        {
            let manifest: Table =
                manifest("mine", task, Path::new("/course"), workspace, lock).unwrap().parse().unwrap();
            let has = |name: &str| manifest["dependencies"].get(name).is_some();
            assert_eq!([has("csv"), has("lockstep-vision")], others, "{task:?}");
            assert!(has("lockstep") && has("c10d"));
            let profiles = manifest["profile"]["dev"]["package"].as_table().unwrap();
            assert!(profiles.contains_key("lockstep-datasets") && !profiles.contains_key("tcpstore"), "{profiles:?}");
        }
    }

    #[test]
    fn takes_versions_and_the_profiles_of_the_crates_that_it_needs() {
        let workspace = "[workspace.package]\nedition = \"2024\"\n[workspace.dependencies]\nanyhow = \"1\"\n\
                         clap = { version = \"4\", features = [\"derive\"] }\n\
                         tch = \"0.24\"\nc10d = { path = \"engine/c10d\" }\nlockstep = { path = \"crates/lockstep\" }\nserde = \"1\"\n\
                         [profile.dev]\ndebug = \"line-tables-only\"\n[profile.dev.package.\"*\"]\nopt-level = 1\n\
                         [profile.dev.package.zip]\nopt-level = 3\n[profile.dev.package.other]\nopt-level = 2\n";
        let lock = "[[package]]\nname = \"lockstep\"\ndependencies = [\"tch\"]\n[[package]]\nname = \"tch\"\ndependencies = [\"zip 9.4.0\"]\n\
                    [[package]]\nname = \"zip\"\n[[package]]\nname = \"other\"\n";
        let manifest: Table =
            manifest("mine", Task::Points, Path::new("/course"), workspace, lock).unwrap().parse().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some("mine"));
        assert_eq!(manifest["dependencies"]["lockstep"]["path"].as_str(), Some("/course/crates/lockstep"));
        assert_eq!(manifest["dependencies"]["clap"]["features"][0].as_str(), Some("derive"));
        assert!(manifest["dependencies"].get("serde").is_none());
        let packages = manifest["profile"]["dev"]["package"].as_table().unwrap();
        assert_eq!(packages.keys().collect::<Vec<_>>(), ["*", "zip"]);
        assert_eq!(packages["zip"]["opt-level"].as_integer(), Some(3));
    }
}

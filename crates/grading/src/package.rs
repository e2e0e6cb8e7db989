//! The learner's package, made of the solution's: see [`crate::skeleton`] for what becomes of each file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::exercise::{Lab, Task, Tasks};
use crate::{skeleton, sums};

/// The root of a package's program: the solution's has all answers, the learner's only his own.
const MAIN: &str = "main.rs";

/// The files of a lab's exercise, by their paths in its folder, as they follow from the solution in this checkout.
///
/// # Errors
/// When the solution cannot be read or its marks do not pair.
pub fn files(root: &Path, lab: &Lab) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let solution = lab.folder(root).join("solution");
    let mut files = BTreeMap::new();
    let manifest = read(&solution.join("Cargo.toml"))?;
    files.insert("Cargo.toml".into(), self::manifest(lab, &manifest)?);
    files.insert("tests/grade.rs".into(), test(lab));
    let sources =
        fs::read_dir(solution.join("src")).with_context(|| format!("cannot read {}/src", solution.display()))?;
    for entry in sources {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|name| *name != MAIN) else { continue };
        let text = skeleton::skeleton(&read(&path)?).with_context(|| path.display().to_string())?;
        files.insert(Path::new("src").join(name), text);
    }
    let main = main(&lab.tasks()?, files.keys().filter_map(|path| path.strip_prefix("src").ok()));
    files.insert(Path::new("src").join(MAIN), main);
    let sums: String = files.iter().map(|(path, text)| sums::line(path, text)).collect();
    files.insert(sums::FILE.into(), sums);
    Ok(files)
}

/// Puts these files in the place of a lab's exercise.
///
/// # Errors
/// The system's own, with the path.
pub fn write(root: &Path, lab: &Lab, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    let folder = lab.exercise(root);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    for (path, text) in files {
        let path = folder.join(path);
        let told = || format!("cannot write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(&folder)).with_context(told)?;
        fs::write(&path, text).with_context(told)?;
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The program around the answers, whose sources are these.
fn main<'a>(tasks: &Tasks, sources: impl Iterator<Item = &'a Path>) -> String {
    let modules: String = sources.map(|source| format!("mod {};\n", source.with_extension("").display())).collect();
    let named = |task: &Task| format!("        tasks::{0}({0}::{0}),\n", task.name);
    let listed: String = tasks.tasks.iter().map(named).collect();
    format!(
        "\
//! Does what the grader asks of the answers. There is nothing to change here: each task is a file beside this one.

{modules}
fn main() -> std::process::ExitCode {{
    lockstep_exercise::main([
{listed}    ])
}}
"
    )
}

fn manifest(lab: &Lab, solution: &str) -> anyhow::Result<String> {
    let section = solution.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let section = section.with_context(|| format!("{}'s Cargo.toml has no dependencies", lab.solution()))?;
    ensure!(!section.contains("path ="), "an exercise takes crates from the workspace alone");
    // Other answers than the learner's are no business of his.
    let own = section.lines().filter(|line| !line.starts_with("lockstep-answers"));
    let dependencies = own.collect::<Vec<_>>().join("\n");
    let (name, number) = (lab.package(), lab.number());
    Ok(format!(
        "\
[package]
name = \"{name}\"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true

[[bin]]
name = \"{name}\"
path = \"src/main.rs\"
test = false

[[test]]
name = \"grade\"
path = \"tests/grade.rs\"
harness = false

[dependencies]
{}

[dev-dependencies]
grade-{number} = {{ path = \"../grading\" }}
lockstep-grading.workspace = true

[lints.rust]
unsafe_code = \"forbid\"
# Before an answer is written, what it is given goes unused.
unused = {{ level = \"allow\", priority = -1 }}
",
        dependencies.trim_end()
    ))
}

fn test(lab: &Lab) -> String {
    let (name, number) = (lab.package(), lab.number());
    format!(
        "\
//! `cargo test -p {name}` grades the answers in `src`.

fn main() -> std::process::ExitCode {{
    lockstep_grading::learner::main(&grade_{number}::LAB, env!(\"CARGO_BIN_EXE_{name}\"), env!(\"CARGO_MANIFEST_DIR\"))
}}
"
    )
}

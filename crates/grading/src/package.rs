//! Generates the learner's package from the solution's. [`crate::skeleton`] converts each file.

use lockstep_contract::foreign;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::exercise::{Lab, Task, Tasks};
use crate::{checksums, skeleton};

/// The root of a package's program. The solution's lists all answers, the learner's lists one per task.
const MAIN: &str = "main.rs";
/// The path from a package's sources to the modules that the solution and the exercise share.
pub const GIVEN: &str = "../../given";

/// Generates the files of a lab's exercise from the solution in this checkout, by their paths in the exercise's folder.
///
/// # Errors
/// When the solution cannot be read or its markers do not pair.
pub fn files(root: &Path, lab: &Lab) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let solution = lab.folder(root).join("solution");
    let mut files = BTreeMap::new();
    let manifest = read(&solution.join("Cargo.toml"))?;
    files.insert("Cargo.toml".into(), self::manifest(lab, &manifest)?);
    let sources =
        fs::read_dir(solution.join("src")).with_context(|| format!("cannot read {}/src", foreign::path(&solution)))?;
    for entry in sources {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|name| *name != MAIN) else { continue };
        let text = skeleton::skeleton(&read(&path)?).with_context(|| foreign::path(&path).to_string())?;
        files.insert(Path::new("src").join(name), text);
    }
    files.insert(Path::new("src").join(MAIN), main(&lab.tasks()?, &given(&lab.folder(root))?));
    let checksums: String = files.iter().map(|(path, text)| checksums::line(path, text)).collect();
    files.insert(checksums::FILE.into(), checksums);
    Ok(files)
}

/// Replaces a lab's exercise with these files.
///
/// # Errors
/// Errors of the file system, with the path.
pub fn write(root: &Path, lab: &Lab, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    let folder = lab.exercise(root);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", foreign::path(&folder)))?;
    }
    files.iter().try_for_each(|(path, text)| write_file(&folder.join(path), text))
}

/// Writes a file and creates the folders above it.
///
/// # Errors
/// Errors of the file system, with the path.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(context)?;
    fs::write(path, text).with_context(context)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", foreign::path(path)))
}

/// The modules that the solution and the exercise share, by name.
fn given(lab: &Path) -> anyhow::Result<BTreeSet<String>> {
    let folder = lab.join("given");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", foreign::path(&folder)))?;
    let files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    Ok(files.iter().filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect())
}

/// The program around the answers.
fn main(tasks: &Tasks, given: &BTreeSet<String>) -> String {
    let names: BTreeSet<&str> = tasks.tasks.iter().map(|task| &*task.name).collect();
    let own: String = names.iter().map(|name| format!("mod {name};\n")).collect();
    let given: String = given.iter().map(|name| format!("#[path = \"{GIVEN}/{name}.rs\"]\nmod {name};\n")).collect();
    let named = |task: &Task| format!("tasks::{0}({0}::{0})", task.name);
    let listed = list(&tasks.tasks.iter().map(named).collect::<Vec<_>>());
    format!(
        "\
//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.

{own}
{given}
fn main() -> std::process::ExitCode {{
    lockstep_exercise::main([{listed}])
}}
"
    )
}

/// The list between the brackets, as rustfmt formats it: on one line if that has at most 120 columns.
fn list(items: &[String]) -> String {
    const REST: usize = "    lockstep_exercise::main([])".len();
    let line = items.join(", ");
    if line.len() + REST <= 120 { line } else { format!("\n        {},\n    ", items.join(",\n        ")) }
}

fn manifest(lab: &Lab, solution: &str) -> anyhow::Result<String> {
    let section = solution.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let section = section.with_context(|| format!("{}'s Cargo.toml has no dependencies", lab.solution()))?;
    ensure!(!section.contains("path ="), "an exercise takes crates from the workspace alone");
    // Only the solution needs the macro that lists all answers.
    let own = section.lines().filter(|line| !line.starts_with("lockstep-answers"));
    let dependencies = own.collect::<Vec<_>>().join("\n");
    let name = lab.package();
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
path = \"../../grade.rs\"
harness = false

[dependencies]
{}

[dev-dependencies]
lockstep-labs.workspace = true

[lints.rust]
unsafe_code = \"forbid\"
# Parameters and imports are unused until the answer is written.
unused = {{ level = \"allow\", priority = -1 }}
",
        dependencies.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_the_list_as_rustfmt_does() {
        let items = |count| vec!["tasks::abcdefghi(abcdefghi::abcdefghi)".to_owned(); count];
        assert_eq!(list(&items(1)), "tasks::abcdefghi(abcdefghi::abcdefghi)");
        assert!(!list(&items(2)).contains('\n'));
        assert!(list(&items(3)).starts_with("\n        tasks::abcdefghi("));
        assert!(list(&items(3)).ends_with("),\n    "));
    }
}

//! The learner's package, made of the solution's: see [`crate::skeleton`] for what becomes of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::exercise::{Lab, Task, Tasks};
use crate::{skeleton, sums};

/// The root of a package's program: the solution's has all answers, the learner's only his own.
const MAIN: &str = "main.rs";
/// From the sources of a package to the modules that the solution and the exercise share.
pub const GIVEN: &str = "../../given";

/// The files of a lab's exercise, by their paths in its folder, as they follow from the solution in this checkout.
///
/// # Errors
/// When the solution cannot be read or its marks do not pair.
pub fn files(root: &Path, lab: &Lab) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let solution = lab.folder(root).join("solution");
    let mut files = BTreeMap::new();
    let manifest = read(&solution.join("Cargo.toml"))?;
    files.insert("Cargo.toml".into(), self::manifest(lab, &manifest)?);
    let sources =
        fs::read_dir(solution.join("src")).with_context(|| format!("cannot read {}/src", solution.display()))?;
    for entry in sources {
        let path = entry?.path();
        let Some(name) = path.file_name().filter(|name| *name != MAIN) else { continue };
        let text = skeleton::skeleton(&read(&path)?).with_context(|| path.display().to_string())?;
        files.insert(Path::new("src").join(name), text);
    }
    files.insert(Path::new("src").join(MAIN), main(&lab.tasks()?, &given(&lab.folder(root))?));
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
    files.iter().try_for_each(|(path, text)| write_file(&folder.join(path), text))
}

/// Writes a file and, where they are missing, the folders above it.
///
/// # Errors
/// The system's own, with the path.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(context)?;
    fs::write(path, text).with_context(context)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The modules that the solution and the exercise share, by name.
fn given(lab: &Path) -> anyhow::Result<BTreeSet<String>> {
    let folder = lab.join("given");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
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
//! Does what the grader asks of the answers. There is nothing to change here: each task is a file next to this one.

{own}
{given}
fn main() -> std::process::ExitCode {{
    lockstep_exercise::main([{listed}])
}}
"
    )
}

/// What stands between the brackets, as the formatter writes it: in one line if that is no longer than 120 columns.
fn list(items: &[String]) -> String {
    const REST: usize = "    lockstep_exercise::main([])".len();
    let line = items.join(", ");
    if line.len() + REST <= 120 { line } else { format!("\n        {},\n    ", items.join(",\n        ")) }
}

fn manifest(lab: &Lab, solution: &str) -> anyhow::Result<String> {
    let section = solution.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let section = section.with_context(|| format!("{}'s Cargo.toml has no dependencies", lab.solution()))?;
    ensure!(!section.contains("path ="), "an exercise takes crates from the workspace alone");
    // Other answers than the learner's are no business of his.
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
# Before an answer is written, what it is given goes unused.
unused = {{ level = \"allow\", priority = -1 }}
",
        dependencies.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_items_as_the_formatter_does() {
        let items = |count| vec!["tasks::abcdefghi(abcdefghi::abcdefghi)".to_owned(); count];
        assert_eq!(list(&items(1)), "tasks::abcdefghi(abcdefghi::abcdefghi)");
        assert!(!list(&items(2)).contains('\n'));
        assert!(list(&items(3)).starts_with("\n        tasks::abcdefghi("));
        assert!(list(&items(3)).ends_with("),\n    "));
    }
}

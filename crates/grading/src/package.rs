//! Generates the learner's package from the solution's, and the roots of both programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use lockstep_contract::foreign;

use crate::Language;
use crate::answers::{markers, skeleton};
use crate::exercise::{Lab, Task, Tasks};

/// The root of a package's program. The solution's lists all answers, the learner's lists one per task.
pub const MAIN: &str = "main.rs";
/// The path from a package's sources to the modules that the solution and the exercise share.
pub const GIVEN: &str = "../../given";
/// The module of a lab whose answers together are a program: it has the `main` of this program.
const PROGRAM: &str = "program";

/// Generates the files of a lab's exercise from the solution in this checkout, by their paths in the exercise's folder.
pub fn files(root: &Path, lab: &Lab) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let manifest = read(&lab.tasks_folder(root).join("Cargo.toml"))?;
    files.insert("Cargo.toml".into(), self::manifest(lab, &manifest)?);
    let tasks = lab.tasks()?;
    for task in &tasks.tasks {
        let path = lab.own_answer(root, &task.name, Language::Rust);
        let text = skeleton(&read(&path)?, Language::Rust.comment()).map_err(anyhow::Error::msg);
        let text = text.with_context(|| foreign::path(&path).to_string())?;
        files.insert(task.file(), text);
    }
    files.insert(Path::new("src").join(MAIN), main(&tasks, &modules(&lab.folder(root).join("given"))?));
    Ok(with_checksums(files))
}

fn with_checksums(mut files: BTreeMap<PathBuf, String>) -> BTreeMap<PathBuf, String> {
    let checksums: String = files.iter().map(|(path, text)| checksums::line(path, text)).collect();
    files.insert(checksums::FILE.into(), checksums);
    files
}

/// Generates what a learner edits, by the paths in [`Lab::learners`]: the package of Rust, or a file for each task in Python.
pub fn files_in(root: &Path, lab: &Lab, language: Language) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    if language == Language::Rust {
        return files(root, lab);
    }
    let mut files = BTreeMap::new();
    for task in lab.tasks()?.tasks {
        if let Some(answer) = lab.answer_text(root, &task.name, language)? {
            let text = skeleton(&answer, language.comment())
                .map_err(anyhow::Error::msg)
                .with_context(|| format!("{}'s answer in Python", task.name))?;
            files.insert(task.file_in(language), text);
        }
    }
    Ok(if files.is_empty() { files } else { with_checksums(files) })
}

/// Writes all that follows from a lab's answers: its exercise, and the root of the solution's program.
pub fn write_all(root: &Path, lab: &Lab) -> anyhow::Result<()> {
    for language in [Language::Rust, Language::Python] {
        let files = files_in(root, lab, language)?;
        if !files.is_empty() {
            write(root, lab, language, &files)?;
        }
    }
    write_file(&lab.tasks_folder(root).join(MAIN), &solution_main(root, lab)?)
}

/// Generates the root of the solution's program, which declares the modules in the tasks' folders.
pub fn solution_main(root: &Path, lab: &Lab) -> anyhow::Result<String> {
    let folder = lab.folder(root);
    let tasks = lab.tasks()?;
    let names: BTreeSet<&str> = tasks.tasks.iter().map(|task| &*task.name).collect();
    let each = |declare: &dyn Fn(&&str) -> String| names.iter().map(declare).collect::<String>();
    let own = each(&|name| format!("#[path = \"{name}/answer.rs\"]\nmod {name};\n"));
    let wrong = each(&|name| format!("#[allow(clippy::all)]\n#[path = \"{name}/wrong.rs\"]\nmod wrong_{name};\n"));
    let shared = modules(&lab.tasks_folder(root))?.into_iter().map(|name| (name, ""));
    let graders = names.iter().map(|name| ((*name).to_owned(), "/grade"));
    let graders: BTreeMap<String, &str> = graders.chain(shared).collect();
    let graders = graders.iter().map(|(name, file)| format!("    #[path = \"{name}{file}.rs\"]\n    mod {name};\n"));
    let graders: String = graders.collect();
    let given = list_given(&modules(&folder.join("given"))?, "../given");
    Ok(format!(
        "\
//! All answers of the course: its own, wrong ones that must get their diagnosis, and unusual right ones that must pass. Written by
//! `lockstep course skeleton`.

{own}
{given}
// Wrong answers break clippy's rules on purpose.
{wrong}
// Compiled in `lockstep-grading`. Listed here so that the formatter finds the files.
#[cfg(any())]
#[path = \".\"]
mod graders {{
{graders}}}

lockstep_answers::main!();
"
    ))
}

/// Replaces what a learner edits in a lab with these files.
pub fn write(root: &Path, lab: &Lab, language: Language, files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    let folder = lab.learners(root, language);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", foreign::path(&folder)))?;
    }
    files.iter().try_for_each(|(path, text)| write_file(&folder.join(path), text))
}

/// Writes a file and creates the folders above it.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(context)?;
    fs::write(path, text).with_context(context)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", foreign::path(path)))
}

/// The modules in a folder, by name: its Rust files, except the root of a program.
fn modules(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", foreign::path(folder)))?;
    let files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    let sources = files.iter().filter(|file| file.extension().is_some_and(|end| end == "rs") && !file.ends_with(MAIN));
    Ok(sources.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect())
}

/// The declarations of the modules that the solution and the exercise share.
fn list_given(names: &BTreeSet<String>, path: &str) -> String {
    names.iter().map(|name| format!("#[path = \"{path}/{name}.rs\"]\nmod {name};\n")).collect()
}

/// The program around the answers.
fn main(tasks: &Tasks, given: &BTreeSet<String>) -> String {
    let names: BTreeSet<&str> = tasks.tasks.iter().map(|task| &*task.name).collect();
    let own: String = names.iter().map(|name| format!("mod {name};\n")).collect();
    let together = given.contains(PROGRAM);
    let given = list_given(given, GIVEN);
    let named = |task: &Task| format!("tasks::{0}({0}::{0})", task.name);
    let call = call(&tasks.tasks.iter().map(named).collect::<Vec<_>>(), together);
    let also = if together { " Started without one, it is the program that\n//! they make together." } else { "" };
    format!(
        "\
//! Calls the answers with the grader's inputs. You do not change this file: each task has its own file next to it.{also}

{own}
{given}
fn main() -> std::process::ExitCode {{
{call}
}}
"
    )
}

/// The call of the runtime as rustfmt formats it: on one line if that has at most 120 columns.
fn call(tasks: &[String], together: bool) -> String {
    let (name, rest, indent) = if together { ("main_of", ", program::main", 8) } else { ("main", "", 4) };
    let line = format!("    lockstep_exercise::{name}([{}]{rest})", tasks.join(", "));
    if line.len() <= 120 {
        return line;
    }
    let items: String = tasks.iter().map(|task| format!("\n{:indent$}    {task},", "")).collect();
    let list = format!("[{items}\n{:indent$}]", "");
    let arguments = if together { format!("\n        {list},\n        program::main,\n    ") } else { list };
    format!("    lockstep_exercise::{name}({arguments})")
}

fn manifest(lab: &Lab, solution: &str) -> anyhow::Result<String> {
    let section = solution.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let section = section.with_context(|| format!("{}'s Cargo.toml has no dependencies", lab.solution()))?;
    ensure!(!section.contains("path ="), "an exercise may only use crates of the workspace");
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
lockstep-grading.workspace = true

[lints.rust]
unsafe_code = \"forbid\"
# Parameters and imports are unused until the answer is written.
unused = {{ level = \"allow\", priority = -1 }}
",
        dependencies.trim_end()
    ))
}

/// The answer without the lines for the learner.
pub fn answer(text: &str, language: Language) -> String {
    let [begin, end, learners] = &markers(language.comment());
    let own = |line: &&str| {
        let line = line.trim();
        line != begin && line != end && !line.starts_with(&**learners)
    };
    text.lines().filter(own).flat_map(|line| [line, "\n"]).collect()
}

/// Checksums of an exercise's files as the course wrote them. They show which files a learner has changed.
pub mod checksums {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    /// The list of checksums in the exercise's folder: one line per file, with its CRC-32 in hex and its path.
    pub const FILE: &str = "pristine.crc32";

    /// The line of one file.
    pub fn line(path: &Path, text: &str) -> String {
        format!("{:08x}  {}\n", crc32fast::hash(text.as_bytes()), path.display())
    }

    /// The checksums listed in a folder, by path. Empty if the folder has no list.
    pub fn read(folder: &Path) -> BTreeMap<String, String> {
        let text = fs::read_to_string(folder.join(FILE)).unwrap_or_default();
        let pair = |line: &str| line.split_once("  ").map(|(sum, path)| (path.to_owned(), sum.to_owned()));
        text.lines().filter_map(pair).collect()
    }

    /// Returns true if a file of the exercise is as the course wrote it.
    pub fn untouched(folder: &Path, file: &Path) -> bool {
        let Ok(text) = fs::read_to_string(folder.join(file)) else { return false };
        let checksums = read(folder);
        checksums.get(&*file.to_string_lossy()).is_some_and(|sum| line(file, &text).starts_with(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_the_call_as_rustfmt_does() {
        let call = |count, together| call(&vec!["tasks::abcdefghi(abcdefghi::abcdefghi)".to_owned(); count], together);
        let line = "    lockstep_exercise::main([tasks::abcdefghi(abcdefghi::abcdefghi)])";
        assert_eq!(call(1, false), line);
        assert!(!call(2, false).contains('\n'));
        assert!(call(3, false).starts_with("    lockstep_exercise::main([\n        tasks::abcdefghi("));
        assert!(call(3, false).ends_with("),\n    ])"));
        assert!(call(1, true).ends_with("abcdefghi)], program::main)"));
        assert!(call(3, true).starts_with("    lockstep_exercise::main_of(\n        [\n            tasks::abcdefghi("));
        assert!(call(3, true).ends_with("),\n        ],\n        program::main,\n    )"));
    }

    const TWICE: &str = "fn twice(n: i64) -> i64 {\n    // <answer>\n    //~ // Twice.\n    //~ if true {\n    //~     todo!(\"twice\")\n    //~ }\n    2 * n\n    // </answer>\n}\n";

    #[test]
    fn replaces_the_answer_by_the_lines_for_the_learner() {
        let left = "fn twice(n: i64) -> i64 {\n    // Twice.\n    if true {\n        todo!(\"twice\")\n    }\n}\n";
        assert_eq!(skeleton(TWICE, "//").unwrap(), left);
        assert_eq!(answer(TWICE, Language::Rust), "fn twice(n: i64) -> i64 {\n    2 * n\n}\n");
        let twice =
            "def twice(n):\n    # <answer>\n    #~ raise NotImplementedError\n    return 2 * n\n    # </answer>\n";
        assert_eq!(skeleton(twice, "#").unwrap(), "def twice(n):\n    raise NotImplementedError\n");
        assert_eq!(answer(twice, Language::Python), "def twice(n):\n    return 2 * n\n");
    }

    #[test]
    fn detects_a_changed_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = Path::new("src/shard.rs");
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join(file), "pristine").unwrap();
        assert!(!checksums::untouched(folder.path(), file), "no list");
        fs::write(folder.path().join(checksums::FILE), checksums::line(file, "pristine")).unwrap();
        assert!(checksums::untouched(folder.path(), file));
        fs::write(folder.path().join(file), "changed").unwrap();
        assert!(!checksums::untouched(folder.path(), file));
    }
}

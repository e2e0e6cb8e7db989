//! Lists the labs: each folder of `labs` that contains a `lab.toml`. Writes the list with the text of each `lab.toml`, and a module
//! for each grader. The task `shard` is graded by `grade` in `tasks/shard/grade.rs`; files next to the tasks' folders are shared by graders.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use toml::Table;

fn main() -> Result<(), Box<dyn Error>> {
    let here = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let root = here.join("../..").canonicalize()?;
    // A new lab is a new package, which changes the lock file. The folder itself changes with every answer of a learner.
    println!("cargo::rerun-if-changed={}", root.join("Cargo.lock").display());
    println!("cargo::rerun-if-changed=build.rs");
    let labs: Vec<PathBuf> =
        entries(&root.join("labs"))?.into_iter().filter(|path| path.join("lab.toml").is_file()).collect();
    let (mut modules, mut rows) = (String::new(), String::new());
    for lab in &labs {
        modules += &module(lab)?;
        rows += &row(lab)?;
    }
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let list = format!("{modules}\n/// All labs, in the course's order.\npub const LABS: &[Lab] = &[\n{rows}];\n");
    Ok(fs::write(out.join("labs.rs"), list)?)
}

/// A module with the lab's graders and what they share.
fn module(lab: &Path) -> io::Result<String> {
    let file = |entry: PathBuf| {
        let name = entry.file_stem()?.to_str()?;
        let path = if entry.is_dir() { entry.join("grade.rs") } else { entry.clone() };
        if name == "main" || path.extension()? != "rs" {
            return None;
        }
        // Not the folder, which changes with every wrong answer. A new task changes `lab.toml`, a new shared file some grader.
        println!("cargo::rerun-if-changed={}", path.display());
        Some(format!("    #[path = {path:?}]\n    pub(crate) mod {name};\n"))
    };
    let files: String = entries(&lab.join("tasks"))?.into_iter().filter_map(file).collect();
    Ok(format!("mod {} {{\n{files}}}\n", module_name(lab)))
}

/// The lab's row in the list.
fn row(lab: &Path) -> Result<String, Box<dyn Error>> {
    let path = lab.join("lab.toml");
    println!("cargo::rerun-if-changed={}", path.display());
    let text: Table = fs::read_to_string(&path)?.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    let tasks = text.get("task").and_then(|tasks| tasks.as_array()).into_iter().flatten();
    let names: Vec<&str> = tasks.filter_map(|task| task.get("name")?.as_str()).collect();
    let grading = |task: &&str| format!("({task:?}, {}::{task}::grade), ", module_name(lab));
    let gradings: String = names.iter().map(grading).collect();
    let answers = names.iter().filter_map(|task| {
        let file = lab.join("tasks").join(task).join("answer.py");
        file.is_file().then(|| {
            println!("cargo::rerun-if-changed={}", file.display());
            format!("({task:?}, include_str!({file:?})), ")
        })
    });
    let python: String = answers.collect();
    let name = lab.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!(
        "    Lab {{ name: {name:?}, text: include_str!({path:?}), gradings: &[{gradings}], python: &[{python}] }},\n"
    ))
}

/// `lab_02_spawn_ddp`.
fn module_name(lab: &Path) -> String {
    format!("lab_{}", lab.file_name().unwrap_or_default().to_string_lossy().replace('-', "_"))
}

/// The paths in a folder, sorted.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

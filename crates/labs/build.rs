//! Lists the labs: each folder of `labs` that holds a `lab.toml`, with the text of that file and the functions in `grading`.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let here = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let root = here.join("../..").canonicalize()?;
    // A new lab is a new package, so `Cargo.lock` changes. Watching the folder itself would rebuild after every edit of a
    // learner.
    println!("cargo::rerun-if-changed={}", root.join("Cargo.lock").display());
    println!("cargo::rerun-if-changed=build.rs");
    let mut labs: Vec<PathBuf> = fs::read_dir(root.join("labs"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .filter(|path| path.as_ref().map_or(true, |path| path.join("lab.toml").is_file()))
        .collect::<io::Result<_>>()?;
    labs.sort();
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("labs.rs"), list(&labs))
}

/// The generated source: a module for each lab, and the constant `LABS`.
fn list(labs: &[PathBuf]) -> String {
    let (mut modules, mut rows) = (String::new(), String::new());
    for lab in labs {
        let name = lab.file_name().unwrap_or_default().to_string_lossy();
        let module = format!("lab_{}", name.replace('-', "_"));
        let (text, grading) = (lab.join("lab.toml"), lab.join("grading").join("mod.rs"));
        // A deleted file changes the list.
        println!("cargo::rerun-if-changed={}", text.display());
        modules += &format!("#[path = {grading:?}]\nmod {module};\n");
        rows += &format!("    Lab {{ name: {name:?}, text: include_str!({text:?}), gradings: {module}::GRADINGS }},\n");
    }
    format!("{modules}\n/// All labs, in the course's order.\npub const LABS: &[Lab] = &[\n{rows}];\n")
}

//! `lockstep new` as a user meets it: a package that cargo accepts, scripts without mistakes, and refusals.

use std::fs;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::running::{Ended, ended};

fn lockstep(words: &[&str], folder: &Path) -> Ended {
    let mut command = Command::new(cargo_bin!("lockstep"));
    ended(command.args(words).current_dir(folder))
}

#[test]
fn a_new_package_has_the_course_s_crates_and_versions() {
    let folder = tempfile::tempdir().unwrap();
    lockstep(&["new", "my-model"], folder.path()).code(0);
    let package = folder.path().join("my-model");
    let cargo = |words: &[&str]| ended(Command::new(env!("CARGO")).args(words).current_dir(&package)).code(0).out;
    // Of this platform alone: crates of others are not there without a network.
    let crates = cargo(&["tree", "--offline", "--prefix=none", "--format={lib}"]);
    let has = |name: &str| crates.lines().any(|line| line == name);
    assert!(["lockstep", "c10d", "tch"].into_iter().all(has), "{crates}");
    let metadata = cargo(&["metadata", "--offline", "--no-deps", "--format-version=1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    assert_eq!(metadata["packages"][0]["name"], "my-model");
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().canonicalize().unwrap();
    assert_eq!(metadata["target_directory"].as_str(), checkout.join("target").to_str());
    // The same versions as in the checkout: nothing is compiled twice for another one.
    let versions = |lock: &str| {
        let packages = lock.split("[[package]]\n").skip(1).map(str::to_owned);
        packages
            .filter(|one| one.contains("source = "))
            .map(|one| one.lines().take(2).collect::<String>())
            .collect::<Vec<_>>()
    };
    let all = versions(&fs::read_to_string(checkout.join("Cargo.lock")).unwrap());
    let own = versions(&fs::read_to_string(package.join("Cargo.lock")).unwrap());
    assert!(!own.is_empty() && own.iter().all(|one| all.contains(one)), "{own:?}");
    for file in ["README.md", "job.slurm", ".cargo/config.toml", "src/main.rs"] {
        let text = fs::read_to_string(package.join(file)).unwrap();
        assert!(!text.contains("{{") && !text.contains("ANCHOR"), "{text}");
    }
    lockstep(&["render", "--check", "job.slurm"], &package).code(0);
}

#[test]
fn refuses_names_in_use_and_folders_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    for (name, why) in
        [("tch", "a crate that the course uses"), ("My-Model", "is no name of a package"), ("..", "is no name")]
    {
        assert!(lockstep(&["new", name], folder.path()).code(2).err.contains(why), "{name}");
    }
    fs::create_dir(folder.path().join("mine")).unwrap();
    let refused = lockstep(&["new", "mine"], folder.path()).code(2).err;
    assert!(refused.contains("mine exists already: choose another folder"), "{refused}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

//! What set-up has compiled serves the first plain cargo command: each lab and exercise asks for all crates with the features that they
//! have in the whole workspace. Otherwise libtorch's binding would be compiled once more, for minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::running::ended;

#[derive(Deserialize)]
struct Graph {
    units: Vec<Unit>,
}

/// What cargo compiles or runs.
#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: Target,
    mode: String,
    features: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Package, target and mode.
type Key = (String, String, String);

/// The features of all that `cargo build` with these words compiles.
fn units(words: &[&str]) -> BTreeMap<Key, BTreeSet<BTreeSet<String>>> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    // The list is an unstable option of the pinned toolchain; nothing is compiled.
    cargo.args(["build", "--offline", "--unit-graph", "-Z", "unstable-options"]).args(words);
    let graph = ended(cargo.env("RUSTC_BOOTSTRAP", "1").current_dir(checkout)).code(0).out;
    let mut units: BTreeMap<Key, BTreeSet<BTreeSet<String>>> = BTreeMap::new();
    for Unit { pkg_id, target: Target { name, kind }, mode, features } in
        serde_json::from_str::<Graph>(&graph).unwrap().units
    {
        units.entry((pkg_id, format!("{name} {kind:?}"), mode)).or_default().insert(features);
    }
    units
}

/// The units that both compile, with different features.
fn twice(of: &[&str], than: &BTreeMap<Key, BTreeSet<BTreeSet<String>>>) -> Vec<String> {
    let differs = |(key, features): (Key, BTreeSet<_>)| {
        let other = than.get(&key)?;
        (!features.is_subset(other)).then(|| format!("{}: {features:?}, elsewhere {other:?}", key.0))
    };
    units(of).into_iter().filter_map(differs).collect()
}

#[test]
fn a_lab_or_an_exercise_alone_compiles_nothing_twice() {
    let (all, tour) = (units(&[]), units(&["-p", "lockstep-harness", "-p", "lab-06-snapshot-resume"]));
    assert!(all.len() > 100 && tour.len() > 100, "{} and {} units", all.len(), tour.len());
    let labs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("labs");
    let folders = fs::read_dir(labs).unwrap().map(|entry| entry.unwrap());
    let names: Vec<String> = folders
        .filter(|entry| entry.path().join("lab.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let number = name.split('-').next().unwrap();
        for package in [format!("lab-{name}"), format!("ex-{number}")] {
            for (whole, what) in [(&all, "cargo build"), (&tour, "scripts/run.sh")] {
                let twice = twice(&["-p", &package], whole);
                assert!(twice.is_empty(), "{package} after {what}:\n{}", twice.join("\n"));
            }
        }
    }
}

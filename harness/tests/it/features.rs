//! What cargo compiles, and how: nothing for a second time, and nothing with optimization that only runs at compile time.
//!
//! What the tour has compiled serves the first plain cargo command: each lab and exercise asks for all crates with the features that they
//! have in the whole workspace. Otherwise libtorch's binding would be compiled once more, for minutes.

use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::running::ended;

/// All that a cargo command compiles or runs.
#[derive(Deserialize)]
struct Graph {
    units: Vec<Unit>,
}

#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: Target,
    mode: String,
    features: Vec<String>,
    /// The target's triple, if the command names one; `None` for what runs at compile time.
    platform: Option<String>,
    profile: Profile,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Profile {
    opt_level: String,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Dependency {
    index: usize,
}

/// What is compiled: package, target, mode, and for what.
type What<'a> = (&'a str, &'a str, &'a [String], &'a str, bool);

impl Graph {
    /// Of `cargo build` with these words.
    fn of(words: &[&str]) -> Self {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        // The list is an unstable option of the pinned toolchain; nothing is compiled. With a target named, cargo tells what is compiled
        // for it from what runs here.
        let target = format!("--target={}-unknown-linux-gnu", std::env::consts::ARCH);
        cargo.args(["build", "--offline", "--unit-graph", "-Z", "unstable-options", &target]).args(words);
        let printed = ended(cargo.env("RUSTC_BOOTSTRAP", "1").current_dir(checkout)).code(0).out;
        serde_json::from_str(&printed).unwrap()
    }

    /// The packages of which something runs at compile time, without build scripts, and those that programs have.
    fn sides(&self) -> [HashSet<&str>; 2] {
        [false, true].map(|target| {
            let on_it = |unit: &&Unit| unit.platform.is_some() == target && unit.mode == "build";
            let script = |unit: &&Unit| unit.target.kind.iter().any(|kind| kind == "custom-build");
            self.units.iter().filter(on_it).filter(|unit| !script(unit)).map(|unit| &*unit.pkg_id).collect()
        })
    }

    fn what(&self, index: usize) -> What<'_> {
        let Unit { pkg_id, target, mode, platform, .. } = &self.units[index];
        (pkg_id, &target.name, &target.kind, mode, platform.is_some())
    }

    /// A number for each unit: equal if it and all that it depends on have the same features.
    fn signatures(&self) -> Vec<u64> {
        let mut known = vec![None; self.units.len()];
        (0..self.units.len()).map(|index| self.signature(index, &mut known)).collect()
    }

    fn signature(&self, index: usize, known: &mut Vec<Option<u64>>) -> u64 {
        if let Some(signature) = known[index] {
            return signature;
        }
        let unit = &self.units[index];
        let mut below: Vec<u64> = unit.dependencies.iter().map(|on| self.signature(on.index, known)).collect();
        below.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (self.what(index), &unit.features, below).hash(&mut hasher);
        *known[index].insert(hasher.finish())
    }
}

/// What `part` compiles again after `whole`: with other features, or because something below it has other features.
fn twice(part: &Graph, whole: &Graph) -> Vec<String> {
    let there: HashSet<u64> = whole.signatures().into_iter().collect();
    let same: HashSet<What<'_>> = (0..whole.units.len()).map(|index| whole.what(index)).collect();
    let signatures = part.signatures();
    let again = |index: &usize| !there.contains(&signatures[*index]) && same.contains(&part.what(*index));
    (0..part.units.len()).filter(again).map(|index| format!("{:?}", part.what(index))).collect()
}

/// Packages that `part` needs at compile time alone, and `whole` in programs, too. What both need is compiled as for programs: cargo compiles
/// such a package again, and all that depends on it, serde and the runtime among them.
fn on_another_side<'a>(part: &'a Graph, whole: &Graph) -> Vec<&'a str> {
    let ([host, target], [whole_host, whole_target]) = (part.sides(), whole.sides());
    let also = |package: &&str| whole_host.contains(package) && whole_target.contains(package);
    host.difference(&target).copied().filter(also).collect()
}

/// What `scripts/run.sh` builds for the tour.
const TOUR: [&str; 5] =
    ["--package", "lockstep-harness", "--package", "lab-06-snapshot-resume", "--no-default-features"];

#[test]
fn a_lab_or_an_exercise_alone_compiles_nothing_twice() {
    let (all, tour) = (Graph::of(&[]), Graph::of(&TOUR));
    assert!(all.units.len() > 100 && tour.units.len() > 100);
    let script = include_str!("../../../scripts/lib/cargo.sh");
    assert!(TOUR.iter().all(|word| script.contains(word)), "{TOUR:?} are not the words of scripts/lib/cargo.sh");
    // `cargo build` needs some crates for build scripts as well, with other features: these come in addition.
    let mut again = twice(&tour, &all);
    // The first build has less of these two.
    again.retain(|what| !what.contains("#lockstep-harness@") && !what.contains("#lockstep-prove@"));
    assert!(again.is_empty(), "scripts/run.sh compiles what does not serve cargo build:\n{}", again.join("\n"));
    let tests = Graph::of(&["--workspace", "--all-targets"]);
    let moved = on_another_side(&tour, &tests);
    assert!(moved.is_empty(), "after scripts/run.sh all that needs these is compiled again: {moved:?}");
    let harness = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rooms = fs::read_dir(harness).unwrap().map(|entry| entry.unwrap().path());
    let rooms: Vec<_> = rooms.filter(|room| room.join("Cargo.toml").exists()).collect();
    assert!(rooms.len() >= 9, "{rooms:?}");
    for room in rooms {
        let package = format!("lockstep-{}", room.file_name().unwrap().to_str().unwrap());
        let again = twice(&Graph::of(&["-p", &package]), &all);
        assert!(again.is_empty(), "{package} after cargo build compiles again:\n{}", again.join("\n"));
    }
    let labs = harness.parent().unwrap().join("labs");
    let folders = fs::read_dir(labs).unwrap().map(|entry| entry.unwrap());
    let names: Vec<String> = folders
        .filter(|entry| entry.path().join("lab.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let number = name.split('-').next().unwrap();
        for package in [format!("lab-{name}"), format!("ex-{number}")] {
            let part = Graph::of(&["-p", &package]);
            for (whole, what) in [(&all, "cargo build"), (&tour, "scripts/run.sh")] {
                let twice = twice(&part, whole);
                assert!(twice.is_empty(), "{package} after {what} compiles again:\n{}", twice.join("\n"));
            }
        }
    }
}

#[test]
fn nothing_that_only_runs_at_compile_time_is_optimized() {
    let graph = Graph::of(&["--workspace"]);
    let (host, target): (Vec<&Unit>, Vec<&Unit>) = graph.units.iter().partition(|unit| unit.platform.is_none());
    let optimized = |units: &[&Unit]| -> HashSet<String> {
        units.iter().filter(|unit| unit.profile.opt_level != "0").map(|unit| unit.pkg_id.clone()).collect()
    };
    // A level that is meant for the target counts for the package's build script as well, and for its host build.
    let (host_levels, meant) = (optimized(&host), optimized(&target));
    assert!(host.len() > 20 && !meant.is_empty());
    let found: Vec<&String> = host_levels.difference(&meant).collect();
    assert!(found.is_empty(), "optimized, and only to run at compile time: {found:?}");
}

//! Scripts of the course, and `lockstep new`, as users meet them.
//!
//! `scripts/seats.sh` runs on a small workspace of the course's shape: a binding that is compiled for libtorch's path, a command, and an exercise.
//! That the course itself compiles nothing in a seat takes two builds of it, and an image takes a build, too: both too long for a test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use assert_cmd::cargo::cargo_bin;
use tempfile::TempDir;

use crate::running::{Ended, ended};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Each package's manifest without its first lines, which are the same for all.
const PACKAGES: [(&str, &str); 3] = [
    ("binding", ""),
    (
        "command",
        r#"
[[bin]]
name = "lockstep"
path = "main.rs"
[dependencies]
binding = { path = "../binding" }
"#,
    ),
    (
        "ex-01",
        r#"
[dependencies]
binding = { path = "../binding" }
"#,
    ),
];
const FILES: [(&str, &str); 9] = [
    (".cargo/config.toml", "[env]\nLIBTORCH = { value = \".libtorch\", relative = true, force = true }\n"),
    (".gitignore", "/target\n/.libtorch\n/.seats\n"),
    ("scripts/setup.sh", "#!/bin/sh\nmkdir -p .libtorch/lib\n"),
    (
        "Cargo.toml",
        r#"[workspace]
resolver = "3"
members = ["binding", "command", "ex-01"]
default-members = ["binding", "command"]
"#,
    ),
    (
        "binding/build.rs",
        r#"fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rustc-env=AT={}", std::env::var("LIBTORCH").unwrap());
}
"#,
    ),
    ("binding/shim/shim.cpp", "// read by nobody\n"),
    // Large enough to be shared.
    ("binding/src/lib.rs", "pub const AT: &str = env!(\"AT\");\npub static LARGE: [u64; 20_000] = [1; 20_000];\n"),
    (
        "command/main.rs",
        r#"fn main() {
    println!("{} {}", binding::AT, std::env::current_exe().unwrap().display());
}
"#,
    ),
    (ANSWER, "fn main() {\n    println!(\"{}\", binding::AT);\n}\n"),
];
const ANSWER: &str = "ex-01/src/main.rs";

/// The course's scripts in a small checkout that all can read, in a folder that all can enter: `TMPDIR` may be a user's own. Rust is a
/// link: to copy it takes seconds.
fn checkout() -> TempDir {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let root = folder.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let write = |name: &str, text: &str| {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), text).unwrap();
    };
    FILES.iter().for_each(|(name, text)| write(name, text));
    for (name, rest) in PACKAGES {
        let first = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        write(&format!("{name}/Cargo.toml"), &(first + rest));
    }
    for name in ["seats.sh", "lib/say.sh", "lib/arch.sh", "lib/cargo.sh"] {
        write(&format!("scripts/{name}"), &fs::read_to_string(Path::new(ROOT).join("scripts").join(name)).unwrap());
    }
    fs::set_permissions(root.join("scripts/setup.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    run(root, "cargo generate-lockfile --offline").code(0);
    run(root, "git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm first").code(0);
    let sysroot = run(root, "rustc --print sysroot").code(0).out;
    fs::create_dir(root.join(".seats")).unwrap();
    symlink(sysroot.trim(), root.join(".seats/rust")).unwrap();
    folder
}

/// A line of shell, without the variables that cargo and the test run set.
fn run(folder: &Path, line: &str) -> Ended {
    let mut command = Command::new("bash");
    command.args(["-c", line]).current_dir(folder);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().into_owned();
        if text == "CARGO" || text.starts_with("CARGO_") && text != "CARGO_HOME" || text == "RUSTFLAGS" {
            command.env_remove(name);
        }
    }
    ended(&mut command)
}

/// A line of shell with the scripts' functions, in an empty folder that stands for the checkout.
fn with_functions(line: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let lib = Path::new(ROOT).join("scripts/lib");
    let load = format!(
        "set -euo pipefail; ROOT=$PWD LIB='{}'; . \"$LIB/say.sh\"; . \"$LIB/arch.sh\"; . \"$LIB/cargo.sh\"; ",
        lib.display()
    );
    run(folder.path(), &(load + line))
}

#[test]
fn the_scripts_name_what_a_site_forbids_before_anything_is_built() {
    for (line, says) in [
        (
            "export CARGO_TARGET_DIR=/dev/null/target; prepare_cargo",
            "cannot write to /dev/null/target, where cargo puts what it builds",
        ),
        ("export TMPDIR=/no/such/folder; check_temporary", "no temporary files can be made (mktemp: "),
        (
            "printf '[net]\\n[build] # mine\\n target = \"x\"\\n' > config.toml; export CARGO_HOME=$PWD; prepare_cargo",
            "/config.toml sets [build] target, by which cargo puts programs where these scripts do not find them",
        ),
    ] {
        with_functions(line).code(1).says(&[says, "to fix it: "]);
    }
    let paths = "export LD_LIBRARY_PATH=/opt/torch PYTHONPATH=/opt/python; prepare_cargo; find_peer; check_temporary; ";
    let shown =
        with_functions(&(paths.to_owned() + "echo \"${LD_LIBRARY_PATH#\"$PWD/\"} ${PYTHONPATH:-none}\"")).code(0);
    assert_eq!(shown.out, ".libtorch/lib:/opt/torch none\n", "ours is found first");
}

#[test]
fn the_scripts_leave_out_what_would_change_the_build() {
    let exported = "export CARGO_BUILD_TARGET=x CARGO_TARGET_X_RUSTFLAGS=-g CARGO_HOME=$PWD; ";
    let other = "printf '[target.x]\\ntarget = 1\\n[build]\\ntarget-dir = \"t\"\\n# target = \"x\"\\n' > config.toml; ";
    let shown = "prepare_cargo; echo \"${CARGO_BUILD_TARGET:-none} ${CARGO_TARGET_X_RUSTFLAGS:-none}\"";
    let ended = with_functions(&[exported, other, shown].concat()).code(0);
    assert_eq!(ended.out, "none none\n");
    for name in ["CARGO_BUILD_TARGET", "CARGO_TARGET_X_RUSTFLAGS"] {
        assert!(ended.err.contains(&format!("leaving {name} out: it would change what is built")), "{ended}");
    }
}

#[test]
fn set_up_goes_on_where_the_file_system_has_no_locks() {
    // flock(1) ends with 71 there, and with 1 where another set-up has the lock.
    let take = |code: u8| {
        let take_lock =
            "eval \"$(sed -n '/^take_lock()/,/^}/p' \"$LIB/../setup.sh\")\"; HOME_DIR=$PWD/.libtorch LOCK_SECONDS=0; ";
        with_functions(&format!("flock() {{ return {code}; }}; {take_lock} take_lock; echo taken"))
    };
    assert_eq!(take(0).code(0).out, "taken\n");
    assert_eq!(take(71).says(&["has no locks (flock ended with 71)"]).code(0).out, "taken\n");
    take(1).code(1).says(&["another set-up held"]);
}

/// When each file below was last changed.
fn times(folder: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(times(&entry.path())),
            kind if kind.is_file() => {
                found.insert(entry.path(), entry.metadata().unwrap().modified().unwrap());
            }
            _ => {}
        }
    }
    found
}

#[test]
fn a_seat_compiles_the_exercise_and_nothing_else() {
    let (checkout, seats) = (checkout(), tempfile::tempdir().unwrap());
    let (root, shared) = (checkout.path(), checkout.path().join("target"));
    let new = |name: &str| {
        let (script, seat) = (root.join("scripts/seats.sh"), seats.path().join(name));
        run(seats.path(), &format!("bash '{}' new '{}'", script.display(), seat.display()))
    };
    new("early").code(1).says(&["no seats are prepared in", "scripts/seats.sh prepare"]);
    run(root, "bash scripts/seats.sh prepare").code(0).says(&["ready; ", "scripts/seats.sh new ~/lockstep"]);
    let before = times(&shared);
    for name in ["one", "two"] {
        let lines = new(name).code(0).out;
        let seat = seats.path().join(name);
        let build = |words: &str| run(seats.path(), &format!("{lines}cargo {words} --offline --verbose")).code(0).err;
        // The path of libtorch is the shared one; the command's own is the seat's.
        let at =
            format!("{}/.libtorch {}", root.canonicalize().unwrap().display(), seat.canonicalize().unwrap().display());
        let printed = run(seats.path(), &format!("{lines}lockstep")).code(0).out;
        assert!(printed.starts_with(&at), "{printed} instead of {at}");
        let all = build("build");
        assert!(all.contains("Fresh binding") && all.contains("Fresh command") && !all.contains("Compiling"), "{all}");
        for _ in 0..2 {
            let exercise = build("build --package ex-01");
            assert!(exercise.contains("Fresh binding") && exercise.matches("Compiling").count() == 1, "{exercise}");
            assert!(exercise.contains("Compiling ex-01"), "{exercise}");
            fs::write(seat.join(ANSWER), "fn main() {}\n").unwrap();
        }
        // What is shared can be changed in a seat, and stays as it was for others.
        fs::write(seat.join("binding/src/lib.rs"), "pub const AT: &str = \"mine\";\n").unwrap();
        assert!(build("build").contains("Compiling binding"));
        let printed = run(seats.path(), &format!("{lines}lockstep && git status --short")).code(0).out;
        assert!(
            printed.starts_with("mine ") && printed.ends_with(" M binding/src/lib.rs\n M ex-01/src/main.rs\n"),
            "{printed}"
        );
    }
    assert!(times(&shared) == before, "a seat has changed what all share");
    new("one").code(1).says(&["is there already"]);
}

#[test]
fn says_that_others_cannot_enter_a_folder() {
    let checkout = tempfile::tempdir_in("/tmp").unwrap(); // others can enter it, and it has no blanks
    fs::set_permissions(checkout.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let root = checkout.path().join("lockstep");
    fs::create_dir_all(root.join("scripts/lib")).unwrap();
    for name in ["seats.sh", "lib/say.sh", "lib/arch.sh", "lib/cargo.sh"] {
        fs::copy(Path::new(ROOT).join("scripts").join(name), root.join("scripts").join(name)).unwrap();
    }
    run(&root, "bash scripts/seats.sh prepare").code(1).says(&["other users cannot enter", "chmod o+x"]);
    run(&root, "bash scripts/seats.sh new").code(2).says(&["usage: scripts/seats.sh"]);
}

#[test]
fn says_which_programs_could_build_an_image_where_there_are_none() {
    let bin = tempfile::tempdir().unwrap();
    for name in ["bash", "dirname", "env", "realpath"] {
        let path =
            ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name)).into_iter().find(|path| path.exists());
        symlink(path.unwrap(), bin.path().join(name)).unwrap();
    }
    // Docker's command is often there without a daemon.
    fs::write(bin.path().join("docker"), "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(bin.path().join("docker"), fs::Permissions::from_mode(0o755)).unwrap();
    for (kind, engines) in [("apptainer", "none of apptainer"), ("oci", "none of podman, buildah, docker")] {
        let mut command = Command::new("/usr/bin/env");
        command.args(["bash", "scripts/image.sh", kind]).current_dir(ROOT).env_clear().env("PATH", bin.path());
        ended(&mut command).code(1).says(&[engines, "is on PATH and works", "to fix it: "]);
    }
}

#[test]
fn the_image_that_was_built_here_trains_two_ranks() {
    let image = Path::new(ROOT).join("target/image/lockstep-cpu.sif");
    if !image.exists() || Command::new("apptainer").arg("--version").output().is_err() {
        println!(
            "not verified here: a container image (scripts/image.sh apptainer builds one, where Apptainer is installed)"
        );
        return;
    }
    let ended = ended(Command::new("apptainer").arg("test").arg(image));
    if ended.err.contains("capability set") {
        println!(
            "not verified here: a container image, since root has limited rights here (export APPTAINER_NO_PRIVS=1)"
        );
        return;
    }
    let ended = ended.code(0);
    assert!(ended.out.contains("lockstep 0.") && ended.out.contains("Epoch 0 "), "{ended}");
}

fn lockstep(words: &[&str], folder: &Path) -> Ended {
    let mut command = Command::new(cargo_bin!("lockstep"));
    ended(command.args(words).current_dir(folder))
}

#[test]
fn a_new_package_has_the_course_s_crates_and_versions() {
    let folder = tempfile::tempdir().unwrap();
    lockstep(&["new", "my-model"], folder.path()).code(0);
    let package = folder.path().join("my-model");
    let cargo = |words: &[&str]| {
        let ended = ended(Command::new(env!("CARGO")).args(words).current_dir(&package)).code(0);
        assert!(!ended.err.contains("warning"), "{ended}"); // of a profile, for example
        ended.out
    };
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
    lockstep(&["render", "--check", "job.slurm"], &package).code(0);
}

#[test]
fn a_new_package_has_the_files_of_its_task() {
    let folder = tempfile::tempdir().unwrap();
    let mut modules = Vec::new();
    for task in ["points", "tokens", "images", "table", "sequences"] {
        lockstep(&["new", task, "--task", task], folder.path()).code(0);
        let package = folder.path().join(task);
        for file in ["README.md", "job.slurm", ".cargo/config.toml", "src/main.rs", "src/wrap.rs", "src/task.rs"] {
            let text = fs::read_to_string(package.join(file)).unwrap();
            assert!(!text.contains("{{") && !text.contains("ANCHOR"), "{text}");
        }
        assert_eq!(package.join("train.py").exists(), task == "points");
        modules.push(fs::read_to_string(package.join("src/task.rs")).unwrap());
    }
    lockstep(&["new", "default"], folder.path()).code(0);
    assert_eq!(modules[0], fs::read_to_string(folder.path().join("default/src/task.rs")).unwrap());
    modules.sort();
    modules.dedup();
    assert_eq!(modules.len(), 5);
}

#[test]
fn refuses_names_in_use_and_folders_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    for (name, why) in [
        ("tch", "a crate that the course uses"),
        ("My-Model", "cannot be the name of a package"),
        ("..", "cannot be the name"),
    ] {
        assert!(lockstep(&["new", name], folder.path()).code(2).err.contains(why), "{name}");
    }
    fs::create_dir(folder.path().join("mine")).unwrap();
    let refused = lockstep(&["new", "mine"], folder.path()).code(2).err;
    assert!(refused.contains("mine exists already: choose another folder"), "{refused}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

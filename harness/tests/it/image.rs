//! `scripts/image.sh` and the image that it has built, if there is one: a build takes too long for a test.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::running::ended;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

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
        println!("not verified here: a container image, since root has not all rights (export APPTAINER_NO_PRIVS=1)");
        return;
    }
    let ended = ended.code(0);
    assert!(ended.out.contains("lockstep 0.") && ended.out.contains("Epoch 0 "), "{ended}");
}

//! The scripts as texts.

use std::io::Write;
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use lockstep_launch::command::quoted;

use super::{agent, render, script};
use crate::shown::plain;

/// One of each kind: the name of its snapshot, and the command line.
pub(super) const KINDS: &[(&str, &str)] = &[
    ("slurm", "--profile slurm-virtual-environment --nodes 2 --time 01:00:00 -- train.py --epochs 10"),
    (
        "slurm_container_signal_stage",
        "--profile slurm-apptainer --nodes 2 --time 01:00:00 --signal 120 --stage /scratch/training/data.tar.gz -- lab-06 --data {local} --snapshots /scratch/training/run",
    ),
    (
        "slurm_unequal_nodes",
        "--profile slurm-apptainer --nodes 1x4,2x2 --time 2-00:00:00 --stage /scratch/training/data -- lab-06",
    ),
    (
        "slurm_array",
        "--profile slurm-cpu --array 4 --workers-per-node 2 --time 00:10:00 --signal 30 -- lab-06 --seed {task} --snapshots run-{task}",
    ),
    (
        "slurm_mpirun",
        "--profile slurm-mpirun --nodes 2 --time 01:00:00 --signal 60 -- lab-06 --snapshots /scratch/training/run",
    ),
    ("slurm_build", "--profile slurm-apptainer --build --time 01:00:00 --name build -- cargo build --release"),
    (
        "pbs_signal_stage",
        "--profile pbs-arm --nodes 2 --time 03:00:00 --signal 120 --stage /project/training/data -- lab-06 --data {local}/data --snapshots /project/training/run",
    ),
    ("ssh_torchrun", "--profile ssh-torchrun --nodes 2 -- train.py"),
    ("pbs_unequal_nodes", "--profile pbs-arm --nodes 1x4,2x2 --time 03:00:00 -- lab-06"),
    ("pbs_array", "--profile pbs-arm --array 4 --time 03:00:00 -- lab-03 --seed {task}"),
    ("pbs_build", "--profile pbs-arm --build --time 01:00:00 -- scripts/setup.sh --cuda"),
    (
        "ssh_unequal_nodes",
        "--profile ssh-workstations --nodes 1x2,1x1 --time 01:00:00 --signal 60 -- lab-06 --snapshots /shared/training/run",
    ),
    ("mpirun", "--profile mpirun-workstations --nodes 2 -- lab-06"),
];

#[test]
fn scripts_of_every_kind_read_as_recorded() {
    let _plain = plain();
    for (name, words) in KINDS {
        assert_snapshot!(*name, script(words));
    }
}

#[test]
fn scripts_and_what_they_start_on_nodes_pass_shellcheck() {
    if Command::new("shellcheck").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("not verified here: rendered scripts under shellcheck, which is not installed");
        return;
    }
    for (name, words) in KINDS {
        let script = script(words);
        shellcheck(name, &script);
        agent(&script).into_iter().for_each(|agent| shellcheck(&format!("{name}'s agent"), agent));
    }
}

fn shellcheck(name: &str, script: &str) {
    // The site's own files, such as a virtual environment's `activate`, are not here.
    let mut command = Command::new("shellcheck");
    let mut child = command.args(["-e", "SC1091", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}:\n{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn only_a_launcher_that_cannot_ask_the_scheduler_gets_flags() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = |profile: &str| {
        let path = folder.path().join("site.toml");
        std::fs::write(&path, profile).unwrap();
        script(&format!("--profile {} --nodes 2 --time 01:00:00 -- lab-06", quoted(path.to_str().unwrap())))
    };
    let slurm = rendered("scheduler = \"slurm\"");
    assert!(slurm.contains("\n  lockstep run --nproc-per-node=1 \\\n  lab-06\n"), "{slurm}");
    assert!(!slurm.contains("rdzv") && !slurm.contains("head="), "{slurm}");
    for profile in ["scheduler = \"slurm\"\nlauncher = \"torchrun\"", "scheduler = \"slurm\"\nrendezvous = \"flags\""] {
        assert!(rendered(profile).contains("--rdzv-endpoint=\"$head:$port\""), "{profile}");
    }
    let pbs = rendered("scheduler = \"pbs\"\nshared = \"/work\"");
    assert!(
        pbs.contains("lockstep run --nproc-per-node=\"$workers\" --hostfile=\"$run/hosts\" --rdzv-id=\"$id\" \\\n"),
        "{pbs}"
    );
}

#[test]
fn refusals_say_what_to_change() {
    let _plain = plain();
    let refusals = [
        "--profile slurm-cpu -- lab-06",
        "--profile slurm-cpu --time 1 -- lab-06",
        "--profile slurm-cpu --time 00:01:00 --signal 60 -- lab-06",
        "--profile slurm-cpu --time 01:00:00 --stage /data -- lab-06",
        "--profile slurm-cpu --time 01:00:00 --nodes 2y3 -- lab-06",
        "--profile mpirun-workstations --nodes 1x2,1x1 -- lab-06",
        "--profile ssh-workstations --array 2 -- lab-06",
        "--profile pbs-arm --array 2 --time 01:00:00 --signal 60 -- lab-06",
        "--profile nowhere.toml -- lab-06",
        "--show nothing",
    ];
    let refused = |words: &&str| {
        let ended = render(&words.split(' ').collect::<Vec<_>>()).code(2);
        format!("$ lockstep render {words}\n{}\n", ended.err)
    };
    assert_snapshot!("refusals", refusals.iter().map(refused).collect::<String>());
}

#[test]
fn examples_are_listed_and_printed_and_can_be_edited() {
    let list = render(&["--list"]).code(0).out;
    let names: Vec<&str> = list.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.contains(&"pbs-arm") && names.len() >= 7, "{list}");
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join("site.toml");
        std::fs::write(&path, render(&["--show", name]).code(0).out).unwrap();
        let of = |site: &str| script(&format!("--profile {site} --time 01:00:00 -- lab-06"));
        assert_eq!(of(&quoted(path.to_str().unwrap())).replace("site.toml", name), of(name));
    }
}

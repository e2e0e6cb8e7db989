//! The scripts for Slurm, submitted to the real Slurm of a cluster in namespaces.

use std::fs;
use std::process::Command;

use lockstep_launch::command::quoted;

use super::script;
use crate::cluster::Place;
use crate::running::lockstep;

/// A worker says who it is, on which node and with which arguments, in a file of the job and its rank.
const WHO: &str =
    "#!/bin/sh\necho \"$RANK of $WORLD_SIZE on $(hostname): $(cat \"$1\") $SITE\" >>\"$(dirname \"$0\")/$2-$RANK\"";

/// Renders a job called `job` for a Slurm site with these further lines of its profile; returns the script's path.
fn write(place: &Place, job: &str, profile: &str, words: &str) -> String {
    let (launcher, folder) = (lockstep(), place.site.word(""));
    place.site.file(
        "site.toml",
        &format!(
            "scheduler = \"slurm\"\nshared = \"{folder}\"\nlocal = \"/tmp\"\n\
             launcher = \"{launcher} run --rdzv-conf=join_timeout=300\"\n{profile}[environment]\nSITE = \"here\"\n"
        ),
    );
    let text = script(&format!("--profile {} --time 00:10:00 --name {job} {words}", place.site.shell("site.toml")));
    place.site.file(&format!("{job}.sh"), &text)
}

/// Submits a script and waits for its end: its workers must have written `expected`, in the order of their ranks.
#[track_caller]
fn assert_says(place: &Place, job: &str, path: &str, expected: &[&str]) {
    let ended = place.batch(&[path]);
    assert!(ended.status.success(), "{ended}\n{}", outputs(place, job));
    let said: Vec<String> = (0..expected.len()).map(|rank| place.site.read(&format!("{job}-{rank}"))).collect();
    assert_eq!(said.iter().map(|line| line.trim()).collect::<Vec<_>>(), expected, "{job}: {}", outputs(place, job));
}

/// What Slurm has written for a job.
fn outputs(place: &Place, job: &str) -> String {
    let files =
        fs::read_dir(place.site.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files = files.filter(|name| name.starts_with(&format!("{job}-")) && name.ends_with(".out"));
    files.map(|name| place.site.read(&name)).collect()
}

#[test]
fn slurm_runs_scripts_for_equal_and_unequal_nodes_and_queues_one_again() {
    let place = Place::new();
    if !place.up_with_slurm("scripts for Slurm") {
        return;
    }
    place.site.file("data", "staged");
    place.site.program("who", WHO);
    let [data, who] = ["data", "who"].map(|name| place.site.shell(name));

    let words = format!("--nodes 2 --workers-per-node 2 --stage {data} -- {who} {{local}}/data equal");
    let path = write(&place, "equal", "", &words);
    let line = |rank: u32, node: &str, world: u32| format!("{rank} of {world} on {node}: staged here");
    let expected = [line(0, "n1", 4), line(1, "n1", 4), line(2, "n2", 4), line(3, "n2", 4)];
    assert_says(&place, "equal", &path, &expected.each_ref().map(String::as_str));

    let path = write(&place, "unequal", "", &format!("--nodes 1x2,1x1 -- {who} {data} unequal"));
    let expected = [line(0, "n1", 3), line(1, "n1", 3), line(2, "n2", 3)];
    assert_says(&place, "unequal", &path, &expected.each_ref().map(String::as_str));

    queues_again(&place);
    place.ok(&["down"]);
    place.assert_as_before();
}

/// Slurm's signal before the time limit, sent by hand: the workers save, and the same job runs again.
fn queues_again(place: &Place) {
    // Slurm signals every process of the job: the signal may end the worker's child before it reaches the worker.
    place.site.program(
        "saves",
        "#!/bin/bash\nfolder=$(dirname \"$0\")\nif [ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ]; then echo resumed >>\"$folder/long-$RANK\"; exit; fi\n\
         trap 'trap : USR2; echo saved >>\"$folder/long-$RANK\"; kill $!; exit 75' USR2\n: >\"$folder/ready-$RANK\"\n\
         while :; do sleep 1000 & wait; done",
    );
    let path = write(place, "long", "", &format!("--nodes 2 --signal 60 -- {}", place.site.shell("saves")));
    let job = place.sh("ctl", &format!("sbatch --parsable {}", quoted(&path)));
    let ready = || (0..2).all(|rank| place.site.path(&format!("ready-{rank}")).exists());
    place.site.until("both workers wait for the signal", ready);
    place.sh("ctl", &format!("scancel --batch --signal=USR1 {job}"));
    let completed = || place.sh("ctl", &format!("scontrol show job {job}")).contains("JobState=COMPLETED");
    place.site.until("the second run ends well", completed);
    for rank in 0..2 {
        assert_eq!(place.site.read(&format!("long-{rank}")), "saved\nresumed\n", "{}", outputs(place, "long"));
    }
}

#[test]
fn slurm_runs_a_script_that_starts_its_launchers_with_mpirun() {
    let place = Place::new();
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("not verified here: scripts for mpirun, which is not installed");
        return;
    }
    if !place.up_with_slurm("scripts for mpirun under Slurm") {
        return;
    }
    place.site.file("data", "shared");
    place.site.program("who", WHO);
    let [data, who] = ["data", "who"].map(|name| place.site.shell(name));
    let start =
        "start = \"mpirun --allow-run-as-root --oversubscribe -np {nodes} --map-by ppr:1:node --bind-to none\"\n";
    let path = write(&place, "mpi", start, &format!("--nodes 2 --workers-per-node 2 -- {who} {data} mpi"));
    let line = |rank: u32, node: &str| format!("{rank} of 4 on {node}: shared here");
    let expected = [line(0, "n1"), line(1, "n1"), line(2, "n2"), line(3, "n2")];
    assert_says(&place, "mpi", &path, &expected.each_ref().map(String::as_str));
    place.ok(&["down"]);
    place.assert_as_before();
}

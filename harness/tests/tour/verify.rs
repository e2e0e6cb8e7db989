//! `lockstep verify` for labs that tell the truth, lie or are missing; and all commands with the labs that train, if they were built: small
//! runs, and the same verdicts.

use std::path::PathBuf;
use std::process::Command;

use assert_cmd::assert::OutputAssertExt;
use insta::assert_snapshot;
use rustix::process::Signal;

use crate::inject::Running;
use crate::shown;
use crate::site::{RESUME, SPAWN, Site, finding, json, stderr, stdout};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("verifies_labs_that_do_what_they_claim_and_names_those_that_are_not_built", verifies),
    ("fails_the_claim_of_lab_02_that_each_lie_breaks", fails_lies),
    ("shows_what_holds_and_what_does_not_as_a_table", shows_a_table),
    ("takes_padding_for_what_it_is", takes_padding),
    ("fails_a_resume_to_other_bits", fails_resume),
    ("refuses_labs_that_are_unknown_or_not_built", refuses),
];

fn verifies() {
    let report = json(&Site::new().run("", &["verify", "--report", "-"]).success());
    let verdict_of = |case: usize| {
        (report["cases"][case]["name"].as_str().unwrap(), report["cases"][case]["verdict"].as_str().unwrap())
    };
    assert_eq!(verdict_of(0), ("01-single-gpu", "not verified here"));
    assert_eq!(verdict_of(1), ("02-spawn-ddp", "passed"), "{:#}", report["cases"][1]);
    assert_eq!(verdict_of(2), ("03-torchrun-env", "not verified here"));
    assert_eq!(verdict_of(3), ("04-point-to-point", "not verified here"));
    assert_eq!(verdict_of(5), ("06-snapshot-resume", "passed"), "{:#}", report["cases"][5]["findings"]);
    assert_eq!(verdict_of(7), ("08-image-folder", "not verified here"));
    assert!(finding(&report, 0, "is built")["evidence"].as_str().unwrap().contains("build it with `cargo build`"));
    let claims = ["exit code 0", "is left", "same weights, to the bit", "train as", "Every sample", "learns"];
    claims.iter().for_each(|claim| assert_eq!(finding(&report, 1, claim)["verdict"], "passed"));
    assert_eq!(finding(&report, 5, "Killed: the final weights are bit for bit")["verdict"], "passed");
}

fn fails_lies() {
    let site = Site::new();
    let claims = ["same weights, to the bit", "train as", "Every sample", "learns"];
    for (lie, broken, expected) in [
        ("bit", vec![0], "rank 1 differs from rank 0: 1 value of weight, the first is value 0"),
        ("no weights", vec![0, 3], "cannot read the weights rank-1.safetensors"),
        ("apart", vec![1], "the loss of step 0 of epoch 0 is 1 in A and 1.01 in B"),
        ("twice", vec![1, 2], "step 0 of epoch 0 took other samples in A than in B"),
        ("nan", vec![1, 3], "the loss of step 0 of epoch 0 is NaN in A"),
        ("torn", vec![1, 2, 3], "rank 1's event file is torn at line"),
        ("no events", vec![1, 2, 3], "rank 1 left no event file"),
    ] {
        let report = json(&site.run(lie, &["verify", "02", "--report", "-"]).code(1));
        let failed: Vec<_> =
            (0..4).filter(|index| finding(&report, 0, claims[*index])["verdict"] == "FAILED").collect();
        assert_eq!(failed, broken, "{lie}: {report:#}");
        let evidence = finding(&report, 0, claims[broken[0]])["evidence"].as_str().unwrap();
        assert!(evidence.contains(expected), "{lie}: {evidence}");
    }
}

fn shows_a_table() {
    let site = Site::new();
    let _filters = shown::filtered(None);
    let output = stdout(&site.run("apart", &["verify", "02"]).code(1));
    // Seconds stand in one row, whose lines are broken elsewhere when they have more digits.
    let row =
        output.lines().skip_while(|line| !line.contains("The launcher ends")).take_while(|line| !line.contains("──"));
    let row = row.collect::<Vec<_>>().join("\n");
    assert_snapshot!("verify", output.replace(&row, " passed    The launcher ends with exit code 0: [row]"));
}

fn takes_padding() {
    let report = json(&Site::new().run("", &["verify", "02", "--nprocs", "3", "--report", "-"]).success());
    let evidence_of = |claim| finding(&report, 0, claim)["evidence"].as_str().unwrap().to_owned();
    assert!(
        evidence_of("Every sample").contains("1,024 samples on 3 ranks; 2 repeats an epoch are the sampler's padding")
    );
    assert!(evidence_of("train as").contains("A takes padding too"), "{}", evidence_of("train as"));
}

fn fails_resume() {
    let output = stdout(&Site::new().run("other bits", &["verify", "06"]).code(1));
    assert!(output.contains("✗ 06-snapshot-resume") && output.contains("1 FAILED"), "{output}");
}

fn refuses() {
    let site = Site::new();
    let message = stderr(&site.run("", &["verify", "99"]).code(2));
    assert!(message.contains("there is no lab \"99\": there are 01-single-gpu, 02-spawn-ddp"), "{message}");
    for name in ["3", "03", "03-torchrun-env", "lab-03-torchrun-env", "ex-03"] {
        let message = stderr(&site.run("", &["verify", name]).code(2));
        assert!(message.contains("cannot find the program lab-03-torchrun-env"), "{name}: {message}");
    }
    stderr(&Site::without_labs().run("", &["verify"]).code(2));
}

pub(crate) const WITH_REAL_LABS: &[(&str, fn())] = &[
    ("shows_that_a_kill_changes_no_bit_of_a_real_run", real_tour),
    ("recovers_real_runs_from_random_faults", real_soak),
    ("loses_nothing_at_stops_at_random_moments", real_stops),
    ("recovers_real_runs_of_several_nodes", real_nodes),
    ("trains_on_any_number_of_ranks_with_the_bits_of_one", real_elastic),
    ("shows_that_a_lost_node_and_a_new_one_change_no_bit", real_elastic_tour),
    ("changes_the_number_of_ranks_at_random_steps", real_elastic_soak),
    ("recovers_from_every_random_scenario_that_once_failed", real_seeds),
    ("recovers_real_runs_from_damaged_snapshots_full_disks_and_a_death_on_another_node", real_disks),
    ("verifies_real_labs", real_verify),
    ("verifies_that_what_makes_a_step_faster_does_not_change_what_it_learns", real_scaling),
    ("verifies_many_nodes_whoever_starts_them", real_many_nodes),
    ("trains_on_nodes_that_are_lost_or_cut_off_under_slurm_and_ends_with_the_same_bits", real_lost_nodes),
    ("leaves_no_rank_behind_when_it_is_killed", leaves_no_rank),
];

/// The command next to real labs; prints a note and returns `None` if one was not built.
fn command(labs: &[&str], args: &[&str]) -> Option<Command> {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_lockstep"));
    for lab in labs.iter().map(|lab| program.with_file_name(lab)) {
        if !lab.exists() {
            println!("not verified here: {} is not built (`cargo build` builds it)", lab.display());
            return None;
        }
    }
    let mut command = Command::new(program);
    command.args(args).env("OMP_NUM_THREADS", "1");
    Some(command)
}

fn report(labs: &[&str], args: &[&str]) -> Option<serde_json::Value> {
    let command = command(labs, args)?;
    Some(json(&lockstep_process::watchdog::output(command).assert().success()))
}

fn real_tour() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let args = ["tour", "--json", "--samples", "512", "--epochs", "2", "--html", page.to_str().unwrap()];
    let Some(report) = report(&[RESUME], &args) else { return };
    assert_eq!(report["verdict"], "passed", "{report:#}");
    assert_eq!(finding(&report, 0, "bit for bit")["evidence"], "105,866 values on each of 2 ranks");
    assert!(page.is_file());
}

/// The seed draws a kill, one in a save, a panic, and a snapshot that is torn or has a flipped bit; two faults in each scenario.
fn real_soak() {
    let Some(report) = report(&[RESUME], &["inject", "--soak", "3", "--seed", "930", "--report", "-"]) else { return };
    assert_eq!(report["counts"]["passed"], 3, "{report:#}");
}

/// The seed draws each signal, those that a scheduler sends also to all processes, and one before the first step.
fn real_stops() {
    let args = ["inject", "--soak", "2", "--stops", "--seed", "8626", "--report", "-"];
    let Some(report) = report(&[RESUME], &args) else { return };
    assert_eq!(report["counts"]["passed"], 2, "{report:#}");
}

fn real_nodes() {
    let labs = [RESUME, "lab-07-cifar-resnet"];
    let names = [
        "requeued-in-another-order",
        "asked-to-save-and-requeued",
        "no-takeover",
        "authority-killed",
        "resnet-on-two-nodes-one-worker-killed",
    ];
    let Some(report) = report(&labs, &[&["inject", "--report", "-"], &names[..]].concat()) else { return };
    assert_eq!(report["counts"]["passed"], names.len(), "{report:#}");
}

fn real_elastic() {
    let names = ["lost-for-good", "one-leaves", "one-comes-later", "eight-three-five-eight", "requeued-on-fewer-nodes"];
    let Some(report) = report(&[RESUME], &[&["inject", "--report", "-"], &names[..]].concat()) else { return };
    assert_eq!(report["counts"]["passed"], names.len(), "{report:#}");
    assert_eq!(finding(&report, 3, "It trains on")["evidence"], "rank 0 recorded 8 → 3 → 5 → 8");
    assert_eq!(finding(&report, 3, "on one rank")["evidence"], "105,866 values on each of 8 ranks");
}

fn real_elastic_tour() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let args = ["tour", "--elastic", "--json", "--samples", "512", "--epochs", "2", "--html", page.to_str().unwrap()];
    let Some(report) = report(&[RESUME], &args) else { return };
    assert_eq!(report["verdict"], "passed", "{report:#}");
    assert_eq!(finding(&report, 0, "on one rank")["evidence"], "105,866 values on each of 4 ranks");
    assert!(page.is_file());
}

/// The seed draws a node that is lost and comes back, one that leaves, a torn snapshot, and a job that is started again on fewer nodes.
fn real_elastic_soak() {
    let args = ["inject", "--soak", "2", "--elastic", "--seed", ELASTIC_SEED, "--report", "-"];
    let Some(report) = report(&[RESUME], &args) else { return };
    assert_eq!(report["counts"]["passed"], 2, "{report:#}");
}

const ELASTIC_SEED: &str = "1";

/// Seed, index in its series, ranks and nodes, with what failed.
const SEEDS: &[[&str; 4]] = &[
    // After the host of the store was gone, a node that was replaced waited for it in vain.
    ["1", "6", "2", "2"],
    // A node was replaced although the job had just succeeded.
    ["100", "6", "2", "2"],
    // A node was lost and replaced when its workers had succeeded, and the host of the store had ended.
    ["100", "28", "2", "2"],
    // A guest's agent gave up after its network had been down for a second, and the host waited for it in vain.
    ["203", "12", "4", "2"],
];

fn real_seeds() {
    for [seed, place, ranks, nodes] in SEEDS {
        let one = ["inject", "--soak", "1", "--seed", seed, "--skip", place, "--ranks", ranks, "--nodes", nodes];
        let labs = [RESUME, "lab-07-cifar-resnet", "lab-08-image-folder"];
        let Some(report) = report(&labs, &[&one[..], &["--report", "-"]].concat()) else { return };
        assert_eq!(report["counts"]["failed"], 0, "{report:#}");
    }
}

fn real_disks() {
    let names =
        ["torn-snapshot", "flipped-bit", "full-disk", "read-only-disk", "segfault", "two-nodes-one-worker-killed"];
    let Some(report) = report(&[RESUME], &[&["inject", "--report", "-"], &names[..]].concat()) else { return };
    for case in report["cases"].as_array().unwrap().iter().filter(|case| case["verdict"] != "passed") {
        println!("not verified here: {}: {}", case["name"], case["findings"][0]["evidence"]);
    }
    assert_eq!(report["counts"]["failed"], 0, "{report:#}");
}

fn real_verify() {
    let labs = [SPAWN, "lab-04-point-to-point", "lab-05-collectives", RESUME];
    let Some(report) = report(&labs, &["verify", "02", "04", "05", "06", "--report", "-"]) else { return };
    assert_eq!(report["counts"]["passed"], 4, "{report:#}");
}

fn real_scaling() {
    let Some(report) = report(&["lab-11-scaling"], &["verify", "11", "--report", "-"]) else { return };
    assert_eq!(report["counts"]["passed"], 1, "{report:#}");
    for claim in ["4 passes of a quarter", "Small buckets", "with fp16", "with bf16", "with PowerSGD"] {
        assert_eq!(finding(&report, 0, claim)["verdict"], "passed", "{claim}: {report:#}");
    }
}

fn real_many_nodes() {
    let Some(report) = report(&["lab-09-many-nodes"], &["verify", "09", "--report", "-"]) else { return };
    let findings = report["cases"][0]["findings"].as_array().unwrap();
    for finding in findings.iter().filter(|finding| finding["verdict"] == "not verified here") {
        println!("not verified here: {}: {}", finding["claim"], finding["evidence"]);
    }
    assert_eq!(report["counts"]["failed"], 0, "{report:#}");
    assert!(findings.len() > 9, "{report:#}");
}

/// The script that the chapter shows: it compares the final weights with those of an undisturbed job.
fn real_lost_nodes() {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_lockstep"));
    if command(&["lab-09-many-nodes"], &[]).is_none() {
        return;
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for words in [&["lose"][..], &["lose", "/tmp/snapshots"], &["go-on"], &["cut"]] {
        let mut script = Command::new(root.join("labs/09-many-nodes/lost-node.sh"));
        script.args(words).current_dir(&root).env("PATH", &path).env("OMP_NUM_THREADS", "1");
        let output = lockstep_process::watchdog::output(script);
        if output.status.code() == Some(2) {
            println!("not verified here: nodes lost under Slurm ({})", String::from_utf8_lossy(&output.stderr).trim());
            return;
        }
        output.assert().success();
    }
}

fn leaves_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut command) = command(&[RESUME], &["tour", "--samples", "64", "--epochs", "10000"]) else { return };
    command.env("TMPDIR", folder.path()).current_dir(folder.path());
    let mut tour = Running::start(command);
    tour.await_processes(folder.path(), |count| count > 2);
    tour.ended_by(Signal::KILL);
    tour.await_processes(folder.path(), |count| count == 0);
}

//! The output and exit code of the tour with a lab that tells the truth, lies, fails or is missing.

use std::fs;
use std::os::unix::fs::symlink;

use assert_cmd::Command;

use crate::site::{Site, entries, finding, json, stderr, stdout};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("prints_help_without_arguments", prints_help),
    ("shows_a_kill_and_that_it_changed_nothing", shows_kill),
    ("prints_json_alone_on_stdout", prints_json),
    ("fails_the_claim_that_each_lie_breaks", fails_lies),
    ("finds_the_lab_through_a_link_to_the_command", follows_link),
    ("names_the_command_that_builds_a_missing_lab", names_missing_lab),
    ("reports_a_lab_that_fails", reports_failure),
    ("refuses_a_data_folder_without_digits", refuses_data),
    ("passes_on_a_relative_data_folder_as_an_absolute_one", passes_data_on),
    ("keeps_the_files_in_the_given_folder", keeps_files),
    ("refuses_an_elastic_tour_that_is_too_short_for_a_loss_and_an_arrival", refuses_short),
    ("refuses_a_page_of_an_unknown_form_before_it_begins", refuses_page),
];

/// 4 steps an epoch.
const SMALL: [&str; 5] = ["tour", "--samples", "256", "--epochs", "2"];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SMALL, more].concat()
}

fn prints_help() {
    let site = Site::without_labs();
    let help = stderr(&site.run("", &[]).code(2));
    assert!(["tour", "inject", "verify", "Exit codes: 0"].iter().all(|word| help.contains(word)), "{help}");
    assert!(!help.contains("dies-with-parent"), "{help}");
}

fn shows_kill() {
    let site = Site::new();
    let assert = site.run("", &small(&["--html", "here/page.html"])).success();
    let output = stdout(&assert);
    for text in [
        "Run A: nothing happens\n",
        "Run B: the same, but rank 1 is killed after step 2 of epoch 1\n",
        "rank 1 is dead: SIGKILL after step 2 of epoch 1",
        "rank 0 is stopped, because it cannot continue alone",
        "all ranks run again",
        "75.00 %",
        "passed    The final weights are bit",
        "here/page.html",
    ] {
        assert!(output.contains(text), "no {text:?} in\n{output}");
    }
    assert!(!output.contains('\x1b'), "colour without a terminal");
    let report = output.split_once("What happened").unwrap().1;
    assert!(report.lines().all(|line| line.chars().count() <= 100), "{output}");
    assert!(fs::read_to_string(site.path("here/page.html")).unwrap().starts_with("<!DOCTYPE html>"));
    assert_eq!((stderr(&assert), site.leftovers().len()), (String::new(), 0));
}

fn prints_json() {
    let site = Site::new();
    let assert = site.run("", &small(&["--json"])).success();
    let report = json(&assert);
    assert_eq!((&report["schema"], &report["verdict"]), (&"lockstep-report".into(), &"passed".into()));
    assert_eq!(report["cases"][0]["tables"][0]["rows"][1][0], "1");
    assert!(report["cases"][0]["timeline"]["nodes"].is_array());
    assert!(stderr(&assert).contains("[rank 1] Epoch 1") && site.path("lockstep-tour.html").is_file());
}

fn fails_lies() {
    let site = Site::new();
    for (lie, claim, expected) in [
        ("other bits", "bit for bit", "rank 0: 2 values of weight, the first is value 0: bits"),
        ("no weights", "bit for bit", "cannot read the weights rank-0.safetensors"),
        ("leaves a file", "is left", "temporary file tmp/left"),
    ] {
        let assert = site.run(lie, &small(&["--json"])).code(1);
        let report = json(&assert);
        let broken = finding(&report, 0, claim);
        assert_eq!(broken["verdict"], "FAILED", "{lie}: {broken:#}");
        assert!(broken["evidence"].as_str().unwrap().contains(expected), "{lie}: {broken:#}");
        // The files of a failed run are kept.
        assert!(stderr(&assert).contains("files in "), "{}", stderr(&assert));
    }
}

fn follows_link() {
    let (site, elsewhere) = (Site::new(), Site::without_labs());
    let link = elsewhere.path("link");
    symlink(site.path("lockstep"), &link).unwrap();
    Command::new(link).args(SMALL).current_dir(elsewhere.path("")).env("TMPDIR", site.path("tmp")).assert().success();
}

fn names_missing_lab() {
    let site = Site::without_labs();
    let message = stderr(&site.run("", &["tour"]).code(2));
    assert!(message.contains("cannot find the program lab-06-snapshot-resume in /"), "{message}");
    assert!(message.contains("build it with `cargo build`"), "{message}");
}

fn reports_failure() {
    let site = Site::new();
    let assert = site.run("fails", &small(&["--json"])).code(1);
    let report = json(&assert);
    let evidence = finding(&report, 0, "exit code 0")["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("node 0 ended with 1: "), "{evidence}");
    let weights = finding(&report, 0, "bit for bit")["evidence"].as_str().unwrap();
    assert!(weights.contains("there is no undisturbed run to compare with"), "{weights}");
    assert!(stderr(&assert).contains("error: no digits"), "{}", stderr(&assert));
}

fn refuses_data() {
    let site = Site::new();
    let message = stderr(&site.run("", &["tour", "--data", "tmp"]).code(2));
    assert!(message.contains("cannot use --data: tmp has no train-labels-idx1-ubyte[.gz]"), "{message}");
    site.run("", &["tour", "--data", "tmp", "--samples", "9"]).code(2);
}

/// The fake lab asserts that the folder is absolute; it uses `--samples`, which is the label file's count.
fn passes_data_on() {
    let site = Site::new();
    let labels = |count: u32| [&[0, 0, 8, 1][..], &count.to_be_bytes(), &vec![0; count as usize]].concat();
    fs::create_dir(site.path("digits")).unwrap();
    fs::write(site.path("digits/train-labels-idx1-ubyte"), labels(256)).unwrap();
    fs::write(site.path("digits/t10k-labels-idx1-ubyte"), labels(64)).unwrap();
    let output = stdout(&site.run("", &["tour", "--data", "digits", "--epochs", "2"]).success());
    assert!(output.starts_with("Lockstep tour: 2 ranks learn 256 digits, 64 more held out"), "{output}");
}

fn keeps_files() {
    let site = Site::new();
    let message = stdout(&site.run("", &small(&["--keep", "kept/here"])).success());
    let folder = site.path("kept/here").canonicalize().unwrap();
    assert!(message.contains(&format!("files in {}", folder.display())), "{message}");
    let names = |folder: &str| {
        entries(&site.path(folder)).iter().map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("kept/here"), ["001-undisturbed", "002-kill-one-worker"]);
    assert_eq!(names("kept/here/002-kill-one-worker/weights"), ["rank-0.safetensors", "rank-1.safetensors"]);
    let message = stderr(&site.run("", &small(&["--keep", "kept/here"])).code(2));
    assert!(message.contains("cannot keep files in kept/here: it is not empty, name a new folder"), "{message}");
}

fn refuses_short() {
    let site = Site::new();
    let message = stderr(&site.run("", &["tour", "--elastic", "--samples", "128", "--epochs", "3"]).code(2));
    assert!(
        message.contains("3 steps are too few to lose a node and to take on another: give more --samples"),
        "{message}"
    );
}

fn refuses_page() {
    let site = Site::new();
    let message = stderr(&site.run("", &small(&["--html", "page.pdf"])).code(2));
    assert!(message.contains("cannot write the page to page.pdf: its extension names no format"), "{message}");
}

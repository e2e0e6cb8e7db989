//! What the tour says, and with which exit code, about labs that tell the truth, lie, fail or are missing.

use std::fs;
use std::os::unix::fs::symlink;

use assert_cmd::Command;

use crate::site::{Site, entries, json, stderr, stdout};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("prints_help_without_arguments", prints_help),
    ("passes_a_lab_that_does_what_it_claims", passes_truth),
    ("prints_json_alone_on_stdout", prints_json),
    ("writes_the_report_in_every_form_that_is_asked_for", writes_reports),
    ("fails_the_claim_that_each_lie_breaks", fails_lies),
    ("takes_padding_for_what_it_is", takes_padding),
    ("finds_the_lab_through_a_link_to_the_command", follows_link),
    ("names_the_command_that_builds_a_missing_lab", names_missing_lab),
    ("reports_a_lab_that_fails", reports_failure),
    ("refuses_a_data_folder_without_digits", refuses_data),
    ("passes_on_a_relative_data_folder_as_an_absolute_one", passes_data_on),
    ("keeps_the_files_where_it_is_asked_to", keeps_files),
    ("refuses_to_keep_files_among_others", refuses_full_folder),
];

const CLAIMS: [&str; 4] = [
    "All ranks end with the same weights, to the bit",
    "2 ranks × batch 32 train as 1 rank × batch 64",
    "Every sample is seen once an epoch",
    "The network learns",
];

fn prints_help() {
    let site = Site::without_lab();
    let assert = Command::new(site.path("lockstep")).assert().code(2);
    let help = stderr(&assert);
    assert!(help.contains("tour") && help.contains("Exit codes: 0") && !help.contains("tied-exec"), "{help}");
}

fn passes_truth() {
    let site = Site::new();
    let assert = site.run("", &[]).success();
    let told = stdout(&assert);
    assert!(told.contains("Run A: 2 ranks × batch 32\n[rank 0] trains\n[rank 1] trains\n"), "{told}");
    assert!(told.contains("Run B: 1 rank × batch 64\n[rank 0] trains\n"), "{told}");
    assert!(told.contains("1.0000") && told.contains("75.00 %") && told.contains("\n4 passed; run A took"), "{told}");
    assert!(!told.contains('\x1b'), "colour without a terminal");
    assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
    assert_eq!((stderr(&assert), site.leftovers().len()), (String::new(), 0));
}

fn prints_json() {
    let assert = Site::new().run("", &["--json", "--epochs", "2", "--samples", "200"]).success();
    let report = json(&assert);
    assert_eq!(report["verdict"], "passed");
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.iter().map(|finding| finding["claim"].as_str().unwrap()).collect::<Vec<_>>(), CLAIMS);
    assert_eq!(report["runs"][0]["epochs"][1]["loss"], 0.5);
    assert_eq!((&report["runs"][1]["ranks"], &report["runs"][1]["train_samples"]), (&1.into(), &200.into()));
    let told = stderr(&assert);
    assert!(told.contains("[rank 1] trains") && told.contains("4 passed"), "{told}");
}

fn writes_reports() {
    let site = Site::new();
    let files = ["page.html", "all.json", "ci/junit.xml", "all.txt"].map(|name| site.path(name));
    let args = files.iter().flat_map(|file| ["--report", file.to_str().unwrap()]);
    let told = stdout(&site.run("", &args.collect::<Vec<_>>()).success());
    assert!(told.contains("4 passed"), "{told}");
    let [page, all, junit, text] = files.map(|file| fs::read_to_string(file).unwrap());
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!((&all["verdict"], &all["counts"]["passed"]), (&"passed".into(), &1.into()));
    assert_eq!(all["cases"][0]["timeline"]["nodes"][0]["rows"].as_array().unwrap().len(), 2);
    for claim in CLAIMS {
        assert!(page.contains(claim) && junit.contains(claim), "{claim}");
    }
    assert!(text.contains("\nrank 1 ") && text.contains("\n4 passed in "), "{text}");
    let assert = site.run("", &["--report", "report.pdf"]).code(2);
    assert!(stderr(&assert).contains("its ending does not say a form"), "{}", stderr(&assert));
}

fn fails_lies() {
    let site = Site::new();
    for (lie, broken, told) in [
        ("bit", vec![0], "rank 1 differs from rank 0: 1 value of weight, the first is value 0"),
        ("no weights", vec![0, 3], "cannot read the weights rank-1.safetensors"),
        ("apart", vec![1], "the loss of step 0 of epoch 0 is 1 in A and 1.01 in B"),
        ("twice", vec![1, 2], "step 0 of epoch 0 took other samples in A than in B"),
        ("nan", vec![1, 3], "the loss of step 0 of epoch 0 is NaN in A"),
        ("torn", vec![1, 2, 3], "rank 1's event file is torn at line"),
        ("no events", vec![1, 2, 3], "rank 1 left no event file"),
    ] {
        let assert = site.run(lie, &["--json"]).code(1);
        let report = json(&assert);
        assert_eq!(report["verdict"], "FAILED");
        let findings = report["findings"].as_array().unwrap();
        let failed: Vec<_> = (0..4).filter(|index| findings[*index]["verdict"] == "FAILED").collect();
        assert_eq!(failed, broken, "{lie}: {findings:#?}");
        let evidence = findings[broken[0]]["evidence"].as_str().unwrap();
        assert!(evidence.contains(told), "{lie}: {evidence}");
        assert!(stderr(&assert).contains("FAILED"));
    }
    assert_eq!(site.leftovers().len(), 0);
}

fn takes_padding() {
    let report = json(&Site::new().run("", &["--json", "--samples", "401", "--nprocs", "4"]).success());
    let told = |index: usize| report["findings"][index]["evidence"].as_str().unwrap();
    assert!(told(2).contains("401 samples on 4 ranks; 3 repeats an epoch are the sampler's padding"), "{}", told(2));
    assert!(told(1).ends_with("from step 3 of epoch 0 on A takes padding too"), "{}", told(1));
    assert_eq!(report["verdict"], "passed");
    let report = json(&Site::new().run("", &["--json", "--samples", "15"]).success());
    assert_eq!(report["findings"][1]["verdict"], "not verified here");
    assert_eq!(report["verdict"], "not verified here");
}

fn follows_link() {
    let (site, elsewhere) = (Site::new(), Site::without_lab());
    let link = elsewhere.path("link");
    symlink(site.path("lockstep"), &link).unwrap();
    Command::new(link).arg("tour").env("TMPDIR", site.path("tmp")).assert().success();
}

fn names_missing_lab() {
    let site = Site::without_lab();
    let told = stderr(&site.run("", &[]).code(2));
    assert!(told.contains("cannot find the program lab-02-spawn-ddp in /"), "{told}");
    assert!(told.contains("build it with `cargo build`"), "{told}");
}

fn reports_failure() {
    let site = Site::new();
    let assert = site.run("fails", &["--json"]).code(1);
    let told = stderr(&assert);
    assert!(told.contains("error: rank 1 panicked\n"), "{told}");
    assert!(
        told.contains("error: run A (2 ranks × batch 32) did not finish\n  caused by: the lab ended with exit code 3"),
        "{told}"
    );
    assert_eq!((stdout(&assert), site.leftovers().len()), (String::new(), 0));
}

fn refuses_data() {
    let site = Site::new();
    let told = stderr(&site.run("", &["--data", "tmp"]).code(2));
    assert!(told.contains("cannot use --data: tmp holds no train-labels-idx1-ubyte[.gz]"), "{told}");
    site.run("", &["--data", "tmp", "--samples", "9"]).code(2);
}

/// The fake lab asserts that the folder is absolute; it goes by `--samples`, which is the label file's count.
fn passes_data_on() {
    let site = Site::new();
    let labels = |count: u32| [&[0, 0, 8, 1][..], &count.to_be_bytes(), &vec![0; count as usize]].concat();
    fs::create_dir(site.path("digits")).unwrap();
    fs::write(site.path("digits/train-labels-idx1-ubyte"), labels(100)).unwrap();
    fs::write(site.path("digits/t10k-labels-idx1-ubyte"), labels(25)).unwrap();
    let report = json(&site.run("", &["--json", "--data", "digits"]).success());
    assert_eq!((&report["runs"][0]["train_samples"], &report["runs"][0]["test_samples"]), (&100.into(), &25.into()));
}

fn keeps_files() {
    let site = Site::new();
    let told = stdout(&site.run("", &["--keep", "kept/here"]).success());
    let folder = site.path("kept/here").canonicalize().unwrap();
    assert!(told.contains(&format!("files in {}", folder.display())), "{told}");
    let names = |folder: &str| {
        entries(&site.path(folder)).iter().map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("kept/here/run-A/events"), ["rank-0.jsonl", "rank-1.jsonl"]);
    assert_eq!(names("kept/here/run-B/weights"), ["rank-0.safetensors"]);
    site.run("fails", &["--keep", "failed"]).code(1);
    assert!(site.path("failed").is_dir());
}

fn refuses_full_folder() {
    let site = Site::new();
    site.run("", &["--keep", "kept"]).success();
    let told = stderr(&site.run("", &["--keep", "kept"]).code(2));
    assert!(told.contains("cannot keep files in kept: it is not empty, name a new folder"), "{told}");
}

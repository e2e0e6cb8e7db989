//! The tables and pages of the learner's commands, compared with insta's snapshots.

use std::fs;

use crate::learn::{Checkout, answers};
use crate::shown::{filtered, plain};

/// A checkout in which `shard` was passed and `average` was begun.
fn begun() -> Checkout {
    let checkout = Checkout::new();
    let passed = "[02.shard]\nat = \"2026-01-01 12:00:00\"\nseed = 7\n";
    fs::write(checkout.path("progress.toml"), passed).unwrap();
    fs::write(checkout.path("labs/02-spawn-ddp/exercise/src/average.rs"), "mine").unwrap();
    checkout
}

#[test]
fn shows_the_progress_of_a_lab() {
    let checkout = begun();
    let _guard = filtered(Some(&checkout.path("")));
    insta::assert_snapshot!("progress", checkout.run(&["progress", "02"]).code(0).out);
}

#[test]
fn shows_the_progress_on_a_route() {
    let checkout = begun();
    let _guard = filtered(Some(&checkout.path("")));
    insta::assert_snapshot!("progress_route", checkout.run(&["progress", "--route", "morning"]).code(0).out);
    checkout.run(&["progress", "--route", "week"]).code(2).says(&["no route \"week\"", "morning, day, whole"]);
}

#[test]
fn shows_all_hints_of_a_task() {
    let checkout = Checkout::new();
    let _guard = plain();
    insta::assert_snapshot!("hints", checkout.run(&["hint", "02", "average", "--level", "3"]).code(0).out);
}

#[test]
fn shows_what_a_new_lab_lacks() {
    let checkout = Checkout::new();
    fs::create_dir_all(checkout.path("book/src")).unwrap();
    fs::write(checkout.path("book/src/SUMMARY.md"), "# Summary\n\n- [Eight](08-x.md)\n").unwrap();
    checkout.run(&["course", "new", "09-mixed-precision"]).code(0);
    checkout.run(&["course", "reference"]).code(0);
    let _guard = filtered(Some(&checkout.path("")));
    insta::assert_snapshot!("course_check", checkout.run(&["course", "check", "9"]).code(1).out);
}

#[test]
fn shows_a_passed_task_and_one_whose_program_ends_without_an_answer() {
    let checkout = Checkout::new();
    let _guard = filtered(Some(&checkout.path("")));
    let begins = r#"printf 0 >"$LOCKSTEP_ANSWERS/rank-$RANK.begun""#;
    let program = checkout.script("broken", &format!("{begins}\necho about to end\nexit 3\n"));
    checkout.cargo(Ok(&program));
    fs::write(checkout.path("labs/02-spawn-ddp/exercise/src/shard.rs"), "mine").unwrap();
    let grade = ["grade", "02", "--task", "shard", "--seed", "7"];
    insta::assert_snapshot!("grade_crash", checkout.run(&grade).code(1).out);
    let Some(program) = answers() else { return };
    checkout.cargo(Ok(&program));
    let grade = ["grade", "02", "shard", "--seed", "7"];
    insta::assert_snapshot!("grade_passed", checkout.run(&grade).code(0).out);
}

#[test]
fn shows_the_table_of_a_class_and_reports_each_submission() {
    let checkout = Checkout::new();
    let Some(program) = answers() else { return };
    checkout.cargo(Ok(&program));
    crate::learn::submit_answers(&checkout.path("class/ann/ex-02/src"));
    crate::learn::submit_answers(&checkout.path("class/bob/labs/02-spawn-ddp/exercise/src"));
    fs::remove_file(checkout.path("class/bob/labs/02-spawn-ddp/exercise/src/shard.rs")).unwrap();
    fs::create_dir_all(checkout.path("class/eve")).unwrap();
    let reports = ["csv", "json", "xml", "html"].map(|ending| format!("report.{ending}"));
    let mut args = vec!["grade", "02", "--class", "class", "--seed", "7"];
    reports.iter().for_each(|report| args.extend(["--report", report]));
    let out = checkout.run(&args).code(1).out;
    // The last line ends with the time. A kernel without Landlock causes a warning.
    let lines = out.lines().filter(|line| !line.starts_with("warning: "));
    let mut table: Vec<&str> = lines.collect();
    let counts = table.pop().and_then(|line| line.split(" in ").next());
    table.extend(counts);
    let _guard = filtered(None);
    insta::assert_snapshot!("grade_class", table.join("\n"));
    let read = |report: &str| fs::read_to_string(checkout.path(report)).unwrap();
    let rows = read("report.csv");
    assert!(rows.contains("ann/02,passed,shard") && rows.contains("bob/02,FAILED,shard"), "{rows}");
    assert!(rows.contains("cannot read src/shard.rs") && rows.contains("bob/02,passed,average"), "{rows}");
    assert!(reports.iter().all(|report| read(report).contains("eve")));
}

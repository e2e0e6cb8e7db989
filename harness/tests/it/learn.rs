//! The learner's commands from outside, in a checkout that holds what they need: the course's files, and a cargo that "builds" a given program.
//! The solutions' tests and `lockstep course check --build` compile and grade real exercises.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use tempfile::TempDir;

use crate::running::{Ended, Running, ended};
use crate::shown::{filtered, plain};

/// A checkout in a private folder.
pub(crate) struct Checkout(pub(crate) TempDir);

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

impl Checkout {
    pub(crate) fn new() -> Self {
        let checkout = Checkout(tempfile::tempdir().unwrap());
        for file in ["Cargo.toml", "Cargo.lock"] {
            fs::copy(repository().join(file), checkout.path(file)).unwrap();
        }
        let lab = "labs/02-spawn-ddp";
        fs::create_dir_all(checkout.path(lab)).unwrap();
        for folder in ["tasks", "given"] {
            copy(&repository().join(lab).join(folder), &checkout.path(lab).join(folder));
        }
        fs::copy(repository().join(lab).join("lab.toml"), checkout.path(lab).join("lab.toml")).unwrap();
        checkout.run(&["course", "skeleton", "02"]).code(0);
        checkout
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn shard(&self) -> PathBuf {
        self.path("labs/02-spawn-ddp/exercise/src/shard.rs")
    }

    /// A cargo that builds this program, or fails with this compiler error.
    pub(crate) fn cargo(&self, built: Result<&Path, &str>) {
        let message = match built {
            Ok(program) => {
                fs::write(program.with_extension("d"), format!("{}:\n", program.display())).unwrap();
                serde_json::json!({"target": {"name": "ex-02"}, "executable": program})
            }
            Err(error) => {
                let place = serde_json::json!([{"file_name": "src/other.rs", "is_primary": true}]);
                let message = serde_json::json!({"level": "error", "rendered": error, "spans": place});
                serde_json::json!({"target": {"name": "ex-02"}, "message": message})
            }
        };
        let code = i32::from(built.is_err());
        self.script("cargo", &format!("cat <<'END'\n{message}\nEND\nexit {code}\n"));
    }

    /// A shell script.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo_bin("lockstep"));
        command.args(args).current_dir(self.0.path()).env("CARGO", self.path("cargo"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        lockstep_process::watchdog::output(self.command(args)).into()
    }
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Copies the course's own answers to lab 02 into the sources of a learner.
pub(crate) fn submit_answers(sources: &Path) {
    fs::create_dir_all(sources).unwrap();
    for task in ["average", "distributed", "epochs", "line", "prepare", "shard"] {
        let answer = repository().join("labs/02-spawn-ddp/tasks").join(task).join("answer.rs");
        fs::copy(answer, sources.join(task).with_extension("rs")).unwrap();
    }
}

/// The program with the course's own answers, next to the command; `None` if it is not built.
pub(crate) fn answers() -> Option<PathBuf> {
    let program = assert_cmd::cargo::cargo_bin("lockstep").with_file_name("sol-02");
    if !program.is_file() {
        println!("not verified here: sol-02 is not built next to the command (cargo build)");
        return None;
    }
    Some(program)
}

#[test]
fn answers_are_judged_at_many_seeds() {
    if answers().is_none() {
        return;
    }
    // Results that the seeds' gradings share, and a crash that they cannot share.
    let tried = ["shard", "shard/blocks", "shard/pads_with_own"];
    let judged = Checkout::new().run(&[&["course", "try", "02"], &tried[..], &["--seeds", "4"]].concat()).code(0).out;
    for (line, answer) in judged.lines().zip(tried) {
        let did = if answer == "shard" { "passed" } else { "refused" };
        assert!(line.starts_with(&format!("02 {answer}: {did} at 4 seeds")), "{judged}");
    }
    assert_eq!(judged.lines().count(), 3, "{judged}");
}

#[test]
fn hints_reveal_more_with_each_level() {
    let checkout = Checkout::new();
    let first = checkout.run(&["hint", "2", "average"]).code(0).out;
    assert!(first.contains("1. ") && !first.contains("2. ") && first.contains("--level 2"), "{first}");
    let third = checkout.run(&["hint", "ex-02", "average", "--level", "3"]).code(0).out;
    assert!(third.contains("2. ") && third.contains("3. ") && third.contains("book/src/02-"), "{third}");
    let unknown = checkout.run(&["hint", "02", "nothing"]).code(2).err;
    assert!(unknown.contains("no task nothing") && unknown.contains("shard, average"), "{unknown}");
    assert!(checkout.run(&["hint", "99", "shard"]).code(2).err.contains("99"));
}

#[test]
fn keeps_the_answer_until_the_task_is_done_or_it_is_revealed() {
    let checkout = Checkout::new();
    let refused = checkout.run(&["solution", "02", "shard"]).code(2).err;
    assert!(refused.contains("lockstep hint 02 shard") && refused.contains("--reveal"), "{refused}");
    let shown = checkout.run(&["solution", "02", "shard", "--reveal"]).code(0).out;
    assert!(shown.contains("pub fn shard") && !shown.contains("answer>") && !shown.contains("todo!"), "{shown}");
    fs::write(checkout.path("progress.toml"), "[02.shard]\nat = \"today\"\nseed = 1\n").unwrap();
    assert_eq!(checkout.run(&["solution", "02", "shard"]).code(0).out, shown);
}

#[test]
fn reset_keeps_a_copy_of_the_previous_files() {
    let checkout = Checkout::new();
    let given = fs::read_to_string(checkout.shard()).unwrap();
    fs::write(checkout.shard(), "mine").unwrap();
    fs::write(checkout.path("progress.toml"), "[02.shard]\nat = \"today\"\nseed = 1\n").unwrap();
    let output = checkout.run(&["reset", "02"]).code(0).out;
    assert_eq!(fs::read_to_string(checkout.shard()).unwrap(), given);
    let kept = output.lines().find_map(|line| line.split_once("files are in ")).unwrap().1;
    assert_eq!(fs::read_to_string(Path::new(kept).join("src/shard.rs")).unwrap(), "mine");
    assert!(output.contains("no longer recorded as done: shard"), "{output}");
    let progress = checkout.run(&["progress"]).code(0).out;
    assert!(progress.contains("0 of ") && progress.contains("next: lockstep grade 01 "), "{progress}");
    // Twice within a second: neither copy is lost.
    checkout.run(&["reset", "02"]).code(0);
    assert_eq!(fs::read_dir(checkout.path("backups")).unwrap().count(), 2);
}

#[test]
fn reset_restores_one_task_alone() {
    let checkout = Checkout::new();
    let average = checkout.path("labs/02-spawn-ddp/exercise/src/average.rs");
    fs::write(checkout.shard(), "mine").unwrap();
    fs::write(&average, "mine").unwrap();
    let passed = "at = \"today\"\nseed = 1\n";
    fs::write(checkout.path("progress.toml"), format!("[02.shard]\n{passed}[02.average]\n{passed}")).unwrap();
    let output = checkout.run(&["reset", "02", "average"]).code(0).out;
    assert!(output.contains("restored labs/") && output.contains("exercise/src/average.rs"), "{output}");
    assert!(fs::read_to_string(&average).unwrap().contains("todo!"));
    assert_eq!(fs::read_to_string(checkout.shard()).unwrap(), "mine");
    let progress = checkout.run(&["progress", "02"]).code(0).out;
    assert!(progress.contains("1 of ") && progress.contains("next: lockstep grade 02 average"), "{progress}");
    assert!(checkout.run(&["reset", "02", "nothing"]).code(2).err.contains("no task nothing"));
}

#[test]
fn grades_an_answer_in_python_from_the_stub_to_the_solution() {
    if let Err(why) = lockstep_grading::Python::for_answers() {
        println!("not verified here: an answer in Python ({why})");
        return;
    }
    let checkout = Checkout::new();
    copy(&repository().join("python/lockstep_exercise"), &checkout.path("python/lockstep_exercise"));
    let file = checkout.path("python/tasks/02_spawn_ddp/shard.py");
    let grade = || checkout.run(&["grade", "02", "shard", "--python", "--seed", "7"]);
    let output = grade().code(1).out;
    for words in
        ["shard: every sample once: not started", "raises NotImplementedError", "python/tasks/02_spawn_ddp/shard.py"]
    {
        assert!(output.contains(words), "{words}: {output}");
    }
    fs::write(&file, "def shard(samples, world_size, rank:\n    return []\n").unwrap();
    let output = grade().code(1).out;
    assert!(output.contains("does not compile") && output.contains("shard.py:1: SyntaxError"), "{output}");
    let answer = checkout.run(&["solution", "02", "shard", "--python", "--reveal"]).code(0).out;
    assert!(answer.contains("def shard(") && !answer.contains("<answer>"), "{answer}");
    fs::write(&file, answer).unwrap();
    assert!(grade().code(0).out.contains("✓ task 1 of 6, shard"));
    let output = checkout.run(&["reset", "02", "shard", "--python"]).code(0).out;
    assert!(output.contains("restored python/tasks/02_spawn_ddp/shard.py"), "{output}");
    assert!(fs::read_to_string(&file).unwrap().contains("NotImplementedError"));
}

#[test]
fn commands_in_python_have_its_hints_and_refuse_other_labs() {
    let checkout = Checkout::new();
    let hint = checkout.run(&["hint", "02", "average", "--python", "--level", "3"]).code(0).out;
    assert!(hint.contains("gradient /= dist.get_world_size()"), "{hint}");
    let refused = checkout.run(&["grade", "07", "--python"]).code(2).err;
    assert!(refused.contains("lab 07 has no tasks in Python"), "{refused}");
}

#[test]
fn progress_shows_what_is_begun_and_refuses_a_damaged_file() {
    let checkout = Checkout::new();
    fs::write(checkout.shard(), "mine").unwrap();
    let output = checkout.run(&["progress", "02"]).code(0).out;
    let line = |task: &str| output.lines().find(|line| line.contains(task)).unwrap().to_owned();
    assert!(line("shard").contains("begun") && line("average").contains("not started"), "{output}");
    fs::write(checkout.path("progress.toml"), "shard = 1").unwrap();
    assert!(checkout.run(&["progress"]).code(1).err.contains("progress.toml"));
}

#[test]
fn grades_what_cargo_built_and_notes_what_was_passed() {
    let checkout = Checkout::new();
    let Some(program) = answers() else { return };
    checkout.cargo(Ok(&program));
    let output = checkout.run(&["grade", "02", "--task", "shard", "--seed", "7"]).code(0).out;
    assert!(output.contains("seed 7") && output.contains("✓ task 1 of"), "{output}");
    let progress = checkout.run(&["progress", "02"]).code(0).out;
    assert!(progress.contains("1 of ") && progress.contains('✓'), "{progress}");
    assert!(checkout.run(&["grade", "02", "--task", "nothing"]).code(2).err.contains("no task nothing"));
    assert!(checkout.run(&["grade", "--task", "shard"]).code(2).err.contains("LAB"));
}

#[test]
fn grading_does_not_wait_for_who_builds_in_the_checkout() {
    let checkout = Checkout::new();
    let Some(program) = answers() else { return };
    checkout.cargo(Ok(&program));
    let cargo = fs::read_to_string(checkout.path("cargo")).unwrap();
    let locks =
        "mkdir -p \"$CARGO_TARGET_DIR/debug\"\nflock -n \"$CARGO_TARGET_DIR/debug/.cargo-lock\" true || exit 1\n";
    checkout.script("cargo", &format!("{locks}{cargo}"));
    fs::create_dir_all(checkout.path("target/debug")).unwrap();
    let held = fs::File::create(checkout.path("target/debug/.cargo-lock")).unwrap();
    held.lock().unwrap();
    let grading = || {
        let mut command = checkout.command(&["grade", "02", "shard", "--seed", "7"]);
        command.env_remove("CARGO_TARGET_DIR");
        Ended::from(lockstep_process::watchdog::output(command))
    };
    assert!(grading().code(0).out.contains("✓ task 1 of"));
    fs::create_dir_all(checkout.path("target/grading/debug")).unwrap();
    let grader = fs::File::create(checkout.path("target/grading/debug/.cargo-lock")).unwrap();
    grader.lock().unwrap();
    assert!(grading().code(1).err.contains("cargo cannot build ex-02"), "a lock that counts");
}

#[test]
fn words_after_a_lab_are_its_tasks_unless_a_class_is_graded() {
    let checkout = Checkout::new();
    checkout.run(&["grade", "02", "shrad"]).code(2).says(&["there is no task shrad in this lab"]);
    // A class is graded by labs, so the word must not be left out in silence.
    fs::create_dir(checkout.path("class")).unwrap();
    checkout.run(&["grade", "02", "shard", "--class", "class"]).code(2).says(&["there is no lab \"shard\""]);
}

#[test]
fn prints_the_compilers_first_error() {
    let checkout = Checkout::new();
    checkout.cargo(Err("error[E0308]: mismatched types"));
    let output = checkout.run(&["grade", "02"]).code(1).out;
    assert!(output.contains("E0308") && output.contains("does not compile"), "{output}");
}

#[test]
fn tells_the_class_that_an_exercise_does_not_compile() {
    let checkout = Checkout::new();
    checkout.cargo(Err("error[E0308]: mismatched types"));
    let class = checkout.path("class");
    fs::create_dir_all(&class).unwrap();
    let mut command = checkout.command(&["grade", "02", "average"]);
    command.env("LOCKSTEP_CLASS", &class).env("LOCKSTEP_SEAT", "ann");
    Ended::from(lockstep_process::watchdog::output(command)).code(1);
    let seat = fs::read_to_string(class.join("ann.json")).unwrap();
    assert!(seat.contains("average") && seat.contains("not-compiled") && seat.contains("E0308"), "{seat}");
}

#[test]
fn refuses_a_class_without_learners_and_reports_of_unknown_formats() {
    let checkout = Checkout::new();
    fs::create_dir(checkout.path("class")).unwrap();
    assert!(checkout.run(&["grade", "--class", "class"]).code(2).err.contains("has no learner's folder"));
    assert!(checkout.run(&["grade", "--class", "absent"]).code(2).err.contains("absent"));
    assert!(checkout.run(&["grade", "--class", "class", "--report", "x.pdf"]).code(2).err.contains(".csv"));
}

#[test]
fn creates_a_lab_that_lacks_only_tasks() {
    let checkout = Checkout::new();
    fs::create_dir_all(checkout.path("book/src")).unwrap();
    let contents = "# Summary\n\n- [Eight](08-x.md)\n\n# Reference\n\n- [Glossary](glossary.md)\n";
    fs::write(checkout.path("book/src/SUMMARY.md"), contents).unwrap();
    checkout.run(&["course", "new", "09-mixed-precision"]).code(0);
    let summary = fs::read_to_string(checkout.path("book/src/SUMMARY.md")).unwrap();
    assert!(summary.contains("- [Eight](08-x.md)\n- [Mixed precision](09-mixed-precision.md)\n\n# Ref"), "{summary}");
    let given = fs::read_to_string(checkout.path("labs/09-mixed-precision/exercise/src/total.rs")).unwrap();
    assert!(given.contains("todo!(\"add up") && !given.contains("all_reduce"), "{given}");
    // One task of three, and three wrong answers of four: a maintainer must still write the rest.
    let lacks = checkout.run(&["course", "check", "9"]).code(1).out;
    let faults: Vec<&str> = lacks.lines().filter(|line| line.starts_with("labs/")).collect();
    assert_eq!(faults.len(), 2, "{lacks}");
    assert!(faults[0].contains("1 task, of 3 at least") && faults[1].contains("3 wrong answers, of 4"), "{lacks}");
    let edit = |file: &str, from: &str, to: &str| {
        let path = checkout.path("labs/09-mixed-precision").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).unwrap();
    };
    edit("tasks/total/wrong.rs", "/// Right: adds", "/// Adds");
    edit("tasks/total/grade.rs", "fn grade(", "fn grades(");
    edit("tasks/total/answer.rs", "numbers of all ranks. `", "numbers of all the ranks. `");
    let lacks = checkout.run(&["course", "check", "09"]).code(1).out;
    for fault in
        ["no unusual right answer", "tasks/total/grade.rs has no function grade", "src/total.rs is out of date"]
    {
        assert!(lacks.contains(fault), "{fault}: {lacks}");
    }
    checkout.run(&["course", "skeleton", "09"]).code(0);
    assert!(!checkout.run(&["course", "check", "09"]).code(1).out.contains("is out of date"));
}

#[test]
fn refuses_a_new_lab_of_a_taken_number_or_another_form() {
    let checkout = Checkout::new();
    let taken = checkout.run(&["course", "new", "02-again"]).code(2).err;
    assert!(taken.contains("there is a lab 02 already: 02-spawn-ddp"), "{taken}");
    assert!(!checkout.path("labs/02-again").exists());
    let malformed = checkout.run(&["course", "new", "../09-x"]).code(2).err;
    assert!(malformed.contains("cannot be the name of a lab"), "{malformed}");
}

#[test]
fn watch_grades_again_when_a_file_is_saved() {
    for poll in [&[][..], &["--poll", "1"]] {
        let checkout = Checkout::new();
        checkout.cargo(Err("error: the first"));
        let mut command = Command::new(cargo_bin("lockstep"));
        command.args(["watch", "02"]).args(poll).current_dir(checkout.0.path()).env("CARGO", checkout.path("cargo"));
        let running = Running::start(command);
        running.await_out("the first", 1);
        running.await_out("watching", 1);
        let watching = running.out.now().matches("watching").count();
        checkout.cargo(Err("error: the second"));
        fs::write(checkout.shard(), "mine").unwrap();
        running.await_out("the second", 1);
        running.await_out("watching", watching + 1);
    }
}

#[test]
fn watch_follows_the_learner_from_task_to_task() {
    let checkout = Checkout::new();
    let Some(program) = answers() else { return };
    checkout.cargo(Ok(&program));
    let running = Running::start(checkout.command(&["watch"]));
    running.await_out("next, lab 02, task 1 of 6, shard", 1);
    running.await_out("watching all exercises", 1);
    fs::write(checkout.shard(), "mine").unwrap();
    running.await_out("✓ task 1 of 6, shard", 1);
    running.await_out("next, lab 02, task 2 of 6, average", 1);
    // A later task, out of order; then the first open one is next.
    checkout.cargo(Err("error: the first"));
    running.await_out("watching all exercises", 2);
    fs::write(checkout.path("labs/02-spawn-ddp/exercise/src/line.rs"), "mine").unwrap();
    running.await_out("error: the first", 1);
    checkout.cargo(Ok(&program));
    fs::write(checkout.path("labs/02-spawn-ddp/exercise/src/line.rs"), "yours").unwrap();
    running.await_out("line: ", 1);
    running.await_out("next, lab 02, ", 3);
}

#[test]
fn watch_follows_a_route() {
    let checkout = Checkout::new();
    let running = Running::start(checkout.command(&["watch", "--route", "morning"]));
    running.await_out("next, lab 01, task 1 of 4, batches", 1);
    drop(running);
    let unknown = checkout.run(&["watch", "--route", "evening"]).code(2).err;
    assert!(unknown.contains("there is no route \"evening\""), "{unknown}");
}

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
    checkout
        .run(&["progress", "--route", "week"])
        .code(2)
        .says(&["no route \"week\"", "morning, half-day, day, whole"]);
    // A folder without a checkout has tasks in Python, and the chapters by a command.
    let folder = tempfile::tempdir().unwrap();
    let run =
        |args: &[&str]| ended(Command::new(cargo_bin("lockstep")).args(args).current_dir(folder.path())).code(0).out;
    assert!(run(&["init"]).contains("next: lockstep grade 05 mean"));
    let orders = run(&["progress", "--route", "morning"]).split_once("\nnext, ").unwrap().1.to_owned();
    assert!(orders.contains("read  `lockstep book introduction`") && orders.ends_with("grade 02 shard\n"), "{orders}");
    assert!(!orders.contains("grade 01") && !orders.contains("run   "), "{orders}");
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
    submit_answers(&checkout.path("class/ann/ex-02/src"));
    submit_answers(&checkout.path("class/bob/labs/02-spawn-ddp/exercise/src"));
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
    assert!(rows.contains("ann/02,passed,shard") && rows.contains("bob/02,open,shard"), "{rows}");
    assert!(rows.contains("bob/02,passed,average"), "{rows}");
    assert!(reports.iter().all(|report| read(report).contains("eve")));
    assert!(read("report.html").contains("Learners and tasks"));
    let json: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    let [matrix, by_task] = &json["tables"].as_array().unwrap()[..] else { panic!("{json}") };
    assert_eq!(matrix["rows"][2], serde_json::json!(["eve", "0 of 6", "·", "·", "·", "·", "·", "·"]));
    let shard = &by_task["rows"][0];
    assert_eq!(
        (&shard[0], &shard[1], &shard[2], &shard[3]),
        (&"02 shard".into(), &"1".into(), &"0".into(), &"2".into())
    );
}

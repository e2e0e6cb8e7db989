//! `lockstep class` from outside: the page over HTTP while seats write, the table, the report, and what it refuses.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use assert_cmd::cargo::cargo_bin;
use lockstep_process::watchdog;
use rustix::process::Signal;

use crate::learn::{Checkout, answers};
use crate::running::{Running, ended};

fn class(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("lockstep"));
    command.arg("class").arg(folder).args(words);
    command
}

/// A seat that has passed lab 02's first task, and has an open diagnosis at the second.
fn write_seat(folder: &Path, name: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let passed = serde_json::json!({"first": now, "last": now, "count": 2, "passed": now, "finding": null});
    let finding = serde_json::json!({"verdict": "wrong-value", "diagnosis": "a sum that was not divided"});
    let open = serde_json::json!({"first": now, "last": now, "count": 3, "passed": null, "finding": finding});
    let seat = serde_json::json!({"name": name, "since": now, "tasks": {"02": {"shard": passed, "average": open}}});
    fs::write(folder.join(format!("{name}.json")), seat.to_string()).unwrap();
}

/// The address of a page that has been announced.
pub(crate) fn address(serving: &Running) -> String {
    serving.await_out("Ctrl-C ends", 1);
    let printed = serving.out.now();
    printed.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned()
}

/// The head and the body of the answer.
pub(crate) fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request}\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_page_follows_the_seats_and_cannot_be_written() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("class");
    fs::create_dir(&folder).unwrap();
    let report = parent.path().join("report.csv");
    let serving = Running::start(class(&folder, &["--serve", "127.0.0.1:0", "--report", report.to_str().unwrap()]));
    let address = address(&serving);
    let page = || ask(&address, "GET / HTTP/1.1");
    let (head, body) = page();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("default-src 'none'"), "{head}");
    assert!(body.contains("No seat has reported yet"), "{body}");
    write_seat(&folder, "ann");
    watchdog::until(|| page().1.contains("ann")).unwrap();
    assert!(page().1.contains("a sum that was not divided"), "{}", page().1);
    assert!(!ask(&address, "GET /?names=hidden HTTP/1.1").1.contains(">ann<"));
    assert!(ask(&address, "GET /?route=day&wall=on HTTP/1.1").1.contains("<main class=\"wall\""));
    assert!(!ask(&address, "GET /report.csv?names=hidden HTTP/1.1").1.contains("ann"));
    let json = ask(&address, "GET /report.json?route=whole HTTP/1.1").1;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["cases"][0]["name"], "ann/02");
    let script = ask(&address, "GET /follow.js HTTP/1.1").0;
    let tag = script.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let again = ask(&address, &format!("GET /follow.js HTTP/1.1\r\nIf-None-Match: {tag}")).0;
    assert!(again.starts_with("HTTP/1.1 304"), "{again}");
    for (request, status) in [
        ("POST / HTTP/1.1", "405"),
        ("GET /../../etc/passwd HTTP/1.1", "404"),
        ("GET /?route=none HTTP/1.1", "404"),
        ("GET /report.pdf HTTP/1.1", "404"),
    ] {
        let (head, _) = ask(&address, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
    }
    // More silent connections than the server keeps do not shut others out.
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert!(page().0.starts_with("HTTP/1.1 200"));
    drop(silent);
    fs::write(folder.join("torn.json"), "{").unwrap();
    watchdog::until(|| page().1.contains("torn.json")).unwrap();
    fs::rename(&folder, parent.path().join("elsewhere")).unwrap();
    watchdog::until(|| page().1.contains("cannot be read")).unwrap();
    assert!(page().1.contains("ann"), "what was read last stays");
    fs::rename(parent.path().join("elsewhere"), &folder).unwrap();
    serving.signal(Signal::INT);
    serving.ended().code(0);
    let written = fs::read_to_string(report).unwrap();
    assert!(written.contains("ann/02") && written.contains("a sum that was not divided"), "{written}");
    assert!(TcpStream::connect(&address).is_err(), "the port is closed");
}

#[test]
fn shows_a_table_and_refuses_what_it_cannot_serve() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ended(&mut class(folder.path(), &[])).code(0).out.contains("no seat has reported yet"));
    write_seat(folder.path(), "ann");
    let table = ended(&mut class(folder.path(), &["--route", "day"])).code(0).out;
    assert!(table.contains("ann") && table.contains("02 average") && table.contains("a sum"), "{table}");
    assert!(!ended(&mut class(folder.path(), &["--hide-names"])).code(0).out.contains("ann "));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    ended(&mut class(folder.path(), &["--serve", &address])).code(2).says(&["cannot serve at", "takes a free port"]);
    ended(&mut class(&folder.path().join("none"), &[])).code(2).says(&["cannot read the class in"]);
    ended(&mut class(folder.path(), &["--route", "none"])).code(2).says(&["there is no route"]);
}

#[test]
fn a_demo_needs_no_folder_and_says_that_its_seats_are_made_up() {
    let demo = |words: &[&str]| {
        let mut command = Command::new(cargo_bin("lockstep"));
        command.arg("class").args(words);
        ended(&mut command)
    };
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    let words = ["--demo", "20", "--route", "day", "--title", "Day 1", "--report", report.to_str().unwrap()];
    let out = demo(&words).code(0).out;
    assert!(out.contains("made up") && out.matches("@demo").count() == 20, "{out}");
    let page = fs::read_to_string(report).unwrap();
    assert!(page.contains("Day 1 (a demo): 20 seats") && page.contains("Learners and tasks"), "{page}");
    demo(&["--demo", "0"]).code(2);
    demo(&["--demo", "20", "folder"]).code(2).says(&["cannot be used with"]);
    demo(&[]).code(2).says(&["<DIR>"]);
}

#[test]
fn a_seat_joins_before_it_grades() {
    let (checkout, folder) = (Checkout::new(), tempfile::tempdir().unwrap());
    let mut command = Command::new(cargo_bin("lockstep"));
    command.arg("progress").current_dir(checkout.path(""));
    ended(command.env("LOCKSTEP_CLASS", folder.path()).env("LOCKSTEP_SEAT", "ann")).code(0);
    let table = ended(&mut class(folder.path(), &["--route", "day"])).code(0).out;
    assert!(table.contains("ann") && table.contains("0 of"), "{table}");
}

#[test]
fn grading_tells_the_class_and_goes_on_where_it_cannot() {
    let checkout = Checkout::new();
    let Some(program) = answers() else { return };
    checkout.cargo(Ok(&program));
    let folder = checkout.path("class");
    fs::create_dir(&folder).unwrap();
    // A device that is always full stands for a full disk; a folder that is missing, for one that has vanished.
    for (class, note) in [("class", false), ("none", true), ("/dev/full", true)] {
        let mut command = Command::new(cargo_bin("lockstep"));
        command.args(["grade", "02", "shard", "--seed", "7"]).current_dir(checkout.path(""));
        command.env("CARGO", checkout.path("cargo")).env("LOCKSTEP_CLASS", class).env("LOCKSTEP_SEAT", "ann/../bob");
        let graded = ended(&mut command).code(0);
        assert!(graded.out.contains("✓ task 1 of"), "{graded}");
        assert_eq!(graded.err.contains("all else goes on"), note, "{graded}");
    }
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["ann_.._bob.json"]);
    let table = ended(&mut class(&folder, &[])).code(0).out;
    assert!(table.contains("ann/../bob") && table.contains("02 average"), "{table}");
}

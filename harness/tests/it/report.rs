//! `lockstep report` from outside: the page and the numbers of a run, a page that follows one, and what it refuses.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use assert_cmd::cargo::cargo_bin;
use lockstep_contract::events::{AgentEvent, AgentSink, Event, EventSink};
use lockstep_process::watchdog;
use rustix::process::Signal;

use crate::class::{address, ask};
use crate::running::{Running, ended};

fn report(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("lockstep"));
    command.arg("report").arg(folder).args(words).current_dir(folder.parent().unwrap());
    command
}

fn step(step: u64, loss: f64) -> Event {
    Event::Step { epoch: 0, step, loss, samples: 8, lr: Some(0.1) }
}

/// Two ranks: rank 1 is killed after six steps, and both resume at the fourth and finish.
fn killed_and_resumed(folder: &Path) {
    let agent = AgentSink::open(folder, "a").unwrap();
    let started = |attempt, rank: usize| AgentEvent::Started { attempt, rank, local_rank: rank, pid: 10 + rank as u32 };
    let ended = |attempt, rank: usize, code| {
        let (pid, stopped) = (10 + rank as u32, code == -15);
        AgentEvent::Ended { attempt, rank, local_rank: rank, pid, code, stopped }
    };
    for (attempt, steps, codes) in [(0, 0..6, [-15, -9]), (1, 4..10, [0, 0])] {
        agent.emit(&AgentEvent::Formed { round: attempt, attempt, group_rank: 0, nodes: 1, world_size: 2 });
        for rank in [0, 1] {
            agent.emit(&started(attempt, rank));
            let sink = EventSink::open(folder, rank, attempt as u32).unwrap();
            sink.emit(&Event::Start { world_size: 2, device: "cpu".into(), pid: 10 + rank as u32 });
            if attempt > 0 {
                sink.emit(&Event::Resume { epoch: 0, step: 4, path: "snapshots/4".into() });
            }
            steps.clone().for_each(|at| sink.emit(&step(at, 2.0 - 0.1 * at as f64)));
        }
        [1, 0].into_iter().for_each(|rank| agent.emit(&ended(attempt, rank, codes[rank])));
    }
    agent.emit(&AgentEvent::Finished { code: 0 });
}

#[test]
fn writes_the_page_and_the_numbers_of_a_run_with_a_kill() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("events");
    killed_and_resumed(&folder);
    let told = ended(&mut report(&folder, &[])).code(0).out;
    for text in
        ["rank 1 ended by SIGKILL", "2 attempts, 10 steps, 2 of which were trained a second time", "report.html"]
    {
        assert!(told.contains(text), "{text} in {told}");
    }
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    for text in ["finished", "rank 1 ended by SIGKILL", "Learning rate", "resumed at epoch 0 step 4 from snapshots/4"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("<script") && !page.contains("http:"));
    // A page in the folder is no event file.
    ended(&mut report(&folder, &["-o", "new/curves.csv", "--output", "page.html"])).code(0);
    let csv = fs::read_to_string(parent.path().join("new/curves.csv")).unwrap();
    let repeated = |line: &&str| line.starts_with("step,1,") && line.contains(",true,");
    assert_eq!((csv.lines().count(), csv.lines().filter(repeated).count()), (1 + 2 * (6 + 6) + 2, 2 * 2));
    assert!(parent.path().join("page.html").exists());
    let json = ended(&mut report(&folder, &["-o", "-"])).code(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["schema"].as_str(), json["rows"].as_array().unwrap().len()),
        (Some("lockstep-curves"), 2 * 12 + 2)
    );
}

#[test]
fn a_page_follows_the_run_and_ends_on_ctrl_c() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("events");
    fs::create_dir(&folder).unwrap();
    let serving = Running::start(report(&folder, &["--serve", "127.0.0.1:0", "-o", "end.csv"]));
    let address = address(&serving);
    let page = || ask(&address, "GET / HTTP/1.1").1;
    assert!(page().contains("No events yet") && page().contains("follow.js"));
    let sink = EventSink::open(&folder, 0, 0).unwrap();
    (0..3).for_each(|at| sink.emit(&step(at, 4.5)));
    watchdog::until(|| page().contains("still runs") && page().contains("3 steps")).unwrap();
    sink.emit(&step(3, 1.25));
    watchdog::until(|| page().contains("4 steps")).unwrap();
    assert!(ask(&address, "GET /curves.csv HTTP/1.1").1.contains(",1.25,"));
    for (request, status) in [("POST / HTTP/1.1", "405"), ("GET /rank-0.jsonl HTTP/1.1", "404")] {
        assert!(ask(&address, request).0.starts_with(&format!("HTTP/1.1 {status}")), "{request}");
    }
    let away = parent.path().join("away");
    fs::rename(&folder, &away).unwrap();
    watchdog::until(|| page().contains("cannot be read")).unwrap();
    assert!(page().contains("4 steps"), "what was read last stays");
    fs::rename(&away, &folder).unwrap();
    serving.signal(Signal::INT);
    serving.ended().code(0);
    assert!(fs::read_to_string(parent.path().join("end.csv")).unwrap().contains(",1.25,"));
    assert!(TcpStream::connect(&address).is_err(), "the port is closed");
}

#[test]
fn names_damaged_files_and_draws_the_rest() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("events");
    killed_and_resumed(&folder);
    let append = |name: &str, text: &str| {
        let mut file = OpenOptions::new().append(true).create(true).open(folder.join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append("rank-0.jsonl", "\0\0\0\n");
    append("rank-1.jsonl", "{\"t\":17");
    append("rank-2.jsonl", "a foreign file\n");
    append(
        "rank-3.jsonl",
        "{\"t\":1e300,\"rank\":3,\"restart\":0,\"event\":\"step\",\"epoch\":18446744073709551615,\"step\":18446744073709551615,\"loss\":\"inf\",\"samples\":0}\n",
    );
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("rank-4.jsonl"), rustix::fs::Mode::RUSR).unwrap();
    let told = ended(report(&folder, &[]).env("COLUMNS", "200")).code(0).out;
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    for text in [
        "of rank-0.jsonl is not an event",
        "an event of rank 1 is torn",
        "line 1 of rank-2.jsonl is not an event",
        "rank-4.jsonl is not a file",
        "rank 3: the loss is inf",
    ] {
        assert!(told.contains(text) && page.contains(text), "{text} in {told}");
    }
    assert!(page.contains("rank 1 ended by SIGKILL"));
}

#[test]
fn refuses_what_is_no_run_and_says_where_one_is() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("events");
    ended(&mut report(&folder, &[])).code(2).says(&["cannot read the event files in", "No such file"]);
    fs::create_dir(&folder).unwrap();
    ended(&mut report(&folder, &[])).code(2).says(&["there are no event files", "LOCKSTEP_EVENTS=DIR"]);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    EventSink::open(&folder, 0, 0).unwrap().emit(&step(0, 1.0));
    ended(&mut report(parent.path(), &[])).code(2).says(&["there are no event files", "there are some in", "/events"]);
    ended(&mut report(&folder.join("rank-0.jsonl"), &[])).code(2).says(&["cannot read the event files in"]);
    ended(&mut report(&folder, &["-o", "curves.pdf"])).code(2).says(&[".html (a page), .csv, .json"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    ended(&mut report(&folder, &["--serve", &address])).code(2).says(&["cannot serve at", "takes a free port"]);
}

#[test]
fn a_program_without_events_of_its_own_has_the_picture_of_its_ranks() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("events");
    let agent = AgentSink::open(&folder, "a").unwrap();
    agent.emit(&AgentEvent::Started { attempt: 0, rank: 0, local_rank: 0, pid: 7 });
    agent.emit(&AgentEvent::Ended { attempt: 0, rank: 0, local_rank: 0, pid: 7, code: 0, stopped: false });
    agent.emit(&AgentEvent::Finished { code: 0 });
    ended(&mut report(&folder, &[])).code(0);
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    for text in ["no rank has written steps", "$LOCKSTEP_EVENTS/rank-$RANK.jsonl", "What became of every rank"] {
        assert!(page.contains(text), "{text}");
    }
    // The line that the page shows is one that it reads.
    let line = page.split("<pre><code>").nth(1).unwrap().split('<').next().unwrap().replace("&quot;", "\"");
    fs::write(folder.join("rank-0.jsonl"), line.replace("1763640000.5", &now()) + "\n").unwrap();
    let told = ended(&mut report(&folder, &[])).code(0).out;
    assert!(
        told.contains("1 step") && fs::read_to_string(folder.join("report.html")).unwrap().contains("Learning rate"),
        "{told}"
    );
}

fn now() -> String {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64().to_string()
}

//! `lockstep replay` from outside: the page of a recording and of PyTorch's files, and what it refuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::running::ended;

fn replay(recording: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(cargo_bin("lockstep"));
    command.arg("replay").arg(recording).args(words);
    command
}

/// Recordings of PyTorch's flight recorder, in a folder of their own.
fn flight_recorder(folder: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/launch/tests/flight_recorder/behind");
    for rank in 0..3 {
        fs::copy(from.join(format!("rank_{rank}")), folder.join(format!("trace_{rank}"))).unwrap();
    }
    folder.join("trace_1")
}

#[test]
fn writes_one_page_next_to_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = flight_recorder(folder.path());
    let told = ended(&mut replay(&file, &[])).code(0).out;
    for text in [
        "3 ranks, 8 calls, by PyTorch's flight recorder",
        "note: PyTorch's flight recorder has calls only",
        "trace_1.html",
    ] {
        assert!(told.contains(text), "{text} in {told}");
    }
    let page = fs::read_to_string(folder.path().join("trace_1.html")).unwrap();
    assert!(page.contains("it did not come to call 3, broadcast of [2, 5] Double"), "{page}");
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="));
    // The folder is the same recording, and a page in it is no part of the recording.
    ended(&mut replay(folder.path(), &[])).code(0);
    let other = fs::read_to_string(folder.path().join("replay.html")).unwrap();
    let scene = |page: &str| page.split_once("id=\"scene\">").unwrap().1.split_once("</script>").unwrap().0.to_owned();
    assert_eq!(scene(&page), scene(&other));
}

#[test]
fn writes_what_it_shows_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = flight_recorder(folder.path());
    let json = ended(&mut replay(&file, &["-o", "-"])).code(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["source"].as_str(), json["lanes"].as_array().unwrap().len()), (Some("flight_recorder"), 3));
    assert!(!folder.path().join("trace_1.html").exists());
}

#[test]
fn refuses_what_is_no_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    ended(&mut replay(&file, &[])).code(2).says(&["notes.txt"]);
    for text in ["", "no recording\n", "{\"recording\":99,\"program\":\"x\",\"parts\":[]}\n", "{\"entries\":[]}"] {
        fs::write(&file, text).unwrap();
        ended(&mut replay(&file, &[])).code(2).says(&["notes.txt"]);
    }
    ended(&mut replay(folder.path(), &[])).code(2);
    let trace = flight_recorder(folder.path());
    ended(&mut replay(&trace, &["-o", "replay.pdf"])).code(2).says(&[".html (a page)"]);
    let inside = trace.join("replay.html");
    ended(&mut replay(&trace, &["-o", inside.to_str().unwrap()])).code(2).says(&["is a file, and a folder is meant"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing is written");
}

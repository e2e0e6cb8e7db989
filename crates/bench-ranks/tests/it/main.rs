//! The ranks as the bench sees them: they report themselves, answer orders, and end when the socket is closed.

#![allow(clippy::unwrap_used)] // a test may

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use lockstep_cost::Collective;
use lockstep_testkit::Job;
use serde_json::{Value, json};

/// More than two, so that a ring is a real one, and parts are not halves.
const RANKS: usize = 3;

#[test]
fn procs_every_collective_is_right_and_timed() {
    let mut job = Job::new(Path::new(env!("CARGO_BIN_EXE_lockstep-bench-ranks")));
    let listener = UnixListener::bind(job.path("ranks")).unwrap();
    let bench = thread::spawn(move || ask_for_all(&listener));
    let ended = job.attempt(RANKS, &["ranks"]);
    assert!(ended.succeeded(), "{}", ended.stderr());
    for (collective, answer) in Collective::ALL.into_iter().zip(bench.join().unwrap()) {
        assert_eq!(answer["wrong"], json!([0, 0]), "{collective:?}");
        let seconds = answer["seconds"].as_array().unwrap();
        assert!(seconds.len() == 2 && seconds.iter().all(|time| time.as_f64().unwrap() > 0.0), "{collective:?}");
    }
}

/// Plays the bench: asks rank 0 for each collective at two sizes.
fn ask_for_all(listener: &UnixListener) -> Vec<Value> {
    let mut ranks: Vec<_> = (0..RANKS).map(|_| hello(listener)).collect();
    ranks.sort_by_key(|(rank, _)| *rank);
    assert!(ranks.iter().map(|(rank, _)| *rank).eq(0..RANKS));
    let rank_0 = &mut ranks[0].1;
    let ask = |collective: Collective| {
        let bytes = [1, 4000].map(|bytes| collective.size(bytes, RANKS));
        writeln!(rank_0.get_mut(), "{}", json!({"operation": collective.name(), "bytes": bytes})).unwrap();
        serde_json::from_str(&line(rank_0)).unwrap()
    };
    Collective::ALL.into_iter().map(ask).collect()
}

/// A rank, and its connection.
fn hello(listener: &UnixListener) -> (usize, BufReader<UnixStream>) {
    let mut reader = BufReader::new(listener.accept().unwrap().0);
    let text = line(&mut reader);
    (text.split(' ').next().unwrap().parse().unwrap(), reader)
}

fn line(reader: &mut BufReader<UnixStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

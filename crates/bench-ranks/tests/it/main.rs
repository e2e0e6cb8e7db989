//! The ranks as the bench sees them: they report themselves, answer orders, and end when the socket is closed.

#![allow(clippy::unwrap_used)] // a test may

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use lockstep_cost::Collective;
use lockstep_testkit::Job;
use serde_json::{Value, json};

/// More than two, so that a ring differs from an exchange, and parts are not halves.
const RANKS: usize = 3;

/// Starts the ranks, gives each order to rank 0, and returns its answers.
fn answers(ranks: usize, orders: Vec<Value>) -> Vec<Value> {
    let mut job = Job::new(Path::new(env!("CARGO_BIN_EXE_lockstep-bench-ranks")));
    let listener = UnixListener::bind(job.path("ranks")).unwrap();
    let bench = thread::spawn(move || give(&listener, ranks, &orders));
    let ended = job.attempt(ranks, &["ranks"]);
    assert!(ended.succeeded(), "{}", ended.stderr());
    bench.join().unwrap()
}

/// Plays the bench.
fn give(listener: &UnixListener, ranks: usize, orders: &[Value]) -> Vec<Value> {
    let mut connections: Vec<_> = (0..ranks).map(|_| hello(listener)).collect();
    connections.sort_by_key(|(rank, _)| *rank);
    assert!(connections.iter().map(|(rank, _)| *rank).eq(0..ranks));
    let rank_0 = &mut connections[0].1;
    let ask = |order: &Value| {
        writeln!(rank_0.get_mut(), "{order}").unwrap();
        serde_json::from_str(&line(rank_0)).unwrap()
    };
    orders.iter().map(ask).collect()
}

#[test]
fn procs_every_collective_is_right_and_timed() {
    let order = |collective: Collective| {
        let bytes = [1, 4000].map(|bytes| collective.size(bytes, RANKS));
        json!({"collective": {"operation": collective.name(), "bytes": bytes}})
    };
    let answers = answers(RANKS, Collective::ALL.map(order).into());
    for (collective, answer) in Collective::ALL.into_iter().zip(answers) {
        assert_eq!(answer["wrong"], json!([0, 0]), "{collective:?}");
        let seconds = answer["seconds"].as_array().unwrap();
        assert!(seconds.len() == 2 && seconds.iter().all(|time| time.as_f64().unwrap() > 0.0), "{collective:?}");
    }
}

#[test]
fn procs_steps_are_timed_in_parts_and_their_gradients_are_averages() {
    let step = |model: &str, batch: usize| json!({"step": {"model": model, "batch": batch, "steps": 2}});
    let orders = vec![step("mlp", 2), step("resnet", 2), step("mlp", 4), step("mlp", 2)];
    let (together, alone) = (answers(2, orders.clone()), answers(1, orders));
    let number = |answer: &Value, name: &str| answer[name].as_f64().unwrap();
    for answer in together.iter().chain(&alone) {
        for part in ["step", "forward", "backward", "optimizer", "backward_alone", "all_reduces", "one_all_reduce"] {
            assert!(number(answer, part) > 0.0, "{part} of {answer}");
        }
    }
    assert_eq!(together[0]["bytes"], json!(4 * (784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10)));
    // Rank 0 has the same batch in both groups: the same loss, and a gradient that the other rank's batch changes.
    for (together, alone) in together.iter().zip(&alone) {
        assert_eq!(together["loss"], alone["loss"]);
        assert!((number(together, "gradient") / number(alone, "gradient") - 1.0).abs() > 1e-3, "{together} {alone}");
    }
    // No step changes the weights, so a later one does the same work.
    assert_eq!((&together[0]["loss"], &together[0]["gradient"]), (&together[3]["loss"], &together[3]["gradient"]));
}

#[test]
fn procs_divided_steps_have_the_losses_of_whole_ones_and_keep_their_share() {
    let order =
        |scheme: &str| json!({"parallel": {"scheme": scheme, "features": 8, "blocks": 3, "rows": 4, "steps": 3}});
    let schemes = ["zero", "sharded", "tensor"];
    let (together, alone) = (answers(2, schemes.map(order).into()), answers(1, schemes.map(order).into()));
    let losses = |answer: &Value| -> Vec<f64> { serde_json::from_value(answer["losses"].clone()).unwrap() };
    let alike = |one: &Value, other: &Value| {
        let (one, other) = (losses(one), losses(other));
        one.len() == 5 && one.iter().zip(&other).all(|(one, other)| (one - other).abs() < 1e-4 * one.abs())
    };
    assert!(alike(&together[0], &together[1]), "{together:?}");
    assert!(alike(&alone[0], &alone[1]) && alike(&alone[0], &alone[2]), "{alone:?}");
    assert!(alike(&together[2], &alone[2]), "{together:?} {alone:?}");
    assert!(losses(&together[0]).is_sorted_by(|one, next| one > next), "{together:?}");
    // Parameters, gradients and two states of 4 bytes.
    let all = 4.0 * 4.0 * (3 * 8 * 8 * 8) as f64;
    let number = |answer: &Value, name: &str| answer[name].as_f64().unwrap();
    assert_eq!([1, 2].map(|scheme| number(&together[scheme], "kept")), [all / 2.0; 2]);
    assert!(number(&together[0], "kept") >= 0.75 * all, "{together:?}");
    for answer in &together {
        assert!(number(answer, "step") > 0.0 && number(answer, "peak") > number(answer, "kept"), "{answer}");
        // At least the gradients or the activations.
        assert!(number(answer, "sent") > 1000.0, "{answer}");
    }
}

#[test]
fn procs_a_snapshot_is_written_and_loaded_again_in_both_modes() {
    let folder = tempfile::tempdir().unwrap();
    let order = |background: bool| json!({"snapshot": {"folder": folder.path().join(background.to_string()), "layers": 1, "background": background}});
    let answers = answers(1, vec![order(false), order(true), order(false)]);
    for answer in &answers {
        assert!(
            ["plain", "stall", "written", "loaded"].iter().all(|part| answer[part].as_f64().unwrap() > 0.0),
            "{answer}"
        );
        // Weights and momentum of 4 MiB each.
        assert!(answer["bytes"].as_u64().unwrap() > 8 << 20, "{answer}");
        assert_eq!(answer["sum"], answers[0]["sum"]);
    }
    // Only a background writer can slow down later steps.
    assert_eq!((&answers[0]["lost"], &answers[2]["lost"]), (&json!(0.0), &json!(0.0)));
}

#[test]
fn procs_every_photograph_is_loaded_by_each_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = |workers: usize| json!({"pictures": {"folder": folder.path().join("Train"), "workers": workers}});
    let draw = json!({"draw": {"folder": folder.path(), "count": 5}});
    let answers = answers(1, vec![draw, pictures(0), pictures(2), pictures(2)]);
    assert_eq!(answers[0]["folder"], json!(folder.path().join("Train")));
    for answer in &answers[1..] {
        assert_eq!((&answer["photographs"], &answer["mean"]), (&json!(5), &answers[1]["mean"]));
        assert!(answer["seconds"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn procs_a_trace_has_the_steps_and_buckets_of_every_rank() {
    let order = json!({"trace": {"model": "mlp", "batch": 1, "steps": 2}});
    let answer = answers(RANKS, vec![order]).remove(0);
    let ranks = answer["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), RANKS);
    for step in ranks.iter().flat_map(|steps| steps.as_array().unwrap()) {
        let time = |name: &str| step[name].as_f64().unwrap();
        let times = ["begun", "forward", "backward", "optimizer", "ended"].map(time);
        assert!(times.is_sorted(), "{step}");
        let buckets = step["buckets"].as_array().unwrap();
        let within = |one: &Value| {
            let [started, ended] = ["started", "ended"].map(|name| one[name].as_f64().unwrap());
            time("backward") <= started && started <= ended && ended <= time("optimizer")
        };
        assert!(buckets.len() > 1 && buckets.iter().all(within), "{step}");
    }
    assert!(ranks.iter().all(|steps| steps.as_array().unwrap().len() == 2));
}

/// Accepts a rank's connection. Returns the rank and the connection.
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

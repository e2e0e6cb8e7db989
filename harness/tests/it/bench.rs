//! `lockstep bench` and `lockstep measure`: each bench once with its smallest numbers. What it prints, that its files hold the same, and that nothing is left
//! of it. No test depends on a time.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::TestCluster;
use crate::run::site::Site;
use crate::running::{Ended, Running};
use crate::shown;

fn bench(site: &Site, words: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
    site.prepare(&mut command);
    command.arg(command_of(words[0])).args(words);
    command
}

/// Benches of Lockstep itself are a maintainer's.
fn command_of(bench: &str) -> &'static str {
    if ["launch", "recovery", "store", "snapshot", "loader"].contains(&bench) { "measure" } else { "bench" }
}

fn ended(site: &Site, words: &[&str]) -> Ended {
    Running::start(bench(site, words)).ended()
}

/// One round that counts, and none before it.
const ONCE: [&str; 3] = ["--rounds=1", "--warm-up=0", "--report=all.json"];

fn json(site: &Site) -> Value {
    serde_json::from_str(&site.read("all.json")).unwrap()
}

/// What a bench printed, without its numbers and the machine.
fn assert_printed(name: &str, printed: &str) {
    let mut settings = shown::unnamed();
    settings.add_filter(r"(?m)^\d+ cores?, .*\nload average .*\n(note: .*\n)*", "[machine]\n");
    settings.add_filter(r"; \d+ ranks on \d+ cores?: not a scaling result", "");
    settings.add_filter(r"─+", "─");
    settings.add_filter(r"═+", "═");
    settings.add_filter(r"(\d[\d.,]*|\[seconds\]) (s|ms|µs|MiB) \([\d.,]+–[\d.,]+\)", "[median]");
    settings.add_filter(r"\d[\d.,]*/s \([\d.,]+–[\d.,]+\)", "[median]");
    settings.add_filter(r"[\d.]+ \([\d.]+–[\d.]+\)", "[ratio]");
    settings.add_filter(r" {2,}", "  ");
    settings.add_filter(r" +\n", "\n");
    settings.bind(|| assert_snapshot!(name, printed));
}

/// The three digits of a sample must be in what was printed.
fn assert_holds_what_was_printed(results: &Value, ended: &Ended) {
    for measure in results["measures"].as_array().unwrap() {
        let value = measure["sides"][0]["samples"][0].as_f64().unwrap();
        let (shown, size) = match measure["unit"].as_str().unwrap() {
            "seconds" if value >= 1.0 => ("s", 1.0),
            "seconds" => ("ms", 1e-3),
            _ => ("MiB", 1_048_576.0),
        };
        let decimals = [99.95, 9.995].iter().filter(|limit| value / size < **limit).count();
        let number = format!("{:.decimals$} {shown}", value / size);
        assert!(ended.out.contains(&number), "{number} of {measure} is not in\n{}", ended.out);
    }
}

#[test]
fn launch_measures_each_shape_and_every_file_has_the_same_numbers() {
    let site = Site::new();
    let files = ["--report=all.csv", "--report=page.html", "--report=picture.svg", "--report=table.txt"];
    let words = [&["launch", "--ranks=2,4", "--agents=1,2"], &ONCE[..], &files].concat();
    let ended = ended(&site, &words).code(0);
    assert_printed("launch", &ended.out);
    let results = json(&site);
    assert_holds_what_was_printed(&results, &ended);
    let samples: Vec<String> = results["measures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|measure| measure["sides"][0]["samples"][0].as_f64().unwrap().to_string())
        .collect();
    let csv = site.read("all.csv");
    let values: Vec<&str> = csv.lines().skip(1).map(|line| line.rsplit_once(',').unwrap().1).collect();
    assert_eq!(values, samples);
    let (page, picture) = (site.read("page.html"), site.read("picture.svg"));
    roxmltree::Document::parse(&picture).unwrap();
    assert!(page.contains(picture.trim_end()) && page.contains("4 ranks, 2 agents"), "{page}");
    assert!(site.read("table.txt").contains("4 ranks, 2 agents"));
    ended.says(&["round 1 of 1: 2 ranks, 1 agent: lockstep "]);
    site.assert_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn recovery_kills_a_rank_in_each_round_and_all_come_back() {
    let site = Site::new();
    let words =
        ["recovery", "--lose=worker", "--work=idle", "--ranks=2", "--rounds=2", "--warm-up=1", "--report=all.json"];
    let ended = ended(&site, &words).code(0);
    assert_printed("recovery", &ended.out);
    let results = json(&site);
    for measure in results["measures"].as_array().unwrap() {
        assert_eq!(measure["sides"][0]["samples"].as_array().unwrap().len(), 2);
    }
    site.await_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn recovery_kills_a_node_and_those_left_train_alone_and_with_the_next_one() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let words =
        ["recovery", "--work=train", "--ranks=3", "--nodes=3", "--rounds=1", "--warm-up=0", "--report=all.json"];
    let ended = ended(&site, &[&words[..], &["--lose=worker,node,authority"]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    assert_eq!(samples.len(), 3 + 5 + 4);
    let sample = |case: &str, quantity: &str| samples[&(format!("3 ranks, {case}"), quantity.to_owned())];
    let worker = ["survivors stopped", "all ranks up again", "all ranks train again"];
    let worker = worker.map(|quantity| sample("1 agent, training", quantity));
    let node = |quantity| sample("3 agents, training: one is lost, then another joins", quantity);
    let lost = ["survivors stopped", "those left are up again", "those left train again"].map(node);
    let joined = ["all up with the new node", "all train with the new node"].map(node);
    let authority = |quantity| sample("3 agents, training: the one at the endpoint is lost", quantity);
    let succeeded = ["next round formed", "those left are up again", "those left train again"].map(authority);
    for times in [&worker[..], &lost, &joined, &succeeded] {
        assert!(times[0] > 0.0 && times.is_sorted(), "{samples:?}");
    }
    site.await_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

/// Two nodes have two virtual ranks each; one that is left has four.
#[test]
fn virtual_ranks_go_on_from_their_snapshot_when_a_node_is_lost_and_when_it_comes_back() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let words =
        ["recovery", "--work=elastic", "--ranks=2", "--nodes=2", "--rounds=1", "--warm-up=0", "--report=all.json"];
    let ended = ended(&site, &[&words[..], &["--lose=node"]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    let node = |quantity: &str| {
        let case = "2 ranks, 2 agents, training as 4 virtual ranks: one is lost, then another joins";
        samples[&(case.to_owned(), quantity.to_owned())]
    };
    let lost = ["survivors stopped", "those left are up again", "those left train again"].map(node);
    let joined = ["all up with the new node", "all train with the new node"].map(node);
    assert!(lost[0] > 0.0 && lost.is_sorted() && joined.is_sorted(), "{samples:?}");
    site.await_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

/// Six processes, of which each links libtorch.
#[test]
fn virtual_ranks_have_the_same_bits_over_each_transport_and_plain_ddp_has_not() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let ended = ended(&site, &["elastic", "--virtual-ranks=3", "--ranks=1,3"]).code(0);
    for title in ["over shared memory", "over Gloo", "over two levels"] {
        assert!(ended.out.contains(title), "{ended}");
    }
    let rows = |name: &str| -> Vec<Vec<String>> {
        let rows = ended.out.lines().filter(|line| line.trim_start().starts_with(name));
        rows.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let control = rows("control: MLP, plain DDP");
    assert_eq!(control.len(), 3, "{ended}");
    assert!(control.iter().all(|row| row.contains(&"no".to_owned())), "{ended}");
    for name in ["MLP, dropout", "ResNet-18", "GPT, dropout", "MLP, AdamW", "GPT, bfloat16"] {
        let rows = rows(name);
        assert_eq!(rows.len(), 3, "{name} in {ended}");
        let equal = |row: &Vec<String>| row.contains(&"yes".to_owned()) && !row.contains(&"no".to_owned());
        assert!(rows.iter().all(equal), "{name} in {ended}");
    }
    site.await_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn more_ranks_than_virtual_ones_are_refused() {
    let site = Site::new();
    let elastic = ended(&site, &["elastic", "--virtual-ranks=4", "--ranks=5"]).code(2);
    assert!(elastic.err.contains("5 ranks cannot share 4 virtual ranks"), "{elastic}");
    let recovery = ended(&site, &["recovery", "--work=elastic", "--ranks=6"]).code(2);
    assert!(recovery.err.contains("6 ranks cannot share 4 virtual ranks"), "{recovery}");
}

/// A store that serves few clients for a moment.
const STORE: [&str; 3] = ["store", "--clients=1,4", "--operations=8"];

#[test]
fn store_measures_each_operation_with_each_number_of_clients() {
    let site = Site::new();
    let ended = ended(&site, &[&STORE[..], &ONCE[..]].concat()).code(0);
    assert_printed("store", &ended.out);
    let results = json(&site);
    let measures = results["measures"].as_array().unwrap();
    assert_eq!(measures.len(), 2 * 8);
    assert!(measures.iter().all(|measure| measure["sides"][0]["samples"][0].as_f64().unwrap() > 0.0), "{results}");
    site.assert_no_process();
}

#[test]
fn libtorchs_store_takes_turns_where_python_has_it() {
    let site = Site::new();
    if against_python(&site, &STORE).is_some() {
        assert_printed("store_against_python", &site.read("table.txt"));
        site.assert_no_process();
    }
}

/// Every collective at two sizes.
const COLLECTIVES: [&str; 3] = ["collectives", "--ranks=2", "--max-bytes=4096"];

/// The ranks' program links libtorch, so the harness's own build does not make it.
fn ranks_are_built() -> bool {
    let program =
        std::path::Path::new(assert_cmd::cargo::cargo_bin!("lockstep")).with_file_name("lockstep-bench-ranks");
    if !program.is_file() {
        println!("not verified here: benches of libtorch (build their ranks: cargo build -p lockstep-bench-ranks)");
    }
    program.is_file()
}

#[test]
fn collectives_are_checked_and_measured_at_each_size() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let ended = ended(&site, &[&COLLECTIVES[..], &ONCE[..]].concat()).code(0);
    let results = json(&site);
    let measures = results["measures"].as_array().unwrap();
    assert_eq!(measures.len(), 10 * 6 + 1);
    for measure in measures {
        let (name, time) = (&measure["quantity"], measure["sides"][0]["samples"][0].as_f64().unwrap());
        assert!(time > 0.0 && ended.out.contains(name.as_str().unwrap()), "{measure}");
    }
    let model = ended.out.split_once("α–β model, fitted").unwrap().1;
    for operation in [
        "all_reduce",
        "all_reduce_bucket",
        "broadcast",
        "reduce",
        "all_gather",
        "gather",
        "scatter",
        "reduce_scatter",
        "all_to_all",
        "send_recv",
    ] {
        assert!(model.contains(&format!(" {operation},")), "{operation} in {ended}");
    }
    site.assert_no_process();
}

#[test]
fn pythons_collectives_take_turns_and_are_as_right() {
    if !ranks_are_built() {
        return;
    }
    takes_turns_with_python(&Site::new(), &["collectives", "--ranks=2", "--max-bytes=16"]);
}

/// The samples of the first side, by case and quantity; every name is in what was printed.
fn first_samples(site: &Site, ended: &Ended) -> BTreeMap<(String, String), f64> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let printed: BTreeSet<String> = words(&ended.out).into_iter().collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let results = json(site);
    let measures = results["measures"].as_array().unwrap();
    let sample = |measure: &Value| {
        let names = (text(&measure["case"]), text(&measure["quantity"]));
        assert!(words(&names.1).iter().all(|word| printed.contains(word)), "{names:?} in {ended}");
        (names, measure["sides"][0]["samples"][0].as_f64().unwrap())
    };
    measures.iter().map(sample).collect()
}

/// Runs a bench with Python's side once. Returns `None` if there is no Python with what it needs.
fn against_python(site: &Site, words: &[&str]) -> Option<Ended> {
    let mut command = bench(site, &[words, &ONCE[..], &["--against=python", "--report=table.txt"]].concat());
    command.envs(std::env::var_os("LOCKSTEP_PYTHON").map(|python| ("LOCKSTEP_PYTHON", python)));
    let ended = Running::start(command).ended().code(0);
    if let Some((_, why)) = ended.out.split_once("not measured: ") {
        println!("not verified here: bench {} against Python ({})", words[0], why.lines().next().unwrap());
        return None;
    }
    Some(ended)
}

/// Every side has samples. Returns false if there is no Python with what it needs.
fn takes_turns_with_python(site: &Site, words: &[&str]) -> bool {
    if against_python(site, words).is_none() {
        return false;
    }
    let results = json(site);
    let measures = results["measures"].as_array().unwrap();
    for measure in measures {
        let sides = measure["sides"].as_array().unwrap();
        assert!(sides.iter().all(|side| side["samples"][0].is_number()), "{measure}");
    }
    assert!(measures.iter().any(|measure| measure["sides"].as_array().unwrap().len() > 1), "{results}");
    assert!(site.read("table.txt").contains("too few rounds for a verdict"));
    site.assert_no_process();
    true
}

/// One step of each kind, with small batches.
const DDP: [&str; 3] = ["ddp", "--batch=2", "--steps=1"];

#[test]
fn ddp_measures_the_parts_of_a_step_of_each_model() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let ended = ended(&site, &[&DDP[..], &["--ranks=1,2"], &ONCE[..]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    assert_eq!(samples.len(), 2 * (5 + 8));
    for ((case, quantity), sample) in &samples {
        let may_be_0 = ["exposed communication", "overlap", "processor time of the turn"].contains(&&**quantity);
        assert!(may_be_0 || *sample > 0.0, "{case}: {quantity}: {sample}");
    }
    let step = |name: &str| samples[&("mlp, 2 ranks, 2 samples each".to_owned(), name.to_owned())];
    // Of a single step, the parts are its own.
    let parts: f64 = ["forward", "backward", "optimizer"].map(step).iter().sum();
    assert!((step("step") - parts).abs() < 1e-9 * parts.max(1.0), "{samples:?}");
    let exposed = step("exposed communication") / step("all-reduces alone");
    assert!((step("overlap") - (1.0 - exposed).max(0.0)).abs() < 1e-9, "{samples:?}");
    site.assert_no_process();
}

#[test]
fn a_step_on_a_gpu_has_the_peak_of_its_memory_and_without_one_the_bench_says_what_is_missing() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let words = ["--models=mlp", "--ranks=1", "--device=cuda"];
    let ended = ended(&site, &[&DDP[..], &words, &ONCE[..]].concat());
    if ended.status.success() {
        let samples = first_samples(&site, &ended);
        let case = "mlp, 1 rank, 2 samples each, on GPUs".to_owned();
        assert!(samples[&(case, "peak of a GPU's memory".to_owned())] > 4.0 * 1.86e6, "{samples:?}");
    } else {
        println!("not verified here: a step on a GPU (there is none, or no libtorch for it)");
        ended.code(1).says(&["cannot train on a GPU"]);
    }
    site.assert_no_process();
}

#[test]
fn pythons_ddp_takes_turns_and_has_the_same_losses_and_gradients() {
    // Sides that do not do the same work are an error of the bench. One rank, since each process of Python takes seconds to start.
    let site = Site::new();
    if ranks_are_built() && takes_turns_with_python(&site, &[&DDP[..], &["--ranks=1"]].concat()) {
        assert_eq!(json(&site)["measures"][0]["sides"].as_array().unwrap().len(), 4);
    }
}

/// One step of a small model.
const PARALLEL: [&str; 5] = ["parallel", "--blocks=2", "--features=16", "--rows=4", "--steps=1"];
/// What is sent through shared memory is not counted.
const GLOO: &str = "--backends=gloo";

#[test]
fn parallel_measures_what_each_scheme_sends_and_holds() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let ended = ended(&site, &[&PARALLEL[..], &[GLOO], &ONCE[..]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    const SCHEMES: [&str; 5] = ["zero", "sharded", "tensor", "context", "expert"];
    assert_eq!(samples.len(), SCHEMES.len() * 4);
    let sample = |scheme: &str, what: &str| {
        let case = format!("{scheme}, 2 ranks, 2 blocks of 16 features, 4 rows each");
        samples[&(case, what.to_owned())]
    };
    let [zero, sharded, tensor, _, expert] = SCHEMES.map(|scheme| sample(scheme, "a rank's tensors between steps"));
    assert!(zero > sharded && sharded == tensor && expert > tensor, "{samples:?}");
    for scheme in SCHEMES {
        assert!(sample(scheme, "step") > 0.0 && sample(scheme, "a rank sends in a step") > 0.0, "{samples:?}");
    }
    site.assert_no_process();
}

#[test]
fn pythons_divided_training_takes_turns_and_has_the_same_losses() {
    // Sides that do not train the same are an error of the bench. One scheme, since each process of Python takes seconds to start.
    let site = Site::new();
    if ranks_are_built() && takes_turns_with_python(&site, &[&PARALLEL[..], &["--schemes=sharded"]].concat()) {
        assert_eq!(json(&site)["measures"][0]["sides"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn scaling_shows_speed_ups_and_what_fits_them() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let words = ["scaling", "--models=mlp", "--ranks=1,2,3", "--batch=2", "--steps=1", "--report=picture.svg"];
    let ended = ended(&site, &[&words[..], &["--backends=auto"], &ONCE[..]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    assert_eq!(samples.len(), 2 * (1 + 5 + 5));
    let sample = |case: &str, quantity: &str| samples[&(format!("{case} each"), quantity.to_owned())];
    let strong = sample("strong scaling of mlp, 2 ranks, 3 samples", "its bytes");
    let weak = sample("weak scaling of mlp, 2 ranks, 2 samples", "its bytes");
    // The mean of the buckets, which have all gradients.
    let buckets = 4.0 * f64::from(784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10) / strong;
    assert!(strong == weak && (buckets - buckets.round()).abs() < 1e-9 && buckets >= 1.0, "{buckets}");
    for title in ["strong scaling of mlp\n", "weak scaling of mlp\n", "Amdahl's law", "the link of a ring"] {
        assert!(ended.out.contains(&format!("\n{title}")), "{title} in {ended}");
    }
    // A chart for each mode.
    let picture = site.read("picture.svg");
    let document = roxmltree::Document::parse(&picture).unwrap();
    assert_eq!(document.descendants().filter(|node| node.tag_name().name() == "polyline").count(), 2);
    site.assert_no_process();
}

/// Ranks on the nodes of a job, with the real Slurm in namespaces.
#[test]
fn scaling_starts_its_ranks_on_the_nodes_of_a_slurm_job() {
    let place = TestCluster::new();
    if !ranks_are_built() || !place.up_with_slurm("bench scaling under Slurm") {
        return;
    }
    let bench = format!("{} bench scaling --models=mlp --modes=weak --batch=2 --steps=1", crate::running::lockstep());
    let words = "--nodes=1,2 --ranks=1,2 --rounds=1 --warm-up=0 --report=all.json";
    place.site.file("job.sh", &format!("#!/bin/sh\n{bench} {words}\n"));
    place.batch(&["--nodes=2", "--ntasks-per-node=1", "--output=job.out", "job.sh"]).code(0);
    let (printed, results) = (place.site.read("job.out"), json(&place.site));
    let steps = results["measures"].as_array().unwrap().iter().filter(|measure| measure["quantity"] == "step");
    let found: Vec<_> = steps
        .map(|measure| {
            assert!(measure["sides"][0]["samples"][0].as_f64().unwrap() > 0.0, "{measure}");
            let labels: Vec<&str> = measure["labels"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let shared = labels.contains(&"2 nodes on 1 machine: not a scaling result");
            let place = &measure["place"];
            let number = |value: &Value| value.as_u64().unwrap();
            (number(&place["ranks"]), number(&place["span"]["nodes"]), number(&place["span"]["machines"]), shared)
        })
        .collect();
    assert_eq!(found, [(1, 1, 1, false), (2, 1, 1, false), (2, 2, 1, true), (4, 2, 1, true)], "{printed}");
    for text in ["4 on 2 nodes", "no: nodes", "lockstep, between"] {
        assert!(printed.contains(text), "{text} in {printed}");
    }
    let each = place.any(&["exec", "ctl", "--", "sh", "-c", &format!("srun --nodes=2 {bench}")]);
    each.code(2).says(&["srun has started this bench on each node", "run it once"]);
    // Steps that outlive the bench would keep their ranks.
    place.site.until("no step is left", || place.sh("ctl", "squeue --steps --noheader").is_empty());
    place.ok(&["down"]);
    place.assert_as_before();
}

#[test]
fn trace_shows_every_rank_and_its_files_have_the_same_parts() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let words = ["trace", "--ranks=3", "--batch=1", "--steps=2", "--report=trace.json", "--report=trace.svg"];
    let ended = ended(&site, &words).code(0);
    for text in ["mlp on 3 ranks, 1 sample a rank", "all-reduces", "hidden", "median of 2 steps"] {
        assert!(ended.out.contains(text), "{text} in {ended}");
    }
    let trace: Value = serde_json::from_str(&site.read("trace.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (rank, step) in (0..3).flat_map(|rank| (0..2).map(move |step| (rank, step))) {
        let of = |name: &str| {
            let same = |event: &&Value| event["pid"] == rank && event["name"] == name && event["args"]["step"] == step;
            let event = events.iter().find(same).unwrap_or_else(|| panic!("{name} of rank {rank} in {trace}"));
            (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap())
        };
        // All gradients are averaged, in several buckets.
        let bytes = events.iter().filter(|event| event["pid"] == rank && event["args"]["step"] == step);
        let bytes: u64 = bytes.filter_map(|event| event["args"]["bytes"].as_u64()).sum();
        assert_eq!(bytes, 4 * (784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10));
        let (backward, wait, first, optimizer) = (of("backward"), of("wait"), of("bucket 0"), of("optimizer"));
        assert!(backward.0 < first.0 && wait.0 < optimizer.0 && backward.1 > 0.0 && wait.1 > 0.0, "{trace}");
        assert!(first.0 + first.1 <= optimizer.0, "a bucket is reduced before the optimizer begins: {trace}");
        let _bucket_of_the_rest = of("bucket 1");
    }
    let picture = site.read("trace.svg");
    let document = roxmltree::Document::parse(&picture).unwrap();
    let blocks = document.descendants().filter(|node| node.tag_name().name() == "title").count();
    assert!(blocks >= 3 * (5 + 2) && (0..3).all(|rank| picture.contains(&format!(">rank {rank}<"))), "{picture}");
    site.assert_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn snapshot_shows_the_stall_in_the_foreground_and_in_the_background() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let ended = ended(&site, &[&["snapshot", "--weights=8"], &ONCE[..]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    assert_eq!(samples.len(), 5 + 4);
    let sample = |case: &str, quantity: &str| samples[&(format!("8 MiB of weights, {case}"), quantity.to_owned())];
    let file = sample("training waits", "size of the file");
    // Weights and momentum, and a header.
    assert!((16.0..16.1).contains(&(file / 1_048_576.0)), "{file}");
    for quantity in ["stall of a step", "step without it", "on disk after"] {
        assert!(sample("written in the background", quantity) > 0.0, "{samples:?}");
    }
    site.assert_no_process();
    let left: Vec<_> = std::fs::read_dir(site.path(".")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("bench-snapshot-")), "{left:?}");
}

#[test]
fn torchs_snapshots_take_turns_and_load_the_same_weights() {
    let site = Site::new();
    if ranks_are_built() && takes_turns_with_python(&site, &["snapshot", "--weights=4"]) {
        assert_eq!(json(&site)["measures"][0]["sides"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn loader_counts_the_photographs_of_a_folder_by_workers() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let ended =
        ended(&site, &[&["loader", "--photographs=4", "--workers=0,2", "--cached"], &ONCE[..]].concat()).code(0);
    let samples = first_samples(&site, &ended);
    assert_eq!(samples.len(), 2 * 2 * 2);
    for case in ["0 workers, 4 photographs", "2 workers, 4 photographs", "2 workers, 4 photographs, kept decoded"] {
        assert!(samples[&(case.to_owned(), "photographs".to_owned())] > 0.0, "{samples:?}");
    }
    site.assert_no_process();
    assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn ranks_that_fail_give_their_reason() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    std::fs::create_dir(site.path("empty")).unwrap();
    let ended = ended(&site, &[&["loader", "--folder=empty", "--workers=0"], &ONCE[..]].concat()).code(1);
    ended.says(&["rank 0 has ended", "found no folder"]);
    site.assert_no_process();
}

#[test]
fn torchvisions_loader_takes_turns_with_the_same_photographs() {
    if ranks_are_built() {
        takes_turns_with_python(&Site::new(), &["loader", "--photographs=4", "--workers=1"]);
    }
}

#[test]
fn a_python_without_torchvision_is_no_peer_of_the_loader() {
    if !ranks_are_built() {
        return;
    }
    let site = Site::new();
    let python = site
        .program("python", "#!/bin/sh\n[ \"$3\" = torch ] && echo 2.11.0 && exit\necho no torchvision >&2\nexit 1\n");
    let words = [&["loader", "--photographs=3", "--workers=0", "--against=python"], &ONCE[..]].concat();
    let mut command = bench(&site, &words);
    command.env("LOCKSTEP_PYTHON", &python);
    let ended = Running::start(command).ended().code(0);
    let reason = format!("torchvision's DataLoader: {python} has no torchvision (no torchvision)");
    assert_eq!(json(&site)["not_measured"], serde_json::json!([reason]), "{ended}");
}

#[test]
fn torchrun_takes_turns_where_python_has_it() {
    let site = Site::new();
    if let Some(ended) = against_python(&site, &["launch", "--ranks=1"]) {
        // The file is wide enough for any numbers.
        assert_printed("launch_against_python", &site.read("table.txt"));
        assert_holds_what_was_printed(&json(&site), &ended);
        site.assert_no_process();
    }
}

#[test]
fn a_peer_that_is_not_at_hand_is_not_measured_and_the_reason_is_kept() {
    let site = Site::new();
    let words = [&["launch", "--ranks=1", "--against=python"], &ONCE[..]].concat();
    let mut command = bench(&site, &words);
    command.env("LOCKSTEP_PYTHON", "/no/such/python");
    let ended = Running::start(command).ended().code(0);
    let reason = "torchrun: /no/such/python has no PyTorch (No such file or directory (os error 2)); LOCKSTEP_PYTHON can name another";
    assert!(ended.out.contains(&format!("\nnot measured: {reason}\n")), "{ended}");
    assert_eq!(json(&site)["not_measured"], serde_json::json!([reason]));
}

#[test]
fn a_bench_that_is_stopped_keeps_its_complete_rounds_and_leaves_no_process() {
    for signal in [Signal::TERM, Signal::KILL] {
        let site = Site::new();
        let words = [
            "recovery",
            "--lose=worker",
            "--work=idle",
            "--ranks=2",
            "--rounds=1000",
            "--warm-up=0",
            "--report=all.json",
        ];
        let running = Running::start(bench(&site, &words));
        running.await_err("round 2 of 1000");
        running.signal(signal);
        let ended = running.ended().killed_by(signal);
        let complete = json(&site)["measures"][0]["sides"][0]["samples"].as_array().unwrap().len();
        assert!((1..1000).contains(&complete), "{complete}");
        if signal == Signal::TERM {
            assert!(ended.out.contains(" of 1000 rounds: it was stopped"), "{ended}");
            assert_eq!(site.leftovers(), [] as [std::path::PathBuf; 0]);
        }
        site.await_no_process();
    }
}

#[test]
fn a_bench_goes_on_with_the_same_program_when_its_file_is_removed() {
    let site = Site::new();
    let program = site.path("lockstep");
    std::fs::hard_link(assert_cmd::cargo::cargo_bin!("lockstep"), &program).unwrap();
    let mut command = Command::new(&program);
    site.prepare(&mut command);
    let running = Running::start({
        command.args(["measure", "launch", "--ranks=1", "--rounds=1000", "--warm-up=0"]);
        command
    });
    running.await_err("round 1 of 1000");
    std::fs::remove_file(&program).unwrap();
    let complete = running.err.now().lines().count();
    running.await_err(&format!("round {} of 1000", complete + 3));
    running.signal(Signal::TERM);
    running.ended().killed_by(Signal::TERM);
    site.await_no_process();
}

#[test]
fn compare_tells_a_difference_from_noise() {
    let site = Site::new();
    ended(&site, &[&["launch", "--ranks=1"], &ONCE[..]].concat()).code(0);
    let write = |name: &str, times: [f64; 7], load: f64| {
        let mut results = json(&site);
        results["measures"].as_array_mut().unwrap().truncate(2);
        results["before"]["load"] = serde_json::json!([load, 0.0, 0.0]);
        results["machine"]["cores"] = 2.into();
        results["measures"][0]["sides"][0]["samples"] = serde_json::json!(times);
        results["measures"][1]["sides"][0]["samples"] = serde_json::json!([1.0, 1.2, 0.9, 1.1, 0.8, 1.3, 1.0]);
        site.file(name, &results.to_string());
    };
    write("a.json", [1.0, 1.2, 0.9, 1.1, 0.8, 1.3, 1.0], 0.1);
    write("b.json", [1.9, 2.1, 2.0, 1.8, 2.2, 1.7, 2.3], 3.1);
    assert_snapshot!("compare", ended(&site, &["compare", "a.json", "b.json"]).code(0));
}

#[test]
fn predict_computes_the_step_of_the_example() {
    let site = Site::new();
    let example = ended(&site, &["predict", "--example"]).code(0).out;
    site.file("cluster.toml", &example);
    let ended = ended(&site, &["predict", "cluster.toml", "--nodes=1,2,16", "--picture=picture.svg"]).code(0);
    // Computed, so without any filter.
    let _guard = shown::plain();
    assert_snapshot!("predict", ended.out);
    let picture = site.read("picture.svg");
    let document = roxmltree::Document::parse(&picture).unwrap();
    let lines = document.descendants().filter(|node| node.tag_name().name() == "polyline").count();
    assert_eq!(lines, ended.out.matches("what rules").count(), "{picture}");
}

/// The book's form and the command are one computation: a hundred drawn clusters and transformers have the same rows, to the last digit.
#[test]
fn predict_and_the_books_form_show_the_same_rows() {
    let site = Site::new();
    let mut state = 20_261_128_u64;
    let mut draw = |low: f64, high: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low * (high / low).powf((state >> 11) as f64 / (1_u64 << 53) as f64)
    };
    for _ in 0..20 {
        let [ranks, blocks, heads, micro] =
            [(1.0, 9.0), (2.0, 96.0), (2.0, 64.0), (1.0, 64.0)].map(|(low, high)| draw(low, high).floor());
        let file = format!(
            "nodes = 1\n[node]\nranks = {ranks}\nmemory_gb = {:?}\nlatency_us = {:?}\nbandwidth_gb_s = {:?}\n[network]\n\
             latency_us = {:?}\nbandwidth_gb_s = {:?}\n[transformer]\nblocks = {blocks}\nheads = {heads}\nparameters = {:?}\n\
             activations_mb = {:?}\nkept_mb = {:?}\nstep_s = {:?}\nmicro_batches = {micro}\n",
            draw(8.0, 160.0),
            draw(1.0, 20.0),
            draw(20.0, 900.0),
            draw(1.0, 100.0),
            draw(1.0, 50.0),
            draw(1e8, 1e11),
            draw(10.0, 1e4),
            draw(10.0, 1e4),
            draw(0.1, 1e3)
        );
        site.file("drawn.toml", &file);
        let nodes: Vec<usize> = (0..5).map(|_| draw(1.0, 20.0) as usize).collect();
        let list: Vec<_> = nodes.iter().map(usize::to_string).collect();
        let printed = ended(&site, &["predict", "drawn.toml", "--nodes", &list.join(",")]).code(0).out;
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let rows: Vec<String> = printed
            .lines()
            .filter(|line| line.starts_with("  ") && line.trim_start().starts_with(|c: char| c.is_ascii_digit()))
            .filter(|line| !line.contains("faster than all"))
            // A narrow table breaks the row's note.
            .map(|line| words(line.split(" the fastest").next().unwrap_or_default()))
            .map(|line| line.replace(" does not fit", "").replace(" does not", ""))
            .collect();
        let mut parsed = lockstep_cost::ClusterFile::parse(&file).unwrap();
        let computed = nodes.iter().flat_map(|nodes| {
            parsed.cluster.nodes = *nodes;
            lockstep_figures::predict::rows(&parsed)
        });
        let expected: Vec<_> =
            computed.map(|row| words(&format!("{} {} {}", row.layout.join(" "), row.memory, row.step))).collect();
        assert_eq!(rows, expected, "{file}--nodes {list:?}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    let site = Site::new();
    site.file("other.json", "{}");
    let texts = [
        &["launch", "--ranks=2", "--agents=16"][..],
        &["launch", "--report=a.pdf"],
        &["recovery", "--ranks=1"],
        &["recovery", "--ranks=3"],
        &["collectives", "--operations=all"],
        &["predict"],
        &["predict", "cluster.toml", "--picture=picture.png"],
        &["scaling", "--ranks=2,4"],
        &["scaling", "--nodes=1,2"],
        &["predict", "other.json"],
        &["compare", "none.json", "other.json"],
        &["compare", "other.json", "other.json"],
    ]
    .map(|words| {
        format!("$ lockstep {} {}\n{}\n", command_of(words[0]), words.join(" "), ended(&site, words).code(2).err)
    });
    assert_snapshot!("refused", texts.concat());
}

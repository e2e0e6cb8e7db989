//! What lab 09 promises: the same weights on one node, on equal and on unequal ones, because the samples go by rank.
//!
//! The launcher's part, Slurm's and mpirun's are checked by `lockstep verify 09`.

#![allow(clippy::unwrap_used)] // a test may

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use assert_cmd::cargo::cargo_bin;
use c10d::{Store, TcpStoreOptions};
use lockstep::events::{self, Event};
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, clear_launcher, text};
use tempfile::TempDir;

const ARGS: [&str; 14] = [
    "--samples",
    "50",
    "--batch-size",
    "2",
    "--epochs",
    "2",
    "--model",
    "mlp",
    "--device",
    "cpu",
    "--weights",
    "weights",
    "--save-every-steps",
    "3",
];

fn lab() -> &'static Path {
    cargo_bin!("lab-09-many-nodes")
}

fn command(folder: &TempDir) -> Command {
    let mut command = Command::new(lab());
    clear_launcher(&mut command);
    command.env_remove("OMP_NUM_THREADS").env("GLOO_SOCKET_IFNAME", "lo").current_dir(folder.path());
    command.env(events::FOLDER, folder.path().join("events"));
    command.args(ARGS).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A finished job.
struct Ended {
    folder: TempDir,
    printed: String,
}

impl Ended {
    /// Starts a job as launchers do, with these numbers of workers on its nodes, and waits for its end.
    fn on(nodes: &[usize]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let printed = printed_on(nodes, || command(&folder), outputs);
        Ended { folder, printed }
    }

    fn weights(&self, rank: usize) -> Vec<u8> {
        std::fs::read(self.folder.path().join(format!("weights/rank-{rank}.safetensors"))).unwrap()
    }

    fn digest(&self) -> &str {
        self.printed.lines().find_map(|line| line.strip_prefix("Final weights: ")).unwrap()
    }

    /// The samples of each rank in its epochs.
    fn samples(&self) -> BTreeMap<usize, Vec<Vec<u64>>> {
        let logs = events::read_folder(&self.folder.path().join("events")).unwrap();
        let indices = |event| if let Event::Samples { indices, .. } = event { Some(indices) } else { None };
        let of = |log: events::EventLog| log.records.into_iter().filter_map(|one| indices(one.event)).collect();
        logs.into_iter().map(|(rank, log)| (rank, of(log))).collect()
    }
}

/// What rank 0 prints in a job that `run` runs as launchers do, with these numbers of workers on its nodes.
fn printed_on(nodes: &[usize], command: impl Fn() -> Command, run: impl Fn(Vec<Command>) -> Vec<Output>) -> String {
    let world = nodes.iter().sum::<usize>();
    let store = Store::tcp("127.0.0.1", 0, &TcpStoreOptions { host_server: true, ..Default::default() }).unwrap();
    let port = store.port().unwrap().to_string();
    let places = nodes.iter().enumerate().flat_map(|(node, here)| (0..*here).map(move |local| (node, local, *here)));
    let of = |(rank, (node, local, here)): (usize, (usize, usize, usize))| {
        let mut command = command();
        let numbers = [
            ("RANK", rank),
            ("LOCAL_RANK", local),
            ("GROUP_RANK", node),
            ("WORLD_SIZE", world),
            ("LOCAL_WORLD_SIZE", here),
        ];
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
        command
    };
    let outputs = run(places.enumerate().map(of).collect());
    assert!(outputs.iter().all(|output| output.status.success()), "{}", text(&outputs[0].stderr));
    text(&outputs[0].stdout)
}

fn outputs(ranks: Vec<Command>) -> Vec<Output> {
    let start = |rank| std::thread::spawn(|| lockstep_process::watchdog::output(rank));
    let ranks: Vec<_> = ranks.into_iter().map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Equal nodes, and others, are compared by `lockstep verify 09`.
#[test]
fn unequal_nodes_end_with_the_weights_of_one_node_and_another_number_of_ranks_with_others() {
    let (one, unequal, fewer) = (Ended::on(&[4]), Ended::on(&[3, 1]), Ended::on(&[1, 2]));
    assert!(one.printed.contains("node 0: ") && one.printed.contains(", ranks 0 1 2 3; "), "{}", one.printed);
    assert_eq!(unequal.samples(), one.samples(), "a node only changes which of the ranks are on it");
    assert!((0..4).all(|rank| unequal.weights(rank) == one.weights(0)), "the weights have other bits");
    assert_eq!(unequal.digest(), one.digest());
    assert_ne!(fewer.digest(), one.digest());
    prints_the_nodes_with_their_ranks_and_shares(&fewer.printed);
}

fn prints_the_nodes_with_their_ranks_and_shares(printed: &str) {
    let nodes: Vec<&str> = printed.lines().filter(|line| line.starts_with("node ")).collect();
    assert!(nodes[0].ends_with(" (127.0.0.1), rank 0; of every 3 samples, those at 0"), "{nodes:?}");
    assert!(nodes[1].ends_with(" (127.0.0.1), ranks 1 2; of every 3 samples, those at 1 2"), "{nodes:?}");
}

#[test]
fn runs_alone_without_a_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let output = lockstep_process::watchdog::output(command(&folder));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("World size: 1\nnode 0: "), "{}", text(&output.stdout));
}

#[test]
fn the_python_script_prints_the_same_nodes_and_results_on_unequal_nodes() {
    let Some(twin) = Job::in_python("lab 09 and its Python script") else { return };
    lockstep::data::Digits::write_idx(&twin.path("digits"), 3, 300, 75).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/many_nodes.py");
    let of = |job: &Job, args: &[&str]| {
        let command = || {
            let mut command = job.command(job.program());
            command.args(args).args(["--seed", "3", "--epochs", "1"]);
            command
        };
        printed_on(&[1, 2], command, |ranks| job.run_all(ranks))
    };
    let python = of(&twin, &[script, "--data", "digits"]);
    let own = of(&Job::new(lab()), &["--samples", "300", "--device", "cpu"]);
    assert_prints_alike(&own, &python, &["Epoch: ", "World size: "], 1e-3);
    // Only the lab prints the addresses.
    let nodes = |printed: &str| {
        let nodes = printed.lines().filter_map(|line| line.strip_prefix("node "));
        nodes.map(|node| node.replace(" (127.0.0.1)", "")).collect::<Vec<_>>()
    };
    assert_eq!(nodes(&own), nodes(&python));
    assert_eq!(nodes(&own).len(), 2);
}

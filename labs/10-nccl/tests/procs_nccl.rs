//! What lab 10 promises, on the simulated device.

use std::path::Path;

use lockstep_testkit::Job;

/// The lab with these variables, and without those of the caller that it would heed: `env` starts it.
fn lab(variables: &[&'static str], args: &[&'static str]) -> (Job, Vec<&'static str>) {
    let others = ["CUDA_VISIBLE_DEVICES", "LOCKSTEP_GPU", "LOCKSTEP_GPU_COUNT", "LOCKSTEP_GPU_MEMORY"];
    let removed =
        others.into_iter().chain(["LOCKSTEP_GPU_SEED", "LOCKSTEP_GPU_DEADLINE"]).flat_map(|name| ["-u", name]);
    let variables = variables.iter().copied().chain([env!("CARGO_BIN_EXE_lab-10-nccl")]);
    (Job::new(Path::new("env")), removed.chain(variables).chain(args.iter().copied()).collect())
}

#[test]
fn one_process_sums_over_all_devices_and_says_that_they_are_simulated() {
    let (job, args) = lab(&[], &["--simulated"]);
    let output = job.alone(&args);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.starts_with("4 simulated GPUs\ndevice 0: Lockstep simulated device 0 at "),
        "{output:?}"
    );
    for rank in 0..4 {
        assert!(text.contains(&format!("rank {rank} on device {rank}: the sum of all ranks is 6\n")), "{text}");
    }
    assert!(text.contains("device 0:      X     NV  (PHB)  (PHB)\n"), "{text}");
}

#[test]
fn ranks_meet_overlap_split_and_survive_a_hang() {
    let (mut job, args) = lab(&[], &["--simulated", "--max-bytes", "16384", "--repeats", "1", "--patience", "100"]);
    let text = job.succeeds(3, &args).stdout();
    for line in [
        "with an event: the sum is 6, right",
        "without an event: the sum is 0, wrong",
        "rank 2 is rank 1 of 2 with its parity; the sum of these is 2",
        "all-reduce on simulated GPUs",
        "rank 0: the operation was aborted",
        "rank 2: the operation was aborted",
        "a new communicator: the sum over 3 ranks is 3",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn more_ranks_than_devices_are_refused_with_the_way_out() {
    let (mut job, args) = lab(&["LOCKSTEP_GPU=simulated"], &[]);
    let ended = job.attempt(5, &args);
    assert!(!ended.succeeded());
    assert!(
        ended.stderr().contains("5 ranks on this node but 4 simulated GPUs: start --nproc-per-node=4"),
        "{}",
        ended.stderr()
    );
}

#[test]
fn simulated_takes_a_device_for_each_rank_whatever_the_variables_say() {
    let (mut job, args) = lab(
        &["LOCKSTEP_GPU=real", "CUDA_VISIBLE_DEVICES=0"],
        &["--simulated", "--max-bytes", "4096", "--repeats", "1", "--patience", "100"],
    );
    let text = job.succeeds(6, &args).stdout();
    assert!(text.contains("6 simulated GPUs\n"), "{text}");
    assert!(text.contains("a new communicator: the sum over 6 ranks is 6"), "{text}");
    let (mut job, args) = lab(&["LOCKSTEP_GPU_COUNT=2"], &["--simulated"]);
    let ended = job.attempt(3, &args);
    assert!(
        !ended.succeeded() && ended.stderr().contains("3 ranks on this node but 2 simulated GPUs"),
        "{}",
        ended.stderr()
    );
}

//! What lab 10 promises, on the simulated device.

use std::path::Path;

use lockstep_testkit::Job;

fn lab() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_lab-10-nccl"))
}

#[test]
fn one_process_sums_over_all_devices_and_says_that_they_are_simulated() {
    let job = Job::new(lab());
    let output = job.alone(&["--simulated"]);
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
    let ended =
        Job::new(lab()).succeeds(3, &["--simulated", "--max-bytes", "16384", "--repeats", "1", "--patience", "100"]);
    let text = ended.stdout();
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
    let ended = Job::new(lab()).attempt(5, &["--simulated"]);
    assert!(!ended.succeeded());
    assert!(
        ended.stderr().contains("5 ranks on this node but 4 simulated GPUs: start --nproc-per-node=4"),
        "{}",
        ended.stderr()
    );
}

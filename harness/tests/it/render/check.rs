//! `lockstep render --check` from outside: scripts of public tutorials, the scripts that the command itself writes, and its output.
//! Each kind of mistake has an example next to its rule, and a test there.

use std::collections::BTreeSet;
use std::fs;

use insta::assert_snapshot;
use serde_json::Value;

use super::scripts::KINDS;
use super::{render, script};
use crate::shown::filtered;

/// The kinds of mistake in a script, and their lines.
fn found(text: &str) -> BTreeSet<(u64, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.sh");
    fs::write(&path, text).unwrap();
    let ended = render(&["--check", path.to_str().unwrap(), "--json"]);
    let findings: Vec<Value> = serde_json::from_str(&ended.out).unwrap();
    findings
        .iter()
        .map(|finding| (finding["line"].as_u64().unwrap(), finding["rule"].as_str().unwrap().to_owned()))
        .collect()
}

#[track_caller]
fn assert_found(text: &str, expected: &[(u64, &str)]) {
    let expected: BTreeSet<_> = expected.iter().map(|(line, rule)| (*line, (*rule).to_owned())).collect();
    assert_eq!(found(text), expected);
}

/// A computing centre's tutorial, on two nodes under PBS: the job ended with RendezvousTimeoutError. Abridged.
const PBS_TUTORIAL: &str = r#"#!/bin/bash
#PBS -l select=2:ncpus=288:mpiprocs=2,walltime=3:00:00,place=scatter
#PBS -q queue
module load cuda/12.6
source /home/users/<your-username>/venv/bin/activate
nodes=($(sort $PBS_NODEFILE | uniq))
head_node=${nodes[0]}
head_node_ip=$(ssh "$head_node" "hostname -I | awk '{print \$1}'")
export FI_PROVIDER="efa"
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=hsn0
torchrun --nnodes=2 --nproc_per_node=2 --rdzv_id=$RANDOM --rdzv_backend=c10d --rdzv_endpoint=$head_node_ip:29500 train.py 50 10
"#;

#[test]
fn finds_why_the_tutorial_for_pbs_times_out() {
    let expected = [
        (4, "goes-on-after-errors"),
        (5, "placeholder-left"),
        (6, "unquoted-variable"),
        (9, "provider-of-another-network"),
        (10, "debug-output-left-on"),
        (12, "fixed-port"),
        (12, "id-differs-between-nodes"),
        (12, "launcher-on-the-head-node-only"),
        (12, "no-gpus-requested"),
        (12, "threads-not-set"),
    ];
    assert_found(PBS_TUTORIAL, &expected);
}

#[test]
fn finds_the_missing_gpu_in_the_tutorial_for_one_node() {
    let text = "#!/bin/bash\n#PBS -l select=1:ncpus=4:mpiprocs=4:ngpus=1,walltime=00:30:00\nset -e\nsource myenv\\bin\\activate\n\
                torchrun --standalone --nnodes=1 --nproc_per_node=2 multi_gpu.py 50 10\n";
    assert_found(text, &[(4, "backslash-in-a-path"), (5, "more-workers-than-gpus"), (5, "threads-not-set")]);
}

#[test]
fn finds_the_faults_of_the_tutorial_for_slurm_and_apptainer() {
    let text = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4 --time=1:00:00\nset -e\n\
                APPTAINER_CACHEDIR=\"/not/my/home\"\napptainer pull docker://pytorch/pytorch\nexport NCCL_IB_GID_INDEX=3\n\
                MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1):$RANDOM\n\
                mpiArgs=\"-np $SLURM_JOB_NUM_NODES\"\napptainerArgs=\"\n  -B /work:/work\n  pytorch_latest.sif\n  \
                torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR train.py\n\"\n\
                mpirun $mpiArgs apptainer run $apptainerArgs\n";
    let expected = [
        (4, "not-exported"),
        (5, "cache-in-the-home-folder"),
        (14, "bound-to-one-core"),
        (14, "container-without-gpus"),
        (14, "mpirun-takes-no-exports"),
        (14, "port-out-of-range"),
        (14, "threads-not-set"),
    ];
    assert_found(text, &expected);
}

#[test]
fn finds_the_faults_of_command_lines_in_notebooks() {
    let text = "CUDA_VISIBLE_DEVICES=2 python -W ignore -m torch.distributed.launch --nproc_per_node=2 --nnodes=1 --master_addr=127.0.0.1 train.py\n\
                torchrun –standalone --nnodes=1 --nproc-per-node=4 train.py\n";
    let expected = [
        (1, "deprecated-launch"),
        (1, "fewer-devices-than-workers"),
        (2, "fewer-devices-than-workers"),
        (2, "typographic-characters"),
    ];
    assert_found(text, &expected);
}

#[test]
fn tells_a_placeholder_from_a_header_in_a_text_and_a_pattern_from_a_path() {
    let text = "#!/bin/bash\n#SBATCH --account=<project> --time=1:00:00\nset -e\nprintf '#include <optional>\\n' >x.cc\n\
                ssh -o BatchMode=yes node7 ./train\nssh \"$head\" ./train\nrm -f $RUN/node/*\n";
    assert_found(text, &[(2, "placeholder-left"), (5, "fixed-nodes"), (7, "unquoted-variable")]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.sh");
    fs::write(&path, text).unwrap();
    let output = render(&["--check", path.to_str().unwrap()]).code(1).out;
    assert!(output.contains("fix: \"$RUN\"/node/*\n"), "{output}");
}

#[test]
fn finds_nothing_in_what_the_command_itself_writes() {
    for (name, words) in KINDS {
        let text = script(words);
        assert!(found(&text).is_empty(), "{name}: {:?} in\n{text}", found(&text));
    }
}

#[test]
fn lists_mistakes_as_compilers_do_and_ends_with_1_for_errors_alone() {
    let folder = tempfile::tempdir().unwrap();
    let _filtered = filtered(Some(folder.path()));
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let wrong = write("tutorial.pbs", PBS_TUTORIAL);
    let poor = write("poor.sh", "#!/bin/bash\n#SBATCH --nodes=1\nset -e\nsrun ./train\n");
    let good = write("good.sh", "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00\nset -e\nsrun ./train\n");
    assert_snapshot!("check", render(&["--check", &wrong, &poor, &good]).code(1));
    assert_snapshot!("check_warnings", render(&["--check", &poor]).code(0));
    render(&["--check", &good]).code(0);
    render(&["--check", "nowhere.sh"]).code(2).says(&["cannot read nowhere.sh: No such file"]);
}

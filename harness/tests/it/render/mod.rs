//! `lockstep render`: the scripts that it writes, read by people (insta), by shellcheck and by bash, and `--check` on scripts of public
//! tutorials. [`running`] runs what it writes.

mod running;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use insta::assert_snapshot;
use lockstep_launch::command::quoted;
use serde_json::Value;

use crate::running::{Ended, ended};
use crate::shown::{filtered, plain};

fn render(words: &[&str]) -> Ended {
    ended(Command::new(assert_cmd::cargo::cargo_bin!("lockstep")).arg("render").args(words))
}

/// A script; the words are those of a shell, split at blanks outside single quotes.
fn script(words: &str) -> String {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for sign in words.chars() {
        match sign {
            '\'' => quoted = !quoted,
            ' ' if !quoted => all.push(String::new()),
            _ => all.last_mut().unwrap().push(sign),
        }
    }
    render(&all.iter().map(String::as_str).collect::<Vec<_>>()).code(0).out
}

/// The script that a script starts on other nodes.
fn agent(script: &str) -> Option<&str> {
    let (_, rest) = script.split_once("<<'AGENT'\n")?;
    Some(rest.split_once("\nAGENT\n").unwrap().0)
}

// ---- the scripts

/// One of each kind: the name of its snapshot, and the command line.
pub(super) const KINDS: &[(&str, &str)] = &[
    ("slurm", "--profile slurm-virtual-environment --nodes 2 --time 01:00:00 -- train.py --epochs 10"),
    (
        "slurm_container_signal_stage",
        "--profile slurm-apptainer --nodes 2 --time 01:00:00 --signal 120 --stage /scratch/training/data.tar.gz -- lab-06 --data {local} --snapshots /scratch/training/run",
    ),
    (
        "slurm_unequal_nodes",
        "--profile slurm-apptainer --nodes 1x4,2x2 --time 2-00:00:00 --stage /scratch/training/data -- lab-06",
    ),
    (
        "slurm_array",
        "--profile slurm-cpu --array 4 --workers-per-node 2 --time 00:10:00 --signal 30 -- lab-06 --seed {task} --snapshots run-{task}",
    ),
    (
        "slurm_mpirun",
        "--profile slurm-mpirun --nodes 2 --time 01:00:00 --signal 60 -- lab-06 --snapshots /scratch/training/run",
    ),
    ("slurm_amd", "--profile slurm-amd --nodes 2 --time 01:00:00 -- train.py --epochs 10"),
    (
        "slurm_elastic",
        "--profile slurm-cpu --nodes 2-4 --time 01:00:00 --signal 60 -- lab-06 --virtual-ranks 8 --snapshots /shared/run",
    ),
    ("slurm_build", "--profile slurm-apptainer --build --time 01:00:00 --name build -- cargo build --release"),
    (
        "pbs_signal_stage",
        "--profile pbs-arm --nodes 2 --time 03:00:00 --signal 120 --stage /project/training/data -- lab-06 --data {local}/data --snapshots /project/training/run",
    ),
    (
        "pbs_elastic",
        "--profile pbs-arm --nodes 2-4 --time 03:00:00 -- lab-06 --virtual-ranks 8 --snapshots /project/training/run",
    ),
    ("ssh_torchrun", "--profile ssh-torchrun --nodes 2 -- train.py"),
    ("pbs_unequal_nodes", "--profile pbs-arm --nodes 1x4,2x2 --time 03:00:00 -- lab-06"),
    ("pbs_array", "--profile pbs-arm --array 4 --time 03:00:00 -- lab-03 --seed {task}"),
    ("pbs_build", "--profile pbs-arm --build --time 01:00:00 -- scripts/setup.sh --cuda"),
    (
        "ssh_unequal_nodes",
        "--profile ssh-workstations --nodes 1x2,1x1 --time 01:00:00 --signal 60 -- lab-06 --snapshots /shared/training/run",
    ),
    ("mpirun", "--profile mpirun-workstations --nodes 2 -- lab-06"),
];

#[test]
fn scripts_of_every_kind_read_as_recorded() {
    let _plain = plain();
    for (name, words) in KINDS {
        assert_snapshot!(*name, script(words));
    }
}

#[test]
fn scripts_and_what_they_start_on_nodes_pass_shellcheck() {
    if Command::new("shellcheck").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("not verified here: rendered scripts under shellcheck, which is not installed");
        return;
    }
    for (name, words) in KINDS {
        let script = script(words);
        shellcheck(name, &script);
        agent(&script).into_iter().for_each(|agent| shellcheck(&format!("{name}'s agent"), agent));
    }
}

fn shellcheck(name: &str, script: &str) {
    // The site's own files, such as a virtual environment's `activate`, are not here.
    let mut command = Command::new("shellcheck");
    let mut child = command.args(["-e", "SC1091", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}:\n{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn only_a_launcher_that_cannot_ask_the_scheduler_gets_flags() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = |profile: &str| {
        let path = folder.path().join("site.toml");
        std::fs::write(&path, profile).unwrap();
        script(&format!("--profile {} --nodes 2 --time 01:00:00 -- lab-06", quoted(path.to_str().unwrap())))
    };
    let slurm = rendered("scheduler = \"slurm\"");
    assert!(slurm.contains("\n  lockstep run --nproc-per-node=1 \\\n  lab-06\n"), "{slurm}");
    assert!(!slurm.contains("rdzv") && !slurm.contains("head="), "{slurm}");
    for profile in ["scheduler = \"slurm\"\nlauncher = \"torchrun\"", "scheduler = \"slurm\"\nrendezvous = \"flags\""] {
        assert!(rendered(profile).contains("--rdzv-endpoint=\"$head:$port\""), "{profile}");
    }
    let pbs = rendered("scheduler = \"pbs\"\nshared = \"/work\"");
    assert!(
        pbs.contains("lockstep run --nproc-per-node=\"$workers\" --hostfile=\"$run/hosts\" --rdzv-id=\"$id\" \\\n"),
        "{pbs}"
    );
}

#[test]
fn refusals_say_what_to_change() {
    let _plain = plain();
    let refusals = [
        "--profile slurm-cpu -- lab-06",
        "--profile slurm-cpu --time 1 -- lab-06",
        "--profile slurm-cpu --time 00:01:00 --signal 60 -- lab-06",
        "--profile slurm-cpu --time 01:00:00 --stage /data -- lab-06",
        "--profile slurm-cpu --time 01:00:00 --nodes 2y3 -- lab-06",
        "--profile slurm-cpu --time 01:00:00 --nodes 4-2 -- lab-06",
        "--profile slurm-mpirun --time 01:00:00 --nodes 2-4 -- lab-06",
        "--profile mpirun-workstations --nodes 2-4 -- lab-06",
        "--profile mpirun-workstations --nodes 1x2,1x1 -- lab-06",
        "--profile ssh-workstations --array 2 -- lab-06",
        "--profile pbs-arm --array 2 --time 01:00:00 --signal 60 -- lab-06",
        "--profile nowhere.toml -- lab-06",
        "--show nothing",
    ];
    let refused = |words: &&str| {
        let ended = render(&words.split(' ').collect::<Vec<_>>()).code(2);
        format!("$ lockstep render {words}\n{}\n", ended.err)
    };
    assert_snapshot!("refusals", refusals.iter().map(refused).collect::<String>());
}

#[test]
fn examples_are_listed_and_printed_and_can_be_edited() {
    let list = render(&["--list"]).code(0).out;
    let names: Vec<&str> = list.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.contains(&"pbs-arm") && names.len() >= 7, "{list}");
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join("site.toml");
        std::fs::write(&path, render(&["--show", name]).code(0).out).unwrap();
        let of = |site: &str| script(&format!("--profile {site} --time 01:00:00 -- lab-06"));
        assert_eq!(of(&quoted(path.to_str().unwrap())).replace("site.toml", name), of(name));
    }
}

// ---- `--check`: scripts of public tutorials, and its output; each kind of mistake has an example next to its rule, and a test there

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
    // A site without GPUs whose template is that of one with GPUs.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("site.toml");
    let site = quoted(path.to_str().unwrap());
    for scheduler in ["slurm", "pbs", "ssh", "mpirun"] {
        let own = "modules = [\"cuda\", \"gcc\"]\nsetup = [\"source /opt/venv/bin/activate\"]\ninterface = \"ib0\"\nproxy = \"http://p:1\"";
        let hosts = if ["ssh", "mpirun"].contains(&scheduler) { "\nhostfile = \"hosts\"" } else { "" };
        fs::write(&path, format!("scheduler = \"{scheduler}\"\nshared = \"/work\"\ncpus-per-node = 8\n{own}{hosts}\n"))
            .unwrap();
        let text = script(&format!("--profile {site} --nodes 2 --workers-per-node 2 --time 01:00:00 -- lab-06"));
        assert!(found(&text).is_empty(), "{scheduler}: {:?} in\n{text}", found(&text));
    }
}

#[test]
fn finds_nothing_with_any_profile_and_options_of_the_command() {
    let profiles: Vec<_> = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/site/profiles"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let mut scripts = vec![];
    for profile in &profiles {
        let name = profile.file_stem().unwrap().to_str().unwrap();
        let before = scripts.len();
        for nodes in ["--nodes=2", "--nodes=2-4", "--nodes=1x2,1x1", "--array=3"] {
            for more in [&[][..], &["--signal=60"], &["--signal=60", "--stage=/project/training/data"]] {
                let file = folder.path().join(format!("{name}{nodes}{}", more.len()));
                let options = ["--profile", name, nodes, "--time=01:00:00", "--out", file.to_str().unwrap()];
                let program = ["--", "lab-06", "--snapshots", "/project/training/run"];
                // Not every scheduler has arrays, or every site a disk of its own in a node.
                if render(&[&options[..], more, &program].concat()).status.code() != Some(2) {
                    scripts.push(file.to_str().unwrap().to_owned());
                }
            }
        }
        assert!(scripts.len() > before, "nothing is rendered for {name}");
    }
    let names: Vec<_> = scripts.iter().map(String::as_str).collect();
    assert_eq!(render(&[&["--check"], &names[..], &["--json"]].concat()).code(0).out.trim(), "[]");
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

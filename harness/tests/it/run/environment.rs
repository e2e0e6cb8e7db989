//! A worker's environment: its variables, its arguments, its standard input, its store.

use std::collections::BTreeSet;
use std::process::Stdio;

use crate::run::site::Site;
use crate::running::Running;

/// Prints the variables of the worker that a launcher sets, in one line, which is one write: `python -u` writes each word of
/// `print` by itself, and lines of two ranks mix.
const SHOW: &str = r#"
import os, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
    "MASTER_ADDR", "MASTER_PORT"]
sys.stdout.write(" ".join(f"{name}={os.environ.get(name)}" for name in names) + "\n")
"#;

#[test]
fn every_variable_of_the_contract_is_set() {
    let site = Site::new();
    let script = site.file("show.py", SHOW);
    let address = site.address(0);
    let port = site.free_port(&address).to_string();
    let place = ["--master-addr", &address, "--master-port", &port];
    let flags = [&place[..], &["--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=job7", "--role=trainer"]].concat();
    let ended = site.run(&[&flags[..], &["--prefix=never", &script]].concat()).code(0);
    let expected = |rank: u8| {
        format!(
            "RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=1 \
             ROLE_NAME=trainer ROLE_RANK={rank} ROLE_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=0 \
             TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_USE_AGENT_STORE=True \
             TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT TORCH_NCCL_ASYNC_ERROR_HANDLING=1 \
             OMP_NUM_THREADS=1 MASTER_ADDR={address} MASTER_PORT={port}"
        )
    };
    assert_eq!(ended.sorted(), [expected(0), expected(1)]);
    site.assert_no_process();
}

#[test]
fn every_variable_that_a_worker_gets_is_on_the_page_of_the_book() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../book/src/reference-variables.md");
    let page = std::fs::read_to_string(page).unwrap();
    let ended =
        Site::new().run(&["--standalone", "--nproc-per-node=2", "--virtual-local-rank", "--prefix=never", "env"]);
    let names: BTreeSet<_> =
        ended.code(0).out.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned()).collect();
    assert!(names.contains("ROLE_WORLD_SIZE") && names.contains("CUDA_VISIBLE_DEVICES"), "{names:?}");
    let of_the_test = ["HOME", "LC_ALL", "LOCKSTEP_TEST_SITE", "PYTHONDONTWRITEBYTECODE", "TMPDIR"];
    let is_inherited = |name: &&String| std::env::var_os(name).is_some() || of_the_test.contains(&name.as_str());
    let from_launcher = names.iter().filter(|name| !is_inherited(name));
    let missing: Vec<_> = from_launcher.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn variables_of_the_user_are_kept_and_a_single_worker_gets_no_thread_limit() {
    let site = Site::new();
    let script = site.file("show.py", SHOW);
    let mut command = site.lockstep(&["--standalone", "--prefix=never", "--nproc-per-node=2", &script]);
    command.env("OMP_NUM_THREADS", "5").env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3").env("RANK", "77");
    let ended = Running::start(command).ended().code(0).never_says(&["OMP_NUM_THREADS"]);
    assert_eq!(ended.out.matches("TORCH_NCCL_ASYNC_ERROR_HANDLING=3 OMP_NUM_THREADS=5").count(), 2, "{}", ended.out);
    assert!(!ended.out.contains("RANK=77"));
    let alone = site.run(&["--standalone", &script]).code(0);
    assert!(alone.out.contains("OMP_NUM_THREADS=None"), "{}", alone.out);
}

#[test]
fn a_standalone_job_has_a_random_id_and_its_own_store() {
    let site = Site::new();
    let show = ["sh", "-c", "echo $TORCHELASTIC_RUN_ID $MASTER_PORT"];
    let [first, second] = [0, 1].map(|_| site.run(&[&["--standalone"], &show[..]].concat()).code(0).out);
    assert_ne!(first.split(' ').next(), second.split(' ').next());
    assert_eq!(first.split(' ').next().unwrap().len(), 36, "a UUID: {first}");
}

#[test]
fn arguments_are_templates_and_everything_else_is_passed_unchanged() {
    let site = Site::new();
    let script = site.file("args.py", "import sys; print(sys.argv[1:])");
    let given = ["${local_rank}", "a$$b", "$HOME", "--max-restarts", "-t", "--", "", "two words", "é", "${rank}"];
    let flags = ["--standalone", "--nproc-per-node=2", "--prefix=never", &script];
    let ended = site.run(&[&flags[..], &given[..]].concat()).code(0);
    let expected = |rank: u8| {
        format!("['{rank}', 'a$b', '$HOME', '--max-restarts', '-t', '--', '', 'two words', 'é', '${{rank}}']")
    };
    assert_eq!(ended.sorted(), [expected(0), expected(1)]);
}

#[test]
fn workers_read_the_standard_input_of_the_command() {
    let site = Site::new();
    let mut command = site.lockstep(&["--standalone", "sh", "-c", "read line; echo got $line"]);
    let mut running = Running::start({
        command.stdin(Stdio::piped());
        command
    });
    running.write_stdin(b"from outside\n");
    assert_eq!(running.ended().code(0).out, "got from outside\n");
}

#[test]
fn all_workers_of_a_node_reach_the_store_at_the_master_address() {
    let site = Site::new();
    let script = site.file("reach.py", REACH);
    let [port, address] = site.master();
    for flags in [&["--standalone"][..], &[&port, &address]] {
        let ended = site.run(&[flags, &["--nproc-per-node=3", "--prefix=never", &script]].concat()).code(0);
        assert_eq!(ended.out, "reached\n".repeat(3));
    }
}

/// Sends the first bytes of c10d's client, then requests a number and gets it.
pub(crate) const REACH: &str = r#"
import os, socket, struct, sys
with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30) as store:
    key = b"visits"
    store.sendall(bytes([0]) + struct.pack("<I", 0x3C85F7CE) + bytes([4]) + struct.pack("<Q", len(key)) + key + struct.pack("<q", 1))
    number = store.recv(8, socket.MSG_WAITALL)
    assert 1 <= struct.unpack("<q", number)[0] <= int(os.environ["WORLD_SIZE"]), number
sys.stdout.write("reached\n")
"#;

#[test]
fn virtual_local_ranks_are_all_zero_with_one_device_each() {
    let site = Site::new();
    let show = ["sh", "-c", "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"];
    let flags = ["--standalone", "--virtual-local-rank", "--nproc-per-node=2", "--prefix=never"];
    let mut command = site.lockstep(&[&flags[..], &show[..]].concat());
    command.env("CUDA_VISIBLE_DEVICES", "4,7");
    assert_eq!(Running::start(command).ended().code(0).sorted(), ["0 0 4", "1 0 7"]);
}

#[test]
fn sixty_four_workers_run_and_each_has_its_rank() {
    let site = Site::new();
    let flags = ["--standalone", "--nproc-per-node=64", "--prefix=never", "sh", "-c", "echo $RANK"];
    let ended = site.run(&flags).code(0);
    let mut ranks: Vec<u32> = ended.out.lines().map(|line| line.parse().unwrap()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..64).collect::<Vec<u32>>());
    site.assert_no_process();
}

//! Several agents, each with its own loopback address: ranks, the workers' store, restarts and failures of all nodes, nodes that come and leave
//! while the workers of others run, and more workers than the limit of open files allows.

use std::collections::BTreeMap;
use std::process::Command;

use lockstep_process::free_port;
use rustix::process::Signal;

use crate::run::programs::REACH;
use crate::run::site::Site;
use crate::running::{Running, lockstep};

/// The agents of one job: their endpoint and their common options.
pub(crate) struct AgentGroup<'a> {
    pub(crate) site: &'a Site,
    pub(crate) endpoint: String,
    /// For `--rdzv-conf`.
    pub(crate) conf: &'static str,
}

/// Frequent heartbeats, so that a node without one is detected soon.
pub(crate) const SOON: &str = "keep_alive_interval=0.2,keep_alive_max_attempt=3,last_call_timeout=0.1";

/// Frequent heartbeats, but a node of a busy machine may be without one for a while.
const OFTEN: &str = "keep_alive_interval=0.2,keep_alive_max_attempt=50,last_call_timeout=0.1";

impl<'a> AgentGroup<'a> {
    pub(crate) fn new(site: &'a Site) -> Self {
        let endpoint = format!("{}:{}", site.address(0), free_port().unwrap());
        AgentGroup { site, endpoint, conf: OFTEN }
    }

    /// Agent `n` with c10d; the first one hosts the store.
    pub(crate) fn c10d(&self, n: u8, words: &[&str]) -> Command {
        let conf = format!("--rdzv-conf=is_host={},{}", u8::from(n == 0), self.conf);
        let (endpoint, local) =
            (format!("--rdzv-endpoint={}", self.endpoint), format!("--local-addr={}", self.site.address(n)));
        self.site.lockstep(&[&["--rdzv-backend=c10d", &endpoint, &local, &conf], words].concat())
    }

    /// Agent `n` with a static rendezvous.
    pub(crate) fn fixed(&self, n: u8, words: &[&str]) -> Command {
        let (address, port) = self.endpoint.split_once(':').unwrap();
        let (address, port) = (format!("--master-addr={address}"), format!("--master-port={port}"));
        let (rank, conf) = (format!("--node-rank={n}"), format!("--rdzv-conf={}", self.conf));
        self.site.lockstep(&[&[&*address, &*port, &*rank, &*conf], words].concat())
    }
}

/// Prints the worker's ranks after it has reached the store.
const WHO: &str = r#"
sys.stdout.write(" ".join(os.environ[name] for name in ("GROUP_RANK", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR")) + "\n")
"#;

#[test]
fn nodes_with_unequal_numbers_of_workers_are_one_world_that_meets_at_one_store() {
    for fixed in [false, true] {
        let site = Site::new();
        let job = AgentGroup::new(&site);
        let script = site.file("who.py", &format!("{REACH}{WHO}"));
        let start = |n: u8| {
            let workers = format!("--nproc-per-node={}", n + 1);
            let words = ["--nnodes=3", &workers, "--prefix=never", &script];
            Running::start(if fixed { job.fixed(n, &words) } else { job.c10d(n, &words) })
        };
        let nodes = [2, 0, 1].map(start);
        let ended = nodes.map(|node| node.ended().code(0));
        let mut workers: BTreeMap<u32, Vec<Vec<String>>> = BTreeMap::new();
        for line in ended.iter().flat_map(|ended| ended.out.lines()).filter(|line| *line != "reached") {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            workers.entry(words[0].parse().unwrap()).or_default().push(words);
        }
        let mut next = 0;
        for (group_rank, mut node) in workers {
            node.sort();
            let size = node.len();
            for (local_rank, words) in node.into_iter().enumerate() {
                let (group_rank, rank, local_rank) = (group_rank.to_string(), next.to_string(), local_rank.to_string());
                let size = size.to_string();
                let expected = [&*group_rank, &rank, &local_rank, &size, "6", "3", &rank, "6", &site.address(0)];
                assert_eq!(words, expected);
                next += 1;
            }
        }
        assert_eq!(next, 6);
        site.assert_no_process();
    }
}

/// Rank 1 fails once, as soon as rank 0 is up; rank 0 ends after the second attempt of rank 1.
const FAILS_ONCE: &str = "echo rank $RANK count $TORCHELASTIC_RESTART_COUNT; \
    wait_for() { while [ ! -e $1 ]; do sleep 0.02; done; }; \
    if [ $RANK = 0 ]; then : > up; wait_for second; exit 0; fi; \
    if [ ! -e failed ]; then wait_for up; : > failed; exit 9; fi; \
    : > second";

#[test]
fn a_worker_that_fails_on_one_node_restarts_the_workers_of_all_nodes() {
    for fixed in [false, true] {
        let site = Site::new();
        let job = AgentGroup::new(&site);
        let words = ["--nnodes=2", "--max-restarts=1", "sh", "-c", FAILS_ONCE];
        let [first, second] =
            [0, 1].map(|n| Running::start(if fixed { job.fixed(n, &words) } else { job.c10d(n, &words) }));
        let (first, second) = (first.ended().code(0), second.ended().code(0));
        // Only the agent with the failed worker has used a restart.
        assert_eq!(first.out, "rank 0 count 0\n".repeat(2));
        assert_eq!(second.out, "rank 1 count 0\nrank 1 count 1\n");
        second.says(&["local rank 0 ended with exit code 9: stopping all workers", "(0 restarts left)"]);
        first.says(&["not counted as a restart"]);
        site.assert_no_process();
    }
}

#[test]
fn a_node_that_fails_for_good_ends_the_others_and_they_name_it() {
    for fixed in [false, true] {
        let site = Site::new();
        let job = AgentGroup::new(&site);
        let words = ["--nnodes=2", "sh", "-c", "[ $RANK = 0 ] && exec sleep 1000; echo out of luck >&2; exit 9"];
        let [first, second] =
            [0, 1].map(|n| Running::start(if fixed { job.fixed(n, &words) } else { job.c10d(n, &words) }));
        second.ended().code(1).says(&["exitcode  : 9 ", "Last lines of rank 1:\n  out of luck"]);
        first.ended().code(1).says(&["ended the job", "root cause: rank 1 (local_rank 0, pid ", "exited with code 9"]);
        site.assert_no_process();
    }
}

/// What one of two nodes waits for whose workers have succeeded. Before its workers start, it may print what it waits for, too.
const ONE_SUCCEEDED: &str = "1 of 2 nodes have succeeded";

#[test]
fn a_node_whose_workers_have_succeeded_waits_for_the_others() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=2", "sh", "-c", "while [ $RANK = 1 ] && [ ! -e go ]; do sleep 0.02; done; echo $RANK ends"];
    let [first, second] = [0, 1].map(|n| Running::start(job.c10d(n, &words)));
    first.await_out("0 ends", 1);
    first.await_err(ONE_SUCCEEDED);
    site.file("go", "");
    second.ended().code(0);
    first.ended().code(0);
    site.assert_no_process();
}

#[test]
fn a_node_waits_for_the_others_up_to_its_timeout_and_names_them() {
    let site = Site::new();
    let job = AgentGroup { conf: "keep_alive_interval=0.2,keep_alive_max_attempt=50", ..AgentGroup::new(&site) };
    let words = ["--nnodes=2", "--exit-barrier-timeout=0.3", "sh", "-c", "[ $RANK = 0 ] && exec sleep 1000; exit 0"];
    let [first, second] = [0, 1].map(|n| Running::start(job.c10d(n, &words)));
    // As under torchrun, the success of its own workers is the success of this node.
    second.ended().code(0).says(&["have not ended in time (--exit-barrier-timeout)", &site.address(0)]);
    first.signal(Signal::TERM);
    first.ended().code(1);
    site.assert_no_process();
}

#[test]
fn a_failure_after_another_node_has_succeeded_ends_the_job_and_is_reported_on_both() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let fail = "[ $RANK = 0 ] && exit 0; while [ ! -e go ]; do sleep 0.02; done; exit 9";
    let words = ["--nnodes=2", "--max-restarts=5", "sh", "-c", fail];
    let [first, second] = [0, 1].map(|n| Running::start(job.c10d(n, &words)));
    first.await_err(ONE_SUCCEEDED);
    site.file("go", "");
    second.ended().code(1).says(&["exitcode  : 9 ", "already finished"]);
    first.ended().code(1).says(&["already finished"]);
    site.assert_no_process();
}

#[test]
fn a_single_node_may_use_a_port_that_the_system_chooses() {
    let site = Site::new();
    let words = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "sh", "-c", "echo $MASTER_PORT"];
    let port: u16 = site.run(&words).code(0).out.trim().parse().unwrap();
    assert_ne!(port, 0);
}

#[test]
fn an_unknown_key_of_the_rendezvous_gets_a_warning_and_is_ignored() {
    let site = Site::new();
    let words = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-conf=joint_timeout=5", "true"];
    site.run(&words).code(0).says(&["joint_timeout"]);
}

/// PyTorch's own tests pass quotes that no shell removes; torchrun ignores keys that the backend does not read.
#[test]
fn a_key_of_the_other_backend_gets_a_warning_and_is_ignored() {
    let site = Site::new();
    let conf = "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=5'";
    let words = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", conf, "true"];
    site.run(&words).code(0).says(&["a c10d rendezvous does not read the key `timeout`", "'join_timeout"]);
}

/// Prints its world size and runs until the test ends it.
const STAYS: &str = "echo world $WORLD_SIZE count $TORCHELASTIC_RESTART_COUNT; while [ ! -e go ]; do sleep 0.02; done";

/// The first agent runs alone until the second joins it.
fn one_joins(job: &AgentGroup<'_>, words: &[&str]) -> (Running, Running) {
    let first = Running::start(job.c10d(0, words));
    first.await_out("world 1", 1);
    let second = Running::start(job.c10d(1, words));
    first.await_out("world 2", 1);
    second.await_out("world 2", 1);
    (first, second)
}

#[test]
fn a_late_node_joins_and_it_does_not_count_as_a_restart() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=1:3", "--max-restarts=0", "--nproc-per-node=2", "--prefix=never", "sh", "-c", STAYS];
    let first = Running::start(job.c10d(0, &words));
    first.await_out("world 2 count 0", 2);
    let second = Running::start(job.c10d(1, &words));
    second.await_out("world 4 count 0", 2);
    first.await_out("world 4 count 0", 2);
    let third = Running::start(job.c10d(2, &words));
    for node in [&first, &second, &third] {
        node.await_out("world 6 count 0", 2);
    }
    site.file("go", "");
    first.ended().code(0).says(&["joined", "not counted as a restart"]);
    second.ended().code(0);
    third.ended().code(0);
    site.assert_no_process();
}

#[test]
fn a_node_beyond_the_maximum_waits_and_takes_the_place_of_one_that_dies() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=2", "sh", "-c", STAYS];
    let [first, second] = [0, 1].map(|n| Running::start(job.c10d(n, &words)));
    second.await_out("world 2", 1);
    first.await_out("world 2", 1);
    let spare = Running::start(job.c10d(2, &words));
    spare.await_err("this node is spare 1");
    second.signal(Signal::KILL);
    spare.await_out("world 2", 1);
    first.await_out("world 2", 2);
    site.file("go", "");
    first.ended().code(0).says(&["was lost: its connection to the store was closed", "not counted as a restart"]);
    spare.ended().code(0);
    second.ended().killed_by(Signal::KILL);
    site.await_no_process();
}

#[test]
fn an_agent_that_dies_while_the_others_gather_again_is_not_waited_for() {
    let site = Site::new();
    let job = AgentGroup { conf: "last_call_timeout=0.1,join_timeout=60", ..AgentGroup::new(&site) };
    // The second agent's workers ignore SIGTERM, so that it is still stopping them when it dies.
    let words = ["--nnodes=1:2", "--max-restarts=1", "--stop-timeout=1000", "sh", "-c", IGNORES_TERM];
    let (first, second) = one_joins(&job, &words);
    site.file("fail", "");
    second.await_err("stopping all workers");
    second.signal(Signal::KILL);
    first.await_out("world 1 count 1", 1);
    site.file("go", "");
    first.ended().code(0);
    second.ended().killed_by(Signal::KILL);
    site.await_no_process();
}

const IGNORES_TERM: &str = "trap '[ $RANK = 1 ] || exit 1' TERM; echo world $WORLD_SIZE count $TORCHELASTIC_RESTART_COUNT; \
    while [ ! -e go ]; do sleep 0.02; \
    if [ $RANK = 0 ] && [ $WORLD_SIZE = 2 ] && [ -e fail ]; then exit 3; fi; done";

#[test]
fn a_silent_agent_is_lost_after_its_lease_and_comes_back_when_it_continues() {
    let site = Site::new();
    let job = AgentGroup { conf: SOON, ..AgentGroup::new(&site) };
    let words = ["--nnodes=1:2", "sh", "-c", STAYS];
    let (first, second) = one_joins(&job, &words);
    second.signal(Signal::STOP);
    first.await_out("world 1 count 0", 2);
    second.signal(Signal::CONT);
    first.await_out("world 2 count 0", 2);
    second.await_out("world 2 count 0", 2);
    // Ended by a signal, since either may be lost again where its heartbeats come late.
    first.signal(Signal::TERM);
    first.ended().code(1).says(&["no heartbeat for"]);
    second.signal(Signal::TERM);
    second.ended().code(1).says(&["the others removed this node"]);
    site.assert_no_process();
}

#[test]
fn an_agent_that_is_stopped_leaves_and_the_others_continue() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=1:2", "sh", "-c", STAYS];
    let (first, second) = one_joins(&job, &words);
    second.signal(Signal::TERM);
    second.ended().code(1).says(&["received SIGTERM"]);
    first.await_out("world 1 count 0", 2);
    site.file("go", "");
    first.ended().code(0).says(&["left: it was asked to end"]);
    site.assert_no_process();
}

/// The first worker fails as one that has lost its peer, once the test says so.
const LOSES_ITS_PEER: &str = "echo world $WORLD_SIZE count $TORCHELASTIC_RESTART_COUNT; while [ ! -e go ]; do sleep 0.02; \
    if [ $RANK = 0 ] && [ $WORLD_SIZE = 2 ] && [ -e lost ]; then \
    echo 'RuntimeError: Connection closed by peer [127.0.0.1]:40112' >&2; exit 1; fi; done";

/// The agents would know the loss of a node after ten seconds if it had no sign.
#[test]
fn a_worker_that_fails_before_its_agent_knows_that_a_node_is_lost_costs_no_restart() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=1:2", "--max-restarts=0", "sh", "-c", LOSES_ITS_PEER];
    let (first, second) = one_joins(&job, &words);
    site.file("lost", "");
    first.await_err("ended with exit code 1");
    second.signal(Signal::KILL);
    first.await_out("world 1 count 0", 2);
    site.file("go", "");
    first.ended().code(0).says(&["was lost", "not counted as a restart"]).never_says(&["verdict"]);
    second.ended().killed_by(Signal::KILL);
    site.await_no_process();
}

#[test]
fn a_worker_that_has_lost_a_peer_counts_where_no_node_is_lost() {
    let site = Site::new();
    let job = AgentGroup { conf: SOON, ..AgentGroup::new(&site) };
    let words = ["--nnodes=1:2", "--max-restarts=0", "sh", "-c", LOSES_ITS_PEER];
    let (first, second) = one_joins(&job, &words);
    site.file("lost", "");
    first.ended().code(1).says(&["exitcode  : 1 ", "it lost a connection"]);
    second.ended().code(1).says(&["ended the job"]);
    site.assert_no_process();
}

#[test]
fn the_end_of_the_stores_host_ends_all_nodes_and_they_report_it_if_none_may_take_over() {
    let never = "last_call_timeout=0.1,takeover=false";
    for (signal, fixed, conf, text) in [
        (Signal::KILL, false, never, "does not answer; it was hosted by node"),
        (Signal::KILL, true, never, "does not answer; it was hosted by node"),
        (Signal::TERM, true, never, "has to leave: it was asked to end; no other may take over"),
        (Signal::TERM, false, never, "has to leave: it was asked to end; no other may take over"),
        (Signal::TERM, false, "last_call_timeout=0.1", "it was asked to end; 1 of at least 2 nodes are left"),
    ] {
        let site = Site::new();
        let job = AgentGroup { conf, ..AgentGroup::new(&site) };
        let words = ["--nnodes=2", "--max-restarts=3", "sh", "-c", STAYS];
        let [first, second] =
            [0, 1].map(|n| Running::start(if fixed { job.fixed(n, &words) } else { job.c10d(n, &words) }));
        first.await_out("world 2", 1);
        second.await_out("world 2", 1);
        first.signal(signal);
        second.ended().code(1).says(&[text, "verdict: unknown who is at fault; the launcher on "]);
        drop(first);
        site.await_no_process();
    }
}

const RANKS: usize = 40;
/// Fewer open files than the ranks need.
const FILES: usize = 64;

/// Speaks the store's protocol: increments a counter, waits until all ranks have, and only then closes its connection.
const RANK: &str = r#"
import os, resource, socket, struct, sys
def text(word): return struct.pack("<Q", len(word)) + word
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
store.sendall(b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x04" + text(b"/here") + struct.pack("<q", 1))
here, = struct.unpack("<q", store.recv(8, socket.MSG_WAITALL))
if here == int(os.environ["WORLD_SIZE"]): store.sendall(b"\x01" + text(b"/all") + text(b""))
store.sendall(b"\x06" + struct.pack("<Q", 1) + text(b"/all"))
assert store.recv(1) == b"\x00"
sys.stdout.write(f"files {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}\n")
"#;

/// The command in a shell with limited open files.
fn limited(site: &Site, limits: &str) -> Command {
    site.file("rank.py", RANK);
    let mut shell = Command::new("sh");
    site.prepare(&mut shell);
    let run = format!("{limits} && exec {} run --standalone --nproc-per-node={RANKS} rank.py", lockstep());
    shell.args(["-c", &run]);
    shell
}

#[test]
fn a_low_soft_limit_of_open_files_does_not_limit_ranks_and_workers_get_it_back() {
    let site = Site::new();
    let ended = Running::start(limited(&site, &format!("ulimit -Sn {FILES}"))).ended().code(0);
    assert_eq!(ended.out.matches(&format!("files {FILES}\n")).count(), RANKS, "{}", ended.out);
    site.assert_no_process();
}

#[test]
fn a_hard_limit_that_is_too_low_is_reported_before_anything_starts() {
    let site = Site::new();
    let ended = Running::start(limited(&site, &format!("ulimit -n {FILES}"))).ended().code(1);
    let ended =
        ended.says(&["40 workers on this node need ", "but the hard limit is 64", "ulimit -Hn", "--nproc-per-node"]);
    assert_eq!(ended.out, "");
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn the_others_go_on_when_the_agent_at_the_endpoint_is_killed() {
    kill_hosts(1);
}

#[test]
fn the_last_one_goes_on_when_the_next_host_is_killed_at_once() {
    kill_hosts(2);
}

/// Three nodes, of which the first ones, which host the rendezvous, are killed one after the other.
fn kill_hosts(killed: usize) {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=1:3", "--max-restarts=0", "sh", "-c", STAYS];
    let (first, second) = one_joins(&job, &words);
    let third = Running::start(job.c10d(2, &words));
    for node in [&first, &second, &third] {
        node.await_out("world 3 count 0", 1);
    }
    first.signal(Signal::KILL);
    second.await_out("world 2 count 0", 2);
    third.await_out("world 2 count 0", 1);
    if killed == 2 {
        second.signal(Signal::KILL);
        third.await_out("world 1 count 0", 1);
    }
    site.file("go", "");
    third.ended().code(0).says(&["was lost: it closed the connection", "not counted as a restart"]);
    first.ended().killed_by(Signal::KILL);
    let second = second.ended();
    if killed == 2 {
        second.killed_by(Signal::KILL);
    } else {
        second.code(0).says(&["was lost; this agent hosts the rendezvous now, at "]);
    }
    site.await_no_process();
}

/// While its own workers take their time. The second one hosts the rendezvous then, and leaves in the same way.
#[test]
fn the_others_go_on_at_once_when_the_agent_at_the_endpoint_leaves() {
    for signal in [Signal::TERM, Signal::INT] {
        let site = Site::new();
        let job = AgentGroup::new(&site);
        let script = format!("[ $GROUP_RANK != 0 ] || [ ! -e slow ] || trap '' TERM INT; {STAYS}");
        let words = ["--nnodes=1:3", "--max-restarts=0", "--shutdown-timeout=3600", "sh", "-c", &script];
        let (first, second) = one_joins(&job, &words);
        site.file("slow", "");
        let third = Running::start(job.c10d(2, &words));
        for node in [&first, &second, &third] {
            node.await_out("world 3 count 0", 1);
        }
        first.signal(signal);
        second.await_out("world 2 count 0", 2);
        third.await_out("world 2 count 0", 1);
        second.signal(signal);
        third.await_out("world 1 count 0", 1);
        for left in [first, second] {
            left.signal(Signal::HUP);
            left.ended().code(1).says(&["received SIGHUP: stopping the workers", "ended by "]);
        }
        site.file("go", "");
        third.ended().code(0).says(&["this agent hosts the rendezvous now, at ", "not counted as a restart"]);
        site.await_no_process();
    }
}

//! Nodes that do not meet, and what is printed about them; children that the command did not start; and nodes as machines, each with its own
//! network namespace, connected by a bridge that can be cut.
//!
//! A shell that replaces itself by `lockstep` with `exec` leaves its own children, and process 1 of a container gets every orphan. They are
//! not signalled, and reaped once they have ended. If the system does not allow namespaces, the tests print that this was not verified.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::{fs, thread};

use insta::{allow_duplicates, assert_snapshot};
use lockstep_process::{KillOnDrop, free_port};
use rustix::process::Signal;

use crate::run::nodes::AgentGroup;
use crate::run::programs::REACH;
use crate::run::site::Site;
use crate::running::{Ended, Running, lockstep};

#[test]
fn a_timeout_reports_the_nodes_that_came_and_the_missing_ones() {
    let site = Site::new();
    // Each with a port of its own, so that both can wait at the same time.
    let job = || AgentGroup { conf: "join_timeout=3", ..AgentGroup::new(&site) };
    let words = ["--nnodes=2", "true"];
    let [elastic, fixed] = [job().c10d(0, &words), job().fixed(0, &words)].map(Running::start);
    assert_snapshot!(elastic.ended().code(1).failure(), @r"
    verdict: the launcher on [host]: 127.[net].1 is the loopback address (127.[net].1): nodes other than this one cannot reach it (evidence: 1 of 2 nodes came to the rendezvous at 127.[net].1:[port] within [seconds] s); advice: name the host by an address that all nodes reach; `ip -brief address` lists a node's own
    lockstep: failed: 1 of 2 nodes came to the rendezvous at 127.[net].1:[port] within [seconds] s
      came [seconds] s ago: node [host] (127.[net].1, pid [pid])
      missing: 1 node
      address that every node must reach: 127.[net].1:[port] (here: 127.[net].1)
    likely causes, the most likely first:
      1. 127.[net].1 is the loopback address (127.[net].1): nodes other than this one cannot reach it
         -> name the host by an address that all nodes reach; `ip -brief address` lists a node's own
      2. the launcher does not run on the other nodes, or ended there
         -> run the same `lockstep run` command on each node, and see each agent's output
      3. the other nodes cannot reach 127.[net].1:[port]: a firewall, no route, or another meaning of the name there
         -> try `getent hosts 127.[net].1` and `nc -vz 127.[net].1:[port]` on a node that is missing
    ");
    let own_rank =
        "the same `lockstep run` command on each node, each with its own --node-rank, and see each agent's output";
    fixed.ended().code(1).says(&[", --node-rank=0, pid ", own_rank]);
    site.assert_no_process();
    assert_eq!(site.leftovers().len(), 0);
}

#[test]
fn in_a_batch_job_the_command_that_starts_one_agent_per_node_is_named() {
    let site = Site::new();
    let start = |variables: &[(&str, &str)]| {
        let job = AgentGroup { conf: "join_timeout=3", ..AgentGroup::new(&site) };
        let mut command = job.c10d(0, &["--nnodes=2", "true"]);
        command.envs(variables.iter().copied());
        Running::start(command)
    };
    let slurm = start(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "2"), ("SLURM_NNODES", "2")]);
    let pbs = start(&[("PBS_JOBID", "7.server"), ("PBS_NODEFILE", &site.file("nodes", "n1\nn2\n"))]);
    let cause = |id: &str, start: &str| {
        format!(
            "  1. the job has 2 nodes ({id}), but an agent was started on this one only: the job script runs only on the first node\n     \
             -> start one agent on each node: {start}\n  2. "
        )
    };
    slurm.ended().code(1).says(&[&cause("SLURM_JOB_ID=7", "srun --nodes=2 --ntasks-per-node=1 lockstep run ...")]);
    let start = "pbsdsh -u -- lockstep run ... (or: mpiexec -ppn 1 lockstep run ...)";
    let missing = "  missing: 1 node; nodes of the batch job that have not joined: n1, n2\n";
    pbs.ended().code(1).says(&[&cause("PBS_JOBID=7.server", start), missing]);
}

#[test]
fn a_different_job_is_refused_and_the_difference_is_named() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let first = Running::start(job.c10d(0, &["--nnodes=2", "sh", "-c", "exit 0"]));
    first.await_err("1 of at least 2 nodes have come");
    let other = |words: &[&str]| Running::start(job.c10d(1, words)).ended().code(1);
    assert_snapshot!(other(&["--nnodes=2", "sh", "-c", "exit 1"]).failure(), @r"
    verdict: the launcher on [host]: another job uses this rendezvous (command: ours is `sh -c exit 1`, theirs is `sh -c exit 0`) (evidence: its own message); advice: give each job its own --rdzv-id, or its own port in --rdzv-endpoint
    lockstep: failed: another job uses this rendezvous (command: ours is `sh -c exit 1`, theirs is `sh -c exit 0`); give each job its own --rdzv-id, or its own port in --rdzv-endpoint
    ");
    assert_snapshot!(other(&["--nnodes=3", "sh", "-c", "exit 0"]).failure(), @r"
    verdict: the launcher on [host]: another job uses this rendezvous (nnodes: ours is `3:3`, theirs is `2:2`) (evidence: its own message); advice: give each job its own --rdzv-id, or its own port in --rdzv-endpoint
    lockstep: failed: another job uses this rendezvous (nnodes: ours is `3:3`, theirs is `2:2`); give each job its own --rdzv-id, or its own port in --rdzv-endpoint
    ");
    first.signal(Signal::TERM);
    first.ended().code(1);
    site.assert_no_process();
}

#[test]
fn a_node_rank_that_is_taken_is_refused_and_its_holder_is_named() {
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let words = ["--nnodes=3", "true"];
    let first = Running::start(job.fixed(0, &words));
    first.await_err("1 of at least 3 nodes have come");
    let second = Running::start(job.fixed(1, &words));
    let again = Running::start(job.fixed(1, &words));
    // Either of the two may come first.
    let refused = [&second, &again];
    site.until("one of two is refused", || {
        refused.iter().any(|node| node.err.now().contains("--node-rank=1 is taken"))
    });
    first.signal(Signal::TERM);
    for node in [first, second, again] {
        node.ended().code(1);
    }
    assert_snapshot!(Running::start(job.fixed(3, &words)).ended().code(1).failure(), @"error: --node-rank=3: with --nnodes=3 it must be from 0 to 2");
    site.assert_no_process();
}

#[test]
fn a_port_that_another_program_uses_is_reported_with_its_owner() {
    let site = Site::new();
    let address = site.address(0);
    let taken = TcpListener::bind((&*address, 0)).unwrap();
    let endpoint = taken.local_addr().unwrap().to_string();
    let ended = Running::start(AgentGroup { endpoint, ..AgentGroup::new(&site) }.fixed(0, &["true"])).ended().code(1);
    ended.says(&[&format!("pid {}", std::process::id())]);
}

#[test]
fn a_server_that_does_not_answer_or_is_not_a_store_is_reported_within_seconds() {
    let site = Site::new();
    let address = site.address(0);
    for answer in [None, Some("SSH-2.0-OpenSSH_9.9\r\n")] {
        let mute = TcpListener::bind((&*address, 0)).unwrap();
        let endpoint = mute.local_addr().unwrap().to_string();
        // The thread serves until the test ends.
        thread::spawn(move || {
            for connection in mute.incoming() {
                let mut connection = connection.unwrap();
                thread::spawn(move || {
                    if let Some(answer) = answer {
                        std::io::Write::write_all(&mut connection, answer.as_bytes()).unwrap();
                    }
                    let _ = connection.read_to_end(&mut Vec::new());
                });
            }
        });
        let job = AgentGroup { endpoint, conf: "join_timeout=600", ..AgentGroup::new(&site) };
        let ended = Running::start(job.c10d(1, &["--nnodes=2", "true"])).ended().code(1).says(&[&job.endpoint]);
        if answer.is_some() {
            ended.says(&["SSH-2.0"]);
        }
    }
}

#[test]
fn a_name_without_address_and_an_address_of_another_machine_are_reported() {
    let site = Site::new();
    let endpoint = "no-such-host.invalid:29500".to_owned();
    let job = AgentGroup { endpoint, conf: "join_timeout=1", ..AgentGroup::new(&site) };
    Running::start(job.c10d(1, &["--nnodes=2", "true"])).ended().code(1).says(&["no-such-host.invalid"]);
    let job = AgentGroup { conf: "join_timeout=1", ..AgentGroup::new(&site) };
    let mut command: Command = site.lockstep(&["--rdzv-backend=c10d", "--local-addr=192.0.2.1", "--nnodes=1"]);
    command.arg(format!("--rdzv-endpoint={}", job.endpoint)).arg("true");
    assert_snapshot!(Running::start(command).ended().code(1).failure(), @r"
    verdict: the launcher on [host]: --local-addr is 192.0.2.1, which is not an address of this machine: see `ip -brief address` (evidence: its own message); advice: the message is below; `lockstep doctor` checks a node, its network and the scheduler's settings
    error: --local-addr is 192.0.2.1, which is not an address of this machine: see `ip -brief address`
    ");
}

#[test]
fn workers_never_get_an_unspecified_address() {
    let site = Site::new();
    let script = "exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo reached $MASTER_ADDR";
    let own = site.address(0);
    for words in [
        "--rdzv-backend=c10d --rdzv-endpoint=0.0.0.0:0",
        "--rdzv-backend=c10d --rdzv-endpoint=[::]:0",
        "--rdzv-backend=c10d --rdzv-endpoint=192.0.2.1:PORT --rdzv-conf=is_host=true",
        "--rdzv-backend=static --master-addr=0.0.0.0 --master-port=PORT",
        &format!("--rdzv-backend=c10d --rdzv-endpoint=0.0.0.0:0 --local-addr={own}"),
    ] {
        let words = words.replace("PORT", &free_port().unwrap().to_string());
        let words: Vec<&str> = words.split(' ').collect();
        let ended = site.run(&[&words[..], &["bash", "-c", script]].concat()).code(0);
        let address = ended.out.trim().strip_prefix("reached ").unwrap();
        assert!(!["", "0.0.0.0", "::", "[::]"].contains(&address), "{words:?}: {address}");
    }
    let words = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=0.0.0.0", "true"];
    assert_snapshot!(site.run(&words).code(1).failure(), @r"
    verdict: the launcher on [host]: --local-addr is 0.0.0.0, which stands for all addresses of this machine: give the one that other nodes reach, see `ip -brief address` (evidence: its own message); advice: the message is below; `lockstep doctor` checks a node, its network and the scheduler's settings
    error: --local-addr is 0.0.0.0, which stands for all addresses of this machine: give the one that other nodes reach, see `ip -brief address`
    ");
}

#[test]
fn a_missing_host_is_reported_after_the_join_timeout() {
    let site = Site::new();
    let job = AgentGroup { conf: "join_timeout=3", ..AgentGroup::new(&site) };
    let words = ["--nnodes=2", "true"];
    allow_duplicates! {
        for node in [job.c10d(1, &words), job.fixed(1, &words)].map(Running::start) {
            assert_snapshot!(node.ended().code(1).failure(), @r"
            verdict: the launcher on [host]: 127.[net].1 means this node itself (127.[net].1), and nothing listens here (evidence: this node did not reach the rendezvous at 127.[net].1:[port]); advice: name the host by an address that all nodes reach; `ip -brief address` lists a node's own
            error: this node did not reach the rendezvous at 127.[net].1:[port]
              address that every node must reach: 127.[net].1:[port] (here: 127.[net].1)
            likely causes, the most likely first:
              1. 127.[net].1 means this node itself (127.[net].1), and nothing listens here
                 -> name the host by an address that all nodes reach; `ip -brief address` lists a node's own
              2. 127.[net].1 answers, but no process listened on port [port] for [seconds] s: the agent that hosts the rendezvous has not been started, has ended, or runs elsewhere
                 -> start `lockstep run` on 127.[net].1 too, with the same --rdzv-endpoint, and see its output there
            ");
        }
    }
}

/// Runs a shell that does `before` and then becomes the command with these words, in the test's folder.
fn becoming(site: &Site, before: &str, words: &str) -> Ended {
    let mut shell = Command::new("bash");
    site.prepare(&mut shell);
    shell.args(["-c", &format!("{before}\nexec {} run {words}", lockstep())]);
    Running::start(shell).ended()
}

fn alive(site: &Site, words: &str) -> usize {
    site.processes().iter().filter(|(_, command)| command.contains(words)).count()
}

#[test]
fn children_from_before_the_command_live_on() {
    let site = Site::new();
    let before = "setsid sh -c 'echo > begun; exec sleep 1000 >/dev/null 2>&1' &
        until [ -e begun ]; do sleep 0.01; done";
    for (words, code) in [("true", 0), ("--max-restarts=1 false", 1)] {
        becoming(&site, before, &format!("--standalone {words}")).code(code);
    }
    assert_eq!(alive(&site, "sleep 1000"), 2);
}

#[test]
fn orphans_of_such_children_live_on_and_those_of_workers_do_not() {
    let site = Site::new();
    // Once the workers run, it starts a daemon, which the command inherits as an orphan.
    let before =
        "( until [ -e go ]; do sleep 0.01; done; setsid sh -c 'echo > late; exec sleep 1000' >/dev/null 2>&1 & ) &";
    let worker = "setsid sleep 1001 >/dev/null 2>&1 & echo > go; until [ -e late ]; do sleep 0.01; done";
    site.file("worker.sh", worker);
    becoming(&site, before, "--standalone sh worker.sh").code(0);
    assert_eq!((alive(&site, "sleep 1000"), alive(&site, "sleep 1001")), (1, 0));
}

#[test]
fn children_from_before_the_command_are_reaped_when_they_have_ended() {
    let site = Site::new();
    // The first has ended before the command starts; the second ends while a worker runs.
    let before = "true & echo $! > first; sh -c 'until [ -e go ]; do sleep 0.01; done' & echo $! > second";
    let worker = "echo > go; for child in $(cat first second); do while [ -e /proc/$child ]; do sleep 0.01; done; done";
    site.file("worker.sh", worker);
    becoming(&site, before, "--standalone sh worker.sh").code(0);
    site.assert_no_process();
}

struct Net<'a> {
    site: &'a Site,
    /// The namespace of the bridge, then one per node.
    holders: Vec<KillOnDrop>,
}

impl<'a> Net<'a> {
    /// This number of nodes, node `n` at [`Net::address`]; `None` if namespaces are not allowed.
    fn of(site: &'a Site, nodes: u8) -> Option<Self> {
        let mut net = Net { site, holders: vec![] };
        let bridge = "ip link add br0 type bridge && ip link set br0 up && echo up && exec sleep 1000";
        if let Err(why) = net.hold(Command::new("unshare").args(["-Urn", "sh", "-c", bridge])) {
            println!("not verified here: agents in network namespaces ({why})");
            return None;
        }
        for node in 0..nodes {
            let mut own = net.inside(0, "unshare");
            net.hold(own.args(["-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 1000"])).unwrap();
            let (pid, address) = (net.holders.last().unwrap().0.id(), net.address(node));
            net.ip(0, &format!("link add node{node} type veth peer name eth0 netns {pid}"));
            net.ip(0, &format!("link set node{node} master br0 up"));
            net.ip(node + 1, &format!("addr add {address}/24 dev eth0"));
            net.ip(node + 1, "link set eth0 up");
        }
        Some(net)
    }

    /// Starts a process that keeps a namespace open, and waits for its first line.
    fn hold(&mut self, command: &mut Command) -> Result<(), String> {
        self.site.prepare(command);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line == "up\n" {
            self.holders.push(KillOnDrop(child));
            return Ok(());
        }
        let output = child.wait_with_output().unwrap();
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// A command that runs this program in the namespace.
    fn inside(&self, holder: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holders[holder].0.id().to_string(), "-U", "-n", "--preserve-credentials", program]);
        self.site.prepare(&mut command);
        command
    }

    fn ip(&self, holder: u8, words: &str) {
        let output = self.inside(holder.into(), "ip").args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn address(&self, node: u8) -> String {
        format!("10.77.0.{}", node + 1)
    }

    fn agent(&self, node: u8, words: &[&str]) -> Running {
        let mut command =
            self.inside(usize::from(node) + 1, assert_cmd::cargo::cargo_bin!("lockstep").to_str().unwrap());
        command.arg("run").args(words);
        Running::start(command)
    }

    /// The IPv4 addresses on which processes of this node listen.
    fn listeners(&self, node: u8) -> Vec<String> {
        let pid = self.holders[usize::from(node) + 1].0.id();
        assert!(!fs::read_to_string(format!("/proc/{pid}/net/tcp6")).is_ok_and(|table| table.contains(" 0A ")));
        let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
        let listening = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let address = |line: &str| {
            let word = line.split_whitespace().nth(1).unwrap();
            let number = u32::from_str_radix(word.split(':').next().unwrap(), 16).unwrap();
            std::net::Ipv4Addr::from(number.to_ne_bytes()).to_string()
        };
        let mut addresses: Vec<String> = listening.map(address).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }
}

const STAYS: &str = "echo world $WORLD_SIZE; while [ ! -e go ]; do sleep 0.02; done";

#[test]
fn three_machines_form_one_job_over_a_bridge_and_their_stores_listen_only_there() {
    let site = Site::new();
    let Some(net) = Net::of(&site, 3) else { return };
    let script =
        site.file("reach.py", &format!("{REACH}\nimport time\nwhile not os.path.exists('go'): time.sleep(0.02)"));
    let endpoint = format!("--rdzv-endpoint={}:29400", net.address(0));
    let words = ["--nnodes=3", "--nproc-per-node=2", "--rdzv-backend=c10d", &endpoint, "--prefix=never", &script];
    // The host comes last: the others wait for it.
    let [second, third, first] = [1, 2, 0].map(|node| net.agent(node, &words));
    for node in [&first, &second, &third] {
        node.await_out("reached", 2);
    }
    assert_eq!(net.listeners(0), [net.address(0)]);
    // Where they would take over.
    assert_eq!([net.listeners(1), net.listeners(2)], [[net.address(1)], [net.address(2)]]);
    site.file("go", "");
    for node in [first, second, third] {
        node.ended().code(0);
    }
    drop(net);
    site.assert_no_process();
}

#[test]
fn a_standalone_job_listens_on_loopback_only() {
    let site = Site::new();
    let Some(net) = Net::of(&site, 1) else { return };
    let running = net.agent(0, &["--standalone", "sh", "-c", STAYS]);
    running.await_out("world 1", 1);
    assert_eq!(net.listeners(0), ["127.0.0.1"]);
    site.file("go", "");
    running.ended().code(0);
}

#[test]
fn when_the_network_is_cut_the_survivors_continue_and_the_cut_node_ends_its_workers() {
    let site = Site::new();
    let Some(net) = Net::of(&site, 2) else { return };
    let conf = format!("--rdzv-conf={}", crate::run::nodes::SOON);
    let endpoint = format!("--rdzv-endpoint={}:29400", net.address(0));
    let words = ["--nnodes=1:2", "--rdzv-backend=c10d", &endpoint, &conf, "sh", "-c", STAYS];
    let first = net.agent(0, &words);
    first.await_out("world 1", 1);
    let second = net.agent(1, &words);
    first.await_out("world 2", 1);
    second.await_out("world 2", 1);
    net.ip(0, "link set node1 down");
    first.await_out("world 1", 2);
    second
        .ended()
        .code(1)
        .says(&["only 1 of 2 nodes of the last round go on from here: this node cannot know whether"]);
    site.file("go", "");
    first.ended().code(0).says(&["no heartbeat for"]);
    drop(net);
    site.assert_no_process();
}

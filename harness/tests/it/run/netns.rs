//! Nodes as machines: each agent has its own network namespace, and a bridge that can be cut connects them.
//!
//! The namespaces belong to processes of the test, so they disappear with them. If the system does not allow
//! namespaces, the tests print that this was not verified.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use lockstep_process::KillOnDrop;

use crate::run::environment::REACH;
use crate::run::site::Site;
use crate::running::Running;

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

    /// An agent on this node.
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
    assert_eq!([net.listeners(1), net.listeners(2)], [const { Vec::<String>::new() }; 2]);
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
    second.ended().code(1).says(&["does not answer; it was hosted by node"]);
    site.file("go", "");
    first.ended().code(0).says(&["no heartbeat for"]);
    drop(net);
    site.assert_no_process();
}

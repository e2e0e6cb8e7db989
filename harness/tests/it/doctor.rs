//! `lockstep doctor` on the nodes of a cluster in namespaces, with faults made on purpose.
//!
//! Where the system lets nobody make namespaces, it is said that this was not verified. What no cluster of namespaces can have (wrong
//! clocks, file systems without locks, GPUs, InfiniBand) is made in the facts, in the tests of `harness/site/src/doctor`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lockstep_launch::command::quoted;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::TestCluster;
use crate::running::{Ended, Running, lockstep};

/// A cluster, and a folder that its nodes share.
struct DoctorCluster {
    place: TestCluster,
}

/// What one node printed.
struct Report {
    ended: Ended,
    json: Value,
}

impl DoctorCluster {
    /// Starts a cluster without Slurm; none where that cannot be.
    fn open(nodes: u8) -> Option<Self> {
        let place = TestCluster::new();
        if !place.up(&[&format!("--nodes={nodes}"), "--no-slurm"]) {
            return None;
        }
        std::fs::create_dir(place.site.path("shared")).unwrap();
        Some(DoctorCluster { place })
    }

    fn close(self) {
        self.place.ok(&["down"]);
        self.place.assert_as_before();
    }

    /// Starts doctor on a node. `before` is shell: settings of this node, or another program in the place of `$doctor`.
    fn start(&self, node: &str, hosts: &[&str], before: &str, options: &str) -> Running {
        let (name, text) = (format!("hosts-{}", hosts.join("-")), hosts.join("\n") + "\n");
        // Written once: a node that has been started may be reading it.
        if !self.place.site.path(&name).exists() {
            self.place.site.file(&name, &text);
        }
        let script = format!(
            "doctor={}\n{before}\nexec \"$doctor\" doctor --job --hostfile={} --folder=shared --format=json {options}\n",
            lockstep(),
            self.place.site.shell(&name)
        );
        let script = self.place.site.file(&format!("{node}.sh"), &script);
        Running::start(self.place.command(&["exec", node, "--", "sh", &script]))
    }

    /// Runs doctor on all these nodes. The report is the first one's; the others have nothing to say.
    #[track_caller]
    fn examine(&self, nodes: &[(&str, &str)], options: &str) -> Report {
        let hosts: Vec<&str> = nodes.iter().map(|(node, _)| *node).collect();
        let started: Vec<_> = nodes.iter().map(|(node, before)| self.start(node, &hosts, before, options)).collect();
        let mut ended = started.into_iter().map(Running::ended);
        let first = Report::read(ended.next().unwrap());
        for other in ended {
            assert_eq!((other.status.code(), other.out.as_str(), other.err.as_str()), (Some(0), "", ""), "{other}");
        }
        first
    }

    #[track_caller]
    fn sh(&self, node: &str, script: &str) -> String {
        self.place.sh(node, script)
    }

    /// A fault of `lockstep cluster fault`; false where the means are missing.
    #[track_caller]
    fn fault(&self, words: &str) -> bool {
        let made = self.place.any(&[&["fault"], &words.split(' ').collect::<Vec<_>>()[..]].concat());
        if made.status.code() == Some(2) {
            println!("not verified here: packets that are dropped ({})", made.err.trim());
            return false;
        }
        made.code(0);
        true
    }

    /// Gives a node its own list of hosts.
    #[track_caller]
    fn hosts(&self, node: &str, text: &str) {
        self.sh(
            node,
            &format!("printf '127.0.0.1 localhost\\n{text}' >/tmp/hosts; mount --bind /tmp/hosts /etc/hosts"),
        );
    }
}

impl Report {
    #[track_caller]
    fn read(ended: Ended) -> Self {
        let json = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended}"));
        Report { ended, json }
    }

    fn findings(&self) -> impl Iterator<Item = &Value> {
        self.json["findings"].as_array().unwrap().iter()
    }

    fn errors(&self) -> Vec<&Value> {
        self.findings().filter(|finding| finding["level"] == "error").collect()
    }

    /// A fault of this name was found at exactly these nodes.
    #[track_caller]
    fn assert_found(&self, check: &str, at: &[&str]) {
        let of_check: Vec<_> = self.findings().filter(|finding| finding["rule"] == check).collect();
        let nodes = of_check.iter().flat_map(|finding| finding["at"].as_array().unwrap());
        let nodes: BTreeSet<&str> = nodes.map(|node| node.as_str().unwrap()).collect();
        assert_eq!(nodes, at.iter().copied().collect(), "{check}: {of_check:#?}\n{}", self.ended.err);
    }
}

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("lockstep").to_owned()
}

#[test]
fn a_healthy_cluster_has_no_errors_however_doctor_is_started() {
    let Some(cluster) = DoctorCluster::open(3) else { return };
    let report = cluster.examine(&[("n1", ""), ("n2", ""), ("n3", "")], "--deadline=600");
    assert_eq!(report.errors(), [] as [&Value; 0], "{:#?}", report.errors());
    let views = report.json["job"]["views"].as_array().unwrap();
    let good = |view: &&Value| view["seen_by_head"] == true && view["lock"] == "honoured" && view["torn"].is_null();
    assert_eq!(views.iter().filter(good).count(), 2, "{views:#?}");
    assert_eq!((report.ended.status.code(), report.json["job"]["nodes"].as_array().unwrap().len()), (Some(0), 3));
    assert_eq!(std::fs::read_dir(cluster.place.site.path("shared")).unwrap().count(), 0, "nothing is left");
    let launched = ["0", "1"].map(|rank| {
        let script = format!(
            "{0} run --nnodes=2 --nproc-per-node=2 --node-rank={rank} --master-addr=n1 --prefix=never {0} doctor --job --folder=shared --deadline=600",
            lockstep()
        );
        let script = cluster.place.site.file(&format!("run-{rank}.sh"), &script);
        Running::start(cluster.place.command(&["exec", ["n1", "n2"][usize::from(rank == "1")], "--", "sh", &script]))
    });
    let [first, second] = launched.map(|running| running.ended().code(0));
    assert!(first.out.contains("of a launcher, 2 of 2 nodes\n") && second.out.is_empty(), "{first}\n{second}");
    let alone = cluster.place.any(&["exec", "n1", "--", program().to_str().unwrap(), "doctor"]).code(0);
    assert!(alone.out.starts_with("lockstep doctor: this machine\n"), "{alone}");
    let jobless = cluster.place.any(&["exec", "n1", "--", program().to_str().unwrap(), "doctor", "--job"]).code(2);
    jobless.says(&["--job: this process belongs to no job"]);
    cluster.close();
}

#[test]
fn finds_faults_of_machines_files_names_and_variables_each_by_its_name() {
    let Some(cluster) = DoctorCluster::open(3) else { return };
    let (site, root) = (&cluster.place.site, Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    // n1: two interfaces that are of no use, and a port that somebody holds.
    cluster.sh(
        "n1",
        "ip link add eth1 type veth peer name eth1end; ip address add 10.99.0.1/24 dev eth1; ip link set eth1 up; \
         ip link set eth1end up; ip link add spare type veth peer name spareend; ip address add 10.98.0.1/24 dev spare; ip link set spare up",
    );
    let holder =
        "import socket, time\ns = socket.create_server(('', 29777))\nprint('in', flush=True)\ntime.sleep(1000)";
    let holder = site.file("holder.py", holder);
    let python = crate::run::site::python();
    let holder = Running::start(cluster.place.command(&["exec", "n1", "--", python, &holder]));
    holder.await_out("in", 1);
    // n2: little shared memory, names that lie, and a folder of its own that is full.
    cluster.sh("n2", "mount -t tmpfs -o size=64m tmpfs /dev/shm; mount -t tmpfs -o size=1m tmpfs shared");
    cluster.hosts("n2", "10.88.0.1 n1\\n127.0.1.1 n2\\n10.88.0.1 n3\\n");
    // n3: shared memory that is full, a folder that cannot be written, another build, no libtorch, and names that lie.
    cluster.sh("n3", "mount -t tmpfs -o size=140m tmpfs /dev/shm; head -c 120m /dev/zero >/dev/shm/left");
    cluster.sh("n3", "mount --bind shared shared; mount -o remount,bind,ro shared");
    cluster.sh("n3", "ip link add eth2 type bridge; ip address add 10.97.0.3/24 dev eth2");
    cluster.hosts("n3", "10.88.0.1 n1\\n10.88.0.1 n3\\n");
    std::fs::copy(program(), site.path("other")).unwrap();
    std::io::Write::write_all(&mut std::fs::File::options().append(true).open(site.path("other")).unwrap(), b"x")
        .unwrap();
    let libtorch = root.join(".libtorch");
    let has_libtorch = libtorch.join("lib/libtorch_cpu.so").exists() && program().starts_with(root);
    if has_libtorch {
        cluster.sh("n3", &format!("mount -t tmpfs tmpfs {}", quoted(libtorch.to_str().unwrap())));
    } else {
        println!("not verified here: a node without libtorch, since this checkout has none either");
    }
    let blocked = cluster.fault("block n3 --port 29500") && cluster.fault("block n2 --port 29400 --reject");
    let report = cluster.examine(
        &[
            ("n1", "export NCCL_SOCKET_IFNAME=eth"),
            (
                "n2",
                "ulimit -n 512; export GLOO_SOCKET_IFNAME=eth7 MASTER_ADDR=localhost OMP_NUM_THREADS=9999\n\
                 first=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//'); taskset -cp \"$first\" $$ >/dev/null",
            ),
            (
                "n3",
                &format!(
                    "ulimit -v 64000000; doctor={}; export NCCL_SOCKET_IFNAME=eth2 RANK=0 CUDA_VISIBLE_DEVICES=0 MASTER_PORT=x \
                     FI_PROVIDER=efa NCCL_IB_HCA=mlx5_9 NCCL_NET_PLUGIN=absent CUDA_LAUNCH_BLOCKING=1",
                    site.shell("other")
                ),
            ),
        ],
        "--port=29777 --deadline=120",
    );
    let mut expected = vec![
        ("nccl-unreachable", &["n1", "n3"][..]),
        ("interface-unplugged", &["n1"]),
        ("port-taken", &["n1"]),
        ("program-differs", &["n3"]),
        ("interface-missing", &["n2"]),
        ("interface-down", &["n3"]),
        ("shm-small", &["n2"]),
        ("shm-full", &["n3"]),
        ("host-name-is-loopback", &["n2"]),
        ("host-name-is-foreign", &["n3"]),
        ("peer-is-another", &["n2"]),
        ("peer-unknown", &["n3"]),
        ("open-files-low", &["n2"]),
        ("address-space-limited", &["n3"]),
        ("folder-in-memory", &["n2"]),
        ("folder-full", &["n2"]),
        ("folder-unwritable", &["n3"]),
        ("folder-not-shared", &["n2"]),
        ("master-is-loopback", &["n2"]),
        ("master-differs", &["n2", "n3"]),
        ("master-port-invalid", &["n3"]),
        ("omp-threads-exceed", &["n2"]),
        ("variables-differ", &["n2", "n3"]),
        ("rank-left-over", &["n3"]),
        ("fi-provider-absent", &["n3"]),
        ("ib-adapter-unknown", &["n3"]),
        ("net-plugin-unknown", &["n3"]),
        ("cuda-launch-blocking", &["n3"]),
    ];
    if has_libtorch {
        expected.push(("libtorch-missing", &["n3"]));
    }
    if !Path::new("/dev/nvidia0").exists() && !Path::new("/proc/driver/nvidia/gpus").exists() {
        expected.push(("gpu-absent", &["n3"]));
    }
    if std::thread::available_parallelism().unwrap().get() > 1 {
        expected.push(("processors-few", &["n2"]));
    }
    if blocked {
        expected.extend([("port-blocked", &["n1", "n3"][..]), ("port-rejected", &["n1", "n2"])]);
    }
    for (check, at) in &expected {
        report.assert_found(check, at);
    }
    let made: BTreeSet<&str> = expected.iter().map(|(check, _)| *check).collect();
    let errors = report.errors();
    let others = errors.iter().filter(|finding| !made.contains(finding["rule"].as_str().unwrap()));
    assert_eq!(others.collect::<Vec<_>>(), [] as [&&Value; 0], "no other error is found");
    assert_eq!(report.ended.status.code(), Some(1));
    drop(holder);
    cluster.close();
}

#[test]
fn names_nodes_that_are_cut_paused_or_never_came_within_the_deadline() {
    let Some(cluster) = DoctorCluster::open(3) else { return };
    let nodes = [("n1", ""), ("n2", ""), ("n3", "")];
    if cluster.fault("cut n2 n3") {
        let report = cluster.examine(&nodes, "");
        report.assert_found("pair-cut", &["n2", "n3"]);
        assert_eq!(report.errors().len(), 1, "{:#?}", report.errors());
        cluster.fault("heal");
        cluster.fault("cut n1 n2");
        let [first, second] =
            ["n1", "n2"].map(|node| cluster.start(node, &["n1", "n2"], "", "--deadline=10")).map(Running::ended);
        let (first, second) = (Report::read(first.code(1)), Report::read(second.code(1)));
        first.assert_found("node-silent", &["n2"]);
        assert!(first.errors()[0]["evidence"].as_str().unwrap().ends_with("10.88.0.2: no answer within 1 s"));
        second.assert_found("head-unreachable", &["n1"]);
        cluster.fault("heal");
    }
    cluster.fault("pause n3");
    let report = Report::read(cluster.start("n1", &["n1", "n3"], "", "--deadline=10").ended().code(1));
    report.assert_found("node-silent", &["n3"]);
    let evidence = report.errors()[0]["evidence"].as_str().unwrap().to_owned();
    assert!(evidence.ends_with("10.88.0.3: connection refused"), "its kernel answers: {evidence}");
    let waits = cluster.start("n1", &["n1", "n3"], "echo in", "");
    waits.await_out("in", 1);
    waits.signal(Signal::TERM);
    waits.ended().killed_by(Signal::TERM);
    cluster.fault("resume n3");
    cluster.close();
}

#[test]
fn srun_and_mpirun_start_it_on_all_nodes_without_a_further_flag() {
    let place = TestCluster::new();
    if !place.up_with_slurm("doctor under Slurm") {
        return;
    }
    let program = lockstep();
    let good = place.sh("ctl", &format!("srun --nodes=2 --ntasks-per-node=1 {program} doctor --job --deadline=600"));
    assert!(good.starts_with("lockstep doctor: Slurm job ") && good.contains("2 of 2 nodes\n"), "{good}");
    if std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|folder| folder.join("mpirun").exists()) {
        let started = "salloc --nodes=2 --ntasks-per-node=1 mpirun --allow-run-as-root --map-by ppr:1:node";
        let good = place.sh("ctl", &format!("{started} {program} doctor --job --deadline=600"));
        assert!(good.contains("2 of 2 nodes"), "{good}");
    } else {
        println!("not verified here: doctor under mpirun, which is not installed");
    }
    let twice = format!("srun --nodes=2 --ntasks-per-node=2 --overcommit {program} doctor --job");
    place.any(&["exec", "ctl", "--", "sh", "-c", &twice]).says(&["starts doctor several times on a node"]);
    place.ok(&["down"]);
    place.assert_as_before();
}

//! `lockstep cluster`: real namespaces, a real bridge, and the real Slurm where it is installed.
//!
//! Where the system lets nobody make namespaces, or Slurm is not installed, it is said that this was not verified.

mod test_cluster;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use lockstep_launch::command::quoted;
use rustix::process::Signal;

pub(crate) use test_cluster::TestCluster;
use test_cluster::{installation, lab};

use crate::running::{Ended, Running, ended, lockstep};

#[test]
fn nodes_have_processes_memory_and_tmp_of_their_own_and_share_all_other_files() {
    let place = TestCluster::new();
    if !place.up(&["--nodes=2", "--no-slurm"]) {
        return;
    }
    assert_eq!(place.sh("ctl", "hostname"), "ctl");
    assert_eq!(place.sh("n2", "hostname; getent hosts n1; cat /proc/1/comm"), "n2\n10.88.0.1       n1\nlockstep");
    place.sh("n1", "echo 1 >/dev/shm/own; echo 1 >/tmp/own; echo shared >file");
    assert_eq!(
        place.sh("n2", "ls /dev/shm; test ! -e /tmp/own; cat file; pwd"),
        format!("shared\n{}", place.site.word("").trim_end_matches('/'))
    );
    assert_eq!(place.sh("n1", "cat /dev/shm/own /tmp/own"), "1\n1");
    let failed = place.any(&["exec", "n1", "--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(7));
    place.any(&["up"]).code(2).says(&["the cluster `main` is up with 2 nodes", "lockstep cluster down"]);
    place.any(&["exec", "n3", "--", "true"]).code(2).says(&["there is no n3: the nodes are n1 to n2"]);
    let mut elsewhere = place.command(&["exec", "n1", "--", "true"]);
    elsewhere.current_dir("/tmp");
    ended(&mut elsewhere).code(2).says(&["n1 has no folder /tmp", "--share"]);
    let asked = "trap 'echo asked; exit 0' TERM; echo in; while :; do sleep 0.02; done";
    let asked = Running::start(place.command(&["exec", "n2", "--", "sh", "-c", asked]));
    asked.await_out("in", 1);
    asked.signal(Signal::TERM);
    assert_eq!(asked.ended().killed_by(Signal::TERM).out, "in\nasked\n");
    place.ok(&["down"]);
    place.assert_as_before();
    place.any(&["down"]).code(2).says(&["there is no cluster `main`"]);
}

#[test]
fn ranks_share_memory_within_a_node_and_use_the_network_between_nodes() {
    let place = TestCluster::new();
    let Some(lab) = lab("lab-03-torchrun-env") else { return };
    if !place.up(&["--nodes=2", "--no-slurm"]) {
        return;
    }
    let (events, weights) = (place.site.shell("events"), place.site.shell("weights"));
    let agent = |node: u32| {
        let (name, launcher) = (format!("n{}", node + 1), lockstep());
        let run = format!(
            "{launcher} run --nnodes=2 --nproc-per-node=2 --node-rank={node} --master-addr=n1 --master-port=29500"
        );
        let args = "--samples 37 --batch-size 4 --epochs 1 --device cpu";
        let set = format!("export OMP_NUM_THREADS=1 LOCKSTEP_EVENTS={events}; unset LOCKSTEP_BACKEND");
        place.sh(&name, &format!("{set}; {run} {lab} {args} --weights {weights}"))
    };
    std::thread::scope(|scope| {
        scope.spawn(|| agent(1));
        agent(0);
    });
    let read = |name: String| fs::read(place.site.path(&name)).unwrap();
    for rank in 0..4 {
        let events = place.site.read(&format!("events/rank-{rank}.jsonl"));
        let why = r#""backend":"shm+gloo","reason":"2 hosts: memory within each, Gloo between them""#;
        assert!(events.contains(why), "{events}");
        assert_eq!(read(format!("weights/rank-{rank}.safetensors")), read("weights/rank-0.safetensors".into()));
    }
    place.ok(&["down"]);
    place.assert_as_before();
}

/// Debian gives a machine's own name the address 127.0.1.1.
#[test]
fn workers_use_the_nodes_network_where_the_host_name_leads_to_loopback() {
    let place = TestCluster::new();
    if !place.up(&["--nodes=2", "--no-slurm"]) {
        return;
    }
    let agent = |node: &str, other: &str, own: &str| {
        let hosts = format!("127.0.0.1 localhost\\n{own}{other}\\n");
        let worker = "echo rank $$RANK by $$GLOO_SOCKET_IFNAME at $$MASTER_ADDR";
        let run = format!(
            "{} run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=n1:29400 --rdzv-conf=is_host={} sh -c '{worker}'",
            lockstep(),
            u8::from(node == "n1"),
        );
        place.sh(
            node,
            &format!(
                "printf '{hosts}' >/tmp/hosts; mount --bind /tmp/hosts /etc/hosts; unset GLOO_SOCKET_IFNAME; {run} 2>&1"
            ),
        )
    };
    let [first, second] = std::thread::scope(|scope| {
        let second = scope.spawn(|| agent("n2", "10.88.0.1 n1", ""));
        [agent("n1", "10.88.0.2 n2", "127.0.1.1 n1\\n"), second.join().unwrap()]
    });
    for (output, name) in
        [(&first, "the host name n1 leads to 127.0.1.1"), (&second, "the host name n2 has no address")]
    {
        assert!(
            output.contains("setting GLOO_SOCKET_IFNAME=eth0 for the workers") && output.contains(name),
            "{output}"
        );
    }
    assert!(format!("{first}\n{second}").contains("rank 1 by eth0 at 10.88.0."), "{first}\n{second}");
    place.ok(&["down"]);
    place.assert_as_before();
}

#[test]
fn a_folder_below_tmp_is_shared_if_the_cluster_is_started_there_or_with_share() {
    let place = TestCluster::new();
    let [here, named] = [(); 2].map(|()| tempfile::tempdir_in("/tmp").unwrap());
    let command = |words: &[&str]| {
        let mut command = place.command(words);
        command.current_dir(&here).env("TMPDIR", here.path()).env_remove("XDG_RUNTIME_DIR");
        ended(&mut command)
    };
    if !place.up(&["--nodes=1", "--no-slurm"]) {
        return;
    }
    place.ok(&["down"]);
    command(&["up", "--nodes=2", "--no-slurm", "--share", named.path().to_str().unwrap()]).code(0);
    let sh = |node, script: &str| command(&["exec", node, "--", "sh", "-c", script]).code(0).out;
    sh("n1", &format!("echo 1 >file; echo 2 >{}/file; echo 3 >/tmp/file", named.path().display()));
    assert_eq!(sh("n2", &format!("cat file {}/file; test ! -e /tmp/file", named.path().display())), "1\n2\n");
    assert!(here.path().join("file").exists() && named.path().join("file").exists());
    command(&["down"]).code(0);
    assert_eq!(fs::read_dir(&here).unwrap().count(), 1, "only the file is left");
    place.assert_as_before();
}

#[test]
fn nodes_see_a_program_and_a_home_below_what_is_each_nodes_own() {
    let (place, programs) = (TestCluster::new(), installation());
    let (home, temporary) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in("/tmp").unwrap());
    if !place.up(&["--nodes=1", "--no-slurm"]) {
        return;
    }
    place.ok(&["down"]);
    let program = programs.path().join("lockstep");
    let command = |words: &[&str]| {
        let mut command = Command::new(&program);
        place.site.prepare(&mut command);
        command.env("HOME", home.path()).env("TMPDIR", temporary.path());
        ended(command.arg("cluster").args(words)).code(0).out
    };
    command(&["up", "--nodes=1", "--no-slurm"]);
    let sh = |script: &str| command(&["exec", "n1", "--", "sh", "-c", script]);
    let hello = sh(&format!("echo 1 >~/file; {} run --standalone --prefix=never echo hello", program.display()));
    assert_eq!(hello, "hello\n");
    assert_eq!(fs::read_to_string(home.path().join("file")).unwrap(), "1\n");
    sh("echo 1 >/tmp/own; echo 1 >/dev/shm/own; echo 1 >$TMPDIR/own");
    let own = [temporary.path(), Path::new("/tmp"), Path::new("/dev/shm")].map(|folder| folder.join("own"));
    assert!(own.iter().all(|file| !file.exists()), "the rest is the node's own");
    command(&["down"]);
    place.assert_as_before();
}

#[test]
fn a_user_who_is_not_root_gets_a_cluster_without_slurm() {
    let (place, programs) = (TestCluster::new(), installation());
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let command = |words: &[&str]| {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut command = Command::new(if rustix::process::getuid().is_root() { "setpriv" } else { "env" });
        place.site.prepare(&mut command);
        command.args(if rustix::process::getuid().is_root() { &nobody[..] } else { &[] });
        command.arg(programs.path().join("lockstep")).arg("cluster").args(words);
        command.current_dir(&folder).env("TMPDIR", folder.path()).env("HOME", folder.path());
        ended(&mut command)
    };
    let up = command(&["up", "--nodes=2"]);
    // 2: no namespaces for users; 126: nobody may execute a file in /tmp
    if up.status.code().is_some_and(|code| [2, 126].contains(&code)) {
        println!("not verified here: a cluster of a user who is not root ({})", up.err.trim());
        return;
    }
    let up = up.code(0);
    assert!(up.out.contains("started by root") || up.out.contains("it is not installed"), "{up}");
    assert!(up.out.contains("you are the only user"), "{up}");
    let hosts = command(&["exec", "n2", "--", "sh", "-c", "hostname; id -u; getent hosts n1"]).code(0);
    assert_eq!(hosts.out, "n2\n0\n10.88.0.1       n1\n");
    for fault in ["slow n1 --rate 10mbit", "pause n2", "lose n1", "boot n1", "heal"] {
        command(&[&["fault"], &fault.split(' ').collect::<Vec<_>>()[..]].concat()).code(0);
    }
    command(&["down"]).code(0);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    place.assert_as_before();
}

#[test]
fn every_fault_shows_in_the_status_and_is_taken_away() {
    let place = TestCluster::new();
    if !place.up(&["--nodes=3", "--no-slurm"]) {
        return;
    }
    let fault = |words: &str| place.any(&[&["fault"], &words.split(' ').collect::<Vec<_>>()[..]].concat());
    let has_filter = fault("cut n1 n2");
    if has_filter.status.code() == Some(2) {
        println!("not verified here: packets that are dropped ({})", has_filter.err.trim());
    } else {
        has_filter.code(0);
        place.assert_cut("n1", "n2");
        place.assert_cut("n2", "n1");
        place.assert_reaches("n1", "n3");
        place.assert_reaches("ctl", "n2");
        fault("block n3 --port 29500").code(0);
        fault("drop n3 --percent 100").code(0);
        assert_eq!(place.status("n1").1, ["cut from n2"]);
        assert_eq!(place.status("n3").1, ["100 % dropped", "port 29500 blocked"]);
        place.assert_cut("ctl", "n3");
        fault("heal").code(0);
        place.assert_reaches("n1", "n2");
        place.assert_reaches("ctl", "n3");
    }
    fault("slow n1 --rate 10mbit").code(0);
    fault("unplug n1").code(0);
    fault("pause n2").code(0);
    let hardware = || {
        ["n3:eth0", "ctl:br0"]
            .map(|end| end.split_once(':').unwrap())
            .map(|(machine, link)| place.sh(machine, &format!("cat /sys/class/net/{link}/address")))
    };
    let before = hardware();
    place.sh("n3", "echo 1 >/tmp/disk; echo 1 >/dev/shm/memory");
    fault("lose n3").code(0);
    assert_eq!(place.status("n1"), ("up".into(), vec!["unplugged".into(), "limited to 10mbit".into()]));
    assert_eq!((place.status("n2").0, place.status("n3").0), ("paused".into(), "lost".into()));
    place.assert_cut("n1", "ctl");
    place.any(&["exec", "n3", "--", "true"]).code(2).says(&["n3 is lost", "lockstep cluster fault boot n3"]);
    fault("boot n1").code(2).says(&["n1 is up"]);
    assert_eq!(fault("heal").code(0).out.trim(), "no faults are left, except lost nodes: n3");
    fault("boot n3").code(0);
    assert_eq!(hardware(), before, "others would send to an address that is gone");
    assert_eq!(place.sh("n3", "cat /tmp/disk; ls /dev/shm"), "1");
    for node in ["n1", "n2", "n3"] {
        assert_eq!(place.status(node), ("up".into(), vec![]));
        place.assert_reaches("ctl", node);
    }
    place.ok(&["down"]);
    place.assert_as_before();
}

#[test]
fn two_clusters_next_to_each_other_do_not_meet_and_each_ends_with_its_holder() {
    let place = TestCluster::new();
    if !place.up(&["--nodes=1", "--no-slurm", "--name=one"]) {
        return;
    }
    place.ok(&["up", "--nodes=1", "--no-slurm", "--name=two"]);
    place.ok(&["--name=one", "fault", "unplug", "n1"]);
    let addresses = |name| place.ok(&["--name", name, "exec", "n1", "--", "ip", "-brief", "link", "show", "eth0"]);
    assert!(addresses("one").contains("NO-CARRIER") && addresses("two").contains("LOWER_UP"));
    let left =
        Running::start(place.command(&["--name=one", "exec", "n1", "--", "sh", "-c", "echo in; exec sleep 1000"]));
    left.await_out("in", 1);
    let holder = place.folder("one").join("holder.json");
    let holder: serde_json::Value = serde_json::from_str(&fs::read_to_string(holder).unwrap()).unwrap();
    let pid = i32::try_from(holder["pid"].as_i64().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(!left.ended().status.success());
    place.site.until("the holder is gone", || place.any(&["--name=one", "status"]).status.code() == Some(2));
    place.any(&["--name=one", "status"]).code(2).says(&["the cluster `one` has ended", "lockstep cluster down"]);
    place.ok(&["--name=one", "down"]);
    assert_eq!(place.ok(&["--name=two", "exec", "n1", "--", "hostname"]), "n1\n");
    place.ok(&["--name=two", "down"]);
    place.assert_as_before();
}

#[test]
fn a_cluster_of_slurm_takes_jobs_while_nodes_are_cut_lost_and_booted() {
    let place = TestCluster::new();
    if !place.up_with_slurm("Slurm in namespaces") {
        return;
    }
    let hosts = || Ended { out: place.sh("ctl", "srun -N2 hostname"), ..place.any(&["status"]) };
    assert_eq!(hosts().sorted(), ["n1", "n2"]);
    let script = place
        .site
        .file("job.sh", "#!/bin/sh\nsrun sh -c 'echo $SLURM_PROCID on $(hostname) has $CUDA_VISIBLE_DEVICES'\n");
    let words = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2", "--output=job.out", &script];
    place.batch(&words).code(0);
    let mut lines: Vec<String> = place.site.read("job.out").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["0 on n1 has 0,1", "1 on n2 has 0,1"]);
    let launcher = lockstep();
    let workers = place.sh("ctl", &format!(
        "srun --nodes=2 --ntasks-per-node=1 {launcher} run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d \
         --rdzv-endpoint=n1:29400 --rdzv-id=1 --prefix=never sh -c 'echo $MASTER_ADDR has $WORLD_SIZE, here $(hostname)'"
    ));
    let mut workers: Vec<&str> = workers.lines().collect();
    workers.sort_unstable();
    let first = workers[0].split(' ').next().unwrap();
    assert!(["n1", "n2"].contains(&first), "{workers:?}");
    let expected = ["n1", "n1", "n2", "n2"].map(|node| format!("{first} has 4, here {node}"));
    assert_eq!(workers, expected);
    place.assert_srun_starts_ranks();
    if place.any(&["fault", "cut", "n1", "n2"]).status.success() {
        place.assert_cut("n1", "n2");
        place.ok(&["fault", "heal"]);
    }
    place.ok(&["fault", "lose", "n2"]);
    place.sh("ctl", "scontrol update nodename=n2 state=down reason=lost");
    assert_eq!(place.sh("ctl", "srun -N1 hostname"), "n1");
    let mut fails = place.command(&["fault", "boot", "n2"]);
    place.programs(&["slurmd"], "echo no such plugin; exit 3");
    ended(fails.env("PATH", place.path())).code(1).says(&[
        "n2 did not boot",
        "slurmd did not start on n2",
        "| no such plugin",
    ]);
    assert_eq!(place.status("n2").0, "lost");
    place.ok(&["fault", "boot", "n2"]);
    assert_eq!(hosts().sorted(), ["n1", "n2"]);
    place.ok(&["down"]);
    place.assert_as_before();
}

/// An `up` that finds programs called like Slurm's before those of the system; the controller does what the test says. `None` where
/// Slurm is not even tried.
fn with_daemon(place: &TestCluster, slurmctld: &str) -> Option<Command> {
    if !rustix::process::getuid().is_root() || !place.up(&["--nodes=1", "--no-slurm"]) {
        println!("not verified here: a cluster whose daemons fail (it takes root, and namespaces)");
        return None;
    }
    place.ok(&["down"]);
    place.programs(&["slurmd", "srun", "sinfo", "scontrol", "munged"], "");
    place.programs(&["slurmctld"], slurmctld);
    let mut command = place.command(&["up", "--nodes=1"]);
    command.env("PATH", place.path());
    Some(command)
}

#[test]
fn a_daemon_that_does_not_start_is_named_with_its_last_words_and_nothing_is_left() {
    let place = TestCluster::new();
    let Some(mut up) = with_daemon(&place, "echo fatal: no such plugin >&2; exit 3") else { return };
    ended(&mut up).code(1).says(&[
        "the cluster `main` did not start; nothing is left of it",
        "slurmctld did not start on ctl (exit status: 3)",
        "the end of slurmctld.log:\n  | fatal: no such plugin",
    ]);
    place.assert_as_before();
}

#[test]
fn a_daemon_that_ends_behind_its_back_is_not_waited_for() {
    let place = TestCluster::new();
    let dies = "echo 999999 >\"${SLURM_CONF%/*}/slurm/slurmctld.pid\"; echo fatal: no state";
    let Some(mut up) = with_daemon(&place, dies) else { return };
    ended(&mut up).code(1).says(&["slurmctld has ended on ctl after", "not ready: n1 (unknown)", "| fatal: no state"]);
    place.assert_as_before();
}

#[test]
fn an_up_that_is_stopped_or_killed_half_way_leaves_no_process() {
    let place = TestCluster::new();
    let Some(up) = with_daemon(&place, "echo half; sleep 1000") else { return };
    let log = place.folder("main").join("log/slurmctld.log");
    let half = || fs::read_to_string(&log).is_ok_and(|text| text.contains("half"));
    let stopped = Running::start(up);
    place.site.until("slurmctld is started", half);
    stopped.signal(Signal::TERM);
    stopped.ended().killed_by(Signal::TERM).says(&["stopped by SIGTERM"]);
    place.assert_as_before();

    let mut again = place.command(&["up", "--nodes=1"]);
    again.env("PATH", place.path());
    let killed = Running::start(again);
    place.site.until("slurmctld is started", half);
    killed.signal(Signal::KILL);
    place.site.await_no_process();
    place.ok(&["down"]);
    place.assert_as_before();
}

#[test]
fn refuses_what_cannot_be_before_anything_is_started() {
    let place = TestCluster::new();
    place.any(&["status"]).code(2).says(&["there is no cluster `main`", "lockstep cluster up"]);
    place.any(&["up", "--name=../x"]).code(2).says(&["lowercase letters, digits and hyphens"]);
    place.any(&["up", "--nodes=0"]).code(2);
    place.any(&["up", "--share=/no/such/folder"]).code(2).says(&["--share /no/such/folder"]);
    place.any(&["up", "--share=/tmp"]).code(2).says(&["--share /tmp: it is each node's own"]);
    place.any(&["fault", "slow", "n1", "--rate", "10"]).code(2).says(&["10mbit"]);
    place.any(&["exec", "x1", "--", "true"]).code(2).says(&["nodes are called n1, n2"]);
    let mut open = place.command(&["up", "--no-slurm"]);
    fs::create_dir(place.site.path("open")).unwrap();
    fs::create_dir(place.site.path("open/lockstep-cluster")).unwrap();
    fs::set_permissions(place.site.path("open/lockstep-cluster"), PermissionsExt::from_mode(0o755)).unwrap();
    let refused = ended(open.env("XDG_RUNTIME_DIR", place.site.path("open"))).code(2);
    if !refused.err.contains("namespaces") {
        refused.says(&["is not a folder that only you may enter"]);
    }
    place.site.assert_no_process();
}

/// As at the time limit: SIGTERM to all processes of the job's step.
#[test]
fn slurms_sigterm_saves_a_snapshot_and_the_job_that_is_queued_again_ends_with_the_same_bits() {
    let place = TestCluster::new();
    let Some(lab) = lab("lab-06-snapshot-resume") else { return };
    if !place.up_with_slurm("a job that SIGTERM ends") {
        return;
    }
    let whole = place.training("whole", &lab, "OMP_NUM_THREADS=1");
    place.batch(&[&whole]).code(0);

    // Rank 1 waits there until the signal has come.
    let plan = r#"{"faults": [{"name": "wait", "rank": 1, "at": {"point": "step", "epoch": 1, "step": 2}, "acts": [{"signal": 19}]}]}"#;
    place.site.file("plan.json", plan);
    let [plan, events] = ["plan.json", "events"].map(|name| place.site.shell(name));
    let settings = format!("OMP_NUM_THREADS=1 LOCKSTEP_FAULTS={plan} LOCKSTEP_EVENTS={events}");
    let job = place.sh("ctl", &format!("sbatch --parsable {}", quoted(&place.training("stopped", &lab, &settings))));
    place.site.until("rank 1 waits", || place.site.path("plan.json.fired-wait").exists());
    place.sh("ctl", &format!("scancel --signal=TERM {job}"));
    place.sh("ctl", &format!("scancel --signal=CONT {job}"));
    let completed = || place.sh("ctl", &format!("scontrol show job {job}")).contains("JobState=COMPLETED");
    place.site.until("the second start ends well", completed);
    let said = place.site.read("stopped.out");
    for words in ["A signal asked for a snapshot and the end: epoch ", "start 2 of Slurm job ", "ended on SIGTERM"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let weights =
        |name: &str, rank: u32| fs::read(place.site.path(&format!("{name}-weights/rank-{rank}.safetensors"))).unwrap();
    assert!((0..2).all(|rank| weights("stopped", rank) == weights("whole", 0)), "the weights have other bits");
    place.ok(&["down"]);
    place.assert_as_before();
}

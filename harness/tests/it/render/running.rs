//! The scripts, run by real bash, `lockstep run` and, where they are installed, Slurm (on a cluster in namespaces) and Open MPI. pbsdsh
//! and ssh are simulated: small programs that run the command here, without the caller's variables.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use lockstep_launch::command::quoted;
use tempfile::TempDir;

use super::script;
use crate::cluster::TestCluster;
use crate::running::{Ended, ended, lockstep};

/// Runs a command here as another machine would: with none of the caller's variables but PATH.
const FAR: &str = "exec env -i PATH=\"$PATH\" HOME=\"$HOME\" USER=\"${USER:-nobody}\"";

/// A folder with a site's programs, hosts and profile.
struct Site(TempDir);

/// Starts the script in a login shell, as PBS does.
const LOGIN: &str = "exec bash -l job.sh";

impl Site {
    /// `None` where this user may not make a network.
    fn new(what: &str) -> Option<Self> {
        let own_network = Command::new("unshare").args(["-rn", "true"]).output();
        if !own_network.is_ok_and(|output| output.status.success()) {
            println!("not verified here: {what}: no network namespaces");
            return None;
        }
        let site = Site(tempfile::tempdir().unwrap());
        site.program(
            "ssh",
            &format!(
                "while [ \"${{1#-}}\" != \"$1\" ]; do [ \"$1\" = -o ] && shift; shift; done\nshift\n{FAR} sh -c \"$*\""
            ),
        );
        // Once for each line of the node file, or for one of them; it never fails.
        site.program(
            "pbsdsh",
            &format!(
                "if [ \"$1\" = -n ]; then shift 3; ({FAR} \"$@\"); exit 0; fi\nshift\nwhile read -r _; do ({FAR} \"$@\") & done <\"$PBS_NODEFILE\"\nwait"
            ),
        );
        site.program(
            "qsub",
            &format!("[ \"$1\" = -v ] && cp \"$3\" {0} && echo \"$2\" >{0}-with", site.shell("queued")),
        );
        // What users and sites have in their files.
        fs::create_dir(site.path("home")).unwrap();
        let profile = format!("echo 'Welcome to this machine'\nPATH={}:$PATH\nset -u\n", site.shell(""));
        site.write("home/.bash_profile", &profile);
        site.write("home/.bash_logout", "false\n");
        site.write("hosts", "# two names of this machine\nlocalhost slots=1\n\n127.0.0.1\nlocalhost\n");
        Some(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The path as a word of a line of shell.
    fn shell(&self, name: &str) -> String {
        quoted(self.path(name).to_str().unwrap())
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn program(&self, name: &str, text: &str) {
        self.write(name, &format!("#!/bin/bash\n{text}\n"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Renders for a scheduler, with these further lines of the profile and words of the command line, and runs it.
    fn run(&self, scheduler: &str, profile: &str, words: &str) -> Ended {
        let own = lockstep() + " run --rdzv-conf=join_timeout=300";
        self.run_by(&own, scheduler, profile, words)
    }

    /// The same, with another launcher.
    fn run_by(&self, launcher: &str, scheduler: &str, profile: &str, words: &str) -> Ended {
        self.run_started(LOGIN, launcher, scheduler, profile, words)
    }

    /// The same, with the command that starts the script.
    fn run_started(&self, start: &str, launcher: &str, scheduler: &str, profile: &str, words: &str) -> Ended {
        self.render(launcher, scheduler, profile, words);
        ended(&mut self.script(start))
    }

    /// Writes the script.
    fn render(&self, launcher: &str, scheduler: &str, profile: &str, words: &str) {
        let (folder, hosts) = (self.0.path().display(), self.path("hosts"));
        self.write("nodes", "localhost\n127.0.0.1\n");
        let hostfile = if ["pbs", "slurm"].contains(&scheduler) {
            String::new()
        } else {
            format!("hostfile = \"{}\"\n", hosts.display())
        };
        self.write(
            "site.toml",
            &format!("scheduler = \"{scheduler}\"\nshared = \"{folder}\"\nlocal = \"{folder}/disk-$$\"\nlauncher = \"{launcher}\"\n{hostfile}{profile}"),
        );
        self.write("job.sh", &script(&format!("--profile {} {words}", self.shell("site.toml"))));
    }

    /// The command that runs the script, started by `start`.
    fn script(&self, start: &str) -> Command {
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").unwrap());
        let inner = format!("ip link set lo up && {start}");
        let mut command = Command::new("unshare");
        command.args(["-rn", "sh", "-c", &inner]).current_dir(self.0.path()).env("PATH", path).env("LEAKED", "yes");
        command.env("HOME", self.path("home"));
        command
            .env("PBS_NODEFILE", self.path("nodes"))
            .env("PBS_JOBID", "7.server")
            .env("PBS_O_WORKDIR", self.0.path())
            .env("PBS_ARRAY_INDEX", "1");
        for (name, value) in
            [("JOB_ID", "5"), ("JOB_NODELIST", "n[1-2]"), ("ARRAY_JOB_ID", "5"), ("ARRAY_TASK_ID", "1")]
        {
            command.env(format!("SLURM_{name}"), value);
        }
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
    }

    /// A worker's program: its line goes to a file of its rank.
    fn worker(&self, text: &str) -> String {
        self.program("worker", text);
        self.shell("worker")
    }

    /// What the workers said, in the order of ranks.
    fn said(&self, ranks: usize) -> Vec<String> {
        (0..ranks).map(|rank| fs::read_to_string(self.path(&format!("rank-{rank}"))).unwrap_or_default()).collect()
    }
}

/// Says who it is, which arguments it has, and whether a variable of the batch script's caller has come along.
const WHO: &str =
    "echo \"$RANK of $WORLD_SIZE on node $GROUP_RANK: $* $SITE ${LEAKED:-}\" >\"$(dirname \"$0\")/rank-$RANK\"";
const SITE: &str = "[environment]\nSITE = \"here\"\n";

#[test]
fn ssh_starts_unequal_nodes_with_their_environment_and_arguments() {
    let Some(site) = Site::new("scripts for ssh (simulated)") else { return };
    let worker = site.worker(WHO);
    let ended = site.run("ssh", SITE, &format!("--nodes 1x2,1x1 --name job -- {worker} --note a$b*"));
    ended.code(0);
    let said = site.said(3);
    for (rank, line) in said.iter().enumerate() {
        assert!(line.starts_with(&format!("{rank} of 3 on node ")), "{said:?}");
        assert!(line.ends_with(": --note a$b* here \n"), "{said:?}");
    }
}

#[test]
fn a_range_of_nodes_begins_with_those_that_there_are_and_ends_well_without_one_that_is_lost() {
    let Some(site) = Site::new("scripts for ssh (simulated)") else { return };
    // Like a node that has gone by the end: its script has left no exit code.
    let dies = "if [ \"$GROUP_RANK\" = 1 ]; then kill -9 $(awk '{ print $4 }' /proc/$PPID/stat) $PPID; fi";
    let worker = site.worker(&format!("{WHO}\n[ \"$WORLD_SIZE\" = 1 ] || {{ {dies}\nsleep 1000; }}"));
    site.run("ssh", SITE, &format!("--nodes 1-3 --name job -- {worker} x")).code(0);
    let said = site.said(2);
    assert!(said[0].starts_with("0 of 1 on node 0") && said[1].starts_with("1 of 2 on node 1"), "{said:?}");
}

#[test]
fn ssh_hands_flags_to_a_launcher_that_cannot_read_a_host_file() {
    let Some(site) = Site::new("scripts for ssh (simulated)") else { return };
    let worker = site.worker(WHO);
    // A launcher with torchrun's flags alone.
    site.program("torchrun", &format!("exec {} run --rdzv-conf=join_timeout=300 \"$@\"", lockstep()));
    site.run_by(&site.shell("torchrun"), "ssh", SITE, &format!("--nodes 2 --name job -- {worker} x")).code(0);
    let said = site.said(2);
    assert!(said.iter().all(|line| line.contains(" of 2 on node ") && line.ends_with(": x here \n")), "{said:?}");
}

#[test]
fn a_container_gets_the_launcher_its_binds_and_the_nodes_gpus() {
    let Some(site) = Site::new("scripts with a container (simulated)") else { return };
    let worker = site.worker(WHO);
    let folder = site.path("").display().to_string();
    site.program(
        "apptainer",
        &format!(
            "echo \"$*\" >{}\nwhile [ \"$1\" != image.sif ]; do shift; done\nshift\nexec \"$@\"",
            site.shell("called")
        ),
    );
    // The login shell on the node has a PATH of its own.
    let container = format!(
        "setup = [\"export PATH={}:$PATH\"]\ngpus-per-node = 2\n[container]\nruntime = \"apptainer\"\n\
         image = \"image.sif\"\nbinds = [\"/data\", \"/a:/b:ro\"]\n",
        site.shell("")
    );
    site.run("ssh", &container, &format!("--nodes 1 --name job -- {worker} x")).code(0);
    assert!(site.said(2).iter().all(|line| line.contains(" of 2 on node 0: x")), "{:?}", site.said(2));
    let called = fs::read_to_string(site.path("called")).unwrap();
    assert!(
        called.starts_with(&format!("exec --nv --bind /data,/a:/b:ro,{} image.sif ", folder.trim_end_matches('/'))),
        "{called}"
    );
}

#[test]
fn one_script_runs_in_the_container_and_without_it() {
    let Some(site) = Site::new("scripts with a container (simulated)") else { return };
    site.program("apptainer", "export inside=yes\nwhile [ \"$1\" != image.sif ]; do shift; done\nshift\nexec \"$@\"");
    let profile = format!(
        "setup = [\"export PATH={}:$PATH\"]\n[container]\nruntime = \"apptainer\"\nimage = \"image.sif\"\ntoggle = \"USE_CONTAINER\"\n",
        site.shell("")
    );
    let worker = site.worker(&WHO.replace("$*", "in it: ${inside:-no},"));
    site.render(&(lockstep() + " run"), "ssh", &profile, &format!("--nodes 2 --name job -- {worker}"));
    let run = |toggle: Option<&str>| ended(site.script(LOGIN).envs(toggle.map(|value| ("USE_CONTAINER", value))));
    for (toggle, there) in [(None, "yes"), (Some("0"), "no"), (Some("1"), "yes")] {
        run(toggle).code(0);
        assert!(site.said(2).iter().all(|line| line.contains(&format!("in it: {there},"))), "{:?}", site.said(2));
    }
    run(Some("maybe")).code(1).says(&["error: USE_CONTAINER is maybe: 1 is in the container, 0 without it"]);
}

#[test]
fn a_failure_on_one_node_fails_the_script_for_ssh_and_for_pbs() {
    let Some(site) = Site::new("scripts for ssh and pbsdsh (simulated)") else { return };
    let worker = site.worker("[ \"$GROUP_RANK\" != 1 ]");
    for scheduler in ["ssh", "pbs"] {
        let ended = site.run(scheduler, "", &format!("--nodes 2 --time 01:00:00 --name job -- {worker}"));
        ended.code(1).never_says(&["rendezvous"]).says(&["exitcode"]);
    }
}

#[test]
fn pbs_stages_data_on_each_node_and_removes_it_at_the_end() {
    let Some(site) = Site::new("scripts for pbsdsh (simulated)") else { return };
    fs::create_dir(site.path("set")).unwrap();
    site.write("set/images", "these");
    let worker = site.worker(&format!("cat \"$1\" >/dev/null && {WHO}"));
    let data = site.shell("set");
    let ended = site.run(
        "pbs",
        SITE,
        &format!("--nodes 2 --time 01:00:00 --name job --stage {data} -- {worker} {{local}}/set/images"),
    );
    ended.code(0);
    let said = site.said(2);
    assert!(said.iter().all(|line| line.contains("/lockstep-7.server/set/images here")), "{said:?}");
    let disks = fs::read_dir(site.0.path()).unwrap().map(|entry| entry.unwrap().path());
    let disks: Vec<_> = disks.filter(|path| path.to_str().unwrap().contains("/disk-")).collect();
    assert!(disks.len() == 2 && disks.iter().all(|disk| fs::read_dir(disk).unwrap().next().is_none()), "{disks:?}");
}

#[test]
fn pbs_asks_for_a_snapshot_before_the_time_limit_and_submits_itself_again() {
    let Some(site) = Site::new("scripts for pbsdsh (simulated)") else { return };
    let folder = site.shell("");
    // In place of coreutils' one: the time is up as soon as all workers are ready, and only in the first job.
    site.program(
        "timeout",
        &format!(
            "[ \"$1\" = --signal=USR2 ] && [ \"$2\" -gt 0 ] && [ \"$2\" -le 3000 ] || exit 99\nshift 2\n\"$@\" &\n\
             while kill -0 $! 2>/dev/null; do\n  \
             if [ -e {folder}ready-0 ] && [ -e {folder}ready-1 ] && [ ! -e {folder}queued ]; then kill -USR2 $!; wait $!; exit 124; fi\n  \
             sleep 0.05\ndone\nwait $!"
        ),
    );
    // Ends when it is asked to, and only then; in the second job at once.
    let worker = site.worker(
        "d=$(dirname \"$0\"); [ -e \"$d/queued\" ] && exit 0\n\
         trap 'echo saved >\"$d/rank-$RANK\"; kill $!; exit 1' TERM\nsleep 1000 &\n: >\"$d/ready-$RANK\"\nwait",
    );
    let setup = format!("setup = [\"export PATH={folder}:$PATH\"]\n");
    let words = format!("--nodes 1x1,1x1 --time 01:00:00 --signal 600 --name job -- {worker}");
    site.run("pbs", &setup, &words);
    assert_eq!(site.said(2), ["saved\n", "saved\n"]);
    assert_eq!(fs::read_to_string(site.path("queued")).unwrap(), fs::read_to_string(site.path("job.sh")).unwrap());
    assert_eq!(fs::read_to_string(site.path("queued-with")).unwrap(), "first_job=7.server\n");
    site.run("pbs", &setup, &words).code(0);
}

#[test]
fn the_launchers_save_a_snapshot_at_qdel_before_pbs_ends_the_script() {
    let Some(site) = Site::new("scripts for pbsdsh (simulated)") else { return };
    let task = format!("{FAR} PBS_JOBID=7.server PBS_ENVIRONMENT=PBS_BATCH PBS_TASKNUM=2");
    // As PBS's own: at a signal it sends it to its tasks, and ends.
    let pbsdsh = format!(
        "tasks=()\ntrap 'kill -TERM \"${{tasks[@]}}\"; exit 1' TERM\n\
         if [ \"$1\" = -n ]; then shift 3; ({task} \"$@\") & tasks=($!)\n\
         else shift; while read -r _; do ({task} \"$@\") & tasks+=($!); done <\"$PBS_NODEFILE\"; fi\nwait"
    );
    site.program("pbsdsh", &pbsdsh);
    // Needs some time to save: as long as the file `saving` is there.
    let worker = site.worker(
        "d=$(dirname \"$0\"); trap 'while [ -e \"$d/saving\" ]; do sleep 0.05; done; echo saved >\"$d/rank-$RANK\"; exit 75' TERM USR2\n\
         : >\"$d/ready-$RANK\"\nwhile :; do sleep 0.05; done",
    );
    for words in ["--nodes 2 --time 01:00:00", "--nodes 1x1,1x1 --time 01:00:00 --signal 60"] {
        (0..2).for_each(|rank| drop(fs::remove_file(site.path(&format!("ready-{rank}")))));
        site.write("saving", "");
        let qdel = format!(
            "trap '' TERM; while [ ! -e {0}ready-0 ] || [ ! -e {0}ready-1 ]; do sleep 0.05; done; kill -TERM -- -$1; sleep 0.3; rm {0}saving",
            site.shell("")
        );
        site.program("qdel", &qdel);
        // PBS signals each process of the script's session.
        let start = format!("exec setsid --wait bash -c '{} $$ & exec bash -l job.sh'", site.path("qdel").display());
        let ended =
            site.run_started(&start, &(lockstep() + " run"), "pbs", "", &format!("{words} --name job -- {worker}"));
        let ended = ended.code(143).says(&["asked to end"]);
        assert_eq!(site.said(2), ["saved\n", "saved\n"], "{words}: {ended}");
        let run = fs::read_dir(site.path("lockstep-7.server")).unwrap().map(|entry| entry.unwrap());
        let codes: Vec<String> = run
            .filter(|file| file.file_name().to_string_lossy().starts_with("exit."))
            .map(|file| fs::read_to_string(file.path()).unwrap())
            .collect();
        assert_eq!(codes, ["75\n", "75\n"], "{words}: {ended}");
        (0..2).for_each(|rank| drop(fs::remove_file(site.path(&format!("rank-{rank}")))));
    }
}

/// What sites and users have in files that login shells read at their beginning.
const START_FILES: [&str; 7] = [
    "echo 'Welcome to this machine'\necho 'news' >&2",
    "set -euo pipefail",
    "set -o noclobber -f\nshopt -s failglob nullglob",
    "IFS=:",
    "trap 'exit 4' ERR\ntrap 'exit 5' EXIT\ntrap : DEBUG",
    "cd() { builtin cd \"$@\"; [ -e venv ] && echo active; }",
    "module() { echo \"$MODULES_OF_NOBODY loaded $*\"; }",
];

/// Forms of scripts: the scheduler, further lines of the profile, and words of the command line.
const FORMS: [(&str, &str, &str); 8] = [
    ("ssh", "", "--nodes 2"),
    ("ssh", "", "--nodes 1x1,1x2 --time 01:00:00 --signal 60"),
    ("pbs", "", "--nodes 2 --time 01:00:00"),
    ("pbs", "", "--nodes 1x1,1x2 --time 01:00:00 --signal 60"),
    ("pbs", "", "--nodes 2 --time 01:00:00 --array 2"),
    ("slurm", "", "--nodes 2 --time 01:00:00 --signal 60"),
    ("slurm", "", "--nodes 2 --time 01:00:00 --array 2 --signal 60"),
    ("slurm", "[container]\nruntime = \"apptainer\"\nimage = \"image.sif\"\n", "--nodes 2 --time 01:00:00 --signal 60"),
];

/// The whole takes more than a second, for it runs a script of each form twice.
#[test]
fn a_scripts_result_is_the_trainings_whatever_start_and_end_files_do() {
    let Some(site) = Site::new("scripts with start files of all kinds") else { return };
    let behind_options = "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n";
    site.program("srun", &format!("{behind_options}\"$@\" && \"$@\""));
    site.program("launch", &format!("{behind_options}exec \"$@\""));
    site.program("apptainer", "shift 2\nexec \"$@\"");
    site.program("scontrol", "printf 'n1\\nn2\\n'");
    // sshd's shell reads .bashrc.
    let ssh = format!(
        "while [ \"${{1#-}}\" != \"$1\" ]; do [ \"$1\" = -o ] && shift; shift; done\nshift\n\
         {FAR} bash -c \". ~/.bashrc; $*\" </dev/null"
    );
    site.program("ssh", &ssh);
    site.write("home/.bashrc", "echo 'Hello again'\n");
    let path = format!("PATH={}:$PATH\n", site.shell(""));
    site.write("home/.bash_profile", &(path.clone() + &START_FILES.join("\n") + "\n"));
    let worker = site.worker("echo \"$0\" >>\"$(dirname \"$0\")/trained\"; exit \"$1\"");
    let run = |(scheduler, profile, words): (&str, &str, &str), code: u32| {
        drop(fs::remove_file(site.path("trained")));
        let profile = format!("modules = [\"cuda\"]\n{profile}");
        let ended =
            site.run_by(&site.shell("launch"), scheduler, &profile, &format!("{words} --name job -- {worker} {code}"));
        let trained = fs::read_to_string(site.path("trained")).unwrap_or_default().lines().count();
        (ended, trained)
    };
    for form in FORMS {
        for (end, code) in [("exit 3\n", 0), ("false\n", 7)] {
            site.write("home/.bash_logout", end);
            let (ended, trained) = run(form, code);
            assert_eq!(ended.status.success(), code == 0, "{form:?} with {end:?} and {code}: {ended}");
            assert_eq!(trained, if form.0 == "slurm" && code > 0 { 1 } else { 2 }, "{form:?}: {ended}");
        }
    }
    // A file that replaces the shell: nothing is trained, and that is no success. Nothing has to be waited for here.
    site.program("sleep", "");
    site.write("home/.bashrc", "exec sh\n");
    let (ended, trained) = run(FORMS[0], 0);
    assert_eq!(trained, 0, "{ended}");
    ended.code(1).says(&["a node without one did not run"]);
}

#[test]
fn the_real_mpirun_starts_one_launcher_on_each_host() {
    let Some(site) = Site::new("scripts for mpirun") else { return };
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("not verified here: scripts for mpirun, which is not installed");
        return;
    }
    let worker = site.worker(WHO);
    site.write("hosts", "localhost slots=1\n");
    let ended = site.run("mpirun", SITE, &format!("--nodes 1 --workers-per-node 2 --name job -- {worker} x"));
    ended.code(0);
    let said = site.said(2);
    assert!(said[0].starts_with("0 of 2 on node 0: x here") && said[1].starts_with("1 of 2 "), "{said:?}");
}

// ---- under Slurm

/// A worker says who it is, on which node and with which arguments, in a file of the job and its rank.
const WHO_ON_A_NODE: &str =
    "#!/bin/sh\necho \"$RANK of $WORLD_SIZE on $(hostname): $(cat \"$1\") $SITE\" >>\"$(dirname \"$0\")/$2-$RANK\"";

/// Renders a job called `job` for a Slurm site with these further lines of its profile; returns the script's path.
fn write(place: &TestCluster, job: &str, profile: &str, words: &str) -> String {
    let (launcher, folder) = (lockstep(), place.site.word(""));
    place.site.file(
        "site.toml",
        &format!(
            "scheduler = \"slurm\"\nshared = \"{folder}\"\nlocal = \"/tmp\"\n\
             launcher = \"{launcher} run --rdzv-conf=join_timeout=300\"\n{profile}[environment]\nSITE = \"here\"\n"
        ),
    );
    let text = script(&format!("--profile {} --time 00:10:00 --name {job} {words}", place.site.shell("site.toml")));
    place.site.file(&format!("{job}.sh"), &text)
}

/// Submits a script and waits for its end: its workers must have written `expected`, in the order of their ranks.
#[track_caller]
fn assert_says(place: &TestCluster, job: &str, path: &str, expected: &[&str]) {
    let ended = place.batch(&[path]);
    assert!(ended.status.success(), "{ended}\n{}", outputs(place, job));
    let said: Vec<String> = (0..expected.len()).map(|rank| place.site.read(&format!("{job}-{rank}"))).collect();
    assert_eq!(said.iter().map(|line| line.trim()).collect::<Vec<_>>(), expected, "{job}: {}", outputs(place, job));
}

/// What Slurm has written for a job.
fn outputs(place: &TestCluster, job: &str) -> String {
    let files = lockstep_testkit::names(&place.site.path("")).into_iter();
    let files = files.filter(|name| name.starts_with(&format!("{job}-")) && name.ends_with(".out"));
    files.map(|name| place.site.read(&name)).collect()
}

#[test]
fn slurm_runs_scripts_for_equal_and_unequal_nodes_and_queues_one_again() {
    let place = TestCluster::new();
    if !place.up_with_slurm("scripts for Slurm") {
        return;
    }
    place.site.file("data", "staged");
    place.site.program("who", WHO_ON_A_NODE);
    let [data, who] = ["data", "who"].map(|name| place.site.shell(name));

    let words = format!("--nodes 2 --workers-per-node 2 --stage {data} -- {who} {{local}}/data equal");
    let path = write(&place, "equal", "", &words);
    let line = |rank: u32, node: &str, world: u32| format!("{rank} of {world} on {node}: staged here");
    let expected = [line(0, "n1", 4), line(1, "n1", 4), line(2, "n2", 4), line(3, "n2", 4)];
    assert_says(&place, "equal", &path, &expected.each_ref().map(String::as_str));

    let path = write(&place, "unequal", "", &format!("--nodes 1x2,1x1 -- {who} {data} unequal"));
    let expected = [line(0, "n1", 3), line(1, "n1", 3), line(2, "n2", 3)];
    assert_says(&place, "unequal", &path, &expected.each_ref().map(String::as_str));

    queues_again(&place);
    place.ok(&["down"]);
    place.assert_as_before();
}

/// Slurm's signal before the time limit, sent by hand: the workers save, and the same job runs again.
fn queues_again(place: &TestCluster) {
    // Slurm signals every process of the job: the signal may end the worker's child before it reaches the worker.
    place.site.program(
        "saves",
        "#!/bin/bash\nfolder=$(dirname \"$0\")\nif [ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ]; then echo resumed >>\"$folder/long-$RANK\"; exit; fi\n\
         trap 'trap : USR2; echo saved >>\"$folder/long-$RANK\"; kill $!; exit 75' USR2\n: >\"$folder/ready-$RANK\"\n\
         while :; do sleep 1000 & wait; done",
    );
    let path = write(place, "long", "", &format!("--nodes 2 --signal 60 -- {}", place.site.shell("saves")));
    let job = place.sh("ctl", &format!("sbatch --parsable {}", quoted(&path)));
    let ready = || (0..2).all(|rank| place.site.path(&format!("ready-{rank}")).exists());
    place.site.until("both workers wait for the signal", ready);
    place.sh("ctl", &format!("scancel --batch --signal=USR1 {job}"));
    let completed = || place.sh("ctl", &format!("scontrol show job {job}")).contains("JobState=COMPLETED");
    place.site.until("the second run ends well", completed);
    for rank in 0..2 {
        assert_eq!(place.site.read(&format!("long-{rank}")), "saved\nresumed\n", "{}", outputs(place, "long"));
    }
}

#[test]
fn slurm_runs_a_script_that_starts_its_launchers_with_mpirun() {
    let place = TestCluster::new();
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("not verified here: scripts for mpirun, which is not installed");
        return;
    }
    if !place.up_with_slurm("scripts for mpirun under Slurm") {
        return;
    }
    place.site.file("data", "shared");
    place.site.program("who", WHO_ON_A_NODE);
    let [data, who] = ["data", "who"].map(|name| place.site.shell(name));
    let start =
        "start = \"mpirun --allow-run-as-root --oversubscribe -np {nodes} --map-by ppr:1:node --bind-to none\"\n";
    let path = write(&place, "mpi", start, &format!("--nodes 2 --workers-per-node 2 -- {who} {data} mpi"));
    let line = |rank: u32, node: &str| format!("{rank} of 4 on {node}: shared here");
    let expected = [line(0, "n1"), line(1, "n1"), line(2, "n2"), line(3, "n2")];
    assert_says(&place, "mpi", &path, &expected.each_ref().map(String::as_str));
    place.ok(&["down"]);
    place.assert_as_before();
}

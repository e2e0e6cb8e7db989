//! A place for clusters, and what the tests ask of one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use lockstep_launch::command::quoted;
use tempfile::TempDir;

use crate::run::site::Site;
use crate::running::{Ended, ended, lockstep};

/// Submits a batch job, waits for its end, and fails if it has failed. `sbatch --wait` looks after 2 s, and then ever more rarely.
/// A job of unequal nodes has several parts, each with a state.
const BATCH: &str = "job=$(sbatch --parsable \"$@\") || exit
state() { scontrol show job \"$job\" | sed -n 's/.*JobState=\\([A-Z_]*\\).*/\\1/p' | sort -u; }
for _ in $(seq 6000); do
  case $(state) in '' | *PENDING* | *CONFIGURING* | *RUNNING* | *COMPLETING*) sleep 0.1 ;; *) break ;; esac
done
[ \"$(state)\" = COMPLETED ]";

/// A place for clusters: what a site's processes leave is found.
pub(crate) struct TestCluster {
    pub(crate) site: Site,
    /// Where clusters have their folders. Sockets need a short path and Slurm a plain one, wherever this checkout is.
    runtime: TempDir,
    /// What this machine shows of networks and mounts before there is a cluster.
    before: [String; 2],
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        TestCluster { site: Site::new(), runtime: tempfile::tempdir_in("/tmp").unwrap(), before: shown() }
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
        self.site.prepare(&mut command);
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).arg("cluster").args(words);
        command
    }

    /// The folder of the cluster of this name.
    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.runtime.path().join("lockstep-cluster").join(name)
    }

    /// A command that must succeed. What it printed.
    #[track_caller]
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        self.any(words).code(0).out
    }

    pub(crate) fn any(&self, words: &[&str]) -> Ended {
        ended(&mut self.command(words))
    }

    /// The output of a line of shell on a machine.
    #[track_caller]
    pub(crate) fn sh(&self, machine: &str, script: &str) -> String {
        self.ok(&["exec", machine, "--", "sh", "-c", script]).trim().to_owned()
    }

    /// Runs a batch job on the head node with these words of sbatch(1), to its end.
    pub(crate) fn batch(&self, words: &[&str]) -> Ended {
        self.any(&[&["exec", "ctl", "--", "sh", "-c", BATCH, "batch"], words].concat())
    }

    /// Starts a cluster; false where that cannot be.
    #[track_caller]
    pub(crate) fn up(&self, words: &[&str]) -> bool {
        let up = self.any(&[&["up"], words].concat());
        let cannot = up.status.code() == Some(2)
            && ["does not let you make namespaces", "programs are missing"].iter().any(|why| up.err.contains(why));
        if cannot {
            println!("not verified here: a cluster in namespaces ({})", up.err.trim());
            return false;
        }
        up.code(0);
        true
    }

    /// Starts a cluster of two nodes under Slurm; false where that cannot be.
    #[track_caller]
    pub(crate) fn up_with_slurm(&self, what: &str) -> bool {
        let up = self.any(&["up", "--nodes=2"]);
        if !up.out.contains("under Slurm") {
            println!("not verified here: {what} ({}{})", up.out.trim(), up.err.trim());
            let _ = self.any(&["down"]);
            return false;
        }
        up.code(0);
        true
    }

    /// srun starts a lab's ranks without a launcher, and they train as a launcher's do.
    #[track_caller]
    pub(super) fn assert_srun_starts_ranks(&self) {
        let Some(lab) = lab("lab-03-torchrun-env") else { return };
        let train = |start: &str, weights: &str| {
            let weights = self.site.shell(weights);
            let args = "--samples 37 --batch-size 4 --epochs 1 --device cpu";
            // On one host the ranks would share memory, and add in another order.
            self.sh(
                "ctl",
                &format!("export OMP_NUM_THREADS=1 LOCKSTEP_BACKEND=gloo; {start} {lab} {args} --weights {weights}"),
            )
        };
        train("srun --nodes=2 --ntasks=3", "by-srun");
        train(&format!("{} run --standalone --nproc-per-node=3", lockstep()), "by-launcher");
        let of =
            |folder: &str, rank: u32| fs::read(self.site.path(&format!("{folder}/rank-{rank}.safetensors"))).unwrap();
        assert!((0..3).all(|rank| of("by-srun", rank) == of("by-launcher", 0)), "the weights have other bits");
    }

    /// The script of a job of two ranks on two nodes, which queues itself again when its ranks have saved.
    pub(super) fn training(&self, name: &str, lab: &str, settings: &str) -> String {
        let launcher = lockstep();
        let [snapshots, weights, out] =
            [name.to_owned(), format!("{name}-weights"), format!("{name}.out")].map(|file| self.site.shell(&file));
        let text = format!(
            "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --output={out}\nexport {settings}\n\
             srun {launcher} run --rdzv-conf=join_timeout=300 {lab} --samples 32 --batch-size 4 --epochs 4 --save-every-steps 100 \
             --device cpu --snapshots {snapshots} --weights {weights}\ncode=$?\n\
             [ $code != 75 ] || scontrol requeue $SLURM_JOB_ID\nexit $code\n"
        );
        self.site.file(&format!("{name}.sh"), &text)
    }

    /// Nothing of any cluster is left on this machine.
    #[track_caller]
    pub(crate) fn assert_as_before(&self) {
        self.site.assert_no_process();
        let runtime = fs::read_dir(&self.runtime).unwrap().map(|entry| entry.unwrap().path());
        assert_eq!(self.site.leftovers().into_iter().chain(runtime).collect::<Vec<_>>(), [] as [PathBuf; 0]);
        assert_eq!(shown(), self.before);
    }

    /// Makes programs of these names, for [`TestCluster::path`].
    pub(super) fn programs(&self, names: &[&str], script: &str) {
        fs::create_dir_all(self.site.path("bin")).unwrap();
        for name in names {
            self.site.program(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        }
    }

    /// A `PATH` on which the site's own programs come first.
    pub(super) fn path(&self) -> String {
        format!("{}:{}", self.site.word("bin"), std::env::var("PATH").unwrap())
    }

    /// One machine reaches another: it is refused at once at a port that nobody listens on.
    #[track_caller]
    pub(super) fn assert_reaches(&self, from: &str, to: &str) {
        let knocked = self.knock(from, to, "60");
        assert!(knocked.status.code() == Some(1) && knocked.err.contains("Connection refused"), "{knocked}");
    }

    /// One machine gets no answer from another. A busy machine could only make this pass, not fail.
    #[track_caller]
    pub(super) fn assert_cut(&self, from: &str, to: &str) {
        self.knock(from, to, "2").code(124);
    }

    /// `timeout` ends with 124 when it has ended the program.
    fn knock(&self, from: &str, to: &str, seconds: &str) -> Ended {
        self.any(&["exec", from, "--", "timeout", seconds, "bash", "-c", &format!("</dev/tcp/{to}/9")])
    }

    /// The faults that the status shows of a machine, and its state.
    #[track_caller]
    pub(super) fn status(&self, machine: &str) -> (String, Vec<String>) {
        let status: serde_json::Value = serde_json::from_str(&self.ok(&["status", "--json"])).unwrap();
        let found = status["machines"].as_array().unwrap().iter().find(|row| row["name"] == machine).unwrap();
        let faults = found["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap().to_owned());
        (found["state"].as_str().unwrap().to_owned(), faults.collect())
    }
}

/// A folder below `/tmp` that every user may enter, with the command in it.
pub(super) fn installation() -> TempDir {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
    let built = assert_cmd::cargo::cargo_bin!("lockstep");
    // By another process: as long as a file is open for writing in this one, no test could execute it.
    let mut install = Command::new("install");
    install.arg("--mode=755").arg(built).arg(folder.path());
    ended(&mut install).code(0);
    folder
}

/// A lab's program as a word of a line of shell, if it is built.
pub(super) fn lab(name: &str) -> Option<String> {
    let lab = assert_cmd::cargo::cargo_bin!("lockstep").with_file_name(name);
    if lab.exists() {
        return Some(quoted(lab.to_str().unwrap()));
    }
    println!("not verified here: {} is not built (`cargo build` builds it)", lab.display());
    None
}

/// The interfaces and the mounts of this machine. `ip` may be missing, which is the same before and after.
fn shown() -> [String; 2] {
    let links = Command::new("ip").args(["-brief", "link"]).output();
    let links = links.map(|links| String::from_utf8_lossy(&links.stdout).into_owned()).unwrap_or_default();
    [links, fs::read_to_string("/proc/self/mounts").unwrap()]
}

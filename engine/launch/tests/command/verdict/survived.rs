//! What programs print and survive: put before each failure of the bank and before each example of a rule, it must not change the cause.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use lockstep_launch::report::{Death, Failure};
use lockstep_launch::verdict::{Evidence, FAMILIES, Verdict, judge};

/// Warnings, in the words of the programs and libraries that print them.
const WARNINGS: [&str; 31] = [
    "/x/train.py:12: UserWarning: No space left on device for the cache\n  warnings.warn(message)",
    "<frozen importlib._bootstrap>:241: DeprecationWarning: builtin type SwigPyPacked has no __module__ attribute",
    "/x/model.py:7: RuntimeWarning: overflow encountered in exp\n  return 1 / (1 + np.exp(-x))",
    "WARNING:root:No module named 'apex'; using the plain optimizer",
    "WARNING: No module named 'flash_attn'; falling back to eager attention",
    "2026-11-22 10:00:00,123 - train - WARNING - [Errno 13] Permission denied: '/cache'; caching is disabled",
    "2026-11-22 10:00:00.123 | WARNING  | data:load:31 - FileNotFoundError: [Errno 2] No such file or directory: '/data/extra'",
    "[10:00:00] WARNING  Connection refused by the tracker; retrying in 5 s                    client.py:33",
    "CUDA out of memory. Tried to allocate 2.00 GiB; halving the batch and going on",
    "warning: could not write the cache: [Errno 28] No space left on device (ignored)",
    "ERROR: ld.so: object 'libjemalloc.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
    " 45%|████▌     | 45/100 [00:10<00:12, 4.4it/s, last=OSError: [Errno 5] Input/output error]",
    "n1:4242:4300 [0] misc/ibvwrap.cc:66 NCCL WARN Call to ibv_open_device failed: Cannot allocate memory",
    "n1:4242:4300 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. cannot open shared object file",
    "[W1122 10:00:00.123456789 socket.cpp:764] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused).",
    "[rank0]:[W1122 10:00:00.123456789 ProcessGroupNCCL.cpp:4115] [PG ID 0] using GPU 0 to perform barrier as devices used by this process are currently unknown.",
    "[E1122 10:00:00.123456789 TCPStore.cpp:106] [c10d] recvValue failed, connection reset by peer, trying again",
    "2026-11-22 10:00:00.1: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory",
    "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: cannot open shared object file: No such file or directory",
    "wandb: WARNING Network error (ConnectionError: [Errno 104] Connection reset by peer), entering retry loop.",
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8): No such file or directory",
    "OMP: Warning #190: Forking a process while a parallel region is active is potentially unsafe.",
    "sh: 1: nvidia-smi: not found\ngoing on without a GPU's name",
    "ls: cannot access '/data/extra': No such file or directory\nskipping the extra data",
    "slurmstepd: error: Unable to create TMPDIR [/scratch/x]: Permission denied\nslurmstepd: error: Setting TMPDIR to /tmp",
    "dashboard disabled: [Errno 98] Address already in use",
    "helper: free(): invalid pointer; restarting it",
    "[Rank 0]: Rank 3 failed to pass monitoredBarrier in 2000 ms; retrying",
    "error: argument --amp is deprecated; ignoring it",
    "fork: retry: Resource temporarily unavailable",
];

/// Errors that the program handled, or that ended something else: a thread, another process.
const HANDLED: [&str; 16] = [
    // Python 3.8 to 3.10, then 3.11, 3.13 in colours.
    "Traceback (most recent call last):\n  File \"/x/train.py\", line 9, in <module>\n    open(\"/no/resume.pt\")\nFileNotFoundError: [Errno 2] No such file or directory: '/no/resume.pt'\nno checkpoint: starting from scratch",
    "Traceback (most recent call last):\n  File \"/x/train.py\", line 9, in load\n    raise RuntimeError(\"CUDA out of memory. Tried to allocate 2.00 GiB\")\n    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\ntaking half of the batch",
    "Traceback (most recent call last):\n  File \u{1b}[35m\"/x/train.py\"\u{1b}[0m, line \u{1b}[35m9\u{1b}[0m, in \u{1b}[35mload\u{1b}[0m\n    \u{1b}[31mf\u{1b}[0m\u{1b}[1;31m()\u{1b}[0m\n    \u{1b}[31m~\u{1b}[0m\u{1b}[1;31m^^\u{1b}[0m\n\u{1b}[1;35mOSError\u{1b}[0m: \u{1b}[35m[Errno 28] No space left on device\u{1b}[0m\nepoch 1: loss 0.5",
    "ERROR:root:could not import it\nTraceback (most recent call last):\n  File \"/x/train.py\", line 9, in load\n    import apex\nModuleNotFoundError: No module named 'apex'\nINFO:root:plain optimizer",
    "2026-11-22 10:00:00.1 | ERROR    | data:load:6 - cannot read it\nTraceback (most recent call last):\n\n> File \"/x/data.py\", line 6, in load\n    read(path)\n    └ <function read at 0x7f>\n\nPermissionError: [Errno 13] Permission denied: '/data/1'\n2026-11-22 10:00:00.2 | INFO     | data:load:9 - next shard",
    "╭──── Traceback (most recent call last) ────╮\n│ /x/data.py:9 in load                      │\n│                                           │\n│ ❱ 9 read(path)                            │\n╰───────────────────────────────────────────╯\nConnectionRefusedError: [Errno 111] Connection refused\nreading from the disk",
    "Traceback (most recent call last):\n  File \"/x/train.py\", line 3, in load\nKeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"/x/train.py\", line 5, in load\nOSError: [Errno 24] Too many open files: '/data/1'\nwaiting for the others",
    "Traceback (most recent call last):\n  File \"/x/train.py\", line 3, in load\nEOFError: Ran out of input\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n  File \"/x/train.py\", line 5, in load\nRuntimeError: PytorchStreamReader failed reading zip archive\nthe snapshot before it is whole",
    "  + Exception Group Traceback (most recent call last):\n  |   File \"/x/train.py\", line 7, in load\n  |     g()\n  | ExceptionGroup: shards (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | ValueError: a\n    +---------------- 2 ----------------\n    | OSError: [Errno 28] No space left on device\n    +------------------------------------\nepoch 1: loss 0.5",
    "Exception in thread Thread-1 (report):\nTraceback (most recent call last):\n  File \"/usr/lib/python3.11/threading.py\", line 1045, in _bootstrap_inner\n    self.run()\n  File \"/x/train.py\", line 5, in report\nConnectionResetError: [Errno 104] Connection reset by peer",
    "Exception ignored in: <function Loader.__del__ at 0x7f1>\nTraceback (most recent call last):\n  File \"/x/data.py\", line 9, in __del__\nMemoryError",
    "--- Logging error ---\nTraceback (most recent call last):\n  File \"/usr/lib/python3.11/logging/__init__.py\", line 1113, in emit\nOSError: [Errno 28] No space left on device\nCall stack:\n  File \"/x/train.py\", line 3, in <module>\nMessage: 'step'\nArguments: ()",
    "Task exception was never retrieved\nfuture: <Task finished coro=<f()>>\nTraceback (most recent call last):\n  File \"/x/train.py\", line 3, in f\nsocket.gaierror: [Errno -2] Name or service not known",
    "thread 'loader-1' (71) panicked at src/data.rs:3:5:\ncannot open /data/7: No such file or directory (os error 2)\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\nthe loader was started again",
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nthe tokenizer ended by SIGABRT: one process fewer",
    "Error: No space left on device\nException raised from write at /pytorch/c10/util/x.cpp:7 (most recent call first):\nframe #0: c10::Error::Error() + 0x57 (0x7f in /opt/libc10.so)\nframe #1: <unknown function> + 0x5a (0x7f in /opt/libtorch.so)\nwritten to the other disk",
];

/// A worker's end as the verdict gets it.
pub(super) struct Recorded {
    /// Its exit code, or minus its signal.
    pub(super) exitcode: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Recorded {
    /// Of this rank, from its logs and the report.
    pub(super) fn read(logs: &Path, rank: usize, report: &str) -> Option<Self> {
        let (_, rest) = report.split_once(&format!("rank      : {rank} "))?;
        let exitcode = rest.split_once("exitcode  : ")?.1.split(' ').next()?.parse().ok()?;
        let run = fs::read_dir(logs).ok()?.next()?.ok()?.path().join("attempt_0").join(rank.to_string());
        let log = |name: &str| fs::read(run.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).ok();
        Some(Recorded { exitcode, stdout: log("stdout.log")?, stderr: log("stderr.log")? })
    }

    /// What a launcher would have recorded if the worker had printed this before.
    fn failure(&self, before: &str) -> Failure {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (stdout, stderr) = (lines(&self.stdout), [lines(before), lines(&self.stderr)].concat());
        let (tail, stdout) = if stderr.is_empty() { (stdout, vec![]) } else { (stderr, stdout) };
        let at = SystemTime::UNIX_EPOCH;
        let death = Death {
            rank: 0,
            local_rank: 0,
            pid: 7,
            exitcode: self.exitcode,
            started: at,
            at,
            stopped: false,
            not_started: None,
            error_file: None,
            tail,
            stdout,
            together: false,
            log: None,
            unread: false,
        };
        Failure::of(death, "n0")
    }

    /// Puts each survived text before this end. Returns how many changed the cause, with the first of them.
    pub(super) fn changed(&self, facts: fn(&mut Failure, &mut Evidence)) -> Vec<String> {
        let verdict = |before: &str| -> Verdict {
            let (mut failure, mut evidence) =
                (self.failure(before), Evidence { host: "n0".into(), ..Evidence::default() });
            let tail = failure.death.tail.clone();
            facts(&mut failure, &mut evidence);
            failure.death.tail = tail;
            judge(&[failure], 0, &evidence).unwrap()
        };
        let alone = verdict("");
        // Without a message of its own the program's last words are others.
        let silent = self.stderr.trim().is_empty() && ["unknown", "exit-with-message"].contains(&alone.rule);
        let same = |found: &Verdict| match silent {
            true => ["unknown", "exit-with-message"].contains(&found.rule),
            false => (found.rule, &found.cause, found.class) == (alone.rule, &alone.cause, alone.class),
        };
        let all = WARNINGS.iter().chain(&HANDLED);
        let changed = all.map(|before| (before, verdict(before))).filter(|(_, found)| !same(found));
        changed.map(|(before, found)| format!("after\n{before}\n\n  {found}\n\ninstead of\n\n  {alone}\n")).collect()
    }
}

#[test]
fn what_a_program_survived_changes_no_cause_that_a_rule_knows() {
    let mut changed = vec![];
    let rules = FAMILIES.iter().flat_map(|(_, rules)| rules.iter());
    for rule in rules {
        let example = &rule.wrong;
        let ended = Recorded { exitcode: example.exitcode, stdout: String::new(), stderr: example.output.to_owned() };
        changed.extend(ended.changed(example.facts));
    }
    assert!(changed.is_empty(), "{} causes changed: {}", changed.len(), changed.join("\n"));
}

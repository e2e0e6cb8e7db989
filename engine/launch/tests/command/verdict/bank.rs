//! Failures on purpose. Each really happens, except for those in [`WORDS`] and the scheduler's lines: no test can use up a GPU's memory
//! here, so they print or raise what the libraries do.

use super::{Bad, bad, made};

/// Programs that cannot start, or not with what they need.
pub(super) const START: &[Bad] = &[
    made(
        r#"command -v cc >/dev/null || { echo no C compiler >&2; exit 1; }
    echo 'int answer(void) { return 42; }' > answer.c; cc -shared -fPIC -o libanswer.so answer.c
    echo 'int answer(void); int main(void) { return answer() - 42; }' > main.c
    cc -o main main.c -L. -lanswer -Wl,-rpath,"$PWD"; ./main; rm libanswer.so"#,
        "exec ./main",
        &["the shared library libanswer.so is missing"],
    ),
    made(
        r#"command -v cc >/dev/null || { echo no C compiler >&2; exit 1; }
    echo 'int answer(void) { return 42; }' > answer.c; cc -shared -fPIC -o libanswer.so answer.c
    echo 'int answer(void); int main(void) { return answer() - 42; }' > main.c
    cc -o main main.c -L. -lanswer -Wl,-rpath,"$PWD"; ./main; echo 'int other(void) { return 1; }' > other.c; cc -shared -fPIC -o libanswer.so other.c"#,
        "LD_BIND_NOW=1 exec ./main",
        &["a library has another version", "undefined symbol: answer"],
    ),
    made(
        r#"command -v cc >/dev/null || { echo no C compiler >&2; exit 1; }
    printf '%s' 'int main(void) { return 0; }' > bad.c; cc -w -O0 -o bad bad.c
    version=$(grep -ao 'GLIBC_2\.[0-9]*' bad | sort -V | tail -1); new=$(echo "$version" | sed s/_2/_9/)
    sed -i "s/$version/$new/g" bad; ! ./bad 2>err; grep -q 'not found' err"#,
        "exec ./bad",
        &["glibc is too old on this node", "GLIBC_9."],
    ),
    made(
        r#"cp "$(command -v ls)" foreign; printf '\377' | dd of=foreign bs=1 seek=18 conv=notrunc 2>/dev/null; command -v bash >/dev/null"#,
        "bash -c './foreign; exit $?'",
        &["a program was built for another processor"],
    ),
    bad(
        "no-such-command-anywhere",
        &["a command in the script does not exist on this node", "no-such-command-anywhere"],
    ),
    made("echo 'echo' > plain", "./plain", &["a command in the script may not be executed"]),
    bad(
        "exec \"$PYTHON_EXEC\" -m no_such_module_anywhere",
        &["Python does not find the module no_such_module_anywhere"],
    ),
    bad(
        "cat > bad.py <<'END'
import no_such_module_anywhere
END
exec \"$PYTHON_EXEC\" bad.py",
        &["Python does not find the module no_such_module_anywhere", "bad.py:1"],
    ),
    bad(
        "cat > bad.py <<'END'
from os import nothing_like_that
END
exec \"$PYTHON_EXEC\" bad.py",
        &["a Python module does not have the name"],
    ),
    bad("exec \"$PYTHON_EXEC\" absent.py", &["Python cannot open the script", "absent.py"]),
    bad(
        "cat > bad.py <<'END'
def f():
    return (1,

f()
END
exec \"$PYTHON_EXEC\" bad.py",
        &["a Python file has a syntax error", "bad.py:2"],
    ),
    bad(
        r#"cat > bad.py <<'END'
import argparse
argparse.ArgumentParser().parse_args(["--no-such-flag"])
END
exec "$PYTHON_EXEC" bad.py"#,
        &["the program does not accept its arguments", "--no-such-flag"],
    ),
];

/// Errors of the program itself.
pub(super) const ERRORS: &[Bad] = &[
    bad(
        r#"cat > bad.py <<'END'
def build():
    raise ValueError("no such layer")

build()
END
exec "$PYTHON_EXEC" bad.py"#,
        &["ValueError: no such layer (", "bad.py:2 in build)", "evidence: its traceback"],
    ),
    bad(
        r#"cat > bad.py <<'END'
def load():
    return {}["shard"]

def main():
    try:
        load()
    except KeyError as error:
        raise RuntimeError("cannot load") from error

main()
END
exec "$PYTHON_EXEC" bad.py"#,
        &["RuntimeError: cannot load (", "bad.py:8 in main), caused by KeyError: 'shard' (", "bad.py:2 in load)"],
    ),
    bad(
        r#"cat > bad.py <<'END'
import json
json.loads("{")
END
exec "$PYTHON_EXEC" bad.py"#,
        &["json.decoder.JSONDecodeError", "bad.py:2"],
    ),
    bad(
        r#"cat > bad.py <<'END'
import sys
sys.exit("no data in /data")
END
exec "$PYTHON_EXEC" bad.py"#,
        &[r#"exit code 1 after "no data in /data""#],
    ),
    bad(
        "cat > bad.py <<'END'
import sys
sys.exit(3)
END
exec \"$PYTHON_EXEC\" bad.py",
        &["unknown: it left no error and no output", "exit code 3"],
    ),
    bad(
        "cat > bad.py <<'END'
import os
os._exit(255)
END
exec \"$PYTHON_EXEC\" bad.py",
        &["unknown", "exit code 255"],
    ),
    bad(
        r#"cat > bad.py <<'END'
assert 1 == 2, "ranks differ"
END
exec "$PYTHON_EXEC" bad.py"#,
        &["AssertionError: ranks differ"],
    ),
    bad(
        r#"cat > bad.py <<'END'
class Odd(Exception):
    def __str__(self):
        return "first line\nsecond line"
raise Odd()
END
exec "$PYTHON_EXEC" bad.py"#,
        &["Odd: first line ("],
    ),
    made(
        r#"rustc --version >/dev/null || { echo no Rust compiler >&2; exit 1; }
    printf '%s' 'fn main() { let empty: Vec<u8> = vec![]; println!("{}", empty[std::env::args().count()]); }' > bad.rs; rustc -O -o bad bad.rs 2>&1"#,
        "exec ./bad",
        &["it panicked: index out of bounds", "bad.rs:1:"],
    ),
    made(
        r#"rustc --version >/dev/null || { echo no Rust compiler >&2; exit 1; }
    printf '%s' 'fn main() -> Result<(), String> { Err("the loss is NaN".into()) }' > bad.rs; rustc -O -o bad bad.rs 2>&1"#,
        "exec ./bad",
        &["the loss is NaN"],
    ),
    bad(
        "echo 'error: training failed' >&2; echo '  caused by: the loss is NaN' >&2; exit 1",
        &["training failed: the loss is NaN"],
    ),
    bad("echo working; exit 9", &[r#"exit code 9 after "working""#]),
];

/// Limits of the machine, and files.
pub(super) const LIMITS: &[Bad] = &[
    bad("cat > bad.py <<'END'
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
bytearray(1 << 34)
END
exec \"$PYTHON_EXEC\" bad.py", &["the system refused more memory", "bad.py:3"]),
    bad(r#"cat > bad.py <<'END'
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
files = [open("/dev/null") for _ in range(64)]
END
exec "$PYTHON_EXEC" bad.py"#, &["the limit of open files is reached"]),
    bad("cat > bad.py <<'END'
import os, resource, threading
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.getuid() == 0:
    os.setuid(54321)
threading.Thread(target=print).start()
threading.Thread(target=print).start()
END
exec \"$PYTHON_EXEC\" bad.py", &["the limit of processes and threads is reached"]),
    bad("cat > bad.py <<'END'
def f():
    return f()
f()
END
exec \"$PYTHON_EXEC\" bad.py", &["a Python function calls itself endlessly", "bad.py:2 in f"]),
    made(
        "command -v cc >/dev/null || { echo no C compiler >&2; exit 1; }
    printf '%s' 'int f(int n) { volatile char a[4096]; a[n % 4096] = 1; return f(n + 1) + a[0]; } int main(void) { return f(0); }' > bad.c; cc -w -O0 -o bad bad.c; head -c 0 /dev/kmsg",
        "exec ./bad",
        &["SIGSEGV"],
    ),
    made(
        r#"rustc --version >/dev/null || { echo no Rust compiler >&2; exit 1; }
    printf '%s' 'fn f(n: u64) -> u64 { let a = [n; 512]; std::hint::black_box(&a); f(n + 1) + a[0] } fn main() { println!("{}", f(0)); }' > bad.rs; rustc -O -o bad bad.rs 2>&1"#,
        "exec ./bad",
        &["its stack overflowed"],
    ),
    bad("kill -XCPU $$", &["it used up the CPU time"]),
    bad("ulimit -f 1; exec dd if=/dev/zero of=large bs=64k count=4", &["a file grew over"]),
    bad(r#"cat > bad.py <<'END'
with open("/dev/full", "w") as full:
    full.write("x")
END
exec "$PYTHON_EXEC" bad.py"#, &["a disk is full"]),
    made(
        "mkdir ro; unshare -m mount -t tmpfs none ro",
        r#"exec unshare -m sh -c 'mount -t tmpfs -o ro none ro && exec "$PYTHON_EXEC" -c "open(\"$PWD/ro/x\", \"w\")"'"#,
        &["a file system is read-only", "/ro/x"],
    ),
    made(
        "mkdir small; unshare -m mount -t tmpfs none small",
        r#"exec unshare -m sh -c 'mount -t tmpfs -o size=64k none small && exec "$PYTHON_EXEC" -c "open(\"$PWD/small/x\", \"wb\").write(bytes(1<<20))"'"#,
        &["a disk is full"],
    ),
    bad(r#"cat > bad.py <<'END'
import os
open("secret", "w").close()
os.chmod("secret", 0)
if os.getuid() == 0:
    os.setuid(54321)
open("secret")
END
exec "$PYTHON_EXEC" bad.py"#, &["a file may not be opened"]),
    bad(r#"cat > bad.py <<'END'
open("/no/such/shard")
END
exec "$PYTHON_EXEC" bad.py"#, &["a file does not exist: /no/such/shard", "bad.py:1"]),
    bad(r#"cat > bad.py <<'END'
import pickle
pickle.loads(b"")
END
exec "$PYTHON_EXEC" bad.py"#, &["a snapshot cannot be read"]),
    bad(r#"cat > bad.py <<'END'
import asyncio, socket
held = socket.create_server(("127.0.0.1", 0))
async def main():
    await asyncio.start_server(print, "127.0.0.1", held.getsockname()[1])
asyncio.run(main())
END
exec "$PYTHON_EXEC" bad.py"#, &["port", "ddress already in use"]),
];

/// Signals.
pub(super) const SIGNALS: &[Bad] = &[
    bad("kill -KILL $$", &["SIGKILL"]),
    bad("kill -TERM $$", &["a signal that this launcher did not send ended it: SIGTERM"]),
    bad("kill -HUP $$", &["did not send ended it: SIGHUP"]),
    bad("kill -USR1 $$", &["did not send ended it: SIGUSR1"]),
    bad(
        "cat > bad.py <<'END'
import os, signal
os.kill(os.getpid(), signal.SIGINT)
import time; time.sleep(100)
END
exec \"$PYTHON_EXEC\" bad.py",
        &["did not send ended it: SIGINT"],
    ),
    bad("kill -ILL $$", &["an instruction that this node's processor does not support"]),
    bad("kill -FPE $$", &["it divided an integer by zero"]),
    bad("kill -PIPE $$", &["whose reader had ended"]),
    bad("kill -SYS $$", &["its sandbox forbids"]),
    bad("sh -c 'kill -KILL $$'; exit $?", &["exit code 137: as a shell says that SIGKILL ended a child"]),
    bad(
        "cat > bad.py <<'END'
import faulthandler, ctypes
faulthandler.enable()
ctypes.string_at(0)
END
exec \"$PYTHON_EXEC\" bad.py",
        &["it accessed memory that is not its own, in "],
    ),
    bad(
        r#"cat > bad.py <<'END'
import mmap
file = open("short", "wb+")
file.truncate(4096)
mapped = mmap.mmap(file.fileno(), 4096)
file.truncate(0)
mapped[0]
END
exec "$PYTHON_EXEC" bad.py"#,
        &["mapped memory without a file behind it"],
    ),
    bad(
        "cat > bad.py <<'END'
import os
os.abort()
END
exec \"$PYTHON_EXEC\" bad.py",
        &["it aborted itself"],
    ),
    made(
        r#"command -v cc >/dev/null || { echo no C compiler >&2; exit 1; }
    printf '#include <assert.h>\nint main(int argc, char **argv) { assert(argc > 1); return 0; }' > bad.c; cc -w -O0 -o bad bad.c"#,
        "exec ./bad",
        &["an assertion failed", "argc > 1"],
    ),
    made(
        r#"command -v cc >/dev/null || { echo no C compiler >&2; exit 1; }
    printf '#include <stdlib.h>\nint main(void) { char *a = malloc(64); free(a); free(a); return 0; }' > bad.c; cc -w -O0 -o bad bad.c"#,
        "exec ./bad",
        &["its memory was corrupted by its own code"],
    ),
    made(
        r#"command -v g++ >/dev/null || { echo no C++ compiler >&2; exit 1; }
    printf '#include <stdexcept>\nint main() { throw std::runtime_error("no such layer"); }' > bad.cc; g++ -w -O0 -o bad bad.cc"#,
        "exec ./bad",
        &["a C++ exception that nobody caught: std::runtime_error: no such layer"],
    ),
    bad(
        "echo 'slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***' >&2; kill -TERM $$",
        &["the job's time limit was reached"],
    ),
    bad(
        "echo 'slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***' >&2; kill -KILL $$",
        &["the scheduler ended the job"],
    ),
    bad(
        "echo 'slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.' >&2; kill -KILL $$",
        &["the kernel's OOM killer ended it"],
    ),
];

/// A Python program that raises an exception of a library: its class and its argument, as Python has them, and what the verdict says.
macro_rules! raises {
    ($class:literal, $argument:literal, $cause:literal) => {
        bad(
            concat!(
                "cat > bad.py <<'END'\nclass ",
                $class,
                "(RuntimeError): pass\nraise ",
                $class,
                "(",
                $argument,
                ")\nEND\nexec \"$PYTHON_EXEC\" bad.py"
            ),
            &[$cause],
        )
    };
}

/// What cannot be made to happen here: the libraries' own messages.
pub(super) const WORDS: &[Bad] = &[
    raises!(
        "OutOfMemoryError",
        "'CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1 GiB is free.'",
        "the GPU's memory is used up: 2.00 GiB more do not fit"
    ),
    raises!(
        "AcceleratorError",
        r"'CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported'",
        "a GPU that this node does not have"
    ),
    raises!("Error", "'No CUDA GPUs are available'", "the worker sees no GPU"),
    // PyTorch 2.11, and 2.15
    raises!("Error", "'ProcessGroupNCCL is only supported with GPUs, no GPUs found!'", "the worker sees no GPU"),
    raises!("Error", "'nccl2 requires at least one CUDA device'", "the worker sees no GPU"),
    raises!(
        "Error",
        "'The NVIDIA driver on your system is too old (found version 11040).'",
        "driver of this node is too old"
    ),
    raises!(
        "Error",
        "'CUDA error: an illegal memory access was encountered'",
        "a GPU kernel accessed memory that is not its own"
    ),
    raises!("Error", "'CUDA error: device-side assert triggered'", "an assertion failed in a GPU kernel"),
    raises!(
        "Error",
        "'CUDA error: no kernel image is available for execution on the device'",
        "not built for this kind of GPU"
    ),
    raises!(
        "Error",
        r#""DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.""#,
        "/dev/shm, where processes share memory, is full"
    ),
    raises!("Error", "'DataLoader worker (pid 71) is killed by signal: Killed. '", "a loader worker was killed"),
    raises!("Error", "'DataLoader worker (pid(s) 71) exited unexpectedly'", "a loader worker of this rank died"),
    raises!(
        "DistBackendError",
        r"'NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-x (size 9637888)'",
        "/dev/shm, where processes share memory, is full"
    ),
    raises!(
        "DistBackendError",
        r"'NCCL error in: x.hpp:1\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000'",
        "two ranks use the same GPU"
    ),
    raises!(
        "Error",
        "'[enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth7'",
        "the network interface that was named does not exist"
    ),
    raises!(
        "Error",
        "'PytorchStreamReader failed reading zip archive: failed finding central directory'",
        "a snapshot cannot be read"
    ),
];

//! Tests with PyTorch: its client on our server, and our client on its server. They need a Python with PyTorch
//! (`LOCKSTEP_PYTHON`, else `python3`), and print a line if there is none.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use lockstep_testkit::python::python_with;

use crate::support::{LONG, client_at, server};
use lockstep_process::KillOnDrop;
use tcpstore::{Kind, ServerOptions};

/// A Python program that is killed when its test ends.
struct Python {
    child: KillOnDrop,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Python {
    fn start(python: &str, program: &str, arguments: &[String]) -> Self {
        let mut child = Command::new(python)
            .args(["-c", &format!("{PRELUDE}\n{program}")])
            .args(arguments)
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("Python starts");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Self { child: KillOnDrop(child), stdin, lines: BufReader::new(stdout).lines() }
    }

    /// The next line that it prints.
    fn line(&mut self) -> String {
        self.lines.next().expect("Python prints a line before it ends").expect("in UTF-8")
    }

    /// Closes the program's input, which it may wait for, and waits until it ends.
    fn finish(mut self) {
        drop(self.stdin.take());
        let status = self.child.0.wait().expect("waited for");
        assert!(status.success(), "Python ended with {status}");
    }
}

/// An alarm ends a Python program that hangs.
const PRELUDE: &str = r#"
import signal, sys
from datetime import timedelta
from torch.distributed import DistStoreError, PrefixStore, QueueEmptyError, TCPStore
signal.alarm(100)
LONG, BRIEF = timedelta(seconds=60), timedelta(milliseconds=50)

def fails(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError("it should have failed")
"#;

const EVERY_OPERATION: &str = r#"
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, False, LONG)
store.set("key", "value")
assert store.get("key") == b"value"
large = bytes(range(256)) * 4096
store.set("large", large)
assert store.get("large") == large
assert store.add("counter", 5) == 5 and store.add("counter", -7) == -2 and store.get("counter") == b"-2"
assert store.compare_set("cas", "", "one") == b"one"
assert store.compare_set("cas", "one", "two") == b"two"
assert store.compare_set("cas", "one", "three") == b"two"
assert store.compare_set("absent", "expected", "desired") == b"expected"
assert store.check(["key", "cas"]) and not store.check(["key", "absent"])
store.wait(["key", "cas"])
fails(DistStoreError, lambda: store.wait(["absent"], BRIEF))
assert store.get("key") == b"value", "the connection goes on after a wait that ran out"
assert store.num_keys() == 4
store.append("list", "a,")
store.append("list", "b,")
store.multi_set(["m1", "m2"], ["1", "2"])
assert store.multi_get(["m1", "list", "m2"]) == [b"1", b"a,b,", b"2"]
assert store.delete_key("m1") and not store.delete_key("m1")
store.queue_push("q", "first")
store.queue_push("q", "second")
assert store.queue_len("q") == 2 and store.check(["q"])
assert store.queue_pop("q") == b"first" and store.queue_pop("q", False) == b"second"
fails(QueueEmptyError, lambda: store.queue_pop("q", False))
assert sorted(store.list_keys()) == ["cas", "counter", "key", "large", "list", "m2"]
prefixed = PrefixStore("inner", PrefixStore("outer", store))
prefixed.set("k", "v")
assert prefixed.get("k") == b"v" and store.get("outer/inner/k") == b"v"
clone = store.clone()
clone.set("from the clone", "")
assert clone.check(["from the clone"]), "a set has no reply: what comes after it on the same connection shows that it was done"
assert store.check(["from the clone"])
print("done")
"#;

#[test]
fn pytorchs_client_does_every_operation_on_our_server() {
    let Some(python) = python_with(&[], "PyTorch's client on our server") else { return };
    let server = server(ServerOptions::default());
    let mut client = Python::start(&python, EVERY_OPERATION, &[server.local_addr().port().to_string()]);
    assert_eq!(client.line(), "done");
    client.finish();
    assert_eq!(server.get("outer/inner/k"), Some(b"v".to_vec()));
    assert!(server.refusals().is_empty(), "{:?}", server.refusals());
}

/// Like torchrun's workers: rank 0 tries to be the server, finds the address in use, and becomes a client because the
/// launcher's variable says so. Then all ranks meet as in `init_process_group`. They are forked, since the import takes seconds.
const WAITS_FOR_WORKERS: &str = r#"
import os
from torch.distributed import rendezvous
os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], WORLD_SIZE="3")

def work(rank):
    signal.alarm(100)
    os.environ["RANK"] = str(rank)
    store = TCPStore("127.0.0.1", int(sys.argv[1]), 3, rank == 0, LONG, wait_for_workers=True)
    agents, rank, size = next(rendezvous("env://"))
    store.set(f"rank/{rank}", "here")
    store.wait([f"rank/{other}" for other in range(size)])
    agents.set(f"env/{rank}", "here")

workers = []
for rank in range(3):
    workers.append(os.fork())
    if workers[-1] == 0:
        work(rank)
        os._exit(0)
assert all(os.waitpid(worker, 0)[1] == 0 for worker in workers)
print("done")
"#;

#[test]
fn pytorchs_workers_meet_on_our_server() {
    let Some(python) = python_with(&[], "PyTorch's workers on our server") else { return };
    let server = server(ServerOptions::default());
    let mut workers = Python::start(&python, WAITS_FOR_WORKERS, &[server.local_addr().port().to_string()]);
    assert_eq!(workers.line(), "done");
    workers.finish();
    assert_eq!(server.keys("rank/"), ["rank/0", "rank/1", "rank/2"]);
    assert!(server.refusals().is_empty(), "{:?}", server.refusals());
}

/// Serves until its input is closed.
const SERVER: &str = r#"
store = TCPStore("127.0.0.1", 0, None, True, LONG)
store.set("from python", "hello")
print(store.port, flush=True)
sys.stdin.read()
assert store.get("key") == b"value"
assert store.queue_pop("for python") == b"item"
"#;

#[tokio::test]
async fn our_client_does_every_operation_on_pytorchs_server() {
    let Some(python) = python_with(&[], "our client on PyTorch's server") else { return };
    let mut server = Python::start(&python, SERVER, &[]);
    let address: SocketAddr = format!("127.0.0.1:{}", server.line()).parse().unwrap();
    let client = client_at(address).await;
    assert_eq!(client.get("from python", LONG).await.unwrap(), b"hello");
    client.set("key", b"value").await.unwrap();
    let large = vec![7; 8 << 20];
    client.set("large", &large).await.unwrap();
    assert_eq!(client.try_get("large").await.unwrap(), Some(large));
    assert_eq!(client.try_get("absent").await.unwrap(), None);
    assert_eq!(client.add("counter", 5).await.unwrap(), 5);
    assert_eq!(client.add("counter", -7).await.unwrap(), -2);
    assert_eq!(client.compare_set("cas", b"", b"one").await.unwrap(), b"one");
    assert_eq!(client.compare_set("cas", b"one", b"two").await.unwrap(), b"two");
    assert!(client.check(&["key", "cas"]).await.unwrap());
    assert!(!client.check(&["key", "absent"]).await.unwrap());
    let brief = Duration::from_millis(50);
    let error = client.wait(&["key", "absent"], brief).await.unwrap_err();
    assert!(matches!(&error.kind, Kind::Missing { missing } if missing == &["absent"]), "{error}");
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.get("absent", LONG).await });
    client.multi_set(&[("m1", b"1"), ("absent", b"late")]).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), b"late");
    client.append("list", b"a,").await.unwrap();
    client.append("list", b"b,").await.unwrap();
    assert_eq!(client.multi_get(&["m1", "list"], LONG).await.unwrap(), [b"1".to_vec(), b"a,b,".into()]);
    assert!(client.delete("m1").await.unwrap());
    assert!(!client.delete("m1").await.unwrap());
    assert_eq!(client.num_keys().await.unwrap(), 7);
    let keys = client.list_keys().await.unwrap();
    assert_eq!(keys, ["absent", "cas", "counter", "from python", "key", "large", "list"]);
    client.queue_push("q", b"first").await.unwrap();
    assert_eq!(client.queue_len("q").await.unwrap(), 1);
    assert_eq!(client.queue_pop("q", LONG).await.unwrap(), b"first");
    assert_eq!(client.try_queue_pop("q").await.unwrap(), None);
    let error = client.queue_pop("q", brief).await.unwrap_err();
    assert!(matches!(error.kind, Kind::Missing { .. }), "{error}");
    client.queue_push("for python", b"item").await.unwrap();
    client.ping().await.unwrap();
    server.finish();
    let error = client.ping().await.unwrap_err();
    assert!(matches!(error.kind, Kind::Closed), "{error}");
}

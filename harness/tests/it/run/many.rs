//! More workers than the limit of open files allows, each with a connection to the store.

use std::process::Command;

use crate::run::site::Site;
use crate::running::{Running, lockstep};

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

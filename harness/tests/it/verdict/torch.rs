//! Verdicts on unmodified PyTorch programs, with Gloo.

use super::assert_verdict;
use crate::run::site::Site;
use crate::run::torch::{start, with_torch};

const RANKS: &str = r#"
import datetime, os, sys, time, torch, torch.distributed as dist
bad, how = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
tensor = torch.ones(4)
dist.all_reduce(tensor)
if dist.get_rank() == bad:
    if how == "raises":
        raise ValueError("no such layer")
    if how == "returns":
        os._exit(0)
    time.sleep(1000)
if how == "misses":
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
dist.all_reduce(tensor)
"#;

fn check(bad: usize, how: &str, says: &[&str]) {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("ranks.py", RANKS);
    let words = ["--standalone", "--nproc-per-node=3", &script, &bad.to_string(), how];
    let ended = start(&python, site.lockstep(&words)).ended().code(1);
    assert_verdict(&ended, bad, says);
    site.assert_no_process();
}

#[test]
fn names_the_rank_that_raised_while_the_others_reduced() {
    check(1, "raises", &["ValueError: no such layer (", "ranks.py:9)"]);
}

#[test]
fn names_the_rank_that_returned_while_the_others_reduced() {
    check(0, "returns", &["it returned with exit code 0 while other ranks still waited for it"]);
}

#[test]
fn names_the_rank_that_did_not_come_to_a_barrier() {
    check(1, "misses", &["rank 1 did not come to a barrier for 1000 ms"]);
}

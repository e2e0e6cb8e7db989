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
    # Rank 0 waits for the others; these wait for its answer, which may come late.
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=1 if dist.get_rank() == 0 else 120))
dist.all_reduce(tensor)
"#;

/// Rank 1 does not come to a broadcast. Each rank writes its flight recorder at its end, as NCCL's watchdog does: Gloo has none.
const RECORDED: &str = r#"
import datetime, os, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
rank, prefix = dist.get_rank(), os.environ["TORCH_FR_DUMP_TEMP_FILE"]
group = dist.new_group(timeout=datetime.timedelta(seconds=120))
dist.all_reduce(torch.ones(4), group=group)
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), group)
def leave():
    with open(f"{prefix}{rank}.new", "wb") as file:
        file.write(_dump_fr_trace(includeStackTraces=False)) # which import half of PyTorch
    os.rename(f"{prefix}{rank}.new", f"{prefix}{rank}")
if rank == 1:
    leave()
    time.sleep(1000)
try:
    dist.broadcast(torch.ones(2, 5), 1, group=group)
except RuntimeError:
    leave()
    while not all(os.path.exists(f"{prefix}{other}") for other in range(3)):
        time.sleep(0.01)
    raise
"#;

#[test]
fn names_the_rank_that_the_flight_recorder_shows_behind_the_others() {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("ranks.py", RECORDED);
    let mut command = site.lockstep(&["--standalone", "--stacks=never", "--nproc-per-node=3", &script]);
    command.env("TORCH_FR_BUFFER_SIZE", "100").env("TORCH_FR_DUMP_TEMP_FILE", site.path("trace_"));
    let ended = start(&python, command).ended().code(1);
    let says =
        ["it did not come to call 2, broadcast of [2, 5] Float, in which others waited", "flight recorder of 3 ranks"];
    assert_verdict(&ended, 1, &says);
    site.assert_no_process();
}

fn check(bad: usize, how: &str, says: &[&str]) {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("ranks.py", RANKS);
    let words = ["--standalone", "--stacks=never", "--nproc-per-node=3", &script, &bad.to_string(), how];
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

//! Python's PyTorch under `lockstep run`, with unchanged scripts. Python is LOCKSTEP_PYTHON, otherwise python3; if that
//! has no torch, the tests print that this was not verified.

use std::process::Command;

use lockstep_testkit::python::python_with;
use serde_json::Value;

use crate::run::nodes::AgentGroup;
use crate::run::site::Site;
use crate::running::Running;

/// The Python with torch, if there is one.
pub(crate) fn with_torch() -> Option<String> {
    python_with(&[], "Python's PyTorch under lockstep run")
}

/// Trains with DDP; all ranks end with the same weights. If an argument names a file, rank 1 fails once and records
/// that in the file.
const DDP: &str = r#"
import os, sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

@record
def main():
    torch.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        if sys.argv[1:] and rank == 1 and step == 2 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            raise ValueError("no more steps")
    weights = [torch.zeros(1, 4) for _ in range(world)]
    # Held by name, and the model gone before its group: a thread of the group that drops the last reference to a tensor waits
    # for the interpreter, which waits for this thread where the group ends (PyTorch 2.11 hangs then, or dies of SIGABRT).
    mine = model.module.weight.data
    dist.all_gather(weights, mine)
    del model
    same = all(torch.equal(weights[0], other) for other in weights)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    sys.stdout.write(f"rank {rank} of {world} attempt {attempt} {'same' if same else 'different'}\n")
    dist.destroy_process_group()

main()
# Ended without the interpreter's finalization: a thread of autograd or Gloo that still drops a tensor asks for the interpreter
# then, and PyTorch 2.11 now and then dies of SIGABRT ("terminate called without an active exception").
sys.stdout.flush()
os._exit(0)
"#;

pub(crate) fn start(python: &str, mut command: Command) -> Running {
    command.env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1").env("GLOO_SOCKET_IFNAME", "lo");
    Running::start(command)
}

#[test]
fn passes_the_local_rank_as_torchs_older_launcher_does() {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let show = "import os, sys\nsys.stdout.write(' '.join([os.environ['LOCAL_RANK'], *sys.argv[1:]]) + '\\n')\n";
    let script = site.file("show.py", show);
    let words = ["--standalone", "--pass-local-rank", "--nproc-per-node=2", "--prefix=never", &script, "--lr=1"];
    let own = start(&python, site.lockstep(&words)).ended().code(0);
    let mut command = Command::new(&python);
    site.prepare(&mut command);
    command.args(["-m", "torch.distributed.launch", "--standalone", "--nproc-per-node=2", &script, "--lr=1"]);
    assert_eq!(own.sorted(), start(&python, command).ended().code(0).sorted());
    assert_eq!(own.sorted(), ["0 --local-rank=0 --lr=1", "1 --local-rank=1 --lr=1"]);
}

#[test]
fn two_agents_with_c10d_run_one_ddp_job_and_restart_it_together() {
    two_agents(|job, n, words| job.c10d(n, words));
}

#[test]
fn two_agents_with_a_static_rendezvous_run_one_ddp_job_and_restart_it_together() {
    two_agents(|job, n, words| job.fixed(n, words));
}

fn two_agents(agent: fn(&AgentGroup<'_>, u8, &[&str]) -> Command) {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let job = AgentGroup::new(&site);
    let script = site.file("ddp.py", DDP);
    let words = ["--nnodes=2", "--max-restarts=1", "--prefix=never", &script, "failed"];
    let [first, second] = [0, 1].map(|n| start(&python, agent(&job, n, &words)));
    let (first, second) = (first.ended().code(0), second.ended().code(0));
    // Either agent's worker may have failed first, and thus used the restart.
    assert!(first.out.starts_with("rank 0 of 2 attempt ") && first.out.ends_with(" same\n"), "{first:?}");
    assert!(second.out.starts_with("rank 1 of 2 attempt ") && second.out.ends_with(" same\n"), "{second:?}");
    site.assert_no_process();
}

#[test]
fn a_recorded_error_is_in_the_report_with_its_stack_and_names_the_culprit() {
    let Some(python) = with_torch() else { return };
    let site = Site::new();
    let script = site.file("ddp.py", DDP);
    let mut command = site.lockstep(&["--standalone", "--nproc-per-node=2", &script, "failed"]);
    command.env("TORCHELASTIC_ERROR_FILE", site.path("root.json"));
    let ended = start(&python, command).ended().code(1);
    let root = ended.err.split_once("Root Cause").unwrap().1;
    for text in ["rank      : 1 (local_rank: 1)", "Traceback (most recent call last):", "ValueError: no more steps"] {
        assert!(root.contains(text), "`{text}` is not in the root cause:\n{}", ended.err);
    }
    let root: Value = serde_json::from_str(&site.read("root.json")).unwrap();
    assert!(root["message"]["message"].as_str().unwrap().contains("ValueError: no more steps"), "{root}");
}

//! Grades `device`: all processes of a job on two nodes of different size, and a node with one GPU too few.

use lockstep_grading::{Claim, Runner, Verdict};

/// Group rank, GPU, and whether the process saves.
type Decided = Result<(usize, usize, bool), String>;

/// A process and the number of GPUs of its node.
#[derive(Clone, Copy, Debug)]
struct WorkerOfNode {
    node: usize,
    rank: usize,
    local_rank: usize,
    gpus: usize,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The second node has more GPUs than the first has processes, so RANK modulo GPUs is never the local rank there.
    let sizes = [random.below(2..4), random.below(4..7)];
    let spare = random.below(0..2);
    let world: usize = sizes.iter().sum();
    let job: Vec<WorkerOfNode> = (0..world).map(|rank| process(rank, sizes, spare)).collect();
    let input = |of: &WorkerOfNode| (of.rank, of.local_rank, world, sizes[of.node], of.gpus);
    let mut inputs: Vec<_> = job.iter().map(input).collect();
    // The second node, with one GPU fewer than processes.
    let [first, last] = [sizes[0], world - 1].map(|rank| WorkerOfNode { gpus: sizes[1] - 1, ..job[rank] });
    inputs.extend([&last, &first].map(input));
    let outputs = runner.call::<_, Decided>(1, &inputs)?;
    let mut places = Vec::new();
    for (case, of) in job.iter().enumerate() {
        match outputs.of(0, case) {
            Ok(place) => places.push(*place),
            Err(error) => Claim::that(false, "a place", format!("the error \"{error}\""))
                .on_rank(of.rank)
                .given(describe(of))
                .or_fail("an error, although the node has a GPU for each of its processes")?,
        }
    }
    let given = format!("two nodes, {} and {} processes", sizes[0], sizes[1]);
    joins(&given, &job, &places)?;
    let all_open = |gpu: fn(&WorkerOfNode) -> usize| job.iter().zip(&places).all(|(of, place)| gpu(of) == place.1);
    let causes = [all_open(|of| of.rank), all_open(|of| of.rank % of.gpus)];
    for (of, place) in job.iter().zip(&places) {
        opens(of, place.1, causes)?;
    }
    saves(&given, &job, &places)?;
    too_few(&last, outputs.of(0, world))?;
    let place = outputs.of(0, world + 1);
    Claim::that(place.is_ok(), "a place", format!("{place:?}"))
        .on_rank(first.rank)
        .given(format!("{}, for {} processes", describe(&first), sizes[1]))
        .or_fail("an error, although the node has a GPU for this process: only a process for which none is left gets an error")
}

fn process(rank: usize, sizes: [usize; 2], spare: usize) -> WorkerOfNode {
    let node = usize::from(rank >= sizes[0]);
    WorkerOfNode { node, rank, local_rank: rank - node * sizes[0], gpus: sizes[node] + spare }
}

fn describe(of: &WorkerOfNode) -> String {
    let WorkerOfNode { node, rank, local_rank, gpus } = of;
    format!("RANK={rank} LOCAL_RANK={local_rank} on node {node}, which has {gpus} GPUs")
}

fn joins(given: &str, job: &[WorkerOfNode], places: &[(usize, usize, bool)]) -> anyhow::Result<()> {
    let ranks: Vec<usize> = places.iter().map(|place| place.0).collect();
    let own: Vec<usize> = job.iter().map(|of| of.rank).collect();
    let twice = ranks.iter().find(|rank| ranks.iter().filter(|other| other == rank).count() > 1);
    let missing = own.iter().find(|rank| !ranks.contains(rank));
    let collision = match (twice, missing) {
        (Some(twice), Some(missing)) => {
            format!(
                ": several processes join as rank {twice} and none as rank {missing}, so all would wait for that rank"
            )
        }
        _ => String::new(),
    };
    Claim::equal(&own, &ranks)
        .given(format!("{given}; the group ranks of all processes"))
        .verdict(Verdict::RanksDisagree)
        .diagnose_if(
            job.iter().zip(&ranks).all(|(of, rank)| of.local_rank == *rank),
            format!("LOCAL_RANK counts on one node and starts at 0 again on the next{collision}"),
        )
        .or_fail(format!("a process joins the group with its RANK{collision}"))
}

fn opens(of: &WorkerOfNode, gpu: usize, [by_rank, by_remainder]: [bool; 2]) -> anyhow::Result<()> {
    Claim::equal(&of.local_rank, &gpu)
        .on_rank(of.rank)
        .given(describe(of))
        .cause_if(
            by_rank,
            "RANK counts over all nodes, but each node counts its GPUs from 0: the last processes ask for GPUs that their node \
             does not have",
        )
        .cause_if(
            by_remainder,
            "RANK modulo the GPUs of this node is the local rank only while all nodes before it have as many GPUs and use \
             all of them",
        )
        .or_fail("the GPU of a process is the one whose number is its local rank")
}

fn saves(given: &str, job: &[WorkerOfNode], places: &[(usize, usize, bool)]) -> anyhow::Result<()> {
    let saving: Vec<usize> = job.iter().zip(places).filter(|(_, place)| place.2).map(|(of, _)| of.rank).collect();
    let first_of_nodes: Vec<usize> = job.iter().filter(|of| of.local_rank == 0).map(|of| of.rank).collect();
    Claim::that(saving.len() == 1, "one process of the job", format!("ranks {saving:?}"))
        .given(format!("{given}; which ranks save"))
        .diagnose_if(
            saving == first_of_nodes,
            "one process of each node saves, since each node has a local rank 0: on a shared disk, they all write the same \
             file",
        )
        .diagnose_if(saving.is_empty(), "no process saves")
        .or_fail("one process must save for the whole job, by convention the one with RANK 0")
}

fn too_few(of: &WorkerOfNode, place: &Decided) -> anyhow::Result<()> {
    Claim::that(place.is_err(), "an error", format!("{place:?}"))
        .on_rank(of.rank)
        .given(describe(of))
        .diagnose_if(
            matches!(place, Ok((_, gpu, _)) if *gpu < of.gpus),
            "two processes share a GPU: each gets half of its memory and speed, and NCCL refuses to run",
        )
        .or_fail("this process has no GPU but returns no error")
}

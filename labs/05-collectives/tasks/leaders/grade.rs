//! Grades `leaders`: nodes of unequal size on 4 ranks.

use std::ops::Range;

use lockstep_grading::{Claim, Finding, IN_NO_CALL, JOINS, Numbers, Runner, Verdict, explain, given, joined};
use serde::Deserialize;

const RANKS: usize = 4;

/// A call of the answer: the ranks of the group, the operation, and whether the rank waited for it.
#[derive(Deserialize)]
struct Call {
    members: Vec<usize>,
    operation: String,
    waited: bool,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let length = random.below(2..6);
    let mut numbers = || -> Vec<Vec<f64>> {
        // The numbers are so far apart that no two groups of ranks have the same sum.
        let of_rank = |rank: u32| {
            random.numbers(length).iter().map(|value| f64::from(10 * 3_u32.pow(rank + 1)) + value).collect()
        };
        (0..RANKS as u32).map(of_rank).collect()
    };
    let cases = [vec![2, 2], vec![1, 3], vec![3, 1], vec![1, 2, 1]].map(|nodes| (nodes, numbers()));
    let outputs = runner
        .call::<_, (Numbers, Vec<Call>)>(RANKS, &cases)
        .map_err(|error| given(explain(error, why), |case| format!("nodes of {:?} ranks", cases[case].0)))?;
    // The result if all ranks add up in the second step.
    let all_add_up = cases.iter().enumerate().all(|(case, (nodes, numbers))| {
        let wrong = sum_of_all_members(nodes, numbers);
        outputs.all(case).all(|(observed, _)| observed[..] == wrong[..])
    });
    for (case, (nodes, numbers)) in cases.iter().enumerate() {
        let observed: Vec<&[f64]> = outputs.all(case).map(|(numbers, _)| &numbers[..]).collect();
        let calls: Vec<&[Call]> = outputs.all(case).map(|(_, calls)| &calls[..]).collect();
        for rank in 0..RANKS {
            check(rank, nodes, numbers, &observed, &calls, all_add_up)?;
        }
        for (rank, calls) in calls.iter().enumerate() {
            check_calls(rank, nodes, calls)?;
            check_waits(rank, nodes, calls)?;
        }
    }
    Ok(())
}

/// Checks that a rank waits for what it starts. An answer that sleeps instead reads the tensor too early on a slower machine, whatever it
/// holds here. The group refuses an operation on memory that another one still uses.
fn check_waits(rank: usize, nodes: &[usize], calls: &[Call]) -> anyhow::Result<()> {
    let words = |call: &Call| if call.waited { "waited for" } else { "not waited for" };
    let shown: Vec<String> = calls.iter().map(|call| format!("{}: {}", call.operation, words(call))).collect();
    Claim::that(calls.iter().all(|call| call.waited), "a wait for each operation", joined(&shown, "; "))
        .on_rank(rank)
        .given(format!("nodes of {nodes:?} ranks; the operations of this rank"))
        .or_fail(
            "the sum is right, but only because the operation had time to end: this rank starts it and does not `wait` for it. A sleep may \
             be too short, and `is_completed` does not return the operation's error",
        )
}

/// The ranks of each node.
fn ranges(nodes: &[usize]) -> Vec<Range<usize>> {
    let mut first = 0;
    let range = |size: &usize| {
        first += size;
        first - size..first
    };
    nodes.iter().map(range).collect()
}

/// The ranks between which a call sends: the members of its group, or the two sides of a message.
fn involved(rank: usize, call: &Call) -> Vec<usize> {
    let message = ["send", "recv", "isend", "irecv"].contains(&call.operation.split(' ').next().unwrap_or(""));
    let peer = call.operation.rsplit(' ').next().and_then(|peer| peer.parse::<usize>().ok());
    match peer.and_then(|peer| call.members.get(peer)).filter(|_| message) {
        Some(peer) => vec![rank, *peer],
        None => call.members.clone(),
    }
}

/// Checks that only leaders send to other nodes. A barrier sends nothing.
fn check_calls(rank: usize, nodes: &[usize], calls: &[Call]) -> anyhow::Result<()> {
    let nodes_ranks = ranges(nodes);
    let within = |ranks: &[usize]| nodes_ranks.iter().any(|node| ranks.iter().all(|rank| node.contains(rank)));
    let leaders = |ranks: &[usize]| ranks.iter().all(|rank| nodes_ranks.iter().any(|node| node.start == *rank));
    let allowed = |call: &&Call| {
        let ranks = involved(rank, call);
        call.operation.starts_with("barrier") || within(&ranks) || leaders(&ranks)
    };
    let wrong = calls.iter().find(|call| !allowed(call));
    let shown = |call: &Call| format!("{} among ranks {:?}", call.operation, involved(rank, call));
    Claim::that(
        wrong.is_none(),
        "operations within a node, and operations among leaders",
        calls.iter().map(shown).collect::<Vec<_>>().join(", "),
    )
    .on_rank(rank)
    .given(format!("nodes of {nodes:?} ranks; the operations of this rank"))
    .diagnose_if(
        wrong.is_some_and(|call| involved(rank, call).len() == RANKS),
        "the sum is right, but all ranks take part in one operation, so ranks that are not leaders send between nodes. Only the second \
         step sends between nodes, and only leaders take part in it",
    )
    .or_fail(
        "the sum is right, but an operation sends between nodes from a rank that is not a leader: let each operation have the ranks of \
         one node, of which node n has `nodes[n]`, or the leaders",
    )
}

fn why(finding: &Finding) -> Option<String> {
    let outside = finding.diagnosis.contains("is outside a group of");
    if finding.verdict == Verdict::Crash && outside {
        return Some(format!(
            "a group numbers its members from 0, so a rank of the job may not exist there: a node's leader is Rank::ZERO of its node's \
             group ({})",
            finding.diagnosis
        ));
    }
    if !finding.ranks_wait() {
        return None;
    }
    let some_rank = |words: &str| finding.table.iter().any(|line| line.contains(words));
    let why = if some_rank(JOINS) {
        "ranks wait in new_group for others that have not made the same call: every rank must call it for every group, in the same order, \
         even for groups that it is not in. A group's name is the number of the call, so ranks now wait for each other under different \
         names, or meet the members of another group"
    } else if some_rank(" (group ")
        && finding.table.iter().any(|line| line.contains(": waits in ") && !line.contains(" (group "))
    {
        "some ranks wait in an operation of all ranks, and others in one of their own group, so they wait for each other: each step is an \
         operation of the group whose ranks take part in it"
    } else if some_rank(IN_NO_CALL) {
        "a rank waits, but not in an operation of a group, so the others cannot wake it. The ranks of a node must wait for their leader \
         in the operation that passes the result on"
    } else {
        return None;
    };
    Some(why.into())
}

/// `all_add_up`: whether all that was observed is what [`sum_of_all_members`] gives.
fn check(
    rank: usize,
    nodes: &[usize],
    given: &[Vec<f64>],
    observed: &[&[f64]],
    calls: &[&[Call]],
    all_add_up: bool,
) -> anyhow::Result<()> {
    let expected = sum(given);
    let node = ranges(nodes).into_iter().find(|node| node.contains(&rank)).unwrap_or(0..RANKS);
    let (leader, mates) = (node.start, node.len());
    let of_this_node: Vec<usize> = node.clone().collect();
    // The leader adds up within its node once more after the exchange with the other leaders.
    let mut after =
        calls[leader].iter().skip_while(|call| call.members == of_this_node || call.operation.starts_with("barrier"));
    let adds_again = after.any(|call| mates > 1 && call.members == of_this_node && call.operation.contains("reduce"));
    let of_node = sum(&given[node]);
    let leads = observed[leader] == &expected[..];
    let agree = observed.iter().all(|of| of == &observed[rank]);
    Claim::equal(&expected[..], observed[rank])
        .on_rank(rank)
        .given(format!("nodes of {nodes:?} ranks, by rank: {given:?}"))
        .verdict(if agree { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .cause_if(
            all_add_up,
            "each node's sum was counted once per rank of the node: only leaders take part in the second step",
        )
        .diagnose_if(
            calls.iter().copied().flatten().any(|call| !call.waited),
            "a tensor was read before an operation on it had ended: `wait` for each operation before the next step",
        )
        .diagnose_if(
            rank != leader && leads,
            format!(
                "rank {leader}, the leader of this node, has the sum over all ranks but has not passed it on: a broadcast within \
                 the node is missing"
            ),
        )
        .diagnose_if(
            leader > 0 && !leads && observed[0] == &expected[..],
            format!(
                "rank 0 has the sum over all ranks, and rank {leader}, the leader of this node, does not. All leaders need it, and `reduce` \
                 leaves it on one rank: use all_reduce, or broadcast the sum to them"
            ),
        )
        .diagnose_if(
            mates < RANKS && observed[rank] == &of_node[..] && !leads,
            "this is the sum within the node: what the leaders have added up among themselves is not in it",
        )
        .diagnose_if(
            adds_again,
            "the last step adds up within the node again, together with what the other ranks still hold: the leader has the result, so \
             broadcast it",
        )
        .diagnose_if(
            observed.iter().zip(given).all(|(observed, given)| *observed == &given[..]),
            "this is the rank's own tensor: nothing was reduced",
        )
        .or_fail("this is not the sum over all ranks")
}

fn sum(given: &[Vec<f64>]) -> Vec<f64> {
    let add = |sum: Vec<f64>, of: &Vec<f64>| sum.iter().zip(of).map(|(sum, value)| sum + value).collect();
    given.iter().fold(vec![0.0; given[0].len()], add)
}

/// The sum in which each node's sum counts once for each rank of the node.
fn sum_of_all_members(nodes: &[usize], given: &[Vec<f64>]) -> Vec<f64> {
    let of_node =
        |node: Range<usize>| sum(&given[node.clone()]).iter().map(|value| value * node.len() as f64).collect();
    sum(&ranges(nodes).into_iter().map(of_node).collect::<Vec<_>>())
}

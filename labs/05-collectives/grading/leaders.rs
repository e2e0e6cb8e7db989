//! Task `leaders`: nodes of unequal size on 4 ranks.

use lockstep_grading::{Claim, Fault, Numbers, Stage, Verdict, explain};

const RANKS: usize = 4;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let length = random.below(2..6);
    let mut given = || -> Vec<Vec<f64>> {
        // So far apart that no sum of some ranks is that of others.
        let of_rank = |rank: u32| {
            random.numbers(length).iter().map(|value| f64::from(10 * 3_u32.pow(rank + 1)) + value).collect()
        };
        (0..RANKS as u32).map(of_rank).collect()
    };
    let cases = [vec![2, 2], vec![1, 3], vec![3, 1], vec![1, 2, 1]].map(|nodes| (nodes, given()));
    let outputs = stage.call::<_, Numbers>(RANKS, &cases).map_err(|error| explain(error, told))?;
    for (case, (nodes, given)) in cases.iter().enumerate() {
        let observed: Vec<&[f64]> = outputs.all(case).map(|numbers| &numbers[..]).collect();
        for rank in 0..RANKS {
            judge(rank, nodes, given, &observed)?;
        }
    }
    Ok(())
}

fn told(fault: &Fault) -> Option<String> {
    let outside = fault.diagnosis.contains("is outside a group of");
    if fault.verdict == Verdict::Crash && outside {
        return Some(format!(
            "in a group ranks count anew, so a rank of the job may not exist there: a node's leader is Rank::ZERO of its \
             node's group. {}",
            fault.diagnosis
        ));
    }
    let outside_calls = fault.table.iter().filter(|line| line.contains("is in no call")).count();
    (fault.verdict == Verdict::Hang && outside_calls > 0).then(|| {
        "ranks wait in new_group. A group's name is the number of the call that made it, counted on each rank: ranks that have \
         made other calls look for each other under another name, or meet those of another group. Every rank calls it for every \
         group, in the same order, also for those that it is not in"
            .into()
    })
}

fn judge(rank: usize, nodes: &[usize], given: &[Vec<f64>], observed: &[&[f64]]) -> anyhow::Result<()> {
    let expected = sum(given);
    let mut first = 0;
    let mut node = 0..0;
    for size in nodes {
        if (first..first + size).contains(&rank) {
            node = first..first + size;
        }
        first += size;
    }
    let (leader, mates) = (node.start, node.len());
    let of_node = sum(&given[node]);
    let leads = observed[leader] == &expected[..];
    let times = |sum: &[f64], factor: usize| sum.iter().map(|value| value * factor as f64).collect::<Vec<_>>();
    let agree = observed.iter().all(|of| of == &observed[rank]);
    Claim::equal(&expected[..], observed[rank])
        .on_rank(rank)
        .given(format!("nodes of {nodes:?} ranks, by rank: {given:?}"))
        .verdict(if agree { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .knows(
            rank != leader && leads,
            format!(
                "rank {leader}, the leader of this node, has the sum over all ranks, and has not passed it on: a broadcast \
                 within the node is missing"
            ),
        )
        .knows(
            mates < RANKS && observed[rank] == &of_node[..] && !leads,
            "this is the sum within the node: the leaders have not added up among themselves",
        )
        .knows(observed[rank] == &given[rank][..], "this is the rank's own: nothing was reduced")
        .knows(
            observed[rank] == &times(&expected, mates)[..],
            "every rank of the node was counted by each of its mates: only leaders take part in the second step",
        )
        .otherwise("not the sum over all ranks")
}

fn sum(given: &[Vec<f64>]) -> Vec<f64> {
    let add = |sum: Vec<f64>, of: &Vec<f64>| sum.iter().zip(of).map(|(sum, value)| sum + value).collect();
    given.iter().fold(vec![0.0; given[0].len()], add)
}

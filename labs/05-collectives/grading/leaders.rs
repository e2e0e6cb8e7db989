//! Grades `leaders`: nodes of unequal size on 4 ranks.

use lockstep_grading::{Claim, Finding, Numbers, Runner, Verdict, explain};

const RANKS: usize = 4;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let length = random.below(2..6);
    let mut given = || -> Vec<Vec<f64>> {
        // The numbers are so far apart that no two groups of ranks have the same sum.
        let of_rank = |rank: u32| {
            random.numbers(length).iter().map(|value| f64::from(10 * 3_u32.pow(rank + 1)) + value).collect()
        };
        (0..RANKS as u32).map(of_rank).collect()
    };
    let cases = [vec![2, 2], vec![1, 3], vec![3, 1], vec![1, 2, 1]].map(|nodes| (nodes, given()));
    let outputs = runner.call::<_, Numbers>(RANKS, &cases).map_err(|error| explain(error, why))?;
    for (case, (nodes, given)) in cases.iter().enumerate() {
        let observed: Vec<&[f64]> = outputs.all(case).map(|numbers| &numbers[..]).collect();
        for rank in 0..RANKS {
            check(rank, nodes, given, &observed)?;
        }
    }
    Ok(())
}

fn why(finding: &Finding) -> Option<String> {
    let outside = finding.diagnosis.contains("is outside a group of");
    if finding.verdict == Verdict::Crash && outside {
        return Some(format!(
            "a group numbers its members from 0, so a rank of the job may not exist there: a node's leader is Rank::ZERO of \
             its node's group. {}",
            finding.diagnosis
        ));
    }
    let outside_calls = finding.table.iter().filter(|line| line.contains("is in no call")).count();
    (finding.verdict == Verdict::Hang && outside_calls > 0).then(|| {
        "ranks wait in new_group. Each rank counts its calls of new_group, and the count is the group's name: ranks that have \
         made different calls wait for each other under different names, or meet the members of another group. Every rank must \
         call it for every group, in the same order, even for groups that it is not in"
            .into()
    })
}

fn check(rank: usize, nodes: &[usize], given: &[Vec<f64>], observed: &[&[f64]]) -> anyhow::Result<()> {
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
        .diagnose_if(
            rank != leader && leads,
            format!(
                "rank {leader}, the leader of this node, has the sum over all ranks but has not passed it on: a broadcast within \
                 the node is missing"
            ),
        )
        .diagnose_if(
            mates < RANKS && observed[rank] == &of_node[..] && !leads,
            "this is the sum within the node: the leaders have not added up among themselves",
        )
        .diagnose_if(observed[rank] == &given[rank][..], "this is the rank's own tensor: nothing was reduced")
        .diagnose_if(
            observed[rank] == &times(&expected, mates)[..],
            "each node's sum was counted once per rank of the node: only leaders take part in the second step",
        )
        .or_fail("this is not the sum over all ranks")
}

fn sum(given: &[Vec<f64>]) -> Vec<f64> {
    let add = |sum: Vec<f64>, of: &Vec<f64>| sum.iter().zip(of).map(|(sum, value)| sum + value).collect();
    given.iter().fold(vec![0.0; given[0].len()], add)
}

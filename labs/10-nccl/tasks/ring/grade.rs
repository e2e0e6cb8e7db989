//! Grades `ring`: rings of 3 and of 4 ranks.

use std::path::Path;

use lockstep_grading::{Claim, Finding, Runner, Verdict, counted, explain, joined, rows};

use super::device;

/// The elements, and the number of collectives.
type Received = (Vec<f32>, u64);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for ranks in [3, 4] {
        // Elements of different ranks are never equal, and none is 0.
        let of_rank =
            |rank: usize| -> Vec<f32> { (0..4).map(|_| (100 * (rank + 1) + random.below(0..100)) as f32).collect() };
        let elements: Vec<Vec<f32>> = (0..ranks).map(of_rank).collect();
        let folder = tempfile::tempdir()?;
        let outputs = device::call_in::<_, Received>(Some(folder.path().into()), runner, ranks, &[&elements])
            .map_err(|error| explained(error, &Hung::read(folder.path(), ranks)))?;
        for (rank, found) in outputs.all(0).enumerate() {
            check(rank, &elements, &found.0)?;
        }
        for (rank, (_, collectives)) in outputs.all(0).enumerate() {
            Claim::that(*collectives == 0, "a send and a receive", counted(*collectives, "collective"))
                .on_rank(rank)
                .given(format!("{ranks} ranks"))
                .or_fail(
                    "the elements are right, but a collective has sent them to every rank, and only one needs them: a ring sends each \
                     element once",
                )?;
        }
    }
    Ok(())
}

fn explained(error: anyhow::Error, hung: &Hung) -> anyhow::Error {
    let error = explain(error, |finding| (finding.verdict == Verdict::Hang).then(|| hung.why()).flatten());
    match error.downcast::<Finding>() {
        Ok(finding) if finding.verdict == Verdict::Hang => Finding { table: hung.table(), ..finding }.into(),
        Ok(finding) => finding.into(),
        Err(error) => error,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Call {
    Send(usize),
    Receive(usize),
    Collective,
}

/// Calls that are one operation.
type Operation = Vec<Call>;

/// What each rank has issued; `None` of a rank whose answer has not returned.
struct Hung(Vec<Option<Vec<Operation>>>);

impl Hung {
    fn read(folder: &Path, ranks: usize) -> Self {
        let of = |rank: usize| {
            let text = std::fs::read_to_string(folder.join(format!("ring-{rank}"))).ok()?;
            let mut operations: Vec<(&str, Operation)> = Vec::new();
            for line in text.lines() {
                let [number, call, peer] = *line.split(' ').collect::<Vec<_>>() else { return None };
                let peer = peer.parse().ok()?;
                let call = match call {
                    "send" => Call::Send(peer),
                    "receive" => Call::Receive(peer),
                    _ => Call::Collective,
                };
                match operations.last_mut() {
                    Some((last, operation)) if *last == number => operation.push(call),
                    _ => operations.push((number, vec![call])),
                }
            }
            Some(operations.into_iter().map(|(_, operation)| operation).collect())
        };
        Hung((0..ranks).map(of).collect())
    }

    fn table(&self) -> Vec<String> {
        let row = |(rank, of): (usize, &Option<Vec<Operation>>)| {
            let Some(operations) = of else { return format!("rank {rank}: is still in the answer") };
            let operations: Vec<String> = operations
                .iter()
                .map(|calls| joined(&calls.iter().map(described).collect::<Vec<_>>(), " and "))
                .collect();
            format!(
                "rank {rank}: {}",
                if operations.is_empty() { "nothing".into() } else { joined(&operations, ", then ") }
            )
        };
        self.0.iter().enumerate().map(row).collect()
    }

    /// What the ranks wait for when none of their operations goes on.
    fn why(&self) -> Option<String> {
        if let Some(rank) = self.0.iter().position(Option::is_none) {
            return Some(format!(
                "the answer itself does not return on rank {rank}: the host waits in it. Issue the calls and return, the grader waits for \
                 the stream"
            ));
        }
        let mut left: Vec<Vec<Operation>> = self.0.iter().flatten().cloned().collect();
        while let Some((rank, call, peer, other)) = next_pair(&left) {
            left[rank][0].swap_remove(call);
            left[peer][0].swap_remove(other);
            left.iter_mut().for_each(|of| of.retain(|operation| !operation.is_empty()));
        }
        let heads: Vec<(usize, Call)> =
            left.iter().enumerate().filter_map(|(rank, of)| Some((rank, *of.first()?.first()?))).collect();
        if heads.is_empty() || heads.iter().any(|(_, call)| *call == Call::Collective) {
            return None;
        }
        for (rank, call) in &heads {
            let (peer, answer) = matching(*rank, *call)?;
            if !left.get(peer)?.concat().contains(&answer) {
                let has: Vec<String> = self.0[peer].iter().flatten().flatten().map(described).collect();
                let has = if has.is_empty() { "nothing".to_owned() } else { joined(&has, " and ") };
                return Some(format!(
                    "rank {rank}'s {} waits for rank {peer}'s {}, which never comes: rank {peer} has issued {has}. For each send there is \
                     a receive on the other rank, and for each receive a send",
                    described(call),
                    described(&answer)
                ));
            }
        }
        let all = |is: fn(&Call) -> bool| heads.iter().all(|(_, call)| is(call));
        let cycle = if all(|call| matches!(call, Call::Send(_))) {
            "every rank's send waits for a receive that comes after the next rank's own send"
        } else if all(|call| matches!(call, Call::Receive(_))) {
            "every rank's receive waits for a send that comes after the previous rank's own receive"
        } else {
            "each rank waits for a call of another one that comes after what that one waits for itself"
        };
        Some(format!(
            "{cycle}: a cycle. A communicator runs its calls in order, even on different streams. Calls within one group are one operation, \
             and do not wait for each other"
        ))
    }
}

/// The other rank of a call, and what it has to call.
fn matching(rank: usize, call: Call) -> Option<(usize, Call)> {
    match call {
        Call::Send(to) => Some((to, Call::Receive(rank))),
        Call::Receive(from) => Some((from, Call::Send(rank))),
        Call::Collective => None,
    }
}

/// A send and its receive that are both in the first operations of their ranks.
fn next_pair(left: &[Vec<Operation>]) -> Option<(usize, usize, usize, usize)> {
    left.iter().enumerate().find_map(|(rank, of)| {
        of.first()?.iter().enumerate().find_map(|(number, call)| {
            let (peer, answer) = matching(rank, *call)?;
            let other = left.get(peer)?.first()?.iter().position(|other| *other == answer)?;
            Some((rank, number, peer, other))
        })
    })
}

fn described(call: &Call) -> String {
    match call {
        Call::Send(to) => format!("send to rank {to}"),
        Call::Receive(from) => format!("receive from rank {from}"),
        Call::Collective => "collective".to_owned(),
    }
}

fn check(rank: usize, elements: &[Vec<f32>], found: &[f32]) -> anyhow::Result<()> {
    let ranks = elements.len();
    let of = |owner: usize| found == &elements[owner % ranks][..];
    Claim::equal(&elements[(rank + ranks - 1) % ranks][..], found)
        .on_rank(rank)
        .given(rows(
            "rank",
            &elements.iter().map(|of| of.iter().map(|one| f64::from(*one)).collect::<Vec<_>>()).collect::<Vec<_>>(),
        ))
        .diagnose_if(of(rank), "these are the rank's own elements")
        .diagnose_if(of(rank + 1), "these are the next rank's elements: the ring goes in the other direction")
        .diagnose_if(found.iter().all(|element| *element == 0.0), "nothing has arrived in `incoming`")
        .or_fail("these are not the previous rank's elements")
}

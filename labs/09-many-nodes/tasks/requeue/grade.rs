//! Grades `requeue`: shared disks and disks of nodes, with nodes that were lost, replaced, or came back in another order.

use std::collections::BTreeSet;

use lockstep_grading::{Claim, Runner, joined, table};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Part {
    epoch: u64,
    step: u64,
    part: usize,
    of: usize,
    whole: bool,
}

/// What each node finds.
type Disks = Vec<Vec<Part>>;
type Decision = Result<Option<(u64, u64)>, String>;

struct RequeueCase {
    disks: Disks,
    /// An error if `None`.
    right: Option<Option<(u64, u64)>>,
    what: &'static str,
    /// A wrong decision, and the mistake that leads to it. Only an answer that has the cases before right gets here.
    why: Option<(Decided, &'static str)>,
}

/// What an answer may decide.
#[derive(Clone, Copy, PartialEq)]
enum Decided {
    /// To start at the beginning.
    Over,
    /// To resume from another snapshot than the newest.
    Older,
    /// To resume from the newest one.
    Newest,
    /// To refuse.
    Refused,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (nodes, epoch, step) = (random.below(3..5), random.below(2..9) as u64, 10 * random.below(1..9) as u64);
    let (new, old) = ((epoch, step), (epoch - 1, 90));
    let parts = |at, which: &[usize]| which.iter().map(|part| part_of(at, *part, nodes)).collect::<Vec<_>>();
    let all: Vec<usize> = (0..nodes).collect();
    let own = |at| -> Disks { all.iter().map(|node| parts(at, &[*node])).collect() };
    let both = |one: Disks, other: Disks| -> Disks {
        one.into_iter().zip(other).map(|(one, other)| [one, other].concat()).collect()
    };
    let on_all = |disk: Vec<Part>| -> Disks { vec![disk; nodes] };
    let lost = nodes - 1;
    let replaced = |mut disks: Disks| {
        disks[lost] = Vec::new();
        disks
    };
    let shared = on_all([parts(old, &all), parts(new, &all)].concat());
    let mut turned = both(own(old), own(new));
    turned.rotate_left(1);
    let half_saved = both(own(old), replaced(own(new)));
    let mut torn = both(own(old), own(new));
    torn[0][1].whole = false;
    let shared_half = on_all([parts(old, &all), parts(new, &all[..lost])].concat());
    let mut copied = both(own(old), own(new));
    copied[1].push(part_of(new, 0, nodes));
    copied[0][1].whole = false;
    let mut all_torn = own(new);
    all_torn.iter_mut().flatten().for_each(|one| one.whole = false);
    // The same position again, saved by one rank more: together they would have all parts of either.
    let mixed = both(own(old), replaced(own(new)));
    let mixed = both(
        mixed,
        (0..nodes).map(|node| if node == 0 { vec![part_of(new, lost, nodes + 1)] } else { Vec::new() }).collect(),
    );
    // And by one rank less, of which all parts are there.
    let fewer = both(
        replaced(own(new)),
        (0..nodes).map(|node| if node < lost { vec![part_of(new, node, lost)] } else { Vec::new() }).collect(),
    );
    // All but one in the middle, which the second node would have saved.
    let mut gap = both(own(old), own(new));
    gap[1].truncate(1);
    let one_epoch = on_all([parts((epoch, step / 2), &all), parts(new, &all)].concat());
    let case = |disks, right, what| RequeueCase { disks, right, what, why: None };
    let special = |disks, right, what, decided, why| RequeueCase { disks, right, what, why: Some((decided, why)) };
    let cases = [
        case(vec![Vec::new(); nodes], Some(None), "the first start"),
        case(one_epoch, Some(Some(new)), "a shared disk, two snapshots of one epoch"),
        special(
            shared,
            Some(Some(new)),
            "a shared disk",
            Decided::Older,
            "a snapshot of an earlier epoch was chosen because of its larger step: steps start again in each epoch, so compare the epoch \
             first",
        ),
        special(
            both(own(old), own(new)),
            Some(Some(new)),
            "disks of nodes, all are back",
            Decided::Refused,
            "a node finds only its own part on its disk: put together what all nodes have before you decide",
        ),
        special(
            turned,
            Some(Some(new)),
            "disks of nodes, all are back in another order",
            Decided::Refused,
            "the nodes are back in another order, so node n need not have part n: look for each part on all nodes",
        ),
        case(half_saved, Some(Some(old)), "disks of nodes; the last one was lost while it saved its part"),
        case(shared_half, Some(Some(old)), "a shared disk; a node was lost while it saved its part"),
        case(torn, Some(Some(old)), "disks of nodes; the first node's newest part is torn"),
        case(replaced(both(own(old), own(new))), None, "disks of nodes; a new node is in the place of the last one"),
        special(
            copied,
            Some(Some(new)),
            "disks of nodes; a part of the first node is torn, and the second one has a copy of it",
            Decided::Older,
            "a damaged copy of a part does no harm if another node has the part whole",
        ),
        special(
            all_torn,
            None,
            "disks of nodes, with torn parts only",
            Decided::Over,
            "the nodes find parts, all of them torn, and a repaired disk could bring them back: this is not a first start. Start at the \
             beginning only where the nodes find nothing",
        ),
        special(mixed, Some(Some(old)), TWO_NUMBERS, Decided::Newest, MIXED),
        special(fewer, Some(Some(new)), TWO_NUMBERS, Decided::Refused, MIXED),
        case(gap, Some(Some(old)), "disks of nodes; the second one was lost while it saved its part"),
    ];
    let inputs: Vec<&Disks> = cases.iter().map(|case| &case.disks).collect();
    let outputs = runner.call::<_, Decision>(1, &inputs)?;
    cases.iter().enumerate().try_for_each(|(number, case)| check(case, outputs.of(0, number)))
}

const TWO_NUMBERS: &str = "disks of nodes; the newest position was saved by two numbers of ranks";
const MIXED: &str = "parts of different snapshots were counted as one: jobs of different numbers of ranks saved the same position, and only \
     parts with the same `of` belong together";

fn part_of((epoch, step): (u64, u64), part: usize, of: usize) -> Part {
    Part { epoch, step, part, of, whole: true }
}

fn check(RequeueCase { disks, right, what, why }: &RequeueCase, observed: &Decision) -> anyhow::Result<()> {
    let all: Vec<&Part> = disks.iter().flatten().collect();
    let newest = all.iter().map(|one| (one.epoch, one.step)).max();
    let took_newest = matches!(observed, Ok(Some(at)) if Some(*at) == newest);
    let has = |at, part| all.iter().any(|one| (one.epoch, one.step) == at && one.part == part);
    let all_there = newest.is_some_and(|at| all.iter().any(|one| (0..one.of).all(|part| has(at, part))));
    let shared = disks.windows(2).all(|pair| pair[0] == pair[1]);
    let decided = match observed {
        Ok(None) => Decided::Over,
        Ok(Some(_)) if took_newest => Decided::Newest,
        Ok(Some(_)) => Decided::Older,
        Err(_) => Decided::Refused,
    };
    let claim = match right {
        Some(right) => Claim::that(observed.as_ref() == Ok(right), words(&Ok(*right)), words(observed)),
        None => Claim::that(observed.is_err(), "an error", words(observed)),
    };
    claim
        .given(format!("{what}\n{}", listed(disks)))
        .diagnose_if(why.is_some_and(|(wrong, _)| wrong == decided), why.map_or("", |(_, why)| why))
        .diagnose_if(
            right.is_none() && *observed == Ok(None),
            "training starts over, although the disk of the lost node has the missing parts: days of training would be lost without a \
             message",
        )
        .diagnose_if(
            took_newest && all_there,
            "a part is torn or damaged, but its snapshot was chosen: `whole` says what can be read",
        )
        .diagnose_if(
            took_newest && shared,
            "the same part was counted once for each node that sees it: on a shared disk all see all",
        )
        .diagnose_if(
            took_newest,
            "the newest snapshot lacks a part: it was only half saved, or a disk is missing. A name says nothing about the other parts",
        )
        .diagnose_if(
            decided == Decided::Refused && right.is_some_and(|right| right.is_some() && right != newest),
            "the newest snapshot is not complete, but an earlier one is: resume from that one, which was kept for this case",
        )
        .or_fail("not the newest complete snapshot")
}

fn words(decision: &Decision) -> String {
    match decision {
        Ok(Some((epoch, step))) => format!("resume at epoch {epoch}, step {step}"),
        Ok(None) => "start at the beginning".into(),
        Err(error) => format!("the error \"{error}\""),
    }
}

/// A row for what each node finds of each snapshot.
fn listed(disks: &Disks) -> String {
    let mut found: Vec<[String; 5]> = Vec::new();
    for (node, disk) in disks.iter().enumerate() {
        let snapshots: BTreeSet<(u64, u64, usize)> = disk.iter().map(|one| (one.epoch, one.step, one.of)).collect();
        if snapshots.is_empty() {
            found.push([&*node.to_string(), "", "", "none", ""].map(str::to_owned));
        }
        for (epoch, step, of) in snapshots {
            let parts = disk.iter().filter(|one| (one.epoch, one.step, one.of) == (epoch, step, of));
            let parts: Vec<String> =
                parts.map(|one| format!("{}{}", one.part, if one.whole { "" } else { " (torn)" })).collect();
            found.push([node.to_string(), epoch.to_string(), step.to_string(), joined(&parts, " "), of.to_string()]);
        }
    }
    table(["node", "epoch", "step", "parts that it finds", "of"], &found)
}

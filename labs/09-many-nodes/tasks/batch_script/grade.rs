//! Grades `batch_script`: runs it at a simulated site, and looks where launchers were started, with which arguments.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_grading::{Claim, Runner};
use serde::Deserialize;

/// Hosts and the job's id.
type Input = (Vec<String>, String);

#[derive(Debug, Deserialize)]
struct Started {
    node: String,
    words: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Ended {
    launchers: Vec<Started>,
    met: bool,
    left: bool,
    code: Option<i32>,
    printed: String,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let inputs: Vec<Input> = [2, 3 + random.below(0..2)]
        .into_iter()
        .map(|count| {
            // The first host is not the first of the sorted ones.
            let first = random.below(10..90);
            let hosts = (0..count).map(|host| format!("x{:03}", (first + count - host) % 100)).collect();
            (hosts, format!("{}.server", random.below(10_000..99_999)))
        })
        .collect();
    let outputs = runner.call::<_, Ended>(1, &inputs)?;
    inputs.iter().enumerate().try_for_each(|(case, input)| check(input, outputs.of(0, case)))
}

fn check((hosts, id): &Input, ended: &Ended) -> anyhow::Result<()> {
    let given = format!("simulated: PBS job {id} on {}", hosts.join(", "));
    let claim = |holds: bool, expected: &str| Claim::that(holds, expected, seen(ended)).given(&given);
    let on = |host: &String| ended.launchers.iter().filter(|one| one.node == *host).count();
    let everywhere = hosts.iter().all(|host| on(host) == 1);
    let expected = format!("one launcher on each of {} nodes", hosts.len());
    claim(everywhere, &expected)
        .diagnose_if(
            on(&hosts[0]) == 1 && ended.launchers.len() == 1,
            "the only launcher is on the first node, where the script runs: it waits there for launchers that are never started",
        )
        .diagnose_if(
            hosts.iter().any(|host| on(host) > 1),
            "several launchers on a node: pbsdsh and mpiexec start one for each slot of the host file, and a launcher starts the workers \
             of its node itself",
        )
        .or_fail("a node has no launcher, so the others wait for it")?;
    claim(!ended.left, "a script that ends after its launchers").or_fail(
        "the script ended while its launchers were running: PBS ends the job with its script, and kills what is left on the nodes. Let the \
         script wait for them",
    )?;
    claim(ended.met, "launchers on all nodes at the same time").or_fail(
        "the launchers were started one after the other: the first waits for the others, which the script never reaches. Start each in the \
         background, with &, and wait for all of them",
    )?;
    let flags: Vec<BTreeMap<String, String>> = ended.launchers.iter().map(|one| flags(&one.words)).collect();
    let of = |names: &[&str]| -> BTreeSet<Option<&String>> {
        flags.iter().map(|flags| names.iter().find_map(|name| flags.get(*name))).collect()
    };
    let one = |names: &[&str]| match of(names).into_iter().collect::<Vec<_>>()[..] {
        [Some(text)] => Some(text.as_str()),
        _ => None,
    };
    let places = of(&["rdzv-endpoint", "master-addr", "hostfile"]);
    let host_file = one(&["hostfile"]).is_some();
    let place = one(&["rdzv-endpoint", "master-addr"]).map(|text| text.rsplit_once(':').map_or(text, |(host, _)| host));
    claim(host_file || place == Some(&*hosts[0]), &format!("all launchers meet at {}", hosts[0]))
        .diagnose_if(
            places.iter().all(Option::is_none),
            "the launchers have no address at which to meet: pass the first node to each, with --rdzv-endpoint",
        )
        .diagnose_if(
            places.iter().all(|place| place.is_none_or(|text| text.is_empty() || text.starts_with(':'))),
            "the launchers have no address at which to meet: variables that the script exports are not set on other nodes, so the shell \
             there expands them to nothing. Pass the address as an argument",
        )
        .diagnose_if(
            places.len() == hosts.len(),
            "each launcher meets only itself: the name of the host is expanded on each node, not once by the script",
        )
        .or_fail("the launchers must meet at the first node of the host file, all of them")?;
    let nodes = one(&["nnodes"]).map(|text| text.rsplit(':').next().unwrap_or(text));
    let right = hosts.len().to_string();
    let slots = nodes.and_then(|text| text.parse::<usize>().ok()).is_some_and(|number| number > hosts.len());
    claim(host_file || nodes == Some(&*right), &format!("--nnodes={right} everywhere"))
        .diagnose_if(
            slots,
            "--nnodes is larger than the number of nodes, and the launchers wait for nodes that do not exist. The host file has a line for each \
             slot of a node: count different lines",
        )
        .or_fail("all launchers must have the job's number of nodes")?;
    claim(of(&["rdzv-id"]).len() == 1, "the same --rdzv-id everywhere").or_fail(
        "each launcher has its own id, and launchers with different ids do not meet. The job's id is the same on all nodes: $PBS_JOBID",
    )?;
    let by_address = of(&["master-addr"]).iter().any(Option::is_some);
    claim(!by_address || of(&["node-rank"]).len() == hosts.len(), "a --node-rank for each node")
        .or_fail("with --master-addr each launcher needs its own --node-rank, from 0 on")?;
    claim(one(&["nproc-per-node"]) == Some("2"), "--nproc-per-node=2 everywhere")
        .or_fail("each node has two workers")?;
    let trains = ended.launchers.iter().all(|one| one.words.iter().any(|word| word == "train"));
    claim(trains, "the program is train").or_fail("the launchers start no program")?;
    claim(ended.code == Some(0), "exit code 0").or_fail("the script fails")
}

/// The launcher's flags by name, with dashes for underscores: `--name=value`, `--name value`.
fn flags(words: &[String]) -> BTreeMap<String, String> {
    let mut flags = BTreeMap::new();
    for (at, word) in words.iter().enumerate() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        let next = || words.get(at + 1).cloned().unwrap_or_default();
        let (name, value) =
            flag.split_once('=').map_or_else(|| (flag, next()), |(name, value)| (name, value.to_owned()));
        flags.insert(name.replace('_', "-"), value);
    }
    flags
}

fn seen(ended: &Ended) -> String {
    let launchers = ended.launchers.iter().map(|one| format!("on {}: lockstep {}", one.node, one.words.join(" ")));
    let mut lines: Vec<String> = launchers.collect();
    if lines.is_empty() {
        lines.push("no launcher".into());
    }
    if ended.code != Some(0) {
        lines.push(format!("exit code {:?}: {}", ended.code, ended.printed));
    }
    lines.join("\n")
}

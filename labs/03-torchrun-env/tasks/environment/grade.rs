//! Grades `environment`: the variables that a launcher sets, and environments with missing or wrong ones.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain};

const NAMES: [&str; 6] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// What is wrong with a rank that is the world size.
const NOT_BELOW: &str = "which is not below WORLD_SIZE";

type Variables = BTreeMap<String, String>;
/// The values as texts, in the order of [`NAMES`].
type Worker = [String; 6];
type Read = Result<Worker, String>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The second of two nodes, so the rank and the local rank differ. No number is another, or another and 1: the rank is up to 6, and here
    // are 8 processes at least.
    let (before, here) = (random.below(2..4), random.below(8..11));
    let local = random.below(1..4);
    let port = random.below(20_000..60_000);
    let numbers = [before + local, local, before + here, here].map(|number| number.to_string());
    let address = format!("node-{}", random.below(0..100));
    let values = numbers.into_iter().chain([address, port.to_string()]);
    let complete: Variables = NAMES.into_iter().map(str::to_owned).zip(values).collect();
    let expected: Worker = NAMES.map(|name| complete[name].clone());
    let faulty = faulty(&complete);
    let inputs: Vec<&Variables> =
        [&complete].into_iter().chain(faulty.iter().map(|(_, _, variables)| variables)).collect();
    let outputs = runner
        .call::<_, Read>(1, &inputs)
        .map_err(|error| lockstep_grading::given(explain(error, why), |input| listed(inputs[input])))?;
    reads(&complete, &expected, outputs.of(0, 0))?;
    for (case, (names, what, variables)) in faulty.iter().enumerate() {
        let read = outputs.of(0, case + 1);
        // The same words cannot say which of two variables is at fault.
        let same = read.as_ref().err().and_then(|text| {
            let apart = |of: &[&str]| of.iter().all(|name| !names.contains(name));
            let others = faulty.iter().enumerate().filter(|(_, (of, ..))| apart(of));
            let texts = others.map(|(case, (_, what, _))| (what.as_str(), outputs.of(0, case + 1)));
            texts
                .filter_map(|(what, read)| Some((what, read.as_ref().err()?)))
                .find(|(_, other)| named(other) == named(text))
        });
        refuses(names, what, variables, read, same.map(|(what, _)| what))?;
    }
    Ok(())
}

/// The variables that a text names, in its order.
fn named(text: &str) -> Vec<&str> {
    text.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).filter(|word| NAMES.contains(word)).collect()
}

/// Wrong environments: the variables at fault, a description of the fault, and all variables.
fn faulty(complete: &Variables) -> Vec<(Vec<&'static str>, String, Variables)> {
    let without = |name: &'static str, of: &Variables| {
        let mut variables = of.clone();
        variables.remove(name);
        (vec![name], format!("{name} is not set"), variables)
    };
    // Of the first process, whose ranks are below any size that is guessed.
    let mut first = complete.clone();
    first.extend(["RANK", "LOCAL_RANK"].map(|name| (name.to_owned(), "0".to_owned())));
    let with = |names: Vec<&'static str>, value: &str, why: &str| {
        let mut variables = complete.clone();
        variables.insert(names[0].to_owned(), value.to_owned());
        let what = format!("{} is {value:?}, {why}", names[0]);
        (names, what, variables)
    };
    let mut faulty: Vec<_> = NAMES.into_iter().map(|name| without(name, complete)).collect();
    faulty.extend(["WORLD_SIZE", "LOCAL_WORLD_SIZE"].map(|name| without(name, &first)));
    // Without a launcher none is set, or an address alone.
    let address: Variables = complete
        .iter()
        .filter(|(name, _)| name.starts_with("MASTER"))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let others: Vec<&'static str> = NAMES.into_iter().filter(|name| !address.contains_key(*name)).collect();
    faulty.push((NAMES.to_vec(), "no variable is set".to_owned(), Variables::new()));
    faulty.push((others, "only the address is set".to_owned(), address));
    let wrong = [
        ("two", "not a number"),
        ("-1", "below 0"),
        ("8.0", "not a whole number"),
        ("", "not a number"),
        ("99999999999999999999999", "larger than any number of processes"),
    ];
    for name in NAMES.into_iter().filter(|name| *name != "MASTER_ADDR") {
        faulty.extend(wrong.map(|(value, why)| with(vec![name], value, why)));
    }
    faulty.push(with(vec!["MASTER_PORT"], "70000", "above the last port, 65535"));
    // Two variables contradict each other: any error will do.
    let world: usize = complete["WORLD_SIZE"].parse().unwrap_or_default();
    faulty.extend([world, 2 * world].map(|rank| with(vec!["RANK", "WORLD_SIZE"], &rank.to_string(), NOT_BELOW)));
    faulty
}

fn reads(variables: &Variables, expected: &Worker, read: &Read) -> anyhow::Result<()> {
    let claim = |observed: String| {
        Claim::that(read.as_ref() == Ok(expected), fields(expected), observed).given(listed(variables))
    };
    let worker = match read {
        Ok(worker) => worker,
        Err(text) => {
            return claim(format!("the error \"{text}\""))
                .or_fail("an error, although all six variables are set and right");
        }
    };
    claim(fields(worker))
        .diagnose_if(worker[0] == expected[1], "LOCAL_RANK is read instead of RANK: it counts on one node only")
        .diagnose_if(worker[1] == expected[0], "RANK is read instead of LOCAL_RANK: it counts over all nodes")
        .diagnose_if(
            worker[2] == expected[3],
            "LOCAL_WORLD_SIZE is read instead of WORLD_SIZE: it counts on one node only",
        )
        .diagnose_if(
            worker[3] == expected[2],
            "WORLD_SIZE is read instead of LOCAL_WORLD_SIZE: it counts over all nodes",
        )
        .or_fail("a field does not have the value of its variable")
}

/// `same` is another fault, of other variables, whose error names the same.
fn refuses(names: &[&str], what: &str, variables: &Variables, read: &Read, same: Option<&str>) -> anyhow::Result<()> {
    let any_error = what.ends_with(NOT_BELOW);
    let of = if names.len() == NAMES.len() { "one of the variables".to_owned() } else { names.join(" or ") };
    let expected = if any_error { "an error".to_owned() } else { format!("an error that names {of}") };
    let given = listed(variables);
    let text = match read {
        Ok(worker) => {
            let missing = !variables.contains_key(names[0]);
            return Claim::that(false, expected, fields(worker))
                .given(given)
                .diagnose_if(missing, format!("{what}, and a value is guessed: {}", guessed(names)))
                .or_fail(format!("{what}, but there is no error"));
        }
        Err(text) => text,
    };
    let names_it = named(text).iter().any(|name| names.contains(name));
    let others = format!("{what}, and the error is that of another fault, {}", same.unwrap_or_default());
    Claim::that(any_error || names_it && same.is_none(), expected, format!("the error \"{text}\""))
        .given(given)
        .diagnose_if(
            names_it && NAMES.iter().all(|name| named(text).contains(name)),
            format!("{what}, and the error names all variables: which one is it?"),
        )
        .diagnose_if(names_it, format!("{others}: which variable is it?"))
        .or_fail(format!("{what}, and the error does not name the variable: its reader must search for it"))
}

/// What comes of a value that is guessed for the first of these variables, or for all of them.
fn guessed(names: &[&str]) -> &'static str {
    match names {
        ["MASTER_ADDR"] => "on any node but the store's, the process then waits at the wrong address until its timeout",
        ["MASTER_PORT"] => {
            "two jobs on one host then meet at one port, or a process waits at a port on which no store listens"
        }
        ["LOCAL_RANK"] => "several processes of a node can then take the same GPU",
        ["LOCAL_WORLD_SIZE"] => "the processes of a node then do not know how many share its cores and GPUs",
        _ => "without a launcher, every process would then train alone on all of the data, as if it were the only one",
    }
}

fn fields([rank, local_rank, world_size, local_world_size, address, port]: &Worker) -> String {
    format!(
        "rank {rank}, local_rank {local_rank}, world_size {world_size}, local_world_size {local_world_size}, master_addr \"{address}\", \
         master_port {port}"
    )
}

fn listed(variables: &Variables) -> String {
    let one = |name: &&str| variables.get(*name).map(|value| format!("{name}={value}"));
    let all: Vec<String> = NAMES.iter().filter_map(one).collect();
    if all.is_empty() { "no variable".into() } else { all.join(" ") }
}

fn why(finding: &Finding) -> Option<String> {
    let panicked = finding.verdict == Verdict::Crash && finding.diagnosis.contains("panicked");
    panicked.then(|| {
        format!(
            "a missing or wrong variable is a mistake of the user who started the program, not of the program: return an \
             error that names the variable ({})",
            finding.diagnosis
        )
    })
}

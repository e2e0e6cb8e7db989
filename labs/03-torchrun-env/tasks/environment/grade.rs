//! Grades `environment`: the variables that a launcher sets, and environments with missing or wrong ones.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain};

const NAMES: [&str; 6] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

type Variables = BTreeMap<String, String>;
/// In the order of [`NAMES`].
type Worker = (usize, usize, usize, usize, String, u16);
type Read = Result<Worker, String>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The second of two nodes, so the rank and the local rank differ.
    let (before, here) = (random.below(2..5), random.below(5..9));
    let local = random.below(1..here);
    let port = random.below(20_000..60_000);
    let numbers = [before + local, local, before + here, here].map(|number| number.to_string());
    let address = format!("node-{}", random.below(0..100));
    let values = numbers.into_iter().chain([address, port.to_string()]);
    let complete: Variables = NAMES.into_iter().map(str::to_owned).zip(values).collect();
    let expected: Worker = (before + local, local, before + here, here, complete["MASTER_ADDR"].clone(), port as u16);
    let faulty = faulty(&complete);
    let inputs: Vec<&Variables> =
        [&complete].into_iter().chain(faulty.iter().map(|(_, _, variables)| variables)).collect();
    let outputs = runner.call::<_, Read>(1, &inputs).map_err(|error| explain(error, why))?;
    reads(&complete, &expected, outputs.of(0, 0))?;
    for (case, (names, what, variables)) in faulty.iter().enumerate() {
        refuses(names, what, variables, outputs.of(0, case + 1))?;
    }
    Ok(())
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
    faulty.extend([
        with(vec!["RANK"], "two", "not a number"),
        with(vec!["LOCAL_RANK"], "-1", "below 0"),
        with(vec!["WORLD_SIZE"], "8.0", "not a whole number"),
        with(vec!["LOCAL_WORLD_SIZE"], "", "not a number"),
        with(vec!["MASTER_PORT"], "70000", "above the last port, 65535"),
    ]);
    let world = &complete["WORLD_SIZE"];
    faulty.push(with(vec!["RANK", "WORLD_SIZE"], world, "which is not below WORLD_SIZE"));
    faulty
}

fn reads(variables: &Variables, expected: &Worker, read: &Read) -> anyhow::Result<()> {
    let claim = Claim::equal(&Ok(expected.clone()), read).given(listed(variables));
    let Ok(worker) = read else {
        return claim.or_fail("an error, although all six variables are set and right");
    };
    claim
        .diagnose_if(worker.0 == expected.1, "LOCAL_RANK is read instead of RANK: it counts on one node only")
        .diagnose_if(worker.1 == expected.0, "RANK is read instead of LOCAL_RANK: it counts over all nodes")
        .diagnose_if(
            worker.2 == expected.3,
            "LOCAL_WORLD_SIZE is read instead of WORLD_SIZE: it counts on one node only",
        )
        .diagnose_if(worker.3 == expected.2, "WORLD_SIZE is read instead of LOCAL_WORLD_SIZE: it counts over all nodes")
        .or_fail("a field does not have the value of its variable (the values are in the order of the fields)")
}

fn refuses(names: &[&str], what: &str, variables: &Variables, read: &Read) -> anyhow::Result<()> {
    let expected = format!("an error that names {}", names.join(" or "));
    let given = listed(variables);
    let text = match read {
        Ok(worker) => {
            let missing = !variables.contains_key(names[0]);
            return Claim::that(false, expected, format!("{worker:?}"))
                .given(given)
                .diagnose_if(
                    missing,
                    format!(
                        "{what}, and a value is guessed: without a launcher, every process would believe that it is the \
                         only one and train alone on all of the data"
                    ),
                )
                .or_fail(format!("{what}, but there is no error"));
        }
        Err(text) => text,
    };
    let named: Vec<&str> = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).collect();
    let names_it = names.iter().any(|name| named.contains(name));
    let names_all = names.len() < NAMES.len() && NAMES.iter().all(|name| named.contains(name));
    Claim::that(names_it && !names_all, expected, format!("the error \"{text}\""))
        .given(given)
        .diagnose_if(names_all, format!("{what}, and the error names all variables: which one is it?"))
        .or_fail(format!("{what}, and the error does not name the variable: its reader must search for it"))
}

fn listed(variables: &Variables) -> String {
    let one = |name: &&str| variables.get(*name).map(|value| format!("{name}={value}"));
    NAMES.iter().filter_map(one).collect::<Vec<_>>().join(" ")
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

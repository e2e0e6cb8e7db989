//! Grades `head_node`: what Slurm and PBS say to two nodes of a job, and environments that do not say enough.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_grading::{Claim, Runner};

type Texts = BTreeMap<String, String>;
/// Variables and files.
type SchedulerJob = (Texts, Texts);
type Found = Result<(String, u16), String>;

/// A job, and what its nodes must find.
struct HeadNodeCase {
    job: SchedulerJob,
    expected: (String, u16),
    /// The host of this process.
    here: String,
    /// The hosts of PBS's file.
    hosts: Vec<String>,
}

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Larger than 16 bits, and even, so that the index of an array changes the last digits.
    let mut id = || 2 * random.below(50_000..500_000);
    let mut cases = Vec::new();
    let lists = [
        ("n1", "n1"),
        ("n2,n1", "n2"),
        ("n[1-4]", "n1"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[007,012]", "gpu007"),
        ("login,gpu[01-02]", "login"),
        ("r[1-2]n[0-3]", "r1n0"),
        ("node[08-11]-ib", "node08-ib"),
        ("r[2,4]n[0-3]", "r2n0"),
        ("login-a,login-b", "login-a"),
        ("gpu-a[03-05]", "gpu-a03"),
    ];
    for (list, head) in lists {
        let id = id();
        cases.push(slurm(list, head, id, head));
        // Another node of the same job.
        cases.push(slurm(list, head, id, "other-node"));
    }
    // The first, the second, the least and the last host are different ones.
    let sites = [
        (".server", ["x4", "x3", "x2", "x5"]),
        ("[3].server", ["blanca003.site.org", "blanca005.site.org", "blanca002.site.org", "blanca004.site.org"]),
    ];
    for (suffix, hosts) in sites {
        let id = id();
        cases.extend([hosts[0], hosts[1]].map(|here| pbs(&hosts, id, suffix, here)));
    }
    let broken = broken(&cases);
    let inputs: Vec<&SchedulerJob> =
        cases.iter().map(|case| &case.job).chain(broken.iter().map(|(job, _)| job)).collect();
    let outputs = runner.call::<_, Found>(1, &inputs)?;
    let ports: BTreeSet<u16> = (0..cases.len()).filter_map(|case| Some(outputs.of(0, case).as_ref().ok()?.1)).collect();
    for (number, case) in cases.iter().enumerate() {
        check(case, outputs.of(0, number), ports.len() == 1)?;
    }
    for (number, (job, what)) in broken.iter().enumerate() {
        let found = outputs.of(0, cases.len() + number);
        Claim::that(found.is_err(), "an error", format!("{found:?}")).given(listed(job)).or_fail(format!(
            "{what}, but the answer guesses a head node: every node would meet only itself, and train alone"
        ))?;
    }
    Ok(())
}

fn texts<const N: usize>(pairs: [(&str, String); N]) -> Texts {
    pairs.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

fn slurm(list: &str, head: &str, id: usize, here: &str) -> HeadNodeCase {
    let variables = texts([
        ("SLURM_JOB_ID", id.to_string()),
        ("SLURM_JOB_NODELIST", list.to_owned()),
        ("SLURMD_NODENAME", here.to_owned()),
        ("HOSTNAME", here.to_owned()),
    ]);
    HeadNodeCase {
        job: (variables, Texts::new()),
        expected: (head.to_owned(), port(id)),
        here: here.to_owned(),
        hosts: Vec::new(),
    }
}

/// Each host has a line for each of its two slots.
fn pbs(hosts: &[&str; 4], id: usize, suffix: &str, here: &str) -> HeadNodeCase {
    let path = format!("/var/spool/pbs/aux/{id}{suffix}");
    let text: String = hosts.iter().flat_map(|host| [format!("{host}\n"), format!("{host}\n")]).collect();
    let variables =
        texts([("PBS_JOBID", format!("{id}{suffix}")), ("PBS_NODEFILE", path.clone()), ("HOSTNAME", here.to_owned())]);
    HeadNodeCase {
        job: (variables, Texts::from([(path, text)])),
        expected: (hosts[0].to_owned(), port(id)),
        here: here.to_owned(),
        hosts: hosts.map(str::to_owned).into(),
    }
}

fn port(id: usize) -> u16 {
    20_000 + (id % 10_000) as u16
}

/// Jobs that do not name their nodes.
fn broken(cases: &[HeadNodeCase]) -> Vec<(SchedulerJob, &'static str)> {
    let without = |case: &HeadNodeCase, name: &str| {
        let (mut variables, files) = case.job.clone();
        variables.remove(name);
        (variables, files)
    };
    let last = &cases[cases.len() - 1];
    let empty = (last.job.0.clone(), last.job.1.keys().map(|path| (path.clone(), "\n".to_owned())).collect());
    vec![
        (texts([("HOSTNAME", "laptop".into())]), Texts::new(), "there is no scheduler"),
        (without(&cases[0], "SLURM_JOB_NODELIST").0, Texts::new(), "SLURM_JOB_NODELIST is not set"),
        (without(last, "PBS_NODEFILE").0, Texts::new(), "PBS_NODEFILE is not set"),
        (empty.0, empty.1, "PBS_NODEFILE names no node"),
    ]
    .into_iter()
    .map(|(variables, files, what)| ((variables, files), what))
    .collect()
}

/// `one_port` if the answer gives all jobs the same port.
fn check(case: &HeadNodeCase, found: &Found, one_port: bool) -> anyhow::Result<()> {
    let claim = Claim::equal(&Ok(case.expected.clone()), found).given(listed(&case.job));
    let Ok((head, port)) = found else {
        let large = matches!(found, Err(error) if error.contains("too large"));
        return claim
            .diagnose_if(
                large,
                "an error, although the scheduler provides everything: a job's number can be larger than 65535, the largest port",
            )
            .or_fail("an error, although the scheduler says all that is needed");
    };
    let (right, right_port) = &case.expected;
    if head == right {
        let digits = case.job.0.get("PBS_JOBID").map(|id| id.chars().filter(char::is_ascii_digit).collect::<String>());
        return claim
            .diagnose_if(
                digits.and_then(|digits| digits.parse().ok()).map(self::port) == Some(*port),
                "the index in the brackets, which numbers the jobs of an array, was read as the end of the job's number",
            )
            .diagnose_if(
                one_port,
                "the port does not depend on the job's number: two jobs that share a node would meet in one store",
            )
            .or_fail(format!("the node is right, and the port is not: 20000 and the job's number modulo 10000 is {right_port}"));
    }
    let list = case.job.0.get("SLURM_JOB_NODELIST").map_or("", String::as_str);
    // The text before the first bracket, in it and after it.
    let (before, inside, after) = list.split_once('[').map_or((list, "", ""), |(before, rest)| {
        let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
        (before, inside, after)
    });
    let number = inside.split(['-', ',']).next().unwrap_or_default();
    let unpadded = format!("{before}{}", number.trim_start_matches('0'));
    let (in_brackets, has_brackets) = (head.contains(['[', ']']), list.contains('['));
    claim
        .diagnose_if(*head == case.here, "this node's own name: every node would wait at its own address. All nodes must find the same name")
        .diagnose_if(
            case.hosts.iter().min() == Some(head),
            "the host file was sorted: the batch script runs on the first host of the file as it is",
        )
        .diagnose_if(case.hosts.last() == Some(head), "the last host of the file: the batch script runs on the first")
        .diagnose_if(
            has_brackets && (in_brackets || list.split(',').next() == Some(head)),
            "this is a part of Slurm's short form, not a name: a comma or a dash within brackets separates numbers, not nodes",
        )
        .diagnose_if(
            !in_brackets && !inside.contains(',') && list.starts_with(&format!("{head}-")),
            "the name ends at its hyphen: a hyphen separates the first number from the last only within brackets, elsewhere it belongs to \
             the name",
        )
        .diagnose_if(
            has_brackets && before.contains(',') && head.contains(',') && !in_brackets,
            "these are two nodes: the bracket belongs to a later one. The first node's part of the list ends at the first comma that is not \
             within brackets",
        )
        .diagnose_if(!has_brackets && head == list, "this is the whole list: a comma separates its nodes")
        .diagnose_if(!has_brackets && list.split(',').next_back() == Some(head), "this is the last node of the list, not the first")
        .diagnose_if(
            unpadded != format!("{before}{number}") && head.starts_with(&unpadded) && right.ends_with(&head[unpadded.len()..]),
            "the number in the brackets has lost its leading zeros, which belong to the name",
        )
        .diagnose_if(has_brackets && head == before, "the number is missing: the first one in the brackets belongs to the name")
        .diagnose_if(
            !after.is_empty() && !inside.contains(',') && *head == format!("{before}{number}"),
            "the text after the bracket belongs to each node's name, and may contain brackets, too: here the name ends before it",
        )
        .diagnose_if(
            // Lists without a comma in the brackets come before, and their text after the brackets was read.
            !after.is_empty() && inside.contains(',') && *head == format!("{before}{number}"),
            "the name ends at the comma within the brackets, which separates numbers: what follows the bracket belongs to the name, too",
        )
        .or_fail("not the first node of the job")
}

fn listed((variables, files): &SchedulerJob) -> String {
    let variables = variables.iter().map(|(name, value)| format!("{name}={value}"));
    let files = files.iter().map(|(path, text)| format!("{path} has {:?}", text));
    variables.chain(files).collect::<Vec<_>>().join("; ")
}

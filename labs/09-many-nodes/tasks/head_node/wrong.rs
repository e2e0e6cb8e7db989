//! Answers to `head_node`: wrong ones, and an unusual right one.

use anyhow::{Context, Result};

use crate::head_node::SchedulerJob;

/// Of the job's id, its digits; then the port.
fn port(job: &SchedulerJob) -> Result<u16> {
    let id = job.get("SLURM_JOB_ID").or(job.get("PBS_JOBID")).context("no scheduler")?;
    let digits: String = id.chars().take_while(char::is_ascii_digit).collect();
    Ok(20_000 + (digits.parse::<u64>()? % 10_000) as u16)
}

fn lines(job: &SchedulerJob) -> Result<Vec<&str>> {
    let text = job.read(job.get("PBS_NODEFILE").context("PBS_NODEFILE is not set")?)?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    anyhow::ensure!(!lines.is_empty(), "no node");
    Ok(lines)
}

/// The first name of the list, read from left to right.
fn scanned(list: &str) -> String {
    let (mut name, mut depth, mut skips) = (String::new(), 0, false);
    for c in list.chars() {
        match c {
            '[' => (depth, skips) = (1, false),
            ']' => (depth, skips) = (0, false),
            ',' if depth == 0 => break,
            '-' | ',' if depth == 1 => skips = true,
            c if !skips => name.push(c),
            _ => {}
        }
    }
    name
}

/// Takes the node on which it runs.
pub fn own_host(job: &SchedulerJob) -> Result<(String, u16)> {
    Ok((job.get("HOSTNAME").context("HOSTNAME is not set")?.to_owned(), port(job)?))
}

/// Splits the list at its first comma.
pub fn first_comma(job: &SchedulerJob) -> Result<(String, u16)> {
    let head = match job.get("SLURM_JOB_NODELIST") {
        Some(list) => list.split(',').next().unwrap_or(list),
        None => lines(job)?[0],
    };
    Ok((head.to_owned(), port(job)?))
}

/// Looks for a bracket before it looks for a comma.
pub fn bracket_first(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, port) = scans(job)?;
    let bracket = job.get("SLURM_JOB_NODELIST").and_then(|list| list.split_once('['));
    let Some((before, _)) = bracket.filter(|(before, _)| before.contains(',')) else { return Ok((head, port)) };
    Ok((format!("{before}01"), port))
}

/// Reads the number in the bracket as a number.
pub fn number(job: &SchedulerJob) -> Result<(String, u16)> {
    let Some(list) = job.get("SLURM_JOB_NODELIST") else { return Ok((lines(job)?[0].to_owned(), port(job)?)) };
    let Some((head, rest)) = list.split_once('[') else { return Ok((scanned(list), port(job)?)) };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let tail = rest.split_once(']').map_or("", |(_, tail)| tail);
    Ok((format!("{head}{}{}", digits.parse::<u64>()?, scanned(tail)), port(job)?))
}

/// Sorts the host file, as the tutorial does.
pub fn sorted(job: &SchedulerJob) -> Result<(String, u16)> {
    let head = match job.get("SLURM_JOB_NODELIST") {
        Some(list) => scanned(list),
        None => lines(job)?.into_iter().min().context("no node")?.to_owned(),
    };
    Ok((head, port(job)?))
}

/// Gives all jobs one port.
pub fn fixed_port(job: &SchedulerJob) -> Result<(String, u16)> {
    Ok((scans(job)?.0, 29_500))
}

/// Without a scheduler, assumes that it is alone.
pub fn assumes(job: &SchedulerJob) -> Result<(String, u16)> {
    Ok(scans(job).unwrap_or(("localhost".into(), 29_500)))
}

/// Takes the name that Slurm has for this node.
pub fn node_name(job: &SchedulerJob) -> Result<(String, u16)> {
    let own = job.get("SLURMD_NODENAME").map(str::to_owned);
    let (head, port) = scans(job)?;
    Ok((own.unwrap_or(head), port))
}

/// Splits at hyphens where there are no brackets, too.
pub fn hyphen(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, port) = scans(job)?;
    let cut = job.get("SLURM_JOB_NODELIST").filter(|list| !list.contains('['));
    Ok((cut.map_or(head, |list| list.split(['-', ',']).next().unwrap_or(list).to_owned()), port))
}

/// Reads one bracket, and nothing that follows it.
pub fn one_bracket(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, port) = scans(job)?;
    let bracket = job.get("SLURM_JOB_NODELIST").and_then(|list| list.split_once('['));
    let bracket = bracket.filter(|(before, _)| !before.contains(','));
    let name = |(before, after): (&str, &str)| format!("{before}{}", after.split(['-', ',', ']']).next().unwrap_or(""));
    Ok((bracket.map_or(head, name), port))
}

/// Splits at the first comma, and closes the bracket that this leaves open.
pub fn comma_in_bracket(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, port) = scans(job)?;
    let first = job.get("SLURM_JOB_NODELIST").and_then(|list| list.split(',').next());
    Ok((first.map_or(head, scanned), port))
}

/// Cannot hold a number beyond 65535.
pub fn sixteen_bits(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, _) = scans(job)?;
    let id = job.get("SLURM_JOB_ID").or(job.get("PBS_JOBID")).context("no scheduler")?;
    let digits: String = id.chars().take_while(char::is_ascii_digit).collect();
    Ok((head, 20_000 + digits.parse::<u16>()? % 10_000))
}

/// Reads the digits of an array's index as a part of the job's number.
pub fn all_digits(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, _) = scans(job)?;
    let id = job.get("SLURM_JOB_ID").or(job.get("PBS_JOBID")).context("no scheduler")?;
    let digits: String = id.chars().filter(char::is_ascii_digit).collect();
    Ok((head, 20_000 + (digits.parse::<u64>()? % 10_000) as u16))
}

/// Under PBS, takes the node on which it runs.
pub fn own_host_of_pbs(job: &SchedulerJob) -> Result<(String, u16)> {
    let found = scans(job)?;
    let own = job.get("HOSTNAME").filter(|_| job.get("PBS_JOBID").is_some()).map(str::to_owned);
    Ok((own.unwrap_or(found.0), found.1))
}

/// Does not split a list without brackets.
pub fn whole_list(job: &SchedulerJob) -> Result<(String, u16)> {
    let found = scans(job)?;
    let list = job.get("SLURM_JOB_NODELIST").filter(|list| !list.contains('['));
    Ok((list.map_or(found.0, str::to_owned), found.1))
}

/// Leaves out the number in the bracket.
pub fn no_number(job: &SchedulerJob) -> Result<(String, u16)> {
    let found = scans(job)?;
    let bracket = job.get("SLURM_JOB_NODELIST").and_then(|list| list.split_once('['));
    let before = bracket.map(|(before, _)| before).filter(|before| !before.contains(','));
    Ok((before.map_or(found.0, str::to_owned), found.1))
}

/// Takes the last node of a list.
pub fn last_node(job: &SchedulerJob) -> Result<(String, u16)> {
    let found = scans(job)?;
    let list = job.get("SLURM_JOB_NODELIST").filter(|list| !list.contains('['));
    Ok((list.and_then(|list| list.split(',').next_back()).map_or(found.0, str::to_owned), found.1))
}

/// Counts its ports by the job's last three digits.
pub fn fewer_ports(job: &SchedulerJob) -> Result<(String, u16)> {
    let (head, port) = scans(job)?;
    Ok((head, 20_000 + port % 1_000))
}

/// Right: reads the list character by character.
pub fn scans(job: &SchedulerJob) -> Result<(String, u16)> {
    let head = match job.get("SLURM_JOB_ID") {
        Some(_) => scanned(job.get("SLURM_JOB_NODELIST").context("SLURM_JOB_NODELIST is not set")?),
        None => lines(job)?[0].to_owned(),
    };
    Ok((head, port(job)?))
}

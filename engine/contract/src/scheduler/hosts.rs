//! Lists of hosts: Slurm's short form, and files with one host per line.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use crate::foreign;

/// Longer lists are truncated. The largest Slurm clusters have about 10,000 nodes.
const MAX_HOSTS: usize = 16_384;

/// Why a file is not a list of hosts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostFileError {
    /// The file cannot be read.
    #[error("cannot read the host file {}: {source}", foreign::path(path))]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// A word of a line is not a host, or can be read in two ways.
    #[error("{}, line {line}: `{}` {why}", foreign::path(path), foreign::quotation(text))]
    NotAHost {
        path: PathBuf,
        /// The line's number, counted from 1.
        line: usize,
        text: String,
        /// What is wrong with it, and what is expected.
        why: String,
    },
    /// Different lines name the same host.
    #[error(
        "the host file {} has {lines} different lines, and all of them name the host {host}, so each agent would train alone: name each \
         node by a name of its own, or one node in one line",
        foreign::path(path)
    )]
    OneHost {
        path: PathBuf,
        /// The number of these lines.
        lines: usize,
        host: String,
    },
    /// The file names no host.
    #[error("the host file {} names no host", foreign::path(path))]
    Empty { path: PathBuf },
}

/// Expands Slurm's short form of a list of hosts: `gpu[01-03,07],login`, also with several brackets (`r[1-2]n[0-3]`).
/// Parts that cannot be parsed are kept unchanged.
#[must_use]
pub fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for part in split(list) {
        match expand_part(part) {
            Some(expanded) => hosts.extend(expanded),
            None => hosts.push(part.to_owned()),
        }
        hosts.truncate(MAX_HOSTS);
    }
    hosts
}

/// Splits at commas outside of brackets.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = list.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn expand_part(part: &str) -> Option<Vec<String>> {
    let Some((head, rest)) = part.split_once('[') else { return Some(vec![part.to_owned()]) };
    let (inside, tail) = rest.split_once(']')?;
    let tails = expand_part(tail)?;
    let mut hosts = Vec::new();
    for range in inside.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        let width = from.len();
        let wanted = MAX_HOSTS.saturating_sub(hosts.len());
        let numbers = (first..=last).flat_map(|number| tails.iter().map(move |tail| (number, tail)));
        hosts.extend(numbers.take(wanted).map(|(number, tail)| format!("{head}{number:0width$}{tail}")));
    }
    Some(hosts)
}

/// Reads a host file: one host per line, each host once or once per slot; also `node1 slots=4` (Open MPI), `node1:4`
/// (MPICH), Grid Engine's four columns, IPv6 addresses, in brackets where a number of slots follows, and comments after `#`.
pub(super) fn read_file(path: &str, text: &str) -> Result<Vec<String>, HostFileError> {
    let (mut hosts, mut written) = (Vec::new(), BTreeSet::new());
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let (first, host) = match read_line(line) {
            Ok(Some(read)) => read,
            Ok(None) => continue,
            Err((text, why)) => {
                let (path, text) = (path.into(), text.to_owned());
                return Err(HostFileError::NotAHost { path, line: number + 1, text, why });
            }
        };
        written.insert(first);
        if hosts.len() < MAX_HOSTS && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let (path, lines) = (path.into(), written.len());
    match &*hosts {
        [] => Err(HostFileError::Empty { path }),
        [host] if lines > 1 => Err(HostFileError::OneHost { path, lines, host: host.clone() }),
        _ => Ok(hosts),
    }
}

/// A word that cannot be used, and why not.
type Misread<'a> = (&'a str, String);

/// The first word of a line and the host that it names; `None` if the line is empty.
fn read_line(line: &str) -> Result<Option<(&str, String)>, Misread<'_>> {
    let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let host = read_host(first).map_err(|why| (first, why))?;
    // `slots=4`, `max_slots = 4`, `4 all.q@node1 UNDEFINED`. A second host would be lost.
    let describes = |word: &str| word.contains(['=', '@']) || is_number(word) || DESCRIBE.contains(&word);
    match words.find(|word| !describes(word)) {
        Some(word) => Err((word, NOT_A_HOST.to_owned())),
        None => Ok(Some((first, host))),
    }
}

/// Words that may follow a host: Open MPI's, and Grid Engine's for any processors.
const DESCRIBE: [&str; 3] = ["slots", "max_slots", "UNDEFINED"];

const NOT_A_HOST: &str = "is not a host; expected a host on each line, such as `node1` or `node1 slots=4`";

/// `node1`, `node1:4`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:4`. One address has one form.
fn read_host(word: &str) -> Result<String, String> {
    let address = |text: &str| text.parse::<Ipv6Addr>().ok().map(|address| address.to_string());
    if let Some((inside, rest)) = word.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let ends = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_number);
        return address(inside).filter(|_| ends).ok_or_else(|| NOT_A_HOST.to_owned());
    }
    let (before, after) = word.rsplit_once(':').unwrap_or((word, "1"));
    match address(word) {
        Some(_) if address(before).is_some() && is_number(after) => {
            Err(format!("can be an IPv6 address or one with a number of slots: write [{word}] or [{before}]:{after}"))
        }
        Some(host) => Ok(host),
        None => {
            let is_name = !before.is_empty() && before.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
            if is_name && is_number(after) { Ok(before.to_owned()) } else { Err(NOT_A_HOST.to_owned()) }
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_host_lists_and_keeps_what_it_cannot_read() {
        assert_eq!(expand("gpu[09-10],login"), ["gpu09", "gpu10", "login"]);
        assert_eq!(expand("a[1-2,5]x, b"), ["a1x", "a2x", "a5x", "b"]);
        assert_eq!(expand("r[1-2]n[08-09]"), ["r1n08", "r1n09", "r2n08", "r2n09"]);
        assert_eq!(expand("a[1-"), ["a[1-"]);
        assert_eq!(expand("a[x-y]"), ["a[x-y]"]);
        assert_eq!(expand("]],["), ["]]", "["]);
        assert_eq!(expand("a[0-99999999999]").len(), MAX_HOSTS);
        assert_eq!(expand(""), [""; 0]);
    }

    #[test]
    fn reads_host_files_of_all_kinds() {
        let read = |text| read_file("hosts", text);
        assert_eq!(read("x1\nx1\nx2\n\n").unwrap(), ["x1", "x2"]);
        assert_eq!(read("# two nodes\nn1 slots=4 # fast\n n2:4\n").unwrap(), ["n1", "n2"]);
        assert_eq!(read("\n# none\n").unwrap_err().to_string(), "the host file hosts names no host");
        assert_eq!(read("\u{feff}n1 slots = 4 max_slots=8\r\nn2 4\r\n").unwrap(), ["n1", "n2"]);
        let error = read("n1\nuser@n2\n").unwrap_err().to_string();
        assert!(error.starts_with("hosts, line 2: `user@n2` is not a host; expected"), "{error}");
        assert_eq!(read("n1 4 all.q@n1 UNDEFINED\nn2 4 all.q@n2  UNDEFINED\n").unwrap(), ["n1", "n2"]);
        for (text, word) in [("n1 n2\n", "n2"), ("n1,n2\n", "n1,n2"), ("n1:x\n", "n1:x"), ("[n1]\n", "[n1]")] {
            assert!(read(text).unwrap_err().to_string().contains(&format!("`{word}` is not a host")), "{text}");
        }
    }

    #[test]
    fn reads_ipv6_addresses_and_refuses_what_may_be_one_with_slots() {
        let read = |text| read_file("hosts", text);
        assert_eq!(read("2001:db8::1\n2001:db8::2\n").unwrap(), ["2001:db8::1", "2001:db8::2"]);
        assert_eq!(read("[2001:db8::1]\n[2001:db8::2]:4\n").unwrap(), ["2001:db8::1", "2001:db8::2"]);
        assert_eq!(read("fd00:1:2:3:4:5:6:7 slots=2\nfd00::a:b\n").unwrap(), ["fd00:1:2:3:4:5:6:7", "fd00::a:b"]);
        assert_eq!(
            read("n1\nfd00::1:4\n").unwrap_err().to_string(),
            "hosts, line 2: `fd00::1:4` can be an IPv6 address or one with a number of slots: write [fd00::1:4] or [fd00::1]:4"
        );
    }

    #[test]
    fn one_host_in_lines_that_differ_is_a_mistake() {
        assert_eq!(read_file("hosts", "n1\nn1\n").unwrap(), ["n1"]);
        assert!(
            read_file("hosts", "fd00::1\n[fd00:0::1]\n").unwrap_err().to_string().contains("name the host fd00::1,")
        );
        assert_eq!(
            read_file("hosts", "n1:2\nn1:4\n").unwrap_err().to_string(),
            "the host file hosts has 2 different lines, and all of them name the host n1, so each agent would train alone: name \
             each node by a name of its own, or one node in one line"
        );
    }
}

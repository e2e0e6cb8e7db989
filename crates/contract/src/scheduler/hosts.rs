//! Lists of hosts: Slurm's short form, and files with one host per line.

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
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line does not begin with a host.
    #[error(
        "{}, line {line}: `{}` is not a host; expected a host on each line, such as `node1` or `node1 slots=4`",
        foreign::path(path),
        foreign::quotation(text)
    )]
    NotAHost {
        /// The file.
        path: PathBuf,
        /// The line's number, counted from 1.
        line: usize,
        /// The line's first word.
        text: String,
    },
    /// The file names no host.
    #[error("the host file {} names no host", foreign::path(path))]
    Empty {
        /// The file.
        path: PathBuf,
    },
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
/// (MPICH) and comments after `#`.
pub(super) fn read_file(path: &str, text: &str) -> Result<Vec<String>, HostFileError> {
    let mut hosts: Vec<String> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(word) = line.split('#').next().and_then(|line| line.split_whitespace().next()) else { continue };
        let host = word.split(':').next().unwrap_or(word);
        if host.is_empty() || !host.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)) {
            return Err(HostFileError::NotAHost { path: path.into(), line: number + 1, text: word.to_owned() });
        }
        if hosts.len() < MAX_HOSTS && !hosts.iter().any(|known| known == host) {
            hosts.push(host.to_owned());
        }
    }
    if hosts.is_empty() { Err(HostFileError::Empty { path: path.into() }) } else { Ok(hosts) }
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
        let error = read("n1\nuser@n2\n").unwrap_err().to_string();
        assert!(error.starts_with("hosts, line 2: `user@n2` is not a host; expected"), "{error}");
    }
}

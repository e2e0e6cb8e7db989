//! The number of nodes, and of workers on each.

use super::error::ConfigError;
use super::given::Given;
use super::host::HostInfo;

/// `--nnodes`: the number of agents in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The job needs at least this many.
    pub min: usize,
    /// At most this many take part.
    pub max: usize,
}

impl Nodes {
    pub(crate) fn parse(given: &Given) -> Result<Self, ConfigError> {
        let numbers: Option<Vec<i64>> = given.text.split(':').map(|part| part.trim().parse().ok()).collect();
        let (min, max) = match numbers.as_deref() {
            Some(&[number]) => (number, number),
            Some(&[min, max]) => (min, max),
            _ => return Err(ConfigError::not_allowed(given, "expected N or MIN:MAX, such as 2 or 1:4")),
        };
        match (usize::try_from(min), usize::try_from(max)) {
            (Ok(min), Ok(max)) if 0 < min && min <= max => Ok(Nodes { min, max }),
            _ => Err(ConfigError::not_allowed(given, format!("expected 0 < MIN <= MAX, got MIN {min} and MAX {max}"))),
        }
    }
}

impl std::fmt::Display for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{}:{}", self.min, self.max) }
    }
}

/// `--nproc-per-node`: a number, `cpu`, `gpu` or `auto`.
pub(super) fn workers(given: &Given, host: &HostInfo<'_>) -> Result<usize, ConfigError> {
    match given.text.trim() {
        "cpu" => Ok(host.cpus),
        "gpu" if host.gpus.count == 0 => Err(ConfigError::not_allowed(given, host.gpus.why_none())),
        "gpu" => Ok(host.gpus.count),
        "auto" if host.gpus.count == 0 => Ok(host.cpus),
        "auto" => Ok(host.gpus.count),
        "xpu" => Err(ConfigError::not_allowed(given, "XPU devices cannot be counted here; give their number instead")),
        text => match text.parse::<usize>() {
            Ok(number @ 1..=MOST_WORKERS) => Ok(number),
            Ok(number) => {
                Err(ConfigError::not_allowed(given, format!("{number} workers are not between 1 and {MOST_WORKERS}")))
            }
            Err(_) => Err(ConfigError::not_allowed(given, "expected a number of at least 1, or cpu, gpu or auto")),
        },
    }
}

/// The kernel's maximum number of process ids (`PID_MAX_LIMIT`, linux/threads.h).
const MOST_WORKERS: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::super::given::Source;
    use super::super::host::Gpus;
    use super::*;

    fn given(flag: &'static str, text: &str) -> Given {
        Given { flag, text: text.into(), source: Source::CommandLine }
    }

    #[test]
    fn reads_a_number_or_a_range_of_nodes() {
        let parse = |text| Nodes::parse(&given("nnodes", text)).unwrap();
        assert_eq!(parse("1:1"), Nodes { min: 1, max: 1 });
        assert_eq!(parse("3"), Nodes { min: 3, max: 3 });
        assert_eq!((parse("1:4").to_string(), parse("2:2").to_string()), ("1:4".into(), "2".into()));
    }

    #[test]
    fn rejects_invalid_numbers_of_nodes() {
        for (text, why) in [
            ("abc", "expected N or MIN:MAX, such as 2 or 1:4"),
            ("", "expected N or MIN:MAX, such as 2 or 1:4"),
            ("1:2:3", "expected N or MIN:MAX, such as 2 or 1:4"),
            ("0", "expected 0 < MIN <= MAX, got MIN 0 and MAX 0"),
            ("3:2", "expected 0 < MIN <= MAX, got MIN 3 and MAX 2"),
            ("-1:2", "expected 0 < MIN <= MAX, got MIN -1 and MAX 2"),
        ] {
            let error = Nodes::parse(&given("nnodes", text)).unwrap_err();
            assert_eq!(error.to_string(), format!("--nnodes={text}: {why}"));
            assert!(!error.is_usage(), "torchrun ends with 1");
        }
    }

    fn host(gpus: usize) -> HostInfo<'static> {
        HostInfo { cpus: 8, gpus: Gpus { count: gpus, hidden_by: None }, env: &|_| None, random: 0 }
    }

    #[test]
    fn derives_the_number_of_workers_from_the_host_if_requested() {
        let count = |text, gpus| workers(&given("nproc-per-node", text), &host(gpus)).unwrap();
        assert_eq!(
            [count("4", 0), count("cpu", 2), count("gpu", 2), count("auto", 2), count("auto", 0)],
            [4, 8, 2, 2, 8]
        );
    }

    #[test]
    fn rejects_workers_that_cannot_be_counted() {
        let refuse = |text| workers(&given("nproc-per-node", text), &host(0)).unwrap_err().to_string();
        assert!(refuse("gpu").starts_with("--nproc-per-node=gpu: there is no GPU"), "{}", refuse("gpu"));
        assert_eq!(refuse("0"), "--nproc-per-node=0: 0 workers are not between 1 and 4194304");
        for text in ["-1", "two", "", "1.5"] {
            assert!(refuse(text).ends_with("expected a number of at least 1, or cpu, gpu or auto"), "{}", refuse(text));
        }
        assert!(refuse("xpu").contains("give their number"));
    }
}

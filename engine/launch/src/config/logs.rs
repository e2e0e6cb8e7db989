//! Where each worker's output goes: torchrun's `--redirects`, `--tee`, `--local-ranks-filter` and duplicates.
//!
//! This module only decides; [`output`](crate::output) and [`LogDir`](super::LogDir) read, write and create files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::flags::{ConfigError, Given};
use super::program::{placeholders, substitute};

/// torchrun's prefix for a line (`TailLog`, torch/distributed/elastic/multiprocessing/tail_log.py).
const PREFIX: &str = "[${role_name}${local_rank}]:";

/// The names in braces that a prefix's template may have.
pub(super) const MACROS: [&str; 4] = ["role_name", "rank", "local_rank", "hostname"];

/// What a prefix's template needs to know of a worker.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are the template's macros
pub struct LineOrigin<'a> {
    pub role: &'a str,
    pub rank: usize,
    pub local_rank: usize,
    pub hostname: &'a str,
}

/// How the workers' output is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logs {
    /// Where the folder of a run is created.
    pub base: LogBase,
    /// Keep a temporary folder even if the run succeeds.
    pub keep: bool,
    /// Streams that go to files instead of the console.
    pub redirects: Streams,
    /// Streams that go to files and to the console.
    pub tee: Streams,
    /// Local ranks whose streams are shown on the console; `None` for all.
    pub shown: Option<BTreeSet<usize>>,
    /// Lines of tee'd stdout that contain one of these also go to `filtered_stdout.log`.
    pub duplicate_stdout: Vec<String>,
    /// Lines of tee'd stderr that contain one of these also go to `filtered_stderr.log`.
    pub duplicate_stderr: Vec<String>,
    /// Whether lines on the console have a prefix that names their writer.
    pub prefix: PrefixWhen,
    /// The prefix, with [`MACROS`]; `None` for torchrun's `[<role><local_rank>]:`.
    pub prefix_template: Option<String>,
}

/// Where the folder of a run is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogBase {
    /// In a new temporary folder.
    Temporary,
    /// In this folder, which is created if needed.
    Folder(PathBuf),
    /// Nowhere: `--log-dir=/dev/null`.
    Nowhere,
}

/// When a line on the console has a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixWhen {
    /// If several workers print there, or the stream is tee'd.
    Auto,
    /// Always.
    Always,
    /// Only for a tee'd stream, as in torchrun.
    Tee,
    /// Never.
    Never,
}

/// A choice of streams, for all workers or by local rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Streams {
    /// The same for all.
    All(Std),
    /// By local rank; the others have no streams.
    Ranks(BTreeMap<usize, Std>),
}

/// A choice among one worker's streams; torch's `Std`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Std {
    /// Standard output: bit 1.
    pub out: bool,
    /// Standard error: bit 2.
    pub err: bool,
}

/// The destinations of one worker's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Standard output.
    pub stdout: Route,
    /// Standard error.
    pub stderr: Route,
}

/// The destinations of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// To the console.
    pub console: bool,
    /// To the worker's own log file.
    pub file: bool,
    /// Each line on the console has a prefix.
    pub prefixed: bool,
    /// Lines that match a filter also go to the common filtered file.
    pub filtered: bool,
}

impl Logs {
    /// The routes of one of `workers` local workers.
    pub fn routes(&self, local_rank: usize, workers: usize) -> Routes {
        let shown = |rank: &usize| self.on_console(*rank) != Std::default();
        let several = (0..workers).filter(shown).nth(1).is_some();
        let (console, tee) = (self.on_console(local_rank), self.tee.of(local_rank));
        let redirect = self.redirects.of(local_rank);
        let route = |console: bool, tee: bool, redirect: bool, filters: &[String]| {
            let file = self.base != LogBase::Nowhere && (tee || redirect);
            let filtered = file && tee && console && !filters.is_empty();
            Route { console, file, prefixed: console && self.prefixed(tee, several), filtered }
        };
        Routes {
            stdout: route(console.out, tee.out, redirect.out, &self.duplicate_stdout),
            stderr: route(console.err, tee.err, redirect.err, &self.duplicate_stderr),
        }
    }

    /// Returns true if the output of one of `workers` local workers goes to a file.
    pub fn writes_files(&self, workers: usize) -> bool {
        let writes = |routes: Routes| routes.stdout.file || routes.stderr.file;
        (0..workers).any(|local_rank| writes(self.routes(local_rank, workers)))
    }

    /// The prefix of a worker's lines.
    pub fn prefix(&self, origin: LineOrigin<'_>) -> String {
        let known = |name: &str| match name {
            "role_name" => Some(origin.role.to_owned()),
            "rank" => Some(origin.rank.to_string()),
            "local_rank" => Some(origin.local_rank.to_string()),
            "hostname" => Some(origin.hostname.to_owned()),
            _ => None,
        };
        let text = substitute(self.prefix_template.as_deref().unwrap_or(PREFIX).as_bytes(), &known);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The streams of a worker that the console shows. Without log files these are all, except for the filter.
    fn on_console(&self, local_rank: usize) -> Std {
        if self.shown.as_ref().is_some_and(|shown| !shown.contains(&local_rank)) {
            return Std::default();
        }
        let (tee, redirect) = (self.tee.of(local_rank), self.redirects.of(local_rank));
        let nowhere = self.base == LogBase::Nowhere;
        Std { out: nowhere || tee.out || !redirect.out, err: nowhere || tee.err || !redirect.err }
    }

    fn prefixed(&self, tee: bool, several: bool) -> bool {
        match self.prefix {
            PrefixWhen::Always => true,
            PrefixWhen::Auto => tee || several,
            PrefixWhen::Tee => tee,
            PrefixWhen::Never => false,
        }
    }
}

impl Streams {
    /// The streams of one worker.
    pub fn of(&self, local_rank: usize) -> Std {
        match self {
            Streams::All(std) => *std,
            Streams::Ranks(ranks) => ranks.get(&local_rank).copied().unwrap_or_default(),
        }
    }

    /// The highest local rank in the map.
    pub(super) fn highest(&self) -> Option<usize> {
        match self {
            Streams::All(_) => None,
            Streams::Ranks(ranks) => ranks.last_key_value().map(|(rank, _)| *rank),
        }
    }

    /// `0` to `3`, or `rank:n,rank:n,…`; unlike in torch, ranks may have several digits.
    pub(super) fn parse(given: &Given) -> Result<Self, ConfigError> {
        if let Some(std) = Std::parse(&given.text) {
            return Ok(Streams::All(std));
        }
        let entry = |entry: &str| {
            let (rank, std) = entry.split_once(':')?;
            let digits = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
            Some((rank.parse::<usize>().ok().filter(|_| digits)?, Std::parse(std)?))
        };
        let ranks: Option<BTreeMap<_, _>> = given.text.split(',').map(entry).collect();
        ranks.map(Streams::Ranks).ok_or_else(|| {
            let why =
                "expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or one of these by local rank, such as 0:3,1:2";
            ConfigError::not_allowed(given, why)
        })
    }
}

impl Std {
    fn parse(text: &str) -> Option<Self> {
        let bits = ["0", "1", "2", "3"].iter().position(|known| *known == text)?;
        Some(Std { out: bits & 1 != 0, err: bits & 2 != 0 })
    }
}

/// The parts of a prefix's template that look like macros but are not.
pub(super) fn unknown_macros(template: &str) -> Vec<&str> {
    let unknown = placeholders(template).filter(|(_, name)| !MACROS.contains(name));
    unknown.map(|(text, _)| text).collect()
}

/// `--local-ranks-filter`.
pub(super) fn shown(given: &Given) -> Result<Option<BTreeSet<usize>>, ConfigError> {
    if given.text.is_empty() {
        return Ok(None);
    }
    let ranks: Option<BTreeSet<usize>> = given.text.split(',').map(|rank| rank.trim().parse().ok()).collect();
    let why = "expected local ranks with commas between them, such as 0,1,2";
    ranks.map(Some).ok_or_else(|| ConfigError::not_allowed(given, why))
}

/// `--duplicate-*-filters`: comma-separated texts, where `,,` is a comma in a text.
pub(super) fn filters(given: &Given) -> Vec<String> {
    if given.text.is_empty() {
        return Vec::new();
    }
    let mut filters = vec![String::new()];
    let mut pieces = given.text.split(",,").peekable();
    while let Some(piece) = pieces.next() {
        for (at, text) in piece.split(',').enumerate() {
            if at > 0 {
                filters.push(String::new());
            }
            if let Some(last) = filters.last_mut() {
                last.push_str(text);
            }
        }
        if let (Some(last), Some(_)) = (filters.last_mut(), pieces.peek()) {
            last.push(',');
        }
    }
    filters.retain(|filter| !filter.is_empty()); // an empty text would match every line
    filters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::Source;

    fn given(flag: &'static str, text: &str) -> Given {
        Given { flag, text: text.into(), source: Source::CommandLine }
    }

    fn logs(redirects: &str, tee: &str, shown_ranks: &str) -> Logs {
        Logs {
            base: LogBase::Temporary,
            keep: false,
            redirects: Streams::parse(&given("redirects", redirects)).unwrap(),
            tee: Streams::parse(&given("tee", tee)).unwrap(),
            shown: shown(&given("local-ranks-filter", shown_ranks)).unwrap(),
            duplicate_stdout: vec![],
            duplicate_stderr: vec![],
            prefix: PrefixWhen::Auto,
            prefix_template: None,
        }
    }

    /// One letter for each property of a route.
    fn letters(route: Route) -> String {
        let all = [(route.console, 'c'), (route.file, 'f'), (route.prefixed, 'p'), (route.filtered, 'd')];
        all.iter().filter(|(is, _)| *is).map(|(_, letter)| letter).collect()
    }

    fn letters_of(logs: &Logs, workers: usize) -> Vec<String> {
        let routes = (0..workers).map(|rank| logs.routes(rank, workers));
        routes.map(|routes| format!("{}/{}", letters(routes.stdout), letters(routes.stderr))).collect()
    }

    #[test]
    fn shows_prefixes_only_if_several_workers_print_or_a_stream_is_teed() {
        assert_eq!(letters_of(&logs("0", "0", ""), 1), ["c/c"]);
        assert_eq!(letters_of(&logs("0", "0", ""), 2), ["cp/cp", "cp/cp"]);
        assert_eq!(letters_of(&logs("0", "1", ""), 1), ["cfp/c"]);
        assert_eq!(letters_of(&logs("0", "0", "1"), 2), ["/", "c/c"]);
        assert_eq!(letters_of(&logs("1:3", "0", ""), 2), ["c/c", "f/f"]);
        assert_eq!(letters_of(&Logs { prefix: PrefixWhen::Never, ..logs("0", "3", "") }, 2), ["cf/cf", "cf/cf"]);
        assert_eq!(letters_of(&Logs { prefix: PrefixWhen::Tee, ..logs("0", "2", "") }, 2), ["c/cfp", "c/cfp"]);
        assert_eq!(letters_of(&Logs { prefix: PrefixWhen::Always, ..logs("0", "0", "") }, 1), ["cp/cp"]);
    }

    #[test]
    fn routes_streams_as_torch_does() {
        assert_eq!(letters_of(&logs("3", "0", ""), 2), ["f/f", "f/f"]);
        // Tee overrides a redirect of the same stream, and the filter keeps the file.
        assert_eq!(letters_of(&logs("3", "1", "0"), 2), ["cfp/f", "f/f"]);
        assert_eq!(letters_of(&logs("0:1,1:2", "0", ""), 2), ["f/cp", "cp/f"]);
        assert_eq!(letters_of(&Logs { base: LogBase::Nowhere, ..logs("3", "0", "0") }, 2), ["c/c", "/"]);
    }

    #[test]
    fn filters_only_streams_that_are_teed_and_shown() {
        let both =
            Logs { duplicate_stdout: vec!["x".into()], duplicate_stderr: vec!["y".into()], ..logs("0", "0:1", "") };
        assert_eq!(letters_of(&both, 2), ["cfpd/cp", "cp/cp"]);
        assert_eq!(letters_of(&Logs { shown: Some(BTreeSet::from([1])), ..both }, 2), ["f/", "c/c"]);
    }

    #[test]
    fn reads_rank_maps_with_ranks_of_any_number_of_digits() {
        let map = logs("0:3,12:2", "0", "").redirects;
        let none = Std::default();
        assert_eq!(
            [map.of(0), map.of(1), map.of(12)],
            [Std { out: true, err: true }, none, Std { out: false, err: true }]
        );
        assert_eq!(map.highest(), Some(12));
        for text in ["4", "", "x", "0:4", "0:1,", ":1", "0:", "-1:1", "+1:1", "0:1;1:1", " 1"] {
            let error = Streams::parse(&given("redirects", text)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--redirects={text}: expected 0 (none)")), "{error}");
        }
    }

    #[test]
    fn rejects_filters_that_are_not_local_ranks() {
        assert_eq!(shown(&given("local-ranks-filter", "0, 2")).unwrap(), Some(BTreeSet::from([0, 2])));
        for text in ["a", "0,", ",", "1.5", "-1"] {
            assert!(shown(&given("local-ranks-filter", text)).is_err(), "{text}");
        }
    }

    #[test]
    fn splits_duplicate_filters_at_single_commas() {
        let split = |text| filters(&given("duplicate-stdout-filters", text));
        assert_eq!(split("apple,orange"), ["apple", "orange"]);
        assert_eq!(split("a,,b,c"), ["a,b", "c"]);
        assert_eq!(split(""), [""; 0]);
        assert_eq!(split("a,"), ["a"]);
    }

    #[test]
    fn renders_the_prefix_by_torchs_template() {
        let mut logs = logs("0", "0", "");
        let origin = LineOrigin { role: "default", rank: 5, local_rank: 1, hostname: "r12i0n8" };
        assert_eq!(logs.prefix(origin), "[default1]:");
        logs.prefix_template = Some("${hostname}:${role_name} $rank/${local_rank} $x ".into());
        assert_eq!(logs.prefix(LineOrigin { role: "trainer", ..origin }), "r12i0n8:trainer 5/1 $x ");
    }
}

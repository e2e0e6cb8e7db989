//! PyTorch's flight recorder: the last collectives of each rank, from the files that NCCL's watchdog writes, and which rank they show
//! apart from the others.
//!
//! They are pickles of texts, numbers, lists, tuples and dictionaries (`torch::jit::Pickler`,
//! torch/csrc/jit/serialization/pickler.cpp). Depth and size of the result are limited.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lockstep_contract::pickle::{self, Id, Pickle, Plain, Reader};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The variables that name the files, without the rank at their end. The first that is set counts, as in PyTorch.
const PREFIX: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];
/// The files without them: in the cache of the user's home, and until PyTorch 2.8.
const IN_CACHE: &str = "torch/comm_lib_trace_rank_";
const IN_TMP: &str = "/tmp/nccl_trace_rank_";
/// The largest file that is read, in bytes: 2,000 calls with their stacks need about 5 MB.
const LARGEST: u64 = 32 << 20;

/// The maximum number of files that are read.
const MOST: usize = 256;

/// What each rank has recorded.
pub type Recordings = BTreeMap<usize, Recording>;

/// One rank's recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Collectives and messages, the oldest first.
    pub calls: Vec<Call>,
    /// The ranks of the job in each process group, by the group's name, as far as they are recorded.
    pub groups: BTreeMap<String, Vec<usize>>,
    /// Its file.
    pub path: PathBuf,
}

/// An entry of a recording, with PyTorch's names of the fields (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Call {
    /// The number of the entry among all of the rank. The first entries of a long run are overwritten.
    #[serde(default)]
    pub record_id: u64,
    /// Name and description.
    pub process_group: (String, String),
    /// The number of the collective in its group, equal on all ranks.
    pub collective_seq_id: u64,
    /// `gloo:all_reduce`, `nccl:all_reduce`, `nccl:send 0->1`.
    pub profiling_name: String,
    /// The shapes of the tensors that the rank passed.
    #[serde(default)]
    pub input_sizes: Vec<Vec<i64>>,
    /// Their types: `Float`.
    #[serde(default)]
    pub input_dtypes: Vec<String>,
    /// A message, not a collective.
    #[serde(default)]
    pub is_p2p: bool,
    /// When the rank made the call, in nanoseconds since the Unix epoch.
    #[serde(default)]
    pub time_created_ns: Option<u64>,
    /// When the rank noticed its end, which may be later than the end.
    #[serde(default)]
    pub time_discovered_completed_ns: Option<u64>,
    /// The call has ended, well or not.
    #[serde(default)]
    pub retired: bool,
}

impl Recording {
    /// Reads a file's contents; `None` if it is not a recording.
    pub fn parse(bytes: &[u8], path: &Path) -> Option<Self> {
        let value: Value = match bytes.first() {
            Some(b'{') => serde_json::from_slice(bytes).ok()?,
            _ => parse(bytes)?,
        };
        let entries = value.get("entries").cloned().unwrap_or(Value::Array(vec![]));
        let calls: Vec<Call> = serde_json::from_value(entries).ok()?;
        let described = value.get("pg_config").and_then(Value::as_object).into_iter().flatten();
        let groups = described.filter_map(|(name, group)| Some((name.clone(), ranks(group.get("ranks")?)?)));
        Some(Recording { calls, groups: groups.collect(), path: path.to_owned() })
    }

    fn of_group<'a>(&'a self, group: &'a str) -> impl DoubleEndedIterator<Item = &'a Call> {
        self.calls.iter().filter(move |call| !call.is_p2p && call.process_group.0 == group)
    }

    /// The number of the last collective in a group.
    pub fn last(&self, group: &str) -> Option<u64> {
        self.of_group(group).map(|call| call.collective_seq_id).max()
    }
}

/// The ranks of a group: a list or, as PyTorch writes it, a text such as `[0, 1]`.
fn ranks(value: &Value) -> Option<Vec<usize>> {
    match value {
        Value::String(text) => serde_json::from_str(text).ok(),
        list => serde_json::from_value(list.clone()).ok(),
    }
}

impl Call {
    /// The operation with its shapes: `all_reduce of [4] Float`.
    pub fn operation(&self) -> String {
        let mut name = self.profiling_name.rsplit(':').next().unwrap_or_default().to_owned();
        for (index, sizes) in self.input_sizes.iter().enumerate().take(4) {
            let dtype = self.input_dtypes.get(index).map(|dtype| format!(" {dtype}")).unwrap_or_default();
            name += &format!("{}{sizes:?}{dtype}", if index == 0 { " of " } else { ", " });
        }
        name
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "call {}, {}", self.collective_seq_id, self.operation())
    }
}

/// What the names of the files begin with, where a variable says so.
pub(crate) fn prefix() -> Option<String> {
    PREFIX.into_iter().find_map(variable)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Reads the recordings of all ranks that lie here and were written since.
pub(super) fn read(since: SystemTime) -> Recordings {
    let prefixes = match prefix() {
        Some(prefix) => vec![prefix],
        None => {
            let home = || variable("HOME").map(|home| format!("{home}/.cache"));
            let cache = variable("XDG_CACHE_HOME").or_else(home).map(|cache| format!("{cache}/{IN_CACHE}"));
            cache.into_iter().chain([IN_TMP.to_owned()]).collect()
        }
    };
    read_from(&prefixes, since)
}

/// Reads the recordings of all ranks that lie with this one, in files whose names end in the rank, or in this folder. Of a folder with
/// several series of such files, it is the longest. Empty if there is none.
pub fn recorded_at(path: &Path) -> Recordings {
    let series = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let begin = name.trim_end_matches(|c: char| c.is_ascii_digit());
        (begin != name).then(|| {
            format!("{}/{begin}", path.parent().filter(|to| *to != Path::new("")).unwrap_or(Path::new(".")).display())
        })
    };
    if !path.is_dir() {
        let Some(own) = read_one(path, SystemTime::UNIX_EPOCH).filter(|one| !one.calls.is_empty()) else {
            return Recordings::new();
        };
        return match series(path) {
            Some(prefix) => read_from(&[prefix], SystemTime::UNIX_EPOCH),
            None => Recordings::from([(0, own)]),
        };
    }
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    let prefixes: BTreeSet<String> = inside.filter_map(|entry| series(&entry.path())).collect();
    let read = prefixes.into_iter().map(|prefix| read_from(&[prefix], SystemTime::UNIX_EPOCH));
    let some = read.filter(|recordings| recordings.values().any(|one| !one.calls.is_empty()));
    some.max_by_key(BTreeMap::len).unwrap_or_default()
}

fn read_from(prefixes: &[String], since: SystemTime) -> Recordings {
    let found = prefixes.iter().flat_map(|prefix| files(prefix)).take(MOST);
    found.filter_map(|(rank, path)| Some((rank, read_one(&path, since)?))).collect()
}

/// The files with this prefix and a rank behind it.
fn files(prefix: &str) -> Vec<(usize, PathBuf)> {
    let (folder, begin) = prefix.rsplit_once('/').unwrap_or((".", prefix));
    let folder = if folder.is_empty() { "/" } else { folder };
    let rank = |path: &Path| path.file_name()?.to_str()?.strip_prefix(begin)?.parse().ok();
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter_map(|path| Some((rank(&path)?, path))).collect()
}

fn read_one(path: &Path, since: SystemTime) -> Option<Recording> {
    let about = fs::metadata(path).ok()?;
    // One of an earlier run may be there; opening a named pipe would wait for its writer.
    let fits = about.is_file() && about.len() <= LARGEST && about.modified().ok()? >= since;
    if !fits {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LARGEST).read_to_end(&mut bytes).ok()?;
    Recording::parse(&bytes, path)
}

// ---- which rank the recordings show apart from the others

/// A rank that is not where the others are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Astray {
    /// The rank.
    pub rank: usize,
    /// Where it was, and where the others were.
    pub cause: String,
    /// How many recordings show this, and where they are.
    pub evidence: String,
}

/// The rank that is behind the others in a group, otherwise one that is in another call than most; `None` if the recordings do not
/// show one. `reporter` is the rank that ended first.
pub fn astray(recordings: &Recordings, reporter: usize) -> Option<Astray> {
    let mut groups: Vec<&str> =
        recordings.values().flat_map(|one| &one.calls).map(|call| call.process_group.0.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    let found = groups.iter().find_map(|group| behind(recordings, group));
    let (rank, cause) = found.or_else(|| groups.iter().find_map(|group| differs(recordings, group, reporter)))?;
    let path = recordings.get(&rank).map(|one| one.path.display().to_string()).unwrap_or_default();
    Some(Astray {
        rank,
        cause,
        evidence: format!("PyTorch's flight recorder of {} ranks, such as {path}", recordings.len()),
    })
}

/// The rank whose last call comes before the last calls of all others.
fn behind(recordings: &Recordings, group: &str) -> Option<(usize, String)> {
    let mut last: Vec<(u64, usize)> =
        recordings.iter().filter_map(|(rank, one)| Some((one.last(group)?, *rank))).collect();
    last.sort_unstable();
    let [(least, rank), (next, _), ..] = last[..] else { return None };
    if least == next {
        return None;
    }
    let others = recordings.iter().filter(|(other, _)| **other != rank);
    let waits = others.flat_map(|(_, one)| one.of_group(group)).find(|call| call.collective_seq_id == least + 1)?;
    let own = recordings[&rank].of_group(group).rfind(|call| call.collective_seq_id == least)?;
    Some((rank, format!("it did not come to {waits}, in which others waited; its last one was {own}")))
}

/// In the last call of all: the rank that makes another one than most.
fn differs(recordings: &Recordings, group: &str, reporter: usize) -> Option<(usize, String)> {
    let number = recordings.values().filter_map(|one| one.last(group)).min()?;
    let call_of =
        |one: &Recording| one.of_group(group).find(|call| call.collective_seq_id == number).map(Call::to_string);
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, one) in recordings {
        kinds.entry(call_of(one)?).or_default().push(*rank);
    }
    // If two calls have equally many ranks, the call of the rank that ended first counts as the right one.
    let rarest = kinds.iter().min_by_key(|(_, ranks)| (ranks.len(), ranks.contains(&reporter)))?;
    let most = kinds.iter().max_by_key(|(_, ranks)| (ranks.len(), ranks.contains(&reporter)))?;
    let ([rank], true) = (&rarest.1[..], rarest.0 != most.0) else { return None };
    Some((*rank, format!("it was in {}, while others were in {}", rarest.0, most.0)))
}

/// The deepest nesting of the result. A recorded frame of a stack is 5 deep.
const DEEPEST: usize = 16;
/// The total size of the texts and the number of other values in the result: a text can be used often.
const LARGEST_RESULT: usize = 64 << 20;

/// Reads the whole pickle. Keys of dictionaries become texts. `None` if it is no pickle of plain data, if bytes follow its end, or if its
/// result is too deep or too large.
fn parse(bytes: &[u8]) -> Option<Value> {
    let mut reader = Reader::new(bytes);
    let pickle = pickle::parse(&mut reader).ok().filter(|_| reader.at() == bytes.len())?;
    json(&pickle, pickle.root(), 0, &mut LARGEST_RESULT.clone())
}

/// The value as JSON. One that contains itself is too deep.
fn json(pickle: &Pickle<Plain>, value: &pickle::Value<Plain>, depth: usize, left: &mut usize) -> Option<Value> {
    let size = if let pickle::Value::Text(text) = value { 1 + text.len() } else { 1 };
    *left = left.checked_sub(size).filter(|_| depth <= DEEPEST)?;
    let mut inner = |id: Id| json(pickle, pickle.get(id), depth + 1, left);
    match value {
        pickle::Value::None => Some(Value::Null),
        pickle::Value::Bool(truth) => Some((*truth).into()),
        pickle::Value::Int(number) => Some((*number).into()),
        pickle::Value::Float(number) => Some((*number).into()),
        pickle::Value::Text(text) => Some(text.as_str().into()),
        pickle::Value::Tuple(parts) | pickle::Value::List(parts) => parts.iter().map(|part| inner(*part)).collect(),
        pickle::Value::Dict(parts) => {
            let key = |key: Id| match pickle.get(key) {
                pickle::Value::Text(text) => Some(text.clone()),
                pickle::Value::Int(number) => Some(number.to_string()),
                _ => None,
            };
            let pairs = parts.iter().map(|(name, value)| Some((key(*name)?, inner(*value)?)));
            pairs.collect::<Option<Map<String, Value>>>().map(Value::Object)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use serde_json::json;

    use super::*;

    #[test]
    fn reads_the_form_in_json_too_and_refuses_what_is_neither() {
        let text = r#"{"version":"2.10","entries":[{"collective_seq_id":1,"process_group":["0","default_pg"],"profiling_name":"nccl:all_reduce","input_sizes":[[4]],"is_p2p":false},
            {"collective_seq_id":0,"process_group":["0","default_pg"],"profiling_name":"nccl:send 0->1","is_p2p":true}]}"#;
        let read = Recording::parse(text.as_bytes(), Path::new("x")).unwrap();
        assert_eq!(read.calls.iter().map(Call::operation).collect::<Vec<_>>(), ["all_reduce of [4]", "send 0->1"]);
        assert_eq!(read.of_group("0").map(Call::to_string).collect::<Vec<_>>(), ["call 1, all_reduce of [4]"]);
        for bad in ["", "{", r#"{"entries":[{}]}"#, r#"{"entries":7}"#, "[]", "\u{80}"] {
            assert_eq!(Recording::parse(bad.as_bytes(), Path::new("x")), None, "{bad}");
        }
    }

    #[test]
    fn refuses_a_recording_cut_at_any_byte() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flight_recorder/behind/rank_1");
        let bytes = fs::read(path).unwrap();
        assert!((0..bytes.len()).all(|length| Recording::parse(&bytes[..length], Path::new("x")).is_none()));
    }

    #[test]
    fn ignores_files_that_are_older_than_the_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flight_recorder/behind");
        let later = SystemTime::now() + std::time::Duration::from_secs(3600);
        assert!(read_from(&[format!("{}/rank_", folder.display())], later).is_empty());
    }

    /// Recorded by Python's PyTorch: see `engine/launch/tests/flight_recorder/record.py`.
    fn recorded(name: &str) -> Recordings {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flight_recorder").join(name);
        read_from(&[format!("{}/rank_", folder.display())], SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn names_the_rank_that_did_not_come_to_the_last_call() {
        let recordings = recorded("behind");
        assert_eq!(recordings.len(), 3);
        let found = astray(&recordings, 0).unwrap();
        assert_eq!(
            (found.rank, found.cause.as_str()),
            (
                1,
                "it did not come to call 3, broadcast of [2, 5] Double, in which others waited; its last one was call 2, all_reduce \
                 of [4] Float"
            )
        );
    }

    #[test]
    fn names_the_rank_that_is_in_another_call_than_most() {
        let found = astray(&recorded("differs"), 0).unwrap();
        assert_eq!(
            (found.rank, found.cause.as_str()),
            (2, "it was in call 2, all_reduce of [2, 2] Float, while others were in call 2, all_reduce of [4] Float")
        );
    }

    #[test]
    fn names_nobody_if_all_are_in_the_same_call_or_only_one_recording_is_there() {
        let mut recordings = recorded("behind");
        assert_eq!(recordings.remove(&1).map(|_| astray(&recordings, 0)), Some(None));
        recordings.remove(&2);
        assert_eq!(astray(&recordings, 0), None);
        assert_eq!(astray(&Recordings::new(), 0), None);
    }

    /// `{"a": [1, 300, -2, 2**40], "b": ("x", "x"), "c": None, "d": [True, 1.5]}` by Python's `pickle.dumps(…, protocol=2)`.
    const PYTHON: &[u8] = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01M,\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01eX\x01\x00\x00\x00bq\x03X\x01\x00\x00\x00xq\x04h\x04\x86q\x05X\x01\x00\x00\x00cq\x06NX\x01\x00\x00\x00dq\x07]q\x08(\x88G?\xf8\x00\x00\x00\x00\x00\x00eu.";

    #[test]
    fn reads_what_python_writes() {
        let expected = json!({"a": [1, 300, -2, 1_u64 << 40], "b": ["x", "x"], "c": null, "d": [true, 1.5]});
        assert_eq!(parse(PYTHON), Some(expected));
    }

    #[test]
    fn reads_a_list_that_is_used_twice() {
        // x = [1]; pickle.dumps({"a": x, "b": x}, protocol=2)
        let shared = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02K\x01aX\x01\x00\x00\x00bq\x03h\x02u.";
        assert_eq!(parse(shared), Some(json!({"a": [1], "b": [1]})));
    }

    #[test]
    fn refuses_a_pickle_cut_at_any_byte_and_bytes_after_its_end() {
        for length in 0..PYTHON.len() {
            assert_eq!(parse(&PYTHON[..length]), None, "{length}");
        }
        assert_eq!(parse(&[PYTHON, b"."].concat()), None);
    }

    #[test]
    fn survives_any_single_changed_byte() {
        for at in 0..PYTHON.len() {
            for value in 0..=255 {
                let mut changed = PYTHON.to_vec();
                changed[at] = value;
                let _ = parse(&changed);
            }
        }
    }

    #[test]
    fn limits_depth_and_size() {
        let deep = [&[b']'; 40][..], &[b'a'; 39], b"."].concat();
        assert_eq!(parse(&deep), None);
        let text = [&b"](X\x00\x00\x10\x00"[..], &vec![b'x'; 1 << 20], b"q\x00"].concat();
        let often = [&text[..], &b"h\x00".repeat(100), b"e."].concat();
        assert_eq!(parse(&often), None);
        assert!(parse(&[&text[..], &b"h\x00".repeat(10), b"e."].concat()).is_some());
        // A list in itself.
        assert_eq!(parse(b"]q\x00h\x00a."), None);
    }
}

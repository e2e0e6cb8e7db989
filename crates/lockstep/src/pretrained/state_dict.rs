//! Finds the state dict in a pickled object: at the top, or under one of the keys that training scripts use.

use std::collections::{BTreeMap, HashSet};

use super::error::{BadFile, shown};
use super::pickle::{Id, Pickle, Strided, Value};

/// Keys under which scripts save a model's weights next to their optimizer's state, in search order.
const CONTAINERS: [&str; 10] = [
    "state_dict",
    "model_state_dict",
    "MODEL_STATE",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "params",
];

/// How many containers deep the weights may be.
const DEEPEST: usize = 4;

/// Named tensors, and notes on where they were.
pub(super) struct Found<'a> {
    pub(super) tensors: Vec<(String, &'a Strided)>,
    pub(super) notes: Vec<String>,
}

/// Searches for the state dict from the top of the pickle.
pub(super) fn find(pickle: &Pickle) -> Result<Found<'_>, BadFile> {
    let (mut here, mut path) = (pickle.root(), Vec::new());
    for _ in 0..=DEEPEST {
        let Value::Dict(items) = here else { break };
        let items = by_name(pickle, items);
        if let Some((key, inner)) = container(pickle, &items) {
            path.push(key);
            here = inner;
            continue;
        }
        let tensors: Vec<_> =
            items.iter().filter_map(|(&name, &value)| Some((name.to_owned(), pickle.tensor(value)?))).collect();
        if tensors.is_empty() {
            break;
        }
        return Ok(Found { notes: notes(&path, &tensors, &items), tensors });
    }
    Err(BadFile::Other(format!("there are no named tensors in it, but {}", shape(pickle, pickle.root()))))
}

/// The items whose keys are texts. Of two equal keys the later counts, as in Python.
///
/// The same long text may occur many times: it is decoded once.
fn by_name<'a>(pickle: &'a Pickle, items: &[(Id, Id)]) -> BTreeMap<&'a str, &'a Value> {
    let (mut seen, mut named) = (HashSet::new(), BTreeMap::new());
    for &(key, value) in items.iter().rev().filter(|(key, _)| seen.insert(*key)) {
        if let Some(name) = pickle.text(key) {
            named.entry(name).or_insert_with(|| pickle.get(value));
        }
    }
    named
}

/// A dict under one of the known keys; or the only dict, if there is no tensor next to it.
fn container<'a>(pickle: &'a Pickle, items: &BTreeMap<&'a str, &'a Value>) -> Option<(&'a str, &'a Value)> {
    let is_dict = |value: &Value| matches!(value, Value::Dict(items) if !items.is_empty());
    let known = CONTAINERS.iter().find_map(|&key| items.get_key_value(key).filter(|(_, value)| is_dict(value)));
    let mut dicts = items.iter().filter(|(_, value)| is_dict(value));
    let only = dicts.next().filter(|_| dicts.next().is_none());
    let only = only.filter(|_| !items.values().any(|&value| pickle.tensor(value).is_some()));
    known.or(only).map(|(&key, &value)| (key, value))
}

fn notes(path: &[&str], tensors: &[(String, &Strided)], items: &BTreeMap<&str, &Value>) -> Vec<String> {
    let mut notes = Vec::new();
    if !path.is_empty() {
        let path: Vec<_> = path.iter().map(|key| format!("[\"{}\"]", shown(key))).collect();
        notes.push(format!("the weights are under {} in the file", path.concat()));
    }
    if items.len() > tensors.len() {
        notes.push(format!("{} of its entries are no tensors and are left out", items.len() - tensors.len()));
    }
    notes
}

/// Describes a value, for a message.
fn shape(pickle: &Pickle, value: &Value) -> String {
    match value {
        Value::Dict(items) if items.is_empty() => "an empty dict".into(),
        Value::Dict(items) => {
            let names: Vec<String> = by_name(pickle, items).keys().map(|name| shown(name)).collect();
            format!("a dict with {}", crate::snapshot::listed(&names))
        }
        Value::List(items) | Value::Tuple(items) => format!("a list of {}", items.len()),
        Value::Tensor(_) | Value::Parameter(_) => "a single tensor without a name".into(),
        _ => "a single value".into(),
    }
}

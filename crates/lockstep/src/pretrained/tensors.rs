//! Finds the state dict in a pickled object (at the top, or under one of the keys that training scripts use), and turns its references
//! to storages into tensors: every bound is checked here.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use lockstep_contract::pickle::Id;
use tch::{Device, Kind, Tensor};

use super::error::{BadFile, shown};
use super::pickle::{Object, Pickle, Storage, Strided, Value, tensor};

/// The storages of a file.
pub(super) trait Storages {
    /// The bytes of the storage with this key, exactly as many as requested, in this processor's order (little-endian).
    fn bytes(&mut self, key: &str, kind: Kind, count: usize) -> Result<Vec<u8>, BadFile>;
}

/// The tensors of a state dict. Tensors that share a storage in the file also share it here, and strides are kept: whatever a
/// shape claims, memory does not exceed the file's size.
pub(super) fn build(
    pickle: &Pickle,
    named: Vec<(String, &Strided)>,
    storages: &mut impl Storages,
) -> Result<Vec<(String, Tensor)>, BadFile> {
    let mut whole: HashMap<Id, (Storage, Tensor)> = HashMap::new();
    let (mut keys, mut tensors) = (Keys::default(), Vec::new());
    for (name, strided) in named {
        let of_name = |why: String| BadFile::Damaged(format!("the tensor {}: {why}", shown(&name)));
        check(strided).map_err(of_name)?;
        let storage = strided.storage;
        let text = pickle.text(storage.key).unwrap_or_default(); // the machine takes no other keys
        let key = keys.first_of(storage.key, text);
        let (first, data) = match whole.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert((storage, flat(text, storage, storages)?)),
        };
        if (first.kind, first.numel) != (storage.kind, storage.numel) {
            let text = shown(text);
            return Err(of_name(format!("its storage {text} is of another dtype or length elsewhere in the file")));
        }
        let offset = storage.part.0 as i64 + strided.offset;
        let view = data.f_as_strided(&strided.size, &strided.stride, offset);
        let view = view.map_err(|error| of_name(error.to_string()))?;
        tensors.push((name, view));
    }
    Ok(tensors)
}

/// Texts used as keys, each compared once: many tensors may have the same long text as their key.
#[derive(Default)]
struct Keys<'a> {
    of_text: HashMap<&'a str, Id>,
    of_id: HashMap<Id, Id>,
}

impl<'a> Keys<'a> {
    /// The first requested value with the same text as `id`.
    fn first_of(&mut self, id: Id, text: &'a str) -> Id {
        *self.of_id.entry(id).or_insert_with(|| *self.of_text.entry(text).or_insert(id))
    }
}

/// The whole storage as a tensor of one dimension.
fn flat(key: &str, storage: Storage, storages: &mut impl Storages) -> Result<Tensor, BadFile> {
    let bad = || BadFile::Damaged(format!("the storage {} has {} elements", shown(key), storage.numel));
    let numel = i64::try_from(storage.numel).map_err(|_| bad())?;
    let count =
        storage.kind.elt_size_in_bytes().checked_mul(numel as usize).filter(|&count| count <= isize::MAX as usize);
    let bytes = storages.bytes(key, storage.kind, count.ok_or_else(bad)?)?;
    if bytes.is_empty() {
        return Ok(Tensor::zeros([0], (storage.kind, Device::Cpu)));
    }
    Tensor::f_from_data_size(&bytes, &[numel], storage.kind).map_err(|error| BadFile::Damaged(error.to_string()))
}

/// Returns true if all elements are in the selected part of the storage. No computation can overflow.
fn check(tensor: &Strided) -> Result<(), String> {
    let Strided { storage, offset, size, stride } = tensor;
    if size.len() != stride.len() {
        return Err(format!("{} dimensions and {} strides", size.len(), stride.len()));
    }
    if size.iter().chain(stride).chain([offset]).any(|&value| value < 0) {
        return Err(format!("negative numbers in its shape {size:?}, strides {stride:?} or offset {offset}"));
    }
    let (begin, length) = storage.part;
    let outside =
        || format!("shape {size:?}, strides {stride:?} and offset {offset} reach beyond its storage of {length}");
    if begin.checked_add(length).is_none_or(|end| end > storage.numel) {
        return Err(format!(
            "its view of {length} elements from {begin} reaches beyond its storage of {}",
            storage.numel
        ));
    }
    // libtorch counts elements and bytes in signed 64-bit integers.
    let elements = size.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
    let bytes = elements.and_then(|elements| elements.checked_mul(storage.kind.elt_size_in_bytes() as i64));
    let Some(bytes) = bytes else { return Err(format!("its shape {size:?} has too many elements")) };
    let mut steps = size.iter().zip(stride).map(|(&size, &stride)| (size - 1).max(0).checked_mul(stride));
    let last = steps.try_fold(*offset, |last, step| last.checked_add(step?)).ok_or_else(outside)?;
    let inside = if bytes == 0 { *offset as u64 <= length } else { (last as u64) < length };
    if inside { Ok(()) } else { Err(outside()) }
}

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
pub(super) struct StateDict<'a> {
    pub(super) tensors: Vec<(String, &'a Strided)>,
    pub(super) notes: Vec<String>,
}

/// Searches for the state dict from the top of the pickle.
pub(super) fn find(pickle: &Pickle) -> Result<StateDict<'_>, BadFile> {
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
            items.iter().filter_map(|(&name, &value)| Some((name.to_owned(), tensor(pickle, value)?))).collect();
        if tensors.is_empty() {
            break;
        }
        return Ok(StateDict { notes: notes(&path, &tensors, &items), tensors });
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
    let only = only.filter(|_| !items.values().any(|&value| tensor(pickle, value).is_some()));
    known.or(only).map(|(&key, &value)| (key, value))
}

fn notes(path: &[&str], tensors: &[(String, &Strided)], items: &BTreeMap<&str, &Value>) -> Vec<String> {
    let mut notes = Vec::new();
    if !path.is_empty() {
        let path: Vec<_> = path.iter().map(|key| format!("[\"{}\"]", shown(key))).collect();
        notes.push(format!("the weights are under {} in the file", path.concat()));
    }
    if items.len() > tensors.len() {
        notes.push(format!("{} of its entries are not tensors and are left out", items.len() - tensors.len()));
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
        Value::Object(Object::Tensor(_) | Object::Parameter(_)) => "a single tensor without a name".into(),
        _ => "a single value".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strided(numel: u64, offset: i64, size: &[i64], stride: &[i64]) -> Strided {
        let storage = Storage { key: 0, kind: Kind::Float, numel, part: (0, numel) };
        Strided { storage, offset, size: size.to_vec(), stride: stride.to_vec() }
    }

    #[test]
    fn takes_views_up_to_the_last_element_and_no_further() {
        for (inside, tensor) in [
            (true, strided(12, 0, &[3, 4], &[4, 1])),
            (true, strided(12, 0, &[4, 3], &[1, 4])),
            (true, strided(12, 6, &[2, 3], &[3, 1])),
            (false, strided(12, 7, &[2, 3], &[3, 1])),
            (false, strided(12, 0, &[3, 4], &[5, 1])),
            (true, strided(1, 0, &[1 << 40], &[0])),
            (true, strided(12, 12, &[0, 5], &[1, 1])),
            (false, strided(12, 13, &[0], &[1])),
            (true, strided(1, 0, &[], &[])),
            (false, strided(0, 0, &[], &[])),
            (false, strided(12, -1, &[2], &[1])),
            (false, strided(12, 11, &[2], &[-1])),
            (false, strided(12, 0, &[2], &[1, 1])),
            (false, strided(12, i64::MAX, &[2], &[i64::MAX])),
            (false, strided(u64::MAX, 0, &[i64::MAX, 2], &[0, 0])),
            (false, strided(u64::MAX, 0, &[i64::MAX], &[i64::MAX])),
        ] {
            assert_eq!(check(&tensor).is_ok(), inside, "{tensor:?}");
        }
    }

    #[test]
    fn keeps_a_view_of_a_storage_inside_of_both() {
        let mut tensor = strided(12, 0, &[4], &[1]);
        for (part, inside) in [((8, 4), true), ((9, 4), false), ((8, 3), false), ((u64::MAX, 2), false)] {
            tensor.storage.part = part;
            assert_eq!(check(&tensor).is_ok(), inside, "{part:?}");
        }
    }

    proptest! {
        /// libtorch agrees: it accepts whatever the check accepts, and every element can be read.
        #[test]
        fn what_passes_is_inside(
            numel in 0u64..20, offset in -2i64..20, dims in prop::collection::vec((0i64..5, -1i64..6), 0..4)
        ) {
            let (size, stride): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            let tensor = strided(numel, offset, &size, &stride);
            let elements: Option<Vec<i64>> = indices(&size).iter()
                .map(|index| {
                    let at = offset + index.iter().zip(&stride).map(|(index, stride)| index * stride).sum::<i64>();
                    (0..numel as i64).contains(&at).then_some(at)
                })
                .collect();
            if check(&tensor).is_ok() {
                let expected: Vec<f32> = elements.expect("all are inside").into_iter().map(|at| at as f32).collect();
                let data = Tensor::arange(numel as i64, (Kind::Float, Device::Cpu));
                let view = data.f_as_strided(&size, &stride, offset).unwrap().flatten(0, -1);
                prop_assert_eq!(Vec::<f32>::try_from(view).unwrap(), expected);
            } else if stride.iter().all(|&stride| stride >= 0) && (0..=numel as i64).contains(&offset) {
                prop_assert!(elements.is_none());
            }
        }
    }

    fn indices(size: &[i64]) -> Vec<Vec<i64>> {
        size.iter().fold(vec![Vec::new()], |all, &size| {
            all.iter().flat_map(|index| (0..size).map(move |at| [&index[..], &[at]].concat())).collect()
        })
    }
}

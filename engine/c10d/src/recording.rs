//! Records a rank's calls for `lockstep replay`, where [`GroupOptions::recording`](crate::GroupOptions) or `LOCKSTEP_RECORD` names a folder.
//!
//! [`Recorded`] is one call, from its start to its end. [`Passed`] has what the rank passes to it: the bytes and the first elements of
//! tensors in host memory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_contract::recording::{Element, Enter, Form, Kind, Leave, MOST_ELEMENTS, Recorded as Line, Recorder};
use tch::Tensor;

use crate::group::{Inner, Traffic};
use crate::tensors::facts;
use crate::work::Way;
use crate::{Rank, ffi};

/// The recording of one default group and its subgroups.
#[derive(Debug)]
pub(crate) struct Recording {
    recorder: Arc<Recorder>,
    /// Which of the default groups of this process it is, from 0.
    job: u64,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// By group.
    collectives: BTreeMap<String, u64>,
    messages: BTreeMap<Route, u64>,
    /// How many receives from any rank are open, by group and tag.
    any: BTreeMap<(String, u16), u64>,
}

/// The messages that are counted together: those of a group, in one direction, of one peer and tag.
type Route = (String, bool, usize, u16);

impl Counts {
    fn collective(&mut self, group: &str) -> u64 {
        count(self.collectives.entry(group.to_owned()))
    }

    /// The number of a message; `None` while a receive from any rank may take it.
    fn message(&mut self, group: &str, sends: bool, peer: usize, tag: u16) -> Option<u64> {
        let is_open = self.any.get(&(group.to_owned(), tag)).is_some_and(|open| *open > 0);
        (sends || !is_open).then(|| count(self.messages.entry((group.to_owned(), sends, peer, tag))))
    }
}

fn count<K: Ord>(entry: std::collections::btree_map::Entry<'_, K, u64>) -> u64 {
    let number = entry.or_default();
    *number += 1;
    *number
}

thread_local! {
    /// The caller of this thread waits for the end of what it starts.
    static BLOCKS: Cell<bool> = const { Cell::new(false) };
}

/// Says whether the caller of this thread waits for the end of what it starts from now on: to what records, and to shared memory.
pub(crate) fn caller_waits(waits: bool) {
    BLOCKS.set(waits);
    // SAFETY: it sets a variable of this thread.
    unsafe { ffi::lc_caller_waits(waits) };
}

/// What a rank passes to a call.
#[derive(Debug)]
pub(crate) struct Passed {
    bytes: u64,
    before: Vec<Element>,
    /// Where the result will be.
    result: Option<Tensor>,
}

impl Passed {
    /// `read` is the first tensor that the call reads, of which `bytes` has all; `written` the first one that it writes. Call it while the
    /// call has claimed their memory.
    pub(crate) fn new(bytes: u64, read: Option<&ffi::TensorFacts>, written: Option<Tensor>) -> Self {
        Passed { bytes, before: read.map(elements).unwrap_or_default(), result: written }
    }
}

/// The facts of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) way: Way,
    /// By its rank in the group; `None` for a receive from any rank.
    pub(crate) peer: Option<Rank>,
    pub(crate) tag: u16,
}

/// A call that is recorded and has not ended.
#[derive(Debug)]
pub(crate) struct Recorded {
    group: Arc<Inner>,
    call: u64,
    form: Form,
    result: Option<Tensor>,
    /// The group's traffic before the call, if the bytes are not known.
    traffic: Option<Traffic>,
    waited: Option<Duration>,
    /// The tag, and the sender once it is known, of a receive from any rank.
    any: Option<(u16, Option<usize>)>,
}

impl Recording {
    /// The recording of this rank in `folder`, or in the variable's.
    pub(crate) fn start(folder: Option<&Path>, rank: Rank) -> Option<Self> {
        let recorder = match folder {
            Some(folder) => Recorder::in_folder(folder, rank.get()),
            None => Recorder::from_env(rank.get()),
        }?;
        Some(Recording { job: recorder.next_job(), recorder, counts: Mutex::default() })
    }

    /// The group's name in the recording.
    fn label(&self, group: &str) -> String {
        if self.job == 0 { group.to_owned() } else { format!("{group}#{}", self.job) }
    }

    /// Records that the rank joins a group of these ranks, while it does so.
    pub(crate) fn while_joining<T>(
        &self,
        group: &str,
        members: &[Rank],
        join: impl FnOnce() -> crate::Result<T>,
    ) -> crate::Result<T> {
        let (group, ranks) = (self.label(group), members.iter().map(|rank| rank.get()).collect());
        self.recorder.record(&Line::Join { group: group.clone(), ranks });
        let joined = join();
        let error = joined.as_ref().err().map(|error| format!("{:?}", error.kind()));
        self.recorder.record(&Line::Joined { group, error });
        joined
    }

    fn counts<T>(&self, use_them: impl FnOnce(&mut Counts) -> T) -> T {
        // Numbers stay valid when the holder of the lock panics.
        use_them(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Recorded {
    /// Records that the rank makes a call, if this group is recorded. Without `passed` it is libtorch's own code that communicates, and
    /// `computes` says whether it also computes.
    pub(crate) fn enter(
        group: &Arc<Inner>,
        operation: &str,
        message: Option<Message>,
        passed: Option<Passed>,
        computes: bool,
    ) -> Option<Self> {
        let recording = group.recording()?;
        let (call, name) = (recording.recorder.next_call(), recording.label(group.name()));
        let traffic = if passed.is_none() { group.traffic() } else { None };
        let (bytes, before, result) = match passed {
            Some(Passed { bytes, before, result }) => (Some(bytes), before, result),
            None => (None, Vec::new(), None),
        };
        let form = match (&message, bytes) {
            (None, None) if computes => Form::Pass,
            (None, None) => Form::Blocking,
            (Some(_), _) => Form::Async,
            (None, Some(_)) if BLOCKS.get() => Form::Blocking,
            (None, Some(_)) => Form::Async,
        };
        let peer = message.and_then(|message| message.peer).and_then(|peer| group.job_rank(peer)).map(Rank::get);
        let tag = message.map(|message| message.tag);
        let sends = message.is_some_and(|message| message.way == Way::To);
        let number = recording.counts(|counts| match (tag, peer) {
            (None, _) => Some(counts.collective(&name)),
            (Some(tag), Some(peer)) => counts.message(&name, sends, peer, tag),
            (Some(tag), None) => {
                *counts.any.entry((name.clone(), tag)).or_default() += 1;
                None
            }
        });
        let kind = match message {
            None => Kind::Collective,
            Some(_) if sends => Kind::Send,
            Some(_) => Kind::Receive,
        };
        let operation = operation.to_owned();
        let enter = Enter { call, group: name, kind, number, operation, bytes, peer, tag, form, before };
        recording.recorder.record(&Line::Enter(enter));
        let any = tag.filter(|_| message.is_some_and(|message| message.peer.is_none())).map(|tag| (tag, None));
        Some(Recorded { group: Arc::clone(group), call, form, result, traffic, waited: None, any })
    }

    /// The rank waits for the call's end from now on.
    pub(crate) fn waits(&self) {
        if let Some(recording) = self.group.recording()
            && self.form == Form::Async
        {
            recording.recorder.record(&Line::Wait { call: self.call });
        }
    }

    /// The rank only waited for this long before the end.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.waited = Some(time);
    }

    /// A message from any rank came from this one, by its rank in the group.
    pub(crate) fn came_from(&mut self, source: usize) {
        if let Some((_, from)) = &mut self.any {
            *from = self.group.job_rank(Rank::new(source)).map(Rank::get).or(*from);
        }
    }

    /// The call has ended, well or with an error of this kind. Call it before its memory is free for other calls.
    pub(crate) fn leave(self, error: Option<String>) {
        let result = self.result.as_ref().filter(|_| error.is_none()).and_then(|result| facts(result).ok());
        let after = result.map(|facts| elements(&facts)).unwrap_or_default();
        self.end(|leave| Leave { error, after, ..leave });
    }

    /// The rank gives up its handle.
    pub(crate) fn give_up(self) {
        self.end(|leave| Leave { unawaited: true, ..leave });
    }

    fn end(&self, with: impl FnOnce(Leave) -> Leave) {
        let Some(recording) = self.group.recording() else { return };
        let bytes = self.traffic.and_then(|before| Some((self.group.traffic()? - before).bytes));
        let waited = self.waited.map(|waited| waited.as_secs_f64());
        let (mut peer, mut number) = (None, None);
        if let Some((tag, from)) = self.any {
            let name = recording.label(self.group.name());
            recording.counts(|counts| {
                counts.any.entry((name.clone(), tag)).and_modify(|open| *open = open.saturating_sub(1));
                number = from.and_then(|from| counts.message(&name, false, from, tag));
            });
            peer = from;
        }
        recording.recorder.record(&Line::Leave(with(Leave {
            call: self.call,
            bytes,
            peer,
            number,
            waited,
            ..Leave::default()
        })));
    }
}

/// The first elements of a tensor in host memory, of the dtypes that a JSON number shows.
fn elements(tensor: &ffi::TensorFacts) -> Vec<Element> {
    let size = usize::try_from(tensor.item_size).unwrap_or(0);
    let count = usize::try_from(tensor.numel).unwrap_or(0).min(MOST_ELEMENTS);
    let is_readable = tensor.defined && tensor.in_storage && tensor.contiguous && tensor.device_type == ffi::CPU;
    if !is_readable || count == 0 || size == 0 {
        return Vec::new();
    }
    let address = std::ptr::with_exposed_provenance::<u8>(tensor.address as usize);
    // SAFETY: libtorch says that the tensor, which the caller holds, has its elements here, in one block of host memory; the call has
    // claimed the block, so no other operation writes it meanwhile. Any bytes are a u8.
    let bytes = unsafe { std::slice::from_raw_parts(address, count * size) }.to_vec();
    bytes.chunks_exact(size).map_while(|bytes| element(tensor.kind, bytes)).collect()
}

/// The number in `bytes`, by its `c10::ScalarType`.
fn element(kind: i32, bytes: &[u8]) -> Option<Element> {
    fn of<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Option<T> {
        bytes.try_into().ok().map(from)
    }
    Some(match kind {
        0 => Element::Integer(of(bytes, u8::from_ne_bytes)?.into()),
        1 => Element::Integer(of(bytes, i8::from_ne_bytes)?.into()),
        3 => Element::Integer(of(bytes, i32::from_ne_bytes)?.into()),
        4 => Element::Integer(of(bytes, i64::from_ne_bytes)?),
        6 => of(bytes, f32::from_ne_bytes)?.into(),
        7 => of(bytes, f64::from_ne_bytes)?.into(),
        11 => Element::Integer((of(bytes, u8::from_ne_bytes)? != 0).into()),
        // bfloat16 is the upper half of a float.
        15 => f32::from_bits(u32::from(of(bytes, u16::from_ne_bytes)?) << 16).into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn shows_the_first_elements_of_each_dtype() {
        let values = Tensor::from_slice(&[1.0_f64, 2.0, 0.0, 3.0, 9.0]);
        let shown = |kind| {
            let tensor = values.to_kind(kind);
            elements(&facts(&tensor).unwrap())
        };
        let integers = [1, 2, 0, 3].map(Element::Integer);
        for kind in [Kind::Uint8, Kind::Int8, Kind::Int, Kind::Int64] {
            assert_eq!(shown(kind), integers, "{kind:?}");
        }
        assert_eq!(shown(Kind::Bool), [1, 1, 0, 1].map(Element::Integer));
        assert_eq!(shown(Kind::Double), [1.0, 2.0, 0.0, 3.0].map(Element::Float));
        for kind in [Kind::Float, Kind::BFloat16] {
            assert_eq!(shown(kind), [1.0, 2.0, 0.0, 3.0].map(Element::Single), "{kind:?}");
        }
        assert!(shown(Kind::Half).is_empty());
        let none = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        assert!(elements(&facts(&none).unwrap()).is_empty());
        let two = Tensor::zeros([2], (Kind::Int64, Device::Cpu));
        assert_eq!(elements(&facts(&two).unwrap()).len(), 2);
    }

    #[test]
    fn numbers_messages_by_peer_and_tag_unless_a_receive_from_any_rank_may_take_them() {
        let mut counts = Counts::default();
        let receive = |counts: &mut Counts, peer, tag| counts.message("0", false, peer, tag);
        assert_eq!(receive(&mut counts, 1, 0), Some(1));
        assert_eq!(receive(&mut counts, 1, 0), Some(2));
        assert_eq!(receive(&mut counts, 2, 0), Some(1));
        assert_eq!(receive(&mut counts, 1, 7), Some(1));
        counts.any.insert(("0".into(), 0), 1);
        assert_eq!(receive(&mut counts, 1, 0), None);
        assert_eq!(receive(&mut counts, 1, 7), Some(2));
        assert_eq!(counts.message("0", true, 1, 0), Some(1));
    }
}

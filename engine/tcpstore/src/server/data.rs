//! The contents of the store and the effect of each operation. Pure: no sockets, no clock, no order of replies.
//! Below: which connections wait for which keys. Not here: how a connection learns that its wait has ended.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::wire::{Key, Limits, Reply, Request, Value};

/// Approximate overhead in bytes of a table entry, in addition to key and value.
const ENTRY_OVERHEAD: usize = 64;

/// The keys, queues and waits of a store.
///
/// The behaviour is that of libtorch's server (`TCPStoreLibUvBackend.cpp` of PyTorch 2.11), including its oddities: GET
/// of a missing key answers with an empty value, COMPARE_SET of a missing key answers with the expected value, and
/// queues count as keys for CHECK and WAIT but for no other operation. It differs in three cases in which libtorch's
/// server harms its clients:
/// - A COMPARE_SET that sets nothing does not end waits for the key, which is still missing.
/// - A WAIT for a non-empty queue and a missing key ends when the key is set, not when the queue grows again.
/// - If several clients wait for the same queue, the one that has waited longest gets the value, even if it has waited
///   before.
#[derive(Debug)]
pub struct Data {
    limits: Limits,
    quota: Quota,
    values: HashMap<Key, StoredValue>,
    queues: HashMap<Key, VecDeque<StoredValue>>,
    waiters: Waiters,
}

/// A value and the connection that wrote it last.
#[derive(Debug)]
struct StoredValue {
    value: Value,
    by: ConnectionId,
}

impl Data {
    /// An empty store that holds at most `max_bytes` of keys and values, minus the [reserved](Self::reserve) bytes.
    pub fn new(limits: Limits, max_bytes: usize) -> Self {
        Self {
            limits,
            quota: Quota::new(max_bytes),
            values: HashMap::new(),
            queues: HashMap::new(),
            waiters: Waiters::default(),
        }
    }

    /// Executes a request of a connection.
    ///
    /// # Errors
    /// The request is refused; then nothing has changed.
    pub fn apply(&mut self, connection: ConnectionId, request: Request) -> Result<Outcome, Refused> {
        match request {
            Request::Validate { .. } => Ok(Outcome::default()),
            Request::Ping { nonce } => Ok(answer(Reply::Nonce(nonce))),
            Request::Set { key, value } => Ok(woke(self.set(connection, key, value)?)),
            Request::CompareSet { key, expected, desired } => self.compare_set(connection, key, expected, desired),
            Request::Get { key } => self.multi_get(&[key]).map(|mut one| answer(Reply::Value(one.remove(0)))),
            Request::Add { key, amount } => self.add(connection, key, amount),
            Request::Check { keys } => Ok(answer(Reply::Ready(keys.iter().all(|key| self.has(key))))),
            Request::Wait { keys } => Ok(self.wait(connection, keys)),
            Request::NumKeys => Ok(answer(Reply::Number(self.values.len() as i64))),
            Request::Delete { key } => Ok(answer(Reply::Number(i64::from(self.delete(&key))))),
            Request::Append { key, value } => self.append(connection, key, value),
            Request::MultiGet { keys } => Ok(answer(Reply::Values(self.multi_get(&keys)?))),
            Request::MultiSet { entries } => self.multi_set(connection, entries),
            Request::CancelWait => {
                self.waiters.end(connection);
                Ok(answer(Reply::WaitCanceled))
            }
            Request::QueuePush { key, value } => self.queue_push(connection, key, value),
            Request::QueuePop { key } => Ok(answer(self.queue_pop(&key))),
            Request::QueueLen { key } => {
                Ok(answer(Reply::Number(self.queues.get(&key).map_or(0, VecDeque::len) as i64)))
            }
            Request::ListKeys => self.list_keys(),
        }
    }

    /// Removes a connection that has closed.
    pub fn leave(&mut self, connection: ConnectionId) {
        self.waiters.end(connection);
    }

    /// Returns true if the connection waits for keys.
    pub fn waits(&self, connection: ConnectionId) -> bool {
        self.waiters.waits(connection)
    }

    /// The keys that the connection waits for.
    pub fn waited_for(&self, connection: ConnectionId) -> Vec<Key> {
        self.waiters.missing(connection)
    }

    /// The value of a key.
    pub fn value(&self, key: &[u8]) -> Option<&Value> {
        self.values.get(key).map(|held| &held.value)
    }

    /// The names of all keys, in arbitrary order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.values.keys()
    }

    /// Bytes of keys and values, including the overhead of their tables.
    pub fn bytes(&self) -> usize {
        self.quota.used()
    }

    /// Bytes of the waits, including the overhead of their tables.
    pub fn wait_bytes(&self) -> usize {
        self.waiters.bytes()
    }

    /// Bytes of the keys that the connection waits for, including overhead, as if no other connection waited for them.
    pub fn wait_bytes_of(&self, connection: ConnectionId) -> usize {
        self.waiters.bytes_of(connection)
    }

    /// Sets the number of bytes that keys and values cannot use.
    pub fn reserve(&mut self, bytes: usize) {
        self.quota.reserve(bytes);
    }

    /// Size in bytes of the reply to this request if it contains values or keys; 0 for replies that are always small.
    pub fn reply_bytes(&self, request: &Request) -> usize {
        let value = |key: &Key| 8 + self.value(key).map_or(0, Vec::len);
        match request {
            Request::Get { key } => value(key),
            Request::MultiGet { keys } => keys.iter().map(value).sum(),
            Request::CompareSet { key, expected, desired } => value(key).max(8 + expected.len().max(desired.len())),
            Request::QueuePop { key } => {
                self.queues.get(key).and_then(VecDeque::front).map_or(0, |front| 16 + front.value.len())
            }
            Request::ListKeys => self.listed_bytes(),
            _ => 0,
        }
    }

    /// Deletes the keys and queues whose names `goes` accepts, and returns their number. No wait ends.
    pub fn delete_where(&mut self, goes: impl Fn(&[u8]) -> bool) -> usize {
        let values: Vec<(Key, StoredValue)> = self.values.extract_if(|key, _| goes(key)).collect();
        let queues: Vec<(Key, VecDeque<StoredValue>)> = self.queues.extract_if(|key, _| goes(key)).collect();
        values.iter().for_each(|(key, held)| self.give_back(key, held));
        queues.iter().for_each(|(key, queue)| queue.iter().for_each(|held| self.give_back(key, held)));
        values.len() + queues.len()
    }

    fn has(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn set(&mut self, by: ConnectionId, key: Key, value: Value) -> Result<Vec<ConnectionId>, Refused> {
        let old = self.value(&key).map_or(0, |old| cost(&key, old));
        self.quota.check(by, cost(&key, &value), old)?;
        Ok(self.put(by, key, value))
    }

    /// Sets a key for which there is room.
    fn put(&mut self, by: ConnectionId, key: Key, value: Value) -> Vec<ConnectionId> {
        let woken = self.waiters.key_set(&key);
        self.delete(&key);
        let held = StoredValue { value, by };
        self.take(&key, &held);
        self.values.insert(key, held);
        woken
    }

    fn compare_set(&mut self, by: ConnectionId, key: Key, expected: Value, desired: Value) -> Result<Outcome, Refused> {
        match self.value(&key) {
            None if !expected.is_empty() => Ok(answer(Reply::Value(expected))),
            Some(current) if *current != expected => Ok(answer(Reply::Value(current.clone()))),
            _ => {
                let woken = self.set(by, key, desired.clone())?;
                Ok(Outcome { reply: Some(Reply::Value(desired)), woken })
            }
        }
    }

    fn add(&mut self, by: ConnectionId, key: Key, amount: i64) -> Result<Outcome, Refused> {
        let held = self.value(&key).map_or(Ok(0), |value| number(value))?;
        let sum = held.wrapping_add(amount);
        let woken = self.set(by, key, sum.to_string().into_bytes())?;
        Ok(Outcome { reply: Some(Reply::Number(sum)), woken })
    }

    fn wait(&mut self, connection: ConnectionId, keys: Vec<Key>) -> Outcome {
        let missing: Vec<Key> = keys.into_iter().filter(|key| !self.has(key)).collect();
        if missing.is_empty() {
            return answer(Reply::StopWaiting);
        }
        self.waiters.begin(connection, missing.into_iter());
        Outcome::default()
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let gone = self.values.remove(key);
        gone.iter().for_each(|held| self.give_back(key, held));
        gone.is_some()
    }

    fn append(&mut self, by: ConnectionId, key: Key, value: Value) -> Result<Outcome, Refused> {
        let Some(held) = self.value(&key) else { return Ok(woke(self.set(by, key, value)?)) };
        self.fits_a_reply(held.len() + value.len())?;
        self.quota.check(by, value.len(), 0)?;
        if let Some(mut held) = self.values.remove(&key) {
            self.give_back(&key, &held);
            held.value.extend_from_slice(&value);
            held.by = by;
            self.take(&key, &held);
            self.values.insert(key, held);
        }
        Ok(Outcome::default())
    }

    fn multi_get(&self, keys: &[Key]) -> Result<Vec<Value>, Refused> {
        let found = || keys.iter().map(|key| self.value(key).map_or(&[][..], Vec::as_slice));
        self.fits_a_reply(found().map(|value| value.len() + 8).sum())?;
        Ok(found().map(<[u8]>::to_vec).collect())
    }

    fn multi_set(&mut self, by: ConnectionId, entries: Vec<(Key, Value)>) -> Result<Outcome, Refused> {
        // All or nothing. If a key occurs twice, its last value wins.
        let new: HashMap<&Key, usize> = entries.iter().map(|(key, value)| (key, cost(key, value))).collect();
        let old = new.keys().filter_map(|&key| Some(cost(key, self.value(key)?))).sum();
        self.quota.check(by, new.into_values().sum(), old)?;
        Ok(woke(entries.into_iter().flat_map(|(key, value)| self.put(by, key, value)).collect()))
    }

    fn queue_push(&mut self, by: ConnectionId, key: Key, value: Value) -> Result<Outcome, Refused> {
        self.quota.check(by, cost(&key, &value), 0)?;
        let woken = self.waiters.queue_pushed(&key);
        let held = StoredValue { value, by };
        self.take(&key, &held);
        self.queues.entry(key).or_default().push_back(held);
        Ok(woke(woken.into_iter().collect()))
    }

    fn queue_pop(&mut self, key: &[u8]) -> Reply {
        let Some(queue) = self.queues.get_mut(key) else { return Reply::Popped { before: 0, value: None } };
        let before = queue.len() as i64;
        let held = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        held.iter().for_each(|held| self.give_back(key, held));
        Reply::Popped { before, value: held.map(|held| held.value) }
    }

    fn list_keys(&self) -> Result<Outcome, Refused> {
        self.fits_a_reply(self.listed_bytes())?;
        let mut keys: Vec<Key> = self.values.keys().cloned().collect();
        keys.sort_unstable(); // any order is allowed; this one is deterministic
        Ok(answer(Reply::Keys(keys)))
    }

    fn listed_bytes(&self) -> usize {
        8 + self.values.keys().map(|key| key.len() + 8).sum::<usize>()
    }

    fn take(&mut self, key: &[u8], held: &StoredValue) {
        self.quota.take(held.by, cost(key, &held.value));
    }

    fn give_back(&mut self, key: &[u8], held: &StoredValue) {
        self.quota.give_back(held.by, cost(key, &held.value));
    }

    fn fits_a_reply(&self, got: usize) -> Result<(), Refused> {
        let max = self.limits.max_reply;
        if got > max { Err(Refused::ReplyTooLarge { got, max }) } else { Ok(()) }
    }
}

fn answer(reply: Reply) -> Outcome {
    Outcome { reply: Some(reply), woken: Vec::new() }
}

fn woke(woken: Vec<ConnectionId>) -> Outcome {
    Outcome { reply: None, woken }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_OVERHEAD
}

/// Parses the number at the start of a value as C++'s `std::stoll` does: white space, a sign and digits; the rest is
/// ignored.
fn number(value: &[u8]) -> Result<i64, Refused> {
    let spaces = value.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let text = &value[spaces..];
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let parsed = std::str::from_utf8(&text[..sign + digits]).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Refused::NotANumber(String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned()))
}

/// The result of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The reply, if the operation has one.
    pub reply: Option<Reply>,
    /// Other connections whose wait has ended.
    pub woken: Vec<ConnectionId>,
}

/// Approximate size of one key in one wait: its entries in the wait's set and in the key's list of waits.
const EACH: usize = 64;
/// Approximate overhead of a key with waits, in addition to the key itself: its table entry and the first node of its
/// tree.
const KEY_OVERHEAD: usize = 320;

/// The waits of all connections, at most one each. A wait counts down: a key that was set counts, even if it is deleted
/// before the others are set (as in libtorch's server). Connections that wait for the same key share its bytes.
#[derive(Debug, Default)]
struct Waiters {
    waits: HashMap<ConnectionId, Wait>,
    /// In the order in which the waits began.
    by_key: HashMap<Arc<[u8]>, BTreeMap<u64, ConnectionId>>,
    next_ticket: u64,
    /// See [`Waiters::bytes`].
    bytes: usize,
}

#[derive(Debug)]
struct Wait {
    ticket: u64,
    missing: HashSet<Arc<[u8]>>,
    /// See [`Waiters::bytes_of`].
    bytes: usize,
}

impl Waiters {
    /// Begins a wait for `missing`, which replaces an earlier wait of the connection.
    pub(super) fn begin(&mut self, connection: ConnectionId, missing: impl Iterator<Item = Key>) {
        self.end(connection);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let mut wait = Wait { ticket, missing: HashSet::new(), bytes: 0 };
        for key in missing {
            let key = self.shared(&key);
            if wait.missing.insert(Arc::clone(&key)) {
                self.bytes += EACH;
                wait.bytes += alone(&key);
                self.by_key.entry(key).or_default().insert(ticket, connection);
            }
        }
        self.waits.insert(connection, wait);
    }

    /// Returns the shared copy of the key and creates it if needed.
    fn shared(&mut self, key: &[u8]) -> Arc<[u8]> {
        if let Some((key, _)) = self.by_key.get_key_value(key) {
            return Arc::clone(key);
        }
        let key: Arc<[u8]> = Arc::from(key);
        self.by_key.insert(Arc::clone(&key), BTreeMap::new());
        self.bytes += key.len() + KEY_OVERHEAD;
        key
    }

    /// Removes a key that no connection waits for any more.
    fn forget(&mut self, key: &[u8]) -> BTreeMap<u64, ConnectionId> {
        let Some(waiting) = self.by_key.remove(key) else { return BTreeMap::new() };
        self.bytes -= key.len() + KEY_OVERHEAD;
        waiting
    }

    /// Approximate size of all waits. Each key counts once, even if several connections wait for it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the connection's wait, as if no other connection waited for its keys.
    fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.waits.get(&connection).map_or(0, |wait| wait.bytes)
    }

    /// Ends a connection's wait and returns true if there was one.
    pub(super) fn end(&mut self, connection: ConnectionId) -> bool {
        let Some(wait) = self.waits.remove(&connection) else { return false };
        self.bytes -= EACH * wait.missing.len();
        for key in &wait.missing {
            self.leave(key, wait.ticket);
        }
        true
    }

    /// Returns true if the connection waits.
    pub(super) fn waits(&self, connection: ConnectionId) -> bool {
        self.waits.contains_key(&connection)
    }

    /// The keys that the connection waits for.
    pub(super) fn missing(&self, connection: ConnectionId) -> Vec<Key> {
        self.waits.get(&connection).into_iter().flat_map(|wait| &wait.missing).map(|key| key.to_vec()).collect()
    }

    /// A key was set: returns the connections whose wait has ended.
    fn key_set(&mut self, key: &[u8]) -> Vec<ConnectionId> {
        let waiting = self.forget(key);
        waiting.into_values().filter(|&connection| self.count_down(connection, key)).collect()
    }

    /// A value was added to a queue: ends one wait, the oldest that waits for nothing else.
    fn queue_pushed(&mut self, key: &[u8]) -> Option<ConnectionId> {
        while let Some((_, connection)) = self.by_key.get_mut(key)?.pop_first() {
            if self.count_down(connection, key) {
                self.tidy(key);
                return Some(connection);
            }
        }
        self.tidy(key);
        None
    }

    /// Removes `key` from a wait and returns true if the wait has ended.
    fn count_down(&mut self, connection: ConnectionId, key: &[u8]) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        if wait.missing.remove(key) {
            self.bytes -= EACH;
            wait.bytes -= alone(key);
        }
        let over = wait.missing.is_empty();
        if over {
            self.waits.remove(&connection);
        }
        over
    }

    fn leave(&mut self, key: &[u8], ticket: u64) {
        if let Some(waiting) = self.by_key.get_mut(key) {
            waiting.remove(&ticket);
        }
        self.tidy(key);
    }

    fn tidy(&mut self, key: &[u8]) {
        if self.by_key.get(key).is_some_and(BTreeMap::is_empty) {
            self.forget(key);
        }
    }

    /// Returns true if there are no waits and no leftover entries.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.by_key.is_empty() && self.bytes == 0
    }
}

/// Bytes of a wait for this key, as if no other connection waited for it.
fn alone(key: &[u8]) -> usize {
    key.len() + KEY_OVERHEAD + EACH
}

/// A connection's id within its server. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// The process that hosts the server and needs no connection.
    pub const HOST: Self = Self(0);
}

/// Why a request is refused. Its connection is closed, because the protocol has no error reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The store would grow beyond its limit.
    #[error("the store would hold more than {max} bytes")]
    Full {
        /// The limit.
        max: usize,
    },
    /// The last quarter of the store is reserved for other connections.
    #[error(
        "keys and values that this connection wrote would take {got} bytes, and the last quarter of {max} is reserved for other connections"
    )]
    Share {
        /// How many of the store's bytes the connection would have written.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The reply, or a value after APPEND, would exceed its limit.
    #[error("the answer or the grown value would have {got} bytes, more than {max}")]
    ReplyTooLarge {
        /// Its size in bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// ADD to a value that is not a number.
    #[error("add to a value that is not a decimal 64-bit number: {0:?}")]
    NotANumber(String),
}

/// The bytes of keys and values.
#[derive(Debug)]
pub(super) struct Quota {
    max: usize,
    used: usize,
    /// The part of `max` that is reserved for other uses.
    reserved: usize,
    /// The part of `used` that each connection wrote, also after it has closed.
    pub(super) written: HashMap<ConnectionId, usize>,
}

impl Quota {
    pub(super) fn new(max: usize) -> Self {
        Self { max, used: 0, reserved: 0, written: HashMap::new() }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved = bytes;
    }

    /// Checks that a connection may store `more` bytes in place of `less`. The values of one connection never fill the
    /// store: the last quarter is reserved for others.
    pub(super) fn check(&self, by: ConnectionId, more: usize, less: usize) -> Result<(), Refused> {
        let (max, all) = (self.max, self.used + self.reserved + more - less);
        let own = (self.written.get(&by).copied().unwrap_or_default() + more).saturating_sub(less);
        if more <= less {
            Ok(())
        } else if all > max {
            Err(Refused::Full { max })
        } else if all > max - max / 4 && own > max / 4 && by != ConnectionId::HOST {
            Err(Refused::Share { got: own, max })
        } else {
            Ok(())
        }
    }

    pub(super) fn take(&mut self, by: ConnectionId, bytes: usize) {
        self.used += bytes;
        *self.written.entry(by).or_default() += bytes;
    }

    pub(super) fn give_back(&mut self, by: ConnectionId, bytes: usize) {
        self.used -= bytes;
        if let std::collections::hash_map::Entry::Occupied(mut written) = self.written.entry(by) {
            *written.get_mut() -= bytes;
            if *written.get() == 0 {
                written.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: ConnectionId = ConnectionId(1);
    const OTHER: ConnectionId = ConnectionId(2);

    fn store(max_bytes: usize) -> Data {
        Data::new(Limits::default(), max_bytes)
    }

    fn set(key: &str, value: &str) -> Request {
        Request::Set { key: key.into(), value: value.into() }
    }

    fn wait(keys: &[&str]) -> Request {
        Request::Wait { keys: keys.iter().map(|&key| key.into()).collect() }
    }

    #[test]
    fn reads_numbers_as_stoll_does() {
        for (text, expected) in [("5", 5), (" \t\x0b-12abc", -12), ("+7", 7), ("9223372036854775807", i64::MAX)] {
            assert_eq!(number(text.as_bytes()), Ok(expected), "{text}");
        }
        for text in ["", "abc", "-", "9223372036854775808", "\u{e9}5"] {
            assert!(number(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn wakes_no_client_when_compare_set_sets_nothing() {
        let mut data = store(1 << 20);
        data.apply(ME, wait(&["k"])).unwrap();
        let request = Request::CompareSet { key: b"k".into(), expected: b"e".into(), desired: b"d".into() };
        assert_eq!(data.apply(OTHER, request), Ok(answer(Reply::Value(b"e".into()))));
        assert!(data.waits(ME));
    }

    #[test]
    fn does_not_count_a_filled_queue_as_missing() {
        let mut data = store(1 << 20);
        data.apply(OTHER, Request::QueuePush { key: b"q".into(), value: b"v".into() }).unwrap();
        data.apply(ME, wait(&["q", "k"])).unwrap();
        assert_eq!(data.waited_for(ME), [b"k"]);
        assert_eq!(data.apply(OTHER, set("k", "")), Ok(woke(vec![ME])));
    }

    #[test]
    fn refuses_to_grow_beyond_its_limit_and_stays_usable() {
        let mut data = store(200);
        data.apply(ME, set("k", "v")).unwrap();
        assert_eq!(data.apply(ME, set("big", &"x".repeat(200))), Err(Refused::Full { max: 200 }));
        assert_eq!(data.apply(ME, Request::Get { key: b"k".into() }), Ok(answer(Reply::Value(b"v".into()))));
        data.apply(ME, Request::Delete { key: b"k".into() }).unwrap();
        assert_eq!(data.bytes(), 0);
    }

    #[test]
    fn counts_an_overwritten_key_once_in_a_multi_set() {
        let mut data = store(400);
        let full = |byte: u8| (b"k".to_vec(), vec![byte; 200]);
        data.apply(ME, Request::MultiSet { entries: vec![full(1)] }).unwrap();
        data.apply(ME, Request::MultiSet { entries: vec![full(2)] }).unwrap();
        data.apply(ME, Request::MultiSet { entries: vec![full(3), full(4)] }).unwrap();
        assert_eq!((data.bytes(), data.value(b"k")), (1 + 200 + 64, Some(&vec![4; 200])));
        let more = Request::MultiSet { entries: vec![full(5), (b"other".to_vec(), vec![0; 100])] };
        assert_eq!(data.apply(ME, more), Err(Refused::Full { max: 400 }));
        assert_eq!(data.value(b"k"), Some(&vec![4; 200]), "all or nothing");
    }

    #[test]
    fn a_client_that_fills_the_store_leaves_the_last_quarter_to_others() {
        let mut data = store(16 << 10);
        let fill = |data: &mut Data, who, name: char| {
            (0..1000).take_while(|n| data.apply(who, set(&format!("{name}{n}"), "v")).is_ok()).count()
        };
        assert!(fill(&mut data, ME, 'm') > 0);
        assert!(
            matches!(data.apply(ME, set("more", "v")), Err(Refused::Share { got, .. }) if got > 12_000),
            "{data:?}"
        );
        data.apply(ME, set("m0", "w")).expect("a write that does not grow the store is accepted");
        data.apply(OTHER, Request::Add { key: b"count".into(), amount: 1 }).unwrap();
        data.apply(OTHER, Request::QueuePush { key: b"q".into(), value: vec![0; 3000] }).unwrap();
        data.apply(OTHER, Request::Append { key: b"m0".into(), value: b"grows".into() }).unwrap();
        // There is room again when this connection or others delete values.
        data.apply(OTHER, Request::QueuePop { key: b"q".into() }).unwrap();
        data.delete_where(|key| key.starts_with(b"m"));
        assert!(fill(&mut data, ME, 'n') > 0);
        data.delete_where(|_| true);
        assert_eq!((data.bytes(), data.quota.written.len()), (0, 0));
    }

    #[test]
    fn keeps_reserved_bytes_free_of_keys() {
        let mut data = store(400);
        data.reserve(200);
        assert_eq!(data.apply(ME, set("k", &"x".repeat(200))), Err(Refused::Full { max: 400 }));
        data.reserve(0);
        data.apply(ME, set("k", &"x".repeat(200))).unwrap();
    }

    #[test]
    fn predicts_the_size_of_a_reply() {
        let mut data = store(1 << 20);
        data.apply(ME, set("k", "12345")).unwrap();
        data.apply(ME, Request::QueuePush { key: b"q".into(), value: b"123".into() }).unwrap();
        let compare = |key: &str, expected: &str, desired: &str| Request::CompareSet {
            key: key.into(),
            expected: expected.into(),
            desired: desired.into(),
        };
        for request in [
            Request::Get { key: b"k".into() },
            Request::Get { key: b"none".into() },
            Request::MultiGet { keys: vec![b"k".into(), b"none".into(), b"k".into()] },
            Request::ListKeys,
            compare("k", "no", "0123456789"),
            compare("none", "expected", ""),
            Request::QueuePop { key: b"q".into() },
        ] {
            let foretold = data.reply_bytes(&request);
            let mut bytes = Vec::new();
            data.apply(ME, request.clone()).unwrap().reply.unwrap().encode(&mut bytes);
            assert!(foretold >= bytes.len() && foretold <= bytes.len() + 8, "{request:?}: {foretold}, {bytes:?}");
        }
    }

    #[test]
    fn refuses_a_request_whose_reply_would_be_too_large() {
        let limits = Limits { max_reply: 100, ..Limits::default() };
        let mut data = Data::new(limits, 1 << 20);
        data.apply(ME, set("k", &"x".repeat(60))).unwrap();
        let twice = Request::MultiGet { keys: vec![b"k".into(), b"k".into()] };
        assert_eq!(data.apply(ME, twice), Err(Refused::ReplyTooLarge { got: 136, max: 100 }));
        let more = Request::Append { key: b"k".into(), value: vec![0; 60] };
        assert_eq!(data.apply(ME, more), Err(Refused::ReplyTooLarge { got: 120, max: 100 }));
    }

    #[test]
    fn counts_every_byte_that_is_added_or_removed() {
        let mut data = store(1 << 20);
        for (key, value) in [("a", "1"), ("b/c", "22"), ("a", "333")] {
            data.apply(ME, set(key, value)).unwrap();
        }
        data.apply(ME, Request::QueuePush { key: b"b/q".into(), value: b"4444".into() }).unwrap();
        assert_eq!(data.bytes(), (1 + 3 + 64) + (3 + 2 + 64) + (3 + 4 + 64));
        assert_eq!(data.delete_where(|key| key.starts_with(b"b/")), 2);
        assert_eq!(data.bytes(), 1 + 3 + 64);
    }

    fn keys(names: &[&str]) -> impl Iterator<Item = Key> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn ends_a_wait_with_its_last_key() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["a", "b", "a"]));
        assert_eq!(waiters.key_set(b"a"), []);
        assert_eq!(waiters.missing(ConnectionId(1)), [b"b"]);
        assert_eq!(waiters.key_set(b"b"), [ConnectionId(1)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn gives_a_queues_value_to_the_connection_that_waited_longest() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(3), keys(&["q", "other"]));
        waiters.begin(ConnectionId(2), keys(&["q"]));
        waiters.begin(ConnectionId(1), keys(&["q"]));
        assert_eq!(waiters.queue_pushed(b"q"), Some(ConnectionId(2)));
        assert_eq!(waiters.queue_pushed(b"q"), Some(ConnectionId(1)));
        assert_eq!(waiters.queue_pushed(b"q"), None);
        assert_eq!(waiters.key_set(b"other"), [ConnectionId(3)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn removes_a_wait_that_was_given_up() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["a", "b"]));
        assert!(waiters.end(ConnectionId(1)));
        assert!(!waiters.end(ConnectionId(1)));
        assert!(waiters.is_empty());
        assert_eq!(waiters.key_set(b"a"), []);
    }

    #[test]
    fn counts_a_key_once_even_if_several_connections_wait_for_it() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["long key", "b"]));
        let one = waiters.bytes();
        waiters.begin(ConnectionId(2), keys(&["long key", "b"]));
        assert_eq!(waiters.bytes(), one + 2 * EACH);
        assert_eq!(waiters.bytes_of(ConnectionId(1)), one);
        assert!(waiters.end(ConnectionId(1)));
        assert_eq!(waiters.bytes(), one, "its keys stay for the other connection");
        waiters.begin(ConnectionId(2), keys(&["b"]));
        assert_eq!(waiters.key_set(b"b"), [ConnectionId(2)]);
        assert!(waiters.is_empty());
    }
}

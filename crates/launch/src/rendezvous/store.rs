//! The operations that a rendezvous needs from a store, and a store in memory.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Notify;

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// A shared map of keys to bytes and to queues of bytes, like c10d's stores. Clones are handles to the same map. A
/// dropped future may or may not have had its effect, but must leave the handle usable.
pub trait Store: Clone + Send + Sync + 'static {
    /// The key's value, or `None`. Never waits for one.
    fn try_get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;
    /// The values of all these keys, in one request; `None` if one of them is missing. Never waits.
    fn try_get_all(&self, keys: &[String]) -> impl Future<Output = Result<Option<Vec<Vec<u8>>>, StoreError>> + Send;
    /// Sets the key.
    fn set(&self, key: &str, value: &[u8]) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Sets all these keys, in one request.
    fn set_all(&self, entries: &[(String, Vec<u8>)]) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Sets the key to `desired` if its value is `expected`, or if it is missing and `expected` is empty. Returns true
    /// if it did.
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// Adds to the number in the key (0 if it is missing) and returns the sum.
    fn add(&self, key: &str, amount: i64) -> impl Future<Output = Result<i64, StoreError>> + Send;
    /// Deletes the key and returns true if it existed. Does not delete a queue.
    fn delete(&self, key: &str) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// Appends the value to the key's queue.
    fn push(&self, key: &str, value: &[u8]) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Removes and returns the first value of the key's queue, or `None`. Never waits for one.
    fn try_pop(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;
    /// Waits until the key has a value or its queue is not empty, or until `timeout`. Returns true if so. It must not
    /// delay other requests.
    fn wait(&self, key: &str, timeout: Duration) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// The store's address, for messages.
    fn address(&self) -> String;
}

/// A store in this process, for a single agent (`--standalone` if workers do not need it) and for tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    map: BTreeMap<String, Vec<u8>>,
    queues: BTreeMap<String, VecDeque<Vec<u8>>>,
    /// The waiting tasks, by key.
    waiting: BTreeMap<String, Arc<Notify>>,
    dead: bool,
}

impl Held {
    fn has(&self, key: &str) -> bool {
        self.map.contains_key(key) || self.queues.contains_key(key)
    }

    fn put(&mut self, key: &str, value: &[u8]) {
        self.map.insert(key.to_owned(), value.to_vec());
        self.wake(key);
    }

    fn wake(&mut self, key: &str) {
        if let Some(waiting) = self.waiting.remove(key) {
            waiting.notify_waiters();
        }
    }
}

impl MemoryStore {
    /// Makes every further request fail, as if the process that hosts the store had ended.
    pub fn die(&self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.dead = true;
        std::mem::take(&mut held.waiting).into_values().for_each(|waiting| waiting.notify_waiters());
    }

    /// The names of all keys and queues, sorted.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<String> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = held.map.keys().chain(held.queues.keys()).cloned().collect();
        names.sort();
        names
    }

    fn held(&self) -> Result<MutexGuard<'_, Held>, StoreError> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.dead {
            false => Ok(held),
            true => Err(StoreError("the store has ended".to_owned())),
        }
    }
}

impl Store for MemoryStore {
    async fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.held()?.map.get(key).cloned())
    }

    async fn try_get_all(&self, keys: &[String]) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let held = self.held()?;
        Ok(keys.iter().map(|key| held.map.get(key).cloned()).collect())
    }

    async fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.held()?.put(key, value);
        Ok(())
    }

    async fn set_all(&self, entries: &[(String, Vec<u8>)]) -> Result<(), StoreError> {
        let mut held = self.held()?;
        entries.iter().for_each(|(key, value)| held.put(key, value));
        Ok(())
    }

    async fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<bool, StoreError> {
        let mut held = self.held()?;
        let same = held.map.get(key).map_or(expected.is_empty(), |value| value == expected);
        if same {
            held.put(key, desired);
        }
        Ok(same)
    }

    async fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        let mut held = self.held()?;
        let number = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).parse::<i64>().ok();
        let before = held.map.get(key).map_or(Some(0), number);
        let sum = before.and_then(|before| before.checked_add(amount));
        let sum = sum.ok_or_else(|| StoreError(format!("cannot add to the key `{key}`: it holds no number")))?;
        held.put(key, sum.to_string().as_bytes());
        Ok(sum)
    }

    async fn delete(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.held()?.map.remove(key).is_some())
    }

    async fn push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let mut held = self.held()?;
        held.queues.entry(key.to_owned()).or_default().push_back(value.to_vec());
        held.wake(key);
        Ok(())
    }

    async fn try_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let mut held = self.held()?;
        let Some(queue) = held.queues.get_mut(key) else { return Ok(None) };
        let front = queue.pop_front();
        if queue.is_empty() {
            held.queues.remove(key);
        }
        Ok(front)
    }

    async fn wait(&self, key: &str, timeout: Duration) -> Result<bool, StoreError> {
        let there = async {
            loop {
                let waiting = {
                    let mut held = self.held()?;
                    if held.has(key) {
                        return Ok(true);
                    }
                    let waiting = held.waiting.entry(key.to_owned()).or_default();
                    // Created while the lock is held, so that no change is missed.
                    Arc::clone(waiting).notified_owned()
                };
                waiting.await;
            }
        };
        tokio::time::timeout(timeout, there).await.unwrap_or(Ok(false))
    }

    fn address(&self) -> String {
        "this process".to_owned()
    }
}

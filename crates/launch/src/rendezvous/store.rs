//! The few things that a rendezvous asks of a store, and a store in memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;

/// A request that did not come about.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// A shared map of keys to bytes, as c10d's stores are. Clones are handles on the same map. A future that is dropped
/// half-way may or may not have had its effect, but must leave the handle usable.
pub trait Store: Clone + Send + Sync + 'static {
    /// The key's value; `None` where it has none. Never waits for one.
    fn try_get(&self, key: &str) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;
    /// Gives the key this value.
    fn set(&self, key: &str, value: &[u8]) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Gives the key the value `desired` if it has `expected`, or if it has none and `expected` is empty. Whether it did.
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// Adds to the number that the key holds (0 where it has none), and returns the sum.
    fn add(&self, key: &str, amount: i64) -> impl Future<Output = Result<i64, StoreError>> + Send;
    /// Takes the key away, if it is there.
    fn delete(&self, key: &str) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Waits until the key has a value, or `timeout` is over. Whether it has. Other requests must not queue behind it.
    fn wait(&self, key: &str, timeout: Duration) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// Where it is, for messages.
    fn address(&self) -> String;
}

/// A store in this process. It serves one agent alone (`--standalone` without workers' store needs), and tests.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    map: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Counts the changes; a dead store's is `None`.
    changes: watch::Sender<Option<u64>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let changes = watch::Sender::new(Some(0));
        MemoryStore { inner: Arc::new(Inner { map: Mutex::default(), changes }) }
    }
}

impl MemoryStore {
    /// From now on every request fails, as when the process that hosts the store has ended.
    pub fn die(&self) {
        self.inner.changes.send_replace(None);
    }

    fn map(&self) -> Result<MutexGuard<'_, BTreeMap<String, Vec<u8>>>, StoreError> {
        match *self.inner.changes.borrow() {
            Some(_) => Ok(self.inner.map.lock().unwrap_or_else(PoisonError::into_inner)),
            None => Err(StoreError("the store has ended".to_owned())),
        }
    }

    fn changed(&self) {
        self.inner.changes.send_modify(|count| *count = count.map(|count| count + 1));
    }
}

impl Store for MemoryStore {
    async fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map()?.get(key).cloned())
    }

    async fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.map()?.insert(key.to_owned(), value.to_vec());
        self.changed();
        Ok(())
    }

    async fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<bool, StoreError> {
        let mut map = self.map()?;
        let same = map.get(key).map_or(expected.is_empty(), |value| value == expected);
        if same {
            map.insert(key.to_owned(), desired.to_vec());
        }
        drop(map);
        self.changed();
        Ok(same)
    }

    async fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        let mut map = self.map()?;
        let number = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).parse::<i64>().ok();
        let held = map.get(key).map_or(Some(0), number);
        let sum = held.and_then(|held| held.checked_add(amount));
        let sum = sum.ok_or_else(|| StoreError(format!("cannot add to the key `{key}`: it holds no number")))?;
        map.insert(key.to_owned(), sum.to_string().into_bytes());
        drop(map);
        self.changed();
        Ok(sum)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.map()?.remove(key);
        self.changed();
        Ok(())
    }

    async fn wait(&self, key: &str, timeout: Duration) -> Result<bool, StoreError> {
        let mut changes = self.inner.changes.subscribe();
        let held = async {
            loop {
                changes.borrow_and_update();
                if self.map()?.contains_key(key) {
                    return Ok(true);
                }
                // The sender lives as long as this handle.
                let _ = changes.changed().await;
            }
        };
        tokio::time::timeout(timeout, held).await.unwrap_or(Ok(false))
    }

    fn address(&self) -> String {
        "this process".to_owned()
    }
}

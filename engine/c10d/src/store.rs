//! Stores: small shared maps through which ranks find each other.
//!
//! Not here: the protocol. libtorch implements TCPStore's server and client.

use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, Bytes, Exception, StoreHandle};

/// c10d's default timeout for every blocking call of a store (Store.hpp, `kDefaultTimeout`).
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// A key-value store that several processes (or, for [`Store::hash`], threads) share.
///
/// Keys and values are bytes; by convention keys are UTF-8. [`add`](Store::add) stores its value as a decimal string.
///
/// # Errors
/// Every operation: `Timeout` if a key does not appear within the timeout, or the host does not answer; `PeerGone` if the host has closed
/// the connection. An operation that this kind of store lacks fails, too. The error names the operation, the key, the store and the
/// elapsed time.
#[derive(Debug)]
pub struct Store {
    handle: NonNull<StoreHandle>,
    name: String,
    port: Option<u16>,
}

// SAFETY: every c10d store guards its state with a mutex (TCPStore::activeOpLock_, FileStore::activeFileOpLock_,
// HashStore::m_; PrefixStore only adds a prefix), and no state is tied to the thread that created it.
unsafe impl Send for Store {}
// SAFETY: as above; the timeout, which no mutex guards, is written only before the store is returned.
unsafe impl Sync for Store {}

/// Options of a TCPStore.
#[derive(Clone, Debug)]
pub struct TcpStoreOptions {
    /// Whether this process hosts the server.
    pub host_server: bool,
    /// The number of clients, including the host's own, that the host waits for before the constructor returns. Clients
    /// that set it announce themselves and do not wait. With `None`, a process neither announces itself nor waits.
    pub wait_for: Option<usize>,
    /// Timeout of connecting, and default timeout of every blocking call.
    pub timeout: Duration,
    /// Allows several hosts in one process to share a server at the same address, as `init_process_group` does.
    pub multi_tenant: bool,
}

impl Default for TcpStoreOptions {
    fn default() -> Self {
        TcpStoreOptions { host_server: false, wait_for: None, timeout: DEFAULT_STORE_TIMEOUT, multi_tenant: false }
    }
}

impl Store {
    /// Opens a TCPStore at `host:port`. A host may pass port 0 and read the actual port from [`Store::port`].
    ///
    /// # Errors
    /// `PeerGone` or `Timeout` if no server answers before the deadline, `BadArgument` if the host's port is in use.
    pub fn tcp(host: &str, port: u16, options: &TcpStoreOptions) -> Result<Self> {
        let name = format!("TCPStore at {host}:{port}");
        let begun = Instant::now();
        if port == 0 && !options.host_server {
            return Err(Error::bad_argument(format!("connect to {name}"), "port 0 only makes sense for the host"));
        }
        let mut bound = 0;
        let handle = ffi::made(|out| {
            // SAFETY: `host` outlives the call; `out` and `bound` may be written.
            unsafe {
                ffi::lc_store_tcp(
                    Bytes::new(host.as_bytes()),
                    port,
                    options.host_server,
                    options.wait_for.map_or(-1, |n| n as i64),
                    options.wait_for.is_some(),
                    options.multi_tenant,
                    millis(options.timeout),
                    out,
                    &mut bound,
                )
            }
        })
        .map_err(|exception| {
            let verb = if options.host_server { "host" } else { "connect to" };
            let error = Error::new(format!("{verb} {name}"), exception).after(begun.elapsed());
            if options.host_server { explain_taken_port(error) } else { error }
        })?;
        Ok(Store { handle, name: format!("TCPStore at {host}:{bound}"), port: Some(bound) })
    }

    /// Opens a store in a file that all processes can access; `num_workers` processes share it, and the last one
    /// removes it.
    pub fn file(path: &Path, num_workers: usize) -> Result<Self> {
        let name = format!("FileStore at {}", path.display());
        // In a missing folder c10d would retry until its timeout; fail immediately instead.
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(Error::bad_argument(format!("open {name}"), format!("no folder {}", folder.display())));
        }
        let path = path.as_os_str().as_encoded_bytes();
        let workers = i32::try_from(num_workers).unwrap_or(i32::MAX);
        Self::made(name, |out| {
            // SAFETY: `path` outlives the call and `out` may be written.
            unsafe { ffi::lc_store_file(Bytes::new(path), workers, millis(DEFAULT_STORE_TIMEOUT), out) }
        })
    }

    /// Creates a store in this process's memory, for ranks that are threads.
    pub fn hash() -> Result<Self> {
        // SAFETY: `out` may be written.
        Self::made("HashStore".into(), |out| unsafe { ffi::lc_store_hash(millis(DEFAULT_STORE_TIMEOUT), out) })
    }

    /// A view of this store that adds `prefix` and a slash to every key.
    pub fn prefix(&self, prefix: &str) -> Result<Self> {
        let base = self.handle.as_ptr();
        let mut store = Self::made(format!("{} under {prefix:?}", self.name), |out| {
            // SAFETY: `base` is alive as long as self; the prefix store takes its own reference.
            unsafe { ffi::lc_store_prefix(Bytes::new(prefix.as_bytes()), base, out) }
        })?;
        store.port = self.port;
        Ok(store)
    }

    /// Another handle to the same data. It has its own connection if the store uses connections, so that a blocking
    /// call on one handle does not delay the other.
    pub fn try_clone(&self) -> Result<Self> {
        let base = self.handle.as_ptr();
        // SAFETY: `base` is alive as long as self, and `out` may be written.
        let mut store = Self::made(self.name.clone(), |out| unsafe { ffi::lc_store_clone(base, out) })?;
        store.port = self.port;
        Ok(store)
    }

    /// The TCP port, for a TCPStore and views of it.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The kind and the address of the store, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes a value.
    pub fn set(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        self.call("set", key, |store| {
            // SAFETY: handle and bytes outlive the call.
            unsafe { ffi::lc_store_set(store, Bytes::new(key.as_bytes()), Bytes::new(value.as_ref())) }.check()
        })
    }

    /// Reads a value; waits for the key up to the store's timeout.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.call("get", key, |store| {
            // SAFETY: handle and bytes outlive the call; `out` may be written.
            ffi::blobs(|out| unsafe { ffi::lc_store_get(store, Bytes::new(key.as_bytes()), out) }).map(only)
        })
    }

    /// Adds to a counter, which starts at 0, and returns the new value.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        let mut sum = 0;
        self.call("add", key, |store| {
            // SAFETY: handle and bytes outlive the call; `sum` may be written.
            unsafe { ffi::lc_store_add(store, Bytes::new(key.as_bytes()), delta, &mut sum) }.check()
        })?;
        Ok(sum)
    }

    /// Waits until all keys exist. After the timeout the error names the missing keys.
    pub fn wait<K: AsRef<str>>(&self, keys: &[K], timeout: Duration) -> Result<()> {
        let names: Vec<&[u8]> = keys.iter().map(|k| k.as_ref().as_bytes()).collect();
        let list = Bytes::list(&names);
        let waited = self.call("wait", &join(keys), |store| {
            // SAFETY: handle and keys outlive the call.
            unsafe { ffi::lc_store_wait(store, list.as_ptr(), list.len(), millis(timeout)) }.check()
        });
        waited.map_err(|error| match self.missing(keys) {
            Ok(missing) if !missing.is_empty() => {
                let detail = format!("still missing: {}: {}", missing.join(", "), error.detail());
                error.with_detail(detail)
            }
            _ => error,
        })
    }

    /// Returns true if all keys exist now.
    pub fn check<K: AsRef<str>>(&self, keys: &[K]) -> Result<bool> {
        let names: Vec<&[u8]> = keys.iter().map(|k| k.as_ref().as_bytes()).collect();
        let list = Bytes::list(&names);
        let mut there = false;
        self.call("check", &join(keys), |store| {
            // SAFETY: handle and keys outlive the call; `there` may be written.
            unsafe { ffi::lc_store_check(store, list.as_ptr(), list.len(), &mut there) }.check()
        })?;
        Ok(there)
    }

    /// Writes `desired` if the current value is `expected` (empty: if the key is missing) and returns the resulting
    /// value.
    pub fn compare_set(&self, key: &str, expected: impl AsRef<[u8]>, desired: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let (expected, desired) = (Bytes::new(expected.as_ref()), Bytes::new(desired.as_ref()));
        self.call("compare_set", key, |store| {
            // SAFETY: handle and bytes outlive the call; `out` may be written.
            ffi::blobs(|out| unsafe {
                ffi::lc_store_compare_set(store, Bytes::new(key.as_bytes()), expected, desired, out)
            })
            .map(only)
        })
    }

    /// Removes a key and returns true if it existed. A FileStore does not report this reliably.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let mut was_there = false;
        self.call("delete", key, |store| {
            // SAFETY: handle and bytes outlive the call; `was_there` may be written.
            unsafe { ffi::lc_store_delete(store, Bytes::new(key.as_bytes()), &mut was_there) }.check()
        })?;
        Ok(was_there)
    }

    /// Appends to a value, which is initially empty. A FileStore does not support it.
    pub fn append(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        self.call("append", key, |store| {
            // SAFETY: handle and bytes outlive the call.
            unsafe { ffi::lc_store_append(store, Bytes::new(key.as_bytes()), Bytes::new(value.as_ref())) }.check()
        })
    }

    /// Reads several values in one round trip. A FileStore does not support it.
    pub fn multi_get<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<Vec<u8>>> {
        let names: Vec<&[u8]> = keys.iter().map(|k| k.as_ref().as_bytes()).collect();
        let list = Bytes::list(&names);
        self.call("multi_get", &join(keys), |store| {
            // SAFETY: handle and keys outlive the call; `out` may be written.
            ffi::blobs(|out| unsafe { ffi::lc_store_multi_get(store, list.as_ptr(), list.len(), out) })
        })
    }

    /// Writes several values in one round trip. A FileStore does not support it.
    pub fn multi_set<K: AsRef<str>, V: AsRef<[u8]>>(&self, entries: &[(K, V)]) -> Result<()> {
        let keys: Vec<&str> = entries.iter().map(|(k, _)| k.as_ref()).collect();
        let values: Vec<&[u8]> = entries.iter().map(|(_, v)| v.as_ref()).collect();
        let names: Vec<&[u8]> = keys.iter().map(|k| k.as_bytes()).collect();
        let (key_list, value_list) = (Bytes::list(&names), Bytes::list(&values));
        self.call("multi_set", &join(&keys), |store| {
            // SAFETY: handle, keys and values outlive the call, and both lists are `entries.len()` long.
            unsafe { ffi::lc_store_multi_set(store, key_list.as_ptr(), value_list.as_ptr(), key_list.len()) }.check()
        })
    }

    /// The number of keys in the whole store, regardless of the prefix. It includes internal keys of TCPStore and
    /// FileStore.
    pub fn num_keys(&self) -> Result<usize> {
        let mut n = 0;
        // SAFETY: the handle outlives the call; `n` may be written.
        self.call("num_keys", "", |store| unsafe { ffi::lc_store_num_keys(store, &mut n) }.check())?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// The names of the keys below this store's prefix, without it.
    pub fn list_keys(&self) -> Result<Vec<String>> {
        // SAFETY: the handle outlives the call; `out` may be written.
        let keys =
            self.call("list_keys", "", |store| ffi::blobs(|out| unsafe { ffi::lc_store_list_keys(store, out) }))?;
        Ok(keys.into_iter().map(|key| String::from_utf8_lossy(&key).into_owned()).collect())
    }

    /// Appends a value to a queue, which is created with its first value. A FileStore does not support it.
    pub fn queue_push(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        self.call("queue_push", key, |store| {
            // SAFETY: handle and bytes outlive the call.
            unsafe { ffi::lc_store_queue_push(store, Bytes::new(key.as_bytes()), Bytes::new(value.as_ref())) }.check()
        })
    }

    /// Takes the first value of a queue. If there is none, it waits for one until [`timeout`](Self::timeout). A FileStore
    /// does not support it.
    pub fn queue_pop(&self, key: &str) -> Result<Vec<u8>> {
        self.call("queue_pop", key, |store| {
            // SAFETY: handle and bytes outlive the call; `out` may be written.
            ffi::blobs(|out| unsafe { ffi::lc_store_queue_pop(store, Bytes::new(key.as_bytes()), true, out) }).map(only)
        })
    }

    /// The number of values in a queue. A FileStore does not support it.
    pub fn queue_len(&self, key: &str) -> Result<usize> {
        let mut n = 0;
        self.call("queue_len", key, |store| {
            // SAFETY: handle and bytes outlive the call; `n` may be written.
            unsafe { ffi::lc_store_queue_len(store, Bytes::new(key.as_bytes()), &mut n) }.check()
        })?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// Changes the timeout of [`Store::get`] and [`Store::queue_pop`], for all handles that share this connection.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        // SAFETY: the handle outlives the call.
        self.call("set_timeout", "", |store| unsafe { ffi::lc_store_set_timeout(store, millis(timeout)) }.check())
    }

    /// The timeout of [`Store::get`].
    pub fn timeout(&self) -> Duration {
        // SAFETY: the handle is alive as long as self.
        let ms = unsafe { ffi::lc_store_timeout_ms(self.handle.as_ptr()) };
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }

    pub(crate) fn as_ptr(&self) -> *const StoreHandle {
        self.handle.as_ptr()
    }

    fn missing<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        for key in keys {
            if !self.check(&[key.as_ref()])? {
                missing.push(key.as_ref().to_owned());
            }
        }
        Ok(missing)
    }

    fn made(name: String, make: impl FnOnce(*mut *mut StoreHandle) -> ffi::Status) -> Result<Self> {
        match ffi::made(make) {
            Ok(handle) => Ok(Store { handle, name, port: None }),
            Err(exception) => Err(Error::new(format!("open {name}"), exception)),
        }
    }

    fn call<T>(
        &self,
        operation: &str,
        key: &str,
        call: impl FnOnce(*const StoreHandle) -> Result<T, Exception>,
    ) -> Result<T> {
        let begun = Instant::now();
        call(self.as_ptr()).map_err(|exception| {
            let what = if key.is_empty() { operation.to_owned() } else { format!("{operation} {key:?}") };
            Error::new(what, exception).with_peer(Some(self.name.clone())).after(begun.elapsed())
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the handle came from the shim and is freed once. Groups that use the store hold their own references.
        unsafe { ffi::lc_store_free(ptr::NonNull::as_ptr(self.handle)) };
    }
}

/// Explains a port that another process listens on: the caller can choose another.
fn explain_taken_port(error: Error) -> Error {
    if !error.detail().contains("EADDRINUSE") {
        return error;
    }
    let detail = format!("the port is taken: choose another, or 0 for any free one: {}", error.detail());
    error.with_detail(detail).with_verdict(ErrorKind::BadArgument)
}

/// The longest timeout that the shim gets: c10d adds it to the time of day in nanoseconds, which overflows after 292
/// years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Milliseconds for the shim: at least one, because c10d takes 0 for "forever", and at most ten years.
pub(crate) fn millis(timeout: Duration) -> i64 {
    i64::try_from(timeout.min(LONGEST).as_millis()).unwrap_or(i64::MAX).max(1)
}

fn join<K: AsRef<str>>(keys: &[K]) -> String {
    keys.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

/// The value of a reply that has exactly one.
fn only(mut values: Vec<Vec<u8>>) -> Vec<u8> {
    values.pop().unwrap_or_default()
}

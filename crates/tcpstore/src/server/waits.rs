//! The keys that clients wait for, for the process that hosts the server. It is notified of changes, so it need not
//! poll.

use tokio::sync::watch;

use super::waiters::WaitedKeys;
use crate::wire::user_key;

/// The keys with one prefix that clients wait for.
#[derive(Debug)]
pub struct Waits(watch::Receiver<WaitedKeys>);

impl Waits {
    pub(super) fn new(keys: watch::Receiver<WaitedKeys>) -> Self {
        Self(keys)
    }

    /// Returns once the keys have changed since the last call of [`Self::keys`]; never after the server has stopped.
    /// Cancel safe.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// The keys, as clients name them, sorted.
    pub fn keys(&mut self) -> Vec<String> {
        self.0.borrow_and_update().iter().map(|key| user_key(key)).collect()
    }
}

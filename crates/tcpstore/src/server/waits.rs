//! Which keys are waited for, as the server's host sees it. It learns of each change, so it need not ask again and again.

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

    /// Returns once they have changed since [`Self::keys`] was called last; never, once the server is gone. Cancelling loses
    /// nothing.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// The keys, named as clients name them, sorted.
    pub fn keys(&mut self) -> Vec<String> {
        self.0.borrow_and_update().iter().map(|key| user_key(key)).collect()
    }
}

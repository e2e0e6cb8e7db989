//! The real store: a [`tcpstore::Client`]. Not here: connecting it.

use std::time::Duration;

use tcpstore::{Client, Error, Kind};

use super::store::{Store, StoreError};

/// A TCPStore with the operations of a rendezvous.
#[derive(Clone, Debug)]
pub struct TcpStore(Client);

impl From<Client> for TcpStore {
    fn from(client: Client) -> Self {
        TcpStore(client)
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        StoreError(format!("failed to {error}"))
    }
}

impl Store for TcpStore {
    async fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.try_get(key).await?)
    }

    async fn try_get_all(&self, keys: &[String]) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        Ok(self.0.try_multi_get(&keys).await?)
    }

    async fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Ok(self.0.set(key, value).await?)
    }

    async fn set_all(&self, entries: &[(String, Vec<u8>)]) -> Result<(), StoreError> {
        let entries: Vec<(&str, &[u8])> = entries.iter().map(|(key, value)| (key.as_str(), value.as_slice())).collect();
        Ok(self.0.multi_set(&entries).await?)
    }

    async fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<bool, StoreError> {
        // For a missing key the store returns `expected`, which never equals `desired` here.
        Ok(self.0.compare_set(key, expected, desired).await? == desired)
    }

    async fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        Ok(self.0.add(key, amount).await?)
    }

    async fn delete(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.0.delete(key).await?)
    }

    async fn push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Ok(self.0.queue_push(key, value).await?)
    }

    async fn try_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.0.try_queue_pop(key).await?)
    }

    async fn wait(&self, key: &str, timeout: Duration) -> Result<bool, StoreError> {
        match self.0.wait(&[key], timeout).await {
            Ok(()) => Ok(true),
            // A timeout is not an error: the caller reads next, and that request has its own deadline.
            Err(error) if matches!(error.kind, Kind::Missing { .. } | Kind::TimedOut | Kind::Mute) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn address(&self) -> String {
        self.0.peer().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tcpstore::{Options as ServerOptions, Server};
    use tokio::time::{sleep, timeout};

    use super::super::node::tests::{job, node};
    use super::super::*;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn serve() -> (Server, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (Server::start(listener, ServerOptions::default()).unwrap(), port)
    }

    async fn agent(port: u16, host: &str) -> Rendezvous<TcpStore> {
        let client = Client::connect("127.0.0.1", port, LIMIT).await.unwrap();
        Rendezvous::new(client.into(), node(0, host), job(1, 2), Options::default())
    }

    async fn two(port: u16) -> [Rendezvous<TcpStore>; 2] {
        let (mut a, mut b) = (agent(port, "a").await, agent(port, "b").await);
        let (first, second) = tokio::join!(a.join(), b.join());
        assert_eq!((first.unwrap().group_rank, second.unwrap().world_size), (0, 2));
        [a, b]
    }

    #[tokio::test]
    async fn agents_join_and_leave_through_a_real_store() {
        let (server, port) = serve();
        let [mut a, mut b] = two(port).await;
        let (change, _) = tokio::join!(a.watch(), b.request_restart("rank 1 was killed"));
        assert!(matches!(change, Change::PeerRestarts { .. }), "{change:?}");
        let (first, second) = tokio::join!(a.join(), b.join());
        assert_eq!((first.unwrap().number, second.unwrap().number), (1, 1));
        assert_eq!(a.succeed().await, Ok(Succeeded::Recorded));
        let (passed, _) = tokio::join!(a.exit_barrier(LIMIT), b.succeed());
        assert_eq!(passed, Barrier::AllDone);
        server.shutdown();
    }

    #[tokio::test]
    async fn the_host_sees_immediately_that_an_agent_is_gone() {
        let (server, port) = serve();
        let [mut a, b] = two(port).await;
        let (mut connected, id) = (ConnectedNodes::new("none"), b.me().id);
        let waited_for = || server.peers().into_iter().flat_map(|peer| peer.waits_for).collect::<Vec<_>>();
        let shown = async {
            while !connected.contains(id) {
                connected.update(waited_for().iter().map(String::as_str));
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, shown).await.unwrap();
        drop(b);
        let gone = async {
            loop {
                let gone = connected.update(waited_for().iter().map(String::as_str));
                if gone.contains(&id) {
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, gone).await.unwrap();
        a.disconnects().report(id);
        assert!(matches!(a.watch().await, Change::NodeLost { node, .. } if node.host == "b"));
        assert_eq!(a.join().await.unwrap().world_size, 1);
        server.shutdown();
    }

    #[tokio::test]
    async fn reports_that_the_store_has_ended() {
        let (server, port) = serve();
        let [mut a, _b] = two(port).await;
        server.shutdown();
        let Change::StoreLost(lost) = a.watch().await else { panic!("not lost") };
        assert_eq!(lost.address, format!("127.0.0.1:{port}"));
        assert!(lost.error.starts_with("failed to "), "{}", lost.error);
    }
}

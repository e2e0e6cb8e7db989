//! Many agents with a counting store in memory: the cost of one agent must not depend on the number of agents.
//!
//! The clock moves only when all tasks wait. Agents start at irregular times within two seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;
use crate::rendezvous::MemoryStore;
use crate::rendezvous::node::tests::{job, node};

/// One agent's handle to the store, which counts its traffic.
#[derive(Clone, Debug, Default)]
struct Counted {
    store: MemoryStore,
    spent: Arc<Spent>,
}

#[derive(Debug, Default)]
struct Spent {
    operations: AtomicU64,
    /// Bytes of keys and values, in both directions.
    bytes: AtomicU64,
}

impl Counted {
    /// Counts one request, and lets other tasks run.
    async fn count(&self, bytes: usize) {
        self.spent.operations.fetch_add(1, Ordering::Relaxed);
        self.got(bytes);
        yield_now().await;
    }

    fn got(&self, bytes: usize) {
        self.spent.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn spent(&self) -> [u64; 2] {
        [self.spent.operations.load(Ordering::Relaxed), self.spent.bytes.load(Ordering::Relaxed)]
    }
}

impl Store for Counted {
    async fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.count(key.len()).await;
        let value = self.store.try_get(key).await?;
        self.got(value.as_ref().map_or(0, Vec::len));
        Ok(value)
    }

    async fn try_get_all(&self, keys: &[String]) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        self.count(keys.iter().map(String::len).sum()).await;
        let values = self.store.try_get_all(keys).await?;
        self.got(values.iter().flatten().map(Vec::len).sum());
        Ok(values)
    }

    async fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.count(key.len() + value.len()).await;
        self.store.set(key, value).await
    }

    async fn set_all(&self, entries: &[(String, Vec<u8>)]) -> Result<(), StoreError> {
        self.count(entries.iter().map(|(key, value)| key.len() + value.len()).sum()).await;
        self.store.set_all(entries).await
    }

    async fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<bool, StoreError> {
        self.count(key.len() + expected.len() + desired.len()).await;
        self.store.compare_set(key, expected, desired).await
    }

    async fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        self.count(key.len() + 8).await;
        self.store.add(key, amount).await
    }

    async fn delete(&self, key: &str) -> Result<bool, StoreError> {
        self.count(key.len()).await;
        self.store.delete(key).await
    }

    async fn push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.count(key.len() + value.len()).await;
        self.store.push(key, value).await
    }

    async fn try_pop(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.count(key.len()).await;
        let value = self.store.try_pop(key).await?;
        self.got(value.as_ref().map_or(0, Vec::len));
        Ok(value)
    }

    async fn wait(&self, key: &str, timeout: Duration) -> Result<bool, StoreError> {
        self.count(key.len()).await;
        self.store.wait(key, timeout).await
    }

    fn address(&self) -> String {
        self.store.address()
    }
}

/// Runs an agent from the first request to the end, with one restart, and returns its cost.
async fn live(at: usize, count: usize, store: Counted) -> [u64; 2] {
    let mut node = node(0, &format!("n{at}"));
    node.hosts_store = at == 0;
    let options = Options { join_timeout: Duration::from_secs(3600), ..Options::default() };
    let mut agent = Rendezvous::new(store.clone(), node, job(count, count), options);
    sleep(Duration::from_millis(at as u64 * 7919 % 2000)).await;
    for restart in [true, false] {
        let round = agent.join().await.unwrap();
        assert_eq!((round.nodes, round.group_rank), (count, at));
        if at == 0 {
            agent.publish_master(&round, "n0:1").await.unwrap();
        } else {
            agent.await_master(&round, Duration::from_secs(60)).await.unwrap();
        }
        if restart && at == count - 1 {
            agent.request_restart("rank 0 was killed").await.unwrap();
        } else if restart {
            assert!(matches!(agent.watch().await, Change::PeerRestarts { .. }));
        }
    }
    assert_eq!(agent.succeed().await, Ok(Succeeded::Recorded));
    assert_eq!(agent.exit_barrier(Duration::from_secs(60)).await, Barrier::AllDone);
    assert_eq!(agent.finish().await, []);
    store.spent()
}

/// The largest cost of a follower, and the leader's cost per node.
async fn spent(count: usize) -> [[u64; 2]; 2] {
    let (store, begun) = (MemoryStore::default(), Instant::now());
    let start = |at| tokio::spawn(live(at, count, Counted { store: store.clone(), ..Counted::default() }));
    let agents: Vec<_> = (0..count).map(start).collect();
    let mut all = Vec::new();
    for agent in agents {
        all.push(agent.await.unwrap());
    }
    let worst = |what: usize| all[1..].iter().map(|spent| spent[what]).max().unwrap();
    let (follower, leader) = ([worst(0), worst(1)], all[0].map(|spent| spent / count as u64));
    println!("{count} agents in {:?}: a follower {follower:?}, the leader for each {leader:?}", begun.elapsed());
    [follower, leader]
}

#[tokio::test(start_paused = true)]
async fn the_cost_of_an_agent_does_not_depend_on_the_number_of_agents() {
    let few = spent(250).await;
    for count in [1000, 4000] {
        let many = spent(count).await;
        for ((many, few), who) in many.iter().zip(few).zip(["a follower", "the leader for each"]) {
            let [operations, bytes] = *many;
            assert!(operations <= few[0] + few[0] / 4, "{who}, {count} agents: {operations} against {}", few[0]);
            assert!(bytes <= few[1] + few[1] / 4, "{who}, {count} agents: {bytes} bytes against {}", few[1]);
        }
    }
}

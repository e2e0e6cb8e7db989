//! The driver with a store in memory, and a clock that only moves when all tasks wait.

use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::rendezvous::header::{self, Header};
use crate::rendezvous::node::tests::{job, node};
use crate::rendezvous::{MemoryStore, Refusal, Request, Want};

type Agent = Rendezvous<MemoryStore>;

fn agent(store: &MemoryStore, host: &str, min: usize, max: usize) -> Agent {
    Rendezvous::new(store.clone(), node(0, host), job(min, max), Options::default())
}

async fn two(store: &MemoryStore) -> (Agent, Agent, [Round; 2]) {
    let (mut a, mut b) = (agent(store, "a", 2, 2), agent(store, "b", 2, 2));
    let (first, second) = tokio::join!(a.join(), b.join());
    (a, b, [first.unwrap(), second.unwrap()])
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn forms_a_round_immediately_when_all_have_come() {
    let begun = Instant::now();
    let (_a, _b, [first, second]) = two(&MemoryStore::default()).await;
    assert_eq!((first.first.host.as_str(), &first.first), ("a", &second.first));
    assert_eq!((first.ids, second.ids), (vec![1, 2], vec![2]));
    assert_eq!((first.group_rank, second.group_rank, first.world_size, first.number), (0, 1, 2, 0));
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waits_for_last_call_once_and_only_for_the_first_round() {
    let store = MemoryStore::default();
    let (mut a, begun) = (agent(&store, "a", 1, 2), Instant::now());
    let reasons = a.reasons();
    assert_eq!(a.join().await.unwrap().world_size, 1);
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(*reasons.borrow(), "all of 1 nodes have come (at most 2)");
    a.request_restart("rank 0 exited with code 1").await.unwrap();
    let round = a.join().await.unwrap();
    assert_eq!((round.number, begun.elapsed().as_secs()), (1, 30));
    assert_eq!(round.cause.text(), "node 1 (a, pid 100) starts its workers again: rank 0 exited with code 1");
}

#[tokio::test(start_paused = true)]
async fn admits_a_late_node_with_a_new_round() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 1, 2), agent(&store, "b", 1, 2));
    assert_eq!(a.join().await.unwrap().world_size, 1);
    let came = Instant::now();
    let grown = async {
        let change = a.watch().await;
        assert_eq!(came.elapsed(), Duration::ZERO, "it did not see the change key");
        assert!(matches!(&change, Change::Newcomers { node } if node.host == "b"), "{change:?}");
        a.join().await.unwrap()
    };
    let (first, second) = tokio::join!(grown, b.join());
    assert_eq!((first.group_rank, first.world_size, second.unwrap().group_rank), (0, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn notices_a_lost_node_within_its_lease_and_admits_a_spare() {
    let store = MemoryStore::default();
    let (mut a, b, _) = two(&store).await;
    let mut spare = agent(&store, "c", 2, 2);
    let spare = tokio::spawn(async move { (spare.join().await, spare) });
    sleep(secs(700)).await; // longer than join_timeout: a spare may wait
    let died = Instant::now();
    drop(b);
    let Change::NodeLost { node, why } = a.watch().await else { panic!("not lost") };
    assert_eq!(node.host, "b");
    assert!(why.starts_with("no heartbeat for 15."), "{why}");
    assert!(died.elapsed() < secs(18), "{:?}", died.elapsed());
    let round = a.join().await.unwrap();
    assert_eq!((round.number, round.nodes, round.first.host.as_str()), (1, 2, "a"));
    assert_eq!(spare.await.unwrap().0.unwrap().group_rank, 1);
}

#[tokio::test(start_paused = true)]
async fn notices_a_disconnected_node_immediately() {
    let (mut a, b, _) = two(&MemoryStore::default()).await;
    let (id, died) = (b.me().id, Instant::now());
    drop(b);
    a.disconnects().report(id);
    let change = a.watch().await;
    assert_eq!(change.to_string(), "node 2 (b, pid 100) was lost: its connection to the store was closed");
    assert_eq!(died.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn announces_a_restart_and_leaving_immediately() {
    let (mut a, mut b, _) = two(&MemoryStore::default()).await;
    let asked = Instant::now();
    let (change, _) = tokio::join!(a.watch(), b.request_restart("rank 1 was killed"));
    assert!(matches!(&change, Change::PeerRestarts { reason, .. } if reason == "rank 1 was killed"), "{change:?}");
    let (first, second) = tokio::join!(a.join(), b.join());
    assert_eq!((first.unwrap().group_rank, second.unwrap().number), (0, 1));
    let (change, _) = tokio::join!(a.watch(), b.leave("SIGTERM"));
    assert!(matches!(&change, Change::NodeLeft { why, .. } if why == "SIGTERM"), "{change:?}");
    assert!(asked.elapsed() < secs(1), "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ends_the_job_for_all_with_the_root_cause_and_refuses_newcomers_with_it() {
    let store = MemoryStore::default();
    let (mut a, mut b, _) = two(&store).await;
    let message = "loss is NaN".to_owned();
    let root = RootCause { rank: 1, local_rank: 0, host: "b".into(), pid: 7, exit_code: 3, message };
    let (change, _) = tokio::join!(a.watch(), b.close("no restarts are left", Some(root.clone())));
    let Change::Closed(closing) = change else { panic!("{change:?}") };
    assert_eq!((closing.by.host.as_str(), closing.root_cause), ("b", Some(root)));
    let text = agent(&store, "c", 2, 2).join().await.unwrap_err().to_string();
    assert!(text.ends_with("rank 1 (local_rank 0, pid 7) on b exited with code 3: loss is NaN"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn passes_the_exit_barrier_when_all_have_succeeded_and_names_nodes_that_have_not() {
    let (mut a, mut b, _) = two(&MemoryStore::default()).await;
    assert_eq!(a.succeed().await, Ok(Succeeded::Recorded));
    let waited = a.exit_barrier(secs(5)).await;
    assert!(matches!(&waited, Barrier::TimedOut(nodes) if nodes.len() == 1 && nodes[0].host == "b"), "{waited:?}");
    let (passed, said) = tokio::join!(a.exit_barrier(secs(5)), b.succeed());
    assert_eq!((passed, said), (Barrier::AllDone, Ok(Succeeded::Recorded)));
    assert_eq!(b.exit_barrier(secs(5)).await, Barrier::AllDone);
}

#[tokio::test(start_paused = true)]
async fn makes_a_node_that_succeeded_too_late_run_again() {
    let (mut a, mut b, _) = two(&MemoryStore::default()).await;
    b.request_restart("rank 1 was killed").await.unwrap();
    assert!(
        matches!(a.succeed().await, Ok(Succeeded::Changed(change)) if matches!(*change, Change::PeerRestarts { .. }))
    );
}

#[tokio::test(start_paused = true)]
async fn refuses_another_job_and_a_second_node_of_the_same_rank() {
    let store = MemoryStore::default();
    let (_a, _b, _) = two(&store).await;
    let text = agent(&store, "c", 1, 4).join().await.unwrap_err().to_string();
    assert_eq!(
        text,
        "another job uses this rendezvous (nnodes: ours is `1:4`, theirs is `2:2`); give each job its own --rdzv-id, or its \
         own port in --rdzv-endpoint"
    );
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 2, 2), agent(&store, "b", 2, 2));
    (a.me.node.node_rank, b.me.node.node_rank) = (Some(0), Some(0));
    let first = tokio::spawn(async move { a.join().await });
    tokio::task::yield_now().await;
    let begun = Instant::now();
    let refused = b.join().await.unwrap_err();
    let RendezvousError::Refused(refusal) = &refused else { panic!("{refused}") };
    assert!(
        matches!(&**refusal, Refusal::RankTaken { rank: 0, holder, mine } if holder.host == "a" && mine.host == "b")
    );
    assert!(begun.elapsed() <= secs(7), "{:?}", begun.elapsed());
    b.me.node.node_rank = Some(2);
    let text = b.join().await.unwrap_err().to_string();
    assert_eq!(text, "--node-rank is 2, but with --nnodes=2 it must be less than 2");
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn gives_a_rank_to_the_successor_of_a_dead_node() {
    let store = MemoryStore::default();
    let (mut a, mut b, mut again) = (agent(&store, "a", 2, 2), agent(&store, "b", 2, 2), agent(&store, "b", 2, 2));
    (a.me.node.node_rank, b.me.node.node_rank, again.me.node.node_rank) = (Some(1), Some(0), Some(0));
    let (first, second) = tokio::join!(a.join(), b.join());
    assert_eq!((first.unwrap().group_rank, second.unwrap().group_rank), (1, 0));
    drop(b);
    let survivor = async {
        assert!(matches!(a.watch().await, Change::NodeLost { .. }));
        a.join().await.unwrap()
    };
    let (first, second) = tokio::join!(survivor, again.join());
    assert_eq!((first.group_rank, first.number, second.unwrap().group_rank), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn names_the_nodes_that_came_when_too_few_did_and_stops_counting_as_arrived() {
    let store = MemoryStore::default();
    let mut a = agent(&store, "a", 2, 2);
    let reasons = a.reasons();
    let RendezvousError::Timeout(absence) = a.join().await.unwrap_err() else { panic!("no timeout") };
    assert_eq!((absence.waited.as_secs(), absence.came.len()), (600, 1));
    assert_eq!((absence.came[0].node.host.as_str(), absence.came[0].ago.as_secs()), ("a", 600));
    assert_eq!(*reasons.borrow(), "1 of at least 2 nodes have come");
    assert!(a.look().await.is_ok() && a.view().unwrap().header.members == 0);
}

#[tokio::test(start_paused = true)]
async fn names_the_host_of_a_store_that_died() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 2, 2), agent(&store, "b", 2, 2));
    a.me.node.hosts_store = true;
    let (_, round) = tokio::join!(a.join(), b.join());
    assert_eq!(round.unwrap().group_rank, 1);
    store.die();
    let Change::StoreLost(lost) = b.watch().await else { panic!("not lost") };
    assert_eq!((lost.host.unwrap().host.as_str(), lost.error.as_str()), ("a", "the store has ended"));
    assert!(matches!(b.succeed().await, Err(RendezvousError::StoreLost(_))));
}

#[tokio::test(start_paused = true)]
async fn the_host_of_the_store_ends_last() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 2, 2), agent(&store, "b", 2, 2));
    a.me.node.hosts_store = true;
    let (_, _) = tokio::join!(a.join(), b.join());
    let (_, change) = tokio::join!(a.leave("SIGTERM"), b.watch());
    assert!(matches!(&change, Change::Closed(closing) if closing.reason.contains("SIGTERM")), "{change:?}");
    let begun = Instant::now();
    let gone = async {
        sleep(secs(3)).await;
        b.finish().await
    };
    let (left, _) = tokio::join!(a.finish(), gone);
    assert_eq!((left, begun.elapsed().as_secs()), (vec![], 3));
}

#[tokio::test(start_paused = true)]
async fn publishes_the_address_of_the_workers_store() {
    let (mut a, mut b, [first, second]) = two(&MemoryStore::default()).await;
    let late = b.await_master(&second, secs(2)).await.unwrap_err().to_string();
    assert_eq!(late, "node 1 (a, pid 100) (group rank 0) did not publish the address of the workers' store within 2 s");
    let (read, published) = tokio::join!(b.await_master(&second, secs(60)), a.publish_master(&first, "a:4711"));
    assert_eq!((read, published), (Ok("a:4711".to_owned()), Ok(())));
    a.leave("SIGTERM").await.unwrap();
    let next = Round { number: 1, ..second };
    assert!(matches!(b.await_master(&next, secs(60)).await, Err(RendezvousError::Changed(_))));
}

#[tokio::test(start_paused = true)]
async fn comes_back_under_a_new_id_after_it_was_removed_by_mistake() {
    let (mut a, mut b, _) = two(&MemoryStore::default()).await;
    a.disconnects().report(b.me().id);
    assert!(matches!(a.watch().await, Change::NodeLost { .. }));
    let change = b.watch().await;
    assert_eq!(change.to_string(), "the others gave up on this node: its connection to the store was closed");
    let (first, second) = tokio::join!(a.join(), b.join());
    assert_eq!((first.unwrap().nodes, second.unwrap().group_rank, b.me().id), (2, 1, 3));
}

#[tokio::test(start_paused = true)]
async fn agents_of_another_version_are_refused_by_the_first_key_that_is_read() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 1, 2), agent(&store, "b", 1, 2));
    a.join().await.unwrap();
    let key = "lockstep/rendezvous/none/state";
    let header = String::from_utf8(store.try_get(key).await.unwrap().unwrap()).unwrap();
    assert!(header.starts_with(r#"{"schema":4,"#), "{header}");
    store.set(key, header.replacen(":4,", ":1,", 1).as_bytes()).await.unwrap();
    let text = b.join().await.unwrap_err().to_string();
    assert_eq!(text, "the rendezvous is of schema 1, this agent is of schema 4: run the same version on all nodes");
}

/// A leader that dies loses the requests that it has read.
#[tokio::test(start_paused = true)]
async fn requests_to_a_leader_that_dies_are_sent_again_to_the_next_one() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 2, 3), agent(&store, "b", 2, 3));
    let mut c = agent(&store, "c", 2, 3);
    let (_, second) = tokio::join!(a.join(), b.join());
    assert_eq!(second.unwrap().nodes, 2);
    let died = Instant::now();
    drop(a);
    let (asked, change) = tokio::join!(timeout(secs(10), c.join()), b.watch());
    assert!(asked.is_err(), "{asked:?}");
    let Change::NodeLost { node, why } = change else { panic!("not lost") };
    assert_eq!(node.host, "a");
    assert!(why.starts_with("no heartbeat for 15."), "{why}");
    assert!(died.elapsed() < secs(18), "{:?}", died.elapsed());
    let (second, third) = tokio::join!(b.join(), c.join());
    assert_eq!((second.unwrap().group_rank, third.unwrap().group_rank, b.view().unwrap().header.term), (0, 1, 2));
}

/// The number of writes with pages in the store, and the number of terms with a queue of requests.
fn held(store: &MemoryStore) -> (usize, usize) {
    let of = |kind: &str| {
        let prefix = format!("lockstep/rendezvous/none/{kind}/");
        let names = store.names().into_iter();
        let mut found: Vec<_> =
            names.filter_map(|name| Some(name.strip_prefix(&prefix)?.split('/').next()?.to_owned())).collect();
        found.dedup();
        found.len()
    };
    (of("page"), of("requests"))
}

#[tokio::test(start_paused = true)]
async fn the_store_holds_the_pages_of_two_writes_and_no_old_requests_even_if_many_leaders_die() {
    let store = MemoryStore::default();
    let (mut leader, mut next, _) = two(&store).await;
    for term in 2..8 {
        // The leader dies before it reads this request.
        leader.leader = None;
        let mut newcomer = agent(&store, "n", 2, 2);
        assert!(timeout(secs(1), newcomer.join()).await.is_err());
        assert_eq!(held(&store).1, 1, "{:?}", store.names());
        drop(leader);
        assert!(matches!(next.watch().await, Change::NodeLost { .. }));
        let (first, second) = tokio::join!(next.join(), newcomer.join());
        assert_eq!((first.unwrap().group_rank, second.unwrap().group_rank), (0, 1));
        assert_eq!(next.view().unwrap().header.term, term);
        assert_eq!(held(&store), (2, 0), "in term {term}: {:?}", store.names());
        (leader, next) = (next, newcomer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_deletes_an_interrupted_write_and_old_requests() {
    let store = MemoryStore::default();
    let (a, mut b, _) = two(&store).await;
    drop(a);
    let keys = Keys::of("none");
    let header = Header::decode(&store.try_get(&keys.state()).await.unwrap().unwrap()).unwrap();
    let pages = header.pages.unwrap();
    for page in 0..3 {
        store.set(&keys.page(pages.term, pages.write + 1, page), b"[]").await.unwrap();
    }
    let request = header::encode(&Request { from: 9, want: Want::Leave { why: String::new() } });
    store.push(&keys.requests(pages.term), &request).await.unwrap();
    assert_eq!(held(&store).1, 1);
    assert!(matches!(b.watch().await, Change::NodeLost { .. }));
    assert_eq!(held(&store), (2, 0), "{:?}", store.names());
}

#[tokio::test(start_paused = true)]
async fn the_host_of_the_store_leads_as_soon_as_it_has_come() {
    let store = MemoryStore::default();
    let (mut a, mut b) = (agent(&store, "a", 2, 2), agent(&store, "b", 2, 2));
    b.me.node.hosts_store = true;
    let first = tokio::spawn(async move { (a.join().await, a) });
    sleep(secs(3)).await;
    let round = b.join().await.unwrap();
    assert_eq!((round.group_rank, round.ids.len()), (0, 2));
    let (round, a) = first.await.unwrap();
    assert_eq!((round.unwrap().group_rank, a.view().unwrap().header.leader.as_ref().unwrap().host.as_str()), (1, "b"));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_ends_before_the_others_resigns() {
    let store = MemoryStore::default();
    let (mut a, mut b, _) = two(&store).await;
    assert_eq!(a.succeed().await, Ok(Succeeded::Recorded));
    assert!(matches!(a.exit_barrier(secs(5)).await, Barrier::TimedOut(nodes) if nodes[0].host == "b"));
    assert_eq!(a.finish().await, []);
    let begun = Instant::now();
    assert_eq!(b.succeed().await, Ok(Succeeded::Recorded));
    assert_eq!((b.exit_barrier(secs(5)).await, begun.elapsed()), (Barrier::AllDone, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn many_agents_join() {
    let (store, count) = (MemoryStore::default(), 64);
    let begun = Instant::now();
    let join = |at: usize| {
        let mut agent = agent(&store, &format!("n{at}"), count, count);
        tokio::spawn(async move { (agent.join().await.unwrap(), agent) })
    };
    let tasks: Vec<_> = (0..count).map(join).collect();
    let mut agents = Vec::new();
    for (at, task) in tasks.into_iter().enumerate() {
        let (round, agent) = task.await.unwrap();
        assert_eq!((round.group_rank, round.world_size), (at, count));
        agents.push(agent);
    }
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
}

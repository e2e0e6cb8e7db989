//! Whole agents with their authority, over connections in memory and with a clock that moves only when all wait.

use std::time::Duration;

use tokio::io::duplex;
use tokio::net::TcpListener;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Ended, dial_successor};
use super::state::tests::{job, node};
use super::{message, *};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An agent in the authority's process.
fn first(host: &str, min: usize, max: usize) -> (Rendezvous, Host) {
    let (job, options) = (job(min, max), RendezvousOptions::default());
    let mut link = Link::host("a:29500".to_owned(), &job, &options, None);
    let (authority, node) = (link.seen().leads.unwrap(), Node { hosts_store: true, ..node(0, host) });
    (Rendezvous::new(link, node, job, options), authority)
}

/// An agent of another process.
fn other(authority: &Host, host: &str, min: usize, max: usize) -> Rendezvous {
    let (near, far) = duplex(1 << 20);
    tokio::spawn(authority.clone().serve(far));
    let options = RendezvousOptions::default();
    let link = Link::open("a:29500".to_owned(), async { Ok(near) }, &options, None);
    Rendezvous::new(link, node(0, host), job(min, max), options)
}

/// Agents on hosts `a`, with the authority, and `b`, which have formed a round.
pub(crate) async fn two() -> (Rendezvous, Rendezvous, [Round; 2], Host) {
    let (mut a, host) = first("a", 1, 2);
    let mut b = other(&host, "b", 1, 2);
    let (first, second) = tokio::join!(a.join(), b.join());
    (a, b, [first.unwrap(), second.unwrap()], host)
}

#[tokio::test(start_paused = true)]
async fn a_node_alone_waits_for_the_last_call_and_a_full_round_does_not() {
    let begun = Instant::now();
    let round = first("a", 1, 2).0.join().await.unwrap();
    assert_eq!((round.world_size, begun.elapsed().as_secs()), (1, 30));
    let begun = Instant::now();
    let (_a, b, [first, second], _) = two().await;
    assert_eq!((first.group_rank(), second.group_rank(), second.nodes, b.me().id), (0, 1, 2, 2));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_lost_after_its_lease_and_a_spare_takes_its_place() {
    let (mut a, host) = first("a", 2, 2);
    // Its connection stays open, and nothing comes.
    let (near, far) = duplex(1 << 20);
    tokio::spawn(host.clone().serve(far));
    let mut silent = near;
    let join = Request::Join { node: Box::new(node(0, "b")), job: Box::new(job(2, 2)), was: 0, given: None, round: 0 };
    message::write(&mut silent, &ToAuthority::Request(join)).await.unwrap();
    a.join().await.unwrap();
    let begun = Instant::now();
    let mut spare = other(&host, "c", 2, 2);
    let spare = tokio::spawn(async move { (spare.join().await, spare) });
    let Change::NodeLost { node, why } = a.watch().await else { panic!("not lost") };
    assert_eq!(node.host, "b");
    assert!(why.starts_with("no heartbeat for 15."), "{why}");
    assert!(begun.elapsed() < secs(18), "{:?}", begun.elapsed());
    let round = a.join().await.unwrap();
    assert_eq!((round.number, round.nodes, round.first.host.as_str()), (1, 2, "a"));
    assert_eq!(spare.await.unwrap().0.unwrap().group_rank(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_spare_may_wait_longer_than_the_join_timeout() {
    let (_a, b, _, host) = two().await;
    let mut spare = other(&host, "c", 1, 2);
    let spare = tokio::spawn(async move { spare.join().await });
    sleep(secs(700)).await;
    drop(b);
    sleep(secs(1)).await;
    assert!(!spare.is_finished(), "the round gathers until a has arrived");
    spare.abort();
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_node_is_lost_immediately() {
    let (mut a, b, _, _) = two().await;
    let died = Instant::now();
    drop(b);
    let change = a.watch().await;
    assert_eq!(change.to_string(), "node b (pid 100) was lost: its connection to the store was closed");
    assert_eq!(died.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn announces_a_restart_and_leaving_immediately() {
    let (mut a, mut b, _, _) = two().await;
    let asked = Instant::now();
    let (change, _) = tokio::join!(a.watch(), b.request_restart("rank 1 was killed"));
    assert!(matches!(&change, Change::PeerRestarts { reason, .. } if reason == "rank 1 was killed"), "{change:?}");
    let (first, second) = tokio::join!(a.join(), b.join());
    assert_eq!((first.unwrap().group_rank(), second.unwrap().number), (0, 1));
    let (change, _) = tokio::join!(a.watch(), b.leave("SIGTERM"));
    assert!(matches!(&change, Change::NodeLeft { why, .. } if why == "SIGTERM"), "{change:?}");
    assert!(asked.elapsed() < secs(1), "{:?}", asked.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ends_the_job_for_all_with_the_root_cause_and_refuses_newcomers_with_it() {
    let (mut a, mut b, _, host) = two().await;
    let message = "loss is NaN".to_owned();
    let root = RootCause { rank: 1, local_rank: 0, host: "b".into(), pid: 7, exit_code: 3, message };
    let (change, _) = tokio::join!(a.watch(), b.close("no restarts are left", Some(root.clone())));
    let Change::Closed(closing) = change else { panic!("{change:?}") };
    assert_eq!((closing.by.host.as_str(), closing.root_cause), ("b", Some(root)));
    let text = other(&host, "c", 1, 2).join().await.unwrap_err().to_string();
    assert!(text.ends_with("rank 1 (local_rank 0, pid 7) on b exited with code 3: loss is NaN"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn passes_the_exit_barrier_when_all_have_succeeded_and_names_nodes_that_have_not() {
    let (mut a, mut b, _, host) = two().await;
    assert_eq!(b.succeed().await, Ok(Succeeded::Recorded));
    let waited = b.exit_barrier(secs(5)).await;
    assert!(matches!(&waited, Barrier::TimedOut(nodes) if nodes.len() == 1 && nodes[0].host == "a"), "{waited:?}");
    assert!(timeout(secs(5), other(&host, "c", 1, 2).join()).await.is_err(), "the job is ending");
    let (passed, said) = tokio::join!(b.exit_barrier(secs(5)), a.succeed());
    assert_eq!((passed, said), (Barrier::AllDone, Ok(Succeeded::Recorded)));
    assert_eq!(a.exit_barrier(secs(5)).await, Barrier::AllDone);
    let text = other(&host, "c", 1, 2).join().await.unwrap_err().to_string();
    assert!(text.starts_with("the rendezvous has ended: the workers of all its nodes have succeeded"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn makes_a_node_that_succeeded_too_late_run_again() {
    let (mut a, mut b, _, _) = two().await;
    b.request_restart("rank 1 was killed").await.unwrap();
    let said = a.succeed().await;
    assert!(
        matches!(&said, Ok(Succeeded::Changed(change)) if matches!(**change, Change::PeerRestarts { .. })),
        "{said:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn refuses_another_job_a_second_node_of_the_same_rank_and_another_version() {
    let (_a, _b, _, host) = two().await;
    let text = other(&host, "c", 1, 4).join().await.unwrap_err().to_string();
    assert_eq!(
        text,
        "another job uses this rendezvous (nnodes: ours is `1:4`, theirs is `1:2`); give each job its own --rdzv-id, or its \
         own port in --rdzv-endpoint"
    );
    let (mut a, host) = first("a", 2, 2);
    a.client.node.node_rank = Some(0);
    let joining = tokio::spawn(async move { a.join().await });
    yield_now().await;
    let mut b = other(&host, "b", 2, 2);
    b.client.node.node_rank = Some(0);
    let RendezvousError::Refused(refusal) = b.join().await.unwrap_err() else { panic!("not refused") };
    assert!(
        matches!(&*refusal, Refusal::RankTaken { rank: 0, holder, mine } if holder.host == "a" && mine.host == "b")
    );
    b.client.node.node_rank = Some(2);
    let text = b.join().await.unwrap_err().to_string();
    assert_eq!(text, "--node-rank is 2, but with --nnodes=2 it must be less than 2");
    joining.abort();
    let (near, mut far) = duplex(100);
    message::write(&mut far, &message::Greeting { schema: 7 }).await.unwrap();
    let options = RendezvousOptions::default();
    let link = Link::open("a:29500".to_owned(), async { Ok(near) }, &options, None);
    let text = Rendezvous::new(link, node(0, "b"), job(1, 2), options).join().await.unwrap_err().to_string();
    assert_eq!(text, "the rendezvous is of schema 7, this agent is of schema 6: run the same version on all nodes");
}

#[tokio::test(start_paused = true)]
async fn gives_a_rank_to_the_successor_of_a_dead_node() {
    let (mut a, host) = first("a", 2, 2);
    let [mut b, mut again] = [(); 2].map(|()| other(&host, "b", 2, 2));
    (a.client.node.node_rank, b.client.node.node_rank, again.client.node.node_rank) = (Some(0), Some(1), Some(1));
    let (first, second) = tokio::join!(a.join(), b.join());
    assert_eq!((first.unwrap().group_rank(), second.unwrap().group_rank()), (0, 1));
    let survivor = async {
        drop(b);
        assert!(matches!(a.watch().await, Change::NodeLost { .. }));
        a.join().await.unwrap()
    };
    let (first, second) = tokio::join!(survivor, again.join());
    assert_eq!((first.group_rank(), first.number, second.unwrap().group_rank()), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn names_the_nodes_that_came_when_too_few_did_and_stops_counting_as_arrived() {
    let (_a, host) = first("a", 2, 2);
    let mut b = other(&host, "b", 2, 2);
    let reasons = b.reasons();
    let RendezvousError::Timeout(absence) = b.join().await.unwrap_err() else { panic!("no timeout") };
    let Absence { waited, came, .. } = &*absence;
    assert_eq!((waited.as_secs(), came.len(), came[0].node.host.as_str(), came[0].ago.as_secs()), (600, 1, "b", 600));
    assert_eq!(*reasons.borrow(), "1 of at least 2 nodes have come (node b (pid 100)); the wait ends after 600 s");
    assert_eq!(b.view.unwrap().members, 0);
}

#[tokio::test(start_paused = true)]
async fn names_the_host_of_an_authority_that_is_lost_or_silent() {
    let (a, mut b, _, host) = two().await;
    drop((a, host));
    let (near, far) = duplex(100);
    let mute = Link::open("a:29500".to_owned(), async { Ok(near) }, &RendezvousOptions::default(), None);
    let lost = Rendezvous::new(mute, node(0, "c"), job(1, 2), RendezvousOptions::default()).join().await.unwrap_err();
    assert!(lost.to_string().contains("does not answer; which agent hosted it is not known"), "{lost}");
    assert!(lost.to_string().contains("(no answer within 15 s)"), "{lost}");
    drop(far);
    let gone = async { Err::<tokio::io::DuplexStream, _>(Ended::Lost("it is gone".into())) };
    b.link = Link::open("a:29500".to_owned(), gone, &b.options, None);
    let Change::StoreLost(lost) = b.watch().await else { panic!("not lost") };
    assert_eq!((lost.host.unwrap().host.as_str(), lost.error.as_str()), ("a", "it is gone"));
    assert!(matches!(b.succeed().await, Err(RendezvousError::StoreLost(_))));
}

#[tokio::test(start_paused = true)]
async fn the_authority_ends_last() {
    let (mut a, mut b, _, _) = two().await;
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
    let (mut a, mut b, [first, second], _) = two().await;
    let late = b.await_master(&second, secs(2)).await.unwrap_err().to_string();
    assert_eq!(late, "node a (pid 100) (group rank 0) did not publish the address of the workers' store within 2 s");
    a.publish_master(&first, "a:4711");
    assert_eq!(b.await_master(&second, secs(60)).await, Ok("a:4711".to_owned()));
    a.request_restart("rank 0 was killed").await.unwrap();
    sleep(secs(1)).await;
    assert!(matches!(b.await_master(&second, secs(60)).await, Err(RendezvousError::Changed(_))));
}

#[tokio::test(start_paused = true)]
async fn jobs_of_other_ids_at_the_same_endpoint_do_not_meet() {
    let (_a, _b, _, host) = two().await;
    let mut c = other(&host, "c", 1, 1);
    c.client.job.run_id = "mine".to_owned();
    assert_eq!(c.join().await.unwrap().nodes, 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_before_the_first_one_has_joined_does_not_take_the_job_with_it() {
    let (mut a, host) = first("a", 2, 2);
    let mut early = other(&host, "early", 2, 2);
    assert!(timeout(secs(1), early.join()).await.is_err());
    drop(early);
    sleep(secs(1)).await;
    let mut b = other(&host, "b", 2, 2);
    let (first, second) = timeout(secs(60), async { tokio::join!(a.join(), b.join()) }).await.unwrap();
    assert_eq!((first.unwrap().nodes, second.unwrap().group_rank()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_what_no_agent_sends_is_disconnected_and_changes_nothing() {
    let (mut a, b, _, host) = two().await;
    let huge = Node { host: "h".repeat(5000), ..node(0, "h") };
    let join = Request::Join { node: Box::new(huge), job: Box::new(job(1, 2)), was: 0, given: None, round: 0 };
    let mut large = Vec::new();
    message::write(&mut large, &ToAuthority::Request(join)).await.unwrap();
    let roles = (0..100).map(|role| (role.to_string(), String::new()));
    let base = Succession { round: 0, size: 2, order: vec![] };
    let job = JobIdentity { commands: roles.collect(), ..job(1, 2) };
    let follow = Follow { node: node(9, "f"), job, taken: vec![], base, seen: 0 };
    let mut roles = Vec::new();
    message::write(&mut roles, &ToAuthority::Request(Request::Follow(Box::new(follow)))).await.unwrap();
    for bytes in [&large[..], &roles, &[0xFF; 4], b"\0\0\0\x02{}", b"GET / HTTP/1.1\r\n\r\n"] {
        let (mut near, far) = duplex(1 << 20);
        tokio::spawn(host.clone().serve(far));
        tokio::io::AsyncWriteExt::write_all(&mut near, bytes).await.unwrap();
        tokio::io::AsyncReadExt::read_to_end(&mut near, &mut Vec::new()).await.unwrap();
    }
    assert!(timeout(secs(60), a.watch()).await.is_err());
    drop(b);
    assert!(matches!(a.watch().await, Change::NodeLost { .. }));
}

/// Runs an agent from the first request to the end, with one restart.
async fn live(mut agent: Rendezvous, at: usize, count: usize) {
    sleep(Duration::from_millis(at as u64 * 7919 % 2000)).await;
    for restart in [true, false] {
        let round = agent.join().await.unwrap();
        assert_eq!((round.nodes, round.group_rank()), (count, at));
        if at == 0 {
            agent.publish_master(&round, "n0:1");
        } else {
            agent.await_master(&round, secs(60)).await.unwrap();
        }
        if restart && at == count - 1 {
            agent.request_restart("rank 0 was killed").await.unwrap();
        } else if restart {
            assert!(matches!(agent.watch().await, Change::PeerRestarts { .. }));
        }
    }
    assert_eq!(agent.succeed().await, Ok(Succeeded::Recorded));
    assert_eq!(agent.exit_barrier(secs(60)).await, Barrier::AllDone);
    assert_eq!(agent.finish().await, []);
}

#[tokio::test(start_paused = true)]
async fn many_agents_live_together() {
    let count = 250;
    let (mut leader, host) = first("n0", count, count);
    leader.client.job = job(count, count);
    let mut agents = vec![tokio::spawn(live(leader, 0, count))];
    agents.extend((1..count).map(|at| tokio::spawn(live(other(&host, &format!("n{at}"), count, count), at, count))));
    for agent in agents {
        agent.await.unwrap();
    }
}

/// An agent at a port, with the authority or where it can take over.
struct AtPort {
    agent: Rendezvous,
    /// Serves the authority's connections.
    serving: Option<tokio::task::JoinHandle<()>>,
}

impl AtPort {
    async fn first(nodes: (usize, usize)) -> (AtPort, String) {
        let (agent, host) = first("a", nodes.0, nodes.1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                served.spawn(host.clone().serve(stream));
            }
        });
        (AtPort { agent, serving: Some(serving) }, address)
    }

    async fn other(address: &str, host: &str, nodes: (usize, usize)) -> AtPort {
        let options = RendezvousOptions::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = Some(listener.local_addr().unwrap().port());
        let link = Link::open(address.to_owned(), dial_successor(address.to_owned()), &options, Some(listener));
        let node = Node { addr: "127.0.0.1".to_owned(), port, ..node(0, host) };
        AtPort { agent: Rendezvous::new(link, node, job(nodes.0, nodes.1), options), serving: None }
    }

    /// Ends like a process that is killed.
    async fn dies(self) {
        drop(self.agent);
        if let Some(serving) = self.serving {
            serving.abort();
            let _ = serving.await;
        }
    }

    async fn takes_part(&mut self) -> Round {
        let round = self.agent.join().await.unwrap();
        match round.group_rank() {
            0 => self.agent.publish_master(&round, "store:1"),
            _ => assert_eq!(self.agent.await_master(&round, secs(60)).await.as_deref(), Ok("store:1")),
        }
        round
    }
}

#[tokio::test]
async fn the_next_member_takes_over_from_an_authority_that_is_killed_and_the_next_from_that_one() {
    let (mut a, address) = AtPort::first((1, 3)).await;
    let mut b = AtPort::other(&address, "b", (1, 3)).await;
    let mut c = AtPort::other(&address, "c", (1, 3)).await;
    let (_, second, third) = tokio::join!(a.takes_part(), b.takes_part(), c.takes_part());
    assert_eq!((second.group_rank(), third.group_rank()), (1, 2));
    let begun = Instant::now();
    a.dies().await;
    let (lost, too) = tokio::join!(b.agent.watch(), c.agent.watch());
    for change in [lost, too] {
        assert!(matches!(&change, Change::NodeLost { node, .. } if node.host == "a"), "{change}");
    }
    let (second, third) = tokio::join!(b.takes_part(), c.takes_part());
    println!("a round {:?} after the end of the authority", begun.elapsed());
    assert_eq!((second.group_rank(), third.group_rank(), second.nodes), (0, 1, 2));
    assert!(second.number > 0 && second.number == third.number, "{second:?} {third:?}");
    b.dies().await;
    let change = c.agent.watch().await;
    assert!(matches!(&change, Change::NodeLost { node, .. } if node.host == "b"), "{change}");
    assert_eq!(c.takes_part().await.nodes, 1);
    assert_eq!(c.agent.succeed().await, Ok(Succeeded::Recorded));
    assert_eq!(c.agent.exit_barrier(secs(60)).await, Barrier::AllDone);
    assert_eq!(c.agent.finish().await, []);
}

//! Thousands of waiting clients, and what the process that hosts the server sees.

use crate::support::{Raw, client, server, until};
use tcpstore::Options;
use tcpstore::wire::{Request, wire_key};

/// Two descriptors per connection. The default limit is often 1,024 per process; this test raises it.
const WAITING: usize = 2500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_wakes_thousands() {
    let wanted = 2 * WAITING as u64 + 200;
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.current.map(|current| current.max(wanted.min(limit.maximum.unwrap_or(wanted))));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    if limit.current.is_some_and(|current| current < wanted) {
        println!("not verified here: {WAITING} waiting clients (ulimit -n is {:?})", limit.current);
        return;
    }
    let server = server(Options::default());
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        let mut raw = Raw::open(&server).await;
        raw.send(&[Request::Wait { keys: vec![wire_key("go")] }]).await;
        waiting.push(raw);
    }
    until("all wait", || server.peers().iter().filter(|peer| peer.waits_for == ["go"]).count() == WAITING).await;
    client(&server).await.set("go", b"").await.unwrap();
    for raw in &mut waiting {
        assert_eq!(raw.receive(1).await, [0]);
    }
    drop(waiting);
    until("all clients are gone", || server.connections() == 0).await;
}

#[tokio::test]
async fn the_host_sees_who_does_what() {
    let server = server(Options::default());
    let client = client(&server).await;
    client.set("key", b"value").await.unwrap();
    let mut raw = Raw::open(&server).await;
    raw.send(&[Request::Wait { keys: vec![wire_key("b"), wire_key("a"), wire_key("key")] }]).await;
    until("the client waits", || server.peers().len() == 2 && !server.peers()[1].waits_for.is_empty()).await;
    let peers = server.peers();
    assert_eq!(peers[1].waits_for, ["a", "b"]);
    let last = |index: usize| peers[index].last.as_ref().map(|(operation, key, _)| (*operation, key.clone()));
    assert_eq!(last(0), Some(("ping", String::new())), "a set is followed by a ping");
    assert_eq!(last(1), Some(("wait", "b".to_owned())));
    assert!(peers.iter().all(|peer| peer.validated && peer.address.ip().is_loopback()));
    assert_eq!(raw.0.local_addr().unwrap(), peers[1].address);
}

#[tokio::test]
async fn the_host_reads_sets_and_deletes_without_a_connection() {
    let server = server(Options::default());
    let client = client(&server).await;
    for key in ["round/1/a", "round/1/b", "round/2/a", "other"] {
        client.set(key, key.as_bytes()).await.unwrap();
    }
    assert_eq!(server.keys("round/1/"), ["round/1/a", "round/1/b"]);
    assert_eq!(server.get("other"), Some(b"other".to_vec()));
    assert_eq!(server.delete_prefix("round/1/"), 2);
    assert_eq!(server.clear_except("round/"), 1);
    assert_eq!(client.list_keys().await.unwrap(), ["round/2/a"]);
    let mut raw = Raw::open(&server).await;
    raw.send(&[Request::Wait { keys: vec![wire_key("from the host")] }]).await;
    until("the client waits", || server.peers().iter().any(|peer| !peer.waits_for.is_empty())).await;
    server.set("from the host", b"").unwrap();
    assert_eq!(raw.receive(1).await, [0]);
}

#[tokio::test]
async fn stops_in_asynchronous_code_and_frees_its_port_and_connections() {
    let server = server(Options::default());
    let address = server.local_addr();
    let mut raw = Raw::open(&server).await;
    raw.send(&[Request::Wait { keys: vec![wire_key("never")] }]).await;
    let mute = Raw::connect(&server).await;
    until("both are there", || server.connections() == 2).await;
    server.shutdown();
    assert!(raw.closed().await.is_empty());
    assert!(mute.closed().await.is_empty());
    drop(std::net::TcpListener::bind(address).expect("the port is free again"));
}

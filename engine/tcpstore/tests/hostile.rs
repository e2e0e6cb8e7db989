//! Broken or hostile peers: each loses only its own connection, and a well-behaved client notices nothing.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use support::{LONG, Raw, client, encode, resident, server, until};
use tcpstore::wire::{Limits, MAGIC, Request, wire_key};
use tcpstore::{Client, Server, ServerOptions};

/// A limit that is meant to expire.
const SHORT: Duration = Duration::from_millis(20);

fn set(key: &str, value: Vec<u8>) -> Request {
    Request::Set { key: wire_key(key), value }
}

/// The server refused a connection for this reason and still serves others.
async fn refused(server: &Server, bystander: &Client, reason: &str) {
    until(reason, || server.refusals().iter().any(|refusal| refusal.reason.contains(reason))).await;
    bystander.set("bystander", b"served").await.unwrap();
    assert_eq!(bystander.get("bystander", LONG).await.unwrap(), b"served");
}

#[tokio::test]
async fn refuses_other_protocols_at_the_first_byte() {
    let server = server(ServerOptions::default());
    let bystander = client(&server).await;
    for (sent, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "it opened with 0x47, not with validate"),
        (encode(&[Request::Ping { nonce: 1 }]), "it opened with 0x0d"),
        (encode(&[Request::Validate { magic: 0x1234_5678 }]), "validate came with 0x12345678, not with 0x3c85f7ce"),
        (encode(&[Request::Validate { magic: MAGIC }, Request::Validate { magic: MAGIC }]), "it validated twice"),
        ([encode(&[Request::Validate { magic: MAGIC }]), vec![18]].concat(), "no operation has the number 18"),
    ] {
        let mut peer = Raw::connect(&server).await;
        peer.send_bytes(&sent).await;
        assert!(peer.closed().await.is_empty());
        refused(&server, &bystander, reason).await;
    }
}

#[tokio::test]
async fn forgets_a_client_that_leaves_in_the_middle_of_a_request() {
    let server = server(ServerOptions::default());
    let bystander = client(&server).await;
    let opening = Request::Validate { magic: MAGIC };
    let entries = vec![(wire_key("a"), b"value".to_vec()), (wire_key("b"), b"value".to_vec())];
    let bytes = encode(&[opening, Request::MultiSet { entries }]);
    for end in 0..bytes.len() {
        let mut peer = Raw::connect(&server).await;
        peer.send_bytes(&bytes[..end]).await;
    }
    until("all are gone", || server.connections() == 1).await;
    assert!(bystander.list_keys().await.unwrap().is_empty(), "half a request changes nothing");
}

#[tokio::test]
async fn reserves_nothing_for_announced_lengths() {
    let server = server(ServerOptions::default());
    let bystander = client(&server).await;
    let before = resident();
    let mut peers = Vec::new();
    for _ in 0..200 {
        // Each announces 8 MiB, which the limits allow: 1.6 GB in total.
        let mut peer = Raw::open(&server).await;
        let announced = &encode(&[set("key", vec![0; 8 << 20])])[..100];
        peer.send_bytes(announced).await;
        peers.push(peer);
    }
    until("all have opened", || server.peers().iter().filter(|peer| peer.validated).count() == 201).await;
    bystander.ping().await.unwrap();
    assert!(resident() < before + (100 << 20), "{before} bytes grew to {}", resident());
    for length in [u64::MAX, i64::MAX as u64, (8 << 10) + 1] {
        let mut peer = Raw::open(&server).await;
        peer.send_bytes(&[&[1][..], &length.to_le_bytes()].concat()).await;
        assert!(peer.closed().await.is_empty());
    }
    refused(&server, &bystander, "a key with a length in bytes of 18446744073709551615, at most 8192").await;
}

#[tokio::test]
async fn refuses_a_slow_opening_and_keeps_idle_clients() {
    let server = server(ServerOptions { handshake_timeout: SHORT, ..ServerOptions::default() });
    let bystander = client(&server).await;
    let mute = Raw::connect(&server).await;
    let mut slow = Raw::connect(&server).await;
    slow.send_bytes(&[0, 0xCE]).await;
    let addresses = [&mute, &slow].map(|peer| peer.0.local_addr().unwrap());
    assert!(mute.closed().await.is_empty());
    assert!(slow.closed().await.is_empty());
    refused(&server, &bystander, "it did not open with validate within 20ms").await;
    // On a busy machine the bystander may be refused, too, before it retries.
    let of = |address: SocketAddr| server.refusals().iter().filter(|refusal| refusal.address == address).count();
    until("both are refused", || addresses.map(of) == [1, 1]).await;
}

#[tokio::test]
async fn refuses_a_slow_request() {
    let server = server(ServerOptions { request_timeout: SHORT, ..ServerOptions::default() });
    let bystander = client(&server).await;
    let mut slow = Raw::open(&server).await;
    slow.send_bytes(&encode(&[Request::Get { key: wire_key("key") }])[..5]).await;
    assert!(slow.closed().await.is_empty());
    refused(&server, &bystander, "its request was not complete after 20ms").await;
}

#[tokio::test]
async fn a_client_that_reads_no_replies_does_not_fill_the_memory() {
    let server = server(ServerOptions { write_timeout: SHORT, ..ServerOptions::default() });
    let bystander = client(&server).await;
    bystander.set("large", &vec![7; 1 << 20]).await.unwrap();
    let before = resident();
    let mut stalled = Raw::open(&server).await;
    let greedy = encode(&vec![Request::Get { key: wire_key("large") }; 2000]); // 2 GB of replies
    stalled.send_bytes(&greedy).await;
    refused(&server, &bystander, "it took none of its replies for 20ms").await;
    assert!(resident() < before + (100 << 20), "{before} bytes grew to {}", resident());
}

#[tokio::test]
async fn serves_others_during_a_flood() {
    let server = server(ServerOptions { worker_threads: 1, ..ServerOptions::default() });
    let bystander = client(&server).await;
    let flood = encode(&vec![Request::Append { key: wire_key("flood"), value: Vec::new() }; 10_000]);
    let floods: Vec<_> = (0..4)
        .map(|_| {
            let flood = flood.clone();
            let address = server.local_addr();
            tokio::spawn(async move {
                let mut raw = Raw(tokio::net::TcpStream::connect(address).await.unwrap());
                raw.send(&[Request::Validate { magic: MAGIC }]).await;
                loop {
                    raw.send_bytes(&flood).await;
                }
            })
        })
        .collect();
    until("the flood has begun", || server.get("flood").is_some()).await;
    for round in 0..100 {
        assert_eq!(bystander.add("counter", 1).await.unwrap(), round + 1);
    }
    floods.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn only_the_client_that_fills_the_store_is_closed() {
    let server = server(ServerOptions { max_bytes: 1_000_000, ..ServerOptions::default() });
    let bystander = client(&server).await;
    let mut greedy = Raw::open(&server).await;
    for index in 0..200 {
        greedy.send_bytes(&encode(&[set(&format!("greedy/{index}"), vec![0; 10_000])])).await;
    }
    greedy.closed().await;
    until("it is turned away", || !server.refusals().is_empty()).await;
    let reason = &server.refusals()[0].reason;
    assert!(reason.starts_with("keys and values that this connection wrote would take 7"), "{reason}");
    assert!(reason.ends_with("bytes, and the last quarter of 1000000 is reserved for other connections"), "{reason}");
    bystander.set("room", &[0; 90_000]).await.unwrap();
    assert!(server.delete_prefix("greedy/") > 40);
    bystander.set("more room", &[0; 50_000]).await.unwrap();
}

/// Raises this process's limit of open files. If that fails, prints the failure and returns false.
fn may_open(files: u64) -> bool {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.current.map(|current| current.max(files.min(limit.maximum.unwrap_or(files))));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let may = limit.current.is_none_or(|current| current >= files);
    if !may {
        println!("not verified here: {files} open files (ulimit -Hn is {:?})", limit.maximum);
    }
    may
}

/// The bytes that hostile clients send before they stop sending and reading. Each client waits for keys of its own, so
/// `wait` builds that message.
fn harm() -> [Vec<u8>; 6] {
    let validate = || Request::Validate { magic: MAGIC };
    let entries = (0..5000).map(|key| (wire_key(&format!("half/{key}")), vec![7; 100])).collect();
    let mut half = encode(&[validate(), Request::MultiSet { entries }]);
    half.truncate(half.len() - 1);
    // 8 MiB are announced, 1 MiB arrives.
    let mut huge = encode(&[validate(), set("huge", vec![7; 8 << 20])]);
    huge.truncate(1 << 20);
    huge.shrink_to_fit();
    let greedy = encode(&[&[validate()][..], &vec![Request::Get { key: wire_key("large") }; 20]].concat());
    [vec![], encode(&[validate()]), huge, half, greedy, vec![]]
}

fn wait(number: usize) -> Vec<u8> {
    let keys = (0..2000).map(|key| wire_key(&format!("never/{number}/{key}/{:0>200}", 0))).collect();
    encode(&[Request::Validate { magic: MAGIC }, Request::Wait { keys }])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stays_within_its_limit_under_a_thousand_hostile_connections_and_serves_others() {
    const LIMIT: usize = 128 << 20;
    const HOSTILE: usize = 1000;
    if !may_open(2 * HOSTILE as u64 + 200) {
        return;
    }
    let server = server(ServerOptions { max_bytes: LIMIT, handshake_timeout: LONG, ..ServerOptions::default() });
    let bystander = client(&server).await;
    bystander.set("large", &vec![7; 2 << 20]).await.unwrap();
    let harm = harm();
    let before = resident();
    let mut hostile = Vec::new();
    let mut most = 0;
    for number in 0..HOSTILE {
        let mut raw = Raw::connect(&server).await;
        match number % harm.len() {
            5 => raw.send_bytes(&wait(number)).await,
            other => raw.send_bytes(&harm[other]).await,
        }
        hostile.push(raw);
        if number % 20 == 0 {
            assert_eq!(bystander.add("served", 1).await.unwrap(), number as i64 / 20 + 1);
            most = most.max(resident());
            assert!(server.bytes() <= LIMIT, "{} bytes", server.bytes());
        }
    }
    let grown = (most - before) >> 20;
    println!("{HOSTILE} hostile connections: {} bytes by its own count, {grown} MiB resident", server.bytes());
    assert!(grown < LIMIT >> 20, "memory grew by {grown} MiB");
    let newcomer = client(&server).await;
    newcomer.set("value", &vec![1; 1 << 20]).await.unwrap();
    assert_eq!(bystander.get("value", LONG).await.unwrap().len(), 1 << 20);
    let waits = tokio::spawn(async move { bystander.get("late", LONG).await });
    until("it waits", || server.peers().iter().any(|peer| peer.waits_for == ["late"])).await;
    newcomer.set("late", b"came").await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap(), b"came");
}

#[tokio::test]
async fn a_reply_waits_for_room_that_a_stalled_peer_holds() {
    let options = ServerOptions { max_bytes: 32 << 20, stall_timeout: SHORT, ..ServerOptions::default() };
    let server = server(options);
    let bystander = client(&server).await;
    // Larger than the sockets' buffers, so that the store keeps the rest.
    bystander.set("large", &vec![7; 7 << 20]).await.unwrap();
    let mut stalled = Vec::new();
    for number in 1..=2 {
        let mut peer = Raw::open(&server).await;
        peer.send(&[Request::Get { key: wire_key("large") }]).await;
        stalled.push(peer);
        until("it holds a reply", || server.bytes() > (7 << 20) * (number + 1)).await;
    }
    // There is no room for a third reply: it waits, and a stalled peer is closed.
    assert_eq!(bystander.get("large", LONG).await.unwrap().len(), 7 << 20);
    refused(&server, &bystander, "bytes without going on, and others needed the room").await;
}

#[tokio::test]
async fn one_connection_holds_no_more_than_its_share() {
    let server = server(ServerOptions { max_bytes: 8 << 20, ..ServerOptions::default() });
    let bystander = client(&server).await;
    let mut greedy = Raw::open(&server).await;
    greedy.send_bytes(&encode(&[set("large", vec![7; 4 << 20])])).await;
    greedy.closed().await;
    refused(&server, &bystander, "bytes, more than a connection's share of 2097152").await;
}

#[tokio::test]
async fn only_the_client_that_adds_to_a_text_is_closed() {
    let server = server(ServerOptions::default());
    let bystander = client(&server).await;
    let careless = client(&server).await;
    careless.set("text", b"abc").await.unwrap();
    careless.add("text", 1).await.unwrap_err();
    refused(&server, &bystander, "add to a value that is not a decimal 64-bit number: \"abc\"").await;
}

#[tokio::test]
async fn answers_requests_before_the_fault() {
    let server = server(ServerOptions::default());
    let mut peer = Raw::open(&server).await;
    peer.send_bytes(&[encode(&[Request::Ping { nonce: 7 }]), vec![99]].concat()).await;
    assert_eq!(peer.closed().await, 7u32.to_le_bytes());
}

#[tokio::test]
async fn takes_no_more_connections_than_allowed() {
    let server = server(ServerOptions { max_connections: Some(2), ..ServerOptions::default() });
    let bystander = client(&server).await;
    let second = Raw::open(&server).await;
    until("two are there", || server.connections() == 2).await;
    let third = Raw::connect(&server).await;
    assert!(third.closed().await.is_empty());
    refused(&server, &bystander, "there are 2 connections already").await;
    drop(second);
    until("one has left", || server.connections() == 1).await;
    client(&server).await.ping().await.unwrap();
}

#[tokio::test]
async fn applies_the_limits_that_the_host_sets() {
    let limits = Limits { max_key: 10, max_value: 20, max_keys: 2, ..Limits::default() };
    let server = server(ServerOptions { limits, ..ServerOptions::default() });
    let bystander = client(&server).await;
    for (request, reason) in [
        (set("0123456789", Vec::new()), "a key with a length in bytes of 11, at most 10"),
        (set("key", vec![0; 21]), "a value with a length in bytes of 21, at most 20"),
        (Request::Wait { keys: vec![wire_key("k"); 3] }, "a number of keys of 3, at most 2"),
    ] {
        let mut peer = Raw::open(&server).await;
        peer.send_bytes(&encode(&[request])).await;
        assert!(peer.closed().await.is_empty());
        refused(&server, &bystander, reason).await;
    }
}

//! The client with our server: every operation, deadlines, errors about servers that are not stores, thousands of waiting clients, and
//! what the process that hosts the server sees.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net;
use tcpstore::wire::{Request, wire_key};
use tcpstore::{Client, ClientOptions, Error, Kind, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{LONG, Raw, client, client_at, server, until};

/// A wait that is meant to expire.
const SHORT: Duration = Duration::from_millis(20);

fn missing(error: Error) -> Vec<String> {
    match error.kind {
        Kind::Missing { missing } => missing,
        other => panic!("{other}"),
    }
}

/// Also covers a system that has no room for another thread.
#[tokio::test]
async fn a_server_without_threads_for_connections_serves_on_the_one_that_accepts() {
    let server = server(ServerOptions { worker_threads: 0, ..ServerOptions::default() });
    let (waits, sets) = (client(&server).await, client(&server).await);
    let (got, set) = tokio::join!(waits.get("key", LONG), sets.set("key", b"value"));
    set.unwrap();
    assert_eq!(got.unwrap(), b"value");
}

#[tokio::test]
async fn does_every_operation() {
    let server = server(ServerOptions::default());
    let client = client(&server).await;
    client.set("key", b"value").await.unwrap();
    assert_eq!(client.get("key", LONG).await.unwrap(), b"value");
    assert_eq!(client.try_get("key").await.unwrap(), Some(b"value".to_vec()));
    assert_eq!(client.try_get("absent").await.unwrap(), None);
    let both = client.try_multi_get(&["key", "key"]).await.unwrap();
    assert_eq!(both, Some(vec![b"value".to_vec(), b"value".to_vec()]));
    assert_eq!(client.try_multi_get(&["key", "absent"]).await.unwrap(), None);
    assert_eq!(client.add("counter", 5).await.unwrap(), 5);
    assert_eq!(client.add("counter", -7).await.unwrap(), -2);
    assert_eq!(client.get("counter", LONG).await.unwrap(), b"-2");
    assert_eq!(client.compare_set("cas", b"", b"one").await.unwrap(), b"one");
    assert_eq!(client.compare_set("cas", b"one", b"two").await.unwrap(), b"two");
    assert_eq!(client.compare_set("cas", b"one", b"three").await.unwrap(), b"two");
    assert!(client.check(&["key", "cas"]).await.unwrap());
    assert!(!client.check(&["key", "absent"]).await.unwrap());
    client.wait(&["key", "cas"], LONG).await.unwrap();
    client.append("list", b"a,").await.unwrap();
    client.append("list", b"b,").await.unwrap();
    client.multi_set(&[("m1", b"1"), ("m2", b"2")]).await.unwrap();
    assert_eq!(
        client.multi_get(&["m1", "list", "m2"], LONG).await.unwrap(),
        [b"1".to_vec(), b"a,b,".into(), b"2".into()]
    );
    assert_eq!(client.num_keys().await.unwrap(), 6);
    assert!(client.delete("m1").await.unwrap());
    assert!(!client.delete("m1").await.unwrap());
    client.queue_push("q", b"first").await.unwrap();
    client.queue_push("q", b"second").await.unwrap();
    assert_eq!(client.queue_len("q").await.unwrap(), 2);
    assert_eq!(client.queue_pop("q", LONG).await.unwrap(), b"first");
    assert_eq!(client.try_queue_pop("q").await.unwrap(), Some(b"second".to_vec()));
    assert_eq!(client.try_queue_pop("q").await.unwrap(), None);
    assert_eq!(client.list_keys().await.unwrap(), ["cas", "counter", "key", "list", "m2"]);
    client.ping().await.unwrap();
    assert_eq!(server.connections(), 1, "no operation had to wait");
}

#[tokio::test]
async fn cancels_a_wait_names_the_missing_keys_and_stays_usable() {
    let server = server(ServerOptions::default());
    let client = client(&server).await;
    client.set("there", b"").await.unwrap();
    let error = client.wait(&["there", "absent", "gone"], SHORT).await.unwrap_err();
    assert!(
        error.to_string().starts_with("wait for \"there\", \"absent\", \"gone\" in the store at 127.0.0.1:"),
        "{error}"
    );
    assert_eq!(missing(error), ["absent", "gone"]);
    assert_eq!(missing(client.get("absent", SHORT).await.unwrap_err()), ["absent"]);
    assert_eq!(missing(client.queue_pop("absent", SHORT).await.unwrap_err()), ["absent"]);
    client.set("absent", b"late").await.unwrap();
    assert_eq!(client.get("absent", LONG).await.unwrap(), b"late");
    assert!(server.peers().iter().all(|peer| peer.waits_for.is_empty()));
    assert_eq!(server.connections(), 2, "one for immediate answers, one for waits, which is reused");
}

#[tokio::test]
async fn serves_several_tasks_while_some_wait() {
    let server = server(ServerOptions::default());
    let client = client(&server).await;
    let waits = (0..10).map(|rank| {
        let client = client.clone();
        tokio::spawn(async move { client.get(&format!("rank/{rank}"), LONG).await })
    });
    let waits: Vec<_> = waits.collect();
    until("ten clients wait", || server.peers().iter().filter(|peer| !peer.waits_for.is_empty()).count() == 10).await;
    for rank in 0..10 {
        client.set(&format!("rank/{rank}"), &[rank]).await.unwrap();
    }
    for (rank, wait) in waits.into_iter().enumerate() {
        assert_eq!(wait.await.unwrap().unwrap(), [rank as u8]);
    }
    until("idle connections are closed", || server.connections() <= 5).await;
}

#[tokio::test]
async fn stays_usable_when_a_future_is_dropped() {
    let server = server(ServerOptions::default());
    let client = client(&server).await;
    for round in 0..50 {
        let operation = async {
            client.add("counter", 1).await.unwrap();
            client.get("never", LONG).await.unwrap();
        };
        tokio::select! {
            biased;
            () = operation => {}
            () = async { for _ in 0..round % 5 { tokio::task::yield_now().await; } } => {}
        }
        client.set("key", &[round]).await.unwrap();
        assert_eq!(client.get("key", LONG).await.unwrap(), [round]);
    }
    until("no wait is left", || server.peers().iter().all(|peer| peer.waits_for.is_empty())).await;
}

#[tokio::test]
async fn gives_a_queues_value_to_one_of_several_waiting_clients() {
    let server = server(ServerOptions::default());
    let (a, b) = (client(&server).await, client(&server).await);
    let pops: Vec<_> = [a.clone(), b.clone(), a.clone()]
        .into_iter()
        .map(|client| tokio::spawn(async move { client.queue_pop("q", LONG).await.unwrap() }))
        .collect();
    until("three clients wait", || server.peers().iter().filter(|peer| peer.waits_for == ["q"]).count() == 3).await;
    for value in [b"1", b"2", b"3"] {
        b.queue_push("q", value).await.unwrap();
    }
    let mut values = Vec::new();
    for pop in pops {
        values.push(pop.await.unwrap());
    }
    values.sort();
    assert_eq!(values, [b"1", b"2", b"3"]);
}

#[tokio::test]
async fn connects_to_a_server_that_starts_later() {
    let (reserved, address) = reserved();
    let connecting = tokio::spawn(async move { client_at(address).await });
    for _ in 0..20 {
        tokio::task::yield_now().await; // the first attempt is made
    }
    let late = tcpstore::Server::start(listen(reserved), ServerOptions::default()).unwrap();
    connecting.await.unwrap().set("key", b"").await.unwrap();
    assert_eq!(late.keys(""), ["key"]);
}

/// A port that we own and on which no process listens.
fn reserved() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap();
    (socket, address)
}

fn listen(socket: OwnedFd) -> TcpListener {
    net::listen(&socket, 128).unwrap();
    socket.into()
}

async fn refused(listener: &TcpListener, timeout: Duration) -> Error {
    let options = ClientOptions { handshake_timeout: SHORT, ..ClientOptions::default() };
    let port = listener.local_addr().unwrap().port();
    Client::connect_with("127.0.0.1", port, timeout, options).await.unwrap_err()
}

#[tokio::test]
async fn reports_that_no_process_listens() {
    let (_reserved, address) = reserved();
    let port = address.port();
    let mut timeout = SHORT;
    let error = loop {
        let error = Client::connect("127.0.0.1", port, timeout).await.unwrap_err();
        // A busy machine may take longer than that to refuse.
        if !matches!(error.kind, Kind::Unreachable(_)) {
            break error;
        }
        timeout *= 2;
    };
    assert!(matches!(error.kind, Kind::Refused), "{error}");
    assert!(error.to_string().starts_with(&format!("connect to the store at 127.0.0.1:{port} (")), "{error}");
}

#[tokio::test]
async fn reports_that_the_listener_does_not_answer() {
    let mute = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(); // the kernel accepts, no process answers
    let error = refused(&mute, LONG).await;
    assert!(matches!(error.kind, Kind::Mute), "{error}");
    assert!(error.elapsed < LONG, "long before the connect timeout");
}

#[tokio::test]
async fn a_server_that_comes_just_before_the_connect_timeout_has_its_time_to_answer() {
    let mut timeout = SHORT;
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = ClientOptions { handshake_timeout: LONG, ..ClientOptions::default() };
        let connecting = Client::connect_with("127.0.0.1", port, timeout, options);
        let serving = async {
            tokio::time::sleep(2 * timeout).await;
            tcpstore::Server::start(listener, ServerOptions::default()).unwrap()
        };
        match tokio::join!(connecting, serving).0 {
            Ok(_) => return,
            // A busy machine may take longer than that to connect.
            Err(error) => assert!(matches!(error.kind, Kind::Unreachable(_)), "{error}"),
        }
        timeout *= 2;
    }
}

/// Runs a server that answers each connection's opening with `answer` and then closes. A client that gets no answer retries for
/// `handshake_timeout`.
async fn fake(answer: &'static [u8], handshake_timeout: Duration) -> Error {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let accepting = listener.try_clone().unwrap();
    accepting.set_nonblocking(true).unwrap();
    let accepting = tokio::net::TcpListener::from_std(accepting).unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = accepting.accept().await.unwrap();
            let mut opening = [0; 10];
            stream.read_exact(&mut opening).await.unwrap();
            stream.write_all(answer).await.unwrap();
        }
    });
    let options = ClientOptions { handshake_timeout, ..ClientOptions::default() };
    let port = listener.local_addr().unwrap().port();
    let error = Client::connect_with("127.0.0.1", port, LONG, options).await.unwrap_err();
    serving.abort();
    error
}

#[tokio::test]
async fn reports_that_another_service_answers() {
    let error = fake(b"HTTP/1.1 400 Bad Request\r\n", LONG).await;
    let Kind::NotAStore { got } = &error.kind else { panic!("{error}") };
    assert!(got.starts_with("HTTP/1.1 400"), "{got}");
    assert!(matches!(fake(b"hi", LONG).await.kind, Kind::NotAStore { got } if got == "hi"));
}

#[tokio::test]
async fn reports_that_the_listener_hangs_up() {
    let mut handshake_timeout = SHORT;
    let error = loop {
        let error = fake(b"", handshake_timeout).await;
        // On a busy machine the server may hang up later than that.
        if !matches!(error.kind, Kind::Mute) {
            break error;
        }
        handshake_timeout *= 2;
    };
    assert!(matches!(error.kind, Kind::HungUp), "{error}");
}

#[tokio::test]
async fn reports_that_the_name_does_not_resolve() {
    let error = Client::connect("no-such-host.invalid", 1, SHORT).await.unwrap_err();
    assert!(matches!(error.kind, Kind::Unresolved(_)), "{error}");
}

#[tokio::test]
async fn does_not_send_requests_that_a_server_refuses() {
    let server = server(ServerOptions::default());
    let client = client(&server).await;
    let long = "k".repeat(9000);
    assert!(matches!(client.set(&long, b"").await.unwrap_err().kind, Kind::Invalid(_)));
    let large = vec![0; (8 << 20) + 1];
    assert!(matches!(client.set("key", &large).await.unwrap_err().kind, Kind::Invalid(_)));
    client.set("key", &large[1..]).await.unwrap();
    assert_eq!(client.get("key", LONG).await.unwrap().len(), 8 << 20);
}

#[tokio::test]
async fn reports_that_the_server_has_ended_and_does_not_use_another_one() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let same = listener.try_clone().unwrap();
    let first = tcpstore::Server::start(listener, ServerOptions::default()).unwrap();
    let client = client(&first).await;
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.wait(&["never"], LONG).await });
    until("the client waits", || first.peers().iter().any(|peer| peer.waits_for == ["never"])).await;
    first.shutdown();
    assert!(matches!(waiting.await.unwrap().unwrap_err().kind, Kind::Closed));
    let second = tcpstore::Server::start(same, ServerOptions::default()).unwrap();
    let error = client.set("key", b"").await.unwrap_err();
    assert!(matches!(error.kind, Kind::Closed), "{error}");
    assert!(second.keys("").is_empty());
}

#[tokio::test]
async fn gives_up_on_a_server_that_stops_answering() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer_once = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut opening = [0; 10];
        stream.read_exact(&mut opening).await.unwrap();
        stream.write_all(&opening[6..]).await.unwrap();
        (stream, listener)
    });
    let client = client_at(address).await.with_operation_timeout(SHORT);
    let _held = answer_once.await.unwrap();
    let error = client.add("counter", 1).await.unwrap_err();
    assert!(matches!(error.kind, Kind::TimedOut), "{error}");
    assert!(error.elapsed >= SHORT, "{error}");
}

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
    let server = server(ServerOptions::default());
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
    let server = server(ServerOptions::default());
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
    let server = server(ServerOptions::default());
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
    let server = server(ServerOptions::default());
    let port = server.local_addr().port();
    assert!(lockstep_testkit::listens(port));
    let mut raw = Raw::open(&server).await;
    raw.send(&[Request::Wait { keys: vec![wire_key("never")] }]).await;
    let mute = Raw::connect(&server).await;
    until("both are there", || server.connections() == 2).await;
    server.shutdown();
    assert!(raw.closed().await.is_empty());
    assert!(mute.closed().await.is_empty());
    assert!(!lockstep_testkit::listens(port), "the server still listens on port {port}");
}

#[tokio::test]
async fn a_connection_that_leaves_the_protocol_goes_to_who_takes_it() {
    let server = server(ServerOptions { hands_over: true, ..ServerOptions::default() });
    let client = client(&server).await;
    client.set("k", b"v").await.unwrap();
    let mut stream = client.switch().await.unwrap();
    let mut taken = server.take_switched().unwrap();
    let mut other = taken.recv().await.unwrap();
    other.set_nonblocking(false).unwrap();
    std::io::Write::write_all(&mut other, b"hello").unwrap();
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"hello");
    assert_eq!(client.try_get("k").await.unwrap().unwrap(), b"v", "on a new connection");
    drop((stream, server));
    assert_eq!(std::io::Read::read(&mut other, &mut greeting).unwrap(), 0, "it outlives the server");
}

#[tokio::test]
async fn a_server_that_hands_nothing_over_refuses_to_leave_the_protocol() {
    let server = server(ServerOptions::default());
    let mut stream = client(&server).await.switch().await.unwrap();
    assert_eq!(stream.read(&mut [0; 5]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_server_that_stops_listening_serves_those_that_are_connected() {
    for worker_threads in [0, 2] {
        let server = server(ServerOptions { worker_threads, ..ServerOptions::default() });
        let client = client(&server).await;
        client.set("key", b"value").await.unwrap();
        server.stop_listening();
        let port = server.local_addr().port();
        assert!(!lockstep_testkit::listens(port), "the server still listens on port {port}");
        server.stop_listening();
        assert_eq!(client.get("key", LONG).await.unwrap(), b"value");
    }
}

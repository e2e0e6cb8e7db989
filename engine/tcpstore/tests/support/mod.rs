//! Helpers for tests: a server, a raw connection to it and random messages.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use proptest::prelude::*;
use serde::Deserialize;
use tcpstore::wire::{Expect, Key, MAGIC, Reply, Request, Value};
use tcpstore::{Client, ClientOptions, Server, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any test takes: a test that reaches it hangs.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A server on a free loopback port.
pub(crate) fn server(options: ServerOptions) -> Server {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    Server::start(listener, options).expect("the server starts")
}

/// A client of `server`.
pub(crate) async fn client(server: &Server) -> Client {
    client_at(server.local_addr()).await
}

/// A client of the server at `address`.
pub(crate) async fn client_at(address: SocketAddr) -> Client {
    let options = ClientOptions { handshake_timeout: LONG, operation_timeout: LONG, ..ClientOptions::default() };
    Client::connect_with("127.0.0.1", address.port(), LONG, options).await.expect("connects")
}

/// A connection on which the test sends raw bytes.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) async fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.local_addr()).await.expect("connects");
        stream.set_nodelay(true).expect("small messages go out at once");
        Self(stream)
    }

    /// Connects and sends the magic number.
    pub(crate) async fn open(server: &Server) -> Self {
        let mut raw = Self::connect(server).await;
        raw.send(&[Request::Validate { magic: MAGIC }]).await;
        raw
    }

    pub(crate) async fn send(&mut self, requests: &[Request]) {
        self.0.write_all(&encode(requests)).await.expect("sends");
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await; // the server may have closed already
    }

    /// Reads `count` bytes.
    pub(crate) async fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let read = self.0.read_exact(&mut bytes);
        tokio::time::timeout(LONG, read).await.expect("the server answers").expect("the connection stands");
        bytes
    }

    /// Waits until the server closes the connection and returns the bytes before that.
    pub(crate) async fn closed(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let read = self.0.read_to_end(&mut bytes);
        let _ = tokio::time::timeout(LONG, read).await.expect("the server closes the connection"); // a reset counts, too
        bytes
    }
}

pub(crate) fn encode(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| request.encode(&mut bytes));
    bytes
}

/// Resident memory of this process, in bytes.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux reports the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("with a line for it");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("in kilobytes") << 10
}

/// Polls until `condition` returns true.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let poll = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, poll).await.unwrap_or_else(|_| panic!("this never happened: {what}"));
}

pub(crate) fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![3 => "/[abc]".prop_map(String::into_bytes), 1 => prop::collection::vec(any::<u8>(), 0..20)]
}

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..40),
        1 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        1 => Just(Value::new()),
    ]
}

/// Any request but VALIDATE.
pub(crate) fn any_request() -> impl Strategy<Value = Request> {
    let keys = || prop::collection::vec(any_key(), 0..5);
    prop_oneof![
        (any_key(), any_value()).prop_map(|(key, value)| Request::Set { key, value }),
        (any_key(), any_value(), any_value()).prop_map(|(key, expected, desired)| Request::CompareSet {
            key,
            expected,
            desired
        }),
        any_key().prop_map(|key| Request::Get { key }),
        (any_key(), any::<i64>()).prop_map(|(key, amount)| Request::Add { key, amount }),
        keys().prop_map(|keys| Request::Check { keys }),
        keys().prop_map(|keys| Request::Wait { keys }),
        Just(Request::NumKeys),
        any_key().prop_map(|key| Request::Delete { key }),
        (any_key(), any_value()).prop_map(|(key, value)| Request::Append { key, value }),
        keys().prop_map(|keys| Request::MultiGet { keys }),
        prop::collection::vec((any_key(), any_value()), 0..5).prop_map(|entries| Request::MultiSet { entries }),
        Just(Request::CancelWait),
        any::<u32>().prop_map(|nonce| Request::Ping { nonce }),
        (any_key(), any_value()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        any_key().prop_map(|key| Request::QueuePop { key }),
        any_key().prop_map(|key| Request::QueueLen { key }),
        Just(Request::ListKeys),
    ]
}

/// Any reply, with its type.
pub(crate) fn any_reply() -> impl Strategy<Value = (Expect, Reply)> {
    prop_oneof![
        any::<u32>().prop_map(|nonce| (Expect::Nonce, Reply::Nonce(nonce))),
        any_value().prop_map(|value| (Expect::Value, Reply::Value(value))),
        prop::collection::vec(any_value(), 0..5)
            .prop_map(|values| (Expect::Values(values.len()), Reply::Values(values))),
        any::<i64>().prop_map(|number| (Expect::Number, Reply::Number(number))),
        any::<bool>().prop_map(|ready| (Expect::Ready, Reply::Ready(ready))),
        Just((Expect::Wait, Reply::StopWaiting)),
        Just((Expect::Wait, Reply::WaitCanceled)),
        Just((Expect::Popped, Reply::Popped { before: 0, value: None })),
        (1..i64::MAX, any_value())
            .prop_map(|(before, value)| (Expect::Popped, Reply::Popped { before, value: Some(value) })),
        prop::collection::vec(any_key(), 0..5).prop_map(|keys| (Expect::Keys, Reply::Keys(keys))),
    ]
}

#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) torch: String,
    pub(crate) calls: Vec<Call>,
}

#[derive(Deserialize)]
pub(crate) struct Call {
    pub(crate) call: String,
    pub(crate) said: Vec<Exchange>,
}

#[derive(Deserialize)]
pub(crate) struct Exchange {
    pub(crate) connection: String,
    pub(crate) from: String,
    pub(crate) bytes: String,
}

impl Exchange {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        from_hex(&self.bytes)
    }
}

/// What PyTorch's clients and server said to each other.
pub(crate) fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/tcpstore.json")).expect("the script wrote it")
}

pub(crate) fn from_hex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("two digits")).collect()
}

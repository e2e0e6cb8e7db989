//! Random operations of three clients on the real server, compared with a model that is as simple as possible.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::support::{Raw, any_request, server};
use proptest::prelude::*;
use tcpstore::ServerOptions;
use tcpstore::wire::{Key, Reply, Request, Value};

const CLIENTS: usize = 3;

/// The contents of a store. Waits are in the order in which they began.
#[derive(Default)]
struct Model {
    values: BTreeMap<Key, Value>,
    queues: BTreeMap<Key, VecDeque<Value>>,
    waits: Vec<(usize, BTreeSet<Key>)>,
}

/// The expected result.
enum Expected {
    Nothing,
    Reply(Reply),
    Close,
}

impl Model {
    fn has(&self, key: &Key) -> bool {
        self.values.contains_key(key) || self.queues.get(key).is_some_and(|queue| !queue.is_empty())
    }

    fn waits(&self, client: usize) -> bool {
        self.waits.iter().any(|(waiting, _)| *waiting == client)
    }

    fn set(&mut self, key: &Key, value: &Value) {
        self.values.insert(key.clone(), value.clone());
        for (_, missing) in &mut self.waits {
            missing.remove(key);
        }
    }

    fn push(&mut self, key: &Key, value: &Value) {
        self.queues.entry(key.clone()).or_default().push_back(value.clone());
        for (_, missing) in &mut self.waits {
            if missing.remove(key) && missing.is_empty() {
                return;
            }
        }
    }

    fn apply(&mut self, client: usize, request: &Request) -> Expected {
        let get = |values: &BTreeMap<Key, Value>, key| values.get(key).cloned().unwrap_or_default();
        Expected::Reply(match request {
            Request::Validate { .. } => return Expected::Close,
            Request::Set { key, value } => {
                self.set(key, value);
                return Expected::Nothing;
            }
            Request::Append { key, value } => {
                let appended = [get(&self.values, key), value.clone()].concat();
                self.set(key, &appended);
                return Expected::Nothing;
            }
            Request::MultiSet { entries } => {
                entries.iter().for_each(|(key, value)| self.set(key, value));
                return Expected::Nothing;
            }
            Request::QueuePush { key, value } => {
                self.push(key, value);
                return Expected::Nothing;
            }
            Request::Wait { keys } => {
                let missing: BTreeSet<Key> = keys.iter().filter(|key| !self.has(key)).cloned().collect();
                if !missing.is_empty() {
                    self.waits.push((client, missing));
                    return Expected::Nothing;
                }
                Reply::StopWaiting
            }
            Request::CancelWait => {
                self.waits.retain(|(waiting, _)| *waiting != client);
                Reply::WaitCanceled
            }
            Request::CompareSet { key, expected, desired } => {
                let holds = self.values.get(key).cloned();
                if holds.clone().unwrap_or_default() == *expected {
                    self.set(key, desired);
                    Reply::Value(desired.clone())
                } else {
                    Reply::Value(holds.unwrap_or(expected.clone()))
                }
            }
            Request::Get { key } => Reply::Value(get(&self.values, key)),
            Request::MultiGet { keys } => Reply::Values(keys.iter().map(|key| get(&self.values, key)).collect()),
            Request::Add { key, amount } => match number(self.values.get(key)) {
                None => return Expected::Close,
                Some(held) => {
                    let sum = held.wrapping_add(*amount);
                    self.set(key, &sum.to_string().into_bytes());
                    Reply::Number(sum)
                }
            },
            Request::Check { keys } => Reply::Ready(keys.iter().all(|key| self.has(key))),
            Request::NumKeys => Reply::Number(self.values.len() as i64),
            Request::Delete { key } => Reply::Number(i64::from(self.values.remove(key).is_some())),
            Request::Ping { nonce } => Reply::Nonce(*nonce),
            Request::QueuePop { key } => {
                let queue = self.queues.entry(key.clone()).or_default();
                Reply::Popped { before: queue.len() as i64, value: queue.pop_front() }
            }
            Request::QueueLen { key } => Reply::Number(self.queues.get(key).map_or(0, VecDeque::len) as i64),
            Request::ListKeys => Reply::Keys(self.values.keys().cloned().collect()),
        })
    }

    /// Clients whose wait has ended.
    fn woken(&mut self) -> Vec<usize> {
        self.waits.extract_if(.., |(_, missing)| missing.is_empty()).map(|(client, _)| client).collect()
    }
}

/// The number at the start of the value, as long as possible.
fn number(value: Option<&Value>) -> Option<i64> {
    let Some(value) = value else { return Some(0) };
    let text: String = value.iter().map(|&byte| char::from(byte)).collect();
    let text = text.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let signed = text.starts_with(['+', '-']);
    let end = text
        .char_indices()
        .find(|&(at, c)| !(c.is_ascii_digit() || (at == 0 && signed)))
        .map_or(text.len(), |(at, _)| at);
    text[..end].parse().ok()
}

async fn play(steps: Vec<(usize, Request)>) {
    let server = server(ServerOptions::default());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Raw::open(&server).await);
    }
    let mut model = Model::default();
    for (client, request) in steps {
        if model.waits(client) && request != Request::CancelWait {
            continue; // a waiting client sends nothing else
        }
        clients[client].send(std::slice::from_ref(&request)).await;
        match model.apply(client, &request) {
            Expected::Nothing => {
                // There is no reply, so a ping confirms it, unless the client waits.
                if !model.waits(client) {
                    clients[client].send(&[Request::Ping { nonce: 1 }]).await;
                    assert_eq!(clients[client].receive(4).await, [1, 0, 0, 0], "after {request:?}");
                } else {
                    crate::support::until("the client waits", || {
                        server.peers().iter().filter(|p| !p.waits_for.is_empty()).count() == model.waits.len()
                    })
                    .await;
                }
            }
            Expected::Reply(reply) => {
                let mut bytes = Vec::new();
                reply.encode(&mut bytes);
                assert_eq!(clients[client].receive(bytes.len()).await, bytes, "{request:?}");
            }
            Expected::Close => {
                let closed = std::mem::replace(&mut clients[client], Raw::open(&server).await);
                assert!(closed.closed().await.is_empty(), "{request:?}");
            }
        }
        for woken in model.woken() {
            assert_eq!(clients[woken].receive(1).await, [0], "{woken} after {request:?}");
        }
    }
    for (client, raw) in clients.iter_mut().enumerate() {
        let cancelled = model.waits(client);
        raw.send(if cancelled { &[Request::CancelWait] } else { &[] }).await;
        raw.send(&[Request::Ping { nonce: 9 }]).await;
        let expected: &[u8] = if cancelled { &[1, 9, 0, 0, 0] } else { &[9, 0, 0, 0] };
        assert_eq!(raw.receive(expected.len()).await, expected, "client {client} received nothing else");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_the_model(steps in prop::collection::vec((0..CLIENTS, any_request()), 1..80)) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(play(steps));
    }
}

//! Recorded bytes of PyTorch's own client and server (`scripts/golden/tcpstore.py`): requests decode and encode to the
//! same bytes, and our server gives the same answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::encode;
use serde::Deserialize;
use tcpstore::Limits;
use tcpstore::server::{ConnectionId, Data, Session};
use tcpstore::wire::{Expect, Frame, Operation, Reader, Reply, Request};

#[derive(Deserialize)]
struct Golden {
    torch: String,
    calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    call: String,
    said: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Exchange {
    connection: String,
    from: String,
    bytes: String,
}

impl Exchange {
    fn bytes(&self) -> Vec<u8> {
        let digits = self.bytes.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/tcpstore.json")).unwrap()
}

/// The requests in a client's bytes.
fn requests(mut bytes: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while !bytes.is_empty() {
        let Ok(Frame::Whole(length)) = Frame::find(bytes, &Limits::default()) else { panic!("no request: {bytes:?}") };
        requests.push(Request::decode(&bytes[..length], &Limits::default()).unwrap());
        bytes = &bytes[length..];
    }
    requests
}

#[test]
fn reads_and_writes_back_every_request_of_pytorchs_client() {
    let mut seen = BTreeSet::new();
    let golden = golden();
    assert!(golden.torch.starts_with("2.11."), "{}", golden.torch);
    for call in golden.calls {
        for sent in call.said.iter().filter(|sent| sent.from == "client") {
            let requests = requests(&sent.bytes());
            assert_eq!(encode(&requests), sent.bytes(), "{}", call.call);
            seen.extend(requests.iter().map(|request| request.operation() as u8));
        }
    }
    assert_eq!(seen, Operation::ALL.iter().map(|&operation| operation as u8).collect());
}

#[test]
fn reads_and_writes_back_every_reply_of_pytorchs_server() {
    for call in golden().calls {
        let mut expected: BTreeMap<String, Vec<Expect>> = BTreeMap::new();
        let mut replies: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for sent in &call.said {
            if sent.from == "client" {
                let expects = requests(&sent.bytes());
                // A cancelled wait has one reply: that of the cancel.
                let called_off = expects.last() == Some(&Request::CancelWait);
                let expects = expects.iter().filter_map(Expect::after).skip(usize::from(called_off));
                expected.entry(sent.connection.clone()).or_default().extend(expects);
            } else {
                replies.entry(sent.connection.clone()).or_default().extend(sent.bytes());
            }
        }
        for (connection, bytes) in replies {
            let mut reader = Reader::new(&bytes);
            let mut written = Vec::new();
            for &expect in &expected[&connection] {
                Reply::read(expect, &mut reader, &Limits::default()).unwrap().encode(&mut written);
            }
            reader.finish().unwrap();
            assert_eq!(written, bytes, "{}", call.call);
        }
    }
}

/// Sends the clients' bytes to our server's pure part.
#[test]
fn answers_as_pytorchs_server_did() {
    let mut data = Data::new(Limits::default(), 1 << 30);
    let mut sessions: BTreeMap<String, Session> = BTreeMap::new();
    for call in golden().calls {
        let (mut theirs, mut ours) = (BTreeMap::<String, Vec<u8>>::new(), BTreeMap::<String, Vec<u8>>::new());
        for sent in &call.said {
            if sent.from == "server" {
                theirs.entry(sent.connection.clone()).or_default().extend(sent.bytes());
                continue;
            }
            let id = ConnectionId(u64::from(sent.connection.as_bytes()[0]));
            let session =
                sessions.entry(sent.connection.clone()).or_insert_with(|| Session::new(id, Limits::default()));
            let (bytes, mut done) = (sent.bytes(), 0);
            let out = ours.entry(sent.connection.clone()).or_default();
            while done < bytes.len() {
                let turn = session.turn(&mut data, &bytes[done..], out).unwrap();
                assert!(turn.progress, "{}", call.call);
                done += turn.consumed;
            }
            for (name, session) in &mut sessions {
                session.reply_if_woken(&data, ours.entry(name.clone()).or_default());
            }
        }
        ours.retain(|_, bytes| !bytes.is_empty());
        assert_eq!(ours, theirs, "{}", call.call);
    }
}

//! What PyTorch's own client and server said to each other (`scripts/golden/tcpstore.py`): the requests are read and written
//! back to the byte, and our server answers as theirs did.

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
    said: Vec<Said>,
}

#[derive(Deserialize)]
struct Said {
    connection: String,
    from: String,
    bytes: String,
}

impl Said {
    fn bytes(&self) -> Vec<u8> {
        let digits = self.bytes.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/tcpstore.json")).unwrap()
}

/// The requests in what a client said.
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
        for said in call.said.iter().filter(|said| said.from == "client") {
            let requests = requests(&said.bytes());
            assert_eq!(encode(&requests), said.bytes(), "{}", call.call);
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
        for said in &call.said {
            if said.from == "client" {
                let expects = requests(&said.bytes());
                // A wait that is called off has one reply, the cancel's.
                let called_off = expects.last() == Some(&Request::CancelWait);
                let expects = expects.iter().filter_map(Expect::after).skip(usize::from(called_off));
                expected.entry(said.connection.clone()).or_default().extend(expects);
            } else {
                replies.entry(said.connection.clone()).or_default().extend(said.bytes());
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

/// Plays the clients' part against our own server's pure half.
#[test]
fn answers_as_pytorchs_server_did() {
    let mut data = Data::new(Limits::default(), 1 << 30);
    let mut sessions: BTreeMap<String, Session> = BTreeMap::new();
    for call in golden().calls {
        let (mut theirs, mut ours) = (BTreeMap::<String, Vec<u8>>::new(), BTreeMap::<String, Vec<u8>>::new());
        for said in &call.said {
            if said.from == "server" {
                theirs.entry(said.connection.clone()).or_default().extend(said.bytes());
                continue;
            }
            let id = ConnectionId(u64::from(said.connection.as_bytes()[0]));
            let session =
                sessions.entry(said.connection.clone()).or_insert_with(|| Session::new(id, Limits::default()));
            let (bytes, mut done) = (said.bytes(), 0);
            let out = ours.entry(said.connection.clone()).or_default();
            while done < bytes.len() {
                let turn = session.turn(&mut data, &bytes[done..], out).unwrap();
                assert!(turn.progress, "{}", call.call);
                done += turn.consumed;
            }
            for (name, session) in &mut sessions {
                session.tell_if_woken(&data, ours.entry(name.clone()).or_default());
            }
        }
        ours.retain(|_, bytes| !bytes.is_empty());
        assert_eq!(ours, theirs, "{}", call.call);
    }
}

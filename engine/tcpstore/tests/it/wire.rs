//! The messages: each is truncated, damaged and read back, and compared with recorded bytes of PyTorch's own client and server
//! (`golden/tcpstore.py`), which decode and encode to the same bytes and get the same answers from our server.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tcpstore::server::{ConnectionId, Data, Session};
use tcpstore::wire::{Expect, Frame, Limits, Operation, Reader, Reply, Request, WireError};

use crate::support::{any_reply, any_request, encode, golden};

const LIMITS: fn() -> Limits = Limits::default;

/// One of each operation, with every field filled.
fn one_of_each() -> Vec<Request> {
    let (key, value) = (b"/key".to_vec(), b"value".to_vec());
    let keys = vec![b"/a".to_vec(), b"/bc".to_vec()];
    vec![
        Request::Validate { magic: tcpstore::wire::MAGIC },
        Request::Set { key: key.clone(), value: value.clone() },
        Request::CompareSet { key: key.clone(), expected: value.clone(), desired: b"other".to_vec() },
        Request::Get { key: key.clone() },
        Request::Add { key: key.clone(), amount: -5 },
        Request::Check { keys: keys.clone() },
        Request::Wait { keys: keys.clone() },
        Request::NumKeys,
        Request::Delete { key: key.clone() },
        Request::Append { key: key.clone(), value: value.clone() },
        Request::MultiGet { keys },
        Request::MultiSet { entries: vec![(key.clone(), value.clone()), (b"/b".to_vec(), Vec::new())] },
        Request::CancelWait,
        Request::Ping { nonce: 7 },
        Request::QueuePush { key: key.clone(), value },
        Request::QueuePop { key: key.clone() },
        Request::QueueLen { key },
        Request::ListKeys,
    ]
}

#[test]
fn numbers_every_operation_as_libtorch_does() {
    let numbers: Vec<u8> = one_of_each().iter().map(|request| encode(std::slice::from_ref(request))[0]).collect();
    assert_eq!(numbers, (0..18).collect::<Vec<u8>>());
    for (number, operation) in Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation as usize, number);
    }
}

#[test]
fn rejects_each_request_truncated_at_every_byte() {
    for request in one_of_each() {
        let bytes = encode(std::slice::from_ref(&request));
        for end in 0..bytes.len() {
            let cut = &bytes[..end];
            let Err(WireError::Truncated { need }) = Request::decode(cut, &LIMITS()) else {
                panic!("{request:?} cut at {end}")
            };
            assert!(end < need && need <= bytes.len(), "{request:?} cut at {end} needs {need}");
            let Ok(Frame::Incomplete(needs)) = Frame::find(cut, &LIMITS()) else { panic!("{request:?} cut at {end}") };
            assert!(end < needs && needs <= bytes.len(), "{request:?} cut at {end} needs {needs}");
        }
        assert_eq!(Frame::find(&bytes, &LIMITS()), Ok(Frame::Complete(bytes.len())));
        assert_eq!(Request::decode(&bytes, &LIMITS()), Ok(request));
    }
}

#[test]
fn rejects_each_request_with_trailing_bytes() {
    for request in one_of_each() {
        let mut bytes = encode(std::slice::from_ref(&request));
        let length = bytes.len();
        bytes.extend([0, 1, 2]);
        assert_eq!(Request::decode(&bytes, &LIMITS()), Err(WireError::Trailing { left: 3 }), "{request:?}");
        assert_eq!(Frame::find(&bytes, &LIMITS()), Ok(Frame::Complete(length)));
    }
}

#[test]
fn rejects_unknown_operations() {
    for number in 18..=u8::MAX {
        assert_eq!(Request::decode(&[number], &LIMITS()), Err(WireError::UnknownOperation(number)));
        assert_eq!(Frame::find(&[number, 0, 0], &LIMITS()), Err(WireError::UnknownOperation(number)));
    }
}

/// Writes absurd numbers over every eight bytes of a message that may be a length: the result is always an error.
#[test]
fn rejects_absurd_lengths_at_every_position() {
    for request in one_of_each() {
        let bytes = encode(std::slice::from_ref(&request));
        for at in 1..bytes.len().saturating_sub(7) {
            for absurd in [u64::MAX, i64::MAX as u64, 1 << 40, 1 << 32, (8 << 20) + 1] {
                let mut broken = bytes.clone();
                broken[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
                if let Ok(decoded) = Request::decode(&broken, &LIMITS()) {
                    assert_eq!(encode(&[decoded]), broken, "the field is not a length");
                }
            }
        }
    }
}

#[test]
fn accepts_lengths_up_to_the_limit_and_no_further() {
    let limits = Limits { max_key: 3, max_value: 4, max_keys: 2, max_request: 60, max_reply: 100 };
    let set = |key: usize, value: usize| encode(&[Request::Set { key: vec![0; key], value: vec![0; value] }]);
    let get = |keys: usize| encode(&[Request::MultiGet { keys: vec![vec![0; 3]; keys] }]);
    assert!(Request::decode(&set(3, 4), &limits).is_ok());
    assert!(matches!(Request::decode(&set(4, 0), &limits), Err(WireError::TooLarge { got: 4, max: 3, .. })));
    assert!(matches!(Request::decode(&set(0, 5), &limits), Err(WireError::TooLarge { got: 5, max: 4, .. })));
    assert!(Request::decode(&get(2), &limits).is_ok());
    assert!(matches!(Request::decode(&get(3), &limits), Err(WireError::TooLarge { got: 3, max: 2, .. })));
    let tight = Limits { max_request: 30, ..limits };
    assert!(matches!(Frame::find(&get(2), &tight), Err(WireError::TooLarge { max: 30, .. })));
    // Two keys need more than 24 bytes, so the count is refused before the keys arrive.
    let tighter = Limits { max_request: 24, ..limits };
    assert!(matches!(Frame::find(&get(2)[..9], &tighter), Err(WireError::TooLarge { got: 25, max: 24, .. })));
}

#[test]
fn rejects_invalid_answers() {
    use tcpstore::wire::Expect;
    for expect in [Expect::Ready, Expect::Wait] {
        assert_eq!(Reply::decode(expect, &[2], &LIMITS()), Err(WireError::UnknownAnswer(2)));
    }
    let negative = (-1i64).to_le_bytes();
    assert_eq!(Reply::decode(Expect::Keys, &negative, &LIMITS()), Err(WireError::NegativeCount(-1)));
    let absurd = i64::MAX.to_le_bytes();
    assert!(matches!(Reply::decode(Expect::Keys, &absurd, &LIMITS()), Err(WireError::TooLarge { .. })));
    assert!(matches!(Reply::decode(Expect::Value, &absurd, &LIMITS()), Err(WireError::TooLarge { .. })));
}

proptest! {
    #[test]
    fn reads_back_every_request_that_it_writes(requests in prop::collection::vec(any_request(), 1..5)) {
        let bytes = encode(&requests);
        let mut rest = &bytes[..];
        for request in requests {
            let Ok(Frame::Complete(length)) = Frame::find(rest, &LIMITS()) else { panic!("{request:?}") };
            prop_assert_eq!(Request::decode(&rest[..length], &LIMITS()), Ok(request));
            rest = &rest[length..];
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn reads_back_every_reply_that_it_writes((expect, reply) in any_reply()) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        prop_assert_eq!(Reply::decode(expect, &bytes, &LIMITS()), Ok(reply.clone()));
        for end in 0..bytes.len() {
            let cut = Reply::decode(expect, &bytes[..end], &LIMITS());
            let Err(WireError::Truncated { need }) = cut else { panic!("{reply:?} cut at {end}") };
            prop_assert!(end < need && need <= bytes.len());
        }
        bytes.push(0);
        prop_assert_eq!(Reply::decode(expect, &bytes, &LIMITS()), Err(WireError::Trailing { left: 1 }));
    }

    #[test]
    fn never_panics_and_writes_back_what_it_accepts(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = Request::decode(&bytes, &LIMITS()) {
            prop_assert_eq!(encode(&[request]), bytes);
        }
    }
}

/// The requests in a client's bytes.
fn requests(mut bytes: &[u8]) -> Vec<Request> {
    let mut requests = Vec::new();
    while !bytes.is_empty() {
        let Ok(Frame::Complete(length)) = Frame::find(bytes, &Limits::default()) else {
            panic!("no request: {bytes:?}")
        };
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

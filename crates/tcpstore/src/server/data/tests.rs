//! Limits, waits and replies.

use super::*;

const ME: ConnectionId = ConnectionId(1);
const OTHER: ConnectionId = ConnectionId(2);

fn store(max_bytes: usize) -> Data {
    Data::new(Limits::default(), max_bytes)
}

fn set(key: &str, value: &str) -> Request {
    Request::Set { key: key.into(), value: value.into() }
}

fn wait(keys: &[&str]) -> Request {
    Request::Wait { keys: keys.iter().map(|&key| key.into()).collect() }
}

#[test]
fn reads_numbers_as_stoll_does() {
    for (text, expected) in [("5", 5), (" \t\x0b-12abc", -12), ("+7", 7), ("9223372036854775807", i64::MAX)] {
        assert_eq!(number(text.as_bytes()), Ok(expected), "{text}");
    }
    for text in ["", "abc", "-", "9223372036854775808", "\u{e9}5"] {
        assert!(number(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn wakes_no_client_when_compare_set_sets_nothing() {
    let mut data = store(1 << 20);
    data.apply(ME, wait(&["k"])).unwrap();
    let request = Request::CompareSet { key: b"k".into(), expected: b"e".into(), desired: b"d".into() };
    assert_eq!(data.apply(OTHER, request), Ok(answer(Reply::Value(b"e".into()))));
    assert!(data.waits(ME));
}

#[test]
fn does_not_count_a_filled_queue_as_missing() {
    let mut data = store(1 << 20);
    data.apply(OTHER, Request::QueuePush { key: b"q".into(), value: b"v".into() }).unwrap();
    data.apply(ME, wait(&["q", "k"])).unwrap();
    assert_eq!(data.waited_for(ME), [b"k"]);
    assert_eq!(data.apply(OTHER, set("k", "")), Ok(woke(vec![ME])));
}

#[test]
fn refuses_to_grow_beyond_its_limit_and_stays_usable() {
    let mut data = store(200);
    data.apply(ME, set("k", "v")).unwrap();
    assert_eq!(data.apply(ME, set("big", &"x".repeat(200))), Err(Refused::Full { max: 200 }));
    assert_eq!(data.apply(ME, Request::Get { key: b"k".into() }), Ok(answer(Reply::Value(b"v".into()))));
    data.apply(ME, Request::Delete { key: b"k".into() }).unwrap();
    assert_eq!(data.bytes(), 0);
}

#[test]
fn counts_an_overwritten_key_once_in_a_multi_set() {
    let mut data = store(400);
    let full = |byte: u8| (b"k".to_vec(), vec![byte; 200]);
    data.apply(ME, Request::MultiSet { entries: vec![full(1)] }).unwrap();
    data.apply(ME, Request::MultiSet { entries: vec![full(2)] }).unwrap();
    data.apply(ME, Request::MultiSet { entries: vec![full(3), full(4)] }).unwrap();
    assert_eq!((data.bytes(), data.value(b"k")), (1 + 200 + 64, Some(&vec![4; 200])));
    let more = Request::MultiSet { entries: vec![full(5), (b"other".to_vec(), vec![0; 100])] };
    assert_eq!(data.apply(ME, more), Err(Refused::Full { max: 400 }));
    assert_eq!(data.value(b"k"), Some(&vec![4; 200]), "all or nothing");
}

#[test]
fn a_client_that_fills_the_store_leaves_the_last_quarter_to_others() {
    let mut data = store(16 << 10);
    let fill = |data: &mut Data, who, name: char| {
        (0..1000).take_while(|n| data.apply(who, set(&format!("{name}{n}"), "v")).is_ok()).count()
    };
    assert!(fill(&mut data, ME, 'm') > 0);
    assert!(matches!(data.apply(ME, set("more", "v")), Err(Refused::Share { got, .. }) if got > 12_000), "{data:?}");
    data.apply(ME, set("m0", "w")).expect("a write that does not grow the store is accepted");
    data.apply(OTHER, Request::Add { key: b"count".into(), amount: 1 }).unwrap();
    data.apply(OTHER, Request::QueuePush { key: b"q".into(), value: vec![0; 3000] }).unwrap();
    data.apply(OTHER, Request::Append { key: b"m0".into(), value: b"grows".into() }).unwrap();
    // Room returns when it deletes values or others do.
    data.apply(OTHER, Request::QueuePop { key: b"q".into() }).unwrap();
    data.delete_where(|key| key.starts_with(b"m"));
    assert!(fill(&mut data, ME, 'n') > 0);
    data.delete_where(|_| true);
    assert_eq!((data.bytes(), data.quota.written.len()), (0, 0));
}

#[test]
fn keeps_reserved_bytes_free_of_keys() {
    let mut data = store(400);
    data.reserve(200);
    assert_eq!(data.apply(ME, set("k", &"x".repeat(200))), Err(Refused::Full { max: 400 }));
    data.reserve(0);
    data.apply(ME, set("k", &"x".repeat(200))).unwrap();
}

#[test]
fn predicts_the_size_of_a_reply() {
    let mut data = store(1 << 20);
    data.apply(ME, set("k", "12345")).unwrap();
    data.apply(ME, Request::QueuePush { key: b"q".into(), value: b"123".into() }).unwrap();
    let compare = |key: &str, expected: &str, desired: &str| Request::CompareSet {
        key: key.into(),
        expected: expected.into(),
        desired: desired.into(),
    };
    for request in [
        Request::Get { key: b"k".into() },
        Request::Get { key: b"none".into() },
        Request::MultiGet { keys: vec![b"k".into(), b"none".into(), b"k".into()] },
        Request::ListKeys,
        compare("k", "no", "0123456789"),
        compare("none", "expected", ""),
        Request::QueuePop { key: b"q".into() },
    ] {
        let foretold = data.reply_bytes(&request);
        let mut bytes = Vec::new();
        data.apply(ME, request.clone()).unwrap().reply.unwrap().encode(&mut bytes);
        assert!(foretold >= bytes.len() && foretold <= bytes.len() + 8, "{request:?}: {foretold}, {bytes:?}");
    }
}

#[test]
fn refuses_a_request_whose_reply_would_be_too_large() {
    let limits = Limits { max_reply: 100, ..Limits::default() };
    let mut data = Data::new(limits, 1 << 20);
    data.apply(ME, set("k", &"x".repeat(60))).unwrap();
    let twice = Request::MultiGet { keys: vec![b"k".into(), b"k".into()] };
    assert_eq!(data.apply(ME, twice), Err(Refused::ReplyTooLarge { got: 136, max: 100 }));
    let more = Request::Append { key: b"k".into(), value: vec![0; 60] };
    assert_eq!(data.apply(ME, more), Err(Refused::ReplyTooLarge { got: 120, max: 100 }));
}

#[test]
fn counts_every_byte_that_is_added_or_removed() {
    let mut data = store(1 << 20);
    for (key, value) in [("a", "1"), ("b/c", "22"), ("a", "333")] {
        data.apply(ME, set(key, value)).unwrap();
    }
    data.apply(ME, Request::QueuePush { key: b"b/q".into(), value: b"4444".into() }).unwrap();
    assert_eq!(data.bytes(), (1 + 3 + 64) + (3 + 2 + 64) + (3 + 4 + 64));
    assert_eq!(data.delete_where(|key| key.starts_with(b"b/")), 2);
    assert_eq!(data.bytes(), 1 + 3 + 64);
}

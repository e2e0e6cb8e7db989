//! A mutation fuzzer over what PyTorch's clients sent (`golden/tcpstore.json`), damaged in many ways. It needs no special compiler, so
//! every test run does some of it.
//!
//! The test prints its seed. `TCPSTORE_FUZZ_SEED` replays a run, `TCPSTORE_FUZZ_ITERATIONS` makes it longer (20,000 by
//! default). A failing input is printed in hexadecimal: add it to [`FOUND`], and later runs try it first.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

use support::{Exchange, from_hex, golden, resident};
use tcpstore::Limits;
use tcpstore::server::{ConnectionId, Data, Session, Violation};
use tcpstore::wire::{Expect, Frame, MAGIC, Reader, Reply, Request, WireError};

/// Small, so that mutated lengths fall on both sides of the limits.
const LIMITS: Limits = Limits { max_key: 64, max_value: 4096, max_keys: 16, max_request: 8192, max_reply: 8192 };
const MAX_BYTES: usize = 64 << 10;
/// Mutations do not make inputs larger than this.
const MAX_INPUT: usize = 16 << 10;
/// Limit for the growth of memory after the corpus has been read.
const MAX_GROWTH: usize = 64 << 20;

/// Random numbers (xorshift64*, Vigna 2016); small and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is not a number")))
}

/// Inputs that failed once, in hexadecimal.
const FOUND: [&str; 0] = [];

/// [`FOUND`], then what PyTorch's clients sent in each recorded call.
fn corpus() -> Vec<Vec<u8>> {
    let golden = golden();
    let calls = golden.calls.iter().map(|call| {
        let parts = call.said.iter().filter(|part| part.from == "client");
        parts.flat_map(Exchange::bytes).collect::<Vec<u8>>()
    });
    let inputs: Vec<_> = FOUND.iter().map(|digits| from_hex(digits)).chain(calls).collect();
    assert!(inputs.len() > 10, "the corpus has {} inputs", inputs.len());
    inputs
}

/// Damages `input` in one way.
fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const TELLING: [u64; 12] =
        [0, 1, 2, 7, 64, 65, 4096, 4097, u32::MAX as u64, i64::MAX as u64, u64::MAX - 7, u64::MAX];
    let at = random.below(input.len());
    let length = random.below(input.len() - at.min(input.len()) + 1).min(64);
    match random.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 => input.insert(at, random.below(20) as u8),
        3 => drop(input.drain(at..at + length)),
        4 => input.truncate(at),
        5 => {
            let copied = input[at..at + length].to_vec();
            input.splice(at..at, copied);
        }
        6 if input.len() >= at + 8 => {
            let telling = TELLING[random.below(TELLING.len())];
            input[at..at + 8].copy_from_slice(&telling.to_le_bytes());
        }
        7 => input.extend_from_slice(&other[random.below(other.len())..]),
        _ => {
            let start = random.below(other.len());
            input.splice(at..at, other[start..].iter().copied());
        }
    }
    input.truncate(MAX_INPUT);
}

/// The result of a connection.
#[derive(Debug, PartialEq)]
struct Served {
    out: Vec<u8>,
    ending: Option<Violation>,
    left: usize,
    bytes: usize,
}

/// Feeds `input` to a connection as the server does, in pieces of the sizes that `piece` returns.
fn connect(input: &[u8], mut piece: impl FnMut() -> usize) -> Served {
    let mut data = Data::new(LIMITS, MAX_BYTES);
    let mut session = Session::new(ConnectionId(1), LIMITS);
    let (mut buffer, mut out, mut needs, mut fed) = (Vec::new(), Vec::new(), 1, 0);
    let mut ending = None;
    'connection: while fed < input.len() {
        let end = (fed + piece().max(1)).min(input.len());
        buffer.extend_from_slice(&input[fed..end]);
        fed = end;
        while buffer.len() >= needs {
            let before = out.len();
            match session.turn(&mut data, &buffer, &mut out) {
                Ok(turn) => {
                    assert!(turn.progress || turn.needs > buffer.len(), "a turn without progress needs more bytes");
                    assert!(turn.needs <= LIMITS.max_request);
                    assert!(turn.woken.is_empty() || turn.woken == [ConnectionId(1)]);
                    buffer.drain(..turn.consumed);
                    needs = turn.needs;
                }
                Err(violation) => {
                    ending = Some(violation);
                    break 'connection;
                }
            }
            assert!(out.len() - before <= LIMITS.max_reply + 64, "a reply of {} bytes", out.len() - before);
            assert!(data.bytes() <= MAX_BYTES);
        }
        assert!(buffer.len() <= LIMITS.max_request, "{} bytes wait for a request", buffer.len());
    }
    if ending.is_none() {
        // The fault may be in a request that is incomplete: the sizes of the pieces decide when it is reported.
        ending = session.turn(&mut data, &buffer, &mut out).err();
    }
    // After a fault the rest is not read, so the number of bytes left depends on the pieces.
    let left = if ending.is_some() { 0 } else { buffer.len() };
    data.leave(ConnectionId(1));
    assert!(!data.waits(ConnectionId(1)));
    Served { out, ending, left, bytes: data.bytes() }
}

/// Requests: an accepted request encodes to the same bytes, and both ways of reading agree.
fn check_requests(input: &[u8]) {
    for start in 0..input.len().min(24) {
        let bytes = &input[start..];
        let frame = Frame::find(bytes, &LIMITS);
        assert!(!matches!(frame, Err(WireError::Truncated { .. })));
        match frame {
            Ok(Frame::Complete(length)) => {
                let request = Request::decode(&bytes[..length], &LIMITS).expect("a whole frame is a request");
                let mut written = Vec::new();
                request.encode(&mut written);
                assert_eq!(written, &bytes[..length]);
                assert_eq!(Request::decode(&written, &LIMITS), Ok(request));
            }
            Ok(Frame::Incomplete(need)) => {
                assert!(need > bytes.len());
                assert!(matches!(Request::decode(bytes, &LIMITS), Err(WireError::Truncated { .. })));
            }
            Err(_) => assert!(Request::decode(bytes, &LIMITS).is_err() || bytes.len() > LIMITS.max_request),
        }
    }
}

/// Replies, decoded as every type.
fn check_replies(input: &[u8]) {
    use Expect::{Keys, Nonce, Number, Popped, Ready, Value, Values, Wait};
    for expect in [Nonce, Value, Values(0), Values(3), Number, Ready, Wait, Popped, Keys] {
        let mut reader = Reader::new(input);
        if let Ok(reply) = Reply::read(expect, &mut reader, &LIMITS) {
            let taken = reader.position();
            let mut written = Vec::new();
            reply.encode(&mut written);
            match reply {
                // The length of a queue is never negative; such a count is read as an empty queue.
                Reply::Popped { before, .. } if before < 0 => {}
                _ => assert_eq!(written, &input[..taken], "{expect:?}"),
            }
            assert_eq!(Reply::decode(expect, &written, &LIMITS), Ok(reply));
        }
    }
}

fn check(input: &[u8], random: &mut Random) {
    check_requests(input);
    check_replies(input);
    let mut opened = Vec::new();
    Request::Validate { magic: MAGIC }.encode(&mut opened);
    opened.extend_from_slice(input);
    for input in [input, &opened] {
        let whole = connect(input, || 512);
        let mut pieces = Random(random.next() | 1);
        let size = 1 + random.below(40);
        assert_eq!(connect(input, || pieces.below(size)), whole, "the result depends on the sizes of the pieces");
    }
}

#[test]
fn survives_all_bytes_that_peers_send() {
    let iterations = number_from("TCPSTORE_FUZZ_ITERATIONS").unwrap_or(20_000);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let seed = number_from("TCPSTORE_FUZZ_SEED").unwrap_or(now);
    println!("TCPSTORE_FUZZ_SEED={seed} TCPSTORE_FUZZ_ITERATIONS={iterations}");
    let mut random = Random(seed | 1);
    let corpus = corpus();
    let started_with = resident();
    for iteration in 0..iterations + corpus.len() as u64 {
        let mut input = corpus[iteration as usize % corpus.len()].clone();
        if iteration >= corpus.len() as u64 {
            input = corpus[random.below(corpus.len())].clone();
            for _ in 0..=random.below(8) {
                let other = &corpus[random.below(corpus.len())];
                mutate(&mut input, other, &mut random);
            }
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&input, &mut random)));
        if let Err(panic) = outcome {
            let digits: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("input {iteration} of seed {seed} fails: {digits}");
            resume_unwind(panic);
        }
    }
    let grown = resident().saturating_sub(started_with);
    assert!(grown < MAX_GROWTH, "memory grew by {grown} bytes");
}

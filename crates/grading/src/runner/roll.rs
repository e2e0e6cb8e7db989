//! Where the ranks of a group are: they answer roll calls through the store, which lives here.
//!
//! The protocol is `crates/c10d/src/roll_call.rs`': a counter of rounds, and an answer or a farewell of each rank. It is spoken
//! here as text, since this side links no libtorch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tcpstore::Server;

/// How long to wait for answers: ranks look every 200 ms.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// The name of the group of all ranks.
const GROUP: &str = "0";

const ASKED: &str = "lockstep/roll_call/asked";

#[derive(Deserialize)]
enum Whereabouts {
    In(Call),
    Failed { call: Call, why: String },
    Between { finished: u64 },
    Left { finished: u64, panicking: bool },
}

#[derive(Deserialize)]
struct Call {
    group: String,
    number: Option<u64>,
    operation: String,
}

/// What each rank says about itself; those that do not answer are absent.
pub(super) fn call(store: &Server, ranks: usize) -> BTreeMap<usize, String> {
    // The group's keys stand behind a prefix.
    let Some(asked) = store.keys("").into_iter().find(|key| key.ends_with(ASKED)) else {
        return (0..ranks).map(|rank| (rank, "has joined no group".to_owned())).collect();
    };
    let prefix = asked.trim_end_matches("asked");
    let round = store.get(&asked).and_then(|count| String::from_utf8(count).ok()?.trim().parse::<u64>().ok());
    let round = round.unwrap_or(0) + 1;
    if store.set(&asked, round.to_string().as_bytes()).is_err() {
        return BTreeMap::new();
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = |rank: usize| {
            let keys = [format!("{prefix}{round}/{rank}"), format!("{prefix}farewell/{GROUP}/{rank}")];
            let bytes = keys.iter().find_map(|key| store.get(key))?;
            Some((rank, told(&serde_json::from_slice(&bytes).ok()?)))
        };
        let answers: BTreeMap<usize, String> = (0..ranks).filter_map(answer).collect();
        if answers.len() == ranks || Instant::now() >= until {
            return answers;
        }
        std::thread::sleep(LOOK);
    }
}

fn told(at: &Whereabouts) -> String {
    match at {
        Whereabouts::In(call) => format!("waits in {}", of_call(call)),
        Whereabouts::Failed { call, why } => format!("failed in {} ({why})", of_call(call)),
        Whereabouts::Between { finished } => format!("is in no call, after {finished} that are done"),
        Whereabouts::Left { finished, panicking: false } => format!("has left the group after {finished} calls"),
        Whereabouts::Left { finished, panicking: true } => format!("panicked after {finished} calls"),
    }
}

fn of_call(call: &Call) -> String {
    let number = call.number.map_or(String::new(), |number| format!("call {number}, "));
    let group = if call.group == "0" { String::new() } else { format!(" (group {})", call.group) };
    format!("{number}{}{group}", call.operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_ranks_say_of_themselves() {
        let say = |json: &str| told(&serde_json::from_str(json).unwrap());
        let call = r#"{"group":"0","number":3,"operation":"all_reduce of [4]"}"#;
        assert_eq!(say(&format!(r#"{{"In":{call}}}"#)), "waits in call 3, all_reduce of [4]");
        assert_eq!(say(r#"{"Between":{"finished":2}}"#), "is in no call, after 2 that are done");
        let message = r#"{"In":{"group":"pair","number":null,"operation":"recv from rank 1"}}"#;
        assert_eq!(say(message), "waits in recv from rank 1 (group pair)");
    }
}

//! Asks the ranks of a group where they are. They answer through the store, which this process hosts.
//!
//! The protocol is in [`lockstep_contract::desync_report`].

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_contract::desync_report::{ASKED, RankState, WHOLE_JOB, answer_key, farewell_key};
use tcpstore::Server;

/// How many looks to wait for answers: 2 s, and more on a busy machine. Ranks look for a request every 200 ms.
const LOOKS: usize = 100;
const LOOK: Duration = Duration::from_millis(20);
/// What comes between the call in which a rank waits and its others in progress.
pub const BESIDE: &str = "; also in progress: ";
/// What a rank does that waits for the members of a new group.
pub const JOINS: &str = "waits in new_group: group";
/// What comes between those.
pub const SEPARATOR: &str = " and ";

/// Each rank's state as text; ranks that do not answer are absent.
pub(super) fn collect(store: &Server, ranks: usize) -> BTreeMap<usize, String> {
    // The group's keys have a prefix.
    let Some(asked) = store.keys("").into_iter().find(|key| key.ends_with(ASKED)) else {
        return (0..ranks).map(|rank| (rank, "has joined no group".to_owned())).collect();
    };
    let prefix = asked.trim_end_matches(ASKED);
    let round = store.get(&asked).and_then(|count| String::from_utf8(count).ok()?.trim().parse::<i64>().ok());
    let round = round.unwrap_or(0) + 1;
    if store.set(&asked, round.to_string().as_bytes()).is_err() {
        return BTreeMap::new();
    }
    let answer = |rank: usize| {
        let keys = [answer_key(round, rank), farewell_key(WHOLE_JOB, rank)];
        let bytes = keys.iter().find_map(|key| store.get(&format!("{prefix}{key}")))?;
        Some((rank, describe(&RankState::parse(&bytes)?)))
    };
    let mut answers = BTreeMap::new();
    for _ in 0..LOOKS {
        answers = (0..ranks).filter_map(answer).collect();
        if answers.len() == ranks {
            break;
        }
        std::thread::sleep(LOOK);
    }
    answers
}

fn describe(at: &RankState) -> String {
    match at {
        RankState::In(call) if call.beside.is_empty() => format!("waits in {call}"),
        RankState::In(call) => format!("waits in {call}{BESIDE}{}", call.beside.join(SEPARATOR)),
        RankState::Failed { call, why } => format!("failed in {call} ({why})"),
        RankState::Joining { group, .. } if group == WHOLE_JOB => "waits in init_process_group".into(),
        RankState::Joining { group, members } => format!("{JOINS} {group} of ranks {members:?}"),
        RankState::Between { finished } => format!("is in no call, after {finished} finished calls"),
        RankState::Left { finished, panicking: false } => format!("has left the group after {finished} calls"),
        RankState::Left { finished, panicking: true } => format!("panicked after {finished} calls"),
        RankState::Aborted { finished } => format!("has aborted the group after {finished} calls"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_where_ranks_are_now() {
        let say = |json: &str| describe(&RankState::parse(json.as_bytes()).unwrap());
        let call = r#"{"group":"0","number":3,"operation":"all_reduce of [4]"}"#;
        assert_eq!(say(&format!(r#"{{"In":{call}}}"#)), "waits in call 3, all_reduce of [4]");
        assert_eq!(say(r#"{"Between":{"finished":2}}"#), "is in no call, after 2 finished calls");
        let joining = |group| say(&format!(r#"{{"Joining":{{"group":"{group}","members":[0,2]}}}}"#));
        assert_eq!(joining("3"), "waits in new_group: group 3 of ranks [0, 2]");
        assert_eq!(joining("0"), "waits in init_process_group");
        let message = r#"{"In":{"group":"pair","number":null,"operation":"recv from rank 1"}}"#;
        assert_eq!(say(message), "waits in recv from rank 1 (group pair)");
        let two = r#"{"In":{"group":"0","number":null,"operation":"recv from rank 1","beside":["isend to rank 1"]}}"#;
        assert_eq!(say(two), "waits in recv from rank 1; also in progress: isend to rank 1");
    }
}

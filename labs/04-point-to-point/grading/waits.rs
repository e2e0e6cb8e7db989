//! Explains a hang in messages: which rank waits for which, from the positions of the ranks.

use lockstep_grading::{Verdict, explain};

/// A call in which a rank waits for a peer.
#[derive(Clone, Debug, PartialEq)]
struct Wait {
    /// `send`, `recv`, `isend`, …
    call: String,
    peer: usize,
}

/// Explains a hang: which ranks wait for one another, and why. Other errors stay as they are.
pub(crate) fn explain_hang(error: anyhow::Error) -> anyhow::Error {
    explain(error, |finding| (finding.verdict == Verdict::Hang).then(|| diagnosis(&finding.table)).flatten())
}

fn diagnosis(table: &[String]) -> Option<String> {
    let waits: Vec<Option<Wait>> = table.iter().map(|line| wait(line)).collect();
    let Some(cycle) = cycle(&waits) else { return one_sided(&waits) };
    let links = cycle.iter().map(|wait| format!("waits in {} for rank {}", wait.call, wait.peer));
    let chain = links.collect::<Vec<_>>().join(", which ");
    let first = cycle.last()?.peer;
    let all = |calls: &[&str]| cycle.iter().all(|wait| calls.contains(&wait.call.as_str()));
    let why = if all(&["send"]) {
        "each sends first, and a send ends only when the other side receives, however short the message is: some rank must \
         receive first"
    } else if all(&["recv"]) {
        "each receives first, and no rank has sent: some rank must send first"
    } else if all(&["isend"]) {
        "each waits for its isend before it has started to receive, which makes it a blocking send: start everything, then wait"
    } else if all(&["irecv"]) {
        "each waits to receive, and no send is in progress: a send that is dropped without `wait` is abandoned"
    } else {
        "look at what each of them does before the call in which it waits"
    };
    Some(format!("rank {first} {chain}: a cycle in which no rank can continue; {why}"))
}

/// Explains a rank that waits for a peer which is not waiting for a message.
fn one_sided(waits: &[Option<Wait>]) -> Option<String> {
    let (rank, wait) = waits.iter().enumerate().find_map(|(rank, wait)| wait.as_ref().map(|wait| (rank, wait)))?;
    let why = match &*wait.call {
        "recv" | "irecv" => {
            "no such message is in progress there. Is it sent to this rank, with this tag? A send that is dropped without `wait` \
             may be abandoned"
        }
        _ => "that rank does not receive it: every send needs a receive with the same tag on the other side",
    };
    Some(format!("rank {rank} waits in {} for rank {}, and {why}", wait.call, wait.peer))
}

/// Parses a line such as `rank 0: waits in send [4] Double tag 0 to rank 1`.
fn wait(line: &str) -> Option<Wait> {
    let (_, call) = line.split_once(": waits in ")?;
    let (_, peer) = call.rsplit_once(" rank ")?;
    let peer: String = peer.chars().take_while(char::is_ascii_digit).collect();
    Some(Wait { call: call.split(' ').next()?.to_owned(), peer: peer.parse().ok()? })
}

/// A cycle of waits, if there is one. The last wait is for the rank of the first one.
fn cycle(waits: &[Option<Wait>]) -> Option<Vec<&Wait>> {
    let of = |rank: usize| waits.get(rank).and_then(Option::as_ref);
    (0..waits.len()).find_map(|first| {
        let follow = |wait: &&Wait| of(wait.peer);
        let path: Vec<&Wait> = std::iter::successors(of(first), follow).take(waits.len()).collect();
        let end = path.iter().position(|wait| wait.peer == first)?;
        Some(path[..=end].to_vec())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_a_cycle_and_how_to_break_it() {
        let send = |rank: usize, to: usize| format!("rank {rank}: waits in send [4] Double tag 0 to rank {to}");
        let text = diagnosis(&[send(0, 1), send(1, 2), send(2, 0)]).unwrap();
        assert!(
            text.starts_with("rank 0 waits in send for rank 1, which waits in send for rank 2, which waits"),
            "{text}"
        );
        assert!(text.contains("each sends first"), "{text}");
        let mixed = diagnosis(&[send(0, 1), "rank 1: waits in recv [4] Double tag 1 from rank 0 (group 2)".into()]);
        assert!(mixed.unwrap().contains("which waits in recv for rank 0: a cycle"));
    }

    #[test]
    fn does_not_report_a_chain_as_a_cycle() {
        let text =
            diagnosis(&["rank 0: has finished".into(), "rank 1: waits in recv [1] Float tag 0 from rank 0".into()]);
        assert!(text.unwrap().starts_with("rank 1 waits in recv for rank 0, and no such message"));
        assert_eq!(diagnosis(&["rank 0: is in no call, after 3 that are done".into()]), None);
    }
}

//! Explains a hang in messages: which rank waits for which, from the positions of the ranks.

use lockstep_grading::{BESIDE, SEPARATOR, Verdict, explain};

/// A call for which a rank waits, or that is in progress next to it.
#[derive(Clone, Debug, PartialEq)]
struct Wait {
    /// `send`, `recv`, `isend`, …
    call: String,
    peer: usize,
    tag: Option<u32>,
}

impl Wait {
    fn sends(&self) -> bool {
        self.call.ends_with("send")
    }
}

/// Explains a hang: which ranks wait for one another, and why. Other errors stay as they are.
pub(crate) fn explain_hang(error: anyhow::Error) -> anyhow::Error {
    explain(error, |finding| (finding.verdict == Verdict::Hang).then(|| diagnosis(&finding.table)).flatten())
}

fn diagnosis(table: &[String]) -> Option<String> {
    let waits: Vec<Option<Wait>> = table.iter().map(|line| wait(line)).collect();
    let beside: Vec<Vec<Wait>> = table.iter().map(|line| beside(line)).collect();
    if let Some(diagnosis) = other_tag(&waits, &beside) {
        return Some(diagnosis);
    }
    let Some(cycle) = cycle(&waits) else { return one_sided(&waits, table) };
    let links = cycle.iter().map(|wait| format!("waits in {} for rank {}", wait.call, wait.peer));
    let chain = links.collect::<Vec<_>>().join(", which ");
    let first = cycle.last()?.peer;
    let all = |call: &str| cycle.iter().all(|wait| wait.call == call);
    // Whether a transfer in the other direction is in progress next to one of the waits.
    let ranks = || cycle.iter().map(|wait| wait.peer);
    let other_way = ranks().any(|rank| beside[rank].iter().any(|other| other.sends() != cycle[0].sends()));
    let why = if all("send") {
        "each sends, and a send ends only when the other side receives, however short the message is. In each step some rank must receive \
         before it sends, and each send needs its receive"
    } else if all("recv") {
        "each receives, and no send is in progress. In each step some rank must send before it receives, and each receive needs its send"
    } else if all("isend") && !other_way {
        "each waits for its isend, and no receive is in progress, which makes it a blocking send: start everything, then wait"
    } else if all("irecv") && !other_way {
        "each waits to receive, and no send to it is in progress: none was started, or it was dropped without `wait`, which abandons it"
    } else {
        "look at what each of them does before the call in which it waits"
    };
    Some(format!("rank {first} {chain}: a cycle in which no rank can continue; {why}"))
}

/// Explains a message whose two sides have different tags, as far as the calls show it.
fn other_tag(waits: &[Option<Wait>], beside: &[Vec<Wait>]) -> Option<String> {
    waits.iter().enumerate().find_map(|(rank, wait)| {
        let wait = wait.as_ref()?;
        let theirs = waits.get(wait.peer)?.iter().chain(&beside[wait.peer]);
        let theirs: Vec<&Wait> =
            theirs.filter(|other| other.peer == rank && other.sends() != wait.sends() && other.tag.is_some()).collect();
        let (Some(tag), Some(other), false) =
            (wait.tag, theirs.first()?.tag, theirs.iter().any(|other| other.tag == wait.tag))
        else {
            return None;
        };
        let (way, does) = if wait.sends() { ("to", "receives from it") } else { ("from", "sends to it") };
        Some(format!(
            "rank {rank} waits in {} {way} rank {} with tag {tag}, and rank {} {does} with tag {other}: they wait for each other, since a \
             message only meets a receive with the same tag. Both sides must derive the tag in the same way",
            wait.call, wait.peer, wait.peer
        ))
    })
}

/// Explains a rank that waits for a peer which is not waiting for a message.
fn one_sided(waits: &[Option<Wait>], table: &[String]) -> Option<String> {
    let (rank, wait) = waits.iter().enumerate().find_map(|(rank, wait)| wait.as_ref().map(|wait| (rank, wait)))?;
    let finished = table.get(wait.peer).is_some_and(|line| line.contains("has finished"));
    let why = match &*wait.call {
        "recv" | "irecv" if finished => {
            "that rank has finished: here is one receive more than it has sent messages with this tag, or a message was lost, since a send or \
             a receive that is dropped without `wait` may be abandoned"
        }
        "recv" | "irecv" => {
            "no such message is in progress there. Is it sent to this rank, with this tag? A send that is dropped without `wait` \
             may be abandoned"
        }
        _ if finished => {
            "that rank has finished without another receive of a message with this tag: every send needs one"
        }
        _ => "that rank does not receive it: every send needs a receive with the same tag on the other side",
    };
    Some(format!("rank {rank} waits in {} for rank {}, and {why}", wait.call, wait.peer))
}

/// Parses a line such as `rank 0: waits in send [4] Double tag 0 to rank 1`.
fn wait(line: &str) -> Option<Wait> {
    let (_, call) = line.split_once(": waits in ")?;
    message(call.split(BESIDE).next()?)
}

/// The messages that are in progress next to the one for which the rank waits.
fn beside(line: &str) -> Vec<Wait> {
    line.split_once(BESIDE).map_or(Vec::new(), |(_, calls)| calls.split(SEPARATOR).filter_map(message).collect())
}

fn message(call: &str) -> Option<Wait> {
    let (before, peer) = call.rsplit_once(" rank ")?;
    let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
    let tag = before.rsplit_once(" tag ").and_then(|(_, tag)| number(tag));
    Some(Wait { call: call.split(' ').next()?.to_owned(), peer: number(peer)? as usize, tag })
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
        assert!(text.contains("each sends, and a send ends only"), "{text}");
        let mixed = diagnosis(&[send(0, 1), "rank 1: waits in recv [4] Double tag 0 from rank 0 (group 2)".into()]);
        assert!(mixed.unwrap().contains("which waits in recv for rank 0: a cycle"));
    }

    #[test]
    fn names_tags_that_differ() {
        let line = |rank: usize, peer: usize| {
            format!(
                "rank {rank}: waits in irecv [1, 2] Double tag 1 from rank {peer}{BESIDE}isend [1, 2] Double tag 0 to rank {peer}"
            )
        };
        let text = diagnosis(&[line(0, 1), line(1, 0)]).unwrap();
        assert!(
            text.starts_with("rank 0 waits in irecv from rank 1 with tag 1, and rank 1 sends to it with tag 0"),
            "{text}"
        );
        let same = line(0, 1).replace("tag 1", "tag 0");
        let receives = "rank 1: waits in irecv [1] Double tag 0 from rank 0".to_owned();
        assert!(diagnosis(&[same, receives]).unwrap().contains("a cycle"), "no tag differs");
    }

    #[test]
    fn does_not_report_a_chain_as_a_cycle() {
        let waits = || "rank 1: waits in recv [1] Float tag 0 from rank 0".to_owned();
        let text = diagnosis(&["rank 0: has finished".into(), waits()]).unwrap();
        assert!(
            text.starts_with("rank 1 waits in recv for rank 0, and that rank has finished: here is one receive more")
        );
        let text = diagnosis(&["rank 0: is in no call, after 3 finished calls".into(), waits()]).unwrap();
        assert!(text.starts_with("rank 1 waits in recv for rank 0, and no such message"));
        assert_eq!(diagnosis(&["rank 0: is in no call, after 3 finished calls".into()]), None);
    }
}

//! Who waits for whom, read from where the ranks of a hang were.

use lockstep_grading::{Verdict, explain};

/// A rank that waits for a message.
#[derive(Clone, Debug, PartialEq)]
struct Wait {
    /// `send`, `recv`, `isend`, …
    call: String,
    peer: usize,
}

/// The same error; of a hang in messages it says which ranks wait for one another in a circle, and why.
pub(crate) fn told(error: anyhow::Error) -> anyhow::Error {
    explain(error, |fault| (fault.verdict == Verdict::Hang).then(|| diagnosis(&fault.table)).flatten())
}

fn diagnosis(table: &[String]) -> Option<String> {
    let waits: Vec<Option<Wait>> = table.iter().map(|line| wait(line)).collect();
    let Some(circle) = circle(&waits) else { return one_sided(&waits) };
    let links = circle.iter().map(|wait| format!("waits in {} for rank {}", wait.call, wait.peer));
    let chain = links.collect::<Vec<_>>().join(", which ");
    let first = circle.last()?.peer;
    let all = |calls: &[&str]| circle.iter().all(|wait| calls.contains(&wait.call.as_str()));
    let why = if all(&["send"]) {
        "each sends first, and a send is over only when the other side receives, however short the message: some rank must \
         receive first"
    } else if all(&["recv"]) {
        "each receives first, and nobody has sent: some rank must send first"
    } else if all(&["isend"]) {
        "each waits for its isend before it has started to receive, which is nothing but a send: start everything, then wait"
    } else if all(&["irecv"]) {
        "each waits to receive, and no send is under way: one that was dropped without `wait` is abandoned"
    } else {
        "look at what each of them does before the call in which it waits"
    };
    Some(format!("rank {first} {chain}: a full circle, in which nobody can go on; {why}"))
}

/// A rank waits for one that does not wait for a message itself.
fn one_sided(waits: &[Option<Wait>]) -> Option<String> {
    let (rank, wait) = waits.iter().enumerate().find_map(|(rank, wait)| wait.as_ref().map(|wait| (rank, wait)))?;
    let why = match &*wait.call {
        "recv" | "irecv" => {
            "no such message is under way there. Is it sent, to this rank and under this tag? One that is dropped without \
             `wait` may be abandoned"
        }
        _ => "nobody receives it there: to every send belongs a receive on the other side, under the same tag",
    };
    Some(format!("rank {rank} waits in {} for rank {}, and {why}", wait.call, wait.peer))
}

/// What `rank 0: waits in send [4] Double tag 0 to rank 1` says.
fn wait(line: &str) -> Option<Wait> {
    let (_, call) = line.split_once(": waits in ")?;
    let (_, peer) = call.rsplit_once(" rank ")?;
    let peer: String = peer.chars().take_while(char::is_ascii_digit).collect();
    Some(Wait { call: call.split(' ').next()?.to_owned(), peer: peer.parse().ok()? })
}

/// The waits of ranks that wait for one another: the first is that of the rank which the last one waits for.
fn circle(waits: &[Option<Wait>]) -> Option<Vec<&Wait>> {
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
    fn tells_the_circle_and_what_closes_it() {
        let send = |rank: usize, to: usize| format!("rank {rank}: waits in send [4] Double tag 0 to rank {to}");
        let told = diagnosis(&[send(0, 1), send(1, 2), send(2, 0)]).unwrap();
        assert!(
            told.starts_with("rank 0 waits in send for rank 1, which waits in send for rank 2, which waits"),
            "{told}"
        );
        assert!(told.contains("each sends first"), "{told}");
        let mixed = diagnosis(&[send(0, 1), "rank 1: waits in recv [4] Double tag 1 from rank 0 (group 2)".into()]);
        assert!(mixed.unwrap().contains("which waits in recv for rank 0: a full circle"));
    }

    #[test]
    fn a_chain_with_an_end_is_no_circle() {
        let told =
            diagnosis(&["rank 0: has finished".into(), "rank 1: waits in recv [1] Float tag 0 from rank 0".into()]);
        assert!(told.unwrap().starts_with("rank 1 waits in recv for rank 0, and no such message"));
        assert_eq!(diagnosis(&["rank 0: is in no call, after 3 that are done".into()]), None);
    }
}

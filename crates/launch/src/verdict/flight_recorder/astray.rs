//! The rank that is not where the others are.

use std::collections::BTreeMap;

use super::recording::{Call, Recording, Recordings};

/// A rank that is not where the others are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verdict) struct Astray {
    /// The rank.
    pub rank: usize,
    /// Where it was, and where the others were.
    pub cause: String,
    /// How many recordings show this, and where they are.
    pub evidence: String,
}

/// The rank that is behind the others in a group, otherwise one that is in another call than most; `None` if the recordings do not
/// show one. `reporter` is the rank that ended first.
pub(in crate::verdict) fn astray(recordings: &Recordings, reporter: usize) -> Option<Astray> {
    let mut groups: Vec<&str> =
        recordings.values().flat_map(|one| &one.calls).map(|call| call.process_group.0.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    let found = groups.iter().find_map(|group| behind(recordings, group));
    let (rank, cause) = found.or_else(|| groups.iter().find_map(|group| differs(recordings, group, reporter)))?;
    let path = recordings.get(&rank).map(|one| one.path.display().to_string()).unwrap_or_default();
    Some(Astray {
        rank,
        cause,
        evidence: format!("PyTorch's flight recorder of {} ranks, such as {path}", recordings.len()),
    })
}

/// The rank whose last call comes before those of all others.
fn behind(recordings: &Recordings, group: &str) -> Option<(usize, String)> {
    let mut last: Vec<(u64, usize)> =
        recordings.iter().filter_map(|(rank, one)| Some((one.last(group)?, *rank))).collect();
    last.sort_unstable();
    let [(least, rank), (next, _), ..] = last[..] else { return None };
    if least == next {
        return None;
    }
    let others = recordings.iter().filter(|(other, _)| **other != rank);
    let waits = others.flat_map(|(_, one)| one.of_group(group)).find(|call| call.collective_seq_id == least + 1)?;
    let own = recordings[&rank].of_group(group).rfind(|call| call.collective_seq_id == least)?;
    Some((rank, format!("it did not come to {waits}, in which others waited; its last one was {own}")))
}

/// In the last call of all: the rank that makes another one than most.
fn differs(recordings: &Recordings, group: &str, reporter: usize) -> Option<(usize, String)> {
    let number = recordings.values().filter_map(|one| one.last(group)).min()?;
    let call_of =
        |one: &Recording| one.of_group(group).find(|call| call.collective_seq_id == number).map(Call::to_string);
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, one) in recordings {
        kinds.entry(call_of(one)?).or_default().push(*rank);
    }
    // Of two calls that equally many ranks make, that of the rank that ended first is taken for the right one.
    let rarest = kinds.iter().min_by_key(|(_, ranks)| (ranks.len(), ranks.contains(&reporter)))?;
    let most = kinds.iter().max_by_key(|(_, ranks)| (ranks.len(), ranks.contains(&reporter)))?;
    let ([rank], true) = (&rarest.1[..], rarest.0 != most.0) else { return None };
    Some((*rank, format!("it was in {}, while others were in {}", rarest.0, most.0)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::super::recording::read_from;
    use super::*;

    /// Recorded by Python's PyTorch: see `crates/launch/tests/flight_recorder/record.py`.
    fn recorded(name: &str) -> Recordings {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flight_recorder").join(name);
        read_from(&[format!("{}/rank_", folder.display())], SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn names_the_rank_that_did_not_come_to_the_last_call() {
        let recordings = recorded("behind");
        assert_eq!(recordings.len(), 3);
        let found = astray(&recordings, 0).unwrap();
        assert_eq!(
            (found.rank, found.cause.as_str()),
            (
                1,
                "it did not come to call 3, broadcast of [2, 5] Double, in which others waited; its last one was call 2, all_reduce \
                 of [4] Float"
            )
        );
    }

    #[test]
    fn names_the_rank_that_is_in_another_call_than_most() {
        let found = astray(&recorded("differs"), 0).unwrap();
        assert_eq!(
            (found.rank, found.cause.as_str()),
            (2, "it was in call 2, all_reduce of [2, 2] Float, while others were in call 2, all_reduce of [4] Float")
        );
    }

    #[test]
    fn names_nobody_if_all_are_in_the_same_call_or_only_one_recording_is_there() {
        let mut recordings = recorded("behind");
        assert_eq!(recordings.remove(&1).map(|_| astray(&recordings, 0)), Some(None));
        recordings.remove(&2);
        assert_eq!(astray(&recordings, 0), None);
        assert_eq!(astray(&Recordings::new(), 0), None);
    }
}

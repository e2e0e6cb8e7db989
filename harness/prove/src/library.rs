//! The scenarios that are built into the command, in reading order.

use crate::exit::Refused;
use crate::scenario::Scenario;
use crate::scenario_file::parse;

/// Names and texts.
macro_rules! library {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),+]
    };
}

const LIBRARY: &[(&str, &str)] = library![
    "kill-one-worker",
    "kill-rank-zero",
    "kill-in-the-first-step",
    "kill-in-the-last-step",
    "kill-twice",
    "kill-right-after-a-restart",
    "kill-all-workers-at-once",
    "kill-one-of-four",
    "kill-at-a-line",
    "kill-by-the-clock",
    "terminate-one-worker",
    "segfault",
    "exit-code",
    "panic",
    "stop-for-a-while",
    "out-of-restarts",
    "crash-loop",
    "kill-in-the-middle-of-a-save",
    "kill-before-the-rename",
    "kill-after-the-rename",
    "torn-snapshot",
    "flipped-bit",
    "only-snapshot-torn",
    "no-space-for-a-snapshot",
    "full-disk",
    "read-only-disk",
    "two-nodes-one-worker-killed",
    "lost-agent",
    "lost-node",
    "authority-killed",
    "authority-lost",
    "authority-cut-off",
    "no-takeover",
    "requeued-in-another-order",
    "asked-to-end-and-requeued",
    "asked-for-a-snapshot",
    "asked-to-save-and-requeued",
    "one-rank-ignores-sigterm",
    "three-nodes-one-comes-late",
    "lost-for-good",
    "one-leaves",
    "one-comes-later",
    "eight-three-five-eight",
    "requeued-on-fewer-nodes",
    "slow-network",
    "cut-network-for-a-moment",
    "resnet-killed-in-an-epoch",
    "resnet-on-two-nodes-one-worker-killed",
    "resnet-on-two-nodes-one-lost",
    "resnet-on-three-nodes-requeued",
    "killed-after-the-best-model",
    "classifier-on-two-nodes-one-worker-killed",
    "classifier-on-two-nodes-one-lost",
    "classifier-on-three-nodes-requeued",
];

/// All names, in order.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    LIBRARY.iter().map(|(name, _)| *name)
}

/// The file of scenario `name`.
pub(crate) fn text(name: &str) -> Result<&'static str, Refused> {
    let found = LIBRARY.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
    found.ok_or_else(|| {
        let hint = match nearest(name) {
            Some(nearest) => format!("did you mean {nearest}? "),
            None => String::new(),
        };
        Refused(format!(
            "there is no scenario {name:?}: {hint}`lockstep inject --list` lists all, a file ends with .toml"
        ))
    })
}

pub(crate) fn scenario(name: &str) -> Result<Scenario, Refused> {
    parse(&format!("{name}.toml"), text(name)?)
}

/// The name with the longest common prefix, or one that contains the given text.
fn nearest(name: &str) -> Option<&'static str> {
    let common = |known: &str| known.bytes().zip(name.bytes()).take_while(|(one, other)| one == other).count();
    let inside = names().find(|known| !name.is_empty() && known.contains(name));
    inside.or_else(|| names().max_by_key(|known| common(known)).filter(|known| common(known) > 2))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn contains_only_valid_scenarios_named_after_their_files() {
        for name in names() {
            let scenario = scenario(name).unwrap_or_else(|refused| panic!("{refused}"));
            assert_eq!(scenario.name, name);
            assert!(!scenario.faults.is_empty() && scenario.shows.len() > 40, "{name}");
            assert_eq!(parse("again", &scenario.to_toml()).unwrap(), scenario);
        }
        assert!(names().count() >= 20);
    }

    #[test]
    fn contains_every_file_of_its_folder() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap();
        let files = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let files: BTreeSet<_> = files.filter_map(|name| name.strip_suffix(".toml").map(str::to_owned)).collect();
        assert_eq!(files, names().map(str::to_owned).collect());
    }

    #[test]
    fn suggests_a_similar_name() {
        let message = |name| text(name).unwrap_err().to_string();
        assert!(message("kill-one-wroker").contains("did you mean kill-one-worker?"), "{}", message("kill-one-wroker"));
        assert!(message("rename").contains("did you mean kill-before-the-rename?"));
        assert!(!message("xyz").contains("did you mean") && message("xyz").contains("--list"));
    }
}

//! Grades `diagnose`: the causes of the recordings in `given/recordings.rs`.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Runner};

/// Name, cause, and what in the recording shows it.
const RIGHT: [(&str, &str, &str); 7] = [
    ("a", "NoLauncher", "n2 has no process of that name: the launcher of n1 waits for one that was not started"),
    (
        "b",
        "DifferentIds",
        "both nodes have a launcher, but each shell expands its own $RANDOM: launchers with different ids do not meet",
    ),
    (
        "c",
        "PortBlocked",
        "n1 listens, and n2 gets no answer at all within 5 s: something drops what is sent to the port",
    ),
    ("d", "NameUnknown", "the name was not found, so nothing was sent: the attempts to find the name timed out"),
    ("e", "NobodyListens", "the connection was refused at once: n3 was reached, but no process listens on the port"),
    ("f", "PortTaken", "the launcher could not listen on its own node: another process has the port"),
    (
        "g",
        "Loopback",
        "the launchers have met, and their ranks then connect to an address that means the node itself on every node",
    ),
];

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let outputs = runner.call::<_, BTreeMap<String, String>>(1, &[()])?;
    let found = outputs.of(0, 0);
    for (name, cause, why) in RIGHT {
        let observed = found.get(name).map_or("no answer", String::as_str);
        // The right answer stays with the learner, unless it follows from the reason.
        Claim::that(cause == observed, "another cause", observed).given(format!("recording {name}")).or_fail(why)?;
    }
    Ok(())
}

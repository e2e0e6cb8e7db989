//! Event files of processes that are killed, restarted, or unable to write.

use std::io::{BufRead, BufReader};
use std::process::Command;

use crate::{KillOnDrop, Test, finish, text};
use lockstep::events::{self, Event, EventSink};

/// Before the names of the cases.
pub(crate) const CASE: &str = "events";

pub(crate) const TESTS: &[Test] = &[
    ("leaves_at_most_one_torn_line_per_kill_and_loses_nothing_before_it", survives_kills),
    ("warns_once_when_the_disk_is_full_and_continues", warns_once),
    ("warns_when_the_folder_cannot_be_created_and_continues", warns_of_the_folder),
];

pub(crate) fn case(name: &str) -> anyhow::Result<()> {
    let sink = EventSink::from_env(0, 0);
    match name {
        "endless" => endless(&sink),
        _ => (0..3).for_each(|code| sink.emit(&Event::Exit { code })),
    }
    println!("trained");
    Ok(())
}

fn endless(sink: &EventSink) {
    for epoch in 0.. {
        sink.emit(&Event::Samples { epoch, indices: (0..10_000).collect() });
        if epoch == 20 {
            println!("wrote 20");
        }
    }
}

fn survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let mut writer = KillOnDrop(program("endless").env(events::FOLDER, dir.path()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(writer.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "wrote 20\n");
    }
    let log = &events::read_folder(dir.path()).unwrap()[&0];
    assert!(log.torn.len() <= 3, "{:?}", log.torn);
    assert!(log.records.len() >= 60);
    let mut next = 0;
    for record in &log.records {
        let Event::Samples { epoch, indices } = &record.event else { panic!("{record:?}") };
        assert!(*epoch == next || *epoch == 0, "epoch {epoch} after {next}");
        assert!(indices.iter().copied().eq(0..10_000));
        next = epoch + 1;
    }
}

fn warns_once() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("rank-0.jsonl")).unwrap();
    let mut command = program("three");
    command.env(events::FOLDER, dir.path());
    let output = finish(command);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), "trained\n");
    let warnings = text(&output.stderr);
    assert_eq!(warnings.matches("cannot write events").count(), 1, "{warnings}");
}

fn warns_of_the_folder() {
    let mut command = program("three");
    command.env(events::FOLDER, "/dev/null/events");
    let output = finish(command);
    assert!(output.status.success());
    let warnings = text(&output.stderr);
    assert_eq!(
        warnings.matches("warning: cannot open /dev/null/events/rank-0.jsonl for events").count(),
        1,
        "{warnings}"
    );
}

fn program(case: &str) -> Command {
    crate::program(&format!("{CASE} {case}"))
}

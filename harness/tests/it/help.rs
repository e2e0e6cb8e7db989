//! Every help page, as users see it.

use std::process::Command;

use insta::assert_snapshot;

use crate::running::ended;
use crate::shown::plain;

fn help(words: &[&str]) -> String {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
    ended(command.args(words).arg("--help")).code(0).out
}

/// The subcommands that a page lists, on the front page in groups.
fn listed(page: &str) -> Vec<&str> {
    let begun = ["<COMMAND>\n", "[COMMAND]\n"].iter().find_map(|usage| page.split_once(usage));
    let lists = begun.map_or("", |(_, list)| list.split_once("\nOptions:\n").unwrap().0);
    let names = lists.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

#[test]
fn every_command_has_a_page_of_help() {
    let _plain = plain();
    let front = help(&[]);
    assert_snapshot!("lockstep", front);
    for command in listed(&front) {
        let page = help(&[command]);
        let inner = listed(&page)
            .into_iter()
            .map(|name| format!("\n$ lockstep {command} {name} --help\n\n{}", help(&[command, name])));
        assert_snapshot!(command, format!("{page}{}", inner.collect::<String>()));
    }
}

#[test]
fn what_wraps_heeds_columns() {
    let folder = tempfile::tempdir().unwrap();
    let event =
        r#"{"t":1,"node":"a","event":"ended","attempt":0,"rank":0,"local_rank":0,"pid":1,"code":3,"stopped":false}"#;
    let started = r#"{"t":1,"node":"a","event":"started","attempt":0,"rank":0,"local_rank":0,"pid":1}"#;
    std::fs::write(folder.path().join("agent-a.jsonl"), format!("{started}\n{event}\n")).unwrap();
    let events = folder.path().to_str().unwrap();
    for words in [&["--help"][..], &["report", events], &["report", "--help"]] {
        let widest = |columns: &str| {
            let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockstep"));
            let shown = ended(command.args(words).env("COLUMNS", columns));
            let lines = shown.out.lines().map(|line| line.chars().count());
            lines.max().unwrap_or_default()
        };
        let (narrow, wide) = (widest("60"), widest("120"));
        assert!(narrow <= 60 && wide > 60 && wide <= 120, "{words:?}: {narrow}, {wide}");
    }
}

#[test]
fn a_completion_script_knows_the_commands_and_without_a_command_there_is_help() {
    let lockstep = |words: &[&str]| ended(Command::new(assert_cmd::cargo::cargo_bin!("lockstep")).args(words));
    let script = lockstep(&["--print-completion", "bash"]).code(0).out;
    assert!(script.contains("grade") && !script.contains("bench-rank"), "{script}");
    lockstep(&[]).code(2).says(&["Usage: lockstep"]);
}

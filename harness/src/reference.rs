//! The book's reference pages, made of what the program itself has: commands, exit codes, environment variables, causes of failures.
//!
//! They are in no file: `book/src/reference-PAGE.md` says how to print one, and the built book has its text there (`scripts/lib/preprocess.py`).

use std::fmt::Write as _;

use lockstep_author::Page;
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_launch::verdict::{Causes, FAMILIES};
use lockstep_site::rules::{Column, table};
use lockstep_site::{doctor, render};

use crate::exit_codes::CODES;
use crate::variables::{VARIABLES, Variables};

/// Width of the commands' help in columns.
const WIDTH: usize = 96;

/// A page as Markdown, with its title. `whole` is the command line of the whole program.
pub(crate) fn text(page: Page, whole: clap::Command) -> anyhow::Result<String> {
    Ok(match page {
        Page::Commands => commands(whole),
        Page::ExitCodes => exit_codes(),
        Page::Faults => format!("# What doctor finds\n\n{}", doctor::page()),
        Page::FailureCauses => failure_causes(),
        Page::Questions => lockstep_author::quiz::page()?,
        Page::ScriptMistakes => format!("# Mistakes in batch scripts\n\n{}", render::mistakes_page()),
        Page::SiteProfiles => format!("# Site profiles\n\n{}", render::profile_page()),
        Page::Tasks => tasks(),
        Page::Variables => variables(),
    })
}

pub(crate) fn commands(whole: clap::Command) -> String {
    let mut text = String::from(
        "# Commands\n\nWhat `lockstep COMMAND --help` says. [Exit codes](reference-exit-codes.md) and [environment \
         variables](reference-variables.md) have pages of their own.\n",
    );
    let mut whole = whole.term_width(WIDTH);
    whole.build();
    describe(&whole, &mut text);
    text
}

/// The help of a command's subcommands, one section each.
fn describe(command: &clap::Command, text: &mut String) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let has_own = sub.has_subcommands();
        if has_own {
            describe(sub, text);
            continue;
        }
        let name = sub.get_bin_name().unwrap_or(sub.get_name()).to_owned();
        let help = sub.clone().term_width(WIDTH).render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    }
}

fn exit_codes() -> String {
    let mut text = String::from(
        "# Exit codes\n\n| code | `lockstep` and the labs | `scripts/setup.sh` | `scripts/test.sh` |\n|---|---|---|---|\n",
    );
    for row in CODES {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text.push_str(
        "\n`lockstep run` has torchrun's codes: 0 when all workers have succeeded; 1 for every failure (a worker, the rendezvous, the \
         configuration, a signal that was handled); 2 for a wrong command line. A worker's own code is in its report. `scripts/run.sh` \
         gives `lockstep`'s code, or 1 when set-up or build failed.\n",
    );
    text
}

/// The verdict's rules, a table for each family.
fn failure_causes() -> String {
    let rules = || FAMILIES.iter().flat_map(|(_, rules)| rules.iter());
    let mut text = format!(
        "# Causes of failures\n\nWhen a job has failed, the first line of `lockstep run`'s report is the *verdict*: the rank, its \
         host, the cause, the evidence, and what to do. It knows {} causes; [Fault tolerance and the \
         launcher](fault-tolerance.md#the-report) explains the report. [The order of evidence](fault-tolerance.md#the-order-of-evidence) decides which of these \
         a verdict names; without evidence it says \"unknown\". A *consequence* or a *wait* is not the cause: then the verdict looks for it in the other ranks.\n",
        rules().count()
    );
    let columns: [Column<Causes>; 3] = [
        ("cause", |rule| {
            let level = if rule.level.is_consequence() { format!(" ({})", rule.level) } else { String::new() };
            format!("`{}`{level}", rule.name)
        }),
        ("known from", |rule| rule.source.to_owned()),
        ("what to do", |rule| rule.fix.to_owned()),
    ];
    for (title, rules) in FAMILIES {
        let _ = write!(text, "\n## {title}\n{}", table(rules.iter(), &columns));
    }
    text
}

/// The exercises' tasks, with the sums of each lab.
fn tasks() -> String {
    let mut text = String::from(
        "# Tasks\n\nEvery task of the exercises, with the minutes that it takes, its section of the chapter included. The minutes \
         are estimates for people who know PyTorch and read Rust without writing it daily; nobody has measured them in a class.\n\n\
         <div class=\"wide\">\n\n| lab | task | what | minutes |\n|---|---|---|---|\n",
    );
    for lab in lockstep_grading::labs::LABS {
        let Ok(Tasks { chapter, tasks }) = lab.tasks() else { continue }; // a test reads them all
        for Task { name, title, section, minutes, .. } in &tasks {
            let number = lab.number();
            let _ =
                writeln!(text, "| {number} | [`{name}`]({chapter}#{}) | {title} | {minutes} |", heading_id(section));
        }
        let minutes: u32 = tasks.iter().map(|task| task.minutes).sum();
        let _ = writeln!(text, "| | | *all of lab {}* | *{minutes}* |", lab.number());
    }
    text + "\n</div>\n"
}

/// The name that mdBook gives to a heading.
fn heading_id(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || "_-".contains(*c)).collect()
}

fn variables() -> String {
    let mut text = String::from("# Environment variables\n\n| variable | read by | meaning |\n|---|---|---|\n");
    for Variables { names, by, meaning } in VARIABLES {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "| {} | {by} | {meaning} |", names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::ValueEnum;
    use regex::Regex;

    use super::*;

    /// Searches the sources of programs only; tests may use made-up names.
    const SOURCES: [&str; 5] = ["crates", "engine", "harness", "labs", "scripts"];

    #[test]
    fn every_variable_of_the_project_has_a_row() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let own = Regex::new(r#"["'$\{]((?:LOCKSTEP|TCPSTORE)_[A-Z][A-Z_]+)["'\}:]"#).unwrap();
        let mut missing: Vec<String> = Vec::new();
        let mut folders: Vec<PathBuf> = SOURCES.iter().map(|folder| root.join(folder)).collect();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap().flatten() {
                let path = entry.path();
                let name = entry.file_name();
                if path.is_dir() {
                    folders.extend((name != "tests" && name != "benches").then_some(path));
                } else if path
                    .extension()
                    .is_some_and(|ending| ["rs", "sh", "py"].contains(&&*ending.to_string_lossy()))
                {
                    let text = fs::read_to_string(&path).unwrap();
                    let names = own.captures_iter(&text).map(|found| found[1].to_owned());
                    missing.extend(
                        names.filter(|name| !is_listed(name)).map(|name| format!("{name} in {}", path.display())),
                    );
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn every_page_has_its_place_in_the_book() {
        let book = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("book/src");
        for page in Page::value_variants() {
            let name = page.to_possible_value().unwrap().get_name().to_owned();
            let place = fs::read_to_string(book.join(format!("reference-{name}.md"))).unwrap();
            let title = place.lines().next().unwrap();
            assert!(place.ends_with(&format!("\n<!-- reference: {name} -->\n")), "{place}");
            assert!(place.contains(&format!("`lockstep course reference {name}`")), "{place}");
            let printed = text(*page, clap::Command::new("lockstep")).unwrap();
            assert!(printed.starts_with(&format!("{title}\n\n")), "{title}");
        }
    }

    #[test]
    fn the_courses_map_has_the_minutes_of_each_exercise() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let map = fs::read_to_string(root.join("book/src/course-map.md")).unwrap();
        for lab in lockstep_grading::labs::LABS {
            let minutes: u32 = lab.tasks().unwrap().tasks.iter().map(|task| task.minutes).sum();
            let row = map.lines().find(|line| line.starts_with(&format!("| {} |", lab.number()))).unwrap();
            assert!(row.ends_with(&format!("| {minutes} |")), "lab.toml of lab {} has {minutes}: {row}", lab.number());
        }
    }

    fn is_listed(name: &str) -> bool {
        VARIABLES.iter().any(|row| row.names.contains(&name))
    }
}

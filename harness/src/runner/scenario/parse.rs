//! Parses text to a [`Scenario`], or to an error that names file, line, column, and what is allowed there.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::Scenario;
use super::check::{Flaw, Place, flaws};
use crate::exit::Refused;

/// Parses the text of the file `file`.
///
/// # Errors
/// [`Refused`]: `FILE:LINE:COLUMN: what is wrong`, one line for each flaw.
pub(crate) fn parse(file: &str, text: &str) -> Result<Scenario, Refused> {
    let scenario: Scenario = toml::from_str(text).map_err(|error| {
        let (line, column) = place(text, error.span().map_or(0, |span| span.start));
        Refused(format!("{file}:{line}:{column}: {}", error.message()))
    })?;
    let messages: Vec<_> = flaws(&scenario).iter().map(|flaw| with_line(file, text, flaw)).collect();
    if messages.is_empty() { Ok(scenario) } else { Err(Refused(messages.join("\n"))) }
}

fn with_line(file: &str, text: &str, Flaw { place: at, what }: &Flaw) -> String {
    let (line, column) = place(text, start_of(text, *at));
    format!("{file}:{line}:{column}: {what}")
}

/// Where the parts of a file begin.
#[derive(Deserialize)]
struct Spans {
    #[serde(default)]
    fault: Vec<Spanned<toml::Table>>,
    run: Option<Spanned<toml::Table>>,
    expect: Option<Spanned<toml::Table>>,
}

fn start_of(text: &str, at: Place) -> usize {
    // It has been parsed before.
    let Ok(spans) = toml::from_str::<Spans>(text) else { return 0 };
    let start = |part: Option<&Spanned<toml::Table>>| part.map(Spanned::span).map(|span: Range<usize>| span.start);
    let found = match at {
        Place::Head => None,
        Place::Run => start(spans.run.as_ref()),
        Place::Expect => start(spans.expect.as_ref()),
        Place::Fault(index) => start(spans.fault.get(index)),
    };
    found.unwrap_or(0)
}

/// Line and column of a byte, counted from 1.
fn place(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_begin..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use lockstep_contract::fault::SavePhase;

    use super::super::{Expect, Fault, FaultAction, RunSpec, What, When, Who};
    use super::*;

    const HEAD: &str = "name = \"a\"\ntitle = \"b\"\nshows = \"c\"\n";

    fn error(rest: &str) -> String {
        parse("x.toml", &format!("{HEAD}{rest}")).unwrap_err().to_string()
    }

    #[test]
    fn reads_a_file_with_everything_in_it_and_writes_it_back() {
        let text = format!(
            "{HEAD}[run]\nranks = 4\nnodes = 2\nmax-restarts = 1\nargs = [\"--x\"]\n[expect]\nrestarts = 1\n\
             same-weights = false\n[[fault]]\nwho = {{ rank = 0 }}\nwhen = {{ save = \"half-written\", epoch = 1, step = 4 }}\n\
             what = [\"tear-snapshot\", {{ exit = 7 }}]\n[[fault]]\nwho = {{ node = 1 }}\nwhen = {{ after-seconds = 0.5 }}\n\
             what = \"kill\"\nreplace-after-seconds = 1.0\n"
        );
        let scenario = parse("x.toml", &text).unwrap();
        assert_eq!(
            scenario.run,
            RunSpec { ranks: 4, nodes: 2, max_restarts: 1, args: vec!["--x".into()], ..RunSpec::default() }
        );
        assert_eq!(scenario.expect, Expect { restarts: Some(1), same_weights: Some(false), ..Expect::default() });
        let when = When { epoch: Some(1), step: Some(4), save: Some(SavePhase::HalfWritten), ..When::default() };
        let what = What(vec![FaultAction::TearSnapshot, FaultAction::Exit(7)]);
        let first = Fault { who: Who::Rank(0), when, what, for_seconds: None, replace_after_seconds: None };
        assert_eq!(scenario.faults[0], first);
        assert_eq!(parse("y.toml", &scenario.to_toml()).unwrap(), scenario);
    }

    #[test]
    fn names_file_line_and_what_is_allowed() {
        let message = error("[run]\nrank = 2\n");
        assert!(message.starts_with("x.toml:5:1: unknown field `rank`, expected one of `lab`, `program`"), "{message}");
        let fault = "[[fault]]\nwho = { rank = 1 }\nwhen = { epoch = 0, step = 1 }\n";
        let message = error(&format!("{fault}what = \"explode\"\n"));
        assert!(message.starts_with("x.toml:7:"), "{message}");
        assert!(message.contains("unknown variant `explode`, expected one of `kill`, `term`, `stop`"), "{message}");
        let message = error("[[fault]]\nwho = { host = 1 }\nwhen = {}\nwhat = \"kill\"\n");
        assert!(
            message.contains("x.toml:5:") && message.contains("expected one of `rank`, `agent`, `node`"),
            "{message}"
        );
        let message = error("[run\n");
        assert!(message.starts_with("x.toml:4:"), "{message}");
        let message = parse("x.toml", "name = \"a\"\n").unwrap_err().to_string();
        assert!(message.contains("missing field `title`"), "{message}");
    }

    #[test]
    fn accepts_unequal_nodes_only_if_their_workers_are_the_ranks() {
        let run = |workers| {
            format!("name = \"a\"\ntitle = \"\"\nshows = \"\"\n[run]\nranks = 4\nnodes = 2\nworkers = {workers}\n")
        };
        assert_eq!(parse("x.toml", &run("[1, 3]")).unwrap().run.workers, [1, 3]);
        for workers in ["[4]", "[1, 2]", "[4, 0]"] {
            let message = parse("x.toml", &run(workers)).unwrap_err().to_string();
            assert!(message.contains("it has a number for each of 2 nodes, 4 in all"), "{message}");
        }
    }

    #[test]
    fn names_every_flaw_with_its_own_line() {
        let message = error("[run]\nranks = 3\nnodes = 2\n[[fault]]\nwho = { rank = 9 }\nwhen = {}\nwhat = \"kill\"\n");
        let lines: Vec<_> = message.lines().collect();
        assert!(lines[0].starts_with("x.toml:4:1: 3 ranks cannot be shared equally by 2 nodes"), "{message}");
        assert!(lines[1..].iter().all(|line| line.starts_with("x.toml:7:1: ")), "{message}");
        assert!(message.contains("rank 9") && message.contains("when"), "{message}");
    }

    #[test]
    fn survives_a_file_cut_at_any_byte() {
        let text = format!(
            "{HEAD}[[fault]]\nwho = {{ rank = 1 }}\nwhen = {{ epoch = 0, step = 1 }}\nwhat = {{ exit = 3 }} # ä\n"
        );
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            if let Err(refused) = parse("x.toml", &text[..end]) {
                assert!(refused.to_string().starts_with("x.toml:"), "{refused}");
            }
        }
    }
}

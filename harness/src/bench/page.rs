//! Results as one HTML page, with the picture in it.

use maud::{Markup, html};

use crate::bench::results::Results;
use crate::bench::{model, picture, shown, speed_up};
use crate::report::html::{command, fact, machine, numbers, page};
use crate::report::screen::plain;

/// The page.
pub(super) fn render(results: &Results) -> String {
    let title = format!("Lockstep bench: {}", results.bench);
    page(
        &title,
        html! {
            main {
                (head(&title, results))
                @for table in shown::tables(results) { section { (numbers(&table)) } }
                @if let Some(table) = model::table(results) { section { (numbers(&table)) } }
                @for table in speed_up::tables(results) { section { (numbers(&table)) } }
            @if !results.not_measured.is_empty() { (not_measured(&results.not_measured)) }
                section { h3 { "Every round" } (picture::draw(results)) }
            }
            footer { (shown::method(results)) "." @for verdict in shown::verdicts(results) { br; (verdict) "." } }
        },
    )
}

fn head(title: &str, results: &Results) -> Markup {
    html! {
        header {
            h1 { (title) }
            p { (shown::compared(results)) }
            (command(&results.command))
            dl.facts {
                (fact("Began", &results.started))
                (machine(&results.machine))
                (fact("State before", &results.before.summary()))
                (fact("State after", &results.after.summary()))
            }
            @for doubt in shown::doubts(results) { p.verdict { (doubt) } }
        }
    }
}

fn not_measured(reasons: &[String]) -> Markup {
    html! { section.notice { h3 { "Not measured" } ul { @for reason in reasons { li { (plain(reason)) } } } } }
}

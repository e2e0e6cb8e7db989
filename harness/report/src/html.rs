//! A report as one self-contained HTML page: no script, no font, no other file; and the parts that other pages share. `maud` escapes all
//! texts.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::formatting::{instant, plain, seconds};
use crate::model::{Finding, HostInfo, Report, ReportCase, Table, Verdict};
use crate::picture;
use crate::recovery::Recovery;
use crate::screen::{costs, failures, summary};
use crate::table::MOST_COLUMNS;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn render(report: &Report) -> String {
    page(
        &format!("{} {}", report.verdict().symbol(), plain(&report.title)),
        html! {
            (picture::patterns())
            main {
                (head(report))
                @for table in &report.tables { section { (numbers(table)) } }
                @if report.cases.len() > 1 { (overview(&report.cases)) }
                @if !report.not_verified.is_empty() { (not_verified(&report.not_verified)) }
                @for (index, case) in report.cases.iter().enumerate() { (details(index, case)) }
            }
            footer { "Written by " code { "lockstep" } " at the end of the command. Times are the hosts' own clocks'." }
        },
    )
}

/// A page with this title, in the style of all pages.
pub fn page(title: &str, body: Markup) -> String {
    page_with(title, &html! {}, body)
}

/// The same, with what the page's head has besides.
pub fn page_with(title: &str, head: &Markup, body: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
                (head)
            }
            body { (body) }
        }
    };
    page.into_string()
}

pub fn command(line: &str) -> Markup {
    html! { pre.command { code { (plain(line)) } } }
}

fn head(report: &Report) -> Markup {
    html! {
        header {
            h1 { (plain(&report.title)) }
            p.verdict { (badge(report.verdict())) " " (summary(report)) }
            (command(&report.command))
            dl.facts {
                (fact("Began", &instant(report.started)))
                (machine(&report.machine))
            }
        }
    }
}

/// The facts of a machine.
pub fn machine(machine: &HostInfo) -> Markup {
    html! {
        (fact("Machine", &machine.host))
        @if let Some(processor) = &machine.processor { (fact("Processor", processor)) }
        (fact("Hardware and system", &machine.summary()))
    }
}

/// A fact of the page's head.
pub fn fact(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { (plain(value)) } } }
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::NotVerified => "not-verified",
        Verdict::Open => "open",
    }
}

/// Word, sign and colour, never only one of them.
fn badge(verdict: Verdict) -> Markup {
    html! { span.badge.(class(verdict)) { span aria-hidden="true" { (verdict.symbol()) } " " (verdict) } }
}

fn overview(cases: &[ReportCase]) -> Markup {
    let ran = cases.iter().any(|case| case.timeline.is_some());
    html! {
        section {
            h2 { "All cases" }
            div.scroll tabindex="0" role="region" aria-label="All cases" {
                table.cases {
                    thead { tr {
                        th scope="col" { "Verdict" } th scope="col" { "Case" } th scope="col" { "What it shows" }
                        @if ran { th.number scope="col" { "Failures" } }
                        th.number scope="col" { "Time" }
                    } }
                    tbody {
                        @for (index, case) in cases.iter().enumerate() {
                            tr {
                                td { (badge(case.verdict())) }
                                td { a href={ "#case-" (index) } { (plain(&case.name)) } }
                                td { (plain(&case.shows)) }
                                @if ran { td.number.failures { (failures(case)) } }
                                td.number { (seconds(case.took.as_secs_f64())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn not_verified(reasons: &[String]) -> Markup {
    html! {
        section.notice {
            h2 { (badge(Verdict::NotVerified)) }
            ul { @for reason in reasons { li { (plain(reason)) } } }
        }
    }
}

fn details(index: usize, case: &ReportCase) -> Markup {
    let failed = case.verdict() == Verdict::Failed;
    html! {
        article id={ "case-" (index) } {
            h2 { (badge(case.verdict())) " " span.name { (plain(&case.name)) } }
            p.shows { (plain(&case.shows)) }
            p.small { "Took " (seconds(case.took.as_secs_f64())) @if let Some(seed) = case.seed { " with seed " (seed) } }
            (findings(&case.findings))
            @if let Some(timeline) = &case.timeline {
                (picture::draw(index, timeline))
                @if !timeline.recoveries.is_empty() { (cost(&timeline.recoveries)) }
                @if !timeline.verdicts.is_empty() {
                    h3 { "The launchers' verdicts" }
                    ul { @for judged in &timeline.verdicts { li { (plain(&judged.verdict.to_string())) } } }
                }
            }
            @for table in &case.tables { (numbers(table)) }
            @if let Some(replay) = &case.replay {
                p.small { "Run it again:" }
                (command(replay))
            }
            @if !case.log.is_empty() {
                details open=[failed.then_some("")] {
                    summary { "Last lines that it printed" }
                    pre.log { (plain(&case.log.join("\n"))) }
                }
            }
        }
    }
}

fn findings(findings: &[Finding]) -> Markup {
    html! {
        @if findings.is_empty() { p { "Nothing was found out." } }
        ul.findings {
            @for finding in findings {
                li {
                    (badge(finding.verdict))
                    div { p.claim { (plain(&finding.claim)) } p.evidence { (plain(&finding.evidence)) } }
                }
            }
        }
    }
}

fn cost(recoveries: &[Recovery]) -> Markup {
    let (headings, rows) = costs(recoveries);
    // The second column is prose, the others are numbers.
    html! {
        h3 { "What each failure cost" }
        div.scroll tabindex="0" role="region" aria-label="What each failure cost" {
            table {
                thead { tr { @for (column, heading) in headings.iter().enumerate() { th.number[column != 1] scope="col" { (heading) } } } }
                tbody { @for row in &rows { tr { @for (column, cell) in row.iter().enumerate() { td.number[column != 1] { (cell) } } } } }
            }
        }
        p.small { "Times count from the fault until an agent knew, until all workers were started, and until all had trained a step." }
    }
}

/// A table of numbers or signs with its title. Columns of words are aligned to the left. Many headings stand upright.
pub fn numbers(table: &Table) -> Markup {
    let cells = |column: usize| table.rows.iter().filter_map(move |row| row.get(column));
    // The first column names its row.
    let names = |cell: &String| cell.contains(char::is_alphabetic);
    let words = |column| cells(column).any(|cell| cell.starts_with(char::is_alphabetic) || column == 0 && names(cell));
    let is_number: Vec<bool> = (0..table.headings.len()).map(|column| !words(column)).collect();
    html! {
        h3 { (plain(&table.title)) }
        div.scroll tabindex="0" role="region" aria-label=(plain(&table.title)) {
            table.many[table.headings.len() > MOST_COLUMNS] {
                thead { tr { @for (heading, number) in table.headings.iter().zip(&is_number) { th.number[*number] scope="col" { span { (plain(heading)) } } } } }
                tbody { @for row in &table.rows { tr { @for (cell, number) in row.iter().zip(&is_number) { td.number[*number] { (sign(cell)) } } } } }
            }
        }
    }
}

/// A cell's text; that of a verdict's sign has its colour, and its word for those who cannot see it.
fn sign(cell: &str) -> Markup {
    let verdict = Verdict::ALL.into_iter().find(|verdict| cell.starts_with(verdict.symbol()));
    let Some(verdict) = verdict else { return html! { (plain(cell)) } };
    let rest = &cell[verdict.symbol().len()..];
    html! { span.sign.(class(verdict)) role="img" aria-label={ (verdict) (plain(rest)) } { (verdict.symbol()) } (plain(rest)) }
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node, ParsingOptions};

    use super::*;
    use crate::testing::{HOSTILE, sample};

    /// XML's rules are stricter than HTML's. Only HTML's void elements are closed for it.
    fn well_formed(page: &str) -> String {
        let page: Vec<_> = page.split("<meta ").collect();
        let closed = page[1..].iter().map(|rest| rest.replacen('>', "/>", 1));
        std::iter::once(page[0].to_owned()).chain(closed).collect::<Vec<_>>().join("<meta ")
    }

    fn parsed(page: &str) -> Document<'_> {
        Document::parse_with_options(page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() }).unwrap()
    }

    fn all<'a>(document: &'a Document<'_>, tag: &'static str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|node| node.tag_name().name() == tag).collect()
    }

    fn words(document: &Document<'_>) -> String {
        document.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect::<Vec<_>>().join("")
    }

    #[test]
    fn is_well_formed_and_needs_nothing_else() {
        let page = well_formed(&render(&sample()));
        let document = parsed(&page);
        for tag in ["script", "link", "img", "iframe", "object", "embed", "base", "form"] {
            assert!(all(&document, tag).is_empty(), "{tag}");
        }
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("@import"));
        let urls: Vec<_> = page.match_indices("url(").map(|(at, _)| &page[at..at + 5]).collect();
        assert!(urls.iter().all(|url| *url == "url(#"), "{urls:?}");
        let attributes = document.descendants().flat_map(|node| node.attributes());
        let mut links = attributes.filter(|attribute| ["href", "src", "action"].contains(&attribute.name()));
        assert!(links.all(|link| link.value().starts_with('#')));
    }

    #[test]
    fn has_no_id_twice_and_no_link_to_nowhere() {
        let mut report = sample();
        report.cases.push(report.cases[0].clone());
        let page = well_formed(&render(&report));
        let document = parsed(&page);
        let mut ids: Vec<_> = document.descendants().filter_map(|node| node.attribute("id")).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for link in all(&document, "a") {
            assert!(ids.contains(&&link.attribute("href").unwrap()[1..]));
        }
        for node in document.descendants() {
            let named = node.attribute("aria-labelledby").unwrap_or_default().split_whitespace();
            named.for_each(|id| assert!(ids.contains(&id), "{id}"));
        }
    }

    #[test]
    fn says_in_words_all_that_it_shows() {
        let page = well_formed(&render(&sample()));
        let document = parsed(&page);
        let words = document.descendants().filter(|node| node.is_text()).filter_map(|node| Some(node.text()?.trim()));
        let lines: Vec<&str> = words.filter(|text| !text.is_empty() && *text != STYLE.trim()).collect();
        insta::assert_snapshot!(lines.join("\n"));
        let pictures = all(&document, "svg").into_iter().filter(|svg| svg.attribute("role") == Some("img"));
        assert!(pictures.into_iter().all(|svg| svg.attribute("aria-labelledby").is_some()));
    }

    #[test]
    fn lets_no_text_become_markup() {
        let mut report = sample();
        (report.title, report.command, report.machine.host) = (HOSTILE.into(), HOSTILE.into(), HOSTILE.into());
        report.not_verified = vec![HOSTILE.into()];
        for case in &mut report.cases {
            (case.name, case.shows) = (HOSTILE.into(), HOSTILE.into());
            (case.replay, case.log) = (Some(HOSTILE.into()), vec![HOSTILE.into()]);
            for finding in &mut case.findings {
                (finding.claim, finding.evidence) = (HOSTILE.into(), HOSTILE.into());
            }
            for table in &mut case.tables {
                (table.title, table.headings) = (HOSTILE.into(), vec![HOSTILE.into()]);
                table.rows = vec![vec![HOSTILE.into()]];
            }
            let Some(timeline) = &mut case.timeline else { continue };
            timeline.notes = vec![HOSTILE.into()];
            timeline.verdicts.iter_mut().for_each(|judged| judged.verdict.cause = HOSTILE.into());
            timeline.recoveries.iter_mut().for_each(|recovery| recovery.cause = HOSTILE.into());
            for node in &mut timeline.nodes {
                node.name = Some(HOSTILE.into());
                let marks = node.rows.iter_mut().flat_map(|row| &mut row.marks).chain(&mut node.marks);
                marks.for_each(|mark| mark.detail = HOSTILE.into());
                node.rows.iter_mut().flat_map(|row| &mut row.spans).for_each(|span| span.detail = HOSTILE.into());
            }
        }
        let page = well_formed(&render(&report));
        let document = parsed(&page);
        assert!(all(&document, "script").is_empty());
        assert!(words(&document).contains("</script><script>alert(1)</script>\"'&lt;]]>-->"));
        assert_eq!(all(&document, "style").len(), 1);
    }
}

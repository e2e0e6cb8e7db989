//! A report for continuous integration: JUnit's XML, with a suite for each case and a test for each claim.
//!
//! Claims that could not be verified are skipped tests, with the reason. Source: the schema that Jenkins reads, as
//! `quick-junit` writes it.

use chrono::{DateTime, Utc};
use quick_junit::{NonSuccessKind, Property, SerializeError, TestCase, TestCaseStatus, TestSuite};

use super::formatting::plain;
use super::{Case, Finding, Report, Verdict};

/// The report as XML.
pub(super) fn render(report: &Report) -> Result<String, SerializeError> {
    let mut root = quick_junit::Report::new(plain(&report.title));
    root.set_timestamp(DateTime::<Utc>::from(report.started)).set_time(report.took);
    root.add_test_suites(report.cases.iter().map(suite));
    if !report.not_verified.is_empty() {
        let mut machine = TestSuite::new("this machine");
        machine
            .add_test_cases(report.not_verified.iter().map(|what| skipped("this machine", what, "not verified here")));
        root.add_test_suite(machine);
    }
    root.to_string()
}

fn suite(case: &Case) -> TestSuite {
    let mut suite = TestSuite::new(plain(&case.name));
    suite.set_time(case.took).add_property(Property::new("shows", plain(&case.shows)));
    if let Some(seed) = case.seed {
        suite.add_property(Property::new("seed", seed.to_string()));
    }
    if let Some(replay) = &case.replay {
        suite.add_property(Property::new("replay", plain(replay)));
    }
    suite.add_test_cases(case.findings.iter().map(|finding| test(case, finding)));
    if case.findings.is_empty() {
        suite.add_test_case(skipped(&case.name, &case.shows, "nothing was found out"));
    }
    if !case.log.is_empty() {
        suite.set_system_out(plain(&case.log.join("\n")));
    }
    suite
}

fn test(case: &Case, finding: &Finding) -> TestCase {
    let mut status = match finding.verdict {
        Verdict::Passed => TestCaseStatus::success(),
        Verdict::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Verdict::NotVerified => return skipped(&case.name, &finding.claim, &finding.evidence),
    };
    status.set_message(plain(&finding.evidence));
    if finding.verdict == Verdict::Failed {
        let replay = case.replay.as_ref().map_or(String::new(), |replay| format!("\nrun it again: {replay}"));
        status.set_description(plain(&format!("{}\n{}{replay}", finding.claim, finding.evidence)));
    }
    let mut test = TestCase::new(plain(&finding.claim), status);
    test.set_classname(plain(&case.name));
    if finding.verdict == Verdict::Passed {
        test.set_system_out(plain(&finding.evidence));
    }
    test
}

fn skipped(class: &str, name: &str, reason: &str) -> TestCase {
    let mut status = TestCaseStatus::skipped();
    status.set_message(plain(reason));
    let mut test = TestCase::new(plain(name), status);
    test.set_classname(plain(class));
    test
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::super::testing::{HOSTILE, sample};
    use super::*;

    fn all<'a>(document: &'a Document<'_>, tag: &'static str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|node| node.has_tag_name(tag)).collect()
    }

    #[test]
    fn makes_a_suite_of_each_case_and_a_test_of_each_claim() {
        let xml = render(&sample()).unwrap();
        let document = Document::parse(&xml).unwrap();
        let root = document.root_element();
        let counts = ["tests", "failures", "skipped", "errors"].map(|name| root.attribute(name).unwrap());
        assert_eq!((root.tag_name().name(), counts), ("testsuites", ["6", "1", "2", "0"]));
        let names: Vec<_> = all(&document, "testsuite").iter().map(|suite| suite.attribute("name").unwrap()).collect();
        assert_eq!(names, ["kill-one-then-lose-a-node", "tear-newest-snapshot", "cut-network", "this machine"]);
        let tests = all(&document, "testcase");
        assert_eq!(tests[0].attribute("classname"), Some("kill-one-then-lose-a-node"));
        assert_eq!(tests[0].attribute("name"), Some("The final weights are the same bits as without the faults"));
    }

    #[test]
    fn skips_with_a_reason_what_could_not_be_verified() {
        let xml = render(&sample()).unwrap();
        let document = Document::parse(&xml).unwrap();
        let reasons: Vec<_> = all(&document, "skipped").iter().map(|skip| skip.attribute("message").unwrap()).collect();
        assert_eq!(reasons, ["network namespaces need a user who may make them", "not verified here"]);
    }

    #[test]
    fn reports_a_failure_with_its_reason_and_how_to_reproduce_it() {
        let xml = render(&sample()).unwrap();
        let document = Document::parse(&xml).unwrap();
        let [failure] = all(&document, "failure").try_into().unwrap();
        assert!(failure.attribute("message").unwrap().starts_with("rank 0, fc.weight"));
        assert!(failure.text().unwrap().ends_with("run it again: lockstep inject tear-newest-snapshot --seed 7"));
        assert!(all(&document, "system-out").iter().any(|out| out.text().unwrap().contains("skips a torn snapshot")));
    }

    #[test]
    fn stays_well_formed_with_any_text() {
        let mut report = sample();
        report.title = HOSTILE.into();
        report.not_verified = vec![HOSTILE.into()];
        let case = &mut report.cases[1];
        (case.name, case.shows, case.replay, case.log) =
            (HOSTILE.into(), HOSTILE.into(), Some(HOSTILE.into()), vec![HOSTILE.into()]);
        case.findings.iter_mut().for_each(|finding| finding.evidence = HOSTILE.into());
        let xml = render(&report).unwrap();
        let document = Document::parse(&xml).unwrap();
        assert!(all(&document, "script").is_empty());
    }
}

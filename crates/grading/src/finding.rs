//! What a grader says about a result: a claim that it is right, or wrong in a way that has its own diagnosis; and the finding, which says
//! what is wrong.

use std::fmt::{self, Debug, Display};
use std::mem;
use std::ops::Deref;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::runner::{COMPUTES, IN_NO_CALL};

/// The result of grading a task: no finding, or the first one.
pub type GradeResult = Result<(), Box<Finding>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The learner has not written an answer yet.
    NotStarted,
    /// The compiler refuses the exercise.
    NotCompiled,
    /// A result is wrong.
    WrongValue,
    /// Ranks that must agree have different results.
    RanksDisagree,
    /// The answer did not end before the deadline.
    Hang,
    /// A panic, an error, or a process that ended without an answer.
    Crash,
    /// The answer left processes behind.
    LeakedProcess,
    /// The answer used more memory, processes, output or disk than any right answer does.
    OutOfBounds,
}

/// One finding about an answer: what was expected, what was observed, and what that means.
///
/// It is an error, so a grading function stops at the first finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub verdict: Verdict,
    /// The rank on which it was observed.
    pub rank: Option<usize>,
    /// The number of the call's input, from 0, in which an answer crashed or hung.
    #[serde(default)]
    pub input: Option<usize>,
    /// A description of the input.
    pub given: Option<String>,
    /// The right result.
    pub expected: Option<String>,
    pub observed: Option<String>,
    /// How much a number may differ from the expected one.
    pub tolerance: Option<f64>,
    /// What is wrong.
    pub diagnosis: String,
    /// What the runner saw of a hang or a crash, where [`explain`] has replaced it by the cause.
    #[serde(default)]
    pub seen: Option<String>,
    /// Where each rank was, one line per rank.
    pub table: Vec<String>,
    /// The last lines that the ranks printed.
    pub printed: Vec<String>,
    /// A recording of the call in which ranks hung or made different calls, for `lockstep replay`.
    #[serde(skip)]
    pub recording: Option<PathBuf>,
}

impl Verdict {
    /// The verdict as the learner reads it.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::NotStarted => "not started",
            Verdict::NotCompiled => "does not compile",
            Verdict::WrongValue => "wrong value",
            Verdict::RanksDisagree => "ranks disagree",
            Verdict::Hang => "hang",
            Verdict::Crash => "crash",
            Verdict::LeakedProcess => "leaked process",
            Verdict::OutOfBounds => "out of bounds",
        }
    }
}

impl Finding {
    /// A finding with a diagnosis only. All other fields are empty.
    pub fn new(verdict: Verdict, diagnosis: impl Into<String>) -> Self {
        Finding {
            verdict,
            rank: None,
            input: None,
            given: None,
            expected: None,
            observed: None,
            tolerance: None,
            diagnosis: diagnosis.into(),
            seen: None,
            table: Vec::new(),
            printed: Vec::new(),
            recording: None,
        }
    }

    #[must_use]
    pub fn on_rank(self, rank: usize) -> Self {
        Finding { rank: Some(rank), ..self }
    }

    /// Sets the description of the input.
    #[must_use]
    pub fn given(self, given: impl Into<String>) -> Self {
        Finding { given: Some(given.into()), ..self }
    }

    /// Returns true for a hang in which ranks may wait for each other: none computes, and at least one may be in an operation of a group.
    pub fn ranks_wait(&self) -> bool {
        let outside = |line: &String| line.contains(IN_NO_CALL);
        let all_outside = !self.table.is_empty() && self.table.iter().all(outside);
        self.verdict == Verdict::Hang && !self.diagnosis.contains(COMPUTES) && !all_outside
    }

    /// The fields that are set, as pairs of a name and a text.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let expected = self.expected.clone().map(|expected| match self.tolerance {
            Some(tolerance) => format!("{expected} (within {tolerance:e})"),
            None => expected,
        });
        let fields = [("given", self.given.clone()), ("expected", expected), ("observed", self.observed.clone())];
        let mut lines: Vec<_> = fields.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        lines.push(("diagnosis", self.diagnosis.clone()));
        lines.extend(self.table.iter().map(|line| ("ranks", line.clone())));
        lines.extend(self.printed.iter().map(|line| ("printed", line.clone())));
        lines
    }
}

/// The diagnoses of those mistakes in a table that give all that was observed, on all ranks and for all inputs.
pub fn causes<M>(table: &[(M, &'static str)], gives_it: impl Fn(&M) -> bool) -> Vec<&'static str> {
    table.iter().filter(|(mistake, _)| gives_it(mistake)).map(|(_, diagnosis)| *diagnosis).collect()
}

/// Replaces the diagnosis of a [`Finding`] if `why` returns a better one, such as why ranks hang, from where they were.
pub fn explain(mut error: anyhow::Error, why: impl FnOnce(&Finding) -> Option<String>) -> anyhow::Error {
    if let Some(finding) = error.downcast_mut::<Finding>()
        && let Some(diagnosis) = why(finding)
    {
        let seen = mem::replace(&mut finding.diagnosis, diagnosis);
        finding.seen.get_or_insert(seen);
    }
    error
}

/// Describes the input in which an answer crashed or hung. Other errors stay as they are.
pub fn given(mut error: anyhow::Error, input: impl FnOnce(usize) -> String) -> anyhow::Error {
    if let Some(finding) = error.downcast_mut::<Finding>()
        && let Some(number) = finding.input
    {
        finding.given = Some(input(number));
    }
    error
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verdict.words())?;
        if let Some(rank) = self.rank {
            write!(f, " on rank {rank}")?;
        }
        write!(f, ": {}", self.diagnosis)
    }
}

impl std::error::Error for Finding {}

/// The digits of a number that a learner reads: more than single precision is right to.
const SIGNIFICANT: usize = 6;
/// If one of two values is longer than this many bytes, both are shown from their first difference, up to this length.
const SHOWN: usize = 400;
/// An excerpt begins at most this many bytes before the first difference.
const BEFORE: usize = 40;

/// Claims that a result is the expected one, and says what is wrong if it is not.
///
/// - A **fact** ([`Claim::diagnose_if`]) can be seen in the result: "there is an empty batch". The first one that is true is reported.
/// - A **cause** ([`Claim::cause_if`]) is a mistake that would give this result. Different mistakes can give the same result, so a cause is
///   reported only if no other one would. Its condition compares all that was observed, on all ranks and for all inputs.
///
/// ```ignore
/// let all_are = |mistake: Shard| outputs.all(..).eq(inputs.iter().map(mistake));
/// Claim::equal(&expected, &observed)
///     .on_rank(rank)
///     .given(format!("{samples} samples, {ranks} ranks"))
///     .cause_if(all_are(blocks), "each rank takes a block of neighbours, not every third sample")
///     .cause_if(all_are(dropped), "the remaining samples are dropped")
///     .diagnose_if(observed.is_empty(), "there is no sample")
///     .or_fail("the shares of the ranks are …")?;
/// ```
#[must_use = "a claim checks nothing until `or_fail` is called"]
pub struct Claim {
    holds: bool,
    finding: Finding,
    /// The facts and causes that apply.
    facts: Vec<String>,
    causes: Vec<String>,
    /// Whether the values may be cut, and the number of the element at which lists of numbers differ.
    cut: bool,
    differs_at: Option<usize>,
}

impl Claim {
    /// Claims that both values are equal.
    pub fn equal<T: PartialEq + Debug + ?Sized>(expected: &T, observed: &T) -> Self {
        Self::of(expected == observed, expected, observed)
    }

    /// Claims that both lists have the same length and that no number differs by more than `tolerance`.
    pub fn close(expected: &[f64], observed: &[f64], tolerance: f64) -> Self {
        let mut claim = Self::of(close(expected, observed, tolerance), expected, observed);
        claim.finding.tolerance = Some(tolerance);
        let same =
            expected.iter().zip(observed).take_while(|(expected, observed)| near(**expected, **observed, tolerance));
        claim.differs_at = Some(same.count());
        claim
    }

    /// Claims that `holds` is true. `expected` and `observed` describe it for the learner.
    pub fn that(holds: bool, expected: impl Into<String>, observed: impl Into<String>) -> Self {
        let mut finding = Finding::new(Verdict::WrongValue, "");
        (finding.expected, finding.observed) = (Some(expected.into()), Some(observed.into()));
        Claim { holds, finding, facts: Vec::new(), causes: Vec::new(), cut: false, differs_at: None }
    }

    fn of<T: Debug + ?Sized>(holds: bool, expected: &T, observed: &T) -> Self {
        // A result that is right is not shown.
        let [expected, observed] =
            [expected, observed].map(|value| if holds { String::new() } else { format!("{value:?}") });
        Claim { cut: true, ..Self::that(holds, expected, observed) }
    }

    /// Sets the rank that the result came from.
    pub fn on_rank(self, rank: usize) -> Self {
        Claim { finding: self.finding.on_rank(rank), ..self }
    }

    /// Describes the input.
    pub fn given(self, given: impl Into<String>) -> Self {
        Claim { finding: self.finding.given(given), ..self }
    }

    /// Sets the kind of finding. The default is a wrong value.
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.finding.verdict = verdict;
        self
    }

    /// Uses this diagnosis, a fact that the result shows, if `condition` is true and no earlier fact was.
    pub fn diagnose_if(mut self, condition: bool, diagnosis: impl Into<String>) -> Self {
        self.facts.extend(condition.then(|| diagnosis.into()));
        self
    }

    /// Uses this diagnosis, a mistake, if `gives_it` is true (the mistake gives all that was observed) and no other cause's condition is. It
    /// comes before all facts.
    pub fn cause_if(mut self, gives_it: bool, diagnosis: impl Into<String>) -> Self {
        self.causes.extend(gives_it.then(|| diagnosis.into()));
        self
    }

    /// Adds causes that all give the observed value: [`causes`] chooses them from a table.
    pub fn causes(mut self, causes: &[impl AsRef<str>]) -> Self {
        self.causes.extend(causes.iter().map(|cause| cause.as_ref().to_owned()));
        self
    }

    /// Fails if the claim does not hold, with this diagnosis if no cause and no fact was found. It claims no cause: it says what is wrong.
    pub fn or_fail(self, diagnosis: impl Into<String>) -> anyhow::Result<()> {
        let Claim { holds, finding, facts, causes, cut, differs_at } = self;
        if holds {
            return Ok(());
        }
        // The same mistake may be made in several ways.
        let only_cause = causes.first().filter(|first| causes.iter().all(|cause| cause == *first)).cloned();
        let diagnosis = only_cause.or_else(|| facts.into_iter().next()).unwrap_or_else(|| diagnosis.into());
        let mut finding = readable_values(finding);
        if let (true, Some(expected), Some(observed)) = (cut, &mut finding.expected, &mut finding.observed) {
            from_difference(expected, observed, differs_at);
        }
        Err(Finding { diagnosis, ..finding }.into())
    }
}

fn near(expected: f64, observed: f64, tolerance: f64) -> bool {
    (expected - observed).abs() <= tolerance
}

/// Returns true if both lists have the same length and no number differs by more than `tolerance`. NaN always differs.
pub fn close(expected: &[f64], observed: &[f64], tolerance: f64) -> bool {
    expected.len() == observed.len() && expected.iter().zip(observed).all(|(one, other)| near(*one, *other, tolerance))
}

/// The finding with values as people write them: without the types of Rust, and with numbers rounded to what matters, unless the values
/// would then be equal.
fn readable_values(finding: Finding) -> Finding {
    let [given, expected, observed] =
        [&finding.given, &finding.expected, &finding.observed].map(|text| text.as_deref().map(without_types));
    let short = |text: &Option<String>| text.as_deref().map(rounded);
    let (rounded_expected, rounded_observed) = (short(&expected), short(&observed));
    let differ = rounded_expected != rounded_observed || expected == observed;
    let (expected, observed) = if differ { (rounded_expected, rounded_observed) } else { (expected, observed) };
    Finding { given: short(&given), expected, observed, ..finding }
}

/// The text with what `Debug` shows of an `Option`, a `Result` and a struct in words: `Ok([1])` becomes `[1]`, `None` `nothing`, `Err("x")`
/// `the error "x"`, `Bytes { sent: 4 }` `sent: 4`. What stands in quotation marks or backquotes stays.
fn without_types(text: &str) -> String {
    // For each bracket that is open, whether it is the text's own.
    let mut own = Vec::new();
    outside_quotes(text, |part| {
        let (mut out, mut rest, mut last) = (String::with_capacity(part.len()), part, ' ');
        while let Some(c) = rest.chars().next() {
            if let Some((length, words)) = (!is_of_name(last)).then(|| type_at(rest)).flatten() {
                out += words;
                if !rest[..length].ends_with(is_of_name) {
                    own.push(false);
                }
                (last, rest) = (' ', &rest[length..]);
                continue;
            }
            if matches!(c, '(' | '{') {
                own.push(true);
            }
            if !matches!(c, ')' | '}') || own.pop().unwrap_or(true) {
                out.push(c);
            } else if c == '}' {
                out.truncate(out.trim_end().len());
            }
            (last, rest) = (c, &rest[c.len_utf8()..]);
        }
        out
    })
}

/// The text, changed where it does not stand in quotation marks or backquotes: what does is the answer's own text.
fn outside_quotes(text: &str, mut change: impl FnMut(&str) -> String) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((begin, quote)) = rest.char_indices().find(|(_, c)| matches!(c, '"' | '`')) {
        out += &change(&rest[..begin]);
        let quoted = &rest[begin + 1..];
        // Debug writes a backslash before a quotation mark within the text.
        let end = quoted.char_indices().find(|(at, c)| *c == quote && !quoted[..*at].ends_with('\\'));
        let length = end.map_or(rest.len(), |(at, _)| begin + 1 + at + 1);
        out += &rest[begin..length];
        rest = &rest[length..];
    }
    out + &change(rest)
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the type that the text begins with, with the bracket that it opens, and what is said instead.
fn type_at(text: &str) -> Option<(usize, &'static str)> {
    let (word, after) = text.split_at(text.find(|c| !is_of_name(c)).unwrap_or(text.len()));
    match word {
        "Some" | "Ok" if after.starts_with('(') => Some((word.len() + 1, "")),
        "Err" if after.starts_with('(') => Some((word.len() + 1, "the error ")),
        "None" => Some((word.len(), "nothing")),
        _ if word.starts_with(char::is_uppercase) && after.starts_with(" { ") => Some((word.len() + 3, "")),
        _ => None,
    }
}

/// The text, with six digits of each fraction that has more. Whole numbers and what stands in quotation marks keep theirs.
fn rounded(text: &str) -> String {
    outside_quotes(text, rounded_numbers)
}

fn rounded_numbers(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
    let (mut all, mut number, mut last) = (String::new(), String::new(), ' ');
    for c in text.chars().chain(['\n']) {
        // An exponent may have a sign.
        let of_exponent = c == '-' && last == 'e' && number.starts_with(|c: char| c.is_ascii_digit());
        if is_part(c) || of_exponent {
            number.push(c);
        } else {
            all += &six_digits(&number);
            number.clear();
            all.push(c);
        }
        last = c;
    }
    all.pop(); // the end of the line that was added
    all
}

fn six_digits(number: &str) -> String {
    let is_fraction = number.contains('.') && number.starts_with(|c: char| c.is_ascii_digit());
    let digits = number.chars().take_while(|c| *c != 'e').filter(char::is_ascii_digit).count();
    match number.parse::<f64>() {
        Ok(value) if is_fraction && value.fract() != 0.0 && digits > SIGNIFICANT => {
            let short: f64 = format!("{value:.0$e}", SIGNIFICANT - 1).parse().unwrap_or(value);
            format!("{short:?}")
        }
        _ => number.to_owned(),
    }
}

/// Cuts both values if one is long: they begin with the element in which they differ. `element` is its number in a list whose elements may
/// also differ in what does not matter.
fn from_difference(expected: &mut String, observed: &mut String, element: Option<usize>) {
    if expected.len().max(observed.len()) <= SHOWN {
        return;
    }
    let [one, other] = match element {
        Some(element) => [&*expected, &*observed].map(|list| element_at(list, element)),
        None => different_elements(expected, observed),
    };
    let place =
        if one < expected.len().saturating_sub(1) { place(&expected[..one]) } else { place(&observed[..other]) };
    *expected = excerpt(expected, one, &place);
    *observed = excerpt(observed, other, &place);
}

/// Where the element of this number begins in the text of a list, or the list ends.
fn element_at(list: &str, number: usize) -> usize {
    let Some(before) = number.checked_sub(1) else { return 1 };
    list.match_indices(", ").nth(before).map_or(list.len().saturating_sub(1), |(comma, between)| comma + between.len())
}

/// Where the first element that differs begins in both texts, or one of them ends.
fn different_elements(one: &str, other: &str) -> [usize; 2] {
    let difference = one.char_indices().zip(other.chars()).find(|((_, one), other)| one != other);
    let at = difference.map_or(one.len().min(other.len()), |((at, _), _)| at);
    let (rest, rest_of_other) = (&one[at..], &other[at..]);
    let ends = |text: &str| text.starts_with([']', ')']);
    match (rest.starts_with(", "), rest_of_other.starts_with(", ")) {
        (true, false) if ends(rest_of_other) => [at + 2, at],
        (false, true) if ends(rest) => [at, at + 2],
        _ => {
            let element = one[..at].rfind([' ', '[', '(', '"']).map_or(0, |separator| separator + 1);
            [if at - element > BEFORE { at } else { element }; 2]
        }
    }
}

/// The part of a value's text that begins with the element at this byte, with the element's place: `… from [3][0] on: 4.0, 5.0…`.
fn excerpt(text: &str, begin: usize, place: &str) -> String {
    let begin = if begin > BEFORE { begin } else { 0 };
    let end = text.floor_char_boundary(begin + SHOWN);
    let rest = if end < text.len() { "…" } else { "" };
    let part = &text[begin..end];
    match place {
        _ if begin == 0 => format!("{part}{rest}"),
        "" => format!("…{part}{rest}"),
        place if part.trim_matches([']', ')']).is_empty() => format!("… nothing at {place}: it ends there"),
        place => format!("… from {place} on: {part}{rest}"),
    }
}

/// The indices of the element that follows this beginning of a list's text: `[3][0]`.
fn place(before: &str) -> String {
    let mut open: Vec<(char, usize)> = Vec::new();
    outside_quotes(before, |part| {
        for c in part.chars() {
            match c {
                '[' | '(' | '{' => open.push((c, 0)),
                ']' | ')' | '}' => drop(open.pop()),
                ',' => open.iter_mut().next_back().into_iter().for_each(|(_, number)| *number += 1),
                _ => {}
            }
        }
        String::new()
    });
    open.iter().filter(|(bracket, _)| *bracket == '[').map(|(_, number)| format!("[{number}]")).collect()
}

/// The items in words, with `between` each two of them.
pub fn joined(items: &[impl Display], between: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

/// Lists of numbers as rows of a table, for [`Claim::given`]: `rank 0: 1.5, 2.0`. `what` is what each row is of.
pub fn rows(what: &str, lists: &[impl AsRef<[f64]>]) -> String {
    let numbers = |list: &[f64]| joined(&list.iter().map(|number| format!("{number:?}")).collect::<Vec<_>>(), ", ");
    let row = |(number, list): (usize, &_)| format!("{what} {number}: {}", numbers(AsRef::as_ref(list)));
    lists.iter().enumerate().map(row).collect::<Vec<_>>().join("\n")
}

/// A table for [`Claim::given`]: a row of names, then the others, in columns that end at the same place.
pub fn table<const COLUMNS: usize>(names: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let names = names.map(str::to_owned);
    let all: Vec<&[String; COLUMNS]> = [&names].into_iter().chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &&[String; COLUMNS]| {
        joined(&row.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect::<Vec<_>>(), "  ")
    };
    joined(&all.iter().map(line).collect::<Vec<_>>(), "\n")
}

/// How much longer than a time that a task names an answer may take, in per cent of that time.
const LATEST: u64 = 150;

/// Returns true if an answer that may take `limit` milliseconds has taken too long. `took` is the shortest of a few tries, without the time by
/// which a thread that had only to wake up was late, too: a busy machine makes an answer late, but not each time.
pub fn is_too_late(took: u64, limit: u64) -> bool {
    took * 100 > limit * LATEST
}

/// Numbers that may be NaN. JSON cannot represent NaN, so `null` stands for it.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Option<f64>>")]
pub struct Numbers(pub Vec<f64>);

impl From<Vec<Option<f64>>> for Numbers {
    fn from(numbers: Vec<Option<f64>>) -> Self {
        Numbers(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
    }
}

impl From<Vec<f64>> for Numbers {
    fn from(numbers: Vec<f64>) -> Self {
        Numbers(numbers)
    }
}

/// Shows a plain list, since learners read it.
impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for Numbers {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_compute_or_sleep_do_not_wait_for_each_other() {
        let hang = |why: &str, table: &[&str]| {
            let table = table.iter().map(|line| (*line).to_owned()).collect();
            Finding { table, ..Finding::new(Verdict::Hang, why) }.ranks_wait()
        };
        let (waits, sleeps) =
            ("rank 0: waits in call 1, all_reduce(Sum)", "rank 1: is in no call, after 3 finished calls");
        assert!(hang("not finished after 60 s", &[waits, sleeps]) && hang("not finished after 60 s", &[]));
        assert!(!hang("not finished after 60 s", &[sleeps, sleeps]));
        assert!(!hang(&format!("not finished after 60 s, and {COMPUTES}"), &[waits, sleeps]));
        assert!(!Finding::new(Verdict::Crash, "it panicked").ranks_wait());
    }

    #[test]
    fn columns_of_a_table_end_at_the_same_place() {
        let rows = [["0", "9.5"], ["11", "1234.0"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(["rank", "ms"], &rows), "rank      ms\n   0     9.5\n  11  1234.0");
    }

    fn finding(claim: Claim, diagnosis: &str) -> Finding {
        claim.or_fail(diagnosis).unwrap_err().downcast().unwrap()
    }

    #[test]
    fn reports_the_only_cause_and_then_the_first_fact() {
        let claim =
            || Claim::equal(&1, &2).diagnose_if(true, "even").cause_if(false, "halved").cause_if(true, "doubled");
        assert_eq!(finding(claim(), "wrong").diagnosis, "doubled");
        assert_eq!(finding(claim().cause_if(true, "one more"), "wrong").diagnosis, "even");
        let two_causes = Claim::equal(&1, &2).cause_if(true, "doubled").cause_if(true, "one more");
        assert_eq!(finding(two_causes, "wrong").diagnosis, "wrong");
        let two_ways = claim().cause_if(true, "doubled");
        assert_eq!(finding(two_ways, "wrong").diagnosis, "doubled");
    }

    #[test]
    fn reports_the_first_fact_whose_condition_is_true() {
        let claim =
            || Claim::close(&[1.0, 2.0], &[2.0, 4.0], 1e-9).diagnose_if(false, "not this").diagnose_if(true, "doubled");
        let known = finding(claim().diagnose_if(true, "nor this"), "wrong");
        assert_eq!((known.diagnosis.as_str(), known.verdict), ("doubled", Verdict::WrongValue));
        assert_eq!(known.expected.as_deref(), Some("[1.0, 2.0]"));
        assert_eq!(finding(Claim::equal(&1, &2), "wrong").diagnosis, "wrong");
        assert!(Claim::equal("a", "a").diagnose_if(true, "doubled").or_fail("wrong").is_ok());
    }

    #[test]
    fn rejects_nan_and_lists_of_different_length() {
        assert!(close(&[1.0], &[1.05], 0.1));
        assert!(
            !close(&[1.0], &[f64::NAN], 0.1) && !close(&[1.0], &[1.0, 1.0], 0.1) && !close(&[f64::NAN], &[1.0], 9.0)
        );
    }

    #[test]
    fn lists_are_rows() {
        assert_eq!(rows("rank", &[vec![1.5, 2.0], vec![f64::NAN]]), "rank 0: 1.5, 2.0\nrank 1: NaN");
    }

    #[test]
    fn rounds_numbers_to_six_digits_where_they_still_differ() {
        assert_eq!(rounded("[4.9999999999999996e-6, -0.30000000000000004, 1.5, NaN]"), "[5e-6, -0.3, 1.5, NaN]");
        assert_eq!(
            rounded("epoch 1234567: 12.3456789 s of 70001234.0 at 127.0.0.1 of v1.2345678"),
            "epoch 1234567: 12.3457 s of 70001234.0 at 127.0.0.1 of v1.2345678"
        );
        assert_eq!(rounded("the error \"0.123456789\", not 0.123456789"), "the error \"0.123456789\", not 0.123457");
        let near = finding(Claim::equal(&0.123_456_78, &0.123_456_79), "last bits");
        assert_eq!(near.observed.as_deref(), Some("0.12345679"));
        let far = finding(Claim::equal(&(1.0 / 3.0), &(2.0 / 3.0)), "twice");
        assert_eq!((far.expected.as_deref(), far.observed.as_deref()), (Some("0.333333"), Some("0.666667")));
    }

    #[test]
    fn values_have_no_types_of_rust() {
        for (debug, words) in [
            (format!("{:?}", Some(Ok::<_, String>((1, vec![2])))), "(1, [2])"),
            (format!("{:?}", [None::<i32>, Some(3)]), "[nothing, 3]"),
            (format!("{:?}", Err::<(), _>("a \"Some(x)\" of Ok(1)")), r#"the error "a \"Some(x)\" of Ok(1)""#),
            (format!("counted: {:?}", Ratio { of: Some(4), to: [1.5] }), "counted: of: 4, to: [1.5]"),
            ("`Some(x)`, NoneSuch, f(x) and Someone (Ok)".to_owned(), "`Some(x)`, NoneSuch, f(x) and Someone (Ok)"),
        ] {
            assert_eq!(without_types(&debug), words);
        }
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "shown")]
    struct Ratio {
        of: Option<i32>,
        to: [f64; 1],
    }

    #[test]
    fn excerpts_begin_at_the_first_difference() {
        let shown = |claim: Claim| {
            let finding = finding(claim, "long");
            let head = |text: Option<String>| text.unwrap().chars().take(34).collect::<String>();
            (head(finding.expected), head(finding.observed))
        };
        let texts = |(one, other): (&str, &str)| (one.to_owned(), other.to_owned());
        let flat: Vec<u32> = (0..300).collect();
        let mut other = flat.clone();
        other[170] = 7;
        let at_170 = texts(("… from [170] on: 170, 171, 172, 17", "… from [170] on: 7, 171, 172, 173,"));
        assert_eq!(shown(Claim::equal(&flat, &other)), at_170);
        let short = &flat[..170];
        let ends = texts(("… from [170] on: 170, 171, 172, 17", "… nothing at [170]: it ends there"));
        assert_eq!(shown(Claim::equal(&flat[..], short)), ends);
        let nested = |list: &[u32]| list.chunks(50).map(<[u32]>::to_vec).collect::<Vec<_>>();
        let at_3_20 = texts(("… from [3][20] on: 170, 171, 172, ", "… from [3][20] on: 7, 171, 172, 17"));
        assert_eq!(shown(Claim::equal(&nested(&flat), &nested(&other))), at_3_20);
        // What differs within the tolerance is no difference.
        let near = |list: &[u32]| list.iter().map(|number| f64::from(*number) + 0.01).collect::<Vec<_>>();
        let right: Vec<f64> = flat.iter().map(|number| f64::from(*number)).collect();
        let close = texts(("… from [170] on: 170.0, 171.0, 172", "… from [170] on: 7.01, 171.01, 172"));
        assert_eq!(shown(Claim::close(&right, &near(&other), 0.1)), close);
        let at_0 = texts(("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"));
        assert_eq!(shown(Claim::equal(&flat[..299], &flat[1..])), at_0);
        let word = |last: &str| format!("{} {last}", "word ".repeat(100));
        assert_eq!(shown(Claim::equal(&word("one"), &word("two"))), texts(("…one\"", "…two\"")));
    }

    #[test]
    fn shortens_long_values_between_two_characters() {
        let long = finding(Claim::equal("", &*"ü".repeat(SHOWN)), "long");
        assert!(long.observed.is_some_and(|text| text.len() <= SHOWN + 3 && text.ends_with('…')));
    }

    #[test]
    fn reads_null_as_nan() {
        let written = serde_json::to_string(&Numbers(vec![1.5, f64::NAN])).unwrap();
        let read: Numbers = serde_json::from_str(&written).unwrap();
        assert!(read.len() == 2 && read[0] == 1.5 && read[1].is_nan(), "{written}");
    }
}

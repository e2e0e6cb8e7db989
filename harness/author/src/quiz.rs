//! The multiple-choice questions of `labs/quiz.toml`, ten for each route: as a page of the book, and in Moodle's GIFT for learning platforms
//! and poll tools.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::exit::Refused;

const QUIZ: &str = include_str!("../../../labs/quiz.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quiz {
    question: Vec<Question>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Question {
    route: String,
    /// Unique, for platforms.
    name: String,
    /// Where the answer is taught: a page of the book, and a heading.
    section: String,
    asks: String,
    right: Choice,
    wrong: Vec<Choice>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Choice {
    choice: String,
    /// Why it is right, or wrong.
    why: String,
}

impl Question {
    /// The right choice and the wrong ones, in an order that does not show which is right: by their letters from the end.
    fn choices(&self) -> Vec<&Choice> {
        let mut all: Vec<&Choice> = std::iter::once(&self.right).chain(&self.wrong).collect();
        all.sort_by_key(|choice| choice.choice.chars().rev().collect::<String>());
        all
    }
}

/// All questions of a route, or of all, by route.
fn questions(route: Option<&str>) -> anyhow::Result<Vec<(String, Vec<Question>)>> {
    let mut routes: Vec<(String, Vec<Question>)> = Vec::new();
    for question in toml::from_str::<Quiz>(QUIZ)?.question {
        match routes.last_mut() {
            Some((name, of)) if *name == question.route => of.push(question),
            _ => routes.push((question.route.clone(), vec![question])),
        }
    }
    let names = routes.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ");
    routes.retain(|(name, _)| route.is_none_or(|route| route == name));
    if routes.is_empty() {
        let route = route.unwrap_or_default();
        return Err(Refused(format!("there are no questions for a route {route:?}: there are {names}")).into());
    }
    Ok(routes)
}

/// The page of the book, as Markdown. Answers are folded.
///
/// # Errors
/// The data is damaged.
pub fn page() -> anyhow::Result<String> {
    let mut text = String::from(
        "# Questions\n\nTen questions for each [route](introduction.md#routes), for a poll in the room, before a route or after it, or for yourself. \
         The wrong choices are mistakes that people make; each answer says why. A longer route has the chapters of a shorter one, so its \
         questions can be asked together with those of the shorter.\n\n\
         `lockstep course quiz --route day > day.gift` writes them in GIFT, which Moodle and others import, with the reasons as \
         feedback. The source is `labs/quiz.toml`.\n",
    );
    for (route, questions) in questions(None)? {
        let _ = writeln!(text, "\n## {route}");
        for (number, question) in questions.iter().enumerate() {
            let choices = question.choices();
            let _ = writeln!(text, "\n**{}.** {}\n", number + 1, question.asks);
            for (letter, choice) in ('A'..).zip(&choices) {
                let _ = writeln!(text, "- **{letter}** {}", choice.choice);
            }
            let _ = writeln!(text, "\n<details><summary>Answer</summary>\n");
            for (letter, choice) in ('A'..).zip(&choices) {
                let sign = if *choice == &question.right { "right" } else { "wrong" };
                let _ = writeln!(text, "- **{letter}**, {sign}: {}", choice.why);
            }
            let _ = writeln!(text, "\n[Where it is taught]({})\n\n</details>", question.section);
        }
    }
    Ok(text)
}

/// The questions in GIFT: <https://docs.moodle.org/en/GIFT_format>. Each choice's reason is its feedback.
///
/// # Errors
/// [`Refused`] if there is no such route.
pub(crate) fn gift(route: Option<&str>) -> anyhow::Result<String> {
    let mut text = String::new();
    for (route, questions) in questions(route)? {
        let _ = writeln!(text, "$CATEGORY: Lockstep/{route}\n");
        for question in questions {
            let _ = writeln!(text, "::{}::[markdown]{} {{", escaped(&question.name), escaped(&question.asks));
            for choice in question.choices() {
                let sign = if choice == &question.right { '=' } else { '~' };
                let _ = writeln!(text, "{sign}{}#{}", escaped(&choice.choice), escaped(&choice.why));
            }
            let _ = writeln!(text, "####{}\n}}\n", escaped(&format!("In the book: {}", question.section)));
        }
    }
    Ok(text)
}

/// The characters that have a meaning in GIFT.
const SPECIAL: &str = "\\~=#{}:";

fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| SPECIAL.contains(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn all() -> Vec<Question> {
        questions(None).unwrap().into_iter().flat_map(|(_, of)| of).collect()
    }

    #[test]
    fn each_route_has_ten_questions_and_each_choice_a_reason() {
        let routes: toml::Table = include_str!("../../../labs/routes.toml").parse().unwrap();
        let names: Vec<&str> =
            routes["route"].as_array().unwrap().iter().map(|of| of["name"].as_str().unwrap()).collect();
        let asked = questions(None).unwrap();
        let expected: Vec<(&str, usize)> = names.into_iter().map(|name| (name, 10)).collect();
        assert_eq!(asked.iter().map(|(name, of)| (&**name, of.len())).collect::<Vec<_>>(), expected);
        let mut seen = BTreeSet::new();
        for question in all() {
            assert!(seen.insert(question.name.clone()), "{} is there twice", question.name);
            let choices = question.choices();
            assert_eq!(choices.len(), 4, "{}", question.name);
            let texts: BTreeSet<&str> = choices.iter().map(|choice| &*choice.choice).collect();
            assert_eq!(texts.len(), 4, "{} has a choice twice", question.name);
            for choice in choices {
                assert!(choice.why.len() > 20 && choice.why.ends_with('.'), "{}: {choice:?}", question.name);
                assert!(!choice.choice.ends_with('.'), "{}: {choice:?}", question.name);
            }
        }
    }

    /// Neither its place nor its length gives the right choice away: of four, chance finds it in a quarter.
    #[test]
    fn the_right_choice_does_not_stand_out() {
        let questions = all();
        let mut places = BTreeMap::new();
        for question in &questions {
            let place = question.choices().iter().position(|choice| *choice == &question.right).unwrap();
            *places.entry(place).or_insert(0) += 1;
        }
        let longest =
            |question: &&Question| question.wrong.iter().all(|wrong| wrong.choice.len() < question.right.choice.len());
        let longest = questions.iter().filter(longest).count();
        let most = questions.len() * 2 / 5;
        assert!(places.len() == 4 && places.values().all(|count| *count <= most), "{places:?}");
        assert!(longest <= most, "the right choice is the longest in {longest} of {}", questions.len());
    }

    #[test]
    fn gift_reads_back_as_what_was_written() {
        for route in [None, Some("day")] {
            let written: Vec<Question> = questions(route).unwrap().into_iter().flat_map(|(_, of)| of).collect();
            assert_eq!(parsed(&gift(route).unwrap()), written);
        }
        assert_eq!(escaped(r"a=b ~ {c}: \n #1"), r"a\=b \~ \{c\}\: \\n \#1");
        assert!(gift(Some("evening")).unwrap_err().to_string().contains("there are morning, "));
    }

    /// What GIFT's grammar makes of the text: a backslash makes the next character an ordinary one.
    fn parsed(text: &str) -> Vec<Question> {
        let mut signs: Vec<(char, bool)> = Vec::new();
        let mut characters = text.chars();
        while let Some(c) = characters.next() {
            signs.push(if c == '\\' { (characters.next().unwrap(), false) } else { (c, true) });
        }
        let is =
            |at: usize, sign: &str| sign.chars().enumerate().all(|(more, c)| signs.get(at + more) == Some(&(c, true)));
        let (mut found, mut at, mut route) = (Vec::new(), 0, String::new());
        // Takes everything up to one of these signs.
        let until = |at: &mut usize, ends: &[&str]| {
            let begin = *at;
            while *at < signs.len() && !ends.iter().any(|end| is(*at, end)) {
                *at += 1;
            }
            signs[begin..*at].iter().map(|(c, _)| c).collect::<String>().trim().to_owned()
        };
        while at < signs.len() {
            if is(at, "$CATEGORY: Lockstep/") {
                at += "$CATEGORY: Lockstep/".len();
                route = until(&mut at, &["\n"]);
            } else if is(at, "::") {
                at += 2;
                let name = until(&mut at, &["::"]);
                at += "::[markdown]".len();
                let asks = until(&mut at, &["{"]);
                at += 1;
                let (mut right, mut wrong, mut section) = (Vec::new(), Vec::new(), String::new());
                while !is(at, "}") {
                    let sign = signs[at];
                    at += 1;
                    if is(at - 1, "####") {
                        at += 3;
                        section = until(&mut at, &["}"]);
                    } else if [('=', true), ('~', true)].contains(&sign) {
                        let choice = until(&mut at, &["#", "=", "~", "}"]);
                        assert!(is(at, "#") && !is(at, "####"), "{choice:?} has no feedback");
                        at += 1;
                        let why = until(&mut at, &["=", "~", "####", "}"]);
                        if sign.0 == '=' { &mut right } else { &mut wrong }.push(Choice { choice, why });
                    }
                }
                let [right] = &right[..] else { panic!("{name} has {} right choices", right.len()) };
                let section = section.strip_prefix("In the book: ").unwrap().to_owned();
                // The order of the wrong ones in the file is another.
                let data = all().into_iter().find(|question| question.name == name).unwrap();
                wrong.sort_by_key(|choice| data.wrong.iter().position(|of| of == choice));
                found.push(Question { route: route.clone(), name, section, asks, right: right.clone(), wrong });
            }
            at += 1;
        }
        found
    }
}

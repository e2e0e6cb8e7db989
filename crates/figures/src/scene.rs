//! A figure as data: controls that a page shows, and frames that it draws one after the other.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// What the reader has set, by the control's name.
pub(crate) type Values = HashMap<String, Value>;

#[derive(Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Value {
    Number(f64),
    Words(String),
}

#[derive(Serialize)]
pub(crate) struct Control {
    name: &'static str,
    label: &'static str,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Kind {
    /// A slider.
    Range {
        min: f64,
        max: f64,
        step: f64,
        value: f64,
    },
    /// A field for a number.
    Number {
        min: f64,
        max: f64,
        value: f64,
    },
    Choice {
        options: &'static [&'static str],
        value: &'static str,
    },
}

/// The controls of a figure: each is listed when its value is asked for.
pub(crate) struct Controls {
    values: Values,
    pub(crate) list: Vec<Control>,
}

impl Controls {
    pub(crate) fn new(values: Values) -> Self {
        Controls { values, list: Vec::new() }
    }

    fn given(&self, name: &str, otherwise: f64) -> f64 {
        let given = match self.values.get(name) {
            Some(Value::Number(number)) => Some(*number),
            Some(Value::Words(words)) => words.trim().parse().ok(),
            None => None,
        };
        given.filter(|number: &f64| number.is_finite()).unwrap_or(otherwise)
    }

    /// A slider's value, on one of its steps.
    pub(crate) fn range(
        &mut self,
        name: &'static str,
        label: &'static str,
        [min, max, step]: [f64; 3],
        value: f64,
    ) -> f64 {
        let given = self.given(name, value).clamp(min, max);
        let value = (min + ((given - min) / step).round() * step).min(max);
        self.list.push(Control { name, label, kind: Kind::Range { min, max, step, value } });
        value
    }

    /// The same for a number of things.
    pub(crate) fn count(
        &mut self,
        name: &'static str,
        label: &'static str,
        [min, max]: [usize; 2],
        value: usize,
    ) -> usize {
        self.range(name, label, [min as f64, max as f64, 1.0], value as f64) as usize
    }

    /// A number that the reader types.
    pub(crate) fn number(&mut self, name: &'static str, label: &'static str, [min, max]: [f64; 2], value: f64) -> f64 {
        let value = self.given(name, value).clamp(min, max);
        self.list.push(Control { name, label, kind: Kind::Number { min, max, value } });
        value
    }

    /// The position of the chosen option; the first one unless another is given.
    pub(crate) fn choice(
        &mut self,
        name: &'static str,
        label: &'static str,
        options: &'static [&'static str],
    ) -> usize {
        let given = match self.values.get(name) {
            Some(Value::Words(words)) => options.iter().position(|option| option == words),
            _ => None,
        };
        let at = given.unwrap_or(0);
        self.list.push(Control { name, label, kind: Kind::Choice { options, value: options[at] } });
        at
    }
}

#[derive(Serialize)]
pub(crate) struct Scene {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) frames: Vec<Frame>,
    /// What the figure adds up to: a name and a value each.
    pub(crate) facts: Vec<[String; 2]>,
    /// The frame to begin with.
    pub(crate) first: usize,
}

impl Scene {
    pub(crate) fn new([width, height]: [f64; 2], frames: Vec<Frame>) -> Self {
        Scene { width, height, frames, facts: Vec::new(), first: 0 }
    }

    /// Begins with the last frame, which shows all.
    pub(crate) fn starting_at_the_end(mut self) -> Self {
        self.first = self.frames.len() - 1;
        self
    }

    /// A fact below the figure.
    pub(crate) fn tell(&mut self, name: &str, value: impl Into<String>) {
        self.facts.push([name.to_owned(), value.into()]);
    }
}

/// What is drawn at one moment.
#[derive(Clone, Serialize)]
pub(crate) struct Frame {
    /// The moment in a sentence, for those who cannot see it, too.
    pub(crate) says: String,
    pub(crate) shapes: Vec<Shape>,
}

/// Something drawn. A shape with the same key in the next frame moves there.
#[derive(Clone, Serialize)]
pub(crate) struct Shape {
    key: String,
    /// `box`, `line` or `words`.
    kind: &'static str,
    x: f64,
    y: f64,
    w: f64,
    h: f64,
    /// Of `book/lockstep.css`.
    class: &'static str,
    words: String,
}

/// Below this width, in pixels, words are shorter and margins narrower.
const NARROW: f64 = 500.0;

pub(crate) fn is_narrow(width: f64) -> bool {
    width < NARROW
}

impl Frame {
    pub(crate) fn new(says: impl Into<String>) -> Self {
        Frame { says: says.into(), shapes: Vec::new() }
    }

    /// A rank's name before its row.
    pub(crate) fn rank(&mut self, rank: usize, y: f64, width: f64) {
        let name = if is_narrow(width) { "r." } else { "rank" };
        self.words(format!("name {rank}"), [0.0, y], "plain", format!("{name} {rank}"));
    }

    /// Where a row begins after a rank's name.
    pub(crate) fn after_rank(width: f64) -> f64 {
        if is_narrow(width) { 44.0 } else { 64.0 }
    }

    /// A box with words in its middle.
    pub(crate) fn cell(
        &mut self,
        key: impl Into<String>,
        [x, y, w, h]: [f64; 4],
        class: &'static str,
        words: impl Into<String>,
    ) {
        self.shapes.push(Shape { key: key.into(), kind: "box", x, y, w, h, class, words: words.into() });
    }

    /// Words that begin at a place, on a line of 16 pixels.
    pub(crate) fn words(
        &mut self,
        key: impl Into<String>,
        [x, y]: [f64; 2],
        class: &'static str,
        words: impl Into<String>,
    ) {
        self.shapes.push(Shape { key: key.into(), kind: "words", x, y, w: 0.0, h: 16.0, class, words: words.into() });
    }

    /// A straight line over so much.
    pub(crate) fn line(&mut self, key: impl Into<String>, [x, y, w, h]: [f64; 4], class: &'static str) {
        self.shapes.push(Shape { key: key.into(), kind: "line", x, y, w, h, class, words: String::new() });
    }
}

/// A number with at most three digits that matter, and a unit.
pub(crate) fn shown(value: f64, unit: &str) -> String {
    let digits = if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if unit.is_empty() { text.to_owned() } else { format!("{text} {unit}") }
}

/// Bytes in a unit that leaves few digits.
pub(crate) fn bytes(value: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let unit = units.into_iter().find(|(size, _)| value >= *size).unwrap_or((1.0, "B"));
    shown(value / unit.0, unit.1)
}

/// Seconds in a unit that leaves few digits.
pub(crate) fn seconds(value: f64) -> String {
    let units = [(86_400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")];
    let unit = units
        .into_iter()
        .find(|(size, _)| value >= 2.0 * *size || (*size == 1.0 && value >= 1.0))
        .unwrap_or((1e-6, "µs"));
    shown(value / unit.0, unit.1)
}

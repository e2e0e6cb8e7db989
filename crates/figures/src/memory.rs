//! What a rank holds during a step, if ranks hold copies, or divide states, gradients or everything. Bytes for each parameter, in single
//! precision with Adam: 4 of the parameter, 4 of its gradient, 8 of the two means. Source: Rajbhandari and others, "ZeRO: Memory Optimizations
//! Toward Training Trillion Parameter Models" (2020).

use crate::scene::{Controls, Frame, Scene, bytes, is_narrow};

const METHODS: [&str; 4] =
    ["copies (DDP)", "divided states (ZeRO 1)", "divided gradients (ZeRO 2)", "fully sharded (ZeRO 3)"];
const PARAMETER: f64 = 4.0;
const GRADIENT: f64 = 4.0;
const STATES: f64 = 8.0;

/// Bytes that a rank holds, by what they are: parameters, what it gathered for a moment, gradients, states, activations.
type Held = [f64; 5];
const NAMES: [&str; 5] = ["parameters", "gathered", "gradients", "Adam's states", "activations"];

struct Job {
    method: usize,
    parameters: f64,
    ranks: f64,
    units: usize,
    /// Bytes of activations that each unit keeps.
    kept: f64,
}

#[derive(Clone, Copy)]
enum Moment {
    Before,
    Forward(usize),
    Backward(usize),
    Optimizer,
    After,
}

impl Job {
    fn moments(&self) -> Vec<Moment> {
        let forward = (0..self.units).map(Moment::Forward);
        let backward = (0..self.units).rev().map(Moment::Backward);
        [Moment::Before].into_iter().chain(forward).chain(backward).chain([Moment::Optimizer, Moment::After]).collect()
    }

    /// While a unit computes. Copies and ZeRO 1 keep all gradients until the optimizer's step; ZeRO 2 and 3 keep a share of each unit's as soon
    /// as the unit's backward pass has ended, beside the unit's own.
    fn held(&self, moment: Moment) -> Held {
        let (all, unit, ranks) = (self.parameters, self.parameters / self.units as f64, self.ranks);
        let sharded = self.method == 3;
        let parameters = PARAMETER * if sharded { all / ranks } else { all };
        let states = STATES * if self.method == 0 { all } else { all / ranks };
        let gathered = match moment {
            Moment::Forward(_) | Moment::Backward(_) if sharded => PARAMETER * unit * (1.0 - 1.0 / ranks),
            _ => 0.0,
        };
        let gradients = |units_done: usize, unit_now: f64| match self.method {
            0 | 1 => GRADIENT * (units_done as f64 * unit + unit_now),
            _ => GRADIENT * (units_done as f64 * unit / ranks + unit_now),
        };
        let gradients = match moment {
            Moment::Backward(at) => gradients(self.units - 1 - at, unit),
            Moment::Optimizer => gradients(self.units, 0.0),
            _ => 0.0,
        };
        let activations = match moment {
            Moment::Forward(at) | Moment::Backward(at) => self.kept * (at + 1) as f64,
            _ => 0.0,
        };
        [parameters, gathered, gradients, states, activations]
    }

    fn peak(&self) -> f64 {
        self.moments().iter().map(|moment| self.held(*moment).iter().sum()).fold(0.0, f64::max)
    }
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let method = controls.choice("method", "ranks hold", &METHODS);
    let ranks = controls.count("ranks", "ranks", [2, 64], 8);
    let millions = controls.range("parameters", "parameters, in millions", [100.0, 10_000.0, 100.0], 1000.0);
    let units = controls.count("units", "units", [2, 8], 4);
    let kept = controls.range("activations", "activations of a unit, in MB", [0.0, 2000.0, 50.0], 400.0);
    let job = Job { method, parameters: 1e6 * millions, ranks: ranks as f64, units, kept: 1e6 * kept };
    let whole = (0..4).map(|method| Job { method, ..job }.peak()).fold(0.0, f64::max);
    let (left, top, row) = (if is_narrow(width) { 92.0 } else { 120.0 }, 8.0, 30.0);
    let height = top + 6.0 * row + 20.0;
    let scale = (width - left - 74.0) / whole;
    let classes = ["compute", "moving", "partial", "cell", "done"];
    let frame = |moment: &Moment| {
        let says = match *moment {
            Moment::Before => "Before the step: parameters and Adam's states.".to_owned(),
            Moment::Forward(at) if method == 3 => {
                format!("Forward pass of unit {at}: gathered from all ranks, and freed afterwards.")
            }
            Moment::Forward(at) => format!("Forward pass of unit {at}: activations are kept for the backward pass."),
            Moment::Backward(at) if method >= 2 => {
                format!("Backward pass of unit {at}: each rank keeps its share of the sums.")
            }
            Moment::Backward(at) => format!("Backward pass of unit {at}: gradients stay until the optimizer's step."),
            Moment::Optimizer => if method == 0 {
                "The optimizer updates all parameters."
            } else {
                "The optimizer updates the rank's share."
            }
            .to_owned(),
            Moment::After => match method {
                1 | 2 => "After the step: updated shares have been gathered; gradients are freed.",
                _ => "After the step: gradients are freed.",
            }
            .to_owned(),
        };
        let mut frame = Frame::new(says);
        let held = job.held(*moment);
        let mut x = left;
        for (at, (name, held)) in NAMES.iter().zip(held).enumerate() {
            let y = top + at as f64 * row;
            frame.words(format!("name {at}"), [0.0, y + 4.0], "plain", *name);
            frame.cell(format!("bar {at}"), [left, y, scale * held, row - 6.0], classes[at], "");
            frame.words(format!("bytes {at}"), [left + scale * held + 6.0, y + 4.0], "faint", bytes(held));
            frame.cell(format!("sum {at}"), [x, top + 5.0 * row, scale * held, row - 6.0], classes[at], "");
            x += scale * held;
        }
        frame.words("name sum", [0.0, top + 5.0 * row + 4.0], "plain strong", "a rank");
        frame.words("bytes sum", [x + 6.0, top + 5.0 * row + 4.0], "strong", bytes(held.iter().sum()));
        frame.line("peak", [left + scale * job.peak(), top + 5.0 * row - 4.0, 0.0, row + 2.0], "now");
        frame
    };
    let frames = job.moments().iter().map(frame).collect();
    let mut scene = Scene::new([width, height], frames);
    for (method, name) in METHODS.iter().enumerate() {
        scene.tell(&format!("peak, {name}"), bytes(Job { method, ..job }.peak()));
    }
    Ok(scene)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(method: usize) -> Job {
        Job { method, parameters: 1e9, ranks: 8.0, units: 4, kept: 0.0 }
    }

    /// The table of the paper: 16, 4 + 4 + 8/8, and for stages 2 and 3 with the unit that is at work.
    #[test]
    fn peaks_are_those_of_the_bytes_that_a_parameter_has() {
        assert_eq!(job(0).peak(), 16e9);
        assert_eq!(job(1).peak(), 9e9);
        // 4 whole, 1 of states, the last unit's gradients whole and an eighth of three units'.
        assert_eq!(job(2).peak(), 4e9 + 1e9 + 1e9 + 3e9 / 8.0);
        assert_eq!(job(3).peak(), 0.5e9 + 1e9 + 1e9 * 7.0 / 8.0 + 1e9 + 3e9 / 8.0);
    }

    #[test]
    fn activations_come_and_go_with_the_passes() {
        let job = Job { kept: 1.0, ..job(0) };
        let activations = |moment| job.held(moment)[4];
        assert_eq!([0, 3].map(|at| activations(Moment::Forward(at))), [1.0, 4.0]);
        assert_eq!([3, 0].map(|at| activations(Moment::Backward(at))), [4.0, 1.0]);
        assert_eq!(activations(Moment::Optimizer), 0.0);
    }
}

//! The book's figures that move, computed. A page loads this as WebAssembly when a figure comes into view (`book/figures.js`), asks for a
//! figure with the reader's values, and draws what comes back: controls, and frames of boxes, lines and words. What is computed is the
//! course's own code: [`lockstep_cost`], the samplers' order of samples, and the order of additions over virtual ranks.
//!
//! | figure | shows |
//! |---|---|
//! | `collective` | the numbers that move in each round of a collective, and what hangs if one rank calls another one |
//! | `step` | DDP's buckets during the backward pass, and how long a rank waits |
//! | `pipeline` | which stage works on which micro-batch, the bubble, activations held |
//! | `memory` | what a rank holds during a step: copies, ZeRO's three stages |
//! | `samples` | which rank takes which sample, padding, resume |
//! | `snapshots` | lost work and time for saving, by the interval between snapshots |
//! | `virtual_ranks` | the tree along which gradients of virtual ranks are added up, and who adds what |
//! | `predict` | `lockstep bench predict`: the layouts of a transformer on a cluster |

mod collective;
mod memory;
#[cfg(target_family = "wasm")]
mod module;
#[path = "../../datasets/src/order.rs"]
#[expect(unreachable_pub, reason = "public in its own crate")]
mod order;
mod pipeline;
pub mod predict;
mod samples;
mod scene;
mod snapshots;
mod step;
#[path = "../../lockstep/src/virtual_ranks/tree.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "used in its own crate"))]
mod tree;
mod virtual_ranks;

use serde::{Deserialize, Serialize};

use crate::scene::{Control, Controls, Scene, Values};

/// What a page asks.
#[derive(Deserialize)]
struct Request {
    figure: String,
    /// Room for the drawing, in pixels.
    width: f64,
    #[serde(default)]
    values: Values,
}

#[derive(Serialize)]
struct Answer {
    controls: Vec<Control>,
    scene: Scene,
}

#[derive(Serialize)]
struct Refusal {
    error: String,
}

/// The answer to a request, both as JSON: controls with their values, and the scene; or the member `error`, which says why not.
pub fn answer(request: &str) -> String {
    let answer = serde_json::from_str::<Request>(request).map_err(|error| error.to_string()).and_then(|request| {
        let mut controls = Controls::new(request.values);
        let figure = match request.figure.as_str() {
            "collective" => collective::scene,
            "step" => step::scene,
            "pipeline" => pipeline::scene,
            "memory" => memory::scene,
            "samples" => samples::scene,
            "snapshots" => snapshots::scene,
            "virtual_ranks" => virtual_ranks::scene,
            "predict" => predict::scene,
            other => return Err(format!("there is no figure {other}")),
        };
        let scene = figure(&mut controls, request.width.clamp(300.0, 760.0))?;
        Ok(Answer { controls: controls.list, scene })
    });
    let text = match answer {
        Ok(answer) => serde_json::to_string(&answer),
        Err(error) => serde_json::to_string(&Refusal { error }),
    };
    text.expect("strings and numbers have a form in JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const FIGURES: [&str; 8] =
        ["collective", "step", "pipeline", "memory", "samples", "snapshots", "virtual_ranks", "predict"];

    fn ask(figure: &str, width: f64, values: Value) -> Value {
        let request = json!({ "figure": figure, "width": width, "values": values });
        serde_json::from_str(&answer(&request.to_string())).unwrap()
    }

    /// Each value of each control alone, in both widths: nothing sticks out, each frame says something, and keys are unique.
    #[test]
    fn every_value_of_every_control_has_a_drawing_that_fits() {
        for figure in FIGURES {
            let controls = ask(figure, 720.0, json!({}))["controls"].clone();
            for control in controls.as_array().unwrap() {
                let name = control["name"].as_str().unwrap();
                let values: Vec<Value> = match control["kind"].as_str().unwrap() {
                    "choice" => control["options"].as_array().unwrap().clone(),
                    _ => vec![control["min"].clone(), control["max"].clone()],
                };
                for (width, value) in
                    [320.0, 720.0].iter().flat_map(|width| values.iter().map(move |value| (width, value)))
                {
                    let told = format!("{figure} {name}={value} {width}");
                    let found = ask(figure, *width, json!({ name: value }));
                    assert_eq!(found["error"], Value::Null, "{told}");
                    let (scene, number) = (&found["scene"], |of: &Value, name: &str| of[name].as_f64().unwrap());
                    for frame in scene["frames"].as_array().unwrap() {
                        assert!(frame["says"].as_str().is_some_and(|says| !says.is_empty()), "{told}");
                        let shapes = frame["shapes"].as_array().unwrap();
                        let keys: std::collections::HashSet<_> =
                            shapes.iter().map(|shape| shape["key"].as_str()).collect();
                        assert_eq!(keys.len(), shapes.len(), "{told}");
                        for shape in shapes {
                            let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| number(shape, name));
                            let inside = |at: f64, end: f64| (-0.5..=end + 0.5).contains(&at);
                            let (end, bottom) = (number(scene, "width"), number(scene, "height"));
                            assert!(
                                inside(x, end) && inside(x + w, end) && inside(y, bottom) && inside(y + h, bottom),
                                "{told}: {shape}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn values_outside_a_control_are_brought_inside() {
        for ranks in [-1.0, 0.5, 99.0, 1e300] {
            let found = ask("collective", 720.0, json!({ "ranks": ranks }));
            let ranks =
                found["controls"].as_array().unwrap().iter().find(|control| control["name"] == "ranks").unwrap();
            assert!((2.0..=8.0).contains(&ranks["value"].as_f64().unwrap()), "{found}");
        }
        assert!(ask("none", 720.0, json!({}))["error"].as_str().unwrap().contains("there is no figure none"));
        assert!(answer("{").contains("error"));
    }
}

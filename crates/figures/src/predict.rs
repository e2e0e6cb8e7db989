//! `lockstep bench predict` as a form: the layouts of a transformer on a cluster, with the bars of where the step's time goes.

use lockstep_cost::{BYTES, Choice, ClusterFile, FASTEST, SECONDS, Times, Units, digits, unit};

use crate::scene::{Controls, Frame, Scene, is_narrow};

/// A row of the table: the layout, what a rank holds, the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// As [`Choice::cells`].
    pub layout: Vec<String>,
    pub memory: String,
    pub step: String,
    note: &'static str,
    choice: Choice,
}

/// The rows that the command shows for the file, without its row about fewer ranks.
pub fn rows(file: &ClusterFile) -> Vec<Row> {
    rows_of(file, &Choice::by_step(&file.job, &file.cluster))
}

fn rows_of(file: &ClusterFile, all: &[Choice]) -> Vec<Row> {
    let row = |(choice, note): (Choice, &'static str)| Row {
        layout: choice.cells(&file.job),
        memory: shown(choice.memory, BYTES),
        step: shown(choice.step, SECONDS),
        note,
        choice,
    };
    Choice::shown(all).into_iter().map(row).collect()
}

fn shown(value: f64, units: &Units) -> String {
    let (name, size) = unit(value, units);
    digits(value / size) + name
}

/// The file that the form stands for.
fn file(controls: &mut Controls) -> Result<ClusterFile, String> {
    let mut whole = |name, label, range, value| controls.number(name, label, range, value).round();
    let nodes = whole("nodes", "nodes", [1.0, 512.0], 4.0);
    let ranks = whole("ranks", "ranks on each", [1.0, 64.0], 8.0);
    let blocks = whole("blocks", "blocks", [1.0, 500.0], 40.0);
    let heads = whole("heads", "heads", [1.0, 512.0], 40.0);
    let micro_batches = whole("micro_batches", "micro-batches of a copy", [1.0, 1024.0], 16.0);
    let memory = controls.number("memory_gb", "memory of a rank, GB", [0.1, 1e4], 40.0);
    let inside = controls.number("node_bandwidth", "links in a node, GB/s", [0.01, 1e4], 200.0);
    let between = controls.number("network_bandwidth", "between nodes, GB/s", [0.01, 1e4], 10.0);
    let latency = controls.number("node_latency", "a message in a node, µs", [0.0, 1e5], 5.0);
    let far = controls.number("network_latency", "between nodes, µs", [0.0, 1e5], 20.0);
    let parameters = controls.number("parameters", "parameters, 10⁹", [1e-3, 1e4], 13.0);
    let activations = controls.number("activations_mb", "between two blocks, MB", [0.0, 1e7], 1340.0);
    let kept = controls.number("kept_mb", "kept by a block, MB", [0.0, 1e7], 5400.0);
    let step = controls.number("step_s", "a step on one rank, s", [1e-6, 1e7], 60.0);
    let text = format!(
        "nodes = {nodes}\n[node]\nranks = {ranks}\nmemory_gb = {memory:?}\nlatency_us = {latency:?}\nbandwidth_gb_s = {inside:?}\n\
         [network]\nlatency_us = {far:?}\nbandwidth_gb_s = {between:?}\n[transformer]\nblocks = {blocks}\nheads = {heads}\n\
         parameters = {:?}\nactivations_mb = {activations:?}\nkept_mb = {kept:?}\nstep_s = {step:?}\nmicro_batches = {micro_batches}\n",
        1e9 * parameters
    );
    ClusterFile::parse(&text).map_err(|error| error.to_string())
}

/// The bars' classes, in the order of [`lockstep_cost::Times::named`].
const CLASSES: [&str; 8] = ["cell", "partial", "moving", "wrong", "done", "empty", "compute", "mark"];
const HEAD: f64 = 26.0;
const LINE: f64 = 44.0;

/// A row's words, and below them its bar, of which `whole` seconds fill the width.
fn draw(frame: &mut Frame, file: &ClusterFile, (at, row): (usize, &Row), width: f64, whole: f64) {
    let y = HEAD + LINE * at as f64;
    let [data, sharded, tensor, pipeline, context] = [0, 1, 2, 3, 4].map(|column| row.layout[column].as_str());
    let sharded = if sharded.is_empty() { String::new() } else { format!(", {sharded}") };
    let words = format!("{data} × {tensor} × {pipeline} × {context}{sharded}; {}; {}", row.memory, row.step);
    let class = if row.note == FASTEST { "strong" } else { "plain" };
    frame.words(format!("row {at}"), [0.0, y], class, words);
    if !row.note.is_empty() && !is_narrow(width) {
        frame.words(format!("note {at}"), [width - 160.0, y], "faint", row.note);
    }
    let times = row.choice.layout.times(row.choice.sharding, &file.job, &file.cluster);
    let mut x = 0.0;
    for ((name, seconds), class) in times.named().iter().zip(CLASSES) {
        let wide = (seconds / whole * width).min(width - x);
        if wide > 0.2 {
            frame.cell(format!("{name} {at}"), [x, y + 19.0, wide, 16.0], class, "");
            x += wide;
        }
    }
}

/// The bars' names below them. Returns where they end.
fn legend(frame: &mut Frame, mut y: f64, width: f64) -> f64 {
    let mut x = 0.0;
    for ((name, _), class) in Times::default().named().iter().zip(CLASSES) {
        let wide = 26.0 + 7.5 * name.len() as f64;
        if x + wide > width {
            (x, y) = (0.0, y + 20.0);
        }
        frame.cell(format!("legend {name}"), [x, y + 2.0, 14.0, 12.0], class, "");
        frame.words(format!("legend's {name}"), [x + 18.0, y], "faint", *name);
        x += wide;
    }
    y + 20.0
}

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let file = file(controls)?;
    let all = Choice::by_step(&file.job, &file.cluster);
    let rows = rows_of(&file, &all);
    let steps = || rows.iter().map(|row| row.choice.step);
    // Steps that take much longer than the fastest would leave no room for the others.
    let whole = steps().fold(0.0, f64::max).min(4.0 * steps().fold(f64::INFINITY, f64::min));
    let mut frame = Frame::new("Bars: where a step's time goes.");
    frame.words("heading", [0.0, 4.0], "faint", "copies × parts × stages × context");
    rows.iter().enumerate().for_each(|row| draw(&mut frame, &file, row, width, whole));
    let height = legend(&mut frame, HEAD + LINE * rows.len() as f64 + 4.0, width);
    let mut scene = Scene::new([width, height], vec![frame]);
    let mut more = file.cluster;
    more.nodes += 1;
    let fits = |choice: &Choice| choice.fits;
    let fastest = all.into_iter().find(fits);
    let told = |found: Option<Choice>| found.map_or("no layout fits".to_owned(), |choice| shown(choice.step, SECONDS));
    scene.tell(&format!("the fastest that fits on {} nodes", file.cluster.nodes), told(fastest));
    let of_more = Choice::by_step(&file.job, &more).into_iter().find(fits);
    scene.tell(&format!("on {}, one more", more.nodes), told(of_more));
    let is_faster = |(_, choice): &(_, Choice)| fastest.is_none_or(|all| choice.step < all.step);
    if let Some((some, choice)) = Choice::on_fewer(&file.job, &file.cluster).filter(is_faster) {
        let step = shown(choice.step, SECONDS);
        scene.tell("faster than all", format!("{} ranks on {} of the nodes: {step}", some.ranks(), some.nodes));
    }
    Ok(scene)
}

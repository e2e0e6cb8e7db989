//! `lockstep bench predict` as a form: the layouts of a transformer on a cluster, with the bars of where the step's time goes.

use lockstep_cost::{Choice, ClusterFile, Layout, Sharding, digits};

use crate::scene::{Controls, Frame, Scene};

/// A row of the table: the layout, what a rank holds, the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Copies, what they shard, parts, stages, context; experts if there are some.
    pub layout: Vec<String>,
    pub memory: String,
    pub step: String,
    pub note: &'static str,
    choice: Choice,
}

/// The rows that the command shows for the file, without its row about fewer ranks.
pub fn rows(file: &ClusterFile) -> Vec<Row> {
    let all = Choice::by_step(&file.job, &file.cluster);
    let fastest = all.iter().position(|choice| choice.fits);
    let row = |at: usize| {
        let choice = all[at];
        let Layout { data, tensor, pipeline, context, expert } = choice.layout;
        let sharded = match choice.sharding {
            Sharding::None => "",
            Sharding::States => "states",
            Sharding::Full => "all",
        };
        let [data, tensor, pipeline, context, expert] =
            [data, tensor, pipeline, context, expert].map(|number| number.to_string());
        let layout = [data, sharded.to_owned(), tensor, pipeline, context]
            .into_iter()
            .chain(file.job.experts.map(|_| expert))
            .collect();
        let note = match choice.fits {
            true if Some(at) == fastest => "the fastest that fits",
            true => "",
            false => "does not fit",
        };
        Row { layout, memory: gibibytes(choice.memory), step: seconds(choice.step), note, choice }
    };
    Choice::shown(&all).into_iter().map(row).collect()
}

fn in_unit(value: f64, units: &[(&str, f64)]) -> String {
    let (name, size) = units.iter().find(|(_, size)| value >= *size).unwrap_or(&units[units.len() - 1]);
    format!("{} {name}", digits(value / size))
}

fn gibibytes(value: f64) -> String {
    let gib = 1_073_741_824.0;
    in_unit(value, &[("GiB", gib), ("MiB", gib / 1024.0), ("KiB", 1024.0), ("B", 1.0)])
}

fn seconds(value: f64) -> String {
    in_unit(value, &[("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)])
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

pub(crate) fn scene(controls: &mut Controls, width: f64) -> Result<Scene, String> {
    let file = file(controls)?;
    let rows = rows(&file);
    let (head, line) = (26.0, 44.0);
    let height = head + line * rows.len() as f64 + 44.0;
    let longest = rows.iter().map(|row| row.choice.step).fold(0.0, f64::max);
    // Steps that take much longer than the fastest would leave no room for the others.
    let whole = longest.min(4.0 * rows.iter().map(|row| row.choice.step).fold(f64::INFINITY, f64::min));
    let classes = ["cell", "partial", "moving", "wrong", "done", "empty", "compute", "mark"];
    let mut frame = Frame {
        says: "Bars: where a step's time goes. The dashed part of a bar is the bubble.".to_owned(),
        shapes: Vec::new(),
    };
    frame.words("heading", [0.0, 4.0], "faint", "copies × parts × stages × context");
    for (at, row) in rows.iter().enumerate() {
        let y = head + line * at as f64;
        let [data, sharded, tensor, pipeline, context] = [0, 1, 2, 3, 4].map(|column| row.layout[column].as_str());
        let sharded = if sharded.is_empty() { String::new() } else { format!(", {sharded}") };
        let words = format!("{data} × {tensor} × {pipeline} × {context}{sharded}; {}; {}", row.memory, row.step);
        frame.words(
            format!("row {at}"),
            [0.0, y],
            if row.note == "the fastest that fits" { "strong" } else { "plain" },
            words,
        );
        if !row.note.is_empty() && width > 500.0 {
            frame.words(format!("note {at}"), [width - 160.0, y], "faint", row.note);
        }
        let times = row.choice.layout.times(row.choice.sharding, &file.job, &file.cluster);
        let mut x = 0.0;
        for ((name, seconds), class) in times.named().iter().zip(classes) {
            let wide = (seconds / whole * width).min(width - x);
            if wide > 0.2 {
                frame.cell(format!("{name} {at}"), [x, y + 19.0, wide, 16.0], class, "");
                x += wide;
            }
        }
    }
    let (mut x, mut y) = (0.0, height - 40.0);
    for ((name, _), class) in rows
        .first()
        .map_or([("", 0.0); 8], |row| row.choice.layout.times(row.choice.sharding, &file.job, &file.cluster).named())
        .iter()
        .zip(classes)
    {
        let wide = 26.0 + 7.5 * name.len() as f64;
        if x + wide > width {
            (x, y) = (0.0, y + 20.0);
        }
        frame.cell(format!("legend {name}"), [x, y + 2.0, 14.0, 12.0], class, "");
        frame.words(format!("legend's {name}"), [x + 18.0, y], "faint", *name);
        x += wide;
    }
    let height = y + 20.0;
    let mut scene = Scene { width, height, frames: vec![frame], facts: Vec::new(), first: 0 };
    let mut more = file.cluster;
    more.nodes += 1;
    let fastest = |cluster| Choice::by_step(&file.job, cluster).into_iter().find(|choice| choice.fits);
    let told = |found: Option<Choice>| found.map_or("no layout fits".to_owned(), |choice| seconds(choice.step));
    scene.tell(&format!("the fastest that fits on {} nodes", file.cluster.nodes), told(fastest(&file.cluster)));
    scene.tell(&format!("on {}, one more", more.nodes), told(fastest(&more)));
    if let Some((some, choice)) = Choice::on_fewer(&file.job, &file.cluster)
        .filter(|(_, choice)| fastest(&file.cluster).is_none_or(|all| choice.step < all.step))
    {
        scene.tell(
            "faster than all",
            format!("{} ranks on {} of the nodes: {}", some.ranks(), some.nodes, seconds(choice.step)),
        );
    }
    Ok(scene)
}

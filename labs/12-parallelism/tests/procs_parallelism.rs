//! What lab 12 promises: every scheme learns what one rank learns from the whole batch, holds its share, and sends what the theory says.

#![allow(clippy::unwrap_used)] // a test may

use std::path::Path;

use lockstep_contract::events::Event;
use lockstep_cost::{Experts, Layout, TransformerStep};
use lockstep_replay::model::SpanKind;
use lockstep_testkit::python::assert_prints_alike;
use lockstep_testkit::{Job, numbers};

const STEPS: usize = 6;

fn lab() -> &'static Path {
    assert_cmd::cargo::cargo_bin!("lab-12-parallelism")
}

/// What a run printed.
struct Ended(String);

impl Ended {
    fn of(world: usize, args: &[&str]) -> Self {
        let mut job = Job::new(lab());
        let ended = job.attempt(world, &[&["--steps", "6"], args].concat());
        assert!(ended.succeeded(), "{args:?} on {world} ranks: {}", ended.stderr());
        Ended(ended.stdout())
    }

    fn losses(&self) -> Vec<f64> {
        numbers(&self.0, " loss ")
    }

    /// How many tokens of all ranks found no place in the last step.
    fn dropped(&self) -> u64 {
        let tokens = |line: &str| line.split_once(" of this rank's tokens")?.0.rsplit(' ').next()?.parse::<u64>().ok();
        self.0.lines().filter_map(tokens).sum()
    }

    /// Of a rank: bytes of parameters, gradients and states, bytes sent in a step, and calls.
    fn held(&self, rank: usize) -> [u64; 5] {
        let (tag, mark) = (format!("[rank {rank}]"), "parameters ");
        let of_rank =
            |line: &&str| line.contains("optimizer's states") && (!line.contains("[rank") || line.contains(&tag));
        let line = self.0.lines().find(of_rank).unwrap_or_else(|| panic!("rank {rank} in {}", self.0));
        let (_, numbers) = line.split_once(mark).unwrap();
        let numbers = numbers.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
        numbers.collect::<Vec<_>>().try_into().unwrap()
    }
}

#[test]
fn a_recorded_pipeline_shows_each_message_between_its_stages() {
    const STAGES: usize = 2;
    let mut job = Job::new(lab()).recorded();
    job.succeeds(STAGES, &["--scheme", "pipeline", "--steps", "2", "--micro-batches", "3"]);
    let replay = lockstep_replay::read(&job.path("recording")).unwrap();
    assert!(replay.missing.is_empty() && replay.standstills.is_empty() && replay.mismatches.is_empty(), "{replay:?}");
    let spans = |rank: usize, kind: SpanKind| replay.lanes[rank].spans.iter().filter(move |span| span.kind == kind);
    let span = |id: u32| replay.lanes.iter().flat_map(|lane| &lane.spans).find(|span| span.id == id).unwrap();
    for rank in 0..STAGES {
        let received: Vec<_> = spans(rank, SpanKind::Receive).collect();
        // One for each micro-batch of each step: activations in one direction, their gradients in the other.
        assert_eq!((received.len(), spans(rank, SpanKind::Send).count()), (6, 6));
        for receive in received {
            let [sent] = receive.matched[..] else { panic!("{receive:?}") };
            let [received, sent] = [receive, span(sent)].map(|span| span.call.as_ref().unwrap());
            assert_eq!((received.peer, sent.peer), (Some(1 - rank), Some(rank)));
            assert_eq!((received.bytes, &received.after), (sent.bytes, &sent.before));
            assert!(!received.after.is_empty());
        }
    }
    // The first activations reach the second stage after its receive has begun to wait, or before.
    let waits = replay.waits.iter().filter(|wait| span(wait.span).kind == SpanKind::Receive);
    for wait in waits {
        assert_eq!(wait.on.iter().map(|on| on.rank).collect::<Vec<_>>(), [1 - wait.rank]);
        assert_eq!(wait.to, wait.on[0].until);
        assert!(wait.to.is_some());
    }
}

fn furthest(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!((one.len(), other.len()), (STEPS, STEPS));
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

const SCHEMES: [&[&str]; 10] = [
    &["--scheme", "ddp"],
    &["--scheme", "zero"],
    &["--scheme", "sharded"],
    &["--scheme", "sharded", "--recompute"],
    &["--scheme", "tensor"],
    &["--scheme", "tensor", "--recompute"],
    &["--scheme", "pipeline"],
    &["--scheme", "pipeline", "--schedule", "gpipe", "--recompute"],
    &["--scheme", "context"],
    &["--scheme", "context", "--recompute"],
];

/// On three ranks the stages of a pipeline have different numbers of blocks; 32 positions do not have six equal chunks.
#[test]
fn every_scheme_learns_what_one_rank_does_to_1e_10_in_double_precision() {
    let one = Ended::of(1, &["--double"]).losses();
    assert!(one[STEPS - 1] < one[0], "{one:?}");
    let on_three = SCHEMES.iter().filter(|scheme| scheme[1] != "context").map(|scheme| (scheme, 3));
    let on_four = SCHEMES.iter().filter(|scheme| divides_blocks(scheme)).map(|scheme| (scheme, 4));
    for (scheme, world) in on_three.chain(on_four) {
        let losses = Ended::of(world, &[scheme, &["--double"][..]].concat()).losses();
        assert!(furthest(&one, &losses) < 1e-10, "{scheme:?} on {world} ranks: {losses:?}, not {one:?}");
    }
    let threads = Ended::of(1, &["--double", "--scheme", "threads", "--replicas", "3"]).losses();
    assert!(furthest(&one, &threads) < 1e-10, "{threads:?}, not {one:?}");
}

/// On four ranks each has another part: a stage that is neither first nor last has a single block.
fn divides_blocks(scheme: &[&str]) -> bool {
    matches!(scheme, [_, "tensor" | "pipeline"] | [_, "context", ..])
}

/// Experts are another model, so their one rank has all of them. Which tokens find no place does not depend on the number of ranks.
#[test]
fn experts_on_several_ranks_learn_what_they_do_on_one_to_1e_10_in_double_precision() {
    let on = |world| Ended::of(world, &["--scheme", "expert", "--double"]);
    let one = on(1);
    let losses = one.losses();
    assert!(losses[STEPS - 1] < losses[0] && one.dropped() > 0, "{losses:?}");
    for world in [2, 3, 4] {
        let several = on(world);
        assert!(furthest(&losses, &several.losses()) < 1e-10, "{world} ranks: {:?}, not {losses:?}", several.losses());
        assert_eq!(several.dropped(), one.dropped(), "{world} ranks");
    }
}

/// Batch normalization needs the whole batch, or the same micro-batches.
#[test]
fn the_resnet_learns_what_one_rank_does_to_1e_10_in_double_precision() {
    let resnet = |world, args: &[&str]| Ended::of(world, &[&["--double", "--model", "resnet"], args].concat()).losses();
    let one = resnet(1, &[]);
    for scheme in ["ddp", "zero", "sharded"] {
        let losses = resnet(3, &["--scheme", scheme]);
        assert!(furthest(&one, &losses) < 1e-10, "{scheme}: {losses:?}, not {one:?}");
    }
    let stages = |world| resnet(world, &["--scheme", "pipeline", "--micro-batches", "2"]);
    let (one, losses) = (stages(1), stages(3));
    assert!(furthest(&one, &losses) < 1e-10, "pipeline: {losses:?}, not {one:?}");
}

/// In single precision: the same runs show what ranks learn, hold and send.
#[test]
fn every_scheme_learns_what_one_rank_does_to_1e_3_and_each_rank_holds_its_share_and_sends_what_the_theory_says() {
    let one = Ended::of(1, &[]);
    let two = SCHEMES.map(|scheme| Ended::of(2, scheme));
    for (scheme, ended) in SCHEMES.iter().zip(&two) {
        learns_nearly_the_same(scheme, &one, ended);
    }
    let states = holds_all_alone(&one);
    let [ddp, zero, sharded, _, tensor, _, pipeline, _, context, _] = &two;
    assert_eq!(ddp.held(1), [ALL, ALL, states, ALL + LOSS, 2]);
    zero_divides_the_states(zero, states);
    sharding_divides_all(sharded);
    tensor_parallelism_divides_layers(tensor);
    a_pipeline_divides_blocks(pipeline);
    context_parallelism_divides_sequences(context, states);
}

/// Adam divides a gradient by its own size, so rounding in the smallest ones shows in the second step.
fn learns_nearly_the_same(scheme: &[&str], one: &Ended, two: &Ended) {
    let (one, losses) = (one.losses(), two.losses());
    println!("{scheme:?}: {:.1e}", furthest(&one, &losses));
    assert!(furthest(&one, &losses) < 1e-3, "{scheme:?}: {losses:?}, not {one:?}");
}

// Of 4 blocks: 12 f² + 9 f each; 96 f twice with a bias of 96; positions 32 f. In single precision.
const F: u64 = 48;
const BLOCK: u64 = (12 * F * F + 9 * F) * 4;
const ENDS: u64 = (2 * 96 * F + 96 + 32 * F) * 4;
const ALL: u64 = 4 * BLOCK + ENDS;
/// Of ranks that add up their parts of the loss.
const LOSS: u64 = 8;
/// Sequences × characters × f.
const ACTIVATIONS: u64 = 12 * 32 * F * 4;

/// For the model of costs: only the bytes that a block sends are compared.
const MODEL: TransformerStep = TransformerStep {
    blocks: 4,
    heads: 12,
    parameters: ALL as f64 / 4.0,
    activations: ACTIVATIONS as f64,
    kept: 0.0,
    compute: 1.0,
    micro_batches: 1,
    sequences: Some(12),
    experts: None,
};

/// Returns the bytes of the optimizer's states.
fn holds_all_alone(one: &Ended) -> u64 {
    let [parameters, gradients, states, sent, calls] = one.held(0);
    assert_eq!([parameters, gradients], [ALL, ALL]);
    assert_eq!(states, 2 * ALL);
    assert_eq!((sent, calls), (ALL + LOSS, 2));
    states
}

fn zero_divides_the_states(zero: &Ended, states: u64) {
    let both = [zero.held(0), zero.held(1)];
    for [parameters, gradients, _, sent, _] in both {
        assert_eq!([parameters, gradients, sent], [ALL, ALL, 2 * ALL + LOSS]);
    }
    assert_eq!(both[0][2] + both[1][2], states);
}

/// Parts of each unit (the embedding, four blocks, the head) are gathered twice, and its gradients reduced once.
fn sharding_divides_all(sharded: &Ended) {
    for rank in [0, 1] {
        assert_eq!(sharded.held(rank), [ALL / 2, ALL / 2, ALL, 2 * ALL / 2 + ALL + LOSS, 3 * 6 + 1]);
    }
    let whole = "bytes of whole parameters and gradients at once";
    let most = sharded
        .0
        .lines()
        .find_map(|line| line.split_once(whole)?.0.split(' ').rev().find_map(|word| word.parse::<u64>().ok()));
    assert!(most.is_some_and(|most| (2 * BLOCK..ALL).contains(&most)), "{most:?} in {}", sharded.0);
}

/// Two exchanges of activations a block each way; one more for the embedding forward, and the head backward. And three numbers for each
/// character in the loss.
fn tensor_parallelism_divides_layers(tensor: &Ended) {
    let [parameters, _, _, sent, calls] = tensor.held(1);
    let whole = (4 * 2 * F + 32 * F) * 4; // biases after the sums, and positions
    assert_eq!(parameters, (ALL - whole) / 2 + whole);
    assert_eq!([sent, calls], [(4 * 4 + 2) * ACTIVATIONS + 3 * 12 * 32 * 4, 4 * 4 + 2 + 2]);
}

fn a_pipeline_divides_blocks(pipeline: &Ended) {
    let [first, last] = [pipeline.held(0), pipeline.held(1)];
    assert_eq!(first[0] + last[0], ALL);
    assert_eq!(last[0], 2 * BLOCK + (96 * F + 96) * 4);
    for stage in [first, last] {
        assert_eq!([stage[3], stage[4]], [ACTIVATIONS + LOSS, 4 + 1]);
    }
    assert!(pipeline.0.contains("held activations of 2 micro-batches"), "{}", pipeline.0);
}

/// Of each block, half of the keys and values once round the ring forward and their gradients backward, which is as much as all activations.
fn context_parallelism_divides_sequences(context: &Ended, states: u64) {
    let predicted = Layout { context: 2, ..Layout::ONE }.ring_bytes(&MODEL);
    assert_eq!(predicted as u64, 2 * ACTIVATIONS);
    assert_eq!(context.held(1), [ALL, ALL, states, ALL + 4 * 2 * ACTIVATIONS + LOSS, 4 * 2 + 2]);
}

/// A quarter of the experts, which are twelve times the two layers, and all of the rest. The ranks pass each token that finds a place to its
/// expert and back, forward and backward, and numbers of tokens in eight bytes.
#[test]
fn each_rank_holds_its_experts_and_sends_what_finds_a_place() {
    const LAYERS: u64 = (8 * F * F + 5 * F) * 4;
    const ROUTER: u64 = 12 * F * 4;
    const REST: u64 = ALL - 4 * LAYERS + 4 * ROUTER;
    let ended = Ended::of(4, &["--scheme", "expert"]);
    let all = [0, 1, 2, 3].map(|rank| ended.held(rank));
    for [parameters, gradients, states, _, calls] in all {
        let held = REST + 4 * 3 * LAYERS;
        assert_eq!([parameters, gradients, states, calls], [held, held, 2 * held, 4 * 5 + 2]);
    }
    let placed = 4 * 12 * 32 - ended.dropped();
    let sent: u64 = all.iter().map(|[.., sent, _]| sent).sum();
    assert_eq!(sent, 4 * placed * F * 4 + 4 * (4 * 12 * 8 + REST + LOSS));
    // The model counts neither what stays on its rank, a quarter if all experts have as many tokens, nor dropped tokens.
    let experts = Experts { number: 12, parameters: (4 * 12 * LAYERS / 4) as f64 };
    let layout = Layout { data: 4, expert: 4, ..Layout::ONE };
    let predicted = 4.0 * 4.0 * layout.expert_bytes(&TransformerStep { experts: Some(experts), ..MODEL });
    assert_eq!(predicted as u64 * 4 / 3, 4 * (placed + ended.dropped()) * F * 4);
}

#[test]
fn each_rank_notes_its_bytes_by_kind_after_each_step() {
    let mut job = Job::new(lab());
    job.succeeds(2, &["--scheme", "sharded", "--steps", "2"]);
    for (rank, events) in job.events() {
        let sent: Vec<u64> = events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Memory { parameters, gradients, optimizer, buckets, sent, .. } => {
                    assert!(
                        *parameters > 0
                            && gradients == parameters
                            && *optimizer == 2 * parameters
                            && buckets > parameters
                    );
                    Some(*sent)
                }
                _ => None,
            })
            .collect();
        assert!(sent.len() == 2 && sent[0] < sent[1], "rank {rank}: {sent:?}");
    }
}

#[test]
fn reads_a_real_text() {
    let mut job = Job::new(lab());
    std::fs::write(job.path("text.txt"), "Ein Zug fährt durch die Nacht.\n".repeat(40)).unwrap();
    let ended = job.attempt(2, &["--steps", "6", "--data", "text.txt"]);
    assert!(ended.succeeded(), "{}", ended.stderr());
    let losses = Ended(ended.stdout()).losses();
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
}

#[test]
fn the_python_script_has_the_same_losses_in_each_scheme() {
    let Some(mut twin) = Job::in_python("lab 12 and its Python script") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/parallelism.py");
    for scheme in ["ddp", "zero", "sharded", "tensor", "pipeline", "context", "expert"] {
        let args = ["--double", "--steps", "3", "--scheme", scheme];
        let python = twin.succeeds(2, &[&[script], &args[..]].concat());
        let own = Job::new(lab()).succeeds(2, &args);
        assert_prints_alike(&own.stdout(), &python.stdout(), &[" loss "], 1e-9);
    }
}

#[test]
fn virtual_ranks_have_the_same_losses_on_any_number_of_ranks_and_are_refused_where_the_real_ranks_divide_the_model() {
    for scheme in ["ddp", "zero"] {
        let args = ["--scheme", scheme, "--virtual-ranks", "4"];
        let [one, two, three] = [1, 2, 3].map(|world| Ended::of(world, &args).0);
        let losses = |printed: &str| -> Vec<String> {
            printed.lines().filter(|line| line.starts_with("step ")).map(str::to_owned).collect()
        };
        assert_eq!(losses(&one).len(), STEPS);
        assert!(losses(&two) == losses(&one) && losses(&three) == losses(&one), "{one}{two}{three}");
    }
    for scheme in ["sharded", "tensor", "pipeline", "context", "expert", "threads"] {
        let ended = Job::new(lab()).attempt(1, &["--scheme", scheme, "--virtual-ranks", "4"]);
        let said = ended.stderr();
        assert!(
            !ended.succeeded() && said.contains("--virtual-ranks is for the schemes ddp and zero"),
            "{scheme}: {said}"
        );
        assert!(said.contains("leave out one of the two"), "{said}");
    }
}

#[test]
fn refuses_sizes_that_cannot_be_divided() {
    for (args, says) in [
        (&["--batch-size", "13"][..], "cannot be divided into 2 equal parts"),
        (&["--scheme", "pipeline", "--blocks", "1"], "2 stages need at least as many --blocks"),
        (&["--scheme", "threads"], "is one process"),
        (&["--scheme", "tensor", "--model", "resnet"], "its convolutions have no parts here"),
        (&["--scheme", "expert", "--recompute"], "the balancing loss would count no gradient"),
    ] {
        let ended = Job::new(lab()).attempt(2, args);
        assert!(!ended.succeeded() && ended.stderr().contains(says), "{args:?}: {}", ended.stderr());
    }
}

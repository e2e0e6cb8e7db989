//! A transformer's training step on a cluster for each way to divide it: copies of the data, parts of the layers, stages of a pipeline, parts of
//! the sequences, and experts.
//!
//! The model, for d copies, t parts of each layer, s stages and c parts of each sequence, V bytes of activations between two blocks for the
//! whole batch, and m micro-batches in each copy, so that a rank has M = V/(d·c·m) bytes of a micro-batch between two blocks:
//!
//! - A rank holds 16 bytes for each parameter that it has (single precision, Adam), and what its blocks keep for the backward pass, for as many
//!   micro-batches as 1F1B holds on the first stage: s, or m if that is less.
//! - A block has four all-reduces of M bytes for each micro-batch over t ranks, which do not overlap with computation
//!   (Shoeybi and others, "Megatron-LM", 2019).
//! - A pipeline takes (m + s − 1)/m times as long, and sends M bytes twice for each unit of that (Narayanan and others, "Efficient
//!   Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021).
//! - Ranks with parts of the same sequences (context) form a ring. In each block, keys and values pass the whole ring: each rank sends its
//!   neighbour c − 1 messages of 2·M/t bytes, as heads are divided, too. The backward pass sends as much, their gradients (Liu, Zaharia and
//!   Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023).
//! - Copies and the parts of their sequences, d·c ranks, average their gradients, 4 bytes for each parameter of a rank, in one all-reduce at
//!   the end.
//! - They can divide Adam's states, 8 of the 16 bytes: then a reduce-scatter of gradients and an all-gather of parameters move as much as
//!   that all-reduce. Or they divide all 16 bytes: for each micro-batch and block, they gather parameters in each of the two passes and
//!   reduce-scatter gradients, half as much again as an all-reduce (Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training
//!   Trillion Parameter Models", 2020, stages 1 and 3).
//! - Groups of e copies can divide the experts. A rank then has 1/e of their parameters, and d·c/e ranks have the same ones, which average
//!   these gradients, or divide what belongs to them. In each block, M bytes of tokens go to their experts and back in the forward pass, and
//!   so do their gradients in the backward pass: four all-to-alls, of which (e − 1)/e crosses to other ranks (Rajbhandari and others,
//!   "DeepSpeed-MoE: Advancing Mixture-of-Experts Inference and Training to Power Next-Generation AI Scale", 2022). Each token has one
//!   expert, and all experts have as many.
//!
//! Ranks are laid out with the parts of a layer next to each other, then the parts of a sequence, then the stages, then the copies. A group
//! whose ranks are on one node uses its links, any other the links between nodes. What it leaves out: overlap, the block that fully sharded
//! ranks have gathered, ranks that wait for each other's data, heads that share keys and values, and keys and values that a rank keeps from
//! the forward pass, or receives again in the backward pass.

use crate::Link;

/// Bytes for each parameter: itself, its gradient, and Adam's two means, in single precision.
const HELD: f64 = 16.0;
/// Of these, Adam's two means.
const STATES: f64 = 8.0;
const GRADIENT: f64 = 4.0;

/// Nodes of equal ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    pub nodes: usize,
    /// Ranks on each.
    pub per_node: usize,
    /// Bytes of memory that a rank has.
    pub memory: f64,
    /// Between ranks of one node.
    pub inside: Link,
    /// Between nodes.
    pub between: Link,
}

/// A transformer and its training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerStep {
    pub blocks: usize,
    /// Attention heads of a block.
    pub heads: usize,
    pub parameters: f64,
    /// Bytes of activations between two blocks, for the whole batch.
    pub activations: f64,
    /// Bytes of activations that a block keeps for its backward pass, for the whole batch.
    pub kept: f64,
    /// Seconds that the step takes on one rank, if it fits.
    pub compute: f64,
    /// Micro-batches into which each copy divides its share of the batch.
    pub micro_batches: usize,
    /// Sequences of the whole batch, if the file says how many: each micro-batch of each copy has as many, one at least.
    pub sequences: Option<usize>,
    /// If its blocks have experts.
    pub experts: Option<Experts>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// In a block.
    pub number: usize,
    /// In all blocks together; they count among the transformer's.
    pub parameters: f64,
}

/// How many ranks divide the batch, the layers, the blocks, the sequences and the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Copies, which divide the batch.
    pub data: usize,
    /// Parts of each layer.
    pub tensor: usize,
    /// Stages of a pipeline.
    pub pipeline: usize,
    /// Parts of each sequence.
    pub context: usize,
    /// Copies that divide the experts among them; the others hold the same again.
    pub expert: usize,
}

/// What ranks with the same parameters divide among them, besides the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    None,
    /// The optimizer's states: ZeRO, stage 1.
    States,
    /// Parameters, gradients and states: ZeRO, stage 3; FSDP.
    Full,
}

/// Seconds of a step on one rank, by what takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub compute: f64,
    /// All-reduces over the parts of each layer.
    pub parts: f64,
    /// Keys and values that go round a ring.
    pub context: f64,
    /// Tokens that go to their experts and back.
    pub experts: f64,
    /// Parameters that fully sharded ranks gather, and their gradients.
    pub gathers: f64,
    /// A stage waits for others.
    pub bubble: f64,
    /// Activations that go from stage to stage.
    pub stages: f64,
    /// The average over the copies at the end.
    pub gradients: f64,
}

impl Times {
    pub fn sum(&self) -> f64 {
        self.named().iter().map(|(_, seconds)| seconds).sum()
    }

    /// With a name for each.
    pub fn named(&self) -> [(&'static str, f64); 8] {
        let Times { compute, parts, context, experts, gathers, bubble, stages, gradients } = *self;
        [
            ("compute", compute),
            ("parts of layers", parts),
            ("ring", context),
            ("experts", experts),
            ("gathers", gathers),
            ("bubble", bubble),
            ("stages", stages),
            ("gradients", gradients),
        ]
    }
}

impl Cluster {
    pub fn ranks(&self) -> usize {
        self.nodes * self.per_node
    }

    /// The link of a group of `span` neighbouring ranks.
    fn link(&self, span: usize) -> Link {
        // Otherwise some group lies on two nodes, and the slowest group determines the time.
        let fits = span <= self.per_node && (self.nodes == 1 || self.per_node.is_multiple_of(span));
        if fits { self.inside } else { self.between }
    }
}

impl Layout {
    /// One rank that divides nothing.
    pub const ONE: Layout = Layout { data: 1, tensor: 1, pipeline: 1, context: 1, expert: 1 };

    /// All layouts of `ranks` ranks that divide neither sequences nor experts, ordered by copies, then by parts.
    pub fn all(ranks: usize) -> impl Iterator<Item = Layout> {
        divisors(ranks).flat_map(move |data| {
            divisors(ranks / data).map(move |tensor| Layout {
                data,
                tensor,
                pipeline: ranks / data / tensor,
                ..Layout::ONE
            })
        })
    }

    /// All layouts of `ranks` ranks that divide the job equally.
    pub fn of_job(ranks: usize, job: TransformerStep) -> impl Iterator<Item = Layout> {
        let experts = job.experts.map_or(1, |experts| experts.number);
        let contexts = divisors(ranks)
            .flat_map(move |context| Layout::all(ranks / context).map(move |layout| Layout { context, ..layout }));
        let all = contexts
            .flat_map(move |layout| (1..=experts.min(layout.data)).map(move |expert| Layout { expert, ..layout }));
        all.filter(move |layout| layout.divides(&job))
    }

    pub fn ranks(&self) -> usize {
        self.data * self.tensor * self.pipeline * self.context
    }

    /// Returns true if the heads can be divided into parts, the blocks into stages, and the sequences and the experts among copies, all of
    /// equal size.
    pub fn divides(&self, job: &TransformerStep) -> bool {
        let sequences = job.sequences.is_none_or(|number| number.is_multiple_of(self.data * job.micro_batches));
        let experts = job.experts.map_or(1, |experts| experts.number);
        let experts = experts.is_multiple_of(self.expert) && self.data.is_multiple_of(self.expert);
        job.heads.is_multiple_of(self.tensor) && job.blocks.is_multiple_of(self.pipeline) && sequences && experts
    }

    /// What its ranks with the same parameters can divide; a single one has nobody to divide with.
    pub fn shardings(&self) -> &'static [Sharding] {
        let several = self.data * self.context > 1;
        if several { &[Sharding::None, Sharding::States, Sharding::Full] } else { &[Sharding::None] }
    }

    /// Bytes that a rank of the first stage holds, if it shards nothing.
    pub fn memory(&self, job: &TransformerStep) -> f64 {
        self.memory_sharded(Sharding::None, job)
    }

    /// Bytes that a rank of the first stage holds.
    pub fn memory_sharded(&self, sharding: Sharding, job: &TransformerStep) -> f64 {
        let held = self.parameters(job).map(|(parameters, copies)| {
            let ranks = (copies * self.context) as f64;
            let each = match sharding {
                Sharding::None => HELD,
                Sharding::States => HELD - STATES + STATES / ranks,
                Sharding::Full => HELD / ranks,
            };
            each * parameters
        });
        let micro_batches = self.pipeline.min(job.micro_batches) as f64 / job.micro_batches as f64;
        held.sum::<f64>() + job.kept * job.blocks as f64 / self.ranks() as f64 * micro_batches
    }

    /// Seconds of a step, if nothing is sharded.
    pub fn step(&self, job: &TransformerStep, cluster: &Cluster) -> f64 {
        self.step_sharded(Sharding::None, job, cluster)
    }

    /// Seconds of a step.
    pub fn step_sharded(&self, sharding: Sharding, job: &TransformerStep, cluster: &Cluster) -> f64 {
        self.times(sharding, job, cluster).sum()
    }

    /// Seconds of a step, by what takes them.
    pub fn times(&self, sharding: Sharding, job: &TransformerStep, cluster: &Cluster) -> Times {
        let (blocks, micro) = (job.blocks as f64 / self.pipeline as f64, job.micro_batches as f64);
        let message = self.message(job);
        // Of a block for each micro-batch.
        let parts = 4.0 * cluster.link(self.tensor).all_reduce(self.tensor, message);
        let ring = cluster.link(self.tensor * self.context);
        let ring = ring.send(2 * (self.context - 1), self.ring_bytes(job));
        let experts = cluster.link(self.ranks() / self.data * self.expert);
        let experts = experts.send(4 * (self.expert - 1), self.expert_bytes(job));
        let (gathers, gradients) = self.sums(sharding, job, cluster);

        let turns = micro + self.pipeline as f64 - 1.0;
        let stages = if self.pipeline > 1 {
            let link = cluster.link(self.ranks() / self.data);
            2.0 * turns * link.send(1, message)
        } else {
            0.0
        };
        let of_blocks = |each: f64| blocks * micro * each;
        let busy = [
            job.compute / self.ranks() as f64,
            of_blocks(parts),
            of_blocks(ring),
            of_blocks(experts),
            of_blocks(gathers),
        ];
        let bubble = busy.iter().sum::<f64>() * (self.pipeline as f64 - 1.0) / micro;
        let [compute, parts, context, experts, gathers] = busy;
        Times { compute, parts, context, experts, gathers, bubble, stages, gradients }
    }

    /// Bytes that a rank sends round its ring in each block for each micro-batch: keys and values forward, their gradients backward.
    pub fn ring_bytes(&self, job: &TransformerStep) -> f64 {
        2.0 * (self.context - 1) as f64 * 2.0 * self.message(job) / self.tensor as f64
    }

    /// Bytes that a rank sends to experts on other ranks, and back from its own, in each block for each micro-batch, in both passes.
    pub fn expert_bytes(&self, job: &TransformerStep) -> f64 {
        4.0 * self.message(job) * (self.expert - 1) as f64 / self.expert as f64
    }

    /// Bytes of a rank's activations between two blocks, of a micro-batch.
    fn message(&self, job: &TransformerStep) -> f64 {
        job.activations / (self.data * self.context * job.micro_batches) as f64
    }

    /// A rank's parameters, and how many copies have the same; the parameters of divided experts apart.
    fn parameters(&self, job: &TransformerStep) -> impl Iterator<Item = (f64, usize)> {
        let parts = (self.tensor * self.pipeline) as f64;
        let experts = job.experts.filter(|_| self.expert > 1).map(|experts| experts.parameters);
        let divided = experts.map(|experts| (experts / parts / self.expert as f64, self.data / self.expert));
        [((job.parameters - experts.unwrap_or(0.0)) / parts, self.data)].into_iter().chain(divided)
    }

    /// Seconds of collectives for parameters and gradients: in a block for each micro-batch, and at the end.
    fn sums(&self, sharding: Sharding, job: &TransformerStep, cluster: &Cluster) -> (f64, f64) {
        let blocks = job.blocks as f64 / self.pipeline as f64;
        let all_reduces = |part: f64| -> f64 {
            let of = |(parameters, copies): (f64, usize)| {
                let span = if copies == 1 { self.tensor * self.context } else { self.ranks() };
                cluster.link(span).all_reduce(copies * self.context, GRADIENT * parameters * part)
            };
            self.parameters(job).map(of).sum()
        };
        match sharding {
            Sharding::None | Sharding::States => (0.0, all_reduces(1.0)),
            // Two all-gathers and a reduce-scatter, each half an all-reduce: a parameter has as many bytes as its gradient.
            Sharding::Full => (1.5 * all_reduces(1.0 / blocks), 0.0),
        }
    }
}

fn divisors(of: usize) -> impl Iterator<Item = usize> {
    (1..=of).filter(move |number| of.is_multiple_of(*number))
}

impl Link {
    /// Seconds of messages that have so many bytes together, one after the other.
    fn send(&self, messages: usize, bytes: f64) -> f64 {
        messages as f64 * self.latency + bytes / self.bandwidth
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterFile;

    const FAST: Link = Link { latency: 0.0, bandwidth: 100e9 };
    const SLOW: Link = Link { latency: 0.0, bandwidth: 1e9 };
    const CLUSTER: Cluster = Cluster { nodes: 2, per_node: 2, memory: 40e9, inside: FAST, between: SLOW };
    const JOB: TransformerStep = TransformerStep {
        blocks: 10,
        heads: 12,
        parameters: 1e9,
        activations: 1e9,
        kept: 4e9,
        compute: 4.0,
        micro_batches: 4,
        sequences: None,
        experts: None,
    };

    fn layout(data: usize, tensor: usize, pipeline: usize) -> Layout {
        Layout { data, tensor, pipeline, ..Layout::ONE }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected, "{found}, not {expected}");
    }

    /// 16 GB for the parameters, and 10 blocks that keep 4 GB for all rows.
    #[test]
    fn a_rank_holds_its_parameters_and_what_its_blocks_keep() {
        close(layout(1, 1, 1).memory(&JOB), 16e9 + 10e9); // of one micro-batch
        close(layout(4, 1, 1).memory(&JOB), 16e9 + 2.5e9);
        close(layout(1, 4, 1).memory(&JOB), 4e9 + 2.5e9);
        close(layout(1, 1, 2).memory(&JOB), 8e9 + 10e9); // half of the blocks, of two micro-batches
        close(layout(1, 1, 8).memory(&JOB), 2e9 + 5e9); // never more than all four
    }

    #[test]
    fn copies_wait_for_their_gradients_over_the_slowest_link() {
        // 2 · 3/4 · 4 GB at 1 GB/s.
        close(layout(4, 1, 1).step(&JOB, &CLUSTER), 1.0 + 6.0);
        let one_node = Cluster { nodes: 1, per_node: 4, ..CLUSTER };
        close(layout(4, 1, 1).step(&JOB, &one_node), 1.0 + 0.06);
    }

    #[test]
    fn parts_of_a_layer_exchange_activations_four_times_a_block() {
        // 10 blocks · 4 all-reduces of 1 GB: on two neighbours half of it each way.
        close(layout(1, 2, 1).step(&JOB, &CLUSTER), 2.0 + 0.4);
        // On four ranks over the network, 1.5 GB each.
        close(layout(1, 4, 1).step(&JOB, &CLUSTER), 1.0 + 60.0);
    }

    #[test]
    fn stages_wait_for_each_other_and_send_little() {
        // (4 + 3) / 4 of 1 s, and 2 · 7 messages of 0.25 GB.
        close(layout(1, 1, 4).step(&JOB, &CLUSTER), 1.75 + 3.5);
        close(layout(1, 1, 2).step(&JOB, &CLUSTER), 2.0 * 1.25 + 10.0 * 0.0025);
    }

    /// Of 16 GB for the parameters, 8 GB are Adam's states; blocks keep as much as before.
    #[test]
    fn copies_hold_less_of_what_they_divide() {
        close(layout(4, 1, 1).memory_sharded(Sharding::None, &JOB), 16e9 + 2.5e9);
        close(layout(4, 1, 1).memory_sharded(Sharding::States, &JOB), 8e9 + 2e9 + 2.5e9);
        close(layout(4, 1, 1).memory_sharded(Sharding::Full, &JOB), 4e9 + 2.5e9);
        close(layout(2, 2, 1).memory_sharded(Sharding::States, &JOB), 4e9 + 2e9 + 2.5e9);
    }

    #[test]
    fn divided_states_move_as_much_as_whole_copies() {
        for layout in Layout::all(4) {
            close(layout.step_sharded(Sharding::States, &JOB, &CLUSTER), layout.step(&JOB, &CLUSTER));
        }
    }

    #[test]
    fn fully_sharded_copies_gather_in_each_pass_of_each_micro_batch() {
        // 3 · 3/4 · 4 GB at 1 GB/s, once and for each of four micro-batches.
        let once = TransformerStep { micro_batches: 1, ..JOB };
        close(layout(4, 1, 1).step_sharded(Sharding::Full, &once, &CLUSTER), 1.0 + 9.0);
        close(layout(4, 1, 1).step_sharded(Sharding::Full, &JOB, &CLUSTER), 1.0 + 4.0 * 9.0);
        // Two stages of half the parameters, on two copies: 3 · 1/2 · 2 GB in each of five turns, and 2 · 5 messages of 0.125 GB.
        close(layout(2, 1, 2).step_sharded(Sharding::Full, &JOB, &CLUSTER), 1.25 + 5.0 * 3.0 + 0.0125);
        // Three collectives of each of 10 blocks, with three messages each.
        let late = Cluster { between: Link { latency: 1e-3, ..SLOW }, ..CLUSTER };
        close(layout(4, 1, 1).step_sharded(Sharding::Full, &once, &late), 1.0 + 9.0 + 0.09);
    }

    fn context(layout: Layout, context: usize) -> Layout {
        Layout { context, ..layout }
    }

    #[test]
    fn parts_of_a_sequence_keep_less_and_have_all_parameters() {
        let four = context(Layout::ONE, 4);
        close(four.memory(&JOB), 16e9 + 2.5e9);
        close(four.memory_sharded(Sharding::States, &JOB), 8e9 + 2e9 + 2.5e9);
        close(four.memory_sharded(Sharding::Full, &JOB), 4e9 + 2.5e9);
        close(context(layout(2, 1, 1), 2).memory_sharded(Sharding::States, &JOB), 8e9 + 2e9 + 2.5e9);
    }

    #[test]
    fn keys_and_values_pass_the_ring_in_each_pass_of_each_micro_batch() {
        // Of 10 blocks and 4 micro-batches, 3 messages of 2 · 62.5 MB each way; then 2 · 3/4 · 4 GB of gradients.
        let four = context(Layout::ONE, 4);
        close(four.ring_bytes(&JOB), 0.75e9);
        close(four.step(&JOB, &CLUSTER), 1.0 + 30.0 + 6.0);
        // Six messages each of 40 times, and six of the gradients.
        let late = Cluster { between: Link { latency: 1e-3, ..SLOW }, ..CLUSTER };
        close(four.step(&JOB, &late), 1.0 + 30.0 + 6.0 + 0.24 + 0.006);
        // Two neighbours, with a message of 250 MB each way, and half of 4 GB twice, at 100 GB/s.
        close(context(Layout::ONE, 2).step(&JOB, &CLUSTER), 2.0 + 0.2 + 0.04);
        // With half of the heads, half of the message, over the network; four all-reduces of 125 MB within the node; 2 GB of gradients.
        let both = context(layout(1, 2, 1), 2);
        close(both.ring_bytes(&JOB), 0.25e9);
        close(both.step(&JOB, &CLUSTER), 1.0 + 10.0 + 0.2 + 2.0);
        // Five turns of two stages on different nodes, 125 MB twice in each; the rings stay within nodes, with 250 MB each way.
        close(context(layout(1, 1, 2), 2).step(&JOB, &CLUSTER), 1.25 + 5.0 * 5.0 * 0.005 + 10.0 * 0.125 + 0.02);
        // Fully sharded, as four copies do it.
        close(four.step_sharded(Sharding::Full, &JOB, &CLUSTER), 1.0 + 30.0 + 4.0 * 9.0);
    }

    /// Four ranks of one node send, for V bytes of activations and P parameters: copies 6 P bytes, parts of a layer 60 V, parts of a sequence
    /// 6 P + 30 V, and two parts of each 2 P + 30 V. Stages wait for each other.
    #[test]
    fn long_sequences_are_divided_and_short_ones_are_not() {
        let node = Cluster { nodes: 1, per_node: 4, memory: 1e12, ..CLUSTER };
        let best = |sequences: usize, activations: f64| {
            let job = TransformerStep { sequences: Some(sequences), activations, compute: 400.0, ..JOB };
            let of_job = Layout::of_job(4, job);
            of_job.min_by(|one, other| one.step(&job, &node).total_cmp(&other.step(&job, &node))).unwrap()
        };
        // As many numbers in fewer sequences: four micro-batches of one sequence allow a single copy.
        assert_eq!(best(16, 1e9), layout(4, 1, 1));
        assert_eq!(best(4, 1e9), context(layout(1, 2, 1), 2));
        // Few activations for so many parameters: 60 V is less than 2 P + 30 V.
        assert_eq!(best(4, 0.05e9), layout(1, 4, 1));
    }

    const EXPERTS: TransformerStep = TransformerStep { experts: Some(Experts { number: 8, parameters: 0.8e9 }), ..JOB };

    fn expert(expert: usize) -> Layout {
        Layout { expert, ..layout(4, 1, 1) }
    }

    /// Of 1 GB for each byte of a parameter, 0.2 GB do not belong to experts.
    #[test]
    fn a_rank_holds_its_part_of_the_experts() {
        close(expert(1).memory(&EXPERTS), 16e9 + 2.5e9);
        close(expert(2).memory(&EXPERTS), 3.2e9 + 6.4e9 + 2.5e9);
        close(expert(4).memory(&EXPERTS), 3.2e9 + 3.2e9 + 2.5e9);
        // Four ranks divide 8 of the 16 bytes of the rest, and two ranks those of the same experts; a single one divides nothing.
        close(expert(2).memory_sharded(Sharding::States, &EXPERTS), 2e9 + 4.8e9 + 2.5e9);
        close(expert(4).memory_sharded(Sharding::States, &EXPERTS), 2e9 + 3.2e9 + 2.5e9);
        close(expert(2).memory_sharded(Sharding::Full, &EXPERTS), 0.8e9 + 3.2e9 + 2.5e9);
        close(expert(4).memory_sharded(Sharding::Full, &EXPERTS), 0.8e9 + 3.2e9 + 2.5e9);
    }

    #[test]
    fn tokens_cross_to_their_experts_and_back_in_each_pass() {
        // Of 62.5 MB, three quarters four times, in 10 blocks for 4 micro-batches; and gradients of all but the experts.
        close(expert(4).expert_bytes(&EXPERTS), 187.5e6);
        close(expert(4).step(&EXPERTS, &CLUSTER), 1.0 + 7.5 + 1.2);
        // Half of it, between neighbours; two copies of each expert average gradients of 1.6 GB over the network.
        close(expert(2).step(&EXPERTS, &CLUSTER), 1.0 + 0.05 + 1.2 + 1.6);
        close(expert(1).step(&EXPERTS, &CLUSTER), expert(1).step(&JOB, &CLUSTER));
        // Four times three messages, 40 times; and six of the gradients.
        let late = Cluster { between: Link { latency: 1e-3, ..SLOW }, ..CLUSTER };
        close(expert(4).step(&EXPERTS, &late), 1.0 + 7.5 + 1.2 + 0.48 + 0.006);
        // In each of four micro-batches, 3 · 3/4 · 0.8 GB, and 3 · 1/2 · 1.6 GB.
        close(expert(2).step_sharded(Sharding::Full, &EXPERTS, &CLUSTER), 1.0 + 0.05 + 4.0 * (1.8 + 2.4));
    }

    #[test]
    fn a_single_copy_divides_nothing() {
        assert_eq!(layout(1, 2, 2).shardings(), [Sharding::None]);
        assert_eq!(context(Layout::ONE, 2).shardings(), [Sharding::None, Sharding::States, Sharding::Full]);
        assert_eq!(layout(2, 2, 1).shardings(), [Sharding::None, Sharding::States, Sharding::Full]);
    }

    #[test]
    fn every_layout_takes_all_ranks_once() {
        let of_4: Vec<_> = Layout::all(4).map(|layout| (layout.data, layout.tensor, layout.pipeline)).collect();
        assert_eq!(of_4, [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]);
        assert_eq!(Layout::all(12).filter(|layout| layout.ranks() == 12).count(), 18);
    }

    #[test]
    fn heads_and_blocks_are_divided_equally() {
        assert!(layout(1, 4, 5).divides(&JOB));
        assert!(!layout(1, 8, 1).divides(&JOB) && !layout(1, 1, 4).divides(&JOB));
        // Four micro-batches of each copy.
        let few = TransformerStep { sequences: Some(24), ..JOB };
        assert!(layout(2, 1, 1).divides(&few) && layout(3, 1, 1).divides(&few) && !layout(4, 1, 1).divides(&few));
        let six = Layout { expert: 3, ..layout(6, 1, 1) };
        assert!(Layout { expert: 2, ..six }.divides(&EXPERTS) && !six.divides(&EXPERTS));
        assert!(!Layout { expert: 4, ..six }.divides(&EXPERTS) && !Layout { expert: 2, ..six }.divides(&JOB));
    }

    #[test]
    fn layouts_of_a_job_are_those_of_copies_parts_and_stages_and_more() {
        let plain = |layout: &Layout| *layout == Layout { context: 1, expert: 1, ..*layout };
        let found: Vec<_> = Layout::of_job(12, EXPERTS).collect();
        let expected: Vec<_> = Layout::all(12).filter(|layout| layout.divides(&JOB)).collect();
        assert_eq!(found.iter().copied().filter(plain).collect::<Vec<_>>(), expected);
        assert!(found.iter().all(|layout| layout.ranks() == 12 && layout.divides(&EXPERTS)));
        let [context, expert] = [|layout: &&Layout| layout.context > 1, |layout: &&Layout| layout.expert > 1];
        assert!(found.iter().any(|layout| context(&layout) && expert(&layout)));
        assert!(Layout::of_job(12, JOB).all(|layout| layout.expert == 1));
    }

    /// As the model had it when it knew neither contexts nor experts, to three digits: GiB, and seconds.
    #[test]
    fn layouts_that_divide_neither_sequences_nor_experts_cost_what_they_did() {
        let ClusterFile { job, cluster } = ClusterFile::parse(EXAMPLE).unwrap();
        for ([data, tensor, pipeline], sharding, memory, step) in [
            ([2, 4, 4], Sharding::None, 13.7, 2.97),
            ([1, 8, 4], Sharding::None, 7.63, 3.16),
            ([4, 1, 8], Sharding::None, 27.4, 3.68),
            ([8, 2, 2], Sharding::States, 28.0, 4.35),
            ([16, 1, 2], Sharding::Full, 6.84, 127.0),
            ([32, 1, 1], Sharding::Full, 6.45, 245.0),
        ] {
            let layout = layout(data, tensor, pipeline);
            let found = (
                layout.memory_sharded(sharding, &job) / 2.0_f64.powi(30),
                layout.step_sharded(sharding, &job, &cluster),
            );
            assert!(
                (found.0 / memory - 1.0).abs() < 5e-3 && (found.1 / step - 1.0).abs() < 5e-3,
                "{layout:?}: {found:?}"
            );
        }
    }

    const EXAMPLE: &str = include_str!("../../../labs/12-parallelism/cluster.toml");
}

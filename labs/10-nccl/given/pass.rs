//! A backward pass of several layers whose gradients are to be averaged while it runs. You do not change this file.
//!
//! There are two streams: kernels run on one, collectives on the other. Each method puts work into a stream and returns; none waits for
//! it. Kernels are short here. On a GPU the backward pass of a layer takes as long as many kernels.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use anyhow::Result;
use lockstep_gpu::{Buffer, Comm, Event, Reduction, Stream, host_waits};
use serde::Serialize;

use crate::tasks::GpuRank;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The stream of the kernels.
    Compute,
    /// The stream of the collectives.
    Communication,
}

/// The pass that you give work to.
pub struct Pass {
    // First, so that it is aborted before buffers wait for the device.
    comm: Comm,
    layers: Vec<Layer>,
    compute: Stream,
    communication: Stream,
    /// The work that each stream comes after.
    after: [RefCell<BTreeSet<Work>>; 2],
    exposed: Cell<bool>,
    unready: RefCell<Vec<usize>>,
    unaveraged: RefCell<Vec<usize>>,
    /// The last backward pass, and the backward passes that each all-reduce came after.
    last: Cell<Option<usize>>,
    reduced: RefCell<Vec<(usize, BTreeSet<Work>)>>,
    waits: u64,
}

struct Layer {
    gradient: Buffer,
    /// What the backward pass adds to the gradient.
    part: Buffer,
    weight: Buffer,
}

/// Work of a layer that others can come after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Backward(usize),
    AllReduce(usize),
}

/// A point in one of the two streams.
pub struct StreamPoint {
    event: Event,
    after: BTreeSet<Work>,
}

/// What the grader sees.
#[derive(Serialize)]
pub struct Seen {
    weights: Vec<f32>,
    /// The layers whose all-reduce nothing orders after their backward pass.
    unready: Vec<usize>,
    /// The layers whose optimizer's step nothing orders after their all-reduce.
    unaveraged: Vec<usize>,
    /// A layer's backward pass had to wait for an all-reduce.
    exposed: bool,
    /// The layers whose all-reduce came after the last backward pass, without the one of that pass.
    late: Vec<usize>,
    /// How often the host waited.
    waits: u64,
}

impl Pass {
    /// A pass of layers with these gradients before it, and these parts that it adds.
    pub fn new(job: &GpuRank, name: &str, layers: &[(f32, f32)]) -> Result<Self> {
        let comm = job.comm(name)?;
        let (compute, communication) = (job.gpu.stream()?, job.gpu.stream()?);
        let layer = |(before, part): &(f32, f32)| -> Result<Layer> {
            let all = |number: f32| compute.upload(&[number; 64]);
            Ok(Layer { gradient: all(*before)?, part: all(*part)?, weight: all(0.0)? })
        };
        let layers = layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(Pass {
            comm,
            layers,
            compute,
            communication,
            after: Default::default(),
            exposed: Cell::default(),
            unready: RefCell::default(),
            unaveraged: RefCell::default(),
            last: Cell::default(),
            reduced: RefCell::default(),
            waits: host_waits(),
        })
    }

    /// The layers, in the order of the backward pass.
    pub fn layers(&self) -> std::ops::Range<usize> {
        0..self.layers.len()
    }

    /// Puts the backward pass of a layer into the compute stream: a kernel that adds to its gradient.
    pub fn backward(&self, layer: usize) -> Result<()> {
        let mut after = self.set(Side::Compute).borrow_mut();
        if after.iter().any(|work| matches!(work, Work::AllReduce(_))) {
            self.exposed.set(true);
        }
        after.insert(Work::Backward(layer));
        self.last.set(Some(layer));
        let Layer { gradient, part, .. } = &self.layers[layer];
        Ok(self.compute.add(gradient, part)?)
    }

    /// Puts the all-reduce of a layer's gradient into the communication stream.
    pub fn all_reduce(&self, layer: usize) -> Result<()> {
        self.comm.all_reduce(&self.layers[layer].gradient, Reduction::Avg, &self.communication)?;
        let mut after = self.set(Side::Communication).borrow_mut();
        if !after.contains(&Work::Backward(layer)) {
            self.unready.borrow_mut().push(layer);
        }
        self.reduced.borrow_mut().push((layer, after.clone()));
        after.insert(Work::AllReduce(layer));
        Ok(())
    }

    /// Puts the optimizer's step for a layer into the compute stream: a kernel that adds the gradient to the weight.
    pub fn optimizer(&self, layer: usize) -> Result<()> {
        if !self.set(Side::Compute).borrow().contains(&Work::AllReduce(layer)) {
            self.unaveraged.borrow_mut().push(layer);
        }
        let Layer { gradient, weight, .. } = &self.layers[layer];
        Ok(self.compute.add(weight, gradient)?)
    }

    /// Records an event after all work that a stream has so far.
    pub fn record(&self, side: Side) -> Result<StreamPoint> {
        Ok(StreamPoint { event: self.stream(side).record()?, after: self.set(side).borrow().clone() })
    }

    /// Makes later work of a stream wait for the event at a point.
    pub fn wait(&self, side: Side, point: &StreamPoint) -> Result<()> {
        self.set(side).borrow_mut().extend(&point.after);
        Ok(self.stream(side).wait(&point.event)?)
    }

    /// Makes the host wait for all work of a stream.
    pub fn synchronize(&self, side: Side) -> Result<()> {
        let done = self.set(side).borrow().clone();
        self.after.iter().for_each(|after| after.borrow_mut().extend(&done));
        Ok(self.stream(side).synchronize()?)
    }

    /// Ends the pass. The simulated device starts what is asked for, so the stream that is asked first is ahead of the other.
    pub fn end(self, first: Side) -> Result<Seen> {
        let waits = host_waits() - self.waits;
        self.stream(first).synchronize()?;
        let weight = |layer: &Layer| Ok(self.compute.download(&layer.weight)?[0]);
        let weights = self.layers.iter().map(weight).collect::<Result<_>>()?;
        // The other ranks may still need this one's part.
        self.communication.synchronize()?;
        let (exposed, late) = (self.exposed.get(), self.late());
        let (unready, unaveraged) = (self.unready.take(), self.unaveraged.take());
        Ok(Seen { weights, unready, unaveraged, exposed, late, waits })
    }

    fn late(&self) -> Vec<usize> {
        let Some(last) = self.last.get() else { return Vec::new() };
        let is_late =
            |(layer, after): &&(usize, BTreeSet<Work>)| *layer != last && after.contains(&Work::Backward(last));
        self.reduced.borrow().iter().filter(is_late).map(|(layer, _)| *layer).collect()
    }

    fn stream(&self, side: Side) -> &Stream {
        if side == Side::Compute { &self.compute } else { &self.communication }
    }

    fn set(&self, side: Side) -> &RefCell<BTreeSet<Work>> {
        &self.after[side as usize]
    }
}

//! What DDP reports about itself: its options, its buckets, and how long the parts of a step took.

use std::collections::BTreeMap;
use std::str::FromStr;

use c10d::Result;
use serde::{Deserialize, Serialize};
use tch::Kind;

use super::DistributedDataParallel;

/// The logging data of a model; names and meanings are those of `_get_ddp_logging_data()` in Python. It leaves out what a program
/// with one device per rank does not need (`device_ids`, `output_device`, `is_multi_device_module`, `has_sync_bn`), and the
/// environment.
///
/// Bytes are counted, times are nanoseconds. c10d measures the first ten steps and then every hundredth; a step's times appear
/// after the next forward pass has begun. Averages are over the measured steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DdpLoggingData {
    /// The type of the model, without its path.
    pub module_name: String,
    pub world_size: usize,
    pub rank: usize,
    /// Python's name, or `shm` for shared memory.
    pub backend_name: String,
    /// The parameters' types, by their names in C++, with commas.
    pub dtypes: String,
    pub num_parameter_tensors: usize,
    pub total_parameter_size_bytes: u64,
    pub bucket_cap_bytes: u64,
    pub broadcast_buffers: bool,
    pub find_unused_parameters: bool,
    pub gradient_as_bucket_view: bool,
    pub static_graph: bool,
    /// As Python prints it; empty for none.
    pub comm_hook: String,
    /// [`join`](DistributedDataParallel::join) has been called.
    pub join_uneven_inputs: bool,
    /// The buckets of the first step.
    pub bucket_sizes: Vec<u64>,
    /// The last step whose beginning was measured, from 1; 0 before that.
    pub iteration: u64,
    pub has_rebuilt_buckets: bool,
    pub rebuilt_bucket_sizes: Vec<u64>,
    /// Positions of the parameters, in the order of their definition.
    pub rebuilt_per_bucket_param_indices: Vec<Vec<usize>>,
    /// The order in which gradients came.
    pub prev_iteration_grad_ready_order_indices: Vec<usize>,
    /// Total bytes of the parameters that the measured steps did not use.
    pub unused_parameter_size: u64,
    pub forward_compute_time: u64,
    pub backward_compute_time: u64,
    /// From the start of the first bucket's all-reduce to the end of the last one's.
    pub backward_comm_time: u64,
    /// From the start of the first bucket's all-reduce to the end of the computation.
    pub backward_compute_comm_overlap_time: u64,
    pub avg_forward_compute_time: u64,
    pub avg_backward_compute_time: u64,
    pub avg_backward_comm_time: u64,
    pub avg_backward_compute_comm_overlap_time: u64,
}

impl<M> DistributedDataParallel<M> {
    /// The options, buckets and times of this model.
    pub fn logging_data(&self) -> Result<DdpLoggingData> {
        let noted = Noted(self.reducer.logging_data()?);
        let bytes = |tensor: &tch::Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        let mut dtypes: Vec<&str> = self.params.iter().map(|param| name_in_cpp(param.kind())).collect();
        dtypes.sort_unstable();
        dtypes.dedup();
        Ok(DdpLoggingData {
            module_name: short_name(std::any::type_name::<M>()),
            world_size: self.group.size().get(),
            rank: self.group.rank().get(),
            backend_name: self.group.backend().name().to_owned(),
            dtypes: dtypes.join(", "),
            num_parameter_tensors: self.params.len(),
            total_parameter_size_bytes: self.params.iter().map(bytes).sum(),
            bucket_cap_bytes: self.options.reducer().bucket_bytes_cap as u64,
            broadcast_buffers: self.options.broadcast_buffers,
            find_unused_parameters: self.options.find_unused_parameters,
            gradient_as_bucket_view: self.options.gradient_as_bucket_view,
            static_graph: self.options.static_graph,
            comm_hook: noted.text("comm_hook").to_owned(),
            join_uneven_inputs: noted.flag("join_uneven_inputs"),
            bucket_sizes: noted.list("bucket_sizes"),
            iteration: noted.number("iteration"),
            has_rebuilt_buckets: noted.flag("has_rebuilt_buckets"),
            rebuilt_bucket_sizes: noted.list("rebuilt_bucket_sizes"),
            rebuilt_per_bucket_param_indices: noted.lists("rebuilt_per_bucket_param_indices"),
            prev_iteration_grad_ready_order_indices: noted.list("prev_iteration_grad_ready_order_indices"),
            unused_parameter_size: noted.number("unused_parameter_size"),
            forward_compute_time: noted.number("forward_compute_time"),
            backward_compute_time: noted.number("backward_compute_time"),
            backward_comm_time: noted.number("backward_comm_time"),
            backward_compute_comm_overlap_time: noted.number("backward_compute_comm_overlap_time"),
            avg_forward_compute_time: noted.number("avg_forward_compute_time"),
            avg_backward_compute_time: noted.number("avg_backward_compute_time"),
            avg_backward_comm_time: noted.number("avg_backward_comm_time"),
            avg_backward_compute_comm_overlap_time: noted.number("avg_backward_compute_comm_overlap_time"),
        })
    }
}

/// The facts of c10d's logger. It leaves out what it does not know yet.
struct Noted(BTreeMap<String, String>);

impl Noted {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    fn flag(&self, name: &str) -> bool {
        self.number(name) != 0
    }

    fn list<T: FromStr>(&self, name: &str) -> Vec<T> {
        self.text(name).split(", ").filter_map(|item| item.parse().ok()).collect()
    }

    /// Commas between lists, spaces inside them.
    fn lists(&self, name: &str) -> Vec<Vec<usize>> {
        let lists = self.text(name).split(", ").filter(|list| !list.is_empty());
        lists.map(|list| list.split(' ').filter_map(|item| item.parse().ok()).collect()).collect()
    }
}

/// The last part of a type's path, without its parameters.
fn short_name(path: &str) -> String {
    let path = path.split('<').next().unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

/// As `caffe2::TypeMeta` prints it.
fn name_in_cpp(kind: Kind) -> &'static str {
    match kind {
        Kind::Float => "float",
        Kind::Double => "double",
        Kind::Half => "c10::Half",
        Kind::BFloat16 => "c10::BFloat16",
        Kind::ComplexFloat => "c10::complex<float>",
        Kind::ComplexDouble => "c10::complex<double>",
        _ => "another type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_and_leaves_out_what_is_not_noted() {
        let facts = [("sizes", "8, 120"), ("indices", "1 0, 2"), ("iteration", "3"), ("none", "")];
        let noted = Noted(facts.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        assert_eq!(noted.list::<u64>("sizes"), [8, 120]);
        assert_eq!(noted.lists("indices"), [vec![1, 0], vec![2]]);
        assert_eq!((noted.number("iteration"), noted.number("absent")), (3, 0));
        assert!(noted.list::<u64>("none").is_empty() && noted.lists("none").is_empty());
    }

    #[test]
    fn a_model_has_the_name_of_its_type() {
        assert_eq!(short_name("alloc::vec::Vec<tch::nn::linear::Linear>"), "Vec");
        assert_eq!(short_name("tch::nn::sequential::Sequential"), "Sequential");
    }
}

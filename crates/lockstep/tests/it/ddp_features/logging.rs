//! What DDP's logging data say: what Python's do, and the times of a step.

use std::collections::{BTreeMap, BTreeSet};

use c10d::Backend;
use lockstep::DdpLoggingData;
use serde_json::{Value, json};

use super::{BACKENDS, STEPS, golden, run};
use crate::common::ranks_on;

#[test]
fn the_logging_data_say_what_pythons_say() {
    for (name, python) in golden().runs {
        for backend in BACKENDS {
            let found = ranks_on(backend, 2, |group| run(&name, group));
            for ((_, start, end), python) in found.iter().zip(&python) {
                for (ours, theirs) in [(start, &python.logged_at_the_start), (end, &python.logged_at_the_end)] {
                    compare(&name, backend, ours, theirs);
                }
            }
        }
    }
}

/// Python leaves out what it does not know yet, has 0 and 1 for booleans, and text for lists.
fn compare(name: &str, backend: Backend, ours: &DdpLoggingData, theirs: &BTreeMap<String, Value>) {
    let Value::Object(ours) = serde_json::to_value(ours).unwrap() else { panic!("a struct is an object") };
    for (fact, theirs) in theirs {
        let ours = match &ours[fact] {
            Value::Bool(flag) => json!(i64::from(*flag)),
            Value::Array(items) => json!(items.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")),
            other => other.clone(),
        };
        let theirs = match (fact.as_str(), backend) {
            ("backend_name", Backend::SharedMemory) => &json!("shm"), // Python has none
            _ => theirs,
        };
        assert_eq!(&ours, theirs, "{fact} of {name} on {}", backend.name());
    }
}

#[test]
fn the_logging_data_have_the_times_of_a_step() {
    for (_, start, end) in ranks_on(Backend::SharedMemory, 2, |group| run("plain", group)) {
        assert_eq!((start.iteration, start.forward_compute_time, start.avg_backward_comm_time), (0, 0, 0));
        assert!(start.rebuilt_bucket_sizes.is_empty() && !start.has_rebuilt_buckets);
        // The last forward pass noted the step before it.
        assert_eq!(end.iteration, STEPS as u64 - 1);
        for time in [end.forward_compute_time, end.backward_compute_time, end.backward_comm_time] {
            assert!(time > 0, "{end:?}");
        }
        assert!(end.avg_backward_compute_comm_overlap_time <= end.avg_backward_compute_time, "{end:?}");
        assert_eq!(end.module_name, "Sequential");
        let order = &end.prev_iteration_grad_ready_order_indices;
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..4).collect());
        assert_eq!(end.rebuilt_per_bucket_param_indices.concat().len(), 4);
        let read: DdpLoggingData = serde_json::from_str(&serde_json::to_string(&end).unwrap()).unwrap();
        assert_eq!(read, end);
    }
}

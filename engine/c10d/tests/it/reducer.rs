//! The reducer on plain tensors: gradients of a function with a known derivative, on ranks with different inputs.

use std::rc::Rc;

use crate::common::{on_each_backend, rank, ranks, refused};
use c10d::{
    CommHook, ErrorKind, ProcessGroup, Reducer, ReducerOptions, broadcast_coalesced, bucket_assignment, clear_grad,
    verify_params,
};
use tch::{Kind, Tensor};

/// Three parameters, 4 + 8 + 16 elements. The loss is Σ scale·i·pᵢ, so the gradient of parameter i is scale·i everywhere.
fn parameters() -> Vec<(String, Tensor)> {
    [4, 8, 16]
        .iter()
        .enumerate()
        .map(|(i, &n)| (format!("p{i}"), Tensor::ones([n], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true)))
        .collect()
}

fn loss(params: &[(String, Tensor)], used: &[usize], scale: f64) -> Tensor {
    used.iter().map(|&i| (&params[i].1 * (scale * (i + 1) as f64)).sum(Kind::Float)).reduce(|a, b| a + b).unwrap()
}

fn gradients(params: &[(String, Tensor)]) -> Vec<Option<f64>> {
    params
        .iter()
        .map(|(_, p)| {
            let grad = p.grad();
            grad.defined().then(|| {
                let first = grad.double_value(&[0]);
                assert_eq!(grad, Tensor::full_like(&grad, first));
                first
            })
        })
        .collect()
}

fn step(reducer: &Reducer, params: &[(String, Tensor)], used: &[usize], scale: f64) -> c10d::Result<()> {
    reducer.prepare_for_forward()?;
    reducer.rebuild_buckets()?;
    let loss = loss(params, used, scale);
    reducer.prepare_for_backward(std::slice::from_ref(&loss))?;
    reducer.backward(&loss)
}

fn clear(params: &mut [(String, Tensor)]) {
    params.iter_mut().for_each(|(_, p)| clear_grad(p).unwrap());
}

fn scale_of(group: &ProcessGroup) -> f64 {
    (group.rank().get() + 1) as f64
}

const ALL: [usize; 3] = [0, 1, 2];

#[test]
fn gradients_are_the_mean_over_ranks_with_every_option() {
    on_each_backend(|| {
        let base = ReducerOptions::default();
        let small = ReducerOptions { bucket_bytes_cap: 40, first_bucket_bytes_cap: 16, ..base };
        let variants = [
            base,
            small,
            ReducerOptions { gradient_as_bucket_view: true, ..small },
            ReducerOptions { find_unused_parameters: true, ..small },
        ];
        for world in 1..=4 {
            for options in variants {
                ranks(world, |group| {
                    let scale = scale_of(&group);
                    let mut params = parameters();
                    let reducer = Reducer::new(Rc::new(group), &params, &options).unwrap();
                    let mean = (1..=world).sum::<usize>() as f64 / world as f64;
                    for _ in 0..3 {
                        clear(&mut params);
                        step(&reducer, &params, &ALL, scale).unwrap();
                        assert_eq!(gradients(&params), [Some(mean), Some(2.0 * mean), Some(3.0 * mean)], "{options:?}");
                    }
                });
            }
        }
    });
}

#[test]
fn buckets_are_rebuilt_once_after_the_first_step() {
    on_each_backend(|| {
        ranks(2, |group| {
            let mut params = parameters();
            let options = ReducerOptions { bucket_bytes_cap: 40, first_bucket_bytes_cap: 16, ..Default::default() };
            let reducer = Reducer::new(Rc::new(group), &params, &options).unwrap();
            assert_eq!(reducer.bucket_numels().unwrap(), [28], "one bucket before the first step");
            assert!(!reducer.rebuild_buckets().unwrap(), "nothing to rebuild from yet");
            step(&reducer, &params, &ALL, 1.0).unwrap();
            assert!(reducer.rebuild_buckets().unwrap());
            assert!(!reducer.rebuild_buckets().unwrap(), "it happens only once");
            let rebuilt = reducer.bucket_numels().unwrap();
            assert!(rebuilt.len() > 1 && rebuilt.iter().sum::<usize>() == 28, "{rebuilt:?}");
            clear(&mut params);
            step(&reducer, &params, &ALL, 1.0).unwrap();
            assert_eq!(gradients(&params), [Some(1.0), Some(2.0), Some(3.0)]);
        });
    });
}

#[test]
fn bucket_views_share_memory_across_steps() {
    on_each_backend(|| {
        ranks(2, |group| {
            let mut params = parameters();
            let options = ReducerOptions { gradient_as_bucket_view: true, ..Default::default() };
            let reducer = Reducer::new(Rc::new(group), &params, &options).unwrap();
            let addresses =
                |params: &[(String, Tensor)]| params.iter().map(|(_, p)| p.grad().data_ptr()).collect::<Vec<_>>();
            for _ in 0..2 {
                clear(&mut params);
                step(&reducer, &params, &ALL, 1.0).unwrap();
            }
            let before = addresses(&params);
            clear(&mut params);
            step(&reducer, &params, &ALL, 1.0).unwrap();
            assert_eq!(addresses(&params), before, "gradients are in the bucket, even after they were cleared");
            assert_eq!(gradients(&params), [Some(1.0), Some(2.0), Some(3.0)]);
        });
    });
}

#[test]
fn a_parameter_that_one_rank_does_not_use_counts_as_zero_there() {
    on_each_backend(|| {
        ranks(2, |group| {
            let mut params = parameters();
            let first = group.rank().is_zero();
            let options = ReducerOptions { find_unused_parameters: true, ..Default::default() };
            let reducer = Reducer::new(Rc::new(group), &params, &options).unwrap();
            // Rank 0 uses parameters 0 and 1, rank 1 uses 0; no rank uses 2, which gets no gradient.
            let used: &[usize] = if first { &[0, 1] } else { &[0] };
            for _ in 0..2 {
                clear(&mut params);
                step(&reducer, &params, used, 1.0).unwrap();
                assert_eq!(gradients(&params), [Some(1.0), Some(1.0), None]);
            }
        });
    });
}

#[test]
fn an_unused_parameter_without_the_option_is_an_error_with_its_name() {
    on_each_backend(|| {
        ranks(2, |group| {
            let params = parameters();
            let reducer = Reducer::new(Rc::new(group), &params, &ReducerOptions::default()).unwrap();
            step(&reducer, &params, &[0, 1], 1.0).unwrap();
            let error = step(&reducer, &params, &[0, 1], 1.0).unwrap_err();
            assert!(error.detail().contains("find_unused_parameters"), "{error}");
        });
    });
}

#[test]
fn without_preparation_gradients_only_accumulate_locally() {
    on_each_backend(|| {
        ranks(2, |group| {
            let mut params = parameters();
            let scale = scale_of(&group);
            let reducer = Reducer::new(Rc::new(group), &params, &ReducerOptions::default()).unwrap();
            for _ in 0..2 {
                clear(&mut params);
                reducer.backward(&loss(&params, &ALL, scale)).unwrap();
                assert_eq!(gradients(&params)[0], Some(scale), "nothing was exchanged");
                step(&reducer, &params, &ALL, scale).unwrap();
                // Each rank has run two backward passes, and their sum is averaged.
                assert_eq!(gradients(&params), [Some(3.0), Some(6.0), Some(9.0)]);
            }
        });
    });
}

#[test]
fn communication_hooks_average_and_one_rounds_to_half_precision() {
    on_each_backend(|| {
        let means = [CommHook::AllReduce, CommHook::Fp16Compress].map(|hook| {
            ranks(2, |group| {
                let params = parameters();
                let scale = 1.0 + scale_of(&group) / 4096.0;
                let reducer = Reducer::new(Rc::new(group), &params, &ReducerOptions::default()).unwrap();
                reducer.register_comm_hook(hook).unwrap();
                step(&reducer, &params, &ALL, scale).unwrap();
                gradients(&params)[0].unwrap()
            })
        });
        let exact = 1.0 + 1.5 / 4096.0;
        assert_eq!(means[0], [exact; 2]);
        assert_eq!(means[1][0], means[1][1]);
        let error = (means[1][0] - exact).abs();
        assert!(error > 0.0 && error < 1e-3, "half precision keeps 11 bits: {error}");
    });
}

#[test]
fn a_second_hook_is_refused() {
    ranks(1, |group| {
        let reducer = Reducer::new(Rc::new(group), &parameters(), &ReducerOptions::default()).unwrap();
        reducer.register_comm_hook(CommHook::AllReduce).unwrap();
        assert!(reducer.register_comm_hook(CommHook::Fp16Compress).is_err());
    });
}

#[test]
fn buckets_are_filled_in_order_and_never_mix_dtypes() {
    let t = |n: i64, kind| Tensor::zeros([n], (kind, tch::Device::Cpu));
    let tensors = [t(4, Kind::Float), t(4, Kind::Float), t(2, Kind::Double), t(4, Kind::Float)];
    assert_eq!(bucket_assignment(&tensors, &[usize::MAX >> 1]).unwrap(), [vec![0, 1, 3], vec![2]]);
    assert_eq!(bucket_assignment(&tensors, &[16]).unwrap(), [vec![0], vec![1], vec![2], vec![3]]);
    assert_eq!(bucket_assignment(&[], &[16]).unwrap_err().kind(), ErrorKind::BadArgument);
}

#[test]
fn different_shapes_are_reported_to_all_ranks() {
    on_each_backend(|| {
        let errors = ranks(2, |group| {
            let n = 3 + group.rank().get() as i64;
            let params = [
                Tensor::zeros([2], (Kind::Float, tch::Device::Cpu)),
                Tensor::zeros([n], (Kind::Float, tch::Device::Cpu)),
            ];
            let result = verify_params(&group, &params);
            // Stays until both ranks have their error.
            let _ = group.monitored_barrier(crate::common::DEADLINE, false);
            result.err()
        });
        assert!(errors.iter().any(Option::is_some), "{errors:?}");
        for error in errors.into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        }
        ranks(2, |group| verify_params(&group, &[Tensor::zeros([2], (Kind::Float, tch::Device::Cpu))]).unwrap());
    });
}

#[test]
fn an_empty_list_of_parameters_is_a_bad_argument() {
    ranks(1, |group| assert_eq!(verify_params(&group, &[]).unwrap_err().kind(), ErrorKind::BadArgument));
}

#[test]
fn coalesced_broadcast_copies_all_tensors_of_the_root() {
    on_each_backend(|| {
        ranks(3, |group| {
            let me = group.rank().get() as f64;
            let tensors = [5, 1, 300].map(|n| Tensor::full([n], me, (Kind::Float, tch::Device::Cpu)));
            broadcast_coalesced(&group, &tensors, 64, rank(2)).unwrap();
            for t in &tensors {
                assert_eq!(t, &Tensor::full_like(t, 2.0));
            }
        });
    });
}

#[test]
fn every_buckets_all_reduce_is_timed_and_gradients_are_still_the_mean() {
    on_each_backend(|| {
        ranks(2, |group| {
            let scale = scale_of(&group);
            let mut params = parameters();
            // Three buckets, from the second step on.
            let small =
                ReducerOptions { bucket_bytes_cap: 16, first_bucket_bytes_cap: 16, ..ReducerOptions::default() };
            let reducer = Reducer::new(Rc::new(group), &params, &small).unwrap();
            reducer.time_buckets().unwrap();
            for expected in [&[112][..], &[64, 32, 16]] {
                let before = std::time::SystemTime::now();
                step(&reducer, &params, &ALL, scale).unwrap();
                assert_eq!(gradients(&params), [Some(1.5), Some(3.0), Some(4.5)]);
                let times = reducer.take_bucket_times().unwrap();
                assert_eq!(times.iter().map(|time| time.bytes).collect::<Vec<_>>(), expected);
                assert!(times.iter().map(|time| time.bucket).eq(0..expected.len()));
                assert!(
                    times.iter().all(|time| before <= time.started && time.ended.unwrap() >= time.started),
                    "{times:?}"
                );
                assert_eq!(reducer.take_bucket_times().unwrap(), []);
                clear(&mut params);
            }
        });
    });
}

#[test]
fn backward_on_another_thread_is_refused_and_may_outlive_the_reducer() {
    ranks(2, |group| {
        let mut params = parameters();
        let reducer = Reducer::new(Rc::new(group), &params, &ReducerOptions::default()).unwrap();
        step(&reducer, &params, &ALL, 1.0).unwrap();
        reducer.prepare_for_backward(&[]).unwrap();
        let elsewhere = |loss: Tensor| std::thread::spawn(move || c10d::backward(&loss));
        let error = refused(elsewhere(loss(&params, &ALL, 1.0)).join().unwrap());
        assert!(error.detail().contains("on another thread"), "{error}");
        // The graph outlives the reducer, and then any thread may use it.
        let late = loss(&params, &ALL, 1.0);
        clear(&mut params);
        drop(reducer);
        elsewhere(late).join().unwrap().unwrap();
        assert_eq!(gradients(&params), [Some(1.0), Some(2.0), Some(3.0)]);
    });
}

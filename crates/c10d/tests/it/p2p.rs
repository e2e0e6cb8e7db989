//! Point-to-point messages: blocking and non-blocking, tags, any source, and a ring.

use std::sync::Barrier;
use std::time::Duration;

use crate::common::rank;
use crate::common::{on_each_backend, ranks};
use c10d::ErrorKind;
use lockstep_process::watchdog::scaled;
use tch::{Kind, Tensor};

fn number(n: f32) -> Tensor {
    Tensor::from_slice(&[n])
}

#[test]
fn a_ring_passes_each_number_to_the_next_rank() {
    on_each_backend(|| {
        for world in 2..=4 {
            ranks(world, |group| {
                let me = group.rank().get();
                let (next, last) = (rank((me + 1) % world), rank((me + world - 1) % world));
                let sending = group.isend(number(me as f32), next, 0).unwrap();
                let received = group.irecv(number(-1.0), last, 0).unwrap().wait().unwrap();
                let _sent = sending.wait().unwrap();
                assert_eq!(received.double_value(&[0]) as usize, last.get());
            });
        }
    });
}

#[test]
fn tags_match_messages_in_either_order() {
    on_each_backend(|| {
        ranks(2, |group| {
            if group.rank().is_zero() {
                let works = [5, 6].map(|tag| group.isend(number(f32::from(tag)), rank(1), tag).unwrap());
                let _sent = works.map(|work| work.wait().unwrap());
            } else {
                for tag in [6, 5] {
                    let mut t = number(0.0);
                    group.recv(&mut t, rank(0), tag).unwrap();
                    assert_eq!(t.double_value(&[0]), f64::from(tag));
                }
            }
        });
    });
}

#[test]
fn calls_are_recorded_from_the_moment_that_is_asked_for() {
    ranks(2, |group| {
        group.barrier().unwrap();
        assert!(group.called().is_empty());
        group.record_calls();
        let peer = rank(1 - group.rank().get());
        let sending = group.isend(number(1.0), peer, 7).unwrap();
        group.recv(&mut number(0.0), peer, 7).unwrap();
        let waited = || group.called().iter().map(|called| called.waited).collect::<Vec<_>>();
        assert_eq!(waited(), [false, true]);
        drop(sending.wait().unwrap());
        assert_eq!(waited(), [true, true]);
        let [sent, received] = &group.called()[..] else { panic!("two calls") };
        assert_eq!(sent.call.operation, format!("isend [1] Float tag 7 to rank {peer}"));
        assert_eq!(received.call.operation, format!("recv [1] Float tag 7 from rank {peer}"));
        assert_eq!(sent.members, [rank(0), rank(1)]);
        group.barrier().unwrap();
        let waited_before: Vec<usize> = group.called().iter().map(|called| called.waited_before).collect();
        assert_eq!(waited_before, [0, 0, 2]);
    });
}

#[test]
fn the_memory_of_a_recorded_receive_is_nan_until_the_message_arrives() {
    on_each_backend(|| {
        ranks(2, |group| {
            group.record_calls();
            if !group.rank().is_zero() {
                group.barrier().unwrap();
                return group.send(&number(1.0), rank(0), 7).unwrap();
            }
            let buffer = number(5.0);
            let same_memory = buffer.shallow_clone();
            let receiving = group.irecv(buffer, rank(1), 7).unwrap();
            assert!(same_memory.double_value(&[0]).is_nan(), "nothing is sent yet");
            group.barrier().unwrap();
            assert_eq!(receiving.wait().unwrap().double_value(&[0]), 1.0);
        });
    });
}

#[test]
fn receiving_from_any_rank_returns_the_sender() {
    on_each_backend(|| {
        ranks(3, |group| {
            if group.rank().is_zero() {
                let mut seen = Vec::new();
                let mut t = number(0.0);
                let first = group.recv_any(&mut t, 3).unwrap();
                assert_eq!(t.double_value(&[0]) as usize, first.get());
                seen.push(first);
                let (t, second) = group.irecv_any(number(0.0), 3).unwrap().wait().unwrap();
                assert_eq!(t.double_value(&[0]) as usize, second.get());
                seen.push(second);
                seen.sort_unstable();
                assert_eq!(seen, [rank(1), rank(2)]);
            } else {
                group.send(&number(group.rank().get() as f32), rank(0), 3).unwrap();
            }
        });
    });
}

#[test]
fn large_messages_arrive_completely() {
    on_each_backend(|| {
        ranks(2, |group| {
            let n = 1 << 20;
            if group.rank().is_zero() {
                group.send(&Tensor::arange(n, (Kind::Int64, tch::Device::Cpu)), rank(1), 0).unwrap();
            } else {
                let mut t = Tensor::zeros([n], (Kind::Int64, tch::Device::Cpu));
                group.recv(&mut t, rank(0), 0).unwrap();
                assert_eq!(t, Tensor::arange(n, (Kind::Int64, tch::Device::Cpu)));
            }
        });
    });
}

#[test]
fn a_message_to_itself_or_outside_the_group_is_refused_immediately() {
    ranks(2, |group| {
        let to_self = group.send(&number(0.0), group.rank(), 0).unwrap_err();
        assert_eq!(to_self.kind(), ErrorKind::BadArgument);
        assert!(to_self.to_string().contains("with itself"), "{to_self}");
        let outside = group.irecv(number(0.0), rank(9), 0).unwrap_err();
        assert!(outside.to_string().contains("rank 9 is outside a group of 2"), "{outside}");
    });
}

#[test]
fn a_late_message_is_a_timeout_and_not_a_mismatch_when_the_peer_is_in_another_exchange() {
    on_each_backend(|| {
        // Rank 0 waits for rank 1, which waits for rank 2, which waits for rank 0: no call differs, all are late.
        let short = scaled(Duration::from_millis(500));
        let errors = ranks(3, |group| {
            let me = group.rank().get();
            let mut buffer = Tensor::zeros([1 + me as i64], (Kind::Float, tch::Device::Cpu));
            group.with_timeout(short, |group| group.recv(&mut buffer, rank((me + 1) % 3), 0)).unwrap_err()
        });
        for error in &errors {
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone), "{error}");
        }
        assert!(errors.iter().any(|e| e.kind() == ErrorKind::Timeout), "{errors:?}");
    });
}

#[test]
fn a_receive_without_a_sender_times_out_and_names_the_peer() {
    on_each_backend(|| {
        let short = scaled(Duration::from_millis(300));
        let started = Barrier::new(2);
        let errors = ranks(2, |group| {
            let peer = rank(1 - group.rank().get());
            let receiving = group.with_timeout(short, |group| group.irecv(number(0.0), peer, 0)).unwrap();
            // Whoever gives up first finds the other one in its call.
            started.wait();
            receiving.wait().unwrap_err()
        });
        for (me, error) in errors.iter().enumerate() {
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::PeerGone), "{error}");
            assert_eq!(error.peer(), Some(format!("rank {}", 1 - me).as_str()));
            assert_eq!(error.rank(), Some(rank(me)));
            assert_eq!(error.operation(), "irecv [1] Float tag 0");
            let (own, theirs) = (format!("tag 0 from rank {}", 1 - me), format!("tag 0 from rank {me}"));
            assert!(error.to_string().contains(&format!("this rank was in irecv [1] Float {own}")), "{error}");
            assert!(error.to_string().contains(&format!("in irecv [1] Float {theirs}")), "{error}");
        }
        assert!(errors.iter().any(|e| e.kind() == ErrorKind::Timeout), "{errors:?}");
    });
}

#[test]
fn messages_that_nobody_receives_yet_do_not_hold_up_others() {
    on_each_backend(|| {
        // More than a queue holds; all of them are received before the first message.
        const MORE: u8 = 100;
        ranks(2, |group| {
            if group.rank().is_zero() {
                let first = group.isend(number(-1.0), rank(1), 1).unwrap();
                (0..MORE).for_each(|n| group.send(&number(f32::from(n)), rank(1), 2).unwrap());
                drop(first.wait().unwrap());
            } else {
                let mut got = number(0.0);
                for n in 0..MORE {
                    group.recv(&mut got, rank(0), 2).unwrap();
                    assert_eq!(got.double_value(&[0]), f64::from(n));
                }
                group.recv(&mut got, rank(0), 1).unwrap();
                assert_eq!(got.double_value(&[0]), -1.0);
            }
        });
    });
}

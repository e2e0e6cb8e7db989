//! Communicators of one process.

use std::sync::mpsc::channel;
use std::thread;

use lockstep_gpu::{Buffer, Comm, Element, Reduction, Stream, UniqueId, group};

use crate::gpus;

/// One rank: its communicator, a stream, and a buffer.
struct Rank {
    // First, so that it is aborted before the buffer waits for the device.
    comm: Comm,
    buffer: Buffer,
    stream: Stream,
}

fn ranks(count: usize, elements: impl Fn(usize) -> Vec<f32>) -> Option<Vec<Rank>> {
    let comms = Comm::all(&gpus(count)?).unwrap();
    let rank = |comm: Comm| {
        let stream = comm.gpu().stream().unwrap();
        Rank { buffer: stream.upload(&elements(comm.rank())).unwrap(), stream, comm }
    };
    Some(comms.into_iter().map(rank).collect())
}

fn contents(ranks: &[Rank]) -> Vec<Vec<f32>> {
    ranks.iter().map(|rank| rank.stream.download(&rank.buffer).unwrap()).collect()
}

#[test]
fn grouped_collectives_of_one_thread_give_all_ranks_their_results() {
    let Some(ranks) = ranks(2, |rank| vec![1.0 + rank as f32, 10.0]) else { return };
    let all = |how| group(|| ranks.iter().try_for_each(|it| it.comm.all_reduce(&it.buffer, how, &it.stream)));
    all(Reduction::Sum).unwrap();
    assert_eq!(contents(&ranks), [[3.0, 20.0], [3.0, 20.0]]);
    all(Reduction::Avg).unwrap();
    assert_eq!(contents(&ranks), [[3.0, 20.0], [3.0, 20.0]]);
    ranks[1].stream.fill(&ranks[1].buffer, 5.0).unwrap();
    group(|| ranks.iter().try_for_each(|it| it.comm.broadcast(&it.buffer, 1, &it.stream))).unwrap();
    assert_eq!(contents(&ranks), [[5.0, 5.0], [5.0, 5.0]]);
}

/// Two halves in the memory of one float.
fn two(low: u16, high: u16) -> f32 {
    f32::from_bits(u32::from(low) | (u32::from(high) << 16))
}

#[test]
fn halves_are_added_as_halves() {
    // 1.5 + 2.25, and 2048 + 1, whose sum needs more than a half's 11 significant bits. In bfloat16, 256 + 1 needs more than its 8
    // bits.
    for (element, first, second, sum) in [
        (Element::Half, two(0x3e00, 0x6800), two(0x4080, 0x3c00), two(0x4380, 0x6800)),
        (Element::Bfloat16, two(0x3fc0, 0x4380), two(0x4010, 0x3f80), two(0x4070, 0x4380)),
    ] {
        let Some(ranks) = ranks(2, |rank| vec![[first, second][rank]; 3]) else { return };
        group(|| {
            ranks.iter().try_for_each(|it| it.comm.all_reduce_as(element, &it.buffer, Reduction::Sum, &it.stream))
        })
        .unwrap();
        assert_eq!(contents(&ranks), [[sum; 3], [sum; 3]], "{element:?}");
    }
}

#[test]
fn reduce_scatter_and_all_gather_are_the_halves_of_an_all_reduce() {
    let Some(ranks) = ranks(2, |rank| vec![1.0 + rank as f32, 10.0, 20.0, 30.0]) else { return };
    let parts: Vec<Buffer> = ranks.iter().map(|rank| rank.comm.gpu().buffer(2).unwrap()).collect();
    let each = || ranks.iter().zip(&parts);
    group(|| each().try_for_each(|(it, part)| it.comm.reduce_scatter(&it.buffer, part, Reduction::Sum, &it.stream)))
        .unwrap();
    assert_eq!(ranks[1].stream.download(&parts[1]).unwrap(), [40.0, 60.0]);
    group(|| each().try_for_each(|(it, part)| it.comm.all_gather(part, &it.buffer, &it.stream))).unwrap();
    assert_eq!(contents(&ranks), [[3.0, 20.0, 40.0, 60.0], [3.0, 20.0, 40.0, 60.0]]);
    let error = ranks[0].comm.all_gather(&ranks[0].buffer, &ranks[0].buffer, &ranks[0].stream).unwrap_err();
    assert!(error.to_string().contains("4 elements are not 4 of each of 2 ranks"), "{error}");
}

#[test]
fn grouped_sends_and_receives_go_around_a_ring() {
    let Some(ranks) = ranks(3, |rank| vec![rank as f32]) else { return };
    let incoming: Vec<Buffer> = ranks.iter().map(|rank| rank.comm.gpu().buffer(1).unwrap()).collect();
    group(|| {
        ranks.iter().zip(&incoming).try_for_each(|(it, incoming)| {
            let (rank, size) = (it.comm.rank(), it.comm.size());
            it.comm.send(&it.buffer, (rank + 1) % size, &it.stream)?;
            it.comm.recv(incoming, (rank + size - 1) % size, &it.stream)
        })
    })
    .unwrap();
    let found: Vec<f32> =
        ranks.iter().zip(&incoming).map(|(it, incoming)| it.stream.download(incoming).unwrap()[0]).collect();
    assert_eq!(found, [2.0, 0.0, 1.0]);
}

#[test]
fn operations_that_do_not_match_wait_until_they_are_aborted() {
    let Some(ranks) = ranks(2, |_| vec![1.0]) else { return };
    // Both algorithms connect now, not in the operation that hangs: to connect, NCCL's call waits for the other rank.
    group(|| ranks.iter().try_for_each(|it| it.comm.all_reduce(&it.buffer, Reduction::Sum, &it.stream))).unwrap();
    group(|| ranks.iter().try_for_each(|it| it.comm.broadcast(&it.buffer, 0, &it.stream))).unwrap();
    contents(&ranks);
    let (one, other) = (&ranks[0], &ranks[1]);
    let (sent, hangs) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            one.comm.all_reduce(&one.buffer, Reduction::Sum, &one.stream).unwrap();
            sent.send(one.stream.record().unwrap()).unwrap();
            // Blocks until another thread aborts.
            one.stream.synchronize().unwrap();
        });
        other.comm.broadcast(&other.buffer, 0, &other.stream).unwrap();
        let (hung, own) = (hangs.recv().unwrap(), other.stream.record().unwrap());
        for _ in 0..50 {
            assert!(!hung.is_done().unwrap() && !own.is_done().unwrap());
            thread::yield_now();
        }
        one.comm.check().unwrap();
        one.comm.abort().unwrap();
        other.comm.abort().unwrap();
    });
    other.stream.synchronize().unwrap();
    let error = one.comm.all_reduce(&one.buffer, Reduction::Sum, &one.stream).unwrap_err();
    assert!(error.to_string().contains("aborted"), "{error}");
    // The device itself still works: a new communicator can use it.
    let again = Comm::all(&[one.comm.gpu().clone(), other.comm.gpu().clone()]).unwrap();
    one.stream.fill(&one.buffer, 1.0).unwrap();
    other.stream.fill(&other.buffer, 2.0).unwrap();
    let both = || again.iter().zip(&ranks);
    group(|| both().try_for_each(|(comm, it)| comm.all_reduce(&it.buffer, Reduction::Max, &it.stream))).unwrap();
    assert_eq!(contents(&ranks), [[2.0], [2.0]]);
}

#[test]
fn a_split_makes_communicators_of_a_color_in_the_order_of_keys() {
    let Some(ranks) = ranks(4, |rank| vec![rank as f32]) else { return };
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|it| {
                scope.spawn(move || {
                    let rank = it.comm.rank();
                    // Ranks 0 and 2, the other way round; rank 3 alone; rank 1 in none.
                    let color = [Some(0), None, Some(0), Some(7)][rank];
                    let Some(own) = it.comm.split(color, 9 - rank).unwrap() else { return (rank, None) };
                    own.all_reduce(&it.buffer, Reduction::Sum, &it.stream).unwrap();
                    (rank, Some((own.rank(), own.size(), it.stream.download(&it.buffer).unwrap()[0])))
                })
            })
            .collect();
        let mut found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        found.sort_by_key(|(rank, _)| *rank);
        let found: Vec<_> = found.into_iter().map(|(_, found)| found).collect();
        assert_eq!(found, [Some((1, 2, 2.0)), None, Some((0, 2, 2.0)), Some((0, 1, 3.0))]);
    });
}

#[test]
fn what_is_dropped_in_a_group_is_freed_after_its_end() {
    let Some(ranks) = ranks(2, |_| vec![0.0; 2]) else { return };
    let unused = Comm::all(&ranks.iter().map(|it| it.comm.gpu().clone()).collect::<Vec<_>>()).unwrap();
    group(|| {
        drop(unused);
        // Its end does not end the outer group.
        group(|| {
            ranks.iter().try_for_each(|it| {
                let stream = it.comm.gpu().stream()?;
                let part = stream.upload(&[1.0 + it.comm.rank() as f32])?;
                it.comm.all_gather(&part, &it.buffer, &stream)
            })
        })?;
        // Would be given the memory that is free again.
        ranks.iter().try_for_each(|it| it.stream.upload(&[7.0]).map(drop))
    })
    .unwrap();
    ranks.iter().for_each(|it| it.comm.gpu().synchronize().unwrap());
    assert_eq!(contents(&ranks), [[1.0, 2.0], [1.0, 2.0]]);
}

#[test]
fn communicators_are_neither_made_nor_aborted_in_a_group() {
    let Some(ranks) = ranks(2, |_| vec![1.0]) else { return };
    let gpus: Vec<_> = ranks.iter().map(|it| it.comm.gpu().clone()).collect();
    let id = UniqueId::new().unwrap();
    let comm = &ranks[0].comm;
    group(|| {
        let errors = [
            Comm::join(&gpus[0], &id, 0, 1).err(),
            Comm::all(&gpus).err(),
            comm.split(None, 0).err(),
            comm.abort().err(),
        ];
        for error in errors {
            let error = error.unwrap().to_string();
            assert!(error.contains("failed: a group is open on this thread"), "{error}");
        }
        Ok(())
    })
    .unwrap();
    // Refused for as long as the group is open, however it ends, and on its thread alone.
    let panics = std::panic::AssertUnwindSafe(|| group::<()>(|| panic!("on purpose")));
    assert!(std::panic::catch_unwind(panics).is_err());
    group(|| thread::scope(|scope| scope.spawn(|| Comm::all(&gpus).map(drop)).join().unwrap())).unwrap();
    assert!(Comm::join(&gpus[0], &id, 0, 1).is_ok());
    group(|| ranks.iter().try_for_each(|it| it.comm.all_reduce(&it.buffer, Reduction::Sum, &it.stream))).unwrap();
    assert_eq!(contents(&ranks), [[2.0], [2.0]]);
}

#[test]
fn two_ranks_on_one_device_and_ids_of_other_bytes_are_refused() {
    let Some(gpus) = gpus(1) else { return };
    let twice = Comm::all(&[gpus[0].clone(), gpus[0].clone()]).err().unwrap();
    assert!(twice.to_string().starts_with("ncclCommInitAll failed: "), "{twice}");
    assert!(UniqueId::from_bytes(&[0; 3]).is_none());
    let id = UniqueId::new().unwrap();
    assert_eq!(UniqueId::from_bytes(id.bytes()), Some(id));
    let outside = Comm::join(&gpus[0], &id, 2, 2).err().unwrap();
    assert!(outside.to_string().starts_with("ncclCommInitRank failed: invalid argument"), "{outside}");
}

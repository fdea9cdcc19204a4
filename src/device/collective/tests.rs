use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};

use super::*;

/// What every rank of a group of threads makes of its place.
fn with_ranks<T: Send>(world: usize, work: impl Fn(UnixGroup) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ranks = UnixGroup::within_process(world).into_iter().map(|group| scope.spawn(|| work(group)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn values(rank: usize, count: usize, dtype: DType) -> Tensor {
    let values: Vec<f32> = (0..count).map(|index| ((index * 31 + rank * 17) % 101) as f32 / 7.0 - 6.0).collect();
    Tensor::new(values, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn read(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

#[test]
fn every_rank_gets_the_same_sum_and_mean_to_the_last_bit() {
    // More than one piece, the last of them not full.
    let count = 40_001;
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        for world in [1, 2, 4] {
            for reduction in [Reduction::Sum, Reduction::Mean] {
                let results = with_ranks(world, |group| {
                    let (first, second) = (values(group.rank(), count, dtype), values(group.rank() + 9, 3, dtype));
                    group.all_reduce(&[&first, &second], reduction).unwrap();
                    (read(&first), read(&second))
                });
                assert!(results.iter().all(|result| *result == results[0]), "{dtype:?} {world}");
                let inputs: Vec<Vec<f32>> = (0..world).map(|rank| read(&values(rank, count, dtype))).collect();
                let divisor = if reduction == Reduction::Mean { world as f64 } else { 1.0 };
                for (index, value) in results[0].0.iter().enumerate() {
                    let sum: f64 = inputs.iter().map(|input| f64::from(input[index])).sum();
                    let expected = read(&Tensor::new(&[sum / divisor], &Device::Cpu).unwrap().to_dtype(dtype).unwrap());
                    assert!((value - expected[0]).abs() <= 1e-6 * expected[0].abs(), "{value} against {expected:?}");
                }
            }
        }
    }
}

#[test]
fn a_view_in_the_middle_of_a_tensor_is_exchanged_and_nothing_around_it() {
    let results = with_ranks(2, |group| {
        let whole = values(group.rank(), 10, DType::F32);
        group.all_reduce(&[&whole.narrow(0, 3, 4).unwrap()], Reduction::Sum).unwrap();
        read(&whole)
    });
    let own = [read(&values(0, 10, DType::F32)), read(&values(1, 10, DType::F32))];
    for index in 0..10 {
        for rank in [0, 1] {
            let sum = own[0][index] + own[1][index];
            let expected = if (3..7).contains(&index) { sum } else { own[rank][index] };
            assert!((results[rank][index] - expected).abs() < 1e-6, "rank {rank}, {index}");
        }
    }
}

#[test]
fn reductions_that_were_begun_come_in_their_order_and_before_what_is_called_later() {
    for world in [1, 2, 4] {
        let results = with_ranks(world, |group| {
            let tensors: Vec<Tensor> = (0..5).map(|index| values(group.rank() + index, 20_000, DType::F32)).collect();
            let begin = |tensor| group.begin_all_reduce(tensor, Reduction::Mean).unwrap();
            let (first, others) = tensors.split_first().unwrap();
            let work: Vec<_> = others.iter().map(begin).collect();
            let words = group.gather(group.rank() as u64).unwrap();
            // Called after those: they are done, waited for or not.
            group.all_reduce(&[first], Reduction::Mean).unwrap();
            let results: Vec<Vec<f32>> = tensors.iter().map(read).collect();
            for begun in work {
                begun.wait().unwrap();
            }
            (words, results)
        });
        for (words, of_rank) in &results {
            assert_eq!(*words, (0..world as u64).collect::<Vec<_>>());
            assert_eq!(*of_rank, results[0].1, "all ranks have the same bits");
        }
        let called = with_ranks(world, |group| {
            let tensor = values(group.rank() + 3, 20_000, DType::F32);
            group.all_reduce(&[&tensor], Reduction::Mean).unwrap();
            read(&tensor)
        });
        assert_eq!(results[0].1[3], called[0], "as if it had been called");
    }
}

#[test]
fn a_rank_that_ends_or_leaves_is_lost_to_reductions_that_are_under_way() {
    for leaves in [false, true] {
        let started = Instant::now();
        let failures = with_ranks(3, |group| {
            let tensors = [values(0, 50_000, DType::F32), values(1, 50_000, DType::F32)];
            let begin = |tensor: &Tensor| group.begin_all_reduce(tensor, Reduction::Sum);
            let first = begin(&tensors[0]).unwrap();
            if group.rank() == 1 {
                first.wait().unwrap();
                if leaves {
                    group.leave();
                }
                return None;
            }
            let second = begin(&tensors[1]);
            let failed = first.wait().and_then(|()| second.and_then(Work::wait)).err();
            assert_eq!(begin(&tensors[0]).err(), failed, "nothing is begun any more");
            assert_eq!(group.failure(), failed);
            failed
        });
        assert!(started.elapsed() < Duration::from_secs(20), "nobody waited for the patience of a minute");
        for rank in [0, 2] {
            assert_eq!(failures[rank], Some(CollectiveError::PeerLost { rank: 1 }));
        }
    }
}

#[test]
fn whoever_leaves_while_a_reduction_of_its_own_waits_for_another_rank_is_gone_at_once() {
    for leaver in [0, 1] {
        let has_left = Barrier::new(2);
        let failures = with_ranks(3, |group| {
            if group.rank() == 2 {
                // It works on what comes before the reduction.
                has_left.wait();
                return group.all_reduce(&[&values(2, 50_000, DType::F32)], Reduction::Sum).err();
            }
            let work = group.begin_all_reduce(&values(0, 50_000, DType::F32), Reduction::Sum).unwrap();
            if group.rank() == leaver {
                // Long enough for its thread to wait for rank 2, or for rank 0 that does.
                thread::sleep(Duration::from_millis(50));
                let started = Instant::now();
                group.leave();
                assert!(started.elapsed() < Duration::from_secs(20), "far below the patience of a minute");
                has_left.wait();
            }
            work.wait().err()
        });
        let lost = Some(CollectiveError::PeerLost { rank: leaver });
        assert!(failures.iter().all(|failure| *failure == lost), "{failures:?}");
    }
}

#[test]
fn a_broadcast_gives_the_bits_of_rank_0() {
    let results = with_ranks(3, |group| {
        let tensor = values(group.rank(), 20_000, DType::F32);
        let odd = Tensor::new(&[f32::NAN, -0.0, f32::MIN_POSITIVE / 8.0, group.rank() as f32], &Device::Cpu).unwrap();
        group.broadcast(&[&tensor, &odd]).unwrap();
        let bits = |tensor: &Tensor| read(tensor).into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        (bits(&tensor), bits(&odd))
    });
    assert_eq!(results[0].0, read(&values(0, 20_000, DType::F32)).into_iter().map(f32::to_bits).collect::<Vec<_>>());
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn words_are_gathered_in_rank_order_and_unequal_ones_are_named() {
    for (rank, result) in with_ranks(4, |group| {
        group.barrier().unwrap();
        let words = group.gather(10 + group.rank() as u64).unwrap();
        let largest = group.largest(words[group.rank()]).unwrap();
        group.check_equal("checksums", largest).unwrap();
        let unequal = group.check_equal("parameters", u64::from(group.rank() == 2));
        (words, largest, unequal)
    })
    .into_iter()
    .enumerate()
    {
        assert_eq!(result.0, [10, 11, 12, 13], "rank {rank}");
        assert_eq!(result.1, 13);
        assert_eq!(result.2, Err(CollectiveError::Unequal { what: "parameters", rank: 2 }));
    }
}

#[test]
fn a_rank_that_ends_or_leaves_is_named_to_all_others_at_once() {
    for leaves in [false, true] {
        let started = Instant::now();
        let failures = with_ranks(4, |group| {
            if group.rank() == 2 {
                if leaves {
                    group.leave();
                }
                return (group.failure(), None);
            }
            let tensor = values(0, 50_000, DType::F32);
            let failed = group.all_reduce(&[&tensor], Reduction::Sum).or_else(|_| group.barrier());
            (group.failure(), failed.err())
        });
        assert!(started.elapsed() < Duration::from_secs(20), "nobody waited for the patience of a minute");
        for (rank, (failure, error)) in failures.into_iter().enumerate() {
            let lost = Some(CollectiveError::PeerLost { rank: 2 });
            let expected = if rank == 2 && !leaves { None } else { lost.clone() };
            assert_eq!(failure, expected, "rank {rank}");
            assert!(rank == 2 || error == lost, "rank {rank}: {error:?}");
        }
    }
}

#[test]
fn a_silent_rank_is_waited_for_as_long_as_the_patience_and_then_named() {
    let failures = with_ranks(3, |group| {
        if group.rank() == 1 {
            // It hangs until the others have given it up.
            while group.notice_lost().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            return None;
        }
        group.set_patience(if group.rank() == 0 { Duration::from_millis(50) } else { Duration::from_secs(60) });
        group.gather(1).err()
    });
    assert_eq!(failures[0], Some(CollectiveError::PeerSilent { rank: 1, seconds: 0.05 }));
    assert_eq!(failures[2], Some(CollectiveError::PeerLost { rank: 1 }));
}

#[test]
fn ranks_that_do_different_things_are_told_so() {
    let failures = with_ranks(2, |group| {
        let tensor = values(0, 10 + group.rank(), DType::F32);
        group.all_reduce(&[&tensor], Reduction::Sum).unwrap_err()
    });
    assert!(matches!(failures[0], CollectiveError::OutOfStep { rank: 1, .. }), "{:?}", failures[0]);
    assert_eq!(failures[1], CollectiveError::PeerLost { rank: 0 });
    let told = Barrier::new(2);
    let failures = with_ranks(2, |group| {
        // It sends what it has to, and knows no better until the next operation.
        let sent = if group.rank() == 0 { group.broadcast(&[&values(0, 2, DType::F32)]) } else { Ok(()) };
        let failure = group.gather(0).unwrap_err();
        // A rank that left as soon as it knows would be lost to one that is still sending.
        told.wait();
        sent.unwrap();
        failure
    });
    for (rank, failure) in failures.iter().enumerate() {
        assert!(matches!(failure, CollectiveError::OutOfStep { rank: other, .. } if *other == 1 - rank), "{failure:?}");
    }
    let failures = with_ranks(2, |group| group.broadcast(&[&Tensor::new(&[1_u32], &Device::Cpu).unwrap()]).err());
    assert!(failures.iter().all(Option::is_some), "{failures:?}");
}

fn replica(meeting: &std::path::Path, rank: usize, world: usize) -> Replica {
    let second = Duration::from_secs(1);
    let meeting = Meeting::Folder(meeting.to_owned());
    Replica { rank, world, meeting, token: 77, cards: Cards::Shared, start: 20 * second, build: second, step: second }
}

fn meet(replica: &Replica) -> Result<UnixGroup, CollectiveError> {
    UnixGroup::meet(replica, &Relay::default())
}

/// Places of ranks on two machines, each with its wires, between which the test stands in for the driver.
fn apart(world: usize) -> Vec<(Replica, Relay)> {
    let apart = Apart { first: "n1".to_owned(), rank: 1, other: "n2".to_owned() };
    let of_rank = |rank| Replica { meeting: Meeting::Driver(apart.clone()), ..replica("/".as_ref(), rank, world) };
    (0..world).map(|rank| (of_rank(rank), Relay::default())).collect()
}

#[test]
fn ranks_whose_machines_are_apart_agree_through_their_driver_and_learn_who_is_gone() {
    let ranks = apart(3);
    thread::scope(|scope| {
        for (replica, relay) in &ranks {
            for peer in replica.peers() {
                let (other, own) = (&ranks[peer].1, replica.rank);
                scope.spawn(move || relay.pump(peer, |bytes| other.deliver(own, &bytes)));
            }
        }
        let work = |(replica, relay): &(Replica, Relay)| {
            let group = UnixGroup::meet(replica, relay).unwrap();
            let words: Vec<Vec<u64>> =
                (0..20).map(|round| group.gather(round + replica.rank as u64).unwrap()).collect();
            assert_eq!(words[19], [19, 20, 21]);
            // One that ends without a word is missed by the others.
            if replica.rank == 2 { None } else { Some(group.gather(0).unwrap_err()) }
        };
        let working: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || work(rank))).collect();
        let missed: Vec<_> = working.into_iter().filter_map(|rank| rank.join().unwrap()).collect();
        assert_eq!(missed, [CollectiveError::PeerLost { rank: 2 }, CollectiveError::PeerLost { rank: 2 }]);
    });
}

#[test]
fn tensors_of_the_cpu_do_not_leave_their_machine() {
    let (replica, relay) = apart(2).remove(0);
    let text = join(&replica, &Device::Cpu, &relay).unwrap_err().to_string();
    assert!(
        text.starts_with("replicas on the CPU meet on one machine, and rank 0 is on `n1`, rank 1 on `n2`"),
        "{text}"
    );
}

#[test]
fn wires_end_with_the_worker_whether_or_not_a_group_took_them() {
    let relay = Relay::default();
    thread::scope(|scope| {
        let pump = scope.spawn(|| {
            let mut told = Vec::new();
            relay.pump(1, |bytes| told.push(bytes));
            told
        });
        relay.deliver(1, &[7]);
        relay.deliver(1 << 20, &[7]);
        while !pump.is_finished() {
            relay.close();
        }
        assert_eq!(pump.join().unwrap(), [vec![0_u8; 0]]);
    });
}

#[test]
fn a_rank_takes_the_card_of_its_number_where_it_sees_enough_and_was_given_none() {
    let of = |cards, seen| Replica { cards, ..replica(std::path::Path::new("/x"), 1, 2) }.card(seen);
    assert_eq!((of(Cards::Shared, 2), of(Cards::Shared, 1)), (1, 1), "one that is not there is an error in time");
    assert_eq!((of(Cards::Assigned, 1), of(Cards::Assigned, 0)), (0, 0));
    assert_eq!(of(Cards::Assigned, 2), 1, "a remote shell shows all");
}

#[test]
fn ranks_meet_in_a_folder_with_a_long_path_whatever_strangers_say() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(200));
    std::fs::create_dir(&deep).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = [2, 1, 0]
            .into_iter()
            .map(|rank| {
                let replica = replica(&deep, rank, 3);
                scope.spawn(move || {
                    let group: Arc<dyn Collective> = join(&replica, &Device::Cpu, &Relay::default()).unwrap();
                    group.gather(group.rank() as u64).unwrap()
                })
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), [0, 1, 2]);
        }
    });
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0, "the socket is gone");

    let (first, second) = (replica(folder.path(), 0, 2), replica(folder.path(), 1, 2));
    let listening = thread::spawn(move || meet(&first).map(|group| group.gather(5)));
    let socket = folder.path().join("rank-0");
    let stranger = loop {
        match UnixStream::connect(&socket) {
            Ok(stranger) => break stranger,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    (&stranger).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let false_friend = Replica { token: 78, start: Duration::from_millis(300), ..second.clone() };
    assert!(meet(&false_friend).is_err());
    assert_eq!(meet(&second).unwrap().gather(6).unwrap(), [5, 6]);
    assert_eq!(listening.join().unwrap().unwrap().unwrap(), [5, 6]);
}

#[test]
fn a_rank_that_never_comes_ends_the_meeting_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let start = Duration::from_millis(40);
    let alone = |rank| meet(&Replica { start, ..replica(folder.path(), rank, 3) }).unwrap_err();
    assert_eq!(alone(0), CollectiveError::PeerSilent { rank: 1, seconds: 0.04 });
    assert_eq!(alone(1), CollectiveError::PeerSilent { rank: 0, seconds: 0.04 });
    assert!(matches!(alone(3), CollectiveError::NoSuchRank { rank: 3, world: 3 }));
    let nowhere = replica(&folder.path().join("missing"), 0, 2);
    assert!(matches!(meet(&nowhere), Err(CollectiveError::Meeting { .. })));
}

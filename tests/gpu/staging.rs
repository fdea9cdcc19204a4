//! Batches copied on a stream beside candle's: the right values, in the right order, whatever is dropped when.

use std::time::{Duration, Instant};

use batchtune::device::staging::{HostField, HostMemory, PageLocked, Wait};
use batchtune::device::{DeviceSession, LargestRequest, StepError};
use batchtune::memory::Phase;
use batchtune::units::MIB;
use candle_core::{DType, Tensor};

use crate::support::{mebibytes, session, turn};

/// 64 MiB: a copy that takes more than a millisecond, so that a missing wait shows.
const WORDS: usize = 16 << 20;

fn pageable(value: u32, words: usize) -> HostField {
    HostField { memory: HostMemory::U32(vec![value; words]), dtype: DType::U32, shape: vec![words] }
}

fn page_locked(mut buffer: Box<dyn PageLocked>, value: f32, words: usize) -> HostField {
    buffer.words_mut()[..words].fill(value.to_bits());
    HostField { memory: HostMemory::PageLocked(buffer), dtype: DType::F32, shape: vec![words] }
}

fn sum(tensor: &Tensor) -> f64 {
    let mean = tensor.to_dtype(DType::F64).unwrap().mean_all().unwrap(); // []
    mean.to_scalar().unwrap()
}

/// Work that keeps candle's stream busy for some milliseconds.
fn busy(x: &Tensor) -> Tensor {
    (0..20).fold(x.clone(), |x, _| x.matmul(&x).unwrap().affine(1e-4, 0.0).unwrap()) // [4096, 4096]
}

#[test]
fn a_batch_that_is_taken_has_its_values_though_its_memory_was_another_s_a_moment_ago() {
    let _turn = turn();
    let mut session = session(8);
    session.begin_trial().unwrap();
    let x = Tensor::ones((4096, 4096), DType::F32, session.candle()).unwrap(); // [4096, 4096]
    let mut stager = session.stager().unwrap().expect("a card copies beside the steps");
    for value in 1..=40_u32 {
        // The block goes back to the pool with a kernel on it that has not run, and the next destination is that block.
        let before = Tensor::full(9_u32, WORDS, session.candle()).unwrap(); // [WORDS]
        let read = (busy(&x), before.max_all().unwrap());
        drop(before);
        stager.stage(vec![pageable(value, WORDS), pageable(value + 1, 3)]).unwrap();
        let tensors = stager.take().unwrap().expect("one is staged");
        assert!((sum(&tensors[0]) - f64::from(value)).abs() < 1e-9, "batch {value}");
        assert_eq!(tensors[1].to_vec1::<u32>().unwrap(), [value + 1; 3]);
        assert_eq!(read.1.to_scalar::<u32>().unwrap(), 9, "the copy came before the kernel");
        while stager.reclaim(Wait::No).unwrap().is_some() {}
    }
    drop((x, stager));
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn page_locked_buffers_come_back_once_they_are_copied_and_batches_stay_in_order() {
    let _turn = turn();
    let mut session = session(8);
    session.begin_trial().unwrap();
    let mut stager = session.stager().unwrap().expect("a card copies beside the steps");
    let locker = stager.page_locker();
    let mut ring = vec![locker.lock(WORDS).unwrap(), locker.lock(WORDS).unwrap()];
    let mut expected = std::collections::VecDeque::new();
    for step in 0..60 {
        let words = WORDS - 7 * step;
        let buffer = match ring.pop() {
            Some(buffer) => buffer,
            // Written over too early, the batch before would have this one's values.
            None => stager.reclaim(Wait::UntilDone).unwrap().expect("one is out").remove(0),
        };
        stager.stage(vec![page_locked(buffer, step as f32, words)]).unwrap();
        expected.push_back((step, words));
        if expected.len() > 1 {
            let (step, words) = expected.pop_front().unwrap();
            let tensors = stager.take().unwrap().expect("two are staged");
            assert_eq!(tensors[0].dims(), [words]);
            assert!((sum(&tensors[0]) - f64::from(step as u32)).abs() < 1e-9, "batch {step}");
        }
    }
    drop(stager);
    assert_eq!(session.end_trial(), 0, "the batch that nobody took is freed too");
}

#[test]
fn a_batch_over_the_limit_is_out_of_memory_and_the_next_one_fits() {
    let _turn = turn();
    let mut session = session(2);
    session.begin_trial().unwrap();
    let held = mebibytes(session.candle(), 1990).unwrap();
    let mut stager = session.stager().unwrap().expect("a card copies beside the steps");
    session.begin_phase(Phase::Load);
    let error = stager.stage(vec![pageable(1, 4), pageable(2, 8 * WORDS)]).unwrap_err();
    assert!(matches!(session.classify(&error), StepError::OutOfMemory(_)), "{error}");
    assert!(matches!(session.end_phase(), Err(StepError::OutOfMemory(_))));
    assert!(stager.take().unwrap().is_none());
    drop(held);
    stager.stage(vec![pageable(3, 8 * WORDS)]).unwrap();
    let tensors = stager.take().unwrap().expect("one is staged");
    assert!((sum(&tensors[0]) - 3.0).abs() < 1e-9);
    drop((tensors, stager));
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn staged_batches_count_as_tensors() {
    let _turn = turn();
    let mut session = session(4);
    session.begin_trial().unwrap();
    let mut stager = session.stager().unwrap().expect("a card copies beside the steps");
    session.begin_phase(Phase::Load);
    stager.stage(vec![pageable(1, WORDS)]).unwrap();
    stager.stage(vec![pageable(2, WORDS)]).unwrap();
    session.end_phase().unwrap();
    let sample = session.sample(1, LargestRequest::Estimate);
    assert_eq!(sample.allocated_bytes, 2 * 64 * MIB);
    assert_eq!(sample.largest_request_bytes, 64 * MIB);
    drop(stager);
    assert_eq!(session.end_trial(), 0);
}

/// What staging hides: the time of a copy beside the time of a step that does not wait for it.
#[test]
#[ignore = "prints a table"]
fn what_a_copy_costs_beside_the_work_and_before_it() {
    let _turn = turn();
    let mut session = session(8);
    session.begin_trial().unwrap();
    let x = Tensor::ones((4096, 4096), DType::F32, session.candle()).unwrap(); // [4096, 4096]
    let mut stager = session.stager().unwrap().expect("a card copies beside the steps");
    let locker = stager.page_locker();
    for (name, is_locked) in [("page-locked", true), ("pageable", false)] {
        for ahead in [0, 1] {
            let mut ring = Vec::new();
            let mut times: Vec<Duration> = Vec::new();
            let mut under_way = 0;
            for step in 0..24 {
                while let Some(mut buffers) = stager.reclaim(Wait::No).unwrap() {
                    ring.append(&mut buffers);
                }
                let source = if is_locked {
                    page_locked(ring.pop().unwrap_or_else(|| locker.lock(4 * WORDS).unwrap()), 1.0, 4 * WORDS)
                } else {
                    pageable(1, 4 * WORDS)
                };
                session.candle().synchronize().unwrap();
                let begun = Instant::now();
                stager.stage(vec![source]).unwrap();
                under_way += 1;
                if under_way > ahead {
                    let batch = stager.take().unwrap().expect("one is staged");
                    under_way -= 1;
                    let read = (busy(&x), batch[0].narrow(0, 0, 8).unwrap().contiguous().unwrap());
                    session.candle().synchronize().unwrap();
                    drop(read);
                    if step >= 4 {
                        times.push(begun.elapsed());
                    }
                }
            }
            while stager.take().unwrap().is_some() {}
            session.candle().synchronize().unwrap();
            times.sort();
            println!(
                "{name:<12} {ahead} ahead: {:7.2} ms a step (256 MiB a batch)",
                1e3 * times[times.len() / 2].as_secs_f64()
            );
        }
    }
    drop((x, stager));
    assert_eq!(session.end_trial(), 0);
}

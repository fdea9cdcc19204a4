//! The pool, its limit, and what happens beyond it.

use std::time::Instant;

use batchtune::device::cuda::{self, hook};
use batchtune::device::nvml::{CardId, Monitor};
use batchtune::device::{self, DeviceChoice, DeviceError, DeviceSession, LargestRequest, StepError};
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use batchtune::units::{Bytes, GIB, MIB};
use candle_core::{DType, Tensor};

use crate::support::{Ballast, mebibytes, session, turn};

#[test]
fn the_facts_name_the_card_and_add_up() {
    let _turn = turn();
    let session = device::open(DeviceChoice::Auto, LimitSpec::Auto, AllocatorKind::Auto).unwrap();
    let facts = session.facts().clone();
    println!("{facts:#?}");
    assert_eq!(facts.device, "cuda:0");
    assert!(facts.limit_bytes <= facts.total_bytes / 100 * 85 + 100);
    assert!(facts.limit_bytes + facts.external_bytes <= facts.total_bytes);
    assert!(facts.external_bytes > 0, "the context takes something");
    let monitor = Monitor::open().unwrap();
    let card = monitor.card(CardId::Uuid(facts.uuid.as_deref().unwrap())).unwrap();
    assert_eq!(card.name, facts.name);
    println!("{card:?}; others: {:?}", monitor.others(CardId::Uuid(&card.uuid), facts.external_bytes));
}

#[test]
fn a_request_over_the_limit_is_typed_with_its_size_and_the_process_goes_on() {
    let _turn = turn();
    let mut session = session(2);
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Forward);
    let held = mebibytes(session.candle(), 1024).unwrap();
    let error = mebibytes(session.candle(), 1536).unwrap_err();
    let StepError::OutOfMemory(figures) = session.classify(&error) else { panic!("{error}") };
    assert_eq!(figures.requested_bytes, 1536 * MIB);
    assert_eq!(figures.allocated_bytes, 1024 * MIB);
    assert_eq!(figures.limit_bytes, 2 * GIB);
    assert!(figures.reserved_bytes >= 1024 * MIB && figures.reserved_bytes <= 2 * GIB, "{figures:?}");
    let context = error.context("in block 3").context("in the forward pass");
    assert!(matches!(session.classify(&context), StepError::OutOfMemory(_)));
    // A workload that swallows the error is found out at the end of the phase, and once.
    assert!(matches!(session.end_phase(), Err(StepError::OutOfMemory(_))));
    session.begin_phase(Phase::Forward);
    session.end_phase().unwrap();
    drop(held);
    assert_eq!(session.end_trial(), 0);
    session.begin_trial().unwrap();
    let fits = mebibytes(session.candle(), 1536).unwrap();
    assert_eq!(session.state().allocated_bytes, 1536 * MIB);
    drop(fits);
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn an_error_of_the_workload_is_no_error_of_the_device() {
    let _turn = turn();
    let session = session(2);
    let a = Tensor::zeros((2, 3), DType::F32, session.candle()).unwrap(); // [2, 3]
    let error = a.matmul(&a).unwrap_err();
    assert!(matches!(session.classify(&error), StepError::Workload(_)));
    let strange = Tensor::zeros((2, 3), DType::U8, session.candle()).unwrap(); // [2, 3]
    let error = strange.matmul(&strange.t().unwrap()).unwrap_err();
    assert!(matches!(session.classify(&error), StepError::Workload(_)), "{error}");
}

#[test]
fn marks_follow_the_window_and_reserved_memory_stays_until_trimmed() {
    let _turn = turn();
    let mut session = session(4);
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Forward);
    drop(mebibytes(session.candle(), 1000).unwrap());
    session.end_phase().unwrap();
    let first = session.sample(1, LargestRequest::Estimate);
    assert_eq!((first.allocated_bytes, first.peak_allocated_bytes), (0, 1000 * MIB));
    assert!(first.peak_reserved_bytes >= 1000 * MIB, "{first:?}");
    assert!(first.reserved_bytes >= 1000 * MIB, "the release threshold keeps it: {first:?}");
    assert_eq!(first.largest_request_bytes, 1000 * MIB);
    assert!(first.rates.peak.unwrap() < 0.05, "{first:?}");
    let second = session.sample(2, LargestRequest::Estimate);
    assert_eq!((second.peak_allocated_bytes, second.largest_request_bytes), (0, 0));
    assert_eq!(second.peak_reserved_bytes, first.reserved_bytes, "what is held all along is the window's peak");
    session.trim();
    session.sample(3, LargestRequest::Estimate);
    let fourth = session.sample(4, LargestRequest::Estimate);
    assert!(fourth.peak_reserved_bytes <= 32 * MIB, "{fourth:?}");
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn the_largest_request_is_found_by_asking_and_leaves_no_trace() {
    let _turn = turn();
    let mut session = session(4);
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Forward);
    // 40 blocks of 64 MiB, every second one freed: 1.25 GiB live and in pieces.
    let mut blocks: Vec<_> = (0..40).map(|_| Some(mebibytes(session.candle(), 64).unwrap())).collect();
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    session.end_phase().unwrap();
    let before = session.state();
    let counts = hook::counts();
    let started = Instant::now();
    let sample = session.sample(1, LargestRequest::Probe);
    println!(
        "L = {} of C − A = {} (V = {}) in {:.1} ms",
        Bytes(sample.largest_satisfiable_bytes),
        Bytes(4 * GIB - sample.allocated_bytes),
        Bytes(before.reserved_bytes),
        started.elapsed().as_secs_f64() * 1e3
    );
    assert!(!sample.largest_satisfiable_estimated);
    assert!(sample.largest_satisfiable_bytes <= 4 * GIB - sample.allocated_bytes);
    assert_eq!(sample.peak_reserved_bytes, before.peak_reserved_bytes, "the probe is not in the sample");
    assert_eq!(hook::counts().allocations, counts.allocations, "nor in the book");
    let after = session.sample(2, LargestRequest::Estimate);
    assert_eq!((after.peak_allocated_bytes, after.largest_request_bytes), (sample.allocated_bytes, 0));
    assert!(after.peak_reserved_bytes <= before.reserved_bytes + 64 * MIB, "{after:?} {before:?}");
    assert!(after.largest_satisfiable_estimated);
    // The answer is true: that much can be had, and half a GiB more cannot.
    let mib = sample.largest_satisfiable_bytes / MIB;
    drop(mebibytes(session.candle(), mib).unwrap());
    session.candle().synchronize().unwrap();
    if sample.largest_satisfiable_bytes + GIB / 2 < 4 * GIB - sample.allocated_bytes {
        assert!(mebibytes(session.candle(), mib + 512).is_err());
    }
    drop(blocks);
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn a_tensor_left_over_is_reported_and_bars_the_next_trial() {
    let _turn = turn();
    let mut session = session(2);
    session.begin_trial().unwrap();
    let forgotten = mebibytes(session.candle(), 20).unwrap();
    assert!(session.end_trial() >= 20 * MIB);
    assert!(matches!(session.begin_trial(), Err(StepError::Device(_))));
    drop(forgotten);
    session.begin_trial().unwrap();
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn a_card_that_others_have_filled_is_told_apart_from_a_limit() {
    let _turn = turn();
    let mut session = session(8);
    session.begin_trial().unwrap();
    assert_eq!(session.end_trial(), 0);
    let ballast = Ballast::fill(&session, 1024);
    let started = Instant::now();
    let Err(StepError::Device(text)) = session.begin_trial() else { panic!("8 GiB cannot be had") };
    println!("after {:.1} s: {text}", started.elapsed().as_secs_f64());
    assert!(started.elapsed().as_secs() >= 4);
    // The pool's limit is far off, the card's is not: still out of memory, typed.
    let error = mebibytes(session.candle(), 4096).unwrap_err();
    assert!(matches!(session.classify(&error), StepError::OutOfMemory(_)), "{error}");
    drop(ballast);
    session.begin_trial().unwrap();
    drop(mebibytes(session.candle(), 4096).unwrap());
    assert_eq!(session.end_trial(), 0);
}

#[test]
fn a_library_without_memory_for_its_workspace_is_out_of_memory() {
    let _turn = turn();
    let session = session(2);
    let stream = session.candle().as_cuda_device().unwrap().cuda_stream();
    let ballast = Ballast::fill(&session, 0);
    let mut handles = Vec::new();
    let error = loop {
        match candle_core::cuda_backend::cudarc::cublas::CudaBlas::new(stream.clone()) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
        assert!(handles.len() < 64, "cuBLAS needs no memory for a handle");
    };
    println!("cuBLAS says {error:?} after {} handles", handles.len());
    drop(ballast);
    let error = candle_core::Error::from(candle_core::cuda_backend::CudaError::Cublas(error));
    assert!(matches!(session.classify(&error), StepError::OutOfMemory(_)), "{error}");
}

#[test]
fn limits_that_cannot_be_kept_are_refused_and_one_session_is_open_at_a_time() {
    let _turn = turn();
    let open = |limit| device::open(DeviceChoice::Cuda(0), limit, AllocatorKind::Auto).map(|_| ());
    assert!(matches!(open(LimitSpec::Bytes(Bytes(1 << 50))), Err(DeviceError::LimitTooLarge { .. })));
    assert!(matches!(open(LimitSpec::Bytes(Bytes(0))), Err(DeviceError::LimitTooSmall { .. })));
    let session = session(2);
    assert!(matches!(open(LimitSpec::Auto), Err(DeviceError::Busy)));
    assert!(matches!(cuda::apply_pool(0, GIB), Err(DeviceError::Busy)));
    drop(session);
    open(LimitSpec::Auto).unwrap();
    assert!(matches!(
        device::open(DeviceChoice::Cuda(63), LimitSpec::Auto, AllocatorKind::Auto).map(|_| ()),
        Err(DeviceError::NoSuchDevice { .. })
    ));
}

#[test]
fn a_program_gets_the_recommended_pool_for_as_long_as_it_keeps_the_guard() {
    let _turn = turn();
    let guard = cuda::apply_pool(0, GIB).unwrap();
    let device = candle_core::Device::new_cuda(0).unwrap();
    let tensor = mebibytes(&device, 512).unwrap();
    assert!(guard.figures().unwrap().used_bytes >= 512 * MIB);
    assert!(mebibytes(&device, 1024).is_err(), "the limit holds");
    drop(tensor);
    device.synchronize().unwrap();
    guard.trim().unwrap();
    assert!(guard.figures().unwrap().reserved_bytes <= 32 * MIB);
    drop(guard);
    drop(mebibytes(&device, 2048).unwrap());
    device.synchronize().unwrap();
}

#[test]
fn the_planned_runs_allocator_runs_as_a_shadow() {
    let _turn = turn();
    let limit = LimitSpec::Bytes(Bytes(4 * GIB));
    let mut session = device::open(DeviceChoice::Cuda(0), limit, AllocatorKind::Native).unwrap();
    session.begin_trial().unwrap();
    session.begin_step(0);
    session.begin_phase(Phase::Forward);
    // PyTorch gives 12 MiB a segment of its own, and 3 MiB one of 20.
    let tensors = (mebibytes(session.candle(), 12).unwrap(), mebibytes(session.candle(), 3).unwrap());
    session.end_phase().unwrap();
    let sample = session.sample(1, LargestRequest::Estimate);
    assert_eq!(sample.shadow.and_then(|rates| rates.peak), Some(1.0 - 15.0 / 32.0), "{sample:?}");
    drop(tensors);
    assert_eq!(session.end_trial(), 0);
}

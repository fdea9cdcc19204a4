//! The virtual device under real candle tensors.

use std::cell::RefCell;
use std::rc::Rc;

use candle_core::{DType, Device, Tensor, Var};

use super::*;
use crate::memory::Ordinal;
use crate::trial::exit_status;
use crate::units::{Fraction, MIB};

fn open(limit_bytes: u64) -> VirtualDevice {
    let mut device = VirtualDevice::open(LimitSpec::Bytes(Bytes(limit_bytes)), AllocatorKind::Auto).unwrap();
    device.begin_trial().unwrap();
    device
}

fn within<T>(device: &mut VirtualDevice, phase: Phase, work: impl FnOnce() -> T) -> (T, Result<(), StepError>) {
    device.begin_phase(phase);
    let made = work();
    (made, device.end_phase())
}

fn zeros(rows: usize) -> Tensor {
    Tensor::zeros((rows, 1024), DType::F32, &Device::Cpu).unwrap() // [rows, 1024]
}

/// Sends a copy of every event to a vector.
fn record(device: &mut VirtualDevice) -> Rc<RefCell<Vec<Event>>> {
    let events = Rc::new(RefCell::new(Vec::new()));
    let copy = Rc::clone(&events);
    device.set_event_sink(Some(Box::new(move |piece| copy.borrow_mut().extend_from_slice(piece))));
    events
}

#[test]
fn the_allocator_is_declared_for_unit_tests() {
    assert!(installed());
}

#[test]
fn a_second_session_in_the_process_is_refused_until_the_first_is_dropped() {
    let first = open(64 * MIB);
    let second = VirtualDevice::open(LimitSpec::Auto, AllocatorKind::Auto);
    assert!(matches!(second, Err(DeviceError::Busy)));
    drop(first);
    drop(open(64 * MIB));
}

#[test]
fn limits_come_from_what_the_host_has() {
    let host = facts::HostMemory { total_bytes: 1000 * MIB, available_bytes: 600 * MIB };
    assert_eq!(limit_bytes(LimitSpec::Auto, host).unwrap(), 300 * MIB);
    assert_eq!(limit_bytes(LimitSpec::Fraction(Fraction(0.5)), host).unwrap(), 500 * MIB);
    assert_eq!(limit_bytes(LimitSpec::Bytes(Bytes(600 * MIB)), host).unwrap(), 600 * MIB);
    let refused = limit_bytes(LimitSpec::Bytes(Bytes(600 * MIB + 1)), host);
    assert!(
        matches!(refused, Err(DeviceError::LimitTooLarge { external: Bytes(external), .. }) if external == 400 * MIB)
    );
    assert!(limit_bytes(LimitSpec::Fraction(Fraction(0.85)), host).is_err());
}

#[test]
fn only_a_large_overshoot_is_far_over_the_limit_unless_the_host_has_no_more() {
    assert_eq!(ceiling_bytes(100 * MIB, 10_000 * MIB), 356 * MIB);
    assert_eq!(ceiling_bytes(1000 * MIB, 10_000 * MIB), 1500 * MIB);
    assert_eq!(ceiling_bytes(1000 * MIB, 1200 * MIB), 1200 * MIB);
    assert_eq!(ceiling_bytes(1000 * MIB, 900 * MIB), 1000 * MIB);
    assert_eq!(ceiling_bytes(u64::MAX, 0), u64::MAX);
}

#[test]
fn allocated_bytes_after_building_are_the_sum_of_the_tensors() {
    let mut device = open(256 * MIB);
    let (tensors, ended) = within(&mut device, Phase::Build, || [zeros(4), zeros(8), zeros(512)]);
    ended.unwrap();
    let state = device.state();
    assert_eq!(state.allocated_bytes, (4 + 8 + 512) * 4096);
    assert_eq!((state.allocated_blocks, state.requested_bytes), (3, state.allocated_bytes));
    drop(tensors);
    assert_eq!(device.state().allocated_bytes, 0);
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn half_precision_tensors_count_too() {
    let mut device = open(256 * MIB);
    let (tensor, _) =
        within(&mut device, Phase::Build, || Tensor::zeros((512, 1024), DType::BF16, &Device::Cpu).unwrap());
    assert_eq!(device.state().allocated_bytes, MIB);
    drop(tensor);
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn a_training_step_returns_to_its_baseline() {
    let mut device = open(256 * MIB);
    let (weight, _) = within(&mut device, Phase::Build, || Var::from_tensor(&zeros(1024)).unwrap()); // [1024, 1024]
    let baseline = device.state();
    for step in 0..3 {
        device.begin_step(step);
        let (loss, ended) = within(&mut device, Phase::Forward, || {
            let input = Tensor::ones((64, 1024), DType::F32, &Device::Cpu).unwrap(); // [64, 1024]
            input.matmul(weight.as_tensor()).unwrap().sqr().unwrap().mean_all().unwrap() // []
        });
        ended.unwrap();
        let (gradients, ended) = within(&mut device, Phase::Backward, || loss.backward().unwrap());
        ended.unwrap();
        assert!(gradients.get(&weight).is_some());
        drop((loss, gradients));
    }
    let state = device.state();
    assert_eq!(state.allocated_bytes, baseline.allocated_bytes);
    assert_eq!(state.allocated_blocks, baseline.allocated_blocks);
    let sample = device.sample(3, LargestRequest::Probe);
    assert!(sample.peak_allocated_bytes >= baseline.allocated_bytes + 4 * MIB, "the gradient counts");
    assert_eq!(sample.largest_request_bytes, 4 * MIB);
    assert!(!sample.largest_satisfiable_estimated);
    let next = device.sample(3, LargestRequest::Probe);
    assert_eq!((next.peak_allocated_bytes, next.largest_request_bytes), (state.allocated_bytes, 0));
    drop(weight);
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn the_scratch_of_a_matrix_product_is_not_recorded() {
    let mut device = open(256 * MIB);
    let events = record(&mut device);
    let (product, ended) = within(&mut device, Phase::Forward, || zeros(1024).matmul(&zeros(1024)).unwrap());
    ended.unwrap();
    let allocations = events.borrow().iter().filter(|event| matches!(event, Event::Alloc { .. })).count();
    assert_eq!(allocations, 3, "two operands and the product");
    assert_eq!(device.state().peak_allocated_bytes, 12 * MIB);
    drop(product);
}

#[test]
fn a_step_over_the_limit_is_out_of_memory_and_the_next_trial_runs() {
    let mut device = open(40 * MIB);
    let (tensors, ended) = within(&mut device, Phase::Forward, || [zeros(5120), zeros(6144)]);
    let Err(StepError::OutOfMemory(error)) = ended else { panic!("the phase ended well") };
    assert_eq!((error.requested_bytes, error.limit_bytes, error.allocated_bytes), (24 * MIB, 40 * MIB, 20 * MIB));
    drop(tensors);
    assert_eq!(device.end_trial(), 0);
    device.begin_trial().unwrap();
    let (tensor, ended) = within(&mut device, Phase::Forward, || zeros(5120));
    ended.unwrap();
    assert_eq!(device.state().allocated_bytes, 20 * MIB);
    drop(tensor);
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn a_trim_hands_the_cache_back_and_is_part_of_the_recording() {
    let mut device = open(256 * MIB);
    let events = record(&mut device);
    let (tensor, _) = within(&mut device, Phase::Forward, || zeros(4096));
    drop(tensor);
    assert_eq!(device.state().reserved_bytes, 16 * MIB);
    device.trim();
    assert_eq!(device.state().reserved_bytes, 0);
    assert_eq!(events.borrow().last(), Some(&Event::Mark(Mark::Trim)));
}

#[test]
fn frees_count_between_phases_and_on_other_threads() {
    let mut device = open(256 * MIB);
    let ((first, second), _) = within(&mut device, Phase::Build, || (zeros(256), zeros(512)));
    drop(first);
    assert_eq!(device.state().allocated_bytes, 2 * MIB);
    std::thread::spawn(move || drop(second)).join().unwrap();
    assert_eq!(device.state().allocated_bytes, 0);
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn allocations_between_phases_and_on_other_threads_do_not_count() {
    let mut device = open(256 * MIB);
    let between = zeros(256);
    let (other, _) = within(&mut device, Phase::Load, || std::thread::spawn(|| zeros(256)).join().unwrap());
    assert_eq!(device.state().allocated_bytes, 0);
    drop((between, other));
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn tensors_that_outlive_the_trial_are_reported() {
    let mut device = open(256 * MIB);
    let (kept, _) = within(&mut device, Phase::Build, || zeros(256));
    assert_eq!(device.end_trial(), MIB);
    drop(kept);
    device.begin_trial().unwrap();
    assert_eq!(device.state().allocated_bytes, 0);
}

#[test]
fn a_buffer_that_grows_counts_with_its_final_size() {
    let mut device = open(256 * MIB);
    let events = record(&mut device);
    let (grown, _) = within(&mut device, Phase::Load, || {
        let mut values: Vec<u32> = Vec::with_capacity(16);
        values.resize(1 << 18, 7);
        values
    });
    let allocations: Vec<Event> =
        events.borrow().iter().filter(|e| matches!(e, Event::Alloc { .. })).copied().collect();
    assert!(matches!(allocations[..], [Event::Alloc { bytes: MIB, .. }]), "{allocations:?}");
    drop(grown);
    assert_eq!(device.end_trial(), 0);
}

#[test]
fn the_event_stream_has_marks_and_sorted_runs_of_frees() {
    let mut device = open(256 * MIB);
    let events = record(&mut device);
    device.begin_step(5);
    let (tensors, _) = within(&mut device, Phase::Forward, || vec![zeros(1), zeros(1), zeros(1)]);
    tensors.into_iter().rev().for_each(drop);
    device.state();
    let events = events.borrow();
    assert_eq!(events[..2], [Event::Mark(Mark::Step(5)), Event::Mark(Mark::Phase(Phase::Forward))]);
    let frees: Vec<Event> = (0..3).map(|n| Event::Free { ordinal: Ordinal(n) }).collect();
    assert_eq!(events[events.len() - 3..], frees);
}

/// The events of one training step of a small network with an embedding, a normalisation and a softmax.
fn recorded_step(batch: usize) -> Vec<Event> {
    let mut device = open(256 * MIB);
    let events = record(&mut device);
    let variable =
        |shape: (usize, usize)| Var::from_tensor(&Tensor::rand(0f32, 1f32, shape, &Device::Cpu).unwrap()).unwrap();
    let (variables, _) =
        within(&mut device, Phase::Build, || [variable((50, 48)), variable((48, 96)), variable((96, 50))]);
    let (tokens, _) = within(&mut device, Phase::Load, || {
        let tokens: Vec<u32> = (0..batch as u32 * 7).map(|n| n % 50).collect();
        Tensor::from_vec(tokens, batch * 7, &Device::Cpu).unwrap() // [batch * 7]
    });
    let (loss, _) = within(&mut device, Phase::Forward, || {
        let hidden = variables[0].index_select(&tokens, 0).unwrap(); // [batch * 7, 48]
        let centred = hidden.broadcast_sub(&hidden.mean_keepdim(1).unwrap()).unwrap(); // [batch * 7, 48]
        let hidden = centred.matmul(&variables[1]).unwrap().gelu().unwrap(); // [batch * 7, 96]
        let logits = hidden.matmul(&variables[2]).unwrap(); // [batch * 7, 50]
        let log_sum = logits.exp().unwrap().sum_keepdim(1).unwrap().log().unwrap(); // [batch * 7, 1]
        logits.broadcast_sub(&log_sum).unwrap().gather(&tokens.unsqueeze(1).unwrap(), 1).unwrap().mean_all().unwrap() // []
    });
    within(&mut device, Phase::Backward, || drop(loss.backward().unwrap())).1.unwrap();
    drop((tokens, loss, variables));
    assert_eq!(device.end_trial(), 0);
    drop(device);
    Rc::into_inner(events).unwrap().into_inner()
}

#[test]
fn two_small_batches_foretell_a_larger_one_event_by_event() {
    let (two, three, nine) = (recorded_step(2), recorded_step(3), recorded_step(9));
    assert_eq!(two.len(), three.len());
    let foretold: Vec<Event> = two
        .iter()
        .zip(&three)
        .map(|(left, right)| match (*left, *right) {
            (Event::Alloc { ordinal, bytes, stream }, Event::Alloc { bytes: more, .. }) => {
                Event::Alloc { ordinal, bytes: bytes + 7 * (more - bytes), stream }
            }
            (left, right) => {
                assert_eq!(left, right);
                left
            }
        })
        .collect();
    assert!(foretold.len() > 60);
    assert_eq!(foretold, nine);
}

#[test]
fn a_shape_error_is_the_workloads_own() {
    let device = open(64 * MIB);
    let error = zeros(3).matmul(&zeros(3)).unwrap_err();
    let StepError::Workload(message) = device.classify(&error) else { panic!("not the workload's") };
    assert!(message.contains("matmul"), "{message}");
}

#[test]
#[ignore = "ends the process; run by `a_process_far_over_the_limit_leaves_with_its_own_status`"]
fn goes_far_over_the_limit() {
    let mut device = open(16 * MIB);
    device.begin_phase(Phase::Forward);
    let _tensors: Vec<Tensor> = (0..10).map(|_| zeros(16 * 1024)).collect();
    unreachable!("640 MiB were allocated under a limit of 16 MiB");
}

#[test]
#[ignore = "ends the process; run by `a_process_that_is_refused_memory_leaves_with_its_own_status`"]
fn is_refused_memory() {
    leave_where_memory_is_refused().unwrap();
    // This one is done without.
    assert!(Vec::<u8>::new().try_reserve(isize::MAX.unsigned_abs()).is_err());
    let _all_addresses = Vec::<u8>::with_capacity(std::hint::black_box(isize::MAX.unsigned_abs()));
    unreachable!("there are not so many addresses");
}

#[test]
fn a_process_far_over_the_limit_leaves_with_its_own_status() {
    assert_eq!(status_of("goes_far_over_the_limit"), Some(exit_status::FAR_OVER_LIMIT));
}

#[test]
fn a_process_that_is_refused_memory_leaves_with_its_own_status() {
    assert_eq!(status_of("is_refused_memory"), Some(exit_status::HOST_OUT_OF_MEMORY));
}

/// What a process leaves with that runs this test.
fn status_of(test: &str) -> Option<i32> {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", &format!("device::cpu::tests::{test}")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    status.code()
}

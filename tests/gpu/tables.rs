//! Figures for the README, printed as tables. Each runs GPT-2 medium's shape for real steps.

use std::time::Instant;

use batchtune::device::cuda::{CudaSession, hook};
use batchtune::device::{DeviceSession, LargestRequest};
use batchtune::memory::Phase;
use batchtune::units::{Bytes, GIB};
use candle_core::DType;

use crate::support::{session, turn};
use crate::workload::Gpt;

const LAYERS: usize = 24;

/// One step in milliseconds, synchronised on both sides.
fn timed(session: &mut CudaSession, model: &mut Gpt, batch: usize) -> f64 {
    session.candle().synchronize().unwrap();
    session.begin_phase(Phase::Forward);
    let started = Instant::now();
    model.step(batch).unwrap();
    session.end_phase().unwrap();
    started.elapsed().as_secs_f64() * 1e3
}

/// Mean of `b / a − 1` in percent with its 95 % interval, from pairs that ran one after the other.
fn compare(name: &str, pairs: &[(f64, f64)]) -> (f64, f64) {
    let changes: Vec<f64> = pairs.iter().map(|(a, b)| (b / a - 1.0) * 100.0).collect();
    let count = changes.len() as f64;
    let mean = changes.iter().sum::<f64>() / count;
    let variance = changes.iter().map(|change| (change - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = 1.96 * (variance / count).sqrt();
    let median = |side: fn(&(f64, f64)) -> f64| {
        let mut times: Vec<f64> = pairs.iter().map(side).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    println!(
        "{name}: {:.2} ms against {:.2} ms (medians of {count}), change {mean:+.2} % ± {half:.2}",
        median(|pair| pair.1),
        median(|pair| pair.0)
    );
    (mean, half)
}

#[test]
#[ignore = "takes a minute; prints figures"]
fn a_step_is_no_slower_for_the_hook_nor_for_the_pool() {
    let _turn = turn();
    let mut session = session(60);
    session.begin_trial().unwrap();
    let mut model = Gpt::new(LAYERS, DType::BF16, session.candle()).unwrap();
    let before = hook::counts();
    for _ in 0..4 {
        timed(&mut session, &mut model, 2);
    }
    println!("{} allocations a step", (hook::counts().allocations - before.allocations) / 4);
    let mut pairs = Vec::new();
    for round in 0..50 {
        // Each side goes first every other time, so that drift favours neither.
        let counted_first = round % 2 == 0;
        let mut pair = (0.0, 0.0);
        for counted in [counted_first, !counted_first] {
            if counted {
                pair.1 = timed(&mut session, &mut model, 2);
            } else {
                pair.0 = hook::uncounted(|| timed(&mut session, &mut model, 2));
            }
        }
        pairs.push(pair);
    }
    let (hook_mean, hook_half) = compare("B=2 bf16, hook counting against passing through", &pairs);
    assert!(hook_mean - hook_half < 0.5, "the hook costs more than half a percent of the step");

    let context = session.candle().as_cuda_device().unwrap().cuda_stream().context().clone();
    let mut pairs = Vec::new();
    for _ in 0..25 {
        // SAFETY: one stream, as in the session itself; tracked and untracked tensors may meet.
        unsafe { context.enable_event_tracking() };
        let tracked = timed(&mut session, &mut model, 2);
        // SAFETY: as above.
        unsafe { context.disable_event_tracking() };
        pairs.push((tracked, timed(&mut session, &mut model, 2)));
    }
    compare("B=2 bf16, without cudarc's events against with", &pairs);
    let mut nanoseconds = [f64::INFINITY; 2];
    for round in 0..6 {
        let tracked = round % 2;
        // SAFETY: as above.
        unsafe { if tracked == 1 { context.enable_event_tracking() } else { context.disable_event_tracking() } };
        let started = Instant::now();
        for _ in 0..20_000 {
            drop(crate::support::mebibytes(session.candle(), 1).unwrap());
        }
        nanoseconds[tracked] = nanoseconds[tracked].min(started.elapsed().as_nanos() as f64 / 20_000.0);
        session.candle().synchronize().unwrap();
    }
    // SAFETY: as above.
    unsafe { context.disable_event_tracking() };
    println!("an allocation and its free: {:.0} ns without events, {:.0} ns with", nanoseconds[0], nanoseconds[1]);

    for batch in [2, 8] {
        timed(&mut session, &mut model, batch);
        let mut pairs = Vec::new();
        for _ in 0..15 {
            session.pool().make_default_current().unwrap();
            let default = timed(&mut session, &mut model, batch);
            session.pool().make_current().unwrap();
            pairs.push((default, timed(&mut session, &mut model, batch)));
        }
        let (mean, half) = compare(&format!("B={batch} bf16, our pool against candle's default"), &pairs);
        assert!(mean - half < 1.0, "our pool is slower");
    }
}

#[test]
#[ignore = "takes half a minute; prints figures"]
fn reserved_memory_stays_close_to_what_is_allocated() {
    let _turn = turn();
    let mut session = session(80);
    println!("B | peak allocated | peak reserved | peak rate | L | C − A | probe ms | step ms");
    for batch in [2, 4, 8, 16] {
        session.begin_trial().unwrap();
        let mut model = Gpt::new(LAYERS, DType::BF16, session.candle()).unwrap();
        let times: Vec<f64> = (0..3).map(|_| timed(&mut session, &mut model, batch)).collect();
        let started = Instant::now();
        let sample = session.sample(3, LargestRequest::Probe);
        println!(
            "{batch} | {} | {} | {:.2} % | {} | {} | {:.1} | {:.1}",
            Bytes(sample.peak_allocated_bytes),
            Bytes(sample.peak_reserved_bytes),
            sample.rates.peak.unwrap() * 100.0,
            Bytes(sample.largest_satisfiable_bytes),
            Bytes(80 * GIB - sample.allocated_bytes),
            started.elapsed().as_secs_f64() * 1e3,
            times[2]
        );
        assert!(sample.rates.peak.unwrap() < 0.3);
        assert!(sample.peak_reserved_bytes >= sample.peak_allocated_bytes);
        drop(model);
        assert_eq!(session.end_trial(), 0, "a finished trial leaves the device clean");
    }
}

#[test]
#[ignore = "measures this process's first start; run it alone, with CUDA_CACHE_PATH at an empty folder"]
fn opening_takes_so_long() {
    let _turn = turn();
    let started = Instant::now();
    let session = session(4);
    println!("the session was open after {:.2} s", started.elapsed().as_secs_f64());
    let started = Instant::now();
    let mut model = Gpt::new(1, DType::BF16, session.candle()).unwrap();
    model.step(1).unwrap();
    session.candle().synchronize().unwrap();
    println!("its first step was done {:.2} s later", started.elapsed().as_secs_f64());
}

#[test]
#[ignore = "measures candle without batchtune; run it alone, with CUDA_CACHE_PATH at an empty folder"]
fn candle_alone_takes_so_long() {
    let _turn = turn();
    let started = Instant::now();
    let device = candle_core::Device::new_cuda(0).unwrap();
    println!("candle's device was open after {:.2} s", started.elapsed().as_secs_f64());
    let mut model = Gpt::new(1, DType::BF16, &device).unwrap();
    model.step(1).unwrap();
    device.synchronize().unwrap();
    println!("its first step was done after {:.2} s", started.elapsed().as_secs_f64());
}

#[test]
#[ignore = "measures the driver's compiler; run it alone, with CUDA_CACHE_PATH at an empty folder"]
fn each_module_compiles_in_so_long() {
    use candle_core::cuda_backend::kernels;
    let _turn = turn();
    // One alone by its number, so that several processes can be measured at once.
    let chosen = std::env::var("MODULE").ok().and_then(|number| number.parse::<usize>().ok());
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let modules = [
        ("affine", &kernels::AFFINE),
        ("binary", &kernels::BINARY),
        ("cast", &kernels::CAST),
        ("conv", &kernels::CONV),
        ("fill", &kernels::FILL),
        ("indexing", &kernels::INDEXING),
        ("reduce", &kernels::REDUCE),
        ("ternary", &kernels::TERNARY),
        ("unary", &kernels::UNARY),
    ];
    for (number, (name, module)) in modules.into_iter().enumerate() {
        if chosen.is_none_or(|chosen| chosen == number) {
            let started = Instant::now();
            let loaded = context.load_module(module.ptx().into()).unwrap();
            println!("{name}: {:.2} s", started.elapsed().as_secs_f64());
            drop(loaded);
        }
    }
}

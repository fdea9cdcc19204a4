//! Forecasts against what was measured: PyTorch's own figures on a GPU, and real training on the virtual device.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as the tests do")]

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use batchtune::device::cpu::VirtualDevice;
use batchtune::device::{DeviceSession, LargestRequest};
use batchtune::memory::forecast::{
    Conditions, ForecastPoint, Forecaster, Method, Probe, Reason, Report, Request, Window,
};
use batchtune::memory::policy::native::Native;
use batchtune::memory::recording::Recording;
use batchtune::memory::{AllocatorKind, Event, LimitSpec, MemorySample, Phase};
use batchtune::units::{Bytes, GIB};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

batchtune::declare_allocator!();

/// PyTorch's allocator under a limit.
fn conditions(limit_bytes: u64) -> Conditions<'static> {
    Conditions { limit_bytes, make_policy: &|limit| Box::new(Native::new(limit)) }
}

fn forecaster(probes: &[(usize, Vec<Event>)]) -> Forecaster {
    let probes: Vec<Probe<'_>> =
        probes.iter().map(|(batch_size, events)| Probe { batch_size: *batch_size, events }).collect();
    Forecaster::new(&probes)
}

mod pytorch {
    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/forecast").join(name)).unwrap()
    }

    /// The events of a snapshot.
    fn events(name: &str) -> Vec<Event> {
        Recording::read(&fixture(name)).unwrap().into_trace().events
    }

    fn probes(model: &str, batch_sizes: [usize; 2]) -> Forecaster {
        let probe = |batch_size| (batch_size, events(&format!("{model}_b{batch_size}.pickle")));
        forecaster(&batch_sizes.map(probe))
    }

    fn truth(model: &str, batch_size: usize, figure: &str) -> u64 {
        let truth: serde_json::Value = serde_json::from_slice(&fixture("truth.json")).unwrap();
        truth[model][batch_size.to_string()][figure].as_u64().unwrap()
    }

    /// How far a figure is from the truth, in percent of it.
    fn off_percent(forecast: u64, truth: u64) -> f64 {
        forecast.abs_diff(truth) as f64 / truth as f64 * 100.0
    }

    #[test]
    fn gpt2_medium_is_exact_at_four_and_eight_times_the_batch() {
        let forecaster = probes("gpt2_medium", [2, 3]);
        assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
        let report = forecaster.report(&Request::of(&[8, 16]), &conditions(u64::MAX)).unwrap();
        for point in &report.points {
            let truth = |figure| truth("gpt2_medium", point.batch_size, figure);
            assert_eq!(point.peak_reserved_bytes, truth("max_reserved"));
            assert!(off_percent(point.peak_allocated_bytes, truth("max_allocated")) < 0.01);
        }
        // The allocations of `256 + 2129920·B` bytes could be padded: only a third probe can tell.
        assert_eq!(report.doubtful_allocations, 120);
    }

    #[test]
    fn gpt2_medium_runs_out_one_batch_after_the_largest() {
        let forecaster = probes("gpt2_medium", [2, 3]);
        let conditions = conditions(24 * GIB);
        let report = forecaster.report(&Request::default(), &conditions).unwrap();
        let largest = report.largest_batch_size.unwrap();
        // 16 samples reserve 17.3 GiB, each further one 0.8 GiB.
        assert!((20..=25).contains(&largest), "{largest}");
        let report = forecaster.report(&Request::of(&[largest, largest + 1]), &conditions).unwrap();
        assert_eq!(report.points.iter().map(|point| point.fits).collect::<Vec<_>>(), [true, false]);
        assert!(report.points[0].peak_reserved_bytes <= 24 * GIB);
        assert!(report.points[1].peak_reserved_bytes > 24 * GIB);
    }

    #[test]
    fn recordings_in_the_wrong_order_name_no_largest_batch() {
        let [two, three] = ["gpt2_medium_b2.pickle", "gpt2_medium_b3.pickle"].map(events);
        let swapped = forecaster(&[(3, two), (2, three)]);
        let report = swapped.report(&Request::of(&[8]), &conditions(40 * GIB)).unwrap();
        assert_ne!(report.method, Method::Exact);
        assert_eq!(report.largest_batch_size, None);
    }

    #[test]
    fn resnet50_does_not_align_and_lines_stay_within_three_percent() {
        let forecaster = probes("resnet50", [8, 16]);
        assert!(matches!(forecaster.reason(), Reason::Misaligned(_)), "{}", forecaster.reason());
        let report = forecaster.report(&Request::of(&[24, 32]), &conditions(u64::MAX)).unwrap();
        assert_eq!((report.method, report.error_percent), (Method::Affine, None));
        for point in &report.points {
            let truth = |figure| truth("resnet50", point.batch_size, figure);
            let off = [
                off_percent(point.peak_allocated_bytes, truth("max_allocated")),
                off_percent(point.peak_reserved_bytes, truth("max_reserved")),
            ];
            assert!(off.iter().all(|percent| *percent < 3.0), "{off:?} at {}", point.batch_size);
        }
    }
}

/// A transformer without convolutions, of differentiable operations alone.
mod transformer {
    use super::*;

    const VOCABULARY: usize = 512;
    const TOKENS: usize = 48;
    const WIDTH: usize = 96;
    const HEADS: usize = 4;
    const LAYERS: usize = 2;

    pub(super) struct Transformer {
        device: Device,
        variables: Vec<Var>,
    }

    impl Transformer {
        pub(super) fn new(device: &Device) -> Result<Self> {
            let mut shapes = vec![(VOCABULARY, WIDTH), (TOKENS, WIDTH)];
            for _ in 0..LAYERS {
                shapes.extend([(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]);
            }
            let variable = |(rows, columns): &(usize, usize)| {
                let values = (0..rows * columns).map(|n| ((n * 7919 % 1009) as f32 / 1009.0 - 0.5) * 0.1);
                Var::from_tensor(&Tensor::from_iter(values, device)?.reshape((*rows, *columns))?)
            };
            Ok(Self { device: device.clone(), variables: shapes.iter().map(variable).collect::<Result<_>>()? })
        }

        pub(super) fn optimizer(&self) -> Result<AdamW> {
            AdamW::new(self.variables.clone(), ParamsAdamW::default())
        }

        pub(super) fn batch(&self, batch_size: usize) -> Result<(Tensor, Tensor)> {
            let tokens = |salt: u32| -> Result<Tensor> {
                let ids: Vec<u32> =
                    (0..(batch_size * TOKENS) as u32).map(|n| (n * 31 + salt) % VOCABULARY as u32).collect();
                Tensor::from_vec(ids, (batch_size, TOKENS), &self.device) // [B, T]
            };
            Ok((tokens(1)?, tokens(2)?))
        }

        pub(super) fn loss(&self, inputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
            let [tokens, positions, layers @ ..] = self.variables.as_slice() else { unreachable!() };
            let (batch_size, _) = inputs.dims2()?;
            let embedded = tokens.index_select(&inputs.flatten_all()?, 0)?; // [B·T, D]
            let mut hidden = embedded.reshape((batch_size, TOKENS, WIDTH))?.broadcast_add(positions)?; // [B, T, D]
            for layer in layers.chunks(4) {
                let [qkv, out, up, down] = layer else { unreachable!() };
                hidden = (&hidden + attention(&normalized(&hidden)?, qkv, out)?)?; // [B, T, D]
                let wide = project(&normalized(&hidden)?, up)?.gelu()?; // [B, T, 4·D]
                hidden = (&hidden + project(&wide, down)?)?; // [B, T, D]
            }
            let logits = project(&normalized(&hidden)?, &tokens.t()?)?; // [B, T, V]
            candle_nn::loss::cross_entropy(&logits.flatten_to(1)?, &targets.flatten_all()?) // []
        }
    }

    fn project(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (batch_size, tokens, _) = input.dims3()?;
        input.flatten_to(1)?.matmul(weight)?.reshape((batch_size, tokens, weight.dim(1)?))
    }

    fn normalized(input: &Tensor) -> Result<Tensor> {
        let centred = input.broadcast_sub(&input.mean_keepdim(D::Minus1)?)?; // [B, T, D]
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?; // [B, T, 1]
        centred.broadcast_div(&(variance + 1e-5)?.sqrt()?)
    }

    fn attention(input: &Tensor, qkv: &Tensor, out: &Tensor) -> Result<Tensor> {
        let (batch_size, tokens, _) = input.dims3()?;
        let heads = |part: usize| {
            let (size, width) = ((batch_size, tokens, HEADS, WIDTH / HEADS), WIDTH);
            let rows = project(input, qkv)?.narrow(D::Minus1, part * width, width)?; // [B, T, D]
            rows.reshape(size)?.transpose(1, 2)?.contiguous() // [B, H, T, D/H]
        };
        let scores = (heads(0)?.matmul(&heads(1)?.transpose(2, 3)?.contiguous()?)? * 0.2)?; // [B, H, T, T]
        let weights = candle_nn::ops::softmax(&scores, D::Minus1)?; // [B, H, T, T]
        let mixed = weights.matmul(&heads(2)?)?.transpose(1, 2)?; // [B, T, H, D/H]
        project(&mixed.reshape((batch_size, tokens, WIDTH))?, out) // [B, T, D]
    }
}

/// Real training on the virtual device: its events, and a sample after the build, each step and the evaluation.
struct Trained {
    events: Vec<Event>,
    samples: Vec<MemorySample>,
}

const LIMIT_BYTES: u64 = 2 * GIB;
/// The virtual device is the process's.
static DEVICE: Mutex<()> = Mutex::new(());

/// Trains one step with each of these batches, then evaluates with the first.
fn train(batch_sizes: &[usize]) -> Trained {
    let _turn = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = LimitSpec::Bytes(Bytes(LIMIT_BYTES));
    let mut device = VirtualDevice::open(limit, AllocatorKind::Native).unwrap();
    device.begin_trial().unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let copy = Rc::clone(&events);
    device.set_event_sink(Some(Box::new(move |piece| copy.borrow_mut().extend_from_slice(piece))));
    let mut samples = Vec::new();
    let mut sample = |device: &mut VirtualDevice| samples.push(device.sample(0, LargestRequest::Estimate));

    let candle = device.candle().clone();
    let model = within(&mut device, Phase::Build, || transformer::Transformer::new(&candle));
    sample(&mut device);
    let mut optimizer = None;
    // The loss lives until the next step has its own, as a training loop keeps it.
    let mut kept_loss = None;
    for (step, batch_size) in batch_sizes.iter().enumerate() {
        device.begin_step(step as u32);
        let (inputs, targets) = within(&mut device, Phase::Load, || model.batch(*batch_size));
        let loss = within(&mut device, Phase::Forward, || model.loss(&inputs, &targets));
        let gradients = within(&mut device, Phase::Backward, || loss.backward());
        within(&mut device, Phase::Optimizer, || {
            if optimizer.is_none() {
                optimizer = Some(model.optimizer()?);
            }
            optimizer.as_mut().map_or(Ok(()), |optimizer| optimizer.step(&gradients))
        });
        drop(gradients);
        kept_loss = Some(loss.detach());
        sample(&mut device);
    }
    within(&mut device, Phase::Evaluation, || {
        let (inputs, targets) = model.batch(batch_sizes[0])?;
        model.loss(&inputs, &targets)?.to_dtype(DType::F32)
    });
    sample(&mut device);
    drop((model, optimizer, kept_loss));
    assert_eq!(device.end_trial(), 0);
    drop(device);
    Trained { events: events.take(), samples }
}

fn within<T>(device: &mut VirtualDevice, phase: Phase, work: impl FnOnce() -> Result<T>) -> T {
    device.begin_phase(phase);
    let made = work().unwrap();
    device.end_phase().unwrap();
    made
}

fn forecast(probes: &[(usize, Vec<Event>)], request: &Request) -> Report {
    let report = forecaster(probes).report(request, &conditions(LIMIT_BYTES)).unwrap();
    assert_eq!(report.method, Method::Exact, "{}", report.reason);
    report
}

/// Both peaks of a window, in bytes.
fn peaks(point: &ForecastPoint, window: Window) -> (u64, u64) {
    let figures = point.windows.iter().find(|figures| figures.window == window).unwrap();
    (figures.peak_allocated_bytes, figures.peak_reserved_bytes)
}

fn highest(samples: &[MemorySample]) -> (u64, u64) {
    let highest = |get: fn(&MemorySample) -> u64| samples.iter().map(get).max().unwrap();
    (highest(|sample| sample.peak_allocated_bytes), highest(|sample| sample.peak_reserved_bytes))
}

#[test]
fn a_transformer_is_forecast_to_the_byte_at_up_to_eight_times_the_batch() {
    let probes = [2, 3].map(|batch_size| (batch_size, train(&[batch_size; 3]).events));
    let report = forecast(&probes, &Request::of(&[2, 3, 4, 8, 16]));
    for point in &report.points {
        let samples = train(&[point.batch_size; 3]).samples;
        assert_eq!((point.peak_allocated_bytes, point.peak_reserved_bytes), highest(&samples));
        assert_eq!(peaks(point, Window::Build), highest(&samples[..1]));
        assert_eq!(peaks(point, Window::FirstStep), highest(&samples[1..2]));
        assert_eq!(peaks(point, Window::SteadyStep), highest(&samples[2..4]));
        assert_eq!(peaks(point, Window::Evaluation), highest(&samples[4..]));
        let largest = samples.iter().map(|sample| sample.largest_request_bytes).max();
        assert_eq!(Some(point.largest_request_bytes), largest);
    }
    // The peak moves as the batch grows: a line through the probes' peaks would be a tenth off at least.
    let peak = |index: usize| report.points[index].peak_allocated_bytes;
    assert!(peak(0) + 14 * (peak(1) - peak(0)) < peak(4) / 10 * 9);
}

#[test]
fn a_partial_last_batch_and_a_longer_run_are_forecast_to_the_byte() {
    let probes = [2, 3].map(|batch_size| (batch_size, train(&[batch_size; 3]).events));
    let request = Request { batch_sizes: vec![8], updates: Some(5), partial_batch_size: Some(5) };
    let point = forecast(&probes, &request).points.remove(0);
    let samples = train(&[8, 8, 8, 8, 5, 8]).samples;
    assert_eq!((point.peak_allocated_bytes, point.peak_reserved_bytes), highest(&samples));
    assert_eq!(peaks(&point, Window::PartialStep), highest(&samples[5..6]));
    assert_eq!(peaks(&point, Window::SteadyStep), highest(&[&samples[2..5], &samples[6..7]].concat()));
}

#[test]
fn probes_of_different_lengths_are_forecast_all_the_same() {
    let probes = [(2, train(&[2; 4]).events), (3, train(&[3; 2]).events)];
    let point = forecast(&probes, &Request::of(&[8])).points.remove(0);
    let samples = train(&[8; 2]).samples;
    assert_eq!((point.peak_allocated_bytes, point.peak_reserved_bytes), highest(&samples));
}

//! Runs of images of varying sides, forecast from a handful of tiny probes and trained for real on the virtual device: a
//! ResNet over square images, and over images of two sides. First through the library, then as a user would, from files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;

use batchtune::data::Batch;
use batchtune::device::{self, DeviceChoice, DeviceSession, LargestRequest};
use batchtune::memory::forecast::Method;
use batchtune::memory::forecast::long_run::play;
use batchtune::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use batchtune::memory::policy::native::Native;
use batchtune::memory::trace::{TraceHeader, TraceWriter};
use batchtune::memory::{AllocatorKind, Event, LimitSpec, MemorySample, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::train::trainer::Trainer;
use batchtune::train::{BatchNorm, Precision, TrainSpec};
use batchtune::units::{Bytes, GIB};
use candle_core::{Device, Tensor};

batchtune::declare_allocator!();

const LIMIT_BYTES: u64 = 2 * GIB;
const PROBE_STEPS: usize = 4;
/// Batches, heights and widths. The strides of the net divide sides by 16.
const SQUARES: [[u64; 3]; 7] =
    [[2, 32, 32], [3, 32, 32], [2, 48, 48], [3, 48, 48], [2, 80, 80], [4, 64, 64], [3, 96, 96]];
const IMAGES: [[u64; 3]; 8] =
    [[2, 32, 48], [3, 48, 32], [2, 64, 80], [3, 80, 96], [4, 32, 96], [4, 96, 64], [3, 64, 32], [2, 112, 48]];

/// The virtual device is one at a time in a process.
static DEVICE: Mutex<()> = Mutex::new(());

/// Steps over images of these shapes, with what the device saw and its figures after each.
fn train(shapes: &[[u64; 3]]) -> (Vec<Event>, Vec<MemorySample>) {
    let _alone = DEVICE.lock();
    let limit = LimitSpec::Bytes(Bytes(LIMIT_BYTES));
    let mut session = device::open(DeviceChoice::Cpu, limit, AllocatorKind::Native).unwrap();
    let events: Rc<RefCell<Vec<Event>>> = Rc::default();
    let sink = Rc::clone(&events);
    session.set_event_sink(Some(Box::new(move |new| sink.borrow_mut().extend_from_slice(new))));
    let samples = steps(session.as_mut(), shapes);
    session.set_event_sink(None);
    assert_eq!(session.end_trial(), 0, "every tensor of the trial is freed");
    (events.take(), samples)
}

fn steps(session: &mut dyn DeviceSession, shapes: &[[u64; 3]]) -> Vec<MemorySample> {
    let spec = ModelSpec {
        family: "resnet".to_owned(),
        preset: Some("nano".to_owned()),
        hidden_size: Some(8),
        ..ModelSpec::default()
    };
    let device = session.candle().clone();
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Build);
    let (precision, batch_norm) = (Precision::F32, BatchNorm::Train);
    let context = BuildContext { spec: &spec, device: &device, precision, batch_norm, seed: 7, replicas: None };
    let workload = Registry::builtin().get("resnet").unwrap().build(&context).unwrap();
    let mut trainer = Trainer::new(workload, &TrainSpec { learning_rate: 1e-3, ..TrainSpec::default() }).unwrap();
    session.end_phase().unwrap();
    let mut samples = Vec::new();
    for (step, shape) in (0..).zip(shapes) {
        session.begin_step(step);
        session.begin_phase(Phase::Load);
        let batch = batch(*shape, &device);
        session.end_phase().unwrap();
        trainer.step(&batch, session).unwrap();
        trainer.update(session).unwrap();
        drop(batch);
        samples.push(session.sample(step + 1, LargestRequest::Estimate));
    }
    drop(trainer);
    samples
}

fn batch(shape: [u64; 3], device: &Device) -> Batch {
    let [samples, height, width] = shape.map(|value| value as usize);
    let pixels: Vec<f32> = (0..samples * 3 * height * width).map(|place| (place * 31 % 101) as f32 / 101.0).collect();
    let classes: Vec<u32> = (0..10).cycle().take(samples).collect();
    let input = Tensor::from_slice(&pixels, (samples, 3, height, width), device).unwrap(); // [B, C, H, W]
    let target = Tensor::from_slice(&classes, samples, device).unwrap(); // [B]
    Batch { input, target, samples }
}

fn record(shape: &[u64; 3]) -> Vec<Event> {
    train(&[*shape; PROBE_STEPS]).0
}

/// The shape of a batch over the axes of a forecast: the width is left out where images are square.
fn shape_on(axes: &Axes, [batch, height, width]: [u64; 3]) -> Shape {
    if axes.count() == 2 { Shape::of([batch, height]) } else { Shape::of([batch, height, width]) }
}

/// Forecasts a run over such axes, and holds it against the real one.
fn assert_foretold(axes: &Axes, probes: &[[u64; 3]], run: &[[u64; 3]]) {
    let recordings: Vec<Vec<Event>> = probes.iter().map(record).collect();
    let shapes = probes.iter().zip(&recordings);
    let probes: Vec<ShapeProbe<'_>> =
        shapes.map(|(shape, events)| ShapeProbe { shape: shape_on(axes, *shape), events }).collect();
    let forecaster = ShapeForecaster::new(axes.clone(), &probes).unwrap();
    assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
    let (_, real) = train(run);
    let shapes: Vec<Shape> = run.iter().map(|shape| shape_on(axes, *shape)).collect();
    let events = forecaster.events(LongRun::of(&shapes)).unwrap();
    let figures = play(events, Box::new(Native::new(LIMIT_BYTES)), &mut |_| ());
    assert_eq!(figures.steps as usize, real.len());
    for (point, sample) in figures.points.iter().zip(&real) {
        assert_eq!(point.peak_reserved_bytes, sample.peak_reserved_bytes, "reserved in step {}", point.step);
        // The first window of the real run has the build as well.
        if point.step > 0 {
            assert_eq!(point.peak_allocated_bytes, sample.peak_allocated_bytes, "allocated in step {}", point.step);
        }
    }
}

#[test]
fn every_step_over_square_images_of_varying_sides_is_forecast_to_the_byte() {
    let sides = [64, 112, 48, 128, 80, 128, 32, 96, 112, 64];
    let run: Vec<[u64; 3]> = sides.iter().map(|side| [4, *side, *side]).collect();
    assert_foretold(&Axes::of(["batch", "side"]).unwrap(), &SQUARES, &run);
}

#[test]
fn every_step_over_images_of_two_varying_sides_is_forecast_to_the_byte() {
    let sides = [[64, 112], [112, 64], [128, 32], [48, 96], [96, 128], [32, 32], [80, 112], [128, 112]];
    let run: Vec<[u64; 3]> = sides.iter().map(|[height, width]| [4, *height, *width]).collect();
    assert_foretold(&Axes::of(["batch", "height", "width"]).unwrap(), &IMAGES, &run);
}

#[test]
fn sides_that_strides_do_not_divide_are_forecast_where_all_leave_the_same_remainder() {
    let odd = SQUARES.map(|[batch, side, _]| [batch, side + 1, side + 1]);
    let run: Vec<[u64; 3]> = [65, 113, 49, 129].iter().map(|side| [4, *side, *side]).collect();
    assert_foretold(&Axes::of(["batch", "side"]).unwrap(), &odd, &run);
}

/// `tune forecast --run` from recordings at these shapes, with the place of each axis in them.
fn forecast(
    folder: &Path,
    probes: &[[u64; 3]],
    axes: &[(&str, usize)],
    options: &[&str],
) -> assert_cmd::assert::Assert {
    let mut tune = assert_cmd::Command::cargo_bin("tune").unwrap();
    tune.current_dir(folder).arg("forecast");
    for (place, shape) in probes.iter().enumerate() {
        let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default()).unwrap();
        writer.write(&record(shape)).unwrap();
        let name = format!("{place}.trace");
        std::fs::write(folder.join(&name), writer.finish().unwrap()).unwrap();
        tune.arg(name);
    }
    let column = |axis: usize| probes.iter().map(|shape| shape[axis].to_string()).collect::<Vec<_>>().join(",");
    tune.args(["--batches", &column(0), "--json", "--limit", "2GiB"]).args(options);
    for (name, axis) in axes {
        tune.args(["--axis", &format!("{name}={}", column(*axis))]);
    }
    tune.assert()
}

fn json(forecast: assert_cmd::assert::Assert) -> serde_json::Value {
    serde_json::from_slice(&forecast.success().get_output().stdout).unwrap()
}

#[test]
fn sides_that_leave_different_remainders_are_refused_with_the_two_that_differ() {
    let folder = tempfile::tempdir().unwrap();
    let mixed = [[2, 33, 33], [3, 34, 34], [2, 47, 47], [3, 52, 52]];
    let refused = forecast(folder.path(), &mixed, &[("side", 1)], &["--to", "8", "--run-axis", "side=64:96"]);
    let told = String::from_utf8_lossy(&refused.code(2).get_output().stderr).into_owned();
    assert!(told.contains("the probes at `batch 2, side 33` and `batch 2, side 47` differ at event "), "{told}");
    assert!(told.contains("record sides that leave the same remainder, such as multiples of 32"), "{told}");
}

#[test]
fn a_file_of_image_sizes_is_batched_padded_and_forecast_as_it_is_trained() {
    let folder = tempfile::tempdir().unwrap();
    let images = [[48, 96], [64, 33], [112, 64], [30, 40], [128, 32], [90, 96], [64, 64], [17, 128], [80, 80]];
    let lines: Vec<String> = images.iter().map(|[height, width]| format!("{height},{width}\n")).collect();
    std::fs::write(folder.path().join("sizes.csv"), format!("height,width\n{}", lines.concat())).unwrap();
    let steps = 9;
    let options = ["--to", "3", "--steps", &steps.to_string(), "--run-shapes", "sizes.csv", "--pad-to", "16"];
    let found = json(forecast(folder.path(), &IMAGES, &[("height", 1), ("width", 2)], &options));
    assert_eq!((&found["method"], &found["axes"]), (&"exact".into(), &serde_json::json!(["batch", "height", "width"])));
    assert_eq!(found["notes"], serde_json::Value::Null);
    let run = &found["runs"][0];
    assert_eq!(run["batches"]["largest"], serde_json::json!([3, 128, 128]));

    let mut next = images.iter().cycle();
    let padded =
        |sides: &[&[u64; 2]], axis: usize| sides.iter().map(|sides| sides[axis].next_multiple_of(16)).max().unwrap();
    let batches: Vec<[u64; 3]> = (0..steps)
        .map(|_| {
            let sides: Vec<&[u64; 2]> = next.by_ref().take(3).collect();
            [3, padded(&sides, 0), padded(&sides, 1)]
        })
        .collect();
    let (_, real) = train(&batches);
    let points = run["figures"]["points"].as_array().unwrap();
    let reserved: Vec<u64> = points.iter().map(|point| point["peak_reserved_bytes"].as_u64().unwrap()).collect();
    assert_eq!(reserved, real.iter().map(|sample| sample.peak_reserved_bytes).collect::<Vec<_>>());
}

#[test]
fn a_side_that_is_drawn_for_each_batch_takes_what_a_step_at_that_side_takes() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--to", "4", "--steps", "12", "--run-axis", "side=64:96:16", "--per-batch", "side", "--tune"];
    let found = json(forecast(folder.path(), &SQUARES, &[("side", 1)], &options));
    let real = [64, 80, 96].map(|side| train(&[[4, side, side]; 3]).1[2].peak_allocated_bytes);
    let points = found["runs"][0]["figures"]["points"].as_array().unwrap();
    let drawn = points.iter().skip(1).map(|point| point["peak_allocated_bytes"].as_u64().unwrap());
    let sides: Vec<usize> = drawn.map(|bytes| real.iter().position(|real| *real == bytes).unwrap()).collect();
    assert!((0..3).all(|side| sides.contains(&side)), "{sides:?}");
    // Nothing is padded, and there is nothing to group.
    let ways = found["tuned"][0]["remedies"]["ways"].as_array().unwrap();
    assert_eq!(ways[0]["figures"]["padding_share"], 0.0);
    let names: Vec<&str> = ways.iter().map(|way| way["name"].as_str().unwrap()).collect();
    assert!(names.iter().all(|name| !name.contains("grouped")), "{names:?}");
    assert!(names.last().unwrap().contains("pixels a batch, 16 samples at most"), "{names:?}");
}

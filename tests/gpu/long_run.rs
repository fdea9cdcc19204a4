//! A run in which every step has another length, forecast from seven tiny probes and trained for real: its live bytes step
//! by step, and what the driver's pool came to hold. `tests/long_run.rs` does the same on the virtual device.

use std::cell::RefCell;
use std::fmt::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use batchtune::data::Batch;
use batchtune::device::{DeviceSession, LargestRequest};
use batchtune::memory::forecast::long_run::{LongRunFigures, play};
use batchtune::memory::forecast::shape::{Axes, LongRun, Shape, ShapeForecaster, ShapeProbe};
use batchtune::memory::policy::{ReleaseThreshold, Settings, with_settings};
use batchtune::memory::trace::{TraceHeader, TraceWriter};
use batchtune::memory::{Event, MemorySample, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::train::trainer::Trainer;
use batchtune::train::{BatchNorm, Precision, TrainSpec};
use candle_core::{Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::{session, turn};

const PROBES: [[u64; 2]; 7] = [[2, 64], [3, 64], [2, 96], [3, 96], [2, 160], [4, 128], [3, 200]];
/// Enough for two updates after the first that are alike.
const PROBE_STEPS: usize = 4;
const BATCH_SIZE: u64 = 8;
const SHORTEST: u64 = 64;
const LONGEST: u64 = 1024;
const VOCABULARY: u32 = 50_257;
const LIMIT_GIB: u64 = 120;
/// The pool's model is approximate.
const RESERVED_OFF_PERCENT: f64 = 3.0;

fn variable(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn folder() -> PathBuf {
    std::env::var_os("LONG_RUN_OUT").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Steps of these shapes, with what the device saw and its figures after each.
fn train(session: &mut dyn DeviceSession, shapes: &[[u64; 2]]) -> (Vec<Event>, Vec<MemorySample>) {
    let events: Rc<RefCell<Vec<Event>>> = Rc::default();
    let sink = Rc::clone(&events);
    session.set_event_sink(Some(Box::new(move |new| sink.borrow_mut().extend_from_slice(new))));
    let samples = steps(session, shapes);
    session.set_event_sink(None);
    assert_eq!(session.end_trial(), 0, "every tensor of the trial is freed");
    (events.take(), samples)
}

fn steps(session: &mut dyn DeviceSession, shapes: &[[u64; 2]]) -> Vec<MemorySample> {
    let spec = ModelSpec {
        family: "gpt".to_owned(),
        sequence_length: usize::try_from(LONGEST).ok(),
        layers: Some(8),
        heads: Some(8),
        hidden_size: Some(512),
        vocabulary_size: Some(VOCABULARY as usize),
        ..ModelSpec::default()
    };
    let device = session.candle().clone();
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Build);
    let (precision, batch_norm) = (Precision::Bf16, BatchNorm::Train);
    let context = BuildContext { spec: &spec, device: &device, precision, batch_norm, seed: 7, replicas: None };
    let workload = Registry::builtin().get("gpt").unwrap().build(&context).unwrap();
    let mut trainer = Trainer::new(workload, &TrainSpec { precision, ..TrainSpec::default() }).unwrap();
    session.end_phase().unwrap();
    let mut samples = Vec::new();
    for (step, [samples_of_step, length]) in shapes.iter().enumerate() {
        session.begin_step(u32::try_from(step).unwrap());
        session.begin_phase(Phase::Load);
        let batch = batch(*samples_of_step as usize, *length as usize, &device);
        session.end_phase().unwrap();
        trainer.step(&batch, session).unwrap();
        trainer.update(session).unwrap();
        drop(batch);
        samples.push(session.sample(u32::try_from(step).unwrap() + 1, LargestRequest::Estimate));
    }
    drop(trainer);
    samples
}

fn batch(samples: usize, length: usize, device: &Device) -> Batch {
    let ids: Vec<u32> = (0..samples * length).map(|place| u32::try_from(place * 31).unwrap() % VOCABULARY).collect();
    let tensor = || Tensor::from_slice(&ids, (samples, length), device).unwrap(); // [B, T]
    Batch { input: tensor(), target: tensor(), samples }
}

/// Keeps a recording for whoever looks into a difference later.
fn keep(name: &str, events: &[Event]) {
    let write = || -> std::io::Result<()> {
        let mut writer = TraceWriter::new(std::fs::File::create(folder().join(name))?, &TraceHeader::default())?;
        writer.write(events)?;
        writer.finish().map(|_| ())
    };
    if let Err(error) = write() {
        println!("`{name}` is not kept: {error}");
    }
}

/// The most bytes that are live in each step, as they were asked for.
fn live_peaks(events: impl Iterator<Item = Event>) -> Vec<u64> {
    let settings = Settings { min_block_bytes: 1, ..Settings::driver_pool(ReleaseThreshold::Max) };
    let mut player = batchtune::memory::Player::new(with_settings(settings, u64::MAX));
    let (mut peaks, mut peak) = (Vec::new(), 0);
    for event in events {
        if let Event::Mark(batchtune::memory::Mark::Step(_)) = event {
            peaks.push(peak);
            peak = player.state().requested_bytes;
        }
        player.play(&event);
        if matches!(event, Event::Alloc { .. }) {
            peak = peak.max(player.state().requested_bytes);
        }
    }
    peaks.push(peak);
    // What came before the first step is no step.
    peaks.split_off(1)
}

fn series(lengths: &[u64], live: &[u64], figures: &LongRunFigures, samples: &[MemorySample]) -> String {
    let mut text = "step,length,forecast_live,live,forecast_reserved,reserved\n".to_owned();
    let steps = lengths.iter().zip(live).zip(&figures.points).zip(samples);
    for (step, (((length, live), point), sample)) in steps.enumerate() {
        let (allocated, reserved) = (sample.peak_allocated_bytes, sample.peak_reserved_bytes);
        let _ = writeln!(text, "{step},{length},{live},{allocated},{},{reserved}", point.peak_reserved_bytes);
    }
    text
}

#[test]
#[ignore = "takes a minute or two; prints a table"]
fn three_hundred_steps_of_varying_lengths_are_forecast_from_seven_tiny_probes() {
    let _turn = turn();
    let mut session = session(LIMIT_GIB);
    let begun = Instant::now();
    // What libraries set up once in a process is no part of a step.
    train(&mut session, &[[2, 32]; 2]);
    let mut recordings = Vec::new();
    for shape in PROBES {
        let (events, _) = train(&mut session, &[shape; PROBE_STEPS]);
        keep(&format!("candle-probe-{}x{}.trace", shape[0], shape[1]), &events);
        recordings.push(events);
    }
    println!("a first run and seven probes in {:.1} s", begun.elapsed().as_secs_f64());
    let probes: Vec<ShapeProbe<'_>> =
        PROBES.iter().zip(&recordings).map(|(shape, events)| ShapeProbe { shape: Shape::of(*shape), events }).collect();
    let forecaster = ShapeForecaster::new(Axes::batch_and_length(), &probes).unwrap();
    println!("{}: {}", forecaster.method(), forecaster.reason());

    let mut rng = StdRng::seed_from_u64(10);
    let lengths: Vec<u64> =
        (0..variable("LONG_RUN_STEPS", 300)).map(|_| rng.random_range(SHORTEST..=LONGEST)).collect();
    let shapes: Vec<Shape> = lengths.iter().map(|length| Shape::of([BATCH_SIZE, *length])).collect();
    let long = LongRun::of(&shapes);
    let pool = Settings::driver_pool(ReleaseThreshold::Max);
    let figures = play(forecaster.events(long).unwrap(), with_settings(pool, u64::MAX), &mut |_| ());
    let live = live_peaks(forecaster.events(long).unwrap());

    let begun = Instant::now();
    let run: Vec<[u64; 2]> = lengths.iter().map(|length| [BATCH_SIZE, *length]).collect();
    let (events, samples) = train(&mut session, &run);
    let seconds = begun.elapsed().as_secs_f64();
    let _ = std::fs::write(folder().join("candle.csv"), series(&lengths, &live, &figures, &samples));
    let steps = samples.len();
    println!(
        "{steps} steps of {SHORTEST} to {LONGEST} tokens, batch {BATCH_SIZE}: {seconds:.1} s, {} events",
        events.len()
    );

    // The first window of the real run has the build as well.
    let unequal: Vec<usize> = (1..steps).filter(|step| live[*step] != samples[*step].peak_allocated_bytes).collect();
    for step in unequal.iter().take(5) {
        let (length, expected, measured) = (lengths[*step], live[*step], samples[*step].peak_allocated_bytes);
        println!("  step {step} (T={length}): {expected} live at most by forecast, {measured} measured");
    }
    // Whatever the device did not show is in its events: where they say the same as the forecast, the sample is what is off.
    let recorded = live_peaks(events.iter().copied());
    let by_events = unequal.iter().filter(|step| recorded.get(**step) != live.get(**step)).count();
    let highest = samples.iter().map(|sample| sample.peak_reserved_bytes).max().unwrap();
    let off = (figures.peak_reserved_bytes as f64 / highest as f64 - 1.0) * 100.0;
    println!("candle | steps | live peak equal | unequal by the events too | reserved, forecast | measured | off");
    println!(
        "candle | {steps} | {} of {} | {by_events} | {} | {highest} | {off:+.2} %",
        steps - 1 - unequal.len(),
        steps - 1,
        figures.peak_reserved_bytes
    );
    assert!(unequal.len() * 100 <= steps, "{} of {steps} steps are off", unequal.len());
    assert!(off.abs() <= RESERVED_OFF_PERCENT, "the pool's mark is {off:+.2} % off");
}

//! Programs of the user's own whose batches vary in length: a whole run forecast from tiny probes of one length each, and
//! then run for real, step by step, under several settings of the allocator and under a limit that only some survive. And
//! a whole study of such a program ([`study`]), which searches for those settings itself.
//!
//! Here the program is `fake_trainer.py`. The same is done with PyTorch on a card by the ignored test, for
//! `tests/gpu/long_run.sh`.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests, and tables that are printed")]

mod card;
mod refused;
mod rig;
mod study;

use batchtune::data::{DataSpec, ImageSizeSpec, SampleSize};
use batchtune::device::DeviceChoice;
use batchtune::memory::forecast::Method;
use batchtune::search::shape_probes;
use batchtune::trial::Outcome;
use batchtune::units::{GIB, MIB};

use rig::{Probe, Program, Rig, Run, forecast, forecaster, least_limit, settings};

const PROBES: [[u64; 2]; 7] = [[2, 16], [3, 16], [2, 24], [3, 24], [2, 40], [4, 32], [3, 50]];
const CONFS: [&str; 3] = ["", "expandable_segments:True", "max_split_size_mb:20"];

fn program() -> Program {
    let trainer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_trainer.py");
    let options = ["--uneven", "--bytes-per-sample=4194304", "--step-ms=0.05", "--sample-ms=0", "--load-ms=0"];
    Program {
        run: ["python3", trainer].iter().chain(&options).map(ToString::to_string).collect(),
        preload: Vec::new(),
        device: DeviceChoice::Cpu,
        limit_bytes: 2 * GIB,
    }
}

fn run() -> Run {
    Run { batch_size: 8, lengths: (0..60).map(|step| 40 + step * 7919 % 461).collect() }
}

/// The same program with images, of another side in each batch.
fn with_images() -> (Program, Run) {
    let mut program = program();
    program.run.extend(["--sides", "--image-size={image_size}"].map(str::to_owned));
    (program, Run { batch_size: 8, lengths: (0..60).map(|step| 160 + 32 * (step * 7919 % 6)).collect() })
}

#[test]
fn every_step_of_a_command_with_varying_lengths_is_forecast_to_the_byte_under_every_setting() {
    let mut rig = Rig::new(&program());
    let probes = rig.probes(&PROBES, SampleSize::Tokens).unwrap();
    assert_forecast(&mut rig, &probes, &run());
}

#[test]
fn every_step_of_a_command_whose_images_vary_in_side_is_forecast_to_the_byte_under_every_setting() {
    let (program, run) = with_images();
    let mut rig = Rig::new(&program);
    let image_size = ImageSizeSpec::Range { min: 160, max: 320, multiple_of: 32, every: 1 };
    let shapes = shape_probes::shapes(&DataSpec { image_size: Some(image_size), ..DataSpec::default() }).unwrap();
    let shapes: Vec<[u64; 2]> =
        shapes.iter().map(|(batch_size, size)| [*batch_size as u64, size.value() as u64]).collect();
    let probes = rig.probes(&shapes, SampleSize::Side).unwrap();
    assert_forecast(&mut rig, &probes, &run);
}

/// Whether the run holds in every step what is forecast of it, under every setting.
fn assert_forecast(rig: &mut Rig, probes: &[Probe], run: &Run) {
    let forecaster = forecaster(probes).unwrap();
    assert_eq!(forecaster.method(), Method::Exact, "{}", forecaster.reason());
    for conf in CONFS {
        let figures = forecast(&forecaster, run, &settings(conf), program().limit_bytes);
        let record = rig.train(run, conf);
        assert_eq!(record.outcome, Outcome::Completed, "`{conf}`: {record:#?}");
        assert_eq!((record.samples.len(), figures.points.len()), (60, 60));
        for (point, sample) in figures.points.iter().zip(&record.samples) {
            assert_eq!(
                point.peak_reserved_bytes, sample.peak_reserved_bytes,
                "`{conf}`, reserved in step {}",
                point.step
            );
            // The first window of the real run has the build as well.
            if point.step > 0 {
                assert_eq!(point.peak_allocated_bytes, sample.peak_allocated_bytes, "`{conf}`, step {}", point.step);
            }
        }
    }
}

#[test]
fn a_setting_that_is_forecast_to_run_out_does_in_that_step_and_one_that_is_not_survives() {
    let run = run();
    let probes = Rig::new(&program()).probes(&PROBES, SampleSize::Tokens).unwrap();
    let forecaster = forecaster(&probes).unwrap();
    let [default, _, split] = CONFS.map(|conf| least_limit(&forecaster, &run, &settings(conf)));
    println!("default {default}, with max_split_size_mb {split}");
    let (survivor, limit_bytes) =
        if default < split { ("", default.midpoint(split)) } else { (CONFS[2], split.midpoint(default)) };
    let victim = if survivor.is_empty() { CONFS[2] } else { "" };
    assert!(default.abs_diff(split) > MIB, "the settings differ");
    let figures = forecast(&forecaster, &run, &settings(victim), limit_bytes);
    let end = figures.out_of_memory.unwrap();
    let mut limited = Rig::new(&Program { limit_bytes, ..program() });
    let record = limited.train(&run, victim);
    assert_eq!(record.outcome.name(), "out_of_memory", "{record:#?}");
    assert_eq!(rig::steps_done(&record), end.step, "{record:#?}");
    assert_eq!(limited.train(&run, survivor).outcome, Outcome::Completed);
}

#[test]
fn a_program_that_takes_no_notice_of_the_length_or_the_side_is_found_out() {
    let mut texts = program();
    texts.run.extend(["--heedless".to_owned(), "--max-length=64".to_owned()]);
    let error = Rig::new(&texts).probes(&PROBES, SampleSize::Tokens).unwrap_err();
    assert!(error.contains("allocates the same at 16 tokens and at 24 tokens"), "{error}");
    let (mut images, _) = with_images();
    images.run.push("--heedless".to_owned());
    let error = Rig::new(&images).probes(&PROBES, SampleSize::Side).unwrap_err();
    assert!(error.contains("allocates the same at 16 pixels a side and at 24 pixels a side (hint: "), "{error}");
    assert!(error.contains("the side `{image_size}` where it is not 0"), "{error}");
}

//! A run of 10,000 steps of 10,000 events, no two shapes alike in order, played to the end under two settings side by side:
//!
//! ```sh
//! cargo run --release --example long_run_rate -- 10000
//! ```

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use batchtune::memory::forecast::long_run::play;
use batchtune::memory::forecast::shape::LongRun;
use batchtune::memory::policy::{self, Settings};

mod program;

fn main() -> Result<(), Box<dyn Error>> {
    let steps = std::env::args().nth(1).unwrap_or_else(|| "10000".to_owned()).parse()?;
    let forecaster = program::forecaster()?;
    let shapes = program::Lengths { steps };
    let run = forecaster.events(LongRun::of(&shapes))?;
    let timed = |settings: Settings| {
        let (run, begun) = (run.clone(), Instant::now());
        (play(run, policy::with_settings(settings, u64::MAX), &mut |_| ()), begun.elapsed().as_secs_f64())
    };
    let (native, expandable) = std::thread::scope(|scope| {
        let other = scope.spawn(|| timed(Settings::expandable()));
        (timed(Settings::default()), other.join())
    });
    let both = [("native", Some(native)), ("expandable", expandable.ok())];
    let mut out = std::io::stdout().lock();
    for (name, (figures, seconds)) in both.into_iter().filter_map(|(name, played)| Some((name, played?))) {
        writeln!(
            out,
            r#"{{"setting": "{name}", "steps": {}, "seconds": {seconds:.2}, "peak_reserved_bytes": {}, "last_growth_step": {}}}"#,
            figures.steps, figures.peak_reserved_bytes, figures.last_growth_step
        )?;
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: not known");
    writeln!(out, "{peak}")?;
    Ok(())
}

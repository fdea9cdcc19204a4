//! What would make a whole run last that breaks: other padding, or releases of the cache.
//!
//! A run that dies at step 8,000 needs no smaller batch if it dies of what its cache has become. Where that is so, the
//! configuration has keys that help, and the same forecast says whether they do: each is played like the run itself. None
//! is applied: padding costs compute and releases cost time, which is for the user to weigh.

use super::Probed;
use super::coming::{Coming, Ended, Setting};
use super::whole_run::Watch;
use crate::data::run_shapes::RunShapes;
use crate::data::{DataSpec, Padding};
use crate::memory::Trim;
use crate::memory::forecast::Method;
use crate::memory::forecast::tuning::{Allocator, Candidate};
use crate::search::History;
use crate::trial::Point;
use crate::trial::worker::TRIM_EVERY_STEPS;
use crate::units::Bytes;

/// Multiples that are worth a try, the one that pads least first.
const MULTIPLES: [usize; 3] = [64, 128, 256];

impl Probed {
    /// Keys of the configuration with which the run of a point lasts, each with what it comes to. `None` where `watch`
    /// ended it.
    pub fn advise(&self, point: &Point, history: &History, watch: &mut Watch<'_>) -> Option<Vec<String>> {
        let (Some(run), Some(samples)) = (&self.terms.run, self.runs.samples) else { return Some(Vec::new()) };
        let Ok(basis) = self.basis(point, history) else { return Some(Vec::new()) };
        // What may err has been played with more memory than there is before it broke.
        if basis.method != Method::Exact {
            return Some(Vec::new());
        }
        let settings = self.settings_of_run(point);
        let coming = |data: &DataSpec| Coming {
            shapes: RunShapes::new(data, samples, point.batch_size, run.seed),
            ..self.coming(point, (run, samples), &basis)
        };
        let mut advice = Vec::new();
        if basis.varies && run.data.padding == Padding::Longest {
            let longest = coming(&run.data).shapes.longest().length.unwrap_or(0);
            let known = run.data.pad_to_multiple_of.unwrap_or(1);
            for multiple in MULTIPLES.into_iter().filter(|multiple| known < *multiple && *multiple < longest) {
                let data = DataSpec { pad_to_multiple_of: Some(multiple), ..run.data.clone() };
                if let Some(reserved_bytes) = reserved(&coming(&data), &settings, None, watch).ok()? {
                    advice.push(lasts(&format!("data.pad_to_multiple_of: {multiple}"), reserved_bytes));
                    break;
                }
            }
        }
        if point.trim == Trim::Never {
            let update = u32::try_from(point.accumulation_steps).unwrap_or(u32::MAX).max(1);
            let releases = [(Trim::EveryK, TRIM_EVERY_STEPS), (Trim::AfterUpdate, update)];
            for (trim, every) in releases {
                if let Some(reserved_bytes) = reserved(&coming(&run.data), &settings, Some(every), watch).ok()? {
                    advice.push(lasts(&format!("memory.trim: {trim}"), reserved_bytes));
                    break;
                }
            }
        }
        Some(advice)
    }
}

/// V at its highest under all of the allocators, if the run lasts under each.
fn reserved(
    coming: &Coming<'_>,
    settings: &[Setting],
    trim_every: Option<u32>,
    watch: &mut Watch<'_>,
) -> Result<Option<u64>, Ended> {
    let mut highest = 0;
    for setting in settings {
        let candidate = Candidate { trim_every, ..Candidate::of(Allocator::Given(setting.settings)) };
        match coming.reserved_if_it_lasts(setting, candidate.policy(coming.limit_bytes), watch)? {
            Some(reserved_bytes) => highest = highest.max(reserved_bytes),
            None => return Ok(None),
        }
    }
    Ok(Some(highest))
}

fn lasts(key: &str, reserved_bytes: u64) -> String {
    format!("with `{key}` the run lasts, by forecast with {} reserved", Bytes(reserved_bytes))
}

//! What may be concluded from samples.
//!
//! | finding | what must be seen |
//! |---|---|
//! | jumping | two falls and a rise or more, each of 2 % of the card, from between 60 and 90 % of it |
//! | fragmentation-like | jumping; then the end (the process failed, or ended unseen; or memory fell to under half and stayed) while 60 to 80 % were in use in the last ten seconds |
//! | leak | a line through the second half of the time ([`Climb`]) that climbs with 95 % confidence, in every third of it, to a height not seen before |
//! | card full | the process failed, or ended unseen, with 90 % in use |
//!
//! Growth that ends is no leak: a model that loads and a cache that fills do it in the first half. Teeth of a saw are none
//! either: their lines do not climb in every third, or not to a new height.

use super::climb::{Climb, LINE_POINTS, Span};
use super::findings::{Certainty, Finding, Kind};
use super::holders::Holders;
use super::series::{Leg, Point, Series, legs};
use super::summary::{Ending, Summary};
use super::{Sample, Subject};
use crate::units::{Bytes, Fraction, format_duration};

/// A fall or rise that counts.
const LEG: Fraction = Fraction(0.02);
/// Where jumps mean something: below, an allocator has room to take more; above, the card is full.
const BAND: (Fraction, Fraction) = (Fraction(0.6), Fraction(0.9));
/// An end below this had memory free.
const ROOMY: Fraction = Fraction(0.8);
/// How long before the end its height is taken.
const END_SECONDS: f64 = 10.0;
/// How long memory must stay down to have collapsed.
const COLLAPSED_SECONDS: f64 = 5.0;
/// A climb that counts.
const CLIMB: Fraction = Fraction(0.001);

/// What was seen so far.
#[derive(Clone, Debug)]
pub struct Observations {
    subject: Subject,
    series: Series,
    holders: Holders,
    samples: u64,
    missed: u64,
    disordered: u64,
}

impl Observations {
    /// Nothing yet.
    pub fn of(subject: &Subject) -> Self {
        Self {
            subject: subject.clone(),
            series: Series::default(),
            holders: Holders::default(),
            samples: 0,
            missed: 0,
            disordered: 0,
        }
    }

    /// Takes the next sample.
    pub fn add(&mut self, sample: &Sample) {
        let taken = self.series.push(Point {
            at_seconds: sample.at_seconds,
            used_bytes: sample.used_bytes,
            low_bytes: sample.low_bytes.min(sample.used_bytes),
            high_bytes: sample.high_bytes.max(sample.used_bytes),
            watched_bytes: sample.watched_bytes(),
        });
        if !taken {
            self.disordered += 1;
            return;
        }
        self.samples += 1;
        self.holders.add(&sample.processes);
    }

    /// Notes that the card did not answer.
    pub fn miss(&mut self) {
        self.missed += 1;
    }

    /// What holds as of now; `ending` where the watch is over.
    pub fn findings(&self, ending: Option<Ending>) -> Vec<Finding> {
        let jumps = self.jumps();
        let fragmentation = self.fragmentation(&jumps, ending);
        let jumping = if fragmentation.is_some() { None } else { jumps.finding() };
        let found = [
            fragmentation,
            jumping,
            self.card_full(ending),
            self.leak(ending),
            self.holders.others(self.subject.pid),
            self.hidden(ending),
        ];
        found.into_iter().flatten().collect()
    }

    /// The figures of the whole.
    pub fn summary(&self, ending: Ending) -> Summary {
        let points = self.series.points();
        Summary {
            ending,
            seconds: points.last().map_or(0.0, |last| last.at_seconds),
            samples: self.samples,
            missed_samples: self.missed,
            disordered_samples: self.disordered,
            total_bytes: self.subject.total_bytes,
            peak_bytes: points.iter().map(|point| point.high_bytes).max().unwrap_or(0),
            end_bytes: self.height_at_end(),
            falls: self.jumps().legs.iter().filter(|leg| leg.falls()).count(),
            processes: self.holders.largest_first(),
            findings: self.findings(Some(ending)),
        }
    }

    /// The used bytes over time, in `columns` steps: the highest of each.
    pub fn heights(&self, columns: usize) -> Vec<u64> {
        let points = self.series.points();
        let size = points.len().div_ceil(columns.max(1)).max(1);
        points.chunks(size).filter_map(|chunk| chunk.iter().map(|point| point.high_bytes).max()).collect()
    }

    /// The samples in the order of time, several as one where there are too many to keep.
    pub fn points(&self) -> &[Point] {
        self.series.points()
    }

    /// The highest use of each of the last points.
    pub fn latest(&self, points: usize) -> Vec<u64> {
        let all = self.series.points();
        all.iter().skip(all.len().saturating_sub(points)).map(|point| point.high_bytes).collect()
    }

    fn share(&self, share: Fraction) -> u64 {
        share.of(self.subject.total_bytes)
    }

    fn percent(&self, bytes: u64) -> String {
        format!("{:.0}%", 100.0 * bytes as f64 / self.subject.total_bytes.max(1) as f64)
    }

    /// The most that was in use in the last seconds, a fall at the very end not counted.
    fn height_at_end(&self) -> u64 {
        let points = self.series.points();
        let end = points.last().map_or(0.0, |last| last.at_seconds);
        let late = points.iter().rev().take_while(|point| point.at_seconds >= end - END_SECONDS);
        late.chain(points.iter().rev().take(3)).map(|point| point.high_bytes).max().unwrap_or(0)
    }

    fn jumps(&self) -> Jumps {
        let mut legs = legs(self.series.points(), self.share(LEG).max(1));
        // The last fall is the end, and not one of the jumps before it.
        let collapse = legs.pop_if(|leg| leg.falls() && leg.to_bytes < leg.from_bytes / 2);
        let band = self.share(BAND.0)..=self.share(BAND.1);
        // What falls to under half is a phase that ends, such as an evaluation, and not a cache that is given back.
        let is_jump = |leg: &&Leg| band.contains(&leg.top_bytes()) && leg.bottom_bytes() >= leg.top_bytes() / 2;
        let falls = legs.iter().filter(is_jump).filter(|leg| leg.falls()).count();
        let rises = legs.iter().filter(is_jump).filter(|leg| !leg.falls()).count();
        Jumps { collapse, falls, are_many: falls >= 2 && falls + rises >= 3, legs }
    }

    fn fragmentation(&self, jumps: &Jumps, ending: Option<Ending>) -> Option<Finding> {
        if !jumps.are_many {
            return None;
        }
        let has_ended = matches!(ending, Some(Ending::ProcessEnded { .. }));
        let (certainty, height, what) = match (ending.and_then(Ending::failure), jumps.collapse) {
            (Some(Certainty::Likely), _) => (Certainty::Likely, self.height_at_end(), "the process failed"),
            (Some(certainty), _) => (certainty, self.height_at_end(), "the process ended"),
            (None, Some(collapse)) if !has_ended && self.stays_down(jumps) => {
                (Certainty::IfOutOfMemory, collapse.from_bytes, "its memory was given back at once")
            }
            (None, _) => return None,
        };
        if height < self.share(BAND.0) || height >= self.share(ROOMY) {
            return None;
        }
        let condition = if certainty == Certainty::Likely { "" } else { "if it ran out of memory, " };
        let text = format!(
            "{condition}this looks like fragmentation: memory jumped between 60 and 90% of the card ({} falls), and {what} at {} ({}) \
             with {} of the card free. A single request larger than that, or a limit set within the program, looks the same from outside",
            jumps.falls,
            Bytes(height),
            self.percent(height),
            Bytes(self.subject.total_bytes.saturating_sub(height)),
        );
        Some(Finding::new(Kind::FragmentationLike, certainty, text))
    }

    /// Whether memory fell to under half and stayed there, and never came back from such a fall before.
    fn stays_down(&self, jumps: &Jumps) -> bool {
        let Some(collapse) = jumps.collapse else { return false };
        let points = self.series.points();
        let down = points.iter().rev().take_while(|point| point.high_bytes < collapse.from_bytes / 2 + 1);
        let since = down.last().map_or(f64::INFINITY, |first| first.at_seconds);
        let lasted = points.last().map_or(0.0, |last| last.at_seconds - since);
        lasted >= COLLAPSED_SECONDS && !jumps.legs.iter().any(|leg| leg.falls() && leg.to_bytes < leg.from_bytes / 2)
    }

    fn card_full(&self, ending: Option<Ending>) -> Option<Finding> {
        let certainty = ending?.failure()?;
        let height = self.height_at_end();
        (height >= self.share(BAND.1)).then(|| {
            let likely = "most likely it ran out of memory because the card was full";
            let condition =
                if certainty == Certainty::Likely { likely } else { "if it ran out of memory, the card was full" };
            let text = format!(
                "{condition}: {} of {} ({}) in its last seconds",
                Bytes(height),
                Bytes(self.subject.total_bytes),
                self.percent(height)
            );
            Finding::new(Kind::CardFull, certainty, text)
        })
    }

    fn leak(&self, ending: Option<Ending>) -> Option<Finding> {
        let (line, whose) = self.line_of_memory()?;
        let climb = Climb::of(&line, if ending.is_none() { Span::GoesOn } else { Span::Ended })?;
        if climb.rise_bytes < self.share(CLIMB).max(1) as f64 {
            return None;
        }
        let left_bytes = self.subject.total_bytes.saturating_sub(self.series.points().last()?.used_bytes);
        let until_full = std::time::Duration::try_from_secs_f64((left_bytes as f64 / climb.slope).round()).ok();
        let full = until_full.map_or_else(String::new, |time| {
            format!("; at this rate the card is full {} later", format_duration(time))
        });
        let text = format!(
            "the memory of {whose} climbs steadily, by {} a second over the last {} (at least {} with 95% confidence){full}. It is a \
             leak, or a cache that keeps growing",
            Bytes(climb.slope as u64),
            format_duration(std::time::Duration::from_secs(climb.seconds as u64)),
            Bytes(climb.least_slope as u64),
        );
        Some(Finding::new(Kind::Leak, Certainty::Seen, text))
    }

    /// The watched process's own memory where the driver tells it, else the card's.
    fn line_of_memory(&self) -> Option<(Vec<(f64, f64)>, String)> {
        let points = self.series.points();
        let own: Vec<(f64, f64)> =
            points.iter().filter_map(|point| Some((point.at_seconds, point.watched_bytes? as f64))).collect();
        if own.len() >= LINE_POINTS {
            let name = self.subject.process.as_deref().unwrap_or("the process");
            return Some((own, format!("{name} (process {})", self.subject.pid?)));
        }
        let all = points.iter().map(|point| (point.at_seconds, point.used_bytes as f64)).collect();
        Some((all, "the card".to_owned()))
    }

    /// Said at the end only: a program that starts does not hold memory yet.
    fn hidden(&self, ending: Option<Ending>) -> Option<Finding> {
        let pid = self.subject.pid.filter(|_| ending.is_some())?;
        let is_known = self.holders.include_the_watched();
        let points = self.series.points();
        let used = points.iter().map(|point| point.high_bytes).max()?;
        (!is_known && points.len() >= LINE_POINTS && used >= self.share(LEG)).then(|| {
            let text = format!(
                "the driver lists no memory for process {pid} (it has not used the card, or runs in a container, where the driver \
                 counts processes differently), so the card's memory is judged, whoever holds it"
            );
            Finding::new(Kind::HiddenProcesses, Certainty::Seen, text)
        })
    }
}

/// The falls and rises of a watch.
struct Jumps {
    legs: Vec<Leg>,
    /// The last fall, where it was to under half.
    collapse: Option<Leg>,
    /// Falls from within the band.
    falls: usize,
    are_many: bool,
}

impl Jumps {
    fn finding(&self) -> Option<Finding> {
        self.are_many.then(|| {
            let text = format!(
                "the card's memory jumps: it fell {} times by over 2% of the card, from between 60 and 90% of it. An allocator that finds \
                 no piece large enough gives its cache back and takes new memory, which is slow and a sign of fragmentation",
                self.falls
            );
            Finding::new(Kind::Jumping, Certainty::Seen, text)
        })
    }
}

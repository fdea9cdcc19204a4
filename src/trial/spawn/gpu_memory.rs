//! How much memory of a card a command used, seen from outside: for programs that report nothing.
//!
//! Every 100 ms NVML is asked what of the card is in use and which processes hold how much ([`CardReader`]). What the
//! command's own processes hold is its use. In a container the driver's process numbers are the host's or are hidden;
//! then the use is by how much the card's used memory rose over the baseline taken before the start, and whose it is
//! nobody knows ([`Attribution::Rise`]).
//!
//! What happens between two looks is not seen, and neither is fragmentation: the driver sees an allocator's segments,
//! not its blocks. Without NVML nothing is told, and nothing fails.

use std::collections::HashSet;
use std::fmt;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::kinship::Kin;
use crate::device::nvml::{CardId, Monitor};
use crate::units::Bytes;

/// Between two looks at the card.
const PERIOD: Duration = Duration::from_millis(100);

/// What a card says of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardReading {
    /// What is in use, the driver's own included.
    pub used_bytes: u64,
    /// The processes that hold some, with how much where the driver tells.
    pub processes: Vec<(u32, Option<u64>)>,
}

/// Something that can be asked about a card's memory.
pub trait CardReader: Send {
    /// The card as it is now; `None` if it does not answer.
    fn read(&mut self) -> Option<CardReading>;
}

/// A card as NVML sees it.
struct NvmlReader {
    monitor: Monitor,
    uuid: String,
}

impl CardReader for NvmlReader {
    fn read(&mut self) -> Option<CardReading> {
        let id = CardId::Uuid(&self.uuid);
        let used_bytes = self.monitor.used_bytes(id).ok()?;
        Some(CardReading { used_bytes, processes: self.monitor.holders(id).unwrap_or_default() })
    }
}

/// How the memory was found to be the command's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// The driver listed the command's processes.
    Processes,
    /// It did not: the card's used memory rose by so much, whoever used it.
    Rise,
}

/// What a command used of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuUse {
    /// Its peak; `None` where nothing could be seen.
    pub peak_bytes: Option<u64>,
    /// The card's peak, everybody's.
    pub peak_used_bytes: u64,
    /// What was in use before the start, by others.
    pub baseline_used_bytes: u64,
    /// How the peak was found.
    pub attributed: Attribution,
    /// Looks at the card.
    pub samples: u32,
}

impl fmt::Display for GpuUse {
    /// `12.0 GiB`, `unknown process, 12.0 GiB`, or `not seen`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.peak_bytes, self.attributed) {
            (None, _) => f.write_str("not seen"),
            (Some(bytes), Attribution::Processes) => write!(f, "{}", Bytes(bytes)),
            (Some(bytes), Attribution::Rise) => write!(f, "unknown process, {}", Bytes(bytes)),
        }
    }
}

/// A card before a command starts.
pub struct GpuBaseline {
    reader: Option<Box<dyn CardReader>>,
    baseline: CardReading,
}

impl fmt::Debug for GpuBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuBaseline").field("baseline", &self.baseline).finish_non_exhaustive()
    }
}

impl GpuBaseline {
    /// Looks at a card. Take it before the command is started: afterwards what it holds already is missed.
    pub fn take(card: CardId<'_>) -> Self {
        let reader = Monitor::open().ok().and_then(|monitor| {
            let uuid = monitor.card(card).ok()?.uuid;
            Some(Box::new(NvmlReader { monitor, uuid }) as Box<dyn CardReader>)
        });
        Self::with(reader)
    }

    /// Looks at a card through another reader; with none, nothing is seen.
    pub fn with(mut reader: Option<Box<dyn CardReader>>) -> Self {
        match reader.as_mut().and_then(|reader| reader.read()) {
            Some(baseline) => Self { reader, baseline },
            None => Self { reader: None, baseline: CardReading::default() },
        }
    }

    /// Watches the command whose process group is `group`.
    pub fn follow(self, group: u32) -> GpuWatch {
        let tally = Tally::over(&self.baseline);
        let (stop, stopped) = bounded(0);
        let seen = self.reader.map(|reader| {
            let kin = Kin::of(group);
            (stop, thread::spawn(move || sample(reader, tally, kin, &stopped)))
        });
        GpuWatch { seen, nothing: Tally::over(&CardReading::default()).result() }
    }
}

/// A thread that watches a card while a command runs.
#[derive(Debug)]
pub struct GpuWatch {
    seen: Option<(Sender<()>, JoinHandle<Tally>)>,
    nothing: GpuUse,
}

impl GpuWatch {
    /// Ends the watch and says what was seen.
    pub fn finish(mut self) -> GpuUse {
        let Some((stop, thread)) = self.seen.take() else { return self.nothing };
        drop(stop);
        thread.join().map_or(self.nothing, |tally| tally.result())
    }
}

fn sample(mut reader: Box<dyn CardReader>, mut tally: Tally, mut kin: Kin, stopped: &Receiver<()>) -> Tally {
    loop {
        let next = Instant::now() + PERIOD;
        if let Some(reading) = reader.read() {
            tally.add(&reading, |process| kin.includes(process));
        }
        if stopped.recv_deadline(next) != Err(RecvTimeoutError::Timeout) {
            return tally;
        }
    }
}

/// What was seen so far.
#[derive(Clone, Debug)]
struct Tally {
    baseline_used_bytes: u64,
    /// Processes that held memory before the command's start. One of the command's cannot be among them; if one seems
    /// to be, the driver counts processes in another namespace.
    strangers: HashSet<u32>,
    foreign_numbers: bool,
    peak_used_bytes: u64,
    peak_held_bytes: Option<u64>,
    samples: u32,
}

impl Tally {
    fn over(baseline: &CardReading) -> Self {
        Self {
            baseline_used_bytes: baseline.used_bytes,
            strangers: baseline.processes.iter().map(|(process, _)| *process).collect(),
            foreign_numbers: false,
            peak_used_bytes: baseline.used_bytes,
            peak_held_bytes: None,
            samples: 0,
        }
    }

    fn add(&mut self, reading: &CardReading, mut is_the_commands: impl FnMut(u32) -> bool) {
        self.samples += 1;
        self.peak_used_bytes = self.peak_used_bytes.max(reading.used_bytes);
        let mut held_bytes = None;
        for (process, bytes) in &reading.processes {
            if !is_the_commands(*process) {
                continue;
            }
            self.foreign_numbers |= self.strangers.contains(process);
            if let Some(bytes) = bytes {
                held_bytes = Some(held_bytes.unwrap_or(0_u64).saturating_add(*bytes));
            }
        }
        self.peak_held_bytes = self.peak_held_bytes.max(held_bytes);
    }

    fn result(&self) -> GpuUse {
        let held_bytes = self.peak_held_bytes.filter(|_| !self.foreign_numbers);
        let risen_bytes = (self.samples > 0).then(|| self.peak_used_bytes.saturating_sub(self.baseline_used_bytes));
        GpuUse {
            peak_bytes: held_bytes.or(risen_bytes),
            peak_used_bytes: self.peak_used_bytes,
            baseline_used_bytes: self.baseline_used_bytes,
            attributed: if held_bytes.is_some() { Attribution::Processes } else { Attribution::Rise },
            samples: self.samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{GIB, MIB};

    fn reading(used_bytes: u64, processes: &[(u32, Option<u64>)]) -> CardReading {
        CardReading { used_bytes, processes: processes.to_vec() }
    }

    /// What is told of a baseline and readings, where 50 to 59 are the command's processes.
    fn told(baseline: &CardReading, readings: &[CardReading]) -> GpuUse {
        let mut tally = Tally::over(baseline);
        for reading in readings {
            tally.add(reading, |process| (50..60).contains(&process));
        }
        tally.result()
    }

    #[test]
    fn the_commands_processes_are_summed_and_their_peak_kept() {
        let seen = told(
            &reading(3 * GIB, &[(7, Some(3 * GIB))]),
            &[
                reading(3 * GIB, &[(7, Some(3 * GIB))]),
                reading(9 * GIB, &[(7, Some(3 * GIB)), (50, Some(4 * GIB)), (51, Some(2 * GIB))]),
                reading(20 * GIB, &[(7, Some(15 * GIB)), (50, Some(5 * GIB))]),
            ],
        );
        assert_eq!(
            seen,
            GpuUse {
                peak_bytes: Some(6 * GIB),
                peak_used_bytes: 20 * GIB,
                baseline_used_bytes: 3 * GIB,
                attributed: Attribution::Processes,
                samples: 3,
            }
        );
        assert_eq!(seen.to_string(), "6.0 GiB");
    }

    #[test]
    fn where_processes_are_hidden_the_rise_is_told_as_nobodys() {
        for hidden in [&[][..], &[(4242, Some(8 * GIB))], &[(50, None)]] {
            let seen = told(&reading(GIB, &[]), &[reading(9 * GIB, hidden), reading(2 * GIB, hidden)]);
            assert_eq!((seen.peak_bytes, seen.attributed), (Some(8 * GIB), Attribution::Rise), "{hidden:?}");
            assert_eq!(seen.to_string(), "unknown process, 8.0 GiB");
        }
        let freed = told(&reading(5 * GIB, &[]), &[reading(GIB, &[])]);
        assert_eq!((freed.peak_bytes, freed.peak_used_bytes), (Some(0), 5 * GIB));
    }

    #[test]
    fn a_number_that_was_taken_before_the_start_is_another_namespaces() {
        let seen =
            told(&reading(GIB, &[(50, Some(GIB))]), &[reading(4 * GIB, &[(50, Some(GIB)), (4242, Some(3 * GIB))])]);
        assert_eq!((seen.peak_bytes, seen.attributed), (Some(3 * GIB), Attribution::Rise));
    }

    #[test]
    fn without_a_card_nothing_is_told_and_nothing_fails() {
        let seen = GpuBaseline::with(None).follow(1).finish();
        assert_eq!((seen.peak_bytes, seen.samples, seen.attributed), (None, 0, Attribution::Rise));
        assert_eq!(seen.to_string(), "not seen");
        assert_eq!(GpuBaseline::take(CardId::Uuid("GPU-none")).follow(1).finish(), seen);
    }

    /// Reads what a script says, and then nothing more.
    struct Scripted {
        readings: std::vec::IntoIter<CardReading>,
        done: Option<Sender<()>>,
    }

    impl CardReader for Scripted {
        fn read(&mut self) -> Option<CardReading> {
            let next = self.readings.next();
            if next.is_none() {
                self.done = None;
            }
            next
        }
    }

    #[test]
    fn a_thread_reads_the_card_until_the_watch_ends() {
        let own = std::process::id();
        let readings =
            vec![reading(MIB, &[]), reading(5 * MIB, &[(own, Some(2 * MIB))]), reading(MIB, &[(own, Some(MIB))])];
        let (done, script_read) = bounded(0);
        let reader = Scripted { readings: readings.into_iter(), done: Some(done) };
        let group = nix::unistd::getpgrp().as_raw().unsigned_abs();
        let watch = GpuBaseline::with(Some(Box::new(reader))).follow(group);
        assert!(script_read.recv().is_err());
        let seen = watch.finish();
        assert_eq!((seen.peak_bytes, seen.attributed, seen.samples), (Some(2 * MIB), Attribution::Processes, 2));
    }
}

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
        let tally = Tally::over(self.baseline);
        let (stop, stopped) = bounded(0);
        let seen = self.reader.map(|reader| {
            let kin = Kin::of(group);
            (stop, thread::spawn(move || sample(reader, tally, kin, &stopped)))
        });
        GpuWatch { seen, nothing: Tally::over(CardReading::default()).result() }
    }
}

/// A thread that watches a card while a command runs.
#[derive(Debug)]
pub struct GpuWatch {
    seen: Option<(Sender<()>, JoinHandle<Tally>)>,
    nothing: GpuUse,
}

impl GpuWatch {
    /// Takes the baseline now and watches the command whose process group is `group`.
    pub fn start(card: CardId<'_>, group: u32) -> Self {
        GpuBaseline::take(card).follow(group)
    }

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
    fn over(baseline: CardReading) -> Self {
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

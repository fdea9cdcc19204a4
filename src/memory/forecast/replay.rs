//! Replaying a run under an allocator policy and a limit.

use serde::{Deserialize, Serialize};

use super::run::{RunEvents, RunPart, Window};
use crate::memory::event::Event;
use crate::memory::fragmentation::Rates;
use crate::memory::player::{Overrun, Player};
use crate::memory::policy::{Counts, Policy, PoolState};

/// The figures of one kind of window, over all of its occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowFigures {
    /// Which part of the run.
    pub window: Window,
    /// Its batch size.
    pub batch_size: usize,
    /// The highest A in it.
    pub peak_allocated_bytes: u64,
    /// The highest V in it.
    pub peak_reserved_bytes: u64,
    /// The largest single request in it.
    pub largest_request_bytes: u64,
}

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// The highest A of the run.
    pub peak_allocated_bytes: u64,
    /// The highest V of the run.
    pub peak_reserved_bytes: u64,
    /// The largest single request of the run.
    pub largest_request_bytes: u64,
    /// By window, in order of first occurrence.
    pub windows: Vec<WindowFigures>,
    /// The rates: `peak` over the steady steps, the others at the end of the last of them. A run without steady steps
    /// is rated by its first steps, one without marks as a whole.
    pub rates: Rates,
    /// What the policy had to do.
    pub counts: Counts,
    /// The first request that did not fit. The figures go on after it, so they are too low then.
    pub overrun: Option<Overrun>,
}

impl Replay {
    /// The figures of a window, if the run has it.
    pub fn window(&self, window: Window) -> Option<&WindowFigures> {
        self.windows.iter().find(|figures| figures.window == window)
    }
}

/// Plays a run to a fresh policy to its end.
pub fn replay(mut run: RunEvents<'_>, policy: Box<dyn Policy>) -> Replay {
    let mut observer = Observer { player: Player::new(policy), replay: Replay::default(), rated: None };
    let mut current: Option<(usize, RunPart)> = None;
    while let Some(event) = run.next() {
        let part = run.part();
        if part.map(|(place, _)| place) != current.map(|(place, _)| place) {
            observer.close(current);
            current = part;
        }
        observer.player.play(&event);
    }
    observer.close(current);
    observer.finish()
}

/// Plays a run until a request does not fit. `None` if all fit.
pub fn first_overrun(mut run: RunEvents<'_>, policy: Box<dyn Policy>) -> Option<Overrun> {
    let mut player = Player::new(policy);
    run.find_map(|event| {
        player.play(&event);
        player.take_overrun()
    })
}

/// The most bytes that are live at once, as they were asked for. No allocator can do with less.
pub fn peak_requested_bytes(run: RunEvents<'_>) -> u64 {
    let mut sizes: Vec<u64> = Vec::new();
    let (mut live, mut peak) = (0_u128, 0);
    for event in run {
        match event {
            Event::Alloc { bytes, .. } => {
                sizes.push(bytes);
                live += u128::from(bytes);
                peak = peak.max(live);
            }
            Event::Free { ordinal } => {
                let size = sizes.get_mut(ordinal.0 as usize).map(std::mem::take);
                live -= u128::from(size.unwrap_or(0));
            }
            Event::FreeRequested { .. } | Event::Mark(_) => {}
        }
    }
    u64::try_from(peak).unwrap_or(u64::MAX)
}

struct Observer {
    player: Player,
    replay: Replay,
    /// The last state of the window that is rated.
    rated: Option<(Window, PoolState)>,
}

impl Observer {
    /// Ends a part: its figures join those of its window.
    fn close(&mut self, part: Option<(usize, RunPart)>) {
        let Some((_, part)) = part else { return };
        let state = self.player.state();
        let figures = WindowFigures {
            window: part.window,
            batch_size: part.batch_size,
            peak_allocated_bytes: state.peak_allocated_bytes,
            peak_reserved_bytes: state.peak_reserved_bytes,
            largest_request_bytes: self.player.largest_request_bytes(),
        };
        self.player.start_window();
        match self.replay.windows.iter_mut().find(|known| known.window == part.window) {
            Some(known) => {
                known.peak_allocated_bytes = known.peak_allocated_bytes.max(figures.peak_allocated_bytes);
                known.peak_reserved_bytes = known.peak_reserved_bytes.max(figures.peak_reserved_bytes);
                known.largest_request_bytes = known.largest_request_bytes.max(figures.largest_request_bytes);
            }
            None => self.replay.windows.push(figures),
        }
        if rating_rank(part.window) >= self.rated.map_or(0, |(window, _)| rating_rank(window)) {
            self.rated = Some((part.window, state));
        }
    }

    fn finish(mut self) -> Replay {
        let mut replay = self.replay;
        let highest = |get: fn(&WindowFigures) -> u64| replay.windows.iter().map(get).max().unwrap_or(0);
        replay.peak_allocated_bytes = highest(|figures| figures.peak_allocated_bytes);
        replay.peak_reserved_bytes = highest(|figures| figures.peak_reserved_bytes);
        replay.largest_request_bytes = highest(|figures| figures.largest_request_bytes);
        replay.counts = self.player.policy().counts();
        replay.overrun = self.player.take_overrun();
        if let Some((window, state)) = self.rated
            && let Some(figures) = replay.window(window)
        {
            replay.rates = rates(figures, &state);
        }
        replay
    }
}

/// Steady steps are rated where there are any, then first steps, then whatever there is.
fn rating_rank(window: Window) -> u8 {
    match window {
        Window::SteadyStep => 3,
        Window::FirstStep => 2,
        Window::Whole => 1,
        Window::Build | Window::PartialStep | Window::Evaluation | Window::Checkpoint => 0,
    }
}

fn rates(figures: &WindowFigures, state: &PoolState) -> Rates {
    let rates = Rates::of(&PoolState {
        peak_allocated_bytes: figures.peak_allocated_bytes,
        peak_reserved_bytes: figures.peak_reserved_bytes,
        ..*state
    });
    // Without a limit all of the address space is free, and its share that one request can have says nothing.
    Rates { external: rates.external.filter(|_| state.limit_bytes < u64::MAX), ..rates }
}

//! A policy that watches: the same events under another allocator, on a thread of its own.
//!
//! On CUDA candle always uses the driver's pool. Where the planned run has another allocator, its figures come from
//! here: the training thread hands over each phase's events between phases, and asks for a sample at a step boundary.
//! The queue is bounded, so a shadow that falls behind makes the training thread wait between phases, not grow.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::event::Event;
use super::player::{Overrun, Player};
use super::policy::{Policy, PoolState};

/// Batches of events that may wait.
const QUEUE_BATCHES: usize = 64;

/// What the shadow's thread is asked to do.
enum Request {
    Play(Vec<Event>),
    Sample(Sender<ShadowSample>),
}

/// A shadow's figures since the last sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowSample {
    /// Its pool.
    pub state: PoolState,
    /// The first request since the last sample that would not have fitted.
    pub overrun: Option<Overrun>,
}

/// The first request that would not have fitted, until somebody takes it.
type SharedOverrun = Arc<Mutex<Option<Overrun>>>;

/// A policy on a thread of its own. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Shadow {
    requests: Option<Sender<Request>>,
    overrun: SharedOverrun,
    thread: Option<JoinHandle<()>>,
}

impl Shadow {
    /// Starts the thread.
    pub fn start(policy: Box<dyn Policy>) -> std::io::Result<Self> {
        let (requests, inbox) = bounded(QUEUE_BATCHES);
        let overrun = SharedOverrun::default();
        let found = Arc::clone(&overrun);
        let thread =
            thread::Builder::new().name("shadow allocator".to_owned()).spawn(move || run(policy, &inbox, &found))?;
        Ok(Self { requests: Some(requests), overrun, thread: Some(thread) })
    }

    /// Hands over events.
    pub fn play(&self, events: &[Event]) {
        self.send(Request::Play(events.to_vec()));
    }

    /// The figures once everything handed over is played; starts a new window. `None` if the thread has ended.
    pub fn sample(&self) -> Option<ShadowSample> {
        let (reply, answer) = bounded(1);
        self.send(Request::Sample(reply));
        answer.recv().ok()
    }

    /// The first request so far that would not have fitted, told once here or in a sample. Asking does not wait, so it
    /// may be as many batches old as the queue is long.
    pub fn take_overrun(&self) -> Option<Overrun> {
        take(&self.overrun)
    }

    fn send(&self, request: Request) {
        if let Some(requests) = &self.requests {
            // The thread ends only when this side is dropped, or by a panic that `sample` tells of.
            let _ = requests.send(request);
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn take(overrun: &SharedOverrun) -> Option<Overrun> {
    overrun.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn run(policy: Box<dyn Policy>, inbox: &Receiver<Request>, overrun: &SharedOverrun) {
    let mut player = Player::new(policy);
    for request in inbox {
        match request {
            Request::Play(events) => {
                player.play_all(&events);
                if let Some(found) = player.take_overrun() {
                    overrun.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found);
                }
            }
            Request::Sample(reply) => {
                let sample = ShadowSample { state: player.state(), overrun: take(overrun) };
                player.start_window();
                let _ = reply.send(sample);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::policy;
    use crate::memory::{AllocatorKind, Mark, Ordinal, Stream};
    use crate::units::MIB;

    fn alloc(ordinal: u64, bytes: u64) -> Event {
        Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(0) }
    }

    #[test]
    fn a_shadow_says_what_a_player_on_the_spot_would_say() {
        let events: Vec<Event> = (0..500)
            .flat_map(|n| [alloc(n, (n % 37) * 300_000), Event::Free { ordinal: Ordinal(n.saturating_sub(9)) }])
            .collect();
        for kind in policy::KINDS {
            let shadow = Shadow::start(policy::build(kind, 200 * MIB)).unwrap();
            let mut player = Player::new(policy::build(kind, 200 * MIB));
            for batch in events.chunks(7) {
                shadow.play(batch);
                player.play_all(batch);
            }
            let sample = shadow.sample().unwrap();
            assert_eq!((sample.state, sample.overrun), (player.state(), player.take_overrun()));
        }
    }

    #[test]
    fn an_overrun_is_told_once_and_without_a_sample() {
        let shadow = Shadow::start(policy::build(AllocatorKind::Native, 64 * MIB)).unwrap();
        shadow.play(&[alloc(0, 40 * MIB), alloc(1, 40 * MIB)]);
        let told = loop {
            if let Some(overrun) = shadow.take_overrun() {
                break overrun;
            }
            thread::yield_now();
        };
        assert_eq!(told.error.requested_bytes, 40 * MIB);
        assert_eq!(shadow.sample().unwrap().overrun, None);
    }

    #[test]
    fn each_sample_starts_a_window_of_its_own() {
        let shadow = Shadow::start(policy::build(AllocatorKind::Native, 64 * MIB)).unwrap();
        shadow.play(&[alloc(0, 40 * MIB), Event::Free { ordinal: Ordinal(0) }, alloc(1, 100 * MIB)]);
        let first = shadow.sample().unwrap();
        assert_eq!((first.state.peak_allocated_bytes, first.overrun.unwrap().event), (40 * MIB, 2));
        shadow.play(&[Event::Mark(Mark::Trim)]);
        let second = shadow.sample().unwrap();
        assert_eq!((second.state.peak_allocated_bytes, second.state.reserved_bytes, second.overrun), (0, 0, None));
    }
}

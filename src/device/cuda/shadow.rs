//! The shadow: the same events under another allocator.
//!
//! candle on CUDA always allocates from a driver pool. Where the planned run has another allocator (PyTorch's, say),
//! an exact model of it is fed the events of the real run. It works on its own thread behind a queue, so that a step
//! pays for handing over a list of events and no more; only a sample waits for it, between two steps.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::memory::policy::{self, PolicyError};
use crate::memory::{AllocatorKind, Event, OutOfMemory, Player, Rates};

/// Batches of events that may wait. A step hands over one, so a shadow that is this many steps behind holds the
/// training thread up rather than memory.
const QUEUE: usize = 64;

enum Message {
    Begin(Player),
    Events(Vec<Event>),
    Trim,
    Sample(Sender<Rates>),
}

/// A shadow allocator on its own thread.
pub(super) struct Shadow {
    kind: AllocatorKind,
    limit_bytes: u64,
    queue: Option<Sender<Message>>,
    overrun: Arc<Mutex<Option<OutOfMemory>>>,
    thread: Option<JoinHandle<()>>,
}

impl Shadow {
    /// A shadow of the planned run's allocator; `None` where that is the driver pool itself.
    pub(super) fn start(kind: AllocatorKind, limit_bytes: u64) -> Result<Option<Self>, PolicyError> {
        if matches!(kind, AllocatorKind::Auto | AllocatorKind::CudaMallocAsync) {
            return Ok(None);
        }
        let player = Player::new(policy::build(kind, limit_bytes)?);
        let overrun = Arc::new(Mutex::new(None));
        let (queue, messages) = bounded(QUEUE);
        let found = Arc::clone(&overrun);
        let thread = std::thread::spawn(move || follow(player, &messages, &found));
        Ok(Some(Self { kind, limit_bytes, queue: Some(queue), overrun, thread: Some(thread) }))
    }

    /// Starts over, with nothing allocated.
    pub(super) fn begin(&self) -> Result<(), PolicyError> {
        let player = Player::new(policy::build(self.kind, self.limit_bytes)?);
        self.send(Message::Begin(player));
        self.take_overrun();
        Ok(())
    }

    /// Hands over events.
    pub(super) fn play(&self, events: Vec<Event>) {
        if !events.is_empty() {
            self.send(Message::Events(events));
        }
    }

    /// Releases the shadow's cache, as the real pool's is.
    pub(super) fn trim(&self) {
        self.send(Message::Trim);
    }

    /// The rates since the last sample, once all events handed over are played.
    pub(super) fn sample(&self) -> Option<Rates> {
        let (answer, rates) = bounded(1);
        self.send(Message::Sample(answer));
        rates.recv().ok()
    }

    /// The first request so far that the planned allocator could not have met, told once. It may be a few steps old.
    pub(super) fn take_overrun(&self) -> Option<OutOfMemory> {
        self.overrun.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn send(&self, message: Message) {
        if let Some(queue) = &self.queue {
            // The other end is there until `drop`, unless the model panicked; then there are no rates to be had.
            let _ = queue.send(message);
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow(mut player: Player, messages: &Receiver<Message>, overrun: &Mutex<Option<OutOfMemory>>) {
    for message in messages {
        match message {
            Message::Begin(fresh) => player = fresh,
            Message::Events(events) => {
                player.play_all(&events);
                if let Some(found) = player.take_overrun() {
                    overrun.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found.error);
                }
            }
            Message::Trim => player.release_cached(),
            Message::Sample(answer) => {
                let _ = answer.send(Rates::of(&player.state()));
                player.start_window();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Ordinal, Stream};
    use crate::units::{GIB, MIB};

    fn alloc(ordinal: u64, bytes: u64) -> Event {
        Event::Alloc { ordinal: Ordinal(ordinal), bytes, stream: Stream(2) }
    }

    #[test]
    fn the_drivers_own_pool_has_no_shadow() {
        assert!(Shadow::start(AllocatorKind::Auto, GIB).unwrap().is_none());
        assert!(Shadow::start(AllocatorKind::CudaMallocAsync, GIB).unwrap().is_none());
    }

    #[test]
    fn a_sample_sees_all_events_before_it_and_starts_a_new_window() {
        let shadow = Shadow::start(AllocatorKind::Native, GIB).unwrap().unwrap();
        shadow.begin().unwrap();
        // 12 MiB take a segment of their own; 3 MiB one of 20.
        shadow.play(vec![alloc(0, 12 * MIB), alloc(1, 3 * MIB)]);
        let rates = shadow.sample().unwrap();
        assert_eq!(rates.peak, Some(1.0 - 15.0 / 32.0));
        shadow.play(vec![Event::Free { ordinal: Ordinal(0) }, Event::Free { ordinal: Ordinal(1) }]);
        shadow.trim();
        shadow.sample();
        assert_eq!(shadow.sample().unwrap().peak, None, "everything was released");
    }

    #[test]
    fn a_request_that_the_planned_allocator_could_not_meet_is_told_once() {
        let shadow = Shadow::start(AllocatorKind::Native, 64 * MIB).unwrap().unwrap();
        shadow.begin().unwrap();
        shadow.play(vec![alloc(0, 40 * MIB), alloc(1, 40 * MIB)]);
        shadow.sample();
        assert_eq!(shadow.take_overrun().map(|error| error.requested_bytes), Some(40 * MIB));
        assert_eq!(shadow.take_overrun(), None);
    }
}

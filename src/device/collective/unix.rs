//! A group of processes of one host, connected by Unix sockets.
//!
//! The ranks form a star around rank 0, which adds the others' values to its own in rank order and sends the result to
//! all. That is 2 · (world − 1) · bytes through one process: fine for the few ranks of a host's CPU, whose memory they
//! share anyway, and simple enough to be right about who is lost. Devices have NCCL for their tensors.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::Tensor;

use super::host::{Exchange, Exchanged};
use super::link::{Deadline, Link, Tag};
use super::queue::Queue;
use super::{Collective, CollectiveError, Reduction, Relay, Replica, Work, meeting};

/// A rank's place in a group of one host.
#[derive(Debug)]
pub struct UnixGroup {
    place: Arc<Place>,
    /// What was begun and is not waited for yet.
    begun: Queue,
}

/// What the thread that calls and the one that works beside it share.
#[derive(Debug)]
pub(super) struct Place {
    rank: usize,
    world: usize,
    wires: Mutex<Wires>,
    failure: Mutex<Option<CollectiveError>>,
    has_left: Arc<AtomicBool>,
    patience_ms: AtomicU64,
    /// Operations that were begun, by whichever thread.
    entered: AtomicU64,
}

/// The connections, and the operation that they are in.
#[derive(Debug)]
struct Wires {
    /// To the others in their order, or to rank 0.
    links: Vec<Link>,
    number: u64,
    /// Whether the others were told that the group has ended.
    has_told: bool,
}

impl UnixGroup {
    /// Meets the other ranks. Patience is that of the model's build until somebody sets another.
    pub fn meet(replica: &Replica, relay: &Relay) -> Result<Self, CollectiveError> {
        let links = meeting::links(replica, relay)?;
        Ok(Self::new((replica.rank, replica.world), links, replica.build.saturating_add(replica.step)))
    }

    fn new((rank, world): (usize, usize), mut links: Vec<Link>, patience: Duration) -> Self {
        let has_left = Arc::default();
        for link in &mut links {
            link.heed(&has_left);
        }
        let place = Arc::new(Place {
            rank,
            world,
            wires: Mutex::new(Wires { links, number: 0, has_told: false }),
            failure: Mutex::new(None),
            has_left,
            patience_ms: AtomicU64::new(0),
            entered: AtomicU64::new(0),
        });
        let group = Self { begun: Queue::of(&place), place };
        group.set_patience(patience);
        group
    }

    /// Groups of ranks within one process, for tests: in rank order.
    #[cfg(test)]
    pub(crate) fn within_process(world: usize) -> Vec<Self> {
        let pairs: Vec<_> = (1..world).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let (of_first, of_others): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let first = of_first.into_iter().enumerate().map(|(index, stream)| Link::new(stream, index + 1)).collect();
        let others = of_others.into_iter().map(|stream| vec![Link::new(stream, 0)]);
        let group = |(rank, links)| Self::new((rank, world), links, Duration::from_secs(60));
        std::iter::once(first).chain(others).enumerate().map(group).collect()
    }

    /// Runs an operation after those that were begun.
    fn operation<T>(
        &self,
        run: impl FnOnce(&mut Wires, u64, Deadline) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        self.begun.settle();
        self.place.operation(run)
    }

    /// What ended the connection to another rank while this one waited for something else, where something did. Not
    /// while an operation is under way, which sees it by itself.
    #[cfg(any(feature = "nccl", test))]
    pub(in crate::device) fn notice_lost(&self) -> Option<CollectiveError> {
        let mut wires = self.place.wires.try_lock().ok()?;
        let rank = wires.links.iter().find_map(Link::lost)?;
        Some(self.place.fail(CollectiveError::PeerLost { rank }, &mut wires))
    }
}

impl Drop for UnixGroup {
    fn drop(&mut self) {
        // Nobody will wait for what is still under way, and the queue waits for its thread.
        if self.begun.is_busy() {
            self.leave();
        }
    }
}

impl Place {
    fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_millis(self.patience_ms.load(Ordering::Relaxed)))
    }

    fn failure_now(&self) -> MutexGuard<'_, Option<CollectiveError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation, unless one has failed before; the first that fails is told to the others.
    fn operation<T>(
        &self,
        run: impl FnOnce(&mut Wires, u64, Deadline) -> Result<T, CollectiveError>,
    ) -> Result<T, CollectiveError> {
        let mut wires = self.wires();
        if let Some(failure) = self.failure_now().clone() {
            return Err(failure);
        }
        self.entered.fetch_add(1, Ordering::Relaxed);
        wires.number += 1;
        let number = wires.number;
        run(&mut wires, number, self.deadline()).map_err(|error| self.fail(error, &mut wires))
    }

    /// Ends the group for the others too, and gives what ended it first.
    fn fail(&self, error: CollectiveError, wires: &mut Wires) -> CollectiveError {
        let first = self.failure_now().get_or_insert(error).clone();
        if !std::mem::replace(&mut wires.has_told, true) {
            // One that cannot go on for its own reasons is lost to the others.
            let (lost, _) = first.lost_rank().unwrap_or((self.rank, None));
            for link in wires.links.iter_mut().filter(|link| link.peer() != lost) {
                link.tell_lost(lost);
            }
        }
        first
    }

    fn give_up(&self, error: CollectiveError) {
        if self.failure_now().is_some() {
            return;
        }
        let (lost, _) = error.lost_rank().unwrap_or((self.rank, None));
        if lost == self.rank {
            // What another thread waits for meanwhile would keep the wires. Where another rank is lost, it is in the news.
            self.failure_now().get_or_insert_with(|| error.clone());
            self.has_left.store(true, Ordering::Release);
        }
        self.fail(error, &mut self.wires());
    }

    pub(super) fn all_reduce(&self, tensors: &[&Tensor], reduction: Reduction) -> Result<(), CollectiveError> {
        let factor = match reduction {
            Reduction::Sum => 1.0,
            Reduction::Mean => 1.0 / self.world as f64,
        };
        self.exchange(tensors, if self.rank == 0 { Way::Add { factor } } else { Way::Give })
    }

    /// Sends every tensor through the group.
    fn exchange(&self, tensors: &[&Tensor], way: Way) -> Result<(), CollectiveError> {
        if self.world == 1 {
            return Ok(());
        }
        self.operation(|wires, number, by| {
            let passage = Passage { wires: Mutex::new(wires), failure: Mutex::new(None), number, by, way };
            for tensor in tensors {
                tensor.inplace_op1(&Exchanged(&passage)).map_err(|error| {
                    let failure = passage.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                    failure.unwrap_or_else(|| CollectiveError::Tensors(error.to_string()))
                })?;
            }
            Ok(())
        })
    }
}

impl Collective for UnixGroup {
    fn rank(&self) -> usize {
        self.place.rank
    }

    fn world(&self) -> usize {
        self.place.world
    }

    fn gather(&self, word: u64) -> Result<Vec<u64>, CollectiveError> {
        let rank = self.rank();
        self.operation(|wires, number, by| {
            let mut words = vec![0_u8; 8 * self.world()];
            if let [own, others @ ..] = words.as_chunks_mut::<8>().0
                && rank == 0
            {
                *own = word.to_le_bytes();
                for (link, place) in wires.links.iter_mut().zip(others) {
                    link.receive((Tag::Word, number), place, by)?;
                }
                for link in &mut wires.links {
                    link.send((Tag::Words, number), &words, by)?;
                }
            } else if let Some(link) = wires.links.first_mut() {
                link.send((Tag::Word, number), &word.to_le_bytes(), by)?;
                link.receive((Tag::Words, number), &mut words, by)?;
            }
            Ok(words.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
        })
    }

    fn all_reduce(&self, tensors: &[&Tensor], reduction: Reduction) -> Result<(), CollectiveError> {
        self.begun.settle();
        self.place.all_reduce(tensors, reduction)
    }

    fn begin_all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Box<dyn Work>, CollectiveError> {
        match self.failure() {
            Some(failure) => Err(failure),
            None => Ok(self.begun.begin(tensor, reduction)),
        }
    }

    fn broadcast(&self, tensors: &[&Tensor]) -> Result<(), CollectiveError> {
        self.begun.settle();
        self.place.exchange(tensors, if self.rank() == 0 { Way::Send } else { Way::Take })
    }

    fn entered(&self) -> u64 {
        self.place.entered.load(Ordering::Relaxed)
    }

    fn set_patience(&self, patience: Duration) {
        let milliseconds = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.place.patience_ms.store(milliseconds, Ordering::Relaxed);
    }

    fn give_up(&self, error: CollectiveError) {
        self.place.give_up(error);
    }

    fn failure(&self) -> Option<CollectiveError> {
        self.place.failure_now().clone()
    }
}

/// What a rank does with its values.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Adds the others' to them and sends the result.
    Add { factor: f64 },
    /// Sends them and takes the result.
    Give,
    /// Sends them to all.
    Send,
    /// Takes those of rank 0.
    Take,
}

/// One tensor's way through the group.
struct Passage<'a> {
    wires: Mutex<&'a mut Wires>,
    /// candle turns an error that passes it into text, so it is kept here.
    failure: Mutex<Option<CollectiveError>>,
    number: u64,
    by: Deadline,
    way: Way,
}

impl Passage<'_> {
    fn with_links(
        &self,
        work: impl FnOnce(&mut [Link], (Tag, u64)) -> Result<(), CollectiveError>,
    ) -> candle_core::Result<()> {
        let mut wires = self.wires.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut wires.links, (Tag::Values, self.number)).map_err(|error| {
            let text = error.to_string();
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            candle_core::Error::Msg(text)
        })
    }
}

impl Exchange for Passage<'_> {
    fn addends(&self) -> usize {
        let links = self.wires.lock().unwrap_or_else(PoisonError::into_inner).links.len();
        if matches!(self.way, Way::Add { .. }) { links } else { 0 }
    }

    fn addend(&self, index: usize, bytes: &mut [u8]) -> candle_core::Result<()> {
        self.with_links(|links, frame| links.get_mut(index).map_or(Ok(()), |link| link.receive(frame, bytes, self.by)))
    }

    fn factor(&self) -> f64 {
        if let Way::Add { factor } = self.way { factor } else { 1.0 }
    }

    fn pass_on(&self, bytes: &mut [u8]) -> candle_core::Result<()> {
        self.with_links(|links, frame| {
            for link in links {
                match self.way {
                    Way::Add { .. } | Way::Send => link.send(frame, bytes, self.by)?,
                    Way::Give => {
                        link.send(frame, bytes, self.by)?;
                        link.receive(frame, bytes, self.by)?;
                    }
                    Way::Take => link.receive(frame, bytes, self.by)?,
                }
            }
            Ok(())
        })
    }
}

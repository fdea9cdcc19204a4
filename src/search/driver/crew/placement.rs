//! Where a trial may begin.
//!
//! A trial that needs the host to itself runs alone ([`Purpose::shares_host`](crate::trial::Purpose::shares_host)), and
//! those that share it do so only while there is a processor for each of their threads: loaders of two trials on the
//! processors of one would tell how slow they are together.
//!
//! Who competes with whom, the workers say themselves ([`Place::competes_with`]). Those of one machine do; behind a
//! launcher those on two machines do not, nor do two on one machine whose scheduler bound each to processors of its own.
//! Nothing is taken on trust from a launcher: `ssh` binds nobody, and Slurm only where it was set up to.

use super::{Crew, Station};
use crate::trial::TrialSpec;
use crate::trial::launcher::Place;

impl Crew {
    /// The device that a trial may begin on now.
    pub(in crate::search::driver) fn place(&self, spec: &TrialSpec) -> Option<usize> {
        let is_busy = self.jobs().next().is_some();
        if is_busy && (!spec.purpose.shares_host() || self.jobs().any(|job| !job.spec.purpose.shares_host())) {
            return None;
        }
        if spec.is_soak() {
            return self.weakest();
        }
        let idle = self.idle().filter(|(_, station)| self.has_processors_for(spec, station));
        idle.min_by_key(|(index, station)| (station.failures, *index)).map(|(index, _)| index)
    }

    /// Whether a device has nothing to do.
    pub(in crate::search::driver) fn has_idle(&self) -> bool {
        self.idle().next().is_some()
    }

    fn idle(&self) -> impl Iterator<Item = (usize, &Station)> {
        let free = self.stations.iter().enumerate().filter(|(_, station)| station.running.is_none());
        free.filter(|(index, _)| self.facts(*index).is_some())
    }

    /// Processors for each worker of a trial at a device: those of one machine share them.
    pub(in crate::search::driver) fn cpus_of_worker(&self, index: usize) -> usize {
        let Some(station) = self.stations.get(index) else { return 1 };
        let sharers = |place: &Place| station.places.iter().filter(|other| place.competes_with(other)).count();
        let most = station.places.iter().map(sharers).max().unwrap_or(1);
        (station.cpus() / most.max(1)).max(1)
    }

    /// Whether there is a processor for each thread of a trial at a device, beside those that run. Who runs alone has
    /// what there is.
    fn has_processors_for(&self, spec: &TrialSpec, station: &Station) -> bool {
        let cpus = station.cpus();
        station.places.iter().all(|place| {
            let threads_of = |spec: &TrialSpec, station: &Station| {
                spec.threads().saturating_mul(station.places.iter().filter(|other| place.competes_with(other)).count())
            };
            let running =
                self.stations.iter().filter_map(|other| Some(threads_of(&other.running.as_ref()?.spec, other)));
            let busy = running.fold(0, usize::saturating_add);
            busy == 0 || busy.saturating_add(threads_of(spec, station)) <= cpus
        })
    }
}

impl Station {
    fn cpus(&self) -> usize {
        self.facts.as_ref().map_or(1, |facts| facts.cpus)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::Ask;
    use super::*;
    use crate::device::DeviceFacts;
    use crate::search::Space;
    use crate::search::scripted::{facts, plan};
    use crate::search::space::{LoaderSetting, Pair};
    use crate::trial::{Interrupt, Purpose, TrialId};

    fn at(machine: &str, processors: &str) -> Place {
        Place { machine: Some(machine.to_owned()), processors: processors.parse().ok(), ..Place::default() }
    }

    /// Devices that are open, each with so many processors.
    fn crew(cpus: usize, places: &[&[Place]]) -> Crew {
        let station = |(index, places): (usize, &&[Place])| Station {
            name: format!("device {index}"),
            orders: Some(std::sync::mpsc::channel().0),
            facts: Some(DeviceFacts { cpus, ..facts() }),
            places: places.to_vec(),
            running: None,
            failures: 0,
        };
        let stations = places.iter().enumerate().map(station).collect();
        Crew { stations, news: sync_channel(1).1, halt: Interrupt::default() }
    }

    fn spec(purpose: Purpose) -> TrialSpec {
        let space = Space::new(&plan(8));
        let pair = Pair { batch_size: 8, accumulation_steps: 1 };
        let point = space.point(pair, LoaderSetting { workers: 1, prefetch_depth: 2, ..space.first_loader() });
        TrialSpec { id: TrialId(1), purpose, point, warmup_steps: 0, steps: 1, sample_every: 1, sample_size: None }
    }

    /// How many trials of two threads each begin beside each other.
    fn side_by_side(mut crew: Crew) -> usize {
        let mut begun = 0;
        while let Some(index) = crew.place(&spec(Purpose::Ladder)) {
            let point = spec(Purpose::Ladder).point;
            crew.begin(index, Ask::Run { point, purpose: Purpose::Ladder }, spec(Purpose::Ladder));
            begun += 1;
        }
        assert_eq!(crew.place(&spec(Purpose::Throughput)), None, "that one needs the host to itself");
        begun
    }

    #[test]
    fn trials_run_side_by_side_while_there_is_a_processor_for_each_thread() {
        let one = [at("a", "0-3")];
        assert_eq!(side_by_side(crew(2, &[&one, &one, &one])), 1);
        assert_eq!(side_by_side(crew(5, &[&one, &one, &one])), 2);
        assert_eq!(side_by_side(crew(1, &[&one, &one])), 1, "who is alone has what there is");
        let unknown = [Place::default()];
        assert_eq!(side_by_side(crew(2, &[&unknown, &unknown])), 1);
        let group = [at("a", "0-3"), at("a", "0-3")];
        assert_eq!(side_by_side(crew(7, &[&group, &group])), 1, "each trial has four threads");
        assert_eq!(side_by_side(crew(8, &[&group, &group])), 2);
        let bound = [at("a", "0-3"), at("a", "4-7")];
        assert_eq!([&group, &bound].map(|group| crew(4, &[group]).cpus_of_worker(0)), [2, 4]);
    }

    #[test]
    fn workers_on_other_machines_or_bound_to_other_processors_are_in_nobody_s_way() {
        assert_eq!(side_by_side(crew(2, &[&[at("a", "0-1")], &[at("b", "0-1")]])), 2);
        assert_eq!(side_by_side(crew(2, &[&[at("a", "0-1")], &[at("a", "2-3")], &[at("a", "3-4")]])), 2);
        let spread = [at("a", "0-3"), at("b", "0-3")];
        assert_eq!(side_by_side(crew(5, &[&spread, &[at("b", "0-3")]])), 2, "two threads of each on `b`");
        assert_eq!(side_by_side(crew(3, &[&spread, &[at("b", "0-3")]])), 1);
    }
}

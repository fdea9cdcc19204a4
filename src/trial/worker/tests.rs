//! The trial's loop on [stand-ins](stand_ins).

mod batches;
mod conversation;
mod lengths;
mod staging;
mod stand_ins;
mod steps;

use std::io::BufReader;

use self::stand_ins::{Calls, FakeSession, FakeSupplies, Script};
use crate::trial::protocol::FromWorker;
use crate::trial::spec::{Point, Purpose, TrialId, TrialSpec};
use crate::trial::worker::{Inbox, trial};
use crate::trial::{Measurement, Outcome};

/// What a trial said and did.
struct Told {
    messages: Vec<FromWorker>,
    calls: Vec<String>,
    outcome: Outcome,
    measurement: Option<Measurement>,
    clean: bool,
    scratch: tempfile::TempDir,
}

impl Told {
    fn steps(&self) -> usize {
        self.messages.iter().filter(|message| matches!(message, FromWorker::Step { .. })).count()
    }

    fn samples(&self) -> Vec<u32> {
        let of = |message: &FromWorker| match message {
            FromWorker::Sample { sample, .. } => Some(sample.step),
            _ => None,
        };
        self.messages.iter().filter_map(of).collect()
    }

    fn warnings(&self) -> Vec<&str> {
        fn text_of(message: &FromWorker) -> Option<&str> {
            match message {
                FromWorker::Warning { text, .. } => Some(text),
                _ => None,
            }
        }
        self.messages.iter().filter_map(text_of).collect()
    }

    fn count(&self, call: &str) -> usize {
        self.calls.iter().filter(|made| *made == call).count()
    }
}

fn spec(purpose: Purpose, steps: u32) -> TrialSpec {
    TrialSpec {
        id: TrialId(3),
        purpose,
        point: Point { accumulation_steps: 4, ..Point::plain(4) },
        warmup_steps: 1,
        steps,
        sample_every: 3,
        sample_size: None,
    }
}

fn run(spec: &TrialSpec, script: &Script) -> Told {
    let (_keep_open, input) = std::io::pipe().map(|(reader, writer)| (writer, BufReader::new(reader))).unwrap();
    run_with(spec, script, &Inbox::listen(input, |_| {}), |_| {})
}

fn run_with(spec: &TrialSpec, script: &Script, inbox: &Inbox, mut heard: impl FnMut(&FromWorker)) -> Told {
    let calls = Calls::default();
    let scratch = tempfile::tempdir().unwrap();
    let mut session = FakeSession::new(script, &calls);
    let supplies = FakeSupplies::new(script, &calls);
    let mut messages = Vec::new();
    let stage = trial::Stage { session: &mut session, supplies: &supplies, inbox, scratch: scratch.path() };
    let ended = trial::run(spec, stage, &mut |message| {
        heard(message);
        messages.push(message.clone());
        Ok(())
    });
    let FromWorker::Ended { trial: TrialId(3), outcome, measurement, clean } = ended.unwrap() else {
        panic!("not the end of the trial")
    };
    let calls = calls.borrow().clone();
    Told { messages, calls, outcome, measurement, clean, scratch }
}

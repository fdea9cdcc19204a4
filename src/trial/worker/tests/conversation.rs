//! The worker and its driver: what is said, and how the worker leaves.

use std::sync::mpsc;

use super::spec;
use crate::data::{DataError, DataSpec};
use crate::device::DeviceChoice;
use crate::memory::{AllocatorKind, LimitSpec};
use crate::model::{ModelSpec, Registry};
use crate::text::with_causes;
use crate::train::TrainSpec;
use crate::trial::exit_status::{DONE, ORPHANED};
use crate::trial::protocol::{FromWorker, PROTOCOL, Refusal, ToWorker};
use crate::trial::spec::{Purpose, WorkloadSpec};
use crate::trial::worker::{Inbox, ServeError, serve};

/// What the worker's input ends in, and what it asked before.
fn listen(input: &str) -> (i32, Vec<String>, bool) {
    let (sender, left) = mpsc::channel();
    let inbox = Inbox::listen(std::io::Cursor::new(input.to_owned()), move |status| sender.send(status).unwrap());
    let status = left.recv().unwrap();
    let requests = std::iter::from_fn(|| inbox.next()).map(|request| format!("{request:.10?}")).collect();
    (status, requests, inbox.stop_requested())
}

#[test]
fn the_input_says_how_to_leave() {
    assert_eq!(listen(""), (ORPHANED, vec![], false));
    assert_eq!(listen("{\"message\":\"exit\"}\n{\"message\":\"stop\"}\n"), (DONE, vec![], false));
    assert_eq!(listen("{\"message\":\"stop\"}\n"), (ORPHANED, vec![], true));
    assert_eq!(listen("{\"message\":\"exit\"}"), (ORPHANED, vec![], false), "half a line is no message");
    let run = serde_json::to_string(&ToWorker::Run { trial: spec(Purpose::Ladder, 1) }).unwrap();
    let (status, requests, stop) = listen(&format!("{{\"message\":\"stop\"}}\n{run}\n"));
    assert_eq!((status, requests.len(), stop), (ORPHANED, 1, false), "a late stop is not for the next trial");
}

/// What a served worker says to these lines.
fn served(input: &str) -> (Result<(), ServeError>, Vec<FromWorker>) {
    let mut output = Vec::new();
    let inbox = Inbox::listen(std::io::Cursor::new(input.to_owned()), |_| {});
    let result = serve(&Registry::default(), &inbox, &mut output);
    let lines = output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    (result, lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
}

#[test]
fn a_worker_says_hello_and_refuses_what_it_cannot_set_up() {
    let workload = WorkloadSpec {
        model: ModelSpec { family: "poem".to_owned(), ..ModelSpec::default() },
        train: TrainSpec::default(),
        data: DataSpec::default(),
        device: DeviceChoice::Cpu,
        limit: LimitSpec::Auto,
        allocator: AllocatorKind::Auto,
        seed: 0,
    };
    let open = ToWorker::Open {
        workload: Box::new(workload),
        scratch: std::env::temp_dir(),
        replica: None,
        lease: crate::trial::protocol::LEASE,
    };
    let (result, said) = served(&format!("{}\n", serde_json::to_string(&open).unwrap()));
    result.unwrap();
    assert!(matches!(said[0], FromWorker::Hello { protocol: PROTOCOL, .. }));
    let FromWorker::Refused { cause: Refusal::Workload, reason } = &said[1] else { panic!("{said:?}") };
    assert!(reason.contains("unknown model family `poem`"), "{reason}");
}

#[test]
fn a_driver_that_breaks_the_protocol_is_left() {
    for input in ["nonsense\n", "{\"message\":\"open\"}\n", "{\"message\":\"sing\"}\n"] {
        assert!(matches!(served(input).0, Err(ServeError::Input(_))), "{input}");
    }
    let (result, said) = served("");
    result.unwrap();
    assert_eq!(said.len(), 1, "only the hello");
}

#[test]
fn causes_are_told_once() {
    let error = DataError::Read {
        path: "missing.txt".into(),
        source: std::io::Error::new(std::io::ErrorKind::NotFound, "no such file"),
    };
    assert_eq!(with_causes(&error), "cannot read `missing.txt`: no such file");
}

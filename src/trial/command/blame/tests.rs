//! Ends in any order of arrival, as a driver that was late sees them: all in one round of looks, or in rounds far apart.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use super::super::report::{EndLine, Hello, Reader};
use super::super::testing::trial;
use super::*;
use crate::trial::executor::Interrupt;
use crate::trial::process::{OomKills, Patience};
use crate::trial::spawn::Kin;
use crate::trial::spec::TrialSpec;

const KILLED: Exit = Exit { status: None, signal: Some(9) };
const ABORTED: Exit = Exit { status: None, signal: Some(6) };
const ASKED_TO_LEAVE: Exit = Exit { status: None, signal: Some(15) };
const LEFT: Exit = Exit { status: Some(3), signal: None };
const UNSEEN: Exit = Exit { status: None, signal: None };

/// A run of some ranks whose looks and words are written down by a test.
struct Stage {
    trial: TrialSpec,
    interrupt: Interrupt,
    oom_kills: OomKills,
    folder: tempfile::TempDir,
    begun: Instant,
}

impl Stage {
    fn new() -> Self {
        Self {
            trial: trial(8),
            interrupt: Interrupt::default(),
            oom_kills: OomKills::default(),
            folder: tempfile::tempdir().unwrap(),
            begun: Instant::now(),
        }
    }

    fn terms(&self) -> Terms<'_> {
        Terms {
            trial: &self.trial,
            replicas: 3,
            limit_bytes: 1 << 30,
            patience: Patience::with_step_timeout(Duration::from_secs(1)),
            timeout: Duration::from_secs(60),
            interrupt: &self.interrupt,
            deadline: None,
            oom_kills: &self.oom_kills,
            is_known_to_report: true,
        }
    }

    /// A rank that said hello, finished two steps and reached the end of `reached`.
    fn rank<'a>(&'a self, terms: &'a Terms<'a>, index: usize, reached: u32) -> Rank<'a> {
        let reader = Reader::create(&self.folder.path().join(index.to_string())).unwrap();
        let mut rank = Rank::new(terms, reader, self.begun);
        rank.told.hello = Some(Hello { protocol: 1, ..Hello::default() });
        rank.told.series.times = vec![crate::trial::outcome::StepTimes::default(); 2];
        rank.told.reached = reached;
        rank
    }

    /// So many milliseconds after the beginning, or before.
    fn at(&self, first: u64, last: u64) -> Span {
        let moment = |milliseconds| self.begun + Duration::from_millis(milliseconds);
        Span { first: moment(first), last: moment(last) }
    }
}

/// What is seen of a rank's end.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// It goes on, as far as anybody knows.
    Nothing,
    Said(EndOutcome),
    /// Its process: how, and when it was last seen to run.
    Died(Exit, u64),
}

/// The rank that is named where three ranks reached these steps and ended so, each seen in a look at this time after one
/// at that. Whatever the order in which ranks have their numbers.
fn named(ranks: [(u32, Seen, (u64, u64)); 3]) -> Option<usize> {
    let mut answers = Vec::new();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]] {
        let stage = Stage::new();
        let terms = stage.terms();
        let of = |index: usize| {
            let (reached, seen, (first, last)) = ranks[index];
            let mut rank = stage.rank(&terms, index, reached);
            let when = stage.at(first, last);
            rank.ended = match seen {
                Seen::Nothing => None,
                Seen::Said(outcome) => {
                    let line = EndLine { outcome, message: None, requested_bytes: None, step: None };
                    Some(Ended { over: Over::Said(line), when, likely: when })
                }
                Seen::Died(exit, alive) => {
                    let likely = stage.at(alive, last);
                    let when = if exit.signal.is_some() { likely } else { when };
                    Some(Ended { over: Over::Died(exit), when, likely })
                }
            };
            rank
        };
        let ranks: Vec<Rank<'_>> = order.iter().map(|index| of(*index)).collect();
        let end = End { exit: None, log: String::new() };
        let blame = judge(&ranks, &Ending::Over, &After { terms: &terms, end: &end, rose: &|| false });
        assert!(!matches!(blame.outcome, Outcome::Completed | Outcome::Cancelled), "{blame:?}");
        answers.push(blame.rank.map(|place| order[place]));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "the numbers of the ranks decide: {answers:?}");
    answers[0]
}

const FAILED: Seen = Seen::Said(EndOutcome::Failed);
/// All that is seen of a run by a driver that was late.
const AT_ONCE: (u64, u64) = (0, 900);

#[test]
fn of_errors_that_are_seen_at_once_it_is_the_one_before_the_exchange() {
    assert_eq!(named([(3, FAILED, AT_ONCE), (2, FAILED, AT_ONCE), (3, FAILED, AT_ONCE)]), Some(1));
    // They failed in the same place, and nobody knows which was the first.
    assert_eq!(named([(3, FAILED, AT_ONCE), (2, FAILED, AT_ONCE), (2, FAILED, AT_ONCE)]), None);
    // Looks that were in time know it.
    assert_eq!(named([(2, FAILED, (20, 30)), (2, FAILED, (5, 10)), (2, FAILED, (10, 20))]), Some(1));
    // One that takes its connections down before it says why is heard after those that lost it.
    assert_eq!(named([(3, FAILED, (5, 10)), (2, FAILED, (40, 50)), (3, FAILED, (5, 10))]), Some(1));
}

#[test]
fn an_error_that_came_first_is_not_the_end_of_those_that_a_launcher_ended() {
    for exit in [UNSEEN, ASKED_TO_LEAVE] {
        let ended = Seen::Died(exit, 20);
        assert_eq!(named([(3, ended, AT_ONCE), (2, FAILED, (5, 10)), (3, ended, AT_ONCE)]), Some(1));
        assert_eq!(named([(2, ended, AT_ONCE), (2, FAILED, (5, 10)), (2, ended, AT_ONCE)]), Some(1), "in one place");
        assert_eq!(named([(3, Seen::Died(exit, 0), AT_ONCE), (2, FAILED, AT_ONCE), (3, FAILED, AT_ONCE)]), Some(1));
    }
    // Not even where it ends them by SIGKILL.
    let killed = Seen::Died(KILLED, 20);
    assert_eq!(named([(3, killed, AT_ONCE), (2, FAILED, (5, 10)), (3, killed, AT_ONCE)]), Some(1));
}

#[test]
fn a_rank_that_died_is_not_innocent_because_those_that_lost_it_say_so() {
    for exit in [KILLED, ABORTED, LEFT, UNSEEN] {
        let died = Seen::Died(exit, 10);
        assert_eq!(named([(3, FAILED, (10, 20)), (2, died, (10, 30)), (3, FAILED, (10, 20))]), Some(1), "{exit:?}");
        assert_eq!(named([(3, FAILED, AT_ONCE), (2, Seen::Died(exit, 0), AT_ONCE), (3, FAILED, AT_ONCE)]), Some(1));
    }
    // Python takes connections down long before its process ends.
    assert_eq!(named([(3, FAILED, (10, 20)), (2, Seen::Died(LEFT, 40), (10, 50)), (3, FAILED, (10, 20))]), Some(1));
    // Nobody saw how, it was the same place, and it had ended by the look before.
    assert_eq!(named([(2, FAILED, (20, 30)), (2, Seen::Died(UNSEEN, 5), (5, 10)), (3, FAILED, (20, 30))]), Some(1));
    // The watchdog of one that waits aborts it.
    let aborted = Seen::Died(ABORTED, 20);
    assert_eq!(named([(3, aborted, (0, 40)), (2, FAILED, (5, 10)), (3, aborted, (0, 40))]), Some(1));
}

#[test]
fn no_rank_is_named_where_another_may_be_the_cause_and_is_not_known_to_have_ended() {
    // Its process is on another machine.
    let unknown = (2, Seen::Nothing, (0, 0));
    assert_eq!(named([(3, FAILED, (5, 10)), unknown, (3, Seen::Nothing, (0, 0))]), None);
    assert_eq!(named([(2, FAILED, (5, 10)), unknown, (3, Seen::Nothing, (0, 0))]), Some(0), "the others wait for it");
    // Somebody ended it, before any other trouble: who, and since what, is not known.
    let asked = (2, Seen::Died(ASKED_TO_LEAVE, 1), (1, 4));
    assert_eq!(named([(3, FAILED, (5, 10)), asked, (3, FAILED, (5, 20))]), None);
}

#[test]
fn what_is_nobody_else_s_end_counts_however_late_it_is_seen() {
    for own in [EndOutcome::OutOfMemory, EndOutcome::Diverged] {
        let ranks = [(2, FAILED, (5, 10)), (3, Seen::Said(own), (30, 40)), (2, Seen::Died(KILLED, 5), (5, 10))];
        assert_eq!(named(ranks), Some(1));
    }
}

#[test]
fn reports_that_are_read_late_and_in_one_round_name_the_rank_that_failed() {
    let stage = Stage::new();
    let terms = stage.terms();
    let mut ranks: Vec<Rank<'_>> = Vec::new();
    let hello = r#"{"event":"hello","protocol":1,"world_size":3}"#;
    let end = |why: &str| format!(r#"{{"event":"end","outcome":"failed","message":"{why}"}}"#);
    let (lost, wrong) = (end("ConnectionError: Connection closed by peer"), end("NameError: x"));
    let reached = r#"{"event":"reached","step":1}"#;
    let of_ranks = [vec![hello, reached, &lost], vec![hello, &wrong], vec![hello, reached, &lost]];
    for (index, lines) in of_ranks.iter().enumerate() {
        let path = stage.folder.path().join(index.to_string());
        ranks.push(Rank::new(&terms, Reader::create(&path).unwrap(), stage.begun));
        File::options().append(true).open(&path).unwrap().write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    }
    let mut kin = Kin::of(u32::MAX);
    for rank in &mut ranks {
        assert!(rank.look(&mut kin, &mut |_| {}));
    }
    let end = End { exit: None, log: String::new() };
    let blame = judge(&ranks, &Ending::Over, &After { terms: &terms, end: &end, rose: &|| false });
    assert_eq!((blame.rank, blame.outcome), (Some(1), Outcome::Failed { message: "NameError: x".to_owned() }));
}

#[test]
fn a_process_that_ended_before_it_was_known_of_is_looked_at_once_more() {
    let stage = Stage::new();
    let terms = stage.terms();
    let path = stage.folder.path().join("0");
    let mut rank = Rank::new(&terms, Reader::create(&path).unwrap(), stage.begun);
    let mut child = std::process::Command::new("sh").args(["-c", "kill -9 $$"]).spawn().unwrap();
    let hello = format!("{{\"event\":\"hello\",\"protocol\":1,\"world_size\":3,\"pid\":{}}}\n", child.id());
    File::options().append(true).open(&path).unwrap().write_all(hello.as_bytes()).unwrap();
    let mut kin = Kin::of(std::process::id());
    let mut look = |rank: &mut Rank<'_>| {
        rank.look_at_process(Instant::now());
        rank.look(&mut kin, &mut |_| {})
    };
    assert!(!look(&mut rank), "its process is known as of now");
    let by = Instant::now() + Duration::from_secs(20);
    while rank.ended.is_none() && Instant::now() < by {
        look(&mut rank);
    }
    assert!(matches!(rank.ended, Some(Ended { over: Over::Died(KILLED), .. })), "{:?}", rank.ended);
    child.wait().unwrap();
}

use serde_json::json;

use super::*;
use crate::device::DeviceFacts;
use crate::memory::blocks::{BlockMap, Run};
use crate::memory::forecast::Method;
use crate::memory::forecast::curve::{Curve, CurvePoint};
use crate::search::rules;
use crate::search::rules::testing::{completed, point, safety, sample};
use crate::trial::journal::{Entry, Header};
use crate::trial::launcher::WorkerFacts;
use crate::trial::{Measurement, Outcome, Purpose, TrialId, TrialRecord, TrialSpec};
use crate::units::{GIB, MIB};

fn contents(entries: Vec<Entry>) -> Contents {
    let plan = json!({"name": "toy", "safety": {"fragmentation_threshold": 0.3, "fragmentation_metric": "peak"}});
    Contents { header: Header::new("abc", plan), entries, unknown_entries: 0, whole_bytes: 0 }
}

fn device() -> Entry {
    Entry::Device {
        facts: DeviceFacts {
            device: "cuda:0".to_owned(),
            name: "A card".to_owned(),
            uuid: None,
            driver: Some("580".to_owned()),
            total_bytes: 4 * GIB,
            free_bytes: 3 * GIB,
            external_bytes: MIB,
            limit_bytes: GIB,
            allocator: "native".to_owned(),
            alloc_conf: None,
            cpus: 2,
            hostname: "host".to_owned(),
        },
    }
}

fn ended(record: TrialRecord) -> Entry {
    let verdict = serde_json::to_value(rules::judge(&record, &safety())).unwrap();
    Entry::TrialEnded { record, verdict }
}

fn trial(id: u32, batch_size: usize, samples: u32) -> TrialRecord {
    let record = completed(point(batch_size), (1..=samples).map(|pair| sample(pair * 2)).collect());
    TrialRecord { spec: TrialSpec { id: TrialId(id), ..record.spec.clone() }, ..record }
}

/// Ids of figures that every page of a study has.
const FIGURES: [&str; 7] = [
    "throughput",
    "memory",
    "fragmentation-by-step",
    "memory-by-step",
    "fragmentation-by-run",
    "block-map",
    "loader-grid",
];

/// What is true of every page.
fn sound(page: &str) {
    for figure in FIGURES {
        assert_eq!(page.matches(&format!("id=\"{figure}\"")).count(), 1, "{figure}");
    }
    for forbidden in ["<script", "http://", "https://", "NaN", "javascript:", "onerror=\""] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("default-src 'none'"));
    for tag in ["section", "figure", "table", "details", "svg", "div", "ul", "p"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn an_empty_study_has_a_page_that_says_so() {
    let page = page(&contents(Vec::new()));
    sound(&page);
    assert!(page.contains("No safe configuration so far") && page.contains("No trial has ended."));
    assert!(page.contains("The journal holds no block map"));
}

#[test]
fn one_failed_trial_is_told_with_its_reason_and_its_log() {
    let outcome = Outcome::Crashed { signal: Some(9), status: None, log: "last words".to_owned() };
    let record = TrialRecord { outcome, measurement: None, samples: Vec::new(), ..trial(1, 4, 0) };
    let page = page(&contents(vec![device(), ended(record)]));
    sound(&page);
    assert!(page.contains("ended by signal 9") && page.contains("<pre>last words</pre>"), "{page}");
}

#[test]
fn names_paths_and_errors_cannot_break_out() {
    let evil = "</pre></title><script>alert(1)</script><img src=x onerror=\"x\">'\u{202e}\u{1b}[31m";
    let mut record = TrialRecord {
        outcome: Outcome::Failed { message: evil.to_owned() },
        warnings: vec![evil.to_owned()],
        ..trial(1, 4, 3)
    };
    record.spec.point.alloc_conf = Some(evil.to_owned());
    let Entry::Device { facts } = device() else { unreachable!() };
    let facts =
        DeviceFacts { name: evil.to_owned(), driver: Some(evil.to_owned()), hostname: evil.to_owned(), ..facts };
    let skipped = Entry::Skipped { point: record.spec.point.clone(), reason: evil.to_owned() };
    let mut journal = contents(vec![Entry::Device { facts }, ended(record.clone()), skipped]);
    journal.header.plan = json!({"name": evil, "command": {"run": [evil]}});
    journal.header.started = evil.to_owned();
    journal.header.config_sha256 = evil.to_owned();
    let page = page(&journal);
    sound(&page);
    assert!(!page.contains("<img") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let both = comparison(&journal, &journal);
    assert!(!both.contains("<script") && !both.contains("<img"));
}

#[test]
fn a_resumed_study_says_so_and_shows_each_thing_once() {
    let skipped = || Entry::Skipped { point: point(64), reason: "does not fit by forecast".to_owned() };
    let spec = trial(2, 8, 1).spec;
    let entries = vec![
        device(),
        ended(trial(1, 4, 3)),
        skipped(),
        Entry::TrialStarted { spec: spec.clone() },
        device(),
        skipped(),
        ended(trial(3, 8, 3)),
    ];
    let page = page(&contents(entries));
    sound(&page);
    assert!(page.contains("taken up again 1 time") && page.contains("Trial 2 (ladder"), "{page}");
    assert_eq!(page.matches("does not fit by forecast").count(), 1);
}

#[test]
fn a_program_that_does_not_report_has_a_page() {
    let record = TrialRecord { samples: Vec::new(), measurement: Some(Measurement::default()), ..trial(1, 4, 0) };
    let mut journal = contents(vec![device(), ended(record)]);
    journal.header.plan = json!({"name": "sleep", "command": {"run": ["sleep", "{steps}"]}});
    let page = page(&journal);
    sound(&page);
    assert!(page.contains("nothing to draw"));
}

#[test]
fn forecast_and_block_map_are_drawn_from_the_journal() {
    let curve = Curve {
        method: Method::Exact,
        reason: "they align".to_owned(),
        limit_bytes: GIB,
        accumulation_steps: 1,
        points: [2, 8, 16]
            .map(|batch_size| CurvePoint {
                batch_size,
                peak_allocated_bytes: batch_size as u64 * 60 * MIB,
                peak_reserved_bytes: batch_size as u64 * 64 * MIB,
                fits: batch_size < 16,
            })
            .to_vec(),
    };
    let runs = vec![
        Run { bytes: 300 * MIB, live_bytes: 300 * MIB, blocks: 3, opens_segment: true, ..Run::default() },
        Run { bytes: 40 * MIB, kept_bytes: 40 * MIB, blocks: 1, ..Run::default() },
    ];
    let map = BlockMap {
        event: 7,
        request_bytes: 64 * MIB,
        reserved_bytes: 340 * MIB,
        allocated_bytes: 300 * MIB,
        runs,
        ..BlockMap::default()
    };
    let entries = [
        device(),
        ended(trial(1, 8, 3)),
        Entry::Forecast { curve },
        Entry::BlockMap { point: point(8), map },
        Entry::Concluded { status: "none".to_owned() },
    ];
    // What is written is what is read.
    let entries: Vec<Entry> =
        entries.iter().map(|entry| serde_json::from_str(&serde_json::to_string(entry).unwrap()).unwrap()).collect();
    let page = page(&contents(entries));
    sound(&page);
    assert!(page.contains("peak reserved, forecast (exact): 512.0 MiB at micro-batch 8 (fits)"), "{page}");
    assert!(page.contains("40.0 MiB free, kept by neighbours in use, 1 block"), "{page}");
    assert!(page.contains("A request for 64.0 MiB had to be met by the device."));
}

#[test]
fn a_whole_run_is_drawn_with_its_limit_and_where_it_breaks() {
    use crate::memory::forecast::Method;
    use crate::memory::forecast::long_run::{LongRunEnd, LongRunFigures, LongRunPoint};
    use crate::trial::Outlook;
    use crate::trial::outlook::{PlayedRun, RunBreach};
    use crate::trial::tuned_run::{TriedSetting, TunedRun};
    let points = (0..400_u32).map(|step| LongRunPoint {
        step,
        peak_allocated_bytes: 500 * MIB,
        peak_reserved_bytes: (600 + u64::from(step)) * MIB,
        against_need: Some(f64::from(step) / 1000.0),
        ..LongRunPoint::default()
    });
    let end = LongRunEnd { step: 399, requested_bytes: MIB, allocated_bytes: 500 * MIB, reserved_bytes: 999 * MIB };
    let figures = |allocator: &str, out_of_memory| PlayedRun {
        allocator: allocator.to_owned(),
        rank: None,
        figures: LongRunFigures {
            steps: 399,
            out_of_memory,
            points: points.clone().collect(),
            ..LongRunFigures::default()
        },
    };
    let reason = "out of memory at step 399 <b> (allocator native, limit 1 GiB)".to_owned();
    let outlook = Outlook {
        method: Method::Exact,
        breach: Some(RunBreach { step: 399, reason }),
        ..Outlook::unknown(String::new())
    };
    let runs = vec![figures("native", Some(end)), figures("<i>expandable", None)];
    let whole_run = Entry::WholeRun { point: point(8), outlook, runs };
    let unknown = Outlook::unknown("no probes of its kind have run".to_owned());
    let unplayed = Entry::WholeRun { point: point(4), outlook: unknown, runs: Vec::new() };
    let tried = |name: &str, is_best| TriedSetting {
        name: name.to_owned(),
        stage: "one setting changed".to_owned(),
        peak_reserved_bytes: 600 * MIB,
        is_cut_short: false,
        device_calls: 12,
        result: "comes to its <end>".to_owned(),
        is_best,
    };
    let (conf, reason) = (Some("<b>expandable".to_owned()), "`<b>expandable` holds less".to_owned());
    let found = TunedRun { method: Method::Exact, steps: 400, horizon_steps: 400, conf, next: Vec::new(), reason };
    let tuned = Entry::AllocatorTuned {
        point: point(8),
        found,
        tried: vec![tried("defaults", false), tried("<b>expandable", true)],
    };
    let entries = [device(), ended(trial(1, 8, 3)), whole_run, unplayed, tuned];
    let entries: Vec<Entry> =
        entries.iter().map(|entry| serde_json::from_str(&serde_json::to_string(entry).unwrap()).unwrap()).collect();
    let page = page(&contents(entries));
    sound(&page);
    for figure in ["whole-run-memory", "whole-run-rate"] {
        assert_eq!(page.matches(&format!("id=\"{figure}\"")).count(), 1, "{figure}");
    }
    assert!(page.contains("where a run breaks: 999.0 MiB at step 399"), "{page}");
    assert!(page.contains("not judged: no probes of its kind have run") && page.contains("comes to its end"));
    assert!(!page.contains("<i>expandable") && !page.contains("<b>expandable") && !page.contains("<end>"));
    assert!(page.contains("Settings of the allocator, batch 8") && page.contains("one setting changed"), "{page}");
    let without = super::page(&contents(vec![device()]));
    assert!(without.contains("No whole run was forecast"));
}

#[test]
fn a_play_that_was_left_is_told_until_it_has_a_result_and_one_that_cannot_be_is_left_out() {
    use crate::trial::{Outlook, PlayKind, UnfinishedPlay};
    let left = |step| {
        let (point, play) = (point(8), PlayKind::WholeRun);
        Entry::PlayUnfinished(UnfinishedPlay { point, play, step, total: 10_000 })
    };
    let told =
        "The study ended in the forecast of the whole run of batch 8 at step 812 of 10000; nothing of it is kept";
    let unfinished = page(&contents(vec![device(), left(812)]));
    sound(&unfinished);
    assert!(unfinished.contains(told) && !unfinished.contains("No whole run was forecast"), "{unfinished}");
    let outlook = Outlook::unknown("no probes of its kind have run".to_owned());
    let finished = Entry::WholeRun { point: point(8), outlook, runs: Vec::new() };
    assert!(!page(&contents(vec![device(), left(812), finished])).contains("The study ended in"));
    let edited = contents(vec![device(), left(10_001)]);
    assert!(!page(&edited).contains("The study ended in"));
    assert_eq!(super::left_out(&edited).len(), 1);
}

#[test]
fn what_other_shapes_would_do_stands_beside_the_run_as_it_is() {
    use crate::memory::forecast::batching::BatchedRun;
    use crate::memory::forecast::long_run::Breach;
    use crate::trial::remedies::{Changes, RunRemedies, RunRemedy};
    let breach = Some(Breach::Rate { step: 812, rate: 0.4, threshold: 0.3 });
    let as_it_is =
        BatchedRun { breach, peak_reserved_bytes: 900 * MIB, padding_share: Some(0.4), ..Default::default() };
    let run = BatchedRun { breach: None, peak_reserved_bytes: 600 * MIB, epoch_steps: Some(77), ..as_it_is };
    let changes = Changes { pad_to_multiple_of: Some(128), ..Changes::default() };
    let way = |offered| RunRemedy { changes, run, reason: "comes to the end <b>".to_owned(), offered };
    let remedies = RunRemedies { as_it_is, ways: vec![way(true), way(false)], unplayed: 3 };
    let page = page(&contents(vec![device(), Entry::Remedies { point: point(8), remedies }]));
    sound(&page);
    assert!(page.contains("Other shapes for batch 8") && page.contains("comes to be 40% fragmented at step 812"));
    assert!(page.contains("`data.pad_to_multiple_of: 128`") && page.contains(">600.0 MiB<") && page.contains(">77<"));
    assert_eq!((page.matches("<td>yes</td>").count(), page.matches("<td>no</td>").count()), (1, 1));
    assert!(page.contains("There was no time for 3 ways more.") && !page.contains("the end <b>"), "{page}");
}

/// A study of so many trials, each with a long soak's samples and a talkative loser among three.
fn long(trials: u32) -> Contents {
    let entries = (1..=trials).map(|id| {
        let record = trial(id, (id % 64 + 1) as usize, 250);
        let purpose = if id % 10 == 0 { Purpose::Soak } else { Purpose::Ladder };
        let record = TrialRecord { spec: TrialSpec { purpose, ..record.spec.clone() }, ..record };
        ended(if id % 3 == 0 {
            let log = "a line of a worker's log, <escaped> & long\n".repeat(2000);
            TrialRecord { outcome: Outcome::Crashed { signal: None, status: Some(1), log }, ..record }
        } else {
            record
        })
    });
    contents(std::iter::once(device()).chain(entries).collect())
}

#[test]
fn two_hundred_trials_make_less_than_three_megabytes() {
    let page = page(&long(200));
    sound(&page);
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    let many = super::page(&long(1000));
    assert!(many.len() < 3 << 20, "{} bytes", many.len());
}

#[test]
fn two_studies_stand_side_by_side() {
    let left = contents(vec![device(), ended(trial(1, 4, 3))]);
    let Entry::Device { facts } = device() else { unreachable!() };
    let facts = DeviceFacts { limit_bytes: 2 * GIB, ..facts };
    let right = contents(vec![Entry::Device { facts }, ended(trial(1, 8, 3))]);
    let page = comparison(&left, &right);
    assert!(page.contains("toy under 1.0 GiB") && page.contains("toy under 2.0 GiB"), "{page}");
    assert!(page.contains("limit of toy under 2.0 GiB"));
    assert_eq!(page.matches("id=\"throughput\"").count(), 1);
}

#[test]
fn what_cannot_be_is_left_out_with_a_remark() {
    type Change = fn(&mut TrialRecord);
    let cases: [(&str, Change); 7] = [
        ("`batch_size: 0`", |record| record.spec.point.batch_size = 0),
        ("`accumulation_steps: 0`", |record| record.spec.point.accumulation_steps = 0),
        ("`seconds: -3.0`", |record| record.seconds = -3.0),
        ("`samples_per_second: NaN`", |record| {
            record.measurement = Some(Measurement { samples_per_second: f64::NAN, ..Measurement::default() });
        }),
        ("`rates.peak: 1.5`", |record| record.samples[0].rates.peak = Some(1.5)),
        ("step 4 comes after", |record| record.samples[0].step = 9),
        ("`step: 4000000000`", |record| record.samples.last_mut().unwrap().step = 4_000_000_000),
    ];
    for (words, change) in cases {
        let mut record = trial(2, 8, 3);
        change(&mut record);
        let started = Entry::TrialStarted { spec: record.spec.clone() };
        let journal = contents(vec![device(), ended(trial(1, 4, 3)), started, ended(record)]);
        let told = left_out(&journal);
        assert!(told.len() == 1 && told[0].starts_with("trial 2: ") && told[0].contains(words), "{told:?}");
        let page = page(&journal);
        sound(&page.replace("NaN`", ""));
        assert!(page.contains("Left out, since it cannot be: trial 2: "), "{words}");
        assert!(page.contains("1 trial so far") && !page.contains("has no end in the journal"), "{words}");
    }
}

#[test]
fn forecasts_and_recommendations_that_cannot_be_are_left_out() {
    let point_of = |batch_size| CurvePoint { batch_size, peak_allocated_bytes: 1, peak_reserved_bytes: 1, fits: true };
    let curve = Curve {
        method: Method::Exact,
        reason: String::new(),
        limit_bytes: GIB,
        accumulation_steps: 1,
        points: vec![point_of(2), point_of(0)],
    };
    let outlook = crate::trial::Outlook { steps: 3_000_000_000, ..crate::trial::Outlook::unknown(String::new()) };
    let entries = vec![
        Entry::Forecast { curve },
        Entry::WholeRun { point: point(4), outlook, runs: Vec::new() },
        Entry::Skipped { point: point(0), reason: "it is nothing".to_owned() },
    ];
    let told = left_out(&contents(entries.clone()));
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("the forecast: ") && told[1].starts_with("a whole run: `steps"), "{told:?}");
    let page = page(&contents(entries));
    sound(&page);
    assert!(!page.contains("it is nothing"));
}

#[test]
fn a_page_says_where_each_rank_of_each_trial_ran_where_that_was_in_several_places() {
    let on = |node: &str, job: Option<&str>| WorkerFacts {
        node: node.to_owned(),
        device: "cuda:0".to_owned(),
        name: "<A card>".to_owned(),
        uuid: Some("GPU-1".to_owned()),
        driver: Some("580".to_owned()),
        slurm_job_id: job.map(str::to_owned),
        slurm_step_id: job.map(|_| "0".to_owned()),
    };
    let at = |id: u32, ranks: Vec<WorkerFacts>| {
        ended(TrialRecord { worker: ranks.first().cloned(), ranks, ..trial(id, 4, 1) })
    };
    let group = |job: &str| vec![on("n1", Some(job)), on("n2", Some("9"))];
    let entries = vec![device(), at(1, group("7")), at(2, group("7")), at(3, group("8"))];
    let of_groups = page(&contents(entries));
    sound(&of_groups);
    let card = "<td>cuda:0</td><td>&lt;A card&gt;</td><td>GPU-1</td><td>580</td>";
    for (trials, rank, node, job) in [("1–2", 0, "n1", "7.0"), ("3", 0, "n1", "8.0"), ("1–3", 1, "n2", "9.0")] {
        let row = format!("<td>{trials}</td><td class=\"number\">{rank}</td><td>{node}</td>{card}<td>{job}</td>");
        assert_eq!(of_groups.matches(&row).count(), 1, "{row}");
    }
    let alone = |node: &str, job| TrialRecord { worker: Some(on(node, job)), ..trial(1, 4, 1) };
    let has_table = |records: Vec<TrialRecord>| {
        page(&contents(records.into_iter().map(ended).collect())).contains("Where the trials ran")
    };
    assert!(!has_table(vec![alone("n1", None), alone("n1", None)]), "the environment says it");
    assert!(has_table(vec![alone("n1", None), alone("n2", None)]) && has_table(vec![alone("n1", Some("7"))]));
}

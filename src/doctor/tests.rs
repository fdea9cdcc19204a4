//! Made machines, each judged as a whole.

use super::*;
use crate::device::facts::{HostLimits, HostMemory, Room, Usage};
use crate::device::nvml::{CardHealth, CardProcess, Ecc, Exclusive, Link, Path, PeerAccess, RemappedRows};
use crate::units::{GIB, MIB};

fn card() -> CardFacts {
    CardFacts {
        name: "NVIDIA H200".to_owned(),
        total_bytes: 140 * GIB,
        free_bytes: 139 * GIB,
        processes: Vec::new(),
        health: CardHealth {
            capability: Some((9, 0)),
            ecc: Some(Ecc {
                enabled: true,
                enabled_next: true,
                corrected: Some(0),
                uncorrected: Some(0),
                uncorrected_ever: Some(0),
            }),
            remapped: Some(RemappedRows::default()),
            is_split: Some(false),
            ..CardHealth::default()
        },
    }
}

/// A machine that nothing is wrong with.
fn sound() -> Facts {
    Facts {
        driver: Ok(DriverFacts { version: "580.159.03".to_owned(), cuda: Some(13_000), cards: 1 }),
        has_device_files: true,
        toolkit: None,
        cards: vec![card()],
        links: Vec::new(),
        host: HostLimits {
            memory: Some(HostMemory { total_bytes: 128 * GIB, available_bytes: 100 * GIB }),
            address_space_bytes: Some(u64::MAX),
            shared_memory: Some(Room { total_bytes: 64 * GIB, free_bytes: 64 * GIB }),
            processes: None,
            locked_bytes: Some(u64::MAX),
            open_files: Some(65_536),
            cpus: 16,
            quota_cpus: None,
        },
        environment: Environment::default(),
    }
}

/// A sound machine with a change: its status, and what is not fine.
fn changed(change: impl FnOnce(&mut Facts)) -> (Status, Vec<(&'static str, Level)>) {
    let mut facts = sound();
    change(&mut facts);
    let diagnosis = examine(&facts);
    let told = diagnosis.findings.iter().filter(|finding| finding.level > Level::Fine);
    for finding in &diagnosis.findings {
        assert!(finding.level < Level::Warning || finding.advice.is_some(), "no advice: {finding:?}");
        assert!(!finding.found.is_empty() && !finding.meaning.is_empty());
    }
    (diagnosis.status, told.map(|finding| (finding.check, finding.level)).collect())
}

#[test]
fn a_sound_machine_is_fine() {
    assert_eq!(changed(|_| {}), (Status::Fine, vec![]));
    assert_eq!(examine(&sound()).exit_code(), 0);
    assert_eq!(changed(|facts| facts.toolkit = Some(13_000)), (Status::Fine, vec![]));
}

#[test]
fn without_a_driver_there_is_no_device_whatever_else_is_wrong() {
    let (status, told) = changed(|facts| {
        facts.driver = Err("library not found".to_owned());
        facts.cards.clear();
        facts.host.shared_memory = None;
    });
    assert_eq!((status, told[0]), (Status::NoDevice, ("driver", Level::Problem)));
    let mut facts = Facts { driver: Err("a\u{1b}[2Jb".to_owned()), cards: Vec::new(), ..sound() };
    let diagnosis = examine(&facts);
    assert_eq!(diagnosis.exit_code(), 4);
    assert!(diagnosis.findings[0].advice.as_ref().unwrap().contains("--gpus all` and"));
    assert!(!diagnosis.findings[0].found.contains('\u{1b}'));
    facts.has_device_files = false;
    assert!(examine(&facts).findings[0].advice.as_ref().unwrap().contains("install"));
}

#[test]
fn old_drivers_are_told_from_new_ones_at_the_line() {
    let driver = |version: &str| {
        changed(|facts| facts.driver = Ok(DriverFacts { version: version.to_owned(), cuda: Some(12_020), cards: 1 })).1
    };
    assert_eq!(driver("525.60.13"), []);
    assert_eq!(driver("525.60.11"), [("driver", Level::Warning)]);
    assert_eq!(driver("470.82"), [("driver", Level::Warning)]);
    assert_eq!(driver("experimental"), [("driver", Level::Note)]);
    let asks = |version: &str| {
        changed(|facts| {
            facts.driver = Ok(DriverFacts { version: version.to_owned(), cuda: Some(12_020), cards: 1 });
            facts.environment.alloc_conf = Some("backend:cudaMallocAsync".to_owned());
        })
    };
    assert_eq!(asks("525.60.13"), (Status::Fine, vec![]));
    assert_eq!(asks("520.1.1").0, Status::Problem);
}

#[test]
fn a_build_with_cuda_needs_its_toolkits_driver_and_pools_with_a_cap() {
    let build = |cuda, toolkit| {
        changed(|facts| {
            facts.driver = Ok(DriverFacts { version: "535.1.1".to_owned(), cuda, cards: 1 });
            facts.toolkit = toolkit;
        })
        .1
    };
    assert_eq!(build(Some(12_040), Some(13_000)), [("cuda", Level::Problem)]);
    assert_eq!(build(Some(12_010), Some(12_000)), [("cuda", Level::Problem)]);
    assert_eq!(build(Some(12_020), Some(12_000)), []);
    assert_eq!(build(Some(12_010), None), [("cuda", Level::Note)]);
    assert_eq!(build(None, None), [("cuda", Level::Note), ("memory_pools", Level::Note)]);
}

#[test]
fn cards_that_are_hidden_or_misnamed_are_said() {
    let shown = |list: &str, cards: usize| {
        changed(|facts| {
            facts.environment.visible_devices = Some(list.to_owned());
            facts.cards = vec![card(); cards];
        })
    };
    assert_eq!(shown("", 0), (Status::NoDevice, vec![("cards", Level::Problem)]));
    assert_eq!(shown("0,7,1", 1), (Status::Fine, vec![("cards", Level::Warning)]));
    assert_eq!(shown("0", 1), (Status::Fine, vec![]));
    let mixed = |order: Option<&str>| {
        changed(|facts| {
            facts.cards.push(CardFacts { name: "NVIDIA T4".to_owned(), ..card() });
            facts.environment.device_order = order.map(str::to_owned);
        })
    };
    assert_eq!(mixed(None).1, [("cards", Level::Warning)]);
    assert_eq!(mixed(Some("PCI_BUS_ID")).1, []);
}

#[test]
fn a_cards_generation_decides_precision_and_pools() {
    let generation = |capability| changed(|facts| facts.cards[0].health.capability = capability).1;
    assert_eq!(generation(Some((8, 0))), []);
    assert_eq!(generation(Some((7, 5))), [("capability", Level::Note)]);
    assert_eq!(generation(Some((6, 1))), [("capability", Level::Warning)]);
    assert_eq!(generation(Some((5, 2))), [("capability", Level::Warning), ("memory_pools", Level::Warning)]);
    assert_eq!(generation(None), [("capability", Level::Note), ("memory_pools", Level::Note)]);
}

#[test]
fn errors_of_a_cards_memory_are_weighed() {
    let with = |change: fn(&mut CardHealth)| changed(|facts| change(&mut facts.cards[0].health));
    let ecc = |health: &mut CardHealth, ecc: Ecc| health.ecc = Some(ecc);
    assert_eq!(with(|health| health.ecc = None).1, [("ecc", Level::Note)]);
    let uncorrected = changed(|facts| {
        let found = Ecc { enabled: true, enabled_next: true, uncorrected: Some(1), ..Ecc::default() };
        ecc(&mut facts.cards[0].health, found);
    });
    assert_eq!(uncorrected, (Status::Fine, vec![("ecc", Level::Warning)]));
    let switched = changed(|facts| ecc(&mut facts.cards[0].health, Ecc { enabled: true, ..Ecc::default() }));
    assert_eq!(switched.1, [("ecc", Level::Warning)]);
    let pending = with(|health| health.remapped = Some(RemappedRows { pending: true, ..RemappedRows::default() }));
    assert_eq!(pending, (Status::Fine, vec![("remapped_rows", Level::Warning)]));
    let failed = with(|health| health.remapped = Some(RemappedRows { failed: true, ..RemappedRows::default() }));
    assert_eq!(failed, (Status::Problem, vec![("remapped_rows", Level::Problem)]));
    assert_eq!(with(|health| health.remapped = None).1, []);
    assert_eq!(with(|health| health.is_split = Some(true)).1, [("mig", Level::Note)]);
    assert_eq!(with(|health| health.slowdowns = vec!["too hot (driver)"]).1, [("clocks", Level::Warning)]);
}

#[test]
fn others_on_a_card_are_named_and_a_full_one_breaks_a_run() {
    let other = |bytes| CardProcess { pid: Some(9), name: Some("python".to_owned()), bytes: Some(bytes) };
    let shared = |bytes: u64, free_bytes: u64| {
        changed(|facts| {
            facts.cards[0].processes = vec![other(bytes); 12];
            facts.cards[0].free_bytes = free_bytes;
        })
    };
    assert_eq!(shared(MIB, 139 * GIB).1, [("processes", Level::Note)]);
    assert_eq!(shared(GIB, 128 * GIB).1, [("processes", Level::Warning)]);
    assert_eq!(shared(11 * GIB, GIB).0, Status::Problem);
    let exclusive = |processes: usize| {
        changed(|facts| {
            facts.cards[0].processes = vec![other(MIB); processes];
            facts.cards[0].health.exclusive = Some(Exclusive::OneProcess);
        })
    };
    assert_eq!((exclusive(0).0, exclusive(1).0), (Status::Fine, Status::Problem));
    assert_eq!(changed(|facts| facts.cards[0].health.exclusive = Some(Exclusive::Nobody)).0, Status::Problem);
}

/// A machine of so many cards, each pair linked like this.
fn linked(cards: usize, link: Link) -> Facts {
    let pairs = (0..cards).flat_map(|one| (one + 1..cards).map(move |other| (one, other)));
    let links = pairs.map(|cards| PairFacts { cards, link }).collect();
    Facts { cards: vec![card(); cards], links, ..sound() }
}

#[test]
fn cards_without_a_link_are_said_and_one_card_has_none_to_tell_of() {
    let apart = Link { path: Some(Path::System), peer_access: Some(PeerAccess::Unsupported), ..Link::default() };
    let told = |facts: &Facts| {
        let links = examine(facts).findings.into_iter().filter(|finding| finding.check == "links");
        links.collect::<Vec<Finding>>()
    };
    let one = examine(&sound());
    assert!(told(&sound()).is_empty() && one.links.is_empty() && one.cards.len() == 1);
    let two = told(&linked(2, apart));
    assert_eq!((two.len(), two[0].level, two[0].card, two[0].other_card), (1, Level::Warning, Some(0), Some(1)));
    assert!(two[0].found.contains("SYS") && two[0].found.contains("no peer-to-peer access"), "{}", two[0].found);
    let four = told(&linked(4, apart));
    assert_eq!((four.len(), four[0].card), (1, None));
    assert!(
        four[0].found.ends_with("(cards 0 and 1, 0 and 2, 0 and 3, 1 and 2, 1 and 3, 2 and 3)"),
        "{}",
        four[0].found
    );
    let eight = told(&linked(8, apart));
    assert!(eight[0].found.ends_with("22 pairs more)"), "{}", eight[0].found);
    let near = Link { nvlinks: 18, nvlink_version: Some(4), peer_access: Some(PeerAccess::Works), ..apart };
    let mixed = Facts {
        links: vec![PairFacts { cards: (0, 1), link: near }, PairFacts { cards: (0, 2), link: apart }],
        ..linked(3, near)
    };
    assert_eq!(told(&mixed).iter().map(|finding| finding.level).collect::<Vec<_>>(), [Level::Fine, Level::Warning]);
}

#[test]
fn who_uses_how_much_of_each_card_is_listed() {
    let mut facts = linked(2, Link::default());
    facts.cards[1].free_bytes = 100 * GIB;
    facts.cards[1].processes =
        vec![CardProcess { pid: Some(7), name: Some("a\u{1b}[2Jb".to_owned()), bytes: Some(40 * GIB) }];
    let cards = examine(&facts).cards;
    assert_eq!((cards[0].used_bytes, cards[1].used_bytes), (GIB, 40 * GIB));
    assert_eq!((cards[1].card, cards[1].processes[0].pid), (1, Some(7)));
    assert!(!cards[1].processes[0].name.as_deref().unwrap().contains('\u{1b}'));
}

#[test]
fn the_hosts_limits_are_judged_each_at_its_line() {
    let host = |change: fn(&mut HostLimits)| changed(|facts| change(&mut facts.host));
    let docker = host(|host| host.shared_memory = Some(Room { total_bytes: 64 * MIB, free_bytes: 64 * MIB }));
    assert_eq!(docker, (Status::Problem, vec![("shared_memory", Level::Problem)]));
    let small = host(|host| host.shared_memory = Some(Room { total_bytes: 512 * MIB, free_bytes: 500 * MIB }));
    assert_eq!(small, (Status::Fine, vec![("shared_memory", Level::Warning)]));
    let full = host(|host| host.shared_memory = Some(Room { total_bytes: 8 * GIB, free_bytes: MIB }));
    assert_eq!(full.0, Status::Problem);
    let tight = host(|host| host.processes = Some(Usage { used: 90, limit: 100 }));
    assert_eq!(tight, (Status::Problem, vec![("processes_limit", Level::Problem)]));
    assert_eq!(host(|host| host.processes = Some(Usage { used: 5, limit: 4 })).0, Status::Problem);
    assert_eq!(host(|host| host.quota_cpus = Some(4.0)).1, [("processors", Level::Warning)]);
    assert_eq!(host(|host| host.quota_cpus = Some(16.0)).1, []);
    assert_eq!(host(|host| host.open_files = Some(1024)).1, [("open_files", Level::Warning)]);
    assert_eq!(host(|host| host.open_files = Some(64)).0, Status::Problem);
    assert_eq!(host(|host| host.address_space_bytes = Some(8 * GIB)).1, [("address_space", Level::Warning)]);
    assert_eq!(host(|host| host.locked_bytes = Some(8 * MIB)).1, [("locked_memory", Level::Note)]);
    let poor = host(|host| host.memory = Some(HostMemory { total_bytes: 2 * GIB, available_bytes: GIB }));
    assert_eq!(poor.1, [("host_memory", Level::Warning)]);
    let silent = changed(|facts| facts.host = HostLimits { cpus: 1, ..HostLimits::default() });
    assert_eq!(silent.1.iter().filter(|(_, level)| *level == Level::Note).count(), 4);
}

#[test]
fn allocator_settings_are_read_and_judged() {
    let conf = |text: &str| changed(|facts| facts.environment.cuda_alloc_conf = Some(text.to_owned()));
    for fine in [
        "",
        "expandable_segments:True",
        "max_split_size_mb:128",
        "backend:cudaMallocAsync",
        "roundup_power2_divisions:8",
    ] {
        assert_eq!(conf(fine), (Status::Fine, vec![]), "{fine}");
    }
    assert_eq!(conf("expandable_segments:true"), (Status::Problem, vec![("alloc_conf", Level::Problem)]));
    assert_eq!(conf("expandable_segments:True,max_split_size_mb:64").1, [("alloc_conf", Level::Warning)]);
    assert_eq!(conf("garbage_collection_threshold:0.8").1, [("alloc_conf", Level::Note)]);
    assert_eq!(conf("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5").1, []);
    assert_eq!(conf(&format!("\u{1b}[2J{}", "x".repeat(9000))).0, Status::Problem);
    let both = |newer: &str| {
        changed(|facts| {
            facts.environment.cuda_alloc_conf = Some("expandable_segments:True".to_owned());
            facts.environment.alloc_conf = Some(newer.to_owned());
        })
    };
    assert_eq!(both("expandable_segments:True").1, []);
    assert_eq!(both("max_split_size_mb:64").1, [("alloc_conf", Level::Warning)]);
}

#[test]
fn waiting_for_every_kernel_is_said() {
    let with = |value: &str| changed(|facts| facts.environment.launch_blocking = Some(value.to_owned())).1;
    assert_eq!(with("1"), [("launch_blocking", Level::Warning)]);
    assert_eq!((with("0"), with("")), (vec![], vec![]));
}

#[test]
fn variables_are_taken_by_their_names() {
    let set = Environment::of(|name| Some(name.to_lowercase()));
    assert_eq!(set.alloc_conf.as_deref(), Some("pytorch_alloc_conf"));
    assert_eq!(set.visible_devices.as_deref(), Some("cuda_visible_devices"));
    assert_eq!(Environment::of(|_| None), Environment::default());
}

#[test]
fn this_machine_can_be_asked() {
    let facts = Facts::gather(std::path::Path::new("/"));
    let diagnosis = examine(&facts);
    assert_eq!(diagnosis.status == Status::NoDevice, facts.cards.is_empty());
    assert!(diagnosis.findings.len() >= 7);
}

#[test]
fn slurm_is_found_on_the_path_and_its_job_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("/nonexistent:{}", folder.path().display());
    let of = |name: &str| match name {
        "PATH" => Some(path.clone()),
        "SLURM_JOB_ID" => Some("12".to_owned()),
        _ => None,
    };
    assert_eq!(Environment::of(of).slurm, None);
    std::fs::write(folder.path().join("srun"), "").unwrap();
    let environment = Environment::of(of);
    assert_eq!(environment.slurm.as_ref().unwrap().job.as_deref(), Some("12"));
    let facts = Facts { environment, ..sound() };
    let finding = examine(&facts).findings.into_iter().find(|finding| finding.check == "slurm").unwrap();
    assert!(finding.level == Level::Fine && finding.found.ends_with("inside job 12"), "{finding:?}");
}

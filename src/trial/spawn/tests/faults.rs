//! What goes wrong: commands that hang, die, flood and leave things behind, servers that are killed or never come up.

use std::process::{Child, Stdio};

use super::*;

const SLEEPS: &str = "import time\nprint('up', flush=True)\ntime.sleep(600)\n";
/// Stays in the group, ignores polite signals and holds the output open.
const LEAVES_A_CHILD: &str = "import os, signal\n\
    pid = os.fork()\n\
    if pid == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    signal.pause()\n\
    print(pid, flush=True)\n";

fn both() -> [(Spawner, bool); 2] {
    [(plain(), false), (warm(), true)]
}

fn start(spawner: &mut Spawner, launch: &Launch, is_warm: bool) -> Running {
    let running = spawner.start(launch).unwrap();
    assert_eq!(running.was_warm(), is_warm, "{:?}", running.plain_because());
    running
}

fn first_line(running: &mut Running) -> String {
    let mut line = None;
    until(|| {
        line = running.log_line();
        line.is_some()
    });
    line.unwrap()
}

fn kill_server(spawner: &Spawner) {
    let server = spawner.server.as_ref().unwrap();
    kill(server.group(), Signal::SIGKILL).unwrap();
    until(|| !server.is_alive());
}

#[test]
fn one_that_hangs_is_ended_gently_or_at_once() {
    let folder = Folder::with(&[
        ("hangs.py", SLEEPS),
        (
            "handles.py",
            "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(4))\nprint('up', flush=True)\ntime.sleep(600)\n",
        ),
        (
            "ignores.py",
            "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n",
        ),
    ]);
    let short = Patience { kill: Duration::from_millis(50), ..patience() };
    for (mut spawner, is_warm) in both() {
        for (script, manner, patience, exit) in [
            ("hangs.py", Manner::Gently, patience(), killed(Signal::SIGTERM)),
            ("hangs.py", Manner::AtOnce, patience(), killed(Signal::SIGKILL)),
            ("handles.py", Manner::Gently, Patience { kill: LONG, ..patience() }, left(4)),
            ("ignores.py", Manner::Gently, short, killed(Signal::SIGKILL)),
        ] {
            let mut running = start(&mut spawner, &folder.launch(&["python3", script]), is_warm);
            first_line(&mut running);
            assert!(!running.has_ended_within(Duration::ZERO));
            let end = running.end(manner, &patience);
            assert_eq!((end.exit, end.log.as_str()), (Some(exit), "up"), "{script} {manner:?}");
            assert_eq!(running.end(manner, &patience), end, "a second time nothing happens");
            assert!(running.has_ended_within(Duration::ZERO));
        }
    }
}

#[test]
fn what_it_left_in_its_group_goes_with_it() {
    let folder = Folder::with(&[("leaves.py", LEAVES_A_CHILD)]);
    for (mut spawner, is_warm) in both() {
        let mut running = start(&mut spawner, &folder.launch(&["python3", "leaves.py"]), is_warm);
        assert!(running.has_ended_within(LONG));
        let child = number_in(&first_line(&mut running));
        assert!(lives(child));
        assert_eq!(running.end(Manner::AtOnce, &patience()).exit, Some(left(0)));
        assert!(!lives(child));
    }
}

#[test]
fn one_that_is_dropped_is_ended_with_its_group() {
    let folder = Folder::with(&[("hangs.py", &format!("{LEAVES_A_CHILD}\nsignal.pause()\n"))]);
    for (mut spawner, is_warm) in both() {
        let mut running = start(&mut spawner, &folder.launch(&["python3", "hangs.py"]), is_warm);
        let child = number_in(&first_line(&mut running));
        let leader = i32::try_from(running.pid()).unwrap();
        assert!(lives(child) && lives(leader));
        drop(running);
        assert!(!lives(child) && !lives(leader));
    }
}

#[test]
fn one_that_is_killed_by_a_stranger_is_told_with_its_signal() {
    let folder = Folder::with(&[("hangs.py", SLEEPS)]);
    for (mut spawner, is_warm) in both() {
        let mut running = start(&mut spawner, &folder.launch(&["python3", "hangs.py"]), is_warm);
        first_line(&mut running);
        kill(Pid::from_raw(i32::try_from(running.pid()).unwrap()), Signal::SIGUSR1).unwrap();
        assert_eq!(finish(running).0, killed(Signal::SIGUSR1));
    }
}

#[test]
fn the_guard_ends_a_group_when_its_pipe_ends() {
    // What happens when the tuner is killed: nobody holds the other end of the guard's pipe.
    let folder = Folder::with(&[("hangs.py", &format!("{LEAVES_A_CHILD}\nsignal.pause()\n"))]);
    for (mut spawner, is_warm) in both() {
        let mut running = start(&mut spawner, &folder.launch(&["python3", "hangs.py"]), is_warm);
        let child = number_in(&first_line(&mut running));
        running.abandon();
        assert!(running.has_ended_within(LONG));
        until(|| !lives(child));
        assert_eq!(running.end(Manner::AtOnce, &patience()).exit, Some(killed(Signal::SIGKILL)));
    }
}

#[test]
fn a_flood_of_output_is_read_and_forgotten() {
    let folder = Folder::with(&[(
        "floods.py",
        "import os\nfor i in range(100): os.write(1, (b'x' * 1023 + b'\\n') * 1024)\nprint('\\x1b[31mlast')\n",
    )]);
    for (mut spawner, is_warm) in both() {
        let running = start(&mut spawner, &folder.launch(&["python3", "floods.py"]), is_warm);
        let (exit, log) = finish(running);
        assert_eq!(exit, left(0));
        assert!(log.len() <= (16 << 10) + 40, "{} bytes are kept", log.len());
        assert_eq!(log.lines().last(), Some("\\u{1b}[31mlast"));
    }
}

#[test]
fn a_server_that_is_killed_takes_its_forks_along_and_is_replaced() {
    let folder = Folder::with(&[("hangs.py", SLEEPS), ("a.py", "print(1)")]);
    let mut spawner = warm();
    let mut running = started_warm(&mut spawner, &folder.launch(&["python3", "hangs.py"]));
    first_line(&mut running);
    let leader = i32::try_from(running.pid()).unwrap();
    kill_server(&spawner);
    assert!(running.has_ended_within(LONG));
    let end = running.end(Manner::Gently, &patience());
    assert_eq!((end.exit, end.log.as_str()), (None, "up"));
    assert!(!lives(leader));
    assert_eq!(finish(started_warm(&mut spawner, &folder.launch(&["python3", "a.py"]))), (left(0), "1".to_owned()));
}

#[test]
fn a_server_that_hangs_is_replaced() {
    let folder = Folder::with(&[("a.py", "print(1)")]);
    let mut spawner = warm();
    finish(started_warm(&mut spawner, &folder.launch(&["python3", "a.py"])));
    let server = spawner.server.as_ref().unwrap().group();
    // It cannot answer, and is not waited for as long as a user would wait.
    kill(server, Signal::SIGSTOP).unwrap();
    spawner.forking = Duration::from_millis(200);
    let mut running = spawner.start(&folder.launch(&["python3", "a.py"])).unwrap();
    assert!(running.has_ended_within(LONG));
    assert_eq!(running.end(Manner::AtOnce, &patience()).log, "1");
    assert!(!lives(server.as_raw()));
}

#[test]
fn imports_that_fail_are_told_once_and_the_start_is_plain() {
    let folder = Folder::with(&[
        ("a.py", "print(1)"),
        ("bad.py", "open('imports', 'a').write('x')\nprint('hint: install it')\nraise RuntimeError('no libgood.so')\n"),
        ("leaves.py", "import os; os._exit(3)"),
        ("exits.py", "import sys; sys.exit('go away')"),
        ("forks.py", "import os, time\nif os.fork(): time.sleep(.2)\n"),
        (
            "leaves_one.py",
            "import subprocess\nleft = subprocess.Popen(['sleep', '600'], start_new_session=True)\n\
             open('left', 'w').write(str(left.pid))\n",
        ),
        (
            "threads.py",
            "import threading, time; threading.Thread(target=time.sleep, args=(9,), name='T', daemon=True).start()",
        ),
    ]);
    let launch = folder.launch(&["python3", "a.py"]);
    for (module, expected) in [
        ("missing_module", &["cannot import `missing_module`: ModuleNotFoundError"][..]),
        ("bad", &["cannot import `bad`: RuntimeError: no libgood.so", "hint: install it", "line 3, in <module>"]),
        ("leaves", &["it ended before it was ready"]),
        ("exits", &["cannot import `exits`: SystemExit: go away"]),
        ("threads", &["the imports have started threads (T)"]),
        ("forks", &["`forks` forks while it is imported, and goes on in both processes"]),
        ("leaves_one", &["the imports have started a process and left it behind"]),
    ] {
        let mut spawner = Spawner::new(vec![module.to_owned()]);
        for _ in 0..3 {
            let running = spawner.start(&launch).unwrap();
            assert!(!running.was_warm());
            let why = running.plain_because().unwrap().to_owned();
            for part in expected {
                assert!(why.contains(part), "{module}: {why}");
            }
            assert_eq!(finish(running), (left(0), "1".to_owned()));
        }
        assert!(matches!(spawner.news(), Some(Start::Plain { why: Some(_) })));
        assert_eq!(spawner.news(), None);
    }
    assert_eq!(folder.read("imports"), "x", "it is not tried again");
    assert!(!lives(number_in(&folder.read("left"))), "what the imports started goes with the server");
}

#[test]
fn a_preload_that_touches_the_device_is_not_forked() {
    for (module, why) in [
        ("class cuda:\n    is_initialized = staticmethod(lambda: True)\n", "have initialized CUDA"),
        (
            "import os\nclass cuda:\n    is_initialized = staticmethod(lambda: False)\n    spoiled = False\n    \
             _is_in_bad_fork = staticmethod(lambda: cuda.spoiled)\n\
             def spoil(): cuda.spoiled = True\nos.register_at_fork(after_in_child=spoil)\n",
            "have asked CUDA for its devices",
        ),
    ] {
        let folder =
            Folder::with(&[("torch.py", module), ("a.py", "import torch; print(torch.cuda.is_initialized())")]);
        let mut spawner = Spawner::new(vec!["torch".to_owned()]);
        let running = spawner.start(&folder.launch(&["python3", "a.py"])).unwrap();
        assert!(running.plain_because().is_some_and(|reason| reason.contains(why)), "{:?}", running.plain_because());
        assert_eq!(finish(running).0, left(0));
    }
}

#[test]
fn a_module_beside_the_script_that_hides_one_of_pythons_is_respected() {
    let folder = Folder::with(&[("socket.py", "MINE = 1"), ("a.py", "import socket; print(socket.MINE)")]);
    let running = warm().start(&folder.launch(&["python3", "a.py"])).unwrap();
    assert!(running.plain_because().is_some_and(|why| why.contains("`socket` beside the script")));
    assert_eq!(finish(running), (left(0), "1".to_owned()));
}

#[test]
fn modules_are_imported_once_for_all_trials_and_again_for_another_environment() {
    let folder = Folder::with(&[
        (
            "slow.py",
            "import os, time\nopen('imports', 'a').write('x')\ntime.sleep(0.5)\nSEEN = os.environ.get('PYTORCH_CUDA_ALLOC_CONF')\nos.environ['SET_BY_IMPORT'] = '1'\nCOUNT = []\n",
        ),
        (
            "a.py",
            "import os, slow\nslow.COUNT.append(1)\nprint(slow.SEEN, os.environ['PYTORCH_CUDA_ALLOC_CONF'], len(slow.COUNT), os.environ['TUNE_TRIAL'], os.environ['SET_BY_IMPORT'])\n",
        ),
    ]);
    let mut spawner = Spawner::new(vec!["slow".to_owned()]);
    let mut trial = 0;
    // Only the backend is chosen at the import; other settings are each fork's own.
    let confs = [
        ("backend:native", "backend:native", "x"),
        ("expandable_segments:True", "None", "xx"),
        ("max_split_size_mb:128", "None", "xx"),
    ];
    for (conf, seen, imports) in confs {
        let mut launch = folder.launch(&["python3", "a.py"]);
        for _ in 0..4 {
            trial += 1;
            launch.environment =
                vec![("PYTORCH_CUDA_ALLOC_CONF".into(), conf.into()), ("TUNE_TRIAL".into(), trial.to_string().into())];
            let running = started_warm(&mut spawner, &launch);
            assert_eq!(
                finish(running),
                (left(0), format!("{seen} {conf} 1 {trial} 1")),
                "nothing of one fork is in the next"
            );
        }
        assert_eq!(folder.read("imports"), imports);
    }
    assert!(matches!(spawner.news(), Some(Start::Warm { .. })));
    assert_eq!(spawner.news(), None);
}

#[test]
fn two_forks_run_side_by_side_and_outlive_their_spawner() {
    let folder = Folder::with(&[(
        "waits.py",
        "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(.01)\nprint(sys.argv[1])\n",
    )]);
    let mut spawner = warm();
    let one = started_warm(&mut spawner, &folder.launch(&["python3", "waits.py", "one"]));
    let two = started_warm(&mut spawner, &folder.launch(&["python3", "waits.py", "two"]));
    drop(spawner);
    for (running, name) in [(two, "two"), (one, "one")] {
        fs::write(folder.path().join(name), "").unwrap();
        assert_eq!(finish(running), (left(0), name.to_owned()));
    }
}

#[test]
fn an_interrupt_and_the_deadline_end_the_wait_for_imports() {
    let folder = Folder::with(&[("slow.py", "import time; time.sleep(600)"), ("a.py", "print(1)")]);
    let interrupt = Interrupt::default();
    interrupt.request();
    let ended = Instant::now();
    for (interrupt, deadline) in [(interrupt, None), (Interrupt::default(), Some(ended))] {
        let mut spawner = Spawner::new(vec!["slow".to_owned()]).heeding(interrupt, deadline);
        assert!(matches!(spawner.start(&folder.launch(&["python3", "a.py"])), Err(SpawnError::Cancelled)));
    }
}

#[test]
fn commands_that_cannot_start_are_errors_with_their_cause() {
    let folder = Folder::with(&[("a.py", "print(1)")]);
    for mut spawner in [plain(), warm()] {
        assert!(matches!(spawner.start(&folder.launch(&[])), Err(SpawnError::NoProgram)));
        let error = spawner.start(&folder.launch(&["no-such-program"])).unwrap_err();
        assert!(error.to_string().starts_with("cannot start `no-such-program` in `/"), "{error}");
        let mut nowhere = folder.launch(&["python3", "a.py"]);
        nowhere.directory = folder.path().join("missing");
        assert!(matches!(spawner.start(&nowhere), Err(SpawnError::Start { .. })));
        // The interpreter itself says it best.
        let (exit, log) = finish(spawner.start(&folder.launch(&["python3", "missing.py"])).unwrap());
        assert_eq!(exit, left(2));
        assert!(log.contains("can't open file"), "{log}");
    }
}

#[test]
fn one_that_left_the_group_with_the_output_in_its_hand_delays_nobody_for_long() {
    let folder = Folder::with(&[(
        "leaves.py",
        "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid(); time.sleep(600)\nprint(pid, flush=True)\n",
    )]);
    for (mut spawner, is_warm) in both() {
        let (exit, log) = finish(start(&mut spawner, &folder.launch(&["python3", "leaves.py"]), is_warm));
        assert_eq!(exit, left(0));
        assert!(!lives(number_in(&log)));
    }
}

#[test]
fn descendants_with_sessions_of_their_own_are_ended_too() {
    // As a launcher does: a worker in a session of its own, which starts one in another again.
    let folder = Folder::with(&[(
        "launches.py",
        "import subprocess as s, sys, time\n\
         if len(sys.argv) == 1: command = ['python3', 'launches.py', 'worker']\n\
         else: command = ['sleep', '600']\n\
         print(s.Popen(command, start_new_session=True).pid, flush=True)\n\
         time.sleep(600)\n",
    )]);
    for (mut spawner, is_warm) in both() {
        let mut running = start(&mut spawner, &folder.launch(&["python3", "launches.py"]), is_warm);
        let strays = [number_in(&first_line(&mut running)), number_in(&first_line(&mut running))];
        assert!(strays.into_iter().all(lives));
        assert_eq!(running.end(Manner::AtOnce, &patience()).exit, Some(killed(Signal::SIGKILL)));
        assert!(!strays.into_iter().any(lives));
    }
}

/// Programs that leave something outside their group, and write the numbers of all of it to `left`.
const LEAVERS: [(&str, &str); 6] = [
    ("session", "pid = os.fork()\nif pid == 0: os.setsid(); note(); os.execvp('sleep', ['sleep', '600'])\n"),
    (
        "daemon",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: note(); os.execvp('sleep', ['sleep', '600'])\n    os._exit(0)\n",
    ),
    (
        "forks",
        "for i in range(10):\n    if os.fork() == 0:\n        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        \
         os.setsid() if i % 2 else os.setpgid(0, 0)\n        note(); time.sleep(600)\n",
    ),
    (
        "grandchild",
        "import subprocess\nif os.fork() == 0:\n    os.setsid(); note()\n    \
         child = subprocess.Popen(['sleep', '600'], start_new_session=True, env=dict(os.environ)); note(child.pid)\n    time.sleep(600)\n",
    ),
    (
        "leader",
        "pid = os.fork()\nif pid == 0: os.setpgid(0, 0); note(); time.sleep(600)\nawait_notes(1)\nos.setpgid(0, pid); note(); time.sleep(600)\n",
    ),
    // Nothing marks this one but its parent.
    (
        "unmarked",
        "import subprocess\nnote(subprocess.Popen(['sleep', '600'], start_new_session=True, env={}).pid)\ntime.sleep(600)\n",
    ),
];
const LEAVER: &str = "import os, signal, sys, time\n\
    def note(pid=None):\n    with open('left', 'a') as file: file.write('%d\\n' % (pid or os.getpid()))\n\
    def await_notes(count):\n    while not os.path.exists('left') or len(open('left').readlines()) < count: time.sleep(.01)\n";

/// A process that nothing here may end but the test itself, however that ends.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_left_the_group_goes_with_the_command_and_strangers_stay() {
    // Another child of a program that uses this library, and one of another command.
    let mut stranger = Stranger(std::process::Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap());
    let folder = Folder::with(&[("hangs.py", SLEEPS)]);
    for (name, text) in LEAVERS {
        fs::write(folder.path().join(format!("{name}.py")), format!("{LEAVER}{text}")).unwrap();
    }
    for (mut spawner, is_warm) in both() {
        let mut other = start(&mut spawner, &folder.launch(&["python3", "hangs.py"]), is_warm);
        first_line(&mut other);
        for ((name, _), count) in LEAVERS.iter().zip([1, 1, 10, 2, 2, 1]) {
            let _ = fs::remove_file(folder.path().join("left"));
            let mut running = start(&mut spawner, &folder.launch(&["python3", &format!("{name}.py")]), is_warm);
            until(|| folder.read("left").lines().count() >= count);
            if !["leader", "unmarked"].contains(name) {
                assert!(running.has_ended_within(LONG));
            }
            let left: Vec<i32> = folder.read("left").lines().map(number_in).collect();
            assert!(left.iter().all(|process| lives(*process)), "{name}");
            running.end(Manner::Gently, &patience());
            let still: Vec<&i32> = left.iter().filter(|process| lives(**process)).collect();
            assert!(still.is_empty(), "{name}, warm {is_warm}: {still:?} of {left:?}");
        }
        assert!(!other.has_ended_within(Duration::ZERO));
    }
    assert!(matches!(stranger.0.try_wait(), Ok(None)));
}

#[test]
fn words_that_are_no_text_or_long_arrive_whole() {
    use std::os::unix::ffi::OsStringExt;
    let folder = Folder::with(&[(
        "a.py",
        "import os, sys\nprint([os.fsencode(a) for a in sys.argv[1:3]], len(sys.argv[3]), os.environb[b'TUNE_X'], len(os.environ['TUNE_LONG']))\n",
    )]);
    let mut launch = folder.launch(&["python3", "a.py"]);
    let odd = || OsString::from_vec(b"\xff\n\"\\ \xc3\xa9".to_vec());
    launch.arguments.extend([odd(), "".into(), "x".repeat(120_000).into()]);
    launch.environment = vec![("TUNE_X".into(), odd()), ("TUNE_LONG".into(), "y".repeat(120_000).into())];
    let expected = finish(plain().start(&launch).unwrap());
    assert_eq!(finish(started_warm(&mut warm(), &launch)), expected);
    assert!(expected.1.contains("xff") && expected.1.contains("120000"), "{}", expected.1);
}

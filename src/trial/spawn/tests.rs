//! Commands as processes, started both ways. Python 3 with its standard library is all that is needed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::*;

mod faults;
use crate::trial::process::{Manner, Patience};

/// Nothing here takes as long; it only ends a test that hangs.
const LONG: Duration = Duration::from_secs(60);

fn patience() -> Patience {
    Patience::with_step_timeout(LONG)
}

/// A folder with files, and commands that start in it.
struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    fn launch(&self, arguments: &[&str]) -> Launch {
        Launch {
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: Vec::new(),
            directory: self.path().to_path_buf(),
        }
    }
}

fn warm() -> Spawner {
    // What every script here needs anyway.
    Spawner::new(vec!["json".to_owned()])
}

fn plain() -> Spawner {
    Spawner::new(Vec::new())
}

fn started_warm(spawner: &mut Spawner, launch: &Launch) -> Running {
    let running = spawner.start(launch).unwrap();
    assert!(running.was_warm(), "{:?}", running.plain_because());
    running
}

fn finish(mut running: Running) -> (Exit, String) {
    assert!(running.has_ended_within(LONG));
    let end = running.end(Manner::AtOnce, &patience());
    (end.exit.unwrap(), end.log)
}

fn left(status: i32) -> Exit {
    Exit { status: Some(status), signal: None }
}

fn killed(signal: Signal) -> Exit {
    Exit { status: None, signal: Some(signal as i32) }
}

/// Waits for something that another process does.
fn until(mut it_holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !it_holds() {
        assert!(Instant::now() < deadline, "it did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn number_in(text: &str) -> i32 {
    text.trim().parse().unwrap()
}

fn lives(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}

const HAS_HANDLERS: &str = "import signal\nprint([(s, signal.getsignal(s)) for s in map(int, signal.valid_signals())])\n\
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n";

/// Scripts whose end and output must not depend on how they were started.
const SCRIPTS: &[(&str, &str)] = &[
    ("ends_well", "print('done')"),
    ("exits_with_a_status", "import sys; sys.exit(7)"),
    ("exits_with_a_large_status", "import sys; sys.exit(300)"),
    ("exits_with_a_negative_status", "import sys; sys.exit(-1)"),
    ("exits_with_a_text", "import sys; sys.exit('a reason')"),
    ("exits_with_none", "raise SystemExit"),
    ("exits_with_false", "raise SystemExit(False)"),
    ("raises", "def f(x):\n    return 1 // x\n\nprint('before')\nf(0)\n"),
    ("raises_with_a_cause", "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('bad') from e\n"),
    ("raises_a_text_with_controls", "raise ValueError('\\x1b[2J\\r')"),
    ("does_not_parse", "print(1\nx = = 2\n"),
    ("has_a_coding", "# coding: latin-1\nprint('é')\n"),
    ("is_interrupted", "raise KeyboardInterrupt"),
    // A shell's background job is started with the signal ignored, which the next one inherits.
    (
        "interrupts_itself",
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n\
         os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n",
    ),
    (
        "is_terminated",
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)\n\
         os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n",
    ),
    ("aborts", "import os; print('lost'); os.abort()"),
    ("leaves_at_once", "import os, atexit; atexit.register(print, 'never'); print('lost'); os._exit(3)"),
    ("has_exit_handlers", "import atexit; atexit.register(print, 'handler'); print('body', end='')"),
    (
        "fails_in_a_handler",
        "import atexit\nclass Handler:\n    def __repr__(self): return 'H'\n    def __call__(self): return 1 // 0\n\natexit.register(Handler())",
    ),
    ("prints_without_a_line_end", "import sys; print('a', end=''); print('b', end='', file=sys.stderr)"),
    ("has_a_thread", "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('t'))).start()\n"),
    (
        "has_a_failing_thread",
        "import threading\nt = threading.Thread(target=lambda: 1 // 0, name='n'); t.start(); t.join()\n",
    ),
    ("has_a_daemon", "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"),
    (
        "hooks_exceptions",
        "import sys\nsys.excepthook = lambda k, e, t: print('hook', k.__name__, t.tb_lineno)\n1 // 0\n",
    ),
    ("hooks_and_exits", "import sys\ndef hook(*a): sys.exit(9)\nsys.excepthook = hook\n1 // 0\n"),
    ("is_main", "print(__name__, __package__, __spec__, __file__, __builtins__.__name__, sorted(globals()))"),
    (
        "knows_its_loader",
        "print(type(__loader__).__name__, __loader__.name, __loader__.path, __loader__.get_filename())",
    ),
    ("is_a_module", "import sys; print(sys.modules['__main__'].__dict__ is globals())"),
    ("has_arguments", "import sys; print(sys.argv, len(sys.path), sys.path[0], sys.flags)"),
    ("has_its_command", "import sys; print(getattr(sys, 'orig_argv', [0])[1:])"),
    ("has_a_place", "import os; print(os.getcwd(), os.getpid() == os.getpgrp(), os.environ['TUNE_TRIAL'])"),
    ("has_an_environment", "import os; print(os.environ['FIXED'], os.system('echo $TUNE_TRIAL $FIXED'))"),
    ("has_no_input", "import sys; print(repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdout.isatty())"),
    (
        "has_streams",
        "import sys; print([(s.encoding, s.errors, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)])",
    ),
    ("has_descriptors", "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"),
    ("has_handlers", HAS_HANDLERS),
    ("is_expendable", "print(open('/proc/self/oom_score_adj').read())"),
    ("imports_beside_itself", "import beside; print(beside.VALUE)"),
    ("imports_relatively", "from . import beside"),
    (
        "pickles",
        "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__ is A, pickle.dumps(A)[:30])\n",
    ),
    ("is_warned", "import warnings; warnings.warn('w', DeprecationWarning); warnings.warn('u')"),
    ("has_annotations", "x: int = 3\nprint(__annotations__ if True else 0)\n"),
    ("is_documented", "'doc'\nprint(__doc__)\n"),
    (
        "has_the_future",
        "x: undefined_name = 1\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    a: int = 1\nprint(A())\n",
    ),
    ("dies_last", "class A:\n    def __del__(self): print('gone')\nkept = A()\n"),
    (
        "spawns",
        "import multiprocessing as m\ndef f(x): return x + 1\n\
         if __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p: print(p.map(f, [1, 2]))\n",
    ),
    (
        "forks",
        "import multiprocessing as m, os\ndef f(q): q.put(os.getppid())\n\
         c = m.get_context('fork'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start()\n\
         print(q.get() == os.getpid()); p.join(); print(p.exitcode)\n",
    ),
    (
        "runs_a_command",
        "import subprocess; print(subprocess.run(['sh', '-c', 'echo out; exit 4'], capture_output=True))",
    ),
    ("traces_itself", "import traceback\ntry: 1 // 0\nexcept ZeroDivisionError: print(traceback.format_exc())\n"),
];

fn scripts() -> Folder {
    let folder = Folder::with(&[
        ("beside.py", "VALUE = 42\n"),
        ("pkg/__init__.py", ""),
        ("pkg/other.py", "VALUE = 43\n"),
        (
            "pkg/module.py",
            "import sys\nfrom .other import VALUE\nprint(VALUE, __name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0])\n\
             if len(sys.argv) > 1: raise ValueError(sys.argv[1])\n",
        ),
        ("pkg/__main__.py", "import sys; print('package', sys.argv); sys.exit(5)\n"),
        ("sub/script.py", "import near, sys; print(near.VALUE, sys.path[0], __file__, sys.argv)\n"),
        ("sub/near.py", "VALUE = 44\n"),
    ]);
    for (name, text) in SCRIPTS {
        fs::write(folder.path().join(format!("{name}.py")), text).unwrap();
    }
    std::os::unix::fs::symlink("sub/script.py", folder.path().join("link.py")).unwrap();
    folder
}

#[test]
fn a_fork_and_a_process_of_its_own_cannot_be_told_apart() {
    let folder = scripts();
    let mut commands: Vec<Vec<String>> =
        SCRIPTS.iter().map(|(name, _)| vec![format!("{name}.py"), "--lr".to_owned(), "ü 1".to_owned()]).collect();
    let more: &[&[&str]] = &[
        &["-m", "pkg.module"],
        &["-m", "pkg.module", "bad"],
        &["-mpkg.other"],
        &["-m", "pkg"],
        &["-m", "pkg.missing"],
        &["-m", "missing"],
        &["-m", "json.tool", "missing.json"],
        &["sub/script.py"],
        &["./sub/script.py", "x"],
        &["sub/../ends_well.py"],
        &["./raises.py"],
        &["link.py"],
    ];
    commands.extend(more.iter().map(|words| words.iter().map(|&word| word.to_owned()).collect()));
    commands.push(vec![folder.path().join("sub/script.py").display().to_string()]);
    assert_alike(&folder, &commands);
}

/// Runs each as a process of its own and as a fork, and compares what is seen of the two.
fn assert_alike(folder: &Folder, commands: &[Vec<String>]) {
    let (mut plain, mut warm) = (plain(), warm());
    let mut differences = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let mut launch = folder.launch(&["python3"]);
        launch.arguments.extend(command.iter().map(OsString::from));
        launch.environment = vec![("TUNE_TRIAL".into(), number.to_string().into()), ("FIXED".into(), "f".into())];
        let expected = finish(plain.start(&launch).unwrap());
        let seen = finish(started_warm(&mut warm, &launch));
        if seen != expected {
            differences.push(format!("{command:?}: {seen:?}, expected {expected:?}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_fork_handles_signals_as_a_process_of_its_own_does() {
    let folder = Folder::with(&[("has_handlers.py", HAS_HANDLERS)]);
    assert_alike(&folder, &[vec!["has_handlers.py".to_owned()]]);
}

#[test]
fn what_is_ignored_when_tune_starts_is_ignored_by_a_fork_as_by_a_process_of_its_own() {
    // What is ignored is inherited, so it takes a process that is started so: the test above, once more.
    let again = Command::new("sh")
        .args(["-c", "trap '' HUP INT USR1; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "trial::spawn::tests::a_fork_handles_signals_as_a_process_of_its_own_does"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn options_of_the_interpreter_hold_for_forks() {
    let folder =
        Folder::with(&[("a.py", "import sys; print(sys.flags, sys.warnoptions, sys._xoptions); assert False")]);
    let launch = folder.launch(&["python3", "-OB", "-W", "error", "-Xutf8", "-u", "a.py"]);
    let expected = finish(plain().start(&launch).unwrap());
    assert_eq!(finish(started_warm(&mut warm(), &launch)), expected);
    assert_eq!(expected.0, left(0));
}

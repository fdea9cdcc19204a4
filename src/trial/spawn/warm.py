"""The fork server of batchtune's warm start: imports modules once, then forks for every trial.

Run as `python -` with a socket as its standard output and a log as its error output. Lines of JSON come in (`ask`)
and go out (`say`); see connection.rs, whose other end this is. It never touches a device: a process that has opened
CUDA cannot fork children that use it. Nothing but imports happens here, so that is checked once, after them.

A fork leaves `serve` and becomes, as far as a script can tell, the interpreter that `python script.py` starts: the
script is `__main__`, and its end is this interpreter's own end, with its threads waited for, its exit handlers run and
its output flushed by Python itself. All that is left of the server are its modules.
"""

import sys

_at_start = set(sys.modules)
# The folder it was started in, unless an option says otherwise. What is beside the script must not be taken for a
# module of Python's.
_looks_beside_the_script = sys.path[:1] == [""]
if _looks_beside_the_script:
    del sys.path[0]

import array
import ctypes
import json
import os
import select
import signal
import socket
import traceback
import warnings

_PR_SET_PDEATHSIG = 1
_MARK = b"TUNE_MARK"
_ENOUGH_DESCRIPTORS = 8


class _Unfit(Exception):
    """Why this interpreter cannot be forked from."""


def _path(text):
    """A string of one character a byte, as a path or an argument."""
    return os.fsdecode(text.encode("latin-1"))


class _Link:
    """The socket: lines in, with descriptors beside them, and lines out."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.pending = b""
        self.descriptors = []

    def say(self, **what):
        self.socket.sendall(json.dumps(what).encode() + b"\n")

    def receive(self):
        """Reads what has come; False once the other end is closed."""
        room = socket.CMSG_SPACE(_ENOUGH_DESCRIPTORS * array.array("i").itemsize)
        data, beside, _, _ = self.socket.recvmsg(1 << 16, room)
        for level, kind, body in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(body[: len(body) - len(body) % received.itemsize])
                for descriptor in received:
                    os.set_inheritable(descriptor, False)
                    self.descriptors.append(descriptor)
        self.pending += data
        return bool(data)

    def next(self):
        """The next whole line that has come, or None."""
        line, end, rest = self.pending.partition(b"\n")
        if not end:
            return None
        self.pending = rest
        return json.loads(line.decode())


def _preload(modules, path, pid):
    hidden = [name for name in set(sys.modules) - _at_start if "." not in name and _is_in(path, name)]
    if hidden:
        raise _Unfit("`%s` beside the script hides a module of Python's own that the server has loaded" % hidden[0])
    if sys.version_info < (3, 8):
        raise _Unfit("Python %d.%d is older than 3.8" % sys.version_info[:2])
    if sys.version_info < (3, 9) and sys.flags.dev_mode:
        # At its end a fork frees locks by another allocator than took them.
        raise _Unfit("Python 3.8 cannot be forked in its development mode")
    if _looks_beside_the_script:
        sys.path.insert(0, path)
    for name in modules:
        try:
            __import__(name)
        except BaseException as error:
            _refuse_forks(pid, name)
            sys.excepthook(type(error), error, error.__traceback__.tb_next)
            raise _Unfit("cannot import `%s`: %s: %s" % (name, type(error).__name__, error))
        _refuse_forks(pid, name)
    _check_forkable()


def _refuse_forks(pid, name):
    """In a fork that a module made of the server while it was imported, and that went on importing as the server did."""
    if os.getpid() != pid:
        raise _Unfit("`%s` forks while it is imported, and goes on in both processes" % name)


def _is_in(folder, name):
    return any(os.path.isfile(os.path.join(folder, name + end)) for end in (".py", "/__init__.py"))


def _check_forkable():
    """A fork has this thread only, and nothing of what a device's driver keeps for this process."""
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        raise _Unfit("the imports have started threads (%s)" % names)
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        raise _Unfit("the imports have started a process and left it behind")
    except ChildProcessError:
        pass
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink("/proc/self/fd/" + descriptor)
        except OSError:
            continue
        # A CUDA context has this one open; counting cards by NVML opens others, which do no harm.
        if file.startswith("/dev/nvidia-uvm"):
            raise _Unfit("the imports have opened the device (`%s`)" % file)
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None:
        return
    if cuda.is_initialized():
        raise _Unfit("the imports have initialized CUDA")
    # PyTorch marks the forks of a process that has so much as counted its devices; they know, this process does not.
    probe = _fork()
    if probe == 0:
        try:
            spoiled = bool(cuda._is_in_bad_fork())
        except BaseException:
            spoiled = False
        os._exit(int(spoiled))
    if os.waitpid(probe, 0)[1] != 0:
        raise _Unfit("the imports have asked CUDA for its devices, after which it cannot be used in a fork")


def _fork():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
    # Newer interpreters warn when native threads exist; numpy's, for one, know how to be forked.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


class _Server:
    def __init__(self):
        self.link = _Link(os.dup(1))
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.pid = os.getpid()
        self.libc = ctypes.CDLL(None)
        self.libc.getenv.argtypes = [ctypes.c_char_p]
        self.libc.getenv.restype = ctypes.c_void_p
        self.mark = os.environb.get(_MARK, b"")
        self.mark_at = self.libc.getenv(_MARK)
        self.running = {}
        self.ended = set()

    def serve(self):
        """Answers until the other end closes. Returns in a fork only, with what it is to be and its output."""
        self.wake, self.waker = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.waker, False)
        self.handler_before = signal.signal(signal.SIGCHLD, lambda *_: None)
        self.waker_before = signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        waiting = select.poll()
        waiting.register(self.link.socket, select.POLLIN)
        waiting.register(self.wake, select.POLLIN)
        self.link.say(say="ready", python="%d.%d.%d" % sys.version_info[:3])
        while True:
            for descriptor, _ in waiting.poll():
                if descriptor == self.wake:
                    os.read(self.wake, 1 << 12)
                elif not self.link.receive():
                    self.leave()
            for run in list(self.running):
                self.tell_of(run)
            while True:
                ask = self.link.next()
                if ask is None:
                    break
                if ask["ask"] == "reap":
                    self.reap(ask["run"])
                elif ask["ask"] == "run":
                    output = self.link.descriptors.pop(0)
                    if self.fork(ask) == 0:
                        return ask, output
                    os.close(output)

    def fork(self, ask):
        try:
            pid = _fork()
        except OSError as error:
            self.link.say(say="refused", run=ask["run"], reason=str(error))
            return None
        if pid != 0:
            try:
                # The fork does so too: whoever comes first, it leads its group before anybody hears of it.
                os.setpgid(pid, pid)
            except OSError:
                pass
            self.running[ask["run"]] = pid
            self.link.say(say="started", run=ask["run"], pid=pid)
        return pid

    def tell_of(self, run):
        """Says it if a run has ended, and leaves it a zombie: its number stays its own until it is reaped."""
        if run in self.ended:
            return
        end = os.waitid(os.P_PID, self.running[run], os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if end is None:
            return
        self.ended.add(run)
        left = end.si_code == os.CLD_EXITED
        self.link.say(
            say="ended", run=run, status=end.si_status if left else None, signal=None if left else end.si_status
        )

    def reap(self, run):
        pid = self.running.pop(run, None)
        self.ended.discard(run)
        if pid is not None:
            os.waitpid(pid, 0)

    def first_ask(self):
        while True:
            ask = self.link.next()
            if ask is not None:
                return ask
            if not self.link.receive():
                self.leave()

    def give_up(self, why):
        try:
            self.link.say(say="unfit", reason=why)
        finally:
            os._exit(1)

    def leave(self):
        """The other end is gone: so is everything that was started for it."""
        for pid in self.running.values():
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass
        os._exit(0)

    def become(self, ask, output):
        """In a fork: what the operating system knows of a process that was started by itself."""
        os.setpgid(0, 0)
        self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self.pid:
            os._exit(1)
        signal.set_wakeup_fd(self.waker_before)
        signal.signal(signal.SIGCHLD, self.handler_before)
        self.link.socket.close()
        os.close(self.wake)
        os.close(self.waker)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        try:
            with open("/proc/self/oom_score_adj", "w") as score:
                score.write("1000")
        except OSError:
            pass
        self.write_mark(dict(ask["environment"]).get(_MARK.decode(), "").encode("latin-1"))
        # The rest of it is the server's, with what the imports have made of it.
        for name, value in ask["environment"]:
            os.environb[name.encode("latin-1")] = value.encode("latin-1")
        os.chdir(_path(ask["directory"]))

    def write_mark(self, mark):
        """In a fork: /proc shows the environment that the server was started with, and the fork shall be told by it."""
        length = len(self.mark)
        # A module that sets the process's title has its text there.
        if self.mark_at and len(mark) == length and ctypes.string_at(self.mark_at, length) == self.mark:
            ctypes.memmove(self.mark_at, mark, length)


def _arrange(ask):
    """In a fork: what the interpreter would know of its command. Gives the script's path as it knows it."""
    script = None if ask["script"] is None else _path(ask["script"])
    sys.argv = ["-m" if script is None else script] + [_path(word) for word in ask["arguments"]]
    if hasattr(sys, "orig_argv"):
        # The first is the interpreter's own: a wrapper may stand between it and the command.
        sys.orig_argv = sys.orig_argv[:1] + [_path(word) for word in ask["command"][1:]]
    if _looks_beside_the_script:
        first = os.getcwd() if script is None else os.path.dirname(os.path.realpath(script))
        # An import may have put something before it.
        sys.path[sys.path.index(ask["path"]) if ask["path"] in sys.path else 0] = first
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # An interpreter of its own would have drawn this from the system; Python's `random` sees to it by itself.
        numpy_random.seed()
    if script is not None and sys.version_info >= (3, 9) and not os.path.isabs(script):
        script = os.path.join(os.getcwd(), script)
    return script


def _run(ask, script):
    """Runs it as `__main__`. Every exception is left to the interpreter, this file's own frames taken out."""
    main = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = main
    try:
        if script is None:
            import runpy

            runpy._run_module_as_main(_path(ask["module"]))
        else:
            from importlib.machinery import SourceFileLoader

            main.__file__ = script
            main.__loader__ = SourceFileLoader("__main__", script)
            if sys.version_info < (3, 14):
                main.__annotations__ = {}
                main.__cached__ = None
            with open(script, "rb") as source:
                text = source.read()
            exec(compile(text, script, "exec", 0, True), main.__dict__)
    except SystemExit:
        raise
    except BaseException:
        _hide_frames()
        raise


def _hide_frames():
    show = getattr(sys, "excepthook", None)
    if show is None:
        return

    def show_without_ours(kind, error, trace):
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        if error is not None:
            error = error.with_traceback(trace)
        show(kind, error, trace)

    sys.excepthook = show_without_ours


def _start():
    server = _Server()
    try:
        first = server.first_ask()
        path = _path(first["path"])
        _preload(first["modules"], path, server.pid)
        ask, output = server.serve()
    except BaseException as why:
        # Only the server comes here. Its end is no interpreter's end: nothing is saved, no handler runs.
        if not isinstance(why, _Unfit):
            traceback.print_exc()
        server.give_up("%s" % why)
    server.become(ask, output)
    ask["path"] = path
    return ask


_ask = _start()
_run(_ask, _arrange(_ask))

//! Telling whether a command is a Python program that can be forked from a warm interpreter.
//!
//! `python [options] script arguments…` and `python [options] -m module arguments…` are. Options that act at the
//! interpreter's start are given to the warm one; those that change what a script sees of itself are not understood
//! here, and mean a plain start. So does everything that starts interpreters of its own: nothing would be saved.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::Launch;

/// Options without a value that act at the interpreter's start and nowhere else.
const PLAIN_OPTIONS: &[u8] = b"uBOEsb";
/// Programs and modules that start interpreters of their own.
const LAUNCHERS: [&str; 8] = [
    "torchrun",
    "accelerate",
    "deepspeed",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
];
/// How much of a script is looked at to tell that it is text.
const LOOK_BYTES: u64 = 64 << 10;

/// Why a command cannot be forked from a warm interpreter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    /// Another program.
    #[error("`{0}` is no Python interpreter by its name")]
    NotPython(String),
    /// It starts processes of its own, which nothing here is saved for.
    #[error("`{0}` starts interpreters of its own")]
    Launcher(String),
    /// An option that is not understood here.
    #[error("the interpreter's option `{0}` needs an interpreter of its own")]
    Option(String),
    /// Neither a script nor a module.
    #[error("it names no script and no module")]
    NoScript,
    /// The script is not there, or no plain text.
    #[error("`{0}` is no script that can be read")]
    Script(String),
}

/// What the interpreter is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// A file, as the command names it.
    Script(OsString),
    /// A module, as after `-m`.
    Module(OsString),
}

/// A command that is a Python program, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Python {
    pub(super) interpreter: OsString,
    pub(super) options: Vec<OsString>,
    pub(super) program: Program,
    /// What follows the script's or the module's name.
    pub(super) arguments: Vec<OsString>,
    /// Where it looks for modules first: the script's folder, or where it starts.
    pub(super) first_path: PathBuf,
}

impl Python {
    /// Takes a command apart, or says why it cannot be forked.
    pub(super) fn of(launch: &Launch) -> Result<Self, Unsuitable> {
        let mut rest = launch.arguments.iter();
        let interpreter = rest.next().ok_or(Unsuitable::NoScript)?;
        if !is_python(interpreter) {
            let name = shown(interpreter);
            return Err(if is_launcher(interpreter) {
                Unsuitable::Launcher(name)
            } else {
                Unsuitable::NotPython(name)
            });
        }
        let mut options = Vec::new();
        let program = loop {
            let argument = rest.next().ok_or(Unsuitable::NoScript)?;
            match option(argument)? {
                Word::Script => break Program::Script(argument.clone()),
                Word::Option => options.push(argument.clone()),
                Word::OptionWithValue => {
                    options.push(argument.clone());
                    options.push(rest.next().ok_or(Unsuitable::NoScript)?.clone());
                }
                Word::Module { letters, name } => {
                    options.extend(letters);
                    break Program::Module(match name {
                        Some(name) => name,
                        None => rest.next().ok_or(Unsuitable::NoScript)?.clone(),
                    });
                }
            }
        };
        let (Program::Script(name) | Program::Module(name)) = &program;
        if is_launcher(name) {
            return Err(Unsuitable::Launcher(shown(name)));
        }
        let first_path = match &program {
            Program::Script(script) => {
                folder_of(&launch.directory.join(script)).ok_or_else(|| Unsuitable::Script(shown(script)))?
            }
            Program::Module(_) => launch.directory.clone(),
        };
        Ok(Self { interpreter: interpreter.clone(), options, program, arguments: rest.cloned().collect(), first_path })
    }
}

enum Word {
    Script,
    Option,
    /// Its value is the next argument.
    OptionWithValue,
    /// `-m`, perhaps behind other letters, perhaps with the name attached.
    Module {
        letters: Option<OsString>,
        name: Option<OsString>,
    },
}

fn option(argument: &OsStr) -> Result<Word, Unsuitable> {
    let bytes = argument.as_bytes();
    let Some(letters) = bytes.strip_prefix(b"-") else { return Ok(Word::Script) };
    let unknown = || Unsuitable::Option(shown(argument));
    for (at, letter) in letters.iter().enumerate() {
        let value = letters.get(at + 1..).unwrap_or_default();
        match letter {
            b'X' | b'W' if value.is_empty() => return Ok(Word::OptionWithValue),
            b'X' | b'W' => return Ok(Word::Option),
            b'm' => {
                return Ok(Word::Module {
                    letters: (at > 0).then(|| OsString::from_vec(bytes.iter().take(at + 1).copied().collect())),
                    name: (!value.is_empty()).then(|| OsString::from_vec(value.to_vec())),
                });
            }
            letter if PLAIN_OPTIONS.contains(letter) => {}
            _ => return Err(unknown()),
        }
    }
    // A lone `-` is a program on the standard input, and there is none.
    if letters.is_empty() { Err(unknown()) } else { Ok(Word::Option) }
}

/// `python`, `python3`, `python3.11`, or a path to one.
fn is_python(program: &OsStr) -> bool {
    let Some(name) = Path::new(program).file_name() else { return false };
    name.as_bytes()
        .strip_prefix(b"python")
        .is_some_and(|version| version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

fn is_launcher(program: &OsStr) -> bool {
    LAUNCHERS
        .iter()
        .any(|launcher| program == OsStr::new(launcher) || Path::new(program).file_name() == Some(OsStr::new(launcher)))
}

/// The folder of a script that is plain text, its links followed as the interpreter follows them.
fn folder_of(script: &Path) -> Option<PathBuf> {
    let script = script.canonicalize().ok()?;
    if !script.is_file() {
        return None;
    }
    let mut start = Vec::new();
    File::open(&script).ok()?.take(LOOK_BYTES).read_to_end(&mut start).ok()?;
    // A zip file or compiled code, which the interpreter would load by other ways.
    if start.contains(&0) {
        return None;
    }
    Some(script.parent()?.to_path_buf())
}

fn shown(word: &OsStr) -> String {
    crate::text::harmless(&word.to_string_lossy()).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Result<Python, Unsuitable> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [("train.py", "print(1)"), ("-odd", "print(1)"), ("zipped", "#!/usr/bin/python\nPK\0\0")] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        Python::of(&Launch {
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: Vec::new(),
            directory: directory.path().to_path_buf(),
        })
    }

    #[test]
    fn scripts_and_modules_are_told_from_options() {
        let script = of(&["python3", "-u", "-W", "error", "-Xdev", "-OO", "train.py", "-c", "x"]).unwrap();
        assert_eq!(script.options, ["-u", "-W", "error", "-Xdev", "-OO"]);
        assert_eq!(
            (script.program, script.arguments),
            (Program::Script("train.py".into()), vec!["-c".into(), "x".into()])
        );
        let module = of(&["/opt/bin/python3.12", "-B", "-m", "pkg.train", "--lr", "1"]).unwrap();
        assert_eq!((module.program, module.arguments.len()), (Program::Module("pkg.train".into()), 2));
        let attached = of(&["python", "-uBmpkg"]).unwrap();
        assert_eq!((attached.program, attached.options), (Program::Module("pkg".into()), vec!["-uB".into()]));
    }

    #[test]
    fn what_needs_its_own_interpreter_is_named() {
        let why = |arguments: &[&str]| of(arguments).unwrap_err();
        assert_eq!(why(&["python3", "-c", "print(1)"]), Unsuitable::Option("-c".into()));
        assert_eq!(why(&["python3", "-i", "train.py"]), Unsuitable::Option("-i".into()));
        assert_eq!(why(&["python3", "--version"]), Unsuitable::Option("--version".into()));
        assert_eq!(why(&["python3", "-"]), Unsuitable::Option("-".into()));
        assert_eq!(why(&["python3"]), Unsuitable::NoScript);
        assert_eq!(why(&["python3", "-X"]), Unsuitable::NoScript);
        assert_eq!(why(&["python3", "-m"]), Unsuitable::NoScript);
        assert_eq!(why(&[]), Unsuitable::NoScript);
        assert_eq!(why(&["bash", "train.sh"]), Unsuitable::NotPython("bash".into()));
        assert_eq!(why(&["pythonista"]), Unsuitable::NotPython("pythonista".into()));
        assert_eq!(why(&["/usr/bin/torchrun", "train.py"]), Unsuitable::Launcher("/usr/bin/torchrun".into()));
        assert_eq!(
            why(&["python", "-m", "torch.distributed.run", "x.py"]).to_string(),
            "`torch.distributed.run` starts interpreters of its own"
        );
        assert_eq!(why(&["python3", "missing.py"]), Unsuitable::Script("missing.py".into()));
        assert_eq!(why(&["python3", "."]), Unsuitable::Script(".".into()));
        assert_eq!(why(&["python3", "zipped"]), Unsuitable::Script("zipped".into()));
        assert_eq!(why(&["python3", "a\u{1b}\n.py"]), Unsuitable::Script("a\u{fffd} .py".into()));
    }
}

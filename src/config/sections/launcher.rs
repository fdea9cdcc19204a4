//! `launcher:`, a program that starts workers somewhere else, such as a cluster's scheduler.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::leaf::list::{Worded, WordedVisitor};
use crate::config::leaf::number::Whole;
use crate::config::leaf::shortened;
use crate::config::leaf::text::Arguments;
use crate::config::leaf::time::Time;

/// How long a worker may take to its first word, in a queue most of the time.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// A program that starts workers somewhere else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LauncherFile {
    /// What stands before the worker's program: slurm, or a launcher and its arguments such as
    /// `[srun, --ntasks=1, "--job-name={trial}"]`. Required.
    pub command: LauncherCommand,
    /// Workers at a time, of which a trial takes as many as it has replicas.
    pub workers: Whole<1, 1024>,
    /// The longest wait for a worker's first word, the queue included.
    pub start_timeout: Time,
    /// What ends a worker for certain, such as `[scancel, --quiet, "{SLURM_JOB_ID}"]`, which is the default for srun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Arguments>,
}

impl Default for LauncherFile {
    fn default() -> Self {
        Self {
            command: LauncherCommand::default(),
            workers: Whole::clamped(1),
            start_timeout: Time::clamped(START_TIMEOUT),
            cancel: None,
        }
    }
}

/// What stands before the worker's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LauncherCommand {
    /// `srun` with the flags that suit where tune runs.
    Slurm,
    /// The user's own; nothing where it was not written.
    Own(Arguments),
}

impl Default for LauncherCommand {
    fn default() -> Self {
        Self::Own(Arguments::default())
    }
}

impl Worded for LauncherCommand {
    type List = Arguments;

    const EXPECTING: &'static str =
        "`slurm` or a list of arguments such as `[srun, --ntasks=1, \"--job-name={trial}\"]`";

    fn word(text: &str) -> Option<Self> {
        (text == "slurm").then_some(Self::Slurm)
    }

    fn list(list: Self::List) -> Self {
        Self::Own(list)
    }
}

impl<'de> Deserialize<'de> for LauncherCommand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordedVisitor(PhantomData))
    }
}

impl Serialize for LauncherCommand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Slurm => serializer.serialize_str("slurm"),
            Self::Own(command) => command.serialize(serializer),
        }
    }
}

impl JsonSchema for LauncherCommand {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LauncherCommand".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": "slurm" }, generator.subschema_for::<Arguments>()] })
    }
}

/// The keys of a launcher, or the word that stands for those of Slurm.
#[derive(Clone, Debug, PartialEq)]
pub struct Launcher(pub LauncherFile);

impl Launcher {
    /// What `launcher: slurm` stands for.
    fn slurm() -> Self {
        Self(LauncherFile { command: LauncherCommand::Slurm, ..LauncherFile::default() })
    }
}

struct LauncherVisitor;

impl<'de> Visitor<'de> for LauncherVisitor {
    type Value = Launcher;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`slurm`, or keys such as `{command: [srun, --ntasks=1], start_timeout: 10m}`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Launcher, E> {
        if text == "slurm" {
            return Ok(Launcher::slurm());
        }
        Err(E::invalid_value(Unexpected::Str(&shortened(text)), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Launcher, A::Error> {
        LauncherFile::deserialize(MapAccessDeserializer::new(map)).map(Launcher)
    }
}

impl<'de> Deserialize<'de> for Launcher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LauncherVisitor)
    }
}

impl Serialize for Launcher {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::slurm() { serializer.serialize_str("slurm") } else { self.0.serialize(serializer) }
    }
}

impl JsonSchema for Launcher {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Launcher".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "const": "slurm" }, generator.subschema_for::<LauncherFile>()] })
    }
}

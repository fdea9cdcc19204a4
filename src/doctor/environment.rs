//! The environment: the settings of PyTorch's allocator, and what slows every step.

use super::{Facts, Finding, Level, SlurmFacts, driver};
use crate::memory::policy::{AllocConf, Backend};
use crate::text::{harmless, with_causes};
use crate::units::Bytes;

/// The older name, and the newer.
const NAMES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let environment = &facts.environment;
    let settings = |name, conf: &String| settings(name, conf, facts);
    let mut findings = Vec::new();
    match (&environment.cuda_alloc_conf, &environment.alloc_conf) {
        (None, None) => {
            let meaning =
                "PyTorch's allocator runs with its defaults; `tune` searches better ones where memory is tight";
            findings.push(Finding::new("alloc_conf", Level::Fine, "no allocator settings in the environment", meaning));
        }
        (Some(older), Some(newer)) if older != newer => {
            let found = format!("`{}={}` and `{}={}`", NAMES[0], shown(older), NAMES[1], shown(newer));
            let meaning = "two settings: newer releases of PyTorch take the second, older ones know the first alone";
            findings.push(
                Finding::new("alloc_conf", Level::Warning, found, meaning)
                    .advise("set one of them, or both to the same"),
            );
            findings.extend([(NAMES[0], older), (NAMES[1], newer)].map(|(name, conf)| settings(name, conf)));
        }
        (_, Some(conf)) => findings.push(settings(NAMES[1], conf)),
        (Some(conf), None) => findings.push(settings(NAMES[0], conf)),
    }
    findings.extend(blocking(environment.launch_blocking.as_deref()));
    findings.extend(environment.slurm.as_ref().map(slurm));
    findings
}

/// A cluster's scheduler, which trials can be run through.
fn slurm(slurm: &SlurmFacts) -> Finding {
    let srun = shown(&slurm.srun.to_string_lossy());
    let (found, meaning) = match &slurm.job {
        Some(job) => (
            format!("Slurm: `{srun}`, inside job {}", shown(job)),
            "`launcher: slurm` runs trials as steps of this job, and all ends with it",
        ),
        None => (format!("Slurm: `{srun}`"), "`launcher: slurm` runs trials as jobs of the cluster's"),
    };
    Finding::new("slurm", Level::Fine, found, meaning)
}

fn shown(text: &str) -> String {
    harmless(&text.chars().take(200).collect::<String>())
}

/// What allocator settings come to.
fn settings(name: &str, text: &str, facts: &Facts) -> Finding {
    let found = format!("`{name}={}`", shown(text));
    let conf: AllocConf = match text.parse() {
        Ok(conf) => conf,
        Err(error) => {
            let meaning = format!("PyTorch refuses or ignores it: {}", with_causes(&error));
            return Finding::new("alloc_conf", Level::Problem, found, meaning)
                .advise(format!("correct it, or unset `{name}`"));
        }
    };
    let set = &conf.settings;
    let has_threshold = set.garbage_collection_threshold.is_some();
    if conf.backend == Backend::CudaMallocAsync && driver::is_before_cuda_12(facts) {
        return Finding::new("alloc_conf", Level::Problem, found, "`cudaMallocAsync` needs driver 525.60.13 or newer")
            .advise(format!("update the driver, or unset `{name}`"));
    }
    if conf.backend == Backend::CudaMallocAsync {
        let meaning = "the driver's pool: little fragmentation, and no snapshots of single blocks";
        return Finding::new("alloc_conf", Level::Fine, found, meaning);
    }
    if set.expandable_segments && (set.max_split_bytes.is_some() || has_threshold) {
        let meaning = "expandable segments leave out `max_split_size_mb` and `garbage_collection_threshold`; some releases of PyTorch stop at an assertion with both";
        return Finding::new("alloc_conf", Level::Warning, found, meaning)
            .advise("set `expandable_segments:True` alone");
    }
    if has_threshold && set.per_process_memory_fraction.is_none() {
        let meaning =
            "`garbage_collection_threshold` works only in a process with a memory fraction, which is not set here";
        return Finding::new("alloc_conf", Level::Note, found, meaning)
            .advise("the program must call `torch.cuda.set_per_process_memory_fraction`");
    }
    if set.expandable_segments {
        let meaning = "segments grow in place: the setting that helps most against fragmentation";
        return Finding::new("alloc_conf", Level::Fine, found, meaning);
    }
    if let Some(bytes) = set.max_split_bytes {
        let meaning = format!(
            "blocks over {} are kept whole: less fragmentation of large ones, and more memory held",
            Bytes(bytes)
        );
        return Finding::new("alloc_conf", Level::Fine, found, meaning);
    }
    let meaning = if conf.to_string().is_empty() {
        "it sets nothing but defaults"
    } else {
        "it can be read, and nothing in it is known to harm"
    };
    Finding::new("alloc_conf", Level::Fine, found, meaning)
}

fn blocking(variable: Option<&str>) -> Option<Finding> {
    let is_on = variable.is_some_and(|value| !value.is_empty() && value != "0");
    is_on.then(|| {
        let meaning =
            "every kernel is waited for: meant for debugging, and step times are not those of a launch without it";
        Finding::new("launch_blocking", Level::Warning, "`CUDA_LAUNCH_BLOCKING` is on", meaning).advise("unset it")
    })
}

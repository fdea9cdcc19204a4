//! A batch script for Slurm, with the settings in it.
//!
//! ```sh
//! tune export --format slurm --output tuned.sbatch recommendation.yaml
//! sbatch tuned.sbatch python train.py
//! ```
//! One task a replica, each with its own card and with processors for its loader workers and itself. What is launched
//! finds the settings in its environment. The settings are those of the day of the export; `examples/slurm/` tunes
//! first where they are out of date.

use super::{Answer, ExportError, Exporter, env, pytorch};

/// Slurm.
#[derive(Debug)]
pub struct Slurm;

impl Exporter for Slurm {
    fn export(&self, answer: &Answer<'_>) -> Result<String, ExportError> {
        let cards = if answer.is_cuda() { "#SBATCH --gpus-per-task=1\n" } else { "" };
        Ok(format!(
            "#!/bin/bash\n\
             # {origin}\n\
             #SBATCH --job-name=tuned\n\
             #SBATCH --ntasks={replicas}\n\
             #SBATCH --cpus-per-task={cpus}\n\
             {cards}\
             set -eu\n\
             \n\
             if [ $# -eq 0 ]; then\n    echo \"usage: sbatch SCRIPT COMMAND [ARGUMENT...]\" >&2\n    exit 2\nfi\n\
             \n\
             {assignments}\
             # Since 22.05 srun does not take this from the batch job by itself.\n\
             export SRUN_CPUS_PER_TASK=\"${{SLURM_CPUS_PER_TASK:-{cpus}}}\"\n\
             \n\
             exec srun --kill-on-bad-exit=1 \"$@\"\n",
            origin = answer.origin(),
            replicas = answer.recommended.replicas,
            cpus = answer.recommended.loader_workers.saturating_add(1),
            assignments = env::assignments(answer)?,
        ))
    }

    fn notes(&self, answer: &Answer<'_>) -> Vec<String> {
        pytorch::batch_norm_notes(answer)
    }
}

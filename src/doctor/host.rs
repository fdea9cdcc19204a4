//! The host: memory, address space, shared memory, processes, processors, files, locked pages.

use super::{Finding, Level};
use crate::device::facts::{HostLimits, Room, Usage};
use crate::units::{Bytes, GIB, MIB};

/// Host memory under which loading data and writing a checkpoint become a risk.
const LITTLE_MEMORY_BYTES: u64 = 2 * GIB;
/// What Docker gives `/dev/shm` unless told.
const DOCKERS_SHARED_BYTES: u64 = 64 * MIB;
/// Shared memory that some workers with some batches fit into.
const ENOUGH_SHARED_BYTES: u64 = GIB;
/// Threads and processes that a training program with loader workers starts.
const FEW_PROCESSES: u64 = 256;
/// With fewer not even the libraries' own threads start.
const TOO_FEW_PROCESSES: u64 = 32;
/// Open files that PyTorch's workers may come to: one for each tensor that is passed.
const FEW_FILES: u64 = 4096;
/// With fewer a program fails at its imports.
const TOO_FEW_FILES: u64 = 128;
/// What network cards ask to lock, roughly.
const LITTLE_LOCKED_BYTES: u64 = GIB;

pub(super) fn examine(host: &HostLimits) -> Vec<Finding> {
    vec![
        memory(host),
        address_space(host.address_space_bytes),
        shared_memory(host.shared_memory),
        processes(host.processes),
        processors(host.cpus, host.quota_cpus),
        open_files(host.open_files),
        locked_memory(host.locked_bytes),
    ]
}

fn unknown(check: &'static str, what: &str) -> Finding {
    Finding::new(check, Level::Note, format!("{what} is not known"), "the kernel does not tell it, so it is not judged")
}

fn memory(host: &HostLimits) -> Finding {
    let Some(memory) = host.memory else { return unknown("host_memory", "the host's memory") };
    let found = format!("{} of {} of host memory available", Bytes(memory.available_bytes), Bytes(memory.total_bytes));
    if memory.available_bytes < LITTLE_MEMORY_BYTES {
        return Finding::new(
            "host_memory",
            Level::Warning,
            found,
            "the kernel may end a program that loads data or writes a checkpoint",
        )
        .advise("raise the container's memory limit (`docker run --memory`, `sbatch --mem`), or end what uses it");
    }
    Finding::new("host_memory", Level::Fine, found, "the smallest limit of the control groups counts")
}

fn address_space(limit: Option<u64>) -> Finding {
    let Some(limit) = limit else { return unknown("address_space", "the limit of the address space") };
    if limit == u64::MAX {
        let meaning = "memory ends where the host's does";
        return Finding::new("address_space", Level::Fine, "no limit of the address space", meaning);
    }
    // Libraries, stacks and files are mapped and not used; CUDA reserves addresses for the memory of host and cards.
    let meaning = "a program is refused memory while the host has plenty, and CUDA, which reserves more addresses than a card has memory, may not start";
    Finding::new("address_space", Level::Warning, format!("{} of address space at most", Bytes(limit)), meaning)
        .advise("`ulimit -v unlimited`, or no `-v` in what the batch system sets")
}

fn shared_memory(room: Option<Room>) -> Finding {
    let Some(room) = room else {
        return Finding::new(
            "shared_memory",
            Level::Problem,
            "there is no `/dev/shm`",
            "PyTorch's loader workers cannot pass batches",
        )
        .advise("mount one (`docker run --shm-size=8g`), or load in the training process (`num_workers=0`)");
    };
    let found = format!("{} of {} free in `/dev/shm`", Bytes(room.free_bytes), Bytes(room.total_bytes));
    let advice =
        "start the container with more (`docker run --shm-size=8g`, an `emptyDir` of `medium: Memory` on Kubernetes)";
    if room.total_bytes <= DOCKERS_SHARED_BYTES || room.free_bytes < DOCKERS_SHARED_BYTES / 4 {
        let meaning = "PyTorch's loader workers pass batches through it and die of a bus error when it is full (`tune`'s own are threads and need none)";
        return Finding::new("shared_memory", Level::Problem, found, meaning).advise(advice);
    }
    if room.free_bytes < ENOUGH_SHARED_BYTES {
        let meaning = "PyTorch's loader workers keep workers × prefetch batches in it";
        return Finding::new("shared_memory", Level::Warning, found, meaning).advise(advice);
    }
    Finding::new("shared_memory", Level::Fine, found, "room for the batches of PyTorch's loader workers")
}

fn processes(usage: Option<Usage>) -> Finding {
    let Some(usage) = usage else {
        return Finding::new("processes_limit", Level::Fine, "no limit of processes", "the control groups set none");
    };
    let left = usage.limit.saturating_sub(usage.used);
    let found = format!("{} of {} processes and threads in use", usage.used, usage.limit);
    let advice = "raise it (`docker run --pids-limit`), or start fewer loader workers and threads";
    if left < TOO_FEW_PROCESSES {
        return Finding::new("processes_limit", Level::Problem, found, "a program cannot start its threads")
            .advise(advice);
    }
    if left < FEW_PROCESSES {
        return Finding::new(
            "processes_limit",
            Level::Warning,
            found,
            "each loader worker starts threads of its own, and may fail to",
        )
        .advise(advice);
    }
    Finding::new("processes_limit", Level::Fine, found, "enough for loader workers and their threads")
}

fn processors(cpus: usize, quota_cpus: Option<f64>) -> Finding {
    let shown = crate::units::plural(cpus, "processor");
    let Some(quota) = quota_cpus else {
        let found = format!("{shown} may be used, without a quota");
        return Finding::new("processors", Level::Fine, found, "loader workers beyond their number help nobody");
    };
    let found = format!("{shown} may be used, with a quota worth {quota:.1}");
    // A tenth of slack: quotas are written by hand.
    if (cpus as f64) > quota * 1.1 {
        let threads = (quota.floor() as u64).max(1);
        let meaning = "libraries start a thread for each processor that they see, and the quota then stops all of them for most of the time";
        return Finding::new("processors", Level::Warning, found, meaning).advise(format!(
            "set `OMP_NUM_THREADS={threads}` and use {threads} loader workers at most, or raise the quota"
        ));
    }
    Finding::new("processors", Level::Fine, found, "the quota lets all of them be used")
}

fn open_files(limit: Option<u64>) -> Finding {
    let Some(limit) = limit else { return unknown("open_files", "the limit of open files") };
    let found =
        if limit == u64::MAX { "no limit of open files".to_owned() } else { format!("{limit} open files at most") };
    if limit < TOO_FEW_FILES {
        return Finding::new("open_files", Level::Problem, found, "a program fails while it imports its libraries")
            .advise("`ulimit -n 65536`");
    }
    if limit < FEW_FILES {
        let meaning =
            "PyTorch's loader workers keep a file open for each tensor that they pass (`Too many open files`)";
        return Finding::new("open_files", Level::Warning, found, meaning)
            .advise("`ulimit -n 65536`, or `torch.multiprocessing.set_sharing_strategy(\"file_system\")`");
    }
    Finding::new("open_files", Level::Fine, found, "enough for loader workers")
}

fn locked_memory(limit: Option<u64>) -> Finding {
    let Some(limit) = limit else { return unknown("locked_memory", "the limit of locked memory") };
    if limit == u64::MAX {
        return Finding::new(
            "locked_memory",
            Level::Fine,
            "no limit of locked memory",
            "pinned batches and network cards may lock what they need",
        );
    }
    let found = format!("{} of locked memory at most", Bytes(limit));
    if limit < LITTLE_LOCKED_BYTES {
        // CUDA's page-locked memory is pinned by its driver, which most kernels do not count here.
        let meaning = "CUDA's pinned batches are the driver's and seldom counted; RDMA of several machines (NCCL over InfiniBand) and `mlock` are, and fail";
        return Finding::new("locked_memory", Level::Note, found, meaning)
            .advise("`ulimit -l unlimited` (`docker run --ulimit memlock=-1`) where several machines train together");
    }
    Finding::new("locked_memory", Level::Fine, found, "enough for pinned batches and network cards")
}

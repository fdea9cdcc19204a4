//! One session at a time, and child processes for what a process does not survive.

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batchtune::device::DeviceSession;
use batchtune::device::cuda::{CudaSession, hook};
use batchtune::memory::{AllocatorKind, LimitSpec};
use batchtune::units::{Bytes, GIB, MIB};
use candle_core::{DType, Device, Tensor};

const CHILD_DEADLINE: Duration = Duration::from_secs(90);

static TURN: Mutex<()> = Mutex::new(());

/// Waits for the device.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session on the first device with a limit in GiB.
pub(crate) fn session(limit_gib: u64) -> CudaSession {
    CudaSession::open(0, LimitSpec::Bytes(Bytes(limit_gib * GIB)), AllocatorKind::Auto).expect("a CUDA device")
}

/// A tensor of so many MiB.
pub(crate) fn mebibytes(device: &Device, mib: u64) -> candle_core::Result<Tensor> {
    Tensor::zeros(usize::try_from(mib * MIB).expect("fits"), DType::U8, device) // [mib · 2^20]
}

/// How a child process ended, and what it said.
pub(crate) struct Child {
    success: bool,
    text: String,
}

impl Child {
    /// All that it said.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Runs one ignored test of this binary in a process of its own, for 90 s at most: a first start compiles kernels.
pub(crate) fn child(test: &str, environment: &[(&str, &str)]) -> Child {
    let log = tempfile::NamedTempFile::new().expect("a temporary file");
    let output = || log.reopen().expect("the temporary file");
    let mut process = Command::new(std::env::current_exe().expect("this program has a path"))
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(output())
        .stderr(output())
        .spawn()
        .expect("this program can be started again");
    let started = Instant::now();
    let success = loop {
        if let Some(status) = process.try_wait().expect("our own child") {
            break status.success();
        }
        if started.elapsed() > CHILD_DEADLINE {
            process.kill().expect("our own child");
            process.wait().expect("our own child");
            break false;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = std::fs::read(log.path()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    Child { success, text: format!("{said}(after {:.1} s)", started.elapsed().as_secs_f64()) }
}

/// Fails with the child's own words if it failed, or ran no test.
pub(crate) fn assert_passed(child: &Child) {
    assert!(child.success && child.text.contains("1 passed"), "{}", child.text);
}

/// Device memory that no pool knows of, as another process would hold it.
pub(crate) struct Ballast(Vec<u64>);

impl Ballast {
    /// Takes all memory of the card but about `leave_mib`.
    pub(crate) fn fill(session: &CudaSession, leave_mib: u64) -> Self {
        let cuda = session.candle().as_cuda_device().expect("a CUDA device").cuda_stream();
        let mut blocks = Vec::new();
        let mut size = 64 * GIB;
        while size >= 2 * MIB {
            let (free, _) = cuda.context().mem_get_info().expect("the card answers");
            let room = (free as u64).saturating_sub(leave_mib * MIB);
            if room < size {
                size /= 2;
                continue;
            }
            let bytes = usize::try_from(size).expect("fits");
            // SAFETY: the block is not written to and is freed on drop.
            let block = hook::uncounted(|| unsafe { cudarc::driver::result::malloc_sync(bytes) });
            match block {
                Ok(pointer) => blocks.push(pointer),
                Err(_) => size /= 2,
            }
        }
        Self(blocks)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        for pointer in self.0.drain(..) {
            // SAFETY: the block was made by `malloc_sync` above and nothing uses it.
            let _ = hook::uncounted(|| unsafe { cudarc::driver::result::free_sync(pointer) });
        }
    }
}

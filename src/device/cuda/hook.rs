//! The hook: sees every allocation that candle makes on a CUDA device.
//!
//! candle reaches the driver through cudarc, and cudarc (feature `dynamic-linking`) through ordinary undefined symbols
//! of the names below. A definition in the program itself comes before the one in `libcuda.so.1`, so these functions
//! take the calls at link time, without a preload, a patch or a wrapper around candle. They hand each call on to the
//! driver, which they find by `dlsym`, and enter the result into the [ledger](super::ledger).
//!
//! They see candle's and cudarc's calls only. cuBLAS, cuDNN and cuRAND look the driver up by `cuGetProcAddress`, so
//! their workspaces pass by, and are measured as external memory. The book is one for the whole process, whatever the
//! device: only one session is open at a time.
//!
//! A program whose cudarc loads the driver at run time (feature `dynamic-loading`) never comes here; the session's
//! self-check notices.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::libc;

use super::ledger::Ledger;
pub use super::ledger::{Counts, Failure, Recording};
use crate::memory::{Mark, Stream};

/// `CUresult`: plain numbers, because a driver newer than our headers may answer with a code they do not have.
type Code = u32;
/// `CUdeviceptr`.
type DevicePointer = u64;
/// `CUstream`.
type StreamHandle = *mut c_void;

const SUCCESS: Code = 0;
/// `CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND`: the answer where the driver lacks a function.
const SYMBOL_NOT_FOUND: Code = 302;
/// `CU_STREAM_PER_THREAD`: one handle, but another stream on each thread.
const PER_THREAD_STREAM: u64 = 2;

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger::new());
static COUNTING: AtomicBool = AtomicBool::new(true);

/// The driver's own functions.
struct Driver {
    alloc_async: AllocAsync,
    free_async: FreeAsync,
    alloc: Alloc,
    free: Free,
}

type AllocAsync = unsafe extern "C" fn(*mut DevicePointer, usize, StreamHandle) -> Code;
type FreeAsync = unsafe extern "C" fn(DevicePointer, StreamHandle) -> Code;
type Alloc = unsafe extern "C" fn(*mut DevicePointer, usize) -> Code;
type Free = unsafe extern "C" fn(DevicePointer) -> Code;

impl Driver {
    fn get() -> Option<&'static Self> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::resolve).as_ref()
    }

    fn resolve() -> Option<Self> {
        let alloc_async = symbol(c"cuMemAllocAsync")?;
        let free_async = symbol(c"cuMemFreeAsync")?;
        let alloc = symbol(c"cuMemAlloc_v2")?;
        let free = symbol(c"cuMemFree_v2")?;
        // SAFETY: these are the functions of those names in the driver's library, whose C signatures (cuda.h) have
        // not changed since they were introduced; a `CUresult` is an unsigned 32-bit enum.
        unsafe {
            Some(Self {
                alloc_async: std::mem::transmute::<*mut c_void, AllocAsync>(alloc_async),
                free_async: std::mem::transmute::<*mut c_void, FreeAsync>(free_async),
                alloc: std::mem::transmute::<*mut c_void, Alloc>(alloc),
                free: std::mem::transmute::<*mut c_void, Free>(free),
            })
        }
    }
}

/// The address of a function in the driver's library, never our own of the same name.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: both strings end in NUL. NOLOAD only looks up the library that is loaded already, and the reference it
    // takes is never given back, so the address stays good. Where the driver has another file name, RTLD_NEXT
    // searches the libraries that come after this program, which is where the linker would have found it.
    let address = unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = if library.is_null() { std::ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } else { found }
    };
    (!address.is_null()).then_some(address)
}

fn ledger() -> MutexGuard<'static, Ledger> {
    // Nothing in the ledger panics, and a half-made entry would be no reason to stop counting.
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream behind a handle: the per-thread handle is another stream on each thread.
fn stream_of(handle: StreamHandle) -> Stream {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local!(static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed));
    match handle as u64 {
        // Real handles are pointers, so multiples of four: no clash.
        PER_THREAD_STREAM => {
            Stream(THREAD.try_with(|thread| thread << 32).unwrap_or(u64::MAX << 32) | PER_THREAD_STREAM)
        }
        handle => Stream(handle),
    }
}

/// Enters the driver's answer to a request.
///
/// # Safety
/// `pointer` is where the driver wrote the block's address, if `code` is success.
unsafe fn answered(pointer: *const DevicePointer, bytes: usize, handle: StreamHandle, code: Code) -> Code {
    if !COUNTING.load(Ordering::Relaxed) {
        return code;
    }
    if code != SUCCESS {
        ledger().refused(bytes as u64, code);
    } else if !pointer.is_null() {
        // SAFETY: the caller's promise.
        let pointer = unsafe { pointer.read() };
        if pointer != 0 {
            ledger().allocated(pointer, bytes as u64, || stream_of(handle));
        }
    }
    code
}

/// Strikes a block out, then frees it. In that order: once freed, another thread may be given the same address.
fn free(pointer: DevicePointer, handle: StreamHandle, driver_free: impl FnOnce() -> Code) -> Code {
    if !COUNTING.load(Ordering::Relaxed) {
        return driver_free();
    }
    let bytes = ledger().freed(pointer);
    let code = driver_free();
    if code != SUCCESS
        && let Some(bytes) = bytes
    {
        ledger().allocated(pointer, bytes, || stream_of(handle));
    }
    code
}

/// Takes candle's stream-ordered allocations.
///
/// # Safety
/// As the driver's function of that name: `pointer` is writable, `stream` is a stream of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(pointer: *mut DevicePointer, bytes: usize, stream: StreamHandle) -> Code {
    let Some(driver) = Driver::get() else { return SYMBOL_NOT_FOUND };
    // SAFETY: the caller's promise is the driver's.
    unsafe {
        let code = (driver.alloc_async)(pointer, bytes, stream);
        answered(pointer, bytes, stream, code)
    }
}

/// Takes candle's stream-ordered frees.
///
/// # Safety
/// As the driver's function of that name: `pointer` is a live block, `stream` is a stream of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(pointer: DevicePointer, stream: StreamHandle) -> Code {
    let Some(driver) = Driver::get() else { return SYMBOL_NOT_FOUND };
    // SAFETY: the caller's promise is the driver's.
    free(pointer, stream, || unsafe { (driver.free_async)(pointer, stream) })
}

/// Takes allocations on devices without memory pools.
///
/// # Safety
/// As the driver's function of that name: `pointer` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut DevicePointer, bytes: usize) -> Code {
    let Some(driver) = Driver::get() else { return SYMBOL_NOT_FOUND };
    // SAFETY: the caller's promise is the driver's.
    unsafe {
        let code = (driver.alloc)(pointer, bytes);
        answered(pointer, bytes, std::ptr::null_mut(), code)
    }
}

/// Takes frees on devices without memory pools.
///
/// # Safety
/// As the driver's function of that name: `pointer` is a live block that no pending work uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(pointer: DevicePointer) -> Code {
    let Some(driver) = Driver::get() else { return SYMBOL_NOT_FOUND };
    // SAFETY: the caller's promise is the driver's.
    free(pointer, std::ptr::null_mut(), || unsafe { (driver.free)(pointer) })
}

/// The figures now.
pub fn counts() -> Counts {
    ledger().counts()
}

/// Starts a new window for the peak and the largest request.
pub fn start_window() {
    ledger().start_window();
}

/// The last refused request since this was last asked.
pub fn take_failure() -> Option<Failure> {
    ledger().take_failure()
}

/// The last refused request, left where it is.
pub fn failure() -> Option<Failure> {
    ledger().failure()
}

/// Starts a recording of at most `capacity` events (32 bytes each) between two calls of [`drain`].
pub fn record(capacity: usize) {
    ledger().record(capacity);
}

/// The events since the last call; recording goes on. Empty where none runs. Runs of frees are sorted by ordinal.
pub fn drain() -> Recording {
    let mut recording = ledger().drain();
    recording.sort_runs_of_frees();
    recording
}

/// The events since the last [`drain`], likewise; recording ends.
pub fn stop_recording() -> Recording {
    let mut recording = ledger().stop();
    recording.sort_runs_of_frees();
    recording
}

/// Enters a mark into a running recording.
pub fn mark(mark: Mark) {
    ledger().mark(mark);
}

/// Runs `work` with every call handed straight to the driver, to measure what counting costs.
///
/// Blocks that `work` allocates and leaves behind stay unknown, and blocks of before that it frees stay in the book:
/// the figures are worth nothing afterwards unless it does neither.
pub fn uncounted<R>(work: impl FnOnce() -> R) -> R {
    struct CountAgain;
    impl Drop for CountAgain {
        fn drop(&mut self) {
            COUNTING.store(true, Ordering::Relaxed);
        }
    }
    COUNTING.store(false, Ordering::Relaxed);
    let _count_again = CountAgain;
    work()
}

/// Frees a block that did not come through the hook either (one of [`super::pool`]'s probes).
///
/// # Safety
/// As `cuMemFreeAsync`.
pub(super) unsafe fn free_past_the_book(pointer: DevicePointer, stream: StreamHandle) -> Code {
    let Some(driver) = Driver::get() else { return SYMBOL_NOT_FOUND };
    // SAFETY: the caller's promise is the driver's.
    unsafe { (driver.free_async)(pointer, stream) }
}

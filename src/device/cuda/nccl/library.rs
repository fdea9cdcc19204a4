//! NCCL's functions, looked up when they are needed.
//!
//! The library is opened at run time (`libnccl.so.2`), so a program built with the feature starts without it, and says
//! what is missing only to those who ask for replicas. The signatures and numbers are those of `nccl.h`, unchanged since
//! NCCL 2.10, the first with the mean among its reductions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use candle_core::DType;
use nix::libc;

use crate::device::collective::{CollectiveError, Reduction};

/// `NCCL_UNIQUE_ID_BYTES`
pub(super) const UNIQUE_ID_BYTES: usize = 128;

/// What a communicator's ranks find each other by.
pub(super) type UniqueId = [u8; UNIQUE_ID_BYTES];

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawId {
    internal: UniqueId,
}

/// `ncclResult_t`
type Code = c_int;
const SUCCESS: Code = 0;
/// `ncclInProgress`
const IN_PROGRESS: Code = 7;
/// `ncclSum` and `ncclAvg`
const SUM: c_int = 0;
const MEAN: c_int = 4;
/// NCCL 2.10, as `ncclGetVersion` writes it.
const OLDEST_VERSION: c_int = 21_000;

/// Where the library is looked for.
const NAMES: [&CStr; 2] = [c"libnccl.so.2", c"libnccl.so"];

/// Values on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) pointer: u64,
    pub(super) count: usize,
    pub(super) dtype: DType,
}

type Stream = *mut c_void;
type Handle = *mut c_void;

/// The functions that are used.
#[derive(Debug)]
pub(super) struct Library {
    get_version: unsafe extern "C" fn(*mut c_int) -> Code,
    get_unique_id: unsafe extern "C" fn(*mut RawId) -> Code,
    init_rank: unsafe extern "C" fn(*mut Handle, c_int, RawId, c_int) -> Code,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code,
    broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    async_error: unsafe extern "C" fn(Handle, *mut Code) -> Code,
    abort: unsafe extern "C" fn(Handle) -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
}

impl Library {
    /// The library, opened once for the process.
    pub(super) fn get() -> Result<&'static Self, CollectiveError> {
        static LIBRARY: OnceLock<Result<Library, CollectiveError>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, CollectiveError> {
        let failed = |reason: String| CollectiveError::Library { operation: "be opened", reason };
        // SAFETY: the names end in NUL. The reference is never given back, so addresses within stay good.
        let library =
            NAMES.iter().map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) });
        let Some(library) = library.into_iter().find(|library| !library.is_null()) else {
            let hint = "hint: install NCCL, or name the folder of `libnccl.so.2` in LD_LIBRARY_PATH";
            return Err(failed(format!("there is no `libnccl.so.2` ({hint})")));
        };
        let symbol = |name: &CStr| {
            // SAFETY: the library is open and the name ends in NUL.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            if address.is_null() { Err(failed(format!("it has no `{}`", name.to_string_lossy()))) } else { Ok(address) }
        };
        // SAFETY: these are the functions of those names in NCCL, with the signatures of `nccl.h`; an enum of C is an
        // `int` there.
        let library = unsafe {
            Self {
                get_version: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> Code>(symbol(
                    c"ncclGetVersion",
                )?),
                get_unique_id: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut RawId) -> Code>(symbol(
                    c"ncclGetUniqueId",
                )?),
                init_rank: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Handle, c_int, RawId, c_int) -> Code,
                >(symbol(c"ncclCommInitRank")?),
                all_reduce: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code,
                >(symbol(c"ncclAllReduce")?),
                broadcast: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> Code,
                >(symbol(c"ncclBroadcast")?),
                group_start: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> Code>(symbol(
                    c"ncclGroupStart",
                )?),
                group_end: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> Code>(symbol(c"ncclGroupEnd")?),
                async_error: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut Code) -> Code>(
                    symbol(c"ncclCommGetAsyncError")?,
                ),
                abort: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle) -> Code>(symbol(
                    c"ncclCommAbort",
                )?),
                error_string: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Code) -> *const c_char>(symbol(
                    c"ncclGetErrorString",
                )?),
            }
        };
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        library.check("tell its version", unsafe { (library.get_version)(&raw mut version) })?;
        if version < OLDEST_VERSION {
            return Err(failed(format!(
                "its version is {version}, and {OLDEST_VERSION} (2.10) is the oldest that will do"
            )));
        }
        Ok(library)
    }

    /// A new identity.
    pub(super) fn unique_id(&self) -> Result<UniqueId, CollectiveError> {
        let mut id = RawId { internal: [0; UNIQUE_ID_BYTES] };
        // SAFETY: the pointer is to a live `ncclUniqueId`.
        self.check("make an identity", unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id.internal)
    }

    /// A rank's communicator on the thread's device. Waits for all other ranks to ask for theirs.
    pub(super) fn communicator(&self, world: usize, rank: usize, id: UniqueId) -> Result<Handle, CollectiveError> {
        // Groups are of a few ranks.
        let (world, rank) = (c_int::try_from(world).unwrap_or(c_int::MAX), c_int::try_from(rank).unwrap_or(c_int::MAX));
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, and NCCL checks the numbers.
        let code = unsafe { (self.init_rank)(&raw mut handle, world, RawId { internal: id }, rank) };
        self.check("form a communicator", code)?;
        Ok(handle)
    }

    /// Runs several operations as one.
    pub(super) fn group(&self, run: impl FnOnce() -> candle_core::Result<()>) -> Result<(), CollectiveError> {
        // SAFETY: it takes nothing, and its end follows.
        self.check("begin a group", unsafe { (self.group_start)() })?;
        let ran = run();
        // SAFETY: as above.
        let ended = self.check("end a group", unsafe { (self.group_end)() });
        ran.map_err(|error| CollectiveError::Tensors(error.to_string())).and(ended)
    }

    /// Reduces values in place.
    pub(super) fn all_reduce(
        &self,
        handle: Handle,
        data: Data,
        reduction: Reduction,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let operation = match reduction {
            Reduction::Sum => SUM,
            Reduction::Mean => MEAN,
        };
        let (pointer, kind) = (data.pointer as *mut c_void, kind_of(data.dtype)?);
        // SAFETY: the values live on the communicator's device until the stream is past this: they are freed on it, or on
        // one that waits for it (`exchange`); nobody else uses them meanwhile. A handle that another thread aborts is one that NCCL fails for.
        let code =
            unsafe { (self.all_reduce)(pointer.cast_const(), pointer, data.count, kind, operation, handle, stream) };
        self.check("reduce", code)
    }

    /// Replaces values by those of rank 0.
    pub(super) fn broadcast(&self, handle: Handle, data: Data, stream: Stream) -> Result<(), CollectiveError> {
        let (pointer, kind) = (data.pointer as *mut c_void, kind_of(data.dtype)?);
        // SAFETY: as in `all_reduce`.
        let code = unsafe { (self.broadcast)(pointer.cast_const(), pointer, data.count, kind, 0, handle, stream) };
        self.check("broadcast", code)
    }

    /// What went wrong in an operation that is under way, where something did.
    pub(super) fn asynchronous_error(&self, handle: Handle) -> Option<CollectiveError> {
        let mut code = SUCCESS;
        // SAFETY: the handle is one of `communicator` and was not aborted: only the thread that asks this, and the owner
        // after that thread has ended, abort it while it is asked.
        let asked = unsafe { (self.async_error)(handle, &raw mut code) };
        self.check("go on", asked).and_then(|()| self.check("go on", code)).err()
    }

    /// Ends a communicator and all of its operations. It is not used again.
    pub(super) fn abort(&self, handle: Handle) {
        // SAFETY: the handle is one of `communicator`, and this is its only abort.
        let code = unsafe { (self.abort)(handle) };
        if let Err(error) = self.check("be aborted", code) {
            tracing::warn!("{error}");
        }
    }

    fn check(&self, operation: &'static str, code: Code) -> Result<(), CollectiveError> {
        if matches!(code, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: NCCL's texts are static and end in NUL; there is one for every number.
        let text = unsafe {
            let text = (self.error_string)(code);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        let reason = text.unwrap_or_else(|| format!("error {code}"));
        Err(CollectiveError::Library { operation, reason })
    }
}

/// `ncclDataType_t`
fn kind_of(dtype: DType) -> Result<c_int, CollectiveError> {
    Ok(match dtype {
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        other => return Err(CollectiveError::Tensors(format!("tensors of type {other:?} cannot be exchanged"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_nobody_trains_in_are_refused() {
        assert_eq!(kind_of(DType::BF16), Ok(9));
        assert!(kind_of(DType::U32).is_err());
    }
}

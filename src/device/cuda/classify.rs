//! What an error of candle's means for a trial: the one place where CUDA's codes are read.
//!
//! candle boxes what cudarc said as `dyn Error`, perhaps below a backtrace and some context. The layers are taken off
//! one by one and the code at the bottom is looked at; the text never is.

use std::error::Error;

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::cublas::result::CublasError;
use candle_core::cuda_backend::cudarc::cublas::sys::cublasStatus_t;
use candle_core::cuda_backend::cudarc::curand::result::CurandError;
use candle_core::cuda_backend::cudarc::curand::sys::curandStatus;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A request for device memory was refused.
    OutOfMemory,
    /// The context is beyond use: every later call fails too, until the process is replaced.
    Sticky,
    /// The call was wrong; the device is not.
    Other,
}

/// Codes after which "the context is no longer usable" (cuda.h): machine check errors, faults of kernels, and a driver
/// or a device that went away. As numbers, because older headers lack some.
const STICKY: [u32; 27] = [
    3,   // NOT_INITIALIZED
    4,   // DEINITIALIZED
    46,  // DEVICE_UNAVAILABLE
    214, // ECC_UNCORRECTABLE
    220, // NVLINK_UNCORRECTABLE
    226, // CONTAINED
    700, // ILLEGAL_ADDRESS
    702, // LAUNCH_TIMEOUT
    709, // CONTEXT_IS_DESTROYED
    710, // ASSERT
    714, // HARDWARE_STACK_ERROR
    715, // ILLEGAL_INSTRUCTION
    716, // MISALIGNED_ADDRESS
    717, // INVALID_ADDRESS_SPACE
    718, // INVALID_PC
    719, // LAUNCH_FAILED
    721, // TENSOR_MEMORY_LEAK
    802, // SYSTEM_NOT_READY
    803, // SYSTEM_DRIVER_MISMATCH
    805, // MPS_CONNECTION_FAILED
    806, // MPS_RPC_FAILURE
    807, // MPS_SERVER_NOT_READY
    808, // MPS_MAX_CLIENTS_REACHED
    809, // MPS_MAX_CONNECTIONS_REACHED
    810, // MPS_CLIENT_TERMINATED
    911, // EXTERNAL_DEVICE
    999, // UNKNOWN
];

/// What the driver's code means.
pub(super) fn driver_cause(error: DriverError) -> Cause {
    match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Cause::OutOfMemory,
        code if STICKY.contains(&(code as u32)) => Cause::Sticky,
        _ => Cause::Other,
    }
}

/// What is at the bottom of an error of candle's; `None` where that is not CUDA's.
pub(super) fn cause(error: &candle_core::Error) -> Option<Cause> {
    match error {
        candle_core::Error::WithBacktrace { inner, .. }
        | candle_core::Error::Context { inner, .. }
        | candle_core::Error::WithPath { inner, .. } => cause(inner),
        candle_core::Error::Cuda(inner) => cause_within(inner.as_ref()),
        candle_core::Error::WrappedContext { wrapped, .. } => cause_within(wrapped.as_ref()),
        _ => None,
    }
}

fn cause_within(error: &(dyn Error + 'static)) -> Option<Cause> {
    if let Some(error) = error.downcast_ref::<candle_core::Error>() {
        return cause(error);
    }
    match error.downcast_ref::<CudaError>() {
        Some(CudaError::Cuda(error)) => return Some(driver_cause(*error)),
        Some(CudaError::Load { cuda, .. }) => return Some(driver_cause(*cuda)),
        Some(CudaError::Cublas(error)) => return Some(cublas_cause(*error)),
        Some(CudaError::Curand(error)) => return Some(curand_cause(*error)),
        Some(_) => return Some(Cause::Other),
        None => {}
    }
    if let Some(error) = error.downcast_ref::<DriverError>() {
        return Some(driver_cause(*error));
    }
    if let Some(error) = error.downcast_ref::<CublasError>() {
        return Some(cublas_cause(*error));
    }
    if let Some(error) = error.downcast_ref::<CurandError>() {
        return Some(curand_cause(*error));
    }
    error.source().and_then(cause_within)
}

fn cublas_cause(error: CublasError) -> Cause {
    // A kernel that faults inside cuBLAS reads as EXECUTION_FAILED or INTERNAL_ERROR, which a plain misuse can give
    // too: the session asks the driver which it was.
    if error.0 == cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED { Cause::OutOfMemory } else { Cause::Other }
}

fn curand_cause(error: CurandError) -> Cause {
    if error.0 == curandStatus::CURAND_STATUS_ALLOCATION_FAILED { Cause::OutOfMemory } else { Cause::Other }
}

/// What candle says, without the backtrace it may carry.
pub(super) fn message(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => message(inner),
        candle_core::Error::Context { inner, context } => format!("{context}: {}", message(inner)),
        other => other.to_string(),
    }
}

/// Turns a raw code into cudarc's error. A code that its headers lack becomes `CUDA_ERROR_UNKNOWN`.
pub(super) fn check(code: u32) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        2 => Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)),
        302 => Err(DriverError(CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND)),
        700 => Err(DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)),
        719 => Err(DriverError(CUresult::CUDA_ERROR_LAUNCH_FAILED)),
        _ => Err(DriverError(CUresult::CUDA_ERROR_UNKNOWN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(code: CUresult) -> candle_core::Error {
        candle_core::Error::Cuda(Box::new(CudaError::Cuda(DriverError(code))))
    }

    #[test]
    fn the_drivers_codes_are_told_apart() {
        assert_eq!(cause(&driver(CUresult::CUDA_ERROR_OUT_OF_MEMORY)), Some(Cause::OutOfMemory));
        for code in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ASSERT,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert_eq!(cause(&driver(code)), Some(Cause::Sticky));
        }
        assert_eq!(cause(&driver(CUresult::CUDA_ERROR_INVALID_VALUE)), Some(Cause::Other));
        assert_eq!(cause(&driver(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)), Some(Cause::Other));
    }

    #[test]
    fn layers_of_context_are_taken_off() {
        let layered = driver(CUresult::CUDA_ERROR_OUT_OF_MEMORY).context("while adding").with_path("weights");
        assert_eq!(cause(&layered), Some(Cause::OutOfMemory));
        let wrapped = candle_core::Error::WrappedContext { wrapped: Box::new(layered), context: "block 3".to_owned() };
        assert_eq!(cause(&wrapped), Some(Cause::OutOfMemory));
    }

    #[test]
    fn a_library_that_got_no_memory_is_out_of_memory_too() {
        let cublas = CublasError(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED);
        assert_eq!(cause(&CudaError::Cublas(cublas).into()), Some(Cause::OutOfMemory));
        let curand = CurandError(curandStatus::CURAND_STATUS_ALLOCATION_FAILED);
        assert_eq!(cause(&CudaError::Curand(curand).into()), Some(Cause::OutOfMemory));
        let misuse = CublasError(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        assert_eq!(cause(&CudaError::Cublas(misuse).into()), Some(Cause::Other));
    }

    #[test]
    fn text_that_speaks_of_memory_is_not_an_answer() {
        assert_eq!(cause(&candle_core::Error::Msg("CUDA_ERROR_OUT_OF_MEMORY".to_owned())), None);
        assert_eq!(cause(&candle_core::Error::wrap("out of memory")), None);
    }
}

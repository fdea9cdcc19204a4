//! Brings candle's kernels onto the device before any trial's clock starts.
//!
//! candle ships its kernels as PTX, which the driver compiles for the GPU at hand when a module is first loaded:
//! about 19 s for what a training step needs, once per machine, because the driver keeps the result in
//! `~/.nv/ComputeCache` (`CUDA_CACHE_PATH`). candle loads a module at the first launch that needs it, which would be in
//! the middle of a trial. Loading them from several threads does not help: the driver compiles one at a time in a
//! process (16 cores and an H200: 26.6 s for nine modules from nine threads, where the seven that a transformer needs
//! took 18.1 s in turn). Nine processes would need as long as the slowest module, BINARY, with 10.7 s.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use candle_core::cuda_backend::{CudaDevice, kernels};
use candle_core::{DType, Device, Tensor};

/// Loading takes longer than this only where the driver compiles.
const COMPILING_AFTER: Duration = Duration::from_secs(1);

/// The modules that training uses and one function of each. Those for quantised weights, for sorting and for
/// convolutions (which take long, and most models have none) are left to whoever needs them.
const MODULES: [(&kernels::Module, &str); 8] = [
    (&kernels::BINARY, "badd_f32"),
    (&kernels::UNARY, "uneg_f32"),
    (&kernels::INDEXING, "is_u32_f32"),
    (&kernels::REDUCE, "sum_f32"),
    (&kernels::CAST, "cast_f32_bf16"),
    (&kernels::TERNARY, "where_u32_f32"),
    (&kernels::AFFINE, "affine_f32"),
    (&kernels::FILL, "fill_f32"),
];

/// Loads candle's kernels, and starts cuBLAS.
pub(super) fn load(device: &Device) -> candle_core::Result<()> {
    let started = Instant::now();
    let (working, done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Nothing is ever sent: the channel closes when the loading has ended.
            if done.recv_timeout(COMPILING_AFTER) == Err(RecvTimeoutError::Timeout) {
                tracing::info!("compiling kernels for this GPU, once per machine");
                let _ = done.recv();
                tracing::info!("kernels compiled in {:.1} s", started.elapsed().as_secs_f64());
            }
        });
        let loaded = device.as_cuda_device().and_then(load_into_candle);
        drop(working);
        loaded
    })?;
    start_cublas(device)
}

fn load_into_candle(cuda: &CudaDevice) -> candle_core::Result<()> {
    for (module, function) in &MODULES {
        cuda.get_or_load_func(function, module)?;
    }
    Ok(())
}

/// Multiplies two small matrices in each type, so that cuBLAS takes its workspace now and counts as external memory.
fn start_cublas(device: &Device) -> candle_core::Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let matrix = Tensor::zeros((64, 64), dtype, device)?; // [64, 64]
        matrix.matmul(&matrix)?; // [64, 64]
    }
    device.synchronize()
}

//! Brings candle's kernels onto the device before any trial's clock starts.
//!
//! candle ships its kernels as PTX, which the driver compiles for the GPU at hand when a module is first loaded:
//! about 19 s for what a training step needs, once per machine, because the driver keeps the result in
//! `~/.nv/ComputeCache` (`CUDA_CACHE_PATH`). candle loads modules one by one, at the first launch that needs one and
//! behind a lock. Here they are loaded ahead by one thread each, which fills the driver's cache, and then by candle.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use candle_core::cuda_backend::{CudaDevice, kernels};
use candle_core::{DType, Device, Tensor};
use cudarc::driver::CudaContext;

/// Loading takes longer than this only where the driver compiles.
const COMPILING_AFTER: Duration = Duration::from_secs(1);

/// The modules that training uses and one function of each, the slowest to compile first. Those for quantised weights
/// and for sorting are left to whoever needs them.
const MODULES: [(&kernels::Module, &str); 9] = [
    (&kernels::BINARY, "badd_f32"),
    (&kernels::UNARY, "uneg_f32"),
    (&kernels::INDEXING, "is_u32_f32"),
    (&kernels::CONV, "conv2d_f32"),
    (&kernels::REDUCE, "sum_f32"),
    (&kernels::CAST, "cast_f32_bf16"),
    (&kernels::TERNARY, "where_u32_f32"),
    (&kernels::AFFINE, "affine_f32"),
    (&kernels::FILL, "fill_f32"),
];

/// Loads candle's kernels, and starts cuBLAS.
pub(super) fn load(device: &Device) -> candle_core::Result<()> {
    let cuda = device.as_cuda_device()?;
    if !cache_is_off() {
        compile_in_parallel(cuda.cuda_stream().context());
    }
    load_into_candle(cuda)?;
    start_cublas(device)
}

/// Whether the driver keeps nothing, so that compiling ahead would be compiling twice.
fn cache_is_off() -> bool {
    std::env::var_os("CUDA_CACHE_DISABLE").is_some_and(|value| value == "1")
}

/// Has the driver compile every module, each on a thread of its own. Failures come back when candle loads the module.
fn compile_in_parallel(context: &Arc<CudaContext>) {
    let started = Instant::now();
    let (busy, done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        for (module, _) in &MODULES {
            let busy = busy.clone();
            scope.spawn(move || {
                let loaded = context.load_module(module.ptx().into()).is_ok();
                drop(busy);
                loaded
            });
        }
        drop(busy);
        // Nothing is ever sent: the channel closes when the last thread is done.
        if done.recv_timeout(COMPILING_AFTER) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("compiling kernels for this GPU, once per machine");
            let _ = done.recv();
            tracing::info!("kernels compiled in {:.1} s", started.elapsed().as_secs_f64());
        }
    });
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

//! Trains in the memory pool that a recommendation was measured with.
//!
//! `cargo run --release --features cuda --example apply_allocator -- recommendation.yaml` limits a program's tensors to
//! the recommendation's `allocator.limit_bytes`, and keeps freed memory for the next step. One call before the first
//! tensor is all that a candle program needs; the rest here only shows that it holds.

use batchtune::report::Recommendation;
use batchtune::units::Bytes;
use candle_core::{DType, Device, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "recommendation.yaml".to_owned());

    // Keep the guard for as long as the program trains.
    let pool = batchtune::apply_allocator(&Recommendation::read(file.as_ref())?)?;
    let limit = Bytes(pool.limit_bytes());

    let device = Device::new_cuda(0)?;
    let weights = Tensor::randn(0_f32, 0.02, (1024, 1024), &device)?; // [1024, 1024]
    for step in 0..3 {
        let batch = Tensor::ones((256, 1024), DType::F32, &device)?; // [256, 1024]
        let output = batch.matmul(&weights)?; // [256, 1024]
        report(&format!("step {step}: mean {:+.4}", output.mean_all()?.to_scalar::<f32>()?));
    }

    let too_much = usize::try_from(limit.0)?;
    match Tensor::zeros(too_much, DType::U8, &device) {
        Ok(_) => report("the limit did not hold"),
        Err(error) => report(&format!("a tensor of {limit} is refused: {error}")),
    }
    device.synchronize()?;
    pool.trim()?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]
fn report(line: &str) {
    println!("{line}");
}

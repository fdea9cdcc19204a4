//! The model families on a card against PyTorch's figures.

use batchtune::train::Precision;

use crate::support::{session, turn};

#[path = "../models/fixtures.rs"]
mod fixtures;

use fixtures::{CASES, Case, Tolerance};

/// Sums in another order, and the same digits otherwise.
const F32: Tolerance = Tolerance { loss: 1e-3, gradient: 1e-3 };

#[test]
fn every_family_computes_on_the_card_what_pytorch_does() {
    let _turn = turn();
    println!("| case | precision | loss | gradient | loss after three steps |\n|---|---|---|---|---|");
    for name in CASES {
        let near = Tolerance::of_bfloat16(name);
        for (precision, tolerance) in [(Precision::F32, F32), (Precision::Bf16, near), (Precision::MixedBf16, near)] {
            let mut session = session(8);
            batchtune::device::DeviceSession::begin_trial(&mut session).unwrap();
            let off = Case::open(name).check(&mut session, precision, tolerance);
            println!("| {name} | {precision} | {:.1e} | {:.1e} | {:.1e} |", off.loss, off.gradient, off.trained_loss);
        }
    }
}

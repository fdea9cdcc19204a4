//! The model families on a card against PyTorch's figures.

use batchtune::train::Precision;

use crate::support::{session, turn};

#[path = "../models/fixtures.rs"]
mod fixtures;

use fixtures::{CASES, Case, Tolerance};

/// Sums in another order, and the same digits otherwise.
const F32: Tolerance = Tolerance { loss: 1e-3, gradient: 1e-3 };
/// Eight bits of mantissa; on the CPU the losses are off by 0.6 % at most and the gradients by 4 %.
const BF16: Tolerance = Tolerance { loss: 1e-2, gradient: 6e-2 };

#[test]
fn every_family_computes_on_the_card_what_pytorch_does() {
    let _turn = turn();
    println!("| case | precision | loss | gradient | loss after three steps |\n|---|---|---|---|---|");
    for name in CASES {
        for (precision, tolerance) in [(Precision::F32, F32), (Precision::Bf16, BF16), (Precision::MixedBf16, BF16)] {
            let mut session = session(8);
            batchtune::device::DeviceSession::begin_trial(&mut session).unwrap();
            let off = Case::open(name).check(&mut session, precision, tolerance);
            println!("| {name} | {precision} | {:.1e} | {:.1e} | {:.1e} |", off.loss, off.gradient, off.trained_loss);
        }
    }
}

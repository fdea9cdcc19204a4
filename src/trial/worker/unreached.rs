//! Parameters that no gradient reaches: some of candle's operations have no backward pass and cut the graph silently.

use super::open::Training;
use super::trial::{Halt, Trial};

/// Unreached parameters that a warning names.
const NAMED_PARAMETERS: usize = 8;

impl Trial<'_> {
    /// Warns of the parameters that the first step gave no gradient, by name.
    pub(super) fn warn_of_unreached(&mut self, training: &dyn Training) -> Result<(), Halt> {
        let names = training.unreached();
        if names.is_empty() {
            return Ok(());
        }
        let mut listed =
            names.iter().take(NAMED_PARAMETERS).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        if names.len() > NAMED_PARAMETERS {
            listed = format!("{listed} and {} more", names.len() - NAMED_PARAMETERS);
        }
        let parameters = crate::units::plural(names.len(), "parameter");
        self.warn(format!(
            "{parameters} got no gradient in the first step: {listed}. They are not trained, and neither their \
             gradients nor the activations behind them are in the figures. The usual cause is an operation of candle's \
             without a backward pass, such as `candle_nn::LayerNorm`, `RmsNorm`, `softmax_last_dim`, the rotary ops or \
             `sdpa`"
        ))
    }
}

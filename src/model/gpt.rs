//! GPT-2 (to come).

use super::{BuildContext, Family, ModelError, ModelSpec, Workload};
use crate::data::InputSpec;

/// The GPT family.
#[derive(Debug)]
pub struct Gpt;

impl Family for Gpt {
    fn name(&self) -> &'static str {
        "gpt"
    }
    fn input(&self, _spec: &ModelSpec) -> Result<InputSpec, ModelError> {
        unimplemented!()
    }
    fn build(&self, _context: &BuildContext<'_>) -> Result<Box<dyn Workload>, ModelError> {
        unimplemented!()
    }
}

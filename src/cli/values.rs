//! Values of arguments that are numbers and yet mistakes.

use clap::builder::{RangedU64ValueParser, TypedValueParser};

use crate::units::{Bytes, UnitError};

/// A count of which there has to be one.
pub(super) fn at_least_one() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<u64>::new().range(1..).map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// A limit under which anything at all can be held.
pub(super) fn limit(text: &str) -> Result<Bytes, LimitError> {
    let limit: Bytes = text.parse()?;
    if limit.0 == 0 { Err(LimitError::Nothing) } else { Ok(limit) }
}

/// Why a limit is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitError {
    /// It is no size.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Nothing fits under it.
    #[error("nothing fits under a limit of 0 (hint: leave it out where there is none)")]
    Nothing,
}

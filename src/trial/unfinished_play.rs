//! A play of a coming run that nobody waited for to end: what the journal keeps of it.
//!
//! The study's budget ended, or its user left. Of a part of a play nothing follows, so a study that is resumed plays it from
//! its beginning; this is what it says then, and what the page says where there is no result.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Point;

/// How far a play came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedPlay {
    /// Whose run was played.
    pub point: Point,
    /// To what end.
    pub play: PlayKind,
    /// Steps by then, under all allocators or settings together.
    pub step: u64,
    /// Of how many as of then; 0 before it was known.
    pub total: u64,
}

/// To what end a run is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlayKind {
    /// To see whether it lasts.
    WholeRun,
    /// To compare settings of the allocator.
    Allocator,
}

impl fmt::Display for PlayKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WholeRun => "the forecast of the whole run",
            Self::Allocator => "the search for settings of the allocator over the whole run",
        })
    }
}

impl fmt::Display for UnfinishedPlay {
    /// What was left, and where: `the forecast of the whole run of batch 8 at step 3 of 10`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of batch {}", self.play, self.point.batch_size)?;
        if self.total > 0 { write!(f, " at step {} of {}", self.step, self.total) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_far_it_came_where_that_is_known() {
        let began = UnfinishedPlay { point: Point::plain(8), play: PlayKind::WholeRun, step: 0, total: 0 };
        assert_eq!(began.to_string(), "the forecast of the whole run of batch 8");
        let searched = UnfinishedPlay { play: PlayKind::Allocator, step: 3, total: 10, ..began };
        let words = "the search for settings of the allocator over the whole run of batch 8 at step 3 of 10";
        assert_eq!(searched.to_string(), words);
    }
}

//! The colours of a part of a JPEG, each at the resolution that it is stored in.

use super::colours::Stretch;
use super::transform::BLOCK;

/// One colour of some units of a scan.
#[derive(Debug, Default)]
pub(super) struct Plane {
    values: Vec<u8>,
    /// Values of a row.
    stride: usize,
    /// The first column and row, in values of the whole plane.
    left: usize,
    top: usize,
    /// Size of the whole plane in values.
    width: usize,
    height: usize,
    /// Columns of the image that share a value: one or two; and rows.
    pub(super) columns_of_a_value: usize,
    pub(super) rows_of_a_value: usize,
}

/// A number of blocks to the right and down, from the first of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) across: usize,
    pub(super) down: usize,
}

impl Plane {
    /// Makes room for the blocks from `first` on; `None` where there is no memory for them.
    pub(super) fn begin(&mut self, first: Blocks, count: Blocks, size: (usize, usize)) -> Option<()> {
        (self.left, self.top) = (BLOCK * first.across, BLOCK * first.down);
        (self.width, self.height) = size;
        self.stride = BLOCK * count.across;
        let values = self.stride * BLOCK * count.down;
        self.values.try_reserve_exact(values.saturating_sub(self.values.len())).ok()?;
        self.values.resize(values, 0);
        Some(())
    }

    /// Puts the pixels of a block to its place.
    pub(super) fn put(&mut self, block: Blocks, pixels: &[[u8; BLOCK]; BLOCK]) -> Option<()> {
        let start = (BLOCK * block.down).checked_sub(self.top)? * self.stride
            + (BLOCK * block.across).checked_sub(self.left)?;
        let end = start + (BLOCK - 1) * self.stride + BLOCK;
        for (to, from) in self.values.get_mut(start..end)?.chunks_mut(self.stride).zip(pixels) {
            to.first_chunk_mut::<BLOCK>()?.copy_from_slice(from);
        }
        Some(())
    }

    /// The last row of the whole plane, and its last column.
    pub(super) fn last_row(&self) -> usize {
        self.height.saturating_sub(1)
    }

    pub(super) fn last_column(&self) -> usize {
        self.width.saturating_sub(1)
    }

    /// A part of a row.
    pub(super) fn stretch(&self, stretch: Stretch) -> Option<&[u8]> {
        let start = stretch.row.checked_sub(self.top)? * self.stride + stretch.left.checked_sub(self.left)?;
        self.values.get(start..start + stretch.width)
    }
}

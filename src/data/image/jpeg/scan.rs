//! Decoding the part of a JPEG's scan that a crop needs.
//!
//! The codes have to be gone over from the top, since none tells where it begins. What lies above a crop, or beside it,
//! is gone over without its values being kept or transformed, and what lies below is not looked at.

use std::ops::Range;

use super::super::{Crop, Pixels};
use super::colours::{Rows, Stretch};
use super::data::Data;
use super::entropy::{Broken, COLUMN_WISE, Reader, Values};
use super::header::{Component, Header};
use super::planes::{Blocks, Plane};
use super::transform::BLOCK;

/// Memory that is kept from one image to the next.
#[derive(Debug, Default)]
pub(in crate::data::image) struct Decoder {
    data: Data,
    planes: Vec<Plane>,
    rows: Rows,
}

/// Units of a scan along one direction.
struct Units {
    /// All of them.
    count: usize,
    /// Those that a crop needs.
    needed: Range<usize>,
}

impl Units {
    /// Along a side of the image with units of so many `pixels`.
    fn new(side: usize, pixels: usize, needed: Range<usize>) -> Self {
        // Colours at half the resolution are smoothed with their neighbours, two pixels away.
        let (first, end) = (needed.start.saturating_sub(2), (needed.end + 2).min(side));
        Self { count: side.div_ceil(pixels), needed: first / pixels..end.div_ceil(pixels) }
    }
}

/// Where decoding is.
struct Scan<'a> {
    header: &'a Header,
    reader: Reader<'a>,
    /// The first value of each colour's last block.
    firsts: [i32; 3],
    /// Units since the last restart.
    since_restart: usize,
    values: Values,
}

impl Decoder {
    /// Decodes a crop, which lies within the image.
    pub(super) fn decode(
        &mut self,
        file: &[u8],
        header: &Header,
        crop: Crop,
        pixels: &mut Pixels,
    ) -> Result<(), String> {
        let across = header.components.iter().map(|one| one.across).max().unwrap_or(1);
        let down = header.components.iter().map(|one| one.down).max().unwrap_or(1);
        let columns = Units::new(header.width, BLOCK * across, crop.left..crop.left + crop.width);
        let rows = Units::new(header.height, BLOCK * down, crop.top..crop.top + crop.height);
        self.planes.resize_with(header.components.len(), Plane::default);
        for (plane, component) in self.planes.iter_mut().zip(&header.components) {
            (plane.columns_of_a_value, plane.rows_of_a_value) = (across / component.across, down / component.down);
            let size = (header.width.div_ceil(plane.columns_of_a_value), header.height.div_ceil(plane.rows_of_a_value));
            let of =
                |across: usize, down: usize| Blocks { across: component.across * across, down: component.down * down };
            let (first, count) =
                (of(columns.needed.start, rows.needed.start), of(columns.needed.len(), rows.needed.len()));
            plane.begin(first, count, size).ok_or("there is no memory for its colours")?;
        }
        self.data.unstuff(file, header.data_at);
        let reader = Reader::new(&self.data);
        let mut scan = Scan { header, reader, firsts: [0; 3], since_restart: 0, values: [0; 2 * BLOCK * BLOCK] };
        for row in 0..rows.needed.end {
            let needed = if rows.needed.contains(&row) { columns.needed.clone() } else { 0..0 };
            let read = scan.row(row, columns.count, &needed, &mut self.planes);
            let offset = || scan.reader.offset(file, header.data_at);
            if scan.reader.is_past_end() {
                return Err(format!("its data ends before its image does, at offset {}", offset()));
            }
            read.map_err(|Broken| format!("its data is broken near offset {}", offset()))?;
        }
        self.convert(crop, pixels)
    }

    fn convert(&mut self, crop: Crop, pixels: &mut Pixels) -> Result<(), String> {
        for (row, rgb) in (crop.top..).zip(pixels.begin(crop)?) {
            let stretch = Stretch { row, left: crop.left, width: crop.width };
            self.rows.convert(&self.planes, stretch, rgb).ok_or("its colours are not of one size")?;
        }
        Ok(())
    }
}

impl Scan<'_> {
    /// Decodes the needed units of a row, and goes over the others.
    fn row(&mut self, row: usize, count: usize, needed: &Range<usize>, planes: &mut [Plane]) -> Result<(), Broken> {
        for column in 0..count {
            if self.header.restart_interval > 0 && self.since_restart == self.header.restart_interval {
                self.reader.restart()?;
                (self.firsts, self.since_restart) = ([0; 3], 0);
            }
            self.since_restart += 1;
            let header = self.header;
            for (colour, (component, plane)) in header.components.iter().zip(&mut *planes).enumerate() {
                for block in 0..component.across * component.down {
                    if needed.contains(&column) {
                        let block = Blocks {
                            across: component.across * column + block % component.across,
                            down: component.down * row + block / component.across,
                        };
                        self.block(colour, component, block, plane)?;
                    } else {
                        let first = self.reader.skip_block((&component.first, &component.others))?;
                        self.firsts[colour] = self.firsts[colour].wrapping_add(first.into());
                    }
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn block(&mut self, colour: usize, component: &Component, block: Blocks, plane: &mut Plane) -> Result<(), Broken> {
        if let Some(values) = self.values.first_chunk_mut::<{ BLOCK * BLOCK }>() {
            values.fill(0);
        }
        let codes = (&component.first, &component.others);
        let (difference, count) = self.reader.read_block(codes, &COLUMN_WISE, &mut self.values)?;
        let first = self.firsts[colour].wrapping_add(difference.into());
        self.firsts[colour] = first;
        let pixels = match (count, self.values.first_chunk()) {
            (2.., Some(values)) => component.dequantiser.pixels(first, values),
            _ => [[component.dequantiser.flat(first); BLOCK]; BLOCK],
        };
        plane.put(block, &pixels).ok_or(Broken)
    }
}

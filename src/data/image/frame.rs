//! How large a JPEG is, and how to have the decoder stop early.
//!
//! A sequential JPEG stores its blocks from top to bottom in one scan, so what lies below a crop need not be decoded: a
//! smaller height in the frame header is all that it takes, and the decoder leaves the rest of the data. Of random
//! crops at their defaults that saves an eighth of the time. A progressive file, or one with a scan for each colour, has
//! every row in several places, and is decoded whole. (Markers: ITU-T T.81, annex B.)

/// Start of image.
const IMAGE_BYTES: usize = 2;
/// Sides of a block of coefficients, in pixels.
const BLOCK: usize = 8;

/// The frame header of a JPEG whose rows come one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Rows of pixels that are stored together.
    unit: usize,
    /// Where the height is written.
    at: usize,
}

impl Frame {
    /// The frame header, unless the file is of another kind, or broken before its first scan.
    pub(super) fn find(file: &[u8]) -> Option<Self> {
        let (mut at, mut frame) = (IMAGE_BYTES, None);
        loop {
            let [0xff, marker] = *file.get(at..)?.first_chunk()? else { return None };
            if marker == 0xff {
                // A fill byte.
                at += 1;
                continue;
            }
            let length = usize::from(u16::from_be_bytes(*file.get(at + 2..)?.first_chunk()?));
            let segment = file.get(at + 4..at + 2 + length)?;
            match marker {
                // Baseline and extended sequential.
                0xc0 | 0xc1 => frame = Some(Self::read(segment, at + 5)?),
                // A scan of all the frame's colours.
                0xda => return frame.filter(|(_, colours)| segment.first() == Some(colours)).map(|(frame, _)| frame),
                // Tables of Huffman codes and of arithmetic conditioning are between the markers of other frames.
                0xc2..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => return None,
                _ => {}
            }
            at += 2 + length;
        }
    }

    /// From the segment of the header and the place of its height: the frame, and its number of colours.
    fn read(segment: &[u8], at: usize) -> Option<(Self, u8)> {
        let [_, high, low, left, right, colours] = *segment.first_chunk()?;
        let (height, width) = (u16::from_be_bytes([high, low]), u16::from_be_bytes([left, right]));
        let sampling = segment.get(6..)?.chunks_exact(3).filter_map(|colour| colour.get(1));
        let vertical = sampling.map(|factors| usize::from(factors & 0x0f)).max()?;
        let frame = Self { width: width.into(), height: height.into(), unit: BLOCK * vertical, at };
        (vertical > 0).then_some((frame, colours))
    }

    /// Has the image end some rows after `bottom`: with the unit that holds the row below, since colours of lower
    /// resolution are smoothed with their neighbours.
    pub(super) fn end_after(&self, bottom: usize, file: &mut [u8]) {
        let rows = (bottom + self.unit).next_multiple_of(self.unit);
        if let Ok(rows) = u16::try_from(rows.min(self.height))
            && let Some(height) = file.get_mut(self.at..self.at + 2)
        {
            height.copy_from_slice(&rows.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_is_broken_anywhere_is_none() {
        let mut file = Vec::new();
        jpeg_encoder::Encoder::new(&mut file, 90)
            .encode(&[7; 3 * 20 * 10], 20, 10, jpeg_encoder::ColorType::Rgb)
            .unwrap();
        let frame = Frame::find(&file).unwrap();
        assert_eq!((frame.width, frame.height), (20, 10));
        let scan = file.windows(2).position(|bytes| bytes == [0xff, 0xda]).unwrap();
        for end in 0..scan + 4 {
            assert_eq!(Frame::find(&file[..end]), None, "{end}");
        }
        for place in 0..scan {
            let mut broken = file.clone();
            broken[place] ^= 0xff;
            // Whatever it says, it is about bytes that are there.
            if let Some(frame) = Frame::find(&broken) {
                frame.end_after(3, &mut broken);
                frame.end_after(usize::MAX / 2, &mut broken);
            }
        }
    }
}

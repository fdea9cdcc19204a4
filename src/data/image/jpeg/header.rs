//! What stands before the data of a JPEG: size, colours, and tables (ITU-T T.81, annex B).
//!
//! Only the kind that nearly all photographs are of is read here: eight bits, Huffman codes, one scan from top to bottom,
//! grey or YCbCr with colours at full or half resolution. For everything else there is no [`Header`], and the file is left to
//! a decoder that knows every kind.

use super::codes::Codes;
use super::transform::{BLOCK, Dequantiser};

/// Start of image.
const IMAGE_BYTES: usize = 2;
/// The most tables of a kind.
const TABLES: usize = 4;

/// A colour of the image.
#[derive(Debug)]
pub(super) struct Component {
    /// Blocks side by side in a unit of the scan.
    pub(super) across: usize,
    /// Blocks one below the other.
    pub(super) down: usize,
    pub(super) dequantiser: Dequantiser,
    /// Codes of the first value of a block, and of the others.
    pub(super) first: Codes,
    pub(super) others: Codes,
}

/// A JPEG of one scan.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Grey, or YCbCr with the luminance in front.
    pub(super) components: Vec<Component>,
    /// Units of the scan from one restart to the next; 0 where there are none.
    pub(super) restart_interval: usize,
    /// Where the scan's data begins.
    pub(super) data_at: usize,
}

/// What was read so far.
#[derive(Default)]
struct Tables {
    quantisers: [Option<[u16; BLOCK * BLOCK]>; TABLES],
    first: [Option<Codes>; TABLES],
    others: [Option<Codes>; TABLES],
    restart_interval: usize,
    /// Whether Adobe's segment says that colours are not YCbCr.
    is_transformed_otherwise: bool,
}

/// The frame's segment.
struct Frame {
    width: usize,
    height: usize,
    components: Vec<FrameComponent>,
}

struct FrameComponent {
    id: u8,
    across: u8,
    down: u8,
    quantiser: u8,
}

impl Header {
    /// The header of a file; `None` where it is of another kind, or broken.
    pub(super) fn find(file: &[u8]) -> Option<Self> {
        let (mut at, mut tables, mut frame) = (IMAGE_BYTES, Tables::default(), None);
        loop {
            let [0xff, marker] = *file.get(at..)?.first_chunk()? else { return None };
            if marker == 0xff {
                // A fill byte.
                at += 1;
                continue;
            }
            let length = usize::from(u16::from_be_bytes(*file.get(at + 2..)?.first_chunk()?));
            let segment = file.get(at + 4..at + 2 + length)?;
            at += 2 + length;
            match marker {
                0xdb => tables.read_quantisers(segment)?,
                0xc4 => tables.read_codes(segment)?,
                0xdd => tables.restart_interval = usize::from(u16::from_be_bytes(*segment.first_chunk()?)),
                0xee => tables.read_adobe(segment),
                // Baseline and extended sequential.
                0xc0 | 0xc1 if frame.is_none() => frame = Some(Frame::read(segment)?),
                0xda => return tables.header(frame.as_ref()?, segment, at),
                // Other kinds of frames, arithmetic codes, and what cannot stand here.
                0x00..=0xd9 => return None,
                _ => {}
            }
        }
    }
}

impl Tables {
    fn read_quantisers(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((kind, rest)) = segment.split_first() {
            let bytes_each = usize::from(kind >> 4) + 1;
            let (values, rest) = rest.split_at_checked(bytes_each * BLOCK * BLOCK)?;
            let mut quantiser = [0; BLOCK * BLOCK];
            for (value, bytes) in quantiser.iter_mut().zip(values.chunks_exact(bytes_each)) {
                *value = bytes.iter().fold(0, |value, byte| value << 8 | u16::from(*byte));
            }
            *self.quantisers.get_mut(usize::from(kind & 15))? = (bytes_each <= 2).then_some(quantiser);
            segment = rest;
        }
        Some(())
    }

    fn read_codes(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((kind, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let count = counts.iter().map(|count| usize::from(*count)).sum();
            let (symbols, rest) = rest.split_at_checked(count)?;
            let tables = match kind >> 4 {
                // No first value needs more bits than a symbol's lower half can say.
                0 if symbols.iter().all(|symbol| *symbol < 16) => &mut self.first,
                1 => &mut self.others,
                _ => return None,
            };
            *tables.get_mut(usize::from(kind & 15))? = Some(Codes::new(counts, symbols)?);
            segment = rest;
        }
        Some(())
    }

    /// Files without this segment are YCbCr, or name their colours R, G, and B.
    fn read_adobe(&mut self, segment: &[u8]) {
        if let Some([b'A', b'd', b'o', b'b', b'e', .., transform]) = segment.first_chunk::<12>() {
            self.is_transformed_otherwise = *transform != 1;
        }
    }

    fn header(&self, frame: &Frame, scan: &[u8], data_at: usize) -> Option<Header> {
        let count = frame.components.len();
        if count == 3 && (self.is_transformed_otherwise || frame.components.iter().map(|one| one.id).eq(*b"RGB")) {
            return None;
        }
        let (colours, whole) = scan.split_first()?.1.split_at_checked(2 * count)?;
        if usize::from(*scan.first()?) != count || whole != [0, 63, 0] {
            return None;
        }
        let mut components = Vec::with_capacity(count);
        for (component, colour) in frame.components.iter().zip(colours.as_chunks::<2>().0) {
            let [id, tables] = *colour;
            let of = |number: u8| usize::from(number);
            components.push(Component {
                across: of(component.across),
                down: of(component.down),
                dequantiser: Dequantiser::new(self.quantisers.get(of(component.quantiser))?.as_ref()?),
                first: self.first.get(of(tables >> 4))?.clone()?,
                others: self.others.get(of(tables & 15))?.clone()?,
            });
            if id != component.id {
                return None;
            }
        }
        let restart_interval = self.restart_interval;
        Some(Header { width: frame.width, height: frame.height, components, restart_interval, data_at })
    }
}

impl Frame {
    fn read(segment: &[u8]) -> Option<Self> {
        let [8, high, low, left, right, count] = *segment.first_chunk()? else { return None };
        let components: Vec<_> = segment
            .get(6..6 + 3 * usize::from(count))?
            .chunks_exact(3)
            .filter_map(|bytes| <[u8; 3]>::try_from(bytes).ok())
            .map(|[id, sampling, quantiser]| FrameComponent {
                id,
                across: sampling >> 4,
                down: sampling & 15,
                quantiser,
            })
            .collect();
        let mut frame = Self {
            width: u16::from_be_bytes([left, right]).into(),
            height: u16::from_be_bytes([high, low]).into(),
            components,
        };
        match &mut frame.components[..] {
            // A single colour is stored block by block, whatever it says.
            [grey] => (grey.across, grey.down) = (1, 1),
            [luminance, blue, red] => {
                let is_half = |factor: u8| (1..=2).contains(&factor);
                let is_whole = |colour: &FrameComponent| (colour.across, colour.down) == (1, 1);
                if !(is_half(luminance.across) && is_half(luminance.down) && is_whole(blue) && is_whole(red)) {
                    return None;
                }
            }
            _ => return None,
        }
        (frame.width > 0 && frame.height > 0).then_some(frame)
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
        let header = Header::find(&file).unwrap();
        assert_eq!((header.width, header.height, header.components.len()), (20, 10, 3));
        let scan = file.windows(2).position(|bytes| bytes == [0xff, 0xda]).unwrap();
        for end in 0..scan + 14 {
            assert!(Header::find(&file[..end]).is_none(), "{end}");
        }
        for place in 0..scan {
            for flip in [0xff, 0x01, 0x80] {
                let mut broken = file.clone();
                broken[place] ^= flip;
                // Whatever it says, it is about bytes that are there.
                assert!(Header::find(&broken).is_none_or(|header| header.data_at <= broken.len()));
            }
        }
    }

    #[test]
    fn other_kinds_of_files_have_none() {
        let encoded = |configure: &dyn Fn(&mut jpeg_encoder::Encoder<&mut Vec<u8>>)| {
            let mut file = Vec::new();
            let mut encoder = jpeg_encoder::Encoder::new(&mut file, 90);
            configure(&mut encoder);
            encoder.encode(&[7; 3 * 20 * 10], 20, 10, jpeg_encoder::ColorType::Rgb).unwrap();
            file
        };
        assert!(Header::find(&encoded(&|encoder| encoder.set_restart_interval(1))).is_some());
        assert!(Header::find(&encoded(&|encoder| encoder.set_progressive(true))).is_none());
        let sampling = jpeg_encoder::SamplingFactor::F_4_1;
        assert!(Header::find(&encoded(&|encoder| encoder.set_sampling_factor(sampling))).is_none());
    }
}

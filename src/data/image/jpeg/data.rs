//! The data of a JPEG's scan without what is stuffed in (ITU-T T.81, B.1.1.5).
//!
//! A byte of 255 in the data is followed by a 0, so that it can be told from a marker. Taking those out first, once,
//! leaves the reader of bits with nothing to ask.

/// The data of a scan as it is without the zeros that are stuffed in behind each 255, up to the end of the image.
#[derive(Debug, Default)]
pub(super) struct Data {
    bytes: Vec<u8>,
    /// Where it was cut by the markers of restarts, and its end.
    ends: Vec<usize>,
}

impl Data {
    /// Takes the data that begins at an offset of a file.
    pub(super) fn unstuff(&mut self, file: &[u8], data_at: usize) {
        const CHUNK: usize = 16;
        self.bytes.clear();
        self.ends.clear();
        let mut rest = file.get(data_at..).unwrap_or_default();
        loop {
            if let Some(chunk) = rest.first_chunk::<CHUNK>()
                && chunk.iter().map(|byte| u8::from(*byte == 0xff)).fold(0, |any, is| any | is) == 0
            {
                self.bytes.extend_from_slice(chunk);
                rest = rest.get(CHUNK..).unwrap_or_default();
                continue;
            }
            let plain = rest.iter().position(|byte| *byte == 0xff).unwrap_or(rest.len());
            let (before, from) = rest.split_at(plain);
            self.bytes.extend_from_slice(before);
            let after = match *from {
                [0xff, 0, ..] => {
                    self.bytes.push(0xff);
                    2
                }
                [0xff, 0xd0..=0xd7, ..] => {
                    self.ends.push(self.bytes.len());
                    2
                }
                // A fill byte in front of a marker.
                [0xff, 0xff, ..] => 1,
                _ => break,
            };
            rest = from.get(after..).unwrap_or_default();
        }
        self.ends.push(self.bytes.len());
    }

    /// The data behind so many restarts, up to the next.
    pub(super) fn part(&self, restarts: usize) -> Option<&[u8]> {
        self.bytes.get(self.part_at(restarts)..*self.ends.get(restarts)?)
    }

    fn part_at(&self, restarts: usize) -> usize {
        restarts.checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or(0)
    }

    /// The offset, in the file whose data begins at `data_at`, of a byte of a part.
    pub(super) fn offset(&self, file: &[u8], data_at: usize, (restarts, byte): (usize, usize)) -> usize {
        let bytes = self.part_at(restarts) + byte;
        let (mut at, mut passed) = (data_at, 0);
        while passed < bytes {
            let (stored, plain) = match *file.get(at..).unwrap_or_default() {
                [0xff, 0, ..] => (2, 1),
                [0xff, 0xd0..=0xd7, ..] => (2, 0),
                [0xff, 0xff, ..] => (1, 0),
                [] => break,
                _ => (1, 1),
            };
            (at, passed) = (at + stored, passed + plain);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_behind_255_are_taken_out_and_restarts_cut() {
        let long: Vec<u8> = (0..100).collect();
        let file =
            [&[7, 7], &[1, 0xff, 0][..], &long, &[0xff, 0xd0, 2, 0xff, 0xff, 0xd1], &[3, 0xff, 0xd9, 4]].concat();
        let mut data = Data::default();
        data.unstuff(&file, 2);
        let first = [&[1, 0xff][..], &long].concat();
        assert_eq!([0, 1, 2, 3].map(|part| data.part(part)), [Some(&first[..]), Some(&[2]), Some(&[3]), None]);
        assert_eq!(data.offset(&file, 2, (0, 1)), 3);
        assert_eq!(data.offset(&file, 2, (0, 2)), 5);
        assert_eq!(data.offset(&file, 2, (1, 1)), 2 + 3 + 100 + 2 + 1);
        assert_eq!(data.offset(&file, 2, (2, 1)), file.len() - 3);
        data.unstuff(&file, 1000);
        assert_eq!((data.part(0), data.part(1)), (Some(&[][..]), None));
    }
}

//! Putting samples together to a batch.

use super::lengths::{Lengths, PADDING};
use super::rules::{BatchRules, Skipped};
use super::{DataError, Dataset, HostBatch, HostValues, OnBadSample, Place, Sample};

/// Bad samples in a row after which there is no use in looking for a good one.
const MOST_SKIPPED: usize = 100;

/// A batch to make.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    /// Its samples.
    pub(super) places: Vec<Place>,
    /// Whether its samples are as long as any can be.
    pub(super) is_longest: bool,
    /// The side of its images, where that varies.
    pub(super) side: Option<usize>,
}

/// A batch that was made, and what was skipped for it; no batch where the load was stopped.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) batch: Result<Option<HostBatch>, DataError>,
    pub(super) skipped: Skipped,
}

/// Loads the samples of a request and joins them row by row.
///
/// `stop` is asked before each sample; when it says so, loading ends without a batch.
pub(super) fn load(dataset: &dyn Dataset, rules: &BatchRules, request: &Request, stop: &dyn Fn() -> bool) -> Made {
    let mut skipped = Skipped::default();
    let at = |place: Place| match request.side {
        Some(side) => dataset.sample_of_side(place, side),
        None => dataset.sample_at(place),
    };
    let source = Source { samples: dataset.len(), at: &at, on_bad_sample: rules.on_bad_sample };
    let batch = join(dataset, rules, request, &mut |place| {
        if stop() { Ok(None) } else { source.sample(place, &mut skipped).map(Some) }
    });
    Made { batch, skipped }
}

/// Where the samples of a batch come from.
struct Source<'a> {
    samples: usize,
    /// The one at a place.
    at: &'a dyn Fn(Place) -> Result<Sample, DataError>,
    on_bad_sample: OnBadSample,
}

impl Source<'_> {
    /// The sample at a place, or the next good one where bad ones are skipped: the batch keeps its size, which is what its
    /// memory depends on.
    fn sample(&self, place: Place, skipped: &mut Skipped) -> Result<Sample, DataError> {
        let samples = self.samples;
        let mut last = None;
        for index in (place.index..samples).chain(0..place.index).take(MOST_SKIPPED) {
            match (self.at)(Place { index, ..place }) {
                Err(error) if self.on_bad_sample == OnBadSample::Skip && error.is_of_one_sample() => {
                    skipped.count(&error);
                    last = Some(error);
                }
                answer => return answer,
            }
        }
        Err(match last {
            Some(last) => DataError::AllBad { tries: samples.min(MOST_SKIPPED), last: Box::new(last) },
            None => DataError::NoSuchSample { index: place.index, samples },
        })
    }
}

fn join(
    dataset: &dyn Dataset,
    rules: &BatchRules,
    request: &Request,
    sample: &mut dyn FnMut(Place) -> Result<Option<Sample>, DataError>,
) -> Result<Option<HostBatch>, DataError> {
    let samples = request.places.len();
    let lengths = rules.lengths.as_ref();
    let rows = Rows::of(lengths, request);
    let input_shape = request.side.map_or_else(|| dataset.input_shape(), |side| dataset.side_shape(side));
    let mut input = Field::new(input_shape, &rows);
    let mut target = Field { padding: dataset.target_padding(), ..Field::new(dataset.target_shape(), &rows) };
    for (row, place) in request.places.iter().enumerate() {
        let Some(Sample { input: values, target: answer }) = sample(*place)? else { return Ok(None) };
        let kept = rows.kept.get(row).copied();
        input.push(place.index, values, kept)?;
        target.push(place.index, answer, kept)?;
    }
    let (input, input_shape) = input.finish(samples);
    let (target, target_shape) = target.finish(samples);
    let ballast = ballast(dataset.ballast_bytes(), samples)?;
    Ok(Some(HostBatch { input, input_shape, target, target_shape, samples, ballast }))
}

/// Memory that is really there: a page that nobody wrote to would not be.
fn ballast(bytes: u64, samples: usize) -> Result<Vec<u8>, DataError> {
    let bytes = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_mul(samples)).unwrap_or(usize::MAX);
    let mut ballast = Vec::new();
    ballast
        .try_reserve_exact(bytes)
        .map_err(|_| DataError::InvalidInput { reason: "`data.sample_bytes` is too large" })?;
    ballast.resize(bytes, 1);
    Ok(ballast)
}

/// How the rows of a batch are cut and filled up.
struct Rows {
    /// Tokens that each sample keeps; empty where all are as the dataset gives them.
    kept: Vec<usize>,
    /// The length of all rows, where samples are cut.
    length: Option<usize>,
    samples: usize,
}

impl Rows {
    fn of(lengths: Option<&Lengths>, request: &Request) -> Self {
        let samples = request.places.len();
        let Some(lengths) = lengths.filter(|_| !request.is_longest) else {
            return Self { kept: Vec::new(), length: None, samples };
        };
        let kept: Vec<usize> = request.places.iter().map(|place| lengths.of_sample(*place)).collect();
        let length = lengths.of_rows(kept.iter().copied().max().unwrap_or(0));
        Self { kept, length: Some(length), samples }
    }
}

/// One field of the batch while it grows.
struct Field {
    values: Option<HostValues>,
    /// Shape of a row in the batch.
    shape: Vec<usize>,
    /// Values of a whole sample.
    per_sample: usize,
    /// Values of a row.
    per_row: usize,
    samples: usize,
    /// What ids are filled up with.
    padding: u32,
}

impl Field {
    fn new(shape: Vec<usize>, rows: &Rows) -> Self {
        let count = |shape: &[usize]| shape.iter().fold(1, |count: usize, size| count.saturating_mul(*size));
        let per_sample = count(&shape);
        let shape = rows.length.map_or(shape, |length| vec![length]);
        Self { values: None, per_sample, per_row: count(&shape), shape, samples: rows.samples, padding: PADDING }
    }

    /// Appends one sample's values, or as many of them as are kept; room for all samples is made at the first.
    fn push(&mut self, index: usize, values: HostValues, kept: Option<usize>) -> Result<(), DataError> {
        let found = (values.bytes() / 4) as usize;
        if found != self.per_sample {
            return Err(DataError::SampleShape { index, found, needed: self.per_sample });
        }
        let room = self.per_row.saturating_mul(self.samples);
        let (kept, row) = (kept.unwrap_or(found).min(found), self.per_row);
        match (&mut self.values, values) {
            (joined @ None, HostValues::U32(values)) => {
                let mut first = Vec::with_capacity(room);
                append(&mut first, &values[..kept], row, self.padding);
                *joined = Some(HostValues::U32(first));
            }
            (joined @ None, HostValues::F32(values)) => {
                let mut first = Vec::with_capacity(room);
                append(&mut first, &values[..kept], row, 0.0);
                *joined = Some(HostValues::F32(first));
            }
            (Some(HostValues::U32(joined)), HostValues::U32(values)) => {
                append(joined, &values[..kept], row, self.padding);
            }
            (Some(HostValues::F32(joined)), HostValues::F32(values)) => append(joined, &values[..kept], row, 0.0),
            (Some(_), _) => return Err(DataError::SampleType { index }),
        }
        Ok(())
    }

    /// The values and their shape, batch first.
    fn finish(self, samples: usize) -> (HostValues, Vec<usize>) {
        let values = self.values.unwrap_or(HostValues::U32(Vec::new()));
        (values, std::iter::once(samples).chain(self.shape).collect())
    }
}

/// Appends a row: values, then padding.
fn append<T: Copy>(joined: &mut Vec<T>, values: &[T], row: usize, padding: T) {
    let end = joined.len() + row;
    joined.extend_from_slice(values);
    joined.resize(end, padding);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataSpec, LengthDistribution, LengthSpec, Padding};

    /// Two features and a class per sample, spoiled at chosen indices.
    struct Spoiled;

    impl Dataset for Spoiled {
        fn len(&self) -> usize {
            10
        }
        fn sample(&self, index: usize) -> Result<Sample, DataError> {
            let value = index as f32;
            if (4..7).contains(&index) {
                return Err(DataError::BrokenImage {
                    path: format!("{index}.png").into(),
                    reason: "spoiled".to_owned(),
                });
            }
            let input = match index {
                7 => HostValues::F32(vec![value]),
                8 => HostValues::U32(vec![8, 8]),
                _ => HostValues::F32(vec![value, -value]),
            };
            Ok(Sample { input, target: HostValues::U32(vec![index as u32]) })
        }
        fn input_shape(&self) -> Vec<usize> {
            vec![2]
        }
        fn target_shape(&self) -> Vec<usize> {
            Vec::new()
        }
    }

    fn load_all(rules: &BatchRules, indices: &[usize]) -> Made {
        let places = indices.iter().map(|index| Place { index: *index, epoch: 0 }).collect();
        load(&Spoiled, rules, &Request { places, ..Request::default() }, &|| false)
    }

    fn batch_of(indices: &[usize]) -> Result<HostBatch, DataError> {
        load_all(&BatchRules::default(), indices).batch.map(Option::unwrap)
    }

    #[test]
    fn samples_are_joined_row_by_row() {
        let batch = batch_of(&[3, 1]).unwrap();
        assert_eq!(batch.input, HostValues::F32(vec![3.0, -3.0, 1.0, -1.0]));
        assert_eq!(batch.input_shape, [2, 2]);
        assert_eq!(batch.target, HostValues::U32(vec![3, 1]));
        assert_eq!(batch.target_shape, [2]);
        assert_eq!((batch.samples, batch.bytes()), (2, 24));
    }

    #[test]
    fn a_sample_of_another_shape_or_type_is_named() {
        let error = batch_of(&[1, 7]);
        assert!(matches!(error, Err(DataError::SampleShape { index: 7, found: 1, needed: 2 })));
        let error = batch_of(&[1, 8]);
        assert!(matches!(error, Err(DataError::SampleType { index: 8 })));
    }

    #[test]
    fn loading_stops_between_samples() {
        let request = Request { places: vec![Place { index: 7, epoch: 0 }], ..Request::default() };
        assert!(load(&Spoiled, &BatchRules::default(), &request, &|| true).batch.unwrap().is_none());
    }

    #[test]
    fn a_bad_sample_s_place_is_taken_by_the_next_good_one() {
        let rules = BatchRules { on_bad_sample: OnBadSample::Skip, ..BatchRules::default() };
        let made = load_all(&rules, &[2, 3, 1]);
        assert_eq!(made.skipped, Skipped::default());
        let made = load_all(&BatchRules::default(), &[3, 5]);
        assert!(matches!(made.batch, Err(DataError::BrokenImage { .. })));
        // 5 and 6 are bad, and 7 is of another shape, which is no sample's own fault.
        let made = load_all(&rules, &[3, 5]);
        assert!(matches!(made.batch, Err(DataError::SampleShape { index: 5, .. })));
        assert_eq!(made.skipped.samples, 2);
        assert!(made.skipped.first.unwrap().contains("5.png"));
    }

    /// Tokens 1 to 6 in every sample, or nothing good at all.
    struct Tokens {
        good: bool,
    }

    impl Dataset for Tokens {
        fn len(&self) -> usize {
            1000
        }
        fn sample(&self, _index: usize) -> Result<Sample, DataError> {
            if !self.good {
                return Err(DataError::BrokenFile { path: "bad".into(), offset: 7, reason: "rot".to_owned() });
            }
            Ok(Sample { input: HostValues::U32((1..=6).collect()), target: HostValues::U32((2..=7).collect()) })
        }
        fn input_shape(&self) -> Vec<usize> {
            vec![6]
        }
        fn target_shape(&self) -> Vec<usize> {
            vec![6]
        }
        fn ballast_bytes(&self) -> u64 {
            10
        }
    }

    fn varying(padding: Padding) -> BatchRules {
        let range = LengthSpec::Range { min: 2, max: 6, distribution: LengthDistribution::Uniform };
        BatchRules::of(&DataSpec { sequence_length: Some(range), padding, ..DataSpec::default() }, 1)
    }

    fn tokens_of(rules: &BatchRules, is_longest: bool) -> HostBatch {
        let places = (0..3).map(|index| Place { index, epoch: 0 }).collect();
        load(&Tokens { good: true }, rules, &Request { places, is_longest, side: None }, &|| false)
            .batch
            .unwrap()
            .unwrap()
    }

    #[test]
    fn varying_samples_are_cut_and_filled_up_to_one_length() {
        let rules = varying(Padding::Longest);
        let kept: Vec<usize> =
            (0..3).map(|index| rules.lengths.unwrap().of_sample(Place { index, epoch: 0 })).collect();
        let longest = *kept.iter().max().unwrap();
        assert!(longest < 6 && kept.iter().any(|kept| *kept < longest), "a seed that shows something: {kept:?}");
        let batch = tokens_of(&rules, false);
        assert_eq!((&batch.input_shape, &batch.target_shape), (&vec![3, longest], &vec![3, longest]));
        let (HostValues::U32(input), HostValues::U32(target)) = (batch.input, batch.target) else { panic!("tokens") };
        for (row, kept) in kept.iter().enumerate() {
            for column in 0..longest {
                let expected = if column < *kept { [column as u32 + 1, column as u32 + 2] } else { [PADDING; 2] };
                let place = row * longest + column;
                assert_eq!([input[place], target[place]], expected, "row {row}, column {column}");
            }
        }
        assert_eq!(tokens_of(&varying(Padding::Maximum), false).input_shape, [3, 6]);
    }

    #[test]
    fn a_longest_batch_is_not_cut() {
        let batch = tokens_of(&varying(Padding::Longest), true);
        let whole: Vec<u32> = (0..3).flat_map(|_| 1..=6).collect();
        assert_eq!((batch.input, batch.input_shape), (HostValues::U32(whole), vec![3, 6]));
    }

    #[test]
    fn ballast_is_held_for_every_sample() {
        let batch = tokens_of(&BatchRules::default(), false);
        assert_eq!((batch.ballast.len(), batch.bytes()), (30, 2 * 3 * 6 * 4 + 30));
    }

    #[test]
    fn a_dataset_of_bad_samples_ends_the_skipping() {
        let rules = BatchRules { on_bad_sample: OnBadSample::Skip, ..BatchRules::default() };
        let places = vec![Place { index: 990, epoch: 0 }];
        let made = load(&Tokens { good: false }, &rules, &Request { places, ..Request::default() }, &|| false);
        let error = made.batch.unwrap_err();
        assert!(matches!(error, DataError::AllBad { tries: 100, .. }), "{error}");
        assert!(crate::text::with_causes(&error).contains("`bad` is broken at offset 7"));
        assert_eq!(made.skipped.samples, 100);
    }
}

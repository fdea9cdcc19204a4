//! The samples of a run: what each has on every axis.

use std::path::{Path, PathBuf};

use super::LongRunError;
use super::bounds::{Bounds, MAX_EXTENT, mixed};
use super::lengths::RunLengths;
use crate::cli::{ForecastArgs, input};
use crate::memory::forecast::batching::{Extents, Layout, MAX_EXTENTS, Samples};
use crate::memory::forecast::shape::{Axes, LENGTH};

/// The samples of a run, by axis.
#[derive(Clone, Debug)]
pub(super) struct RunSamples {
    layout: Layout,
    /// One for each axis but the batch, in their order.
    columns: Vec<Column>,
    varies_by_batch: bool,
}

/// What samples have on an axis.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) values: Values,
    /// Each batch has one, rather than each sample.
    pub(super) is_per_batch: bool,
    /// Keeps axes apart that are drawn with the same numbers.
    salt: u64,
}

/// Where values come from.
#[derive(Clone, Debug)]
pub(super) enum Values {
    /// Drawn evenly.
    Drawn(Bounds),
    /// In the order of a file. A run that is longer begins it again, as an epoch does.
    Listed { path: PathBuf, values: Vec<u64>, min: u64, max: u64 },
}

impl Values {
    fn listed(path: &Path, values: Vec<u64>) -> Self {
        let [min, max] = [values.iter().min(), values.iter().max()].map(|value| value.copied().unwrap_or(1));
        Self::Listed { path: path.to_owned(), values, min, max }
    }

    pub(super) fn max(&self) -> u64 {
        match self {
            Self::Drawn(bounds) => bounds.max,
            Self::Listed { max, .. } => *max,
        }
    }
}

impl Column {
    pub(super) fn new(name: impl Into<String>, values: Values) -> Self {
        Self { name: name.into(), values, is_per_batch: false, salt: 0 }
    }

    fn of(&self, number: u64) -> u64 {
        match &self.values {
            Values::Drawn(bounds) => bounds.drawn(number ^ self.salt),
            Values::Listed { values, .. } => {
                let place = number.checked_rem(values.len() as u64).unwrap_or(0);
                values.get(place as usize).copied().unwrap_or(1)
            }
        }
    }
}

impl RunSamples {
    /// Those that are asked for, on the axes of the recordings.
    pub(super) fn of(args: &ForecastArgs, axes: &Axes) -> Result<Self, LongRunError> {
        let mut given = given(args)?;
        for (place, column) in given.iter().enumerate() {
            let name = &column.name;
            if given.iter().take(place).any(|before| before.name == *name) {
                return Err(LongRunError::RunAxisTwice { name: name.clone() });
            }
            if axes.place(name).is_none_or(|place| place == 0) {
                return Err(LongRunError::RunAxisUnknown { name: name.clone(), axes: axes.clone() });
            }
        }
        for name in &args.per_batch {
            let drawn = given.iter_mut().find(|column| column.name == *name);
            let drawn = drawn.filter(|column| matches!(column.values, Values::Drawn(_)));
            drawn.ok_or_else(|| LongRunError::PerBatch { name: name.clone() })?.is_per_batch = true;
        }
        let mut columns = Vec::new();
        for (place, name) in axes.names().skip(1).enumerate() {
            let Some(own) = given.iter().position(|column| column.name == name) else {
                return Err(match name {
                    LENGTH => LongRunError::RunLengthsMissing,
                    _ => LongRunError::RunAxisMissing { name: name.to_owned() },
                });
            };
            let salt = if place == 0 { 0 } else { mixed(place as u64) };
            columns.push(Column { salt, ..given.swap_remove(own) });
        }
        let varies_by_batch = columns.iter().any(|column| column.is_per_batch);
        let layout = Layout::of(axes, |name| columns.iter().any(|column| column.name == name && column.is_per_batch));
        Ok(Self { layout, columns, varies_by_batch })
    }

    /// The axes but the batch.
    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The samples of an epoch, where there is one.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.columns.iter().find_map(|column| match &column.values {
            Values::Drawn(_) => None,
            Values::Listed { values, .. } => Some(values.len() as u64),
        })
    }

    fn values(&self, value: impl Fn(&Column) -> u64) -> Extents {
        let mut values = [1; MAX_EXTENTS];
        for (place, column) in values.iter_mut().zip(&self.columns) {
            *place = value(column);
        }
        Extents::of(&values)
    }
}

impl Samples for RunSamples {
    fn extents(&self, sample: u64) -> Extents {
        self.values(|column| if column.is_per_batch { 1 } else { column.of(sample) })
    }

    fn extents_of_batch(&self, batch: u64) -> Extents {
        if self.varies_by_batch {
            self.values(|column| if column.is_per_batch { column.of(batch) } else { 1 })
        } else {
            Extents::ONE
        }
    }

    fn largest(&self) -> Extents {
        self.values(|column| column.values.max())
    }

    fn layout(&self) -> Layout {
        self.layout
    }
}

/// All axes that are asked for, in no order.
fn given(args: &ForecastArgs) -> Result<Vec<Column>, LongRunError> {
    let mut given = Vec::new();
    match &args.run_lengths {
        None => {}
        Some(RunLengths::Uniform(bounds)) => given.push(Column::new(LENGTH, Values::Drawn(*bounds))),
        Some(RunLengths::File(path)) => {
            if let Some(shapes) = &args.run_shapes {
                return Err(LongRunError::TwoFiles { lengths: path.clone(), shapes: shapes.clone() });
            }
            given.push(Column::new(LENGTH, Values::listed(path, lengths(path)?)));
        }
    }
    given.extend(args.run_axes.iter().map(|axis| Column::new(&axis.name, Values::Drawn(axis.bounds))));
    if let Some(path) = &args.run_shapes {
        given.extend(shapes(path)?);
    }
    Ok(given)
}

/// A number from 1 on that some sample can have.
fn extent(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|length| (1..=MAX_EXTENT).contains(length))
}

/// The lines of a file that have something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.trim().is_empty())
}

fn lengths(path: &Path) -> Result<Vec<u64>, LongRunError> {
    let text = input::text(path)?;
    let length =
        |(line, text): (usize, &str)| extent(text).ok_or_else(|| LongRunError::Length { path: path.to_owned(), line });
    let lengths: Vec<u64> = lines(&text).map(length).collect::<Result<_, _>>()?;
    if lengths.is_empty() { Err(LongRunError::NoLengths { path: path.to_owned() }) } else { Ok(lengths) }
}

/// A column for each name of the first line.
fn shapes(path: &Path) -> Result<Vec<Column>, LongRunError> {
    let text = input::text(path)?;
    let mut lines = lines(&text);
    let (line, header) = lines.next().ok_or_else(|| LongRunError::NoShapes { path: path.to_owned() })?;
    let axes = header.split(',').try_fold(Axes::batch(), |axes, name| axes.and(name.trim().to_owned()));
    let axes = axes.map_err(|source| LongRunError::Header { path: path.to_owned(), line, source })?;
    let mut columns = vec![Vec::new(); axes.count() - 1];
    for (line, text) in lines {
        let names = || axes.names().skip(1).map(str::to_owned).collect();
        let wrong = || LongRunError::SampleShape { path: path.to_owned(), line, names: names() };
        let values: Vec<u64> = text.split(',').map(extent).collect::<Option<_>>().ok_or_else(wrong)?;
        if values.len() != columns.len() {
            return Err(wrong());
        }
        columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
    }
    if columns.iter().any(Vec::is_empty) {
        return Err(LongRunError::NoShapes { path: path.to_owned() });
    }
    let column = |(name, values): (&str, Vec<u64>)| Column::new(name, Values::listed(path, values));
    Ok(axes.names().skip(1).zip(columns).map(column).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    /// The samples that options ask for, over axes of recordings.
    fn samples(axes: &[&'static str], options: &[&str]) -> Result<RunSamples, LongRunError> {
        let common = ["tune", "forecast", "a", "b", "--batches", "2,3", "--to", "8"];
        let parsed = Cli::try_parse_from(common.iter().chain(options)).unwrap();
        let Some(Command::Forecast(args)) = parsed.command else { panic!("a forecast was asked for") };
        RunSamples::of(&args, &Axes::of(axes.iter().copied()).unwrap())
    }

    fn file(text: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.txt");
        std::fs::write(&path, text).unwrap();
        (folder, path.display().to_string())
    }

    #[test]
    fn a_file_of_lengths_is_read_in_its_order_and_begun_again() {
        let read = |text: &str| {
            let (_folder, path) = file(text);
            samples(&["batch", "length"], &["--run-lengths", &path])
        };
        let found = read("5\n7\n\n3\n4\n").unwrap();
        assert_eq!((0..6).map(|sample| found.extents(sample).values()[0]).collect::<Vec<_>>(), [5, 7, 3, 4, 5, 7]);
        assert_eq!((found.largest(), found.epoch()), (Extents::of(&[7]), Some(4)));
        assert!(matches!(read("5\nx\n"), Err(LongRunError::Length { line: 2, .. })));
        assert!(matches!(read("5\n0\n"), Err(LongRunError::Length { line: 2, .. })));
        assert!(matches!(read("\n"), Err(LongRunError::NoLengths { .. })));
    }

    #[test]
    fn the_columns_of_a_file_stand_in_any_order_and_beside_axes_that_are_drawn() {
        let (_folder, path) = file("width, height\n32,64\n48,16\n");
        let options = ["--run-shapes", &path, "--run-axis", "frames=4:8:4", "--per-batch", "frames"];
        let found = samples(&["batch", "height", "width", "frames"], &options).unwrap();
        assert_eq!(found.extents(3), Extents::of(&[16, 48, 1]), "the second line again");
        assert_eq!((found.largest(), found.epoch()), (Extents::of(&[64, 48, 8]), Some(2)));
        let frames: Vec<u64> = (0..50).map(|batch| found.extents_of_batch(batch).values()[2]).collect();
        assert!(frames.contains(&4) && frames.contains(&8) && frames.iter().all(|frames| frames % 4 == 0));
        assert_eq!(found.extents_of_batch(0).values()[..2], [1, 1]);
        let (_folder, lengths) = file("5\n");
        let both = ["--run-shapes", &path, "--run-lengths", &lengths];
        assert!(matches!(samples(&["batch", "length"], &both), Err(LongRunError::TwoFiles { .. })));
    }

    #[test]
    fn two_axes_with_the_same_bounds_are_drawn_apart() {
        let options = ["--run-axis", "width=1:1000", "--run-axis", "height=1:1000"];
        let found = samples(&["batch", "height", "width"], &options).unwrap();
        let square = (0..1000).filter(|sample| {
            let [height, width, _] = *found.extents(*sample).values();
            height == width
        });
        assert!(square.count() < 10);
    }
}

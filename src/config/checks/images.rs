//! The checks of `data.image_size`, alone and beside the model and the source.

use super::Checks;
use crate::config::leaf::number::Whole;
use crate::config::leaf::varying::Varying;
use crate::config::problem::ProblemKind;
use crate::config::sections::data::{ImageSize, SideRange};

/// The key that they are about.
const KEY: &str = "data.image_size";

impl Checks<'_> {
    /// Images are as large as the model takes them, and vary in what one forecast can follow.
    pub(super) fn check_image_size(&mut self) {
        let data = &self.file.data;
        let Some(size) = &data.image_size else { return };
        if !self.sound(&[KEY, "model.image_size", "data.source"]) {
            return;
        }
        if self.file.command.is_some() {
            self.check_one_range();
        } else {
            self.check_model_side(size);
            self.check_source_of_sides(size);
        }
        if let ImageSize::Range(range) = size {
            self.check_side_range(range);
        }
    }

    /// Bounds are both there, in order, and have a multiple between them.
    fn check_side_range(&mut self, range: &SideRange) {
        match (range.min.map(Whole::get), range.max.map(Whole::get)) {
            (None, _) => self.missing(&format!("{KEY}.min"), "missing", "add `min: 160`, the smallest side"),
            (_, None) => self.missing(&format!("{KEY}.max"), "missing", "add `max: 320`, the largest side"),
            (Some(min), Some(max)) if min > max => {
                let message = format!("{min} pixels are more than the `max` of {max}");
                self.refuse(ProblemKind::Conflict, &format!("{KEY}.min"), &message);
            }
            (Some(min), Some(max)) => {
                let multiple = range.multiple_of.get();
                if min.next_multiple_of(multiple) > max {
                    let message = format!("no multiple of {multiple} lies between {min} and {max}");
                    let problem = self.located.problem(ProblemKind::Conflict, KEY, &message);
                    self.problems.push(problem.with_hint("set `multiple_of`, which is 32 by default"));
                }
            }
        }
    }

    /// The side that the model names is that of all images, or the largest of those that vary.
    fn check_model_side(&mut self, images: &ImageSize) {
        let Some(model) = self.file.model.as_ref().and_then(|model| model.image_size).map(Whole::get) else { return };
        match images {
            ImageSize::Fixed(side) if side.get() != model => {
                let message = format!("images of {} pixels a side do not fit `model.image_size: {model}`", side.get());
                self.refuse(ProblemKind::Conflict, KEY, &message);
            }
            ImageSize::Range(SideRange { max: Some(max), .. }) if max.get() != model => {
                let message = format!(
                    "images of up to {max} pixels a side do not fit `model.image_size: {model}`",
                    max = max.get()
                );
                let problem = self.located.problem(ProblemKind::Conflict, &format!("{KEY}.max"), &message);
                self.problems
                    .push(problem.with_hint("leave `model.image_size` out: the model takes them as they come"));
            }
            ImageSize::Fixed(_) | ImageSize::Range(_) => {}
        }
    }

    /// Images that are made of any side come from a source that makes them so.
    fn check_source_of_sides(&mut self, size: &ImageSize) {
        let source = self.file.data.source.0;
        if matches!(size, ImageSize::Range(_)) && !source.has_images_of_any_side() {
            let message = format!("sides vary with `source: synthetic` or `image_folder` only, and this is `{source}`");
            self.refuse(ProblemKind::Conflict, KEY, &message);
        }
    }

    /// The samples of a program vary in one thing: its probes are asked for one.
    fn check_one_range(&mut self) {
        let data = &self.file.data;
        let vary = (&data.sequence_length, &data.image_size);
        if matches!(vary, (Some(Varying::Range(_)), Some(Varying::Range(_)))) {
            let message = "`data.sequence_length` varies as well, and a run is forecast over one of them";
            let problem = self.located.problem(ProblemKind::Conflict, KEY, message);
            self.problems
                .push(problem.with_hint("give the one that varies more its range, and the other its largest value"));
        }
    }
}

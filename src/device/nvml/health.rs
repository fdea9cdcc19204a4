//! What a card says of its own state: errors in its memory, what slows it down, how it may be used.
//!
//! No card answers everything, and none of it decides whether NVML works, so each figure is an `Option` of its own.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{ComputeMode, EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC,
};

use super::{CardId, Monitor, NvmlUnavailable};

/// What makes a card slower than its clocks allow, for a reason that somebody can do something about.
const SLOWDOWNS: [(ThrottleReasons, &str); 4] = [
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "too hot (hardware)"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "too hot (driver)"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake of the machine"),
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
];

/// The state of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardHealth {
    /// The compute capability, such as (9, 0).
    pub capability: Option<(u32, u32)>,
    /// Error correction of its memory; `None` where it has none.
    pub ecc: Option<Ecc>,
    /// Rows of its memory that were replaced; `None` before the Ampere generation.
    pub remapped: Option<RemappedRows>,
    /// Whether it is split into slices (MIG); `None` where it cannot be.
    pub is_split: Option<bool>,
    /// Whether at most one process, or none, may use it.
    pub exclusive: Option<Exclusive>,
    /// What slows it down now.
    pub slowdowns: Vec<&'static str>,
}

/// Who may use a card, where not everybody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// One process at a time.
    OneProcess,
    /// None.
    Nobody,
}

/// Error correction of a card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ecc {
    /// Whether it is on.
    pub enabled: bool,
    /// Whether it will be on after the next restart.
    pub enabled_next: bool,
    /// Errors that were corrected since the driver was loaded.
    pub corrected: Option<u64>,
    /// Errors that were not.
    pub uncorrected: Option<u64>,
    /// Errors that were not, over the card's life.
    pub uncorrected_ever: Option<u64>,
}

/// Rows of a card's memory that spare ones stand in for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedRows {
    /// After errors that could be corrected.
    pub corrected: u64,
    /// After errors that could not.
    pub uncorrected: u64,
    /// Whether some wait for the card's next reset.
    pub pending: bool,
    /// Whether there was no spare row left for one.
    pub failed: bool,
}

impl Monitor {
    /// The state of a card now.
    pub fn health(&self, id: CardId<'_>) -> Result<CardHealth, NvmlUnavailable> {
        let device = self.device(id)?;
        let capability = device.cuda_compute_capability().ok();
        let capability =
            capability.and_then(|found| Some((found.major.try_into().ok()?, found.minor.try_into().ok()?)));
        let exclusive = device.compute_mode().ok().and_then(|mode| match mode {
            ComputeMode::Prohibited => Some(Exclusive::Nobody),
            ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread => Some(Exclusive::OneProcess),
            ComputeMode::Default => None,
        });
        let now = device.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
        Ok(CardHealth {
            capability,
            ecc: ecc(&device),
            remapped: remapped(&device),
            is_split: device.mig_mode().ok().map(|mode| mode.current == 1),
            exclusive,
            slowdowns: SLOWDOWNS.iter().filter(|(reason, _)| now.contains(*reason)).map(|(_, words)| *words).collect(),
        })
    }
}

fn ecc(device: &nvml_wrapper::Device<'_>) -> Option<Ecc> {
    let mode = device.is_ecc_enabled().ok()?;
    let count = |kind, counter| device.total_ecc_errors(kind, counter).ok();
    Some(Ecc {
        enabled: mode.currently_enabled,
        enabled_next: mode.pending_enabled,
        corrected: count(MemoryError::Corrected, EccCounter::Volatile),
        uncorrected: count(MemoryError::Uncorrected, EccCounter::Volatile),
        uncorrected_ever: count(MemoryError::Uncorrected, EccCounter::Aggregate),
    })
}

/// NVML's call for them (`nvmlDeviceGetRemappedRows`) is not wrapped; the same figures are field values.
fn remapped(device: &nvml_wrapper::Device<'_>) -> Option<RemappedRows> {
    let fields = [
        NVML_FI_DEV_REMAPPED_COR,
        NVML_FI_DEV_REMAPPED_UNC,
        NVML_FI_DEV_REMAPPED_PENDING,
        NVML_FI_DEV_REMAPPED_FAILURE,
    ];
    let samples = device.field_values_for(&fields.map(FieldId)).ok()?;
    let mut numbers = samples.into_iter().map(|sample| number(&sample.ok()?.value.ok()?));
    let mut next = || numbers.next().flatten();
    let (corrected, uncorrected, pending, failed) = (next()?, next()?, next()?, next()?);
    Some(RemappedRows { corrected, uncorrected, pending: pending > 0, failed: failed > 0 })
}

fn number(value: &SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(number) => Some(u64::from(*number)),
        SampleValue::U64(number) => Some(*number),
        SampleValue::I64(number) => u64::try_from(*number).ok(),
        SampleValue::F64(_) => None,
    }
}

//! A device that copies batches beside the steps, and does so at once.

use std::collections::VecDeque;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use super::stand_ins::Calls;
use crate::device::staging::{HostField, HostMemory, PageLocked, PageLocker, Stager, Wait};

pub(super) struct FakeStager {
    calls: Calls,
    staged: VecDeque<(usize, Vec<Tensor>)>,
    copied: VecDeque<Vec<HostField>>,
    count: usize,
}

impl FakeStager {
    pub(super) fn new(calls: Calls) -> Self {
        Self { calls, staged: VecDeque::new(), copied: VecDeque::new(), count: 0 }
    }
}

#[derive(Debug)]
struct Words(Vec<u32>);

impl PageLocked for Words {
    fn words(&self) -> &[u32] {
        &self.0
    }
    fn words_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }
}

struct Locker;

impl PageLocker for Locker {
    fn lock(&self, words: usize) -> std::result::Result<Box<dyn PageLocked>, String> {
        Ok(Box::new(Words(vec![0; words])))
    }
}

fn tensor(field: &HostField) -> Result<Tensor> {
    assert_eq!(field.dtype, DType::U32);
    let values = match &field.memory {
        HostMemory::U32(values) => values.clone(),
        HostMemory::PageLocked(buffer) => buffer.words().to_vec(),
        HostMemory::F32(values) => panic!("{values:?}"),
    };
    Tensor::from_vec(values, field.shape.clone(), &Device::Cpu)
}

impl Stager for FakeStager {
    fn page_locker(&self) -> Arc<dyn PageLocker> {
        Arc::new(Locker)
    }

    fn stage(&mut self, fields: Vec<HostField>) -> Result<()> {
        self.calls.borrow_mut().push(format!("stage {}", self.count));
        self.staged.push_back((self.count, fields.iter().map(tensor).collect::<Result<_>>()?));
        self.copied.push_back(fields);
        self.count += 1;
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Vec<Tensor>>> {
        let Some((number, tensors)) = self.staged.pop_front() else { return Ok(None) };
        self.calls.borrow_mut().push(format!("take {number}"));
        Ok(Some(tensors))
    }

    fn reclaim(&mut self, wait: Wait) -> Result<Option<Vec<Box<dyn PageLocked>>>> {
        // As a device whose copies take until somebody waits for them.
        if wait == Wait::No {
            return Ok(None);
        }
        let page_locked = |field: HostField| match field.memory {
            HostMemory::PageLocked(buffer) => Some(buffer),
            HostMemory::U32(_) | HostMemory::F32(_) => None,
        };
        Ok(self.copied.pop_front().map(|fields| fields.into_iter().filter_map(page_locked).collect()))
    }
}

//! Faults that a process does not survive, each in a process of its own.

use batchtune::device::{self, DeviceChoice, DeviceError, DeviceSession, StepError};
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use candle_core::{DType, Tensor};
use cudarc::driver::LaunchConfig;

use crate::support::{assert_passed, child, mebibytes, session, turn};

/// A kernel whose assertion fails, as `assert(false)` in CUDA C++ compiles to.
const FAILING_ASSERTION: &str = r"
.version 7.0
.target sm_70
.address_size 64
.extern .func __assertfail(
    .param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);
.global .align 1 .b8 text[5] = {116, 101, 115, 116, 0};
.visible .entry failing_assertion()
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<2>;
    mov.u64 %rd1, text;
    cvta.global.u64 %rd2, %rd1;
    mov.u32 %r1, 1;
    mov.u64 %rd3, 1;
    {
        .param .b64 p0;
        .param .b64 p1;
        .param .b32 p2;
        .param .b64 p3;
        .param .b64 p4;
        st.param.b64 [p0], %rd2;
        st.param.b64 [p1], %rd2;
        st.param.b32 [p2], %r1;
        st.param.b64 [p3], %rd2;
        st.param.b64 [p4], %rd3;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
    }
    ret;
}
";

/// What the child says once everything was as it should be.
const CHILD_IS_DONE: &str = "the fault was a device error throughout";

#[test]
fn a_fault_of_a_kernel_is_a_device_error_and_the_next_process_is_well() {
    let _turn = turn();
    let child = child("faults::within_a_child_a_failed_assertion_is_sticky", &[]);
    assert!(child.text().contains(CHILD_IS_DONE), "{}", child.text());
    let session = session(2);
    drop(mebibytes(session.candle(), 100).unwrap());
    session.candle().synchronize().unwrap();
}

#[test]
#[ignore = "poisons its process; run by a_fault_of_a_kernel_is_a_device_error_and_the_next_process_is_well"]
fn within_a_child_a_failed_assertion_is_sticky() {
    let _turn = turn();
    let mut session = session(2);
    session.begin_trial().unwrap();
    session.begin_phase(Phase::Forward);
    let cuda = session.candle().as_cuda_device().unwrap().clone();
    let kernel = cuda.get_or_load_custom_func("failing_assertion", "fault", FAILING_ASSERTION).unwrap();
    let one_thread = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the kernel takes no arguments and touches no memory; its context is of no use afterwards.
    unsafe { kernel.builder().launch(one_thread) }.unwrap();
    let error = session.end_phase().unwrap_err();
    println!("{error}");
    assert!(matches!(error, StepError::Device(_)), "{error:?}");
    // Whatever comes next fails too, and is not taken for the workload's fault.
    let error = Tensor::zeros((2, 2), DType::F32, session.candle()).unwrap_err(); // [2, 2]
    assert!(matches!(session.classify(&error), StepError::Device(_)), "{error}");
    drop(session);
    println!("{CHILD_IS_DONE}");
    // Not by the way of destructors and exit handlers: the driver's own hang.
    std::process::abort();
}

#[test]
fn without_a_visible_device_cuda_is_refused_and_auto_is_the_cpu() {
    let _turn = turn();
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    assert_passed(&child("faults::within_a_child_no_device_is_visible", &hidden));
}

#[test]
#[ignore = "needs an empty CUDA_VISIBLE_DEVICES; run by without_a_visible_device_cuda_is_refused_and_auto_is_the_cpu"]
fn within_a_child_no_device_is_visible() {
    let open = |choice| device::open(choice, LimitSpec::Auto, AllocatorKind::Auto).map(|_| ());
    let error = open(DeviceChoice::Cuda(0)).unwrap_err();
    println!("{error}");
    assert!(matches!(error, DeviceError::NoCudaDevice(_)));
    // The CPU's own refusal: this program declares no allocator. It was chosen all the same.
    assert!(matches!(open(DeviceChoice::Auto), Err(DeviceError::AllocatorNotInstalled)));
}

use std::path::Path;

use super::*;
use crate::units::{GIB, MIB};

fn fixture(name: &str) -> OomExplanation {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oom").join(format!("{name}.txt"));
    explain(&std::fs::read_to_string(file).unwrap(), None)
}

fn gib(number: f64) -> u64 {
    (number * GIB as f64) as u64
}

#[test]
fn the_fixtures_have_the_classes_that_are_known_for_them() {
    let expected = [
        ("fragmented", OomClass::Fragmentation),
        ("capacity", OomClass::Capacity),
        ("uncapped", OomClass::Capacity),
        ("other_process", OomClass::OtherProcess),
        ("candle", OomClass::Unknown),
        ("cupy", OomClass::Unknown),
    ];
    for (name, class) in expected {
        assert_eq!(fixture(name).class, class, "{name}");
    }
}

#[test]
fn codes_without_figures_have_a_source_and_advice() {
    let expected = [
        ("pytorch_driver", OomSource::Pytorch, "nvidia-smi"),
        ("cublas", OomSource::Library, "workspace"),
        ("cudnn", OomSource::Library, "workspace"),
        ("driver", OomSource::Driver, "nvidia-smi"),
        ("hip", OomSource::Driver, "nvidia-smi"),
        ("tensorflow", OomSource::Bfc, "statistics"),
        ("jax", OomSource::Bfc, "statistics"),
        ("candle", OomSource::Candle, "candle"),
    ];
    for (name, source, advice) in expected {
        let found = fixture(name);
        assert_eq!((found.class, found.source), (OomClass::Unknown, source), "{name}");
        assert!(found.advice[0].contains(advice), "{name}: {:?}", found.advice);
    }
    for (text, source) in [
        ("Error: Cuda(Cublas(CublasError(CUBLAS_STATUS_ALLOC_FAILED)))", OomSource::Candle),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", OomSource::Library),
        (
            "2024-01-01 E failed to allocate 2.00GiB from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            OomSource::Driver,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory.", OomSource::Pytorch),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 17 bytes.", OomSource::Bfc),
    ] {
        assert_eq!(explain(text, None).source, source, "{text}");
    }
}

#[test]
fn a_text_that_only_mentions_memory_is_no_such_error() {
    for text in [
        "MemoryError",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1,)",
        "IndexError: read out of memory bounds",
        "WARNING trainer: will retry on CUDA out of memory\nValueError: bad shape",
        "grpc: RESOURCE_EXHAUSTED: quota of requests exceeded",
        "CUDA error: an illegal memory access was encountered",
    ] {
        assert_eq!(explain(text, None).source, OomSource::Unknown, "{text}");
    }
}

#[test]
fn under_a_limit_the_free_bytes_are_what_the_limit_leaves() {
    let found = fixture("fragmented");
    assert_eq!(found.requested_bytes, Some(600 * MIB));
    assert_eq!(found.reserved_bytes, Some(1920 * MIB));
    assert_eq!(found.free_bytes, Some(128 * MIB));
    assert_eq!(found.limit_bytes, Some(2 * GIB));
    assert_eq!(found.total_bytes, Some(gib(139.80)));
    assert!(found.external_bytes.unwrap() < GIB);
}

#[test]
fn memory_of_named_processes_is_added_up() {
    let found = fixture("other_process");
    assert_eq!(found.free_bytes, Some(gib(14.77)));
    assert!(found.explanation.last().unwrap().contains("120.5 GiB"), "{:?}", found.explanation);
    assert!(found.advice[0].contains("nvidia-smi"));
}

/// The public reports of allocators.md §5 that print all figures, in GiB: request, free, allocated, reserved, total.
const REPORTS: [(&str, [f64; 5], OomClass); 19] = [
    ("pytorch#31353", [1.86, 1.28, 24.58, 29.66, 31.72], OomClass::Fragmentation),
    ("openfold#9", [11.25, 5.26, 15.35, 25.10, 31.75], OomClass::Fragmentation),
    ("cobra#24", [0.154, 0.113, 22.14, 23.03, 23.69], OomClass::Fragmentation),
    ("kaito#976", [0.533, 0.502, 13.73, 14.45, 15.77], OomClass::Fragmentation),
    ("starcoder#15", [0.141, 0.075, 21.01, 22.23, 23.69], OomClass::Fragmentation),
    ("compressed-tensors#587", [1.96, 1.08, 75.31, 77.14, 79.18], OomClass::Fragmentation),
    ("CADS#4", [22.78, 12.73, 9.08, 18.43, 31.47], OomClass::Capacity),
    ("vllm#10637", [0.512, 0.134, 13.81, 13.93, 15.77], OomClass::Capacity),
    ("vllm#7721", [16.0, 0.18, 43.67, 44.0, 44.53], OomClass::Capacity),
    ("pytorch#111729", [4.0, 0.5, 10.67, 10.92, 11.93], OomClass::Capacity),
    ("metaseq#314", [93.75, 74.14, 1.52, 1.54, 79.17], OomClass::Capacity),
    ("RWKV-LM-LoRA#32", [0.182, 0.161, 16.56, 16.78, 22.13], OomClass::Fragmentation),
    ("taming-transformers#194", [1.39, 0.47, 4.04, 4.15, 6.0], OomClass::Capacity),
    ("One-2-3-45#25", [1.69, 1.31, 0.63, 1.01, 14.56], OomClass::OtherProcess),
    ("taggui#188", [0.0195, 2.35, 0.81, 0.83, 4.0], OomClass::HostOrDriverLimit),
    ("pytorch#47497", [0.088, 5.75, 13.09, 13.28, 24.0], OomClass::HostOrDriverLimit),
    ("pytorch#16417", [0.0122, 9.28, 0.0084, 0.0129, 10.92], OomClass::HostOrDriverLimit),
    ("FastFlow#4", [0.0723, 0.0126, 10.79, 11.21, 11.91], OomClass::Fragmentation),
    ("sentence-transformers#3214", [0.0527, 0.0469, 43.89, 43.97, 44.52], OomClass::Fragmentation),
];

#[test]
fn public_reports_are_classified_as_their_numbers_say() {
    for (name, [requested, free, allocated, reserved, total], class) in REPORTS {
        let old = format!(
            "RuntimeError: CUDA out of memory. Tried to allocate {requested} GiB (GPU 0; {total} GiB total capacity; \
             {allocated} GiB already allocated; {free} GiB free; {reserved} GiB reserved in total by PyTorch) If reserved \
             memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
        );
        let found = explain(&old, None);
        assert_eq!(found.class, class, "{name}: {:?}", found.explanation);
        assert_eq!(found.free_bytes, Some(gib(free)), "{name}");
    }
}

#[test]
fn wordings_of_other_years_are_read() {
    let oldest = "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already \
                  allocated; 9.28 GiB free; 4.68 MiB cached)";
    let found = explain(oldest, None);
    assert_eq!(found.class, OomClass::HostOrDriverLimit);
    assert_eq!(found.reserved_bytes, Some((8.57 * MIB as f64) as u64 + (4.68 * MIB as f64) as u64));
    let misspelt = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 15.77 GiB of which 512.00 MiB \
                    is free. Process 12 has 15.28 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by \
                    PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 2.50 GiB is reserved by \
                    PyTorch but unallocated.";
    let found = explain(misspelt, None);
    assert_eq!((found.total_bytes, found.reserved_bytes), (Some(gib(15.77)), Some(gib(14.5))));
}

#[test]
fn the_last_error_of_a_log_is_the_one_explained() {
    let log = "Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 3.00 GiB is free.\nretrying\n\
               Tried to allocate 5.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. Of the \
               allocated memory 6.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.";
    let found = explain(log, None);
    assert_eq!((found.requested_bytes, found.class), (Some(5 * GIB), OomClass::Capacity));
}

#[test]
fn a_quantised_request_is_called_one() {
    let text = "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 MiB is free. Of the allocated \
                memory 6.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.";
    let found = explain(text, None);
    assert_eq!(found.class, OomClass::Fragmentation);
    assert!(found.explanation[0].contains("between 1 and 10 MiB"));
}

#[test]
fn nothing_is_advised_that_is_already_on() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oom/fragmented.txt"))
        .unwrap();
    let advises = |found: &OomExplanation| found.advice.iter().any(|line| line.contains("expandable_segments:True"));
    assert!(advises(&explain(&text, None)), "PyTorch's own hint is no proof that it is on");
    assert!(!advises(&explain(&text, Some("expandable_segments:True"))));
    assert!(!advises(&explain(&format!("export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'\n{text}"), None)));
    let split = explain(&text, Some("max_split_size_mb:64"));
    assert!(!split.advice.iter().any(|line| line.contains("max_split_size_mb")));
}

#[test]
fn tensorflow_and_jax_are_read() {
    let tensorflow = "W tensorflow/core/common_runtime/bfc_allocator.cc:431] Allocator (GPU_0_bfc) ran out of memory trying to \
                      allocate 2.00GiB (rounded to 2147483648)requested by op Conv2D\nI total_region_allocated_bytes_: \
                      10737418240 memory_limit_: 10737418240 available bytes: 0\nI Stats: \nLimit:                     \
                      10737418240\nInUse:                      8053063680\nMaxInUse:                   9000000000\n\
                      LargestFreeBlock:            1073741824\n";
    let found = explain(tensorflow, None);
    assert_eq!((found.source, found.class), (OomSource::Bfc, OomClass::Fragmentation));
    assert_eq!((found.requested_bytes, found.limit_bytes), (Some(2 * GIB), Some(10 * GIB)));
    assert_eq!(found.allocated_bytes, Some(8_053_063_680));
    let full = explain(&tensorflow.replace("8053063680", "10200547328"), None);
    assert_eq!(full.class, OomClass::Capacity);
    let jax = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.";
    let found = explain(jax, None);
    assert_eq!((found.source, found.class, found.requested_bytes), (OomSource::Bfc, OomClass::Unknown, Some(8 * GIB)));
}

#[test]
fn cupy_with_a_limit_is_capacity() {
    let text = "Out of memory allocating 8,589,934,592 bytes (allocated so far: 9,663,676,416 bytes, limit set to: \
                10,737,418,240 bytes).";
    assert_eq!(explain(text, None).class, OomClass::Capacity);
}

#[test]
fn our_own_error_is_read() {
    let error = crate::memory::OutOfMemory {
        requested_bytes: 600 * MIB,
        allocated_bytes: 1020 * MIB,
        reserved_bytes: 1920 * MIB,
        limit_bytes: 2 * GIB,
    };
    let found = explain(&error.to_string(), None);
    assert_eq!((found.source, found.class), (OomSource::Batchtune, OomClass::Fragmentation));
}

#[test]
fn text_that_is_no_error_is_unknown() {
    for text in [
        "",
        "hello",
        "Tried to allocate ",
        "Tried to allocate lots. GPU",
        "out of memory: ",
        "\u{0}\u{ffff}é GiB free;",
    ] {
        assert_eq!(explain(text, None).class, OomClass::Unknown, "{text:?}");
    }
}

mod fuzz {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn damaged_errors_are_explained_or_unknown(cut in 0..700_usize, junk in "\\PC{0,12}") {
            for name in ["fragmented", "other_process", "cupy", "candle"] {
                let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oom").join(format!("{name}.txt"));
                let text = std::fs::read_to_string(file).unwrap();
                let at = text.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(text.len());
                explain(&format!("{}{junk}{}", &text[..at], &text[at..]), Some(&junk));
                explain(&text[at..], None);
            }
        }
    }
}

//! Replicas on two cards: each test starts two processes of this program, one a rank. They are ignored where nobody asks
//! for them, since they need two cards and NCCL; `tests/gpu/replicas.sh` runs them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batchtune::data::loader::{Loader, LoaderConfig};
use batchtune::data::order::Shard;
use batchtune::data::rules::BatchRules;
use batchtune::data::{self, DataSpec};
use batchtune::device::DeviceSession;
use batchtune::device::collective::{self, Cards, Collective, CollectiveError, Meeting, Reduction, Relay, Replica};
use batchtune::device::cuda::CudaSession;
use batchtune::memory::{AllocatorKind, LimitSpec, Phase};
use batchtune::model::{BuildContext, ModelSpec, Registry};
use batchtune::train::{BatchNorm, GradientCheckpointing, Precision, TrainSpec, Trainer};
use batchtune::units::{Bytes, GIB, MIB};
use candle_core::{DType, Tensor};
use nix::sys::signal::{Signal, raise};

use crate::support::child;

const RANK: &str = "BATCHTUNE_GPU_RANK";
const MEETING: &str = "BATCHTUNE_GPU_MEETING";
const WORLD: usize = 2;
const SEED: u64 = 5;
const UPDATES: usize = 20;
/// Samples of all replicas together.
const SAMPLES: usize = 4;

/// Runs an ignored test of this module as every rank, and gives what each said.
fn ranks(test: &str) -> Vec<String> {
    let meeting = tempfile::tempdir().unwrap();
    let folder = meeting.path().to_str().unwrap();
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            scope.spawn(move || {
                let rank = rank.to_string();
                child(&format!("replicas::{test}"), &[(RANK, rank.as_str()), (MEETING, folder)]).text().to_owned()
            })
        };
        let playing: Vec<_> = (0..WORLD).map(start).collect();
        playing.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// This process's place, on a card of its own.
fn place() -> (CudaSession, Arc<dyn Collective>) {
    let rank = std::env::var(RANK).expect("started by another test").parse().unwrap();
    let limit = LimitSpec::Bytes(Bytes(100 * GIB));
    let session = CudaSession::open(rank, limit, AllocatorKind::Auto).expect("a card for every rank");
    let minute = Duration::from_secs(60);
    let meeting = Meeting::Folder(PathBuf::from(std::env::var(MEETING).unwrap()));
    let cards = Cards::Shared;
    let replica = Replica { rank, world: WORLD, meeting, token: 1, cards, start: minute, build: minute, step: minute };
    let group = collective::join(&replica, session.candle(), &Relay::default()).unwrap();
    (session, group)
}

fn said_by(rank: usize, said: &[String], prefix: &str) -> String {
    let line = said[rank].lines().find_map(|line| line.trim().strip_prefix(prefix));
    line.unwrap_or_else(|| panic!("rank {rank} did not say `{prefix}`: {}", said[rank])).trim().to_owned()
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn exchanges_are_right_and_their_bandwidth_is_printed() {
    let said = ranks("within_a_rank_exchanges_are_timed");
    for line in said[0].lines().filter(|line| line.starts_with("bandwidth")) {
        println!("{line}");
    }
    for rank in 0..WORLD {
        assert_eq!(said_by(rank, &said, "exchanges:"), "right");
    }
}

#[test]
#[ignore = "one rank of exchanges_are_right_and_their_bandwidth_is_printed"]
fn within_a_rank_exchanges_are_timed() {
    let (session, group) = place();
    let device = session.candle();
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let own = Tensor::full((group.rank() + 1) as f32, 5000, device).unwrap().to_dtype(dtype).unwrap(); // [N]
        let own = own.force_contiguous().unwrap();
        let first = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap()[4999];
        group.all_reduce(&[&own.narrow(0, 1000, 4000).unwrap()], Reduction::Mean).unwrap();
        assert!((first(&own) - 1.5).abs() < 1e-6);
        let outside = own.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap()[999];
        assert!((outside - (group.rank() + 1) as f32).abs() < 1e-6, "nothing around the view changes");
        group.all_reduce(&[&own, &own.copy().unwrap()], Reduction::Sum).unwrap();
        assert!((first(&own) - 3.0).abs() < 1e-6);
        let own = Tensor::full(group.rank() as f32, 10, device).unwrap().to_dtype(dtype).unwrap();
        let own = own.force_contiguous().unwrap();
        group.broadcast(&[&own]).unwrap();
        assert!(own.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap().iter().all(|value| *value == 0.0));
    }
    for bytes in [4 << 10, 64 << 10, MIB, 25 * MIB, 256 * MIB, GIB] {
        let tensor = Tensor::zeros(bytes as usize / 2, DType::BF16, device).unwrap(); // [N]
        let run = |times: u32| {
            group.barrier().unwrap();
            device.synchronize().unwrap();
            let started = Instant::now();
            for _ in 0..times {
                group.all_reduce(&[&tensor], Reduction::Mean).unwrap();
            }
            device.synchronize().unwrap();
            started.elapsed().as_secs_f64() / f64::from(times)
        };
        run(5);
        let seconds = run(20);
        // What passes each card's links: 2 · (n − 1) / n of the bytes (NCCL's tests call it bus bandwidth).
        let bus = bytes as f64 / seconds * 2.0 * (WORLD as f64 - 1.0) / WORLD as f64;
        println!("bandwidth {:>9}: {:>9.1} us, bus {:>6.1} GB/s", Bytes(bytes).to_string(), seconds * 1e6, bus / 1e9);
    }
    println!("\nexchanges: right");
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn two_cards_train_as_one_with_the_whole_batch() {
    let said = ranks("within_a_rank_gpt2_medium_is_trained");
    let (difference, times) = (said_by(0, &said, "largest difference:"), said_by(0, &said, "times:"));
    println!("losses of {UPDATES} updates in f32, two cards against one: largest difference {difference}");
    println!("update of {SAMPLES} samples: {times}");
    assert!(difference.parse::<f64>().unwrap() < 1e-3);
}

/// How the gradients of a group are exchanged.
#[derive(Clone, Copy, PartialEq)]
enum Exchange {
    /// After a plain backward pass.
    Plain,
    /// After one that recomputes.
    After,
    /// Beside one that recomputes.
    Beside,
}

/// The losses of so many updates over a group's share of the samples, or all of them, and the median time of an update
/// in milliseconds.
fn losses(session: &mut CudaSession, group: Option<&Arc<dyn Collective>>, exchange: Exchange) -> (Vec<f64>, f64) {
    let preset = Some("gpt2-medium".to_owned());
    let spec = ModelSpec { family: "gpt".to_owned(), preset, sequence_length: Some(512), ..ModelSpec::default() };
    let registry = Registry::builtin();
    let dataset = data::open(&DataSpec::default(), &registry.input(&spec).unwrap(), SEED).unwrap();
    let (rank, world) = group.map_or((0, 1), |group| (group.rank(), group.world()));
    let config = LoaderConfig { batch_size: SAMPLES / world, workers: 0, prefetch_depth: 0, seed: SEED };
    let rules = BatchRules { shard: Shard { rank, world }, ..BatchRules::default() };
    let mut batches = Loader::with_rules(dataset, config, rules);
    let device = session.candle().clone();
    session.begin_trial().unwrap();
    let context = BuildContext {
        spec: &spec,
        device: &device,
        precision: Precision::F32,
        batch_norm: BatchNorm::Train,
        seed: SEED + rank as u64,
        replicas: group,
    };
    let workload = registry.get("gpt").unwrap().build(&context).unwrap();
    let gradient_checkpointing =
        if exchange == Exchange::Plain { GradientCheckpointing::None } else { GradientCheckpointing::Blocks };
    let train = TrainSpec { learning_rate: 1e-4, gradient_checkpointing, ..TrainSpec::default() };
    let mut trainer = Trainer::new(workload, &train).unwrap();
    if let Some(group) = group {
        trainer = trainer.in_group(Arc::clone(group)).unwrap();
    }
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    for step in 0..UPDATES {
        let started = Instant::now();
        session.begin_step(u32::try_from(step).unwrap());
        let batch = batches.next_batch().unwrap().to_device(&device).unwrap();
        let done = match exchange {
            Exchange::Plain | Exchange::After => trainer.step(&batch, session),
            Exchange::Beside => trainer.last_step(&batch, session),
        };
        let own = done.unwrap().loss;
        trainer.update(session).unwrap();
        times.push(started.elapsed().as_secs_f64() * 1e3);
        let of_all = group.map_or_else(|| vec![own.to_bits()], |group| group.gather(own.to_bits()).unwrap());
        losses.push(of_all.into_iter().map(f64::from_bits).sum::<f64>() / world as f64);
    }
    times.sort_by(f64::total_cmp);
    drop((trainer, batches));
    session.end_trial();
    (losses, times[UPDATES / 2])
}

#[test]
#[ignore = "one rank of two_cards_train_as_one_with_the_whole_batch"]
fn within_a_rank_gpt2_medium_is_trained() {
    let (mut session, group) = place();
    let (together, group_ms) = losses(&mut session, Some(&group), Exchange::Plain);
    if group.rank() == 0 {
        let (alone, alone_ms) = losses(&mut session, None, Exchange::Plain);
        println!("\nlosses together: {together:.5?}\nlosses alone:    {alone:.5?}");
        let off = together.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("largest difference: {off:.2e}");
        println!("times: {group_ms:.1} ms on two cards, {alone_ms:.1} ms on one");
    }
    // So that rank 1 lives until rank 0 is done with its own run.
    let _ = group.barrier();
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn an_exchange_beside_the_backward_pass_gives_the_losses_of_one_after_it() {
    let said = ranks("within_a_rank_blocks_are_recomputed");
    let (difference, times) = (said_by(0, &said, "largest difference:"), said_by(0, &said, "times:"));
    println!("overlap, {UPDATES} updates with recomputation: largest difference of losses {difference}");
    println!("overlap, update of {SAMPLES} samples: {times}");
    assert!(difference.parse::<f64>().unwrap() < 1e-3);
}

#[test]
#[ignore = "one rank of an_exchange_beside_the_backward_pass_gives_the_losses_of_one_after_it"]
fn within_a_rank_blocks_are_recomputed() {
    let (mut session, group) = place();
    let (after, after_ms) = losses(&mut session, Some(&group), Exchange::After);
    let (beside, beside_ms) = losses(&mut session, Some(&group), Exchange::Beside);
    let off = after.iter().zip(&beside).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("\nlosses after:  {after:.5?}\nlosses beside: {beside:.5?}");
    println!("largest difference: {off:.2e}");
    println!("times: {beside_ms:.1} ms beside the backward pass, {after_ms:.1} ms after it");
    let _ = group.barrier();
}

/// A rank that goes while the other's exchange is on the side stream and candle's waits for it.
#[test]
#[ignore = "needs two cards and NCCL"]
fn a_rank_that_is_killed_beside_an_exchange_does_not_hang_the_other() {
    let said = ranks("within_a_rank_the_other_is_killed_beside_an_exchange");
    println!("a rank killed beside an exchange: the other was told after {}", said_by(0, &said, "told after"));
}

#[test]
#[ignore = "one rank of a_rank_that_is_killed_beside_an_exchange_does_not_hang_the_other"]
fn within_a_rank_the_other_is_killed_beside_an_exchange() {
    let (mut session, group) = place();
    let tensor = Tensor::ones(64 << 20, DType::F32, session.candle()).unwrap(); // [N]
    group.begin_all_reduce(&tensor, Reduction::Sum).unwrap().wait().unwrap();
    let first = tensor.narrow(0, 0, 1000).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
    assert!((first - 2000.0).abs() < 1e-3, "what comes after the wait sees the sum: {first}");
    group.barrier().unwrap();
    if group.rank() == 1 {
        let _ = raise(Signal::SIGKILL);
    }
    let started = Instant::now();
    session.begin_phase(Phase::Optimizer);
    if let Ok(work) = group.begin_all_reduce(&tensor, Reduction::Sum) {
        let _ = work.wait();
    }
    let _ = session.end_phase();
    assert_eq!(group.failure(), Some(CollectiveError::PeerLost { rank: 1 }));
    println!("\ntold after {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let sum = Tensor::ones(1000, DType::F32, session.candle()).unwrap().sum_all().unwrap(); // []
    assert!((sum.to_scalar::<f32>().unwrap() - 1000.0).abs() < 1e-3, "the card is as good as before");
}

#[test]
#[ignore = "needs two cards and NCCL"]
fn a_rank_that_is_killed_within_an_exchange_does_not_hang_the_other() {
    let said = ranks("within_a_rank_the_other_is_killed");
    println!("a rank killed within an exchange: the other was told after {}", said_by(0, &said, "told after"));
}

#[test]
#[ignore = "one rank of a_rank_that_is_killed_within_an_exchange_does_not_hang_the_other"]
fn within_a_rank_the_other_is_killed() {
    let (mut session, group) = place();
    let tensor = Tensor::zeros(64 << 20, DType::F32, session.candle()).unwrap(); // [N]
    group.all_reduce(&[&tensor], Reduction::Sum).unwrap();
    session.candle().synchronize().unwrap();
    group.barrier().unwrap();
    if group.rank() == 1 {
        let _ = raise(Signal::SIGKILL);
    }
    let started = Instant::now();
    session.begin_phase(Phase::Optimizer);
    let _ = group.all_reduce(&[&tensor], Reduction::Sum);
    let _ = session.end_phase();
    assert_eq!(group.failure(), Some(CollectiveError::PeerLost { rank: 1 }));
    println!("\ntold after {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    // The card is as good as before.
    let sum = Tensor::ones(1000, DType::F32, session.candle()).unwrap().sum_all().unwrap(); // []
    assert!((sum.to_scalar::<f32>().unwrap() - 1000.0).abs() < 1e-3);
}

//! The memory of a card. Runs only where `SCONCE_TEST_CARD` is set.
#![cfg(feature = "cuda")]

#[path = "../../ops/tests/common/mod.rs"]
mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use common::card;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig};
use sconce_nn::{Policy, Spec};
use sconce_ops::{Activation, linear};
use sconce_tensor::device::{self, Budget, Caching, Graph, Held, Memory, Owner};
use sconce_tensor::{Error, Kind};

const MB: u64 = 1 << 20;

/// A card without other users and without allocations.
fn alone() -> Option<(MutexGuard<'static, ()>, Device)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    device::allow(Budget::default());
    let device = card()?;
    assert_eq!(told().taken(), 0);
    Some((alone, device))
}

fn told() -> Memory {
    device::memory(0).unwrap()
}

/// Waits until the condition holds. The card's own thread frees memory some time after it was handed over.
fn until(holds: impl Fn(&Memory) -> bool) {
    let start = Instant::now();
    while !holds(&told()) {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", told());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn bytes(count: u64, device: &Device) -> sconce_tensor::Result<Tensor> {
    Ok(Tensor::zeros(count as usize, DType::U8, device)?)
}

fn policy() -> Policy {
    let hidden_sizes = vec![256, 256];
    let config = MlpConfig {
        hidden_sizes,
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let to = Head { name: "to".into(), kind: HeadKind::Categorical(2), hidden_size: 4 };
    let heads =
        Heads { kind: HeadsKind::Independent, parts: vec![to], stream_size: 4, prior: false };
    let spec = Spec {
        embedding: Embedding::vector(3),
        backbone: Backbone::Mlp(config),
        heads,
        critic: None,
    };
    Policy::init(&spec, 1).unwrap()
}

#[test]
fn memory_is_counted_by_owner_and_freed_memory_returns_to_the_driver() {
    let Some((_alone, device)) = alone() else { return };
    let before = told();
    let here = policy();
    let there = here.copy_on(&device).unwrap();
    let weights = 4 * here.num_weights() as u64;
    // A second policy with the same weights does not count them again.
    let again = Policy::from_weights(there.spec(), there.weights().clone()).unwrap();
    assert_eq!(told().kept.weights, weights);

    let state = bytes(MB, &device).unwrap();
    let held = Held::of(Owner::Sessions, [&state]);
    let work = bytes(5 * MB, &device).unwrap();
    let memory = told();
    assert_eq!((memory.kept.weights, memory.kept.sessions), (weights, MB));
    assert!((5 * MB..6 * MB).contains(&memory.activations), "{memory:?}");
    assert!(memory.free < before.free && memory.others.abs_diff(before.others) < 64 * MB);

    drop(held);
    drop((work, state, again));
    device::leave(device, there);
    until(|memory| memory.taken() == 0);
}

#[test]
fn cached_memory_is_kept_for_the_next_step_and_freed_on_request() {
    let Some((_alone, device)) = alone() else { return };
    let caching = Caching::on(&device);
    drop(bytes(300 * MB, &device).unwrap());
    device.synchronize().unwrap();
    assert!((300 * MB..400 * MB).contains(&told().cached), "{:?}", told());
    let given = device::release(0).unwrap();
    assert!(given >= 300 * MB, "{given}");
    assert_eq!((told().taken(), device::release(0).unwrap()), (0, 0));

    // Without a run only a little is cached, and without any user of the card nothing is.
    drop(bytes(300 * MB, &device).unwrap());
    drop(caching);
    assert!(told().cached <= 256 * MB, "{:?}", told());
    device::leave(device, ());
    until(|memory| memory.taken() == 0);
}

#[test]
fn a_full_card_is_an_error_with_numbers_and_stays_usable() {
    let Some((_alone, device)) = alone() else { return };
    drop(device);
    device::allow(Budget { bytes: Some(64 * MB), ..Budget::default() });
    let device = card().unwrap();
    let some = bytes(40 * MB, &device).unwrap();
    let error = bytes(40 * MB, &device).unwrap_err();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    let Error::CardFull { what, bytes: None, memory } = error else { panic!("{error}") };
    assert_eq!((what.as_str(), memory.budget), ("cuda:0", Some(64 * MB)));
    assert!((40 * MB..64 * MB).contains(&memory.activations), "{memory:?}");
    assert!(memory.remedies().contains(&"a larger memory_fraction or memory_budget"));

    // A budget applies to the memory in use. Another budget takes effect once that is free.
    device::allow(Budget::default());
    let other = card().unwrap();
    assert_eq!(told().budget, Some(64 * MB));
    drop(some);
    let more = bytes(60 * MB, &other).unwrap();
    drop(more);
    let free = card().unwrap();
    assert_eq!(told().budget, None);
    drop(bytes(100 * MB, &free).unwrap());

    let error = bytes(2 * told().total, &free).map(drop).unwrap_err().asking("a loaf", 7);
    let Error::CardFull { what, bytes: Some(7), .. } = &error else { panic!("{error}") };
    assert_eq!(what, "a loaf on cuda:0");
    let details = error.details();
    assert_eq!(details["memory"]["weights"], 0);
    assert_eq!(details["mend"], "a smaller policy, or fewer games at a time");
    drop((device, other));
    device::leave(free, ());
    until(|memory| memory.taken() == 0);
}

/// Records `count` bytes of scratch without an owner, and a product of `x [n, n]`.
fn recorded(x: &Tensor, count: u64) -> Option<Graph> {
    let Device::Cuda(card) = x.device() else { panic!("{x:?} is on no card") };
    let work = |_| {
        linear(x, &x.clone().into(), None, Activation::None)?;
        bytes(count, x.device()).map(drop)
    };
    Graph::record(card, work).unwrap()
}

fn matrix(device: &Device) -> Tensor {
    Tensor::zeros((64, 64), DType::F32, device).unwrap()
}

#[test]
fn memory_of_graphs_is_counted_and_freed_with_them() {
    let Some((_alone, device)) = alone() else { return };
    let x = matrix(&device);
    let first = recorded(&x, MB).expect("a graph");
    let before = told();
    let graphs: Vec<Graph> = (0..8).map(|_| recorded(&x, 40 * MB).unwrap()).collect();
    graphs.iter().for_each(|graph| graph.play().unwrap());
    device.synchronize().unwrap();
    let memory = told();
    // The graphs are replayed one after the other and share their memory.
    assert!((40 * MB..80 * MB).contains(&memory.activations), "{memory:?}");
    // The workspace of cuBLAS exists only once.
    assert_eq!(memory.others, before.others);
    drop((first, graphs, x));
    device::leave(device, ());
    until(|memory| memory.taken() == 0);
}

#[test]
fn a_graph_beyond_the_budget_is_not_recorded() {
    let Some((_alone, device)) = alone() else { return };
    drop(device);
    device::allow(Budget { bytes: Some(64 * MB), ..Budget::default() });
    let device = card().unwrap();
    // Graphs of different streams do not share memory.
    let other = card().unwrap();
    let (x, y, some) = (matrix(&device), matrix(&other), bytes(30 * MB, &device).unwrap());
    let graph = recorded(&y, 20 * MB).expect("a graph");
    let refusals = device::refusals().len();
    assert!(recorded(&x, 20 * MB).is_none());
    assert!(device::refusals()[refusals].contains("exceeds the budget"));
    assert!(told().taken() < 64 * MB, "{:?}", told());
    graph.play().unwrap();
    drop((graph, x, y, some));
    device::leave(other, ());
    device::leave(device, ());
    until(|memory| memory.taken() == 0);
}

/// Waits for all work that was handed to the card's own thread before.
fn left(device: &Device) {
    let (last, gone) = std::sync::mpsc::sync_channel::<()>(0);
    device::leave(device.clone(), last);
    assert!(gone.recv().is_err());
}

#[test]
fn a_hundred_policies_in_turn_leak_no_memory() {
    let Some((_alone, device)) = alone() else { return };
    let here = policy();
    let mut after_first = None;
    for _ in 0..100 {
        let own = card().unwrap();
        let there = here.copy_on(&own).unwrap();
        device::leave(own, there);
        left(&device);
        let now = told();
        let first = after_first.get_or_insert_with(|| now.clone());
        assert_eq!((now.free, now.activations), (first.free, first.activations));
    }
    device::leave(device, ());
    until(|memory| memory.taken() == 0);
}

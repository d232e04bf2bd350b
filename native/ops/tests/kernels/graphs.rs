//! The order of work in a card's stream, and recorded graphs of it.

use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use candle_core::cuda_backend::cudarc::driver::sys::{
    self, CUgraphInstantiate_flags as Flags, CUresult, CUstreamCaptureMode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream, DriverError, result};
use candle_core::{Device, Tensor, Var};
use sconce_tensor::device::{self, Graph, Uploads, launch};

use crate::card;

const AUTO_FREE: Flags = Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

fn open() -> (Device, Arc<CudaStream>) {
    let device = card::open();
    let Device::Cuda(card) = &device else { panic!("{device:?} is not a card") };
    // SAFETY: all work is in one stream.
    unsafe { card.disable_event_tracking() };
    let stream = card.cuda_stream();
    (device, stream)
}

/// Begins a capture. No other test opens a card until the returned guard is dropped.
fn begin(stream: &CudaStream) -> RwLockWriteGuard<'static, ()> {
    let alone = card::OPENING.write().unwrap_or_else(PoisonError::into_inner);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).unwrap();
    alone
}

fn end(stream: &Arc<CudaStream>) -> Result<CudaGraph, DriverError> {
    stream.end_capture(AUTO_FREE).map(|graph| graph.expect("a graph"))
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_graph_reads_the_numbers_at_its_launch() {
    let (device, stream) = open();
    let x = Var::new(&[1f32, 2.0, 3.0, 4.0], &device).unwrap();
    // Temporary tensors are freed; one remains.
    let work = || {
        let square = x.as_tensor().sqr().unwrap().reshape((2, 2)).unwrap();
        (square.t().unwrap().contiguous().unwrap() * 2.0).unwrap().sum(1).unwrap()
    };
    let Device::Cuda(card) = &device else { unreachable!() };
    let constants = card.enable_cuda_graph_htod_cache();
    // A first run loads kernels and uploads constants.
    work();
    let alone = begin(&stream);
    let y = work();
    let graph = end(&stream).unwrap();
    drop(alone);
    drop(constants);
    for round in 0..3 {
        let scale = round as f32 + 1.0;
        let numbers_in = [1f32, 2.0, 3.0, 4.0].map(|v| v * scale);
        x.set(&Tensor::new(&numbers_in, &device).unwrap()).unwrap();
        graph.launch().unwrap();
        assert_eq!(numbers(&y), [20.0, 40.0].map(|v| v * scale * scale), "round {round}");
    }
}

/// Checks that `spoil` is refused during a capture, that later work is refused too, and that no graph results.
fn refused(spoil: impl Fn(&Arc<CudaStream>) -> Result<(), DriverError>) {
    let (device, stream) = open();
    let x = Tensor::new(&[1f32, 2.0], &device).unwrap();
    x.sqr().unwrap();
    let _alone = begin(&stream);
    let kept = x.sqr().unwrap();
    // The capture has to end before an assertion fails: it would spoil the work of other tests.
    let (spoilt, later, error) = (spoil(&stream), kept.sqr(), end(&stream).err());
    let unsupported = Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(spoilt, unsupported);
    assert!(later.is_err());
    assert_eq!(error, Some(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_wait_during_a_capture_is_refused() {
    refused(|stream| stream.synchronize());
}

/// The driver does not refuse such a copy, so that [`Graph::record`] has to.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_captured_copy_to_the_host_is_repeated_by_each_launch() {
    let (_device, stream) = open();
    let mut there = stream.clone_htod(&[1f32]).unwrap();
    let mut here = vec![0f32];
    stream.synchronize().unwrap();
    let alone = begin(&stream);
    let copied = stream.memcpy_dtoh(&there, &mut here);
    let graph = end(&stream);
    drop(alone);
    assert_eq!((copied, here[0]), (Ok(()), 0.0));
    let graph = graph.unwrap();
    for number in [2f32, 3.0] {
        stream.memcpy_htod(&[number], &mut there).unwrap();
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(here[0], number);
    }
}

/// Records `copy`, which gets two numbers on the card and two of the host. Returns all reasons of refusals if it is
/// refused.
fn recorded(mut copy: impl FnMut(&Tensor, &mut [f32]) + Send) -> Option<Vec<String>> {
    let (device, _) = open();
    let Device::Cuda(card) = &device else { unreachable!() };
    let (x, mut here) = (Tensor::new(&[1f32, 2.0], &device).unwrap(), [3f32, 4.0]);
    let graph = Graph::record(card, |_| {
        copy(&x, &mut here);
        x.sqr()?;
        Ok(())
    });
    let graph = graph.unwrap();
    graph.is_none().then(device::refusals)
}

/// Whether one of the reasons has these words. Tests beside this one add reasons too.
fn said(refusals: Option<Vec<String>>, words: &str) -> bool {
    refusals.is_some_and(|all| all.iter().any(|one| one.contains(words)))
}

const TO_HOST: &str = "it copies to memory of the host";
const FROM_HOST: &str = "it copies from memory of the host";

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_recording_that_copies_to_the_host_is_refused() {
    let copy = |x: &Tensor, here: &mut [f32]| {
        let stream = x.device().as_cuda_device().unwrap().cuda_stream();
        let from = launch::pointer(x).unwrap();
        // SAFETY: both have two numbers, and `here` outlives the recording.
        unsafe { result::memcpy_dtoh_async(here, from, stream.cu_stream()) }.unwrap();
    };
    assert!(said(recorded(copy), TO_HOST), "{:?}", device::refusals());
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_recording_that_uploads_a_temporary_is_refused() {
    let copy = |x: &Tensor, here: &mut [f32]| {
        let temporary: Vec<f32> = here.iter().map(|v| v + 1.0).collect();
        launch::overwrite(x, &temporary).unwrap();
    };
    assert!(said(recorded(copy), FROM_HOST), "{:?}", device::refusals());
}

/// A copy whose call does not say which memory its addresses belong to.
fn plain(to: u64, from: u64, stream: &CudaStream) {
    // SAFETY: callers copy two numbers between memory that outlives the recording.
    unsafe { sys::cuMemcpyAsync(to, from, 8, stream.cu_stream()) }.result().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_recording_may_copy_within_the_card() {
    let within = |x: &Tensor, _: &mut [f32]| {
        let stream = x.device().as_cuda_device().unwrap().cuda_stream();
        x.copy().unwrap();
        let place = launch::pointer(x).unwrap();
        plain(place, place, &stream);
    };
    assert_eq!(recorded(within), None);
    let back = |x: &Tensor, here: &mut [f32]| {
        let stream = x.device().as_cuda_device().unwrap().cuda_stream();
        plain(here.as_mut_ptr() as u64, launch::pointer(x).unwrap(), &stream);
    };
    assert!(said(recorded(back), TO_HOST), "{:?}", device::refusals());
    let there = |x: &Tensor, here: &mut [f32]| {
        let stream = x.device().as_cuda_device().unwrap().cuda_stream();
        plain(launch::pointer(x).unwrap(), here.as_ptr() as u64, &stream);
    };
    assert!(said(recorded(there), FROM_HOST), "{:?}", device::refusals());
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_failed_recording_is_reported_and_the_card_remains_usable() {
    let (device, stream) = open();
    let Device::Cuda(card) = &device else { unreachable!() };
    let x = Tensor::new(&[1f32, 2.0], &device).unwrap();
    let record = |spoil: bool| {
        Graph::record(card, |recording| {
            let kept = x.sqr()?;
            if recording && spoil {
                assert!(stream.synchronize().is_err());
            }
            drop(kept);
            Ok(())
        })
    };
    let refusals = record(true).unwrap().is_none().then(device::refusals);
    assert!(said(refusals, "STREAM_CAPTURE_INVALIDATED"), "{:?}", device::refusals());
    assert_eq!(numbers(&x.sqr().unwrap()), [1.0, 4.0]);
    record(false).unwrap().expect("a graph").play().unwrap();
}

/// Opening a card waits for all of its work, as does freeing what was opened, and pinned memory. A free in the recorded
/// stream would become part of the recording.
#[test]
#[ignore = "needs an NVIDIA card"]
fn other_threads_open_and_free_during_a_recording() {
    let (device, _) = open();
    let Device::Cuda(card) = &device else { unreachable!() };
    let x = Tensor::new(&[1f32, 2.0], &device).unwrap();
    let mut others = Some(x.copy().unwrap());
    let (own, free) = (device.clone(), |one| device::apart(&device, || drop(one)));
    let come_and_go = || {
        let all: Vec<Device> = (0..3).map(|_| device::open(0).unwrap()).collect();
        let uploads = Uploads::new(all[0].as_cuda_device().unwrap(), 1).unwrap();
        device::leave(all[0].clone(), uploads);
        drop(Uploads::new(all[1].as_cuda_device().unwrap(), 1).unwrap());
        all.into_iter().for_each(|device| device::leave(device, ()));
    };
    std::thread::scope(|scope| {
        let recorded = Graph::record(card, |recording| {
            let square = x.sqr()?;
            if recording {
                scope.spawn(come_and_go);
                let others = others.take();
                scope.spawn(move || free(others));
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            square.sqr()?;
            Ok(())
        });
        assert!(recorded.unwrap().is_some(), "{:?}", device::refusals());
    });
    own.as_cuda_device().unwrap().cuda_stream().context().check_err().unwrap();
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn each_upload_arrives_however_late_the_card_is() {
    let (device, _) = open();
    let Device::Cuda(card) = &device else { unreachable!() };
    // The upload is large enough for several copying threads.
    let words = |i: u32| (0..1 << 18).map(|k| k ^ i).collect::<Vec<u32>>();
    let to = Tensor::new(words(0), &device).unwrap();
    let mut uploads = Uploads::new(card, 1 << 18).unwrap();
    let sent: Vec<Tensor> = (1..10)
        .map(|i| {
            let words = words(i);
            let (some, others) = words.split_at(200_001);
            uploads.send(&[some, others], &to).unwrap();
            to.copy().unwrap()
        })
        .collect();
    for (i, sent) in (1..).zip(&sent) {
        assert!(sent.to_vec1::<u32>().unwrap() == words(i), "upload {i}");
    }
}

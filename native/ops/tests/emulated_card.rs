//! Errors that a card does not report and the emulated card does (`bin/emulated-card`, `bin/test-cuda`). These tests
//! run if its folder is on LD_LIBRARY_PATH and they are requested; they say nothing about a real card.
#![cfg(feature = "cuda")]

use std::process::{Command, Output};

use candle_core::cuda_backend::cudarc::driver::result::{self, ctx, event, primary_ctx, stream};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdeviceptr, CUevent_flags, CUevent_wait_flags, CUresult, CUstream, CUstreamCaptureMode,
};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, DevicePtr, DriverError, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDevice, kernels};
use candle_core::{DType, Device, Tensor};
use sconce_tensor::device::{Devices, Missing};
use sconce_tensor::{Error, Kind, device};

fn open() -> CudaDevice {
    match device::open(0).unwrap() {
        Device::Cuda(card) => card,
        other => panic!("{other:?} is not a card"),
    }
}

/// Runs `work`, which is part of the test of this name, in a process of its own, on two cards that share 64 MiB.
fn child(test: &str, work: impl FnOnce()) -> Output {
    const CHILD: &str = "SCONCE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        work();
        std::process::exit(0);
    }
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(CHILD, "1")
        .env("SCONCE_EMULATED_CARD_MB", "64")
        .env("SCONCE_EMULATED_CARDS", "2")
        .output()
        .unwrap()
}

/// The output of a process that aborts during `work`.
fn told(test: &str, work: impl FnOnce()) -> String {
    let output = child(test, work);
    assert!(!output.status.success(), "no error was reported");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn first(memory: &CudaSlice<f32>) -> u64 {
    memory.device_ptr(memory.stream()).0
}

/// Launches candle's kernel that writes `count` numbers from `first` on.
fn fill(card: &CudaDevice, first: u64, count: usize) {
    let fill = card.get_or_load_func("fill_f32", &kernels::FILL).unwrap();
    let mut launch = fill.builder();
    launch.arg(&first).arg(&1f32).arg(&count);
    // SAFETY: this holds on the emulated card only.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }.unwrap();
    card.cuda_stream().synchronize().unwrap();
}

#[test]
#[ignore = "needs the emulated card"]
fn an_access_outside_an_allocation_is_reported() {
    let said = told("an_access_outside_an_allocation_is_reported", || {
        let card = open();
        let memory = card.cuda_stream().alloc_zeros::<f32>(100).unwrap();
        fill(&card, first(&memory), 200);
    });
    assert!(said.contains("fill_f32, block 0,0,0, thread 128,0,0"), "{said}");
    assert!(said.contains("touches byte 512 of an allocation of 400 bytes"), "{said}");
}

#[test]
#[ignore = "needs the emulated card"]
fn an_unaligned_access_is_reported() {
    let said = told("an_unaligned_access_is_reported", || {
        let card = open();
        let memory = card.cuda_stream().alloc_zeros::<f32>(100).unwrap();
        fill(&card, first(&memory) + 2, 10);
    });
    assert!(said.contains("fill_f32, block 0,0,0, thread 0,0,0"), "{said}");
    assert!(said.contains("touches a number that is not aligned"), "{said}");
}

/// An overrun by less than a page, which is found when the memory is freed.
#[test]
#[ignore = "needs the emulated card"]
fn a_write_past_an_allocation_is_reported() {
    let said = told("a_write_past_an_allocation_is_reported", || {
        let card = open();
        let memory = card.cuda_stream().alloc_zeros::<f32>(100).unwrap();
        fill(&card, first(&memory), 101);
        drop(memory);
        card.cuda_stream().synchronize().unwrap();
    });
    assert!(said.contains("wrote past the end of an allocation of 400 bytes"), "{said}");
}

#[test]
#[ignore = "needs the emulated card"]
fn freed_memory_and_host_memory_are_reported() {
    let name = "freed_memory_and_host_memory_are_reported";
    let said = told(name, || {
        let card = open();
        let memory = card.cuda_stream().alloc_zeros::<f32>(100).unwrap();
        let gone = first(&memory);
        drop(memory);
        fill(&card, gone, 100);
    });
    assert!(said.contains("which no kernel can reach, as argument 0"), "{said}");
}

#[test]
#[ignore = "needs the emulated card"]
fn a_ptx_that_differs_from_its_source_is_reported() {
    let said = told("a_ptx_that_differs_from_its_source_is_reported", || {
        let ptx = kernels::FILL.ptx().replace("u64 fill_u8_param_2", "u32 fill_u8_param_2");
        open().get_or_load_custom_func("fill_u8", "stale", &ptx).unwrap();
    });
    assert!(said.contains("fill_u8 takes other parameters in its PTX"), "{said}");
}

#[test]
#[ignore = "needs the emulated card"]
fn an_allocation_beyond_the_memory_is_refused_and_freed_memory_is_reused() {
    let name = "an_allocation_beyond_the_memory_is_refused_and_freed_memory_is_reused";
    let output = child(name, || {
        let device = Device::Cuda(open());
        let megabytes = |n: usize| Tensor::zeros(n << 20, DType::U8, &device);
        let refused = |n| Error::from(megabytes(n).unwrap_err()).kind();
        assert_eq!(refused(65), Kind::OutOfMemory);
        let most = megabytes(40).unwrap();
        assert_eq!(refused(40), Kind::OutOfMemory);
        drop(most);
        megabytes(40).unwrap();
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs the emulated card"]
fn two_cards_sum_their_numbers_and_a_third_card_is_missing() {
    let name = "two_cards_sum_their_numbers_and_a_third_card_is_missing";
    let output = child(name, || {
        let Devices { all, sum } = device::several("cuda:1,0").unwrap();
        let part = |i: usize| {
            let numbers = Tensor::arange(0f32, 1000.0, &all[i]).unwrap();
            numbers.affine(i as f64 + 1.0, 0.5).unwrap().narrow(0, 10 * i, 500).unwrap()
        };
        let sums = sum.unwrap().sum(&[part(0), part(1)]).unwrap();
        for (sum, device) in sums.iter().zip(&all) {
            assert!(sum.device().same_device(device));
            // The sum of x + 0.5 and 2 (x + 10) + 0.5.
            let want: Vec<f32> = (0..500).map(|x| 3.0 * x as f32 + 21.0).collect();
            assert_eq!(sum.to_vec1::<f32>().unwrap(), want);
        }
        let third = device::several("cuda:0,2").err();
        let missing = Missing::Card { ordinal: 2, count: 2 };
        assert!(matches!(third, Some(Error::NoDevice { missing: m, .. }) if m == missing));
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs the emulated card"]
fn memory_in_use_is_counted() {
    let output = child("memory_in_use_is_counted", || {
        let stream = open().cuda_stream();
        let free = || {
            stream.synchronize().unwrap();
            stream.context().mem_get_info().unwrap().0
        };
        let before = free();
        let memory = stream.alloc_zeros::<u8>(1000).unwrap();
        // A pool grows by 2 MiB.
        assert_eq!(before - free(), 2 << 20);
        drop(memory);
        device::release(0).unwrap();
        assert_eq!(free(), before);
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The driver's functions, without the waits that candle adds.
struct Raw;

impl Raw {
    fn open() -> Self {
        result::init().unwrap();
        // SAFETY: card 0 exists.
        unsafe { ctx::set_current(primary_ctx::retain(0).unwrap()) }.unwrap();
        Raw
    }

    fn stream(&self) -> CUstream {
        stream::create(stream::StreamKind::NonBlocking).unwrap()
    }

    fn number(&self, stream: CUstream) -> CUdeviceptr {
        // SAFETY: the stream is valid.
        unsafe { result::malloc_async(stream, 4) }.unwrap()
    }

    /// Host memory that the card may access at any time.
    fn pinned(&self) -> &'static mut [f32] {
        // SAFETY: it is never freed, and any bytes are valid numbers.
        unsafe { std::slice::from_raw_parts_mut(result::malloc_host(4, 0).unwrap().cast(), 1) }
    }
}

#[test]
#[ignore = "needs the emulated card"]
fn without_a_wait_a_copy_is_not_visible() {
    let raw = Raw::open();
    let (stream, there, back) = (raw.stream(), raw.pinned(), raw.pinned());
    let number = raw.number(stream);
    there[0] = 1.0;
    // SAFETY: all memory lives until the end.
    unsafe {
        result::memcpy_htod_async(number, there, stream).unwrap();
        result::memcpy_dtoh_async(back, number, stream).unwrap();
        assert!(std::ptr::read_volatile(&back[0]).is_nan());
        // The card has not read it yet.
        std::ptr::write_volatile(&mut there[0], 2.0);
        stream::synchronize(stream).unwrap();
        assert_eq!(std::ptr::read_volatile(&back[0]), 2.0);
    }
}

#[test]
#[ignore = "needs the emulated card"]
fn without_a_wait_another_streams_work_is_not_visible() {
    let raw = Raw::open();
    let (first, second) = (raw.stream(), raw.stream());
    let seen = |wait: bool| {
        let number = raw.number(first);
        let mut back = [0f32];
        // SAFETY: all memory lives until the end.
        unsafe {
            result::memset_d8_async(number, 0, 4, first).unwrap();
            let event = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
            event::record(event, first).unwrap();
            if wait {
                let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                stream::wait_event(second, event, flags).unwrap();
            }
            result::memcpy_dtoh_async(&mut back, number, second).unwrap();
        }
        back[0]
    };
    assert!(seen(false).is_nan());
    assert_eq!(seen(true), 0.0);
}

#[test]
#[ignore = "needs the emulated card"]
fn a_thread_without_a_context_is_refused() {
    let raw = Raw::open();
    let stream = raw.stream();
    let (number, place) = (raw.number(stream), stream as usize);
    // SAFETY: the stream is valid.
    let free = move || unsafe { result::free_async(number, place as CUstream) };
    let refused = std::thread::spawn(free).join().unwrap();
    assert_eq!(refused, Err(DriverError(CUresult::CUDA_ERROR_INVALID_CONTEXT)));
    free().unwrap();
}

#[test]
#[ignore = "needs the emulated card"]
fn a_block_with_more_threads_than_its_kernel_declares_is_refused() {
    let module = sconce_cuda::kernels::ATTENTION;
    let kernel = "attention_f32_32_last";
    let last = open().get_or_load_custom_func(kernel, module.name, module.ptx).unwrap();
    let (grid_dim, block_dim) = ((1, 1, 1), (256, 1, 1));
    let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
    // SAFETY: the launch is refused before its arguments are read.
    let launched = unsafe { last.builder().launch(config) };
    assert_eq!(launched.err(), Some(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
}

/// A recorded free must be of memory that was allocated while recording.
#[test]
#[ignore = "needs the emulated card"]
fn a_capture_that_frees_earlier_memory_is_invalidated() {
    let raw = Raw::open();
    let stream = raw.stream();
    let number = raw.number(stream);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is valid, and the number is freed once.
    unsafe {
        stream::begin_capture(stream, mode).unwrap();
        let refused = result::free_async(number, stream);
        assert_eq!(refused, Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
        let lost = stream::end_capture(stream).err();
        let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        assert_eq!(lost, Some(DriverError(invalidated)));
        result::free_async(number, stream).unwrap();
    }
}

#[test]
#[ignore = "needs the emulated card"]
fn pinned_memory_that_is_freed_before_it_is_read_is_reported() {
    let said = told("pinned_memory_that_is_freed_before_it_is_read_is_reported", || {
        let card = open();
        let stream = card.cuda_stream();
        // SAFETY: this holds on the emulated card only.
        unsafe {
            let pinned: *mut f32 = result::malloc_host(400, 0).unwrap().cast();
            let fill = card.get_or_load_func("fill_f32", &kernels::FILL).unwrap();
            let mut launch = fill.builder();
            let place = pinned as u64;
            launch.arg(&place).arg(&1f32).arg(&100usize);
            launch.launch(LaunchConfig::for_num_elems(100)).unwrap();
            result::free_host(pinned.cast()).unwrap();
        }
        stream.synchronize().unwrap();
    });
    assert!(said.contains("fill_f32, block 0,0,0, thread 0,0,0"), "{said}");
    assert!(said.contains("which is no memory of the card"), "{said}");
}

#[test]
#[ignore = "needs the emulated card"]
fn a_second_free_is_refused() {
    let raw = Raw::open();
    let stream = raw.stream();
    let number = raw.number(stream);
    // SAFETY: the second free is refused.
    let free = || unsafe { result::free_async(number, stream) };
    free().unwrap();
    assert_eq!(free(), Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
}

//! Tests of the driver against a fake library (`fake/nvml.c`) and without a library.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sconce_cuda::{
    Cause, Clocks, Drivers, Error, Memory, Power, Process, RETRY, Throttle, Utilization, Versions,
};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A folder with its own fake library, controlled by a settings file.
struct Fake(TempDir);

impl Fake {
    fn new(settings: &str) -> Self {
        let fake = Fake(tempfile::tempdir().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/nvml.c");
        compile(&source, &fake.library());
        fake.set(settings);
        fake
    }

    fn set(&self, settings: &str) {
        fs::write(self.0.path().join("fake.conf"), settings).unwrap();
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libnvidia-ml.so.1")
    }

    /// The number of initialisations of the library.
    fn inits(&self) -> usize {
        fs::read(self.0.path().join("inits")).map_or(0, |bytes| bytes.len())
    }
}

fn compile(source: &Path, library: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(library);
    let status = compiler.arg(source).arg("-ldl").status().unwrap();
    assert!(status.success());
}

fn refusal(drivers: &mut Drivers, path: &Path) -> Error {
    drivers.driver(Some(path)).err().unwrap()
}

#[test]
fn each_card_has_its_properties() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    let driver = drivers.driver(Some(fake.folder())).unwrap();

    assert_eq!(driver.count().unwrap(), 2);
    let [first, second] = [0, 1].map(|index| driver.card(index).unwrap());
    assert_eq!((first.index, first.name.as_str()), (0, "NVIDIA GeForce RTX 4090"));
    assert_eq!(first.memory_bytes, 24564 * MIB);
    assert_eq!(first.compute_capability, Some((8, 9)));
    assert_eq!(first.pci_bus_id.as_deref(), Some("00000000:01:00.0"));
    assert_eq!(first.uuid.as_deref(), Some("GPU-00000000-0000-0000-0000-000000000000"));
    assert!(!first.mig, "a card without instances");
    assert_eq!((second.index, second.compute_capability, second.mig), (1, Some((9, 0)), true));
}

#[test]
fn reasons_for_low_clocks_are_named_and_idleness_is_none() {
    let mut drivers = Drivers::new(RETRY);
    // Bits of nvml.h: idle 0x1, the power cap 0x4, a slowdown by the hardware 0x8, heat 0x20 and 0x40.
    for (bits, reasons) in [
        ("0", vec![]),
        ("1", vec![]),
        ("5", vec![Throttle::PowerCap]),
        ("104", vec![Throttle::Heat, Throttle::Hardware]),
    ] {
        let fake = Fake::new(&format!("throttle={bits}"));
        let driver = drivers.driver(Some(&fake.library())).unwrap();
        assert_eq!(driver.throttle(0).unwrap(), reasons, "{bits}");
    }
}

#[test]
fn memory_utilization_temperature_power_and_clocks_are_reported() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    let driver = drivers.driver(Some(&fake.library())).unwrap();

    let [total, used, reserved] = [24564, 4521, 43].map(|mib| mib * MIB);
    let free = total - used - reserved;
    assert_eq!(driver.memory(0).unwrap(), Memory { total, used, free, reserved });
    assert_eq!(driver.utilization(0).unwrap(), Utilization { gpu: 45, memory: 20 });
    assert_eq!(driver.temperature(0).unwrap(), 61);
    let power = Power { draw_watts: 231.5, limit_watts: Some(450.0) };
    assert_eq!(driver.power(0).unwrap(), power);
    assert_eq!(
        driver.clocks(0).unwrap(),
        Clocks {
            graphics_mhz: Some(2520),
            sm_mhz: Some(2520),
            memory_mhz: Some(10501),
            max_graphics_mhz: Some(3105),
            max_sm_mhz: Some(3105),
            max_memory_mhz: Some(10501),
        }
    );
}

#[test]
fn each_process_is_listed_once_with_its_kinds_of_work() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    let driver = drivers.driver(Some(fake.folder())).unwrap();

    let process = |pid, name: Option<&str>, mib: Option<u64>, compute, graphics| Process {
        pid,
        name: name.map(str::to_owned),
        memory_bytes: mib.map(|mib| mib * MIB),
        compute,
        graphics,
        mig_instance: None,
    };
    assert_eq!(
        driver.processes(0).unwrap(),
        [
            process(9, None, Some(3), false, true),
            process(77, None, None, true, false),
            process(4242, Some("/usr/bin/beam.smp"), Some(4000), true, true),
        ]
    );
    assert_eq!(driver.processes(1).unwrap()[0].mig_instance, Some(3));
}

#[test]
fn versions_are_reported_also_without_the_cuda_library() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    let driver = drivers.driver(Some(fake.folder())).unwrap();

    let versions = |cuda: Option<&str>| Versions {
        driver: "580.159.03".into(),
        nvml: "13.580.159.03".into(),
        cuda: cuda.map(str::to_owned),
        library: fake.library().display().to_string(),
    };
    assert_eq!(driver.versions().unwrap(), versions(Some("13.0")));
    fake.set("cuda=12");
    assert_eq!(driver.versions().unwrap(), versions(None));
}

#[test]
fn a_missing_card_and_an_unsupported_value_are_named_in_the_error() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    let driver = drivers.driver(Some(fake.folder())).unwrap();

    let absent = driver.memory(2).unwrap_err();
    assert_eq!((absent.what.as_str(), absent.cause), ("GPU 2", Cause::NoDevice));
    assert_eq!(absent.reason, "of 2, counted from 0");
    let untold = driver.utilization(1).unwrap_err();
    assert_eq!((untold.what.as_str(), untold.cause), ("GPU 1", Cause::NotSupported));
}

#[test]
fn a_lost_card_has_its_own_error_and_the_other_still_answers() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    let driver = drivers.driver(Some(fake.folder())).unwrap();
    assert_eq!(driver.temperature(1).unwrap(), 30);

    for (code, cause) in [(15, Cause::Lost), (16, Cause::ResetRequired), (4, Cause::NoPermission)] {
        fake.set(&format!("card1={code}"));
        assert_eq!(driver.temperature(1).unwrap_err().cause, cause);
        assert_eq!(driver.card(1).unwrap_err().what, "GPU 1");
        assert_eq!(driver.temperature(0).unwrap(), 61);
    }
    fake.set("");
    assert_eq!(driver.temperature(1).unwrap(), 30, "the error is not cached");
}

#[test]
fn an_unknown_code_of_a_later_driver_is_an_error() {
    let fake = Fake::new("memory=4711");
    let mut drivers = Drivers::new(RETRY);
    let error = drivers.driver(Some(fake.folder())).unwrap().memory(0).unwrap_err();
    assert_eq!(error.cause, Cause::Other);
    assert!(error.reason.contains("4711"), "{error}");
}

#[test]
fn a_refusal_of_the_driver_has_its_cause() {
    let cases = [
        (9, Cause::NoDriver),
        (18, Cause::VersionMismatch),
        (4, Cause::NoPermission),
        (17, Cause::NoPermission),
        (999, Cause::Other),
    ];
    let fake = Fake::new("");
    for (code, cause) in cases {
        fake.set(&format!("init={code}"));
        let error = refusal(&mut Drivers::new(RETRY), fake.folder());
        assert_eq!(error.cause, cause, "{error}");
        assert!(error.what.contains("libnvidia-ml.so.1"), "{error}");
    }
}

#[test]
fn a_library_is_opened_once() {
    let fake = Fake::new("");
    let mut drivers = Drivers::new(RETRY);
    for _ in 0..3 {
        assert_eq!(drivers.driver(Some(fake.folder())).unwrap().count().unwrap(), 2);
    }
    assert_eq!(fake.inits(), 1);
}

#[test]
fn a_refusal_is_cached_for_a_while_and_then_the_driver_is_tried_again() {
    let fake = Fake::new("init=9");
    let mut patient = Drivers::new(Duration::from_secs(3600));
    let first = refusal(&mut patient, fake.folder());
    assert_eq!((refusal(&mut patient, fake.folder()), fake.inits()), (first, 1));

    let mut eager = Drivers::new(Duration::ZERO);
    assert_eq!(refusal(&mut eager, fake.folder()).cause, Cause::NoDriver);
    fake.set("");
    assert_eq!(eager.driver(Some(fake.folder())).unwrap().count().unwrap(), 2);
}

#[test]
fn a_missing_library_is_found_once_it_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let mut drivers = Drivers::new(Duration::from_secs(3600));
    let missing = refusal(&mut drivers, folder.path());
    assert_eq!((missing.what.as_str(), missing.cause), ("NVML", Cause::NoLibrary));
    assert!(missing.reason.contains("No such file"), "{missing}");

    let fake = Fake::new("");
    fs::copy(fake.library(), folder.path().join("libnvidia-ml.so.1")).unwrap();
    assert_eq!(drivers.driver(Some(folder.path())).unwrap().count().unwrap(), 2);
}

#[test]
fn another_library_or_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("other.c"), folder.path().join("other.so"));
    fs::write(&source, "int other(void) { return 1; }\n").unwrap();
    compile(&source, &library);
    let error = refusal(&mut Drivers::new(RETRY), &library);
    assert_eq!(error.cause, Cause::NotNvml);
    assert!(error.reason.contains("nvmlInit_v2"), "{error}");
    assert_eq!(refusal(&mut Drivers::new(RETRY), &source).cause, Cause::NoLibrary);
}

#[test]
fn a_driver_without_a_function_is_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("old.c"), folder.path().join("old.so"));
    let old = "int nvmlInit_v2(void) { return 0; }\n\
               int nvmlShutdown(void) { return 0; }\n\
               int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }\n\
               int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = 0; return i; }\n";
    fs::write(&source, old).unwrap();
    compile(&source, &library);
    let mut drivers = Drivers::new(RETRY);
    let error = drivers.driver(Some(&library)).unwrap().memory(0).unwrap_err();
    assert_eq!(error.cause, Cause::TooOld);
    assert!(error.reason.contains("nvmlDeviceGetMemoryInfo_v2"), "{error}");
}

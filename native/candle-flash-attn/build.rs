//! PTX of the kernels in `src/*.cu`, for compute 8.0: the driver compiles it for the card at hand.

use std::path::Path;
use std::process::Command;
use std::{env, error, thread};

const MODULES: [&str; 2] = ["bf16", "f16"];

/// As candle's build has them.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "--use_fast_math",
];

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=NVCC");
    let nvcc = &env::var("NVCC").unwrap_or_else(|_| "nvcc".into());
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);

    let failures: Vec<String> = thread::scope(|scope| {
        let begin = |module| scope.spawn(move || compile(nvcc, module, out));
        let running = MODULES.map(begin);
        running
            .into_iter()
            .filter_map(|one| one.join().unwrap_or(Err("panicked".into())).err())
            .collect()
    });
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n").into()),
    }
}

fn compile(nvcc: &str, module: &str, out: &Path) -> Result<(), String> {
    let mut command = Command::new(nvcc);
    command.args(["-ptx", "-arch=compute_80"]).args(FLAGS);
    command.arg(format!("src/{module}.cu")).arg("-o").arg(out.join(format!("{module}.ptx")));
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{module}.cu: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{nvcc}: {error} (to mend it: bin/cuda-toolkit)")),
    }
}

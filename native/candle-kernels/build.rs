//! PTX of candle's kernels. One text serves every card: the driver compiles it for the one at hand, and compute
//! 8.0 is the least that Sconce runs on.

use std::path::Path;
use std::process::Command;
use std::{env, error, fs, thread};

const MODULES: [&str; 10] = [
    "affine", "binary", "cast", "conv", "fill", "indexing", "reduce", "sort", "ternary", "unary",
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
        running.into_iter().filter_map(|one| one.join().unwrap_or(Err("panicked".into())).err()).collect()
    });
    if !failures.is_empty() {
        return Err(failures.join("\n").into());
    }
    fs::write(out.join("ptx.rs"), MODULES.map(constant).concat())?;
    Ok(())
}

fn compile(nvcc: &str, module: &str, out: &Path) -> Result<(), String> {
    let mut command = Command::new(nvcc);
    command.args(["-ptx", "-arch=compute_80", "-std=c++17", "-O3", "--expt-relaxed-constexpr"]);
    command.arg(format!("src/{module}.cu")).arg("-o").arg(out.join(format!("{module}.ptx")));
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{module}.cu: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{nvcc}: {error} (to mend it: bin/cuda-toolkit)")),
    }
}

fn constant(module: &str) -> String {
    let name = module.to_uppercase();
    format!("pub const {name}: &str = include_str!(concat!(env!(\"OUT_DIR\"), \"/{module}.ptx\"));\n")
}

//! Runs over seeds and their medians: `learn ENV SEEDS OPTIONS BACKBONE`, where options and backbone are JSON, for
//! example `learn cart_pole 5 '{"steps": 300000}' '{"gru": {..}}'`. The script `bench/learning/play` calls it.

use std::sync::atomic::AtomicBool;

use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_play::options::PpoOptions;
use sconce_play::run::{Task, run};
use sconce_tensor::{Error, Result};
use serde_json::{Value, json};

fn spec(env: &str, options: &PpoOptions, backbone: Backbone) -> Result<Spec> {
    let env = sconce_env::spec(&options.env(env))?;
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.push(Head { name: "value".into(), kind: HeadKind::Value(1), hidden_size: 0 });
    heads.parts.iter_mut().for_each(|head| head.hidden_size = 0);
    let embedding = Embedding::vector(env.observation_size);
    Ok(Spec { embedding, critic: Some(backbone.clone()), backbone, heads })
}

fn parsed<T: serde::de::DeserializeOwned>(what: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| Error::corrupt(what, e))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.into());
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let mlp = json!({"mlp": {
        "hidden_sizes": [64, 64], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }});
    let env = arg(0, "cart_pole");
    let backbone = args.get(3).map_or(mlp, |text| json(text));
    let mut ends = vec![];
    for seed in 1..=arg(1, "5").parse::<u64>().unwrap_or(5) {
        let mut given = json(&arg(2, "{}"));
        given["seed"] = seed.into();
        let options: PpoOptions = parsed("options", given)?;
        let spec = spec(&env, &options, parsed("backbone", backbone.clone())?)?;
        let out = std::env::temp_dir().join(format!("sconce-learn-{}-{seed}", std::process::id()));
        let task = Task { spec: &spec, env: &env, host: None, inbox: None, resume: false };
        let report = run(task, &options, &out, &|_| {}, &AtomicBool::new(false))?;
        let _ = std::fs::remove_dir_all(&out);
        let mean = report.mean_return.unwrap_or(f64::NAN);
        println!(
            "{env} seed {seed}: {mean:.1} (best {:.1}) after {} steps, {:.1} s, {:.0} k steps/s, {:?}",
            report.best_return.unwrap_or(f64::NAN),
            report.steps,
            report.seconds,
            report.steps as f64 / report.seconds / 1e3,
            report.stopped,
        );
        ends.push([mean, report.steps as f64, report.seconds]);
    }
    let median = |i: usize| {
        let mut column: Vec<f64> = ends.iter().map(|end| end[i]).collect();
        column.sort_by(f64::total_cmp);
        column[column.len() / 2]
    };
    println!("{env}: median {:.1} after {} steps, {:.1} s", median(0), median(1), median(2));
    Ok(())
}

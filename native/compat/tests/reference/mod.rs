//! The formulas of ExPhil's policies in float64, one window at a time, straight from the parameters of a file. They use
//! nothing of Sconce's layers. `test/golden/exphil/README.md` has the formulas.

use std::collections::BTreeMap;

use sconce_compat::layers::{Layers, Numbers};
use serde_json::{Map, Value};

/// A sequence of vectors.
pub type Rows = Vec<Vec<f64>>;

/// The initial states of a window: h and c of each layer, or zeros.
#[derive(Default, Clone)]
pub struct Initial {
    pub h: Option<Rows>,
    pub c: Option<Rows>,
}

impl Initial {
    fn of(state: &Option<Rows>, layer: usize, width: usize) -> Vec<f64> {
        state.as_ref().map_or(vec![0.0; width], |all| all[layer].clone())
    }
}

/// The parameters of a file in float64.
pub struct Params {
    leaves: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    pub config: Map<String, Value>,
}

impl Params {
    pub fn new(layers: &Layers, config: Map<String, Value>) -> Self {
        let double = |numbers: &Numbers| match numbers {
            Numbers::Floats(all) => all.iter().map(|x| f64::from(*x)).collect(),
            Numbers::Words(all) => all.iter().map(|x| f64::from(*x)).collect(),
        };
        let own = |(name, leaf): (&String, &sconce_compat::layers::Leaf)| {
            (name.clone(), (leaf.shape.clone(), double(&leaf.numbers)))
        };
        Params { leaves: layers.iter().map(own).collect(), config }
    }

    fn has(&self, name: &str) -> bool {
        self.leaves.contains_key(name)
    }

    fn get(&self, name: &str) -> (&[usize], &[f64]) {
        let (shape, numbers) = &self.leaves[name];
        (shape, numbers)
    }

    fn size(&self, name: &str) -> usize {
        self.config[name].as_u64().unwrap() as usize
    }

    /// `x @ kernel`.
    fn product(&self, x: &[f64], kernel: &str) -> Vec<f64> {
        let (shape, w) = self.get(kernel);
        assert_eq!(x.len(), shape[0], "{kernel}");
        let at = |j: usize| x.iter().enumerate().map(|(i, x)| x * w[i * shape[1] + j]).sum();
        (0..shape[1]).map(at).collect()
    }

    fn dense(&self, x: &[f64], layer: &str) -> Vec<f64> {
        let (_, bias) = self.get(&format!("{layer}.bias"));
        add(&self.product(x, &format!("{layer}.kernel")), bias)
    }

    fn norm(&self, x: &[f64], layer: &str, eps: f64) -> Vec<f64> {
        let (_, gamma) = self.get(&format!("{layer}.gamma"));
        let (_, beta) = self.get(&format!("{layer}.beta"));
        let plain = normalised(x, eps);
        plain.iter().zip(gamma).zip(beta).map(|((x, g), b)| x * g + b).collect()
    }

    fn all(&self, x: &Rows, f: impl Fn(&[f64]) -> Vec<f64>) -> Rows {
        x.iter().map(|x| f(x)).collect()
    }
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn plus(a: &Rows, b: &Rows) -> Rows {
    a.iter().zip(b).map(|(a, b)| add(a, b)).collect()
}

fn map(x: &[f64], f: impl Fn(f64) -> f64) -> Vec<f64> {
    x.iter().map(|x| f(*x)).collect()
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn normalised(x: &[f64], eps: f64) -> Vec<f64> {
    let m = mean(x);
    let variance = mean(&map(x, |x| (x - m) * (x - m)));
    map(x, |x| (x - m) / (variance + eps).sqrt())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The error function, by its series and, for larger numbers, its continued fraction.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..200 {
            term *= -a * a / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..=120).rev().fold(0.0, |f, k| (k as f64 / 2.0) / (a + f));
        1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + fraction)
    };
    value * x.signum()
}

fn gelu(x: f64) -> f64 {
    x * 0.5 * (1.0 + erf(x / 2f64.sqrt()))
}

fn halves(x: &[f64]) -> (&[f64], &[f64]) {
    x.split_at(x.len() / 2)
}

/// The trunk vector of the last frame of a window.
pub fn trunk(p: &Params, x: &Rows, initial: &Initial) -> Vec<f64> {
    let temporal = p.config["temporal"].as_bool().unwrap();
    let name = if temporal { p.config["backbone"].as_str().unwrap() } else { "mlp" };
    match name {
        "mlp" => mlp(p, x.last().unwrap()),
        "lstm" | "gru" => last(recurrent(p, name, x, initial)),
        "min_gru" | "min_lstm" => last(min_rnn(p, name, x)),
        "mamba" => last(mamba(p, "mamba_block", x, false)),
        // A window of at most one chunk of 32 frames also decays what a frame adds in that frame.
        "mamba_2" | "mamba_ssd" => last(mamba(p, "mamba_ssd_block", x, x.len() <= 32)),
        "sliding_window" | "attention" => last(attention(p, x)),
        "lstm_hybrid" => last(lstm_hybrid(p, x, initial)),
        "gated_ssm" => last(gated_ssm(p, x)),
        "jamba" => last(jamba(p, x)),
        "deep_res_lstm" => last(deep_res_lstm(p, x, initial)),
        other => panic!("{other}"),
    }
}

/// The logits of each head.
pub fn heads(p: &Params, trunk: &[f64]) -> BTreeMap<&'static str, Vec<f64>> {
    let head = |name: &'static str| {
        let hidden = map(&p.dense(trunk, &format!("{name}_hidden")), |x| x.max(0.0));
        (name, p.dense(&hidden, &format!("{name}_logits")))
    };
    ["buttons", "main_x", "main_y", "c_x", "c_y", "shoulder"].into_iter().map(head).collect()
}

fn last(mut rows: Rows) -> Vec<f64> {
    rows.pop().unwrap()
}

fn mlp(p: &Params, x: &[f64]) -> Vec<f64> {
    let mut x = x.to_vec();
    let residual = p.has("backbone_proj_0.kernel");
    for i in 0.. {
        if !p.has(&format!("backbone_dense_{i}.kernel")) {
            break;
        }
        let mut y = p.dense(&x, &format!("backbone_dense_{i}"));
        if p.has(&format!("backbone_ln_{i}.gamma")) {
            y = p.norm(&y, &format!("backbone_ln_{i}"), 1e-5);
        }
        y = map(&y, |y| y.max(0.0));
        if residual {
            let skip = format!("backbone_proj_{i}");
            let projected = p.has(&format!("{skip}.kernel")).then(|| p.dense(&x, &skip));
            y = add(&y, &projected.unwrap_or(x));
        }
        x = y;
    }
    x
}

/// The parameters of a gate: kernel, recurrent kernel and biases. Both layouts of files are read.
fn gate(
    p: &Params,
    cell: &str,
    layer: usize,
    gate: &str,
    x: &[f64],
    h: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let name = format!("{cell}_{layer}");
    if p.has(&format!("{name}_input_proj.kernel")) {
        let order = if cell == "lstm" { "ifgo" } else { "rzn" };
        let at = order.find(gate).unwrap();
        let cut = |all: Vec<f64>| {
            let n = all.len() / order.len();
            all[at * n..(at + 1) * n].to_vec()
        };
        let input = cut(p.dense(x, &format!("{name}_input_proj")));
        let kernel = format!("{name}_fused_scan.{name}_recurrent_kernel");
        return (input, cut(p.product(h, &kernel)));
    }
    let (from_x, from_h) =
        (format!("{name}.input_kernel.wi{gate}"), format!("{name}.hidden_kernel.wh{gate}"));
    let (mut input, mut state) = (p.product(x, &from_x), p.product(h, &from_h));
    if cell == "gru" && gate == "n" {
        input = add(&input, p.get(&format!("{name}.bias.bin")).1);
        state = add(&state, p.get(&format!("{name}.bias.bhn")).1);
    } else {
        input = add(&input, p.get(&format!("{name}.bias.b{gate}")).1);
    }
    (input, state)
}

fn lstm_layer(p: &Params, layer: usize, x: &Rows, mut h: Vec<f64>, mut c: Vec<f64>) -> Rows {
    let mut all = vec![];
    for x in x {
        let sum = |of: &str| {
            let (input, state) = gate(p, "lstm", layer, of, x, &h);
            add(&input, &state)
        };
        let (i, f, g, o) = (
            map(&sum("i"), sigmoid),
            map(&sum("f"), sigmoid),
            map(&sum("g"), f64::tanh),
            map(&sum("o"), sigmoid),
        );
        c = add(&times(&f, &c), &times(&i, &g));
        h = times(&o, &map(&c, f64::tanh));
        all.push(h.clone());
    }
    all
}

fn gru_layer(p: &Params, layer: usize, x: &Rows, mut h: Vec<f64>) -> Rows {
    let mut all = vec![];
    for x in x {
        let parts = |of: &str| gate(p, "gru", layer, of, x, &h);
        let (r, z, n) = (parts("r"), parts("z"), parts("n"));
        let r = map(&add(&r.0, &r.1), sigmoid);
        let z = map(&add(&z.0, &z.1), sigmoid);
        let n = map(&add(&n.0, &times(&r, &n.1)), f64::tanh);
        h = z.iter().zip(&n).zip(&h).map(|((z, n), h)| (1.0 - z) * n + z * h).collect();
        all.push(h.clone());
    }
    all
}

fn recurrent(p: &Params, cell: &str, x: &Rows, initial: &Initial) -> Rows {
    let mut x = p.all(x, |x| p.norm(x, "input_ln", 1e-6));
    for layer in 1..=p.size("num_layers") {
        let norm = format!("{cell}_{layer}_ln");
        let width = p.get(&format!("{norm}.gamma")).1.len();
        let h = Initial::of(&initial.h, layer - 1, width);
        let y = match cell {
            "lstm" => lstm_layer(p, layer, &x, h, Initial::of(&initial.c, layer - 1, width)),
            _ => gru_layer(p, layer, &x, h),
        };
        x = p.all(&y, |y| p.norm(y, &norm, 1e-6));
    }
    x
}

fn projected(p: &Params, x: &Rows) -> Rows {
    match p.has("input_projection.kernel") {
        true => p.all(x, |x| p.dense(x, "input_projection")),
        false => x.clone(),
    }
}

fn min_rnn(p: &Params, cell: &str, x: &Rows) -> Rows {
    let mut x = projected(p, x);
    for layer in 1..=p.size("num_layers") {
        let name = format!("{cell}_{layer}");
        let mut h = vec![0.0; x[0].len()];
        let mut all = vec![];
        for x in &x {
            let n = p.norm(x, &format!("{name}_norm"), 1e-5);
            let candidate = p.dense(&n, &format!("{name}_candidate"));
            let (keep, take) = if cell == "min_gru" {
                let z = map(&p.dense(&n, &format!("{name}_gate")), sigmoid);
                (map(&z, |z| 1.0 - z), z)
            } else {
                let f = map(&p.dense(&n, &format!("{name}_forget")), sigmoid);
                let i = map(&p.dense(&n, &format!("{name}_input")), sigmoid);
                let sum = map(&add(&f, &i), |s| s + 1e-6);
                let over = |a: &[f64]| a.iter().zip(&sum).map(|(a, s)| a / s).collect();
                (over(&f), over(&i))
            };
            h = add(&times(&keep, &h), &times(&take, &candidate));
            all.push(h.clone());
        }
        x = plus(&x, &all);
    }
    p.all(&x, |x| p.norm(x, "final_norm", 1e-5))
}

/// The step size dt of each channel, before its bounds.
fn step_sizes(p: &Params, a: &[f64], block: &str) -> Vec<f64> {
    let low = p.dense(a, &format!("{block}_ssm_dt_rank"));
    map(&p.dense(&low, &format!("{block}_ssm_dt_proj")), softplus)
}

fn mamba(p: &Params, prefix: &str, x: &Rows, decays_input: bool) -> Rows {
    let mut x = projected(p, x);
    for layer in 1..=p.size("num_layers") {
        let block = format!("{prefix}_{layer}");
        let both = p.all(&x, |x| {
            p.dense(&p.norm(x, &format!("{block}_norm"), 1e-5), &format!("{block}_in_proj"))
        });
        let (shape, kernel) = p.get(&format!("{block}_conv_dw_conv.kernel"));
        let (_, bias) = p.get(&format!("{block}_conv_dw_conv.bias"));
        let (taps, width) = (shape[0], shape[2]);
        let mut state = vec![];
        let mut out = vec![];
        for t in 0..x.len() {
            let channel = |i: usize| {
                let tap = |j: usize| match (t + j).checked_sub(taps - 1) {
                    Some(at) => kernel[j * width + i] * both[at][i],
                    None => 0.0,
                };
                silu((0..taps).map(tap).sum::<f64>() + bias[i])
            };
            let a: Vec<f64> = (0..width).map(channel).collect();
            let bc = p.dense(&a, &format!("{block}_ssm_bc_proj"));
            let (b, c) = halves(&bc);
            let n = b.len();
            let dt = map(&step_sizes(p, &a, &block), |dt| dt.clamp(0.001, 0.1));
            let shared = mean(&dt);
            state.resize(width * n, 0.0);
            let mut y = vec![0.0; width];
            for i in 0..width {
                for k in 0..n {
                    let (decay, add) = ((-((k + 1) as f64) * dt[i]).exp(), shared * b[k] * a[i]);
                    let h: &mut f64 = &mut state[i * n + k];
                    *h = if decays_input { decay * (*h + add) } else { decay * *h + add };
                    y[i] += c[k] * *h;
                }
            }
            let gated = times(&y, &map(&both[t][width..], silu));
            out.push(p.dense(&gated, &format!("{block}_out_proj")));
        }
        x = plus(&x, &out);
    }
    x
}

fn positions(x: &Rows) -> Rows {
    let at = |(t, x): (usize, &Vec<f64>)| {
        x.iter().enumerate().map(|(d, x)| x + (t as f64 / (1.0 + 0.01 * d as f64)).sin()).collect()
    };
    x.iter().enumerate().map(at).collect()
}

fn attend(qkv: &Rows, heads: usize, normalise: bool) -> Rows {
    let width = qkv[0].len() / 3;
    let size = width / heads;
    let part = |t: usize, which: usize, head: usize| {
        let own = &qkv[t][which * width + head * size..][..size];
        if normalise && which < 2 { normalised(own, 1e-6) } else { own.to_vec() }
    };
    let mut out = vec![vec![0.0; width]; qkv.len()];
    for head in 0..heads {
        for (t, out) in out.iter_mut().enumerate() {
            let q = part(t, 0, head);
            let score = |s: usize| {
                q.iter().zip(part(s, 1, head)).map(|(q, k)| q * k).sum::<f64>()
                    / (size as f64).sqrt()
            };
            let scores: Vec<f64> = (0..=t).map(score).collect();
            let most = scores.iter().fold(f64::MIN, |a, b| a.max(*b));
            let weights = map(&scores, |s| (s - most).exp());
            let sum: f64 = weights.iter().sum();
            for (s, weight) in weights.iter().enumerate() {
                for (i, v) in part(s, 2, head).iter().enumerate() {
                    out[head * size + i] += weight / sum * v;
                }
            }
        }
    }
    out
}

fn attention(p: &Params, x: &Rows) -> Rows {
    let mut x = positions(&p.all(x, |x| p.dense(x, "input_proj")));
    for layer in 1..=p.size("num_layers") {
        let name = |of: &str| format!("layer_{layer}_{of}");
        let qkv = p.all(&x, |x| p.dense(x, &name("attn_qkv")));
        let y = plus(&x, &attend(&qkv, p.size("num_heads"), false));
        x = p.all(&y, |y| p.norm(y, &name("norm1"), 1e-5));
        let inner = |x: &[f64]| map(&p.dense(x, &name("ffn1")), gelu);
        let y = p.all(&x, |x| add(x, &p.dense(&inner(x), &name("ffn2"))));
        x = p.all(&y, |y| p.norm(y, &name("norm2"), 1e-5));
    }
    x
}

fn lstm_hybrid(p: &Params, x: &Rows, initial: &Initial) -> Rows {
    let x = recurrent(p, "lstm", x, initial);
    let x = p.all(&x, |x| p.dense(x, "lstm_to_attn_proj"));
    let a = attend(&p.all(&x, |x| p.dense(x, "hybrid_attn_qkv")), p.size("num_heads"), false);
    let y = plus(&x, &p.all(&a, |a| p.dense(a, "hybrid_attn_output")));
    p.all(&y, |y| p.norm(y, "attn_norm", 1e-5))
}

fn gated_block(p: &Params, block: &str, x: &Rows) -> Rows {
    let both = p.all(x, |x| {
        p.dense(&p.norm(x, &format!("{block}_norm"), 1e-5), &format!("{block}_in_proj"))
    });
    let width = both[0].len() / 2;
    let frames = x.len();
    let weight = |t: usize| 0.9f64.powi((frames - 1 - t) as i32);
    let total: f64 = (0..frames).map(weight).sum();
    let frame = |t: usize| {
        let channel = |i: usize| (t.saturating_sub(3)..=t).map(|s| both[s][i]).sum::<f64>() / 4.0;
        let v: Vec<f64> = (0..width).map(channel).collect();
        let a = map(&p.dense(&v, &format!("{block}_conv_proj")), silu);
        let bc = p.dense(&a, &format!("{block}_ssm_bc_proj"));
        let (b, c) = halves(&bc);
        let gate = sigmoid(mean(&step_sizes(p, &a, block)));
        let scale = sigmoid(times(b, c).iter().sum());
        let y = map(&a, |a| {
            let g = gate * scale * a;
            g + (1.0 - gate) * g * weight(t) / total
        });
        p.dense(&times(&y, &map(&both[t][width..], silu)), &format!("{block}_out_proj"))
    };
    (0..frames).map(frame).collect()
}

fn gated_ssm(p: &Params, x: &Rows) -> Rows {
    let mut x = projected(p, x);
    for layer in 1..=p.size("num_layers") {
        x = plus(&x, &gated_block(p, &format!("mamba_block_{layer}"), &x));
    }
    x
}

fn jamba(p: &Params, x: &Rows) -> Rows {
    let mut x = positions(&projected(p, x));
    for layer in 1..=p.size("num_layers") {
        let block = format!("layer_{layer}_backbone");
        if p.has(&format!("{block}_in_proj.kernel")) {
            let normed = p.all(&x, |x| p.norm(x, &format!("{block}_pre_norm"), 1e-5));
            x = plus(&x, &gated_block(p, &block, &normed));
            continue;
        }
        let name = |of: &str| format!("layer_{layer}_attn_{of}");
        let maybe = |x: &[f64], of: &str| match p.has(&format!("{}.kernel", name(of))) {
            true => p.dense(x, &name(of)),
            false => x.to_vec(),
        };
        let qkv = p.all(&x, |x| {
            let y = p.norm(x, &name("pre_norm"), 1e-5);
            p.dense(&maybe(&y, "attn_proj_in"), &name("qkv"))
        });
        let a = attend(&qkv, p.size("num_heads"), true);
        x = plus(&x, &p.all(&a, |a| maybe(a, "attn_proj_out")));
        let inner =
            |x: &[f64]| map(&p.dense(&p.norm(x, &name("ffn_pre_norm"), 1e-5), &name("ffn1")), gelu);
        x = p.all(&x, |x| add(x, &p.dense(&inner(x), &name("ffn2"))));
    }
    p.all(&x, |x| p.norm(x, "final_norm", 1e-5))
}

fn deep_res_lstm(p: &Params, x: &Rows, initial: &Initial) -> Rows {
    let mut x = p.all(x, |x| p.dense(x, "encoder"));
    let width = x[0].len();
    for layer in 1..=p.size("num_layers") {
        let normed = p.all(&x, |x| p.norm(x, &format!("block_{layer}_prenorm"), 1e-6));
        let h = Initial::of(&initial.h, layer - 1, width);
        let y = lstm_layer(p, layer, &normed, h, Initial::of(&initial.c, layer - 1, width));
        x = plus(&x, &p.all(&y, |y| p.dense(y, &format!("decoder_{layer}"))));
    }
    p.all(&x, |x| p.norm(x, "final_norm", 1e-6))
}

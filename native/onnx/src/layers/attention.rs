//! Causal attention over the last frames, with rotary positions.

use sconce_nn::spec::AttentionConfig;
use sconce_ops::attention::{Pairing, THETA, Window};
use sconce_tensor::{Error, Result};

use super::dense::{layer_norm, linear};
use crate::graph::Value;
use crate::net::{Form, Net};
use crate::proto::{Attribute, Type};

/// `W_out attend(norm(W_q x), norm(W_k x), W_v x)`, as [`sconce_nn::backbone::attention::Attention`].
///
/// Parts of the state: `keys` and `values [b, window_size, num_heads * head_dim]`, rings in which frame f lies in slot
/// `f % window_size`, and `seen [b, 1]`, the number of frames.
pub(crate) fn attention(
    net: &mut Net,
    path: &str,
    config: &AttentionConfig,
    x: &Value,
) -> Result<Value> {
    let &AttentionConfig { num_heads, head_dim, window_size, .. } = config;
    let window = Window::new(num_heads, head_dim, window_size, Pairing::Half, THETA)?;
    let (h, d) = (config.hidden_size, window.width());
    let qkv = linear(net, &format!("{path}.qkv"), x, [h, 3 * d])?;
    let [mut q, mut k, v] = net.graph.split(&qkv, -1);
    if config.qk_layernorm {
        q = head_norm(net, &format!("{path}.q_norm"), &q, &window)?;
        k = head_norm(net, &format!("{path}.k_norm"), &k, &window)?;
    }
    let scale = net.graph.number(window.scale());
    let q = net.graph.mul(&q, &scale);
    let y = match net.form() {
        Form::Step => step(net, path, &window, [&q, &k, &v])?,
        Form::Window { .. } => sequence(net, path, &window, [&q, &k, &v]),
    };
    let y = net.graph.reshape(&y, &[-1, d as i64]);
    linear(net, &format!("{path}.out"), &y, [d, h])
}

/// The norm of each head of rows `[n, heads * head_dim]`.
fn head_norm(net: &mut Net, path: &str, x: &Value, window: &Window) -> Result<Value> {
    let by_head = [-1, window.heads() as i64, window.head_dim() as i64];
    let x = net.graph.reshape(x, &by_head);
    let x = layer_norm(net, path, &x, window.head_dim())?;
    Ok(net.graph.reshape(&x, &[-1, window.width() as i64]))
}

/// The parts of a state: rings of keys and values, and the number of frames.
struct State {
    keys: Value,
    values: Value,
    /// `[b, 1]`, integers.
    seen: Value,
}

fn parts(path: &str, window: &Window) -> [(String, Vec<usize>); 3] {
    let ring = vec![window.frames(), window.width()];
    let part = |name: &str, dims: &[usize]| (format!("{path}.{name}"), dims.to_vec());
    [part("keys", &ring), part("values", &ring), part("seen", &[1])]
}

fn state(net: &mut Net, path: &str, window: &Window) -> Option<State> {
    let [keys, values, seen] = parts(path, window).map(|(path, dims)| net.state(&path, &dims));
    let seen = net.graph.cast(&seen?, Type::I64);
    Some(State { keys: keys?, values: values?, seen })
}

/// Sets the next state. `seen` counts all frames; it is bounded, as [`sconce_ops::attention::Cache`] has it.
fn set_state(net: &mut Net, path: &str, window: &Window, next: State) {
    let graph = &mut net.graph;
    let frames = graph.integer(window.frames() as i64);
    let wrapped = graph.op("Mod", &[&next.seen, &frames], &[]);
    let wrapped = graph.add(&wrapped, &frames);
    let is_small = graph.op("Less", &[&next.seen, &frames], &[]);
    let seen = graph.op("Where", &[&is_small, &next.seen, &wrapped], &[]);
    let seen = graph.cast(&seen, Type::F32);
    let values = [next.keys, next.values, seen];
    for ((path, dims), value) in parts(path, window).into_iter().zip(values) {
        net.set_state(&path, value, &dims);
    }
}

/// One frame: `q`, `k` and `v [b, width]`, the result is `[b, heads, 1, head_dim]`. The keys stay in their slots, and
/// each is rotated back by its age.
fn step(net: &mut Net, path: &str, window: &Window, [q, k, v]: [&Value; 3]) -> Result<Value> {
    let State { keys, values, seen } =
        state(net, path, window).ok_or_else(|| Error::not_found("the state of a step"))?;
    let graph = &mut net.graph;
    let (frames, slots) = (graph.integer(window.frames() as i64), graph.range(window.frames()));
    let now = graph.op("Mod", &[&seen, &frames], &[]);
    let is_now = graph.op("Equal", &[&now, &slots], &[]);
    let is_now = graph.unsqueeze(&is_now, 2);
    let [keys, values] = [(k, keys), (v, values)].map(|(own, ring)| {
        let own = graph.unsqueeze(own, 1);
        graph.op("Where", &[&is_now, &own, &ring], &[])
    });
    let age = graph.sub(&now, &slots);
    let age = graph.op("Mod", &[&age, &frames], &[]);
    let exists = graph.op("LessOrEqual", &[&age, &seen], &[]);
    let exists = graph.reshape(&exists, &[-1, 1, 1, window.frames() as i64]);
    // The rotation by an angle of minus the age.
    let angles = (0..window.frames()).map(|age| window.rotation(age));
    let cos: Vec<f32> = angles.clone().flat_map(|(cos, _)| cos).copied().collect();
    let sin: Vec<f32> = angles.flat_map(|(_, sin)| sin).map(|sin| -sin).collect();
    let dims = [window.frames(), window.head_dim() / 2];
    let cos = graph.floats(&format!("{path}.cos"), &dims, &cos);
    let sin = graph.floats(&format!("{path}.sin"), &dims, &sin);
    let [cos, sin] = [cos, sin].map(|table| {
        let by_slot = graph.gather(&table, &age, 0);
        graph.unsqueeze(&by_slot, 1)
    });
    let q = graph.reshape(q, &[-1, window.heads() as i64, 1, window.head_dim() as i64]);
    let k = by_head(net, window, &keys);
    let k = rotated(net, &k, &cos, &sin);
    let v = by_head(net, window, &values);
    let one = net.graph.integer(1);
    let seen = net.graph.add(&seen, &one);
    set_state(net, path, window, State { keys, values, seen });
    Ok(mix(net, &q, &k, &v, &exists))
}

/// All frames of a window: `q`, `k` and `v` as rows, the result is `[b, t, heads, head_dim]`. The frames of the state, in
/// their order, precede those of the window.
fn sequence(net: &mut Net, path: &str, window: &Window, [q, k, v]: [&Value; 3]) -> Value {
    let [q, mut k, mut v] = [q, k, v].map(|of| net.framed(of, window.width()));
    let before = state(net, path, window);
    let base = if before.is_some() { window.frames() } else { 0 };
    let time = net.time();
    if let Some(State { keys, values, seen }) = &before {
        let graph = &mut net.graph;
        let (frames, slots) = (graph.integer(base as i64), graph.range(base));
        let places = graph.add(seen, &slots);
        let places = graph.op("Mod", &[&places, &frames], &[]);
        [k, v] = [(keys, &k), (values, &v)].map(|(ring, own)| {
            let ring = graph.pick(ring, &places);
            graph.concat(&[&ring, own], 1)
        });
    }
    let positions = positions(net, base, &time);
    let seen = before.map(|state| state.seen);
    let sees = sees(net, window, base, &positions, seen.as_ref());
    let (cos, sin) = tables(net, path, window, &positions);
    let [own_cos, own_sin] = [&cos, &sin].map(|table| from(net, table, base));
    let [queries, keys, values] = [&q, &k, &v].map(|of| by_head(net, window, of));
    let queries = rotated(net, &queries, &own_cos, &own_sin);
    let keys = rotated(net, &keys, &cos, &sin);
    let y = mix(net, &queries, &keys, &values, &sees);
    let y = net.graph.transpose(&y, &[0, 2, 1, 3]);
    if let Some(seen) = seen {
        // The last frames of a game begin at place `time`; a slot's frame lies behind this place.
        let graph = &mut net.graph;
        let (frames, slots) = (graph.integer(base as i64), graph.range(base));
        let seen = graph.add(&seen, &time);
        let behind = graph.sub(&slots, &seen);
        let behind = graph.op("Mod", &[&behind, &frames], &[]);
        let places = graph.add(&behind, &time);
        let [keys, values] = [&k, &v].map(|of| graph.pick(of, &places));
        set_state(net, path, window, State { keys, values, seen });
    }
    y
}

/// The places of all keys, `0..base + time`.
fn positions(net: &mut Net, base: usize, time: &Value) -> Value {
    let graph = &mut net.graph;
    let (zero, one, base) = (graph.integer(0), graph.integer(1), graph.integer(base as i64));
    let end = graph.add(time, &base);
    graph.op("Range", &[&zero, &end, &one], &[])
}

/// The rows of a table that belong to the window's own frames.
fn from(net: &mut Net, table: &Value, base: usize) -> Value {
    let (from, to) = (net.graph.ints(&[base as i64]), net.graph.ints(&[i64::MAX]));
    let axis = net.graph.ints(&[0]);
    net.graph.op("Slice", &[table, &from, &to, &axis], &[])
}

/// Mask of the keys that each query sees, broadcast to `[b, heads, t, keys]`: those of the last frames that exist.
fn sees(
    net: &mut Net,
    window: &Window,
    base: usize,
    positions: &Value,
    seen: Option<&Value>,
) -> Value {
    let own = from(net, positions, base);
    let graph = &mut net.graph;
    let own = graph.unsqueeze(&own, 1);
    let age = graph.sub(&own, positions);
    let (zero, frames) = (graph.integer(0), graph.integer(window.frames() as i64));
    let past = graph.op("GreaterOrEqual", &[&age, &zero], &[]);
    let near = graph.op("Less", &[&age, &frames], &[]);
    let sees = graph.op("And", &[&past, &near], &[]);
    let Some(seen) = seen else { return sees };
    // Place j of the ring has a frame if the game has seen `window_size - j` frames.
    let count = graph.add(seen, positions);
    let exists = graph.op("GreaterOrEqual", &[&count, &frames], &[]);
    let exists = graph.unsqueeze(&exists, 1);
    let exists = graph.unsqueeze(&exists, 1);
    graph.op("And", &[&sees, &exists], &[])
}

/// Cosines and sines `[keys, head_dim / 2]` of the positions. Turns are counted in f64, because an angle in f32 loses a
/// digit for every ten frames.
fn tables(net: &mut Net, path: &str, window: &Window, positions: &Value) -> (Value, Value) {
    let (dim, half) = (window.head_dim(), window.head_dim() / 2);
    let turns = |i: usize| THETA.powf(-2.0 * i as f64 / dim as f64) / std::f64::consts::TAU;
    let turns: Vec<f64> = (0..half).map(turns).collect();
    let graph = &mut net.graph;
    let turns = graph.doubles(&format!("{path}.turns"), &[half], &turns);
    let positions = graph.cast(positions, Type::F64);
    let positions = graph.unsqueeze(&positions, 1);
    let turns = graph.mul(&positions, &turns);
    let whole = graph.op("Floor", &[&turns], &[]);
    let rest = graph.sub(&turns, &whole);
    let rest = graph.cast(&rest, Type::F32);
    let circle = graph.number(std::f32::consts::TAU);
    let angle = graph.mul(&rest, &circle);
    (graph.op("Cos", &[&angle], &[]), graph.op("Sin", &[&angle], &[]))
}

/// `[b, n, heads * head_dim]` -> `[b, heads, n, head_dim]`
fn by_head(net: &mut Net, window: &Window, x: &Value) -> Value {
    let shape = [0, 0, window.heads() as i64, window.head_dim() as i64];
    let x = net.graph.reshape(x, &shape);
    net.graph.transpose(&x, &[0, 2, 1, 3])
}

/// `x [b, heads, n, head_dim]`, whose halves are rotated together (Su et al. 2021, eq. 34).
fn rotated(net: &mut Net, x: &Value, cos: &Value, sin: &Value) -> Value {
    let graph = &mut net.graph;
    let [a, b] = graph.split(x, -1);
    let mut turned = |op: &str, p: &Value, q: &Value| {
        let (p, q) = (graph.mul(p, cos), graph.mul(q, sin));
        graph.op(op, &[&p, &q], &[])
    };
    let halves = [turned("Sub", &a, &b), turned("Add", &b, &a)];
    graph.concat(&halves.each_ref(), -1)
}

/// `softmax(q k^T) v` over the keys that a query sees (Vaswani et al. 2017, eq. 1).
fn mix(net: &mut Net, q: &Value, k: &Value, v: &Value, sees: &Value) -> Value {
    let graph = &mut net.graph;
    let k = graph.transpose(k, &[0, 1, 3, 2]);
    let scores = graph.op("MatMul", &[q, &k], &[]);
    // Every query sees itself, so that no row is masked as a whole.
    let masked = graph.number(f32::NEG_INFINITY);
    let scores = graph.op("Where", &[sees, &scores, &masked], &[]);
    let weights = graph.op("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
    graph.op("MatMul", &[&weights, v], &[])
}

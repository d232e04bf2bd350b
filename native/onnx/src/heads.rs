//! Logits of the heads, as [`sconce_nn::heads::Heads`] computes them.

use sconce_nn::Spec;
use sconce_nn::spec::{Gaussian, Head, HeadKind, HeadsKind, Part};
use sconce_ops::Activation;
use sconce_tensor::Result;

use crate::embedding::{labels, one_hot};
use crate::graph::Value;
use crate::layers::dense::{activate, linear, linear_without_bias, product};
use crate::net::Net;
use crate::proto::{Attribute, Type};

/// Logits `[n, num_logits]` of trunk vectors `[n, width]`. `value` is the estimate of a critic, whose value head has no
/// layer here.
pub(crate) fn heads(
    net: &mut Net,
    spec: &Spec,
    trunk: &Value,
    width: usize,
    value: Option<Value>,
) -> Result<Value> {
    let parts: Vec<&Head> = match value {
        Some(_) => spec.heads.choosing().collect(),
        None => spec.heads.parts.iter().collect(),
    };
    let mut logits = match spec.heads.kind {
        HeadsKind::Independent if spec.heads.are_linear() => {
            let logits = parts.iter().map(|head| head.kind.logits()).sum();
            vec![linear(net, "heads.logits", trunk, [width, logits])?]
        }
        HeadsKind::Independent => independent(net, &parts, trunk, width)?,
        HeadsKind::Autoregressive => autoregressive(net, spec, &parts, trunk, width)?,
    };
    logits.extend(value);
    let logits = net.graph.concat(&logits.iter().collect::<Vec<_>>(), 1);
    if !spec.heads.prior {
        return Ok(logits);
    }
    let prior = prior(net, spec)?;
    Ok(net.graph.add(&logits, &prior))
}

/// `W_2 relu(W_1 x)` for each head.
fn independent(net: &mut Net, parts: &[&Head], trunk: &Value, width: usize) -> Result<Vec<Value>> {
    let mut all = vec![];
    for Head { name, kind, hidden_size } in parts {
        let hidden = linear(net, &format!("heads.{name}_hidden"), trunk, [width, *hidden_size])?;
        let hidden = activate(net, &hidden, Activation::Relu)?;
        let sizes = [*hidden_size, kind.logits()];
        all.push(linear(net, &format!("heads.{name}_logits"), &hidden, sizes)?);
    }
    Ok(all)
}

/// A residual stream: each head computes its logits from the stream, and its label in the input `labels` is added for
/// later heads.
fn autoregressive(
    net: &mut Net,
    spec: &Spec,
    parts: &[&Head],
    trunk: &Value,
    width: usize,
) -> Result<Vec<Value>> {
    let size = spec.heads.stream_size;
    let last = parts.iter().rposition(|head| head.kind.labels() > 0);
    let chosen = (last > Some(0)).then(|| labels(net, "labels", spec));
    let first = linear(net, "heads.stream_in", trunk, [width, size])?;
    let (mut stream, mut all, mut at) = (first.clone(), vec![], 0);
    for (i, Head { name, kind, .. }) in parts.iter().enumerate() {
        let read = if kind.labels() == 0 { &first } else { &stream };
        all.push(linear(net, &format!("heads.decode.{name}"), read, [size, kind.logits()])?);
        let end = at + kind.labels();
        if let Some(chosen) = chosen.as_ref().filter(|_| kind.labels() > 0 && last != Some(i)) {
            let own = net.graph.columns(chosen, at, end);
            let features = encoded(net, *kind, &own);
            let path = format!("heads.encode.{name}");
            let added = linear_without_bias(net, &path, &features, [kind.features(), size])?;
            stream = net.graph.add(&stream, &added);
        }
        at = end;
    }
    Ok(all)
}

/// Features of a head's labels `[n, labels]` for later heads.
fn encoded(net: &mut Net, kind: HeadKind, labels: &Value) -> Value {
    match kind {
        HeadKind::Bernoulli(_) | HeadKind::Value(_) => labels.clone(),
        HeadKind::Categorical(classes) => one_hot(net, labels, classes),
        // Numbers in -1..1.
        HeadKind::Gaussian(Gaussian { low, high, .. }) => {
            let graph = &mut net.graph;
            let (low, scale) = (graph.number(low), graph.number(2.0 / (high - low)));
            let one = graph.number(1.0);
            let above = graph.sub(labels, &low);
            let above = graph.mul(&above, &scale);
            graph.sub(&above, &one)
        }
    }
}

/// Offsets of the logits that depend on the input `previous`, `[n, num_logits]`.
fn prior(net: &mut Net, spec: &Spec) -> Result<Value> {
    let previous = labels(net, "previous", spec);
    let mut all = vec![];
    for part in spec.heads.iter() {
        all.push(match part.head.kind {
            HeadKind::Value(_) => zeros(net, &previous, part.head.kind.logits()),
            kind => {
                let own = net.graph.columns(&previous, part.labels, part.labels + kind.labels());
                offset(net, part, &own)?
            }
        });
    }
    Ok(net.graph.concat(&all.iter().collect::<Vec<_>>(), 1))
}

/// Zeros `[n, width]` for rows `x [n, ..]`.
fn zeros(net: &mut Net, x: &Value, width: usize) -> Value {
    let one = net.graph.columns(x, 0, 1);
    let finite = none_as(net, &one, 0.0);
    let (zero, width) = (net.graph.number(0.0), net.graph.ints(&[1, width as i64]));
    let zeros = net.graph.mul(&finite, &zero);
    net.graph.op("Expand", &[&zeros, &width], &[])
}

/// Replaces the infinity that marks a missing label.
fn none_as(net: &mut Net, labels: &Value, value: f32) -> Value {
    let missing = net.graph.op("IsInf", &[labels], &[]);
    let value = net.graph.number(value);
    net.graph.op("Where", &[&missing, &value, labels], &[])
}

/// The offset of one head, from its previous labels `[n, labels]`.
fn offset(net: &mut Net, part: Part<'_>, previous: &Value) -> Result<Value> {
    let kind = part.head.kind;
    let table = net.weight(&format!("heads.prior.{}", part.head.name), &kind.prior())?;
    let axis = [("axis", Attribute::Int(0))];
    Ok(match kind {
        // Column i of a row for a bit of 0, one for a bit of 1, and one for no previous bit.
        HeadKind::Bernoulli(_) | HeadKind::Value(_) => {
            let row = none_as(net, previous, 2.0);
            let row = net.graph.cast(&row, Type::I64);
            net.graph.op("GatherElements", &[&table, &row], &axis)
        }
        HeadKind::Categorical(classes) => {
            let row = none_as(net, previous, classes as f32);
            let row = net.graph.cast(&row, Type::I64);
            let row = net.graph.squeeze(&row, 1);
            net.graph.gather(&table, &row, 0)
        }
        HeadKind::Gaussian(own) => {
            let factors = factors(net, own, previous);
            product(net, &factors, &table)
        }
    })
}

/// Value before tanh of each previous number, then whether there is one and whether there is none.
fn factors(net: &mut Net, of: Gaussian, previous: &Value) -> Value {
    let graph = &mut net.graph;
    let margin = graph.number((of.high - of.low) / (1u32 << 25) as f32);
    let (low, high) = (graph.number(of.low), graph.number(of.high));
    let distances = [graph.sub(previous, &low), graph.sub(&high, previous)];
    // A number at a bound is moved inside by the margin.
    let logs = distances.map(|distance| {
        let zero = graph.number(0.0);
        let is_inside = graph.op("Greater", &[&distance, &zero], &[]);
        let distance = graph.op("Where", &[&is_inside, &distance, &margin], &[]);
        graph.op("Log", &[&distance], &[])
    });
    let pre = graph.sub(&logs[0], &logs[1]);
    let half = graph.number(0.5);
    let pre = graph.mul(&pre, &half);
    let pre = none_as(net, &pre, 0.0);
    let first = net.graph.columns(previous, 0, 1);
    let missing = net.graph.op("IsInf", &[&first], &[]);
    let missing = net.graph.cast(&missing, Type::F32);
    let one = net.graph.number(1.0);
    let known = net.graph.sub(&one, &missing);
    net.graph.concat(&[&pre, &known, &missing], 1)
}

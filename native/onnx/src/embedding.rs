//! Inputs of a model: the embedded vector of a frame, and labels.

use sconce_nn::Spec;
use sconce_nn::spec::Normalised;
use sconce_tensor::{Error, Result};

use crate::graph::Value;
use crate::net::Net;
use crate::proto::{Attribute, Type};

/// Rows of embedded frames, from the inputs `continuous` and `ids`.
pub(crate) fn embed(net: &mut Net, spec: &Spec) -> Result<Value> {
    let embedding = &spec.embedding;
    if embedding.net().is_some() {
        let what = "ONNX of a policy with a network as embedding".into();
        return Err(Error::Unavailable { what, reason: "its layers have no export".into() });
    }
    let (width, slots) = (embedding.continuous_width(), embedding.id_slots());
    let mut input = |name: &str, kind, width: usize| {
        let shape = net.form().of_frames(width);
        (width > 0).then(|| net.graph.input(name, kind, &shape))
    };
    let continuous = input("continuous", Type::F32, width);
    let ids = input("ids", Type::I64, slots.len());
    let Some(frames) = continuous.as_ref().or(ids.as_ref()) else {
        return Err(Error::mismatch("width of a frame", "at least 1", 0));
    };
    net.measure(frames);
    let mut parts = vec![];
    if let Some(continuous) = continuous {
        parts.push(match embedding.normalisation() {
            Some(normalised) => normalise(net, &continuous, normalised),
            None => continuous,
        });
    }
    for (i, slot) in slots.iter().enumerate() {
        let Some(ids) = &ids else { break };
        let table = format!("{}_embedding.weight", slot.table);
        let table = net.weight(&table, &[slot.rows, slot.width])?;
        let at = net.graph.integer(i as i64);
        let id = net.graph.gather(ids, &at, -1);
        parts.push(net.graph.gather(&table, &id, 0));
    }
    let frames = net.graph.concat(&parts.iter().collect::<Vec<_>>(), -1);
    Ok(net.rows(&frames, embedding.width()))
}

/// `(x - mean) / deviation`, bounded.
fn normalise(net: &mut Net, x: &Value, by: &Normalised) -> Value {
    let graph = &mut net.graph;
    let width = [by.mean.len()];
    let mean = graph.floats("embedding.mean", &width, &by.mean);
    let deviation = graph.floats("embedding.deviation", &width, &by.deviation);
    let bounds = [-Normalised::BOUND, Normalised::BOUND].map(|bound| graph.number(bound));
    let x = graph.sub(x, &mean);
    let x = graph.op("Div", &[&x, &deviation], &[]);
    graph.op("Clip", &[&x, &bounds[0], &bounds[1]], &[])
}

/// Rows of an input of labels, `[n, num_labels]`.
pub(crate) fn labels(net: &mut Net, name: &str, spec: &Spec) -> Value {
    let width = spec.heads.num_labels();
    let shape = net.form().of_frames(width);
    let labels = net.graph.input(name, Type::F32, &shape);
    net.rows(&labels, width)
}

/// One-hot rows `[n, classes]` of the classes `[n, 1]`.
pub(crate) fn one_hot(net: &mut Net, class: &Value, classes: usize) -> Value {
    let graph = &mut net.graph;
    let class = graph.squeeze(class, 1);
    let class = graph.cast(&class, Type::I64);
    let depth = graph.integer(classes as i64);
    let values = graph.floats("f32 [0, 1]", &[2], &[0.0, 1.0]);
    graph.op("OneHot", &[&class, &depth, &values], &[("axis", Attribute::Int(-1))])
}
